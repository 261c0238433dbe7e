"""Arrays of arguments, moved to where the shardings of a transform say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from declax._tree.epoch import committing
from declax.transforms._engine.lift import Call, write


def shardings_of(call: Call, labels: Sequence[Any], mesh: object) -> dict[int, Sharding]:
    """The shardings of the leaves of models that are arguments, by position, from their labels; mesh is for specs."""
    captured = call.structure.tree.children()[2].num_leaves
    passed = len(call.structure.is_root) - captured
    found: dict[int, Sharding] = {}
    for position, (label, root) in enumerate(zip(labels, call.leaf_roots(), strict=True)):
        if root < passed and isinstance(label, Sharding):
            found[position] = label
        elif root < passed and isinstance(label, PartitionSpec) and isinstance(mesh, Mesh) and not mesh.empty:
            found[position] = NamedSharding(mesh, label)
    return found


def place(call: Call, shardings: Mapping[int, Sharding]) -> None:
    """Moves the arrays that a call has read and not written; others already are where they belong."""
    binding = call.binding
    if binding is None or not binding.is_valid():
        return
    read, now = call.values, binding.read()
    moved = {
        position: jax.device_put(read[position], sharding)
        for position, sharding in shardings.items()
        if now[position] is read[position] and _is_elsewhere(read[position], sharding)
    }
    if not moved:
        return
    with committing:
        if binding.is_valid():
            now = binding.read()
            kept = tuple(position for position in moved if now[position] is call.values[position])
            write(binding, kept, [moved[position] for position in kept])


def _is_elsewhere(value: Any, sharding: Sharding) -> bool:
    if not isinstance(value, jax.Array) or isinstance(value, Tracer) or value.is_deleted():
        return False
    held = value.sharding  # on one device, all shardings are equivalent
    return held is not sharding and (
        type(held) is not type(sharding) or not held.is_equivalent_to(sharding, value.ndim)
    )
