"""The shardings that the Variables of a tree declare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax

from declax._graph.nodes import plain_key
from declax._state.definition import StateDef
from declax._variables.metadata import AXES, EMPTY, Metadata
from declax._variables.placement import (
    AnyMesh,
    Misfit,
    declared_sharding,
    declared_spec,
    make_spec,
    placed,
    report,
)
from declax._variables.variable import Variable
from declax.errors import format_path
from declax.transforms._engine.prefixes import StateSharding, label_at

A = TypeVar("A")


def get_partition_spec(tree: A) -> A:
    """The `PartitionSpec` that each Variable declares, in its place.

    Rules of the Variable and of `sharding_rules` apply; names without a rule stay, since there is no mesh to look
    them up.

    Args:
      tree: a State, a model without sharing, or another tree.

    Returns:
      The tree with Variables of specs. An array without names has ``P()``, anything else None.

    Raises:
      ShardingError: the rules of a Variable contradict those of the context.

    >>> import declax as dx
    >>> model = dx.Linear(2, 4, kernel_metadata={"out_sharding": ("in", "model")}, rngs=dx.Rngs(0))
    >>> with dx.sharding_rules({"in": None}):
    ...     dx.get_partition_spec(dx.state(model))["kernel"].value
    P(None, 'model')
    """
    return _map(tree, lambda where, metadata, value: declared_spec(metadata, where))


def get_named_sharding(tree: A, mesh: AnyMesh) -> A:
    """The sharding on a mesh that each Variable declares, in its place: for `jax.device_put`, `jit` and checkpoints.

    Args:
      tree: a State, a model without sharing, or another tree; may be abstract.
      mesh: the devices.

    Returns:
      The tree with Variables of shardings. An array without names is replicated; what is no array is None.

    Raises:
      ShardingError: lists the names that do not fit the mesh, with paths and dimensions.

    >>> import declax as dx
    >>> mesh = jax.make_mesh((1,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
    >>> model = dx.Linear(2, 4, kernel_metadata={"out_sharding": (None, "model")}, rngs=dx.Rngs(0))
    >>> state = dx.state(model)
    >>> placed = jax.device_put(state, dx.get_named_sharding(state, mesh))
    >>> placed["kernel"].value.sharding.spec
    P(None, 'model')
    """
    misfits: list[Misfit] = []

    def sharding_of(where: str, metadata: Metadata, value: Any) -> jax.NamedSharding:
        found, wrong = declared_sharding(where, metadata, value.shape, mesh)
        misfits.extend(wrong)
        return found

    shardings = _map(tree, sharding_of)
    report("get_named_sharding", misfits, mesh)
    return shardings


def _map(tree: A, of: Callable[[str, Metadata, Any], Any]) -> A:
    """The tree with the result of a function of path, metadata and array in place of each array."""

    def at(keys: tuple[Any, ...], leaf: Any) -> Any:
        where = format_path(map(plain_key, keys))
        if not isinstance(leaf, Variable):
            return of(where, Metadata.EMPTY, leaf) if hasattr(leaf, "shape") else None
        arrays = leaf.raw_value
        metadata: Metadata = leaf._metadata
        return leaf.replace(jax.tree.map(lambda array: of(where, metadata, array), arrays))

    mapped: A = jax.tree_util.tree_map_with_path(at, tree, is_leaf=lambda part: isinstance(part, Variable))
    return mapped


def shardings_of_leaves(
    where: str, definition: StateDef, values: Sequence[Any], mesh: AnyMesh, labels: StateSharding | None = None
) -> list[Any]:
    """For each leaf of a graph the sharding that a `StateSharding` or its Variable gives it; a tree, if it holds one.

    Raises:
      ShardingError: what does not fit the mesh, with paths and dimensions.
    """
    misfits: list[Misfit] = []
    found: list[Any] = []
    for path, leaf_def, value in zip(definition.paths, definition.leaf_defs, values, strict=True):
        metadata = EMPTY if leaf_def is None else leaf_def[1]
        if labels is not None:
            spec = label_at(labels, path, leaf_def, value, "shardings")
            metadata = metadata.with_axes(make_spec() if spec is None else spec)
        arrays, tree = jax.tree.flatten(value)
        for index, array in enumerate(arrays):
            shape = getattr(array, "shape", ())
            arrays[index], wrong = declared_sharding(format_path(path), metadata, shape, mesh)
            misfits.extend(wrong)
        found.append(jax.tree.unflatten(tree, arrays))
    report(where, misfits, mesh)
    return found


def with_sharding_constraint(value: A, axes: Any, /) -> A:
    """Arrays with a sharding, by names that `sharding_rules` knows; without a mesh, the arrays themselves.

    Under `jit` JAX moves them there, on automatic and on explicit axes; outside of it they are moved at once.

    Args:
      value: an array, or a list, tuple or dict of arrays of equally many dimensions.
      axes: for each dimension a mesh axis, a logical name, a tuple of these, or None; or a sharding.

    Raises:
      ShardingError: the names do not fit the mesh.

    >>> import declax as dx
    >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    >>> with jax.set_mesh(mesh), dx.sharding_rules({"batch": "data"}):
    ...     dx.with_sharding_constraint(jax.numpy.ones((4, 2)), ("batch", None)).sharding.spec
    P('data', None)
    """
    constrained: A = placed("with_sharding_constraint", value, Metadata.of({AXES: axes, "eager_sharding": True}))
    return constrained
