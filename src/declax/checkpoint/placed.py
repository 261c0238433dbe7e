"""The plan that a checkpoint keeps: where the arrays were when they were saved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from declax._sharding.planning import entry_of, own_sharding
from declax._sharding.plans import Plan
from declax._variables.placement import make_spec
from declax.checkpoint.items import Item


def plan_of_items(items: Sequence[Item]) -> Plan | None:
    """Where the arrays of items are, by the name of the item and their path; None if they are on one device."""
    arrays = [
        ((item.name, *leaf.path), leaf.value)
        for item in items
        for leaf in item.leaves.values()
        if isinstance(leaf.value, jax.Array)
    ]
    shardings = (array.sharding for _, array in arrays)
    meshes = (found.mesh for found in shardings if isinstance(found, NamedSharding) and found.num_devices > 1)
    mesh = next(meshes, None)
    if mesh is None:
        return None
    entries = []
    for path, array in arrays:
        own = own_sharding(array, mesh)
        reason = "placed" if own else "replicated: not on the mesh"
        entries.append(entry_of(path, array, own or NamedSharding(mesh, make_spec()), reason))
    return Plan(entries, mesh)


def table_of_items(items: Sequence[Item]) -> dict[str, Any] | None:
    """The same as data of JSON."""
    found = plan_of_items(items)
    return None if found is None else found.to_table()
