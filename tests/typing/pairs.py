"""Reads the pairs of programs under ``programs/``.

A pair is a right program and a wrong one, which differ in one line. The pairs of a file are a group, and share its
opening, the lines before the first pair. A file contains the right programs. A pair begins with ``# == title
(annotations: yes)``, which says whether plain annotations can express the mistake. A comment ``# wrong: ...``
replaces the line before it in the wrong program. ``# wrong(+1): ...`` expects the error at the first line of code
after it, ``# wrong(-2): ...`` at the second line before it. ``# error: a | b | c`` gives the codes of mypy with the
plugin, mypy without, and pyright; ``-`` means no error. The tests write this line if ``DECLAX_UPDATE_GOLDEN=1`` is
set.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"

_TITLE = re.compile(r"# == (?P<title>.+) \(annotations: (?P<annotations>yes|no)\)")
_WRONG = re.compile(r" *# wrong(?:\((?P<shift>[+-]\d+)\))?:(?P<code> .*)?")
_ERROR = re.compile(r" *# error: (?P<codes>.+)")


@dataclass(frozen=True)
class Pair:
    """A right program and a wrong one."""

    group: str
    title: str
    annotations: bool
    """Whether plain annotations can express what is wrong."""
    opening: tuple[str, ...]
    lines: tuple[str, ...]
    """Of the right program, with the markers."""

    @property
    def module(self) -> str:
        """The name of the module that the wrong program becomes."""
        return "wrong_" + re.sub(r"\W+", "_", f"{self.group}_{self.title}").lower()

    @cached_property
    def _marker(self) -> tuple[int, re.Match[str]]:
        found = [(i, match) for i, line in enumerate(self.lines) if (match := _WRONG.fullmatch(line))]
        assert len(found) == 1, f"{self.group}: {self.title}: {len(found)} wrong lines instead of one"
        return found[0]

    @property
    def wrong(self) -> str:
        """The text of the wrong program."""
        return "\n".join([*self.opening, *self._wrong_lines]) + "\n"

    @cached_property
    def _wrong_lines(self) -> list[str]:
        index, match = self._marker
        right = self.lines[index - 1]
        indent = right[: len(right) - len(right.lstrip())]
        changed = (match["code"] or "").strip()
        lines = list(self.lines)
        lines[index - 1] = indent + changed if changed else ""
        return lines

    @property
    def marked(self) -> int:
        """The number of the line where a checker reports the error."""
        index, match = self._marker
        place, shift = index - 1, int(match["shift"] or 0)
        while shift:
            place += 1 if shift > 0 else -1
            line = self._wrong_lines[place].strip()
            if line and not line.startswith("#"):
                shift -= 1 if shift > 0 else -1
        return len(self.opening) + place + 1

    @property
    def expected(self) -> tuple[str, ...]:
        """The codes in the marker ``# error:``, in the order of the checkers; empty where there is no marker."""
        for line in self.lines:
            if match := _ERROR.fullmatch(line):
                return tuple(code.strip() for code in match["codes"].split("|"))
        return ()


@dataclass(frozen=True)
class Group:
    """The pairs of one file."""

    path: Path
    opening: tuple[str, ...]
    pairs: tuple[Pair, ...]

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def about(self) -> str:
        """The first line of the file's docstring."""
        return self.opening[0].strip('"').rstrip(".")

    @property
    def right(self) -> str:
        """The text of all right programs."""
        return self.path.read_text(encoding="utf-8")


def read_group(path: Path) -> Group:
    """Reads one file of pairs."""
    lines = path.read_text(encoding="utf-8").splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("# ==")]
    opening = tuple(lines[: starts[0]])
    pairs = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        title = _TITLE.fullmatch(lines[start])
        assert title, f"{path.name}:{start + 1}: write `# == what is wrong (annotations: yes)`"
        body = tuple(lines[start:end])
        pairs.append(Pair(path.stem, title["title"], title["annotations"] == "yes", opening, body))
    return Group(path, opening, tuple(pairs))


def read_groups() -> tuple[Group, ...]:
    """Reads all files of pairs."""
    return tuple(read_group(path) for path in sorted(PROGRAMS.glob("*.py")))


def with_codes(path: Path, codes: dict[str, tuple[str, ...]]) -> str:
    """The text of a file of pairs, with the codes by title in its markers ``# error:``."""
    lines: list[str] = []
    title = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if match := _TITLE.fullmatch(line):
            title = match["title"]
        if _ERROR.fullmatch(line):
            continue
        lines.append(line)
        if _WRONG.fullmatch(line):
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(f"{indent}# error: {' | '.join(codes[title])}")
    return "\n".join(lines) + "\n"
