"""The shardings that models keep while a compiled function sets their Variables.

XLA chooses where a result is. A program whose arguments lie on a mesh gives each new value of a Variable the sharding
with which the Variable came, so that the next call finds what it was compiled for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeGuard

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from declax import _jax
from declax._state.definition import StateDef
from declax._variables.metadata import EMPTY
from declax._variables.placement import (
    SplitBatch,
    check_splits,
    declared_sharding,
    is_in_host_memory,
    is_on_host,
    make_spec,
    mesh_of_arguments,
    mesh_of_sharding,
    names_of_entry,
    put,
)
from declax.transforms._engine.call import Call, named_leaves
from declax.transforms._engine.outcome import UNCHANGED, Outcome, origins_of_new
from declax.transforms._engine.placement import place, shardings_of
from declax.transforms._engine.prefixes import OutputGroups
from declax.transforms._engine.refusals import check_result_spec
from declax.transforms._engine.structure import Structure

Held: TypeAlias = "tuple[Sharding | None, ...] | None"
"""The sharding that each leaf of a graph keeps; None where the call is on no mesh."""


def shardings_of_arrays(values: Iterable[Any]) -> tuple[Sharding | None, ...]:
    """Where arrays are; None for what is no array."""
    return tuple([getattr(value, "sharding", None) for value in values])


def all_committed(values: Iterable[Any]) -> bool:
    """Whether JAX has committed all of some arrays to devices."""
    return all(getattr(value, "committed", True) for value in values)


def held_shardings(call: Call, mesh: Mesh) -> Held:
    """The sharding that each leaf of a call's models keeps, on the mesh of the call; None without models.

    An array that JAX has not committed to devices takes that of its declared names on the mesh, or is replicated there.
    """
    definition = call.structure.graphdef.definition
    return tuple([_held(value, i, definition, mesh) for i, value in enumerate(call.values)]) or None


def without_labels(held: Sequence[Sharding | None], labels: Sequence[Any]) -> tuple[Sharding | None, ...]:
    """The shardings that leaves keep, but for those that have a label from the user."""
    given = labels[: len(held)] or [None] * len(held)
    return tuple([sharding if label is None else None for sharding, label in zip(held, given, strict=True)])


def put_uncommitted(call: Call, held: Sequence[Sharding | None], positions: Iterable[int]) -> None:
    """Puts arrays of a call's models where they will be after it, so that the next call finds the same program."""
    targets: dict[int, Sharding] = {}
    for position in positions:
        value, sharding = call.values[position], held[position]
        if sharding is not None and not value.committed:
            targets[position] = sharding
    if targets:
        place(call.binding, targets)
        call.values = list(call.binding.values() or call.values)


def put_labelled(call: Call, labels: Sequence[Any], mesh: Mesh) -> None:
    """Puts arrays of a call's models where the user's shardings say, which is where they are after the call.

    Raises:
      TransformError: a label cannot split its leaf.
    """
    check_splits(named_leaves(call), labels, mesh)
    targets: list[Sharding | None] = [None] * len(call.values)
    for position, sharding in shardings_of(call.structure, labels, mesh).items():
        value = call.values[position]
        if _is_placed_array(value) and is_in_host_memory(sharding) == is_on_host(value):  # JAX refuses others
            targets[position] = sharding
    put_uncommitted(call, targets, range(len(targets)))


def specs_on(mesh: Mesh, call: Call, labels: Sequence[Any], groups: OutputGroups) -> tuple[Sequence[Any], OutputGroups]:
    """The labels of a call's leaves, and the groups of its results, with specs on a mesh.

    Raises:
      TransformError: a spec does not fit its leaf or the mesh.
    """
    check_splits(named_leaves(call), labels, mesh)
    for label in groups.known:
        if isinstance(label, PartitionSpec):
            check_result_spec(label, mesh)
    return [_on(mesh, label) for label in labels], OutputGroups([_on(mesh, label) for label in groups.known])


def with_results_on(mesh: Mesh, function: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """A lifted function whose plan has, for specs of results, their shardings on a mesh."""

    @functools.wraps(function)
    def run(*leaves: Any) -> Outcome:
        outcome = function(*leaves)
        if outcome.plan is not UNCHANGED:
            outcome.plan.labels = [_on(mesh, label) for label in outcome.plan.labels]
        return outcome

    return run


def _on(mesh: Mesh, label: Any) -> Any:
    return NamedSharding(mesh, label) if isinstance(label, PartitionSpec) else label


def mesh_of(leaves: Iterable[Any]) -> Mesh | None:
    """The first mesh of several devices on which an argument lies."""
    for sharding in shardings_of_arrays(leaves):
        if type(sharding) is NamedSharding and (mesh := mesh_of_sharding(sharding)) is not None:
            return mesh
    return None


def split_batch(call: Call, mesh: Mesh, labels: Sequence[Any]) -> SplitBatch:
    """The mesh of a call, and the axes that split the first dimension of an argument in no model."""
    places = [*labels[len(call.values) :], *shardings_of_arrays(call.plain)]
    specs = (place.spec if isinstance(place, NamedSharding) else place for place in places)
    axes = (
        names_of_entry(spec[0]) for spec in specs if isinstance(spec, PartitionSpec) and spec and spec[0] is not None
    )
    return SplitBatch(mesh, next(axes, ()))


def _is_placed_array(value: Any) -> TypeGuard[jax.Array]:
    return isinstance(value, jax.Array) and not isinstance(value, (Tracer, jax.Ref))


def _held(value: Any, position: int, definition: StateDef, mesh: Mesh) -> Sharding | None:
    if not _is_placed_array(value):
        return None
    if value.committed:
        return value.sharding
    leaf_def = definition.leaf_defs[position]
    metadata = EMPTY if leaf_def is None else leaf_def[1]
    if metadata.axes is None:
        return NamedSharding(mesh, make_spec())
    return declared_sharding("the call", metadata, value.shape, mesh)[0]


def on_mesh(function: Callable[..., Outcome], batch: SplitBatch) -> Callable[..., Outcome]:
    """A lifted function in which declared names of axes are those of a mesh while it is traced."""

    @functools.wraps(function)
    def run(*leaves: Any) -> Outcome:
        with mesh_of_arguments(batch):
            return function(*leaves)

    return run


def holding(
    function: Callable[..., Outcome], structure: Structure, held: Sequence[Sharding | None]
) -> Callable[..., Outcome]:
    """A lifted function whose plan has, as labels of new values, the shardings that these keep.

    A value that the user has put somewhere has none, nor has one of another shape. Labels that are given win.
    """

    @functools.wraps(function)
    def hold(*leaves: Any) -> Outcome:
        outcome = function(*leaves)
        plan = outcome.plan
        if plan is not UNCHANGED:
            outcome.new = [*map(_constrained, outcome.new)]
            kept = [
                _kept(value, origin, held, leaves)
                for value, origin in zip(outcome.new, origins_of_new(structure, plan), strict=True)
            ]
            rest = len(jax.tree.leaves(outcome.output))
            given = plan.labels or [None] * (len(kept) + rest)
            plan.labels = [
                own if label is None else label for label, own in zip(given, [*kept, *[None] * rest], strict=True)
            ]
        return outcome

    return hold


def _constrained(new: Any) -> Any:
    """A new value that the user has moved, where it belongs: within one memory, XLA ignores `jax.device_put`."""
    to = _jax.moved_to(new)
    return put(new, to) if isinstance(to, NamedSharding) and not (is_in_host_memory(to) or is_on_host(new)) else new


def _kept(new: Any, origin: int | None, held: Sequence[Sharding | None], leaves: Sequence[Any]) -> Sharding | None:
    """The sharding of the leaf that a new value replaces; None if the value goes elsewhere."""
    if origin is None or held[origin] is None or _jax.is_placed(new):
        return None
    return held[origin] if jnp.shape(new) == jnp.shape(leaves[origin]) else None
