"""Keeps what was read from a graph for as long as its structure stands.

Vocabulary
----------
binding: a GraphDef with the live Variables that its leaves belong to. Valid
         while the epoch stands still and nothing that it watches has changed.
cache:   the bindings that start at one node, kept in that node's ``__dict__``,
         so that they live and die with it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from types import FunctionType
from typing import Any

from declax import _epoch, _jax
from declax._layout import BOUND_KEY
from declax._modes import is_graph, is_graph_mode
from declax._pytree import Pytree
from declax._threads import committing
from declax._typing import MISSING, Path
from declax._values import check_depth
from declax._variables import Variable, raw_values
from declax.errors import GraphError, describe, format_path
from declax.graph.contents import Contents
from declax.graph.defs import HAS_INDEX, LEAF, NODE, OBJECT, GraphDef, walk_tokens
from declax.graph.plain_leaves import PlainLeaves
from declax.graph.walk import Walk, Watch, walk

_mark = attrgetter("_trace")


class Binding:
    """A graph bound to live objects.

    Holds Variables, but no nodes, so that a model that holds its binding is
    freed as soon as nobody refers to it.

    Attributes:
      graphdef: the structure.
      variables: the Variable of each leaf; None for other leaves.
      plain: the leaves with those that are no Variable's; None where all are.
      mark: the trace of all Variables, or `MISSING` where they differ.
      is_fixed: whether the epoch alone tells that the graph stands.
      is_kept: whether values are kept for a write epoch: all are of Variables outside of traces.
    """

    __slots__ = (
        "__weakref__",
        "_contents",
        "_kept",
        "_live",
        "_objects",
        "_token",
        "_watches",
        "_written",
        "graphdef",
        "is_fixed",
        "is_kept",
        "mark",
        "plain",
        "variables",
    )

    def __init__(self, found: Walk, token: object, contents: Contents | None = None) -> None:
        self.graphdef: GraphDef[Any] = found.graphdef
        self.variables: list[Variable[Any] | None] = found.boxes
        self.plain: PlainLeaves | None = PlainLeaves(found.plain, found.boxes) if found.plain else None
        self._watches: list[Watch] = found.watches
        self._live, self._kept = found.live, found.kept
        self.is_fixed = not (found.watches or found.live)
        self._token = token
        self._contents = contents
        self._objects = found.objects  # a Walk is made to be bound once
        for index in found.nodes:
            self._objects[index] = weakref.ref(self._objects[index])
        variables = [v for v in found.boxes if v is not None] if found.plain else found.boxes
        is_one = len(set(map(id, map(_mark, variables)))) == 1
        self.mark: Any = _mark(variables[0]) if is_one else MISSING
        self.is_kept = self.plain is None and self.mark is _jax.TOP
        self._written: tuple[tuple[int, ...], list[Variable[Any] | None]] = ((), [])

    def __del__(self, epoch: Any = _epoch) -> None:
        kept = epoch.kept
        if kept:
            kept.pop(id(self), None)

    def is_valid(self) -> bool:
        """Whether the graph is still as it was read."""
        if self._token is not _epoch.token or self._live != self._kept:
            return False
        return not self._watches or all(watch() for watch in self._watches)

    def is_as_read(self) -> bool:
        """Whether the nodes still have the attributes that they had, whoever wrote them."""
        return self._contents is None or self._contents.are_same()

    def read(self) -> list[Any]:
        """The raw value of each leaf now."""
        return raw_values(self.variables) if self.plain is None else self.plain.read()

    def values(self) -> tuple[Any, ...]:
        """As `read`, with no compiled call half written; kept until a Variable is written."""
        kept = _epoch.kept
        found = kept.get(id(self)) if kept else None
        if found is None:
            with committing:
                found = tuple(self.read())
            if kept is not None and self.is_kept:
                kept[id(self)] = found
        return found

    def variables_at(self, positions: tuple[int, ...]) -> list[Variable[Any] | None]:
        """The Variables of some leaves; remembers those that were asked for last, as a loop writes the same ones."""
        known, variables = self._written
        if known is not positions:
            variables = [self.variables[i] for i in positions]
            self._written = positions, variables
        return variables

    def check_depth(self) -> None:
        """Checks that no Variable holds containers that are nested too deeply for JAX.

        What a Variable is given is checked then; this finds what has grown in
        place since. To be called when JAX could not take the leaves apart.

        Raises:
          DepthError: one does; names its path.
        """
        for path, leaf in zip(self.graphdef.definition.paths, self.read(), strict=True):
            if isinstance(leaf, (list, tuple, dict)):
                check_depth(leaf, format_path(path))

    def objects(self) -> list[Any]:
        """The Variables and nodes by index."""
        return [o() if isinstance(o, weakref.ref) else o for o in self._objects]

    def identities(self) -> list[Any]:
        """For each leaf, what it is wherever it is reached from.

        A Variable's leaf is its Variable; another leaf is its nearest node and
        the path from there.
        """
        objects = self.objects()
        owners: dict[Path, int] = {}
        found: list[Any] = []
        count = 0
        for path, token in walk_tokens(self.graphdef.tokens):
            if isinstance(token, int):
                continue
            if token[0] <= LEAF:
                variable = self.variables[len(found)]
                depth = next((d for d in range(len(path), -1, -1) if path[:d] in owners), None)
                owner = None if depth is None else id(objects[owners[path[:depth]]])
                found.append(id(variable) if variable is not None else (owner, path[depth or 0 :]))
            if token[0] in HAS_INDEX:
                if token[0] in (NODE, OBJECT):
                    owners[path] = count
                count += 1
        return found


class _Cache(dict[tuple[int, ...], tuple[Binding, tuple["weakref.ref[Any]", ...]]]):
    """The bindings that start at a node, by the number of roots and the identities of the further ones."""

    __slots__ = ("__weakref__",)


def bind(root: Any, graph: bool | None = True) -> Binding:
    """The binding of the graph below a value.

    Args:
      root: the value.
      graph: False where it has to be a tree; None for the default of the mode.

    Raises:
      StatusError: for a static value that cannot be hashed.
      GraphError: for a graph where a tree is asked for, and for a `graph` that
        is no flag.
    """
    binding = _bind_cached(root, root, ()) if isinstance(root, Pytree) else _bind_anew(root)
    if graph is not True:
        check_mode(binding.graphdef, graph)
    return binding


def check_mode(graphdef: GraphDef[Any], graph: bool | None) -> None:
    """Checks that a graph is a tree, where that is asked for.

    Args:
      graphdef: the description of the graph.
      graph: False where it has to be a tree; None for the default of the mode.

    Raises:
      GraphError: names both paths of the first thing that is shared. Also for
        a `graph` that is no flag.
    """
    wanted = is_graph_mode() if graph is None else graph
    if wanted is not True and not is_graph(graph) and graphdef.shared is not None:
        raise not_a_tree(*graphdef.shared)


def not_a_tree(first: Path, second: Path) -> GraphError:
    """The error of a shared thing where a tree is asked for."""
    is_cycle = second[: len(first)] == first
    return GraphError(
        format_path(second),
        "this is " + ("a node that holds itself" if is_cycle else "reached twice") + ", so the argument is no tree",
        got=f"the same object at {format_path(first)} and at {format_path(second)}",
        why="graph=False, or dx.set_graph_mode(False), asks for a tree, in which nothing is shared",
        fix="graph=True        # keeps what is shared",
    )


def bind_many(roots: tuple[Any, ...]) -> Binding:
    """The binding of several graphs at once, in which they may share.

    The root of the GraphDef is the tuple.
    """
    if roots and isinstance(roots[0], Pytree):
        return _bind_cached(roots[0], roots, roots[1:], len(roots))
    return _bind_anew(roots)


def _bind_anew(value: Any) -> Binding:
    token = _epoch.token  # before reading: a change meanwhile makes the binding invalid
    if isinstance(value, _NO_MODELS):
        raise GraphError(
            "the node",
            "this is no model",
            expected="a Module, a Variable, an array, or a container of such",
            got=describe(value),
        )
    return Binding(walk(value), token)


_NO_MODELS = (type, str, bytes, FunctionType, GraphDef)
"""What is given in place of a model by mistake: it has no leaves, so that nothing would happen."""


def _bind_cached(first: Any, value: Any, others: tuple[Any, ...], count: int = 0) -> Binding:
    """The binding of a value that starts at a node.

    Args:
      first: the node, which keeps the binding.
      value: the node itself, or a tuple that begins with it.
      others: what else is in the tuple.
      count: the length of the tuple; 0 for the node itself.
    """
    attributes = first.__dict__
    cache: _Cache | None = attributes.get(BOUND_KEY)
    key = (count, *map(id, others))
    if cache is not None:
        entry = cache.get(key)
        if entry is not None and entry[0].is_valid() and (count or entry[0].is_as_read()):
            return entry[0]
        if count == 0 and not _are_as_read(cache):
            _epoch.advance()
    token = _epoch.token
    found = walk(value, is_binding=True)
    if token is not _epoch.token:  # what was written past `__setattr__` has its status now
        token, found = _epoch.token, walk(value, is_binding=True)
    binding = Binding(found, token, Contents([found.objects[index] for index in found.nodes]))
    cache = attributes.get(BOUND_KEY)
    if cache is None:
        cache = attributes[BOUND_KEY] = _Cache()
    for stale in [k for k, (kept, _) in tuple(cache.items()) if kept._token is not token]:
        cache.pop(stale, None)  # it may hold Variables that the graph has no more
    cache[key] = (binding, _watch_deaths(cache, key, first, others))
    return binding


def _are_as_read(cache: _Cache) -> bool:
    """Whether the nodes still have the attributes that the valid bindings of a cache know."""
    return all(kept.is_as_read() for kept, _ in tuple(cache.values()) if kept._token is _epoch.token)


def _watch_deaths(cache: _Cache, key: tuple[int, ...], first: Any, others: Sequence[Any]) -> tuple[Any, ...]:
    """References that drop a binding when one of its other roots dies."""
    drop: Callable[[Any], object] = partial(_drop, weakref.ref(cache), key)
    return tuple(weakref.ref(other, drop) for other in others if other is not first)


def _drop(cache_ref: weakref.ref[_Cache], key: tuple[int, ...], _: object) -> None:
    cache = cache_ref()
    if cache is not None:
        cache.pop(key, None)
