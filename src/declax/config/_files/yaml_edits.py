"""Edits of one value in a YAML text."""

from __future__ import annotations

from typing import Any

from declax.config._files.flow_edits import Child, Editor, span_of_line, value_at
from declax.config._files.scanning import Edit
from declax.config._files.yaml_format import YamlScan, dumped
from declax.config.problems import Path


class YamlEditor(Editor[YamlScan]):
    """Edits lines of blocks; values in brackets as in other formats."""

    def inline(self, value: Any, indent: str | None = None) -> str:
        return dumped([value], flow=True).strip()[1:-1]

    def entry(self, keys: Path, value: Any, indent: str | None = None) -> str:
        return f"{self.inline(keys[0])}: {self.inline(value)}"

    def replaced(self, path: Path, value: Any) -> str:
        start, end = self.scan.values[path]
        end = start + len(self.text[start:end].rstrip())
        text = self.inline(value)
        if path in self.scan.blocks and not self._is_in_line(path):
            colon = self._behind_key(path)
            rest = len(self.text[colon : self.line_end(colon)].rstrip()) + colon
            return self.with_edits(Edit(colon, colon, f" {text}"), Edit(rest, end, ""))
        pad = " " if start and start == end and not self.text[start - 1].isspace() else ""
        return self.with_edits(Edit(start, end, pad + text))

    def _is_in_line(self, path: Path) -> bool:
        """Whether a block starts in the line of the dash or key before it."""
        start = self.scan.blocks[path]
        return not path or not self.is_first_in_line(start)

    def _behind_key(self, path: Path) -> int:
        """The offset behind the colon or dash before a value."""
        if isinstance(path[-1], int):
            return self._dash(path) + 1
        end = next(end for at, _, end in self.scan.keys if at == path)
        return self.text.index(":", end) + 1

    def _dash(self, path: Path) -> int:
        """The offset of the dash of an item of a block."""
        *above, index = path
        first = self.scan.blocks[*above,]
        if not isinstance(index, int) or index == 0:
            return first
        return self.text.rindex("-", self.scan.values[*above, index - 1][1], self.scan.starts[path])

    def added(self, holder: Path, key: str | int, value: Any) -> str:
        if holder not in self.scan.values:  # nothing but comments
            is_open = self.text and not self.text.endswith("\n")
            return self.text + (self.newline if is_open else "") + self.entry((key,), value) + self.newline
        if holder not in self.scan.blocks:
            return self.added_in_brackets(holder, (key,), value)
        first = self.scan.blocks[holder]
        indent = " " * (first - self.line_start(first))
        lines = [indent + line for line in self._lines(key, value)]
        end = self.scan.values[holder][1]
        if self.text[end - 1] == "\n":  # behind a text of several lines
            return self.with_edits(Edit(end, end, "".join(line + self.newline for line in lines)))
        return self.with_edits(self.after_line(end, lines))

    def _lines(self, key: str | int, value: Any) -> list[str]:
        is_block = bool(value) and (isinstance(value, dict) or (isinstance(value, list) and _has_tables(value)))
        if isinstance(key, int):
            return dumped([value], flow=False).splitlines() if is_block else [f"- {self.inline(value)}"]
        return dumped({key: value}, flow=False).splitlines() if is_block else [self.entry((key,), value)]

    def removed(self, path: Path) -> str:
        holder = path[:-1]
        if holder not in self.scan.blocks:
            return self.removed_in_brackets(path)
        children = self.children(holder)
        if isinstance(path[-1], int):
            children = [child._replace(start=self._dash((*holder, child.key))) for child in children]
        index = next(index for index, child in enumerate(children) if child.key == path[-1])
        if len(children) == 1 and (holder or isinstance(path[-1], int)):
            return self.replaced(holder, type(value_at(self.data, holder))())
        return self._without_lines(children[index], children[index + 1].start if children[index + 1 :] else None)

    def _without_lines(self, child: Child, following: int | None) -> str:
        end = child.start + len(self.text[child.start : child.end].rstrip())
        if following is not None and not self.is_first_in_line(child.start):
            return self.with_edits(Edit(child.start, following, ""))
        return self.with_edits(Edit(*span_of_line(self.text, (child.start, end)), ""))


def _has_tables(value: list[Any]) -> bool:
    return any(isinstance(item, (dict, list)) for item in value)
