"""Plain data with the place of each value, and the limits that protect against hostile files."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Generator, Mapping
from typing import Final, Protocol, TypeAlias

from declax.config.problems import NOWHERE, REF, Path, Place, Problem
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


@dataclasses.dataclass
class Document:
    """Plain data with the places of its values.

    Attributes:
      name: what errors call it.
      file: the path of the file, beside which are the alternatives that it names; None for other sources.
    """

    name: str | None
    data: object
    problems: list[Problem] = dataclasses.field(default_factory=list)
    find_places: Callable[[], Places] = dict
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


def unreadable(
    name: str | None,
    message: str,
    position: Position = (None, None),
    *,
    path: Path = (),
    hint: str | None = None,
    code: str = "syntax",
) -> ConfigError:
    problem = Problem(code, path, message, hint=hint, place=Place(name, *position))
    return ConfigError(name or "the configuration", "the configuration has one problem", problems=[problem])
