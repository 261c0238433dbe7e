"""Named streams of random keys.

Vocabulary
----------
stream: a key and a count. A draw folds the count into the key, and counts on;
        so the keys of a stream depend on nothing but its seed.
Rngs:   streams by name. A name that is not there means the stream `default`.
fork:   new streams whose keys are drawn from the old ones.
split:  a fork whose keys are arrays, one key for each index of an axis that
        `vmap` or `scan` runs over.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np

from declax import errors
from declax._filters import Filter, to_predicate
from declax._threads import committing
from declax._typing import Shape
from declax._variables import Variable
from declax.rngs.samplers import Samplers

RngValue: TypeAlias = "int | np.integer[Any] | jax.Array | np.ndarray[Any, Any] | Variable[Any] | RngStream"
"""What a stream is made from: a seed, a key (typed, or raw ``uint32``), or a box or stream that holds one."""

Size: TypeAlias = int | tuple[int, ...]
Sizes: TypeAlias = Size | Mapping[Filter, Size | None]
"""How often to split: all streams alike, or each by the first filter that matches its key (by tag, kind or path)."""


@functools.partial(jax.jit, inline=True)
def _next(key: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The key of a count, and the count after it; one dispatch instead of a dozen."""
    return jax.random.fold_in(key, count), count + 1


class RngState(Variable[jax.Array]):
    """What a stream holds: its key and its count. Selects both as a filter."""

    __slots__ = ()
    tag: str


class RngKey(RngState):
    """The key of a stream; draws do not change it."""

    __slots__ = ()


class RngCount(RngState):
    """How many keys a stream has given."""

    __slots__ = ()


class RngStream(Samplers):
    """A stream of keys: the n-th draw is ``jax.random.fold_in(key, n)``, counted from 0.

    Args:
      key: a seed, a key, or a Variable or stream that holds a key. Of a stream
        only the key is taken; the new one counts from 0.
      tag: its name, kept in the metadata of key and count, so that filters find it.

    Raises:
      RngError: the key is none.

    Eight threads may draw from one stream: no two of them get the same key.

    >>> stream = RngStream(0, "dropout")
    >>> stream.uniform((2,)).shape, int(stream.count)
    ((2,), 1)
    """

    key: RngKey
    count: RngCount
    tag: str

    def __init__(self, key: RngValue, tag: str) -> None:
        value = _as_key(f"RngStream({tag!r})", key)
        self.tag = tag
        self.key = RngKey(value, tag=tag)
        self.count = RngCount(jnp.zeros(value.shape, np.uint32), tag=tag)

    def __call__(self) -> jax.Array:
        """Draws the next key.

        Raises:
          RngError: the stream was split, and `vmap` did not take the axis away.
          TraceContextError: the stream belongs to another trace.
        """
        key, count = self.key, self.count
        drawn: jax.Array
        with committing:  # so that no two threads get one key
            try:
                drawn, after = _next(key.value, count.value)
            except ValueError:
                _check_are_single([self])
                raise
            count.set_value(after)
        return drawn

    def fork(self, split: Size | None = None) -> RngStream:
        """A new stream whose key is drawn from this one, split if asked for.

        >>> RngStream(0, "params").fork(split=3).key.shape
        (3,)
        """
        return RngStream(self(), self.tag) if split is None else self.split(split)

    def split(self, k: Size) -> RngStream:
        """A new stream with an array of keys, split from one drawn from this stream.

        Args:
          k: the number of keys, or the shape of the array.
        """
        shape = _as_size("RngStream.split", k)
        return RngStream(jax.random.split(self(), shape), self.tag)

    def broadcast(self, k: Size) -> RngStream:
        """A new stream with an array of equal keys, drawn from this stream.

        Args:
          k: the number of keys, or the shape of the array.
        """
        shape = _as_size("RngStream.broadcast", k)
        return RngStream(jnp.broadcast_to(self(), shape), self.tag)


class Rngs(Samplers):
    """Streams of random keys, by name.

    Args:
      default: the stream of names that are not there: a seed, a key, a
        Variable or stream that holds a key. Or a mapping, or another Rngs, with
        streams by name.
      **streams: further streams, likewise.

    Raises:
      RngError: something is no seed and no key, or a name hides a method.

    A stream of `Rngs` gives the keys ``fold_in(key, 0)``, ``fold_in(key, 1)``, ...;
    where a stream or Rngs is given, its keys are taken and counted anew from 0.

    >>> rngs = Rngs(0, params=1)
    >>> rngs.params().dtype == rngs.dropout().dtype == rngs().dtype
    True
    >>> rngs.normal((2, 3)).shape
    (2, 3)
    >>> "params" in rngs, "dropout" in rngs
    (True, False)
    """

    def __init__(self, default: RngValue | Mapping[str, RngValue] | Rngs | None = None, **streams: RngValue) -> None:
        given: dict[str, RngValue] = {}
        if isinstance(default, (Mapping, Rngs)):
            given |= dict(default.items())
        elif default is not None:
            # Keyword streams come first, as the peer has them.
            streams["default"] = default
        given |= streams
        made = {name: _named_stream(name, value) for name, value in given.items()}
        for name, stream in made.items():
            setattr(self, name, stream)

    def __call__(self) -> jax.Array:
        """Draws the next key of the stream `default`."""
        return self["default"]()

    def __getattr__(self, name: str) -> RngStream:
        # Runs only for names that are no attribute: those mean `default`. Names of
        # protocols do not, or copy, pickle and displays would mistake us.
        default = None if name.startswith("_") else self.__dict__.get("default")
        if default is None:
            raise _missing(self, name)
        return cast("RngStream", default)

    def __getitem__(self, name: str) -> RngStream:
        if name in self:
            return cast("RngStream", self.__dict__[name])
        return self.__getattr__(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(self.__dict__.get(cast("str", name)), RngStream)

    def __iter__(self) -> Iterator[str]:
        return iter([name for name, value in self.__dict__.items() if isinstance(value, RngStream)])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def items(self) -> Iterable[tuple[str, RngStream]]:
        """The names and streams."""
        return [(name, self[name]) for name in self]

    def fork(self, split: Sizes | None = None) -> Rngs:
        """New streams, each with a key drawn from the stream of its name.

        Args:
          split: splits the new streams, as `Rngs.split`; those that no filter
            matches are forked and not split.

        Raises:
          RngError: a size is none, or a stream is split already.

        >>> forked = Rngs(params=0, dropout=1).fork(split={"params": 3})
        >>> forked.params.key.shape, forked.dropout.key.shape
        ((3,), ())
        """
        sizes = _sizes_of(self, "Rngs.fork", {} if split is None else split)
        _check_are_single(stream for _, stream in self.items())
        return Rngs({name: stream.fork(sizes[name]) for name, stream in self.items()})

    def split(self, k: Sizes) -> Rngs:
        """New streams with arrays of different keys, for `vmap` and `scan` to run over.

        Args:
          k: the number of keys, or the shape of the arrays; or a mapping from
            filters to those. The first filter that matches a stream counts; a
            stream that none matches, or one that maps to None, is copied with
            its key and a count of 0.

        Raises:
          RngError: a size is none, or a stream is split already.

        >>> Rngs(0).split(3).default.key.shape
        (3,)
        """
        return self._spread("Rngs.split", k, RngStream.split)

    def broadcast(self, k: Sizes | None) -> Rngs:
        """New streams with arrays of equal keys: each index of the axis draws the same.

        Args:
          k: as for `Rngs.split`; None copies all streams.

        Raises:
          RngError: a size is none, or a stream is split already.

        >>> keys = Rngs(0).broadcast(3).default.key
        >>> bool((keys[0] == keys[2]).all())
        True
        """
        return self._spread("Rngs.broadcast", {} if k is None else k, RngStream.broadcast)

    def _spread(self, where: str, k: Sizes, spread: Callable[[RngStream, Size], RngStream]) -> Rngs:
        sizes = _sizes_of(self, where, k)
        _check_are_single(stream for name, stream in self.items() if sizes[name] is not None)
        made = {}
        for name, stream in self.items():
            size = sizes[name]
            made[name] = RngStream(stream, stream.tag) if size is None else spread(stream, size)
        return Rngs(made)


def _named_stream(name: object, value: RngValue) -> RngStream:
    where = f"Rngs.{name}"
    if not isinstance(name, str):
        raise errors.RngError("Rngs(...)", "the name of a stream must be a string", got=errors.describe(name))
    if hasattr(Rngs, name):
        raise errors.RngError(where, "a stream of this name would hide a method", fix=f"Rngs({name}_=...)")
    return RngStream(_as_key(where, value), name)


def _as_key(where: str, value: object) -> jax.Array:
    """A typed key, or an array of them, from whatever stands for one."""
    if isinstance(value, RngStream):
        value = value.key
    if isinstance(value, Variable):
        value = value.get_value()
    kind = None
    try:
        if isinstance(value, (jax.Array, np.ndarray)):
            if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
                return cast("jax.Array", value)
            if value.ndim > 0 and value.dtype == np.uint32:
                wrapped: jax.Array = jax.random.wrap_key_data(jnp.asarray(value))
                return wrapped
            kind = value.dtype if value.ndim == 0 else None
        if isinstance(value, (int, np.integer)) or (kind is not None and jnp.issubdtype(kind, np.integer)):
            return jax.random.key(cast("int", value))
    except (TypeError, ValueError, OverflowError) as error:
        raise errors.RngError(where, "makes no key", got=errors.describe(value), why=str(error)) from error
    raise errors.RngError(
        where,
        "is no seed and no key",
        expected="an int, a key of jax.random.key, or a Variable or RngStream that holds one",
        got=errors.describe(value),
        fix="dx.Rngs(0)      # or dx.Rngs(jax.random.key(0)), dx.Rngs(params=0, dropout=1)",
    )


def shape_of(where: str, size: object, fix: str) -> Shape:
    """A number of keys, or the shape of an array of them, as a shape.

    Raises:
      RngError: it is neither.
    """
    entries: tuple[Any, ...] = size if isinstance(size, tuple) else (size,)
    if all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 0 for n in entries):
        return tuple(map(int, entries))
    raise errors.RngError(
        where,
        "is no number of keys and no shape",
        expected="an int that is not negative, a tuple of those, or (of a Rngs) a mapping from filters to them",
        got=repr(size),
        fix=fix,
    )


def _as_size(where: str, size: object) -> Shape:
    return shape_of(where, size, f'{where.rpartition(".")[2]}(3)      # or ((2, 3)), or of a Rngs ({{"params": 3}})')


def _sizes_of(rngs: Rngs, where: str, sizes: object) -> dict[str, tuple[int, ...] | None]:
    """How each stream is to be split: the size of the first filter that matches it, or None."""
    if not isinstance(sizes, Mapping):
        return dict.fromkeys(rngs, _as_size(where, sizes))
    rules = [(to_predicate(f), None if size is None else _as_size(where, size)) for f, size in sizes.items()]
    found = {
        name: next((size for matches, size in rules if matches((name, "key"), stream.key)), None)
        for name, stream in rngs.items()
    }
    _warn_of_fallback(rngs, where, [name for name in sizes if isinstance(name, str)], found)
    return found


def _warn_of_fallback(rngs: Rngs, where: str, names: list[str], found: Mapping[str, object]) -> None:
    """Says aloud that a stream which shall be split is another one, which is not."""
    tags = {stream.tag for _, stream in rngs.items()}
    missing = [name for name in names if name not in tags]
    if missing and "default" in found and found["default"] is None:
        warnings.warn(
            f"{where}: {missing[0]!r} names no stream here, and 'default', from which it would be drawn, is not split: "
            f"each index of the axis will draw the same keys. Make the stream, Rngs(..., {missing[0]}=1), "
            "or split 'default' too.",
            stacklevel=5,
        )


def _check_are_single(streams: Iterable[RngStream]) -> None:
    """Looks before a draw, so that no stream has counted on when another cannot draw."""
    for stream in streams:
        if stream.key.shape:
            raise errors.RngError(
                f"Rngs.{stream.tag}",
                "a stream with an array of keys cannot draw one key",
                got=f"keys of shape {stream.key.shape}",
                why="the stream was split or broadcast, for a transform to run over its keys",
                fix="pass it to a function under jax.vmap, and draw there",
            )


def _missing(rngs: Rngs, name: str) -> errors.MissingStreamError:
    near = errors.suggest(name, [*rngs, *(n for n in dir(Rngs) if not n.startswith("_"))])
    return errors.MissingStreamError(
        f"Rngs.{name}",
        f"there is no stream {name!r}, and no 'default' to fall back to",
        got="streams " + ", ".join(map(repr, rngs)) if len(rngs) else "no streams",
        fix=f"dx.Rngs({name}=0)      # or dx.Rngs(0), for a default" + (f"\n{near}" if near else ""),
    )
