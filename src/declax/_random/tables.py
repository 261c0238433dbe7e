"""Streams as a table of paths, keys and counts: which of them filters select, and how keys are drawn and replaced."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from declax import _jax
from declax._filters import Filter, as_written, to_predicate
from declax._graph.nodes import is_ref
from declax._tree.epoch import committing
from declax._tree.read_only import ReadOnly
from declax._typing import Path, Shape
from declax._variables.variable import Variable, set_raw
from declax.errors import RngError, TraceContextError, format_path, suggest

Size: TypeAlias = int | tuple[int, ...]
Sizes: TypeAlias = Size | Mapping[Filter, Size | None]
"""How many keys: of each stream alike, or of each by the first filter that matches it (by tag, kind or path)."""
How: TypeAlias = Literal["fork", "split", "broadcast", "squeeze"]
KeyChange: TypeAlias = tuple[How, Shape]
"""How new keys are made of one that is drawn from a stream, and in which shape."""
Rules: TypeAlias = Sequence[tuple[Filter, KeyChange | None]]
"""The change of the streams that a filter matches; the first filter that matches counts."""

FORK: Final[KeyChange] = ("fork", ())


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """A stream of a model: its path below an owner, and the Variables of its key and its count."""

    path: Path
    key: Variable[Any]
    count: Variable[Any]
    owner: tuple[str, ...] = ()

    @property
    def tag(self) -> str:
        """The name of the stream."""
        return str(self.key._metadata.get("tag", ""))

    @property
    def label(self) -> str:
        """The path as it is written in code."""
        return format_path((*self.owner, *self.path)) if self.path else "the stream"


@dataclass(frozen=True, slots=True, eq=False)
class StreamBackup:
    """A stream, and the key and count that it had."""

    stream: Stream
    key: jax.Array
    count: jax.Array


Keys: TypeAlias = dict[Stream, tuple[jax.Array, jax.Array]]
"""New keys and counts of streams."""


# --- which streams change, and how -------------------------------------------------


def shape_of(where: str, size: object) -> Shape:
    """A number of keys, or the shape of an array of them, as a shape."""
    entries: tuple[Any, ...] = size if isinstance(size, tuple) else (size,)
    if all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 0 for n in entries):
        return tuple(map(int, entries))
    raise RngError(
        where,
        "this is not a number of keys or a shape",
        expected="an int that is not negative, a tuple of those, or for several streams a mapping from filters to them",
        got=repr(size),
        fix="3        # or (2, 3), or {'dropout': 3}",
    )


def size_rules(where: str, how: How, sizes: Sizes, default: KeyChange | None = None) -> Rules:
    """The rules of a size for all streams, or of a mapping from filters to sizes, where None means the default."""
    if not isinstance(sizes, Mapping):
        return [(..., (how, shape_of(where, sizes)))]
    return [(f, default if size is None else (how, shape_of(where, size))) for f, size in sizes.items()]


def select(
    where: str, streams: Sequence[Stream], rules: Rules, required: bool = True
) -> dict[Stream, KeyChange | None]:
    """The change of each stream that a filter matches, by its path or key; refuses idle filters if `required`."""
    selected: dict[Stream, KeyChange | None] = {}
    for wanted, change in rules:
        matches = to_predicate(wanted)
        matched = [s for s in streams if matches((*s.path, "key"), s.key) or matches(s.path, s.key)]
        if not matched and required:
            shown = ", ".join(f"{stream.tag!r} at {stream.label}" for stream in streams[:6])
            more = f" and {len(streams) - 6} more" if len(streams) > 6 else ""
            raise RngError(
                where,
                f"the filter {as_written(wanted)} matches no stream of random numbers",
                expected=None if streams else "a model, an Rngs, an RngStream or a container of such, with a stream",
                got=f"the streams {shown}{more}" if streams else "no streams",
                fix=suggest(wanted, sorted({s.tag for s in streams})) if isinstance(wanted, str) else None,
            )
        for stream in matched:
            selected.setdefault(stream, change)
    return selected


def new_keys(where: str, streams: Sequence[Stream], groups: Sequence[Rules], required: bool = True) -> Keys:
    """Keys drawn from the streams that rules change; a later group has the streams that earlier ones do not match.

    All is checked before the first key is drawn.
    """
    changes: dict[Stream, KeyChange] = {}
    for rules in groups:
        for stream, change in select(where, streams, rules, required).items():
            if change is not None:
                changes.setdefault(stream, change)
    check_can_change(changes)
    for stream in changes:
        check_is_single(stream.label, stream.key)
    return {s: make_keys(draw(s.key, s.count), *changes[s]) for s in streams if s in changes}


# --- keys --------------------------------------------------------------------------


@functools.partial(jax.jit, inline=True)
def _next(key: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The key of a count, and the count after it; one dispatch instead of a dozen."""
    return jax.random.fold_in(key, count), count + 1


def draw(key: Variable[Any], count: Variable[Any]) -> jax.Array:
    """Draws the next key of a stream; no two threads get the same."""
    drawn: jax.Array
    with committing:
        drawn, after = _next(key.value, count.value)
        count.set_value(after)
    return drawn


@functools.partial(jax.jit, static_argnums=(1, 2), inline=True)
def make_keys(drawn: jax.Array, how: How, shape: Shape) -> tuple[jax.Array, jax.Array]:
    """The key that was drawn, or an array of different or equal ones made of it, and their counts."""
    made: jax.Array = drawn
    if how == "split":
        made = jax.random.split(drawn, shape)
    elif how == "broadcast":
        made = jnp.broadcast_to(drawn, shape)
    elif how == "squeeze":
        made = jax.random.split(drawn, 1)[0]
    return made, jnp.zeros(made.shape, np.uint32)


def replace_keys(keys: Keys) -> list[StreamBackup]:
    """Gives streams keys and counts, past the hooks of users; refs keep their identity if the shape allows it."""
    backups = [StreamBackup(stream, stream.key.value, stream.count.value) for stream in keys]
    for stream, pair in keys.items():
        for variable, value in zip((stream.key, stream.count), pair, strict=True):
            raw = variable.raw_value
            if not is_ref(raw):
                set_raw(variable, value)
            elif raw.shape == value.shape:
                raw[...] = value
            else:
                set_raw(variable, jax.new_ref(value))
    return backups


# --- checks ------------------------------------------------------------------------


def check_is_single(label: str, key: Variable[Any]) -> None:
    """Raises RngError for a stream with an array of keys."""
    if key.shape:
        raise RngError(
            label,
            "a stream with an array of keys cannot draw one key",
            got=f"keys of shape {key.shape}",
            why="the stream was split or broadcast, for a transform to run over its keys",
            fix="pass it to a function under jax.vmap, and draw there; or dx.restore_rngs(backups) first",
        )


def check_can_change(streams: Iterable[Stream]) -> None:
    """Raises TraceContextError for a stream of another trace level."""
    trace = _jax.current_trace()
    for stream in streams:
        if stream.key._trace is trace and stream.count._trace is trace:
            continue
        if isinstance(stream.count._trace, ReadOnly):
            raise stream.count._trace.refusal(stream.label)
        raise TraceContextError(
            stream.label,
            "the keys of a stream cannot be changed from another trace level than its own",
            why="the stream was made outside of the function that JAX is tracing now; the change would leak a tracer",
            fix="pass the model that has it to the traced function as an argument, or do this outside of that function",
        )
