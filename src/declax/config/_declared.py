"""Evaluates the parts that a class body declares, for the arguments of one spec of the class."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from declax._fields.call import OPERATIONS, Call, Environment, Term, attribute, evaluate, has_expression, walk
from declax._fields.class_info import maker_of
from declax._fields.expressions import Declaration, computed_fields
from declax._fields.overrides import DeclaredPart, expression_of
from declax._typing import MISSING
from declax.config._data import FrozenDict, FrozenList, SpecData, freeze, thaw
from declax.config._reading.parameters import RNGS
from declax.config._supplied import shown_value, value_of
from declax.config.problems import Path

_PLAIN: Final = ("builtins", "math", "operator", "_operator")
"""The modules whose functions are called; calls of other functions become specs."""


class ClassBodyScope(Environment):
    """The values of the names in a class body, for the arguments of a spec; calls of classes give specs."""

    def __init__(
        self, owner: SpecData, shown: Callable[[Any], Any] = shown_value, full: Mapping[str, Any] | None = None
    ) -> None:
        known = computed_fields(owner.target) or maker_of(owner.target).expressions
        self.parts = {name: expressions[0] for name, expressions in known.items()}
        self._names = {id(expression): n for n, expressions in known.items() for expression in expressions}
        self._given = {name: shown(value) for name, value in (full or owner.full_arguments).items()}
        self._read: dict[str, Any] = {}
        self._open: set[str] = set()

    def read(self, name: str) -> Any:
        if name not in self._read:
            self._open.add(name)
            self._read[name] = self.value(self._given[name] if name in self._given else self.parts[name])
            self._open.discard(name)
        return self._read[name]

    def computed(self, name: str) -> Any:
        """The value of a name, of which nothing may remain an expression."""
        self._open.add(name)
        self._given = {other: value_of(value) for other, value in self._given.items()}  # an object has its secrets
        try:
            return freeze(evaluate(thaw(self.parts[name], _overridden), self))
        except Exception as error:
            error.add_note(f"while the default of {name!r} was computed")
            raise
        finally:
            self._open.discard(name)

    def value(self, value: Any) -> Any:
        """A value with its expressions evaluated; those that need an instance remain."""
        try:
            return freeze(evaluate(thaw(value, _overridden), self))
        except Exception:  # noqa: BLE001  # an operator or function of a user
            return value

    def find(self, term: Term) -> Any:
        name = self._names.get(id(term))
        if name is not None and name not in self._open:
            return self.read(name)
        default = term._pytree__field.default if isinstance(term, Declaration) else dataclasses.MISSING
        return MISSING if default is dataclasses.MISSING else default

    def call(self, call: Call) -> Any:
        if call.target is attribute:
            owner = evaluate(call.args[0], self)
            if isinstance(owner, SpecData):
                return ClassBodyScope(owner).value(owner.full_arguments[call.args[1]])
        made = dataclasses.replace(call, target=evaluate(call.target, self))
        if id(made.target) in OPERATIONS or getattr(made.target, "__module__", None) in _PLAIN:
            return super().call(made)
        return SpecData.of_values(made.target, {n: self.value(v) for n, v in made.arguments().items() if n != RNGS})


def computed_arguments(spec: SpecData) -> dict[str, Any]:
    """The defaults that are expressions of other arguments, for a class that does not compute them itself."""
    if not computed_fields(spec.target):
        return {}
    names = [p.name for p in spec.parameters if p.name not in spec.arguments and has_expression(p.default)]
    return {name: ClassBodyScope(spec).computed(name) for name in names}


def names_needed(target: Any, name: str) -> set[str]:
    """The names in a class body from which the value of a name is computed, also through others."""
    known = computed_fields(target) or maker_of(target).expressions
    names = {id(expression): other for other, expressions in known.items() for expression in expressions}
    return {names[id(term)] for term in walk(known.get(name, ())) if id(term) in names}


def exact_arguments(spec: SpecData) -> tuple[dict[str, Any], dict[str, Any]]:
    """All that the object of a spec is made of: what the spec says with plain defaults, and what the class computes.

    The second has defaults that are expressions, and the parts of the class body, but no Variables and no parts that
    methods make. An expression remains where only an instance has its value.
    """
    if isinstance(spec.target, DeclaredPart):
        return dict(spec.arguments), {}
    full = spec.full_arguments
    scope = ClassBodyScope(spec, lambda value: value, full)  # what follows a supplied value remains an expression
    said = {name: value for name, value in full.items() if not _is_computed(value)}
    made = {name: scope.read(name) for name in scope.parts if name not in said and name != RNGS}
    return said, {name: value for name, value in made.items() if not isinstance(value, Declaration)}


class Part(NamedTuple):
    """A part of a spec, also one that a class body declares.

    Attributes:
      path: in a configuration; the parts that `repeat` makes have the path of their list, where one table is for all.
      spec: with its arguments evaluated.
    """

    path: Path
    spec: SpecData


def parts_of(value: Any, path: Path = (), *, is_made: bool = False) -> Iterator[Part]:
    """A spec and the parts in it, the outer ones first."""
    if isinstance(value, SpecData):
        if isinstance(value.target, DeclaredPart):
            return
        yield Part(path, value)
        said, made = exact_arguments(value)
        for name, item in said.items():
            yield from parts_of(item, (*path, name))
        for name, item in made.items():
            is_list = type(value.arguments.get(name)) is FrozenList
            yield from parts_of(item, (*path, name), is_made=not is_list)
    elif type(value) in (tuple, FrozenList) and is_made and value and all(item == value[0] for item in value):
        yield from parts_of(value[0], path)
    elif type(value) in (tuple, FrozenList, FrozenDict):
        for key, item in value.items() if isinstance(value, FrozenDict) else enumerate(value):
            yield from parts_of(item, (*path, key))


def has_parts(value: Any) -> bool:
    """Whether a list, tuple or dict has specs in it."""
    if type(value) not in (tuple, FrozenList, FrozenDict):
        return False
    items = value.values() if isinstance(value, FrozenDict) else value
    return any(isinstance(item, SpecData) or has_parts(item) for item in items)


def _is_computed(value: Any) -> bool:
    """Whether a class body computes a value: an expression, or a declared part, also in a list or dict."""
    if isinstance(value, SpecData):
        return isinstance(value.target, DeclaredPart)
    if type(value) in (tuple, FrozenList, FrozenDict):
        return any(map(_is_computed, value.values() if isinstance(value, FrozenDict) else value))
    return isinstance(value, Term)


def _overridden(value: Any) -> Any:
    override = _given(value)
    return value if override is value else expression_of(override)


def _given(value: Any) -> Any:
    is_override = isinstance(value, SpecData) and isinstance(value.target, DeclaredPart)
    return value.target(**{n: thaw(v, _given) for n, v in value.arguments.items()}) if is_override else value
