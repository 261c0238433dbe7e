"""`jit` of a function whose first arguments are given once, for all calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from declax.transforms.compilation import jit
from declax.transforms.partial import cached_partial

if TYPE_CHECKING:
    from typing import Unpack

    from declax.transforms._signatures import JitOptions

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
P = ParamSpec("P")
R = TypeVar("R")


@overload
def jit_partial(fun: Callable[P, R], /, **options: Unpack[JitOptions]) -> Callable[P, R]: ...
@overload
def jit_partial(fun: Callable[Concatenate[A, P], R], a: A, /, **options: Unpack[JitOptions]) -> Callable[P, R]: ...
@overload
def jit_partial(
    fun: Callable[Concatenate[A, B, P], R], a: A, b: B, /, **options: Unpack[JitOptions]
) -> Callable[P, R]: ...
@overload
def jit_partial(
    fun: Callable[Concatenate[A, B, C, P], R], a: A, b: B, c: C, /, **options: Unpack[JitOptions]
) -> Callable[P, R]: ...
@overload
def jit_partial(
    fun: Callable[Concatenate[A, B, C, D, P], R], a: A, b: B, c: C, d: D, /, **options: Unpack[JitOptions]
) -> Callable[P, R]: ...
@overload
def jit_partial(
    fun: Callable[..., R], a: Any, b: Any, c: Any, d: Any, e: Any, /, *more: Any, **options: Unpack[JitOptions]
) -> Callable[..., R]: ...
def jit_partial(fun: Callable[..., R], /, *partial_args: Any, **options: Unpack[JitOptions]) -> Callable[..., R]:
    """Compiles a function, and gives it its first arguments.

    As ``cached_partial(jit(fun, ...), *partial_args)``: `jit` keeps what it
    knows of models with them, so that nothing has to be prepared, and the
    partial arguments may change in any way between calls and inside of them.

    Args:
      fun: the function.
      *partial_args: its first arguments. They live as long as the result does.
      **options: those of `jit`; numbers count the parameters of `fun`. With
        ``graph=False`` each partial argument has to be a tree.

    Returns:
      The function of the other arguments.

    Raises:
      TransformError: where `fun` is no function, and for options that name no parameter.
      GraphError: for a graph where a tree is asked for.

    >>> import jax.numpy as jnp
    >>> from declax._variables import Variable
    >>> count = Variable(jnp.array(0))
    >>> def step(count, by):
    ...     count += by
    >>> step_by = jit_partial(step, count)
    >>> step_by(2), step_by(3), int(count.value)
    (None, None, 5)
    """
    jitted: Callable[..., R] = jit(fun, **options)
    return cached_partial(jitted, *partial_args, graph=options.get("graph"))
