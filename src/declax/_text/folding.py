"""One line for equal parts: ``blocks[0:12].kernel`` in place of twelve lines that differ in an index only."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from declax._typing import Path

C = TypeVar("C")


class Line(NamedTuple, Generic[C]):
    """What a line says of a path, or of several by indices."""

    path: Path
    content: C
    times: int = 1


class _Indices(NamedTuple):
    """The indices of consecutive equal parts, as a key of a path."""

    start: int
    stop: int

    def __repr__(self) -> str:
        return f"{self.start}:{self.stop}"


def folded(lines: Sequence[Line[C]], depth: int = 0) -> list[Line[C]]:
    """The lines, with one for those that differ in consecutive indices only.

    >>> folded([Line(("blocks", 0), "f32[2]"), Line(("blocks", 1), "f32[2]"), Line(("head",), "f32[2]")])
    [Line(path=('blocks', 0:2), content='f32[2]', times=2), Line(path=('head',), content='f32[2]', times=1)]
    """
    found: list[tuple[_Indices | None, list[tuple[Path, int, C]], list[Line[C]]]] = []
    for key, group in itertools.groupby(lines, lambda line: line.path[depth : depth + 1]):
        inside = list(group)
        if key:
            inside = folded(inside, depth + 1)
        content = [(line.path[depth + 1 :], line.times, line.content) for line in inside]
        first = key[0] if key else None
        here = _Indices(first, first + 1) if isinstance(first, int) else None
        before, known, _ = found[-1] if found else (None, None, None)
        if here and before and known == content and before.stop == here.start:
            found[-1] = (_Indices(before.start, here.stop), content, found[-1][2])
        else:
            found.append((here, content, inside))
    return [_moved(line, depth, key) for key, _, inside in found for line in inside]


def _moved(line: Line[C], depth: int, key: _Indices | None) -> Line[C]:
    """A line under the indices of all that it represents."""
    if key is None or key.stop == key.start + 1:
        return line
    path = (*line.path[:depth], key, *line.path[depth + 1 :])
    return Line(path, line.content, line.times * (key.stop - key.start))
