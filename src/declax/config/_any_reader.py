"""Readers of values that no annotation narrows: plain data, and the parts that may stand anywhere."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from declax import nn
from declax._containers import Dict, List, Sequential
from declax._pytree import Pytree
from declax.config._context import INVALID, Context
from declax.config._data import FrozenDict, FrozenList, SpecData
from declax.config._parameters import target_name
from declax.config._part_readers import KIND, ChoiceReader, Readers, UnionReader
from declax.config._readers import (
    REF,
    TUPLE,
    WORDS,
    IntReader,
    ListReader,
    MappingReader,
    Reader,
    Schema,
    Schemas,
    StrReader,
    Writer,
    is_list,
    read_ref,
)
from declax.config.files.documents import UnheldNumber
from declax.config.problems import Path, did_you_mean, shown
from declax.config.registry import kinds_of


@functools.cache
def layers() -> Mapping[str, Any]:
    """The layers and containers of declax, by name."""
    found = {name: cls for name, cls in vars(nn).items() if isinstance(cls, type) and issubclass(cls, Pytree)}
    return MappingProxyType({**found, "Sequential": Sequential, "List": List, "Dict": Dict})


def anywhere(extra: Iterable[Any]) -> dict[str, Any]:
    """The targets that may stand at an open annotation, by tag; those that code lets in go before the layers."""
    let_in = {target_name(target).rpartition(".")[2]: target for target in extra}
    return {**layers(), **kinds_of(Any), **kinds_of(object), **let_in}


class AnyReader(Reader):
    """Any plain data, where a table with the tag is a part; and any object that a spec may hold."""

    def __init__(self, catalog: Readers, choices: Mapping[str, Any]) -> None:
        self.catalog = catalog
        self.parts = ChoiceReader(catalog, choices, "a part")
        self.items = ListReader(self, list)
        self.table = MappingReader(UnionReader([StrReader(), IntReader()]), self)

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if type(value) is int:
            return _INT.read(value, path, context)
        if is_list(value):
            return self.items.read(value, path, context)
        if isinstance(value, Mapping):
            return self._of_table(value, path, context)
        if isinstance(value, UnheldNumber):
            return self.wrong(value, path, context)
        self.visit(value, path, context)
        return value

    def holds(self, value: Any) -> bool:
        return (
            self.holds_inner(value)
            if isinstance(value, (tuple, FrozenDict))
            else type(value) is not int or _INT.holds(value)
        )

    def inner(self, value: Any) -> Iterable[tuple[str | int, Reader, Any]]:
        if isinstance(value, FrozenDict):
            return [(key, self, item) for key, item in value.items()]
        return [(index, self, item) for index, item in enumerate(value)] if is_list(value) else ()

    def write(self, value: Any, path: Path, writer: Writer) -> Any:
        if isinstance(value, SpecData):
            return writer.table(value, self.parts, path)
        if isinstance(value, Mapping):
            return self.table.write(value, path, writer)
        if isinstance(value, FrozenList) or type(value) in (list, tuple, frozenset):
            items = self.items.write(value, path, writer)
            return {TUPLE: items} if type(value) is tuple else items
        return super().write(value, path, writer)

    def schema(self, schemas: Schemas) -> Schema:
        return schemas.shared(self, "anything", lambda itself: self._schema(schemas, itself))

    def _schema(self, schemas: Schemas, itself: Schema) -> Schema:
        kinds = {tag: target for tag, target in self.parts.choices.items() if layers().get(tag) is not target}
        table: Schema = {
            "type": "object",
            "properties": {KIND: {"enum": list(layers())}},
            "additionalProperties": itself,
        }
        plain = [{"type": ["null", "boolean", "number", "string"]}, {"type": "array", "items": itself}]
        options = [*plain, table, *schemas.definitions(kinds, is_tag_needed=True)]
        return {"title": "anything", "anyOf": options}

    def _of_table(self, table: Mapping[str, Any], path: Path, context: Context) -> Any:
        if KIND in table:
            return self._part(table, path, context)
        if len(table) == 1 and REF in table:
            return read_ref(table, path, context, self)
        return self._tuple(table, path, context) if TUPLE in table else self.table.read(table, path, context)

    def _part(self, table: Mapping[str, Any], path: Path, context: Context) -> Any:
        tag = table[KIND]
        if type(tag) is str and tag in self.parts.choices:
            return self.parts.read(table, path, context)
        known = did_you_mean(tag, self.parts.choices) if isinstance(tag, str) else None
        context.report.add(
            "unknown-kind", (*path, KIND), "no class of this name may stand here",
            expected="a layer of declax, or what extra=[...] lets in", got=shown(tag),
            hint=known or "extra=[...] lets a class in, as does dx.register_kind(typing.Any, cls)",
        )  # fmt: skip
        return INVALID

    def _tuple(self, table: Mapping[str, Any], path: Path, context: Context) -> Any:
        items = table[TUPLE]
        if len(table) > 1 or not is_list(items):
            context.report.add(
                "tuple", path, "this is no tuple", expected='{ "$tuple" = [1, 2] } and nothing else', got=shown(table)
            )
            return INVALID
        found = self.items.read(items, path, context)  # a Ref counts items of tuples as those of lists
        return found if found is INVALID else tuple(found)


class LayerReader(AnyReader):
    """The argument of `Sequential`: a part, or a function by its name; or one list of these."""

    expected = "a table of a layer, or the name of a function"

    def __init__(self, catalog: Readers, choices: Mapping[str, Any], functions: Reader) -> None:
        super().__init__(catalog, choices)
        self.functions = functions

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if type(value) is str:
            return self.functions.read(value, path, context)
        if isinstance(value, Mapping) and not value.keys() & {KIND, REF, TUPLE}:
            return self.parts.read(value, path, context)  # which reports that the tag is missing
        is_plain = not isinstance(value, Mapping) and not is_list(value) and type(value) in WORDS
        return self.wrong(value, path, context) if is_plain else super().read(value, path, context)

    def holds(self, value: Any) -> bool:
        return self.holds_inner(value) if is_list(value) else type(value) not in WORDS

    def write(self, value: Any, path: Path, writer: Writer) -> Any:
        if callable(value) and not isinstance(value, type):
            return self.functions.write(value, path, writer)
        return super().write(value, path, writer)

    def _schema(self, schemas: Schemas, itself: Schema) -> Schema:
        names = {"title": "by name", "type": "string", **schemas.schema(self.functions)}
        parts = schemas.definitions(self.parts.choices, is_tag_needed=True)
        return {"title": "layer", "anyOf": [names, {"type": "array", "items": itself}, *parts, schemas.reference()]}

    def schema(self, schemas: Schemas) -> Schema:
        return schemas.shared(self, "layer", lambda itself: self._schema(schemas, itself))


_INT = IntReader()
