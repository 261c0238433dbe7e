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
from typing import Any

from declax import _epoch, _jax
from declax._attributes import wrong_trace
from declax._layout import BOUND_KEY, TRACE_KEY
from declax._pytree import Pytree
from declax._typing import MISSING, Path
from declax._variables import Variable
from declax.graph.defs import LEAF, NODE, OBJECT, VARIABLE, GraphDef, walk_tokens
from declax.graph.walk import Source, Walk, Watch, walk

_raw_value = attrgetter("raw_value")
_mark = attrgetter("_trace")


class Binding:
    """A graph bound to live objects.

    Holds Variables, but no nodes, so that a model that holds its binding is
    freed as soon as nobody refers to it.

    Attributes:
      graphdef: the structure.
      variables: the Variable of each leaf; None for other leaves.
      has_plain: whether there are leaves that are no Variable's.
      mark: the trace of all Variables, or `MISSING` where they differ.
    """

    __slots__ = (
        "__weakref__",
        "_constants",
        "_kept",
        "_live",
        "_objects",
        "_sources",
        "_token",
        "_watches",
        "graphdef",
        "has_plain",
        "mark",
        "variables",
    )

    def __init__(self, found: Walk, token: object) -> None:
        self.graphdef: GraphDef[Any] = found.graphdef
        self.variables: list[Variable[Any] | None] = found.boxes
        self.has_plain = found.has_plain
        self._sources: list[Source] = found.sources
        self._constants: list[Any] = []
        if self.has_plain:
            known = zip(found.leaves, found.boxes, found.sources, strict=True)
            self._constants = [leaf if box is None and source is None else None for leaf, box, source in known]
        self._watches: list[Watch] = found.watches
        self._live, self._kept = found.live, found.kept
        self._token = token
        self._objects = [o if isinstance(o, Variable) else weakref.ref(o) for o in found.objects]
        variables = [v for v in found.boxes if v is not None] if self.has_plain else found.boxes
        marks = {id(mark): mark for mark in map(_mark, variables)}
        self.mark: Any = next(iter(marks.values())) if len(marks) == 1 else MISSING

    def is_valid(self) -> bool:
        """Whether the graph is still as it was read."""
        if self._token is not _epoch.token or self._live != self._kept:
            return False
        return not self._watches or all(watch() for watch in self._watches)

    def read(self) -> list[Any]:
        """The raw value of each leaf now."""
        if not self.has_plain:
            return list(map(_raw_value, self.variables))
        return [
            variable.raw_value if variable is not None else _read(source, constant)
            for variable, source, constant in zip(self.variables, self._sources, self._constants, strict=True)
        ]

    def check_plain(self, position: int) -> None:
        """Checks that a leaf that is no Variable's may be set at this trace level.

        Raises:
          TraceContextError: where its node is of another one.
        """
        source = self.source(position)
        if source is not None and source[0].__dict__.get(TRACE_KEY, _jax.TOP) is not _jax.current_trace():
            raise wrong_trace(source[0], source[1])

    def write_plain(self, position: int, value: Any) -> None:
        """Sets a leaf that is no Variable's, where it sits in a node."""
        source = self._sources[position]
        assert source is not None  # leaves inside of containers are written with their container
        owner: Any = source[0]()
        if owner is not None:
            owner.__dict__[source[1]] = value

    def is_in_container(self, position: int) -> bool:
        """Whether a leaf sits in a container, not in a node."""
        return self.variables[position] is None and self._sources[position] is None

    def source(self, position: int) -> tuple[Pytree, Any] | None:
        """The node and the attribute of a leaf that is no Variable's."""
        source = self._sources[position]
        owner = source[0]() if source is not None else None
        return None if source is None or owner is None else (owner, source[1])

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
            if token[0] in (VARIABLE, NODE, OBJECT):
                if token[0] != VARIABLE:
                    owners[path] = count
                count += 1
        return found


def _read(source: Source, constant: Any) -> Any:
    if source is None:
        return constant
    owner = source[0]()
    assert owner is not None  # a node of a graph that the caller holds
    return owner.__dict__[source[1]]


class _Cache(dict[tuple[int, ...], tuple[Binding, tuple["weakref.ref[Any]", ...]]]):
    """The bindings that start at a node, by the identities of further roots."""

    __slots__ = ("__weakref__",)


def bind(root: Any) -> Binding:
    """The binding of the graph below a value.

    Raises:
      StatusError: for a static value that cannot be hashed.
    """
    if isinstance(root, Pytree):
        return _bind_cached(root, root, ())
    return _bind_anew(root)


def bind_many(roots: tuple[Any, ...]) -> Binding:
    """The binding of several graphs at once, in which they may share.

    The root of the GraphDef is the tuple.
    """
    if roots and isinstance(roots[0], Pytree):
        return _bind_cached(roots[0], roots, roots[1:] or (roots[0],))
    return _bind_anew(roots)


def _bind_anew(value: Any) -> Binding:
    token = _epoch.token  # before reading: a change meanwhile makes the binding invalid
    return Binding(walk(value), token)


def _bind_cached(first: Any, value: Any, others: tuple[Any, ...]) -> Binding:
    attributes = first.__dict__
    cache: _Cache | None = attributes.get(BOUND_KEY)
    key = tuple(map(id, others))
    if cache is not None:
        entry = cache.get(key)
        if entry is not None and entry[0].is_valid():
            return entry[0]
    token = _epoch.token
    binding = Binding(walk(value, is_binding=True), token)
    cache = attributes.get(BOUND_KEY)
    if cache is None:
        cache = attributes[BOUND_KEY] = _Cache()
    for stale in [k for k, (kept, _) in tuple(cache.items()) if kept._token is not token]:
        cache.pop(stale, None)  # it may hold Variables that the graph has no more
    cache[key] = (binding, _watch_deaths(cache, key, first, others))
    return binding


def _watch_deaths(cache: _Cache, key: tuple[int, ...], first: Any, others: Sequence[Any]) -> tuple[Any, ...]:
    """References that drop a binding when one of its other roots dies."""
    drop: Callable[[Any], object] = partial(_drop, weakref.ref(cache), key)
    return tuple(weakref.ref(other, drop) for other in others if other is not first)


def _drop(cache_ref: weakref.ref[_Cache], key: tuple[int, ...], _: object) -> None:
    cache = cache_ref()
    if cache is not None:
        cache.pop(key, None)
