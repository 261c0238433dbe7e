"""Functions of models traced without computing: `eval_shape` and `make_jaxpr`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack, overload

import jax

from declax._graph.abstract import Shapes, with_shapes
from declax._jax import with_short_tracebacks
from declax._typing import MISSING, Missing
from declax._variables.placement import context_mesh
from declax.errors import TransformError
from declax.transforms._engine.call import Call
from declax.transforms._engine.captures import Closure
from declax.transforms._engine.diagnostics import explain
from declax.transforms._engine.outcome import Outcome, Rebuilt, lifted
from declax.transforms._engine.structure import Mode, checked_function
from declax.transforms._engine.wrapped import Numbers, P, R, Selection, T, look_like

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr

    from declax.transforms._engine.signatures import JaxprOptions


@with_short_tracebacks
def eval_shape(
    f: Callable[..., R], *args: Any, graph: bool | None = None, graph_updates: bool | None = None, **kwargs: Any
) -> R:
    """The result of a function, with shapes and dtypes in place of arrays, without computing or allocating.

    Args:
      f: the function; captured models count as arguments, and so does the model of a bound method.
      *args, **kwargs: its arguments: models, Variables, arrays and numbers, abstract or not; other values pass
        unchanged. The function changes abstract copies of them.
      graph: False if the arguments must be trees; None for the default of `set_graph_mode`.
      graph_updates: False if the result must not have Variables of the arguments; no argument changes.

    Returns:
      The result, made of abstract models, Variables and arrays, with its sharing; under `jax.set_mesh` with the
      shardings that Variables declare.

    Raises:
      TransformError: `f` is not a function.
      GraphError: the arguments are not trees, or a flag is not a bool.
      ShardingError: a declared sharding names axes that the mesh of the context lacks.

    >>> import declax as dx
    >>> import jax.numpy as jnp
    >>> dx.eval_shape(lambda: dx.Param(jnp.zeros((1_000_000, 1_000_000)))).shape
    (1000000, 1000000)
    """
    closure = Closure(checked_function("eval_shape", "f", f))
    mode = Mode.of(graph, graph_updates)._replace(updates=True)  # of copies of the arguments
    call = Call(args, kwargs, mode, closure.find())
    shapes = Shapes()
    leaves = shapes.of(call.leaves)
    outcome = _explained(call, lambda: _trace(lifted(closure, call.structure, mode), *leaves))
    result: R = Rebuilt(call.structure, leaves).apply(outcome)  # on copies of the arguments
    return result if context_mesh() is None else with_shapes(result, is_traced=True)


@overload
def make_jaxpr(f: Callable[P, Any], **options: Unpack[JaxprOptions]) -> Callable[P, ClosedJaxpr]: ...
@overload
def make_jaxpr(**options: Unpack[JaxprOptions]) -> Callable[[Callable[P, Any]], Callable[P, ClosedJaxpr]]: ...
def make_jaxpr(
    f: Callable[..., Any] | Missing = MISSING,
    *,
    static_argnums: Numbers = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Makes a function that returns the jaxpr of a function of models.

    Its inputs are the leaves of the models, passed or captured, each once, and then the other arguments. Its outputs
    are the values that the function sets, and then its result. The arguments are not changed.

    Args:
      f: the function; omit it to use `make_jaxpr` as a decorator with options.
      static_argnums: hashable arguments that are part of the function.
      graph: as in `jit`.
      graph_updates: False if the structure must not change; True is refused.

    Returns:
      A function of the same arguments. `eval_shape` gives the shapes of the result.

    Raises:
      TransformError: a static argument is not hashable, the structure changes with ``graph_updates=False``, or
        `graph_updates` is True.

    >>> import declax as dx
    >>> p = dx.Param(2.0)
    >>> print(dx.make_jaxpr(lambda p, x: p * x)(p, 3.0))
    { lambda ; a:f32[] b:f32[]. let c:f32[] = mul a b in (c,) }
    """
    if graph_updates:
        raise TransformError(
            "make_jaxpr",
            "a jaxpr has no changes of structure, which graph_updates=True asks for",
            fix="make_jaxpr(f)        # its outputs include the values that f sets",
        )
    mode = Mode.of(graph, graph_updates)

    def trace(f: Callable[..., Any]) -> Callable[..., Any]:
        closure = Closure(checked_function("make_jaxpr", "f", f))
        static = Selection(f, "static", static_argnums, None)

        @with_short_tracebacks
        def traced(*args: Any, **kwargs: Any) -> Any:
            args, kwargs, statics = static.take(args, kwargs)
            call = Call(args, kwargs, mode, closure.find(), statics).check_arrays()
            body = lifted(closure, call.structure, mode, adapt=functools.partial(static.give, statics=statics))
            return _explained(call, lambda: jax.make_jaxpr(body)(*call.leaves))

        return look_like(traced, f)

    return trace if f is MISSING else trace(f)


def _explained(call: Call, trace: Callable[[], T]) -> T:
    """What a trace of a call returns; its errors carry the path of the caller's objects."""
    try:
        return trace()
    except Exception as error:
        explain(call, error)
        raise


def _trace(function: Callable[..., Outcome], *args: Any) -> Outcome:
    """As `jax.eval_shape`, but leaves may have any type and be refs, so the result is read during the trace."""
    leaves, tree = jax.tree.flatten(args)
    is_shape = [isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves]
    found: list[Outcome] = []

    def on_arrays(*arrays: Any) -> None:
        given = iter(arrays)
        filled = [next(given) if is_one else leaf for leaf, is_one in zip(leaves, is_shape, strict=True)]
        outcome = function(*jax.tree.unflatten(tree, filled))
        found.extend(Shapes().of([outcome]))

    jax.eval_shape(on_arrays, *(leaf for leaf, is_one in zip(leaves, is_shape, strict=True) if is_one))
    return found[0]
