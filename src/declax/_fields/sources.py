"""The source text of expressions."""

from __future__ import annotations

import enum
import keyword
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from types import NoneType
from typing import Any

from declax._fields.call import (
    CONTAINERS,
    OPERATIONS,
    Call,
    Term,
    attribute,
    call_of,
    has_expression,
    is_lazy,
    literal,
    repeated,
    target_of,
)
from declax._fields.keys import OWN_RNGS, RNGS, omits_rngs, own_rngs_for, with_rngs
from declax.errors import type_name

Write = Callable[[Any], str]
"""Gives the source of an operand."""


# ================================================================= values as text


def text_of(value: object) -> str:
    """A value as the class body that is being declared writes it: names of bases with their class."""
    if isinstance(value, Term) and value._pytree__owner is not None:
        return f"{value._pytree__owner}.{value._pytree__name}"
    return _text(value, text_of)


def declared_text(declared: Term, owner: str | None = None) -> str:
    """An expression as the class that declares it, or else `owner`, writes it: names of bases with their class."""
    owner = declared._pytree__owner or owner

    def write(value: object) -> str:
        is_inherited = isinstance(value, Term) and owner is not None and value._pytree__owner not in (None, owner)
        return text_of(value) if is_inherited else _text(value, write)

    return bare(declared, write)


def _text(value: Any, write: Write) -> str:
    if isinstance(value, Term):
        name = value._pytree__name
        return name if name is not None else term_text(value, write)
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
    return argument_text(value, lambda operand: term_text(value, write) if operand is value else write(operand))


def argument_text(value: Any, write: Write) -> str:
    text = write(value)
    is_bracketed = text.startswith("(") and OPERATIONS.get(id(target_of(value)), "").startswith("(")  # it has no name
    return text[1:-1] if is_bracketed else text


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


def call_text(name: str, args: Iterable[str], kwargs: Mapping[str, str]) -> str:
    """A call, of the texts of its arguments."""
    return f"{name}({', '.join([*args, *(f'{key}={text}' for key, text in kwargs.items())])})"


def term_text(term: Term, write: Write) -> str:
    """The source of a term by its call, although it may have a name."""
    call = term._pytree__call
    if call is None:
        return term._pytree__name or "field()"
    notation = OPERATIONS.get(id(call.target))
    if notation is None:
        return _code(call, write) if isinstance(write, SourceWriter) else _declaration(call, write)
    if call.target is literal:
        return container_text(call.args[0], write)
    if call.target is attribute:
        return notation.format(operand_text(call.args[0], write), call.args[1])
    if is_lazy(call.target) and not isinstance(write, SourceWriter):
        name = "dx.repeat" if call.target is repeated else "dx.when"
        return call_text(name, [argument_text(value, write) for value in call.args], {})
    return notation.format(*(operand_text(value, write) for value in call.args))


def _declaration(call: Call, write: Write) -> str:
    """A call as a class body writes it."""
    args = [argument_text(value, write) for value in call.args]
    kwargs = {name: argument_text(value, write) for name, value in call.kwargs.items()}
    function = write(call.target)
    is_deferred = _defers_calls(call.target) or call.target is slice
    return call_text(function if is_deferred else f"dx.defer({function})", args, kwargs)


def _code(call: Call, write: SourceWriter) -> str:
    """A call as generated code makes it; a class that makes layers evaluates the first argument for each of them."""
    target, kwargs = call.target, call.kwargs
    function = write(target)
    args = [argument_text(value, write) for value in call.args]
    first = call_of(call.args[0]) if args and hasattr(target, "_pytree__makes_layers") else None
    if first is not None and _defers_calls(first.target):
        kwargs = {RNGS: _rngs_of(first, write), **kwargs}
        args[0] = write.function(call.args[0], kwargs[RNGS])
    elif write.implies_rngs and isinstance(target, Term) and RNGS not in kwargs:
        function = f"{write.constant(with_rngs, 'with_rngs')}({function}, {write(OWN_RNGS)})"
    elif write.implies_rngs and omits_rngs(call):
        kwargs = {**kwargs, RNGS: own_rngs_for(target)}
    return call_text(function, args, {name: argument_text(value, write) for name, value in kwargs.items()})


def _rngs_of(call: Call, write: SourceWriter) -> Any:
    """The argument `rngs` of a call, or else of a call among its arguments."""
    if call.kwargs.get(RNGS) is not None:
        return call.kwargs[RNGS]
    if write.implies_rngs and (omits_rngs(call) or (isinstance(call.target, Term) and RNGS not in call.kwargs)):
        return OWN_RNGS
    inner = (operand._pytree__call for operand in call.operands() if isinstance(operand, Term))
    return next((found for held in inner if held is not None and (found := _rngs_of(held, write)) is not None), None)


def _defers_calls(function: Any) -> bool:
    """Whether a call with an expression among its arguments is deferred without `defer`."""
    return isinstance(function, Term) or hasattr(function, "_pytree__is_pytree")


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
            return self._shared(value) if id(value) in self.shared else term_text(value, self)
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
        return f"({name} := {term_text(value, self)})"

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
