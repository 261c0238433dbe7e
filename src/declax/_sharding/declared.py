"""The shardings that the Variables of a tree declare."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
from jax.sharding import AbstractMesh

from declax._classes.assignment import is_near_miss
from declax._graph.nodes import plain_key
from declax._state.definition import LeafDef, StateDef
from declax._typing import Path, Shape
from declax._variables.metadata import AXES, EMPTY, Metadata
from declax._variables.placement import (
    AnyMesh,
    Misfit,
    activation_names,
    checked_mesh,
    context_mesh,
    declared_names,
    declared_sharding,
    declared_spec,
    make_spec,
    mesh_of_array,
    placed,
    report,
    sharding_rules,
)
from declax._variables.variable import Variable
from declax.errors import ShardingError, describe, format_path
from declax.transforms._engine.prefixes import CheckedLabels, StateSharding

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
    return _map(tree, lambda path, leaf_def, value: declared_spec(_metadata_of(leaf_def), format_path(path)))


Shardings: TypeAlias = StateSharding | Callable[[Any], StateSharding] | None
"""Where arrays belong, in place of what their Variables declare."""


def get_named_sharding(tree: A, mesh: AnyMesh, *, shardings: Shardings = None) -> A:
    """The sharding on a mesh that each Variable declares, in its place: for `jax.device_put`, `jit` and checkpoints.

    Args:
      tree: a State, a model without sharing, or another tree; may be abstract.
      mesh: the devices.
      shardings: a `StateSharding`, or a function of the tree that returns one, such as `fsdp`, in place of what the
        Variables declare.

    Returns:
      The tree with Variables of shardings. An array without names is replicated; other values become None.

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
    checked_mesh("get_named_sharding", mesh)
    labels = labels_of("get_named_sharding", shardings, tree, mesh)
    selection = None if labels is None else CheckedLabels(labels, "get_named_sharding")
    misfits: list[Misfit] = []
    names: set[str] = set()

    def sharding_of(path: Path, leaf_def: LeafDef, value: Any) -> jax.NamedSharding:
        metadata = _metadata_of(leaf_def)
        names.update(declared_names(metadata, format_path(path)), activation_names(metadata))
        found, wrong = _sharding_of_leaf(path, leaf_def, value, value.shape, mesh, selection)
        misfits.extend(wrong)
        return found

    found = _map(tree, sharding_of)
    if selection is not None:
        selection.check_all_select()
    report("get_named_sharding", misfits, mesh)
    if labels is None and not misfits:  # which name a rule that is near
        check_rules("get_named_sharding", names)
    return found


def _map(tree: A, of: Callable[[Path, LeafDef, Any], Any]) -> A:
    """The tree with the result of a function of path, kind and array in place of each array."""

    def at(keys: tuple[Any, ...], leaf: Any) -> Any:
        path = tuple(map(plain_key, keys))
        if not isinstance(leaf, Variable):
            return of(path, None, leaf) if hasattr(leaf, "shape") else None
        leaf_def = leaf.__class__, leaf._metadata  # the kind, also of what JAX sees of a State
        return leaf.replace(jax.tree.map(lambda array: of(path, leaf_def, array), leaf.raw_value))

    mapped: A = jax.tree_util.tree_map_with_path(at, tree, is_leaf=lambda part: isinstance(part, Variable))
    return mapped


def shardings_of_leaves(
    where: str,
    definition: StateDef,
    values: Sequence[Any],
    mesh: AnyMesh,
    labels: StateSharding | None = None,
    held: Callable[[Path, Any], Any] = lambda path, array: None,
) -> list[Any]:
    """For each leaf of a graph the sharding that a `StateSharding` or its Variable gives it; a tree, if it holds one.

    `held` may give an array at a path its sharding instead.

    Raises:
      ShardingError: what does not fit the mesh, with paths and dimensions.
    """
    found, misfits = resolve_leaves(where, definition, values, mesh, labels, held)
    report(where, misfits, mesh)
    return found


def resolve_leaves(
    where: str,
    definition: StateDef,
    values: Sequence[Any],
    mesh: AnyMesh,
    labels: StateSharding | None = None,
    held: Callable[[Path, Any], Any] = lambda path, array: None,
) -> tuple[list[Any], list[Misfit]]:
    """As `shardings_of_leaves`, with what does not fit in place of an error."""
    selection = None if labels is None else CheckedLabels(labels, where)
    if labels is not None:
        labels.check_leaves(where, definition.paths)
    misfits: list[Misfit] = []
    found: list[Any] = []
    for path, leaf_def, value in zip(definition.paths, definition.leaf_defs, values, strict=True):
        arrays, tree = jax.tree.flatten(value)
        for index, array in enumerate(arrays):
            arrays[index] = held(path, array)
            if arrays[index] is None:
                shape = getattr(array, "shape", ())
                arrays[index], wrong = _sharding_of_leaf(path, leaf_def, value, shape, mesh, selection)
                misfits.extend(wrong)
        found.append(jax.tree.unflatten(tree, arrays))
    if selection is not None:
        selection.check_all_select()
    if labels is None and not misfits:  # which name a rule that is near
        check_rules(where, names_of_leaves(definition))
    return found, misfits


def names_of_leaves(definition: StateDef) -> set[str]:
    """The names of axes that the Variables of a graph declare."""
    leaf_defs = [leaf_def for leaf_def in definition.leaf_defs if leaf_def is not None]
    declared = {name for leaf_def in leaf_defs for name in declared_names(leaf_def[1], leaf_def[0].__name__)}
    return declared.union(*(activation_names(leaf_def[1]) for leaf_def in leaf_defs))


def unused_rules(names: Collection[str]) -> list[str]:
    """The names of rules that no Variable declares: those of activations, and of other models."""
    return [name for name, _ in sharding_rules._current.get().pairs if name not in names]


def check_rules(where: str, names: Collection[str]) -> None:
    """Raises for an unused rule whose name is a near miss of a declared name without a rule."""
    unused = unused_rules(names)
    ruled = {name for name, _ in sharding_rules._current.get().pairs}
    for name in unused:
        near = next((known for known in sorted(names) if known not in ruled and is_near_miss(name, known)), None)
        if near is not None:
            raise ShardingError(
                f"{where}, sharding_rules",
                f"no Variable declares the name {name!r} of this rule",
                expected=", ".join(map(repr, sorted(names))),
                got=repr(name),
                fix=f"dx.sharding_rules({{..., {near!r}: ...}})",
            )


def _sharding_of_leaf(
    path: Path, leaf_def: LeafDef, value: Any, shape: Shape, mesh: AnyMesh, selection: CheckedLabels | None
) -> tuple[jax.NamedSharding, list[Misfit]]:
    metadata = _metadata_of(leaf_def)
    if selection is not None:
        spec = selection.label(path, leaf_def, value)
        metadata = Metadata.of({**metadata, AXES: make_spec() if spec is None else spec})
    return declared_sharding(format_path(path), metadata, shape, mesh)


def _metadata_of(leaf_def: LeafDef) -> Metadata:
    return EMPTY if leaf_def is None else leaf_def[1]


def labels_of(where: str, shardings: Shardings, tree: Any, mesh: AnyMesh) -> StateSharding | None:
    """The shardings that a user gave, or those that a function of the tree returns under the mesh.

    Raises:
      ShardingError: they are neither.
    """
    labels: Any = shardings
    if callable(shardings):
        context: Any = jax.sharding.use_abstract_mesh
        with context(mesh if isinstance(mesh, AbstractMesh) else mesh.abstract_mesh):
            labels = shardings(tree)
    if labels is None:
        return None
    if isinstance(labels, StateSharding):
        return labels.on(mesh)
    raise ShardingError(
        f"{where}.shardings",
        "these are not shardings by filter",
        expected="dx.StateSharding, or a function of the model that returns one",
        got=describe(labels),
        fix="shardings=dx.fsdp",
    )


def with_sharding_constraint(value: A, axes: Any, /) -> A:
    """Arrays with a sharding, by names that `sharding_rules` knows; without a mesh, the arrays themselves.

    The mesh is that of `jax.set_mesh`. Otherwise it is that of the compiled function; outside of `jit`, that on which
    the array lies. Under `jit` JAX moves arrays, on automatic and on explicit axes; outside of it they are moved at
    once.

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
    metadata = Metadata.of({AXES: axes, "eager_sharding": True})
    has_context = context_mesh() is not None

    def constrain(array: Any) -> Any:
        own = None if has_context else mesh_of_array(array)
        on = metadata if own is None else Metadata.of({**metadata, "mesh": own})
        return placed("with_sharding_constraint", array, on, is_new=False)

    constrained: A = jax.tree.map(constrain, value) if isinstance(value, (list, tuple, dict)) else constrain(value)
    return constrained
