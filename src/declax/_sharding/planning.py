"""`plan`: from declared names, rules and strategies to a plan."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from declax._classes.pytree import Pytree
from declax._filters import as_written
from declax._graph.api import state as state_of
from declax._graph.nodes import plain_key
from declax._random.streams import Rngs
from declax._sharding.declared import Shardings, labels_of, names_of_leaves, resolve_leaves, unused_rules
from declax._sharding.memory_kinds import MemoryKinds
from declax._sharding.plan_entries import DEVICE, PlanEntry, count_of, without_rest
from declax._sharding.plans import Plan, abstract_mesh
from declax._sharding.whole import Whole, warn_of_whole
from declax._state.definition import LeafDef
from declax._text.folding import Line
from declax._typing import Path
from declax._variables.metadata import EMPTY
from declax._variables.placement import (
    AnyMesh,
    AxisRules,
    context_mesh,
    declared_names,
    is_in_host_memory,
    names_of_entry,
    report,
    rules_of,
    sharding_rules,
    sizes_of,
)
from declax.errors import ShardingError, describe, format_path, shortened
from declax.transforms._engine.prefixes import StateSharding
from declax.transforms.abstract import eval_shape

_FILTER_WIDTH = 60
MIN_SIZE = 4096
"""The number of elements from which on an array that is whole is worth a warning."""

Held = Callable[[Path, Any], NamedSharding | None]
"""Where an array at a path is, if that decides."""


def plan(
    model: Any,
    mesh: AnyMesh | Mapping[str, int] | None = None,
    strategy: Shardings = None,
    *,
    rules: AxisRules | None = None,
    memory: Mapping[Any, str] | None = None,
) -> Plan:
    """The plan of a model on a mesh: where each array is, why, and its bytes on each device. No device is needed.

    Args:
      model: a model, an optimizer, or a container of these, such as ``{"model": model, "optimizer": optimizer}``; may
        be abstract, or a Spec.
      mesh: the devices, or the sizes of the axes by name; None for the mesh of `jax.set_mesh`, or else that of the
        arrays.
      strategy: where arrays belong: a function of the model, such as `fsdp`; a `StateSharding`, or a plan. None for
        where they are, if that is such a mesh, or else where their Variables declare.
      rules: as for `sharding_rules`; None for the rules of the context.
      memory: for some filters the kind of memory that holds their Variables, such as
        ``{dx.OptVariable: "pinned_host"}``; the first match decides. Others are where the strategy says.

    Returns:
      The plan. Print it, or give it to `init_sharded`, `load` and `jit`.

    Raises:
      ShardingError: there is no mesh, or no array; declared names or a plan do not fit the mesh; a rule is a near miss
        of a declared name; or `memory` has a filter that selects nothing, or a kind that the devices do not have.

    Warns:
      ReplicationWarning: declared names split some arrays, and large ones that are whole on each device have more than
        a tenth of the bytes.

    >>> import declax as dx
    >>> model = dx.eval_shape(lambda: dx.Linear(512, 512, rngs=dx.Rngs(0)))
    >>> found = dx.plan(model, {"data": 64, "model": 4}, dx.fsdp)
    >>> found["kernel"].spec, found["kernel"].nbytes, found["bias"].reason
    (P('data',), 16384, 'replicated: fewer than 4096 elements')
    """
    model = _shapes(model)
    devices = _mesh(model, mesh)
    with contextlib.nullcontext() if rules is None else sharding_rules(rules):
        labels = labels_of("plan", strategy, model, devices)
        kinds = None if memory is None else MemoryKinds(memory, devices)
        rows = rows_of("plan", model, devices, labels, lambda path, array: own_sharding(array, devices), kinds)
        unused = unused_rules(names_of_leaves(state_of(model).definition))
    if not rows:
        raise ShardingError(
            "plan",
            "this has no arrays",
            expected="a model, an optimizer, a container of these, or a Spec",
            got=describe(model),
            fix="dx.plan(dx.eval_shape(lambda: Model(rngs=dx.Rngs(0))), mesh)",
        )
    if kinds is not None:
        kinds.check_all_select()
    made = Plan([entry for entry, _ in rows], devices, unused, () if labels is None else labels.batch_axes)
    if labels is None or labels.reasons is None:  # `fsdp` has warned
        _warn_of_replicated(made)
    return made


def _warn_of_replicated(made: Plan) -> None:
    """Warns of large arrays that are whole, if others are split: a model whose arrays are all whole is meant to be."""
    if len(made.replicated) == len(made):
        return
    large = [
        Line(entry.path, Whole(entry.shape_text, entry.whole, entry.shape))
        for entry in made.entries
        if entry.is_whole and math.prod(entry.shape) >= MIN_SIZE
    ]
    warn_of_whole("plan", "while others are split", large, made.whole, max(sizes_of(made.mesh).values()))


def _shapes(model: Any) -> Any:
    """The model; that of a Spec, without arrays; and the items of a checkpoint as a dict."""
    build = None if isinstance(model, Pytree) else getattr(model, "build", None)
    if build is not None:
        return eval_shape(lambda: build(rngs=Rngs(0)), graph=True)
    return dict(model) if isinstance(model, dict) else model


def _mesh(model: Any, mesh: AnyMesh | Mapping[str, int] | None) -> AnyMesh:
    """The mesh that was given, that of the context, or that of the arrays."""
    if mesh is not None:
        return mesh if isinstance(mesh, (Mesh, AbstractMesh)) else abstract_mesh(mesh)
    found = context_mesh() or mesh_of_arrays(model)
    if found is None:
        raise ShardingError(
            "plan",
            "there is no mesh",
            expected="mesh=, a call under jax.set_mesh, or arrays on a mesh",
            got="None",
            fix='dx.plan(model, {"data": 64, "model": 4})',
        )
    return found


def mesh_of_arrays(model: Any) -> AnyMesh | None:
    """The first mesh on which an array of a model is."""
    shardings = (getattr(array, "sharding", None) for array in jax.tree.leaves(state_of(model).leaves))
    return next((sharding.mesh for sharding in shardings if isinstance(sharding, NamedSharding)), None)


def own_sharding(array: Any, mesh: AnyMesh) -> NamedSharding | None:
    """Where an array is, if that is a mesh of these sizes."""
    sharding = getattr(array, "sharding", None)
    is_there = isinstance(sharding, NamedSharding) and sizes_of(sharding.mesh) == sizes_of(mesh)
    return sharding if is_there else None


def rows_of(
    where: str,
    model: Any,
    mesh: AnyMesh,
    labels: StateSharding | None,
    held: Held,
    memory: MemoryKinds | None = None,
) -> list[tuple[PlanEntry, Any]]:
    """An entry for each array of a model, and the Variable that holds it.

    Without labels, an array for which `held` gives a sharding has that one.

    Raises:
      ShardingError: what does not fit the mesh, with paths and dimensions.
    """
    state = state_of(model)
    there = held if labels is None else lambda path, array: None
    places, misfits = resolve_leaves(where, state.definition, state.leaves, mesh, labels, there)
    report(where, misfits, mesh)
    texts: dict[str, list[str]] = {}
    for misfit in misfits:
        texts.setdefault(misfit.where, []).append(misfit.text)
    rows: list[tuple[PlanEntry, Any]] = []
    for (path, variable), leaf_def, tree in zip(state._read_pairs(), state.definition.leaf_defs, places, strict=True):
        arrays, _ = jax.tree_util.tree_flatten_with_path(getattr(variable, "raw_value", variable))
        for (keys, array), sharding in zip(arrays, jax.tree.leaves(tree), strict=True):
            if not hasattr(array, "dtype"):
                continue
            reason = "placed" if there(path, array) else _reason(path, leaf_def, variable, labels, texts)
            if not any(map(names_of_entry, sharding.spec)) and not reason.startswith(("placed", "replicated")):
                reason = f"replicated: {reason}"
            entry = entry_of((*path, *map(plain_key, keys)), array, sharding, reason)
            if memory is not None:
                entry = replace(entry, memory_kind=memory.kind_of(path, variable, entry.memory_kind))
            rows.append((entry, variable))
    return rows


def entry_of(path: Path, array: Any, sharding: NamedSharding, reason: str) -> PlanEntry:
    """The entry of an array, or of its shape."""
    shape, spec = tuple(array.shape), without_rest(sharding.spec)
    whole = math.prod(shape) * int(array.dtype.itemsize)
    local = whole // count_of(spec, sizes_of(sharding.mesh))
    memory = str(sharding.memory_kind) if is_in_host_memory(sharding) else DEVICE
    return PlanEntry(path, shape, str(array.dtype), spec, local, whole, memory, reason)


def _reason(
    path: Path, leaf_def: LeafDef, held: Any, labels: StateSharding | None, misfits: Mapping[str, Sequence[str]]
) -> str:
    """Why an array has its spec, unless it is there already."""
    where = format_path(path)
    if where in misfits:
        return "; ".join(misfits[where])
    if labels is not None:
        number = labels.number_of(path, held)
        if labels.reasons is None and number is not None:
            return f"strategy {shortened(as_written(labels.filters[number]), _FILTER_WIDTH)}"
        if labels.reasons is not None and path in labels.reasons:
            return labels.reasons[path]
    metadata = EMPTY if leaf_def is None else leaf_def[1]
    if metadata.axes is None:
        return "replicated: no names"
    rules = rules_of(metadata, where)
    used = {name: rules[name] for name in declared_names(metadata, where) if name in rules}
    return f"rule {', '.join(f'{name}={target}' for name, target in used.items())}" if used else "declared"
