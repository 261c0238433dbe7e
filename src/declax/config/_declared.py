"""Evaluates the parts that a class body declares, for the arguments of one spec of the class."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from declax._fields.expressions import (
    Choice,
    Declaration,
    Deferred,
    Expression,
    Literal,
    Operation,
    Reference,
    Repeated,
)
from declax._fields.overrides import DeclaredPart, arguments_of, with_parts
from declax._fields.sources import CONTAINERS, entries, rebuilt
from declax.config._data import SpecData, freeze, thaw
from declax.config._reading.parameters import RNGS

_PLAIN: Final = ("builtins", "math", "operator")
"""The modules whose functions are called; calls of other functions become specs."""


class ClassBodyScope:
    """The values of the names in a class body, for the arguments of a spec."""

    def __init__(self, owner: SpecData) -> None:
        target: Any = owner.target
        known = getattr(target, "_pytree__expressions", {})
        self.parts = {n: freeze(with_parts(target, (n,), known[n][0])) for n in known}
        self._names = {id(expression): n for n, expressions in known.items() for expression in expressions}
        self._given = owner.full_arguments
        self._open: set[str] = set()

    def read(self, name: str) -> Any:
        value = self._given[name] if name in self._given else self.parts[name]
        self._open.add(name)
        found = self.value(value)
        self._open.discard(name)
        return found

    def value(self, value: Any) -> Any:
        """A value with its expressions evaluated; those that need an instance remain."""
        try:
            return freeze(self._evaluated(thaw(value, _overridden)))
        except Exception:  # noqa: BLE001  # an operator or function of a user
            return value

    def _evaluated(self, value: Any) -> Any:
        name = self._names.get(id(value)) if isinstance(value, Expression) else None
        if name is not None and name not in self._open:
            return self.read(name)
        if isinstance(value, Reference):
            return self._evaluated(value._pytree__target)
        if isinstance(value, Deferred):
            return self._called(value)
        if isinstance(value, Choice):
            flag, chosen, other = value._pytree__values
            return self._evaluated(chosen if self._evaluated(flag) else other)
        if isinstance(value, Repeated):
            count, item = value._pytree__values
            return [self._evaluated(item)] * self._evaluated(count)
        if isinstance(value, Operation):
            operands = map(self._evaluated, value._pytree__operands())
            names = {f"_{i}": _Attributes(o) if isinstance(o, SpecData) else o for i, o in enumerate(operands)}
            return eval(value._pytree__template.format(*names), {}, names)
        if isinstance(value, Declaration) and value._pytree__field.default is not dataclasses.MISSING:
            return value._pytree__field.default
        value = value._pytree__value if isinstance(value, Literal) else value
        if value.__class__ in CONTAINERS:
            return rebuilt(value, {key: self._evaluated(item) for key, item in entries(value)})
        return value

    def _called(self, call: Deferred) -> Any:
        function, kwargs = call._pytree__function, call._pytree__kwargs
        if getattr(function, "__module__", None) in _PLAIN:
            named = {name: self._evaluated(value) for name, value in kwargs.items()}
            return function(*map(self._evaluated, call._pytree__args), **named)
        return SpecData.of_values(function, {n: self.value(v) for n, v in arguments_of(call).items() if n != RNGS})


class _Attributes:
    """The arguments of a spec, read as attributes of the described object."""

    def __init__(self, spec: SpecData) -> None:
        self._spec = spec

    def __getattr__(self, name: str) -> Any:
        return ClassBodyScope(self._spec).value(self._spec.full_arguments[name])


def _overridden(value: Any) -> Any:
    override = _given(value)
    return value if override is value else override.expression


def _given(value: Any) -> Any:
    is_override = isinstance(value, SpecData) and isinstance(value.target, DeclaredPart)
    return value.target(**{n: thaw(v, _given) for n, v in value.arguments.items()}) if is_override else value
