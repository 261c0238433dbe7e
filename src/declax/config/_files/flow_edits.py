"""Edits of a text in one place: what all formats share, and lists and tables in brackets."""

from __future__ import annotations

import abc
import re
from typing import Any, Final, Generic, NamedTuple, TypeVar

from declax.config._files.scanning import Edit, Scan, Span, spliced
from declax.config.problems import Path

_COMMA: Final = re.compile(r"(?:\s|#[^\n]*)*,")
_REST: Final = re.compile(r"[ \t]*(?:#[^\n]*?)?(?=\r?\n|\Z)")


class Child(NamedTuple):
    """An entry of a table or an item of a list, with its start and end."""

    key: str | int
    start: int
    end: int


def value_at(data: Any, path: Path) -> Any:
    """The value at a path of plain data, which has it."""
    for key in path:
        held: Any = data  # a table or a list
        data = held[key]
    return data


def has(data: Any, path: Path) -> bool:
    """Whether plain data has a value at a path."""
    for key in path:
        if not (key in data if isinstance(data, dict) else isinstance(data, list) and key in range(len(data))):
            return False
        data = value_at(data, (key,))
    return True


S = TypeVar("S", bound=Scan)


class Editor(abc.ABC, Generic[S]):
    """Makes one edit of a text.

    Attributes:
      text: the text.
      data: its data.
      scan: its places.
      newline: as the text has it.
    """

    def __init__(self, text: str, data: Any, scan: S) -> None:
        self.text = text
        self.data = data
        self.scan: S = scan
        self.newline: str = "\r\n" if "\r\n" in text else "\n"

    @abc.abstractmethod
    def inline(self, value: Any, indent: str | None = None) -> str:
        """A value in one line, or in several with an indentation, where lines in brackets may be indented."""

    @abc.abstractmethod
    def entry(self, keys: Path, value: Any, indent: str | None = None) -> str:
        """An entry of a table, as `inline`; several keys are the parts of a dotted key."""

    def key_text(self, key: str) -> str:
        """A key as a key of this format."""
        return self.inline(key)

    def put(self, path: Path, value: Any) -> str:
        """The text in which a path has a value; creates the tables above it."""
        if has(self.data, path):
            return self.replaced(path, value)
        size = next(size for size in range(len(path) - 1, -1, -1) if has(self.data, path[:size]))
        for key in reversed(path[size + 1 :]):
            value = {key: value}
        return self.added(path[:size], path[size], value)

    def replaced(self, path: Path, value: Any) -> str:
        """The text in which the value of a path is another one."""
        return self.with_edits(Edit(*self.scan.values[path], self.inline(value)))

    def added(self, holder: Path, key: str | int, value: Any) -> str:
        """The text in which a table has one more key, or a list one more item."""
        return self.added_in_brackets(holder, (key,), value)

    def removed(self, path: Path) -> str:
        """The text without a key or an item."""
        return self.removed_in_brackets(path)

    def renamed(self, path: Path, key: str) -> str:
        """The text in which the last key of a path is another one."""
        text = self.key_text(key)
        return self.with_edits(*(Edit(start, end, text) for at, start, end in self.scan.keys if at == path))

    def with_edits(self, *edits: Edit) -> str:
        return spliced(self.text, edits)

    # --- lines ---

    def line_start(self, offset: int) -> int:
        return self.text.rfind("\n", 0, offset) + 1

    def line_end(self, offset: int) -> int:
        """The offset of the line break behind an offset."""
        end = self.text.find("\n", offset)
        end = len(self.text) if end < 0 else end
        return end - 1 if offset < end and self.text[end - 1] == "\r" else end

    def next_line(self, offset: int) -> int:
        end = self.text.find("\n", offset)
        return len(self.text) if end < 0 else end + 1

    def is_first_in_line(self, offset: int) -> bool:
        return not self.text[self.line_start(offset) : offset].strip()

    def after_line(self, offset: int, lines: list[str]) -> Edit:
        """Inserts lines behind the line of an offset."""
        end = self.line_end(offset)
        return Edit(end, end, "".join(self.newline + line for line in lines))

    # --- brackets ---

    def children(self, holder: Path) -> list[Child]:
        """The entries of a table or list, in the order of the text."""
        size = len(holder)
        ends: dict[str | int, int] = {}
        for path, (_, end) in self.scan.values.items():
            if len(path) > size and path[:size] == holder:
                ends[path[size]] = max(end, ends.get(path[size], 0))
        found = (Child(key, self.scan.starts[*holder, key], end) for key, end in ends.items())
        return sorted(found, key=lambda child: child.start)

    def added_in_brackets(self, holder: Path, keys: Path, value: Any) -> str:
        start, end = self.scan.values[holder]
        children = self.children(holder)
        last = children[-1] if children else Child("", 0, 0)
        indent = self.text[self.line_start(last.start) : last.start] if self.is_first_in_line(last.start) else None
        indent = indent if children else None
        text = self.inline(value, indent) if self.text[start] == "[" else self.entry(keys, value, indent)
        if not children:
            pad = " " if self._is_padded(start) else ""
            is_empty = not self.text[start + 1 : end - 1].strip()
            return self.with_edits(Edit(start + 1 if is_empty else end - 1, end - 1, f"{pad}{text}{pad}"))
        comma = _COMMA.match(self.text, last.end)
        behind = last.end if comma is None else comma.end()
        between, trailing = ("", ",") if comma else (",", "")
        if indent is None:
            return self.with_edits(Edit(behind, behind, f"{between} {text}{trailing}"))
        rest = self.text[behind : self.line_end(behind)] if _REST.match(self.text, behind) else ""
        lines = f"{between}{rest}{self.newline}{indent}{text}{trailing}"
        return self.with_edits(Edit(behind, behind + len(rest), lines))

    def _is_padded(self, bracket: int) -> bool:
        """Whether new braces have spaces inside."""
        return False

    def removed_in_brackets(self, path: Path) -> str:
        *above, key = path
        children = self.children((*above,))
        index = next(index for index, child in enumerate(children) if child.key == key)
        child = children[index]
        comma = _COMMA.match(self.text, child.end)
        end = child.end if comma is None else comma.end()
        if len(children) == 1:
            start, stop = self.scan.values[*above,]
            rest = self.text[start + 1 : child.start] + self.text[end : stop - 1]
            return self.with_edits(Edit(child.start, end, "") if rest.strip() else Edit(start + 1, stop - 1, ""))
        is_last = index == len(children) - 1
        before = children[index - 1].end
        if self.is_first_in_line(child.start) and _REST.match(self.text, end) and (comma or is_last):
            lines = Edit(self.line_start(child.start), self.next_line(end), "")
            first_comma = _COMMA.match(self.text, before) if is_last and comma is None else None
            return self.with_edits(lines, *([] if first_comma is None else [_last_of(first_comma)]))
        if is_last:
            return self.with_edits(Edit(before, child.end, ""))
        return self.with_edits(Edit(child.start, children[index + 1].start, ""))


def _last_of(found: re.Match[str]) -> Edit:
    """Removes the last character of a match."""
    return Edit(found.end() - 1, found.end(), "")


def bracket_of(scan: Scan, path: Path) -> Path | None:
    """The path of the innermost value around a path that is written in one place; None if there is none."""
    return next((path[:size] for size in range(len(path), -1, -1) if path[:size] in scan.values), None)


def span_of_line(text: str, span: Span) -> Span:
    """The lines of a span, with their line breaks."""
    end = text.find("\n", span[1])
    return text.rfind("\n", 0, span[0]) + 1, len(text) if end < 0 else end + 1
