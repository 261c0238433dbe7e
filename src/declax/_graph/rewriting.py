"""`map` and `recursive_map`: new graphs from existing ones, by a function of path and value."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from copy import copy
from typing import Any, cast

from declax import _jax
from declax._classes.pytree import layout_of, set_layout
from declax._fields.snapshots import freeze, thaw
from declax._graph.binding import bind
from declax._graph.cells import shown
from declax._graph.nodes import (
    NODES,
    OBJECTS,
    Kind,
    all_children,
    close_container,
    is_ref,
    kind_of,
    object_names,
    open_container,
    path_of,
    walk_values,
)
from declax._graph.unflattening import build
from declax._graph.updating import checked_array_leaves
from declax._modes import is_graph, is_on
from declax._state.definition import call_each
from declax._state.states import State
from declax._tree.attributes import admit
from declax._tree.layout import LAYOUT_KEY, TRACE_KEY, blank_maker
from declax._typing import MISSING, N, Path
from declax._variables.donation import note_deleted
from declax._variables.variable import Variable, new_variable
from declax.errors import FieldError, GraphError, StatusError, describe, format_path, note_path


def map(  # noqa: A001  # the peers' name
    f: Callable[[Path, Any], Any], node: N, /, *, recreate_variables: bool = True, graph: bool | None = None
) -> N:
    """A new graph of the same structure whose leaves are ``f(path, value)``.

    Each leaf is seen once, under its first path. Shared objects stay shared.

    Args:
      f: takes a path and a leaf: an array, or a Variable of the model, so that a write to it changes the model. A
        Variable that it returns is part of the new graph; any other result is the value of a new Variable of the same
        kind and metadata. For an array of a model it returns an array or a number; for an array of a State, anything.
      node: a model, a container of models, or a State, such as one of labels.
      recreate_variables: False puts each result in place of its Variable, also a raw value.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Returns:
      The new graph. It shares the Variables that `f` returns unchanged.

    Raises:
      GraphError: for a result that cannot take the place of an array, and for a graph if a tree is required.

    >>> import declax as dx
    >>> m = dx.Module()
    >>> m.scale = dx.Param(2.0)
    >>> n = dx.map(lambda path, v: v.replace(v.value + 1, tag=path[0]), m)
    >>> m.scale.value, n.scale.value, n.scale.tag
    (2.0, 3.0, 'scale')
    """
    check_function("map", f)
    is_recreating = is_on("recreate_variables", recreate_variables)
    if isinstance(node, State):
        return cast("N", node.map((lambda path, leaf: _recreated(leaf, f(path, leaf))) if is_recreating else f))
    binding = bind(node, graph)
    paths = binding.graphdef.definition.paths
    given = shown(binding.cells, binding.read())
    try:
        leaves = call_each("map", f, paths, zip(paths, given, strict=True))
    except RuntimeError as error:
        note_deleted(error, node, zip(paths, binding.read(), strict=True))
        raise
    if is_recreating:
        leaves = [_recreated(value, result) for value, result in zip(given, leaves, strict=True)]
    leaves = checked_array_leaves(binding.graphdef, leaves, "map")
    root: N = build(binding.graphdef, leaves, variables=leaves, orders=binding.orders)
    return root


def _recreated(value: Any, result: Any) -> Any:
    """The result for a leaf: in place of a Variable, a Variable."""
    if not isinstance(value, Variable) or isinstance(result, Variable):
        return result
    return new_variable(type(value), result, value._metadata, _jax.current_trace())


def check_function(where: str, f: object) -> None:
    """Checks that the first argument is a function, and not a model."""
    if not callable(f) or kind_of(f) in (Kind.NODE, Kind.OBJECT):
        problem, fix = "the first argument must be a function of path and value", f"dx.{where}(function, model)"
        raise GraphError(where, problem, got=describe(f), fix=fix)


def recursive_map(f: Callable[[Path, Any], Any], node: Any, /, *, graph: bool | None = None) -> Any:
    """A new graph whose nodes, leaves and static values are ``f(path, value)``.

    Values come in the order of `iter_graph`: children before their holders, each object once, under its first path. `f`
    gets new nodes, which hold the results for their children and may be changed, but the original Variables. If a node
    holds itself, `f` sees it inside before it is complete, and has to return it unchanged later.

    Args:
      f: takes a path and a value, and returns a value for its place.
      node: a model, or a container of models.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Returns:
      The result for the node itself.

    Raises:
      GraphError: for data in place of a static value; for a replaced node of a cycle, with both of its paths; for None
        in place of the root; for a graph if a tree is required.

    >>> import declax as dx
    >>> m = dx.Module()
    >>> m.scale, m.dim = dx.Param(2.0), 3
    >>> n = dx.recursive_map(lambda path, value: 4 if path == ("dim",) else value, m)
    >>> n is m, n.dim, m.dim, n.scale is m.scale
    (False, 4, 3, True)
    """
    check_function("recursive_map", f)
    if not is_graph(graph):
        bind(node, graph)
    try:
        result = _rewrite(f, node)
    except RuntimeError as error:
        binding = bind(node)
        note_deleted(error, node, zip(binding.graphdef.definition.paths, binding.read(), strict=True))
        raise
    if result is None and node is not None:
        raise GraphError(
            "recursive_map",
            "the function returned None for the root",
            got=f"None, for {describe(node)}",
            fix="return value        # leaves it as it is",
        )
    return result


def _rewrite(f: Callable[[Path, Any], Any], root: Any) -> Any:
    """The result for a root; values come children first, each object once."""
    results: dict[int, dict[Any, Any]] = {}  # of the children of a holder that is not done, by its link and their keys
    objects: dict[int, Any] = {}  # the results of objects, which may be in further places
    copies: dict[int, Any] = {}  # the new nodes; those of cycles are made before their children
    cycles: dict[int, Path] = {}  # where nodes hold themselves

    def met_before(value: Any, path: Path) -> Any:
        if id(value) in objects:
            return objects[id(value)]
        cycles.setdefault(id(value), path)  # a node around this place
        if id(value) not in copies:
            copies[id(value)] = _copy_node(value)
        return copies[id(value)]

    holder: Any = MISSING  # a link, whose path and results are these
    above: Path = ()
    siblings: dict[Any, Any] = {}
    result: Any = None
    for link, value in walk_values(root):
        if link is not None and link[0] is not holder:  # the values in one holder share its path
            holder, above = link[0], path_of(link[0])
            siblings = results.setdefault(id(holder), {})
        path = () if link is None else (*above, link[1])
        kind, given = kind_of(value), value
        if kind is Kind.STATIC:
            given = _own(value)
        elif kind is Kind.CONTAINER or kind in NODES:
            children, new = all_children(value, kind), results.pop(id(link), {})
            if len(new) < len(children):
                new = {key: new[key] if key in new else met_before(child, (*path, key)) for key, child in children}
            if kind is Kind.CONTAINER:
                keys, _, how = open_container(value)
                given = close_container(how, keys, [*new.values()])
            else:
                given = copies[id(value)] if id(value) in copies else _copy_node(value)
                for name, child in children:
                    if new[name] is not child:
                        _put(given, name, new[name], path)
        try:
            result = f(path, given)
        except Exception as error:
            note_path(error, "the function given to recursive_map", path)
            raise
        if id(value) in cycles and result is not given:
            raise GraphError(
                format_path(path),
                "a node that holds itself cannot be replaced by recursive_map",
                expected="the node that the function got",
                got=f"{describe(result)}, for the node that is also at {format_path(cycles[id(value)])}",
                why="its children were made before it, and refer to it already",
            )
        if kind in OBJECTS or (kind is Kind.LEAF and is_ref(value)):
            objects[id(value)] = result
        if link is not None:
            siblings[link[1]] = result
    return result


def _copy_node(value: Any) -> Any:
    made = blank_maker(value.__class__)(value.__class__)
    names = layout_of(value).statuses if kind_of(value) is Kind.NODE else object_names(value)
    attributes = value.__dict__
    made.__dict__.update({name: child for name, child in attributes.items() if name in names})
    if LAYOUT_KEY in attributes:
        made.__dict__[LAYOUT_KEY] = attributes[LAYOUT_KEY]
    trace_token = _jax.current_trace()
    if trace_token is not _jax.TOP:
        made.__dict__[TRACE_KEY] = trace_token
    return made


def _own(value: Any) -> Any:
    """A copy of a mutable static value that is not a container of the graph, so that the graphs do not share it."""
    if not isinstance(value, (set, deque, bytearray)):
        return value
    try:
        return thaw(freeze(value))
    except StatusError:  # an Object may hold values that cannot be static
        return copy(value)


def _put(made: Any, name: Any, result: Any, path: Path) -> None:
    """Sets an attribute of a new node, by the rules of an assignment."""
    try:
        _, value, layout = admit(made, name, result, layout_of(made))
    except (StatusError, FieldError) as error:
        raise GraphError(
            format_path((*path, name)),
            "the function of recursive_map returned a value that its place cannot hold",
            got=describe(result),
            why=str(error),
        ) from error
    set_layout(made, layout)
    made.__dict__[name] = value
