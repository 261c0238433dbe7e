"""JSON: the values by the standard library, the places by a scan of the text where they are needed.

Vocabulary
----------
token: a string, a bracket, a comma, a colon, or a run of anything else.
frame: a table or list that the scan is inside of.
"""

from __future__ import annotations

import bisect
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, Final

from declax.config.files.documents import MAX_DEPTH, Document, Places, float_of, too_deep
from declax.config.problems import Path, Place, Problem

MAX_TOKENS: Final = 200_000
"""How much of a file is searched for places; what is beyond has that of what contains it."""

_TOKENS: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*"|[\[\]{},:]|[^\s\[\]{},:"]++')
_BRACKETS: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*"|[\[\]{}]', re.DOTALL)


def parse_json(text: str, name: str | None) -> Document:
    """A document from the text of a JSON file; what is wrong with it is among its problems."""
    if is_deeper(text):
        return Document(name, None, [too_deep((), Place(name))])
    repeated = False

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        made = dict(pairs)
        repeated = repeated or len(made) != len(pairs)
        return made

    try:
        data = json.loads(text, object_pairs_hook=table, parse_float=float_of)
    except json.JSONDecodeError as error:
        place = Place(name, error.lineno, error.colno)
        return Document(name, None, [_broken(error, text, place)])
    except ValueError as error:  # an int of more digits than Python reads
        return Document(name, None, [Problem("syntax", (), f"not valid JSON: {error}", place=Place(name))])
    problems = (
        [duplicate(path, first, Place(name, *place)) for path, first, place in _repeated(text)] if repeated else []
    )
    return Document(name, data, problems, lambda: _scan(text)[0])


def is_deeper(text: str) -> bool:
    """Whether brackets are nested too deeply in a text with strings in double quotes."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    depth = 0
    for token in _BRACKETS.finditer(text):
        bracket = token[0]
        if bracket in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif bracket in "]}":
            depth -= 1
    return False


def duplicate(path: Path, first: int, place: Place) -> Problem:
    """The problem of a key that stands twice in one table."""
    return Problem(
        "duplicate-key",
        path,
        f"the key is given twice, first in line {first}",
        hint="leave one of them out",
        place=place,
    )


def _broken(error: json.JSONDecodeError, text: str, place: Place) -> Problem:
    line = text.splitlines()[error.lineno - 1 : error.lineno] or [""]
    hint = None
    if "//" in line[0] or line[0].lstrip().startswith("#"):
        hint = "JSON has no comments; TOML and YAML have them"
    elif "'" in line[0]:
        hint = "JSON writes strings in double quotes"
    elif re.search(r"\b(True|False|None)\b", line[0]):
        hint = "JSON writes true, false and null"
    elif text[: error.pos].rstrip().endswith(",") or text[error.pos : error.pos + 1] == ",":
        hint = "leave out the comma before a closing bracket"
    return Problem("syntax", (), f"not valid JSON: {error.msg}", hint=hint, place=place)


class Lines:
    """From offsets in a text to lines and columns."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(found.end() for found in re.finditer("\n", text))]

    def place(self, offset: int) -> tuple[int, int]:
        """The line and the column of an offset, both from 1."""
        line = bisect.bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1


def _repeated(text: str) -> Iterator[tuple[Path, int, tuple[int, int | None]]]:
    places, repeated = _scan(text)
    for path, place in repeated:
        yield path, places[path][0], place


def _scan(text: str) -> tuple[Places, list[tuple[Path, tuple[int, int | None]]]]:
    """The places of a text that the standard library has parsed, and of keys that stand twice."""
    lines = Lines(text)
    places: dict[Path, tuple[int, int | None]] = {}
    repeated: list[tuple[Path, tuple[int, int | None]]] = []
    frames: list[Path] = []  # of the tables and lists around, the innermost last
    index: list[int] = []  # of the next item; -1 in a table
    path: Path = ()
    is_key = False
    for token in itertools.islice(_TOKENS.finditer(text), MAX_TOKENS):
        first = token[0][0]
        if first == ":":
            is_key = False
            continue
        if first == ",":
            if index[-1] >= 0:
                index[-1] += 1
            is_key = index[-1] < 0
            continue
        if first in "]}":
            frames.pop()
            index.pop()
            continue
        place = lines.place(token.start())
        if is_key:
            path = (*frames[-1], json.loads(token[0]))
            if path in places:
                repeated.append((path, place))
            places.setdefault(path, place)
            continue
        if index and index[-1] >= 0:
            path = (*frames[-1], index[-1])
        elif not frames:
            path = ()
        places.setdefault(path, place)
        if first in "[{":
            frames.append(path)
            index.append(0 if first == "[" else -1)
            is_key = first == "{"
    return places, repeated
