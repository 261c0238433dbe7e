"""Keeps what was read from a graph for as long as its structure stands.

A binding is kept in the ``__dict__`` of the node at which it starts. It is valid while the epoch stands still and
nothing that it watches has changed. Leaves without a Variable report no writes: they are read at each call.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter, itemgetter, setitem
from types import FunctionType
from typing import Any, NamedTuple

from declax import _jax
from declax._classes.pytree import Pytree
from declax._graph.flattening import (
    HAS_INDEX,
    LEAF,
    NODE,
    OBJECT,
    Contents,
    GraphDef,
    Source,
    Walk,
    Watch,
    walk,
    walk_tokens,
)
from declax._graph.unflattening import check_marks
from declax._modes import is_graph, is_graph_mode
from declax._tree import epoch
from declax._tree.attributes import wrong_trace
from declax._tree.epoch import committing
from declax._tree.layout import BOUND_KEY, TRACE_KEY
from declax._tree.statuses import check_depth
from declax._typing import MISSING, Path
from declax._variables.variable import Variable, raw_values, set_all_raw
from declax.errors import GraphError, describe, format_path

_Reader = tuple[Callable[[], Any] | None, Callable[[Any], Iterable[Any]], Any]
"""A reference to a node, how to read its dict, and what to read in the same way where there is no node."""


class _Run(NamedTuple):
    """Leaves that follow one another, of one node (None for Variables, `_nobody` for containers), and their ranks.

    They are named by attribute, by Variable, or by position.
    """

    owner: Callable[[], Any] | None
    names: list[Any]
    ranks: range


class _Writes(NamedTuple):
    """Where new values of some leaves go.

    Each owner is a node with the first of its attributes here and their number; `plain` and `boxed` say which leaves
    go to attributes, and which to Variables.
    """

    positions: tuple[int, ...]
    owners: list[tuple[Callable[[], Any], str, int]]
    names: list[Any]
    plain: list[int]
    boxes: list[Variable[Any]]
    boxed: list[int]


class PlainLeaves:
    """The leaves of a graph of which some are no Variable's; these are given by position, with their sources."""

    __slots__ = ("_boxes", "_constants", "_is_read", "_readers", "_sources", "_written")

    def __init__(self, found: Mapping[int, tuple[Any, Source]], boxes: Sequence[Variable[Any] | None]) -> None:
        self._boxes = boxes
        self._sources: dict[int, Source] = {i: source for i, (_, source) in found.items()}
        self._constants = {i: value for i, (value, source) in found.items() if source is None}
        self._is_read = False
        self._readers: list[_Reader] | None = None
        self._written: _Writes | None = None

    def read(self) -> list[Any]:
        """The value of each leaf now, those of Variables among them."""
        if self._readers is None:
            if not self._is_read:  # what is read once is not worth more
                self._is_read = True
                return self._read_each()
            self._readers = [self._reader(*run) for run in self._runs(range(len(self._boxes)))]
        leaves: list[Any] = []
        try:
            for owner, get, known in self._readers:
                leaves += get(known if owner is None else owner().__dict__)
        except (KeyError, AttributeError):  # another thread has removed one
            return self._read_each()
        return leaves

    def _reader(self, owner: Callable[[], Any] | None, names: list[Any], _: range) -> _Reader:
        if owner is _nobody:
            return None, list, [self._constants[position] for position in names]
        return (None, raw_values, names) if owner is None else (owner, _getter(*names), None)

    def _read_each(self) -> list[Any]:
        return [self._read_one(position) if box is None else box.raw_value for position, box in enumerate(self._boxes)]

    def _read_one(self, position: int) -> Any:
        """The value of a leaf that is no Variable's; `MISSING` where it was removed."""
        source = self._sources[position]
        if source is None:
            return self._constants[position]
        owner = source[0]()
        assert owner is not None  # a node of a graph that the caller holds
        return owner.__dict__.get(source[1], MISSING)

    def source(self, position: int) -> tuple[Pytree, Any] | None:
        """The node and the attribute of a leaf that is no Variable's."""
        source = self._sources.get(position)
        owner = source[0]() if source is not None else None
        return None if source is None or owner is None else (owner, source[1])

    def is_in_container(self, position: int) -> bool:
        """Whether a leaf sits in a container, not in a node."""
        return self._boxes[position] is None and self._sources[position] is None

    def check(self, position: int) -> None:
        """Checks that a leaf may be set at this trace level."""
        source = self.source(position)
        if source is not None and source[0].__dict__.get(TRACE_KEY, _jax.TOP) is not _jax.current_trace():
            raise wrong_trace(*source)

    def write(self, positions: tuple[int, ...], new: Iterable[Any]) -> None:
        """Sets leaves, none of them in a container."""
        writes = self._written  # read once: another thread may write others
        if writes is None or writes.positions is not positions:
            writes = self._written = self._writes_at(positions)
        _, owners, names, plain, boxes, boxed = writes
        values, mark = tuple(new), _jax.current_trace()
        check_marks(boxes)
        dicts: list[dict[Any, Any]] = []
        for owner, name, count in owners:
            node = owner()
            attributes = {} if node is None else node.__dict__  # another thread may have removed it
            if attributes.get(TRACE_KEY, _jax.TOP) is not mark and node is not None:
                raise wrong_trace(node, name)
            dicts += (attributes,) * count
        if boxes:
            set_all_raw(boxes, [values[rank] for rank in boxed])
            values = tuple([values[rank] for rank in plain])
        deque(map(setitem, dicts, names, values), 0)

    def _writes_at(self, positions: tuple[int, ...]) -> _Writes:
        found = _Writes(positions, [], [], [], [], [])
        for owner, names, ranks in self._runs(positions):
            if owner is None:
                found.boxes.extend(names)
                found.boxed.extend(ranks)
            else:
                found.owners.append((owner, names[0], len(names)))
                found.names.extend(names)
                found.plain.extend(ranks)
        return found

    def _runs(self, positions: Sequence[int]) -> Iterator[_Run]:
        last: Any = MISSING
        names: list[Any] = []
        for rank, position in enumerate(positions):
            box, source = self._boxes[position], self._sources.get(position)
            owner = None if box is not None else _nobody if source is None else source[0]
            if owner is not last:
                if names:
                    yield _Run(last, names, range(rank - len(names), rank))
                last, names = owner, []
            names.append(box if box is not None else position if source is None else source[1])
        if names:
            yield _Run(last, names, range(len(positions) - len(names), len(positions)))


def _nobody() -> None:
    """In the place of a node for leaves that sit in containers."""


def _getter(first: Any, *others: Any) -> Callable[[dict[Any, Any]], Iterable[Any]]:
    return itemgetter(first, *others) if others else lambda attributes: (attributes[first],)


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
        self.is_fixed: bool = not (found.watches or found.live)
        self._token = token
        self._contents = contents
        self._objects = found.objects  # a Walk is made to be bound once
        for index in found.nodes:
            self._objects[index] = weakref.ref(self._objects[index])
        variables = [v for v in found.boxes if v is not None] if found.plain else found.boxes
        is_one = len(set(map(id, map(_mark, variables)))) == 1
        self.mark: Any = _mark(variables[0]) if is_one else MISSING
        self.is_kept: bool = self.plain is None and self.mark is _jax.TOP
        self._written: tuple[tuple[int, ...], list[Variable[Any] | None]] = ((), [])

    def __del__(self, epoch: Any = epoch) -> None:
        kept = epoch.kept
        if kept:
            kept.pop(id(self), None)

    def is_valid(self) -> bool:
        """Whether the graph is still as it was read."""
        if self._token is not epoch.token or self._live != self._kept:
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
        kept = epoch.kept
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
    """The binding of the graph below a value."""
    binding = _bind_cached(root, root, ()) if isinstance(root, Pytree) else _bind_anew(root)
    if graph is not True:
        check_mode(binding.graphdef, graph)
    return binding


def check_mode(graphdef: GraphDef[Any], graph: bool | None) -> None:
    """Checks that a graph is a tree, where that is asked for."""
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
    token = epoch.token  # before reading: a change meanwhile makes the binding invalid
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
    """The binding of a value that starts at a node."""
    attributes = first.__dict__
    cache: _Cache | None = attributes.get(BOUND_KEY)
    key = (count, *map(id, others))
    if cache is not None:
        entry = cache.get(key)
        if entry is not None and entry[0].is_valid() and (count or entry[0].is_as_read()):
            return entry[0]
        if count == 0 and not _are_as_read(cache):
            epoch.advance()
    token = epoch.token
    found = walk(value, is_binding=True)
    if token is not epoch.token:  # what was written past `__setattr__` has its status now
        token, found = epoch.token, walk(value, is_binding=True)
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
    return all(kept.is_as_read() for kept, _ in tuple(cache.values()) if kept._token is epoch.token)


def _watch_deaths(cache: _Cache, key: tuple[int, ...], first: Any, others: Sequence[Any]) -> tuple[Any, ...]:
    """References that drop a binding when one of its other roots dies."""
    drop: Callable[[Any], object] = partial(_drop, weakref.ref(cache), key)
    return tuple(weakref.ref(other, drop) for other in others if other is not first)


def _drop(cache_ref: weakref.ref[_Cache], key: tuple[int, ...], _: object) -> None:
    cache = cache_ref()
    if cache is not None:
        cache.pop(key, None)
