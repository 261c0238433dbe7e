"""New keys for the streams of models: `split_rngs`, `fork_rngs`, `with_rngs`, `reseed`; backups of the old ones.

Without a model, these functions are decorators, which change the streams of all arguments during a call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import ContextDecorator
from contextvars import ContextVar
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias, TypedDict, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from typing_extensions import Unpack

from declax._filters import Filter, Predicate, to_predicate
from declax._graph.binding import bind_many, check_mode
from declax._graph.nodes import Kind, kind_of, plain_key
from declax._graph.unflattening import build
from declax._modes import is_graph, is_on, set_graph_updates
from declax._random.streams import (
    FORK,
    Keys,
    Rngs,
    RngValue,
    Rules,
    Size,
    Sizes,
    Stream,
    StreamBackup,
    check_can_change,
    new_keys,
    replace_keys,
    select,
    shape_of,
    size_rules,
)
from declax._tree.epoch import committing
from declax._typing import MISSING, N, P, Path, R, Shape
from declax._variables.kinds import RngCount, RngKey
from declax._variables.variable import Variable
from declax.errors import RngError, describe

Flag: TypeAlias = bool | None
On: TypeAlias = Literal[True] | None
Off: TypeAlias = Literal[False]


# --- the streams of a model ------------------------------------------------------------


class CallArguments(NamedTuple):
    """The arguments of a decorated function; some may have no streams."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class StreamTable:
    """The streams of a model, a container of models, or the `CallArguments` of a call; each once, in graph order."""

    def __init__(self, node: Any, graph: Flag) -> None:
        found, self._treedef = jax.tree_util.tree_flatten_with_path(node, is_leaf=_is_root)
        self._leaves = [leaf for _, leaf in found]
        self._places = [place for place, leaf in enumerate(self._leaves) if _is_root(leaf)]
        self._binding = bind_many(tuple([self._leaves[place] for place in self._places]))
        graphdef = self._binding.graphdef
        check_mode(graphdef, graph)
        prefixes: dict[Any, Path] = {i: tuple(map(plain_key, found[place][0])) for i, place in enumerate(self._places)}
        counts: dict[Path, Variable[Any]] = {}
        self.streams: list[Stream] = []
        for (root, *keys), variable in zip(graphdef.definition.paths, self._binding.cells, strict=True):
            path = (*prefixes[root], *keys[:-1])
            if isinstance(variable, RngCount):
                counts[path] = variable
            elif isinstance(variable, RngKey) and path in counts:  # the keys of a node are in order: count, key
                self.streams.append(Stream(path, variable, counts[path]))

    def copy(self, keys: Keys) -> Any:
        """The value with new nodes, whose streams have new keys; it shares all other Variables."""
        copies: dict[int, Any] = {id(s.key): s.key.copy(key) for s, (key, _) in keys.items()}
        copies |= {id(s.count): s.count.copy(count) for s, (_, count) in keys.items()}
        variables = [copies.get(id(variable), variable) for variable in self._binding.cells]
        binding = self._binding
        made = build(binding.graphdef, binding.read(), variables=variables, orders=binding.orders)
        leaves = list(self._leaves)
        for place, root in zip(self._places, made, strict=True):
            leaves[place] = root
        return jax.tree.unflatten(self._treedef, leaves)


def _is_root(value: object) -> bool:
    return kind_of(value) in (Kind.NODE, Kind.OBJECT, Kind.VARIABLE)


class RngBackups(tuple[StreamBackup, ...]):
    """The backups of the streams of a model; at the end of a ``with``, the streams are restored.

    >>> import declax as dx
    >>> with dx.split_rngs(dx.Rngs(0), splits=3) as backups:
    ...     len(backups)
    1
    """

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        restore_rngs(self)


def restore_rngs(backups: Iterable[StreamBackup], /) -> None:
    """Gives the streams of backups the keys that they had; on an error no stream is changed.

    A stream counts on from where it was when the key was replaced. If it has
    that key already, the count never goes back, so no key is drawn twice.

    Args:
      backups: the result of `split_rngs`, `fork_rngs`, `reseed` or `backup_keys`.

    Raises:
      TraceContextError: for a stream of another trace level; names its path.

    >>> import declax as dx
    >>> rngs = dx.Rngs(0)
    >>> backups = dx.split_rngs(rngs, splits=3)
    >>> dx.restore_rngs(backups)
    >>> rngs.default.key.shape, int(rngs.default.count)
    ((), 1)
    """
    entries = list(backups)
    check_can_change(entry.stream for entry in entries)
    with committing:
        for entry in entries:
            replace_keys({entry.stream: (entry.key, _count_of(entry))})


def _count_of(backup: StreamBackup) -> jax.Array:
    """The count of a key that is put back: the later one if the stream has this key already."""
    stream, key, count = backup.stream, backup.key, backup.count
    current: Any = stream.key.value
    is_donated = not isinstance(current, Tracer) and current.is_deleted()
    if is_donated or (current.shape, current.dtype) != (key.shape, key.dtype):
        return count
    return _later(current, key, stream.count.value, count)  # type: ignore[no-any-return]  # of jax.jit


@jax.jit
def _later(current: jax.Array, key: jax.Array, current_count: jax.Array, count: jax.Array) -> jax.Array:
    is_same = (jax.random.key_data(current) == jax.random.key_data(key)).all()
    return jnp.where(is_same, jnp.maximum(current_count, count), count)  # `if` would wait for the device


@overload
def backup_keys(node: Any, /, *, graph: Flag = None) -> RngBackups: ...
@overload
def backup_keys(*, graph: Flag = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def backup_keys(node: Any = MISSING, /, *, graph: Flag = None) -> Any:
    """Copies the keys and counts of the streams below a node, for `restore_rngs`.

    Args:
      node: as of `split_rngs`.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Returns:
      The backups, which are a context manager too, and own their arrays.

    Raises:
      RngError: for a node without streams.
      TraceContextError: for a stream of another trace level.

    >>> import declax as dx
    >>> rngs = dx.Rngs(dropout=0)
    >>> first = rngs.dropout.uniform()
    >>> with dx.backup_keys(rngs):
    ...     _ = dx.reseed(rngs, dropout=42)
    >>> int(rngs.dropout.count)
    1
    """

    def keep(given: Any) -> RngBackups:
        required = not isinstance(given, CallArguments)
        streams = select("backup_keys", StreamTable(given, graph).streams, [(..., None)], required)
        check_can_change(streams)
        with committing:
            return RngBackups(StreamBackup(s, jnp.copy(s.key.value), jnp.copy(s.count.value)) for s in streams)

    return _apply(node, keep)


# --- new keys ------------------------------------------------------------------------


def _apply(node: Any, change: Callable[[Any], Any]) -> Any:
    """Changes a node in place or in a copy; without a node, a decorator that does so for the arguments of each call."""
    if node is not MISSING:
        return change(node)

    def decorate(f: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(f)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            changed = change(CallArguments(args, kwargs))
            if isinstance(changed, CallArguments):
                return f(*changed.args, **changed.kwargs)
            with changed:
                return f(*args, **kwargs)

        return call

    return decorate


def _draw(where: str, node: Any, groups: Sequence[Rules], only: Filter, graph: Flag, graph_updates: Flag) -> Any:
    """Gives streams keys that are drawn from them, in place or in a new node; a tree is never changed in place."""
    is_in_place = is_graph(graph) and is_on("graph_updates", graph_updates, set_graph_updates.current_value)

    def draw(given: Any) -> Any:
        required, table = not isinstance(given, CallArguments), StreamTable(given, graph)
        selected = select(where, table.streams, [(only, None)], required)
        with committing:
            keys = new_keys(where, list(selected), groups, required)
            return RngBackups(replace_keys(keys)) if is_in_place else table.copy(keys)

    return _apply(node, draw)


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
    node: Any = MISSING,
    /,
    *,
    splits: Size,
    only: Filter = ...,
    squeeze: bool = False,
    graph: Flag = None,
    graph_updates: Flag = None,
) -> Any:
    """Splits the streams below a node, in place: each gets an array of keys, for `vmap` or `scan` to run over.

    One key is drawn from each stream, and split. On an error no stream is changed.

    Args:
      node: a model, an Rngs, or a container of such. Without it, this is a decorator: the streams of all arguments are
        changed before each call, and restored after it, also if it fails; they need not have any.
      splits: the number of keys, or the shape of the array.
      only: selects streams by name, kind or path.
      squeeze: with ``splits=1``, gives one key in place of an array of one.
      graph: False if the node must be a tree, which is never changed in place;
        None for the default of `set_graph_mode`.
      graph_updates: False returns a new node, as `with_rngs`, and changes
        nothing in place; None for the default of `set_graph_updates`.

    Returns:
      The backups, for `restore_rngs` or a ``with``, at whose end the streams
      have their keys again, and count one draw more; or the new node.

    Raises:
      RngError: for an invalid size, a filter that matches no stream of a
        node, and a stream that holds an array of keys.
      TraceContextError: for a stream of another trace level; names its path.

    >>> import declax as dx
    >>> rngs = dx.Rngs(params=0, dropout=1)
    >>> with dx.split_rngs(rngs, splits=3, only="dropout"):
    ...     rngs.params.key.shape, rngs.dropout.key.shape
    ((), (3,))
    >>> rngs.dropout.key.shape, int(rngs.dropout.count)
    ((), 1)
    """
    shape = shape_of("split_rngs", splits)
    if is_on("squeeze", squeeze):
        if shape != (1,):
            got, fix = f"splits={splits!r}", "dx.split_rngs(model, splits=1, squeeze=True)"
            raise RngError("split_rngs", "squeeze removes an axis of one key", got=got, fix=fix)
        shape = ()
    return _draw("split_rngs", node, [[(..., ("split", shape))]], only, graph, graph_updates)


@overload
def fork_rngs(
    node: Any, /, *, split: Sizes | None = None, graph: On = None, graph_updates: On = None
) -> RngBackups: ...
@overload
def fork_rngs(node: N, /, *, split: Sizes | None = None, graph: Off, graph_updates: Flag = None) -> N: ...
@overload
def fork_rngs(node: N, /, *, split: Sizes | None = None, graph: Flag = None, graph_updates: Off) -> N: ...
@overload
def fork_rngs(
    *, split: Sizes | None = None, graph: Flag = None, graph_updates: Flag = None
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def fork_rngs(
    node: Any = MISSING, /, *, split: Sizes | None = None, graph: Flag = None, graph_updates: Flag = None
) -> Any:
    """Gives each stream below a node a new key, drawn from the stream, in place.

    The draws from a forked stream do not count for the original key, whose
    count has moved by one when the stream is restored.

    Args:
      split: how many keys each stream gets: None for one, a number or a shape for an array of keys, or a mapping from
        filters to those. The first filter that matches a stream counts; a stream that none matches stays.
      node, graph, graph_updates: as of `split_rngs`, as are results and errors.

    >>> import declax as dx
    >>> rngs = dx.Rngs(params=0, dropout=1)
    >>> with dx.fork_rngs(rngs, split={"params": 2, "dropout": None}):
    ...     _ = [rngs.dropout() for _ in range(5)]
    ...     rngs.params.key.shape
    (2,)
    >>> int(rngs.params.count), int(rngs.dropout.count)
    (1, 1)
    """
    rules = [(..., FORK)] if split is None else size_rules("fork_rngs", "split", split, FORK)
    return _draw("fork_rngs", node, [rules], ..., graph, graph_updates)


class _NewStreams(TypedDict, total=False):
    """The options of `with_rngs`."""

    split: Sizes | None
    fork: Filter | Sequence[Filter]
    broadcast: Sizes | None
    only: Filter
    graph: Flag
    graph_updates: Flag


@overload
def with_rngs(node: N, /, **options: Unpack[_NewStreams]) -> N: ...
@overload
def with_rngs(**options: Unpack[_NewStreams]) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def with_rngs(
    node: Any = MISSING,
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
        decorator, which calls the function with new nodes for its arguments.
      split: the number of different keys or the shape of their array, for all streams; or a mapping from filters to
        those, of which the first that matches a stream counts. None in it leaves a stream to the other rules.
      fork: selects streams that get one new key.
      broadcast: the number of equal keys or the shape of their array, as `split`.
      only: selects the streams that any rule is for.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.
      graph_updates: for NNX programs, which pass False: nothing is changed in place.

    Raises:
      RngError: as `split_rngs`, and for a stream that filters of two rules match.

    >>> import declax as dx
    >>> rngs = dx.Rngs(params=0, dropout=1)
    >>> new = dx.with_rngs(rngs, split={"params": 4}, fork=...)
    >>> new.params.key.shape, new.dropout.key.shape
    ((4,), ())
    >>> rngs.params.key.shape, int(rngs.params.count)
    ((), 1)
    """
    forked: Any = fork  # a sequence of filters is a filter
    groups = [
        [] if split is None else size_rules("with_rngs", "split", split),
        [] if broadcast is None else size_rules("with_rngs", "broadcast", broadcast),
        [] if fork is None else [(forked, FORK)],
    ]
    return _draw("with_rngs", node, groups, only, graph, False)


PolicyFn: TypeAlias = Callable[[Path, jax.Array, Shape], jax.Array]
"""Makes the keys of a stream of its path, one key, and the shape."""
Policy: TypeAlias = Literal["scalars_only", "match_shape"] | PolicyFn

_POLICIES: Final[dict[str, PolicyFn]] = {
    "scalars_only": lambda path, key, shape: key,
    "match_shape": lambda path, key, shape: jax.random.split(key, shape) if shape else key,
}


@overload
def reseed(
    node: Any, /, *, graph: Flag = None, policy: Policy = "scalars_only", **stream_keys: RngValue
) -> RngBackups: ...
@overload
def reseed(
    *, graph: Flag = None, policy: Policy = "scalars_only", **stream_keys: RngValue
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def reseed(
    node: Any = MISSING, /, *, graph: Flag = None, policy: Policy = "scalars_only", **stream_keys: RngValue
) -> Any:
    """Gives the streams of these names below a node new keys, in place; they count from 0.

    The streams of one name draw their keys from one new stream, in the order of
    the graph, so a model that is reseeded as it was made gets the keys that it had.

    Args:
      node: as of `split_rngs`, as are the backups returned.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.
      policy: how a new key replaces an array of keys: ``"scalars_only"`` raises an error, ``"match_shape"`` splits the
        key, and a function of path, new key and shape returns the keys.
      **stream_keys: for each name, a seed: an int, a key, or a stream.

    Raises:
      RngError: for a name that no stream has, a value that is not a seed, and a policy whose result has another shape.
      TraceContextError: for a stream of another trace level.

    >>> import declax as dx
    >>> rngs = dx.Rngs(dropout=42)
    >>> first = rngs.dropout.uniform()
    >>> backups = dx.reseed(rngs, dropout=7)
    >>> bool(rngs.dropout.uniform() == first), int(rngs.dropout.count)
    (False, 1)
    """
    make = policy if callable(policy) else _POLICIES[policy]
    if node is MISSING:
        Rngs(**stream_keys)  # raises for what is not a seed, such as a model in `reseed(node=model)`, before any call

    def replace(given: Any) -> RngBackups:
        rules: Rules = [(name, None) for name in stream_keys]
        named = select("reseed", StreamTable(given, graph).streams, rules, not isinstance(given, CallArguments))
        check_can_change(named)
        sources = Rngs(**stream_keys)
        with committing:
            return RngBackups(replace_keys({s: _seeded_keys(s, make, sources[s.tag]()) for s in named}))

    return _apply(node, replace)


def _seeded_keys(stream: Stream, make: PolicyFn, key: jax.Array) -> tuple[jax.Array, jax.Array]:
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
    return made, jnp.zeros(shape, np.uint32)


# --- draws that are meant to be equal ----------------------------------------------------

_broadcast: Final[ContextVar[tuple[Predicate, ...]]] = ContextVar("declax_broadcast_rngs", default=())
"""The predicates of the blocks and decorated calls that are running, outermost first."""


class broadcast_rngs(ContextDecorator):  # noqa: N801  # reads as a function
    """Allows the rows of a `vmap` to draw the same random numbers.

    A model that `vmap` broadcasts draws the same numbers for each row: one dropout mask for all. This is rarely what
    you want, so `vmap` warns about it, except in the block of a ``with``, in the thread or task that enters it, and in
    calls of a function that this decorates.

    Args:
      *filters: selects streams by their count; all streams if none is given.

    Raises:
      FilterError: for a value that is not a filter.

    >>> import declax as dx
    >>> layer, x = dx.Dropout(0.5, rngs=dx.Rngs(0)), dx.Rngs(1).normal((2, 9))
    >>> with dx.broadcast_rngs():
    ...     y = dx.vmap(lambda layer, x: layer(x), in_axes=(None, 0))(layer, x)
    >>> bool(((y[0] == 0) == (y[1] == 0)).all())
    True
    """

    def __init__(self, *filters: Filter) -> None:
        self._predicate = to_predicate(filters or ...)

    def __enter__(self) -> None:
        _broadcast.set((*_broadcast.get(), self._predicate))

    def __exit__(self, *error: object) -> None:
        # without a token, since one object may be entered again inside of itself, and by many threads
        _broadcast.set(_broadcast.get()[:-1])


def is_broadcast_allowed(path: Path, count: Any) -> bool:
    """Whether `broadcast_rngs` allows the stream of this count to give each row the same numbers."""
    return any(predicate(path, count) for predicate in _broadcast.get())
