"""The streams of a model, and backups of their keys and counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, ParamSpec, Self, TypeVar, overload

import jax
import jax.numpy as jnp
from jax.core import Tracer

from declax._filters import Filter
from declax._modes import is_graph
from declax._nodes import Kind, enter_container, kind_of, open_container
from declax._threads import committing
from declax._typing import MISSING, Missing, Path
from declax._variables import Variable
from declax.errors import RngError, describe
from declax.graph.api import with_new_nodes
from declax.graph.binding import bind_many, check_mode
from declax.rngs.calls import around_calls
from declax.rngs.streams import RngCount, RngKey
from declax.rngs.tables import Stream, StreamBackup, check_can_change, choose, write

P = ParamSpec("P")
R = TypeVar("R")


class StreamTable:
    """The streams of a model, each once, in the order of the graph.

    Args:
      node: a model, a container of models, or the `Arguments` of a call.
      graph: False if the node must be a tree; None for the default.

    Raises:
      GraphError: for a graph where a tree is asked for.
    """

    def __init__(self, node: Any, graph: bool | None) -> None:
        found = list(_roots(node))
        self._node, self._roots = node, tuple(root for _, root in found)
        self._binding = bind_many(self._roots)
        graphdef = self._binding.graphdef
        if not is_graph(graph):
            check_mode(graphdef, False)
        prefixes: dict[Any, Path] = {position: path for position, (path, _) in enumerate(found)}
        counts: dict[Path, Variable[Any]] = {}
        self.streams: list[Stream] = []
        for (root, *keys), variable in zip(graphdef.definition.paths, self._binding.variables, strict=True):
            path = (*prefixes[root], *keys[:-1])
            if isinstance(variable, RngCount):
                counts[path] = variable
            elif isinstance(variable, RngKey) and path in counts:  # the keys of a node are in order: count, key
                self.streams.append(Stream(path, variable, counts[path]))

    def copy(self, copies: dict[int, Variable[Any]]) -> Any:
        """The value with new nodes, and copies of some Variables, by their id; it shares all other Variables."""
        kept, values = list(self._binding.variables), self._binding.read()
        for position, variable in enumerate(kept):
            if id(variable) in copies:
                kept[position] = new = copies[id(variable)]
                values[position] = new.raw_value
        made: Any = with_new_nodes(self._binding.graphdef, values, kept)
        news = {id(root): new for root, new in zip(self._roots, made, strict=True)}
        return jax.tree.map(lambda leaf: news.get(id(leaf), leaf), self._node, is_leaf=_is_root)


_ROOTS: Final = frozenset({Kind.NODE, Kind.OBJECT, Kind.VARIABLE})


def _is_root(value: object) -> bool:
    return kind_of(value) in _ROOTS


def _roots(node: Any) -> Iterator[tuple[Path, Any]]:
    """The nodes and Variables that a value is or holds, each under its first path, in order."""
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


class RngBackups:
    """The backups of the streams of a model; at the end of a ``with``, the streams are restored.

    >>> from declax.rngs import Rngs, split_rngs
    >>> rngs = Rngs(0)
    >>> with split_rngs(rngs, splits=3) as backups:
    ...     print(backups, rngs.default.key.shape)
    RngBackups(default) (3,)
    >>> rngs.default.key.shape
    ()
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[StreamBackup]) -> None:
        self._entries = tuple(entries)

    def __iter__(self) -> Iterator[StreamBackup]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        restore_rngs(self)

    def __repr__(self) -> str:
        return f"RngBackups({', '.join(entry.stream.label for entry in self._entries)})"


def restore_rngs(backups: Iterable[StreamBackup], /) -> None:
    """Gives streams the keys that they had: all streams of these backups, or on an error none.

    A stream counts on from where it was when the key was replaced. If it has
    the key already, the count never goes back, so that no key is drawn twice.

    Args:
      backups: the result of `split_rngs`, `fork_rngs`, `reseed` or `backup_keys`.

    Raises:
      RngError: for a value that is not a backup.
      TraceContextError: for a stream of another trace level; names its path.

    >>> from declax.rngs import Rngs, split_rngs
    >>> rngs = Rngs(0)
    >>> backups = split_rngs(rngs, splits=3)
    >>> restore_rngs(backups)
    >>> rngs.default.key.shape, int(rngs.default.count)
    ((), 1)
    """
    given: Any = backups
    entries = list(given) if isinstance(given, Iterable) else [given]
    for entry in entries:
        if not isinstance(entry, StreamBackup):
            raise RngError(
                "restore_rngs",
                "this is not a backup of a stream",
                expected="the result of split_rngs, fork_rngs, reseed or backup_keys",
                got=describe(entry),
                fix="backups = dx.split_rngs(model, splits=3)\ndx.restore_rngs(backups)",
            )
    check_can_change(entry.stream for entry in entries)
    with committing:
        for entry in entries:
            write(entry.stream, entry.key, _count_of(entry))


def _count_of(backup: StreamBackup) -> jax.Array:
    """The count of a key that is put back: the later one if the stream has this key already."""
    stream, key, count = backup.stream, backup.key, backup.count
    current: Any = stream.key.value
    is_donated = not isinstance(current, Tracer) and current.is_deleted()
    if is_donated or (current.shape, current.dtype) != (key.shape, key.dtype):
        return count
    later: jax.Array = _later(current, key, stream.count.value, count)
    return later


@jax.jit
def _later(current: jax.Array, key: jax.Array, current_count: jax.Array, count: jax.Array) -> jax.Array:
    is_same = (jax.random.key_data(current) == jax.random.key_data(key)).all()
    return jnp.where(is_same, jnp.maximum(current_count, count), count)  # `if` would wait for the device


@overload
def backup_keys(node: Any, /, *, only: Filter = ..., graph: bool | None = None) -> RngBackups: ...
@overload
def backup_keys(*, only: Filter = ..., graph: bool | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def backup_keys(node: Any | Missing = MISSING, /, *, only: Filter = ..., graph: bool | None = None) -> Any:
    """Copies the keys and counts of the streams below a node, for `restore_rngs`.

    As a decorator, ``@dx.backup_keys()``, it does so for the arguments of each
    call, and restores them after it, also where the call fails.

    Args:
      node: a model, an Rngs, or a container of such.
      only: selects streams by name, kind or path.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Returns:
      The backups, which are a context manager too. They own their arrays, and
      outlive those of the model.

    Raises:
      RngError: for a filter that matches no stream.
      GraphError: for a graph where a tree is asked for.
      TraceContextError: for a stream of another trace level.

    >>> from declax.rngs import Rngs, reseed
    >>> rngs = Rngs(dropout=0)
    >>> first = rngs.dropout.uniform()
    >>> with backup_keys(rngs):
    ...     _ = reseed(rngs, dropout=42)
    ...     same = rngs.dropout.uniform() == Rngs(Rngs(dropout=42).dropout()).uniform()
    >>> bool(same), int(rngs.dropout.count)
    (True, 1)
    """

    def keep(value: Any) -> RngBackups:
        streams = choose("backup_keys", StreamTable(value, graph).streams, [(only, None)])
        check_can_change(streams)
        with committing:
            return RngBackups(StreamBackup(s, jnp.copy(s.key.value), jnp.copy(s.count.value)) for s in streams)

    return in_place("backup_keys", keep, node)


def in_place(where: str, change: Callable[[Any], RngBackups], node: Any) -> Any:
    """A change of a node, which gives backups; without a node, a decorator that restores after each call."""
    if node is MISSING:
        return around_calls(where, lambda given: (change(given), given))
    return change(node)
