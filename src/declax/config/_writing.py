"""From specs to plain data: the other way of `_structuring`, by the same tables.

Vocabulary
----------
minimal form: a tag, and what differs from the defaults; it follows the code when a default changes.
full form:    the defaults too, and the version of each class; it says the same for ever. A default that has no name in
              data is left out of it.
"""

from __future__ import annotations

import contextlib
import enum
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NoReturn

from declax.config import _plain, _tables
from declax.config._anything import AnythingReader
from declax.config._building import annotation_at
from declax.config._data import FrozenDict, FrozenList, Ref, SpecData, thaw
from declax.config._moving import put_in
from declax.config._parameters import target_name
from declax.config._plain import Reader
from declax.config._reading_back import check_read_back, reads_back
from declax.config._structuring import (
    KIND,
    REF,
    CallReader,
    Catalog,
    CheckedReader,
    ChoiceReader,
    UnionReader,
    catalog_for,
)
from declax.config._versions import VERSION, version_of
from declax.config.problems import Path, path_text
from declax.config.registry import registered_name
from declax.errors import ConfigError, describe, type_name
from declax.initializers import NamedInitializer

_NO_FORM: Final = "a configuration has no words for this value"


def plain_data(spec: SpecData, *, full: bool, extra: Iterable[Any] = ()) -> dict[str, Any]:
    """The table of a spec; see `declax.to_config`.

    Raises:
      ConfigError: for a value that has no name in any table, and for one that would be read as another.
    """
    catalog = catalog_for(tuple(extra))
    data = _Writer(catalog, target_name(spec.target), is_full=full).table(spec, None, ())
    check_read_back(spec, data, catalog)
    return data


def value_as_data(value: object, reader: Reader | None) -> Any:
    """A value as plain data that a reader takes.

    Raises:
      ConfigError: it has no name in any table.
    """
    return _Writer(catalog_for(()), "", is_full=False).value(value, reader, ())


class _Writer:
    def __init__(self, catalog: Catalog, root: str, *, is_full: bool) -> None:
        self.catalog = catalog
        self.root = root
        self.is_full = is_full

    def table(self, spec: SpecData, reader: Reader | None, path: Path) -> dict[str, Any]:
        """The table of one spec, its tag first."""
        made: dict[str, Any] = {KIND: self._tag(spec.target, reader, path)}
        call = self._call(spec.target, reader)
        version = version_of(spec.target)
        if self.is_full or version > 1:
            made[VERSION] = version
        given = spec.arguments
        for name, value in (spec.full_arguments if self.is_full else given).items():
            inner = call.readers.get(name, call.extra)
            value = put_in(value, annotation_at(spec.parameters, name), (*path, name))
            if name in given:
                made[name] = self.value(value, inner, (*path, name))
                continue
            with contextlib.suppress(ConfigError):  # a default that data has no name for
                data = self.value(value, inner, (*path, name))
                if inner is None or reads_back(value, data, inner):
                    made[name] = data
        return made

    def _call(self, target: Any, reader: Reader | None) -> CallReader:
        """The reader of a target's arguments at its place, which may say what its type variables stand for."""
        parts = (choice for choice in _choices(reader) if any(target is known for known in choice.choices.values()))
        choice = next(parts, None)
        return self.catalog.call(target) if choice is None else choice.call_of(target)

    def value(self, value: Any, reader: Reader | None, path: Path) -> Any:
        """Any value as plain data."""
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, SpecData):
            return self.table(value, reader, path)
        if isinstance(value, Ref):
            return {REF: value.path}
        if isinstance(value, enum.Enum):
            return value.name
        if isinstance(value, NamedInitializer):
            return self._initializer(value, path)
        if isinstance(value, (tuple, FrozenList, frozenset)) and not hasattr(value, "_fields"):
            items = sorted(value, key=_order) if isinstance(value, frozenset) else value
            inner = _inner_readers(reader, _plain.ListReader, _plain.TupleReader, AnythingReader)
            made = [self.value(item, _item_reader(inner, i), (*path, i)) for i, item in enumerate(items)]
            is_open = type(value) is tuple and isinstance(inner, AnythingReader)
            return {_plain.TUPLE: made} if is_open else made
        if isinstance(value, (FrozenDict, dict)):
            inner = _inner_readers(reader, _plain.MappingReader, AnythingReader)
            return {str(k): self.value(v, _item_reader(inner, 0), (*path, str(k))) for k, v in value.items()}
        return self._named(value, reader, path)

    def _named(self, value: Any, reader: Reader | None, path: Path) -> Any:
        """What data has a name for: a dtype, a function, a path."""
        if (name := _tables.dtype_name(value)) is not None:
            return name
        if isinstance(value, pathlib.PurePath):
            return value.as_posix()
        tables = [r.table for r in _flat(reader) if isinstance(r, _plain.NamesReader)]
        for table in [*tables, _tables.ACTIVATIONS]:
            if (name := _tables.name_in(table, value)) is not None:
                return name
        if isinstance(value, type) and any(isinstance(r, _plain.DtypeReader) for r in _flat(reader)):
            self._no_dtype(value, path)
        is_function = callable(value)
        name = type_name(type(value))
        fix = f"dx.spec({name}, ...) in place of the object, and {name} in the annotation"
        raise ConfigError(
            f"{self.root}.{path_text(path)}",
            _NO_FORM,
            got=describe(value),
            why="data names functions by tables only, so that no file can run code"
            if is_function
            else "data has texts, numbers, lists and tables; an object is the table of what makes it",
            fix="dx.register_kind(Callable, function) before this, and where the file is read" if is_function else fix,
        )

    def _no_dtype(self, value: type, path: Path) -> NoReturn:
        raise ConfigError(
            f"{self.root}.{path_text(path)}",
            _NO_FORM,
            got=describe(value),
            why="which dtype a type of Python stands for is up to the settings of JAX",
            fix=f"jnp.{_tables.default_dtype(value)}, which has a name",
        )

    def _initializer(self, value: NamedInitializer, path: Path) -> Any:
        call = None if value.settings is None else self.catalog.call(_tables.INITIALIZERS[value.name])
        if call is None:
            return value.name
        found = {}
        for name, setting in value.arguments.items():
            default = call.parameters.by_name[name].default
            if self.is_full or (setting is not default and setting != default):
                setting = tuple(setting) if isinstance(setting, list) else setting
                found[name] = self.value(setting, call.readers[name], (*path, name))
        return {KIND: value.name, **found} if found else value.name

    def _tag(self, target: Any, reader: Reader | None, path: Path) -> str:
        """The tag by which the same place reads the target again."""
        choices = [choice.choices for choice in _choices(reader)]
        for table in choices:
            if (name := _tables.name_in(table, target)) is not None:
                return name
        if choices and path:
            raise ConfigError(
                f"{self.root}.{path_text(path)}",
                f"{target_name(target)} could not be read again: it is none of the choices here",
                expected=", ".join(list(choices[0])[:40]),
                got=target_name(target),
                fix=f"extra=[{target_name(target)}], or dx.register_kind(base, {target_name(target)}) with the class "
                "that the annotation names as base",
            )
        if isinstance(target, type):
            return registered_name(target) or target_name(target).rpartition(".")[2]
        for table in _function_tables(target):
            if (name := _tables.name_in(table, target)) is not None:
                return name
        return registered_name(target) or target_name(target).rpartition(".")[2]


def _function_tables(target: Any) -> Iterator[Mapping[str, Any]]:
    inner = getattr(target, "func", target)  # of a partial
    if str(getattr(inner, "__module__", "")).partition(".")[0] == "optax":
        yield _tables.transformations()
        yield _tables.schedules()


def _flat(reader: Reader | None) -> list[Reader]:
    """A reader, or those that a union has."""
    while isinstance(reader, CheckedReader):
        reader = reader.reader
    if isinstance(reader, UnionReader):
        return [inner for member in reader.members for inner in _flat(member)]
    return [] if reader is None else [reader]


def _choices(reader: Reader | None) -> list[ChoiceReader]:
    """What says which parts may stand at a place."""
    found = [r.parts if isinstance(r, AnythingReader) else r for r in _flat(reader)]
    return [r for r in found if isinstance(r, ChoiceReader)]


def _inner_readers(reader: Reader | None, *kinds: type[Reader]) -> Reader | None:
    return next((r for r in _flat(reader) if isinstance(r, kinds)), None)


def _order(item: Any) -> tuple[str, Any]:
    """What items of a set are sorted by, so that equal sets are written alike; those of other types have no order."""
    is_ordered = type(item) in (bool, int, float, str)
    return type_name(type(item)), item if is_ordered else item.name if isinstance(item, enum.Enum) else repr(item)


def _item_reader(reader: Reader | None, index: int) -> Reader | None:
    if isinstance(reader, _plain.TupleReader):
        return reader.items[index] if index < len(reader.items) else None
    return reader if isinstance(reader, AnythingReader) else getattr(reader, "item", None)


def without_nulls(spec: SpecData, data: dict[str, Any], path: Path = ()) -> dict[str, Any]:
    """The table of a spec for TOML, which has no null: None is left out where it is the default.

    Raises:
      ConfigError: None is no default, so that leaving it out would say something else.
    """
    made: dict[str, Any] = {}
    for name, value in data.items():
        if name in (KIND, VERSION):
            made[name] = value
            continue
        parameter = spec.parameters.get(name)
        inner = spec.full_arguments.get(name)
        if value is None and parameter is not None and parameter.default is None:
            continue
        made[name] = _no_nulls(inner, value, (*path, name))
    return made


def _no_nulls(value: Any, data: Any, path: Path) -> Any:
    if data is None:
        raise ConfigError(
            path_text(path),
            "TOML has no null, and None is not the default here",
            fix="write the configuration as JSON or YAML",
        )
    if isinstance(value, SpecData):
        return without_nulls(value, data, path)
    value = thaw(value)
    if isinstance(data, list):
        items = value if isinstance(value, (list, tuple)) else [None] * len(data)
        return [_no_nulls(v, d, (*path, i)) for i, (v, d) in enumerate(zip(items, data, strict=False))]
    if isinstance(data, dict):
        inner = value if isinstance(value, dict) else {}
        # the settings of an initializer: None is the default of all that may be None
        is_settings = isinstance(value, NamedInitializer)
        return {k: _no_nulls(inner.get(k), d, (*path, k)) for k, d in data.items() if d is not None or not is_settings}
    return data
