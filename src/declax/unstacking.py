"""States of stacks as those of lists of layers, for files that fit both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp

from declax._filters import Filter
from declax._jax import current_trace
from declax._state_def import LeafDef, StateDef, leaf_def_of, sorted_pair
from declax._typing import Path
from declax._variables import Variable, new_variable
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
        """The positions in a path where the arrays of stacks begin, and those stacks; outer ones first."""
        depths = [depth for depth, key in enumerate(path) if key == LAYERS and path[:depth] in self._stacks]
        return [(depth, self._stacks[path[:depth]]) for depth in depths]

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
        leaf_def = _change_axes(leaf_def, leaf, stacks.axes(path), Variable.remove_axis)
        for numbers, unstacked in stacks.unstacked_paths(path):
            part = leaf
            if numbers and isinstance(leaf, jax.ShapeDtypeStruct):
                part = jax.ShapeDtypeStruct(leaf.shape[len(numbers) :], leaf.dtype)  # type: ignore[no-untyped-call]  # of jax
            elif numbers:
                array: Any = leaf
                part = array[numbers]
            made[unstacked] = leaf_def, part
    return _state_of(made)


def _change_axes(
    leaf_def: LeafDef, leaf: Any, names: Iterable[str], change: Callable[[Variable[Any], int, str], object]
) -> LeafDef:
    """The metadata of a leaf, without the names of the axes of layers, or with them."""
    if leaf_def is None:
        return leaf_def
    variable = new_variable(leaf_def[0], leaf, leaf_def[1], current_trace())
    for name in names:
        change(variable, 0, name)
    return leaf_def_of(variable)


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
        shapes = {jnp.shape(leaf) for _, leaf in taken}
        if len(shapes) > 1:
            got = ", ".join(map(str, sorted(shapes)))
            raise GraphError(format_path(path), "the layers have arrays of different shapes", got=got)
        stacked = jnp.stack([leaf for _, leaf in taken])
        stacked = stacked.reshape((*(found.length for _, found in above), *stacked.shape[1:]))
        made[path] = _change_axes(taken[0][0], stacked, reversed(stacks.axes(path)), Variable.add_axis), stacked
    return _state_of({**rest, **made})


def _state_of(leaves: dict[Path, tuple[Any, Any]]) -> State[Any]:
    return make_state(*sorted_pair([(path, leaf, leaf_def) for path, (leaf_def, leaf) in leaves.items()]))
