"""Whether two States are equal, and how they differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from declax import _display
from declax._state_def import LeafDef, StateDef
from declax._typing import Path
from declax._value_text import value_text
from declax.errors import describe, format_path, type_name

What = Literal["only in first", "only in second", "kind", "metadata", "nesting", "shape", "dtype", "value"]

SHOWN = 100
"""How many changes are printed."""

COMPARED_ON_HOST = 1 << 14
"""Up to how many elements an array is compared on the host, at a fifth of the cost; larger ones where they are."""

_ARRAYS = (jax.Array, np.ndarray)
_CONTAINERS = (dict, list, tuple)


class LeafChange(NamedTuple):
    """One thing that differs.

    Attributes:
      path: where.
      what: which thing.
      detail: both sides, as text.
    """

    path: Path
    what: What
    detail: str

    def __str__(self) -> str:
        return f"{format_path(self.path)}: {self.what}: {self.detail}"


@dataclasses.dataclass(frozen=True, repr=False)
class StateDiff:
    """How two States differ; true where they do.

    Attributes:
      changes: all that differs, in the order of the first State; what only the
        second one has is last.

    >>> from declax.states import State
    >>> diff = State({"a": 1, "b": 2}).diff(State({"b": 3, "c": 4}))
    >>> print(diff)
    StateDiff(
      a: only in first: int 1
      b: value: 2 -> 3
      c: only in second: int 4
    )
    >>> diff.only_in_first, diff.paths("value")
    ((('a',),), (('b',),))
    """

    changes: tuple[LeafChange, ...]

    def paths(self, *what: What) -> tuple[Path, ...]:
        """The paths that differ in one of these things, or in any where none is given."""
        return tuple(dict.fromkeys(c.path for c in self.changes if not what or c.what in what))

    @property
    def only_in_first(self) -> tuple[Path, ...]:
        """The paths that only the first State has."""
        return self.paths("only in first")

    @property
    def only_in_second(self) -> tuple[Path, ...]:
        """The paths that only the second State has."""
        return self.paths("only in second")

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __repr__(self) -> str:
        if not self.changes:
            return "StateDiff()"
        lines = list(map(str, self.changes[:SHOWN]))
        if len(self.changes) > SHOWN:
            lines.append(f"... {len(self.changes) - SHOWN:,} more")
        return "StateDiff(\n" + "".join(f"  {line}\n" for line in lines) + ")"


def same_states(definition: StateDef, leaves: Sequence[Any], other: StateDef, others: Sequence[Any]) -> bool:
    """Whether two States have equal leaves at the same paths, in whatever order."""
    if definition is not other:
        places = {path: i for i, path in enumerate(other.paths)}
        order = [places.get(path) for path in definition.paths]
        kinds = zip(definition.leaf_defs, order, strict=True)
        if len(order) != len(places) or not all(i is not None and other.leaf_defs[i] == kind for kind, i in kinds):
            return False
        others = [others[i] for i in order if i is not None]
    return all(same_leaf(a, b) for a, b in zip(leaves, others, strict=True) if a is not b)


def same_leaf(a: Any, b: Any) -> bool:
    """Whether two leaves are equal; arrays by value, whatever they are nested in."""
    if a is b or not (isinstance(a, _CONTAINERS) or isinstance(b, _CONTAINERS)):
        return _same_value(a, b)
    structures: list[Any] = [jax.tree.structure(x) for x in (a, b)]
    return structures[0] == structures[1] and all(map(_same_value, jax.tree.leaves(a), jax.tree.leaves(b)))


def _same_value(a: Any, b: Any) -> bool:
    if a is b:
        return True
    are_arrays = isinstance(a, _ARRAYS) and isinstance(b, _ARRAYS)
    if are_arrays and a.shape == b.shape and a.dtype == b.dtype and _is_on_host(a) and _is_on_host(b):
        return bool((np.asarray(a) == np.asarray(b)).all())
    return _display.same_value(a, b)


def _is_on_host(array: Any) -> bool:
    """Whether an array is compared on the host; keys, which have a dtype of their own, are not."""
    if isinstance(array, Tracer) or array.size > COMPARED_ON_HOST or not isinstance(array.dtype, np.dtype):
        return False
    return isinstance(array, np.ndarray) or array.is_fully_addressable


def compare(definition: StateDef, leaves: Sequence[Any], other: StateDef, others: Sequence[Any]) -> StateDiff:
    """How two States differ, given their definitions and leaves."""
    places = {path: i for i, path in enumerate(other.paths)}
    changes = []
    with np.errstate(all="ignore"):  # infinities and NaNs differ as other values do
        for path, leaf, leaf_def in zip(definition.paths, leaves, definition.leaf_defs, strict=True):
            place = places.pop(path, None)
            if place is None:
                changes.append(LeafChange(path, "only in first", _described(leaf, leaf_def)))
                continue
            changes += [LeafChange(path, *found) for found in _kind_changes(leaf_def, other.leaf_defs[place])]
            changes += [LeafChange(path, *found) for found in _value_changes(leaf, others[place])]
    for path, place in places.items():
        changes.append(LeafChange(path, "only in second", _described(others[place], other.leaf_defs[place])))
    return StateDiff(tuple(changes))


def _kind_changes(first: LeafDef, second: LeafDef) -> Iterator[tuple[What, str]]:
    names = ["no Variable" if leaf_def is None else type_name(leaf_def[0]) for leaf_def in (first, second)]
    if (first and first[0]) is not (second and second[0]):
        yield "kind", f"{names[0]} -> {names[1]}"
    if first is None or second is None or first[1] is second[1]:
        return
    for name in dict.fromkeys((*first[1], *second[1])):
        sides = [repr(metadata[name]) if name in metadata else "nothing" for metadata in (first[1], second[1])]
        if sides[0] != sides[1] or first[1][name] != second[1][name]:
            yield "metadata", f"{name}: {sides[0]} -> {sides[1]}"


def _value_changes(first: Any, second: Any) -> Iterator[tuple[What, str]]:
    structures: list[Any] = [jax.tree.structure(x) for x in (first, second)]
    if structures[0] != structures[1]:
        yield "nesting", f"{structures[0]} -> {structures[1]}"
        return
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        shapes = np.shape(a), np.shape(b)
        if shapes[0] != shapes[1]:
            yield "shape", f"{shapes[0]} -> {shapes[1]}"
        dtypes = getattr(a, "dtype", None), getattr(b, "dtype", None)
        if dtypes[0] != dtypes[1]:
            names = [describe(x) if dtype is None else str(dtype) for x, dtype in zip((a, b), dtypes, strict=True)]
            yield "dtype", f"{names[0]} -> {names[1]}"
        elif shapes[0] == shapes[1] and not same_leaf(a, b):
            yield "value", _difference(a, b)


def _difference(a: Any, b: Any) -> str:
    """How far two unequal values of one shape and dtype are apart."""
    if not (isinstance(a, _ARRAYS) and isinstance(b, _ARRAYS)):
        return f"{value_text(a)} -> {value_text(b)}"
    if a.size == 1 and isinstance(a.dtype, np.dtype):
        return f"{a.item()!r} -> {b.item()!r}"
    count = f"{int((a != b).sum()):,} of {a.size:,} elements differ"
    if not jnp.issubdtype(a.dtype, jnp.inexact):
        return count
    return f"{count}, by at most {float(abs(jnp.asarray(a) - jnp.asarray(b)).max()):.3g}"


def _described(leaf: Any, leaf_def: LeafDef) -> str:
    text = describe(leaf)
    return text if leaf_def is None else f"{type_name(leaf_def[0])} with {text}"
