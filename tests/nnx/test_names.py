"""The table of names in ``docs/coming_from_nnx.md`` agrees with the peer that is installed, and with declax."""

from __future__ import annotations

import importlib
import inspect
import re
import types
import typing
from pathlib import Path

import jax.numpy as jnp
import pytest

import declax as dx
from declax._absent import instead_of
from declax.errors import MissingAttributeError
from declax.transforms._engine.signatures import JitOptions

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming_from_nnx.md"
ROW = re.compile(
    r"^\| (?P<names>`\w+`(?:, `\w+`)*) \| (?P<status>same|different|absent) \| (?P<note>.*?) ?\|$", re.MULTILINE
)


class Row(typing.NamedTuple):
    name: str
    status: str
    note: str


def rows() -> list[Row]:
    text = PAGE.read_text(encoding="utf-8")
    return [Row(n, row["status"], row["note"]) for row in ROW.finditer(text) for n in re.findall(r"\w+", row["names"])]


NAMES = [row.name for row in rows()]


def test_the_table_has_each_name_of_the_peer_once():
    nnx = pytest.importorskip("flax.nnx")
    importlib.import_module("flax.nnx.ids")  # the only module that flax.nnx does not load
    public = {name for name in dir(nnx) if not name.startswith("_")}
    assert sorted(NAMES) == sorted(set(NAMES)), "a name stands twice"
    assert sorted(public - set(NAMES)) == [], "the peer has these, and the table does not"
    assert sorted(set(NAMES) - public) == [], "the table has these, and the peer does not"


@pytest.mark.parametrize("row", [row for row in rows() if row.status != "absent"], ids=lambda row: row.name)
def test_a_name_of_the_table_that_is_there(row):
    getattr(dx, row.name)
    assert row.name in dx.__all__
    assert instead_of("", row.name) is None
    assert (row.status == "different") is (row.note != "")


@pytest.mark.parametrize("row", [row for row in rows() if row.status == "absent"], ids=lambda row: row.name)
def test_a_name_of_the_table_that_is_absent_raises_the_reason(row):
    assert row.name not in dx.__all__
    with pytest.raises(MissingAttributeError, match=f"'{row.name}', which Flax NNX has") as caught:
        dx.__getattr__(row.name)
    assert caught.value.fix == row.note == instead_of("", row.name)
    assert "docs/coming_from_nnx.md" in str(caught.value)


def test_functions_that_are_the_same_have_the_keywords_of_the_peers():
    nnx = pytest.importorskip("flax.nnx")
    same = [row.name for row in rows() if row.status == "same" and row.name != "ids"]  # a module
    functions = [name for name in same if isinstance(getattr(nnx, name), types.FunctionType)]
    lacking = {name: _keywords(getattr(nnx, name)) - _keywords(getattr(dx, name)) for name in functions}
    assert not {name: missing for name, missing in lacking.items() if missing}
    assert len(functions) > 60


def test_functions_take_by_name_what_those_of_the_peer_take_by_name():
    nnx = pytest.importorskip("flax.nnx")
    there = [row.name for row in rows() if row.status != "absent" and row.name != "ids"]
    functions = [name for name in there if isinstance(getattr(nnx, name), types.FunctionType)]
    for name in functions:
        theirs = _by_name(getattr(nnx, name))
        assert _by_name(getattr(dx, name))[: len(theirs)] == theirs, name
    assert len(functions) > 90


def test_a_function_and_a_model_by_name():
    model = dx.Linear(2, 1, rngs=dx.Rngs(0))
    loss = lambda model, x: (model(x) ** 2).sum()  # noqa: E731  # short
    expected, grads = dx.value_and_grad(loss)(model, jnp.ones(2))
    assert dx.jit(fun=loss)(model, jnp.ones(2)) == expected
    assert dx.value_and_grad(f=loss, argnums=0)(model, jnp.ones(2))[1].keys() == grads.keys()
    assert dx.scan(f=lambda total, x: (total + x, x), length=2)(0.0, jnp.ones(2))[0] == 2
    assert dx.vmap(f=lambda x: x + 1, in_axes=0)(jnp.ones(2)).tolist() == [2, 2]
    assert dx.state(node=model).keys() == dx.split(node=model)[1].keys() == grads.keys()


NOT_ON_CLASSES = {"required_metadata", "get_default", "get_stack", "sharding_names"}
"""What serves the peer's implementation, and `sharding_names`, which declax has on each Variable."""


def test_classes_that_are_the_same_have_the_members_of_the_peers():
    nnx = pytest.importorskip("flax.nnx")
    same = [row.name for row in rows() if row.status == "same" and row.name != "ids"]  # a module
    classes = [name for name in same if isinstance(getattr(nnx, name), type)]
    for name in classes:
        public = {member for member in dir(getattr(nnx, name)) if not member.startswith("_")}
        annotated = {member for cls in getattr(dx, name).__mro__ for member in inspect.get_annotations(cls)}
        lacking = public - set(dir(getattr(dx, name))) - annotated - NOT_ON_CLASSES
        assert not lacking, name
    assert len(classes) > 40


def _by_name(function: typing.Any) -> list[tuple[int, str]]:
    """The arguments that a program may give by position or by name, with their positions."""
    parameters = enumerate(inspect.signature(function).parameters.values())
    return [(position, p.name) for position, p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


def _keywords(function: typing.Any) -> set[str]:
    """The arguments that a program must name; of a function that takes all names, those that it is documented for."""
    parameters = inspect.signature(function).parameters.values()
    options = set(JitOptions.__annotations__) if any(p.kind is p.VAR_KEYWORD for p in parameters) else set()
    return options | {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
