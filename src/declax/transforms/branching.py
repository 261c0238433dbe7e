"""`cond` and `switch` for functions of models.

Vocabulary
----------
branch: one of the functions of which one runs.
end:    what a branch comes to: its Outcome, as far as it is known before it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, TypeVarTuple, overload

import jax
import numpy as np

from declax._nodes import plain_key
from declax._typing import MISSING, ArrayLike, Missing
from declax.errors import TransformError, describe
from declax.graph.flattening import HAS_INDEX, GraphDef, walk, walk_tokens
from declax.graph.unflattening import Change
from declax.transforms._captures import combine_functions, select_function
from declax.transforms._carrying import values_at
from declax.transforms._lift import Call, Outcome, Plan, lifted, run, wait
from declax.transforms._naming import named
from declax.transforms._structure import Mode, differing, is_root, joined, name_path
from declax.transforms._tracing import (
    Traced,
    check_scalar,
    checked_function,
    concluded,
    differing_leaf,
    output_tree,
    text_of_tree,
    text_of_value,
    types_of,
)

A = TypeVar("A")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


@overload
def cond(
    pred: ArrayLike,
    true_fun: Callable[[*Ts], R],
    false_fun: Callable[[*Ts], R],
    *operands: *Ts,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> R: ...
@overload
def cond(
    pred: ArrayLike,
    true_fun: Callable[[A], R],
    false_fun: Callable[[A], R],
    *,
    operand: A,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> R: ...
def cond(  # type: ignore[misc]  # no signature takes both `*Ts` and any number of operands
    pred: Any,
    true_fun: Callable[..., R],
    false_fun: Callable[..., R],
    *operands: Any,
    operand: Any = MISSING,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> R:
    """Calls one of two functions.

    What the function sets, in models that it is given or that it captures,
    happens to the caller's. Where only one of the two sets a Variable, the
    other leaves it as it is; what neither sets is not touched.

    Args:
      pred: a boolean scalar: whether to call `true_fun`.
      true_fun, false_fun: the two functions, of the same arguments.
      operands: the arguments.
      operand: one argument, as `jax.lax.cond` has it.
      graph, graph_updates: as in `jit`.

    Returns:
      What the function returned.

    Raises:
      TransformError: for functions that return different structures, shapes
        or dtypes, or that leave the models in different structures.

    >>> import jax.numpy as jnp
    >>> from declax._variables import Variable
    >>> count = Variable(jnp.array(0))
    >>> def add(count, x):
    ...     count[...] += 1
    ...     return x + 1
    >>> int(cond(True, add, lambda count, x: x, count, 3)), int(count.value)
    (4, 1)
    """
    if not isinstance(operand, Missing):
        if operands:
            raise TransformError(
                "cond", "there are operands and an `operand`", fix="cond(pred, true_fun, false_fun, x)"
            )
        operands = (operand,)
    mode = Mode.of(graph, graph_updates)
    names = ("true_fun", "false_fun")

    def select(true_branch: Any, false_branch: Any) -> Any:
        try:
            return jax.lax.cond(pred, true_branch, false_branch)
        except TypeError:
            check_scalar("cond, pred", pred, "one boolean", np.bool_, np.number, fix="pred.all()        # or .any()")
            raise

    result: R = _run("cond", (true_fun, false_fun), names, operands, mode, select)
    return result


@overload
def switch(
    index: ArrayLike,
    branches: Sequence[Callable[[*Ts], R]],
    *operands: *Ts,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> R: ...
@overload
def switch(
    index: ArrayLike,
    branches: Sequence[Callable[[A], R]],
    *,
    operand: A,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> R: ...
def switch(  # type: ignore[misc]  # no signature takes both `*Ts` and any number of operands
    index: Any,
    branches: Sequence[Callable[..., R]],
    *operands: Any,
    operand: Any = MISSING,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> R:
    """Calls one of several functions.

    As `cond`. An index out of range means the first or the last function.

    Args:
      index: an integer scalar: which function to call.
      branches: the functions, of the same arguments.
      operands: the arguments.
      operand: one argument, as `jax.lax.switch` has it.
      graph, graph_updates: as in `jit`.

    Returns:
      What the function returned.

    Raises:
      TransformError: for no functions, and for functions that do not fit each
        other; see `cond`.

    >>> int(switch(1, [lambda x: x, lambda x: x * 2, lambda x: x * 3], 5))
    10
    """
    if not isinstance(operand, Missing):
        if operands:
            raise TransformError("switch", "there are operands and an `operand`", fix="switch(index, branches, x)")
        operands = (operand,)
    if callable(branches):
        raise TransformError(
            "switch, branches",
            "this is one function, and not several",
            got=describe(branches),
            fix="switch(index, [f, g], *operands)",
        )
    branches = tuple(branches)
    if not branches:
        raise TransformError("switch", "there are no branches", fix="switch(index, [f, g], *operands)")
    mode = Mode.of(graph, graph_updates)
    names = tuple(f"branch {number}" for number in range(len(branches)))

    def select(*functions: Any) -> Any:
        try:
            return jax.lax.switch(index, functions)
        except TypeError:
            check_scalar("switch, index", index, "one integer", np.integer, fix="index.astype(int)        # a scalar")
            raise

    result: R = _run("switch", branches, names, operands, mode, select)
    return result


def _run(
    transform: str,
    functions: Sequence[Callable[..., Any]],
    names: Sequence[str],
    operands: tuple[Any, ...],
    mode: Mode,
    select: Callable[..., Any],
) -> Any:
    """Traces branches, has one of them run, and commits what it comes to."""
    for name, function in zip(names, functions, strict=True):
        checked_function(transform, name, function)
    closure = combine_functions(*functions)

    def take() -> Call:
        return Call(operands, {}, mode, closure.find()).check_arrays()

    def choose(call: Call) -> Outcome:
        traced = [
            Traced(named(lifted(closure, call.structure, mode, adapt=select_function(i)), function, call.structure))
            for i, function in enumerate(functions)
        ]
        outcomes = [function.look(call.values, call.plain) for function in traced]
        if any(outcome.plan.change is not None for outcome in outcomes):
            unchanged = _unchanged(operands, () if call.captures is None else call.captures.values)
            outcomes = [_with_change(outcome, unchanged) for outcome in outcomes]
        return _chosen(call, traced, outcomes, select, _Words(transform, names, call))

    return run(take, choose)


def _chosen(
    call: Call, traced: Sequence[Traced], outcomes: Sequence[Outcome], select: Callable[..., Any], words: _Words
) -> Outcome:
    """Has one branch run, and says what it comes to."""
    _check_structures(outcomes, words)
    places = _places(outcomes)
    _check_types(outcomes, places, words)

    def branch(function: Traced, plan: Plan) -> Callable[[], Any]:
        def run_branch() -> Any:
            outcome = function(call.values, call.plain)
            known = Outcome(plan, outcome.new, outcome.output)
            return values_at(places, known, call.values), jax.tree_util.tree_leaves(outcome.output)

        return run_branch

    new, output = select(*(branch(function, o.plan) for function, o in zip(traced, outcomes, strict=True)))
    if any(function.calls_back for function in traced):
        wait((new, output))
    return concluded(outcomes[0], dict(zip(places, new, strict=True)), output)


# ----------------------------------------------------------------- where branches end


def _unchanged(operands: tuple[Any, ...], captured: tuple[Any, ...]) -> GraphDef[Any]:
    """The graph in which a `Change` ends that changes nothing, and returns nothing."""
    leaves = jax.tree_util.tree_leaves((operands, captured), is_leaf=is_root)
    return walk((tuple(filter(is_root, leaves)), ())).graphdef


def _with_change(outcome: Outcome, unchanged: GraphDef[Any]) -> Outcome:
    """The same with a `Change`, where it has none."""
    plan = outcome.plan
    if plan.change is not None:
        return outcome
    changed = set(plan.changed)
    kept = tuple(-1 if i in changed else i for i in range(unchanged.num_leaves))
    count = sum(isinstance(token, tuple) and token[0] in HAS_INDEX for token in unchanged.tokens)
    change = Change(unchanged, kept, tuple(range(count)))
    leaves, tree = jax.tree_util.tree_flatten(outcome.output)
    return Outcome(Plan((), change, tree, (False,) * len(leaves)), outcome.new, leaves)


def _places(outcomes: Sequence[Outcome]) -> list[int]:
    """The places that any branch gives another value than some other."""
    if outcomes[0].plan.change is None:
        return sorted({place for outcome in outcomes for place in outcome.plan.changed})
    kept = [outcome.plan.change.kept for outcome in outcomes if outcome.plan.change is not None]
    return [place for place, sources in enumerate(zip(*kept, strict=True)) if sources[0] < 0 or len(set(sources)) > 1]


class _Words(NamedTuple):
    """How errors speak of branches.

    Attributes:
      transform: its name.
      names: of the branches.
      call: what the branches are given.
    """

    transform: str
    names: Sequence[str]
    call: Call

    def of_place(self, path: Sequence[Any]) -> str:
        """What to call a place in the graph in which branches end."""
        if path[:1] == (0,) and len(path) > 1:
            return f"{self.transform}, {name_path(self.call.structure, path[1:], 'operand {}'.format)}"
        return f"{self.transform}, the output"


def _check_structures(outcomes: Sequence[Outcome], words: _Words) -> None:
    """Checks that all branches return, and leave behind, the same structure.

    Raises:
      TransformError: names the first branch that differs, and where.
    """
    tree, is_one = output_tree(outcomes[0])
    for name, outcome in zip(words.names, outcomes, strict=True):
        own_tree, own_is_one = output_tree(outcome)
        if (own_tree, own_is_one) != (tree, is_one):
            raise TransformError(
                joined(f"{words.transform}, the output", differing_leaf(tree, own_tree)),
                f"{name} returns another structure than {words.names[0]}",
                expected=text_of_tree(tree, is_one),
                got=text_of_tree(own_tree, own_is_one),
                why="which of them runs is known only when the program runs, and what comes out is one structure",
                fix="return the same structure from all of them",
            )
        if outcome.plan.change is not None:
            _check_graphs(outcomes[0], outcome, name, words)


def _check_graphs(first: Outcome, outcome: Outcome, name: str, words: _Words) -> None:
    one, other = first.plan.change, outcome.plan.change
    assert one is not None and other is not None  # all have one, or none has  # noqa: PT018
    if one.graphdef is other.graphdef and one.origins == other.origins:
        return
    found = differing(one.graphdef, other.graphdef)
    path = found.path or _differing_origin(one, other)
    does = "returns another model" if path[:1] == (1,) else "leaves another structure"
    raise TransformError(
        words.of_place(path),
        f"{name} {does} here than {words.names[0]}",
        why="which of them runs is known only when the program runs, and the models have one structure after it",
        **found.told("make the same Variables in all of them, and return the same models"),
    )


def _differing_origin(one: Change, other: Change) -> Any:
    """The path of the first object that is not the same in two changes of one structure."""
    paths = [
        path for path, token in walk_tokens(one.graphdef.tokens) if not isinstance(token, int) and token[0] in HAS_INDEX
    ]
    return next(path for path, a, b in zip(paths, one.origins, other.origins, strict=True) if a != b)


def _check_types(outcomes: Sequence[Outcome], places: Sequence[int], words: _Words) -> None:
    """Checks that all branches return and set values of the same shapes and dtypes.

    Raises:
      TransformError: names the first value that differs, and the branch.
    """
    tables = [_values_of(outcome, places, words) for outcome in outcomes]
    for name, table in zip(words.names, tables, strict=True):
        for (where, first), (_, value) in zip(tables[0], table, strict=True):
            if types_of(first) != types_of(value):
                raise TransformError(
                    where,
                    f"{name} gives this another type than {words.names[0]}",
                    expected=text_of_value(first),
                    got=text_of_value(value),
                    fix="convert it in one of them: value.astype(...), jnp.asarray(value, dtype)",
                )


def _values_of(outcome: Outcome, places: Sequence[int], words: _Words) -> list[tuple[str, Any]]:
    """The values that a branch sets and returns, with what to call them."""
    plan, structure = outcome.plan, words.call.structure
    found: list[tuple[str, Any]] = []
    if places:
        assert structure.graphdef is not None or plan.change is not None  # it has leaves
        if plan.change is None:
            paths = [(0, *structure.graphdef.definition.paths[place]) for place in places]  # type: ignore[union-attr]  # asserted
        else:
            paths = [plan.change.graphdef.definition.paths[place] for place in places]
        found += zip(map(words.of_place, paths), values_at(places, outcome, words.call.values), strict=True)
    for keys, leaf in jax.tree_util.tree_flatten_with_path(outcome.output)[0]:
        found.append((joined(f"{words.transform}, the output", list(map(plain_key, keys))), leaf))
    return found
