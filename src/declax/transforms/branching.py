"""`cond` and `switch` for functions of models."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVarTuple

import jax
import numpy as np

from declax._graph.differences import first_differing, paths_of_objects
from declax._graph.flattening import GraphDef, walk
from declax._graph.nodes import plain_key
from declax._graph.unflattening import StructureChange
from declax._jax import with_short_tracebacks
from declax._typing import ArrayLike
from declax.errors import TransformError, describe
from declax.transforms._carry import ErrorContext
from declax.transforms._engine.captures import Closure
from declax.transforms._engine.lift import Call, Outcome, Plan, R, lifted, run, wait
from declax.transforms._engine.structure import Mode, Structure, checked_function, joined, named
from declax.transforms._engine.tracing import (
    TracedFunction,
    check_scalar,
    concluded,
    differing_leaf,
    kept_leaves,
    output_tree,
    text_of_tree,
    text_of_value,
    types_of,
    values_at,
)

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
        bodies = [lifted(closure, structure, mode, adapt=itemgetter(number)) for number in range(len(functions))]
        pairs = zip(bodies, functions.values(), strict=True)
        traced = [TracedFunction(named(body, user, structure), call.leaves) for body, user in pairs]
        outcomes = [function.outcome for function in traced]
        if any(outcome.plan.change is not None for outcome in outcomes):
            unchanged = walk((call.roots, ())).graphdef  # after a change of nothing that returns nothing
            outcomes = [_with_change(structure, outcome, unchanged) for outcome in outcomes]
        context = ErrorContext(transform, next(iter(functions)), structure, "operand {}".format)
        by_name = dict(zip(functions, outcomes, strict=True))
        _check_structures(by_name, context)
        places = _places(structure, outcomes)
        _check_types(by_name, places, call.leaves, context)

        def run_branch(function: TracedFunction, plan: Plan) -> Any:
            outcome = function(call.leaves)
            return values_at(structure, places, Outcome(plan, outcome.new, outcome.output), call.leaves)

        branches = zip(traced, outcomes, strict=True)
        found = select([functools.partial(run_branch, function, outcome.plan) for function, outcome in branches])
        if any(function.calls_back for function in traced):
            wait(found)
        return concluded(structure, outcomes[0], dict(zip(places, found, strict=True)))

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


def _places(structure: Structure, outcomes: Sequence[Outcome]) -> list[int]:
    """The places that two branches give different values, and those of the output."""
    kept = [kept_leaves(structure, outcome.plan) for outcome in outcomes]
    differing = [i for i, sources in enumerate(zip(*kept, strict=True)) if sources[0] < 0 or len(set(sources)) > 1]
    count = len(kept[0])
    return [*differing, *range(count, count + len(jax.tree_util.tree_leaves(outcomes[0].output)))]


def _check_structures(outcomes: Mapping[str, Outcome], context: ErrorContext) -> None:
    """Checks that all branches return, and leave behind, the same structure."""
    first = outcomes[context.function]
    tree, is_one = output_tree(first)
    for name, outcome in outcomes.items():
        own_tree, own_is_one = output_tree(outcome)
        if (own_tree, own_is_one) != (tree, is_one):
            where = joined(f"{context.transform}, the output", differing_leaf(tree, own_tree))
            texts = text_of_tree(tree, is_one), text_of_tree(own_tree, own_is_one)
            raise _differs(where, name, context, "return the same structure from all branches", *texts)
        one, other = first.plan.change, outcome.plan.change
        if one is None or other is None or (one.graphdef is other.graphdef and one.origins == other.origins):
            continue
        found = first_differing(one.graphdef, other.graphdef)
        path = found.path
        if not path:
            pairs = zip(paths_of_objects(one.graphdef), one.origins, other.origins, strict=True)
            path = next(path for path, a, b in pairs if a != b)
        details = found.details("create the same Variables in all branches, and return the same models")
        raise _differs(_name_of(path, context), name, context, **details)


def _check_types(
    outcomes: Mapping[str, Outcome], places: Sequence[int], leaves: Sequence[Any], context: ErrorContext
) -> None:
    """Checks that all branches return and set values of the same shapes and dtypes."""
    tables = [values_at(context.structure, places, outcome, leaves) for outcome in outcomes.values()]
    for name, table in zip(outcomes, tables, strict=True):
        for place, first, value in zip(places, tables[0], table, strict=True):
            if types_of(first) != types_of(value):
                where = _name_of_place(outcomes[name], place, context)
                fix = "convert it in one branch: value.astype(...), jnp.asarray(value, dtype)"
                raise _differs(where, name, context, fix, text_of_value(first), text_of_value(value))


def _differs(
    where: str, name: str, context: ErrorContext, fix: str, expected: str | None = None, got: str | None = None
) -> TransformError:
    return TransformError(
        where,
        f"{name} differs from {context.function} in structure or type",
        expected=expected,
        got=got,
        why="the program chooses a branch when it runs, so all branches return one structure and type",
        fix=fix,
    )


def _name_of(path: Sequence[Any], context: ErrorContext) -> str:
    if path[:1] == (0,) and len(path) > 1:
        return context.of_path(path[1:])
    return f"{context.transform}, the output"


def _name_of_place(outcome: Outcome, place: int, context: ErrorContext) -> str:
    change, count = outcome.plan.change, len(kept_leaves(context.structure, outcome.plan))
    if place >= count:
        path = [plain_key(key) for key in jax.tree_util.tree_flatten_with_path(outcome.output)[0][place - count][0]]
        return joined(f"{context.transform}, the output", path)
    return context.of_leaf(place) if change is None else _name_of(change.graphdef.definition.paths[place], context)
