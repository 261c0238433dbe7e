"""Plain data and where each part of it is written, with the limits that keep a hostile file cheap."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from declax.config.problems import NOWHERE, Path, Place, Problem
from declax.errors import ConfigError

MAX_BYTES: Final = 4 * 1024 * 1024

MAX_DEPTH: Final = 64

MAX_NODES: Final = 200_000
"""How many values there may be, those that the aliases of YAML repeat counted each time."""

REF: Final = "$ref"
"""The key of a table that refers to another part."""

TOO_DEEP: Final = f"tables and lists are nested more than {MAX_DEPTH} levels deep"

Position: TypeAlias = tuple[int | None, int | None]
"""A line and a column, both from 1; None if they are not known."""

Places: TypeAlias = Mapping[Path, Position]
"""The position of each path; for a member of a table, that of its key."""


def float_of(text: str) -> float:
    """The float of a text that has the form of one.

    >>> float_of("1e3"), float_of("-inf"), float_of("0e-400")
    (1000.0, -inf, 0.0)
    """
    value = float(text)
    is_lost = math.isinf(value) and "inf" not in text.lower()
    if value == 0:
        is_lost = any(digit in "123456789" for digit in text.lower().partition("e")[0])
    if is_lost:
        raise ValueError(f"no float holds {text}")
    return value


@dataclasses.dataclass
class Document:
    """Plain data and its places."""

    name: str | None
    data: object
    problems: list[Problem] = dataclasses.field(default_factory=list)
    find_places: Callable[[], Places] = dict
    origins: dict[Path, Place] = dataclasses.field(default_factory=dict)
    _places: Places | None = None

    def place_of(self, path: Path) -> Place:
        """The place of a path in the file, or that of the nearest part that contains it.

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
