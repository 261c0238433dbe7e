"""Converts specs to plain data: what they say, or the exact record with all values and versions."""

from __future__ import annotations

import contextlib
import enum
import functools
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

from declax._fields.overrides import DeclaredPart
from declax.config import registry
from declax.config._building import checked_refs
from declax.config._data import FrozenDict, FrozenList, FrozenSet, Ref, SpecData, freeze, key_of, thaw
from declax.config._declared import exact_arguments, has_parts
from declax.config._printing import value_text
from declax.config._reading.catalog import Catalog, catalog_for
from declax.config._reading.functions import FunctionReader
from declax.config._reading.parameters import called, target_name
from declax.config._reading.part_readers import (
    VERSION,
    AnyReader,
    ChoiceReader,
    InitializerReader,
    choices_at,
    version_of,
)
from declax.config._reading.readers import TUPLE, Context, DtypeReader, Reader, entries, is_list
from declax.config._refs import keys_of, where, with_items
from declax.config._sources.keys import VALUE
from declax.config._supplied import Supplied, value_of
from declax.config.problems import KIND, REF, Path, path_text
from declax.config.registry import registered_name
from declax.errors import ConfigError, describe, shortened, type_name
from declax.initializers import NamedInitializer, _is_default
from declax.training._transformation import is_transformation

_ATOMS: Final = (type(None), bool, int, float, str)


def plain_data(spec: SpecData, *, full: bool, extra: Iterable[Any] = ()) -> dict[str, Any]:
    catalog = catalog_for(tuple(extra))
    writer = DataWriter(catalog, target_name(spec.target), is_full=full)
    data = writer.table(spec, None, ())
    _check_read_back(_with_values(spec), data, catalog)
    for path, table in writer.supplied.items():
        _put(data, path, table)
    computed = computed_data(spec, catalog) if full else {}
    return {**data, COMPUTED: computed} if computed else data


def _with_values(value: Any) -> Any:
    """A spec with the values of supplied ones."""
    if isinstance(value, (SpecData, tuple, FrozenList, FrozenDict)):
        items = value.arguments if isinstance(value, SpecData) else value
        found = {key: _with_values(items[key]) for key in keys_of(value)}
        return value if all(found[key] is items[key] for key in found) else with_items(value, found)
    return value_of(value)


def _put(data: Any, path: Path, value: Any) -> None:
    for key in path[:-1]:
        data = data[key]
    data[path[-1]] = value


class DataWriter:
    """Writes values as data, the inverse of the readers; `plain_data` reads the result again to verify it."""

    def __init__(self, catalog: Catalog, root: str, *, is_full: bool = False) -> None:
        self.catalog = catalog
        self.root = root
        self.is_full = is_full
        self.supplied: dict[Path, Any] = {}

    def table(self, spec: SpecData, reader: Reader | None, path: Path) -> dict[str, Any]:
        """The table of one spec, its tag first."""
        choices = choices_at(reader)
        choice = next((c for c in choices if registry.name_in(c.choices, spec.target) is not None), None)
        target = called(spec.target)
        made: dict[str, Any] = {KIND: self._tag(target, choices, path)} if target is spec.target else {}
        call = self.catalog.call(spec.target) if choice is None else choice.call_of(spec.target)
        call.check_readable(spec.arguments)
        version = version_of(target)
        if made and (self.is_full or version > 1):
            made[VERSION] = version
        given = spec.arguments
        for name, value in ({**given, **exact_arguments(spec)[0]} if self.is_full else given).items():
            inner = call.reader_of(name) or self.catalog.anything
            if name in given:
                made[name] = self.value(value, inner, (*path, name))
            elif name not in call.refusals:
                with contextlib.suppress(ConfigError):  # data has no name for some defaults
                    data = self.value(value, inner, (*path, name))
                    if inner.reads_as(data, value):
                        made[name] = data
        return made

    def value(self, value: Any, reader: Reader, path: Path) -> Any:
        """The data from which a reader reads a value."""
        if type(value) is Ref:
            return {REF: value.path}
        if type(value) in _ATOMS:
            return value
        if isinstance(value, Supplied):
            return self._supplied(value, reader, path)
        reader = reader.member_for(value)
        if isinstance(value, SpecData):
            return self.table(value, reader, path)
        if isinstance(value, NamedInitializer) and isinstance(reader, InitializerReader):
            return self.initializer(value, path)
        if isinstance(value, functools.partial) and isinstance(reader, FunctionReader):
            return self._bound(value, reader, path)
        if isinstance(value, Mapping):
            return {str(key): self._below(value, key, item, reader, path) for key, item in value.items()}
        is_set = isinstance(value, (frozenset, FrozenSet))
        if is_set or is_list(value):
            items: Any = sorted(value, key=_order) if is_set else value
            made = [self._below(items, index, item, reader, path) for index, item in enumerate(items)]
            return {TUPLE: made} if type(value) is tuple and isinstance(reader, AnyReader) else made
        name = reader.name_of(value)
        if name is None:
            raise self._unnamed(value, reader, path)
        return name

    def _supplied(self, value: Supplied, reader: Reader, path: Path) -> Any:
        """The table that names a value; until the data was read back, the value."""
        if value.table is None:
            raise ConfigError(
                f"{self.root}.{path_text(path)}",
                "a secret that was given in Python cannot be written",
                why="configurations and records say where a secret is, and never the secret",
                fix='{ "$env" = "NAME" }, or { "$file" = "token.txt" }, in the configuration',
            )
        self.supplied[path] = thaw(value.table)
        return self.value(value.value, reader, path)

    def _below(self, holder: Any, key: Any, item: Any, reader: Reader, path: Path) -> Any:
        return self.value(item, reader.below(holder, key) or self.catalog.anything, (*path, key))

    def _unnamed(self, value: Any, reader: Reader, path: Path) -> ConfigError:
        name = type_name(type(value))
        fix = f"dx.spec({name}, ...) instead of the object, and {name} in the annotation"
        if isinstance(value, type) and isinstance(reader, DtypeReader):
            fix = "a dtype that has a name, such as jnp.float32"
        elif is_transformation(value):
            fix = "dx.spec(optax.adamw, ...) instead of the object, with the function and arguments that made it"
        elif callable(value):
            fix = "dx.register_kind(Callable, function), here and where the file is read"
        return ConfigError(
            f"{self.root}.{path_text(path)}",
            "a configuration cannot represent this value",
            got=describe(value),
            why="data has strings, numbers, lists and tables, and names of registered functions and dtypes",
            fix=fix,
        )

    def _bound(self, value: functools.partial[Any], reader: FunctionReader, path: Path) -> Any:
        """The table of a function with arguments."""
        name = reader.name_of(value.func)
        if name is None or value.args:
            raise self._unnamed(value, reader, path)
        call, _ = self.catalog.bindable(value.func)
        inner = {n: call.reader_of(n) or self.catalog.anything for n in value.keywords}
        return {KIND: name, **{n: self.value(freeze(v), inner[n], (*path, n)) for n, v in value.keywords.items()}}

    def initializer(self, value: NamedInitializer, path: Path) -> Any:
        if value.settings is None:
            return value.name
        call = self.catalog.call(registry.INITIALIZERS[value.name])
        found = {}
        for name, setting in value.arguments.items():
            default = call.parameters.by_name[name].default
            if self.is_full or not _is_default(setting, default):
                found[name] = self.value(freeze(setting), call.readers[name], (*path, name))
        return {KIND: value.name, **found} if found else value.name

    def _tag(self, target: Any, choices: list[ChoiceReader], path: Path) -> str:
        """The tag from which the same place reads the target again."""
        tables = [choice.choices for choice in choices]
        if not choices and "optax" in sys.modules:
            tables = [registry.transformations(), registry.schedules()]
        name = next((name for table in tables if (name := registry.name_in(table, target)) is not None), None)
        if name is None and choices:
            raise ConfigError(
                f"{self.root}.{path_text(path)}",
                f"{target_name(target)} could not be read back: it is not one of the choices here",
                expected=", ".join(list(tables[0])[:40]) or choices[0].noun,
                got=target_name(target),
                fix=f"extra=[{target_name(target)}], or dx.register_kind(base, {target_name(target)}) with the class "
                "of the annotation as base",
            )
        return name or registered_name(target) or target_name(target).rpartition(".")[2]


def _order(item: Any) -> tuple[str, Any]:
    """The sort key of the items of a set, so that equal sets are written alike."""
    is_ordered = type(item) in (bool, int, float, str)
    return type_name(type(item)), item if is_ordered else item.name if isinstance(item, enum.Enum) else repr(item)


def with_expressions(data: dict[str, Any], followed: Mapping[Path, str]) -> dict[str, Any]:
    """The data of a record in which values follow others as they did in its sources, by their paths."""
    for path, text in followed.items():
        holder: Any = data
        for key in path[:-1]:
            holder = _entry(holder, key)
        if _entry(holder, path[-1]) is not None:
            holder[path[-1]] = {VALUE: text}
    return data


def _entry(holder: Any, key: str | int) -> Any:
    """The value at a key of a table or an index of a list; None if there is none."""
    if isinstance(holder, list):
        return holder[key] if isinstance(key, int) and key < len(holder) else None
    return holder.get(key) if isinstance(holder, dict) else None


# --- what class bodies compute ------------------------------------------------------

COMPUTED: Final = "$computed"
"""The key at the root of an exact record whose table has what class bodies compute, by JSON pointers."""

LENGTH: Final = "$length"
"""The last step of the pointer to the number of parts that `repeat` makes."""


def computed_data(spec: SpecData, catalog: Catalog) -> dict[str, Any]:
    """The values that class bodies compute for a spec, by pointers; those without a name in data are left out.

    Equal parts in a list, which `repeat` makes, have one entry, since one table overrides them.
    """
    found = _Computed(catalog)
    found.enter(spec, ())
    return found.data


class _Computed:
    """Collects computed values. What the spec says itself is in its tables."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.data: dict[str, Any] = {}
        self._writer = DataWriter(catalog, "")

    def enter(self, value: Any, path: Path) -> None:
        """Collects below a value that a table says."""
        if isinstance(value, SpecData):
            if isinstance(value.target, DeclaredPart):
                return
            said, made = exact_arguments(value)
            call = self.catalog.call(value.target)
            for name, item in said.items():
                self.enter(item, (*path, name))
            for name, item in made.items():
                self._add(item, call.reader_of(name), (*path, name), value.arguments.get(name))
            return
        for key in keys_of(value):
            self.enter(value[key], (*path, key))

    def _add(self, value: Any, reader: Reader | None, path: Path, said: Any) -> None:
        """Adds a value that a class body computes, but for the arguments that an override says."""
        if isinstance(value, SpecData) and not isinstance(value.target, DeclaredPart):
            call = self.catalog.call(value.target)
            overrides = said.arguments if isinstance(said, SpecData) else {}
            for name, item in (pair for some in exact_arguments(value) for pair in some.items()):
                if name not in overrides or _is_override(overrides[name]):
                    self._add(item, call.reader_of(name), (*path, name), overrides.get(name))
        elif has_parts(value):
            self._add_items(value, reader, path, said)
        else:
            with contextlib.suppress(ConfigError):
                self.data[Ref.to(path).path] = self._writer.value(value, reader or self.catalog.anything, path)

    def _add_items(self, value: Any, reader: Reader | None, path: Path, said: Any) -> None:
        items = [(key, value[key]) for key in keys_of(value)]
        is_repeated = not isinstance(value, Mapping) and all(item == items[0][1] for _, item in items)
        if is_repeated and type(said) is not FrozenList:
            self.data[Ref.to((*path, LENGTH)).path] = len(items)
            self._add(items[0][1], None, path, said)
            return
        for key, item in items:
            self._add(item, None, (*path, key), said[key] if type(said) in (FrozenList, FrozenDict) else None)


def _is_override(value: Any) -> bool:
    return isinstance(value, SpecData) and isinstance(value.target, DeclaredPart)


# --- verifying the written data ---------------------------------------------------


def _check_read_back(spec: SpecData, data: dict[str, Any], catalog: Catalog) -> None:
    context = Context(catalog=catalog)
    found = checked_refs(catalog.call(spec.target).read(data, (), context, {}), context)
    if context:
        problem = context.problems[0]
        raise ConfigError(
            where(spec, problem.path),
            f"the written data could not be read back: {problem.message}",
            expected=problem.expected,
            got=problem.got,
            why="a reference points at a part; a list or dict cannot be in two places" if spec.has_refs else None,
            fix=problem.hint,
        )
    if found != spec:
        path, old, new = _first_difference(spec, found)
        raise ConfigError(
            where(spec, path),
            "the written data would be read back as another value",
            expected=shortened(value_text(new), 60),
            got=shortened(value_text(old), 60),
            why="data has strings, numbers, lists and tables only, and the annotation decides their meaning",
            fix="an annotation that allows only one of the two",
        )


def _first_difference(old: Any, new: Any, path: Path = ()) -> tuple[Path, Any, Any]:
    """The path of the first difference between two values, and what each has there."""
    parts, others = (dict(entries(v.full_arguments if isinstance(v, SpecData) else v)) for v in (old, new))
    is_alike = type(old) is type(new) and getattr(old, "target", None) == getattr(new, "target", None)
    if is_alike and parts.keys() == others.keys():
        for key, part in parts.items():
            if key_of(part) != key_of(others[key]):
                return _first_difference(part, others[key], (*path, key))
    return path, old, new
