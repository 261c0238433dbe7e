"""What sources name instead of saying it: alternatives, values that follow others, and variables of the environment."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any, Final

from declax._fields.overrides import DeclaredPart
from declax._fields.specifiers import Notes
from declax.config._data import SpecData, thaw
from declax.config._declared import names_needed
from declax.config._files.documents import MAX_DEPTH, Document
from declax.config._reading.part_readers import AnyReader, CallReader, UnionReader
from declax.config._reading.readers import INVALID, Context, MappingReader, Reader, TypedDictReader, WrappingReader
from declax.config._refs import get
from declax.config._sources.composing import Configuration, Origin, copied, is_mapping, takes_alternatives, told_place
from declax.config._sources.expressions import NoValueError, evaluate
from declax.config._sources.keys import ENV, FILE, USE, VALUE
from declax.config._sources.words import other_reading, value_of
from declax.config.problems import KIND, REF, Path, Problem, did_you_mean, path_text, shown, steps_of
from declax.errors import ConfigError

_MAX_SECRET: Final = 65536


class _RefusedError(Exception):
    """Why a table names no value."""

    def __init__(self, message: str, expected: str | None = None, got: str | None = None, hint: str | None = None):
        super().__init__(message)
        self.problem = Problem("supplied", (), message, expected, got, hint)


def resolve(configuration: Configuration, env: Collection[str] = ()) -> bool:
    """Replaces what a configuration names by values; returns whether there was anything.

    Args:
      configuration: is changed.
      env: variables of the environment that any field may read.
    """
    configuration.own()
    found = _Resolving(configuration, env)
    found.visit((), configuration.reader, ())
    found.follow()
    return found.is_changed


class _Resolving:
    def __init__(self, configuration: Configuration, env: Collection[str]) -> None:
        self.configuration = configuration
        self.env = frozenset(env)
        self.is_changed = False
        self._following = Following(configuration)

    # --- alternatives -----------------------------------------------------------------

    def visit(self, path: Path, reader: Reader | None, outer: tuple[str, ...]) -> None:
        """Resolves what stands at a path; `outer` has the files that lead to it."""
        config = self.configuration
        value = config.at(path)
        if isinstance(value, str) and takes_alternatives(reader) and config.files.has(*config.field_of(path)):
            self._expand(path, value, path, {}, outer)
            outer = (*outer, *self._file_at(path))
        elif isinstance(value, dict) and REF not in value and not _is_data(reader):
            if VALUE in value:
                self._following.add(path, reader)
                self.is_changed = True
                return
            if ENV in value or FILE in value:
                self._read_supplied(path, reader)
                return
            while isinstance(value, dict) and USE in value and path not in config.broken:
                said = {key: item for key, item in value.items() if key != USE}
                self._expand(path, value[USE], (*path, USE), said, outer)
                outer = (*outer, *self._file_at(path))
                value = None if path in config.broken else config.at(path)
        if path in config.broken or len(path) > MAX_DEPTH:
            return
        value = config.at(path)
        for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            if isinstance(value[key], (str, dict, list)):
                self.visit((*path, key), config.reader_below(reader, path, value, key), outer)

    def _file_at(self, path: Path) -> tuple[str, ...]:
        file = self.configuration.known_origin(path).source.file
        return () if file is None else (str(FilePath(file).resolve()),)

    def _expand(self, path: Path, name: Any, said_at: Path, said: dict[str, Any], outer: tuple[str, ...]) -> None:
        """Puts the values of an alternative, named at a path, under those that were said beside it."""
        config = self.configuration
        origin, (field, source) = config.known_origin(said_at), config.field_of(said_at)
        self.is_changed = True
        found = config.files.find(name, field, source, outer if source.file in outer else ())  # which it may be part of
        refused = config.files.charge(found) if isinstance(found, Document) else None
        if said and isinstance(found, Document) and not isinstance(found.data, dict):
            refused = f"{found.name} is no table, so that other keys cannot stand beside it"
        if refused is not None:
            found = Problem("alternative", path, refused, place=origin.place)
        if isinstance(found, Problem):
            config.break_at(path, dataclasses.replace(found, path=path), origin)
            return
        if all(found is not known for known, _ in config.used.values()):
            config.problems += found.problems
        config.used[path] = (found, origin)
        origins = config.origins_below(path)
        config.place(path, copied(found.data), Origin(found, (), origin.rank))
        names = self._names_at(path)
        for key, item in said.items():
            before = _nearest(origins, (key,))
            if before.rank < origin.rank and names is not None and key not in names:
                config.note((*path, key), item, before, origin, is_dropped=True)
            else:
                config.put((*path, key), item, lambda keys, key=key: _nearest(origins, (key, *keys)))  # type: ignore[misc]  # mypy has no type for its default

    def _names_at(self, path: Path) -> Collection[str] | None:
        """The names that a table at a path may have; None if they are unknown."""
        config = self.configuration
        call = config.call_at(config.reader_at(path), path, config.at(path))
        return None if call is None or call.extra is not None else {*call.parameters.by_name, KIND}

    # --- the environment, and files with secrets ---------------------------------------

    def _read_supplied(self, path: Path, reader: Reader | None) -> None:
        """Puts the value of a variable of the environment, or of a file with a secret, in the place of its table."""
        config = self.configuration
        table, origin, notes = config.at(path), config.known_origin(path), config.notes_of(path)
        self.is_changed = True
        try:
            text = self._variable(table, notes) if ENV in table else self._secret_file(table, notes)
        except _RefusedError as error:
            config.break_at(path, dataclasses.replace(error.problem, path=path), origin)
            return
        config.supplied[path] = table
        if notes.get("secret"):
            config.secrets.add(path)
        config.place(path, table["default"] if text is None else _fitting(text, reader), origin)

    def _variable(self, table: dict[str, Any], notes: Notes) -> str | None:
        """The value of a variable; None if it is not set and the table has a default."""
        name, declared = table[ENV], notes.get("env", ())
        allowed = {*self.env, *((declared,) if isinstance(declared, str) else declared)}
        if not isinstance(name, str) or table.keys() - {ENV, "default"}:
            expected = '{ "$env" = "NAME", default = ... } and no other key'
            raise _RefusedError("not a variable of the environment", expected, shown(table))
        if name not in allowed:
            hint = f'dx.field(env="{name}") in the class, or env=["{name}"] where the configuration is read'
            message = f"the variable {shown(name)} is not allowed here"
            raise _RefusedError(message, ", ".join(sorted(allowed)) or "no variables", shown(name), hint)
        if name not in os.environ and "default" not in table:
            hint = f'export {name}=..., or "default" beside "$env"'
            raise _RefusedError(f"the variable {name} is not set", hint=hint)
        return os.environ.get(name)

    def _secret_file(self, table: dict[str, Any], notes: Notes) -> str:
        """The text of a file with a secret, without the end of its last line."""
        name, root = table[FILE], self.configuration.files.root
        if not notes.get("secret"):
            raise _RefusedError("files are read for secrets only", hint="dx.field(secret=True)")
        if not isinstance(name, str) or len(table) > 1 or root is None:
            raise _RefusedError("not a file", '{ "$file" = "token.txt" } and no other key', shown(table))
        try:
            file = (root / name).resolve()
            if not file.is_relative_to(root):
                raise _RefusedError("the file is outside of the folder", f"a file in {root}", shown(name))
            if file.exists() and not file.is_file():  # reading a pipe or a device may not end
                raise _RefusedError("not a file", "a file with the secret", shown(name))
            with open(file, encoding="utf-8") as opened:
                return opened.read(_MAX_SECRET).removesuffix("\n")
        except (OSError, ValueError, RuntimeError) as error:  # of links in a circle, resolve() makes a RuntimeError
            raise _RefusedError(f"the file cannot be read: {type(error).__name__}", got=shown(name)) from None

    def follow(self) -> None:
        self._following.run()


def _fitting(text: str, reader: Reader | None) -> Any:
    """The reading of a text whose type a field accepts: the text, or what a word of it would be."""
    value = value_of(text)
    if reader is None:
        return text
    for reading in (text, value, other_reading(text, value)):
        context = Context()
        reader.read(reading, (), context)
        if all(problem.code != "wrong-type" for problem in context.problems):
            return reading
    return text


def _nearest(origins: Mapping[Path, Origin], path: Path) -> Origin:
    """The origin of a value, or of the nearest table around it; the root has one."""
    end = next(end for end in range(len(path), -1, -1) if path[:end] in origins)
    return origins[path[:end]].below(path[end:])


def _is_data(reader: Reader | None) -> bool:
    """Whether a table is data to a reader, whatever its keys are."""
    while isinstance(reader, WrappingReader):
        reader = reader.reader
    if isinstance(reader, UnionReader):
        return any(map(_is_data, reader.members))
    return reader is None or isinstance(reader, (AnyReader, MappingReader, TypedDictReader))


class _NeededError(Exception):
    """An expression needs the value of another one."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path


class Following:
    """The values of expressions, each computed after those that it needs."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self._readers: dict[Path, Reader | None] = {}
        self._open: dict[Path, None] = {}  # each needs the next one
        self._defaults: dict[Path, Any] = {}

    def add(self, path: Path, reader: Reader | None) -> None:
        """Adds the expression in the table at a path."""
        self._readers[path] = reader

    def run(self) -> None:
        """Replaces all expressions by their values; a chain of them may be long, so this is no recursion."""
        while self._readers:
            self._open = {next(iter(self._readers)): None}
            while self._open:
                try:
                    self._compute(next(reversed(self._open)))
                except _NeededError as needed:
                    self._open[needed.path] = None
                else:
                    self._open.popitem()

    def _compute(self, path: Path) -> None:
        """Replaces the expression at a path by its value, or breaks it if it has none."""
        config = self.configuration
        table, origin = config.at(path), config.known_origin(path)
        text = table[VALUE]
        try:
            if not isinstance(text, str) or len(table) > 1:
                raise NoValueError('expected { "$value" = "model.dim * 4" } and no other key')
            value = evaluate(text, lambda written: self._value_at(written, path))
        except NoValueError as error:
            config.break_at(path, Problem("value", path, f"{shown(text)} has no value: {error}"), origin)
        else:
            config.place(path, copied(value), origin)
            config.followed[path] = _cut(text)
        self._readers.pop(path)

    def _value_at(self, written: str, at: Path) -> Any:
        """The value at a path of an expression: from the root, or with leading dots from the tables around it."""
        name = written.lstrip(".")
        levels = len(written) - len(name)
        if levels > len(at):
            raise NoValueError(f"{_cut(written)} has more dots than there are tables around it")
        keys = (*at[: len(at) - levels], *(steps_of(name) or ())) if levels else steps_of(name) or ()
        found = self._find(tuple(map(str, keys)), _cut(written))
        if isinstance(found, (dict, SpecData, DeclaredPart)):
            raise NoValueError(f"{_cut(written)} is a table; $ref shares a part")
        return found

    def _find(self, keys: tuple[str, ...], written: str) -> Any:
        """The value at a path: from the tables, or a default of the class."""
        config = self.configuration
        path: Path = ()
        holder, reader = config.data, config.reader
        levels: list[tuple[Path, Reader]] = []
        for key in keys:
            if isinstance(holder, dict) and REF in holder and not is_mapping(reader):
                raise NoValueError(f"{written} leads through the reference at {path_text(path)}; name the part itself")
            levels.append((path, reader))
            if not isinstance(holder, (dict, list)):
                raise NoValueError(f"there is no {written}")
            step = _step(holder, key)
            if (*path, key if step is None else step) in config.broken:
                raise NoValueError(f"{written} has none either")
            if step is None:
                return self._default(levels, keys, written)
            path, reader = (*path, step), config.reader_below(reader, path, holder, step) or reader
            self._need(path)
            holder = holder[step]
        return holder

    def _need(self, path: Path) -> None:
        """Raises _NeededError if there is an expression at a path: its value has to be computed first."""
        if path not in self._readers:
            return
        if path in self._open:
            circle = [*self._open][[*self._open].index(path) :]
            places = [f"{path_text(at)} ({told_place(self.configuration.place_of(at))})" for at in circle[:_MOST_TOLD]]
            places += [f"and {len(circle) - _MOST_TOLD} more"] if len(circle) > _MOST_TOLD else []
            raise NoValueError(f"the values follow each other in a circle: {', '.join(places)}")
        raise _NeededError(path)

    def _default(self, levels: Sequence[tuple[Path, Reader]], keys: tuple[str, ...], written: str) -> Any:
        """A value that a class supplies: that of its table, or of the table around what its body declares."""
        config = self.configuration
        if keys not in self._defaults:
            for path, reader in reversed(levels):
                call = config.call_at(reader, path, config.at(path))
                if call is not None and not isinstance(call.target, DeclaredPart):
                    self._defaults[keys] = self._of_class(call, path, keys[len(path) :], written)
                    break
            else:
                raise NoValueError(f"there is no {written}")
        return self._defaults[keys]

    def _of_class(self, call: CallReader, path: Path, keys: tuple[str, ...], written: str) -> Any:
        parameter = call.parameters.get(keys[0])
        if parameter is not None and len(keys) == 1 and not parameter.is_required:
            value = parameter.make_default()
            if value is None or isinstance(value, (bool, int, float, str)):  # it follows nothing
                return value
        size = len(path)
        inner = [at for at in self._readers if at[:size] == path]
        for at in inner:
            if self._is_needed(call, path, keys, at[size:]):
                self._need(at)
        table = _without(self.configuration.at(path), [at[size:] for at in inner])
        found = call.read(table, path, Context(catalog=call.catalog), {})
        if found is INVALID:  # the class requires values that this one does not follow
            for at in inner:
                if at not in self._open:
                    self._need(at)
        try:
            if isinstance(found, SpecData):
                value = thaw(get(found, ".".join(keys)))
                return list(value) if isinstance(value, tuple) else value
        except ConfigError:
            parameter = None
        if parameter is None:
            hint = did_you_mean(keys[0], call.parameters.by_name)
            raise NoValueError(f"there is no {written}" + (f"; {hint}" if hint else ""))
        raise NoValueError(f"{written} is a default of a table in which something is wrong")

    def _is_needed(self, call: CallReader, path: Path, keys: tuple[str, ...], at: Path) -> bool:
        """Whether a default of a class follows an argument; both paths are in the table of the class."""
        name, keys = keys[0], _fields(keys[1:])
        if at[0] != name:
            return at[0] in names_needed(call.called, name)
        at, path = _fields(at[1:]), (*path, name)
        config = self.configuration
        inner = config.call_at(config.reader_at(path), path, config.at(path)) if keys and at else None
        return inner is None or self._is_needed(inner, path, keys, at)


def _fields(path: Path) -> tuple[Any, ...]:
    """A path without the indices of lists at its beginning."""
    return tuple(itertools.dropwhile(lambda key: str(key).isdecimal(), path))


_MOST_TOLD: Final = 10


def _step(holder: Any, key: str) -> Any:
    """The key of a table, or index of a list, that a step of a path is; None if there is none."""
    if isinstance(holder, dict):
        return key if key in holder else None
    is_index = isinstance(holder, list) and key.isdecimal() and int(key) < len(holder)
    return int(key) if is_index else None


def _without(table: Any, paths: list[Path]) -> Any:
    """A copy of a table without the values at some paths, which are not known yet; without the field of a list."""
    made = copied(table)
    for path in paths:
        holder = made
        for key in path[:-1]:
            holder = holder.get(key, {}) if isinstance(holder, dict) else holder
        if isinstance(holder, dict):
            holder.pop(path[-1], None)
        else:
            made.pop(path[0], None)
    return made


def _cut(text: str) -> str:
    """A text, cut if it is long."""
    return text if len(text) <= _MOST_SHOWN else shown(text)


_MOST_SHOWN: Final = 100
