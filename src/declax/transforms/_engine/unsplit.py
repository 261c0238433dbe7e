"""Axes of a model's mesh that split no argument of a compiled function: the devices along them compute the same."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from declax import _jax
from declax._variables.placement import names_of_entry
from declax.errors import ReplicationWarning
from declax.transforms._engine.call import Call
from declax.transforms._engine.holding import mesh_of, shardings_of_arrays
from declax.transforms._engine.names import name_plain

_SPLITTING = {"sharding_constraint", "reshard", "shard_map"}


def warn_of_unsplit_axes(function: str, call: Call, labels: Sequence[Any], trace: Callable[[], Any]) -> bool:
    """Warns if an axis splits neither an array of a model nor an argument whose first dimension it could split.

    A program that splits values inside is left alone, as are vectors, keys, and what the user or another program has
    put on the mesh, such as gradients. Returns whether it warned.
    """
    mesh = mesh_of(call.values)
    if mesh is None:
        return False
    lengths = {jnp.shape(leaf)[0]: number for number, leaf in enumerate(call.plain) if _may_be_batch(leaf)}
    used = set(_axes_in([*shardings_of_arrays(call.leaves), *labels]))
    unused = [axis for axis, size in mesh.shape.items() if axis not in used and 1 < size <= max(lengths, default=0)]
    if not unused or not _SPLITTING.isdisjoint(_jax.primitives_of(trace())):
        return False
    axis, name = unused[0], name_plain(call.structure)[lengths[max(lengths)]]
    warnings.warn(
        f"{function}: the axis {axis!r} of the mesh, of size {mesh.shape[axis]}, splits no argument, so that all "
        f"devices along it compute the same. If {name} is a batch, split it: "
        f"jax.device_put({name}, jax.NamedSharding(mesh, jax.P({axis!r}))).",
        ReplicationWarning,
        stacklevel=_jax.level_of_user(sys._getframe()),
    )
    return True


def _may_be_batch(leaf: Any) -> bool:
    is_key = jnp.issubdtype(getattr(leaf, "dtype", None) or np.float32, jax.dtypes.prng_key)
    return jnp.ndim(leaf) > 1 and not is_key and not isinstance(getattr(leaf, "sharding", None), NamedSharding)


def _axes_in(places: Iterable[Any]) -> Iterator[Any]:
    """The axes that shardings and specs name."""
    for place in places:
        spec = place.spec if isinstance(place, NamedSharding) else place
        for entry in spec if isinstance(spec, PartitionSpec) else ():
            yield from names_of_entry(entry)
