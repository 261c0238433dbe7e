"""What data may stand for, annotation by annotation, and how strict that is."""

from __future__ import annotations

import collections.abc
import enum
import numbers
import pathlib
import time
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NewType, Optional, TypeVar, Union

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import config_models as models
import declax as dx
from declax._typing import Dtype, Initializer
from declax.config._reading.readers import INVALID, Context
from naming import name_of


class Color(enum.Enum):
    RED = "red"
    BLUE = 2


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


class Pair(NamedTuple):
    a: int
    b: str = "b"


Precision = None | str | jax.lax.Precision | tuple[str, str] | tuple[jax.lax.Precision, jax.lax.Precision]
Width = NewType("Width", int)
N = TypeVar("N", bound=int)


def read(annotation, data, **options):
    """The value and the problems of data."""
    context = Context(**options)
    found = models.read_as(annotation, data, context)
    assert (found is INVALID) == bool(context)
    return found, context.problems


GOOD = [
    (int, 3, 3),
    (int, -(2**63), -(2**63)),
    (float, 3, 3.0),
    (float, 0.5, 0.5),
    (bool, True, True),
    (str, "x", "x"),
    (None, None, None),
    (Optional[int], None, None),
    (Optional[int], 1, 1),
    (int | str, "1", "1"),
    (int | str, 1, 1),
    (Union[float, int], 1, 1),
    (float | str, 1, 1.0),
    (complex, 1, 1),
    (collections.abc.Hashable, 1, 1),
    (Any, {1: 2}, {1: 2}),
    (bool | int, True, True),
    (bool | int, 1, 1),
    (Literal["a", 1, True], 1, 1),
    (Literal["a", 1, True], True, True),
    (Color, "RED", Color.RED),
    (Color | str, "RED", Color.RED),
    (Color | str, "red", "red"),
    (tuple[str, str] | tuple[Color, Color], ["RED", "BLUE"], (Color.RED, Color.BLUE)),
    (int, 2**70, 2**70),
    (list, [1, "a", None], [1, "a", None]),
    (list[int], [1, 2], [1, 2]),
    (list[int] | None, [], []),
    (tuple[int, ...], [1, 2], (1, 2)),
    (tuple[int, str], [1, "a"], (1, "a")),
    (tuple[()], [], ()),
    (tuple, [1, "a"], (1, "a")),
    (int | tuple[int, int], [1, 2], (1, 2)),
    (Sequence[int], [1], (1,)),
    (Iterable[float], [1, 2.5], (1, 2.5)),
    (int | Sequence[int], 3, 3),
    (frozenset[str], ["a", "b"], frozenset({"a", "b"})),
    (dict[str, int], {"a": 1, "__class__": 2}, {"a": 1, "__class__": 2}),
    (Mapping[str, Any], {"a": [{"b": None}]}, {"a": [{"b": None}]}),
    (dict[int, float], {"10": 0.5}, {10: 0.5}),
    (dict, {"a": 1}, {"a": 1}),
    (Any, {"a": [1, {"b": 2.5}]}, {"a": [1, {"b": 2.5}]}),
    (Any, {"$ref": "/"}, INVALID),
    (Dtype, "bfloat16", jnp.bfloat16),
    (Dtype | None, "int8", jnp.int8),
    (Dtype | None, None, None),
    (np.dtype, "float32", jnp.float32),
    (jax.typing.DTypeLike, "bool", jnp.bool_),
    (Optional[jax.typing.DTypeLike], None, None),
    (Initializer, "zeros", dx.initializers.zeros),
    (Initializer, "normal", dx.initializers.normal()),
    (Initializer, {"kind": "normal", "stddev": 2}, dx.initializers.normal(2)),
    (Initializer, {"kind": "zeros"}, dx.initializers.zeros),
    (
        Initializer,
        {"kind": "variance_scaling", "scale": 2.0, "mode": "fan_in", "distribution": "normal", "in_axis": [0, 1]},
        dx.initializers.variance_scaling(2.0, "fan_in", "normal", in_axis=(0, 1)),
    ),
    (Initializer | None, None, None),
    (Callable[[jax.Array], jax.Array], "gelu", dx.gelu),
    (Callable[..., jax.Array] | None, "relu", dx.relu),
    (Precision, "highest", "highest"),
    (Precision, ["highest", "default"], ("highest", "default")),
    (jax.typing.ArrayLike, 0.5, 0.5),
    (pathlib.Path, "a/b", pathlib.Path("a/b")),
    (typing.Annotated[int, "mark"], 3, 3),
    (Width, 3, 3),
    (N, 3, 3),
    (TypeVar("Free"), [1], [1]),
    (Point, {"x": 1}, dx.spec(Point, 1)),
    (Point | int, {"x": 1}, dx.spec(Point, 1)),
    (Point | int, 4, 4),
    (list[Point], [{"kind": "Point", "x": 1, "y": 2}], [dx.spec(Point, 1, 2)]),
    (dict[str, Point], {"a": {"x": 1}}, {"a": dx.spec(Point, 1)}),
    (Pair, {"a": 1}, dx.spec(Pair, 1)),
    (dx.Spec[Point], {"x": 1}, dx.spec(Point, 1)),
    (dx.Spec[Point] | None, None, None),
    (list[dx.Spec[Point]], [{"x": 1}], [dx.spec(Point, 1)]),
    (Point | Pair, {"kind": "Pair", "a": 1}, dx.spec(Pair, 1)),
    (Point, dx.spec(Point, 1), dx.spec(Point, 1)),
]


@pytest.mark.parametrize(("annotation", "data", "value"), GOOD, ids=name_of)
def test_what_data_stands_for(annotation, data, value):
    found, _ = read(annotation, data)
    assert found == value
    assert type(found) is type(value)


BAD = [
    (int, True, "wrong-type", "the bool true"),
    (int, 1.0, "wrong-type", "write 1"),
    (int, "1", "wrong-type", "write 1 without quotes"),
    (Color, 2, "no-choice", "one of RED, BLUE"),
    (int, [1], "wrong-type", "a list of 1"),
    (float, True, "wrong-type", "float"),
    (float, "0.5", "wrong-type", "write 0.5 without quotes"),
    (float, "x" * 100, "wrong-type", "write a number"),
    (float, 16**5000, "wrong-type", "an int of 20001 bits"),
    (bool, 1, "wrong-type", "bool"),
    (bool, "true", "wrong-type", "write true without quotes"),
    (bool, None, "wrong-type", "null"),
    (bool, np.arange(2), "wrong-type", "array([0, 1])"),
    (bool | int, np.arange(2), "wrong-type", "array([0, 1])"),
    (str, 1, "wrong-type", 'write "1"'),
    (str, None, "wrong-type", "string"),
    (None, 1, "wrong-type", "null"),
    (Optional[int], "1", "wrong-type", "int or null"),
    (int | str, 1.5, "wrong-type", "int or string"),
    (Literal["a", 1], True, "no-choice", "one of 'a', 1"),
    (Literal["adam", "sgd"], "adm", "no-choice", "did you mean 'adam'?"),
    (Literal["a"], [1], "no-choice", "a list of 1"),
    (Color, "RDE", "no-choice", "did you mean 'RED'?"),
    (Color, {}, "no-choice", "an empty table"),
    (list[int], 1, "wrong-type", "put it in brackets"),
    (list[int], {}, "wrong-type", "a list, each item int"),
    (list[int], "12", "wrong-type", "a list"),
    (tuple[int, int], [1], "wrong-type", "a list of 2: int, int"),
    (dict[str, int], [1], "wrong-type", "a table, each value int"),
    (dict[int, int], {"a": 1}, "wrong-type", "int"),
    (dict[str, int], {1: 1}, "wrong-type", "a string as the key"),
    (Any, {1.5: 2}, "wrong-type", "a string as the key"),
    (numbers.Real, 3, "no-data", "a configuration cannot give a Real"),
    (Any, {"$ref": 3}, "ref", '{ "$ref" = "/path/to/part" }'),
    (Dtype, "float31", "unknown-dtype", "did you mean 'float32'?"),
    (Dtype, "jnp.float32", "unknown-dtype", "did you mean 'float32'?"),
    (Dtype, 32, "wrong-type", "the name of a dtype"),
    (Initializer, "normall", "unknown-kind", "did you mean 'normal'?"),
    (Initializer, 1, "wrong-type", "the name of an initializer"),
    (Initializer, {"stddev": 1}, "missing-kind", "kind = ..."),
    (Initializer, {"kind": "normal", "std": 1}, "unknown-key", "did you mean 'stddev'?"),
    (Initializer, {"kind": "zeros", "x": 1}, "unknown-key", 'write "zeros"'),
    (
        Initializer,
        {"kind": "variance_scaling", "mode": "fan_in", "distribution": "normal"},
        "missing-key",
        "scale = ...",
    ),
    (Initializer, {"$ref": "/x"}, "wrong-type", "the name of an initializer"),
    (Callable[[int], int], "rellu", "unknown-activation", "did you mean 'relu'?"),
    (Callable[[int], int], "jax.nn.relu", "unknown-activation", "did you mean 'relu'?"),
    (Callable[[int], int], "os.system", "unknown-activation", "data cannot name modules or attributes"),
    (Callable[[int], int], {"kind": 3}, "wrong-type", "the name of an activation"),
    (jax.Array, [1], "no-data", "make it when the model is built"),
    (dx.Param[jax.Array], 1, "no-data", "an array"),
    (type[int], "int", "no-data", "a type[int]"),
    (complex, "1", "wrong-type", "complex number"),
    (collections.abc.AsyncIterator, 1, "no-data", "add its implementations"),
    (Point, 3, "wrong-type", "a table of Point"),
    (Point, "Point", "wrong-type", 'kind = { kind = "Point" }'),
    (Point, {"x": 1, "z": 2}, "unknown-key", "x, y"),
    (Point, {}, "missing-key", "x = ..."),
    (Point, {"x": 1, "kind": "Poin"}, "unknown-kind", "did you mean 'Point'?"),
    (Point, {"x": 1, "kind": "os.system"}, "unknown-kind", "dx.register_kind, or extra=[...], adds"),
    (Point, {"x": 1, "kind": 3}, "wrong-type", "string, Point"),
    (Point, {1: 1, "x": 1}, "wrong-type", "a string as the key"),
    (Point, {"x": 1, "__class__": 2}, "unknown-key", "__class__"),
    (Point, {"x": 1, "rngs": 2}, "unknown-key", "random streams are not configuration"),
    (Point, {"x": 1, "<<": {}}, "unknown-key", "YAML 1.2 has no merge keys"),
    (Point | Pair, {"x": 1}, "missing-kind", 'kind = "Point"'),
    (Point | Pair, {"kind": "Pair", "a": 1, "y": 2}, "unknown-key", 'kind = "Point"'),
    (Point, dx.spec(Pair, 1), "wrong-type", "a table of Point"),
    (Point, {"$ref": "blocks/0"}, "ref", '"$ref" = "/blocks/0"'),
    (Point, {"$ref": "/a", "x": 1}, "unknown-key", "and no other key"),
    (Point, {"$ref": "/a"}, "ref-to-nothing", "no earlier part has this path"),
    (list[Point], [{"x": 1}, {"$ref": "/1"}], "ref-to-nothing", "the path of a part that is built before this one"),
]


@pytest.mark.parametrize(("annotation", "data", "code", "text"), BAD, ids=name_of)
def test_what_data_cannot_stand_for(annotation, data, code, text):
    _, problems = read(annotation, data)
    assert [p.code for p in problems] == [code]
    assert text in str(problems[0])


def test_one_mistake_is_one_problem():
    _, problems = read(models.Mlp, {"dim": 1, "hiden": 3})
    assert [(p.code, p.path) for p in problems] == [("unknown-key", ("hiden",))]


def test_notes_are_checked():
    for data, text in (
        ({"dim": 0}, "at least 1"),
        ({"dim": 1, "heads": 65}, "at most 64"),
        ({"dim": 1, "dropout": -0.5}, "the minimum is 0.0"),
    ):
        _, problems = read(models.Attention, data)
        assert [p.code for p in problems] == ["out-of-range"]
        assert text in str(problems[0])


@dx.dataclass
class Noted(dx.Module):
    sizes: tuple[int, ...] = dx.static(default=(), ge=1)
    word: str | None = dx.static(default="a", choices=("alpha", "beta"))


def test_notes_hold_for_each_item_and_not_for_null():
    _, problems = read(Noted, {"sizes": [1, 0, 2, -1]})
    assert [p.path for p in problems] == [("sizes", 1), ("sizes", 3)]
    assert read(Noted, {"word": None})[0] == dx.spec(Noted, word=None)
    _, problems = read(Noted, {"word": "alfa"})
    assert (problems[0].code, problems[0].hint) == ("no-choice", "did you mean 'alpha'?")


class Open(dx.Module):
    def __init__(self, size: int, *sizes: int, act=dx.relu, dtype=jnp.float32, init=dx.initializers.zeros, **rest: int):
        self.size = size


def test_an_open_class_is_read_by_its_signature_and_defaults():
    config = {"size": 1, "sizes": [2, 3], "act": "gelu", "dtype": "int8", "init": "ones", "more": 4}
    spec, _ = read(Open, config)
    expected = dx.spec(Open, 1, 2, 3, act=dx.gelu, dtype=jnp.int8, init=dx.initializers.ones, more=4)
    assert spec == expected
    assert dx.to_config(spec) == {"kind": "Open", **config}
    for bad in ("__init__", "self", "rngs", "a b", "_x"):
        _, problems = read(Open, {"size": 1, bad: 1})
        assert [p.code for p in problems] == ["unknown-key"]
    assert [p.code for p in read(Open, {"size": 1, "more": "x"})[1]] == ["wrong-type"]


class Tagged(dx.Module):
    def __init__(self, kind: str):
        self.kind = kind


def test_a_parameter_cannot_be_called_as_the_tag():
    with pytest.raises(dx.ConfigError, match="a parameter cannot be called 'kind'; this key selects the class"):
        dx.spec_from_config(Tagged, {"kind": "Tagged"})


def test_two_classes_of_one_tag_cannot_stand_in_one_place():
    other = type("Point", (), {"__init__": lambda self, z=1: None})
    with pytest.raises(dx.ConfigError, match="two classes have the tag 'Point'"):
        read(Point | other, {"kind": "Point"})


def test_what_an_initializer_refuses_has_its_path():
    _, problems = read(models.Mlp, {"dim": 1, "hidden": 1, "kernel_init": {"kind": "normal", "stddev": "0.02"}})
    assert [(p.code, p.path) for p in problems] == [("wrong-type", ("kernel_init", "stddev"))]
    config = {"kind": "variance_scaling", "scale": 1.0, "mode": "fan_inn", "distribution": "normal"}
    _, problems = read(models.Mlp, {"dim": 1, "hidden": 1, "kernel_init": config})
    assert [(p.code, p.path, p.hint) for p in problems] == [
        ("no-choice", ("kernel_init", "mode"), "did you mean 'fan_in'?")
    ]


def test_what_a_spec_refuses_is_a_problem():
    @dataclass
    class Table:
        rows: dict[int, int]

    try:
        expected = dx.spec(Table, {1: 2})
    except dx.DeclaxError:
        _, problems = read(Table, {"rows": {"1": 2}})
        assert [p.code for p in problems] == ["invalid"]
    else:
        assert read(Table, {"rows": {"1": 2}})[0] == expected


def test_arrays_of_jaxtyping_are_no_data():
    jaxtyping = pytest.importorskip("jaxtyping")
    assert read(jaxtyping.Float[jax.Array, ""], 0.5)[1][0].code == "no-data"
    assert read(jaxtyping.Float[jax.Array, "n"], [0.5])[1][0].code == "no-data"


# --- references ---------------------------------------------------------------


def transformer(**changes):
    return {**models.GOOD, **changes}


def test_references_lead_backwards_and_through_lists():
    blocks = [models.GOOD["blocks"][0], {"kind": "Block", "mixer": {"$ref": "/blocks/0/mixer"}}]
    model = dx.from_config(models.Transformer, transformer(blocks=blocks), rngs=dx.Rngs(0))
    assert model.blocks[0].mixer is model.blocks[1].mixer


@pytest.mark.parametrize(
    ("changes", "code", "where"),
    [
        ({"head": {"$ref": "/dim"}}, "ref-to-nothing", "head"),
        ({"head": {"$ref": "/blocks"}}, "ref-to-nothing", "head"),
        ({"head": {"$ref": "/head"}}, "ref-to-nothing", "head"),
        ({"head": {"$ref": "/blocks/0"}}, "ref-kind", "head"),
        ({"blocks": [{"mixer": {"$ref": "/blocks/0"}}]}, "ref-to-nothing", "blocks.0.mixer"),
        ({"blocks": [{"mixer": {"$ref": "/embed"}}]}, "ref-kind", "blocks.0.mixer"),
    ],
)
def test_references_that_lead_nowhere(changes, code, where):
    _, problems = read(models.Transformer, transformer(**changes))
    assert [(p.code, ".".join(map(str, p.path))) for p in problems] == [(code, where)]


@dx.dataclass
class Tree(dx.Module):
    left: Tree | None = None
    right: Tree | None = None


def test_a_class_may_contain_itself():
    spec, _ = read(Tree, {"left": {"left": {}, "right": {"$ref": "/left/left"}}})
    assert spec == dx.spec(Tree, dx.spec(Tree, dx.spec(Tree), dx.Ref("/left/left")))


# --- optax --------------------------------------------------------------------


@dataclass(frozen=True)
class Training:
    tx: optax.GradientTransformation
    warmup: optax.Schedule | None = None


def test_optimizers_and_schedules_are_named():
    config = {
        "kind": "Training",
        "tx": {
            "kind": "chain",
            "args": [
                {"kind": "clip_by_global_norm", "max_norm": 1.0},
                {
                    "kind": "adamw",
                    "learning_rate": {"kind": "cosine_decay_schedule", "init_value": 1e-3, "decay_steps": 100},
                    "weight_decay": 0.1,
                },
            ],
        },
        "warmup": {"kind": "linear_schedule", "init_value": 0.0, "end_value": 1.0, "transition_steps": 10},
    }
    spec, problems = read(Training, config)
    assert not problems
    schedule = dx.spec(optax.cosine_decay_schedule, 1e-3, 100)
    adamw = dx.spec(optax.adamw, schedule, weight_decay=0.1)
    assert spec.arguments["tx"] == dx.spec(optax.chain, dx.spec(optax.clip_by_global_norm, 1.0), adamw)
    assert dx.to_config(spec) == config
    training = spec.build()
    assert isinstance(training.tx, optax.GradientTransformation)
    assert float(training.warmup(5)) == 0.5


def test_a_learning_rate_is_a_number_or_a_schedule():
    for rate in (0.1, 1):
        assert read(optax.GradientTransformation, {"kind": "sgd", "learning_rate": rate})[0] == dx.spec(optax.sgd, rate)
    for bad, code in (
        ("0.1", "wrong-type"),
        (True, "wrong-type"),
        ({"kind": "cosine"}, "unknown-kind"),
        ({"kind": "adam"}, "unknown-kind"),
        ([0.1], "wrong-type"),
    ):
        _, problems = read(optax.GradientTransformation, {"kind": "sgd", "learning_rate": bad})
        assert [p.code for p in problems] == [code]
    _, problems = read(optax.GradientTransformation, {"kind": "admw", "learning_rate": 0.1})
    assert problems[0].hint == "did you mean 'adamw'?"


# --- properties ---------------------------------------------------------------


def plain(*reserved):
    """Data whose tables do not have the reserved keys."""
    return st.recursive(
        st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text(max_size=4).filter(lambda k: k not in reserved), inner, max_size=3)
        ),
        max_leaves=12,
    )


@given(plain("$ref", "kind"))  # with these, a table describes a part
def test_anything_plain_is_kept_as_it_is(data):
    spec, problems = read(models.Data, {"path": "x", "options": {"it": data}})
    assert not problems
    assert dx.to_config(spec).get("options", {}).get("it") == data


@given(plain("$ref"))
def test_no_data_makes_anything_else_than_problems(data):
    for annotation in (models.Transformer, models.Data, Initializer, optax.GradientTransformation, Point | Pair, Open):
        found, problems = read(annotation, data)
        assert found is INVALID or not problems


class Branch(dx.Module):
    def __init__(self, inner: list[Branch] | tuple[Branch, ...] = (), leaf: int = 0):
        self.inner = inner
        self.leaf = leaf


def _branches(depth: int, leaf: object) -> dict[str, object]:
    made: dict[str, object] = {"leaf": leaf}
    for _ in range(depth):
        made = {"inner": [made, {"leaf": 1}]}
    return made


def test_a_union_of_lists_of_one_part_reads_each_part_once():
    started = time.perf_counter()
    found, _ = read(Branch, _branches(30, 3))
    assert len(found["inner"]) == 2
    _, problems = read(Branch, _branches(30, "x"))  # by trial of both at each level, this would take 2**30 steps
    assert time.perf_counter() - started < 20
    assert [(p.code, p.path) for p in problems] == [("wrong-type", (*("inner", 0) * 30, "leaf"))]


def test_refs_in_a_union_of_lists_are_checked_as_elsewhere():
    good = {"inner": [{"inner": [{"leaf": 2}, {"$ref": "/inner/0/inner/0"}]}]}
    assert not read(Branch, good)[1]
    problems = read(Branch, {"inner": [{"inner": [{"leaf": 2}, {"$ref": "/inner/7"}]}]})[1]
    assert [p.code for p in problems] == ["ref-to-nothing"]


class Rope(dx.Module):
    def __init__(self, a: Rope | None = None, b: Rope | None = None, c: Rope | None = None):
        self.a, self.b, self.c = a, b, c


def _ref(path: str) -> dict[str, str]:
    return {"$ref": path}


def test_a_ref_may_lead_to_a_part_by_way_of_others():
    data = {"a": {}, "b": _ref("/a"), "c": _ref("/b")}
    found, problems = read(Rope, data)
    assert not problems
    built = found.build()
    assert built.a is built.b is built.c
    _, problems = read(Rope, {"a": {"a": {}}, "b": _ref("/a"), "c": _ref("/b/a")})
    assert [p.code for p in problems] == ["ref-to-nothing"]


@pytest.mark.parametrize(
    "data",
    [
        {"a": _ref("/b"), "b": _ref("/a")},
        {"a": _ref("/a")},
        {"a": _ref("/b"), "b": _ref("/c"), "c": _ref("/a")},
        {"a": _ref("/b"), "b": _ref("/c"), "c": _ref("/b")},
        {"a": _ref("/b/a"), "b": _ref("/a")},
        {"a": {"a": _ref("/a")}, "b": _ref("/a/a")},
        {"a": _ref("/b/x"), "b": _ref("/c"), "c": _ref("/a")},
    ],
)
def test_refs_lead_to_earlier_parts_only(data):
    codes = {p.code for p in read(Rope, data)[1]}
    assert codes
    assert codes <= {"ref-to-nothing", "ref-to-later"}


def test_a_ref_may_go_by_way_of_very_many():
    data = {"inner": [{"leaf": 1}, *({"$ref": f"/inner/{i}"} for i in range(40))]}
    assert not read(Branch, data)[1]


def test_a_ref_by_way_of_another_leads_to_a_class_that_fits():
    problems = read(Holder, {"rope": {"a": {}}, "other": _ref("/rope/a"), "branch": _ref("/other")})[1]
    assert [(p.code, p.path) for p in problems] == [("ref-kind", ("branch",))]
    problems = read(Rope, {"a": _ref("/b"), "b": _ref("/nothing")})[1]
    assert [p.code for p in problems] == ["ref-to-nothing", "ref-to-later"]


class Holder(dx.Module):
    def __init__(self, rope: Rope, other: Rope, branch: Branch):
        self.rope, self.other, self.branch = rope, other, branch


class Later(dx.Module):
    def __init__(self, size: int, parts: dict[str, list[DefinedLater] | None] | None = None):  # noqa: F821
        self.size, self.parts = size, parts


class ForTypes(dx.Module):
    def __init__(
        self,
        size: int = 1,
        call: Callable[[OnlyForTypes], OnlyForTypes] | None = None,  # noqa: F821
        activation: OnlyForTypes = dx.relu,  # noqa: F821
    ):
        self.size, self.call, self.activation = size, call, activation


def test_an_annotation_without_meaning_is_refused_at_its_first_use(monkeypatch):
    assert dx.spec(Later, size=1).build().size == 1
    assert dx.from_config(Later, {"size": 1}).size == 1
    assert dx.to_config(dx.spec(Later, size=1)) == {"kind": "Later", "size": 1}
    assert dx.to_config(dx.spec(Later, size=1), full=True) == {"kind": "Later", "$version": 1, "size": 1}
    for use in (
        lambda: dx.from_config(Later, {"size": 1, "parts": {}}),
        lambda: dx.json_schema(Later),
        lambda: dx.to_config(dx.spec(Later, size=1, parts={"a": [dx.spec(Branch, leaf=2)]})),
    ):
        with pytest.raises(dx.ConfigError, match="which does not exist at run time") as caught:
            use()
        assert "Later.parts: the annotation names 'DefinedLater'" in str(caught.value)
    monkeypatch.setitem(globals(), "DefinedLater", Branch)
    spec = dx.spec_from_config(Later, {"size": 1, "parts": {"a": [{"leaf": 2}]}})
    assert spec["parts.a.0"] == dx.spec(Branch, leaf=2)


def test_names_for_types_only_that_decide_nothing_stay_as_they_are():
    built = dx.from_config(ForTypes, {"size": 2, "activation": "gelu"})
    assert (built.size, built.activation) == (2, dx.gelu)


Json = Union[str, list["Json"], dict[str, "Json"]]
Parts = Union["Branch", list["Parts"]]


@dx.dataclass
class Recursive(dx.Module):
    notes: Json = dx.static(default="none")
    parts: Parts | None = None
    kept: list[Kept] = dx.static(default_factory=list)


Kept = Union[dx.Spec[Branch], list["Kept"]]


def test_recursive_aliases_at_any_depth():
    data = {
        "notes": {"a": [[{"b": ["c"]}]]},
        "parts": [[{"leaf": 1}], [[{"leaf": 2}]]],
        "kept": [[[{"kind": "Branch", "leaf": 3}]]],
    }
    spec = dx.spec_from_config(Recursive, data)
    assert spec == dx.spec_from_config(Recursive, dx.to_config(spec))
    built = spec.build()
    assert built.notes == data["notes"]
    assert [built.parts[0][0].leaf, built.parts[1][0][0].leaf] == [1, 2]
    assert built.kept[0][0][0] == dx.spec(Branch, leaf=3)
    with pytest.raises(dx.ConfigError, match="the configuration has one problem") as caught:
        dx.spec_from_config(Recursive, {"notes": [[[0.5]]]})
    assert caught.value.problems[0].path == ("notes", 0, 0, 0)
    assert caught.value.problems[0].expected == "string or a list, each item Json or a table, each value Json"
    assert dx.json_schema(Recursive)["definitions"]["Json"]
