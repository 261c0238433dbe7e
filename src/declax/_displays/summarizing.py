"""A table of the parts of a model: arrays with counts and bytes and, of a call, outputs and costs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from declax._classes.pytree import Pytree
from declax._displays.calls import Cost, calls_of, check_depth
from declax._displays.inputs import with_symbols
from declax._graph.api import state as state_of
from declax._graph.nodes import Kind, children_of, kind_of
from declax._random.streams import Rngs, RngStream
from declax._text.arrays import amount_text, bytes_text, measure, shape_text, shapes_text
from declax._text.folding import Line, folded
from declax._text.tables import aligned, html_table
from declax._typing import Path, Shape
from declax.errors import GraphError, describe, format_path, shortened, type_name

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
        return f"{self.name} {shape_text(self)}"


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
        for line in folded([Line(row.path, dataclasses.replace(row, path=())) for row in self.rows]):
            row = line.content
            holds = shortened(", ".join(map(str, row.entries)), _NAME_WIDTH)
            module = row.module if line.times == 1 else f"{line.times} x {row.module}"
            call = [row.output or "", *_cost_texts(row.cost, line.times)] if is_called else []
            sizes = [_size(row.entries * line.times, kind) for kind in kinds]
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
    """The summary of a model, as `dx.summary` says, which takes classes too.

    Raises:
      GraphError: this is not a model, or it has no such method; or `depth` is negative.
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
        inputs, named_inputs, is_symbolic = with_symbols(inputs, named_inputs)
        calls = calls_of(model, method, inputs, named_inputs, cost=not is_symbolic)
        first = {call.path: call for call in reversed(calls) if depth is None or len(call.path) <= depth}
        for path in dict.fromkeys(call.path for call in calls if call.path in first):
            costs = [c.cost for c in calls if c.path == path and c.method == first[path].method and c.cost]
            total = None if is_symbolic else Cost(sum(cost.flops for cost in costs), sum(cost.nbytes for cost in costs))
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
    return amount_text(*measure(chosen)) if chosen else ""


# --- text -----------------------------------------------------------------------


def _cost_texts(cost: Cost | None, calls: int = 1) -> list[str]:
    return ["", ""] if cost is None else [f"{calls * cost.flops:,}", bytes_text(calls * cost.nbytes)]
