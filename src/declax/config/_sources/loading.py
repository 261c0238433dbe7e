"""From sources to a spec: they are merged, resolved and read; all problems are in one error."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from declax import _jax
from declax._fields.annotations import annotation_text
from declax._typing import MISSING
from declax.config._building import checked_refs
from declax.config._changing import paths_meant
from declax.config._data import FrozenList, Ref, SpecData, freeze
from declax.config._files.documents import MAX_DEPTH, Document
from declax.config._reading.catalog import catalog_for
from declax.config._reading.parameters import target_name
from declax.config._reading.readers import INVALID, Context
from declax.config._refs import with_items
from declax.config._sources.composing import Configuration
from declax.config._sources.keys import USE
from declax.config._sources.resolving import resolve
from declax.config._sources.sweep_tables import without_sweep
from declax.config._sources.words import ANYWHERE, Run, Word
from declax.config._supplied import Supplied, value_of
from declax.config._writing import COMPUTED, computed_data
from declax.config.problems import Path, Place, Problem, Report, path_text, shown
from declax.errors import ConfigError, ConfigWarning, shortened

_NO_WORDS: Final = Run("", ())


class Loaded(NamedTuple):
    """What sources say: the value that was read, and where each part of it was written."""

    value: Any
    configuration: Configuration


class Loading:
    """Reads sources for one class.

    Args:
      cls: the class, or a union or a function.
      extra, migrate, env: as in `spec_from_config`.
    """

    def __init__(
        self, cls: Any, *, extra: Iterable[Any] = (), migrate: bool = False, env: Collection[str] = ()
    ) -> None:
        self.cls = cls
        self.catalog = catalog_for(tuple(extra))
        self.migrate = migrate
        self.env = env

    def read_alone(self, source: Document) -> Any:
        """The value of one source that says all itself; INVALID if it has mistakes, or names what it does not say."""
        data = source.data
        if source.problems or not isinstance(data, Mapping) or USE in data or COMPUTED in data:
            return INVALID
        context = Context(migrate=self.migrate, catalog=self.catalog)
        context.supplied = ()
        return checked_refs(self.catalog.root_reader(self.cls).read(data, (), context), context)

    def run(self, sources: Sequence[Document], run: Run = _NO_WORDS) -> Loaded:
        """Reads sources with the words of one run; tries their other reading if a field refuses the first.

        Raises:
          ConfigError: lists all problems.
        """
        try:
            return self._load(sources, run.words())
        except ConfigError as error:
            refused = _refused(run, error)
            if not refused:
                raise
        try:
            return self._load(sources, run.words(refused))
        except ConfigError as error:
            wrong = {problem.place.file for problem in error.problems if problem.code == "wrong-type"}
            return self._load(sources, run.words(refused - wrong))

    def _load(self, sources: Sequence[Document], words: Sequence[tuple[Word, Any]]) -> Loaded:
        configuration = Configuration(self.catalog.root_reader(self.cls))
        recorded: Mapping[str, Any] = {}
        for index, source in enumerate(sources or [Document(None, {})]):
            if index == 0 and isinstance(source.data, Mapping) and isinstance(source.data.get(COMPUTED), Mapping):
                recorded = {key: value for key, value in source.data[COMPUTED].items() if _is_pointer(key)}
                source = _without_computed(source)
            configuration.add(without_sweep(source))  # one run is read, of which `take_sweeps` has made words
        for word, value in words:
            self._add_word(configuration, word, value)
        found = self._read(configuration)
        if recorded and isinstance(found, SpecData):
            found = self._as_recorded(configuration, found, recorded, sources[0], is_alone=not (words or sources[1:]))
        found = with_supplied(found, configuration)
        _warn_of_dropped(configuration)
        return Loaded(found, configuration)

    def _read(self, configuration: Configuration) -> Any:
        """The value of a configuration, which is resolved if it cannot be read as it is."""
        context, found = self._attempt(configuration)
        if context and resolve(configuration, self.env):
            context, found = self._attempt(configuration)
        context.leave_out(configuration.broken)
        report = Report()
        report.extend(configuration.problems)
        report.extend(_told(problem, configuration) for problem in context.problems)
        report.count += context.count - len(context.problems)
        if report:
            raise report.error(configuration.name or name_of(self.cls), configuration.place_of)
        return found

    def _attempt(self, configuration: Configuration) -> tuple[Context, Any]:
        context = Context(migrate=self.migrate, catalog=self.catalog)
        context.supplied = configuration.supplied
        return context, checked_refs(configuration.reader.read(configuration.data, (), context), context)

    # --- words for each part of a class -------------------------------------------------

    def _add_word(self, configuration: Configuration, word: Word, value: Any) -> None:
        if word.path[0] != ANYWHERE:
            configuration.add_word(word, value)
            return
        trial = configuration.copy()
        try:
            found = self._read(trial)
        except ConfigError:
            return  # what is wrong without the word is reported
        try:
            paths = paths_meant(found, word.path)
        except ConfigError as error:
            message = f"{error.problem}: {error.where}"
            problem = Problem("word", (), message, error.expected, None, error.fix, Place(word.origin))
            configuration.problems.append(problem)
            return
        for path in paths:
            configuration.add_word(word._replace(path=path), value)

    # --- exact records -------------------------------------------------------------------

    def _as_recorded(
        self,
        configuration: Configuration,
        found: SpecData,
        recorded: Mapping[str, Any],
        record: Document,
        is_alone: bool,
    ) -> SpecData:
        """A spec with the computed values of its record, where the code computes others now from the same values."""
        now = computed_data(found, self.catalog)
        if all(now.get(pointer, MISSING) == value for pointer, value in recorded.items()):
            return found
        before = now
        if not is_alone:
            alone = Configuration(configuration.reader)
            alone.add(_without_computed(record))
            before = computed_data(self._read(alone), self.catalog)
        kept = {
            pointer: value
            for pointer, value in recorded.items()
            if now.get(pointer, MISSING) == before.get(pointer, MISSING)  # it follows no later source
            and (pointer in now or not configuration.has(_keys(pointer)))
        }
        told: dict[str, str] = {}
        while changed := _differing(kept, now):
            settable = {p: v for p, v in changed.items() if p not in told and configuration.reader_at(_keys(p))}
            if not settable:
                raise self._not_kept(changed, now, configuration, record)
            unplaced: dict[str, Any] = {}
            for pointer, value in settable.items():
                told[pointer] = f"  {path_text(_keys(pointer))}: {shown(value)}, and not {shown(now.get(pointer))}"
                if not configuration.put_recorded(_keys(pointer), value, record, recorded):
                    unplaced[pointer] = value
            if unplaced:
                raise self._not_kept(unplaced, now, configuration, record)
            found = self._read(configuration)
            now = computed_data(found, self.catalog) | {pointer: kept[pointer] for pointer in told}
        if told:
            lines = "\n".join([*told.values()][:_MOST_TOLD])
            name = record.name or "the record"
            warn(f"{name}: the code computes other values now; those of the record are used:\n{lines}")
        return found

    def _not_kept(
        self, changed: Mapping[str, Any], now: Mapping[str, Any], configuration: Configuration, record: Document
    ) -> ConfigError:
        """The error for values of a record that no argument sets."""
        report = Report()
        for pointer, value in changed.items():
            got = "nothing" if pointer not in now else shown(now[pointer])
            message = "the record has another value than the code makes, and no argument sets it"
            report.add("recorded", _keys(pointer), message, expected=shown(value), got=got, hint=_HINT)
        return report.error(record.name or name_of(self.cls), configuration.place_of)


_MOST_TOLD: Final = 20
_HINT: Final = "the code that wrote the record; or remove the value from $computed, to have what the code makes now"


def _differing(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    return {pointer: value for pointer, value in recorded.items() if now.get(pointer, MISSING) != value}


def _keys(pointer: str) -> tuple[str, ...]:
    return Ref(pointer).keys


def _is_pointer(key: object) -> bool:
    return isinstance(key, str) and len(key) > 1 and key.startswith("/") and key.count("/") <= MAX_DEPTH


def _without_computed(source: Document) -> Document:
    """A record without its computed values; pointers that are wrong are among its problems."""
    data: Any = source.data
    wrong = [
        Problem("recorded", (COMPUTED, str(key)), "not a path of a value", '"/model/hidden"', shown(key))
        for key in data[COMPUTED]
        if not _is_pointer(key)
    ]
    placed = [dataclasses.replace(problem, place=source.place_of(problem.path)) for problem in wrong]
    rest = {key: value for key, value in data.items() if key != COMPUTED}
    return dataclasses.replace(source, data=rest, problems=[*source.problems, *placed])


def _refused(run: Run, error: ConfigError) -> set[str | None]:
    """The words whose values a field refuses."""
    sizes = {word.origin: len(word.path) for word, _, _ in run.chosen}
    found = [problem for problem in error.problems if problem.place.file in sizes]
    # A table or list with a wrong part is reported: its text would fit into many a field.
    wrong = {p.place.file for p in found if p.code.startswith("ref") or len(p.path) > sizes[str(p.place.file)]}
    return {problem.place.file for problem in found} - wrong


def _told(problem: Problem, configuration: Configuration) -> Problem:
    """A problem as people read it: a computed value with its expression, a secret without its value."""
    if problem.path in configuration.secrets:
        return dataclasses.replace(problem, got=f"the value that {shown(configuration.supplied[problem.path])} names")
    text = configuration.followed.get(problem.path)
    if text is None or problem.got is None:
        return problem
    return dataclasses.replace(problem, got=f"{problem.got}, the value of {shortened(text, 100)}")


def with_supplied(found: Any, configuration: Configuration) -> Any:
    """A spec whose supplied values know what names them."""
    for path, table in configuration.supplied.items():
        is_secret = path in configuration.secrets
        found = _changed(found, path, lambda value: Supplied(freeze(table), value_of(value), is_secret))  # noqa: B023  # it is called at once
    return found


def _changed(value: Any, path: Path, change: Callable[[Any], Any]) -> Any:
    """A spec with a function applied to the value at a path."""
    if not path:
        return change(value)
    items: Any = value.arguments if isinstance(value, SpecData) else value
    if path[0] not in items and not isinstance(value, (tuple, FrozenList)):
        return value  # it is equal to the default
    return with_items(value, {path[0]: _changed(items[path[0]], path[1:], change)})


def _warn_of_dropped(configuration: Configuration) -> None:
    dropped = [str(one) for one in configuration.replaced if one.is_dropped]
    if dropped:
        lines = "\n".join(f"  {line}" for line in dropped)
        warn(f"another kind was chosen, which has other values:\n{lines}")


def warn(text: str) -> None:
    """Warns at the line of the user's code that reads the configuration."""
    warnings.warn(text, ConfigWarning, stacklevel=_jax.level_of_user(sys._getframe()))


def name_of(cls: Any) -> str:
    """The name of what a configuration describes, for messages."""
    if isinstance(cls, type) or hasattr(cls, "__name__"):
        return target_name(cls)
    return annotation_text(cls) or "the configuration"
