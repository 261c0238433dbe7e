"""Shardings by size: each large array is split along one of its dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax

from declax import errors
from declax._filters import PathIn
from declax._graph.api import state as state_of
from declax._graph.iteration import iter_graph
from declax._sharding.declared import shardings_of_leaves
from declax._sharding.plan_entries import FSDP
from declax._sharding.whole import Whole, warn_of_whole
from declax._state.states import State
from declax._text.arrays import measure, shape_text
from declax._text.folding import Line
from declax._typing import Path, Shape
from declax._variables.placement import (
    AnyMesh,
    checked_mesh,
    context_mesh,
    make_spec,
    names_of_entry,
    several,
    sizes_of,
)
from declax.nn.stacking import Stacked
from declax.training import OptState
from declax.transforms._engine.prefixes import StateSharding


def fsdp(
    model: Any, axis: str | tuple[str, ...] = "data", *, mesh: AnyMesh | None = None, min_size: int = 4096
) -> StateSharding:
    """The shardings of fully sharded data parallelism: each large array is split along the data axis too.

    An array keeps the mesh axes that it declares. Of the dimensions without one, the largest that the data axis divides
    is split; if there is none, a dimension that has a mesh axis gets the data axis as well. Small arrays stay as they
    are declared. The dimension of the layers of a `Stacked` is not split: its loop needs a layer in each step.

    Args:
      model: a model, an optimizer, or a container of these; may be abstract.
      axis: the mesh axis along which the batch is split, or several, as of slices and the devices in them.
      mesh: the devices; None for the mesh of `jax.set_mesh`.
      min_size: the number of elements from which on an array is split.

    Returns:
      Specs by path, for `jit` and `init_sharded`; with `mesh`, shardings on it.

    Raises:
      ShardingError: there is no mesh, it has no such axis, or declared names do not fit it.

    Warns:
      ReplicationWarning: large arrays that nothing splits have more than a tenth of the bytes; lists them, and the size
        that could be split.

    >>> import declax as dx
    >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    >>> with jax.set_mesh(mesh):
    ...     dx.fsdp(dx.Linear(64, 128, rngs=dx.Rngs(0))).shardings
    (P(None, 'data'), P())
    """
    devices = context_mesh() if mesh is None else checked_mesh("fsdp", mesh)
    if type(min_size) is not int:
        raise errors.ShardingError(
            "fsdp.min_size",
            "this is not a number of elements",
            expected="an int",
            got=errors.describe(min_size),
            fix="min_size=4096",
        )
    axes = several(axis)
    missing = None if devices is None else next((name for name in axes if name not in sizes_of(devices)), None)
    if devices is None or not axes or missing is not None:
        raise errors.ShardingError(
            "fsdp",
            "there is no mesh" if devices is None else f"the mesh has no axis {missing or axis!r}",
            expected="a mesh with the axis, given or of jax.set_mesh",
            got="None" if devices is None else repr(sizes_of(devices)),
            fix='with jax.set_mesh(jax.make_mesh((8,), ("data",))): dx.fsdp(model, axis="data")'
            if devices is None
            else _with_axis(next(iter(sizes_of(devices)), "data")),
        )
    state = state_of(model)
    paths: dict[Any, list[Path]] = {}
    reasons: dict[Path, str] = {}
    whole: list[Line[Whole]] = []
    stacked = _axes_of_stacks(model, state)
    sizes = sizes_of(devices)
    count = math.prod(sizes[name] for name in axes)
    declared = shardings_of_leaves("fsdp", state.definition, state.leaves, devices)
    for path, value, sharding in zip(state.paths, state.leaves, declared, strict=True):
        shape = getattr(value, "shape", ())
        entries = [*sharding.spec, *[None] * (len(shape) - len(sharding.spec))] if shape else []
        before, is_split = [*entries], any(map(names_of_entry, entries))
        if math.prod(shape) >= min_size:
            _split(entries, shape, axes, sizes, skipped := stacked(path, shape))
            if not any(map(names_of_entry, entries)):
                whole.append(Line(path, Whole(shape_text(value), measure(value)[1], shape[skipped:])))
                reasons[path] = f"replicated: no dimension is a multiple of {count}"
        elif not is_split:
            reasons[path] = f"replicated: fewer than {min_size} elements"
        if entries != before:
            reasons[path] = FSDP
        while entries and entries[-1] is None:
            entries.pop()
        paths.setdefault(make_spec(*entries), []).append(path)
    why = f"since none of their dimensions is a multiple of {count}, the size of {axis!r}"
    warn_of_whole("fsdp", why, whole, measure(state)[1], count)
    rest = make_spec()
    labels = {PathIn(*found): spec for spec, found in paths.items() if spec != rest} | {...: rest}
    return StateSharding(
        {f: spec if mesh is None else jax.NamedSharding(mesh, spec) for f, spec in labels.items()}, reasons, axes
    )


def _with_axis(name: str) -> str:
    """The calls with a mesh axis: as a function, and where a function takes it as a strategy."""
    return (
        f"dx.fsdp(model, axis={name!r})        # the axis along which the batch is split\n"
        f"dx.plan(model, mesh, lambda model: dx.fsdp(model, axis={name!r}))        # as a strategy"
    )


def _axes_of_stacks(model: Any, state: State[Any]) -> Callable[[Path, Shape], int]:
    """A function of a path and a shape: how many of the first dimensions are those of the layers of a `Stacked`.

    What mirrors an array of a stack, such as its moments, ends in the same path below the stack, and has its shape. An
    optimizer without its model has only paths: there, a name below ``layers`` is that of an array of all layers.
    """
    stacks = {path for path, node in iter_graph(model) if isinstance(node, Stacked)}
    known: dict[Path, int] = {}
    mirrored: dict[tuple[Path, Shape], int] = {}
    for path, leaf in zip(state.paths, state.leaves, strict=True):
        ends = [end for end in range(len(path)) if path[:end] in stacks and path[end] == "layers"]
        if ends:
            known[path] = len(ends)
            mirrored[path[ends[0] :], getattr(leaf, "shape", ())] = len(ends)
    kinds = [leaf_def[0] for leaf_def in state.definition.leaf_defs if leaf_def is not None]
    is_optimizer = bool(kinds) and all(issubclass(kind, OptState) for kind in kinds)

    def count(path: Path, shape: Shape) -> int:
        if is_optimizer:
            return sum(key == "layers" and isinstance(below, str) for key, below in pairwise(path))
        tails = ((path[start:], shape) for start in range(len(path)))
        return known[path] if path in known else next((mirrored[tail] for tail in tails if tail in mirrored), 0)

    return count


def _split(entries: list[Any], shape: Shape, axes: tuple[str, ...], sizes: dict[str, int], skipped: int) -> None:
    """Adds mesh axes to the largest dimension that they divide: one without a mesh axis, or else any.

    The first dimensions are skipped: those of the layers of a stack, of which each step of its loop needs one.
    """
    if any(name in axes for entry in entries for name in names_of_entry(entry)):
        return
    for is_free in (True, False):
        names = {
            d: (*names_of_entry(entry), *axes)
            for d, entry in enumerate(entries)
            if d >= skipped and (entry is None) == is_free
        }
        counts = {d: math.prod(sizes[name] for name in of) for d, of in names.items()}
        fitting = [d for d, count in counts.items() if shape[d] % count == 0 and shape[d] >= count]
        if fitting:
            largest = max(fitting, key=lambda d: shape[d])
            entries[largest] = names[largest] if len(names[largest]) > 1 else names[largest][0]
            return
