"""What a loop hands from step to step: by setting it, or by returning it.

Vocabulary
----------
step:    one run of a loop's function.
handed:  an argument whose place in the next step what the function returns takes.
carried: all that differs from step to step: the leaves of the graph that the
         function sets or makes anew, and handed plain leaves. Nothing else
         goes into the carry of JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from declax.errors import TransformError
from declax.transforms._carry_invariants import Comparison, ErrorContext
from declax.transforms._lift import Outcome
from declax.transforms._structure import Structure, joined, paths_in
from declax.transforms._tracing import (
    Traced,
    concluded,
    differing_leaf,
    new_values,
    output_tree,
    text_of_tree,
    text_of_value,
    type_of,
    types_of,
)

EMPTY: Mapping[int, Any] = MappingProxyType({})


class Step(NamedTuple):
    """What is carried by one function.

    Attributes:
      leaves: positions among the leaves of the call's graph.
      places: where the next values of these are, in the plan.
      plain: positions among the plain leaves of the call.
      results: positions of their next values, among those of the output.
    """

    leaves: tuple[int, ...]
    places: tuple[int, ...]
    plain: tuple[int, ...]
    results: tuple[int, ...]

    def next_values(self, outcome: Outcome, values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The carried values after a step, from what came out and the values before it."""
        output = jax.tree_util.tree_leaves(outcome.output)
        return values_at(self.places, outcome, values), [output[i] for i in self.results]

    def put(self, carried: tuple[list[Any], list[Any]], values: Sequence[Any], plain: Sequence[Any]) -> Any:
        """All leaves of a step, from carried values, and from those that are the same in each step."""
        full_values, full_plain = list(values), list(plain)
        for position, value in zip(self.leaves, carried[0], strict=True):
            full_values[position] = value
        for position, value in zip(self.plain, carried[1], strict=True):
            full_plain[position] = value
        return full_values, full_plain

    def conclude(
        self, outcome: Outcome, last: Any, places: Mapping[int, Any] = EMPTY, results: Mapping[int, Any] = EMPTY
    ) -> Outcome:
        """What a loop comes to.

        Args:
          outcome: of a step.
          last: what was carried to the end.
          places, results: other new values, and other plain leaves of the output, by position.
        """
        by_place = dict(zip(self.places, last[0], strict=True)) | dict(places)
        plain = dict(zip(self.results, last[1], strict=True)) | dict(results)
        return concluded(outcome, by_place, [plain[position] for position in sorted(plain)])

    def first(self, values: Sequence[Any], plain: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The carried values before the first step."""
        return [values[i] for i in self.leaves], [plain[i] for i in self.plain]


def values_at(places: Sequence[int], outcome: Outcome, values: Sequence[Any]) -> list[Any]:
    """The values that an outcome has at places."""
    new = new_values(outcome.plan)
    change = outcome.plan.change
    sources = range(len(values)) if change is None else change.kept
    return [outcome.new[new[place]] if place in new else values[sources[place]] for place in places]


class Part(NamedTuple):
    """A part of the arguments, or of the output.

    Attributes:
      tree: its tree, with roots as leaves.
      leaves: the positions of its leaves.
      is_root: for each leaf of all the arguments, or of the output, whether it is a root.
      name: what errors call it.
    """

    tree: Any
    leaves: Sequence[int]
    is_root: Sequence[bool]
    name: str


def paired(given: Part, returned: Part, context: ErrorContext) -> Iterator[tuple[int, int]]:
    """The leaves of what is handed on, with those of what is returned for it.

    Raises:
      TransformError: the trees differ, or there is a root in one and none in the other.
    """
    if given.tree != returned.tree:
        raise _other_tree(given, returned, differing_leaf(given.tree, returned.tree), context)
    for number, (leaf, result) in enumerate(zip(given.leaves, returned.leaves, strict=True)):
        if given.is_root[leaf] != returned.is_root[result]:
            raise _other_tree(given, returned, paths_in(given.tree)[number], context)
        yield leaf, result


def _other_tree(given: Part, returned: Part, path: Sequence[Any], context: ErrorContext) -> TransformError:
    return TransformError(
        f"{context.transform}, {joined(given.name, path)}",
        f"{context.function} returns another structure than it is given",
        expected=text_of_tree(given.tree, [given.is_root[i] for i in given.leaves]),
        got=text_of_tree(returned.tree, [returned.is_root[i] for i in returned.leaves]),
        why="what it returns is what the next step is given",
        fix=f"return what stands for {given.name} in the same structure",
    )


# ----------------------------------------------------------------- types that have to stand


def settled(
    traced: Traced,
    structure: Structure,
    values: Sequence[Any],
    plain: Sequence[Any],
    analyse: Callable[[Outcome], Step],
    context: ErrorContext,
) -> tuple[Outcome, Step, tuple[list[Any], list[Any]]]:
    """Traces a function, until what is carried has the same types before and after a step.

    As in JAX, a first value of weak type takes the dtype that the step gives
    it, and the function is traced again.

    Args:
      traced: the function.
      structure: of the call.
      values, plain: what to trace it with.
      analyse: finds what is carried.
      context: for errors.

    Returns:
      What comes out, what is carried, and the two sorts of leaves with their final types.

    Raises:
      TransformError: for another shape or dtype.
    """
    values, plain = list(values), list(plain)
    at_plain = [i for i, is_one in enumerate(structure.is_root) if not is_one]
    while True:
        outcome = traced.look(values, plain)
        step = analyse(outcome)
        after, after_plain = step.next_values(outcome, values)
        is_settled = True
        for position, new in zip(step.leaves, after, strict=True):
            if types_of(values[position]) != types_of(new):
                values[position] = _promoted(values[position], new, context.of_leaf(structure, position), context)
                is_settled = False
        for position, new in zip(step.plain, after_plain, strict=True):
            if types_of(plain[position]) != types_of(new):
                where = context.of_argument(structure, at_plain[position])
                plain[position] = _promoted(plain[position], new, where, context)
                is_settled = False
        if is_settled:
            return outcome, step, (values, plain)


def _promoted(value: Any, new: Any, where: str, context: ErrorContext) -> Any:
    """A first value of weak type with the dtype that it needs."""
    leaves, news = jax.tree_util.tree_leaves(value), jax.tree_util.tree_leaves(new)
    tree: Any = jax.tree_util.tree_structure(value)
    is_like = bool(tree == jax.tree_util.tree_structure(new))
    if not is_like or not all(map(_is_promotable, leaves, news)):
        raise TransformError(
            where,
            f"{context.function} gives this another type than it had",
            expected=f"{text_of_value(value)}, as before the step",
            got=text_of_value(new),
            why="each step is the same program, so that what goes from one to the next has one type",
            fix=f"start with a value of type {text_of_value(new)}, or convert it in the function: value.astype(...)",
        )
    made = [_with_type(leaf, other) for leaf, other in zip(leaves, news, strict=True)]
    return jax.tree_util.tree_unflatten(tree, made)


def _is_promotable(leaf: Any, new: Any) -> bool:
    shape, dtype, is_weak = type_of(leaf)
    new_shape, new_dtype, _ = type_of(new)
    return shape == new_shape and (dtype == new_dtype or (is_weak and jnp.result_type(leaf, new_dtype) == new_dtype))


def _with_type(leaf: Any, new: Any) -> Any:
    dtype = type_of(new)[1]
    return leaf if type_of(leaf)[1] == dtype else jax.lax.convert_element_type(leaf, dtype)


# ----------------------------------------------------------------- loops in which all arguments are handed on


def loop_step(structure: Structure, outcome: Outcome, given: Part, context: ErrorContext) -> Step:
    """What is carried by a function that returns what it is given, and sets what it likes.

    Raises:
      TransformError: it changes a structure, or returns another one.
    """
    tree, is_root = output_tree(outcome)
    returned = Part(tree, range(tree.num_leaves), is_root, "the output")
    pairs = list(paired(given, returned, context))
    plain, results = plain_pairs(pairs, structure.is_root, is_root)
    change = outcome.plan.change
    if change is None:
        return Step(outcome.plan.changed, outcome.plan.changed, plain, results)
    roots = [(sum(structure.is_root[:a]), sum(is_root[:b])) for a, b in pairs if structure.is_root[a]]
    places: dict[int, int] = {}
    if structure.graphdef is not None:
        comparison = Comparison(structure, change, context)
        comparison.check_structure_preserved(range(sum(structure.is_root)))
        places = dict(comparison.next_of_fresh(roots))
        # the leaves of the call come first in the graph of the change, which has its structure
        places |= {i: i for i in range(structure.graphdef.num_leaves) if change.kept[i] != i}
    return Step(tuple(places), tuple(places.values()), plain, results)


def plain_pairs(
    pairs: Sequence[tuple[int, int]], is_root: Sequence[bool], is_root_returned: Sequence[bool]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of pairs of leaves, the plain ones, by their positions among plain leaves."""
    found = [(a, b) for a, b in pairs if not is_root[a]]
    plain = tuple(a - sum(is_root[:a]) for a, _ in found)
    return plain, tuple(b - sum(is_root_returned[:b]) for _, b in found)
