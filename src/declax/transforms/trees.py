"""Models as trees of States, for raw JAX transforms, and graphs of labels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar

import jax

from declax._graph.binding import bind_many, check_mode
from declax._graph.contexts import merge_context, split_context
from declax._graph.differences import other_paths
from declax._graph.node_states import MergeFunction, NodeStates, SplitFunction, is_node_states, merge_node, split_node
from declax._graph.nodes import plain_key
from declax._graph.unflattening import build
from declax._state.states import State, like
from declax._tree.statuses import check_depth
from declax._typing import MISSING, Path
from declax.errors import TransformError, describe, format_path
from declax.transforms._engine.lift import Call
from declax.transforms._engine.prefixes import (
    Labels,
    StateLabels,
    held_at,
    inconsistent_aliasing,
    is_same_label,
    label_by_filter,
    spread,
)
from declax.transforms._engine.structure import add_labels, is_root

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
        label_of = functools.partial(label_by_filter, by_filter, where="prefix")
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
    parts = [(_plain_path(keys), part) for keys, part in pairs]
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


def to_tree(
    tree: Any,
    /,
    *,
    prefix: Any = MISSING,
    split_fn: SplitFunction = split_node,
    map_non_graph_nodes: bool = False,
    ctxtag: Hashable | None = None,
    check_aliasing: bool = True,
) -> Any:
    """Replaces the models of a tree by their States, for raw JAX transforms; `from_tree` is the inverse.

    Sharing between the models, and within them, is restored by `from_tree`.

    Args:
      tree: a pytree of models, Variables, arrays and other leaves.
      prefix: a tree of labels, a prefix of `tree`, for `split_fn`.
      split_fn: takes a context, whose `split` it uses, and the path, label and model; returns a `NodeStates`.
      map_non_graph_nodes: whether to call it for other leaves too.
      ctxtag: the tag of an update context, in its step 1 or 3.
      check_aliasing: whether a Variable that is reached twice must have one label.

    Raises:
      TransformError: the prefix does not match; a Variable has two labels.

    >>> import declax as dx
    >>> import jax
    >>> m = dx.Module()
    >>> m.scale = dx.Param(2.0)
    >>> first, second = dx.from_tree(jax.tree.map(lambda x: 2 * x, dx.to_tree((m, m))))
    >>> first.scale.value, first is second
    (4.0, True)
    """
    check_depth(tree, "the tree")
    pairs, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_root)
    labels = _labels_of(prefix, treedef, "to_tree, prefix")
    if prefix is not MISSING and check_aliasing:
        call = Call((tree,), {})
        Labels(call.structure, call.values, labels, lambda tree: [None] * tree.num_leaves, ("prefix", "prefix"))
    found = []
    with split_context(ctxtag) as ctx:
        for (keys, leaf), label in zip(pairs, labels, strict=True):
            is_given = map_non_graph_nodes or is_root(leaf)
            found.append(split_fn(ctx, _plain_path(keys), label, leaf) if is_given else leaf)
    return jax.tree_util.tree_unflatten(treedef, found)


def from_tree(
    tree: Any,
    /,
    *,
    prefix: Any = MISSING,
    merge_fn: MergeFunction = merge_node,
    is_node_leaf: Callable[[Any], bool] = is_node_states,
    is_leaf: Callable[[Any], bool] = is_node_states,
    map_non_graph_nodes: bool = False,
    is_inner: bool | None = None,
    ctxtag: Hashable | None = None,
) -> Any:
    """Restores the models of a tree that `to_tree` made.

    Args:
      tree: the result of `to_tree`, or a function of it.
      prefix: a tree of labels, a prefix of `tree`, for `merge_fn`.
      merge_fn: takes a context, whose `merge` it uses, and the path, label and `NodeStates`; returns the model.
      is_node_leaf: whether a leaf is given to `merge_fn`.
      is_leaf: whether a node of the tree is a leaf.
      map_non_graph_nodes: whether to call `merge_fn` for other leaves too.
      is_inner: True for step 2, False for step 4 of an update context.
      ctxtag: the tag of that context.

    Raises:
      TransformError: the prefix does not match.
      GraphError: a model was split with other models, which are missing here.

    >>> import declax as dx
    >>> dx.from_tree({"a": dx.to_tree(dx.Param(2.0))})["a"].value
    2.0
    """
    check_depth(tree, "the tree")
    pairs, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)
    labels = _labels_of(prefix, treedef, "from_tree, prefix")
    found = []
    with merge_context(ctxtag, is_inner) as ctx:
        for (keys, leaf), label in zip(pairs, labels, strict=True):
            is_given = map_non_graph_nodes or is_node_leaf(leaf)
            found.append(merge_fn(ctx, _plain_path(keys), label, leaf) if is_given else leaf)
    return jax.tree_util.tree_unflatten(treedef, found)


def _labels_of(prefix: Any, treedef: Any, where: str) -> list[Any]:
    """The label of each leaf of a tree; `MISSING` without a prefix."""
    if prefix is MISSING:
        return [MISSING] * treedef.num_leaves
    is_label: Callable[[object], bool] = lambda x: x is None or is_node_states(x) or jax.tree_util.all_leaves([x])  # noqa: E731
    numbered = jax.tree_util.tree_unflatten(treedef, range(treedef.num_leaves))
    return [*spread(prefix, numbered, where, is_label).values()]


def _plain_path(keys: Iterable[Any]) -> Path:
    return tuple(map(plain_key, keys))
