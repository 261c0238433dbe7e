"""The state of an optax transformation, with each array in a Variable.

It is the optax state itself, except for the parts that mirror the parameters: optax has States there, and an Optimizer
has Branches, so that its Variables are parts of the graph.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding

from declax import _jax, errors
from declax._fields.interning import Shared
from declax._graph.nodes import plain_key
from declax._state.states import State
from declax._state.tree import FlatForm
from declax._typing import Path, PyTree, T
from declax._variables.metadata import AXES, EMPTY, OPTIMIZER_AXES, Metadata
from declax._variables.placement import alike, in_memory_of, mesh_of, placed
from declax._variables.variable import Variable, new_variable
from declax.training._branches import branches_of

_VALUE_HOOKS: Final = frozenset({"on_get_value", "on_set_value", "on_create_value"})


class OptState(Variable[T]):
    """The kind of all Variables of an optimizer."""

    __slots__ = ()


class OptVariable(OptState[T]):
    """Optimizer state that mirrors a parameter and has its metadata, such as a momentum."""

    __slots__ = ()


class OptArray(OptState[T]):
    """Optimizer state that does not mirror a parameter, such as a count."""

    __slots__ = ()


class Leaf(NamedTuple):
    """One array of an optax state; `source` is the path of the parameter that it mirrors, if any."""

    path: Path
    value: Any
    source: Path | None


class OptLayout(Shared):
    """The structure of an optax state for parameters at `targets`; immutable, compares by value.

    Attributes:
      treedef: of the state as optax has it.
      stored: of the state as an Optimizer has it, with a `Branch` in place of each State.
      order: the position in the optax state of each leaf of the stored one.
    """

    __slots__ = ("_hash", "order", "sources", "stored", "targets", "treedef")

    treedef: Any
    stored: Any
    order: tuple[int, ...]
    sources: tuple[Path | None, ...]
    targets: tuple[Path, ...]

    def __init__(self, tree: PyTree, targets: tuple[Path, ...]) -> None:
        self.sources = tuple(leaf.source for leaf in leaves_of(tree))
        self.treedef = jax.tree.structure(tree)
        order, self.stored = jax.tree.flatten(_in_branches(self.unflatten(range(len(self.sources)))))
        self.order = tuple(order)
        self.targets = targets
        self._hash = hash(self._parts())

    def _parts(self) -> tuple[Hashable, ...]:
        return self.treedef, self.stored, self.targets

    def unflatten(self, values: Iterable[Any]) -> PyTree:
        """The optax state with these arrays."""
        return jax.tree.unflatten(self.treedef, values)

    def store(self, slots: Sequence[Any]) -> PyTree:
        """The stored state with these Variables, in the order of the optax state."""
        return jax.tree.unflatten(self.stored, [slots[i] for i in self.order])

    def slots_of(self, stored: PyTree) -> list[Any]:
        """The Variables of a stored state, or the arrays that a user has put there; the inverse of `store`."""
        found, treedef = jax.tree.flatten(stored, is_leaf=_is_variable)
        if treedef != self.stored:
            raise errors.OptimizerError(
                "Optimizer.opt_state",
                "this does not have the structure of the state of the transformation",
                got=f"{treedef}".removeprefix("PyTreeDef"),
                expected="the tree that the optimizer was made with; its Variables may be assigned to",
                fix="optimizer = dx.Optimizer(model, tx, wrt=...)",
            )
        slots = dict(zip(self.order, found, strict=True))
        return [slots[i] for i in range(len(found))]

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, OptLayout):
            return NotImplemented
        return self._hash == other._hash and self._parts() == other._parts()

    def __hash__(self) -> int:
        return self._hash

    @property
    def description(self) -> dict[str, Any]:
        """The arguments that make it again: a tree of indices, since JAX cannot pickle a treedef with named tuples."""
        return {"tree": self.unflatten(range(len(self.order))), "targets": self.targets}

    def __reduce__(self) -> tuple[Any, ...]:
        return OptLayout, tuple(self.description.values())


def leaves_of(tree: PyTree) -> Iterator[Leaf]:
    """The arrays of an optax state, in JAX's order."""
    for keys, node in _flatten_with_path(tree, is_leaf=_is_state):
        prefix = tuple(map(plain_key, keys))
        if not isinstance(node, State):
            yield Leaf(prefix, node, None)
            continue
        for (key,), value in _flatten_with_path(FlatForm(node), is_leaf=lambda part: not isinstance(part, FlatForm)):
            source = key.key if isinstance(key.key, tuple) else (key.key,)
            for inner, array in _flatten_with_path(value):
                yield Leaf((*prefix, *source, *map(plain_key, inner)), array, source)


def variables_of(tree: PyTree, parameters: State[Any]) -> list[OptState[Any]]:
    """A Variable for each array of an optax state.

    One that mirrors a parameter of the same shape is an `OptVariable` with the metadata of the parameter, except for
    hooks on values. Its ``optimizer_sharding``, if any, is the sharding of the state.
    """
    sources = {
        path: _Source(value, EMPTY if leaf_def is None else leaf_def[1], leaf_def is not None)
        for path, value, leaf_def in zip(
            parameters.paths, parameters.leaves, parameters.definition.leaf_defs, strict=True
        )
    }
    taken = {id(value) for value in parameters.leaves}
    return [_variable_for(leaf, sources, taken) for leaf in leaves_of(tree)]


class _Source(NamedTuple):
    """A parameter, its metadata, and whether it is a Variable."""

    value: Any
    metadata: Metadata
    is_variable: bool


def _variable_for(leaf: Leaf, sources: dict[Path, _Source], taken: set[int]) -> OptState[Any]:
    value = leaf.value
    if isinstance(value, (bool, int, float, complex, np.ndarray, np.generic)):
        value = jnp.asarray(value)
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        raise errors.OptimizerError(
            "Optimizer.opt_state",
            f"the optax state holds a value other than an array at {errors.format_path(leaf.path)}",
            expected="an array or a number",
            got=errors.describe(value),
            why="the state is an argument of compiled steps",
            fix="keep it in a closure of the transformation, not in the result of its init",
        )
    if id(value) in taken:
        value = jnp.copy(value)  # else donating the model would delete the optimizer's state as well
    taken.add(id(value))
    source = sources.get(leaf.source) if leaf.source is not None else None
    if source is None or not source.is_variable or getattr(source.value, "shape", None) != value.shape:
        return OptArray(value)
    unplaced, metadata = value, _of_mirror(source.metadata)
    if metadata.axes is not None:
        value = placed(errors.format_path(leaf.path), value, _on_mesh_of(source, metadata))
    if value is unplaced:
        value = in_memory_of(source.value, alike(value, source.value))
    return new_variable(OptVariable, value, metadata, _jax.current_trace())


def _on_mesh_of(source: _Source, metadata: Metadata) -> Metadata:
    """The metadata by which state is placed: outside of a mesh, a sharding of its own is on that of the parameter."""
    # A traced parameter has the mesh of the context, or none; to ask it makes JAX list all equations for an error.
    if OPTIMIZER_AXES not in source.metadata or isinstance(source.value, Tracer):
        return metadata
    sharding = getattr(source.value, "sharding", None)
    if not isinstance(sharding, NamedSharding) or mesh_of(metadata) is not None:
        return metadata
    return Metadata.of({**metadata, "mesh": sharding.mesh})


@functools.lru_cache(maxsize=256)
def _of_mirror(metadata: Metadata) -> Metadata:
    """The metadata of optimizer state for that of its parameter."""
    kept = {name: value for name, value in metadata.items() if name not in _VALUE_HOOKS}
    if OPTIMIZER_AXES in kept:
        kept[AXES] = kept.pop(OPTIMIZER_AXES)
    return Metadata.of(kept)


def _in_branches(tree: PyTree) -> PyTree:
    """The tree with a `Branch` in place of each State."""
    return jax.tree.map(
        lambda part: branches_of(part.paths, part.leaves) if isinstance(part, State) else part, tree, is_leaf=_is_state
    )


def _is_state(part: object) -> bool:
    return isinstance(part, State)


def _is_variable(part: object) -> bool:
    return isinstance(part, Variable)


def _flatten_with_path(tree: PyTree, is_leaf: Any = None) -> list[tuple[tuple[Any, ...], Any]]:
    return jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)[0]
