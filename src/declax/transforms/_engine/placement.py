"""Shardings of a transform: those that fit no array, and arrays of arguments that are moved to where they say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from declax._tree.epoch import committing
from declax._variables.placement import AnyMesh, check_splits, context_mesh, is_committed, mesh_sizes, names_of_entry
from declax.errors import TransformError, describe
from declax.transforms._engine.lift import Call, Plan, write
from declax.transforms._engine.structure import Structure, named_leaves, names_of_outputs


def check_results(structure: Structure, plan: Plan, leaves: Sequence[Any]) -> None:
    """Checks that `out_shardings` can split the results."""
    assert plan.labels is not None  # the function has labels
    check_splits(zip(names_of_outputs(structure, plan), leaves, strict=True), plan.labels, context_mesh())


def explain_shardings(
    call: Call, labels: Sequence[Any], results: Sequence[Any], mesh: AnyMesh | None, error: Exception
) -> None:
    """Raises an error that names the leaf, if JAX refused a sharding of an argument; or a spec of results.

    Raises:
      TransformError: from the error of JAX.
    """
    try:
        check_splits(named_leaves(call), labels, mesh)
        for label in results:
            if isinstance(label, PartitionSpec):
                _check_result_spec(label, mesh)
        if "does not match the sharding" in str(error):
            _check_places(named_leaves(call), labels, mesh)
    except TransformError as found:
        raise found from error


def _check_places(leaves: Iterable[tuple[str, Any]], labels: Iterable[Any], mesh: AnyMesh | None) -> None:
    """Checks that arrays that are on a mesh are where `in_shardings` says, since JAX does not move these.

    Raises:
      TransformError: names the first that is elsewhere.
    """
    for (where, value), label in zip(leaves, labels, strict=True):
        wanted = NamedSharding(mesh, label) if isinstance(label, PartitionSpec) and mesh is not None else label
        if isinstance(wanted, Sharding) and is_committed(value) and _is_elsewhere(value, wanted):
            raise TransformError(
                where,
                "this array is elsewhere on the mesh than in_shardings says",
                expected=f"{label!r}",
                got=f"{describe(value)}, split by {getattr(value.sharding, 'spec', value.sharding)!r}",
                why="JAX moves arguments that are not committed to devices, and no others",
                fix="dx.update(model, jax.device_put(dx.state(model), sharding))        # or dx.get_named_sharding",
            )


def _check_result_spec(spec: PartitionSpec, mesh: AnyMesh | None) -> None:
    """Checks that there is a mesh with the axes of a spec of `out_shardings`; JAX does before it has the results.

    Raises:
      TransformError: there is none.
    """
    sizes = mesh_sizes("out_shardings", spec, mesh)
    unknown = sorted({name for entry in spec for name in names_of_entry(entry)} - sizes.keys())
    if unknown:
        raise TransformError(
            "out_shardings",
            f"{unknown[0]!r} of {spec!r} is no axis of the mesh",
            expected="axes of the mesh",
            got=f"a mesh of {sizes}",
            fix=f"jax.P({next(iter(sizes), None)!r})",
        )


def shardings_of(call: Call, labels: Sequence[Any], mesh: object) -> dict[int, Sharding]:
    """The shardings of the leaves of models that are arguments, by position, from their labels; mesh is for specs."""
    captured = call.structure.tree.children()[2].num_leaves
    passed = len(call.structure.is_root) - captured
    found: dict[int, Sharding] = {}
    for position, (label, root) in enumerate(zip(labels, call.leaf_roots(), strict=False)):  # plain leaves follow
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
