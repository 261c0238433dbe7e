"""Walks over graphs, for whoever wants to look at them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from declax._classes.pytree import layout_of
from declax._filters import Filter, ask, predicate_of
from declax._graph.binding import bind, not_a_tree
from declax._graph.flattening import HAS_INDEX, LEAF, walk_tokens
from declax._graph.nodes import Kind, children_of, enter_container, is_ref, kind_of, object_names, open_container
from declax._modes import is_graph
from declax._tree.links import Link, path_of
from declax._typing import Path

_IDENTIFIED = frozenset({Kind.NODE, Kind.OBJECT, Kind.VARIABLE, Kind.REF})


def iter_graph(node: Any, /, *, graph: bool | None = None) -> Iterator[tuple[Path, Any]]:
    """All that a graph holds, static values too, each node, Variable and ref once.

    What is inside of a node comes before the node. The walk goes on while the
    entries are taken, and must not be made on a graph that changes meanwhile.

    Args:
      node: a model, or a container of models.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Yields:
      Paths and values.

    Raises:
      GraphError: for a graph where a tree is asked for; at the second way to
        what is shared.

    >>> from declax._module.module import Module
    >>> from declax._variables.variable import Param
    >>> m = Module()
    >>> m.scale, m.dim = Param(2.0), 3
    >>> [(path, type(value).__name__) for path, value in iter_graph([m, m])]
    [((0, 'dim'), 'int'), ((0, 'scale'), 'Param'), ((0,), 'Module'), ((), 'list')]
    """
    is_tree = not is_graph(graph)
    return ((path_of(link), value) for link, value in _entries(node, is_tree))


def _entries(root: Any, is_tree: bool) -> Iterator[tuple[Link, Any]]:
    seen: dict[int, Link] = {}
    stack: list[tuple[Link, Any, bool, tuple[int, ...]]] = [(None, root, False, ())]
    while stack:
        link, value, is_done, within = stack.pop()
        if is_done:
            yield link, value
            continue
        kind = kind_of(value)
        if kind in _IDENTIFIED or (kind is Kind.LEAF and is_ref(value)):
            if id(value) in seen:
                if is_tree:
                    raise not_a_tree(path_of(seen[id(value)]), path_of(link))
                continue
            seen[id(value)] = link
        within = enter_container(value, within) if kind is Kind.CONTAINER else ()
        stack.append((link, value, True, ()))
        stack.extend(((link, key), child, False, within) for key, child in reversed(_all_children(value, kind)))


def _all_children(value: Any, kind: Kind) -> list[tuple[Any, Any]]:
    """What a node or container holds, static values too."""
    if kind is Kind.NODE:
        return [(name, value.__dict__[name]) for name in layout_of(value).statuses]
    if kind is Kind.OBJECT:
        return [(name, value.__dict__[name]) for name in object_names(value)]
    if kind is Kind.CONTAINER:
        keys, children, _ = open_container(value)
        return list(zip(keys, children, strict=True))
    return []


def iter_children(node: Any, /, *, graph: bool | None = None) -> Iterator[tuple[Any, Any]]:
    """The nodes and Variables directly inside of a node, by key.

    Args:
      node: a node, or a container of nodes.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Yields:
      Keys and children.

    >>> from declax._module.module import Module
    >>> from declax._variables.variable import Param
    >>> m = Module()
    >>> m.part, m.scale, m.dim = Module(), Param(2.0), 3
    >>> [key for key, _ in iter_children(m)]
    ['part', 'scale']
    """
    if not is_graph(graph):
        bind(node, graph)
    return ((key, child) for key, child in children_of(node) if kind_of(child) in _CHILDREN)


_CHILDREN = frozenset({Kind.NODE, Kind.OBJECT, Kind.VARIABLE})


def find_duplicates(node: Any, /, *, only: Filter = ...) -> list[list[Path]]:
    """The paths of nodes, Variables, refs and arrays that a graph refers to more than once.

    Of arrays, those that sit in no Variable count.

    Args:
      node: a model, or a container of models.
      only: which of them to consider.

    Returns:
      For each, all of its paths, in order. Of what lies inside of a shared
      node, only the node is listed.

    >>> from declax._module.module import Module
    >>> m = Module()
    >>> m.left = Module()
    >>> m.right = m.left
    >>> find_duplicates(m)
    [[('left',), ('right',)]]
    """
    predicate = predicate_of(only, "find_duplicates, only")
    binding = bind(node)
    if binding.graphdef.shared is None and binding.plain is None:
        return []
    paths: dict[int, list[Path]] = {}
    values: dict[int, Any] = {}
    arrays: dict[int, tuple[Any, list[Path]]] = {}
    objects, leaves = iter(binding.objects()), iter(binding.read())
    for path, token in walk_tokens(binding.graphdef.tokens):
        if isinstance(token, int):
            paths[token].append(path)
            continue
        leaf = next(leaves) if token[0] <= LEAF else None
        if token[0] in HAS_INDEX:
            paths[len(values)], values[len(values)] = [path], next(objects)
        elif token[0] == LEAF and isinstance(leaf, (jax.Array, np.ndarray)):
            arrays.setdefault(id(leaf), (leaf, []))[1].append(path)
    shared = [*((values[i], found) for i, found in paths.items()), *arrays.values()]
    return [found for value, found in shared if len(found) > 1 and ask(predicate, found[0], value)]
