"""Backups of the streams of models, and new keys: `split_rngs`, `fork_rngs`, `with_rngs`, `reseed`, `restore_rngs`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Final, Literal, ParamSpec, Self, TypeAlias, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from declax._filters import Filter
from declax._graph.api import with_new_nodes
from declax._graph.binding import bind_many, check_mode
from declax._graph.nodes import Kind, enter_container, kind_of, open_container
from declax._modes import is_graph, is_on, set_graph_updates
from declax._random.calls import around_calls
from declax._random.streams import RngCount, RngKey, Rngs, RngValue
from declax._random.tables import (
    How,
    Rules,
    Size,
    Sizes,
    Stream,
    StreamBackup,
    check_can_change,
    check_is_single,
    choose,
    draw,
    new_keys,
    replace_key,
    shape_of,
    size_rules,
    write,
)
from declax._tree.threads import committing
from declax._typing import MISSING, Missing, Path, Shape
from declax._variables.variable import Variable
from declax.errors import RngError, describe, suggest

P = ParamSpec("P")
R = TypeVar("R")


class StreamTable:
    """The streams of a model, each once, in the order of the graph.

    The node is a model, a container of models, or the `Arguments` of a call.
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

    >>> from declax._random import Rngs, split_rngs
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

    >>> from declax._random import Rngs, split_rngs
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
      TraceContextError: for a stream of another trace level.

    >>> from declax._random import Rngs, reseed
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


N = TypeVar("N")

Change: TypeAlias = tuple[How, Shape]
"""What is made of one key that is drawn from a stream."""
FORK: Final[Change] = ("fork", ())

On: TypeAlias = Literal[True] | None
Off: TypeAlias = Literal[False]
Flag: TypeAlias = bool | None


class _Changes:
    """Changes of streams by what is made of a key that is drawn from each; a later group has what the earlier left."""

    def __init__(self, where: str, groups: Sequence[Rules[Change | None]], only: Filter, graph: Flag) -> None:
        self._where, self._groups, self._only, self._graph = where, groups, only, graph

    def _chosen(self, table: StreamTable) -> list[tuple[Stream, Change]]:
        """The streams to change, and how; all is checked, and nothing changed."""
        streams = list(choose(self._where, table.streams, [(self._only, None)]))
        found: dict[Stream, Change] = {}
        for rules in self._groups:
            for stream, change in choose(self._where, streams, rules).items():
                if change is not None:
                    found.setdefault(stream, change)
        check_can_change(found)
        for stream in found:
            check_is_single(stream.label, stream.key)
        return [(stream, found[stream]) for stream in streams if stream in found]

    def in_place(self, node: Any) -> RngBackups:
        """Changes the streams of a node."""
        chosen = self._chosen(StreamTable(node, self._graph))
        with committing:
            return RngBackups([replace_key(s, *new_keys(draw(s.key, s.count), *change)) for s, change in chosen])

    def copy(self, node: Any) -> Any:
        """A node with new streams."""
        table = StreamTable(node, self._graph)
        copies = {}
        with committing:
            for stream, change in self._chosen(table):
                key, count = new_keys(draw(stream.key, stream.count), *change)
                copies[id(stream.key)] = stream.key.copy(key)
                copies[id(stream.count)] = stream.count.copy(count)
            return table.copy(copies)

    def apply(self, node: Any, graph_updates: Flag) -> Any:
        """Backups, a new node, or a decorator of either; a tree is never changed in place."""
        updates = is_on("graph_updates", graph_updates, set_graph_updates.current_value)
        if is_graph(self._graph) and updates:
            return in_place(self._where, self.in_place, node)
        if node is MISSING:
            return around_calls(self._where, lambda given: (nullcontext(), self.copy(given)))
        return self.copy(node)


def _rules(where: str, how: How, sizes: Sizes, default: Change | None = None) -> Rules[Change | None]:
    return [(f, default if shape is None else (how, shape)) for f, shape in size_rules(where, sizes)]


@overload
def split_rngs(
    node: Any, /, *, splits: Size, only: Filter = ..., squeeze: bool = False, graph: On = None, graph_updates: On = None
) -> RngBackups: ...
@overload
def split_rngs(
    node: N, /, *, splits: Size, only: Filter = ..., squeeze: bool = False, graph: Off, graph_updates: Flag = None
) -> N: ...
@overload
def split_rngs(
    node: N, /, *, splits: Size, only: Filter = ..., squeeze: bool = False, graph: Flag = None, graph_updates: Off
) -> N: ...
@overload
def split_rngs(
    *, splits: Size, only: Filter = ..., squeeze: bool = False, graph: Flag = None, graph_updates: Flag = None
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def split_rngs(
    node: Any | Missing = MISSING,
    /,
    *,
    splits: Size,
    only: Filter = ...,
    squeeze: bool = False,
    graph: Flag = None,
    graph_updates: Flag = None,
) -> Any:
    """Splits the streams below a node, in place: each gets an array of keys, for `vmap` or `scan` to run over.

    One key is drawn from each stream, and split. All selected streams are
    split, or on an error none.

    Args:
      node: a model, an Rngs, or a container of such. Without it, this is a
        decorator: the streams of all arguments are split before each call, and
        restored after it, also where it fails.
      splits: the number of keys, or the shape of the array.
      only: selects streams by name, kind or path.
      squeeze: with ``splits=1``, gives one key in the place of an array of one.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.
        A tree is not changed: see `graph_updates`.
      graph_updates: False changes nothing in place, and returns the node with
        new streams (`with_rngs`); as a decorator, calls the function with such.
        None for the default of `set_graph_updates`.

    Returns:
      The backups, which are a context manager too: the streams have their keys
      again after `restore_rngs`, or at the end of a ``with``. Each counts one
      draw then. Where nothing is changed in place, the new node.

    Raises:
      RngError: for an invalid size, a filter that matches no stream, and a
        stream that holds an array of keys.
      TraceContextError: for a stream of another trace level; names its path.

    >>> from declax._random import Rngs
    >>> rngs = Rngs(params=0, dropout=1)
    >>> with split_rngs(rngs, splits=3, only="dropout"):
    ...     rngs.params.key.shape, rngs.dropout.key.shape
    ((), (3,))
    >>> rngs.dropout.key.shape, int(rngs.dropout.count)
    ((), 1)
    """
    change: Change = ("split", shape_of("split_rngs", splits))
    if is_on("squeeze", squeeze):
        if change[1] != (1,):
            raise RngError(
                "split_rngs",
                "squeeze removes an axis of one key",
                expected="splits=1",
                got=f"splits={splits!r}",
                fix="dx.split_rngs(model, splits=1, squeeze=True)",
            )
        change = ("squeeze", ())
    return _Changes("split_rngs", [[(..., change)]], only, graph).apply(node, graph_updates)


@overload
def fork_rngs(
    node: Any, /, *, split: Sizes | None = None, only: Filter = ..., graph: On = None, graph_updates: On = None
) -> RngBackups: ...
@overload
def fork_rngs(
    node: N, /, *, split: Sizes | None = None, only: Filter = ..., graph: Off, graph_updates: Flag = None
) -> N: ...
@overload
def fork_rngs(
    node: N, /, *, split: Sizes | None = None, only: Filter = ..., graph: Flag = None, graph_updates: Off
) -> N: ...
@overload
def fork_rngs(
    *, split: Sizes | None = None, only: Filter = ..., graph: Flag = None, graph_updates: Flag = None
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def fork_rngs(
    node: Any | Missing = MISSING,
    /,
    *,
    split: Sizes | None = None,
    only: Filter = ...,
    graph: Flag = None,
    graph_updates: Flag = None,
) -> Any:
    """Gives each stream below a node a new key, drawn from the stream, in place.

    The draws from a forked stream do not count for the original key, whose
    count has moved by one when the stream is restored.

    Args:
      node: a model, an Rngs, or a container of such. Without it, this is a
        decorator: the streams of all arguments are forked before each call, and
        restored after it, also where it fails.
      split: how many keys each stream gets. None, one key. A number or a shape,
        an array of keys, as of `split_rngs`. A mapping from filters to those:
        the first filter that matches a stream counts, and a stream that none
        matches is left as it is.
      only: selects streams by name, kind or path.
      graph, graph_updates: as of `split_rngs`.

    Returns:
      As `split_rngs`.

    Raises:
      RngError, GraphError, TraceContextError: as `split_rngs`.

    >>> from declax._random import Rngs
    >>> rngs = Rngs(params=0, dropout=1)
    >>> with fork_rngs(rngs, split={"params": 2, "dropout": None}):
    ...     _ = [rngs.dropout() for _ in range(5)]
    ...     rngs.params.key.shape
    (2,)
    >>> int(rngs.params.count), int(rngs.dropout.count)
    (1, 1)
    """
    rules = [(..., FORK)] if split is None else _rules("fork_rngs", "split", split, FORK)
    return _Changes("fork_rngs", [rules], only, graph).apply(node, graph_updates)


@overload
def with_rngs(
    node: N,
    /,
    *,
    split: Sizes | None = None,
    fork: Filter | Sequence[Filter] = None,
    broadcast: Sizes | None = None,
    only: Filter = True,
    graph: Flag = None,
    graph_updates: Flag = None,
) -> N: ...
@overload
def with_rngs(
    *,
    split: Sizes | None = None,
    fork: Filter | Sequence[Filter] = None,
    broadcast: Sizes | None = None,
    only: Filter = True,
    graph: Flag = None,
    graph_updates: Flag = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def with_rngs(
    node: Any | Missing = MISSING,
    /,
    *,
    split: Sizes | None = None,
    fork: Filter | Sequence[Filter] = None,
    broadcast: Sizes | None = None,
    only: Filter = True,
    graph: Flag = None,
    graph_updates: Flag = None,
) -> Any:
    """A new node with new streams, drawn from those of the original, which keeps its keys and counts one draw.

    Rules are tried in the order `split`, `broadcast`, `fork`. Both nodes share
    the streams that no rule matches, and all other Variables.

    Args:
      node: a model, an Rngs, or a container of such. Without it, this is a
        decorator: the function is called with new nodes in the place of its
        arguments.
      split: the number of different keys or the shape of their array, for all
        streams; or a mapping from filters to those, of which the first that
        matches a stream counts. None in it leaves a stream to the other rules.
      fork: selects streams that get one new key.
      broadcast: the number of equal keys or the shape of their array, as `split`.
      only: selects the streams that any rule is for.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.
      graph_updates: None or False, since nothing is changed in place.

    Returns:
      The new node: new models and containers.

    Raises:
      RngError: as `split_rngs`, and for ``graph_updates=True``.
      GraphError, TraceContextError: as `split_rngs`.

    >>> from declax._random import Rngs
    >>> rngs = Rngs(params=0, dropout=1)
    >>> new = with_rngs(rngs, split={"params": 4}, fork=...)
    >>> new.params.key.shape, new.dropout.key.shape
    ((4,), ())
    >>> rngs.params.key.shape, int(rngs.params.count)
    ((), 1)
    """
    if graph_updates is not None and is_on("graph_updates", graph_updates):
        raise RngError(
            "with_rngs",
            "this function makes a new node, and changes nothing in place",
            expected="graph_updates=False or None",
            got="graph_updates=True",
            fix="with dx.fork_rngs(model):        # or dx.split_rngs, which change streams in place",
        )
    forked: Any = fork  # a sequence of filters is a filter
    groups: list[Rules[Change | None]] = [[] if fork is None else [(forked, FORK)]]
    if broadcast is not None:
        groups.insert(0, _rules("with_rngs", "broadcast", broadcast))
    if split is not None:
        groups.insert(0, _rules("with_rngs", "split", split))
    return _Changes("with_rngs", groups, only, graph).apply(node, False)


Policy: TypeAlias = Literal["scalars_only", "match_shape"] | Callable[[Path, jax.Array, Shape], jax.Array]
"""How one key becomes those of a stream: the name of a policy, or a function of path, key and shape."""


@overload
def reseed(
    node: Any, /, *, graph: bool | None = None, policy: Policy = "scalars_only", **stream_keys: RngValue
) -> RngBackups: ...
@overload
def reseed(
    *, graph: bool | None = None, policy: Policy = "scalars_only", **stream_keys: RngValue
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def reseed(
    node: Any | Missing = MISSING,
    /,
    *,
    graph: bool | None = None,
    policy: Policy = "scalars_only",
    **stream_keys: RngValue,
) -> Any:
    """Gives the streams of these names below a node new keys, in place; they count from 0.

    The streams of one name draw their keys from one new stream, in the order of
    the graph, so that two layers never share a key: a model that is reseeded as
    it was made gets the keys that it had. All of them are reseeded, or on an
    error none.

    Args:
      node: a model, an Rngs, or a container of such. Without it, this is a
        decorator: the streams of all arguments are reseeded before each call,
        and restored after it, also where it fails.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.
      policy: how a new key replaces an array of keys. ``"scalars_only"``: it
        does not, which is an error; ``"match_shape"``: it is split; a function
        of the path of the stream, the new key and the shape: by its result.
      **stream_keys: for each name, a seed: an int, a key, or a stream.

    Returns:
      The backups, which are a context manager too.

    Raises:
      RngError: for a name that no stream has, a value that is not a seed, an
        unknown policy, and a policy whose result is not of the shape of a stream.
      GraphError, TraceContextError: as `split_rngs`.

    >>> import declax as dx
    >>> layer = dx.Dropout(0.5, rngs=dx.Rngs(dropout=42))
    >>> x = jnp.ones(10)
    >>> first = layer(x)
    >>> backups = reseed(layer, dropout=42)
    >>> bool((layer(x) == first).all())
    True
    """
    make = policy if callable(policy) else _POLICIES.get(policy)
    if make is None:
        raise RngError(
            "reseed",
            "this is not a policy",
            expected="'scalars_only', 'match_shape', or a function of path, key and shape",
            got=repr(policy),
            fix=suggest(policy, _POLICIES) if isinstance(policy, str) else None,
        )

    def put(value: Any) -> RngBackups:
        table = StreamTable(value, graph)
        streams = choose("reseed", table.streams, [(name, None) for name in stream_keys])
        check_can_change(streams)
        sources = Rngs(**stream_keys)
        with committing:
            keys = {stream: _new_key(stream, make, sources[stream.tag]()) for stream in streams}
            return RngBackups(
                [replace_key(stream, key, jnp.zeros(key.shape, np.uint32)) for stream, key in keys.items()]
            )

    return in_place("reseed", put, node)


_POLICIES: Final[dict[str, Callable[[Path, jax.Array, Shape], jax.Array]]] = {
    "scalars_only": lambda path, key, shape: key,
    "match_shape": lambda path, key, shape: jax.random.split(key, shape) if shape else key,
}


def _new_key(stream: Stream, make: Callable[[Path, jax.Array, Shape], jax.Array], key: jax.Array) -> jax.Array:
    """The new key of a stream, or the array of keys, by a policy."""
    shape: Shape = stream.key.value.shape
    made: Any = make(stream.path, key, shape)
    if not isinstance(made, jax.Array) or made.shape != shape or not jnp.issubdtype(made.dtype, jax.dtypes.prng_key):
        raise RngError(
            stream.label,
            "the policy gives no keys of the shape of this stream",
            expected=f"keys of jax.random of shape {shape}",
            got=describe(made),
            fix="policy='match_shape'        # splits one key for a stream that was split",
        )
    keys: jax.Array = made
    return keys
