"""Where the values of a TOML or JSON text stand: one pass over its tokens, made when a problem needs a place."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import json
import re
import tomllib
from typing import Final

from declax.config._files.documents import MAX_DEPTH, Position
from declax.config.problems import Path

MAX_TOKENS: Final = 200_000
"""How much of a file is searched for places; what is beyond has that of what contains it."""

# An unclosed string ends with the text or its line, so that no string is looked for twice.
# Groups are not possessive: Python before 3.11.5 forgets where such a one began when it cannot go on.
_TEXT: Final = r'[^"\\]*+(?:\\.[^"\\]*+)*'
_SKIPPED: Final = (
    r"\#[^\n]*+",
    rf'"""{_TEXT}(?:"(?!""){_TEXT})*"{{0,5}}',
    r"'''[^']*+(?:'(?!'')[^']*+)*'{0,5}",
    r'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*"?',
    r"'[^'\n]*+'?",
)
_COMMENTS_AND_STRINGS: Final = re.compile("|".join(_SKIPPED), re.DOTALL)
_TOKENS: Final = re.compile(
    "|".join((*_SKIPPED, r"[A-Za-z0-9_-]++", r"[\[\]{}=,.\n]", r"[^\s\w\[\]{}=,.\#\"'-]++")), re.DOTALL
)
_LONG_KEY: Final = re.compile(rf'(?<![A-Za-z0-9_-])(?:(?:[A-Za-z0-9_-]++|"")[ \t]*+\.[ \t]*+){{{MAX_DEPTH}}}')


def has_long_key(text: str) -> bool:
    """Whether a TOML text has a dotted key of more parts than tables may be deep, for which the parser takes long."""
    if text.count(".") < MAX_DEPTH:
        return False
    return _LONG_KEY.search(_COMMENTS_AND_STRINGS.sub('""', text)) is not None


class Scan:
    """The positions of the values of a text that a parser has accepted."""

    def __init__(self, text: str, *, is_json: bool = False) -> None:
        self.places: dict[Path, Position] = {(): (1, 1)}
        self.repeated: tuple[Path, Position] = ((), (None, None))
        self._starts = [0, *(found.end() for found in re.finditer("\n", text))]
        found = itertools.islice(_TOKENS.finditer(text), MAX_TOKENS)
        self._tokens = [(token[0], token.start()) for token in found if token[0][0] != "#"]
        self._i = 0
        self._last_items: dict[Path, int] = {}  # the index of the last table of each list of tables
        with contextlib.suppress(IndexError):  # the tokens end
            self._value(()) if is_json else self._statements()

    def _next(self) -> tuple[str, int]:
        self._i += 1
        return self._tokens[self._i - 1]

    def _note(self, path: Path, start: int, known: int = 0) -> None:
        """Notes the position of a path, and of what a dotted key makes on the way to it."""
        line = bisect.bisect_right(self._starts, start)
        position = line, start - self._starts[line - 1] + 1
        if path in self.places and not self.repeated[0]:
            self.repeated = path, position
        for size in range(known + 1, len(path) + 1):
            self.places.setdefault(path[:size], position)

    def _statements(self) -> None:
        table: Path = ()
        while True:
            token, start = self._next()
            if token == "[":
                table = self._header(start)
            elif token != "\n":
                self._i -= 1
                self._member(table)

    def _header(self, start: int) -> Path:
        is_list = self._tokens[self._i][0] == "["
        self._i += is_list
        *above, last = self._keys("]")
        self._i += is_list
        path: Path = ()
        for key in above:
            path = (*path, key)
            if path in self._last_items:
                path = (*path, self._last_items[path])
        path = (*path, last)
        if is_list:
            self._note(path, start)
            self._last_items[path] = self._last_items.get(path, -1) + 1
            path = (*path, self._last_items[path])
        self._note(path, start)
        return path

    def _member(self, table: Path) -> None:
        start = self._tokens[self._i][1]
        path = (*table, *self._keys("=:"))
        self._note(path, start, len(table))
        self._value(path)

    def _keys(self, end: str) -> list[str]:
        """The parts of a dotted key, and what ends it."""
        keys: list[str] = []
        while (token := self._next()[0]) not in end:
            if token not in ".\n":
                keys.append(_unquoted(token))
        return keys

    def _value(self, path: Path) -> None:
        while (token := self._next()[0]) == "\n":
            pass
        if token == "[":
            self._list(path)
        elif token == "{":
            while (token := self._next()[0]) != "}":
                if token not in ",\n":
                    self._i -= 1
                    self._member(path)
        else:
            while self._tokens[self._i][0] not in "]},\n":
                self._i += 1

    def _list(self, path: Path) -> None:
        index = 0
        while True:
            token, start = self._next()
            if token == "]":
                return
            if token == ",":
                index += 1
            elif token != "\n":
                self._note((*path, index), start, len(path))
                self._i -= 1
                self._value((*path, index))


def _unquoted(token: str) -> str:
    if token[0] not in "\"'":
        return token
    if token[0] == "'" or "\\" not in token:
        return token[1:-1]
    try:
        found: str = json.loads(token)
    except ValueError:  # an escape that only TOML has
        found = tomllib.loads(f"key = {token}")["key"]
    return found
