"""Edits of one value in a TOML text."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from declax.config._files.flow_edits import Editor, bracket_of, has, span_of_line, value_at
from declax.config._files.scanning import Edit, Span
from declax.config._files.toml_format import (
    Section,
    TomlScan,
    header_text,
    key_text,
    parse_toml,
    table_lines,
    value_text,
)
from declax.config.problems import Path


class TomlEditor(Editor[TomlScan]):
    """Edits statements and sections; values in brackets as in other formats."""

    def inline(self, value: Any, indent: str | None = None) -> str:
        return value_text(value)

    def key_text(self, key: str) -> str:
        return key_text(key)

    def entry(self, keys: Path, value: Any, indent: str | None = None) -> str:
        return f"{header_text(keys)} = {value_text(value)}"

    def _is_padded(self, bracket: int) -> bool:
        return self.text[bracket] == "{"

    def replaced(self, path: Path, value: Any) -> str:
        if path in self.scan.values:
            return super().replaced(path, value)
        if isinstance(value, dict) and value_at(self.data, path) == {}:
            editor = self
            for key, item in value.items():
                editor = self._again(editor.put((*path, key), item))
            return editor.text
        index = path[-1]
        if isinstance(index, int):  # headers have tables only
            items = value_at(self.data, path[:-1])
            path, value = path[:-1], [*items[:index], value, *items[index + 1 :]]
        return self._again(self.removed(path, keeps_above=False)).put(path, value)  # of a table below headers

    def added(self, holder: Path, key: str | int, value: Any) -> str:
        bracket = bracket_of(self.scan, holder)
        if bracket is not None:
            return self.added_in_brackets(bracket, (*holder[len(bracket) :], key), value)
        if isinstance(key, int) and not isinstance(value, dict):  # headers have tables only
            items = [*value_at(self.data, holder), value]
            return self._again(self.removed(holder, keeps_above=False)).put(holder, items)
        if isinstance(key, int):
            lines = ["", f"[[{header_text(holder)}]]", *table_lines(value, _names(holder))]
        else:
            lines = list(table_lines({key: value}, _names(holder)))
        if not lines[0]:
            return self._with_section(holder, lines)
        section = next((section for section in self.scan.sections if section.path == holder), None)
        if section is not None:
            return self._with_statement(section, lines[0])
        return self._with_dotted(holder, key, value)

    def _with_section(self, holder: Path, lines: list[str]) -> str:
        """Adds a section behind the last one of the table or list."""
        below = [section for section in self.scan.sections if _is_below(section.path, holder)]
        if not below:  # of a table of dotted keys
            sections = self.scan.sections
            below = [section for section in sections if any(_is_below(s.path, holder) for s in section.statements)]
        end = self._behind_comments((below or self.scan.sections)[-1].end)
        if not self.text[:end].strip():
            return self.with_edits(self._at_end(lines[1:]))
        return self.with_edits(self.after_line(end, lines))

    def _behind_comments(self, end: int) -> int:
        """The end of a section with the comments directly behind it, if these are not of the header below them."""
        last, line = end, self.next_line(end)
        while self.text[line : self.next_line(line)].lstrip().startswith("#"):
            last, line = line, self.next_line(line)
        return end if self.text[line : self.next_line(line)].strip() else last

    def _at_end(self, lines: list[str]) -> Edit:
        end = len(self.text)
        is_open = self.text and not self.text.endswith("\n")
        return Edit(end, end, (self.newline if is_open else "") + "".join(line + self.newline for line in lines))

    def _with_statement(self, section: Section, line: str) -> str:
        if section.end or section.statements:
            return self.with_edits(self.after_line(section.end, [line]))
        if len(self.scan.sections) == 1:
            return self.with_edits(self._at_end([line]))
        start = self.line_start(self.scan.sections[1].start)
        while start and self.text[self.line_start(start - 1) : start].lstrip().startswith("#"):
            start = self.line_start(start - 1)  # comments belong to the header below
        return self.with_edits(Edit(start, start, line + 2 * self.newline))

    def _with_dotted(self, holder: Path, key: str | int, value: Any) -> str:
        """Adds a key to a table that has no header of its own."""
        for section in self.scan.sections:
            found = [statement for statement in section.statements if _is_below(statement.path, holder)]
            if found and len(section.path) < len(holder):
                line = self.entry((*holder[len(section.path) :], key), value)
                return self.with_edits(self.after_line(found[-1].end, [line]))
        section = next(section for section in self.scan.sections if _is_below(section.path, holder))
        lines = ["", f"[{header_text(holder)}]", self.entry((key,), value)]
        return self.with_edits(self.after_line(section.end, lines))

    def removed(self, path: Path, *, keeps_above: bool = True) -> str:
        bracket = bracket_of(self.scan, path[:-1])
        if bracket == path[:-1]:
            return self.removed_in_brackets(path)
        if bracket is not None:  # of dotted keys
            table = copy.deepcopy(value_at(self.data, bracket))
            del value_at(table, path[len(bracket) : -1])[path[-1]]
            return self.replaced(bracket, table)
        sections = [section for section in self.scan.sections if section.path and _is_below(section.path, path)]
        others = [section for section in self.scan.sections if section not in sections]
        found = [s for section in others for s in section.statements if _is_below(s.path, path)]
        spans = [span_of_line(self.text, (s.start, s.end)) for s in found]
        made = self.with_edits(*(Edit(*span, "") for span in (*spans, *self._without_sections(sections))))
        data = parse_toml(made, None).data
        above = path[:-1]
        if not keeps_above or has(data, above):
            return made
        return self._again(made).put(above, [] if isinstance(value_at(self.data, above), list) else {})

    def _without_sections(self, sections: list[Section]) -> Iterator[Span]:
        """The lines of sections with the empty lines behind each; those before them, if nothing is behind them."""
        spans: list[Span] = []
        for section in sections:
            start, end = span_of_line(self.text, (section.start, section.end))
            while end < len(self.text) and not self.text[end : self.next_line(end)].strip():
                end = self.next_line(end)
            if spans and spans[-1][1] == start:
                start = spans.pop()[0]
            spans.append((start, end))
        for start, end in spans:
            while end == len(self.text) and start and not self.text[self.line_start(start - 1) : start].strip():
                start = self.line_start(start - 1)
            yield start, end

    @staticmethod
    def _again(text: str) -> TomlEditor:
        return TomlEditor(text, parse_toml(text, None).data, TomlScan(text))


def _is_below(path: Path, other: Path) -> bool:
    return path[: len(other)] == other


def _names(path: Path) -> tuple[str, ...]:
    return tuple(key for key in path if isinstance(key, str))
