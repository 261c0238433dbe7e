"""Evaluates the parts that a class body declares, for the arguments of one spec of the class."""

from __future__ import annotations

from typing import Any, Final

from declax._fields.expressions import Deferred, Expression
from declax._fields.overrides import DeclaredPart, Evaluation, arguments_of, with_parts
from declax.config._data import SpecData, freeze, thaw
from declax.config._reading.parameters import RNGS

_PLAIN: Final = ("builtins", "math", "operator")
"""The modules whose functions are called; calls of other functions become specs."""


class ClassBodyScope(Evaluation):
    """The values of the names in a class body, for the arguments of a spec."""

    def __init__(self, owner: SpecData) -> None:
        self._make = type(owner).of_values
        target: Any = owner.target
        known = getattr(target, "_pytree__expressions", {})
        self.parts = {n: freeze(with_parts(target, (n,), known[n][0]), self._make) for n in known}
        self._names = {id(expression): n for n, expressions in known.items() for expression in expressions}
        self._given = owner.full_arguments
        self._open: set[str] = set()

    def name(self, expression: Expression) -> str | None:
        name = self._names.get(id(expression))
        return None if name in self._open else name

    def read(self, name: str) -> Any:
        value = self._given[name] if name in self._given else self.parts[name]
        self._open.add(name)
        found = self.value(value)
        self._open.discard(name)
        return found

    def value(self, value: Any) -> Any:
        """A value with its expressions evaluated; those that need an instance remain."""
        try:
            return freeze(self(thaw(value, _overridden)), self._make)
        except Exception:  # noqa: BLE001  # an operator or function of a user
            return value

    def call(self, call: Deferred) -> Any:
        function = call._pytree__function
        if getattr(function, "__module__", None) in _PLAIN:
            return function(*map(self, call._pytree__args), **{n: self(v) for n, v in call._pytree__kwargs.items()})
        return self._make(function, {n: self.value(v) for n, v in arguments_of(call).items() if n != RNGS})

    def operand(self, value: Any) -> Any:
        return _Attributes(value) if isinstance(value, SpecData) else value


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
