"""Where the values of a configuration came from, for people."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from declax.config._sources.composing import Configuration
from declax.config._sources.keys import USE
from declax.config.problems import Path, path_text, shown
from declax.errors import shortened


@dataclasses.dataclass(frozen=True, slots=True)
class ValueOrigin:
    """Where one value came from.

    Attributes:
      path: in the configuration.
      value: as text.
      place: the file, line and column, or the word.
      follows: the expression that computed it, or the variable of the environment.
      replaced: earlier values with their places.
      others: for an alternative, the others in its folder.
    """

    path: str
    value: str
    place: str
    follows: str | None = None
    replaced: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    def __str__(self) -> str:
        further = [f"= {shortened(self.follows, 100)}"] if self.follows else []
        further += [f"replaced {one}" for one in self.replaced]
        further += [f"or {', '.join(self.others)}"] if self.others else []
        return "; ".join([f"{self.path} = {self.value}  {self.place}", *further])


def origins_of(configuration: Configuration) -> list[ValueOrigin]:
    """The origin of each value, in the order of the tables."""
    return list(_origins(configuration, (), configuration.data))


def origins_text(origins: list[ValueOrigin]) -> str:
    """One line for each value."""
    return "\n".join(map(str, origins)) or "no source says a value"


def _origins(configuration: Configuration, path: Path, value: Any) -> Iterator[ValueOrigin]:
    if path in configuration.used:
        yield _alternative(configuration, path)
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _origins(configuration, (*path, key), item)
    elif isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        for index, item in enumerate(value):
            yield from _origins(configuration, (*path, index), item)
    else:
        supplied = configuration.supplied.get(path)
        text = "a secret" if path in configuration.secrets else shown(value)
        follows = configuration.followed.get(path, str(dict(supplied)) if supplied else None)
        place = str(configuration.place_of(path)) or "data"
        yield ValueOrigin(path_text(path), text, place, follows, _replaced(configuration, path))


def _alternative(configuration: Configuration, path: Path) -> ValueOrigin:
    """The alternative that a table came from."""
    document, said_by = configuration.used[path]
    field = path if said_by.source.file is None else tuple(key for key in said_by.path if key != USE)
    others = configuration.files.names(field, said_by.source)
    name = document.file and document.file.rpartition("/")[2].rpartition(".")[0]
    replaced = _replaced(configuration, path) + _replaced(configuration, (*path, USE))
    known = tuple(other for other in others if other != name)
    return ValueOrigin(path_text(path), f"alternative {name!r}", str(said_by.place), None, replaced, known)


def _replaced(configuration: Configuration, path: Path) -> tuple[str, ...]:
    found = (one for one in configuration.replaced if one.path == path)
    return tuple(f"{shown(one.value)} ({one.place})" for one in found)
