"""A table of the parts of a model: arrays with counts and bytes and, of a call, outputs and costs."""

from __future__ import annotations

import dataclasses
import html
import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from declax._classes.pytree import Pytree
from declax._displays.calls import Cost, calls_of, check_depth
from declax._graph.api import state as state_of
from declax._graph.nodes import Kind, children_of, kind_of
from declax._random.streams import Rngs, RngStream
from declax._tree.rendering import bytes_text, dtype_text, shapes_text
from declax._typing import Path, Shape
from declax.errors import GraphError, describe, format_path, type_name

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
    """One module: the arrays that it holds itself and, if it was called, its output and cost.

    Attributes:
      path: the path of the module.
      module: the name of its class.
      entries: its arrays; below a depth limit, those of its parts too.
      output: the shapes of the result of its first call, or None.
      cost: that of all its calls, or None.
    """

    path: Path
    module: str
    entries: tuple[Entry, ...]
    output: str | None = None
    cost: Cost | None = None


class Summary:
    """The parts of a model; prints as a table, and shows as one in a notebook.

    Attributes:
      rows: one for each module that holds arrays itself, in the order of `state`; with inputs, one for each module
        that is called, in the order of calls, and then those that are not.
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

    def _cells(self) -> list[list[str]]:
        """The table: a head, a line for each row or several equal ones, and the total."""
        kinds = self.kinds
        is_called = any(row.output is not None for row in self.rows)
        table = [["module", "class", *(["output", "FLOPs", "bytes"] if is_called else []), "holds", *kinds]]
        for line in _folded([_Line(row.path, row) for row in self.rows]):
            row = line.row
            holds = ", ".join(map(str, row.entries))
            holds = holds if len(holds) <= _NAME_WIDTH else holds[: _NAME_WIDTH - 3] + "..."
            module = row.module if line.count == 1 else f"{line.count} x {row.module}"
            call = [row.output or "", *_cost_texts(row.cost, line.count)] if is_called else []
            sizes = [_size(row.entries * line.count, kind) for kind in kinds]
            table.append([format_path(line.path) if line.path else "(root)", module, *call, holds, *sizes])
        root = next((row.cost for row in self.rows if not row.path), None)
        call = ["", *_cost_texts(root)] if is_called else []
        table.append(["total", "", *call, "", *(_size(self.entries, kind) for kind in kinds)])
        return table

    def __str__(self) -> str:
        return aligned(self._cells())

    def _repr_html_(self) -> str:
        return html_table(self._cells())

    def __repr__(self) -> str:
        return f"Summary({len(self.rows)} modules, {self.count():,} elements, {bytes_text(self.nbytes())})"


def summary(
    model: Any, *inputs: Any, depth: int | None = None, method: str = "__call__", **named_inputs: Any
) -> Summary:
    """The shapes, counts and bytes of the arrays of a model, and outputs and costs of its parts in one call.

    Args:
      model: a Module, or a container of modules; may be abstract.
      *inputs, **named_inputs: arguments of the model: arrays, `jax.ShapeDtypeStruct`, or others. Without them, the
        model is not called. With them it is traced once; nothing is computed, and the model does not change.
      depth: rows of modules with longer paths are added to those of the module around them; None for no limit.
      method: the method to call.

    Returns:
      The rows, counts and bytes. Prints as a table, in which consecutive equal parts have one line. FLOPs and bytes
      (operands and results of all operations) are as XLA counts them before it optimizes; a part inside of a loop
      counts once.

    Raises:
      GraphError: this is not a model, or it has no such method; or `depth` is negative.

    >>> import declax as dx
    >>> import jax.numpy as jnp
    >>> class Scale(dx.Module):
    ...     def __init__(self):
    ...         self.weight = dx.Param(jnp.ones((2, 3)))
    ...     def __call__(self, x):
    ...         return x @ self.weight
    >>> print(dx.summary(Scale()))
    module  class  holds               Param
    ------  -----  ---------------  --------
    (root)  Scale  weight f32[2,3]  6 (24 B)
    ------  -----  ---------------  --------
    total                           6 (24 B)
    >>> print(dx.summary(Scale(), jnp.ones((4, 2))))
    module  class  output    FLOPs  bytes  holds               Param
    ------  -----  --------  -----  -----  ---------------  --------
    (root)  Scale  f32[4,3]     48  104 B  weight f32[2,3]  6 (24 B)
    ------  -----  --------  -----  -----  ---------------  --------
    total                       48  104 B                   6 (24 B)
    """
    if kind_of(model) is Kind.STATIC:
        raise GraphError(
            "summary.model",
            "this is not a model",
            expected="a Module, or a container of modules",
            got=describe(model),
            fix="dx.summary(Model(..., rngs=dx.Rngs(0)))",
        )
    check_depth("summary", depth)
    state = state_of(model)
    rows: dict[Path, Row] = {}
    if inputs or named_inputs:
        calls = calls_of(model, method, inputs, named_inputs, cost=True)
        first = {call.path: call for call in reversed(calls) if depth is None or len(call.path) <= depth}
        for path in dict.fromkeys(call.path for call in calls if call.path in first):
            costs = [c.cost for c in calls if c.path == path and c.method == first[path].method and c.cost]
            total = Cost(sum(cost.flops for cost in costs), sum(cost.nbytes for cost in costs))
            rows[path] = Row(path, type_name(first[path].type), (), shapes_text(first[path].outputs), total)
    for path, leaf_def, leaf in zip(state.paths, state.definition.leaf_defs, state.leaves, strict=True):
        owner, length = _owner(model, path[:-1][:depth])
        kind = "array" if leaf_def is None else type_name(leaf_def[0])
        found = _entries(format_path(path[length:]), kind, leaf)
        if found:
            row = rows.get(path[:length]) or Row(path[:length], type_name(type(owner)), ())
            rows[path[:length]] = dataclasses.replace(row, entries=(*row.entries, *found))
    return Summary(rows.values())


def _owner(model: Any, path: Path) -> tuple[Any, int]:
    """The innermost module on a path, and the length of the path to it; random streams belong to the one around."""
    owner, depth, node = model, 0, model
    for position, key in enumerate(path, start=1):
        node = dict(children_of(node)).get(key)
        if isinstance(node, Pytree) and not isinstance(node, (Rngs, RngStream)):
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


# --- equal parts ----------------------------------------------------------------


@dataclasses.dataclass
class _Line:
    """A row, or several equal ones."""

    path: Path
    row: Row
    count: int = 1


@dataclasses.dataclass(frozen=True)
class _Indices:
    """The indices of consecutive equal parts, as a key of a path."""

    start: int
    stop: int

    def __repr__(self) -> str:
        return f"{self.start}:{self.stop}"


def _folded(lines: Sequence[_Line], depth: int = 0) -> list[_Line]:
    """The lines, with one for those that differ in consecutive indices only."""
    folded: list[tuple[Any, list[Any], list[_Line]]] = []
    for key, group in itertools.groupby(lines, lambda line: line.path[depth : depth + 1]):
        inside = list(group)
        if key:
            inside = _folded(inside, depth + 1)
        content = [(line.path[depth + 1 :], line.count, *_content(line.row)) for line in inside]
        first = key[0] if key else None
        if isinstance(first, int) and folded and folded[-1][1] == content and _follows(folded[-1][0], first):
            folded[-1] = (_Indices(_start(folded[-1][0]), first + 1), content, folded[-1][2])
        else:
            folded.append((first, content, inside))
    return [_moved(line, depth, key) for key, _, inside in folded for line in inside]


def _content(row: Row) -> tuple[Any, ...]:
    return row.module, row.entries, row.output, row.cost


def _start(key: Any) -> int:
    start: int = key.start if isinstance(key, _Indices) else key
    return start


def _follows(key: Any, index: int) -> bool:
    return index == (key.stop if isinstance(key, _Indices) else key + 1 if isinstance(key, int) else None)


def _moved(line: _Line, depth: int, key: Any) -> _Line:
    """A line under the indices of all rows that it represents."""
    if not isinstance(key, _Indices):
        return line
    path = (*line.path[:depth], key, *line.path[depth + 1 :])
    return _Line(path, line.row, line.count * (key.stop - key.start))


# --- text -----------------------------------------------------------------------

_TEXTS = frozenset({"module", "class", "output", "holds"})
"""The columns that are aligned at the left."""


def aligned(table: Sequence[Sequence[str]], texts: Collection[str] = _TEXTS) -> str:
    """The lines of a table with a head and a foot; the columns of texts are aligned at the left."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rule = ["-" * width for width in widths]
    lines = []
    for row in (table[0], rule, *table[1:-1], rule, table[-1]):
        cells = zip(table[0], row, widths, strict=True)
        parts = [cell.ljust(width) if name in texts else cell.rjust(width) for name, cell, width in cells]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def html_table(table: Sequence[Sequence[str]]) -> str:
    """The same table in HTML, without styles."""
    rows = []
    for number, row in enumerate(table):
        tag = "th" if number in (0, len(table) - 1) else "td"
        cells = (
            f'<{tag} style="text-align: {"left" if name in _TEXTS else "right"}">'
            f"{html.escape(cell).replace(chr(10), '<br>')}</{tag}>"
            for name, cell in zip(table[0], row, strict=True)
        )
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{''.join(rows)}</table>"


def _cost_texts(cost: Cost | None, calls: int = 1) -> list[str]:
    return ["", ""] if cost is None else [f"{calls * cost.flops:,}", bytes_text(calls * cost.nbytes)]
