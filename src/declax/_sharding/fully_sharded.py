"""Shardings by size: each large array is split along one of its dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax

from declax import errors
from declax._filters import PathIn
from declax._graph.api import state as state_of
from declax._sharding.declared import shardings_of_leaves
from declax._typing import Path, Shape
from declax._variables.placement import AnyMesh, checked_mesh, context_mesh, make_spec, sizes_of
from declax.transforms._engine.prefixes import StateSharding


def fsdp(model: Any, axis: str = "data", *, mesh: AnyMesh | None = None, min_size: int = 4096) -> StateSharding:
    """The shardings of fully sharded data parallelism: each large array is split along the data axis too.

    An array keeps the dimensions that it declares for other mesh axes. Of the others, the largest that the data axis
    divides is split. Small arrays stay as they are declared.

    Args:
      model: a model, an optimizer, or a container of these; may be abstract.
      axis: the mesh axis along which the batch is split.
      mesh: the devices; None for the mesh of `jax.set_mesh`.
      min_size: the number of elements from which on an array is split.

    Returns:
      Specs by path, for `jit` and `init_sharded`; with `mesh`, shardings on it.

    Raises:
      ShardingError: there is no mesh, it has no such axis, or declared names do not fit it.

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
    if devices is None or axis not in sizes_of(devices):
        raise errors.ShardingError(
            "fsdp",
            "there is no mesh" if devices is None else f"the mesh has no axis {axis!r}",
            expected="a mesh with the axis, given or of jax.set_mesh",
            got="None" if devices is None else repr(sizes_of(devices)),
            fix='with jax.set_mesh(jax.make_mesh((8,), ("data",))): dx.fsdp(model, axis="data")',
        )
    state = state_of(model)
    paths: dict[Any, list[Path]] = {}
    declared = shardings_of_leaves("fsdp", state.definition, state.leaves, devices)
    for path, value, sharding in zip(state.paths, state.leaves, declared, strict=True):
        shape = getattr(value, "shape", ())
        entries = [*sharding.spec, *[None] * (len(shape) - len(sharding.spec))] if shape else []
        if math.prod(shape) >= min_size:
            _split(entries, shape, axis, sizes_of(devices)[axis])
        while entries and entries[-1] is None:
            entries.pop()
        paths.setdefault(make_spec(*entries), []).append(path)
    rest = make_spec()
    labels = {PathIn(*found): spec for spec, found in paths.items() if spec != rest} | {...: rest}
    return StateSharding({f: spec if mesh is None else jax.NamedSharding(mesh, spec) for f, spec in labels.items()})


def _split(entries: list[Any], shape: Shape, axis: str, size: int) -> None:
    """Splits the largest dimension that has no mesh axis yet and that the size divides."""
    if any(axis == entry or (isinstance(entry, Sequence) and axis in entry) for entry in entries):
        return
    free = [d for d, entry in enumerate(entries) if entry is None and shape[d] % size == 0 and shape[d] >= size]
    if free:
        entries[max(free, key=lambda d: shape[d])] = axis
