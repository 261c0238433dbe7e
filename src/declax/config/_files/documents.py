"""Plain data with the place of each value, and the limits that protect against hostile files."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, Protocol, TypeAlias

from declax.config.problems import NOWHERE, REF, Path, Place, Problem, Report
from declax.errors import ConfigError

MAX_BYTES: Final = 4 * 1024 * 1024

MAX_DEPTH: Final = 64

TOO_DEEP: Final = f"tables and lists are nested more than {MAX_DEPTH} levels deep"

Position: TypeAlias = tuple[int | None, int | None]
"""A line and a column, both from 1; None if they are unknown."""

Places: TypeAlias = Mapping[Path, Position]
"""The position of each path; for an entry of a table, the position of its key."""


def float_of(text: str) -> float:
    """The float of a numeric string; raises if it overflows or underflows.

    >>> float_of("1e3"), float_of("-inf"), float_of("0e-400")
    (1000.0, -inf, 0.0)
    """
    value = float(text)
    is_lost = math.isinf(value) and "inf" not in text.lower()
    if value == 0:
        is_lost = any(digit in "123456789" for digit in text.lower().partition("e")[0])
    if is_lost:
        raise ValueError(f"{text} is out of the range of floats")
    return value


NUMBER_HINT: Final = "a number that a float can hold (5e-324 to 1.8e308), or an int of at most 4300 digits"


class Lost:
    """Stands in data for a number that no float can represent, until `Numbers.found` replaces it."""

    def __init__(self, why: str) -> None:
        self.why = why


class Numbers:
    """Reads numbers for a parser, which therefore does not stop at one that is out of range."""

    def __init__(self) -> None:
        self._is_lost = False

    def read_float(self, text: str) -> Any:
        return self._read(float_of, text)

    def read_int(self, text: str) -> Any:
        return self._read(int, text)

    def _read(self, read: Callable[[str], Any], text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            self._is_lost = True
            return Lost(f"not a number: {error}")

    def without_lost(self, data: Any) -> dict[Path, str]:
        """Replaces what was lost in some data by None; why, by path."""
        lost: dict[Path, str] = {}

        def replaced(value: Any, path: Path) -> Any:
            if isinstance(value, Lost):
                lost[path] = value.why
            return None if isinstance(value, Lost) else value

        if self._is_lost:
            replace_values(data, replaced)
        return lost


def replace_values(data: Any, replaced: Callable[[Any, Path], Any], path: Path = ()) -> Any:
    """Replaces each value in tables and lists, the inner ones first; for data of a limited depth."""
    items = list(data.items()) if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        data[key] = replace_values(value, replaced, (*path, key))
    return replaced(data, path)


@dataclasses.dataclass
class Document:
    """Plain data with the places of its values.

    Attributes:
      name: of the file; None for data from Python.
      data: tables, lists, strings, numbers, bools and None.
      problems: what is wrong with the text: a key that is given twice, an alias. The data has the rest.
      find_places: finds the places of all values; called for the first problem.
      broken: paths whose values could not be read, and are None in the data; one of `problems` says why.
      file: the path of the file, beside which are the alternatives that it names; None for other sources.
    """

    name: str | None
    data: object
    problems: list[Problem] = dataclasses.field(default_factory=list)
    find_places: Callable[[], Places] = dict
    broken: set[Path] = dataclasses.field(default_factory=set)
    file: str | None = None
    _places: Places | None = None

    def place_of(self, path: Path) -> Place:
        """The place of a path in the file, or that of the nearest part around it."""
        if self.name is None:
            return NOWHERE
        if self._places is None:
            self._places = self.find_places()
        for part in ((*path, REF), *(path[:end] for end in range(len(path), -1, -1))):
            if part in self._places:
                return Place(self.name, *self._places[part])
        return Place(self.name)


class HasPlaces(Protocol):
    """A configuration that knows the places of its values."""

    def place_of(self, path: Path) -> Place: ...


@contextlib.contextmanager
def noting_place(document: HasPlaces) -> Generator[None, None, None]:
    """Adds a note to an error of a constructor: the place of its arguments."""
    try:
        yield
    except Exception as error:
        path = getattr(error, "config_path", None)
        place = "" if path is None else str(document.place_of(tuple(path)))
        if place:
            error.add_note(f"its arguments are written in {place}")
        raise


def problem_of_text(
    name: str | None,
    message: str,
    position: Position = (None, None),
    *,
    path: Path = (),
    hint: str | None = None,
    code: str = "syntax",
) -> Problem:
    return Problem(code, path, message, hint=hint, place=Place(name, *position))


def unreadable(name: str | None, *problems: Problem) -> ConfigError:
    """The error for a text of which no data can be used."""
    report = Report()
    report.extend(problems)
    return report.error(name or "the configuration")


def too_deep(name: str | None, position: Position) -> ConfigError:
    return unreadable(name, problem_of_text(name, TOO_DEEP, position, hint="flatten them", code="too-deep"))


def repeated_key(name: str | None, path: Path, position: Position, first: Position) -> Problem:
    message = f"the key is given twice; the first is in line {first[0]}"
    return problem_of_text(name, message, position, path=path, hint="remove one of the two", code="duplicate-key")


_ATOMS: Final = frozenset({bool, int, float, str, type(None)})


def is_bounded(data: object) -> bool:
    """Whether tables and lists of Python, which may be shared or contain themselves, have a bounded size as a text.

    Each from_config of a dict pays for it, so that atoms are sorted out by their class alone.
    """
    level: list[Any] = [data]
    size = 0
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for value in level:
            items = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
            size += len(items)
            if size > MAX_BYTES:
                return False
            below += [item for item in items if item.__class__ not in _ATOMS]
        if not below:
            return True
        level = below
    return True


def deep_path(data: object) -> Path | None:
    """The path of a value that is nested too deeply; None if there is none."""
    level = [data]
    for _ in range(MAX_DEPTH + 1):
        tables = [value for value in level if isinstance(value, (dict, list))]
        level = [inner for value in tables for inner in (value.values() if isinstance(value, dict) else value)]
    if not level:
        return None
    stack: list[tuple[Any, Path]] = [(data, ())]
    while len(stack[-1][1]) <= MAX_DEPTH:
        value, path = stack.pop()
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        stack += [(inner, (*path, key)) for key, inner in items]
    return stack[-1][1]
