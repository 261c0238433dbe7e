"""A table of the arrays of a model: each module's Variables, their shapes, counts and bytes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from declax._classes.pytree import Pytree
from declax._graph.api import state as state_of
from declax._graph.nodes import children_of
from declax._tree.rendering import bytes_text
from declax._typing import Path, Shape
from declax.errors import format_path, type_name

_NAME_WIDTH = 60


@dataclasses.dataclass(frozen=True)
class Entry:
    """One array of a model.

    Attributes:
      name: its name in the module that holds it, such as ``kernel``.
      kind: the name of the Variable's class, or ``array``.
      shape, dtype: of the array.
    """

    name: str
    kind: str
    shape: Shape
    dtype: np.dtype[Any]

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size in bytes; of a random key, that of its data."""
        return self.count * int(self.dtype.itemsize)

    def __str__(self) -> str:
        return f"{self.name} {dtype_text(self.dtype)}[{','.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True)
class Row:
    """The arrays that one module holds itself.

    Attributes:
      path: the path of the module.
      module: the name of its class.
      entries: its arrays.
    """

    path: Path
    module: str
    entries: tuple[Entry, ...]


class Summary:
    """The arrays of a model, by module; prints as a table.

    Attributes:
      rows: one for each module that holds arrays itself, in the order of `state`.
    """

    __slots__ = ("rows",)

    rows: tuple[Row, ...]

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = tuple(rows)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All arrays of the model; a shared one counts once."""
        return tuple(entry for row in self.rows for entry in row.entries)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of Variables in the model: Param first, then by size."""
        found = dict.fromkeys(entry.kind for entry in self.entries)
        return tuple(sorted(found, key=lambda kind: (kind != "Param", -self.count(kind))))

    def count(self, kind: str | None = None) -> int:
        """The number of elements of a kind, or of all."""
        return sum(entry.count for entry in self.entries if kind in (None, entry.kind))

    def nbytes(self, kind: str | None = None) -> int:
        """The number of bytes of a kind, or of all."""
        return sum(entry.nbytes for entry in self.entries if kind in (None, entry.kind))

    def __str__(self) -> str:
        kinds = self.kinds
        table = [["module", "class", "holds", *kinds]]
        for row in self.rows:
            holds = ", ".join(map(str, row.entries))
            holds = holds if len(holds) <= _NAME_WIDTH else holds[: _NAME_WIDTH - 3] + "..."
            path = format_path(row.path) if row.path else "(root)"
            table.append([path, row.module, holds, *(_size(row.entries, kind) for kind in kinds)])
        table.append(["total", "", "", *(_size(self.entries, kind) for kind in kinds)])
        return _aligned(table)

    def __repr__(self) -> str:
        return f"Summary({len(self.rows)} modules, {self.count():,} elements, {bytes_text(self.nbytes())})"


def summary(model: Any) -> Summary:
    """The shapes, counts and bytes of the arrays of a model, by module and kind of Variable.

    Args:
      model: a Module, or a container of modules; may be abstract.

    Returns:
      The rows, counts and bytes; prints as a table.

    >>> import declax as dx
    >>> import jax.numpy as jnp
    >>> class Scale(dx.Module):
    ...     def __init__(self):
    ...         self.weight = dx.Param(jnp.ones((2, 3)))
    >>> print(dx.summary(Scale()))
    module  class  holds               Param
    ------  -----  ---------------  --------
    (root)  Scale  weight f32[2,3]  6 (24 B)
    ------  -----  ---------------  --------
    total                           6 (24 B)
    """
    state = state_of(model)
    rows: dict[Path, tuple[str, list[Entry]]] = {}
    for path, leaf_def, leaf in zip(state.paths, state.definition.leaf_defs, state.leaves, strict=True):
        owner, depth = _owner(model, path)
        kind = "array" if leaf_def is None else type_name(leaf_def[0])
        _, entries = rows.setdefault(path[:depth], (type_name(type(owner)), []))
        entries.extend(_entries(format_path(path[depth:]), kind, leaf))
    return Summary(Row(path, module, tuple(entries)) for path, (module, entries) in rows.items() if entries)


def _owner(model: Any, path: Path) -> tuple[Any, int]:
    """The innermost module on a path, and the length of the path to it."""
    owner, depth, node = model, 0, model
    for position, key in enumerate(path, start=1):
        node = dict(children_of(node)).get(key)
        if isinstance(node, Pytree):
            owner, depth = node, position
    return owner, depth


def _entries(name: str, kind: str, value: Any) -> list[Entry]:
    """The arrays in one Variable: mostly one, several if it holds a tree."""
    leaves = jax.tree_util.tree_leaves_with_path(value)
    return [
        Entry(name + jax.tree_util.keystr(keys), kind, tuple(leaf.shape), leaf.dtype)
        for keys, leaf in leaves
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    ]


def _size(entries: Iterable[Entry], kind: str) -> str:
    chosen = [entry for entry in entries if entry.kind == kind]
    if not chosen:
        return ""
    return f"{sum(entry.count for entry in chosen):,} ({bytes_text(sum(entry.nbytes for entry in chosen))})"


def _aligned(table: Sequence[Sequence[str]]) -> str:
    """The lines of a table: text left-aligned, numbers (from the fourth column on) right-aligned."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rule = ["-" * width for width in widths]
    lines = []
    for row in (table[0], rule, *table[1:-1], rule, table[-1]):
        cells = [
            cell.ljust(width) if position < 3 else cell.rjust(width)
            for position, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def dtype_text(dtype: np.dtype[Any]) -> str:
    """A dtype as JAX abbreviates it: ``f32``, ``bf16``, ``u8``, ``bool``."""
    text = str(dtype)
    for long, short in (("bfloat", "bf"), ("float", "f"), ("complex", "c"), ("uint", "u"), ("int", "i")):
        if text.startswith(long):
            return short + text.removeprefix(long)
    return text
