"""Parameters as layers read them on explicit mesh axes, and where the names of activations put results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding

from declax import errors
from declax._variables.metadata import ACT_NAMES, AXES, EAGER_SHARDING, EMPTY, Metadata, names_of_axes
from declax._variables.placement import (
    declared_sharding,
    explicit_spec,
    make_spec,
    mesh_of,
    names_of_entry,
    placed,
    report,
    reshard,
)
from declax.nn._checks import field_of
from declax.nn._defaults import OutSharding

_NONE: Mapping[int, int] = {}


def gathered(
    parameter: jax.Array,
    x: jax.Array,
    met: Mapping[int, int],
    out_sharding: OutSharding = None,
    kept: Mapping[int, int] = _NONE,
) -> jax.Array:
    """A parameter, whole along the explicit mesh axes that split other dimensions of the input or of the result.

    So a parameter that the axis of the batch splits is gathered where it is read, and its gradient is scattered. On
    other meshes and without one, it is the parameter itself.

    Args:
      parameter: as it is stored.
      x: the array that it is multiplied with or added to.
      met: for dimensions of the parameter, the dimension of `x` that each is multiplied with, or lies along.
      out_sharding: where the result of the layer belongs, if that is known.
      kept: for dimensions of the parameter, the dimension of the result that each becomes.
    """
    spec = explicit_spec(parameter)
    of_input = explicit_spec(x) if spec else None
    if spec is None or of_input is None or not any(spec):
        return parameter
    there, result = _axes_of(of_input), _axes_of(getattr(out_sharding, "spec", out_sharding))
    taken = {axis for axes in (*there.values(), *result.values()) for axis in axes}
    entries = []
    for dimension, entry in enumerate(spec):
        matches = {*there.get(met.get(dimension), ()), *result.get(kept.get(dimension), ())}
        entries.append(tuple(axis for axis in names_of_entry(entry) if axis in matches or axis not in taken))
    if all(axes == names_of_entry(entry) for axes, entry in zip(entries, spec, strict=True)):
        return parameter
    mesh, whole = jax.typeof(parameter).sharding.mesh, make_spec(*(axes or None for axes in entries))
    found: jax.Array = reshard(parameter, NamedSharding(mesh, whole))
    return found


def _axes_of(spec: Any) -> dict[int | None, tuple[str, ...]]:
    return {dimension: names_of_entry(entry) for dimension, entry in enumerate(spec or ())}


def result_sharding(layer: object, parameter: Any, ndim: int) -> OutSharding:
    """Where the names that a parameter has for the activations put the result, on a mesh with explicit axes; or None.

    Args:
      layer: the layer, for errors.
      parameter: the Variable with the metadata `act_names`.
      ndim: the number of dimensions of the result.

    Raises:
      LayerError: the names are those of another number of dimensions.
      ShardingError: the names do not fit the mesh.
    """
    metadata: Metadata = getattr(parameter, "_metadata", EMPTY)
    if ACT_NAMES not in metadata.frozen:
        return None
    mesh = mesh_of(metadata)
    if mesh is None or AxisType.Explicit not in mesh.axis_types:
        return None
    where = field_of(layer, ACT_NAMES)
    # JAX checks the sizes; a size of 0 is a multiple of each.
    sharding, misfits = declared_sharding(where, _metadata_of_result(where, metadata, ndim), (0,) * ndim, mesh)
    report(where, misfits, mesh)
    return sharding.spec


def constrained(layer: object, parameter: Any, y: jax.Array) -> jax.Array:
    """The result of a layer where the names that a parameter has for the activations put it."""
    metadata: Metadata = getattr(parameter, "_metadata", EMPTY)
    if ACT_NAMES not in metadata.frozen or mesh_of(metadata) is None:
        return y
    where = field_of(layer, ACT_NAMES)
    found: jax.Array = placed(where, y, _metadata_of_result(where, metadata, y.ndim), is_new=False)
    return found


def _metadata_of_result(where: str, metadata: Metadata, ndim: int) -> Metadata:
    names = names_of_axes(metadata[ACT_NAMES])
    if names is None or len(names) != ndim:
        raise errors.LayerError(
            where,
            "these do not name the dimensions of the activations",
            expected=f"a tuple of {ndim} names or None, one for each dimension of the result",
            got=repr(metadata[ACT_NAMES]),
        )
    return Metadata.of({**metadata, AXES: tuple(names), EAGER_SHARDING: True})
