"""A configuration of several sources: later ones win, and each value knows where it came from."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any, Final, NamedTuple

from declax._fields.specifiers import Notes
from declax.config._files.documents import MAX_DEPTH, TOO_DEEP, Document
from declax.config._reading.part_readers import CallReader, ChoiceReader, UnionReader, choices_at
from declax.config._reading.readers import MappingReader, Reader, WrappingReader
from declax.config._sources.alternatives import Alternatives
from declax.config._sources.keys import USE, is_value
from declax.config._sources.words import INSERT, REMOVE, SET, Word
from declax.config.problems import EACH, KIND, NOWHERE, REF, Path, Place, Problem, path_text

_RANK_OF_WORDS: Final = sys.maxsize


class Origin(NamedTuple):
    """Where a value is written: at a path of a source. Of the sources, those with a higher rank came later."""

    source: Document
    path: Path
    rank: int

    def below(self, keys: Path) -> Origin:
        return self._replace(path=(*self.path, *keys))

    @property
    def place(self) -> Place:
        return self.source.place_of(self.path)


@dataclasses.dataclass(frozen=True, slots=True)
class Replaced:
    """A value that a later source replaced or dropped.

    Attributes:
      path: its path in the configuration.
      value: the value, or table.
      place: where it was written.
      by: where the later value is written.
      is_dropped: whether nothing stands at its path now.
    """

    path: Path
    value: Any
    place: Place
    by: Place
    is_dropped: bool = False

    def __str__(self) -> str:
        return f"{path_text(self.path)} ({told_place(self.place)}) was dropped by {told_place(self.by)}"


class _Item(NamedTuple):
    """An item of a list, with the origins of the values in it by their paths inside of it."""

    value: Any
    origins: dict[Path, Origin]


def told_place(place: Place) -> str:
    """A place in the middle of a sentence; data from Python has none."""
    return str(place) or "data from Python"


class Configuration:
    """Plain data of several sources, and where each value came from.

    Attributes:
      reader: of the root.
      name: the first file, or None.
      data: tables, lists and values.
      problems: what is wrong with the sources themselves.
      replaced: what later sources replaced, in their order.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.name: str | None = None
        self.data: Any = {}
        self.problems: list[Problem] = []
        self.replaced: list[Replaced] = []
        self.files = Alternatives()
        self.used: dict[Path, tuple[Document, Origin]] = {}  # alternatives, and what named them
        self.followed: dict[Path, str] = {}  # the expressions of computed values
        self.supplied: dict[Path, Any] = {}  # the tables that name variables of the environment
        self.secrets: set[Path] = set()
        self.broken: set[Path] = set()  # where a problem was reported, so that nothing stands there
        self._origins: dict[Path, Origin] = {}
        self._above: set[Path] = set()  # the paths below which there was an origin
        self._rank = 0
        self._is_shared = False  # whether the data is that of a source

    # --- places -------------------------------------------------------------------

    def origin_of(self, path: Path) -> Origin | None:
        """The origin of the value at a path, or of the nearest table around it."""
        for end in range(len(path), -1, -1):
            found = self._origins.get(path[:end])
            if found is not None:
                return found.below(path[end:])
        return None

    def known_origin(self, path: Path) -> Origin:
        origin = self.origin_of(path)
        assert origin is not None  # the root has one
        return origin

    def origins_below(self, path: Path) -> dict[Path, Origin]:
        """The origins of the values in a table, by their paths in it."""
        size = len(path)
        found = {at[size:]: origin for at, origin in self._origins.items() if at[:size] == path}
        return {(): self.known_origin(path), **found}

    def place_of(self, path: Path) -> Place:
        origin = self.origin_of(path)
        return NOWHERE if origin is None else origin.place

    # --- sources ------------------------------------------------------------------

    def add(self, source: Document) -> None:
        """Merges a file or plain data: tables by key, everything else as a whole."""
        self._rank += 1
        self.problems += source.problems
        self.broken |= source.broken
        if source.file is not None and self.files.root is None:
            self.name, self.files.root = source.name, FilePath(source.file).resolve().parent
        origin = Origin(source, (), self._rank)
        data = self._with_included(source)
        if () not in self._origins:
            self.place((), data, origin)
            self._is_shared = True
        else:
            self.own()
            self.put((), data, origin.below)

    def own(self) -> None:
        """Makes the data this configuration's own, before it is changed."""
        if self._is_shared:
            self.data, self._is_shared = copied(self.data), False

    def _with_included(self, source: Document, outer: tuple[str, ...] = ()) -> Any:
        """Adds the files that `$use` names at the root of a file, which are below it; returns the other values."""
        data = source.data
        if not isinstance(data, dict) or USE not in data:
            return data
        names = data[USE] if isinstance(data[USE], list) else [data[USE]]
        for name in names:
            found = self.files.find(name, (), source, outer)
            if isinstance(found, Problem):
                self.problems.append(found)
                continue
            if (refused := self.files.charge(found)) is not None:
                self.problems.append(Problem("alternative", (), refused, place=source.place_of((USE,))))
                break
            origin = Origin(found, (), self._rank)
            self.problems += found.problems
            inner = self._with_included(found, (*outer, str(found.file)))
            self.own()
            if () in self._origins:
                self.put((), inner, origin.below)
            else:
                self.place((), copied(inner), origin)
        return {key: value for key, value in data.items() if key != USE}

    def add_word(self, word: Word, value: Any) -> None:
        """Applies a word with a value. All words are one source, so that none drops what another one says."""
        self.own()
        origin = Origin(Document(word.origin, value), (), _RANK_OF_WORDS)
        if () not in self._origins:
            self.place((), self.data, Origin(Document(None, {}), (), 0))
        if len(word.path) > MAX_DEPTH:
            self._refuse(word.path, TOO_DEEP, origin)
            return
        paths = list(self._selected((), self.data, word, origin))
        for path in paths if word.action == SET else reversed(paths):  # so that no index changes before its turn
            self._apply(word, path, value, origin)

    def value_at(self, path: Path) -> Any:
        """The value at a path; None if no source says one."""
        found = self.data
        for key in path:
            found = _item(found, _step(found, key)) if isinstance(found, (dict, list)) else None
        return found

    def has(self, path: Path) -> bool:
        """Whether a source says a value at a path, given as texts."""
        return self.value_at(path) is not None

    def put_recorded(self, path: Path, value: Any, record: Document, pointers: Collection[str]) -> bool:
        """Puts a value of an exact record where the code would compute it; makes missing tables and lists on the way.

        Returns whether there is such a place: an item of a list may come after the last one only.

        Args:
          path: of the value, with the indices of lists as texts.
          value: the value.
          record: the source.
          pointers: of all values of the record, which say how long its lists are.
        """
        self.own()
        origin = Origin(record, (), 1)
        at: Path = ()
        for key, below in itertools.pairwise(path):
            if not _has_place(self.at(at), key):
                return False
            at = (*at, _step(self.at(at), key))
            if not isinstance(_item(self.at(at[:-1]), at[-1]), (dict, list)):
                prefix = "/".join(("", *map(str, at), ""))
                count = len({pointer.removeprefix(prefix).split("/")[0] for pointer in pointers if prefix in pointer})
                self.place(at, [{} for _ in range(count)] if str(below).isdecimal() else {}, origin)
        if not _has_place(self.at(at), path[-1]):
            return False
        self.place((*at, _step(self.at(at), path[-1])), copied(value), origin)
        return True

    def copy(self) -> Configuration:
        """The same sources, of which changes leave this one as it is."""
        made = copy.copy(self)
        made.data, made._is_shared = copied(self.data), False
        for name in ("problems", "replaced", "_origins", "used", "followed", "supplied", "secrets", "broken", "_above"):
            setattr(made, name, copy.copy(getattr(self, name)))
        return made

    def _apply(self, word: Word, path: Path, value: Any, origin: Origin) -> None:
        holder, key = self.at(path[:-1]), path[-1]
        if word.action == REMOVE:
            self._remove(path, origin)
        elif word.action == INSERT:
            self._insert(path, holder, value, origin)
        elif isinstance(value, str) and self._is_alternative(path):
            self._use(path, value, origin)
        else:
            is_other = key == KIND and (self.kind_of(path[:-1], holder) not in (None, value) or REF in holder)
            if is_other and isinstance(holder, dict):
                self._start_anew(path[:-1], holder, origin)
            self._set(path, copied(value), origin)

    # --- merging ------------------------------------------------------------------

    def at(self, path: Path) -> Any:
        """The value at a path that exists."""
        found = self.data
        for key in path:
            found = found[key]
        return found

    def merge(self, path: Path, table: dict[str, Any], origin_of: Callable[[Path], Origin]) -> None:
        """Merges a table into the one at a path; `origin_of` takes paths inside of the new table."""
        old = self.at(path)
        kind = table.get(KIND)
        if kind is not None and self.kind_of(path, old) not in (None, kind):
            self._start_anew(path, old, origin_of((KIND,)))
        if USE in table:
            self._use(path, table[USE], origin_of((USE,)))
        for key, value in table.items():
            if key != USE:
                self.put((*path, key), value, lambda keys, key=key: origin_of((key, *keys)))  # type: ignore[misc]  # mypy has no type for its default

    def put(self, path: Path, value: Any, origin_of: Callable[[Path], Origin]) -> None:
        """Puts a value in the place of an older one: a table is merged with a table."""
        holder = self.at(path[:-1])
        old = holder.get(path[-1]) if path and isinstance(holder, dict) else self.at(path)
        if isinstance(value, dict) and isinstance(old, str) and self._is_alternative(path):
            self._use(path, old, self.known_origin(path))
            old = self.at(path)
        if isinstance(value, dict) and isinstance(old, dict) and not (is_value(value) or is_value(old)):
            self.merge(path, value, origin_of)
        elif isinstance(value, str) and isinstance(old, dict) and self._is_alternative(path):
            self._use(path, value, origin_of(()))
        else:
            self._set(path, copied(value), origin_of(()))

    def _use(self, path: Path, name: Any, origin: Origin) -> None:
        """Names the alternative of a table; values that were said in the table stay beside it."""
        table = self.at(path[:-1]).get(path[-1]) if path and isinstance(self.at(path[:-1]), dict) else self.at(path)
        if not isinstance(table, dict):
            self._set(path, {}, origin)
        elif KIND in table:
            self._forget((*path, KIND), origin, is_dropped=False)
        self._set((*path, USE), copied(name), origin)

    def _set(self, path: Path, value: Any, origin: Origin) -> None:
        """Sets a value, whatever stands there, and notes what did."""
        holder = self.at(path[:-1]) if path else None
        if isinstance(holder, dict) and path[-1] in holder:
            self._note_old(path, holder[path[-1]], origin)
        self.place(path, value, origin)

    def place(self, path: Path, value: Any, origin: Origin) -> None:
        """Sets a value without a note."""
        if not path:
            self.data = value
        else:
            holder: Any = self.at(path[:-1])
            key = path[-1]
            if isinstance(holder, list) and isinstance(key, int):
                holder[key : key + 1] = [value]  # which the end of the list takes too
            elif isinstance(holder, dict):
                holder[key] = value
        self._drop_origins(path)
        self._set_origin(path, origin)

    def _start_anew(self, path: Path, table: dict[str, Any], origin: Origin) -> None:
        """Drops the values of a table, since another kind was chosen; words keep what other words said."""
        for key in list(table):
            if key != KIND and self.known_origin((*path, key)).rank < origin.rank:
                self._forget((*path, key), origin, is_dropped=key != USE)
            elif (*path, key) not in self._origins:
                self._set_origin((*path, key), self.known_origin((*path, key)))
        self._set_origin(path, origin)

    def _forget(self, path: Path, origin: Origin, *, is_dropped: bool) -> None:
        """Removes the value of a key, and notes what it was."""
        self._note_old(path, self.at(path), origin, is_dropped=is_dropped)
        del self.at(path[:-1])[path[-1]]
        self._drop_origins(path)

    def _note_old(self, path: Path, value: Any, origin: Origin, *, is_dropped: bool = False) -> None:
        self.note(path, value, self.known_origin(path), origin, is_dropped=is_dropped)

    def note(self, path: Path, value: Any, before: Origin, origin: Origin, *, is_dropped: bool = False) -> None:
        """Notes that a later source replaced a value."""
        if before.rank < origin.rank:
            self.replaced.append(Replaced(path, value, before.place, origin.place, is_dropped))

    def _set_origin(self, path: Path, origin: Origin) -> None:
        self._origins[path] = origin
        self._above.update(path[:end] for end in range(len(path)))

    def _drop_origins(self, path: Path) -> None:
        if path not in self._above:
            self._origins.pop(path, None)
            return
        size = len(path)
        self._origins = {at: origin for at, origin in self._origins.items() if at[:size] != path}

    # --- lists ----------------------------------------------------------------------

    def _insert(self, path: Path, holder: Any, value: Any, origin: Origin) -> None:
        """Inserts an item before the one at a path, or at the end of the list at a path."""
        held = holder.get(path[-1]) if isinstance(holder, dict) else None
        path, holder = ((*path, len(held)), held) if isinstance(held, list) else (path, holder)
        *above, index = path
        if not isinstance(holder, list) or not isinstance(index, int) or index > len(holder):
            self._refuse(path, "no item can be inserted here", origin)
            return
        items = self._items_of((*above,))
        items.insert(index, _Item(copied(value), {(): origin}))
        self._set_items((*above,), items)

    def _remove(self, path: Path, origin: Origin) -> None:
        *above, key = path
        if isinstance(self.at((*above,)), list) and isinstance(key, int):
            items = self._items_of((*above,))
            del items[key]
            self._set_items((*above,), items)
        else:
            self._forget(path, origin, is_dropped=False)

    def _items_of(self, path: Path) -> list[_Item]:
        size = len(path)
        found = [_Item(item, {(): self.known_origin((*path, i))}) for i, item in enumerate(self.at(path))]
        for at, origin in self._origins.items():
            if at[:size] == path and len(at) > size + 1:
                found[int(at[size])].origins[at[size + 1 :]] = origin
        return found

    def _set_items(self, path: Path, items: list[_Item]) -> None:
        outer = self.known_origin(path)
        self.at(path)[:] = [item.value for item in items]
        self._drop_origins(path)
        self._set_origin(path, outer)
        for index, item in enumerate(items):
            for keys, origin in item.origins.items():
                self._set_origin((*path, index, *keys), origin)

    # --- paths of words -------------------------------------------------------------

    def _selected(self, path: Path, holder: Any, word: Word, origin: Origin) -> Iterator[Path]:
        """The paths that a word selects; makes missing tables on the way, also in the place of other values."""
        step, *rest = word.path[len(path) :]
        keys = self._keys_at(holder, step, is_new=word.action != REMOVE)
        if not keys:
            self._refuse(path, f"there is no item {step}" + (f" at {path_text(path)}" if path else ""), origin)
        for key in keys:
            at = (*path, key)
            if not rest:
                yield at
                continue
            inner = _item(holder, key)
            if not isinstance(inner, (dict, list)):
                if word.action == REMOVE:
                    self._refuse(at, f"there is nothing at {path_text(word.path)}", origin)
                    continue
                if isinstance(inner, str) and self._is_alternative(at):
                    self._use(at, inner, self.known_origin(at))
                else:
                    self._set(at, {}, origin)
                inner = self.at(at)
            yield from self._selected(at, inner, word._replace(path=(*at, *rest)), origin)

    @staticmethod
    def _keys_at(holder: Any, step: str | int, *, is_new: bool) -> list[Any]:
        """The keys that a step selects in a table or list, also one that is new."""
        if isinstance(holder, dict):
            return list(holder) if step == EACH else [str(step)] if is_new or str(step) in holder else []
        indices = range(len(holder)) if isinstance(holder, list) else ()
        if step == EACH:
            return list(indices)
        return [step] if isinstance(step, int) and isinstance(holder, list) and step < len(indices) + is_new else []

    def break_at(self, path: Path, problem: Problem, origin: Origin) -> None:
        """Reports a problem, and removes what it is about, so that nothing else is reported of it."""
        self.problems.append(dataclasses.replace(problem, place=origin.place) if problem.place is NOWHERE else problem)
        self.broken.add(path)
        if path and isinstance(self.at(path[:-1]), dict):
            del self.at(path[:-1])[path[-1]]
        else:
            self.place(path, None, origin)

    def _refuse(self, path: Path, message: str, origin: Origin) -> None:
        self.problems.append(Problem("word", path, message, place=origin.place))

    # --- readers at paths -------------------------------------------------------------

    def reader_at(self, path: Path) -> Reader | None:
        """The reader of the value at a path, as far as the kinds on the way are known."""
        reader: Reader | None = self.reader
        holder = self.data
        for size, key in enumerate(path):
            if holder is None:  # what the class body declares
                holder = {} if choices_at(reader) else []
            step = _step(holder, key)
            reader = self.reader_below(reader, path[:size], holder, step)
            holder = _item(holder, step) if isinstance(holder, (dict, list)) else None
        return reader

    def reader_below(self, reader: Reader | None, path: Path, holder: Any, key: Any) -> Reader | None:
        """The reader of the value of a key in a table, or of an item of a list."""
        if not isinstance(holder, dict):
            return None if reader is None else reader.below(holder, key)
        call = self.call_at(reader, path, holder)
        if call is not None:
            return call.reader_of(str(key))
        return None if reader is None else reader.below(holder, key)

    def field_of(self, path: Path) -> tuple[Path, Document]:
        """The field whose alternative is named at a path, and the source: as a path in that if it is a file."""
        origin = self.known_origin(path)
        at = path[:-1] if path[-1:] == (USE,) else path
        inside = at if origin.source.file is None else tuple(key for key in origin.path if key != USE)
        while at and inside and (isinstance(at[-1], int) or is_mapping(self.reader_at(at[:-1]))):
            at, inside = at[:-1], inside[:-1]  # items and entries have the alternatives of their field
        return inside, origin.source

    def call_at(self, reader: Reader | None, path: Path, table: Any) -> CallReader | None:
        """The reader of the arguments in a table; None if its class is not known."""
        kind = self.kind_of(path, table)
        for choice in choices_at(reader):
            target = _target_of(choice, kind)
            if target is not None:
                return choice.call_of(target)
        return None

    def kind_of(self, path: Path, table: Any) -> Any:
        """The kind that a table chooses, itself or by its alternative."""
        if not isinstance(table, dict) or KIND in table or USE not in table:
            return table.get(KIND) if isinstance(table, dict) else None
        field, source = self.field_of((*path, USE))
        return self.files.kind_of(table[USE], field, source)

    def notes_of(self, path: Path) -> Notes:
        """The notes of the field at a path."""
        if not path:
            return Notes()
        *above, key = path
        holder, reader = self.at((*above,)), self.reader_at((*above,))
        if not isinstance(holder, dict):
            return Notes()
        call = self.call_at(reader, (*above,), holder)
        parameter = None if call is None else call.parameters.get(str(key))
        return Notes() if parameter is None else parameter.notes

    def _is_alternative(self, path: Path) -> bool:
        """Whether a string at a path names an alternative: its field takes tables and no strings."""
        return takes_alternatives(self.reader_at(path))


def copied(value: Any, depth: int = 0) -> Any:
    """Tables and lists anew, down to the depth that readers accept."""
    if depth > MAX_DEPTH:
        return value
    if isinstance(value, Mapping):
        return {key: copied(item, depth + 1) for key, item in value.items()}
    return [copied(item, depth + 1) for item in value] if isinstance(value, list) else value


def _step(holder: Any, key: Any) -> Any:
    """A key of a table, or the index of a list that a text is."""
    return int(key) if isinstance(holder, list) and str(key).isdecimal() else key


def _has_place(holder: Any, key: str) -> bool:
    """Whether a value can stand at a key: in a list, at an index up to its end."""
    return isinstance(holder, dict) or (isinstance(holder, list) and key.isdecimal() and int(key) <= len(holder))


def is_mapping(reader: Reader | None) -> bool:
    """Whether the keys of a table are no fields."""
    while isinstance(reader, WrappingReader):
        reader = reader.reader
    if isinstance(reader, UnionReader):
        return any(map(is_mapping, reader.members))
    return isinstance(reader, MappingReader)


def takes_alternatives(reader: Reader | None) -> bool:
    return reader is not None and "table" in reader.words and "string" not in reader.words


def _target_of(choice: ChoiceReader, kind: Any) -> Any:
    """The target that a table with a kind, or without one, describes; None if it is not one of the choices."""
    if kind is None and choice.declared is not None:
        return choice.declared
    tag = choice.only if kind is None else kind
    return choice.choices.get(tag) if isinstance(tag, str) else None


def _item(holder: Any, key: Any) -> Any:
    if isinstance(holder, dict):
        return holder.get(key)
    return holder[key] if isinstance(key, int) and key < len(holder) else None
