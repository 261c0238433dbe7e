"""From specs to plain data, by the readers that read it.

Vocabulary
----------
minimal form: a tag, and what differs from the defaults; it follows the code when a default changes.
full form:    the defaults too, and the version of each class; it says the same for ever. A default that has no name in
              data is left out of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NoReturn

from declax.config import _tables
from declax.config._any_reader import AnyReader
from declax.config._building import annotation_at
from declax.config._catalog import Catalog, catalog_for
from declax.config._data import FrozenDict, FrozenList, Ref, SpecData, freeze, thaw
from declax.config._field_checks import CheckedReader
from declax.config._parameters import target_name
from declax.config._part_readers import KIND, CallReader, ChoiceReader, UnionReader
from declax.config._readers import REF, DtypeReader, Reader
from declax.config._reading_back import check_read_back, reads_back
from declax.config._refs import put_in
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


def value_as_data(value: object, reader: Reader) -> Any:
    """A value as plain data that a reader takes.

    Raises:
      ConfigError: it has no name in any table.
    """
    return _Writer(catalog_for(()), "", is_full=False).value(freeze(value), reader, ())


class _Writer:
    def __init__(self, catalog: Catalog, root: str, *, is_full: bool) -> None:
        self.catalog = catalog
        self.root = root
        self.is_full = is_full

    def table(self, spec: SpecData, reader: Reader | None, path: Path) -> dict[str, Any]:
        """The table of one spec, its tag first."""
        made: dict[str, Any] = {KIND: self._tag(spec.target, reader, path)}
        call = self._call(spec.target, reader)
        call.check_readable()
        version = version_of(spec.target)
        if self.is_full or version > 1:
            made[VERSION] = version
        given = spec.arguments
        for name, value in (spec.full_arguments if self.is_full else given).items():
            inner = call.reader_of(name) or self.catalog.anything()
            value = put_in(value, annotation_at(spec.parameters, name), (*path, name))
            if name in given:
                made[name] = self.value(value, inner, (*path, name))
                continue
            with contextlib.suppress(ConfigError):  # a default that data has no name for
                data = self.value(value, inner, (*path, name))
                if reads_back(value, data, inner):
                    made[name] = data
        return made

    def _call(self, target: Any, reader: Reader | None) -> CallReader:
        """The reader of a target's arguments at its place, which may say what its type variables stand for."""
        parts = (choice for choice in _choices(reader) if any(target is known for known in choice.choices.values()))
        choice = next(parts, None)
        return self.catalog.call(target) if choice is None else choice.call_of(target)

    def value(self, value: Any, reader: Reader, path: Path) -> Any:
        """Any value as plain data."""
        return {REF: value.path} if type(value) is Ref else reader.write(value, path, self)

    def named(self, value: Any, reader: Reader, path: Path) -> Any:
        """The data of a value that its reader does not write."""
        if isinstance(value, Ref):
            return {REF: value.path}
        if isinstance(value, SpecData):
            return self.table(value, reader, path)
        if isinstance(value, (FrozenDict, FrozenList, tuple, frozenset)) and not hasattr(value, "_fields"):
            return self.catalog.anything().write(value, path, self)
        for name in (_tables.dtype_name(value), _tables.name_in(_tables.ACTIVATIONS, value)):
            if name is not None:
                return name
        if isinstance(value, type) and isinstance(reader, DtypeReader):
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

    def initializer(self, value: NamedInitializer, path: Path) -> Any:
        """The name of an initializer, or the table with its arguments."""
        call = None if value.settings is None else self.catalog.call(_tables.INITIALIZERS[value.name])
        if call is None:
            return value.name
        found = {}
        for name, setting in value.arguments.items():
            default = call.parameters.by_name[name].default
            if self.is_full or (setting is not default and setting != default):
                found[name] = self.value(freeze(setting), call.readers[name], (*path, name))
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
    found = [r.parts if isinstance(r, AnyReader) else r for r in _flat(reader)]
    return [r for r in found if isinstance(r, ChoiceReader)]


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
