"""`while_loop` and `fori_loop` for functions of models.

Vocabulary
----------
handed:  an argument whose place in the next step what the function returns takes.
carried: what differs from step to step; see `_carrying`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Set
from typing import Any, TypeVar, cast

import jax
import numpy as np

from declax._typing import ArrayLike
from declax.errors import TransformError
from declax.transforms._captures import Closure, combine_functions, select_function
from declax.transforms._carry_invariants import ErrorContext
from declax.transforms._carrying import Part, Step, loop_step, settled
from declax.transforms._lift import Call, Outcome, lifted, run, wait
from declax.transforms._naming import named, named_leaves
from declax.transforms._structure import Mode, tree_of_jax
from declax.transforms._tracing import Traced, check_scalar, checked_function, text_of_type, text_of_value

T = TypeVar("T")


def while_loop(
    cond_fun: Callable[[T], ArrayLike],
    body_fun: Callable[[T], T],
    init_val: T,
    *,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> T:
    """Calls a function on what it returned, while a condition holds.

    Models go through it as arrays do. What `body_fun` sets, in models that it
    is given or that it captures, happens to the caller's; what it only reads
    stays out of the loop. It may return the models that it was given, or new
    ones of the same structure.

    Args:
      cond_fun: whether there is another step; it sets nothing.
      body_fun: one step.
      init_val: the argument of the first step.
      graph, graph_updates: as in `jit`; the structure has to stand in any case.

    Returns:
      What the last step returned. Where that is the model that was handed in,
      it is the caller's; otherwise a new one.

    Raises:
      TransformError: for a step that returns another structure, shape or dtype
        than it is given, or that changes the structure of a model; and for a
        condition that sets something, or that is no boolean.

    >>> import jax.numpy as jnp
    >>> from declax._variables import Variable
    >>> total = Variable(jnp.array(1))
    >>> def double(x):
    ...     total[...] *= 2
    ...     return x + 1
    >>> int(while_loop(lambda x: x < 5, double, 0)), int(total.value)
    (5, 32)
    """
    checked_function("while_loop", "cond_fun", cond_fun)
    checked_function("while_loop", "body_fun", body_fun)
    mode = Mode.of(graph, graph_updates)
    closure = combine_functions(cond_fun, body_fun)
    context = ErrorContext("while_loop", "body_fun", lambda _: "init_val")

    def loop(call: Call) -> Outcome:
        structure = call.structure
        condition = Traced(named(lifted(closure, structure, mode, adapt=select_function(0)), cond_fun, structure))
        body = Traced(named(lifted(closure, structure, mode, adapt=select_function(1)), body_fun, structure))
        outcome, step, (values, plain) = settled_loop(call, body, 0, context)
        _check_condition(condition.look(values, plain), call, context._replace(function="cond_fun"))

        def goes_on(carried: Any) -> Any:
            return condition(*step.put(carried, values, plain)).output

        def advance(carried: Any) -> Any:
            full = step.put(carried, values, plain)
            return step.next_values(body(*full), full[0])

        shared = condition.refs.keys() & body.refs.keys()
        if any(body.refs[ref] for ref in shared):  # a compiled loop of JAX would ask for the first value each time
            raise _condition_on_refs(call, shared)
        try:
            last = jax.lax.while_loop(goes_on, advance, step.first(values, plain))
        except ValueError:
            if shared:
                raise _condition_on_refs(call, shared) from None
            raise
        if condition.calls_back or body.calls_back:
            wait(last)
        return step.conclude(outcome, last)

    return cast("T", run(lambda: Call((init_val,), {}, mode, closure.find()).check_arrays(), loop))


def _condition_on_refs(call: Call, shared: Set[Hashable]) -> TransformError:
    leaves = [name for name, value in named_leaves(call) for _ in jax.tree_util.tree_leaves(value)]
    return TransformError(
        "while_loop, cond_fun",
        "the condition reads an array ref that body_fun uses too",
        got=" and ".join(leaves[i] for i in sorted(i for i in shared if isinstance(i, int)))
        or "a ref that both functions close over",
        why="JAX hands a ref to one of the two functions only",
        fix="return state, ref[...]        # in body_fun; and cond_fun looks at the second",
    )


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
    """Calls a function on what it returned, for each number of a range.

    As `while_loop`, with the number as the first argument. Where both bounds
    are Python ints, the loop can be differentiated in reverse.

    Args:
      lower, upper: the first number, and the one after the last.
      body_fun: one step, of the number and of what the last step returned.
      init_val: what the first step is given.
      unroll: as in `jax.lax.fori_loop`.
      graph, graph_updates: as in `jit`; the structure has to stand in any case.

    Returns:
      What the last step returned; see `while_loop`.

    Raises:
      TransformError: for a step that returns another structure, shape or dtype
        than it is given, or that changes the structure of a model.

    >>> import jax.numpy as jnp
    >>> from declax._variables import Variable
    >>> total = Variable(jnp.array(0))
    >>> def add(i, total):
    ...     total[...] += i
    ...     return total
    >>> fori_loop(2, 5, add, total) is total, int(total.value)
    (True, 9)
    """
    checked_function("fori_loop", "body_fun", body_fun)
    mode = Mode.of(graph, graph_updates)
    closure = Closure(body_fun)
    context = ErrorContext("fori_loop", "body_fun", lambda number: ("i", "init_val")[number])

    def loop(call: Call) -> Outcome:
        body = Traced(named(lifted(closure, call.structure, mode), body_fun, call.structure))
        outcome, step, (values, plain) = settled_loop(call, body, 1, context)

        def advance(number: Any, carried: Any) -> Any:
            full_values, full_plain = step.put(carried, values, [number, *plain[1:]])
            return step.next_values(body(full_values, full_plain), full_values)

        last = jax.lax.fori_loop(lower, upper, advance, step.first(values, plain), unroll=unroll)
        if body.calls_back:
            wait(last)
        return step.conclude(outcome, last)

    def take() -> Call:
        return Call((_number_like(lower, upper), init_val), {}, mode, closure.find()).check_arrays()

    return cast("T", run(take, loop))


def _number_like(lower: Any, upper: Any) -> Any:
    """Something of the type that `jax.lax.fori_loop` gives the number."""
    if type(lower) is int and type(upper) is int:
        return 0
    found: list[Any] = []

    def see(number: Any, carried: Any) -> Any:
        found.append(jax.typeof(number))
        return carried

    try:
        jax.eval_shape(lambda: jax.lax.fori_loop(lower, upper, see, 0))
    except TypeError:
        _check_bounds(lower, upper)
        raise
    return found[0]


def _check_bounds(lower: Any, upper: Any) -> None:
    """Says which bound JAX has refused.

    Raises:
      TransformError: for a bound that is no integer scalar, and for two of different types.
    """
    fix = "dx.fori_loop(0, len(x), body_fun, init_val)"
    for name, bound in (("lower", lower), ("upper", upper)):
        check_scalar(f"fori_loop, {name}", bound, "one integer", np.integer, fix=fix)
    raise TransformError(
        "fori_loop, lower and upper",
        "the bounds have different types",
        got=f"{text_of_type(lower)} and {text_of_type(upper)}",
        fix="jnp.asarray(lower, upper.dtype)",
    )


def settled_loop(
    call: Call, body: Traced, argument: int, context: ErrorContext
) -> tuple[Outcome, Step, tuple[list[Any], list[Any]]]:
    """What comes out of a step of a loop that hands on one argument; see `settled`."""
    args, _, _ = call.structure.tree.children()
    parts = args.children()
    start = sum(part.num_leaves for part in parts[:argument])
    tree = tree_of_jax(parts[argument])
    given = Part(tree, range(start, start + tree.num_leaves), call.structure.is_root, "init_val")

    def analyse(outcome: Outcome) -> Step:
        return loop_step(call.structure, outcome, given, context)

    return settled(body, call.structure, call.values, call.plain, analyse, context)


def _check_condition(outcome: Outcome, call: Call, context: ErrorContext) -> None:
    """Checks that a condition sets nothing, and returns a boolean.

    Raises:
      TransformError: it does, or does not.
    """
    plan = outcome.plan
    if plan.change is not None or plan.changed:
        first = context.of_leaf(call.structure, plan.changed[0]) if plan.changed else "while_loop, cond_fun"
        raise TransformError(
            first,
            "cond_fun changes this",
            why="a condition is asked, and what it changes would be lost",
            fix="change it in body_fun, or read it through dx.clone(model)",
        )
    leaves = jax.tree_util.tree_leaves(outcome.output)
    if len(leaves) != 1 or leaves[0] is not outcome.output or text_of_value(outcome.output) != "bool[]":
        raise TransformError(
            "while_loop, cond_fun",
            "the condition is no boolean",
            expected="one boolean, bool[]",
            got=text_of_value(outcome.output) if leaves else "nothing",
            fix="lambda state: state[0] < 10",
        )
