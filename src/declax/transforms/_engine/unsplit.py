"""Axes of a model's mesh that split no batch of a compiled function: the devices along them compute the same."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from declax import _jax
from declax._variables.batch_axes import batch_axes_of
from declax._variables.placement import names_of_entry
from declax.errors import ReplicationWarning
from declax.transforms._engine.call import Call
from declax.transforms._engine.holding import mesh_of, shardings_of_arrays
from declax.transforms._engine.names import name_plain

_SPLITTING = {"sharding_constraint", "reshard", "shard_map"}


def warn_of_unsplit_axes(
    function: str, call: Call, labels: Sequence[Any], batch_axes: Collection[str], trace: Callable[[], Any]
) -> bool:
    """Warns if an axis splits neither an array of a model nor an argument whose first dimension it could split.

    An axis along which `fsdp` has split the model must split the batch. So it is warned of too if it splits only the
    model: one of `batch_axes`, by the labels of the call, or one that is recorded for a Variable. A program that splits
    values inside is left alone, as are vectors, keys, and what the user or another program has put on the mesh, such
    as gradients. Returns whether it warned.
    """
    mesh = mesh_of(call.values)
    if mesh is None:
        return False
    places = shardings_of_arrays(call.leaves)
    count = len(call.values)
    of_models = {*_axes_in([*places[:count], *labels[:count]])}
    of_batch = {*_axes_in([*places[count:], *labels[count:]])}
    expected = {*batch_axes, *batch_axes_of(call.binding.cells)}
    found = _unused(mesh, of_batch | of_models, call, _may_be_batch)
    text = "splits no argument"
    if found is None:
        shapes = {jnp.shape(value) for value in call.values}
        others = {axis for axis in mesh.shape if axis not in expected & of_models}
        found = _unused(mesh, of_batch | others, call, lambda leaf: _may_be_batch_of_fsdp(leaf, shapes))
        text = "splits the model as dx.fsdp does, and no batch"
    if found is None or any(map(_splits, _jax.equations_of(trace()))):
        return False
    axis, name = found
    warnings.warn(
        f"{function}: the axis {axis!r} of the mesh, of size {mesh.shape[axis]}, {text}, so that all "
        f"devices along it compute the same. If {name} is a batch, split it: "
        f"jax.device_put({name}, jax.NamedSharding(mesh, jax.P({axis!r}))).",
        ReplicationWarning,
        stacklevel=_jax.level_of_user(sys._getframe()),
    )
    return True


def _splits(equation: Any) -> bool:
    """Whether an equation may split an array; gradients of JAX begin with a number that is put on the mesh."""
    return equation.primitive.name in _SPLITTING and any(getattr(var.aval, "ndim", 1) for var in equation.outvars)


def _unused(
    mesh: jax.sharding.Mesh, used: Collection[str], call: Call, may_be_batch: Callable[[Any], bool]
) -> tuple[str, str] | None:
    """The first axis that is not used and could split an argument, and the name of the longest such argument."""
    lengths = {jnp.shape(leaf)[0]: number for number, leaf in enumerate(call.plain) if may_be_batch(leaf)}
    longest = max(lengths, default=0)
    axis = next((axis for axis, size in mesh.shape.items() if axis not in used and 1 < size <= longest), None)
    return None if axis is None else (axis, name_plain(call.structure)[lengths[longest]])


def _may_be_batch(leaf: Any) -> bool:
    return _has_examples(leaf) and not isinstance(getattr(leaf, "sharding", None), NamedSharding)


def _may_be_batch_of_fsdp(leaf: Any, shapes: Collection[tuple[int, ...]]) -> bool:
    """Also what is whole on the mesh, as new arrays under `jax.set_mesh` are, but not a gradient."""
    return _has_examples(leaf) and jnp.shape(leaf) not in shapes


def _has_examples(leaf: Any) -> bool:
    is_key = jnp.issubdtype(getattr(leaf, "dtype", None) or np.float32, jax.dtypes.prng_key)
    return jnp.ndim(leaf) > 1 and not is_key


def _axes_in(places: Iterable[Any]) -> Iterator[Any]:
    """The axes that shardings and specs name."""
    for place in places:
        spec = place.spec if isinstance(place, NamedSharding) else place
        for entry in spec if isinstance(spec, PartitionSpec) else ():
            yield from names_of_entry(entry)
