"""New graphs from existing ones, by functions of what they hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from copy import copy
from typing import Any, TypeVar

import jax

from declax import _jax
from declax._classes.pytree import layout_of, set_layout
from declax._fields.snapshots import freeze, thaw
from declax._graph.binding import bind
from declax._graph.flattening import VARIABLE, GraphDef, variable_token
from declax._graph.nodes import (
    Kind,
    children_of,
    close_container,
    enter_container,
    is_number,
    is_ref,
    kind_of,
    object_names,
    open_container,
)
from declax._graph.unflattening import build
from declax._modes import is_graph
from declax._state.definition import LeafDef, call_each
from declax._state.states import make_state
from declax._tree.attributes import admit
from declax._tree.layout import LAYOUT_KEY, TRACE_KEY, blank_maker
from declax._typing import Path
from declax._variables.variable import Variable
from declax.errors import (
    FieldError,
    GraphError,
    StatusError,
    describe,
    format_path,
    type_name,
)

N = TypeVar("N")

# --- leaves --------------------------------------------------------------------


def map(f: Callable[[Path, Any], Any], node: N, /, *, graph: bool | None = None) -> N:  # noqa: A001  # the peers' name
    """A new graph of the same structure whose leaves are ``f(path, value)``.

    Each leaf is seen once, under its first path; what is shared stays shared.

    Args:
      f: gets a path and a leaf: a Variable of its own where the leaf is in one,
        which it may change, otherwise the array. What it returns in the place
        of a Variable is a Variable, of any kind and with any metadata, or a raw
        value, which gets the kind and the metadata of the old one. In the place
        of an array it returns an array or a number.
      node: a model, or a container of models.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Returns:
      The new graph, with Variables of its own. It shares the arrays that `f`
      hands on.

    Raises:
      GraphError: for a result that cannot stand where the leaf was, as None
        where nothing was returned; and for a graph where a tree is asked for.

    >>> from declax._module.module import Module
    >>> from declax._variables.variable import Param
    >>> m = Module()
    >>> m.scale = Param(2.0)
    >>> n = map(lambda path, v: v.replace(v.value + 1, tag=path[0]), m)
    >>> m.scale.value, n.scale.value, n.scale.tag
    (2.0, 3.0, 'scale')
    """
    check_function("map", f)
    binding = bind(node, graph)
    graphdef = binding.graphdef
    leaves: list[Any] = []
    leaf_defs: list[LeafDef] = []
    own = list(jax.tree.map(lambda leaf: leaf, binding.read()))  # f may change what a Variable holds
    flat = make_state(graphdef.definition, own).flat_state()
    for (path, value), result in zip(flat, call_each("map", f, flat.paths, flat), strict=True):
        if isinstance(value, Variable):
            leaf, leaf_def = _in_variable(path, value, result)
            leaf_defs.append(leaf_def)
        else:
            assert binding.plain is not None  # this leaf is no Variable's
            is_in_container = binding.plain.is_in_container(len(leaves))
            leaf = _checked_plain(path, value, result, is_in_container=is_in_container)
        leaves.append(leaf)
    root: N = build(_with_leaf_defs(graphdef, leaf_defs), leaves)
    return root


def check_function(where: str, f: object) -> None:
    """Checks that the first argument is a function, and not a model."""
    if not callable(f) or kind_of(f) in (Kind.NODE, Kind.OBJECT):
        problem, fix = "the first argument has to be a function of path and value", f"dx.{where}(function, model)"
        raise GraphError(where, problem, got=describe(f), fix=fix)


def _with_leaf_defs(graphdef: GraphDef[Any], leaf_defs: list[LeafDef]) -> GraphDef[Any]:
    """The same structure with other kinds and metadata of its Variables."""
    tokens = list(graphdef.tokens)
    found = iter(leaf_defs)
    for place, token in enumerate(tokens):
        if isinstance(token, tuple) and token[0] == VARIABLE:
            leaf_def = next(found)
            assert leaf_def is not None  # of a Variable
            tokens[place] = variable_token(*leaf_def)
    same = all(new is old or new == old for new, old in zip(tokens, graphdef.tokens, strict=True))
    return graphdef if same else GraphDef.of(tuple(tokens))


def _in_variable(path: Path, old: Variable[Any], result: Any) -> tuple[Any, LeafDef]:
    """The raw value that a result puts into a Variable, and its kind and metadata."""
    if isinstance(result, Variable):
        return result.raw_value, (type(result), result._metadata)
    if not (_is_plain(result) if result is not None else old.raw_value is None):
        raise _misfit(
            path, f"a {type_name(type(old))}", "a Variable, an array, a number or a container of such", result
        )
    return result, (type(old), old._metadata)


def _checked_plain(path: Path, old: Any, result: Any, *, is_in_container: bool) -> Any:
    """A result for a leaf in no Variable."""
    if is_ref(old) or is_ref(result):
        if not (is_ref(old) and is_ref(result)):
            wanted = "a ref" if is_ref(old) else "an array"
            raise _misfit(path, wanted, wanted, result)
    elif not (kind_of(result) is Kind.LEAF or (is_number(result) and not is_in_container)):
        raise _misfit(path, "an array", "an array" if is_in_container else "an array or a number", result)
    return result


def _misfit(path: Path, place: str, expected: str, result: Any) -> GraphError:
    return GraphError(
        format_path(path),
        f"the function of map gave what cannot take the place of {place}",
        expected=expected,
        got=describe(result),
        why="map keeps the structure; recursive_map changes it",
        fix="return value        # for what stays as it is" if result is None else None,
    )


def _is_plain(value: Any) -> bool:
    """Whether a value is an array, a number, or a container of nothing else."""
    seen: set[int] = set()
    stack = [value]
    while stack:
        value = stack.pop()
        kind = kind_of(value)
        if kind is Kind.CONTAINER:
            if id(value) not in seen:
                seen.add(id(value))
                stack.extend(child for _, child in children_of(value) if child is not None)
        elif not (kind is Kind.LEAF or kind is Kind.REF or is_number(value)):
            return False
    return True


# --- nodes and leaves ----------------------------------------------------------


def recursive_map(f: Callable[[Path, Any], Any], node: Any, /, *, graph: bool | None = None) -> Any:
    """A new graph in which each node and leaf is what ``f(path, value)`` gives for it.

    Children come before what holds them, static values too, in the order of
    `iter_graph`. What is shared is seen once, under its first path, and its
    result is shared. `f` gets new nodes that already have the results of what
    is inside, and the original Variables. So it may change the nodes, but a
    change of a Variable is one of the original.

    Where a node holds itself, `f` sees it inside before it is complete: with
    the children of the original. For such a node `f` has to return what it got.

    Args:
      f: gets a path and a value, and returns what takes its place: the value
        itself, or any other that its place can hold.
      node: a model, or a container of models.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Returns:
      What `f` gives for the node itself.

    Raises:
      GraphError: for data in the place of a static value; for a node in a
        cycle that is replaced, with both of its paths; for a function that
        returns nothing; for a graph where a tree is asked for.

    >>> from declax._module.module import Module
    >>> from declax._variables.variable import Param
    >>> m = Module()
    >>> m.scale, m.dim = Param(2.0), 3
    >>> n = recursive_map(lambda path, value: 4 if path == ("dim",) else value, m)
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
            "the function gave None for the root",
            got=f"None, for {describe(node)}",
            fix="return value        # for what stays as it is",
        )
    return result


_NODES = frozenset({Kind.NODE, Kind.OBJECT})


class _Frame:
    """A node or container whose children are on their way.

    Of a node, `made` is the new one; a container is made at the end, by `how`. `within` are the containers around what
    is inside, up to the nearest node.
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
    own = made.__dict__
    own.update(attributes)
    if LAYOUT_KEY in value.__dict__:
        own[LAYOUT_KEY] = value.__dict__[LAYOUT_KEY]
    mark = _jax.current_trace()
    if mark is not _jax.TOP:
        own[TRACE_KEY] = mark
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
        """What takes the place of the root."""
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
        if kind not in _NODES or id(value) in self._results or id(value) in self._open:
            return None
        frame = self._open[id(value)] = _Frame(value, kind, within)
        return frame

    def _finish_leaf(self, value: Any) -> Any:
        """The result of what has no children, or was met before."""
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
        """The result of a node or container whose children are all there."""
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
            raise _cycle_is_replaced(path, cycle, result)
        self._results[id(frame.value)] = (frame.value, result)
        del self._open[id(frame.value)]
        return result


def _own(value: Any) -> Any:
    """A copy of a static value that can be changed in place, so that no change of one graph shows in the other."""
    if not isinstance(value, _MUTABLE):
        return value
    try:
        return thaw(freeze(value))
    except StatusError:  # an Object may hold what is no static value
        return copy(value)


_MUTABLE = (set, deque, bytearray)
"""Static values that are no containers to a graph; lists and dicts are made anew anyway."""


def _put(made: Any, name: Any, result: Any, path: Path) -> None:
    """Sets an attribute of a new node, by the rules of an assignment."""
    try:
        _, value, layout = admit(made, name, result, layout_of(made))
    except (StatusError, FieldError) as error:
        raise GraphError(
            format_path((*path, name)),
            "the function of recursive_map gave what its place cannot hold",
            got=describe(result),
            why=str(error),
        ) from error
    set_layout(made, layout)
    made.__dict__[name] = value


def _cycle_is_replaced(path: Path, cycle: Path, result: Any) -> GraphError:
    return GraphError(
        format_path(path),
        "a node that holds itself cannot be replaced by recursive_map",
        expected="the node that the function was given",
        got=f"{describe(result)}, for the node at {format_path(path)}, which is also at {format_path(cycle)}",
        why="what is inside of the node refers to it already, and was made before",
    )


__all__ = ["map", "recursive_map"]
