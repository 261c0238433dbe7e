"""Graphs of labels: `prefix`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax

from declax._graph.binding import bind_many, check_mode
from declax._graph.differences import other_paths
from declax._graph.unflattening import build
from declax._state.states import State, like
from declax._tree.statuses import check_depth
from declax._typing import Path
from declax.errors import TransformError, describe, format_path
from declax.transforms._engine.prefixes import (
    StateLabels,
    held_at,
    inconsistent_aliasing,
    is_same_label,
)
from declax.transforms._engine.structure import add_labels, is_root
from declax.transforms.trees import NodeStates, plain_path

N = TypeVar("N")

LabelOf = Callable[[Path, Any], Any]


def prefix(
    node: N,
    labels: LabelOf | StateLabels[Any] | Mapping[Any, Any],
    /,
    *,
    graph: bool | None = None,
) -> N:
    """A graph of labels: a model with a label in place of each leaf.

    Pass it to a transform as the labels of an argument: ``in_axes=(dx.prefix(model, {dx.Param: 0, ...: None}), 0)``.
    For raw JAX transforms, make labels of the result of `to_tree`, or of a State.

    Args:
      node: a model, a State, a `NodeStates`, or a container of these and of arrays.
      labels: a mapping from filters to labels, in which the first match decides; or a function of a path and a leaf: a
        Variable, or an array outside of Variables.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Returns:
      The graph; its Variables have the kinds and metadata of those of the model. In a transform, filters also label
      the Variables that the function adds, such as sown ones.

    Raises:
      TransformError: a leaf matches no filter, or one Variable has two labels by two of its paths.

    >>> import declax as dx
    >>> import jax.numpy as jnp
    >>> m = dx.Module()
    >>> m.scale, m.mean = dx.Param(jnp.arange(3.0)), dx.BatchStat(1.0)
    >>> axes = dx.prefix(m, {dx.Param: 0, ...: None})
    >>> axes.scale.value, axes.mean.value
    (0, None)
    """
    label_of: Any = labels
    by_filter: StateLabels[Any] | None = None
    if isinstance(labels, (StateLabels, Mapping)):
        by_filter = labels if isinstance(labels, StateLabels) else StateLabels(labels)
        label_of = functools.partial(by_filter.label_of, where="prefix")
    if not callable(label_of) or is_root(label_of):
        raise TransformError(
            "prefix",
            "these are not labels by filter",
            expected="a mapping from filters, or a function of path and leaf",
            got=describe(labels),
            fix="dx.prefix(model, {dx.Param: 0, ...: None})",
        )
    check_depth(node, "the node")
    pairs, tree = jax.tree_util.tree_flatten_with_path(node, is_leaf=_is_part)
    parts = [(plain_path(keys), part) for keys, part in pairs]
    binding = bind_many(tuple(part for _, part in parts if is_root(part)))
    check_mode(binding.graphdef, graph)
    above = [path for path, part in parts if is_root(part)]
    definition = binding.graphdef.definition
    held = [*map(held_at, definition.leaf_defs, binding.read())]

    def whole(path: Any) -> Path:
        return (*above[path[0]], *path[1:])

    found = [label_of(whole(path), leaf) for path, leaf in zip(definition.paths, held, strict=True)]
    for i, path in other_paths(binding.graphdef) if by_filter is not None else ():
        again = label_of(whole(path), held[i])
        if not is_same_label(found[i], again):
            one, other = format_path(whole(definition.paths[i])), format_path(whole(path))
            raise inconsistent_aliasing(f"prefix, {other}", again, one, found[i], "prefix")
    roots = build(binding.graphdef, found)
    for root, path in zip(roots, above, strict=True):
        add_labels(root, by_filter, path)
    labelled = iter(roots)
    labels_of = [next(labelled) if is_root(part) else _label(part, path, label_of) for path, part in parts]
    made: N = jax.tree_util.tree_unflatten(tree, labels_of)
    return made


def _is_part(value: object) -> bool:
    return is_root(value) or isinstance(value, (State, NodeStates))


def _label(part: Any, path: Path, label_of: LabelOf) -> Any:
    """The label of a leaf; for States, the same States with labels in place of values."""
    if isinstance(part, NodeStates):
        states = tuple(_label(state, path, label_of) for state in part.states)
        return NodeStates(part._graphdef, states, part.metadata)
    if not isinstance(part, State):
        return label_of(path, part)
    return like(part, [label_of((*path, *below), value) for below, value in part._read_pairs()])
