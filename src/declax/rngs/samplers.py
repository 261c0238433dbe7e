"""The functions of ``jax.random``, and the initializers, as methods that need no key."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Final, Generic, ParamSpec, TypeVar, cast, overload

import jax

from declax import errors, initializers
from declax._pytree import Pytree
from declax._typing import Dtype

P = ParamSpec("P")
R = TypeVar("R")


class KeylessInitializer:
    """An initializer that draws its keys itself; each call draws another.

    >>> from declax.rngs import Rngs
    >>> init = Rngs(0).lecun_normal()
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

    # `wraps` keeps the parameters for editors; binding hides the first, which is the key.
    @functools.wraps(function)
    def draw(self: Callable[[], jax.Array], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return function(self(), *args, **kwargs)

    return cast("Method[P, R]", _named(draw, f"Calls `jax.random.{draw.__name__}` with a key drawn from here."))


def _keyless(factory: Callable[P, initializers.NamedInitializer]) -> Method[P, KeylessInitializer]:
    """A method that makes an initializer which draws its own keys."""

    def make(self: Callable[[], jax.Array], /, *args: P.args, **kwargs: P.kwargs) -> KeylessInitializer:
        return KeylessInitializer(factory(*args, **kwargs), self)

    make.__name__ = factory.__name__
    return cast(
        "Method[P, KeylessInitializer]",
        _named(make, f"The initializer `{make.__name__}`, which draws its keys from here."),
    )


def _named(method: Any, doc: str) -> object:
    method.__qualname__ = f"Samplers.{method.__name__}"
    method.__module__, method.__doc__ = __name__, doc
    return method


class Samplers(Pytree):
    """The functions of ``jax.random`` as methods that need no key.

    A subclass returns a fresh key at each call, which the samplers use. The
    initializers (`lecun_normal`, ...) return an initializer that needs no key.
    `orthogonal` and `truncated_normal` are the samplers of these names.
    """

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
