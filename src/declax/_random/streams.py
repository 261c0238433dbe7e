"""Streams of random keys: a key and a count each, alone or by name in an `Rngs`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

import jax
import jax.numpy as jnp
import numpy as np

from declax import errors, initializers
from declax._classes.pytree import Pytree
from declax._random.tables import (
    FORK,
    How,
    Rules,
    Size,
    Sizes,
    Stream,
    check_is_single,
    draw,
    make_keys,
    new_keys,
    shape_of,
    size_rules,
)
from declax._tree import rendering
from declax._typing import Dtype
from declax._variables.variable import Variable
from declax.errors import MissingStreamError, RngError, describe, suggest

P = ParamSpec("P")
R = TypeVar("R")


class KeylessInitializer:
    """An initializer that draws a key at each call.

    >>> import declax as dx
    >>> init = dx.Rngs(0).lecun_normal()
    >>> init, init((2, 3)).shape
    (Rngs.lecun_normal(), (2, 3))
    """

    __slots__ = ("_initializer", "_source")

    def __init__(self, initializer: initializers.NamedInitializer, source: Callable[[], jax.Array]) -> None:
        self._initializer = initializer
        self._source = source

    def __call__(self, shape: Sequence[int], dtype: Dtype | None = None, out_sharding: Any = None) -> jax.Array:
        """Makes an array of a shape and dtype from a fresh key."""
        return self._initializer(self._source(), shape, dtype, out_sharding)

    def __repr__(self) -> str:
        return f"{errors.type_name(type(self._source))}.{self._initializer!r}"


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
        return KeylessInitializer(factory(*args, **kwargs), self)

    make.__name__ = factory.__name__
    doc = f"The initializer `{make.__name__}`, which draws its keys from here."
    return cast("Method[P, KeylessInitializer]", _named(make, doc))


def _named(method: Any, doc: str) -> object:
    method.__qualname__ = f"Samplers.{method.__name__}"
    method.__module__, method.__doc__ = __name__, doc
    return method


class Samplers(Pytree):
    """The functions of ``jax.random`` as methods that need no key.

    A subclass returns a fresh key at each call. `lecun_normal` and the like
    return an initializer that needs no key; `orthogonal` and `truncated_normal`
    are the samplers of these names.
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


RngValue: TypeAlias = "int | np.integer[Any] | jax.Array | np.ndarray[Any, Any] | Variable[Any] | RngStream"
"""A seed, a key (typed, or raw ``uint32``), or a Variable or stream that holds one."""


class RngState(Variable[jax.Array]):
    """The Variables of a stream: its key and its count. Selects both as a filter."""

    __slots__ = ()
    tag: str


class RngKey(RngState):
    """The key of a stream; draws do not change it."""

    __slots__ = ()


class RngCount(RngState):
    """The number of keys that a stream has drawn."""

    __slots__ = ()


class RngStream(Samplers):
    """A stream of keys: the n-th draw is ``jax.random.fold_in(key, n)``, counted from 0.

    Args:
      key: a seed, a key, or a Variable or stream that holds a key; the new
        stream counts from 0.
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
        return f"{errors.type_name(type(self))}({self.__dict__.get('tag')!r}, count={rendering.scalar_text(count)})"

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
        given: dict[str, RngValue] = {}
        if isinstance(default, (Mapping, Rngs)):
            given |= dict(default.items())
        elif default is not None:
            streams["default"] = default  # after the others, as the peer has it
        given |= streams
        made = {name: _named_stream(name, value) for name, value in given.items()}
        for name, stream in made.items():
            setattr(self, name, stream)

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
        """New streams, each with a key drawn from the stream of its name.

        Args:
          split: as of `Rngs.split`; a stream that no filter matches is forked and not split.

        Raises:
          RngError, TraceContextError: as `Rngs.split`.
        """
        rules = [] if split is None else size_rules("Rngs.fork", "split", split)
        return self._derive("Rngs.fork", [rules, [(..., FORK)]] if len(self) else [rules])

    def split(self, k: Sizes) -> Rngs:
        """New streams with arrays of different keys, for `vmap` and `scan` to run over.

        Args:
          k: the number of keys, or the shape of the arrays; or a mapping from
            filters to those. The first filter that matches a stream counts; a
            stream that none matches, or one that maps to None, is copied with
            its key and a count of 0.

        Raises:
          RngError: for an invalid size, a filter that matches no stream, and a
            stream that holds an array of keys.
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
        streams = {name: Stream((name,), stream.key, stream.count, ("Rngs",)) for name, stream in self.items()}
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
    why = None
    try:
        is_seed = isinstance(value, (int, np.integer))
        if isinstance(value, (jax.Array, np.ndarray)):
            if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
                return cast("jax.Array", value)
            if value.ndim > 0 and value.dtype == np.uint32:
                wrapped: jax.Array = jax.random.wrap_key_data(jnp.asarray(value))
                return wrapped
            is_seed = value.ndim == 0 and bool(jnp.issubdtype(value.dtype, np.integer))
        if is_seed:
            return jax.random.key(value)
    except (TypeError, ValueError, OverflowError) as error:
        why = str(error)
    raise RngError(
        where,
        "this is not a seed or a key",
        expected="an int, a key of jax.random.key, or a Variable or RngStream that holds one",
        got=describe(value),
        why=why,
        fix="dx.Rngs(0)      # or dx.Rngs(jax.random.key(0)), dx.Rngs(params=0, dropout=1)",
    )
