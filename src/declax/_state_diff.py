"""How two States differ, leaf by leaf.

Vocabulary
----------
change: one thing that differs at one path: that only one State has it, or the
        kind, metadata, nesting, shape, dtype or value of the leaf.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
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


class _Alike(NamedTuple):
    """Two values of one shape and dtype, which may differ."""

    path: Path
    first: Any
    second: Any


def compare(first: tuple[Sequence[Any], StateDef], second: tuple[Sequence[Any], StateDef]) -> StateDiff:
    """How two States differ, given their leaves and definitions."""
    found = list(_changes(first, second))
    hosts = _fetched([value for x in found if isinstance(x, _Alike) for value in (x.first, x.second)])
    changes: list[LeafChange] = []
    with np.errstate(all="ignore"):  # infinities and NaNs differ as other values do
        for x in found:
            if isinstance(x, LeafChange):
                changes.append(x)
                continue
            detail = _value_detail(hosts.get(id(x.first), x.first), hosts.get(id(x.second), x.second))
            if detail is not None:
                changes.append(LeafChange(x.path, "value", detail))
    return StateDiff(tuple(changes))


FETCHED = 1 << 14
"""Up to how many elements an array is compared on the host; larger ones where they are."""


def _fetched(values: list[Any]) -> dict[int, np.ndarray]:
    """The small arrays among values on the host, by id: fetched together, since each device call costs more."""
    small = {id(x): x for x in values if isinstance(x, jax.Array) and _is_small(x)}
    if jax.default_backend() != "cpu":
        _fetch(small.values())
    return {key: np.asarray(x) for key, x in small.items()}


def _fetch(arrays: Iterable[jax.Array]) -> None:
    for x in arrays:
        x.copy_to_host_async()  # all are under way before the first is waited for


def _is_small(array: jax.Array) -> bool:
    if isinstance(array, Tracer) or not isinstance(array.dtype, np.dtype):  # keys have a dtype of their own
        return False
    return array.size <= FETCHED and array.is_fully_addressable


def same_states(first: tuple[Sequence[Any], StateDef], second: tuple[Sequence[Any], StateDef]) -> bool:
    """Whether two States have equal leaves at the same paths, in whatever order."""
    (leaves, definition), (others, other) = first, second
    if definition is not other:
        if len(definition.paths) != len(other.paths):
            return False
        places = {path: i for i, path in enumerate(other.paths)}
        order = [places.get(path) for path in definition.paths]
        kinds = zip(definition.leaf_defs, order, strict=True)
        if not all(i is not None and other.leaf_defs[i] == leaf_def for leaf_def, i in kinds):
            return False
        others = [others[i] for i in order if i is not None]
    pairs = [(a, b) for a, b in zip(leaves, others, strict=True) if a is not b]
    if pairs and jax.default_backend() != "cpu":
        arrays = [(a, b) for a, b in pairs if isinstance(a, _ARRAYS) and isinstance(b, _ARRAYS)]
        if any(a.shape != b.shape for a, b in arrays):
            return False  # before anything is fetched
        _fetch([x for pair in arrays for x in pair if isinstance(x, jax.Array) and _is_small(x)])
    return all(same_leaf(a, b) for a, b in pairs)


def _same_arrays(a: Any, b: Any) -> bool:
    """Whether two arrays are equal; small ones are compared on the host, at a fifth of the cost."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.size <= FETCHED and isinstance(a.dtype, np.dtype) and _is_readable(a) and _is_readable(b):
        return bool((np.asarray(a) == np.asarray(b)).all())
    return _display.same_value(a, b)


def _is_readable(array: Any) -> bool:
    return isinstance(array, np.ndarray) or (not isinstance(array, Tracer) and array.is_fully_addressable)


def same_leaf(a: Any, b: Any) -> bool:
    """Whether two leaves are equal; arrays by value, whatever they are nested in."""
    if a is b:
        return True
    if not (isinstance(a, _CONTAINERS) or isinstance(b, _CONTAINERS)):
        return _same_values(a, b)
    (leaves, structure), (others, other) = _taken_apart(a), _taken_apart(b)
    return bool(structure == other) and all(x is y or _same_values(x, y) for x, y in zip(leaves, others, strict=True))


def _same_values(a: Any, b: Any) -> bool:
    are_arrays = isinstance(a, _ARRAYS) and isinstance(b, _ARRAYS)
    return _same_arrays(a, b) if are_arrays else _display.same_value(a, b)


_CONTAINERS = (dict, list, tuple)
_ARRAYS = (jax.Array, np.ndarray)


def _taken_apart(value: Any) -> tuple[list[Any], Any]:
    return jax.tree.flatten(value)


def _changes(
    first: tuple[Sequence[Any], StateDef], second: tuple[Sequence[Any], StateDef]
) -> Iterator[LeafChange | _Alike]:
    (leaves, definition), (others, other) = first, second
    places = {path: i for i, path in enumerate(other.paths)}
    for path, leaf, leaf_def in zip(definition.paths, leaves, definition.leaf_defs, strict=True):
        place = places.pop(path, None)
        if place is None:
            yield LeafChange(path, "only in first", _described(leaf, leaf_def))
            continue
        yield from _kind_changes(path, leaf_def, other.leaf_defs[place])
        yield from _value_changes(path, leaf, others[place])
    for path, place in places.items():
        yield LeafChange(path, "only in second", _described(others[place], other.leaf_defs[place]))


def _kind_changes(path: Path, first: LeafDef, second: LeafDef) -> Iterator[LeafChange]:
    kinds = [None if leaf_def is None else leaf_def[0] for leaf_def in (first, second)]
    if kinds[0] is not kinds[1]:
        names = ["no Variable" if kind is None else type_name(kind) for kind in kinds]
        yield LeafChange(path, "kind", f"{names[0]} -> {names[1]}")
    if first is None or second is None or first[1] is second[1]:
        return
    before, after = first[1], second[1]
    for name in dict.fromkeys((*before, *after)):
        sides = [repr(metadata[name]) if name in metadata else "nothing" for metadata in (before, after)]
        if name not in before or name not in after or sides[0] != sides[1] or before[name] != after[name]:
            yield LeafChange(path, "metadata", f"{name}: {sides[0]} -> {sides[1]}")


def _value_changes(path: Path, first: Any, second: Any) -> Iterator[LeafChange | _Alike]:
    if first is second:
        return
    (leaves, structure), (others, other) = _taken_apart(first), _taken_apart(second)
    if structure != other:
        yield LeafChange(path, "nesting", f"{structure} -> {other}")
        return
    for a, b in zip(leaves, others, strict=True):
        shapes = np.shape(a), np.shape(b)
        if shapes[0] != shapes[1]:
            yield LeafChange(path, "shape", f"{shapes[0]} -> {shapes[1]}")
        dtypes = getattr(a, "dtype", None), getattr(b, "dtype", None)
        if dtypes[0] != dtypes[1]:
            names = [describe(x) if dtype is None else str(dtype) for x, dtype in zip((a, b), dtypes, strict=True)]
            yield LeafChange(path, "dtype", f"{names[0]} -> {names[1]}")
        elif a is not b and shapes[0] == shapes[1]:
            yield _Alike(path, a, b)


def _value_detail(a: Any, b: Any) -> str | None:
    """How far two values of one shape and dtype are apart; None where they are equal."""
    if not isinstance(a, (jax.Array, np.ndarray)) or not isinstance(b, (jax.Array, np.ndarray)):
        return None if same_leaf(a, b) else f"{value_text(a)} -> {value_text(b)}"
    differing = int((a != b).sum())
    if not differing:
        return None
    if a.size == 1 and not jnp.issubdtype(a.dtype, jax.dtypes.extended):
        return f"{np.asarray(a).item()!r} -> {np.asarray(b).item()!r}"
    count = f"{differing:,} of {a.size:,} elements differ"
    if not jnp.issubdtype(a.dtype, jnp.inexact):
        return count
    if a.dtype.itemsize < 4:
        a, b = a.astype(np.float32), b.astype(np.float32)
    return f"{count}, by at most {float(abs(a - b).max()):.3g}"


def _described(leaf: Any, leaf_def: LeafDef) -> str:
    text = describe(leaf)
    return text if leaf_def is None else f"{type_name(leaf_def[0])} with {text}"
