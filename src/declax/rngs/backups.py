"""Keys and counts of streams: replaced, kept, and put back.

Vocabulary
----------
backup:  of a stream, the key that it had, and the count that it goes on with.
restore: put the key of a backup in its place again. If the stream has that key
         already, the count never goes back, so that no key is drawn twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar, overload

import jax
import jax.numpy as jnp
from jax.core import Tracer

from declax._filters import Filter
from declax._nodes import is_ref
from declax._threads import committing
from declax._typing import MISSING, Missing
from declax._variables import Variable, set_raw
from declax.errors import RngError, describe
from declax.rngs.calls import around_calls
from declax.rngs.finding import Chosen, Stream, StreamTable, check_is_own

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class StreamBackup:
    """The backup of one stream.

    Attributes:
      label: the place of the stream, for messages.
      key, count: its Variables.
      raw_key, raw_count: what they held: arrays or refs.
      key_value, count_value: the arrays to put back.
      new_key: what was put in the place of the key, where that is known.
      replacing: the backup that was put in its place, which is told of the draws until this one comes back.
    """

    label: str
    key: Variable[Any]
    count: Variable[Any]
    raw_key: Any
    raw_count: Any
    key_value: Any
    count_value: Any
    new_key: Any = None
    replacing: StreamBackup | None = None

    @staticmethod
    def of(label: str, key: Variable[Any], count: Variable[Any], replacing: StreamBackup | None = None) -> StreamBackup:
        """The backup of a stream as it is."""
        raws, values = (key.raw_value, count.raw_value), (key.value, count.value)
        return StreamBackup(label, key, count, *raws, *values, replacing=replacing)

    def is_replaced(self) -> bool:
        """Whether the stream has another key now; if the Variable holds a ref, it may."""
        return is_ref(self.raw_key) or self.key.raw_value is not self.raw_key

    def put_back(self) -> None:
        """Gives the stream its key and count again."""
        key, count = self.key.raw_value, self.count_value
        is_array = not is_ref(key) and not _is_gone(key)
        if is_array and key is self.raw_key:
            return
        if self.replacing is not None and _is_equal(self.key.value, self.replacing.key_value):
            self.replacing.count_value = jnp.maximum(self.replacing.count_value, self.count.value)
        # A key that declax put in is known to be another; comparing would wait for the device.
        if not (is_array and key is self.new_key) and _is_equal(self.key.value, self.key_value):
            count = jnp.maximum(self.count.value, count)
        self.write(count)

    def write(self, count: Any) -> None:
        """Writes the key, and a count, to where they were: into refs, or into the Variables."""
        for variable, raw, value in ((self.key, self.raw_key, self.key_value), (self.count, self.raw_count, count)):
            if is_ref(raw):
                raw[...] = value
            set_raw(variable, raw if is_ref(raw) else value)


def _is_equal(a: Any, b: Any) -> bool:
    """Whether two values are equal keys, as far as it can be told: nobody knows it of tracers."""
    if isinstance(a, Tracer) or isinstance(b, Tracer):
        return a is b
    if _is_gone(a):
        return False
    is_alike = getattr(a, "shape", None) == b.shape and a.dtype == b.dtype
    return is_alike and bool((jax.random.key_data(a) == jax.random.key_data(b)).all())


def _is_gone(value: Any) -> bool:
    """Whether an array has lost its buffer, to a call that it was donated to."""
    return isinstance(value, jax.Array) and not isinstance(value, Tracer) and value.is_deleted()


class RngBackups:
    """The backups of the streams of a model; as the subject of a ``with``, restores them at the end of the block.

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
        return f"RngBackups({', '.join(entry.label for entry in self._entries)})"


@overload
def restore_rngs(backups: Iterable[StreamBackup], /) -> RngBackups: ...
@overload
def restore_rngs(*, only: Filter = ..., graph: bool | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def restore_rngs(
    backups: Iterable[StreamBackup] | Missing = MISSING, /, *, only: Filter = ..., graph: bool | None = None
) -> Any:
    """Puts keys back: of all streams of these backups, or on an error of none.

    A stream gets its key again, and counts on from where it was when the key
    was taken from it; further on, where the stream has that key already.

    As a decorator, ``@dx.restore_rngs()``, it puts back after each call the keys
    that the arguments had before it: another name for ``@dx.backup_keys()``.

    Args:
      backups: what `split_rngs`, `fork_rngs`, `reseed` or `backup_keys` returned.
      only: of a decorator, which streams.
      graph: of a decorator, as in `backup_keys`.

    Returns:
      What the streams had until now, of those that get another key; as the
      subject of a ``with``, it puts that in place again at the end of the block;
      the backups count on from there, so that no key is drawn twice.

    Raises:
      RngError: for what is no backup.
      TraceContextError: for a stream of another trace level; names its place.

    >>> from declax.rngs import Rngs, split_rngs
    >>> rngs = Rngs(0)
    >>> backups = split_rngs(rngs, splits=3)
    >>> _ = restore_rngs(backups)
    >>> rngs.default.key.shape, int(rngs.default.count)
    ((), 1)

    To draw once more what was drawn before:

    >>> backups = split_rngs(rngs, splits=3)
    >>> with restore_rngs(backups):
    ...     rngs.default.key.shape
    ()
    >>> rngs.default.key.shape
    (3,)
    """
    if backups is MISSING:
        return backup_keys(only=only, graph=graph)
    if only is not ... or graph is not None:
        raise RngError(
            "restore_rngs",
            "backups are put back as a whole, so that `only` and `graph` have no meaning",
            fix="backups = dx.backup_keys(model, only=...)\ndx.restore_rngs(backups)",
        )
    given: Any = backups
    entries = list(given) if isinstance(given, Iterable) else [given]
    for entry in entries:
        if not isinstance(entry, StreamBackup):
            raise RngError(
                "restore_rngs",
                "this is no backup of a stream",
                expected="what split_rngs, fork_rngs or backup_keys returned",
                got=describe(entry),
                fix="backups = dx.split_rngs(model, splits=3)\ndx.restore_rngs(backups)",
            )
        check_is_own(entry.label, entry.key, entry.count)
    with committing:
        before = [StreamBackup.of(entry.label, entry.key, entry.count, replacing=entry) for entry in entries]
        for entry in entries:
            entry.put_back()
        # What lost its buffer to a call that it was donated to cannot come back.
        return RngBackups(one for one in before if one.is_replaced() and not _is_gone(one.key_value))


@overload
def backup_keys(node: Any, /, *, only: Filter = ..., graph: bool | None = None) -> RngBackups: ...
@overload
def backup_keys(*, only: Filter = ..., graph: bool | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def backup_keys(node: Any | Missing = MISSING, /, *, only: Filter = ..., graph: bool | None = None) -> Any:
    """Keeps the keys of the streams below a node, whatever is done to them, for `restore_rngs`.

    As a decorator, ``@dx.backup_keys()``, it does so for the arguments of each
    call, and restores them after it, also where the call fails.

    Args:
      node: a model, an Rngs, or a container of such.
      only: which streams.
      graph: False where the node has to be a tree; None for the default of
        `set_graph_mode`.

    Returns:
      The backups, which are a context manager too. A key that was replaced
      comes back with the count that it had here; where the key is still in its
      place, the count never goes back. The backups own their arrays: they live
      on when those of the model are donated.

    Raises:
      RngError: for a node without streams, and a filter that takes none.
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
    chosen = Chosen.by(only)

    def keep(value: Any) -> RngBackups:
        table = StreamTable("backup_keys", value, graph)
        streams = table.select(chosen)
        table.check_are_own(streams)
        with committing:
            return RngBackups([_owning(table.label(stream), stream) for stream in streams])

    return in_place("backup_keys", keep, node)


def _owning(label: str, stream: Stream) -> StreamBackup:
    backup = StreamBackup.of(label, stream.key, stream.count)
    backup.key_value, backup.count_value = _own(backup.key_value), _own(backup.count_value)
    return backup


def _own(value: Any) -> Any:
    """A copy that lives on when the array is donated."""
    return jnp.copy(value) if isinstance(value, jax.Array) and not isinstance(value, Tracer) else value


# --- replacing --------------------------------------------------------------


class NewKey(NamedTuple):
    """What a stream gets.

    Attributes:
      key: its new one.
      start: its new count.
      after: the count that the old key goes on with; None if nothing was drawn from it.
    """

    key: jax.Array
    start: jax.Array
    after: jax.Array | None = None


def replace_keys(table: StreamTable, streams: Sequence[Stream], new_keys: Sequence[NewKey]) -> RngBackups:
    """Gives streams new keys and counts: all of them, or on an error none."""
    backups = [StreamBackup.of(table.label(stream), stream.key, stream.count) for stream in streams]
    try:
        for stream, new in zip(streams, new_keys, strict=True):
            if new.after is not None:
                stream.count.set_value(new.after)  # through the hooks of the user
            _put(stream.key, new.key)
            _put(stream.count, new.start)
    except BaseException:  # a hook that fails, or an interrupt
        for backup in backups:
            backup.write(backup.count_value)
        raise
    for backup, new in zip(backups, new_keys, strict=True):
        backup.new_key = new.key
        if new.after is not None:
            backup.count_value = new.after
    return RngBackups(backups)


def _put(variable: Variable[Any], value: jax.Array) -> None:
    """Writes an array; into the ref that a Variable holds, if its shape stays."""
    raw = variable.raw_value
    if is_ref(raw) and raw.shape == value.shape:
        raw[...] = value
    else:
        set_raw(variable, value)


def in_place(where: str, change: Callable[[Any], RngBackups], node: Any) -> Any:
    """A change of a node, which gives backups; without a node, a decorator that restores after each call."""
    if node is MISSING:
        return around_calls(where, lambda given: (change(given), given))
    return change(node)
