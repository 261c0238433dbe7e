"""JSON: the values by the standard library, the places by a scan of the text where they are needed.

Vocabulary
----------
token: a string, a bracket, a comma, a colon, or a run of anything else.
"""

from __future__ import annotations

import bisect
import itertools
import json
import re
from typing import Any, Final

from declax.config.files.documents import MAX_DEPTH, Document, float_of, too_deep
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
    if not repeated:
        return Document(name, data, find_places=lambda: _Scan(text).places)
    scan = _Scan(text)
    problems = [duplicate(path, scan.places[path][0], Place(name, *place)) for path, place in scan.repeated]
    return Document(name, data, problems, lambda: scan.places)


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


class _Scan:
    """One pass over the tokens of a text that the standard library has parsed.

    Attributes:
      places: the line and column of each path.
      repeated: the keys that stand twice, with the place of the second.
    """

    def __init__(self, text: str) -> None:
        self.places: dict[Path, tuple[int, int | None]] = {}
        self.repeated: list[tuple[Path, tuple[int, int]]] = []
        self._lines = Lines(text)
        self._tokens = itertools.islice(_TOKENS.finditer(text), MAX_TOKENS)
        for token in self._tokens:
            self._value(token, ())

    def _value(self, token: re.Match[str], path: Path) -> None:
        self.places.setdefault(path, self._lines.place(token.start()))
        if token[0] == "[":
            self._list(path)
        elif token[0] == "{":
            self._table(path)

    def _list(self, path: Path) -> None:
        index = 0
        for token in self._tokens:
            if token[0] == "]":
                return
            if token[0] == ",":
                index += 1
            else:
                self._value(token, (*path, index))

    def _table(self, path: Path) -> None:
        inside = path
        is_key = True
        for token in self._tokens:
            if token[0] == "}":
                return
            if token[0] in ":,":
                is_key = token[0] == ","
            elif is_key:
                inside = (*path, json.loads(token[0]))
                place = self._lines.place(token.start())
                self.repeated += [(inside, place)] if inside in self.places else []
                self.places.setdefault(inside, place)
            else:
                self._value(token, inside)
