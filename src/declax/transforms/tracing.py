"""`make_jaxpr` for functions of models."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, overload

import jax

from declax._typing import MISSING, Missing
from declax.errors import TransformError, describe
from declax.transforms._engine.captures import Closure
from declax.transforms._engine.lift import Call, Numbers, Outcome, Rebuilt, Selection, lifted, look_like
from declax.transforms._engine.structure import Mode

if TYPE_CHECKING:
    from typing import Unpack

    from jax.extend.core import ClosedJaxpr

    from declax.transforms._engine.signatures import JaxprOptions

P = ParamSpec("P")

AxisEnv = Sequence[tuple[Hashable, int]] | None


@overload
def make_jaxpr(
    f: Callable[P, Any], /, *, return_shape: Literal[False] = False, **options: Unpack[JaxprOptions]
) -> Callable[P, ClosedJaxpr]: ...
@overload
def make_jaxpr(
    *, return_shape: Literal[False] = False, **options: Unpack[JaxprOptions]
) -> Callable[[Callable[P, Any]], Callable[P, ClosedJaxpr]]: ...
@overload
def make_jaxpr(
    f: Callable[P, Any], /, *, return_shape: Literal[True], **options: Unpack[JaxprOptions]
) -> Callable[P, tuple[ClosedJaxpr, Any]]: ...
@overload
def make_jaxpr(
    *, return_shape: Literal[True], **options: Unpack[JaxprOptions]
) -> Callable[[Callable[P, Any]], Callable[P, tuple[ClosedJaxpr, Any]]]: ...
def make_jaxpr(
    f: Callable[..., Any] | Missing = MISSING,
    /,
    *,
    static_argnums: Numbers = None,
    axis_env: AxisEnv = None,
    return_shape: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Makes a function that gives the jaxpr of a function of models, without running it.

    Its inputs are the leaves of the models among the arguments and of those
    that the function captures, each once, and then the other arguments. Its
    outputs are what the function sets and then what it returns. Nothing
    happens to the arguments.

    Args:
      f: the function; leave it out to use `make_jaxpr` as a decorator with options.
      static_argnums: arguments that are part of the function; hashable.
      axis_env: names and sizes of mapped axes that the function may use.
      return_shape: whether to give a pair of the jaxpr and of what the function
        returns, with shapes and dtypes in the place of arrays.
      graph, graph_updates: as in `jit`.

    Returns:
      A function of the same arguments.

    Raises:
      TransformError: for static arguments without a hash, and for a changed
        structure with ``graph_updates=False``.

    >>> from declax._variables.variable import Param
    >>> p = Param(2.0)
    >>> print(make_jaxpr(lambda p, x: p * x)(p, 3.0))
    { lambda ; a:f32[] b:f32[]. let c:f32[] = mul a b in (c,) }
    """
    mode = Mode.of(graph, graph_updates)
    options: dict[str, Any] = {"axis_env": axis_env, "return_shape": return_shape}

    def trace(f: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(f):
            fix = "dx.make_jaxpr(function)(model, x)"
            raise TransformError("make_jaxpr", "the argument is no function", got=describe(f), fix=fix)
        closure = Closure(f)
        static = Selection(f, "static", static_argnums, None)

        def traced(*args: Any, **kwargs: Any) -> Any:
            args, kwargs, statics = static.take(args, kwargs)
            call = Call(args, kwargs, mode, closure.find(), statics).check_arrays()
            body = lifted(closure, call.structure, mode, adapt=functools.partial(static.give, statics=statics))
            make: Any = jax.make_jaxpr(body, **options)
            if not return_shape:
                return make(call.values, call.plain)
            jaxpr, outcome = make(call.values, call.plain)
            return jaxpr, returned(call, call.values, call.plain, outcome)

        return look_like(traced, f)

    return trace if f is MISSING else trace(f)


def returned(call: Call, values: Sequence[Any], plain: Sequence[Any], outcome: Outcome) -> Any:
    """What a function returns, as an outcome says, while nothing happens to the arguments of its call."""
    return Rebuilt(call.structure, values, plain).apply(outcome)
