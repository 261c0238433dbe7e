"""Calls and values as Python: as a class body writes them, and as generated functions evaluate them."""

from __future__ import annotations

import enum
import keyword
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from types import EllipsisType, NoneType
from typing import Any, Final

from declax._fields.call import (
    CONTAINERS,
    OPERATIONS,
    Call,
    Term,
    attribute,
    call_of,
    calls_in,
    chosen,
    has_expression,
    literal,
    repeated,
    results_of,
    target_of,
)
from declax._fields.keys import OWN_RNGS, RNGS, given_rngs, omits_rngs, own_rngs_for, with_rngs
from declax.errors import type_name


def class_text(cls: type) -> str:
    """A class as a program writes it."""
    return f"dx.{type_name(cls)}" if cls.__module__.startswith("declax.") else type_name(cls)


def call_text(name: str, args: Iterable[str], kwargs: Mapping[str, str]) -> str:
    """A call, of the texts of its arguments."""
    return f"{name}({', '.join([*args, *(f'{key}={text}' for key, text in kwargs.items())])})"


def _container_text(value: Any, write: Callable[[Any], str]) -> str:
    """A list, tuple or dict, also a frozen one."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{write(k)}: {write(v)}" for k, v in value.items()) + "}"
    inside = ", ".join(map(write, value))
    if not isinstance(value, tuple):
        return f"[{inside}]"
    return f"({inside},)" if len(value) == 1 else f"({inside})"


def _defers_calls(function: Any) -> bool:
    """Whether a call with an expression among its arguments is deferred without `defer`."""
    return isinstance(function, Term) or hasattr(function, "_pytree__is_pytree")


def _makes_layer(value: Any) -> bool:
    """Whether a call makes the layer itself; other classes, such as `functools.partial`, make a function for it."""
    if target_of(value) is chosen:
        return all(map(_makes_layer, results_of(value)))
    call = call_of(value)
    return call is not None and (_defers_calls(call.target) or not isinstance(call.target, type))


# ================================================================= class bodies


class Writer:
    """Writes values as a class body does: operands, with brackets around arithmetic.

    Args:
      owners: the classes whose names stand alone; those of others follow their class. None: all stand alone.
    """

    functions: Mapping[int, str] = {id(repeated): "dx.repeat", id(chosen): "dx.when"}
    """How a class body calls operations that Python writes in another way."""

    def __init__(self, owners: Collection[str | None] | None) -> None:
        self._owners = owners

    def __call__(self, value: Any) -> str:
        """The source of a value: its name, or what it is made of."""
        name = self.name(value)
        if name is not None:
            return name
        if isinstance(value, Term):
            return self.term(value)
        return _container_text(value, self) if self.is_open(value) else self.plain(value)

    def name(self, value: Any) -> str | None:
        """The name of a value, if it has one."""
        if not isinstance(value, Term) or value._pytree__name is None:
            return None
        is_own = self._owners is None or value._pytree__owner in self._owners
        return value._pytree__name if is_own else f"{value._pytree__owner}.{value._pytree__name}"

    def is_open(self, value: Any) -> bool:
        """Whether a value is a container whose items are written one by one."""
        return value.__class__ in CONTAINERS

    def plain(self, value: Any) -> str:
        """The name of a class or function, the repr of a short value, or the class of another one."""
        if isinstance(value, type):
            return class_text(value)
        is_long = not isinstance(value, (int, float, complex, str, bytes, enum.Enum, EllipsisType, NoneType))
        text = f"{class_text(type(value)).replace('ArrayImpl', 'Array')}(...)" if is_long else repr(value)
        return getattr(value, "__name__", None) or text

    def call(self, call: Call) -> str:
        """A call of a class or function, under `defer` if that is what defers it."""
        function = self(call.target)
        is_deferred = _defers_calls(call.target) or call.target is slice
        kwargs = {name: self.argument(value) for name, value in call.kwargs.items()}
        return call_text(function if is_deferred else f"dx.defer({function})", map(self.argument, call.args), kwargs)

    def term(self, term: Term) -> str:
        """The source of a term by its call, although it may have a name."""
        call = term._pytree__call
        if call is None:
            return term._pytree__name or "field()"
        target = id(call.target)
        if target in self.functions:
            return call_text(self.functions[target], map(self.argument, call.args), {})
        if target not in OPERATIONS:
            return self.call(call)
        if call.target is literal:
            return _container_text(call.args[0], self)
        if call.target is attribute:
            return OPERATIONS[target].format(self._operand(call.args[0]), call.args[1])
        return OPERATIONS[target].format(*map(self._operand, call.args))

    def whole(self, value: Any) -> str:
        """The source of a value by itself, and by its own call although it may have a name."""
        return _unbracketed(value, self.term(value)) if isinstance(value, Term) else self(value)

    def argument(self, value: Any) -> str:
        """The source of a value by itself, without the brackets around all of it."""
        return _unbracketed(value, self(value))

    def _operand(self, value: Any) -> str:
        """A negative number binds less than a power."""
        text = self(value)
        return f"({text})" if text.startswith("-") else text


def _unbracketed(value: Any, text: str) -> str:
    is_bracketed = text.startswith("(") and OPERATIONS.get(id(target_of(value)), "").startswith("(")
    return text[1:-1] if is_bracketed else text  # a name has no brackets


text_of: Final = Writer((None,))
"""Writes a value as the class body that is being declared does: names of bases with their class."""


def declared_text(declared: Term, owner: str | None = None) -> str:
    """An expression as the class that declares it, or else `owner`, writes it: names of bases with their class."""
    owner = declared._pytree__owner or owner
    return Writer(None if owner is None else (None, owner)).whole(declared)


# ================================================================= generated functions


def _is_mutable(value: Any) -> bool:
    """Whether a literal is, or holds, a list or dict; each instance makes such a literal anew."""
    return value.__class__ is not tuple or any(item.__class__ in CONTAINERS and _is_mutable(item) for item in value)


def _is_literal(value: Any) -> bool:
    """Whether the source of a value is its repr."""
    if value.__class__ is tuple:
        return all(map(_is_literal, value))
    return value is None or value.__class__ in (bool, int, str) or (value.__class__ is float and math.isfinite(value))


class SourceWriter(Writer):
    """Writes expressions as the source of a function, and collects the constants in them.

    Expressions with a name are found by identity; `reserved` are the names that the function around the source binds.

    Attributes:
      implies_rngs: whether calls get the `rngs` of the constructor that they do not mention.
      constants: the values that are not literals, by the name that the source uses.
      shared: the local names of expressions that stand more than once in a part, by identity; empty until written.
    """

    functions: Mapping[int, str] = {}

    def __init__(self, names: Mapping[int, str], reserved: Collection[str] = (), *, implies_rngs: bool = False) -> None:
        super().__init__(())
        self._names = names
        self._reserved = reserved
        self.implies_rngs = implies_rngs
        self.shared: dict[int, str] = {}
        self.constants: dict[str, Any] = {"abs": abs, "range": range}

    def name(self, value: Any) -> str | None:
        """The name of a value; an expression that is shared gets its name where it stands first."""
        known = self._names.get(id(value))
        if known is not None or id(value) not in self.shared:
            return known
        known = self.shared[id(value)]
        if known:
            return known
        known = self.shared[id(value)] = self.constant(value, "shared")
        return f"({known} := {self.term(value)})"

    def is_open(self, value: Any) -> bool:
        """Whether a container is made anew: it holds expressions, or may be changed."""
        return value.__class__ in CONTAINERS and (has_expression(value) or _is_mutable(value))

    def plain(self, value: Any) -> str:
        """The source of a literal; the name of another constant."""
        if _is_literal(value):
            return repr(value)
        return self.constant(value, getattr(value, "__name__", None) or repr(value))

    def call(self, call: Call) -> str:
        """A call with its `rngs`; a class that makes layers evaluates the first argument for each of them."""
        target, kwargs = call.target, call.kwargs
        function = self(target)
        args = list(map(self.argument, call.args))
        if args and hasattr(target, "_pytree__makes_layers") and _makes_layer(call.args[0]):
            kwargs = {RNGS: self._rngs_of(call.args[0]._pytree__call), **kwargs}
            args[0] = self._function(call.args[0], kwargs[RNGS])
        elif self.implies_rngs and isinstance(target, Term) and RNGS not in kwargs:
            function = f"{self.constant(with_rngs, 'with_rngs')}({function}, {self(OWN_RNGS)})"
        elif self.implies_rngs and omits_rngs(call):
            kwargs = {**kwargs, RNGS: own_rngs_for(target)}
        return call_text(function, args, {name: self.argument(value) for name, value in kwargs.items()})

    def _rngs_of(self, call: Call) -> Any:
        """The argument `rngs` of a call, or else of a call among its arguments."""
        for held in calls_in(Term(call)):
            given = given_rngs(held)
            if given is not None:
                return given
            if self.implies_rngs and (omits_rngs(held) or (isinstance(held.target, Term) and RNGS not in held.kwargs)):
                return OWN_RNGS
        return None

    def _function(self, item: Any, rngs: Any) -> str:
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
