"""Reads functions: names, and tables that bind some of their arguments."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from declax.config._data import Ref, SpecData
from declax.config._reading.parameters import Parameters
from declax.config._reading.readers import INVALID, Context, NamesReader, Schema, listed
from declax.config.problems import KIND, Path, shown
from declax.config.registry import name_in
from declax.errors import ConfigError

if TYPE_CHECKING:
    from declax.config._reading.readers import Schemas


class Binding(Protocol):
    """The reader of the arguments that data may bind to a function: a `CallReader`."""

    name: str
    names: tuple[str, ...]

    def arguments(
        self, table: Mapping[str, Any], path: Path, context: Context, choices: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """The arguments of a table, or None with problems in the report."""
        ...

    def check_readable(self) -> None:
        """Raises the error of an unreadable parameter."""
        ...


FindBinding: TypeAlias = Callable[[Any], "tuple[Binding, str | None]"]
"""Finds the reader of the arguments of a function, and the name of its first parameter."""


class FunctionReader(NamesReader):
    """A function by name, with some of its arguments by a table, which gives a `functools.partial`; or any callable."""

    words = frozenset({"string", "table"})

    def __init__(self, noun: str, table: Mapping[str, Any], find: FindBinding, own: str | None = None) -> None:
        super().__init__(noun, table, "unknown-activation")
        self._find = find
        self.own = own  # the name of a default, whose arguments the schema leaves open: they may be of any type

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if isinstance(value, functools.partial) and self._is_named(value):
            found = self._bound(value.func, value.keywords, path, context)
            return value if found is not INVALID and tuple(found.keywords) == tuple(value.keywords) else found
        if not isinstance(value, Mapping):
            return super().read(value, path, context)
        tag = value.get(KIND)
        if KIND not in value:
            message, hint = f"the key {KIND!r}, which selects the function, is missing", f"{KIND} = ..."
            context.add("missing-kind", path, message, expected=listed(self.table), got=shown(value), hint=hint)
            return INVALID
        if type(tag) is not str:
            return context.wrong((*path, KIND), f"string, {self.expected}", tag)
        function = super().read(tag, (*path, KIND), context)
        given = {key: item for key, item in value.items() if key != KIND}
        return self._bound(function, given, path, context) if given and function is not INVALID else function

    def _is_named(self, value: functools.partial[Any]) -> bool:
        """Whether data can describe a partial."""
        return not value.args and bool(value.keywords) and name_in(self.table, value.func) is not None

    def _bound(self, function: Any, given: Mapping[str, Any], path: Path, context: Context) -> Any:
        """A function with arguments, in the order of its parameters, so that equal ones compare as equal."""
        try:
            call, first = self._find(function)
        except ConfigError as error:  # it has no signature
            message = f"{error.where}: {error.problem}"
            context.add("invalid", path, message, expected=error.expected, got=error.got, hint=error.fix)
            return INVALID
        if first is not None and first in given:
            message = f"{first!r} is the argument with which the model calls {call.name}"
            context.add("unknown-key", (*path, first), message, expected=listed(call.names), hint=f"remove {first!r}")
            return INVALID
        found = call.arguments(given, path, context, {})
        if found is None:
            return INVALID
        for name, value in found.items():
            try:
                hash(value)
                is_plain = not isinstance(value, (SpecData, Ref))
            except TypeError:
                is_plain = False
            if not is_plain:
                return context.wrong((*path, name), "a plain value with a hash, since it is bound to a function", value)
        ordered = sorted(found, key=lambda name: call.names.index(name) if name in call.names else len(call.names))
        return functools.partial(function, **{name: found[name] for name in ordered})

    def schema(self, schemas: Schemas) -> Schema:
        return schemas.shared(self, self.noun.partition(" ")[2])

    def definition(self, schemas: Schemas) -> Schema:
        tables: list[Schema] = []
        plain: list[str] = []
        for name, function in self.table.items():
            if name == self.own:
                tables += [{"type": "object", "properties": {KIND: {"const": name}}, "required": [KIND]}]
                continue
            call = self._call_or_none(function)
            tables += [] if call is None else schemas.bound(name, call)
            plain += [name] if call is None else []
        alone: Schema = {
            "title": "without arguments",
            "type": "object",
            "properties": {KIND: {"enum": plain}},
            "required": [KIND],
            "additionalProperties": False,
        }
        named = {"title": "by name", "enum": list(self.table)}
        return {"title": self.noun.partition(" ")[2], "anyOf": [named, *tables, *([alone] if plain else [])]}

    def _call_or_none(self, function: Any) -> Binding | None:
        """The reader of the arguments that data can bind; None if there are none."""
        try:
            call, _ = self._find(function)
            call.check_readable()
        except ConfigError:
            return None
        return call if call.names else None


def without_first(parameters: Parameters) -> tuple[Parameters, str | None]:
    """The parameters that data can bind: all but the first, which the model gives; and the name of the first."""
    first = next(iter(parameters.positional), parameters.variadic)
    left = {
        name: parameter for name, parameter in parameters.by_name.items() if name not in (first, parameters.variadic)
    }
    return dataclasses.replace(parameters, by_name=MappingProxyType(left), required=(), variadic=None), first
