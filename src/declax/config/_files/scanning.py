"""Where the keys and values of a text are written: one pass over its tokens, when something asks for a place."""

from __future__ import annotations

import abc
import bisect
import contextlib
import itertools
import re
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from declax.config._files.documents import MAX_DEPTH, Places
from declax.config.problems import Path

MAX_TOKENS: Final = 200_000
"""The number of tokens that are searched for places; later values get the place of a part around them."""

Span: TypeAlias = tuple[int, int]
"""The offsets of the start and the end of something in a text."""

# An unclosed string ends at the end of its line or of the text, so the scan is linear.
# Groups are not possessive, since Python before 3.11.5 has a bug in backtracking over these.
_TEXT: Final = r'[^"\\]*+(?:\\.[^"\\]*+)*'
SKIPPED: Final = (
    r"\#[^\n]*+",
    rf'"""{_TEXT}(?:"(?!""){_TEXT})*"{{0,5}}',
    r"'''[^']*+(?:'(?!'')[^']*+)*'{0,5}",
    r'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*"?',
    r"'[^'\n]*+'?",
)
"""Comments and strings."""
TOKENS: Final = re.compile(
    "|".join((*SKIPPED, r"[A-Za-z0-9_-]++", r"[\[\]{}=,.\n]", r"[^\s\w\[\]{}=,.\#\"'-]++")), re.DOTALL
)
_VISIBLE: Final = re.compile(r"[^\n]")
_BRACKETS: Final = re.compile("|".join((*SKIPPED, r"[\[\]{}]")), re.DOTALL)


class Lines:
    """The lines of a text."""

    def __init__(self, text: str) -> None:
        self.starts: list[int] = [0, *(found.end() for found in re.finditer("\n", text))]

    def position(self, offset: int) -> tuple[int, int]:
        """The line and column of an offset, both from 1."""
        line = bisect.bisect_right(self.starts, offset)
        return line, offset - self.starts[line - 1] + 1

    def offset(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column - 1


class Repeat(NamedTuple):
    """A statement for a path that has a value already.

    Attributes:
      path: of the later statement.
      start: where it starts.
      span: what its removal removes: also a comma before it; of a table with a header, the header alone.
      first: the path of what is there already: `path`, or a part around it that cannot be extended.
      body: of a table with a header, where the keys below it are.
      fits: whether these keys can be added to the first.
    """

    path: Path
    start: int
    span: Span
    first: Path
    body: Span | None = None
    fits: bool = False


class Scan:
    """The places in a text.

    Attributes:
      text: the text.
      starts: where each path starts: in a table at the key, in a list at the value.
      keys: each key that is written, with its start and end; the key of a table may stand in several headers.
      values: where each value is written, if it is written in one place, as a table below headers is not.
      repeats: the statements for what has a value already; nothing else records them.
      is_complete: False if the text has more than `MAX_TOKENS` tokens.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.starts: dict[Path, int] = {(): 0}
        self.keys: list[tuple[Path, int, int]] = []
        self.values: dict[Path, Span] = {}
        self.repeats: list[Repeat] = []
        self.is_complete = True

    @property
    def places(self) -> Places:
        """The position of each path."""
        lines = Lines(self.text)
        return {path: lines.position(start) for path, start in self.starts.items()}


class Key(NamedTuple):
    name: str
    start: int
    end: int


class TokenScan(Scan, abc.ABC):
    """The places in a text of the tokens that TOML and JSON share, with lists and tables in brackets."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        found = list(itertools.islice(TOKENS.finditer(text), MAX_TOKENS))
        self.is_complete = len(found) < MAX_TOKENS
        self._tokens = [(token[0], token.start()) for token in found if token[0][0] != "#"]
        if self.is_complete:
            self._tokens.append(("\n", len(text)))
        self._i = 0
        with contextlib.suppress(IndexError):  # the tokens end
            self._scan()

    @abc.abstractmethod
    def _scan(self) -> None:
        """Notes the places of the whole text."""

    @abc.abstractmethod
    def _member(self, table: Path | None, comma: int | None) -> Path | None:
        """Notes the entry that starts at the next token; returns its path, or None if it is not noted.

        Args:
          table: the path of the table; None if its places are not noted.
          comma: the offset of the comma before the entry.
        """

    @staticmethod
    @abc.abstractmethod
    def _unquoted(token: str) -> str:
        """The name that a token of a key stands for."""

    def _next(self) -> tuple[str, int]:
        self._i += 1
        return self._tokens[self._i - 1]

    @property
    def _end(self) -> int:
        """Where the token before the next one ends."""
        token, start = self._tokens[self._i - 1]
        return start + len(token)

    def _keys(self, end: str) -> list[Key]:
        """The parts of a dotted key; consumes the token that ends it."""
        keys: list[Key] = []
        while (found := self._next())[0] not in end:
            token, start = found
            if token not in ".\n":
                keys.append(Key(self._unquoted(token), start, start + len(token)))
        return keys

    def _value(self, path: Path | None) -> str:
        """Notes the value that starts at the next token, and returns this token."""
        while (found := self._next())[0] == "\n":
            pass
        first, start = found
        if first == "[":
            self._list(path)
        elif first == "{":
            self._table(path)
        else:
            while self._tokens[self._i][0] not in "]},\n":
                self._i += 1
        if path is not None:
            self.values[path] = start, self._end
        return first

    def _table(self, path: Path | None) -> None:
        comma: int | None = None
        while (found := self._next())[0] != "}":
            if found[0] == ",":
                comma = found[1]
            elif found[0] != "\n":
                self._i -= 1
                self._member(path, comma)

    def _list(self, path: Path | None) -> None:
        index = 0
        while (found := self._next())[0] != "]":
            if found[0] == ",":
                index += 1
            elif found[0] != "\n":
                inner = None if path is None else (*path, index)
                if inner is not None:
                    self.starts.setdefault(inner, found[1])
                self._i -= 1
                self._value(inner)


class Edit(NamedTuple):
    """The text that replaces a part of another one."""

    start: int
    end: int
    text: str


def spliced(text: str, edits: Iterable[Edit]) -> str:
    """A text after edits; of two that overlap, the first counts."""
    parts: list[str] = []
    done = 0
    for edit in sorted(edits):
        if edit.start >= done:
            parts += [text[done : edit.start], edit.text]
            done = edit.end
    return "".join([*parts, text[done:]])


def blank(text: str, span: Span) -> Edit:
    """The edit that replaces a part by spaces, so that all others keep their lines and columns."""
    return Edit(*span, _VISIBLE.sub(" ", text[slice(*span)]))


def deep_bracket(text: str) -> int | None:
    """The offset of the first bracket that is nested too deeply; None if there is none."""
    depth = 0
    for found in _BRACKETS.finditer(text):
        if found[0] in "[{":
            depth += 1
        elif found[0] in "]}":
            depth -= 1
        if depth > MAX_DEPTH:
            return found.start()
    return None


def bracket_around(text: str, offset: int) -> int | None:
    """The offset of the innermost bracket that is open at an offset."""
    opened: list[int] = []
    for found in _BRACKETS.finditer(text, 0, offset):
        if found[0] in "[{":
            opened.append(found.start())
        elif found[0] in "]}" and opened:
            opened.pop()
    return opened[-1] if opened else None


def open_quote(text: str, offset: int) -> int | None:
    """The offset of the first string that starts before an offset and is not closed; None if there is none."""
    for found in _BRACKETS.finditer(text):
        if found.start() >= offset:
            break
        quote = found[0][0] * (3 if found[0].startswith((3 * '"', 3 * "'")) else 1)
        if quote[0] in "\"'" and not (len(found[0]) >= 2 * len(quote) and found[0].endswith(quote)):
            return found.start()
    return None
