"""One interpretation of annotations: files, `Spec.check` and the JSON schema agree on each annotation and value."""

from __future__ import annotations

import enum
import math
import pathlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Optional, Union

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import typing_extensions

import declax as dx
from config.schema_checks import refused_by
from declax._typing import Dtype, Initializer


class Color(enum.Enum):
    RED = "red"
    BLUE = 2


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


Json = Union[str, int, list["Json"], dict[str, "Json"]]
Tree = typing_extensions.TypeAliasType("Tree", "Point | list[Tree]")

ANNOTATIONS = [
    int, float, bool, str, None, complex, bytes, Optional[int], int | str, float | str | None, Literal["a", 1,
    True], Color, Color | str, list, list[int], list[float], tuple[int, ...], tuple[int, str], tuple, Sequence[int],
    int | Sequence[int], set[int], frozenset[str], dict[str, int], dict[str, float], Mapping[str, Any], dict, Any,
    Hashable, Dtype, Dtype | None, jax.typing.DTypeLike, Initializer, Callable[[jax.Array], jax.Array],
    pathlib.Path, Point, Point | None, list[Point], dx.Spec[Point], jax.Array, jax.typing.ArrayLike, optax.Schedule
    | float, optax.GradientTransformation, Sequence[Point], dict[str, list[float]], list[Color], Json,
    Json | None, Tree,
]  # fmt: skip
DATA = [
    0, 1, -1, 2.0, 0.5, True, None, "", "x", "a", "1", "RED", "red", "float32", "relu", "normal", [], [1], [1, 2],
    [1, "a"], ["a"], ["RED"],
    [{"a": [["1"], {"b": ["c"]}]}], [{"a": [[1], {"b": [0.5]}]}], [[[{"x": 1}]]],
    [0.5], [None], [[1]], {}, {"a": 1}, {"a": "b"}, {"a": [1]}, {"x": 1}, {"x": "1"},
    [{"x": 1}], {"kind": "sgd", "learning_rate": 1},
]  # fmt: skip
OBJECTS = [
    2**70, 1j, b"x", (1, 2), (1, "a"), (), {1: 0.5}, jnp.float32, Color.RED, jax.nn.relu, pathlib.Path("a"),
    np.float32(1), np.int32(3), np.bool_(True), dx.initializers.zeros, dx.spec(Point, 1), [dx.spec(Point, 1)],
    Point(1), Point, {1, 2}, math.nan, math.inf, [0.5, -math.inf], {"a": math.nan}, 2**200, [2**200], -(2**128),
]  # fmt: skip


def taking(annotation: Any) -> Any:
    def take(value):
        return value

    take.__annotations__["value"] = annotation
    return take


def refusal(do: Callable[[], object]) -> dx.DeclaxError | None:
    try:
        do()
    except dx.DeclaxError as error:
        return error
    return None


def is_tagged(annotation: Any, value: object) -> bool:
    """A dict with the key ``kind`` under Any: a part in a file, and a dict in Python."""
    return annotation in (Any, dict, Hashable, Mapping[str, Any]) and isinstance(value, dict) and "kind" in value


@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=str)
def test_files_and_checks_agree(annotation):
    take = taking(annotation)
    for value in [*DATA, *OBJECTS]:
        if not is_tagged(annotation, value):
            read = refusal(lambda value=value: dx.spec_from_config(take, {"value": value}))
            made = refusal(lambda value=value: dx.Spec(take, {"value": value}).check())
            assert (read is None) == (made is None), (value, read, made)


@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=str)
def test_values_that_both_take_are_equal(annotation):
    take = taking(annotation)
    for value in DATA:
        if (
            not is_tagged(annotation, value)
            and refusal(lambda value=value: dx.Spec(take, {"value": value}).check()) is None
        ):
            read, made = dx.spec_from_config(take, {"value": value}), dx.Spec(take, {"value": value})
            assert annotation == Color | str or read == made, value


@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=str)
def test_files_and_schemas_agree(annotation):
    take = taking(annotation)
    schema = dx.json_schema(take)
    for value in DATA:
        read = refusal(lambda value=value: dx.spec_from_config(take, {"value": value}))
        assert (read is not None) == refused_by(schema, {"value": value}), (value, read)


def test_an_int_for_a_float_is_a_float():
    assert type(dx.spec_from_config(taking(float), {"value": 2})["value"]) is float
    for two in (dx.spec(taking_float, 2), dx.spec_from_config(taking_float, {"value": 2})):
        assert two == dx.spec(taking_float, 2.0)
        assert two.fingerprint() == dx.spec(taking_float, 2.0).fingerprint()
        assert dx.to_config(two)["value"] == 2.0


def taking_float(value: float) -> float:
    return value
