"""Copies of the arrays of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from operator import attrgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from declax._nodes import is_ref
from declax._values import check_depth
from declax.errors import format_path
from declax.graph.flattening import GraphDef
from declax.states import State, like

CHUNK = 256
"""How many arrays one program copies; a longer one takes longer to compile than it saves."""

_aval = attrgetter("aval")
_sharding = attrgetter("sharding")
_is_committed = attrgetter("committed")
_is_concrete: dict[type, bool] = {}


def copy_leaves(leaves: Sequence[Any], graphdef: GraphDef[Any]) -> list[Any]:
    """Leaves that own their arrays.

    One compiled program copies many arrays at a tenth of the cost of copying
    each by itself. It has to be compiled, so that a graph whose arrays are
    copied for the first time, or have other shapes than last time, goes without.
    """
    copied = list(leaves)
    if all(map(_is_array_class, set(map(type, copied)))):
        return _copy_arrays(copied, graphdef)
    places = [place for place, leaf in enumerate(leaves) if _is_array_class(type(leaf))]
    made = _copy_arrays([copied[place] for place in places], graphdef)
    for place, array in zip(places, made, strict=True):
        copied[place] = array
    refs: dict[int, Any] = {}
    paths = graphdef.definition.paths if len(copied) == graphdef.num_leaves else None
    for place in set(range(len(copied))).difference(places):
        check_depth(copied[place], f"leaf {place}" if paths is None else format_path(paths[place]))
        copied[place] = jax.tree.map(lambda leaf: _copy_other(leaf, refs), copied[place])
    return copied


def _is_array_class(cls: type) -> bool:
    """Whether instances of a class are arrays of JAX that have a buffer."""
    found = _is_concrete.get(cls)
    if found is None:
        found = _is_concrete[cls] = issubclass(cls, jax.Array) and not issubclass(cls, Tracer)
    return found


def _copy_arrays(arrays: list[Any], graphdef: GraphDef[Any]) -> list[Any]:
    if len(arrays) < 2:
        return _copy_each(arrays)
    before, now = graphdef.copied, []
    copied: list[Any] = []
    for start in range(0, len(arrays), CHUNK):  # what is asked of an array and copying it, while it is in the cache
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


def copy_states(states: Any) -> Any:
    """A State, or a tuple of States, that owns its arrays."""
    refs: dict[int, Any] = {}

    def copied(state: State[Any]) -> State[Any]:
        return like(state, jax.tree.map(lambda leaf: _copy_other(leaf, refs), state.leaves))

    return tuple(map(copied, states)) if isinstance(states, tuple) else copied(states)


def _copy_other(leaf: Any, refs: dict[int, Any]) -> Any:
    """A copy of what is no array of JAX by itself; one ref stays one."""
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    if is_ref(leaf):
        if id(leaf) not in refs:
            is_abstract = isinstance(leaf, jax.ShapeDtypeStruct)
            refs[id(leaf)] = copy(leaf) if is_abstract else jax.new_ref(leaf[...])
        return refs[id(leaf)]
    return jax.device_put(leaf, may_alias=False) if _is_array_class(type(leaf)) else leaf
