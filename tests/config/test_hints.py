"""What the report of a wrong value advises is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax
import pytest

import declax as dx


@dx.dataclass
class Small(dx.Module):
    dim: int = 1


@dx.dataclass
class Big(dx.Module):
    dim: int = 1
    depth: int = 2


@dx.dataclass
class Run(dx.Module):
    steps: int = 1
    rate: float = 0.1
    model: dx.Spec[Small | Big] | None = None
    part: Small | Big | None = None
    optimizer: optax.GradientTransformation | None = None
    init: dx.typing.Initializer = dx.initializers.zeros
    sizes: dict[str, int] | None = None
    act: Callable[[jax.Array], jax.Array] | None = None


def problem(data: Any) -> Any:
    with pytest.raises(dx.ConfigError) as caught:
        dx.spec_from_config(Run, data)
    (found,) = caught.value.problems
    return found


def test_underscores_of_yaml(tmp_path):
    pytest.importorskip("yaml")
    file = tmp_path / "run.yaml"
    file.write_text("steps: 1_000\nrate: 0.1\n")
    found = problem(file)
    assert found.hint == "write 1000 without quotes; YAML 1.2 and JSON have no _ in numbers"
    file.write_text("steps: 1000\nrate: 0.1\n")
    assert dx.spec_from_config(Run, file)["steps"] == 1000
    assert problem({"rate": "1_0.5"}).hint.startswith("write 10.5 without quotes")
    assert problem({"steps": "10"}).hint == "write 10 without quotes"
    assert problem({"steps": "x_1"}).hint == "write a number, without quotes"


@pytest.mark.parametrize("field", ["model", "part"])
@pytest.mark.parametrize("kind", [3, True, None, ["Big"]])
def test_a_kind_that_is_no_string_lists_the_kinds(field, kind):
    found = problem({field: {"kind": kind}})
    assert found.path == (field, "kind")
    assert found.expected == "string, one of Small, Big"
    assert "Spec[" not in str(found)


@pytest.mark.parametrize(
    ("name", "text", "fixed"),
    [
        ("optimizer", "{kind=lion,learning_rate=1e-4}", '{kind="lion", learning_rate=1e-4}'),
        ("optimizer", "{ kind: lion, learning_rate: 1e-4 }", '{ kind="lion", learning_rate=1e-4}'),
        ("optimizer", "{kind=lion,learning_rate={kind=constant_schedule,value=1}}", None),
        ("part", "{kind=Small,dim=3}", '{kind="Small", dim=3}'),
        ("model", "{kind=Small}", '{kind="Small"}'),
        ("init", "{kind=normal,stddev=0.1}", '{kind="normal", stddev=0.1}'),
        ("sizes", "{a=b}", '{a="b"}'),
        ("act", "{kind=leaky_relu,negative_slope=0.3}", '{kind="leaky_relu", negative_slope=0.3}'),
    ],
)
def test_a_table_without_quotes(name, text, fixed):
    found = problem({name: text})
    assert found.hint.startswith("quote the strings in it: ")
    if fixed is not None:
        assert fixed in found.hint


@pytest.mark.parametrize("text", ["lion", "{", "{}", "{lion}", '{kind="lion"}', "x{a=b}"])
def test_other_strings_have_no_such_hint(text):
    assert "quote" not in (problem({"part": text}).hint or "")


def test_the_words_of_the_hint_are_right():
    optimizer = {"kind": "lion", "learning_rate": 1e-4}
    assert dx.spec_from_config(Run, {"optimizer": optimizer})["optimizer"].target is optax.lion
