"""Shardings and meshes that JAX refuses, in the words of the user: those that fit no array, or not each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from declax._jax import TOP, current_trace
from declax._variables.placement import (
    AnyMesh,
    check_splits,
    context_mesh,
    is_committed,
    is_in_host_memory,
    is_on_host,
    make_spec,
    mesh_sizes,
    names_of_entry,
)
from declax.errors import DeclaxError, TransformError, describe
from declax.transforms._engine.call import Call, named_leaves
from declax.transforms._engine.names import names_of_call
from declax.transforms._engine.outcome import Plan, names_of_outputs
from declax.transforms._engine.placement import is_elsewhere
from declax.transforms._engine.structure import Structure


def check_results(structure: Structure, plan: Plan, leaves: Sequence[Any]) -> None:
    """Checks that `out_shardings` can split the results."""
    check_splits(zip(names_of_outputs(structure, plan), leaves, strict=True), plan.labels, context_mesh())


MOVE: Final = (
    "jax.device_put(x, sharding)        # a model: dx.update(model, jax.device_put(dx.state(model), sharding))"
)
"""The line that moves an array."""

MAX_DEVICES: Final = 16
"""So many devices of a mesh are listed."""

_OF_SEVERAL_MESHES: Final = re.compile(
    "incompatible devices|Mesh for all inputs should be equal|context mesh .* should match"
)


def explain_shardings(
    call: Call,
    labels: Sequence[Any],
    results: Sequence[Any],
    mesh: AnyMesh | None,
    error: BaseException,
    source: str = "jax.set_mesh",
) -> None:
    """Raises an error that names the leaf, if JAX refused a sharding of an argument or a mesh; or a spec of results.

    Args:
      call: whose arguments JAX refused.
      labels: of its leaves; empty where no shardings were given.
      results: the labels that its results may have.
      mesh: that of the context, or of the transform.
      error: that of JAX.
      source: what gave the mesh.

    Raises:
      TransformError: from the error of JAX.
    """
    if isinstance(error, DeclaxError) or not isinstance(error, Exception):
        return
    labels = labels or [None] * len(call.leaves)
    try:
        check_splits(named_leaves(call), labels, mesh)
        for label in results:
            if isinstance(label, PartitionSpec):
                check_result_spec(label, mesh)
        if "Memory kinds passed to jax.jit" in str(error):
            _check_memories(named_leaves(call), labels)
        if "does not match the sharding" in str(error):
            _check_places(named_leaves(call), labels, mesh)
        if _OF_SEVERAL_MESHES.search(str(error)):
            of_mesh = [] if mesh is None else [(f"the mesh of {source}", NamedSharding(mesh, make_spec()))]
            _check_meshes((*of_mesh, *_places(call, labels, results)))
    except TransformError as found:
        raise found from error


def _places(call: Call, labels: Sequence[Any], results: Sequence[Any]) -> Iterator[tuple[str, Sharding]]:
    """Where the leaves of a call are, or have to be by their labels, and its results."""
    for (where, value), label in zip(named_leaves(call), labels, strict=True):
        if isinstance(label, Sharding):
            yield where, label
        else:
            yield from ((where, leaf.sharding) for leaf in jax.tree.leaves(value) if is_committed(leaf))
    of_results = (label for label in results if isinstance(label, Sharding) and label not in labels)
    yield from (("out_shardings", label) for label in of_results)


def _check_meshes(places: Iterable[tuple[str, Sharding]]) -> None:
    """Checks that all places are of one mesh.

    Raises:
      TransformError: names the first leaves of each mesh.
    """
    found: dict[Any, tuple[Sharding, list[str]]] = {}
    for where, sharding in places:
        if not isinstance(getattr(sharding, "mesh", None), AbstractMesh):
            found.setdefault(_key_of_mesh(sharding), (sharding, []))[1].append(where)
    if len(found) < 2:
        return
    first, second, *_ = [names[0] for _, names in found.values()]
    raise TransformError(
        second,
        f"this is on another mesh than {first}",
        expected="the same devices in one order and, where axes are explicit, the same axes",
        got="\n".join(_described(names, sharding) for sharding, names in found.values()),
        fix=MOVE,
    )


def unless_elsewhere(function: Callable[..., Any], structure: Structure, labels: Sequence[Any]) -> Callable[..., Any]:
    """A compiled function that refuses arrays of other devices than their shardings: XLA crashes at a later call.

    Args:
      function: takes the leaves of a call.
      structure: of the call.
      labels: of the leaves.
    """
    checked: list[Any] = []

    def run(*leaves: Any) -> Any:
        nonlocal checked
        if current_trace() is TOP:
            held = [*map(getattr, leaves, repeat("sharding"), repeat(None))]
            if held != checked:
                for where, leaf, label in zip(names_of_call(structure), leaves, labels, strict=True):
                    is_here = not isinstance(label, NamedSharding) or not is_committed(leaf)
                    if not is_here and leaf.sharding.device_set != label.device_set:
                        _check_meshes([("in_shardings", label), (where, leaf.sharding)])
                checked = held
        return function(*leaves)

    return run


def _key_of_mesh(sharding: Sharding) -> tuple[tuple[Any, ...], object]:
    """The same for shardings that JAX takes in one call."""
    mesh = getattr(sharding, "mesh", None)
    is_explicit = isinstance(mesh, Mesh) and AxisType.Explicit in mesh.axis_types
    return _devices_of(sharding), mesh if is_explicit else None


def _devices_of(sharding: Sharding) -> tuple[Any, ...]:
    mesh = getattr(sharding, "mesh", None)
    return tuple(mesh.devices.flat) if isinstance(mesh, Mesh) else tuple(sharding.device_set)


def _described(names: Sequence[str], sharding: Sharding) -> str:
    """The first of some names, how many there are, and their mesh."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    ids = [str(device.id) for device in _devices_of(sharding)]
    shown = ", ".join([*ids[:MAX_DEVICES], "..."] if len(ids) > MAX_DEVICES else ids)
    mesh = getattr(sharding, "mesh", None)
    on = f"device {shown}" if mesh is None else f"{mesh} of the devices {shown}"
    return f"{names[0]}{more}: {on}"


def _check_places(leaves: Iterable[tuple[str, Any]], labels: Iterable[Any], mesh: AnyMesh | None) -> None:
    """Checks that arrays that are on a mesh are where `in_shardings` says, since JAX does not move these.

    Raises:
      TransformError: names the first that is elsewhere.
    """
    for (where, value), label in zip(leaves, labels, strict=True):
        wanted = NamedSharding(mesh, label) if isinstance(label, PartitionSpec) and mesh is not None else label
        if isinstance(wanted, Sharding) and is_committed(value) and is_elsewhere(value, wanted):
            raise TransformError(
                where,
                "this array is elsewhere on the mesh than in_shardings says",
                expected=f"{label!r}",
                got=f"{describe(value)}, split by {getattr(value.sharding, 'spec', value.sharding)!r}",
                why="JAX moves arguments that are not committed to devices, and no others",
                fix=MOVE,
            )


def _check_memories(leaves: Iterable[tuple[str, Any]], labels: Iterable[Any]) -> None:
    """Checks that arrays are in the memory that `in_shardings` says.

    Raises:
      TransformError: names the first that is not.
    """
    for (where, value), label in zip(leaves, labels, strict=True):
        if isinstance(value, jax.Array) and isinstance(label, (Sharding, PartitionSpec)):
            is_wanted = isinstance(label, Sharding) and is_in_host_memory(label)
            if is_wanted != is_on_host(value):
                planned = 'dx.plan(..., memory={dx.OptVariable: "pinned_host"})        # a plan of where the arrays are'
                raise TransformError(
                    where,
                    "this array is in another memory than in_shardings says",
                    expected=f"{label!r}",
                    got=f"{describe(value)}, in {value.sharding.memory_kind}",
                    why="JAX moves no argument to another memory",
                    fix=MOVE if is_wanted else planned,
                )


def check_result_spec(spec: PartitionSpec, mesh: AnyMesh | None) -> None:
    """Checks that there is a mesh with the axes of a spec of `out_shardings`; JAX does before it has the results.

    Raises:
      TransformError: there is none.
    """
    sizes = mesh_sizes("out_shardings", spec, mesh)
    unknown = sorted({name for entry in spec for name in names_of_entry(entry)} - sizes.keys())
    if unknown:
        raise TransformError(
            "out_shardings",
            f"{unknown[0]!r} of {spec!r} is not an axis of the mesh",
            expected="axes of the mesh",
            got=f"a mesh of {sizes}",
            fix=f"jax.P({next(iter(sizes), None)!r})",
        )
