"""The fenced blocks of the pages, which tests run and check."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>[\w+-]*) *(?P<info>.*?) *$")

FILE = re.compile(r"\{file=([\w./]+)\}")
"""The marker of a block that is a file."""


ON_EIGHT_DEVICES = [
    ROOT / "docs" / f"{name}.md"
    for name in ("experts", "howto/attention_kernels", "howto/serving_mesh", "pipeline", "slices", "zero")
]
"""Pages whose output is that of eight devices: `tests/sharding/devices_pages.py` runs them."""


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    line: int  # of its first line of content
    language: str
    info: str
    text: str


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found: list[Block] = []
    opened: tuple[int, re.Match[str]] | None = None
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        fence = _FENCE.match(line)
        if opened is None and fence:
            opened = number, fence
        elif opened and fence and not fence["language"] and len(fence["ticks"]) >= len(opened[1]["ticks"]):
            start, opening = opened
            body = [content.removeprefix(opening["indent"]) for content in lines[start : number - 1]]
            found.append(Block(start + 1, opening["language"], opening["info"], "\n".join(body) + "\n"))
            opened = None
    assert opened is None, f"the block at line {opened[0]} is not closed"
    return found


def pages() -> list[Path]:
    """The readme and all pages."""
    readme = ROOT / "README.md"
    return [*([readme] if readme.exists() else []), *sorted((ROOT / "docs").rglob("*.md"))]
