"""Other keys for the streams of a model, each drawn from the stream itself.

Vocabulary
----------
spread: draw one key from a stream, and make of it the keys that take its place:
        an array of different ones (split), one (fork), or an array of equal
        ones (broadcast). The count starts anew at 0.
rule:   a filter, and how to spread the streams that it means.
group:  rules of which the first that means a stream counts. A stream goes by
        the first group that has something to do with it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from declax._filters import Filter, Predicate, to_predicate
from declax._modes import is_graph, is_on, set_graph_updates
from declax._threads import committing
from declax._typing import MISSING
from declax._variables import Variable, set_raw
from declax.errors import RngError
from declax.rng_states.backups import RngBackups, StreamBackup, during_calls
from declax.rng_states.finding import Found, Stream
from declax.rngs.broadcasting import check_can_decorate

How: TypeAlias = tuple[Literal["split", "fork", "broadcast", "squeeze"], tuple[int, ...]]
FORK: How = ("fork", ())


class Rule(NamedTuple):
    """A filter, and how to spread what it means; None leaves it to the next group."""

    filter: Filter
    predicate: Predicate
    how: How | None

    @staticmethod
    def of(filter: Filter, how: How | None) -> Rule:
        """The rule of a filter.

        Raises:
          FilterError: for what is no filter.
        """
        return Rule(filter, to_predicate(filter), how)


def shape_of(where: str, option: str, size: object) -> tuple[int, ...]:
    """A number of keys, or the shape of an array of them, as a shape.

    Raises:
      RngError: it is none.
    """
    entries: tuple[Any, ...] = size if isinstance(size, tuple) else (size,)
    if all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 0 for n in entries):
        return tuple(map(int, entries))
    raise RngError(
        where,
        f"this `{option}` is no number of keys and no shape",
        expected="an int that is not negative, or a tuple of those",
        got=repr(size),
        fix=f"dx.{where}(model, {option}=3)        # or {option}=(2, 3)",
    )


class Settings:
    """What a call or a decorator was asked for; checked when it is made.

    Args:
      where: the name of the function, for messages.
      groups: the rules.
      graph, graph_updates: the modes; a tree is never changed in place.
      only: which streams any rule is for.
    """

    def __init__(
        self,
        where: str,
        groups: Sequence[Sequence[Rule]],
        graph: bool | None,
        graph_updates: bool | None,
        only: Filter = ...,
    ) -> None:
        self.where = where
        self.groups = groups
        self.only = only
        self._only = to_predicate(only)
        self.graph: bool = is_graph(graph)
        updates = is_on("graph_updates", graph_updates, set_graph_updates.current_value)
        self.is_in_place: bool = self.graph and updates

    def find(self, node: Any, *, is_call: bool) -> tuple[Found, list[tuple[Stream, How]]]:
        """The streams that are meant, and how to spread each; checked, and nothing changed.

        Raises:
          RngError, TraceContextError: for streams that cannot be spread.
        """
        found = Found(self.where, node, self.graph, is_call=is_call)
        if not any(self.groups):
            return found, []
        found.check_any()
        streams = [stream for stream in found.streams if found.takes(self._only, stream)]
        found.check_taken(self.only, streams)
        how: dict[int, How] = {}
        for group in self.groups:
            of_group: dict[int, How | None] = {}
            for rule in group:
                taken = [i for i, stream in enumerate(streams) if found.takes(rule.predicate, stream)]
                found.check_taken(rule.filter, taken)
                of_group = {**dict.fromkeys(taken, rule.how), **of_group}
            how = {**{i: one for i, one in of_group.items() if one is not None}, **how}
        chosen = [(streams[i], how[i]) for i in sorted(how)]
        found.check_can_draw(stream for stream, _ in chosen)
        return found, chosen

    def in_place(self, node: Any, *, is_call: bool = False) -> RngBackups:
        """Spreads the streams of a node in place."""
        found, chosen = self.find(node, is_call=is_call)
        with committing:
            drawn = [_draw(stream, how) for stream, how in chosen]
            return RngBackups(_put(found, [stream for stream, _ in chosen], drawn))

    def copy(self, node: Any, *, is_call: bool = False) -> Any:
        """A node with new streams."""
        found, chosen = self.find(node, is_call=is_call)
        with committing:
            boxes: dict[int, Variable[Any]] = {}
            drawn = [_draw(stream, how) for stream, how in chosen]
            for (stream, _), (key, count, _) in zip(chosen, drawn, strict=True):
                boxes[stream.place.key] = stream.key.copy(key)
                boxes[stream.place.count] = stream.count.copy(count)
            made = found.copy(boxes)
            for (stream, _), (_, _, after) in zip(chosen, drawn, strict=True):
                stream.count.set_value(after)
        return made


def spread(settings: Settings, node: Any) -> Any:
    """Backups, a new node, or a decorator: what the functions for users give."""
    if settings.is_in_place:
        return settings.in_place(node) if node is not MISSING else during_calls(settings.where, settings.in_place)
    return settings.copy(node) if node is not MISSING else _with_copies(settings)


def _with_copies(settings: Settings) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that calls functions with new nodes in the place of their arguments."""

    def decorate(f: Callable[..., Any]) -> Callable[..., Any]:
        check_can_decorate(settings.where, f)

        @functools.wraps(f)
        def call(*args: Any, **kwargs: Any) -> Any:
            new_args, new_kwargs = settings.copy((args, kwargs), is_call=True)
            return f(*new_args, **new_kwargs)

        return call

    return decorate


_Drawn: TypeAlias = tuple[jax.Array, jax.Array, jax.Array]


@functools.partial(jax.jit, static_argnums=2, inline=True)
def _next(key: jax.Array, count: jax.Array, how: How) -> _Drawn:
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
    return made, jnp.zeros(made.shape, np.uint32), count + 1


def _draw(stream: Stream, how: How) -> _Drawn:
    drawn: _Drawn = _next(stream.key.value, stream.count.value, how)
    return drawn


def _put(found: Found, streams: Sequence[Stream], drawn: Iterable[_Drawn]) -> list[StreamBackup]:
    """Gives streams their new keys and counts: all of them, or none."""
    before = [(stream.key.raw_value, stream.count.raw_value) for stream in streams]
    backups: list[StreamBackup] = []
    try:
        for stream, (key, count, after) in zip(streams, drawn, strict=True):
            old_key = stream.key.value
            stream.count.set_value(after)  # first, so that a ref in the box has the count when it comes back
            raws = stream.key.raw_value, stream.count.raw_value
            backups.append(StreamBackup(found.label(stream), stream.key, stream.count, *raws, old_key, after, key))
            set_raw(stream.key, key)
            set_raw(stream.count, count)
    except BaseException:  # a hook of the user, or an interrupt
        for stream, (old_key, old_count) in zip(streams, before, strict=True):
            set_raw(stream.key, old_key)
            set_raw(stream.count, old_count)
        raise
    return backups
