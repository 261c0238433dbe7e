"""Bindings: readings of graphs, kept for as long as the structure stays the same.

A binding is kept in the ``__dict__`` of the node at which it starts. It is valid while the epoch stays the same and
nothing that it watches has changed. Writes to leaves without a Variable are not seen: these are read at each call.
"""

from __future__ import annotations

import operator
import sys
import warnings
import weakref
from collections.abc import Callable
from functools import cached_property, partial
from operator import attrgetter
from types import FunctionType
from typing import Any

from declax import _jax
from declax._classes.pytree import Pytree
from declax._graph.cells import Attribute, Cells
from declax._graph.flattening import HAS_INDEX, LEAF, NODE, OBJECT, Contents, GraphDef, Walk, walk, walk_tokens
from declax._graph.nodes import not_a_tree
from declax._graph.orders import Orders, orders_of
from declax._modes import is_graph, is_graph_mode
from declax._tree import epoch
from declax._tree.epoch import committing
from declax._tree.layout import BOUND_KEY
from declax._tree.moment import Moment, read_with
from declax._tree.statuses import check_depth
from declax._typing import MISSING, Path
from declax._variables.donation import check_alive
from declax._variables.variable import Variable
from declax.errors import GraphError, StaleValueWarning, describe, format_path, type_name

_token_of = attrgetter("_trace")
_call: Any = operator.call


class Binding:
    """A graph bound to live objects.

    It holds Variables, but no nodes, so that a model that holds its binding is freed as soon as nobody refers to it.

    Attributes:
      graphdef: the structure.
      cells: the cells of its leaves.
      trace_token: the trace of all Variables, or `MISSING` if they differ.
      is_fixed: whether the epoch alone shows that the graph is the same.
      is_kept: whether values are kept for a write epoch: all leaves have Variables outside of traces.
    """

    def __init__(self, found: Walk, token: object, contents: Contents | None = None) -> None:
        self.graphdef: GraphDef[Any] = found.graphdef
        self.cells: Cells = Cells(found.cells)
        self._watches: list[Callable[[], bool]] = found.watches
        self.is_fixed: bool = not found.watches
        self._token = token
        self._contents = contents
        self._objects = found.objects  # a Walk is made to be bound once
        for index in found.nodes:
            self._objects[index] = weakref.ref(self._objects[index])
        variables = self.cells.variables
        is_one = len(set(map(id, map(_token_of, variables)))) == 1
        self.trace_token: Any = _token_of(variables[0]) if is_one else MISSING
        self.is_kept: bool = variables is self.cells and self.trace_token is _jax.TOP

    def __del__(self, epoch: Any = epoch) -> None:
        kept = epoch.kept
        if kept:
            kept.pop(id(self), None)

    def is_valid(self) -> bool:
        """Whether the graph is still as it was read."""
        return self._token is epoch.token and (not self._watches or all(map(_call, self._watches)))

    def is_as_read(self) -> bool:
        """Whether the nodes still have the attributes that they had, whoever wrote them."""
        return self._contents is None or self._contents.are_same()

    def sees_other_writes(self) -> bool:
        """Ends the epoch if attributes were written past ``__setattr__``, and warns of it."""
        if self.is_as_read():
            return False
        with committing:  # a call that commits sets attributes before it ends the epoch
            if self._token is not epoch.token:
                return True
        epoch.advance()
        written = None if self._contents is None else self._contents.written()
        if written is not None:
            warnings.warn(
                f"{written} was written past `__setattr__`, as by `vars(model)[...] = value`. Calls of the compiled "
                "function before this one may have used the old value. Assign it: model.name = value",
                StaleValueWarning,
                stacklevel=_jax.level_of_user(sys._getframe()),
            )
        return True

    def read(self) -> list[Any]:
        """The raw value of each leaf now."""
        return self.cells.read()

    def values(self) -> tuple[Any, ...] | None:
        """As `read`, but never between the writes of a compiled call; kept until a Variable is written.

        None if the structure has changed since it was read: the values may be those of another step then.
        """
        kept = epoch.kept
        found = kept.get(id(self)) if kept else None
        if found is None:
            with committing:
                if self._token is not epoch.token:  # by a call that committed before this one had the lock
                    return None
                found = tuple(self.cells.read())
            if kept is not None and self.is_kept:
                kept[id(self)] = found
        return found

    def check_depth(self) -> None:
        """Checks that no container in a Variable has grown too deep for JAX since it was assigned."""
        for path, leaf in zip(self.graphdef.definition.paths, self.read(), strict=True):
            if isinstance(leaf, (list, tuple, dict)):
                check_depth(leaf, format_path(path))

    def objects(self) -> list[Any]:
        """The Variables and nodes by index."""
        return [o() if isinstance(o, weakref.ref) else o for o in self._objects]

    @cached_property
    def orders(self) -> Orders:
        """The orders of the attributes of the nodes."""
        nodes: dict[int, Any] = {}
        for index, known in enumerate(self._objects):
            if isinstance(known, weakref.ref) and (node := known()) is not None:
                nodes[index] = node
        return orders_of(nodes)

    def identities(self) -> list[Any]:
        """The identity of each leaf, whatever it is reached from: its Variable, or its nearest node and the path."""
        nodes: dict[Path, Any] = {}
        found: list[Any] = []
        objects, cells = iter(self.objects()), iter(self.cells)
        for path, token in walk_tokens(self.graphdef.tokens):
            if isinstance(token, int):
                continue
            value = next(objects) if token[0] in HAS_INDEX else None
            if token[0] in (NODE, OBJECT):
                nodes[path] = value
            elif token[0] <= LEAF:
                cell = next(cells)
                depth = next((d for d in range(len(path), -1, -1) if path[:d] in nodes), 0)
                is_variable = isinstance(cell, Variable)
                found.append(id(cell) if is_variable else (id(nodes.get(path[:depth])), path[depth:]))
        return found


class _BindingCache(dict[tuple[int, ...], tuple[Binding, tuple["weakref.ref[Any]", ...]]]):
    """The bindings that start at a node, by the number of roots and the identities of the others.

    With each come references to the other roots, which drop it when one of them dies.
    """

    __slots__ = ("__weakref__",)


def bind(root: Any, graph: bool | None = True) -> Binding:
    """The binding of the graph below a value."""
    binding = _bind_cached(root, root, ()) if isinstance(root, Pytree) else _bind_anew(root)
    if graph is not True:
        check_mode(binding.graphdef, graph)
    return binding


def check_mode(graphdef: GraphDef[Any], graph: bool | None) -> None:
    """Checks that a graph is a tree, where that is asked for."""
    if not (is_graph_mode() if graph is None else is_graph(graph)) and graphdef.shared is not None:
        raise not_a_tree(*graphdef.shared)


def bind_many(roots: tuple[Any, ...]) -> Binding:
    """The binding of several graphs that may share objects; the root of the GraphDef is the tuple."""
    if roots and isinstance(roots[0], Pytree):
        return _bind_cached(roots[0], roots, roots[1:], len(roots))
    return _bind_anew(roots)


def bind_as_written(roots: tuple[Any, ...]) -> Binding:
    """As `bind_many`, and sees attributes that were written past ``__setattr__``; compares those of all nodes."""
    binding = bind_many(roots)
    if binding.is_as_read():
        return binding
    epoch.advance()
    return bind_many(roots)


def bind_and_read(bind: Callable[..., Binding], *args: Any) -> tuple[Binding, tuple[Any, ...]]:
    """A binding, made by a function of these arguments, and the values of its leaves between two compiled calls."""
    binding = bind(*args)
    values = binding.values()
    if values is None:
        with committing:  # so that no compiled call changes the structure again
            binding = bind(*args)
            values = tuple(binding.read())
    return binding, values


def _moment_of(root: Any) -> Moment:
    """What `pickle` writes of a graph."""
    binding, leaves = bind_and_read(bind, root)
    values: dict[int, Any] = {}
    attributes: dict[int, dict[Any, Any]] = {}
    places: dict[Any, str] = {}
    for path, cell, leaf in zip(binding.graphdef.definition.paths, binding.cells, leaves, strict=True):
        place = f"{type_name(type(root))}, {format_path(path)}"
        check_alive(place, leaf)
        if isinstance(cell, Variable):
            values[id(cell)] = leaf
            places[id(cell)] = place
        elif isinstance(cell, Attribute):
            attributes.setdefault(id(cell.owner()), {})[cell.name] = leaf
            places[id(cell.owner()), cell.name] = place
    return Moment(root, {id(found): found for found in binding.objects()}, values, attributes, places, {})


read_with(_moment_of)


def _bind_anew(value: Any) -> Binding:
    token = epoch.token  # before reading: a change meanwhile makes the binding invalid
    if isinstance(value, _NO_MODELS):
        raise GraphError(
            "the node",
            "this is not a model",
            expected="a Module, a Variable, an array, or a container of such",
            got=describe(value),
        )
    return Binding(walk(value), token)


_NO_MODELS = (type, str, bytes, FunctionType, GraphDef)
"""Values without leaves that are given in place of a model by mistake."""


def _bind_cached(first: Any, value: Any, others: tuple[Any, ...], count: int = 0) -> Binding:
    """The binding of a value that starts at a node."""
    attributes = first.__dict__
    cache: _BindingCache | None = attributes.get(BOUND_KEY)
    key = (count, *map(id, others))
    if cache is not None:
        entry = cache.get(key)
        if entry is not None and entry[0].is_valid() and (count or entry[0].is_as_read()):
            return entry[0]
        valid = [kept for kept, _ in tuple(cache.values()) if kept._token is epoch.token]
        if count == 0 and not all(kept.is_as_read() for kept in valid):
            epoch.advance()
    token = epoch.token
    found = walk(value, is_binding=True)
    if token is not epoch.token:  # what was written past `__setattr__` has its status now
        token, found = epoch.token, walk(value, is_binding=True)
    binding = Binding(found, token, Contents([found.objects[index] for index in found.nodes]))
    cache = attributes.get(BOUND_KEY)
    if cache is None:
        cache = attributes[BOUND_KEY] = _BindingCache()
    for stale in [k for k, (kept, _) in tuple(cache.items()) if kept._token is not token] if cache else ():
        cache.pop(stale, None)  # it may hold Variables that the graph has no more
    drop: Callable[[Any], object] = partial(_drop, weakref.ref(cache), key)
    cache[key] = binding, tuple([weakref.ref(other, drop) for other in others if other is not first])
    return binding


def _drop(cache_ref: weakref.ref[_BindingCache], key: tuple[int, ...], _: object) -> None:
    cache = cache_ref()
    if cache is not None:
        cache.pop(key, None)
