"""Functions that look at graphs and change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from declax._filters import Filter, ask, predicate_of
from declax._graph.binding import bind
from declax._graph.cells import are_variables
from declax._graph.flattening import HAS_INDEX, LEAF, walk_tokens
from declax._graph.nodes import Kind, children_of, kind_of, path_of, walk_values
from declax._modes import is_graph
from declax._typing import Path


def iter_graph(node: Any, /, *, graph: bool | None = None) -> Iterator[tuple[Path, Any]]:
    """All values of a graph, static ones too; each node, Variable and ref once.

    The values inside of a node come before the node. The graph must not change while the entries are taken.

    Args:
      node: a model, or a container of models.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Raises:
      GraphError: for a graph if a tree is required.

    >>> import declax as dx
    >>> m = dx.Module()
    >>> m.scale, m.dim = dx.Param(2.0), 3
    >>> [(path, type(value).__name__) for path, value in dx.iter_graph([m, m])]
    [((0, 'dim'), 'int'), ((0, 'scale'), 'Param'), ((0,), 'Module'), ((), 'list')]
    """
    if not is_graph(graph):
        bind(node, graph)
    return ((path_of(link), value) for link, value in walk_values(node))


def iter_children(node: Any, /, *, graph: bool | None = None) -> Iterator[tuple[Any, Any]]:
    """The nodes and Variables directly inside of a node, by key.

    Args:
      node: a node, or a container of nodes.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    >>> import declax as dx
    >>> m = dx.Module()
    >>> m.part, m.scale, m.dim = dx.Module(), dx.Param(2.0), 3
    >>> [key for key, _ in dx.iter_children(m)]
    ['part', 'scale']
    """
    if not is_graph(graph):
        bind(node, graph)
    wanted = (Kind.NODE, Kind.OBJECT, Kind.VARIABLE)
    return ((key, child) for key, child in children_of(node) if kind_of(child) in wanted)


def find_duplicates(node: Any, /, *, only: Filter = ...) -> list[list[Path]]:
    """The paths of nodes, Variables, refs and arrays that a graph refers to more than once.

    Of arrays, those outside of Variables count.

    Args:
      node: a model, or a container of models.
      only: which of them to consider.

    Returns:
      For each, all of its paths, in order. Values inside of a shared node are not listed.

    >>> import declax as dx
    >>> m = dx.Module()
    >>> m.left = dx.Module()
    >>> m.right = m.left
    >>> dx.find_duplicates(m)
    [[('left',), ('right',)]]
    """
    predicate = predicate_of(only, "find_duplicates, only")
    binding = bind(node)
    if binding.graphdef.shared is None and are_variables(binding.cells):
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
