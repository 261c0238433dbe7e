"""`map` and `recursive_map`: new graphs from existing ones, by a function of path and value."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from copy import copy
from typing import Any, TypeVar

from declax import _jax
from declax._classes.pytree import layout_of, set_layout
from declax._fields.snapshots import freeze, thaw
from declax._graph.binding import bind
from declax._graph.nodes import (
    NODES,
    Kind,
    close_container,
    enter_container,
    is_ref,
    kind_of,
    object_names,
    open_container,
)
from declax._graph.unflattening import build
from declax._graph.updating import checked_plain
from declax._modes import is_graph, is_on
from declax._state.definition import call_each
from declax._tree.attributes import admit
from declax._tree.layout import LAYOUT_KEY, TRACE_KEY, blank_maker
from declax._typing import Path
from declax._variables.variable import Variable, new_variable
from declax.errors import FieldError, GraphError, StatusError, describe, format_path

N = TypeVar("N")

# --- leaves --------------------------------------------------------------------


def map(  # noqa: A001  # the peers' name
    f: Callable[[Path, Any], Any], node: N, /, *, recreate_variables: bool = True, graph: bool | None = None
) -> N:
    """A new graph of the same structure whose leaves are ``f(path, value)``.

    Each leaf is seen once, under its first path. Shared objects stay shared.

    Args:
      f: takes a path and a leaf: an array, or a Variable of the model, so that
        a write to it changes the model. A Variable that it returns is part of
        the new graph; any other result is the value of a new Variable of the
        same kind and metadata. For an array it returns an array or a number.
      node: a model, or a container of models.
      recreate_variables: False puts each result in place of its Variable, also a raw value.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Returns:
      The new graph. It shares the Variables that `f` returns unchanged.

    Raises:
      GraphError: for a result that cannot take the place of an array, and for
        a graph if a tree is required.

    >>> import declax as dx
    >>> m = dx.Module()
    >>> m.scale = dx.Param(2.0)
    >>> n = dx.map(lambda path, v: v.replace(v.value + 1, tag=path[0]), m)
    >>> m.scale.value, n.scale.value, n.scale.tag
    (2.0, 3.0, 'scale')
    """
    check_function("map", f)
    binding = bind(node, graph)
    is_recreating = is_on("recreate_variables", recreate_variables)
    paths = binding.graphdef.definition.paths
    given = [
        raw if variable is None else variable for variable, raw in zip(binding.variables, binding.read(), strict=True)
    ]
    leaves = call_each("map", f, paths, zip(paths, given, strict=True))
    for position, (value, result) in enumerate(zip(given, leaves, strict=True)):
        if is_recreating and isinstance(value, Variable) and not isinstance(result, Variable):
            leaves[position] = new_variable(type(value), result, value._metadata, _jax.current_trace())
    leaves = checked_plain(binding.graphdef, leaves, "map")
    root: N = build(binding.graphdef, leaves, variables=leaves)
    return root


def check_function(where: str, f: object) -> None:
    """Checks that the first argument is a function, and not a model."""
    if not callable(f) or kind_of(f) in (Kind.NODE, Kind.OBJECT):
        problem, fix = "the first argument must be a function of path and value", f"dx.{where}(function, model)"
        raise GraphError(where, problem, got=describe(f), fix=fix)


# --- nodes and leaves ----------------------------------------------------------


def recursive_map(f: Callable[[Path, Any], Any], node: Any, /, *, graph: bool | None = None) -> Any:
    """A new graph whose nodes, leaves and static values are ``f(path, value)``.

    Values come in the order of `iter_graph`: children before their holders,
    each object once, under its first path. `f` gets new nodes, which hold the
    results for their children and may be changed, but the original Variables.
    If a node holds itself, `f` sees it inside before it is complete, and has
    to return it unchanged later.

    Args:
      f: takes a path and a value, and returns a value for its place.
      node: a model, or a container of models.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Returns:
      The result for the node itself.

    Raises:
      GraphError: for data in place of a static value; for a replaced node
        of a cycle, with both of its paths; for None in place of the root;
        for a graph if a tree is required.

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
    result = _Rewriting(f).run(node)
    if result is None and node is not None:
        raise GraphError(
            "recursive_map",
            "the function returned None for the root",
            got=f"None, for {describe(node)}",
            fix="return value        # leaves it as it is",
        )
    return result


class _Frame:
    """A node or container whose children are not all done.

    `made` is the new node; a container is made at the end, by `how`. `within` are the containers around the children.
    """

    __slots__ = ("children", "how", "keys", "made", "results", "value", "within")

    def __init__(self, value: Any, kind: Kind, within: tuple[int, ...]) -> None:
        self.value = value
        self.made: Any = None
        self.how: Any = None
        self.within: tuple[int, ...] = ()
        self.keys: tuple[Any, ...]
        self.children: tuple[Any, ...]
        if kind is Kind.CONTAINER:
            self.within = enter_container(value, within)
            self.keys, self.children, self.how = open_container(value)
        else:
            attributes = value.__dict__
            self.keys = tuple(layout_of(value).statuses if kind is Kind.NODE else object_names(value))
            self.children = tuple([attributes[name] for name in self.keys])
            self.made = _copy_node(value, dict(zip(self.keys, self.children, strict=True)))
        self.results: list[Any] = []


def _copy_node(value: Any, attributes: dict[Any, Any]) -> Any:
    made = blank_maker(value.__class__)(value.__class__)
    made.__dict__.update(attributes)
    if LAYOUT_KEY in value.__dict__:
        made.__dict__[LAYOUT_KEY] = value.__dict__[LAYOUT_KEY]
    mark = _jax.current_trace()
    if mark is not _jax.TOP:
        made.__dict__[TRACE_KEY] = mark
    return made


class _Rewriting:
    """One walk of `recursive_map`; with a stack of frames in place of recursion."""

    def __init__(self, f: Callable[[Path, Any], Any]) -> None:
        self._f = f
        self._keys: list[Any] = []  # the path to where the walk is
        self._results: dict[int, tuple[Any, Any]] = {}  # by identity, with the original, so that it lives
        self._open: dict[int, _Frame] = {}
        self._cycles: dict[int, Path] = {}  # where nodes hold themselves

    def run(self, root: Any) -> Any:
        """The result for the root."""
        opened = self._start(root, ())
        if opened is None:
            return self._finish_leaf(root)
        frames = [opened]
        while True:
            frame = frames[-1]
            place = len(frame.results)
            if place < len(frame.children):
                child = frame.children[place]
                self._keys.append(frame.keys[place])
                opened = self._start(child, frame.within)
                if opened is not None:
                    frames.append(opened)
                    continue
                result = self._finish_leaf(child)
            else:
                result = self._finish(frame)
                frames.pop()
                if not frames:
                    return result
            frames[-1].results.append(result)
            self._keys.pop()

    def _start(self, value: Any, within: tuple[int, ...]) -> _Frame | None:
        """The frame of a value with children; None for others, and for nodes that were met before."""
        kind = kind_of(value)
        if kind is Kind.CONTAINER:
            return _Frame(value, kind, within)
        is_new = kind in NODES and id(value) not in self._results and id(value) not in self._open
        return self._open.setdefault(id(value), _Frame(value, kind, within)) if is_new else None

    def _finish_leaf(self, value: Any) -> Any:
        """The result for a value without children, or for a node that was met before."""
        known = self._results.get(id(value))
        if known is not None and known[0] is value:
            return known[1]
        if id(value) in self._open:
            self._cycles.setdefault(id(value), tuple(self._keys))
            return self._open[id(value)].made
        result = self._call(tuple(self._keys), _own(value))
        if kind_of(value) is Kind.VARIABLE or is_ref(value):
            self._results[id(value)] = (value, result)
        return result

    def _call(self, path: Path, value: Any) -> Any:
        return call_each("recursive_map", self._f, [path], [(path, value)])[0]

    def _finish(self, frame: _Frame) -> Any:
        """The result for a node or container whose children are all done."""
        path = tuple(self._keys)
        if frame.made is None:
            made = close_container(frame.how, frame.keys, frame.results)
            return self._call(path, made)
        for name, child, result in zip(frame.keys, frame.children, frame.results, strict=True):
            if result is not child:
                _put(frame.made, name, result, path)
        result = self._call(path, frame.made)
        cycle = self._cycles.get(id(frame.value))
        if cycle is not None and result is not frame.made:
            raise GraphError(
                format_path(path),
                "a node that holds itself cannot be replaced by recursive_map",
                expected="the node that the function got",
                got=f"{describe(result)}, for the node at {format_path(path)}, which is also at {format_path(cycle)}",
                why="its children were made before it, and refer to it already",
            )
        self._results[id(frame.value)] = (frame.value, result)
        del self._open[id(frame.value)]
        return result


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
