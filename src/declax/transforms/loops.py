"""`while_loop` and `fori_loop` for functions of models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import jax
import jax.numpy as jnp
import numpy as np

from declax._typing import ArrayLike
from declax.errors import TransformError
from declax.transforms._carry import ErrorContext, Steps, functions_of
from declax.transforms._engine.call import Call, named_leaves
from declax.transforms._engine.captures import Closure
from declax.transforms._engine.commit import run, wait
from declax.transforms._engine.outcome import Outcome
from declax.transforms._engine.prefixes import STEP_AXES, Carry, Prefixes
from declax.transforms._engine.structure import Mode, checked_function
from declax.transforms._engine.tracing import TracedFunction, check_scalar
from declax.transforms._engine.wrapped import T

_OF_WHILE: Final = Prefixes((Carry,), Carry, STEP_AXES)
_OF_FORI: Final = Prefixes((None, Carry), Carry, STEP_AXES)


def while_loop(
    cond_fun: Callable[[T], ArrayLike],
    body_fun: Callable[[T], T],
    init_val: T,
    *,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> T:
    """Calls a function on its own result while a condition holds.

    Variables that `body_fun` sets, in its arguments or in captured models, are written to the caller's models; values
    that it only reads are constants of the loop. It returns the models that it receives.

    Args:
      cond_fun: whether to take another step; it sets nothing.
      body_fun: one step.
      init_val: the argument of the first step; may hold models.
      graph, graph_updates: as in `jit`; the structure never changes in a loop.

    Returns:
      The result of the last step. A model that the steps pass on is the caller's own.

    Raises:
      TransformError: a step changes the structure, shape or dtype of its argument, or returns a new model in
        place of one that it received; the condition sets something, or does not return a boolean.

    >>> import declax as dx
    >>> import jax.numpy as jnp
    >>> total = dx.Variable(jnp.array(1))
    >>> def double(x):
    ...     total[...] *= 2
    ...     return x + 1
    >>> int(dx.while_loop(lambda x: x < 5, double, 0)), int(total.value)
    (5, 32)
    """
    checked_function("while_loop", "cond_fun", cond_fun)
    checked_function("while_loop", "body_fun", body_fun)
    mode = Mode.of(graph, graph_updates)._replace(returns=True)
    closure = Closure((cond_fun, body_fun), cond_fun)

    def loop(call: Call) -> Outcome:
        context = ErrorContext("while_loop", "body_fun", call.structure, lambda _: "init_val", mode)
        steps = Steps(_OF_WHILE, body_fun, call.leaves, context)
        cond_of_leaves, body_of_leaves = functions_of(closure, call.structure, mode, steps.labels)
        body, step, given = steps.trace(body_of_leaves, call.leaves)
        condition = TracedFunction(cond_of_leaves, given)
        _check_condition(condition.outcome, context)
        _check_refs(call, condition, body)

        def holds(carried: Any) -> Any:
            return condition(step.put(carried, given)).output

        def advance(carried: Any) -> Any:
            full = step.put(carried, given)
            return step.read(body(full), full)

        last = jax.lax.while_loop(holds, advance, [given[i] for i in step.leaves])
        if condition.calls_back or body.calls_back:
            wait(last)
        return step.conclude(body.outcome, last)

    return cast("T", run(lambda: Call((init_val,), {}, mode, closure.find()).check_arrays(), loop))


def fori_loop(
    lower: ArrayLike,
    upper: ArrayLike,
    body_fun: Callable[[Any, T], T],
    init_val: T,
    *,
    unroll: int | bool | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> T:
    """Calls a function on its own result, for each number of a range; otherwise as `while_loop`.

    With Python ints as bounds, the loop can be differentiated in reverse mode. Unless `graph_updates` is off, a step
    may return a new model of the same structure; the caller's model then stays unchanged.

    Args:
      lower, upper: the first number, and the one after the last; both integers, or both floats.
      body_fun: one step, of the number and the result of the previous step.
      init_val: the argument of the first step; may hold models.
      unroll: as in `jax.lax.fori_loop`.
      graph, graph_updates: as in `jit`; the structure never changes in a loop.

    Returns:
      The result of the last step; see `while_loop`.

    Raises:
      TransformError: a step changes the structure, shape or dtype of its argument; a bound is of another kind.

    >>> import declax as dx
    >>> import jax.numpy as jnp
    >>> total = dx.Variable(jnp.array(0))
    >>> def add(i, total):
    ...     total[...] += i
    ...     return total
    >>> dx.fori_loop(2, 5, add, total) is total, int(total.value)
    (True, 9)
    """
    checked_function("fori_loop", "body_fun", body_fun)
    is_float = isinstance(lower, float) or jnp.issubdtype(getattr(lower, "dtype", np.int32), np.floating)
    for name, bound in (("lower", lower), ("upper", upper)):
        fix = "dx.fori_loop(0, len(x), body_fun, init_val)"
        kind, expected = (np.floating, "one float, as lower") if is_float else (np.integer, "one integer")
        check_scalar(f"fori_loop, {name}", bound, expected, kind, fix=fix)
    mode = Mode.of(graph, graph_updates)._replace(returns=True)
    closure = Closure((body_fun,), body_fun)

    def loop(call: Call) -> Outcome:
        context = ErrorContext("fori_loop", "body_fun", call.structure, ("i", "init_val").__getitem__, mode)
        steps = Steps(_OF_FORI, body_fun, call.leaves, context)
        (function,) = functions_of(closure, call.structure, mode, steps.labels)
        body, step, given = steps.trace(function, call.leaves)

        def advance(number: Any, carried: Any) -> Any:
            full = step.put(carried, given)
            full[call.structure.num_leaves] = number
            return step.read(body(full), full)

        last = jax.lax.fori_loop(lower, upper, advance, [given[i] for i in step.leaves], unroll=unroll)
        if body.calls_back:
            wait(last)
        return step.conclude(body.outcome, last)

    def take() -> Call:
        return Call((_number_like(lower, upper), init_val), {}, mode, closure.find()).check_arrays()

    return cast("T", run(take, loop))


def _number_like(lower: Any, upper: Any) -> Any:
    """A value of the type that `jax.lax.fori_loop` passes as the number."""
    found: list[Any] = [0]

    def see(number: Any, carried: Any) -> Any:
        found.append(jax.typeof(number))
        return carried

    if type(lower) is not int or type(upper) is not int:
        jax.eval_shape(lambda: jax.lax.fori_loop(lower, upper, see, 0))
    return found[-1]


def _check_condition(outcome: Outcome, context: ErrorContext) -> None:
    plan = outcome.plan
    if plan.change is not None or plan.changed:
        raise TransformError(
            context.of_leaf(plan.changed[0]) if plan.changed else "while_loop, cond_fun",
            "cond_fun changes this",
            why="changes by the condition would be lost",
            fix="change it in body_fun, or read it from dx.clone(model)",
        )
    check_scalar("while_loop, cond_fun", outcome.output, "one boolean", np.bool_, fix="lambda state: state[0] < 10")


def _check_refs(call: Call, condition: TracedFunction, body: TracedFunction) -> None:
    """Checks that the condition and the body use different array refs."""
    shared = condition.refs & body.refs
    if shared:
        leaves = [name for name, value in named_leaves(call) for _ in jax.tree_util.tree_leaves(value)]
        raise TransformError(
            "while_loop, cond_fun",
            "cond_fun reads an array ref that body_fun uses too",
            got=" and ".join(leaves[i] for i in sorted(i for i in shared if isinstance(i, int)))
            or "a ref of a closure",
            why="JAX passes a ref to only one of the two functions",
            fix="return state, ref[...]        # in body_fun; cond_fun reads the second value",
        )
