"""The table of the streams below a node: where each is, its key and its count.

Vocabulary
----------
root:   a Variable, Pytree or Object that the given value is or holds.
stream: a node with a key and a count. One that is reached twice, or whose
        Variables are, is one stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp

from declax import _jax
from declax._filters import Filter, Predicate, as_written, to_predicate
from declax._modes import is_graph
from declax._nodes import Kind, enter_container, kind_of, open_container
from declax._pytree import Pytree
from declax._read_only import ReadOnly
from declax._typing import Path
from declax._variables import Variable
from declax.errors import RngError, TraceContextError, describe, format_path, suggest
from declax.graph.api import with_new_nodes
from declax.graph.binding import Binding, bind, bind_many, check_mode
from declax.graph.flattening import HAS_INDEX, NODE, GraphDef, walk_tokens
from declax.rngs.calls import Arguments
from declax.rngs.streams import RngStream


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """A stream of a model.

    Attributes:
      path: the way to it from what the user gave.
      node: the stream.
      key, count: its Variables.
    """

    path: Path
    node: RngStream
    key: Variable[Any]
    count: Variable[Any]

    @property
    def tag(self) -> str:
        """Its name."""
        return str(self.key._metadata.get("tag", ""))


class Chosen(NamedTuple):
    """A filter of streams, as written and as a predicate."""

    filter: Filter
    predicate: Predicate

    @staticmethod
    def by(filter: Filter) -> Chosen:
        """Raises FilterError for a value that is not a filter."""
        return Chosen(filter, to_predicate(filter))


class StreamTable:
    """The streams of a value, each once, in the order of the graph.

    Args:
      where: the name of the function that asks, for messages.
      node: a model, a container of such, or the `Arguments` of a call.
      graph: False if the node must be a tree; None for the default.

    Raises:
      GraphError: for a graph where a tree is asked for.
      RngError: for streams that share only their key, or only their count.
    """

    __slots__ = ("_binding", "_node", "_roots", "streams", "where")

    def __init__(self, where: str, node: Any, graph: bool | None) -> None:
        self.where = where
        self._node = node
        is_tree = not is_graph(graph)
        is_alone = isinstance(node, Pytree)
        found = [((), node)] if is_alone else list(_roots(node))
        self._roots = tuple(root for _, root in found)
        self._binding: Binding | None = None
        self.streams: list[Stream] = []
        if not found:
            return
        self._binding = bind(node) if is_alone else bind_many(self._roots)
        if is_tree:
            check_mode(self._binding.graphdef, False)
        self.streams = _streams_of(self._binding, None if is_alone else [path for path, _ in found])

    def label(self, stream: Stream) -> str:
        """A stream's place as it is written in code."""
        path = stream.path
        if isinstance(self._node, Arguments) and path[0] == "kwargs":
            path = path[1:]
        return format_path(path) if path else "the stream"

    def select(self, only: Chosen) -> list[Stream]:
        """The streams that a filter takes.

        Raises:
          RngError: it takes none, or there are none.
        """
        self.check_any()
        return self.matching(only, self.streams)

    def matching(self, chosen: Chosen, streams: Sequence[Stream]) -> list[Stream]:
        """Those of some streams that a filter takes, by their key or by the stream itself.

        Raises:
          RngError: it takes none; names those that there are.
        """
        taken = [stream for stream in streams if self._takes(chosen.predicate, stream)]
        if taken:
            return taken
        written = chosen.filter
        raise RngError(
            self.where,
            f"the filter {as_written(written)} takes no stream",
            got=f"the streams {self._listing()}",
            why="a filter that takes nothing is most often a misspelling, and nothing would happen",
            fix=suggest(written, sorted({s.tag for s in self.streams})) if isinstance(written, str) else None,
        )

    def _takes(self, predicate: Predicate, stream: Stream) -> bool:
        if predicate((*stream.path, "key"), stream.key):
            return True
        return predicate(stream.path, stream.node)

    def named(self, names: Iterable[str]) -> list[Stream]:
        """The streams of these names.

        Raises:
          RngError: for a name that no stream has.
        """
        self.check_any()
        tags = {stream.tag for stream in self.streams}
        for name in names:
            if name not in tags:
                raise RngError(
                    self.where,
                    f"no stream is named {name!r}",
                    got=f"the streams {self._listing()}",
                    why="a stream has the name under which it was made: that of the stream that gave its key",
                    fix=suggest(name, sorted(tags)),
                )
        return [stream for stream in self.streams if stream.tag in names]

    def _listing(self) -> str:
        texts = [f"{stream.tag!r} at {self.label(stream)}" for stream in self.streams[:_SHOWN]]
        left = len(self.streams) - _SHOWN
        return ", ".join(texts) + (f" and {left} more" if left > 0 else "")

    def check_any(self) -> None:
        """Raises RngError if there are no streams."""
        if self.streams:
            return
        is_call = isinstance(self._node, Arguments)
        fix = f"dx.{self.where}(model, ...)        # of a model that keeps its rngs, as dx.Dropout(0.5, rngs=rngs) does"
        if isinstance(self._node, FunctionType):
            fix = f"@dx.{self.where}(...)        # with parentheses, as a decorator"
        raise RngError(
            self.where,
            "there is no stream of random numbers in the " + ("arguments" if is_call else "node"),
            expected="a model, an Rngs, an RngStream or a container of such, with a stream in it",
            got=None if is_call else describe(self._node),
            fix=fix,
        )

    def check_are_own(self, streams: Iterable[Stream]) -> None:
        """Raises TraceContextError for a stream of another trace level."""
        for stream in streams:
            check_is_own(self.label(stream), stream.key, stream.count)

    def check_can_draw(self, streams: Sequence[Stream]) -> None:
        """Checks that each of these streams can give a key now.

        Raises:
          RngError: one holds an array of keys, or no key.
          TraceContextError: one is of another trace level.
        """
        self.check_are_own(streams)
        for stream in streams:
            key = stream.key.value
            if not is_key(key):
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

    def copy(self, copies: dict[int, Variable[Any]]) -> Any:
        """The value with new nodes, and copies of some Variables, by their id; it shares all other Variables."""
        if self._binding is None:
            return self._node
        kept, values = list(self._binding.variables), self._binding.read()
        for position, variable in enumerate(kept):
            if id(variable) in copies:
                kept[position] = new = copies[id(variable)]
                values[position] = new.raw_value
        made: Any = with_new_nodes(self._binding.graphdef, values, kept)
        if isinstance(self._node, Pytree):
            return made
        news = {id(root): new for root, new in zip(self._roots, made, strict=True)}
        return jax.tree.map(lambda leaf: news.get(id(leaf), leaf), self._node, is_leaf=_is_root)


_SHOWN = 6
"""How many streams a message names."""


def is_key(value: object) -> bool:
    """Whether a value is a typed key, or an array of them."""
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def check_is_own(label: str, key: Variable[Any], count: Variable[Any]) -> None:
    """Checks that a stream may be changed at this trace level.

    Raises:
      TraceContextError: it belongs to another.
    """
    trace = _jax.current_trace()
    if key._trace is trace and count._trace is trace:
        return
    if isinstance(count._trace, ReadOnly):
        raise count._trace.refusal(label)
    raise TraceContextError(
        label,
        "the keys of a stream cannot be changed from another trace level than its own",
        why="the stream was made outside of the function that JAX is tracing now; the change would leak a tracer",
        fix="pass the model that has it to the traced function as an argument, or do this outside of that function",
    )


# --- where streams are ------------------------------------------------------

_ROOTS: Final = frozenset({Kind.NODE, Kind.OBJECT, Kind.VARIABLE})


def _is_root(value: object) -> bool:
    return kind_of(value) in _ROOTS


def _roots(node: Any) -> Iterator[tuple[Path, Any]]:
    """The roots that a container holds, each under its first path, in order."""
    seen: set[int] = set()
    stack: list[tuple[Path, Any, tuple[Any, ...]]] = [((), node, ())]
    while stack:
        path, value, within = stack.pop()
        if _is_root(value):
            if id(value) not in seen:
                seen.add(id(value))
                yield path, value
        elif kind_of(value) is Kind.CONTAINER:
            within = enter_container(value, within)
            keys, children, _ = open_container(value)
            pairs = zip(reversed(keys), reversed(children), strict=True)
            stack.extend(((*path, key), child, within) for key, child in pairs)


def _streams_of(binding: Binding, prefixes: Sequence[Path] | None) -> list[Stream]:
    """The streams of a graph, in order; with prefixes, the first key of a path is the number of one.

    Raises:
      RngError: two streams share only their key, or only their count.
    """
    objects = binding.objects()
    found: dict[tuple[int, int], Stream] = {}
    for index, path in _nodes_of(binding.graphdef):
        node = objects[index]
        key, count = vars(node).get("key"), vars(node).get("count")
        if isinstance(key, Variable) and isinstance(count, Variable):
            if prefixes is not None:
                root: Any = path[0]
                path = (*prefixes[root], *path[1:])
            found.setdefault((id(key), id(count)), Stream(path, node, key, count))
    streams = list(found.values())
    for part in ("key", "count"):
        _check_are_apart(part, streams)
    return streams


_known_nodes: Final[WeakKeyDictionary[GraphDef[Any], list[tuple[int, Path]]]] = WeakKeyDictionary()
"""Looked for once for each structure: a model of thousands of leaves has few streams."""


def _nodes_of(graphdef: GraphDef[Any]) -> list[tuple[int, Path]]:
    """The index and the path of each node that is a stream."""
    found = _known_nodes.get(graphdef)
    if found is None:
        index, found = 0, []
        for path, token in walk_tokens(graphdef.tokens):
            if isinstance(token, int):
                continue
            if token[0] == NODE and issubclass(token[1].cls, RngStream):
                found.append((index, path))
            index += token[0] in HAS_INDEX
        _known_nodes[graphdef] = found
    return found


def _check_are_apart(part: str, streams: Sequence[Stream]) -> None:
    first: dict[int, Stream] = {}
    for stream in streams:
        other = first.setdefault(id(getattr(stream, part)), stream)
        if other is not stream:
            raise RngError(
                format_path(stream.path),
                f"the stream shares its {part} with another one, and not the rest",
                got=f"the same {part} at {format_path(other.path)}",
                why="a change of one would break the other",
                fix="share the stream:  self.rngs = other.rngs        # or make one of its own, by fork()",
            )
