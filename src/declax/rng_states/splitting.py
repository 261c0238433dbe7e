"""The streams of models with other keys: split, forked or broadcast, in place or in a new model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, ParamSpec, TypeVar, overload

from declax._filters import Filter
from declax._modes import is_on
from declax._typing import MISSING, Missing
from declax.errors import RngError
from declax.rng_states.backups import RngBackups
from declax.rng_states.spreading import FORK, How, Rule, Settings, shape_of, spread
from declax.rngs.streams import Size, Sizes

N = TypeVar("N")
P = ParamSpec("P")
R = TypeVar("R")


@overload
def split_rngs(
    node: Any,
    /,
    *,
    splits: Size,
    only: Filter = ...,
    squeeze: bool = False,
    graph: Literal[True] | None = None,
    graph_updates: Literal[True] | None = None,
) -> RngBackups: ...
@overload
def split_rngs(
    node: N,
    /,
    *,
    splits: Size,
    only: Filter = ...,
    squeeze: bool = False,
    graph: Literal[False],
    graph_updates: bool | None = None,
) -> N: ...
@overload
def split_rngs(
    node: N,
    /,
    *,
    splits: Size,
    only: Filter = ...,
    squeeze: bool = False,
    graph: bool | None = None,
    graph_updates: Literal[False],
) -> N: ...
@overload
def split_rngs(
    *,
    splits: Size,
    only: Filter = ...,
    squeeze: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def split_rngs(
    node: Any | Missing = MISSING,
    /,
    *,
    splits: Size,
    only: Filter = ...,
    squeeze: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
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
    shape = shape_of("split_rngs", "splits", splits)
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
    return spread(Settings("split_rngs", [[Rule.of(only, how)]], graph, graph_updates), node)


@overload
def fork_rngs(
    node: Any,
    /,
    *,
    split: Sizes | None = None,
    only: Filter = ...,
    graph: Literal[True] | None = None,
    graph_updates: Literal[True] | None = None,
) -> RngBackups: ...
@overload
def fork_rngs(
    node: N,
    /,
    *,
    split: Sizes | None = None,
    only: Filter = ...,
    graph: Literal[False],
    graph_updates: bool | None = None,
) -> N: ...
@overload
def fork_rngs(
    node: N,
    /,
    *,
    split: Sizes | None = None,
    only: Filter = ...,
    graph: bool | None = None,
    graph_updates: Literal[False],
) -> N: ...
@overload
def fork_rngs(
    *, split: Sizes | None = None, only: Filter = ..., graph: bool | None = None, graph_updates: bool | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def fork_rngs(
    node: Any | Missing = MISSING,
    /,
    *,
    split: Sizes | None = None,
    only: Filter = ...,
    graph: bool | None = None,
    graph_updates: bool | None = None,
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
    sizes = split if isinstance(split, Mapping) else {...: split}
    rules = [
        Rule.of(chosen, FORK if size is None else ("split", shape_of("fork_rngs", "split", size)))
        for chosen, size in sizes.items()
    ]
    return spread(Settings("fork_rngs", [rules], graph, graph_updates, only), node)


@overload
def with_rngs(
    node: N,
    /,
    *,
    split: Sizes | None = None,
    fork: Filter | Sequence[Filter] = None,
    broadcast: Sizes | None = None,
    only: Filter = True,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> N: ...
@overload
def with_rngs(
    *,
    split: Sizes | None = None,
    fork: Filter | Sequence[Filter] = None,
    broadcast: Sizes | None = None,
    only: Filter = True,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def with_rngs(
    node: Any | Missing = MISSING,
    /,
    *,
    split: Sizes | None = None,
    fork: Filter | Sequence[Filter] = None,
    broadcast: Sizes | None = None,
    only: Filter = True,
    graph: bool | None = None,
    graph_updates: bool | None = None,
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
        _sized_rules("split", split),
        _sized_rules("broadcast", broadcast),
        [] if fork is None else [Rule.of(forked, FORK)],
    ]
    return spread(Settings("with_rngs", groups, graph, False, only), node)


def _sized_rules(option: Literal["split", "broadcast"], sizes: Sizes | None) -> list[Rule]:
    if sizes is None:
        return []
    items = sizes.items() if isinstance(sizes, Mapping) else [(..., sizes)]
    return [
        Rule.of(chosen, None if size is None else (option, shape_of("with_rngs", option, size)))
        for chosen, size in items
    ]
