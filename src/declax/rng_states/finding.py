"""The streams of random keys inside of models.

Vocabulary
----------
root:   a Variable, Pytree or Object that the given value is or holds.
place:  where a stream is in a GraphDef; the same for all models of one structure.
stream: a place with the live key and count. One that is reached twice, or whose
        Variables are, is one stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp

from declax import _jax
from declax._filters import Filter, Predicate, as_written
from declax._modes import is_graph
from declax._nodes import Kind, enter_container, kind_of, open_container
from declax._pytree import Pytree
from declax._read_only import ReadOnly
from declax._typing import Path
from declax._variables import Variable
from declax.errors import RngError, TraceContextError, describe, format_path, suggest
from declax.graph.api import with_new_nodes
from declax.graph.binding import Binding, bind, bind_many, check_mode
from declax.graph.defs import HAS_INDEX, LEAF, NODE, VARIABLE, GraphDef, walk_tokens
from declax.rngs import RngStream


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stream is in a graph.

    Attributes:
      path: of the stream.
      index: of the stream, among the objects of the graph.
      key, count: the positions of its leaves.
    """

    path: Path
    index: int
    key: int
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """A stream of a model.

    Attributes:
      path: the way to it from what the user gave.
      tag: its name.
      key, count: its Variables.
      place: where they are in the graph.
    """

    path: Path
    tag: str
    key: Variable[Any]
    count: Variable[Any]
    place: Place


class Found:
    """What a value holds of streams.

    Attributes:
      where: the name of the function that asks, for messages.
      streams: each once, in the order of the graph.
    """

    __slots__ = ("_binding", "_is_call", "_node", "_objects", "_roots", "streams", "where")

    def __init__(self, where: str, node: Any, graph: bool | None, *, is_call: bool = False) -> None:
        self.where: str = where
        self._node = node
        self._is_call = is_call
        is_tree = not is_graph(graph)
        is_alone = isinstance(node, Pytree)
        found = [((), node)] if is_alone else list(_roots(node))
        self._roots: tuple[Any, ...] = tuple(root for _, root in found)
        self._binding: Binding | None = None
        self._objects: list[Any] | None = None
        self.streams: list[Stream] = []
        if found:
            self._binding = bind(node) if is_alone else bind_many(self._roots)
            if is_tree:
                check_mode(self._binding.graphdef, False)
            prefixes = None if is_alone else [path for path, _ in found]
            self.streams = [self._stream(place, prefixes) for place in _places_of(self._binding.graphdef)]

    def _stream(self, place: Place, prefixes: list[Path] | None) -> Stream:
        assert self._binding is not None
        path = place.path
        if prefixes is not None:
            root: Any = path[0]  # its index
            path = (*prefixes[root], *path[1:])
        key, count = (self._binding.variables[position] for position in (place.key, place.count))
        assert key is not None
        assert count is not None
        return Stream(path, str(key._metadata.get("tag", "")), key, count, place)

    def takes(self, predicate: Predicate, stream: Stream) -> bool:
        """Whether a filter means a stream: it takes the key, or the stream itself."""
        if predicate((*stream.path, "key"), stream.key):
            return True
        if self._objects is None and self._binding is not None:
            self._objects = self._binding.objects()
        return self._objects is not None and predicate(stream.path, self._objects[stream.place.index])

    def label(self, stream: Stream) -> str:
        """A stream's place as it is written in code."""
        path: Path = stream.path
        if self._is_call:
            path = ("args", *path[1:]) if path[0] == 0 else path[1:]
        return format_path(path) if path else "the stream"

    def check_any(self) -> None:
        """Checks that there are streams at all.

        Raises:
          RngError: there are none.
        """
        if self.streams:
            return
        fix = f"dx.{self.where}(model, ...)        # of a model that keeps its rngs, as dx.Dropout(0.5, rngs=rngs) does"
        if isinstance(self._node, FunctionType):
            fix = f"@dx.{self.where}(...)        # with parentheses, as a decorator"
        raise RngError(
            self.where,
            "there is no stream of random numbers in the " + ("arguments" if self._is_call else "node"),
            expected="a model, an Rngs, an RngStream or a container of such, with a stream in it",
            got=None if self._is_call else describe(self._node),
            fix=fix,
        )

    def check_taken(self, filter: Filter, taken: Sequence[object]) -> None:
        """Checks that a filter means a stream.

        Raises:
          RngError: it means none; names those that there are.
        """
        if taken:
            return
        near = suggest(filter, sorted({s.tag for s in self.streams})) if isinstance(filter, str) else None
        raise RngError(
            self.where,
            f"the filter {as_written(filter)} takes no stream",
            got=f"the streams {self.listing()}",
            why="a filter that takes nothing is most often a misspelling, and nothing would happen",
            fix=near,
        )

    def listing(self) -> str:
        """Names and places of the streams, for messages."""
        texts = [f"{stream.tag!r} at {self.label(stream)}" for stream in self.streams[:_SHOWN]]
        left = len(self.streams) - _SHOWN
        return ", ".join(texts) + (f" and {left} more" if left > 0 else "")

    def check_are_own(self, streams: Iterable[Stream]) -> None:
        """Checks that streams may be changed at this trace level.

        Raises:
          TraceContextError: one is of another.
        """
        for stream in streams:
            check_is_own(self.label(stream), stream.key, stream.count)

    def check_can_draw(self, streams: Iterable[Stream]) -> None:
        """Checks that each of these streams can give a key, here and now.

        Raises:
          RngError: one holds an array of keys, or no key.
          TraceContextError: one is of another trace level.
        """
        chosen = list(streams)
        self.check_are_own(chosen)
        for stream in chosen:
            key = stream.key.value
            if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
                raise RngError(
                    self.label(stream),
                    "the stream holds no key, so it cannot be drawn from",
                    expected="a key of jax.random.key",
                    got=describe(key),
                )
            if key.shape:
                raise RngError(
                    self.label(stream),
                    "the stream is split already, and an array of keys gives no single key",
                    got=f"keys of shape {key.shape}",
                    fix=f"dx.restore_rngs(backups)        # first; or leave it out: dx.{self.where}(..., only=...)",
                )

    def copy(self, boxes: dict[int, Variable[Any]]) -> Any:
        """The value with new nodes, and other Variables at these positions; it shares all other Variables."""
        if self._binding is None:
            return self._node
        kept, values = list(self._binding.variables), self._binding.read()
        for position, box in boxes.items():
            kept[position], values[position] = box, box.raw_value
        made: Any = with_new_nodes(self._binding.graphdef, values, kept)
        if isinstance(self._node, Pytree):
            return made
        news = {id(root): new for root, new in zip(self._roots, made, strict=True)}
        return jax.tree.map(lambda leaf: news.get(id(leaf), leaf), self._node, is_leaf=is_root)


_SHOWN = 6
"""How many streams a message names."""

_ROOTS: Final = frozenset({Kind.NODE, Kind.OBJECT, Kind.VARIABLE})


def is_root(value: object) -> bool:
    """Whether a value is a Variable, Pytree or Object."""
    return kind_of(value) in _ROOTS


def check_is_own(label: str, key: Variable[Any], count: Variable[Any]) -> None:
    """Checks that a stream may be changed at this trace level.

    Raises:
      TraceContextError: it is of another.
    """
    mark = _jax.current_trace()
    if key._trace is mark and count._trace is mark:
        return
    if isinstance(count._trace, ReadOnly):
        raise count._trace.refusal(label)
    raise TraceContextError(
        label,
        "the keys of a stream cannot be changed from another trace level than its own",
        why="the stream was made outside of the function that JAX is tracing now; the change would leak a tracer",
        fix="pass the model that has it to the traced function as an argument, or do this outside of that function",
    )


def _roots(node: Any) -> Iterator[tuple[Path, Any]]:
    """The roots that a container holds, each under its first path, in order."""
    seen: set[int] = set()
    stack: list[tuple[Path, Any, tuple[Any, ...]]] = [((), node, ())]
    while stack:
        path, value, within = stack.pop()
        kind = kind_of(value)
        if kind in _ROOTS:
            if id(value) not in seen:
                seen.add(id(value))
                yield path, value
        elif kind is Kind.CONTAINER:
            within = enter_container(value, within)
            keys, children, _ = open_container(value)
            pairs = zip(reversed(keys), reversed(children), strict=True)
            stack.extend(((*path, key), child, within) for key, child in pairs)


_known_places: Final[WeakKeyDictionary[GraphDef[Any], tuple[Place, ...]]] = WeakKeyDictionary()
"""Looked for once for each structure: a model of thousands of leaves has few streams."""


def _places_of(graphdef: GraphDef[Any]) -> tuple[Place, ...]:
    found = _known_places.get(graphdef)
    if found is None:
        places = {(place.key, place.count): place for place in reversed(_all_places(graphdef))}
        found = tuple(reversed(places.values()))  # of equal ones, the first
        _check_are_apart(found)
        _known_places[graphdef] = found
    return found


def _all_places(graphdef: GraphDef[Any]) -> list[Place]:
    """The place of each node that is a stream, in order."""
    leaf_of: list[int | None] = []  # by the index of the object
    within: dict[Path, tuple[int, dict[Any, int]]] = {}
    leaf = 0
    for path, token in walk_tokens(graphdef.tokens):
        at: int | None = None
        if isinstance(token, int):
            at = leaf_of[token]
        else:
            if token[0] == VARIABLE:
                at = leaf
            elif token[0] == NODE and issubclass(token[1].cls, RngStream):
                within[path] = len(leaf_of), {}
            if token[0] in HAS_INDEX:
                leaf_of.append(at)
            leaf += token[0] <= LEAF
        if at is not None and path and path[-1] in _PARTS and path[:-1] in within:
            within[path[:-1]][1][path[-1]] = at
    whole = ((path, index, parts) for path, (index, parts) in within.items() if len(parts) == len(_PARTS))
    return [Place(path, index, parts["key"], parts["count"]) for path, index, parts in whole]


_PARTS = ("key", "count")


def _check_are_apart(places: Sequence[Place]) -> None:
    """Checks that streams share both their key and their count, or neither.

    Raises:
      RngError: two share one of them, so that a change of one would break the other.
    """
    for part in ("key", "count"):
        first: dict[int, Place] = {}
        for place in places:
            other = first.setdefault(getattr(place, part), place)
            if other is not place:
                raise RngError(
                    format_path(place.path),
                    f"the stream shares its {part} with another one, and not the rest",
                    got=f"the same {part} at {format_path(other.path)}",
                    fix="share the stream:  self.rngs = other.rngs        # or make one of its own, by fork()",
                )
