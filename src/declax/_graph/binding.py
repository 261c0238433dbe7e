"""Bindings: readings of graphs, kept for as long as the structure stays the same.

A binding is kept in the ``__dict__`` of the node at which it starts. It is valid while the epoch stays the same and
nothing that it watches has changed. Writes to leaves without a Variable are not seen: these are read at each call.
"""

from __future__ import annotations

import operator
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import attrgetter, itemgetter, setitem
from types import FunctionType
from typing import Any, NamedTuple

from declax import _jax
from declax._classes.pytree import Pytree
from declax._graph.flattening import HAS_INDEX, LEAF, NODE, OBJECT, Contents, GraphDef, Source, Walk, walk, walk_tokens
from declax._graph.nodes import not_a_tree
from declax._graph.unflattening import check_trace_tokens, publish
from declax._modes import is_graph, is_graph_mode
from declax._tree import epoch
from declax._tree.attributes import wrong_trace
from declax._tree.epoch import committing
from declax._tree.layout import BOUND_KEY, TRACE_KEY
from declax._tree.moment import Moment, read_with
from declax._tree.statuses import check_depth
from declax._typing import MISSING, Path
from declax._variables.variable import Variable, raw_values, set_all_raw
from declax.errors import GraphError, describe, format_path


class _Grouped(NamedTuple):
    """Leaves at some positions, those with a Variable apart from those in nodes; ranks are places in the positions.

    Attributes:
      variables, variable_ranks: the Variables, and their ranks.
      nodes: a reference to each node, and how many of the leaves it has.
      names, ranks: the attributes of all nodes in turn, and their ranks.
    """

    positions: Sequence[int]
    variables: list[Variable[Any]]
    variable_ranks: list[int]
    nodes: list[tuple[weakref.ref[Pytree], int]]
    names: list[Any]
    ranks: list[int]


class ArrayLeaves:
    """Reads and writes the leaves of a graph of which some have no Variable."""

    __slots__ = ("_constants", "_order", "_read", "_sources", "_variables", "_written")

    def __init__(self, found: Mapping[int, tuple[Any, Source]], variables: Sequence[Variable[Any] | None]) -> None:
        self._variables = variables
        self._sources: dict[int, Source] = {i: source for i, (_, source) in found.items()}
        self._constants = {i: value for i, (value, source) in found.items() if source is None}
        self._read: tuple[list[Variable[Any]], list[tuple[Callable[[], Any], _Getter]]] | None = None
        self._order: _Getter = tuple
        self._written: tuple[_Grouped, _Getter, _Getter] | None = None

    def read(self) -> list[Any]:
        """The value of each leaf now, Variables included."""
        if self._read is None:
            self._read = self._prepare()
        variables, readers = self._read
        leaves = raw_values(variables)
        try:
            for owner, get in readers:
                leaves += get(owner().__dict__)
        except (KeyError, AttributeError):  # another thread has removed one
            return [self._read_one(i) if found is None else found.raw_value for i, found in enumerate(self._variables)]
        leaves += self._constants.values()
        return list(self._order(leaves))

    def _prepare(self) -> tuple[list[Variable[Any]], list[tuple[Callable[[], Any], _Getter]]]:
        _, variables, variable_ranks, nodes, names, ranks = self._group(range(len(self._variables)))
        order = [*variable_ranks, *ranks, *self._constants]
        self._order = _getter(sorted(range(len(order)), key=order.__getitem__))
        rest = iter(names)
        return variables, [(owner, _getter([*islice(rest, count)])) for owner, count in nodes]

    def _read_one(self, position: int) -> Any:
        """The value of a leaf without a Variable; `MISSING` if it was removed."""
        source = self._sources[position]
        if source is None:
            return self._constants[position]
        owner = source[0]()
        assert owner is not None  # a node of a graph that the caller holds
        return owner.__dict__.get(source[1], MISSING)

    def attributes(self, leaves: Sequence[Any]) -> dict[int, dict[str, Any]]:
        """The leaves that are attributes of objects, by the identity of the object."""
        found: dict[int, dict[str, Any]] = {}
        for position, source in self._sources.items():
            owner = source[0]() if source is not None and self._variables[position] is None else None
            if source is not None and owner is not None:
                found.setdefault(id(owner), {})[source[1]] = leaves[position]
        return found

    def check(self, position: int) -> None:
        """Checks that a leaf may be set at this trace level."""
        source = self._sources.get(position)
        owner = source[0]() if source is not None else None
        if source is None or owner is None:
            return
        if owner.__dict__.get(TRACE_KEY, _jax.TOP) is not _jax.current_trace():
            raise wrong_trace(owner, source[1])

    def write(self, positions: tuple[int, ...], new: Iterable[Any]) -> None:
        """Sets leaves, none of them in a container."""
        written = self._written  # read once: another thread may write others
        if written is None or written[0].positions is not positions:
            grouped = self._group(positions)
            written = self._written = grouped, _getter(grouped.variable_ranks), _getter(grouped.ranks)
        (_, variables, _, nodes, names, _), pick_variables, pick = written
        values, trace_token = tuple(new), _jax.current_trace()
        views = check_trace_tokens(variables)
        dicts: list[dict[Any, Any]] = []
        for owner, count in nodes:
            node = owner()
            attributes: Any = {} if node is None else node.__dict__  # another thread may have removed it
            if attributes.get(TRACE_KEY, _jax.TOP) is not trace_token and node is not None:
                raise wrong_trace(node, names[len(dicts)])
            dicts += (attributes,) * count
        if variables:
            set_all_raw(variables, pick_variables(values))
            publish(views)
        deque(map(setitem, dicts, names, pick(values)), 0)

    def _group(self, positions: Sequence[int]) -> _Grouped:
        found = _Grouped(positions, [], [], [], [], [])
        groups: dict[int, list[tuple[weakref.ref[Pytree], Any, int]]] = {}
        for rank, position in enumerate(positions):
            variable, source = self._variables[position], self._sources.get(position)
            if variable is not None:
                found.variables.append(variable)
                found.variable_ranks.append(rank)
            elif source is not None:
                groups.setdefault(id(source[0]), []).append((*source, rank))
        for group in groups.values():
            found.nodes.append((group[0][0], len(group)))
            found.names.extend([name for _, name, _ in group])
            found.ranks.extend([rank for _, _, rank in group])
        return found


_Getter = Callable[[Any], Sequence[Any]]


def _getter(keys: Sequence[Any]) -> _Getter:
    return itemgetter(*keys) if len(keys) > 1 else lambda values: [values[key] for key in keys]


_token_of = attrgetter("_trace")
_call: Any = operator.call


class Binding:
    """A graph bound to live objects.

    It holds Variables, but no nodes, so that a model that holds its binding is freed as soon as nobody refers to it.

    Attributes:
      graphdef: the structure.
      variables: the Variable of each leaf; None for other leaves.
      array_leaves: reads and writes the leaves; None if all have a Variable.
      trace_token: the trace of all Variables, or `MISSING` if they differ.
      is_fixed: whether the epoch alone shows that the graph is the same.
      is_kept: whether values are kept for a write epoch: all leaves have Variables outside of traces.
    """

    def __init__(self, found: Walk, token: object, contents: Contents | None = None) -> None:
        self.graphdef: GraphDef[Any] = found.graphdef
        self.variables: list[Variable[Any] | None] = found.variables
        leaves = found.array_leaves
        self.array_leaves: ArrayLeaves | None = ArrayLeaves(leaves, found.variables) if leaves else None
        self._watches: list[Callable[[], bool]] = found.watches
        self.is_fixed: bool = not found.watches
        self._token = token
        self._contents = contents
        self._objects = found.objects  # a Walk is made to be bound once
        for index in found.nodes:
            self._objects[index] = weakref.ref(self._objects[index])
        variables = [v for v in found.variables if v is not None] if leaves else found.variables
        is_one = len(set(map(id, map(_token_of, variables)))) == 1
        self.trace_token: Any = _token_of(variables[0]) if is_one else MISSING
        self.is_kept: bool = self.array_leaves is None and self.trace_token is _jax.TOP
        self._written: tuple[tuple[int, ...], list[Variable[Any] | None]] = ((), [])

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

    def read(self) -> list[Any]:
        """The raw value of each leaf now."""
        return raw_values(self.variables) if self.array_leaves is None else self.array_leaves.read()

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
                found = tuple(raw_values(self.variables) if self.array_leaves is None else self.array_leaves.read())
            if kept is not None and self.is_kept:
                kept[id(self)] = found
        return found

    def variables_at(self, positions: tuple[int, ...]) -> list[Variable[Any] | None]:
        """The Variables of some leaves; remembers the last ones, since a loop writes the same ones."""
        known, variables = self._written
        if known is not positions:
            variables = [self.variables[i] for i in positions]
            self._written = positions, variables
        return variables

    def check_depth(self) -> None:
        """Checks that no container in a Variable has grown too deep for JAX since it was assigned."""
        for path, leaf in zip(self.graphdef.definition.paths, self.read(), strict=True):
            if isinstance(leaf, (list, tuple, dict)):
                check_depth(leaf, format_path(path))

    def objects(self) -> list[Any]:
        """The Variables and nodes by index."""
        return [o() if isinstance(o, weakref.ref) else o for o in self._objects]

    def identities(self) -> list[Any]:
        """The identity of each leaf, whatever it is reached from: its Variable, or its nearest node and the path."""
        nodes: dict[Path, Any] = {}
        found: list[Any] = []
        objects, variables = iter(self.objects()), iter(self.variables)
        for path, token in walk_tokens(self.graphdef.tokens):
            if isinstance(token, int):
                continue
            value = next(objects) if token[0] in HAS_INDEX else None
            if token[0] in (NODE, OBJECT):
                nodes[path] = value
            elif token[0] <= LEAF:
                variable = next(variables)
                depth = next((d for d in range(len(path), -1, -1) if path[:d] in nodes), 0)
                found.append((id(nodes.get(path[:depth])), path[depth:]) if variable is None else id(variable))
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
    values = {id(v): leaf for v, leaf in zip(binding.variables, leaves, strict=True) if v is not None}
    attributes = {} if binding.array_leaves is None else binding.array_leaves.attributes(leaves)
    return Moment(root, {id(found): found for found in binding.objects()}, values, attributes)


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
    for stale in [k for k, (kept, _) in tuple(cache.items()) if kept._token is not token]:
        cache.pop(stale, None)  # it may hold Variables that the graph has no more
    drop: Callable[[Any], object] = partial(_drop, weakref.ref(cache), key)
    cache[key] = binding, tuple([weakref.ref(other, drop) for other in others if other is not first])
    return binding


def _drop(cache_ref: weakref.ref[_BindingCache], key: tuple[int, ...], _: object) -> None:
    cache = cache_ref()
    if cache is not None:
        cache.pop(key, None)
