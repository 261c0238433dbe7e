"""Tables of a configuration, in files and in Python, whose keys are the fields of classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from mypy.nodes import Decorator, DictExpr, Expression, ListExpr, StrExpr, TupleExpr, TypeInfo, Var
from mypy.types import CallableType, Instance, Type, UnionType, get_proper_type

from declax.config._rename.declaration import Family
from declax.config._rename.texts import Text
from declax.config.problems import KIND, REF, Path

SPEC = "declax.config.specs.Spec"

Span = tuple[int, int]


class Entry(NamedTuple):
    """An entry of a table: its key, where the key is written, and a `Table`, a list or another value."""

    key: str
    spans: tuple[Span, ...]
    value: Any


class Table(list[Entry]):
    """The entries of a table."""

    def get(self, key: str) -> Any:
        return next((entry.value for entry in self if entry.key == key), None)


def table_of_data(data: Any, spans: Mapping[Path, list[Span]], path: Path = ()) -> Any:
    """Plain data with the places of its keys."""
    if isinstance(data, dict):
        inner = {key: (*path, key) for key in data}
        return Table(Entry(k, tuple(spans.get(inner[k], ())), table_of_data(data[k], spans, inner[k])) for k in data)
    if isinstance(data, list):
        return [table_of_data(item, spans, (*path, index)) for index, item in enumerate(data)]
    return data


def table_of_code(node: Expression, text: Text) -> Any:
    """The literals of a program with the places of their keys; None for other expressions."""
    if isinstance(node, DictExpr):
        keys = [(key, value) for key, value in node.items if isinstance(key, StrExpr)]
        return Table(Entry(key.value, span_in_quotes(key, text), table_of_code(value, text)) for key, value in keys)
    if isinstance(node, (ListExpr, TupleExpr)):
        return [table_of_code(item, text) for item in node.items]
    return node.value if isinstance(node, StrExpr) else None


def span_in_quotes(node: StrExpr, text: Text) -> tuple[Span, ...]:
    """Where the characters of a string are written, if it is written as it is."""
    start = text.offset(node.line, node.column)
    end = text.offset(node.end_line or node.line, node.end_column or 0)
    inner = (start + 1, end - 1)
    return (inner,) if text.text[slice(*inner)] == node.value else ()


class Keys:
    """Replaces the keys for a field in tables.

    Args:
      family: the field.
      classes: all classes of the project, which `kind` may name.
      text: the text of the tables.
    """

    def __init__(self, family: Family, classes: Iterable[TypeInfo], text: Text) -> None:
        self.undecided: list[str] = []
        self._family = family
        self._classes = {info.name: info for info in classes}
        self._text = text

    def replace(self, value: Any, annotation: Type | None) -> None:
        """Replaces keys in a table or list that has some annotation."""
        if isinstance(value, Table):
            self._table(value, annotation)
        elif isinstance(value, list):
            for item in value:
                self.replace(item, _element(annotation, 0))

    def replace_path(self, path: str, spans: tuple[Span, ...], annotation: Type | None) -> bool:
        """Replaces the steps of a path such as ``blocks.0.hidden``; returns whether it could be followed."""
        steps, start = path.split("."), spans[0][0] if spans else 0
        found: list[int] = []
        for step in steps:
            info = self._one_class(annotation)
            if step == self._family.old and info is not None and self._family.has(info):
                found.append(start)
            if info is not None:
                annotation = _field_type(info, step)
            else:
                annotation = _element(annotation, 1 if _is_mapping(annotation) else 0)
            start += len(step) + 1
        if spans:
            for start in found:
                self._text.replace(start, start + len(self._family.old), self._family.new)
        return bool(found and spans)

    def _table(self, table: Table, annotation: Type | None) -> None:
        kind = table.get(KIND)
        info = self._classes.get(kind) if isinstance(kind, str) else self._one_class(annotation)
        is_known = isinstance(kind, str) or _is_mapping(annotation) or self._is_other(info)
        for entry in table:
            if entry.key == self._family.old:
                if info is not None and self._family.has(info):
                    self._key(entry)
                elif not is_known:
                    self._look_at(entry, "a key of a table that names no class")
            if entry.key == REF and isinstance(entry.value, str) and self._family.old in entry.value.split("/"):
                self._look_at(entry, f"a reference, {entry.value}")
            inner = _element(annotation, 1) if info is None else _field_type(info, entry.key)
            self.replace(entry.value, inner)

    def _key(self, entry: Entry) -> None:
        if not entry.spans:
            self.undecided.append(f"{self._text.path}: the key {entry.key!r} was not found in the text")
        for start, end in entry.spans:
            quote = self._text.text[start] if self._text.text[start] in "\"'" else ""
            self._text.replace(start, end, f"{quote}{self._family.new}{quote}")

    def _look_at(self, entry: Entry, why: str) -> None:
        start = entry.spans[0][0] if entry.spans else 0
        self.undecided.append(f"{self._text.place(start)}: {why}: {self._text.line_at(start)}")

    def _one_class(self, annotation: Type | None) -> TypeInfo | None:
        """The only class with fields that an annotation allows."""
        found = {info for info in _classes_in(annotation) if "dataclass" in info.metadata}
        return found.pop() if len(found) == 1 else None

    def _is_other(self, info: TypeInfo | None) -> bool:
        """Whether a class has nothing to do with the field: it has none of the classes with the field below it."""
        return info is not None and not any(info in found.mro for found in self._family.classes)


def _classes_in(annotation: Type | None) -> Iterator[TypeInfo]:
    found = get_proper_type(annotation)
    if isinstance(found, UnionType):
        for item in found.items:
            yield from _classes_in(item)
    elif isinstance(found, CallableType) and found.is_type_obj():
        yield found.type_object()
    elif isinstance(found, Instance):
        if found.type.fullname == SPEC and found.args:
            yield from _classes_in(found.args[0])
        else:
            yield found.type


def _element(annotation: Type | None, index: int) -> Type | None:
    """The type of the elements of a sequence (`index` 0), or of the values of a mapping (1)."""
    found = get_proper_type(annotation)
    if isinstance(found, UnionType):
        inner = [_element(item, index) for item in found.items]
        return next((item for item in inner if item is not None), None)
    return found.args[index] if isinstance(found, Instance) and len(found.args) == index + 1 else None


def _is_mapping(annotation: Type | None) -> bool:
    return _element(annotation, 1) is not None


def _field_type(info: TypeInfo, name: str) -> Type | None:
    symbol = info.get(name)
    node = None if symbol is None else symbol.node
    found = node.var if isinstance(node, Decorator) else node
    return found.type if isinstance(found, Var) else None
