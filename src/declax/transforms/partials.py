"""Functions whose first arguments are given once, for all calls, compiled or not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from declax._graph.binding import bind
from declax._modes import set_graph_updates
from declax.errors import TransformError, describe
from declax.transforms.compilation import jit
from declax.transforms.stages import Staged, Traced

if TYPE_CHECKING:
    from typing import Unpack

    from declax.transforms._engine.signatures import JitOptions, ModeOptions

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")


@overload
def cached_partial(f: Callable[P, R], /, **options: Unpack[ModeOptions]) -> Callable[P, R]: ...
@overload
def cached_partial(f: Callable[Concatenate[A, P], R], a: A, /, **options: Unpack[ModeOptions]) -> Callable[P, R]: ...
@overload
def cached_partial(
    f: Callable[Concatenate[A, B, P], R], a: A, b: B, /, **options: Unpack[ModeOptions]
) -> Callable[P, R]: ...
@overload
def cached_partial(
    f: Callable[Concatenate[A, B, C, P], R], a: A, b: B, c: C, /, **options: Unpack[ModeOptions]
) -> Callable[P, R]: ...
@overload
def cached_partial(
    f: Callable[..., R], a: Any, b: Any, c: Any, d: Any, /, *more: Any, **options: Unpack[ModeOptions]
) -> Callable[..., R]: ...
def cached_partial(
    f: Callable[..., Any], /, *cached_args: Any, graph: bool | None = None, graph_updates: bool | None = None
) -> Callable[..., Any]:
    """A function with its first arguments given.

    It is as fast as the function itself, since `jit` caches the structure of models with the models. Nothing is cloned,
    and the function may change the structure of the models; the next call finds it so.

    Args:
      f: a function, most often one that `declax.jit` made.
      *cached_args: its first arguments. They live as long as the result does.
      graph: False where each of them has to be a tree; None for the default of `set_graph_mode`.
      graph_updates: what transforms inside of the call take for their default, see `set_graph_updates`; None leaves it
        as it is.

    Returns:
      The function of the other arguments.

    Raises:
      TransformError: `f` is not a function.

    >>> import declax as dx
    >>> count = dx.Variable(0)
    >>> @dx.jit
    ... def step(count, by):
    ...     count += by
    >>> cached_step = dx.cached_partial(step, count)
    >>> cached_step(2), cached_step(3), int(count.value)
    (None, None, 5)
    """
    if not callable(f):
        fix = "dx.cached_partial(train_step, model, optimizer)"
        raise TransformError("cached_partial", "the first argument is not a function", got=describe(f), fix=fix)
    for argument in cached_args:
        bind(argument, graph)
    if graph_updates is None:
        return functools.partial(f, *cached_args)

    @functools.wraps(f)
    def in_mode(*args: Any, **kwargs: Any) -> Any:
        with set_graph_updates(graph_updates):
            return f(*args, **kwargs)

    return functools.partial(in_mode, *cached_args)


class JitPartial(functools.partial[R], Staged[P, R], Generic[P, R]):
    """A compiled function with its first arguments; see `jit_partial`.

    >>> import declax as dx
    >>> step = dx.jit_partial(lambda model, x: model.scale * x, dx.Dict(scale=dx.Param(2.0)))
    >>> float(step.lower(3.0).compile()(3.0))
    6.0
    """

    if TYPE_CHECKING:

        def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
            """Calls the function with its first arguments and these."""

    def trace(self, *args: P.args, **kwargs: P.kwargs) -> Traced[R]:
        """As `JitWrapped.trace`; the stages take the other arguments only."""
        jitted: Any = self.func
        return jitted.traced_after(self.args, args, kwargs)  # type: ignore[no-any-return]  # of a JitWrapped


@overload
def jit_partial(fun: Callable[P, R], /, **options: Unpack[JitOptions]) -> JitPartial[P, R]: ...
@overload
def jit_partial(fun: Callable[Concatenate[A, P], R], a: A, /, **options: Unpack[JitOptions]) -> JitPartial[P, R]: ...
@overload
def jit_partial(
    fun: Callable[Concatenate[A, B, P], R], a: A, b: B, /, **options: Unpack[JitOptions]
) -> JitPartial[P, R]: ...
@overload
def jit_partial(
    fun: Callable[Concatenate[A, B, C, P], R], a: A, b: B, c: C, /, **options: Unpack[JitOptions]
) -> JitPartial[P, R]: ...
@overload
def jit_partial(
    fun: Callable[..., R], a: Any, b: Any, c: Any, d: Any, /, *more: Any, **options: Unpack[JitOptions]
) -> JitPartial[..., R]: ...
def jit_partial(fun: Callable[..., R], /, *partial_args: Any, **options: Unpack[JitOptions]) -> JitPartial[..., R]:
    """Compiles a function, and gives it its first arguments.

    As ``cached_partial(jit(fun, ...), *partial_args)``: the partial arguments may change in any way between calls and
    inside of them.

    Args:
      fun: the function.
      *partial_args: its first arguments. They live as long as the result does.
      **options: those of `jit`; numbers count the parameters of `fun`. With ``graph=False`` each partial argument has
        to be a tree.

    Returns:
      The function of the other arguments, with the stages `trace` and `lower`.

    Raises:
      TransformError: `fun` is not a function, or an option names no parameter.

    >>> import declax as dx
    >>> count = dx.Variable(0)
    >>> def step(count, by):
    ...     count += by
    >>> step_by = dx.jit_partial(step, count)
    >>> step_by(2), step_by(3), int(count.value)
    (None, None, 5)
    """
    jitted: Callable[..., R] = jit(fun, **options)
    for argument in partial_args:
        bind(argument, options.get("graph"))
    bind(partial_args, options.get("graph"))  # what they share
    return JitPartial(jitted, *partial_args)
