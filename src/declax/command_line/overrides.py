"""Values that a command line gives in the place of those of a file.

Vocabulary
----------
override: a path and the texts of its values: ``blocks.0.hidden=128``; ``*`` stands for each item of a list or table.
sweep:    an override with several values, ``hidden=64,128``, which makes as many runs. A list is written in brackets.
run:      the plain data of one combination of values, and what it is called.
"""

from __future__ import annotations

import copy
import itertools
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, cast

from declax.config.files.documents import Document
from declax.config.problems import Path, Place, Problem, did_you_mean, path_text, shown

MAX_RUNS: Final = 10_000
"""How many runs a sweep may have; a typing mistake should not fill a cluster."""

COMMAND_LINE: Final = "command line"
_KIND: Final = "kind"
_PATH: Final = re.compile(r"(?:[^.\[\]=]+|\[(?:\d+|\*)\])(?:\.[^.\[\]=]+|\[(?:\d+|\*)\])*")
PART: Final = re.compile(r"[^.\[\]]+")


class Override(NamedTuple):
    """One word of a command line.

    Attributes:
      text: as it was written.
      path: where; ``"*"`` for each item.
      values: plain data; several of a sweep.
      is_removal: whether it takes the value away, ``~path``.
    """

    text: str
    path: Path
    values: tuple[Any, ...]
    is_removal: bool = False


class Run(NamedTuple):
    """What one combination of values describes.

    Attributes:
      name: the values that the sweep varies, as ``hidden=64,rate=0.1``; empty where there is no sweep.
      document: the plain data, and where each part of it comes from.
    """

    name: str
    document: Document


def is_override(word: str) -> bool:
    """Whether a word of a command line is an override.

    >>> is_override("blocks.0.hidden=3"), is_override("~blocks[1]"), is_override("model.toml")
    (True, True, False)
    """
    path = word[1:] if word.startswith("~") else word.partition("=")[0]
    return (word.startswith("~") or "=" in word) and _PATH.fullmatch(path) is not None


def parse_override(word: str) -> Override:
    """The override that a word is; see `is_override`.

    Values are those of TOML; a text needs no quotes. The last item of a path may be a star.

    >>> parse_override("blocks[*].hidden=64,128")
    Override(text='blocks[*].hidden=64,128', path=('blocks', '*', 'hidden'), values=(64, 128), is_removal=False)
    >>> parse_override("sizes=[1, 2]").values, parse_override("kind=Mlp").values
    (([1, 2],), ('Mlp',))
    """
    if word.startswith("~"):
        return Override(word, _path(word[1:]), (), is_removal=True)
    path, _, text = word.partition("=")
    return Override(word, _path(path), tuple(map(_value, _split(text))))


def _path(text: str) -> Path:
    return tuple(int(part) if part.isdecimal() else part for part in PART.findall(text))


def _split(text: str) -> Iterator[str]:
    """The values of a sweep: what commas separate that stand in no brackets and no quotes."""
    depth, quote, begun = 0, "", 0
    for position, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        elif character == "," and depth == 0:
            yield text[begun:position]
            begun = position + 1
    yield text[begun:]


def _value(text: str) -> Any:
    stripped = text.strip()
    if stripped == "null":
        return None
    try:
        if "\n" not in stripped:
            return tomllib.loads(f"value = {stripped}")["value"]
    except tomllib.TOMLDecodeError:
        pass
    return stripped


def expand(document: Document, overrides: Sequence[Override]) -> Iterator[Run]:
    """A run for each combination of the values of overrides; the last override varies fastest.

    Problems with overrides are among the problems of the run's document.

    Args:
      document: what is overridden; it stays as it is.
      overrides: the overrides, of which later ones count more.
    """
    sweeps = [override for override in overrides if len(override.values) > 1]
    choices = [[(override, value) for value in override.values or (None,)] for override in overrides]
    count = 1
    for several in choices:
        count *= len(several)
    if count > MAX_RUNS:
        problem = _problem(sweeps[0], f"the sweep has {count} runs", hint=f"at most {MAX_RUNS} at once")
        yield Run("", Document(document.name, None, [*document.problems, problem]))
        return
    for chosen in itertools.product(*choices):
        name = ",".join(f"{path_text(o.path)}={_short(value)}" for o, value in chosen if o in sweeps)
        yield Run(name, _overridden(document, chosen))


def _short(value: Any) -> str:
    return value if isinstance(value, str) else shown(value) if not isinstance(value, (list, dict)) else str(value)


def _overridden(document: Document, chosen: Iterable[tuple[Override, Any]]) -> Document:
    made = Document(
        document.name,
        copy.deepcopy(document.data),
        list(document.problems),
        document.find_places,
        document.broken,
        dict(document.origins),
    )
    # a tag first, since a changed one starts its table anew
    for override, value in sorted(chosen, key=lambda pair: pair[0].path[-1] != _KIND):
        if not override.is_removal:
            _make_tables(made.data, override.path[:-1])
        places = list(_places(made.data, override.path[:-1]))
        if not places:
            made.problems.append(_no_place(made.data, override))
        for path, holder in places:
            _put(made, holder, path, override, copy.deepcopy(value))
    return made


def _make_tables(data: Any, path: Path) -> None:
    """Makes tables that a file leaves out, as it may where there is a default; the validator knows their names."""
    if not all(isinstance(key, str) and key != "*" for key in path):
        return
    for key in path:
        if not isinstance(data, dict):
            return
        data = data.setdefault(key, {})


def _places(data: Any, path: Path) -> list[tuple[Path, Any]]:
    """The tables and lists at a path, with paths of their own in the place of stars."""
    found: list[tuple[Path, Any]] = [((), data)]
    for key in path:
        found = [((*at, k), child) for at, holder in found for k, child in _children(holder, key)]
    return [(at, holder) for at, holder in found if isinstance(holder, (dict, list))]


def _children(holder: Any, key: str | int) -> list[tuple[str | int, Any]]:
    if isinstance(holder, dict):
        if key == "*":
            return [(k, child) for k, child in holder.items() if isinstance(child, (dict, list))]
        return [(str(key), holder[str(key)])] if str(key) in holder else []
    if isinstance(holder, list):
        if key == "*":
            return list(enumerate(holder))
        return [(key, holder[key])] if isinstance(key, int) and key < len(holder) else []
    return []


def _put(made: Document, holder: Any, path: Path, override: Override, value: Any) -> None:
    """Sets, or takes away, what an override names in one table or list."""
    last = override.path[-1]
    keys: list[Any] = [last]  # of a table names, of a list positions
    if last == "*":
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    elif isinstance(holder, dict):
        keys = [str(last)]
    elif not isinstance(last, int) or last > len(holder) or (override.is_removal and last == len(holder)):
        made.problems.append(_problem(override, f"there is no item {last} at {path_text(path)}", path=path))
        return
    for key in reversed(keys) if override.is_removal else keys:
        if override.is_removal:
            if isinstance(holder, dict) and key not in holder:
                made.problems.append(_no_place(holder, override))
                return
            del holder[key]
            continue
        if key == _KIND and isinstance(holder, dict) and holder.get(_KIND, value) != value:
            holder.clear()  # what the old kind takes is nothing to the new one
        if isinstance(holder, list) and key == len(holder):
            holder.append(value)
        else:
            cast("dict[Any, Any]", holder)[key] = value  # or a list
        made.origins[(*path, key)] = Place(f"{COMMAND_LINE}: {override.text}")


def _no_place(data: Any, override: Override) -> Problem:
    """The problem of a path to nothing; names the last part of it that there is."""
    known: Any = data
    path: Path = ()
    for key in override.path:
        children = _children(known, key)
        if not children:
            names = list(known) if isinstance(known, dict) else []
            return _problem(
                override, f"there is no {key!r} at {path_text(path)}", path=path, hint=did_you_mean(key, names)
            )
        path, known = (*path, children[0][0]), children[0][1]
    return _problem(override, "there is no table at this path", path=path)


def _problem(override: Override, message: str, path: Path | None = None, hint: str | None = None) -> Problem:
    place = Place(f"{COMMAND_LINE}: {override.text}")
    return Problem("override", override.path if path is None else path, message, hint=hint, place=place)
