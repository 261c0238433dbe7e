"""Plain data, and where each part of it is written.

Vocabulary
----------
document: the data of one file (or of none), and the places of its parts.
unheld:   of a number: a float makes inf or 0.0 of it, which nobody has written.
limits:   what a file may not exceed, checked before or while it is parsed, so
          that a hostile one costs bounded time and memory.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from declax.config.problems import NOWHERE, Path, Place, Problem

MAX_BYTES: Final = 4 * 1024 * 1024
"""How large a file may be."""

MAX_DEPTH: Final = 64
"""How many tables and lists there may be, one in the other."""

MAX_NODES: Final = 200_000
"""How many values there may be, those that the aliases of YAML repeat counted each time."""

REF: Final = "$ref"
"""The key of a table that refers to another part."""

Places: TypeAlias = Mapping[Path, tuple[int, int | None]]
"""The line and the column of each path; for a member of a table, those of its key."""


@dataclasses.dataclass(frozen=True, slots=True)
class UnheldNumber:
    """A number of a text that no float holds; stands among the data, for the report to name its place.

    Attributes:
      text: as it is written.
    """

    text: str

    def __repr__(self) -> str:
        return self.text


def float_of(text: str) -> float | UnheldNumber:
    """The float of a text that has the form of one.

    >>> float_of("1e3"), float_of("-inf"), float_of("1e400"), float_of("1e-400"), float_of("0e-400")
    (1000.0, -inf, 1e400, 1e-400, 0.0)
    """
    value = float(text)
    is_lost = math.isinf(value) and "inf" not in text.lower()
    if value == 0:
        is_lost = any(digit in "123456789" for digit in text.lower().partition("e")[0])
    return UnheldNumber(text) if is_lost else value


def _no_places() -> Places:
    return {}


@dataclasses.dataclass
class Document:
    """Plain data and its places.

    Attributes:
      name: the file, as the user named it; None for data that came from none.
      data: tables, lists and plain values.
      problems: what is wrong with the file itself.
      find_places: looks the places up; called when the first problem needs one.
      broken: the paths of values that could not be read.
      origins: places that override those of the file, as for values given on a command line.
    """

    name: str | None
    data: object
    problems: list[Problem] = dataclasses.field(default_factory=list)
    find_places: Callable[[], Places] = _no_places
    broken: frozenset[Path] = frozenset()
    origins: dict[Path, Place] = dataclasses.field(default_factory=dict)
    _places: Places | None = None

    def place_of(self, path: Path) -> Place:
        """Where a path is written; where it is not, the place of the nearest part that contains it.

        That of a reference is the place of its ``$ref``.
        """
        if self.name is None and not self.origins:
            return NOWHERE
        if self._places is None:
            self._places = self.find_places()
        for part in ((*path, REF), *(path[:end] for end in range(len(path), -1, -1))):
            if part in self.origins:
                return self.origins[part]
            if part in self._places:
                return Place(self.name, *self._places[part])
        return Place(self.name)


def too_deep(path: Path, place: Place = NOWHERE) -> Problem:
    """The problem of data that is nested too deeply."""
    return Problem(
        "too-deep",
        path,
        f"tables and lists are nested more than {MAX_DEPTH} levels deep",
        hint="flatten them",
        place=place,
    )


def too_many(place: Place = NOWHERE) -> Problem:
    """The problem of data that has too many values."""
    return Problem(
        "too-large",
        (),
        f"there are more than {MAX_NODES} values",
        hint="write what is repeated once, as a default of the class",
        place=place,
    )
