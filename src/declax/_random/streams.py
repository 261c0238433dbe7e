"""Streams of random keys: a key and a count each, alone or by name in an `Rngs`.

The streams of a model are a table of paths, keys and counts: filters select some, whose keys are drawn and replaced.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Final, Generic, Literal, TypeAlias, cast, overload

import jax
import jax.numpy as jnp
import numpy as np

from declax import _jax, errors, initializers
from declax._classes.pytree import Pytree
from declax._filters import Filter, as_written, to_predicate
from declax._graph.nodes import is_ref
from declax._text import arrays
from declax._tree.epoch import committing
from declax._typing import P, Path, R, Shape
from declax._variables.kinds import RngCount, RngKey
from declax._variables.lost_writes import trace_of
from declax._variables.variable import Variable, foreign_trace, set_raw
from declax.errors import MissingStreamError, RngError, describe, format_path, suggest

Size: TypeAlias = int | tuple[int, ...]
Sizes: TypeAlias = Size | Mapping[Filter, Size | None]
"""How many keys: of each stream alike, or of each by the first filter that matches it (by tag, kind or path)."""
How: TypeAlias = Literal["fork", "split", "broadcast"]
KeyChange: TypeAlias = tuple[How, Shape]
"""How new keys are made of one that is drawn from a stream, and in which shape."""
Rules: TypeAlias = Sequence[tuple[Filter, KeyChange | None]]
"""The change of the streams that a filter matches; the first filter that matches counts."""

FORK: Final[KeyChange] = ("fork", ())


@dataclass(eq=False)
class Stream:
    """A stream of a model: its path, and the Variables of its key and its count."""

    path: Path
    key: Variable[Any]
    count: Variable[Any]

    @property
    def tag(self) -> str:
        """The name of the stream."""
        return str(self.key._metadata.get("tag", ""))

    @property
    def label(self) -> str:
        """The path as it is written in code."""
        return format_path(self.path) if self.path else "the stream"


@dataclass(eq=False)
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
    where: str, streams: Iterable[Stream], rules: Rules, required: bool = True
) -> dict[Stream, tuple[Filter, KeyChange | None]]:
    """The first rule whose filter matches a stream, by its path or key; refuses idle filters if `required`."""
    selected: dict[Stream, tuple[Filter, KeyChange | None]] = {}
    for wanted, change in rules:
        matches = to_predicate(wanted)
        matched = [s for s in streams if matches((*s.path, "key"), s.key) or matches(s.path, s.key)]
        if not matched and required:
            tags = sorted({s.tag for s in streams})
            raise RngError(
                where,
                f"the filter {as_written(wanted)} matches no stream of random numbers",
                got=f"streams named {', '.join(map(repr, tags))}" if tags else "no streams",
                fix=suggest(wanted, tags) if isinstance(wanted, str) else None,
            )
        for stream in matched:
            selected.setdefault(stream, (wanted, change))
    return selected


def new_keys(where: str, streams: Sequence[Stream], groups: Sequence[Rules], required: bool = True) -> Keys:
    """Keys drawn from the streams that rules change; a later group has the streams that earlier ones do not match.

    All is checked before the first key is drawn. `...` and True in a later group take what the others leave.
    """
    changes: dict[Stream, KeyChange] = {}
    named: dict[Stream, str] = {}
    for rules in groups:
        for stream, (wanted, change) in select(where, streams, rules, required).items():
            if change is None:
                continue
            if wanted is not ... and wanted is not True:
                if stream in named:
                    raise RngError(
                        f"{where}, {stream.label}",
                        "this stream matches multiple rules",
                        expected="one of split, broadcast and fork",
                        got=f"{named[stream]} and {change[0]}",
                        fix=f"dx.{where}(model, {change[0]}=...)        # `...` takes what no filter selects",
                    )
                named[stream] = change[0]
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
    """Draws the next key of a stream; no two threads get the same key."""
    drawn: jax.Array
    with committing:
        try:
            drawn, after = _next(key.value, count.value)
        except jax.errors.UnexpectedTracerError:  # what a trace made, after its end
            raise foreign_trace(count, "value") from None
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
        for variable in (stream.key, stream.count):
            if trace_of(variable) is not trace:
                raise foreign_trace(variable, "value", stream.label)


# --- samplers ----------------------------------------------------------------------


KeylessInitializer: TypeAlias = Callable[..., jax.Array]
"""An initializer of a shape, dtype and sharding that draws a key at each call."""


class Method(Generic[P, R]):
    """To a type checker, a method with the parameters `P`; at run time there are only functions."""

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type, /) -> Callable[Concatenate[Any, P], R]: ...
        @overload
        def __get__(self, instance: object, owner: type, /) -> Callable[P, R]: ...
        def __get__(self, instance: object, owner: type, /) -> Any: ...


def _sampler(function: Callable[Concatenate[jax.Array, P], R]) -> Method[P, R]:
    """A method that calls a function of ``jax.random`` with a fresh key."""

    @functools.wraps(function)  # keeps the parameters for editors; binding hides the first, which is the key
    def draw(self: Callable[[], jax.Array], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return function(self(), *args, **kwargs)

    return cast("Method[P, R]", _named(draw, f"Calls `jax.random.{draw.__name__}` with a key drawn from here."))


def _keyless(factory: Callable[P, initializers.NamedInitializer]) -> Method[P, KeylessInitializer]:
    """A method that makes an initializer which draws its own keys."""

    def make(self: Callable[[], jax.Array], /, *args: P.args, **kwargs: P.kwargs) -> KeylessInitializer:
        initializer = factory(*args, **kwargs)
        return lambda shape, dtype=None, out_sharding=None: initializer(self(), shape, dtype, out_sharding)

    make.__name__ = factory.__name__
    doc = f"The initializer `{make.__name__}`, which draws its keys from here."
    return cast("Method[P, KeylessInitializer]", _named(make, doc))


def _named(method: Any, doc: str) -> object:
    method.__qualname__ = f"Samplers.{method.__name__}"
    method.__module__, method.__doc__ = __name__, doc
    return method


class Samplers(Pytree):
    """The functions of ``jax.random`` as methods that need no key.

    A subclass returns a fresh key at each call. `lecun_normal` and the like return an initializer that needs no key;
    `orthogonal` and `truncated_normal` are the samplers of these names.
    """

    _pytree__draws: ClassVar[bool] = True

    if TYPE_CHECKING:

        def __call__(self) -> jax.Array:
            """Gives a fresh key."""
            ...

    ball: ClassVar[Method[..., jax.Array]] = _sampler(jax.random.ball)
    bernoulli: Final = _sampler(jax.random.bernoulli)
    beta: Final = _sampler(jax.random.beta)
    binomial: Final = _sampler(jax.random.binomial)
    bits: Final = _sampler(jax.random.bits)
    categorical: Final = _sampler(jax.random.categorical)
    cauchy: Final = _sampler(jax.random.cauchy)
    chisquare: Final = _sampler(jax.random.chisquare)
    choice: Final = _sampler(jax.random.choice)
    dirichlet: Final = _sampler(jax.random.dirichlet)
    double_sided_maxwell: Final = _sampler(jax.random.double_sided_maxwell)
    exponential: Final = _sampler(jax.random.exponential)
    f: Final = _sampler(jax.random.f)
    gamma: Final = _sampler(jax.random.gamma)
    generalized_normal: Final = _sampler(jax.random.generalized_normal)
    geometric: Final = _sampler(jax.random.geometric)
    gumbel: Final = _sampler(jax.random.gumbel)
    laplace: Final = _sampler(jax.random.laplace)
    loggamma: Final = _sampler(jax.random.loggamma)
    logistic: Final = _sampler(jax.random.logistic)
    lognormal: Final = _sampler(jax.random.lognormal)
    maxwell: Final = _sampler(jax.random.maxwell)
    multinomial: Final = _sampler(jax.random.multinomial)
    multivariate_normal: Final = _sampler(jax.random.multivariate_normal)
    normal: Final = _sampler(jax.random.normal)
    orthogonal: Final = _sampler(jax.random.orthogonal)
    pareto: Final = _sampler(jax.random.pareto)
    permutation: Final = _sampler(jax.random.permutation)
    poisson: Final = _sampler(jax.random.poisson)
    rademacher: Final = _sampler(jax.random.rademacher)
    randint: Final = _sampler(jax.random.randint)
    rayleigh: Final = _sampler(jax.random.rayleigh)
    t: Final = _sampler(jax.random.t)
    triangular: Final = _sampler(jax.random.triangular)
    truncated_normal: Final = _sampler(jax.random.truncated_normal)
    uniform: Final = _sampler(jax.random.uniform)
    wald: Final = _sampler(jax.random.wald)
    weibull_min: Final = _sampler(jax.random.weibull_min)

    delta_orthogonal: Final = _keyless(initializers.delta_orthogonal)
    glorot_normal: Final = _keyless(initializers.glorot_normal)
    glorot_uniform: Final = _keyless(initializers.glorot_uniform)
    he_normal: Final = _keyless(initializers.he_normal)
    he_uniform: Final = _keyless(initializers.he_uniform)
    kaiming_normal: Final = _keyless(initializers.kaiming_normal)
    kaiming_uniform: Final = _keyless(initializers.kaiming_uniform)
    lecun_normal: Final = _keyless(initializers.lecun_normal)
    lecun_uniform: Final = _keyless(initializers.lecun_uniform)
    variance_scaling: Final = _keyless(initializers.variance_scaling)
    xavier_normal: Final = _keyless(initializers.xavier_normal)
    xavier_uniform: Final = _keyless(initializers.xavier_uniform)


# --- streams -----------------------------------------------------------------------


RngValue: TypeAlias = "int | np.integer[Any] | jax.Array | np.ndarray[Any, Any] | Variable[Any] | RngStream"
"""A seed, a key (typed, or raw ``uint32``), or a Variable or stream that holds one."""


class RngStream(Samplers):
    """A stream of keys: the n-th draw is ``jax.random.fold_in(key, n)``, counted from 0.

    Args:
      key: a seed, a key, or a Variable or stream that holds a key; the new stream counts from 0.
      tag: its name, in the metadata of key and count, where filters find it.

    Raises:
      RngError: `key` is not a seed or a key.

    Threads may draw from one stream: no two of them get the same key.

    >>> import declax as dx
    >>> stream = dx.RngStream(0, "dropout")
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

    def __repr__(self) -> str:
        count = getattr(self.__dict__.get("count"), "raw_value", None)
        return f"{errors.type_name(type(self))}({self.__dict__.get('tag')!r}, count={arrays.scalar_text(count)})"

    def __call__(self) -> jax.Array:
        """Draws the next key.

        Raises:
          RngError: the stream holds an array of keys.
          TraceContextError: the stream belongs to another trace.
        """
        try:
            return draw(self.key, self.count)
        except ValueError:
            check_is_single(f"Rngs.{self.tag}", self.key)
            raise

    def fork(self, split: Size | None = None) -> RngStream:
        """A new stream whose key is drawn from this one, and split if a size is given."""
        return RngStream(self(), self.tag) if split is None else self.split(split)

    def split(self, k: Size) -> RngStream:
        """A new stream with an array of `k` keys, or of shape `k`, split from one drawn from this stream."""
        return self._derive("split", k)

    def broadcast(self, k: Size) -> RngStream:
        """As `split`, with equal keys."""
        return self._derive("broadcast", k)

    def _derive(self, how: How, size: Size) -> RngStream:
        shape = shape_of(f"RngStream.{how}", size)
        return RngStream(make_keys(self(), how, shape)[0], self.tag)


class Rngs(Samplers):
    """Streams of random keys, by name.

    Args:
      default: the stream of all missing names: a seed, a key, or a Variable or
        stream that holds a key. Or a mapping, or another Rngs, with streams by name.
      **streams: further streams, likewise.

    Raises:
      RngError: a value is not a seed or a key, or a name hides a method.

    A stream draws ``fold_in(key, 0)``, ``fold_in(key, 1)``, ...; streams made
    from others take their keys and count from 0.

    >>> import declax as dx
    >>> rngs = dx.Rngs(0, params=1)
    >>> rngs.params.uniform().shape, rngs.normal((2, 3)).shape
    ((), (2, 3))
    >>> "params" in rngs, "dropout" in rngs
    (True, False)
    """

    def __init__(self, default: RngValue | Mapping[str, RngValue] | Rngs | None = None, **streams: RngValue) -> None:
        if isinstance(default, (Mapping, Rngs)):
            streams = {**dict(default.items()), **streams}
        elif default is not None:
            streams["default"] = default  # after the others, as the peer has it
        for name, value in streams.items():
            setattr(self, name, _named_stream(name, value))

    def __call__(self) -> jax.Array:
        """Draws the next key of the stream `default`."""
        return self["default"]()

    def __getattr__(self, name: str) -> RngStream:
        # Missing names mean `default`, but those of protocols, which copy, pickle and displays ask for.
        default = None if name.startswith("_") else self.__dict__.get("default")
        if default is not None:
            return cast("RngStream", default)
        near = suggest(name, [*self, *(n for n in dir(Rngs) if not n.startswith("_"))])
        raise MissingStreamError(
            f"Rngs.{name}",
            f"there is no stream {name!r}, and no 'default' to fall back to",
            got="streams " + ", ".join(map(repr, self)) if len(self) else "no streams",
            fix=f"dx.Rngs({name}=0)      # or dx.Rngs(0), for a default" + (f"\n{near}" if near else ""),
        )

    def __getitem__(self, name: str) -> RngStream:
        return cast("RngStream", self.__dict__[name]) if name in self else self.__getattr__(name)

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
        """New streams with a key drawn from each of these; `split` is as for `Rngs.split`, and splits the new keys."""
        rules = [] if split is None else size_rules("Rngs.fork", "split", split)
        return self._derive("Rngs.fork", [rules, [(..., FORK)]] if len(self) else [rules])

    def split(self, k: Sizes) -> Rngs:
        """New streams with arrays of different keys, for `vmap` and `scan` to run over.

        Args:
          k: the number of keys, or the shape of the arrays; or a mapping from filters to those. The first filter that
            matches a stream counts; a stream that none matches, or one that maps to None, is copied with its key and a
            count of 0.

        Raises:
          RngError: for an invalid size, a filter that matches no stream, and a stream that holds an array of keys.
          TraceContextError: a stream belongs to another trace.

        >>> import declax as dx
        >>> split = dx.Rngs(params=0, dropout=1).split({"params": 3})
        >>> split.params.key.shape, split.dropout.key.shape
        ((3,), ())
        """
        return self._derive("Rngs.split", [size_rules("Rngs.split", "split", k)])

    def broadcast(self, k: Sizes | None) -> Rngs:
        """As `split`, with arrays of equal keys: each index of the axis draws the same. None copies all streams."""
        return self._derive("Rngs.broadcast", [] if k is None else [size_rules("Rngs.broadcast", "broadcast", k)])

    def _derive(self, where: str, groups: Sequence[Rules]) -> Rngs:
        """New streams by rules; those that no rule changes have the same key."""
        streams = {name: Stream((name,), stream.key, stream.count) for name, stream in self.items()}
        keys = new_keys(where, list(streams.values()), groups)
        return Rngs({name: keys[stream][0] if stream in keys else stream.key for name, stream in streams.items()})


def _named_stream(name: object, value: RngValue) -> RngStream:
    where = f"Rngs.{name}"
    if not isinstance(name, str) or hasattr(Rngs, name):
        raise RngError(
            where,
            "this cannot be the name of a stream",
            expected="a string that is not the name of a method of Rngs",
            got=repr(name),
            fix=f"dx.Rngs({name}_=...)",
        )
    return RngStream(_as_key(where, value), name)


def _as_key(where: str, given: object) -> jax.Array:
    """The typed key or keys of a seed, a key, or a Variable or stream that holds one."""
    value: Any = given.key if isinstance(given, RngStream) else given
    if isinstance(value, Variable):
        value = value.get_value()
    try:
        if isinstance(value, (jax.Array, np.ndarray)):
            if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
                return cast("jax.Array", value)
            if value.ndim > 0 and value.dtype == np.uint32:
                wrapped: jax.Array = jax.random.wrap_key_data(jnp.asarray(value))
                return wrapped
            return jax.random.key(value)
        return jax.random.key(operator.index(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise RngError(
            where,
            "this is not a seed or a key",
            expected="an int, a key of jax.random.key, or a Variable or RngStream that holds one",
            got=describe(value),
            why=str(error),
            fix="dx.Rngs(0)      # or dx.Rngs(jax.random.key(0)), dx.Rngs(params=0, dropout=1)",
        ) from None
