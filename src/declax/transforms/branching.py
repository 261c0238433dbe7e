"""`cond` and `switch` for functions of models."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVarTuple

import jax
import numpy as np

from declax._graph.differences import paths_of_objects
from declax._graph.flattening import GraphDef, walk
from declax._graph.unflattening import StructureChange
from declax._jax import with_short_tracebacks
from declax._typing import ArrayLike
from declax.errors import TransformError, describe
from declax.transforms._carry import ErrorContext, agreed, functions_of
from declax.transforms._engine.call import Call
from declax.transforms._engine.captures import Closure
from declax.transforms._engine.commit import run, wait
from declax.transforms._engine.outcome import Outcome, Plan
from declax.transforms._engine.structure import Mode, Structure, checked_function
from declax.transforms._engine.tracing import TracedFunction, check_scalar, kept_leaves
from declax.transforms._engine.wrapped import R

Ts = TypeVarTuple("Ts")


def cond(
    pred: ArrayLike,
    true_fun: Callable[[*Ts], R],
    false_fun: Callable[[*Ts], R],
    *operands: *Ts,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> R:
    """Calls one of two functions.

    Variables that the function sets, in its arguments or in captured models, are written to the caller's models. A
    Variable that only one of the two functions sets keeps its value in the other.

    Args:
      pred: a boolean scalar: whether to call `true_fun`.
      true_fun, false_fun: the two functions, of the same arguments.
      operands: the arguments.
      graph, graph_updates: as in `jit`.

    Raises:
      TransformError: the functions return different structures, shapes or dtypes, or leave the models in
        different structures.

    >>> import declax as dx
    >>> import jax.numpy as jnp
    >>> count = dx.Variable(jnp.array(0))
    >>> def add(count, x):
    ...     count[...] += 1
    ...     return x + 1
    >>> int(dx.cond(True, add, lambda count, x: x, count, 3)), int(count.value)
    (4, 1)
    """
    fix = "pred.all()        # or .any()"
    check_scalar("cond, pred", pred, "one boolean", np.bool_, np.number, fix=fix)
    result: R = _run(
        "cond",
        {"true_fun": true_fun, "false_fun": false_fun},
        operands,
        Mode.of(graph, graph_updates),
        lambda branches: jax.lax.cond(pred, *branches),
    )
    return result


def switch(
    index: ArrayLike,
    branches: Sequence[Callable[[*Ts], R]],
    *operands: *Ts,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> R:
    """Calls one of several functions, as `cond`.

    Args:
      index: an integer scalar: which function to call. An index out of range selects the first or the last.
      branches: the functions, of the same arguments.
      operands: the arguments.
      graph, graph_updates: as in `jit`.

    Raises:
      TransformError: `branches` is empty, or the functions do not match; see `cond`.

    >>> import declax as dx
    >>> int(dx.switch(1, [lambda x: x, lambda x: x * 2, lambda x: x * 3], 5))
    10
    """
    if callable(branches) or not branches:
        raise TransformError(
            "switch, branches",
            "this is not a sequence of functions",
            got=describe(branches),
            fix="switch(index, [f, g], *operands)",
        )
    check_scalar("switch, index", index, "one integer", np.integer, fix="index.astype(int)        # a scalar")
    result: R = _run(
        "switch",
        {f"branch {number}": function for number, function in enumerate(branches)},
        operands,
        Mode.of(graph, graph_updates),
        lambda branches: jax.lax.switch(index, branches),
    )
    return result


@with_short_tracebacks
def _run(
    transform: str,
    functions: Mapping[str, Callable[..., Any]],
    operands: tuple[Any, ...],
    mode: Mode,
    select: Callable[[Sequence[Callable[[], Any]]], Any],
) -> Any:
    """Traces the branches, runs one of them, and commits its outcome."""
    for name, function in functions.items():
        checked_function(transform, name, function)
    closure = Closure(tuple(functions.values()), next(iter(functions.values())))

    def choose(call: Call) -> Outcome:
        structure = call.structure
        traced = [TracedFunction(function, call.leaves) for function in functions_of(closure, structure, mode)]
        outcomes = [function.outcome for function in traced]
        if any(outcome.plan.change is not None for outcome in outcomes):
            unchanged = walk((call.roots, (), ())).graphdef  # after a change of nothing that returns nothing
            outcomes = [_with_change(structure, outcome, unchanged) for outcome in outcomes]
        context = ErrorContext(transform, next(iter(functions)), structure, "operand {}".format)
        slots = agreed(dict(zip(functions, outcomes, strict=True)), call.leaves, context)

        def run_branch(function: TracedFunction, plan: Plan) -> Any:
            outcome = function(call.leaves)
            return slots.read(Outcome(plan, outcome.new, outcome.output), call.leaves)

        branches = zip(traced, outcomes, strict=True)
        found = select([functools.partial(run_branch, function, outcome.plan) for function, outcome in branches])
        if any(function.calls_back for function in traced):
            wait(found)
        return slots.conclude(outcomes[0], found)

    return run(lambda: Call(operands, {}, mode, closure.find()).check_arrays(), choose)


def _with_change(structure: Structure, outcome: Outcome, unchanged: GraphDef[Any]) -> Outcome:
    """The same outcome with a `StructureChange`, if it has none."""
    plan = outcome.plan
    if plan.change is not None:
        return outcome
    count = len(paths_of_objects(unchanged))
    change = StructureChange(unchanged, kept_leaves(structure, plan), tuple(range(count)))
    leaves, tree = jax.tree_util.tree_flatten(outcome.output)
    made = Plan((), change, tree, (False,) * len(leaves))
    return Outcome(made, outcome.new, leaves)
