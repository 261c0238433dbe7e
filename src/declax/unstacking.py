"""States of stacks as those of lists of layers, for files that fit both.

Vocabulary
----------
stacked:   of an array: of all layers of a `Stacked`, along the first axis.
unstacked: as a `List` of n layers has it: an array a layer, with the number of
           the layer in its path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp

from declax._filters import Filter
from declax._jax import current_trace
from declax._state_def import LeafDef, StateDef, leaf_def_of, sorted_pair
from declax._typing import Path
from declax._variables import new_variable
from declax.errors import GraphError, format_path
from declax.graph.api import state
from declax.graph.binding import bind
from declax.graph.iteration import iter_graph
from declax.graph.updating import update
from declax.stacking import Stacked
from declax.states import State, make_state

LAYERS = "layers"
"""The attribute of a `Stacked` that holds the arrays."""


def unstacked_state(node: Any, /, *filters: Filter) -> Any:
    """The State of a model, with the arrays of its stacks as `List`s of layers would have them.

    For files: they fit the model with a `Stacked` and that with a `List`.

    Args:
      node: the model.
      *filters: as for `state`.

    Returns:
      A State, or as many as there are filters. A leaf of `Stacked` at
      ``(..., "layers", "kernel")`` becomes n leaves at ``(..., i, "kernel")``.

    >>> from declax.nn import Linear
    >>> from declax.rngs import Rngs
    >>> blocks = Stacked(lambda rngs: Linear(2, 2, use_bias=False, rngs=rngs), 2, rngs=Rngs(0))
    >>> [path for path, _ in unstacked_state(blocks).flat_state()]
    [(0, 'kernel'), (1, 'kernel')]
    """
    found = state(node, *filters)
    stacks = _Stacks(node)
    if isinstance(found, State):
        return _unstack(found, stacks)
    return tuple(_unstack(part, stacks) for part in found)


def update_unstacked(node: Any, /, *states: State[Any]) -> None:
    """Updates a model with States that `unstacked_state`, or a model with `List`s of layers, has given.

    Args:
      node: the model.
      *states: together, whole layers: all n of a leaf, or none.

    Raises:
      GraphError: they do not fit; nothing is changed then.
    """
    merged = states[0] if len(states) == 1 else State.merge(*states)
    update(node, _restack(merged, bind(node).graphdef.definition, _Stacks(node)))


class _Stacks:
    """The stacks of a model, by path."""

    def __init__(self, node: Any) -> None:
        self._stacks = {path: found for path, found in iter_graph(node) if isinstance(found, Stacked)}

    def above(self, path: Path) -> list[tuple[int, Stacked[Any]]]:
        """Where in a path the arrays of stacks begin, and those stacks; outer ones first."""
        return [
            (depth, self._stacks[path[:depth]])
            for depth, key in enumerate(path)
            if key == LAYERS and path[:depth] in self._stacks
        ]

    def axes(self, path: Path) -> list[str]:
        """The names that the axes of layers have in metadata; outer ones first."""
        return [found.axis_name for _, found in self.above(path) if found.axis_name is not None]

    def unstacked_paths(self, path: Path) -> Iterator[tuple[tuple[int, ...], Path]]:
        """The number of each layer, and the path that a leaf of it has in lists."""
        above = self.above(path)
        for numbers in product(*(range(found.length) for _, found in above)):
            keys = list(path)
            for (depth, _), number in zip(above, numbers, strict=True):
                keys[depth] = number
            yield numbers, tuple(keys)


def _unstack(found: State[Any], stacks: _Stacks) -> State[Any]:
    definition, leaves = found._pair
    made: dict[Path, tuple[Any, Any]] = {}
    for path, leaf_def, leaf in zip(definition.paths, definition.leaf_defs, leaves, strict=True):
        leaf_def = _without_axes(leaf_def, leaf, stacks.axes(path))
        for numbers, unstacked in stacks.unstacked_paths(path):
            made[unstacked] = leaf_def, _part(leaf, numbers)
    return _state_of(made)


def _without_axes(leaf_def: LeafDef, leaf: Any, axes: Sequence[str]) -> LeafDef:
    """The metadata of one layer: without the names of the axes of layers."""
    if leaf_def is None or not axes:
        return leaf_def
    variable = new_variable(leaf_def[0], leaf, leaf_def[1], current_trace())
    for name in axes:
        variable.remove_axis(0, name)
    return leaf_def_of(variable)


def _with_axes(leaf_def: LeafDef, leaf: Any, axes: Sequence[str]) -> LeafDef:
    """The metadata of a stack, made of that of a layer."""
    if leaf_def is None or not axes:
        return leaf_def
    variable = new_variable(leaf_def[0], leaf, leaf_def[1], current_trace())
    for name in reversed(axes):
        variable.add_axis(0, name)
    return leaf_def_of(variable)


def _part(leaf: Any, numbers: tuple[int, ...]) -> Any:
    """The array of one layer; of the shape of an array, a shape."""
    if not numbers:
        return leaf
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape[len(numbers) :], leaf.dtype)  # type: ignore[no-untyped-call]  # of jax
    return leaf[numbers]


def _restack(found: State[Any], definition: StateDef, stacks: _Stacks) -> State[Any]:
    """A State with the leaves of layers stacked again; other leaves stay."""
    given, leaves = found._pair
    rest = {path: (leaf_def, leaf) for path, leaf_def, leaf in zip(given.paths, given.leaf_defs, leaves, strict=True)}
    made: dict[Path, tuple[Any, Any]] = {}
    for path in definition.paths:
        above = stacks.above(path)
        parts = [unstacked for _, unstacked in stacks.unstacked_paths(path)]
        missing = [part for part in parts if part not in rest]
        if not above or len(missing) == len(parts):
            continue
        if missing:
            raise GraphError(
                format_path(missing[0]),
                "the State lacks this layer",
                expected=f"all {len(parts)} layers of {format_path(path)}",
                got=f"{len(parts) - len(missing)} of them",
            )
        taken = [rest.pop(part) for part in parts]
        leaf = _stack([leaf for _, leaf in taken], [found.length for _, found in above], path)
        made[path] = _with_axes(taken[0][0], leaf, stacks.axes(path)), leaf
    return _state_of({**rest, **made})


def _stack(leaves: list[Any], lengths: Sequence[int], path: Path) -> Any:
    shapes = {jnp.shape(leaf) for leaf in leaves}
    if len(shapes) > 1:
        raise GraphError(
            format_path(path), "the layers have arrays of different shapes", got=", ".join(map(str, sorted(shapes)))
        )
    stacked = jnp.stack(leaves)
    return stacked.reshape((*lengths, *stacked.shape[1:]))


def _state_of(leaves: dict[Path, tuple[Any, Any]]) -> State[Any]:
    return make_state(*sorted_pair([(path, leaf, leaf_def) for path, (leaf_def, leaf) in leaves.items()]))
