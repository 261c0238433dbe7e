"""The help of parameters: where it is written, who prints it, and that no layer lacks it."""

from __future__ import annotations

import ast
import functools
import gc
import inspect
import typing
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from declax.config._cli.scripts import parameter_table
from declax.config._reading.docstrings import _below_fields, _entries, documented_in, first_paragraph, help_of
from declax.config._reading.parameters import parameters_of
from declax.config._reading.part_readers import layers
from declax.config.registry import INITIALIZERS, schedules, transformations

SOURCE = Path(dx.__file__).parent


@dx.dataclass
class Mlp(dx.Layer):
    """Two layers.

    Args:
      dim: size of input
        and output.
      rate (float, optional): share of ``x`` that is dropped.

        Between calls it is the same.
      both: the entry.
      noted: the entry.

    >>> 1 + 1
    2
    """

    dim: int = dx.field()
    hidden: int = dx.field(default=4 * dim)
    """Size of the layer
    in the middle.

    It may be large.
    """
    rate: float = dx.static(default=0.0)
    both: int = 1
    """The text below."""
    noted: int = dx.static(default=1, help="the note")
    factor: dx.InitVar[float] = dx.field(default=1.0)
    """Multiplies the weights at the start."""
    silent: int = 1
    up: dx.Linear = dx.Linear(dim, hidden)
    down: dx.Linear = dx.Linear(hidden, dim)
    """The way back."""


@dx.dataclass
class Special(Mlp):
    """A subclass.

    Args:
      dim: a better text.
      noted: a text that is nearer than the note.
    """

    rate: float = 0.5
    hidden = 8 * Mlp.dim
    """A text below a field without annotation."""
    extra: int = dx.static(default=1, help="the note of the subclass")


def helps(target: Any) -> dict[str, str | None]:
    return {parameter.name: parameter.help for parameter in parameters_of(target)}


def test_the_places_of_help():
    assert helps(Mlp) == {
        "dim": "size of input and output.",
        "hidden": "Size of the layer in the middle.",
        "rate": "share of x that is dropped.",
        "both": "the entry.",
        "noted": "the note",
        "factor": "Multiplies the weights at the start.",
        "silent": None,
        "up": "An affine map of the last axis.",  # of its class
        "down": "The way back.",
    }


def test_a_subclass_says_what_it_changes_only():
    assert helps(Special) == helps(Mlp) | {
        "dim": "a better text.",
        "noted": "a text that is nearer than the note.",
        "hidden": "A text below a field without annotation.",
        "extra": "the note of the subclass",
    }


class Counter:
    """A class with a constructor of its own.

    Args:
      start: of the class.
    """

    def __init__(self, start: int, step: int = 1, *others: int, **rest: int) -> None:
        """Makes it.

        Args:
          start: of the constructor.
          step: how much is added.
          *others: further steps.
          **rest: steps with names.
        """


def count(start: int, step: int = 1) -> Counter:
    """Counts.

    Parameters
    ----------
    start : int
        where to begin.
    step
        how much is added.
    """
    return Counter(start, step)


def test_classes_with_a_constructor_functions_and_partials():
    found = {"start": "of the class.", "step": "how much is added.", "others": "further steps."}
    assert helps(Counter) == found
    assert parameters_of(Counter).get("rest").help == "steps with names."
    assert helps(count) == {"start": "where to begin.", "step": "how much is added."}
    assert helps(functools.partial(count, 1)) == {"step": "how much is added."} | helps(functools.partial(count, 1))
    assert first_paragraph(functools.partial(count, step=2)) == "Counts."


class Bare(dx.Module):
    def __init__(self, size: int) -> None:
        self.size = size


@dx.dataclass
class Holder(dx.Module):
    size: int = dx.field()
    bare: Bare = Bare(size)


def test_a_class_without_a_docstring_has_none_of_its_base():
    assert [first_paragraph(cls) for cls in (Bare, Holder, Odd)] == ["", "", ""]
    assert "description" not in dx.json_schema(Bare)
    assert helps(Holder) == {"size": None, "bare": None}


# ----------------------------------------------------------------- who prints it


def test_everyone_prints_the_same_text():
    hidden = dx.json_schema(Mlp)["properties"]["hidden"]
    assert hidden["description"] == "Size of the layer in the middle."
    assert "hidden: int, default" in parameter_table(Mlp)
    assert "      Size of the layer in the middle.\n" in parameter_table(Mlp)
    with pytest.raises(dx.ConfigError, match=r"dim = \.\.\.   # size of input and output\."):
        dx.spec_from_config(Mlp, {})


def test_a_part_in_a_schema_has_the_help_of_its_place():
    properties = dx.json_schema(Mlp)["properties"]
    assert properties["down"]["description"] == "The way back."
    assert properties["up"]["description"] == first_paragraph(dx.Linear)


# ----------------------------------------------------------------- at no cost until somebody asks


def test_nothing_is_read_until_somebody_asks(monkeypatch):
    def refuse(*_: object) -> typing.NoReturn:
        raise AssertionError("nobody has asked")

    monkeypatch.setattr(inspect, "getsource", refuse)
    monkeypatch.setattr(inspect, "cleandoc", refuse)
    monkeypatch.setattr(ast, "parse", refuse)

    @dx.dataclass
    class Asked(dx.Module):
        """A class.

        Args:
          dim: its size.
        """

        dim: int = dx.field()
        other: int = 1
        """Another."""

    assert Asked(1).dim == dx.from_config(Asked, {"dim": 1}).dim == dx.spec(Asked, 1).build().dim
    with pytest.raises(AssertionError, match="nobody has asked"):
        parameters_of(Asked).by_name["dim"].help


def test_a_class_is_read_once_and_not_kept(monkeypatch):
    class Read:
        """A class.

        Args:
          dim: its size.
        """

        dim: int
        other: int
        """Another."""

    read: list[object] = []
    real = inspect.getsource
    monkeypatch.setattr(inspect, "getsource", lambda cls: read.append(cls.__name__) or real(cls))
    assert help_of(Read, "dim") == "its size."
    assert read == []  # an entry of the docstring needs no source
    assert [help_of(Read, "other") for _ in range(3)] == ["Another."] * 3
    assert help_of(Read, "absent") is None
    assert read == ["Read"]
    known = weakref.ref(Read)
    del Read
    gc.collect()
    assert known() is None


# ----------------------------------------------------------------- classes without source

TEXT = '''
@dx.dataclass
class Typed(dx.Module):
    """A class of a notebook.

    Args:
      dim: its size.
    """

    dim: int = dx.field()
    other: int = 1
    """No source is left of this."""
'''


@pytest.mark.parametrize("module", ["__main__", "a_module_that_is_nowhere", __name__])
def test_a_class_without_source_has_the_entries_of_its_docstring(module: str):
    namespace: dict[str, Any] = {"dx": dx, "__name__": module}
    exec(compile(TEXT, "<cell>", "exec", dont_inherit=True), namespace)
    assert helps(namespace["Typed"]) == {"dim": "its size.", "other": None}
    assert "description" not in dx.json_schema(namespace["Typed"])["properties"]["other"]


def test_a_file_that_has_changed_since(tmp_path, monkeypatch):
    file = tmp_path / "changing.py"
    file.write_text('import declax as dx\n@dx.dataclass\nclass A(dx.Module):\n    dim: int = 1\n    """Of A."""\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    made = __import__("changing").A
    file.write_text('import declax as dx\n@dx.dataclass\nclass B(dx.Module):\n    dim: int = 1\n    """Of B."""\n')
    assert helps(made) == {"dim": None}


@pytest.mark.parametrize("text", ["def (", "    class A: pass\n  x", "", "# nothing"])
def test_a_source_that_is_no_class(monkeypatch, text: str):
    class Broken:
        dim: int
        """Its size."""

    monkeypatch.setattr(inspect, "getsource", lambda _: text)
    assert help_of(Broken, "dim") is None


class Odd:
    """No text."""

    __doc__ = property(lambda self: "Args:")
    a, b = 1, 2
    """Of two names."""
    c: int
    4
    d: int


def test_a_docstring_that_is_no_text_and_statements_that_are_no_fields():
    assert (dict(_entries(Odd)), dict(_below_fields(Odd))) == ({}, {})


# ----------------------------------------------------------------- docstrings in three styles

GOOGLE = r"""
Adds.

The map: it is linear.

Args:
  a, b: the numbers,
    any two: not more.
  c (Callable[[int], str], optional): another (really): yes.
  *args: more.
  \**kwargs: most.
  d:
    on the next line.

    A second paragraph.
  Not an entry
  e :class: is none, as its colon is not the first.

Keyword Args:
  k: by name.

Returns:
  r: no parameter.

>>> x: int = 1
"""
NUMPY = """
Adds.

Parameters
----------
a, b : {int, float}
    the numbers,
    any two: not more.
c
    another.

    A second paragraph.
*args, **kwargs
    more.
d: int
    a type without a blank.

Returns
-------
r : int
    no parameter.

Other Parameters
----------------
e : int, default: 3
    the last.
"""
SPHINX = r"""
Adds.

:param a: a number,
    continued: here.
:param dict[str, int] b: with a type: yes.
:type b: int
:keyword c: by name.
:param \*args: more.
:returns: no parameter.
"""


@pytest.mark.parametrize(
    ("docstring", "found"),
    [
        (
            GOOGLE,
            {
                "a": "the numbers, any two: not more.",
                "b": "the numbers, any two: not more.",
                "c": "another (really): yes.",
                "args": "more.",
                "kwargs": "most.",
                "d": "on the next line.",
                "e": "class: is none, as its colon is not the first.",
                "k": "by name.",
            },
        ),
        (
            NUMPY,
            {
                "a": "the numbers, any two: not more.",
                "b": "the numbers, any two: not more.",
                "c": "another.",
                "args": "more.",
                "kwargs": "more.",
                "d": "a type without a blank.",
                "e": "the last.",
            },
        ),
        (SPHINX, {"a": "a number, continued: here.", "b": "with a type: yes.", "c": "by name.", "args": "more."}),
        ("Adds.", {}),
        ("", {}),
        ("Args:", {}),
        ("Args:\n  a: first.\n\nAttributes:\n  a: second.\n  b: an attribute.", {"a": "first.", "b": "an attribute."}),
        ("Args: a: on one line is none.", {}),
    ],
)
def test_the_entries_of_a_docstring(docstring: str, found: dict[str, str]):
    assert documented_in(docstring) == found


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("of shape ``(n, m)``, as `jax.Array`", "of shape (n, m), as `jax.Array`"),
        ("a :class:`jax.Array` or :func:`~optax.adam`", "a jax.Array or optax.adam"),
        ("see :py:meth:`the method <a.b>`", "see the method"),
        ("``a`` and ``b``", "a and b"),
        ("half of ``a", "half of ``a"),
        ("two\n    lines\tand  blanks", "two lines and blanks"),
    ],
)
def test_marks_of_markup_are_left_out(written: str, shown: str):
    assert documented_in(f"Adds.\n\nArgs:\n  a: {written}") == {"a": shown}


PIECES = st.sampled_from(
    ["Args:", "Parameters", "---", "----------", "a", "b_1", "*", "**", "\\*", ":", "(", ")", ",", ":param", " ", "  "]
    + ["\n", "\n", "\n  ", "\n\n", "text", "``", "`", ":class:", "<", ">", "\t", "é"]
)


@given(st.lists(PIECES, max_size=40).map("".join))
def test_any_text_is_read(text: str):
    found = documented_in(text)
    assert all(name and name == name.strip(" \n\t\\*,") for name in found)
    assert all(line == " ".join(line.split()) for line in found.values())
    assert all(found.values())


# ----------------------------------------------------------------- what declax has to say

LAYERS = list(layers().values())
OWN = [*LAYERS, *(made for made in INITIALIZERS.values() if callable(made) and inspect.isfunction(made))]
TRAINING = [dx.Optimizer, dx.ModelAndOptimizer, dx.TrainState, dx.EMA, dx.Policy]
UNSAID = {("with_extra_args_support", "tx")}
"""What optax does not explain."""


@dx.dataclass
class Everything(dx.Module):
    """A class whose schema contains each layer, initializer, optimizer and schedule."""

    net: dx.Sequential
    """The layers."""
    optimizer: optax.GradientTransformation
    """The optimizer."""
    schedule: optax.Schedule
    """The schedule."""
    init: Callable[[jax.Array, tuple[int, ...]], jax.Array] = dx.initializers.zeros
    """The initializer."""


def arguments_without_help(schema: dict[str, Any]) -> set[tuple[str, str]]:
    classes = [schema, *schema["definitions"].values()]
    return {
        (made["title"], name)
        for made in classes
        for name, argument in made.get("properties", {}).items()
        if made["title"] != "anything" and not name.startswith("$") and "description" not in argument
        if argument != {"not": {}}  # the tag of a declared part, which has none
    }


def test_each_argument_of_each_layer_and_optimizer_has_help():
    schema = dx.json_schema(Everything)
    assert set(layers()) | set(transformations()) | set(schedules()) <= {*schema["definitions"], "Sequential"}
    assert {"variance_scaling", "orthogonal", "kaiming_normal"} <= set(schema["definitions"])
    assert arguments_without_help(schema) == UNSAID


@pytest.mark.parametrize("target", [*OWN, *TRAINING], ids=lambda target: target.__name__)
def test_each_parameter_has_help(target: Any):
    assert [name for name, text in helps(target).items() if not text] == []


@pytest.mark.parametrize("target", OWN, ids=lambda target: target.__name__)
def test_each_entry_is_of_a_parameter(target: Any):
    """An entry outlives its parameter otherwise."""
    taken = set(inspect.signature(target).parameters) | {"rngs"}
    entries = documented_in((target.__doc__ or "").replace("Attributes:", "It has:"))
    assert [name for name in entries if name not in taken] == []


def bodies() -> Iterator[type]:
    for cls in (*LAYERS, *TRAINING):
        yield from (base for base in cls.__mro__ if base.__module__.startswith("declax."))


@pytest.mark.parametrize("cls", dict.fromkeys(bodies()), ids=lambda cls: cls.__name__)
def test_no_class_says_a_thing_twice(cls: type):
    assert _entries(cls).keys() & _below_fields(cls).keys() == set()


def test_no_class_of_declax_has_help_beside_its_docstring():
    specifiers = {"field", "static", "data", "variable"}
    found = [
        f"{file.name}:{call.lineno}"
        for file in SOURCE.rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and getattr(call.func, "id", getattr(call.func, "attr", None)) in specifiers
        if any(keyword.arg == "help" for keyword in call.keywords)
    ]
    assert found == []
