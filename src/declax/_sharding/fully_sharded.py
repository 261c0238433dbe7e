"""Shardings by size: each large array is split along one of its dimensions."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from declax import _jax, errors
from declax._filters import PathIn
from declax._graph.api import state as state_of
from declax._sharding.declared import shardings_of_leaves
from declax._text.arrays import bytes_text, measure, shape_text
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
from declax.errors import ReplicationWarning, format_path
from declax.transforms._engine.prefixes import StateSharding

_LISTED = 4
_SHARE = 10
"""Arrays that stay whole are warned of from a tenth of all bytes on."""


def fsdp(
    model: Any, axis: str | tuple[str, ...] = "data", *, mesh: AnyMesh | None = None, min_size: int = 4096
) -> StateSharding:
    """The shardings of fully sharded data parallelism: each large array is split along the data axis too.

    An array keeps the mesh axes that it declares. Of the dimensions without one, the largest that the data axis divides
    is split; if there is none, a dimension that has a mesh axis gets the data axis as well. Small arrays stay as they
    are declared.

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
            fix='with jax.set_mesh(jax.make_mesh((8,), ("data",))): dx.fsdp(model, axis="data")',
        )
    state = state_of(model)
    paths: dict[Any, list[Path]] = {}
    reasons: dict[Path, str] = {}
    whole: list[_Whole] = []
    sizes = sizes_of(devices)
    count = math.prod(sizes[name] for name in axes)
    declared = shardings_of_leaves("fsdp", state.definition, state.leaves, devices)
    for path, value, sharding in zip(state.paths, state.leaves, declared, strict=True):
        shape = getattr(value, "shape", ())
        entries = [*sharding.spec, *[None] * (len(shape) - len(sharding.spec))] if shape else []
        before, is_split = [*entries], any(map(names_of_entry, entries))
        if math.prod(shape) >= min_size:
            _split(entries, shape, axes, sizes)
            if not any(map(names_of_entry, entries)):
                whole.append(_Whole(path, value))
                reasons[path] = f"replicated: no dimension is a multiple of {count}"
        elif not is_split:
            reasons[path] = f"replicated: fewer than {min_size} elements"
        if entries != before:
            reasons[path] = "fsdp"
        while entries and entries[-1] is None:
            entries.pop()
        paths.setdefault(make_spec(*entries), []).append(path)
    _warn_of(whole, measure(state)[1], axis, count)
    rest = make_spec()
    labels = {PathIn(*found): spec for spec, found in paths.items() if spec != rest} | {...: rest}
    return StateSharding(
        {f: spec if mesh is None else jax.NamedSharding(mesh, spec) for f, spec in labels.items()}, reasons
    )


def _split(entries: list[Any], shape: Shape, axes: tuple[str, ...], sizes: dict[str, int]) -> None:
    """Adds mesh axes to the largest dimension that they divide: one without a mesh axis, or else any."""
    if any(name in axes for entry in entries for name in names_of_entry(entry)):
        return
    for is_free in (True, False):
        names = {d: (*names_of_entry(entry), *axes) for d, entry in enumerate(entries) if (entry is None) == is_free}
        counts = {d: math.prod(sizes[name] for name in of) for d, of in names.items()}
        fitting = [d for d, count in counts.items() if shape[d] % count == 0 and shape[d] >= count]
        if fitting:
            largest = max(fitting, key=lambda d: shape[d])
            entries[largest] = names[largest] if len(names[largest]) > 1 else names[largest][0]
            return


class _Whole(NamedTuple):
    """A large array that is whole on each device."""

    path: Path
    array: Any

    def text(self, count: int) -> str:
        """What it is, and the sizes with which `count` devices, or fewer of them, could split it."""
        largest = max(self.array.shape)
        fewer = max(math.gcd(size, count) for size in self.array.shape)
        axis = f", or a mesh axis of {fewer}" if fewer > 1 else ""
        what = f"{format_path(self.path)} {shape_text(self.array)} ({bytes_text(measure(self.array)[1])})"
        return f"{what}: pad {largest} to {-(-largest // count) * count}{axis}"


def _warn_of(whole: Sequence[_Whole], total: int, axis: str | tuple[str, ...], count: int) -> None:
    """Warns of large arrays that are whole on each device, if they have a tenth of all bytes."""
    large = sorted(whole, key=lambda one: -measure(one.array)[1])
    nbytes = sum(measure(one.array)[1] for one in large)
    if count == 1 or nbytes * _SHARE <= total:
        return
    lines = [f"  {one.text(count)}" for one in large[:_LISTED]]
    lines += [f"  and {len(large) - _LISTED} more"] if len(large) > _LISTED else []
    text = (
        f"fsdp: {bytes_text(nbytes)} of {bytes_text(total)} are whole on each device, since none of their dimensions "
        f"is a multiple of {count}, the size of {axis!r}:\n"
    )
    warnings.warn(text + "\n".join(lines), ReplicationWarning, stacklevel=_jax.level_of_user(sys._getframe()))
