"""The streams of models with other keys, each drawn from the stream itself, in place or in a new model.

Vocabulary
----------
how:   what is made of one key that is drawn from a stream: an array of
       different keys (split), one key (fork), or an array of equal ones
       (broadcast). The count starts anew at 0.
rule:  a filter, and how to change the streams that it takes; None leaves them to the next group.
group: rules, of which the first that takes a stream counts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np

from declax._filters import Filter
from declax._modes import is_graph, is_on, set_graph_updates
from declax._threads import committing
from declax._typing import MISSING, Missing
from declax.errors import RngError
from declax.rngs.backups import NewKey, RngBackups, in_place, replace_keys
from declax.rngs.calls import around_calls
from declax.rngs.finding import Chosen, Stream, StreamTable
from declax.rngs.streams import Size, Sizes, shape_of

N = TypeVar("N")
P = ParamSpec("P")
R = TypeVar("R")

How: TypeAlias = tuple[Literal["split", "fork", "broadcast", "squeeze"], tuple[int, ...]]
FORK: How = ("fork", ())

On: TypeAlias = Literal[True] | None
Off: TypeAlias = Literal[False]
Flag: TypeAlias = bool | None


class Rule(NamedTuple):
    """Which streams are changed, and how."""

    chosen: Chosen
    how: How | None


def _rules(where: str, option: str, sizes: Sizes | None, default: How | None) -> list[Rule]:
    """The rules of an option that takes a size, or a mapping from filters to sizes."""
    items = sizes.items() if isinstance(sizes, Mapping) else [(..., sizes)]
    kind: Any = option
    return [
        Rule(Chosen.by(f), default if size is None else (kind, _shape_of(where, option, size))) for f, size in items
    ]


def _shape_of(where: str, option: str, size: object) -> tuple[int, ...]:
    return shape_of(where, size, f"dx.{where}(model, {option}=3)        # or {option}=(2, 3)")


class _Change:
    """A change of the streams of a node, as a function and as a decorator.

    Args:
      where: the name of the function, for messages.
      groups: the rules.
      only: which streams any rule is for.
      graph: False if the node must be a tree.
    """

    def __init__(self, where: str, groups: Sequence[Sequence[Rule]], only: Filter, graph: bool) -> None:
        self.where = where
        self._groups = groups
        self._only = Chosen.by(only)
        self._graph = graph

    def _chosen(self, node: Any) -> tuple[StreamTable, list[tuple[Stream, How]]]:
        """The streams to change, and how; all is checked, and nothing changed."""
        table = StreamTable(self.where, node, self._graph)
        if not any(self._groups):
            return table, []
        streams = table.select(self._only)
        found: dict[Stream, How] = {}
        for group in self._groups:
            of_group: dict[Stream, How | None] = {}
            for chosen, how in group:
                for stream in table.matching(chosen, streams):
                    of_group.setdefault(stream, how)
            found = {**{stream: how for stream, how in of_group.items() if how is not None}, **found}
        ordered = [(stream, found[stream]) for stream in streams if stream in found]
        table.check_can_draw([stream for stream, _ in ordered])
        return table, ordered

    def in_place(self, node: Any) -> RngBackups:
        """Changes the streams of a node."""
        table, chosen = self._chosen(node)
        with committing:
            new_keys = [_drawn(stream, how) for stream, how in chosen]
            return replace_keys(table, [stream for stream, _ in chosen], new_keys)

    def copy(self, node: Any) -> Any:
        """A node with new streams."""
        table, chosen = self._chosen(node)
        with committing:
            new_keys = [_drawn(stream, how) for stream, how in chosen]
            copies = {}
            for (stream, _), new in zip(chosen, new_keys, strict=True):
                copies[id(stream.key)] = stream.key.copy(new.key)
                copies[id(stream.count)] = stream.count.copy(new.start)
            made = table.copy(copies)
            for (stream, _), new in zip(chosen, new_keys, strict=True):
                assert new.after is not None
                stream.count.set_value(new.after)
        return made


def _apply(
    where: str,
    groups: Sequence[Sequence[Rule]],
    node: Any,
    only: Filter = ...,
    graph: Flag = None,
    graph_updates: Flag = None,
) -> Any:
    """Backups, a new node, or a decorator of either; a tree is never changed in place."""
    is_a_graph = is_graph(graph)
    change = _Change(where, groups, only, is_a_graph)
    updates = is_on("graph_updates", graph_updates, set_graph_updates.current_value)
    if is_a_graph and updates:
        return in_place(where, change.in_place, node)
    if node is MISSING:
        return around_calls(where, lambda given: (nullcontext(), change.copy(given)))
    return change.copy(node)


@functools.partial(jax.jit, static_argnums=2, inline=True)
def _next(key: jax.Array, count: jax.Array, how: How) -> NewKey:
    """New keys, their count, and the count of the old key; one dispatch a stream."""
    kind, shape = how
    drawn = jax.random.fold_in(key, count)
    made: jax.Array = drawn
    if kind == "split":
        made = jax.random.split(drawn, shape)
    elif kind == "squeeze":
        made = jax.random.split(drawn, 1)[0]
    elif kind == "broadcast":
        made = jnp.broadcast_to(drawn, shape)
    return NewKey(made, jnp.zeros(made.shape, np.uint32), count + 1)


def _drawn(stream: Stream, how: How) -> NewKey:
    new: NewKey = _next(stream.key.value, stream.count.value, how)
    return new


# --- for users ---------------------------------------------------------------


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

    Of each stream one key is drawn, and split. All that the filter means are
    split, or on an error none.

    Args:
      node: a model, an Rngs, or a container of such. Without it, this is a
        decorator: the streams of all arguments are split before each call, and
        restored after it, also where it fails.
      splits: the number of keys, or the shape of the array.
      only: which streams.
      squeeze: with ``splits=1``, gives one key in the place of an array of one.
      graph: False where the node has to be a tree; None for the default of
        `set_graph_mode`. A tree is not changed: see `graph_updates`.
      graph_updates: False changes nothing in place, and returns the node with
        new streams (`with_rngs`); as a decorator, calls the function with such.
        None for the default of `set_graph_updates`.

    Returns:
      The backups, which are a context manager too: the streams have their keys
      again after `restore_rngs`, or at the end of a ``with``. Each counts one
      draw then. Where nothing is changed in place, the new node.

    Raises:
      RngError: for a size that is none, a filter that takes no stream, a node
        without streams, and a stream that is split already.
      GraphError: for a graph where a tree is asked for.
      TraceContextError: for a stream of another trace level; names its place.

    >>> from declax.rngs import Rngs
    >>> rngs = Rngs(params=0, dropout=1)
    >>> with split_rngs(rngs, splits=3, only="dropout"):
    ...     rngs.params.key.shape, rngs.dropout.key.shape
    ((), (3,))
    >>> rngs.dropout.key.shape, int(rngs.dropout.count)
    ((), 1)
    """
    shape = _shape_of("split_rngs", "splits", splits)
    how: How = ("split", shape)
    if is_on("squeeze", squeeze):
        if shape != (1,):
            raise RngError(
                "split_rngs",
                "squeeze takes away an axis of one key, and there is none",
                expected="splits=1",
                got=f"splits={splits!r}",
                fix="dx.split_rngs(model, splits=1, squeeze=True)",
            )
        how = ("squeeze", ())
    return _apply("split_rngs", [[Rule(Chosen.by(only), how)]], node, graph=graph, graph_updates=graph_updates)


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

    What is drawn until the streams are restored moves their own counts by one
    and no more, however much it is.

    Args:
      node: a model, an Rngs, or a container of such. Without it, this is a
        decorator: the streams of all arguments are forked before each call, and
        restored after it, also where it fails.
      split: how many keys each stream gets. None, one key. A number or a shape,
        an array of keys, as of `split_rngs`. A mapping from filters to those:
        the first filter that means a stream counts, and a stream that none
        means is left as it is.
      only: which streams.
      graph, graph_updates: as of `split_rngs`.

    Returns:
      As `split_rngs`.

    Raises:
      RngError, GraphError, TraceContextError: as `split_rngs`.

    >>> from declax.rngs import Rngs
    >>> rngs = Rngs(params=0, dropout=1)
    >>> with fork_rngs(rngs, split={"params": 2, "dropout": None}):
    ...     _ = [rngs.dropout() for _ in range(5)]
    ...     rngs.params.key.shape
    (2,)
    >>> int(rngs.params.count), int(rngs.dropout.count)
    (1, 1)
    """
    rules = _rules("fork_rngs", "split", split, FORK)
    return _apply("fork_rngs", [rules], node, only, graph, graph_updates)


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

    Rules are tried in the order `split`, `broadcast`, `fork`. A stream that
    none means stays, and so do all other Variables: both nodes have them.

    Args:
      node: a model, an Rngs, or a container of such. Without it, this is a
        decorator: the function is called with new nodes in the place of its
        arguments.
      split: the number of different keys or the shape of their array, for all
        streams; or a mapping from filters to those, of which the first that
        means a stream counts. None in it leaves a stream to the other rules.
      fork: which streams get one new key.
      broadcast: the number of equal keys or the shape of their array, as `split`.
      only: which streams any rule is for.
      graph: False where the node has to be a tree; None for the default of
        `set_graph_mode`.
      graph_updates: None or False, since nothing is changed in place.

    Returns:
      The new node: new models and containers, which share what is not new.

    Raises:
      RngError: for a size that is none, a filter that takes no stream, rules
        for a node without streams, a stream that is split already, and
        ``graph_updates=True``.
      GraphError: for a graph where a tree is asked for.
      TraceContextError: for a stream of another trace level; names its place.

    >>> from declax.rngs import Rngs
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
            "it makes a new node, and changes nothing in place",
            expected="graph_updates=False or None",
            got="graph_updates=True",
            fix="with dx.fork_rngs(model):        # or dx.split_rngs, which change streams in place",
        )
    forked: Any = fork  # a sequence of filters is a filter
    groups = [
        [] if split is None else _rules("with_rngs", "split", split, None),
        [] if broadcast is None else _rules("with_rngs", "broadcast", broadcast, None),
        [] if fork is None else [Rule(Chosen.by(forked), FORK)],
    ]
    return _apply("with_rngs", groups, node, only, graph, False)
