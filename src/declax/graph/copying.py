"""Copies of the arrays of a graph.

Vocabulary
----------
own: a copy owns its arrays: donating those of the original leaves it alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import chain
from operator import attrgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from declax import _jax
from declax._nodes import is_ref
from declax.graph.defs import GraphDef

CHUNK = 256
"""How many arrays one program copies; a longer one takes longer to compile than it saves."""

_sharding = attrgetter("sharding")
_is_concrete: dict[type, bool] = {}


def copy_leaves(leaves: Sequence[Any], graphdef: GraphDef[Any]) -> list[Any]:
    """Leaves that own their arrays.

    One compiled program copies many arrays at a tenth of the cost of copying
    each by itself. It has to be compiled, so that a graph that is copied for the
    first time goes without.

    Args:
      leaves: of the graph, in its order.
      graphdef: the structure of the graph.
    """
    copied = list(leaves)
    places = [place for place, leaf in enumerate(leaves) if _is_array(leaf)]
    arrays = copied if len(places) == len(copied) else [copied[place] for place in places]
    made = _copy_arrays(arrays, is_repeated=graphdef.is_copied)
    graphdef.is_copied = True
    if arrays is copied:
        return made
    for place, array in zip(places, made, strict=True):
        copied[place] = array
    refs: dict[int, Any] = {}
    for place in set(range(len(copied))).difference(places):
        copied[place] = jax.tree.map(lambda leaf: _copy_other(leaf, refs), copied[place])
    return copied


def _is_array(leaf: object) -> bool:
    """Whether a leaf is an array of JAX that has a buffer."""
    found = _is_concrete.get(leaf.__class__)
    if found is None:
        found = _is_concrete[leaf.__class__] = isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer)
    return found


def _copy_arrays(arrays: list[Any], *, is_repeated: bool) -> list[Any]:
    if len(arrays) == 1 or not _share_a_device(arrays) or not (is_repeated or _jax.current_trace() is not _jax.TOP):
        copied: list[Any] = jax.device_put(arrays, may_alias=False)
        return copied
    chunks = [arrays[start : start + CHUNK] for start in range(0, len(arrays), CHUNK)]
    return list(chain.from_iterable(map(_copy_all, chunks)))


@jax.jit
def _copy_all(arrays: list[Any]) -> list[Any]:
    return [jnp.copy(array) for array in arrays]


def _share_a_device(arrays: list[Any]) -> bool:
    """Whether one program can copy all and leave each where it is: all on one device, in its default memory."""
    if jax.device_count() == 1 and jax.default_backend() == "cpu":
        return True
    shardings = list(map(_sharding, arrays))
    first = shardings[0] if shardings else None
    if not isinstance(first, jax.sharding.SingleDeviceSharding) or first.memory_kind not in (None, "device"):
        return False
    return all(sharding is first or sharding == first for sharding in shardings)


def _copy_other(leaf: Any, refs: dict[int, Any]) -> Any:
    """A copy of what is no array of JAX by itself; one ref stays one."""
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    if is_ref(leaf):
        if id(leaf) not in refs:
            is_abstract = isinstance(leaf, jax.ShapeDtypeStruct)
            refs[id(leaf)] = copy(leaf) if is_abstract else jax.new_ref(leaf[...])
        return refs[id(leaf)]
    return jax.device_put(leaf, may_alias=False) if _is_array(leaf) else leaf
