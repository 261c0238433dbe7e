"""Parameters as layers read them on explicit mesh axes, and where the names of activations put results."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Set
from typing import Any

import jax
from jax.experimental.layout import Format
from jax.sharding import AxisType, NamedSharding

from declax import errors
from declax._typing import Shape
from declax._variables.mapped import mapped_axes
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
    rules_of,
    several,
)
from declax.nn._checks import field_of
from declax.nn._defaults import OutSharding

_NONE: Mapping[int, int] = {}


def gathered(
    variable: Any,
    parameter: jax.Array,
    x: jax.Array,
    met: Mapping[int, int],
    out_sharding: OutSharding = None,
    kept: Mapping[int, int] = _NONE,
) -> jax.Array:
    """A parameter for a computation on explicit mesh axes, whole along those that only split its storage.

    An axis splits the computation where the input or the result has it at the same place, or where the Variable names
    it and it splits no other dimension of these. Along all others, as those of `fsdp`, the parameter is gathered where
    it is read, and its gradient is scattered. On other meshes and without one, it is the parameter itself.

    Args:
      variable: has the names of the axes of the parameter; None for an array without.
      parameter: its value, as the layer casts it.
      x: the array that it is multiplied with or added to.
      met: for dimensions of the parameter, the dimension of `x` that each is multiplied with, or lies along.
      out_sharding: where the result of the layer belongs, if that is known.
      kept: for dimensions of the parameter, the dimension of the result that each becomes.
    """
    spec = explicit_spec(parameter)
    if spec is None or not any(spec):
        return parameter
    there, result = _axes_of(explicit_spec(x)), _axes_of(getattr(out_sharding, "spec", out_sharding))
    taken = {axis for axes in (*there.values(), *result.values()) for axis in axes}
    mesh = jax.typeof(parameter).sharding.mesh
    named = _named_axes(variable, spec, mesh.axis_names)
    entries = []
    for dimension, entry in enumerate(spec):
        same = {*there.get(met.get(dimension), ()), *result.get(kept.get(dimension), ())}
        entries.append(_first_of(names_of_entry(entry), same | (named[dimension] - taken)))
    if all(axes == names_of_entry(entry) for axes, entry in zip(entries, spec, strict=True)):
        return parameter
    found: jax.Array = reshard(parameter, NamedSharding(mesh, make_spec(*(axes or None for axes in entries))))
    return found


def on_mesh_of(x: jax.Array, parameter: jax.Array) -> jax.Array:
    """A parameter on the explicit mesh of an input, whole where it was on no mesh: JAX needs it for some gradients."""
    if explicit_spec(parameter) is not None or explicit_spec(x) is None:
        return parameter
    found: jax.Array = reshard(parameter, NamedSharding(jax.typeof(x).sharding.mesh, make_spec()))
    return found


def _named_axes(variable: Any, spec: Any, of_mesh: Collection[str]) -> list[Set[str]]:
    """The mesh axes of each dimension of a parameter that its names stand for, or may stand for without a rule."""
    metadata: Metadata = getattr(variable, "_metadata", EMPTY)
    axes = metadata.axes.sharding if isinstance(metadata.axes, Format) else metadata.axes
    names, rules = names_of_axes(axes) or [], rules_of(metadata, "out_sharding")
    found: list[Set[str]] = []
    for entry, name in itertools.zip_longest(spec, names[: len(spec)]):
        parts = [axis for part in several(name) for axis in several(rules.get(part, part))]
        is_known = all(part in rules or part in of_mesh for part in several(name))
        found.append(frozenset(parts if is_known else names_of_entry(entry)))
    return found


def _first_of(axes: tuple[str, ...], wanted: Set[str]) -> tuple[str, ...]:
    """Of several axes of a dimension, those before the first other one: a gather along the last ones moves no more."""
    return tuple(itertools.takewhile(lambda axis: axis in wanted, axes))


def _axes_of(spec: Any) -> dict[int | None, tuple[str, ...]]:
    return {dimension: names_of_entry(entry) for dimension, entry in enumerate(spec or ())}


def is_named(parameter: Any) -> bool:
    """Whether a parameter has names for the activations."""
    metadata: Metadata = getattr(parameter, "_metadata", EMPTY)
    return ACT_NAMES in metadata.frozen


def result_sharding(layer: object, parameter: Any, shape: Shape, given: OutSharding) -> OutSharding:
    """Where the call says, or on explicit axes the names that a parameter has for the activations; or None.

    Args:
      layer: the layer, for errors.
      parameter: the Variable with the metadata `act_names`.
      shape: of the result.
      given: the argument of the call.

    Raises:
      LayerError: the names are those of another number of dimensions.
      ShardingError: the names do not fit the mesh.
    """
    if given is not None or not is_named(parameter):
        return given
    metadata: Metadata = parameter._metadata
    mesh = mesh_of(metadata)
    if mesh is None or AxisType.Explicit not in mesh.axis_types:
        return None
    where = field_of(layer, ACT_NAMES)
    sharding, misfits = declared_sharding(where, _metadata_of_result(where, metadata, len(shape)), shape, mesh)
    report(where, misfits, mesh)
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    used = [axis for entry in sharding.spec for axis in names_of_entry(entry)]
    return sharding if all(types[axis] is AxisType.Explicit for axis in used) else None  # `constrained` does the rest


def constrained(layer: object, parameter: Any, y: jax.Array, given: OutSharding = None) -> jax.Array:
    """The result of a layer where the names that a parameter has for it say, unless the call has said it."""
    if given is not None or not is_named(parameter) or mesh_of(parameter._metadata) is None:
        return y
    metadata: Metadata = parameter._metadata
    where = field_of(layer, ACT_NAMES)
    found: jax.Array = placed(where, y, _metadata_of_result(where, metadata, y.ndim), is_new=False)
    return found


def _metadata_of_result(where: str, metadata: Metadata, ndim: int) -> Metadata:
    names = names_of_axes(metadata[ACT_NAMES])
    absent = 0 if names is None else len(names) - ndim  # the first dimensions, as of the batch, over which vmap maps
    if names is None or not 0 <= absent <= mapped_axes():
        raise errors.LayerError(
            where,
            "these do not name the dimensions of the activations",
            expected=f"a tuple of {ndim} names or None, one for each dimension of the result",
            got=repr(metadata[ACT_NAMES]),
            why="dx.vmap leaves out the first name, that of the dimension over which it maps" if absent > 0 else None,
        )
    return Metadata.of({**metadata, AXES: tuple(names)[absent:], EAGER_SHARDING: True})
