"""The source text of expressions."""

from __future__ import annotations

import dataclasses
import enum
import keyword
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import NoneType
from typing import Any, Final

from declax.errors import type_name

Write = Callable[[Any], str]
"""Gives the source of an operand."""

CONTAINERS: Final = frozenset({list, tuple, dict})
"""The containers whose literals may hold expressions."""


class Unmade:
    """The value of an attribute until its constructor makes the part."""

    __slots__ = ()


class Term(Unmade):
    """An expression without its operators: a name, operands, and a source.

    Attributes:
      _pytree__name: its name in the class body, if it has one.
      _pytree__owner: the name of its class, once that is declared.
      _pytree__specified: the field of the specifier whose default it is, if any.
    """

    __slots__ = ("__weakref__", "_pytree__name", "_pytree__owner", "_pytree__specified")  # JAX has weak references

    def __init__(self) -> None:
        self._pytree__name: str | None = None
        self._pytree__owner: str | None = None
        self._pytree__specified: dataclasses.Field[Any] | None = None

    def _pytree__source(self, write: Write) -> str:
        """The expression as Python source."""
        return self._pytree__name or "field()"

    def _pytree__operands(self) -> Iterator[Any]:
        """The values that the expression is made of."""
        return iter(())

    @property
    def _pytree__is_bracketed(self) -> bool:
        """Whether its source has brackets around all of it."""
        return False


def items(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value


def entries(value: Any) -> Iterable[tuple[Any, Any]]:
    """The items of a container, each with its key."""
    return value.items() if isinstance(value, dict) else enumerate(value)


def rebuilt(value: Any, items: dict[Any, Any]) -> Any:
    """A container like another, with the given items by their keys."""
    return items if isinstance(value, dict) else type(value)(items.values())


def has_expression(value: object, depth: int = 8) -> bool:
    """Whether a value is an expression, or a literal list, tuple or dict that holds one at this depth or above."""
    if isinstance(value, Term):
        return True
    if value.__class__ not in CONTAINERS or depth == 0:
        return False
    for item in items(value):
        if isinstance(item, Term) or (item.__class__ in CONTAINERS and has_expression(item, depth - 1)):
            return True
    return False


# ================================================================= values as text


def text_of(value: object) -> str:
    """A value as the class body that is being declared writes it: names of bases with their class."""
    if isinstance(value, Term) and value._pytree__owner is not None:
        return f"{value._pytree__owner}.{value._pytree__name}"
    return _text(value, text_of)


def declared_text(declared: Term) -> str:
    """An expression as the class body that declares it writes it: names of bases with their class."""
    owner = declared._pytree__owner

    def write(value: object) -> str:
        is_inherited = isinstance(value, Term) and owner is not None and value._pytree__owner not in (None, owner)
        return text_of(value) if is_inherited else _text(value, write)

    return bare(declared, write)


def _text(value: Any, write: Write) -> str:
    if isinstance(value, Term):
        name = value._pytree__name
        return name if name is not None else value._pytree__source(write)
    if value.__class__ in CONTAINERS:
        return container_text(value, write)
    if isinstance(value, type):
        return class_text(value)
    is_long = not isinstance(value, (int, float, complex, str, bytes, enum.Enum, NoneType))
    text = f"{class_text(type(value)).replace('ArrayImpl', 'Array')}(...)" if is_long else repr(value)
    return getattr(value, "__name__", None) or text


def class_text(cls: type) -> str:
    """A class as a program writes it."""
    return f"dx.{type_name(cls)}" if cls.__module__.startswith("declax.") else type_name(cls)


def bare(value: Term, write: Write = text_of) -> str:
    """The source of an expression by itself, without the brackets around all of it."""
    return argument_text(value, lambda operand: operand._pytree__source(write) if operand is value else write(operand))


def argument_text(value: Any, write: Write) -> str:
    text = write(value)
    is_bracketed = isinstance(value, Term) and value._pytree__is_bracketed
    return text[1:-1] if is_bracketed and text.startswith("(") else text  # a name has no brackets


def operand_text(value: Any, write: Write) -> str:
    """The source of an operand; a negative number binds less than a power."""
    text = write(value)
    return f"({text})" if text.startswith("-") else text


def container_text(value: Any, write: Write) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{write(k)}: {write(v)}" for k, v in value.items()) + "}"
    inside = ", ".join(map(write, value))
    if isinstance(value, list):
        return f"[{inside}]"
    return f"({inside},)" if len(value) == 1 else f"({inside})"


def _is_mutable(value: Any) -> bool:
    """Whether a literal is, or holds, a list or dict; each instance makes such a literal anew."""
    return value.__class__ is not tuple or any(item.__class__ in CONTAINERS and _is_mutable(item) for item in value)


def _is_literal(value: Any) -> bool:
    """Whether the source of a value is its repr."""
    if value.__class__ is tuple:
        return all(map(_is_literal, value))
    return value is None or value.__class__ in (bool, int, str) or (value.__class__ is float and math.isfinite(value))


class SourceWriter:
    """Writes expressions as the source of a function, and collects the constants in them.

    Expressions with a name are found by identity; `reserved` are the names that the function around the source binds.

    Attributes:
      implies_rngs: whether calls get the `rngs` of the constructor that they do not mention.
      constants: the values that are not literals, by the name that the source uses.
      shared: the local names of expressions that stand more than once in a part, by identity; empty until written.
    """

    def __init__(self, names: Mapping[int, str], reserved: Collection[str] = (), *, implies_rngs: bool = False) -> None:
        self._names = names
        self._reserved = reserved
        self.implies_rngs = implies_rngs
        self.shared: dict[int, str] = {}
        self.constants: dict[str, Any] = {"abs": abs, "range": range}

    def __call__(self, value: Any) -> str:
        """The source of a value."""
        known = self._names.get(id(value))
        if known is not None:
            return known
        if isinstance(value, Term):
            return self._shared(value) if id(value) in self.shared else value._pytree__source(self)
        if value.__class__ in CONTAINERS and (has_expression(value) or _is_mutable(value)):
            return container_text(value, self)
        if _is_literal(value):
            return repr(value)
        return self.constant(value, getattr(value, "__name__", None) or repr(value))

    def _shared(self, value: Term) -> str:
        """The source of an expression that is evaluated at its first place."""
        name = self.shared[id(value)]
        if name:
            return name
        name = self.shared[id(value)] = self.constant(value, "shared")
        return f"({name} := {value._pytree__source(self)})"

    def whole(self, value: Any) -> str:
        """The source of a value by its own expression, although it has a name."""
        return bare(value, self)

    def function(self, item: Any, rngs: Any) -> str:
        """The source of a function that evaluates an expression, with the given keys in place of `rngs`."""
        names = self._names if rngs is None else {**self._names, id(rngs): "rngs"}
        writer = SourceWriter(names, self._reserved, implies_rngs=self.implies_rngs and rngs is not None)
        writer.constants = self.constants
        parameter = "" if rngs is None else " rngs=None" if self.implies_rngs else " rngs"
        return f"lambda{parameter}: {writer(item)}"

    def constant(self, value: Any, name: str) -> str:
        """The name under which the source refers to a constant."""
        base = name if name.isidentifier() else "constant"
        name, number = base, 1
        while name in self._reserved or keyword.iskeyword(name) or self.constants.get(name, value) is not value:
            number += 1
            name = f"{base}_{number}"
        self.constants[name] = value
        return name


class NoteWriter(SourceWriter):
    """Writes expressions for a note of an error, with the values of constants."""

    def constant(self, value: Any, name: str) -> str:
        """The name of a function or class; the value of another constant, unless it is long."""
        is_short = len(name) <= 60 and "\n" not in name
        return name if name.isidentifier() or is_short else text_of(value)
