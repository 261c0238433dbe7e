"""Arrays of arguments that a transform moves to where its shardings say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from declax._graph.binding import Binding
from declax._tree.epoch import committing
from declax.transforms._engine.commit import write
from declax.transforms._engine.structure import Structure


def shardings_of(structure: Structure, labels: Sequence[Any], mesh: object) -> dict[int, Sharding]:
    """The shardings of the leaves of models that are arguments, by position, from their labels; mesh is for specs."""
    captured = structure.tree.children()[2].num_leaves
    passed = len(structure.is_root) - captured
    found: dict[int, Sharding] = {}
    for position, (label, root) in enumerate(zip(labels, structure.leaf_roots(), strict=False)):  # plain leaves follow
        if root < passed and isinstance(label, Sharding):
            found[position] = label
        elif root < passed and isinstance(label, PartitionSpec) and isinstance(mesh, Mesh) and not mesh.empty:
            found[position] = NamedSharding(mesh, label)
    return found


def place(binding: Binding, shardings: Mapping[int, Sharding]) -> None:
    """Moves the arrays of models that are elsewhere, but none that another thread sets meanwhile."""
    read = binding.values() if binding.is_valid() else None
    if read is None:
        return
    moved = {
        position: jax.device_put(read[position], sharding)
        for position, sharding in shardings.items()
        if is_elsewhere(read[position], sharding)
    }
    if not moved:
        return
    with committing:
        if binding.is_valid():
            now = binding.read()
            kept = tuple(position for position in moved if now[position] is read[position])
            write(binding, kept, [moved[position] for position in kept])


def is_elsewhere(value: Any, sharding: Sharding) -> bool:
    """Whether an array is elsewhere than a sharding says."""
    if not isinstance(value, jax.Array) or isinstance(value, Tracer) or value.is_deleted():
        return False
    held = value.sharding  # on one device, all shardings are equivalent
    return held is not sharding and (
        type(held) is not type(sharding) or not held.is_equivalent_to(sharding, value.ndim)
    )
