"""The texts of a project, and the changes to be made in them."""

from __future__ import annotations

import bisect
import difflib
import re
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_BOM: Final = "\ufeff"
_SHOWN: Final = 100


class Edit(NamedTuple):
    """The text that replaces another one, between two offsets."""

    start: int
    end: int
    text: str


class Text:
    r"""The text of a file, with its changes.

    >>> text = Text(Path("a.py"), "x = 1\ny = x\n")
    >>> text.replace(10, 11, "z")
    >>> text.changed, text.place(10)
    ('x = 1\ny = z\n', 'a.py:2:5')
    """

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.mark = _BOM if text.startswith(_BOM) else ""  # which parsers of Python refuse in a str
        self.text: str = text.removeprefix(_BOM)
        self.edits: set[Edit] = set()

    @classmethod
    def read(cls, path: Path) -> Text:
        return cls(path, path.read_bytes().decode())  # as it is: newlines are not translated

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(found.end() for found in _LINE_END.finditer(self.text))]

    def offset(self, line: int, column: int) -> int:
        """The offset of a place of mypy or `ast`: lines from 1, columns from 0 in bytes."""
        start = self._starts[line - 1]
        line_text = self.text[start : self._starts[line] if line < len(self._starts) else None]
        return start + len(line_text.encode()[:column].decode(errors="replace"))  # Python 3.11 misplaces f-strings

    def replace(self, start: int, end: int, text: str) -> None:
        self.edits.add(Edit(start, end, text))

    def place(self, offset: int) -> str:
        line = bisect.bisect_right(self._starts, offset)
        return f"{self.path}:{line}:{offset - self._starts[line - 1] + 1}"

    def line_at(self, offset: int) -> str:
        """The line of a place; of a long one, what is around the place."""
        start = self._starts[bisect.bisect_right(self._starts, offset) - 1]
        line = _LINE_END.split(self.text[start:], maxsplit=1)[0]
        first = max(0, offset - start - _SHOWN // 2) if len(line) > _SHOWN else 0
        shown = line[first : first + _SHOWN].strip()
        return f"{'...' if first else ''}{shown}{'...' if first + _SHOWN < len(line) else ''}"

    @property
    def changed(self) -> str:
        text = self.text
        for edit in sorted(self.edits, reverse=True):
            text = text[: edit.start] + edit.text + text[edit.end :]
        return text

    def difference(self) -> str:
        """The changes as a unified diff."""
        old, new = (text.splitlines(keepends=True) for text in (self.text, self.changed))
        lines = difflib.unified_diff(old, new, f"a/{self.path.as_posix()}", f"b/{self.path.as_posix()}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def write(self) -> None:
        self.path.write_bytes((self.mark + self.changed).encode())
