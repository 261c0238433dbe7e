"""Copies of the arrays of a graph, and which graphs the arrays of a State belong to."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from copy import copy
from operator import attrgetter
from typing import Any
from weakref import ref

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from declax._graph.cells import Cell
from declax._graph.flattening import GraphDef
from declax._graph.nodes import is_ref
from declax._state.states import Owners
from declax._tree.statuses import check_depth
from declax._typing import Path
from declax._variables.donation import check_alive
from declax._variables.variable import Variable
from declax.errors import format_path

CHUNK = 256
"""How many arrays one program copies; a larger one takes longer to compile than it saves."""

_aval = attrgetter("aval")
_sharding = attrgetter("sharding")
_is_committed = attrgetter("committed")


def copy_leaves(leaves: Sequence[Any], graphdef: GraphDef[Any], paths: Sequence[Path], of: str) -> list[Any]:
    """Leaves that own their arrays.

    One compiled program copies many arrays at a tenth of the cost. It takes
    time to compile, so it is used from the second copy of the same shapes on.

    Args:
      leaves: the values.
      graphdef: the graph that has these leaves, or most of them.
      paths: of the leaves.
      of: what has them, in words.

    Raises:
      GraphError: an array was deleted.
    """
    try:
        return _copied(leaves, graphdef, paths)
    except RuntimeError:  # of JAX
        for path, leaf in zip(paths, leaves, strict=True):
            check_alive(f"{of}, {format_path(path)}", leaf)
        raise


def _copied(leaves: Sequence[Any], graphdef: GraphDef[Any], paths: Sequence[Path]) -> list[Any]:
    copied = list(leaves)
    if all(map(_is_array_class, set(map(type, copied)))):
        return _copy_arrays(copied, graphdef)
    places = [place for place, leaf in enumerate(leaves) if _is_array_class(leaf.__class__)]
    made = _copy_arrays([copied[place] for place in places], graphdef)
    for place, array in zip(places, made, strict=True):
        copied[place] = array
    refs: dict[int, Any] = {}
    for place in set(range(len(copied))).difference(places):
        check_depth(copied[place], format_path(paths[place]))
        copied[place] = jax.tree.map(lambda leaf: _copy_other(leaf, refs), copied[place])
    return copied


def copy_mutable(leaves: list[Any]) -> list[Any]:
    """The leaves, of which those that can be written to in place are copies: refs and arrays of NumPy."""
    refs: dict[int, Any] = {}
    copied: list[Any] = jax.tree.map(
        lambda leaf: leaf if _is_array_class(leaf.__class__) else _copy_other(leaf, refs), leaves
    )
    return copied


@functools.cache
def _is_array_class(cls: type) -> bool:
    """Whether instances of a class are arrays with a buffer."""
    return issubclass(cls, jax.Array) and not issubclass(cls, Tracer)


def _copy_arrays(arrays: list[Any], graphdef: GraphDef[Any]) -> list[Any]:
    if len(arrays) < 2:
        return _copy_each(arrays)
    before, now = graphdef.copied, []
    copied: list[Any] = []
    for start in range(0, len(arrays), CHUNK):  # so that they stay in the processor's cache
        chunk = arrays[start : start + CHUNK]
        avals = list(map(_aval, chunk))
        is_repeated = avals == before[start : start + CHUNK]
        now += avals
        copied += _copy_all(chunk) if is_repeated and _are_in_one_place(chunk) else _copy_each(chunk)
    graphdef.copied = now
    return copied


def _copy_each(arrays: list[Any]) -> list[Any]:
    copied: list[Any] = jax.device_put(arrays, may_alias=False)
    return copied


@jax.jit
def _copy_all(arrays: list[Any]) -> list[Any]:
    return [jnp.copy(array) for array in arrays]


def _are_in_one_place(arrays: list[Any]) -> bool:
    """Whether one program can copy all and leave each where it is: in the default memory of one device."""
    shardings = list(map(_sharding, arrays))
    if len(set(map(id, shardings))) > 1:  # most are one object, for each shape
        shardings = list({id(sharding): sharding for sharding in shardings}.values())
    first = shardings[0]
    if not isinstance(first, jax.sharding.SingleDeviceSharding) or any(other != first for other in shardings):
        return False
    device: Any = next(iter(first.device_set))
    if first.memory_kind not in (None, device.default_memory().kind):
        return False
    return jax.device_count() == 1 or len(set(map(_is_committed, arrays))) == 1


def _copy_other(leaf: Any, refs: dict[int, Any]) -> Any:
    """A copy of a leaf that is not an array with a buffer; a shared ref stays shared."""
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    if is_ref(leaf):
        if id(leaf) not in refs:
            is_abstract = isinstance(leaf, jax.ShapeDtypeStruct)
            refs[id(leaf)] = copy(leaf) if is_abstract else jax.new_ref(leaf[...])
        return refs[id(leaf)]
    return jax.device_put(leaf, may_alias=False) if _is_array_class(leaf.__class__) else leaf


# --- whose arrays they are ----------------------------------------------------------


def owners_of(cells: Iterable[Cell]) -> Owners:
    """What stands for the graph of these cells: one of its Variables."""
    for cell in cells:
        if isinstance(cell, Variable):
            return (ref(cell),)
    return ()


def are_of_others(owners: Owners, cells: Sequence[Cell]) -> bool:
    """Whether a graph other than that of these cells is alive and has the arrays too."""
    for weak in owners:
        owner = weak()
        if owner is None or (cells and owner is cells[0]):
            continue
        if all(cell is not owner for cell in cells):
            return True
    return False
