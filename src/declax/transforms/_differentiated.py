"""The leaves that a transform differentiates, and what has their shape.

Gradients, cotangents and tangents all have one value a leaf. Users see them in
the shape of what they belong to: of a model a State, of other trees the tree.

Vocabulary
----------
target: an argument, or the result, with the leaves of it that count.
part:   a root of a target, or one of its plain leaves.
slope:  what belongs to a leaf: its gradient, cotangent or tangent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from declax._filters import Filter, as_written
from declax._jax import current_trace
from declax._nodes import plain_key
from declax._state_def import StateDef
from declax._variables import new_variable
from declax.errors import TransformError, describe, format_path
from declax.graph.binding import bind
from declax.graph.unflattening import build_slots, program_of
from declax.states import State, make_state
from declax.transforms._lift import Call, Outcome
from declax.transforms._structure import flatten, is_root, parameters, tree_of_jax

Slopes = dict[int, Any]
"""What belongs to leaves, by their position."""


class Part(NamedTuple):
    """A root of a target, or a plain leaf.

    Attributes:
      definition: of the root's leaves that count; None for a plain leaf.
      positions: of these among the leaves of the graph, or of the one among the plain ones.
    """

    definition: StateDef | None
    positions: tuple[int, ...]


class Target(NamedTuple):
    """An argument or a result, and its leaves that count. Static: hashable, without values.

    Attributes:
      tree: with roots as leaves.
      parts: the leaves of the tree.
    """

    tree: Any
    parts: tuple[Part, ...]

    @property
    def values(self) -> list[int]:
        """The positions of its leaves among those of the graph."""
        return [i for part in self.parts if part.definition is not None for i in part.positions]

    @property
    def plain(self) -> list[int]:
        """The positions of its leaves among the plain ones."""
        return [part.positions[0] for part in self.parts if part.definition is None]

    def assemble(self, values: Slopes, plain: Mapping[int, Any]) -> Any:
        """What the user sees: the tree, with States for models, and Variables for Variables."""
        leaves = [
            plain.get(part.positions[0])
            if part.definition is None
            else _of_root(part.definition, [values[i] for i in part.positions])
            for part in self.parts
        ]
        return jax.tree_util.tree_unflatten(self.tree, leaves)

    def take_apart(self, given: Any, where: str) -> tuple[list[tuple[int, Any]], Slopes]:
        """What a user gives for this target: of the graph's leaves, and of the plain ones.

        A model's may be a State, also of a part of its leaves, or a model of
        its kind. None stands for zeros, and leaves none here. A leaf that the
        target has twice may come twice.

        Raises:
          TransformError: it has not the shape of the target.
        """
        values: list[tuple[int, Any]] = []
        plain: Slopes = {}
        if given is None:
            return values, plain
        try:
            leaves = tree_of_jax(self.tree).flatten_up_to(given)
        except (ValueError, TypeError, KeyError) as error:
            shape = jax.tree_util.tree_unflatten(self.tree, ["*"] * len(self.parts))
            problem = "this has not the shape of what it belongs to"
            why = str(error).splitlines()[0]
            fix = "jax.tree.map(jnp.ones_like, value)        # has the shape of the value that it belongs to"
            raise TransformError(where, problem, expected=repr(shape), got=describe(given), why=why, fix=fix) from None
        for part, leaf in zip(self.parts, leaves, strict=True):
            if part.definition is not None:
                found = _slopes_of_root(part.definition, leaf, where)
                values += [(i, slope) for i, slope in zip(part.positions, found, strict=True) if slope is not None]
            elif leaf is not None:
                plain[part.positions[0]] = leaf
        return values, plain

    def place_of_plain(self, where: str, position: int) -> str:
        """What to call a plain leaf in errors: the target, and the place of the leaf in there."""
        at = next(i for i, p in enumerate(self.parts) if p.definition is None and p.positions == (position,))
        numbered = jax.tree_util.tree_unflatten(self.tree, range(len(self.parts)))
        path = tuple(map(plain_key, jax.tree_util.tree_flatten_with_path(numbered)[0][at][0]))
        return f"{where}, {format_path(path)}" if path else where

    def place(self, where: str, position: int) -> str:
        """What to call a leaf of the graph in errors: the target, and the path of the leaf in there."""
        for part in self.parts:
            if part.definition is not None and position in part.positions:
                path = part.definition.paths[part.positions.index(position)]
                return f"{where}, {format_path(path)}" if path else where
        return where


def _of_root(definition: StateDef, leaves: list[Any]) -> Any:
    """A State; for a root that is a Variable itself, a Variable of its kind."""
    if definition.paths == ((),) and definition.leaf_defs[0] is not None:
        kind, metadata = definition.leaf_defs[0]
        return new_variable(kind, leaves[0], metadata, current_trace())
    return make_state(definition, leaves)


def _slopes_of_root(definition: StateDef, given: Any, where: str) -> Sequence[Any]:
    """What is given for each leaf of a root; None where nothing is."""
    if given is None:
        return [None] * len(definition.paths)
    if isinstance(given, State):
        found, leaves = given.definition, given.leaves
        for path in found.paths:
            if definition.position(path) is None:
                expected = ", ".join(map(format_path, definition.paths)) or "nothing"
                problem = "there is a value for a leaf that is not differentiated"
                raise TransformError(f"{where}, {format_path(path)}", problem, expected=expected)
    elif is_root(given):
        binding = bind(given)
        found, leaves = binding.graphdef.definition, binding.read()
    elif definition.paths == ((),):
        return [given]
    else:
        expected = "a State with its paths, or a model of its kind"
        raise TransformError(where, "this is nothing for a model", expected=expected, got=describe(given))
    if found is definition:
        return leaves
    at = map(found.position, definition.paths)
    return [None if i is None else leaves[i] for i in at]


class Arguments:
    """Where the leaves of the arguments are among those of a call."""

    def __init__(self, call: Call, args: tuple[Any, ...], function: Callable[..., Any]) -> None:
        self._call = call
        self._args = args
        self._function = function
        self._where: dict[Any, int] | None = None

    def __len__(self) -> int:
        return len(self._args)

    def name(self, number: int) -> str:
        """What to call an argument in errors."""
        return argument_name(self._function, number)

    def target(self, number: int, chosen: Filter = ...) -> Target:
        """An argument, with the leaves of its models that a filter takes and all others.

        Raises:
          TransformError: there is no such argument.
        """
        count = len(self._args)
        if not -count <= number < count:
            named = ", ".join(parameters(self._function) or ())
            raise TransformError(
                "argnums",
                f"there is no positional argument {number}",
                expected=f"a position below {count}: the call has {count} arguments by position",
                got=f"{number}, of a function of ({named})",
                fix="pass what is differentiated by position",
            )
        number %= count
        before = len(flatten(self._args[:number])[0])
        leaves, tree = flatten(self._args[number])
        pattern = self._call.structure.is_root
        rank = before - sum(pattern[:before])
        parts: list[Part] = []
        for leaf, is_one in zip(leaves, pattern[before:], strict=False):
            if is_one:
                parts.append(self._part(leaf, chosen))
            else:
                parts.append(Part(None, (rank,)))
                rank += 1
        return Target(tree, tuple(parts))

    def differentiated(self, number: int, chosen: Filter) -> Target:
        """As `target`, where there has to be something to differentiate.

        Raises:
          TransformError: there is nothing.
        """
        target = self.target(number, chosen)
        if not any(part.positions for part in target.parts):
            raise TransformError(
                self.name(number % len(self)),
                "there is nothing to differentiate with respect to",
                got=describe(self._args[number]),
                why=f"the filter {as_written(chosen)} takes no leaf",
                fix=f"argnums=dx.DiffState({number}, ...)        # a filter that takes some, or another argument",
            )
        return target

    def _part(self, root: Any, chosen: Filter) -> Part:
        """A root's leaves; what it shares with another argument is one leaf of the call."""
        own = bind(root)
        ((definition, positions),), _ = own.graphdef.definition.group((chosen,), own.read())
        if sum(self._call.structure.is_root) == 1:
            return Part(definition, positions)
        if self._where is None:
            assert self._call.binding is not None  # there is a root
            self._where = {identity: i for i, identity in enumerate(self._call.binding.identities())}
        known = own.identities()
        return Part(definition, tuple(self._where[known[i]] for i in positions))


def argument_name(function: Callable[..., Any], number: int) -> str:
    """What to call an argument in errors: its number, and its name where it has one."""
    named = list(parameters(function) or ())
    return f"argument {number}" + (f", {named[number]}" if number < len(named) else "")


# ================================================================= results


def target_of_result(outcome: Outcome, is_pair: bool = False) -> Target:
    """What a function returned, as a target; of a pair, its first.

    Where models are returned, positions are those in the graph of the plan's change.

    Raises:
      TransformError: a pair is asked for, and there is none.
    """
    plan = outcome.plan
    tree: Any
    if plan.change is None:
        tree = jax.tree_util.tree_structure(outcome.output)
        parts = [Part(None, (i,)) for i in range(tree.num_leaves)]
    else:
        tree, parts = plan.tree, _parts_of_change(outcome)
    if not is_pair:
        return Target(tree, tuple(parts))
    check_pair(tree)
    first = tree.children()[0]
    return Target(first, tuple(parts[: first.num_leaves]))


def check_pair(tree: Any) -> None:
    """Checks that what a function with an auxiliary result returned is a pair.

    Raises:
      TransformError: it is none.
    """
    data = tree.node_data()
    if data is None or not issubclass(data[0], tuple) or len(tree.children()) != 2:
        raise TransformError(
            "has_aux",
            "the function returns no pair",
            expected="(result, auxiliary result)",
            got=_text_of_tree(tree),
            fix="return loss, metrics        # or has_aux=False",
        )


def _text_of_tree(tree: Any) -> str:
    text = repr(tree).removeprefix("PyTreeDef(").removesuffix(")")
    return text if len(text) < 80 else f"{text[:77]}..."


def _parts_of_change(outcome: Outcome) -> list[Part]:
    """The leaves of a result that holds models.

    What stands at the leaf of a model built of positions is the position, from
    wherever the leaf is reached.
    """
    change = outcome.plan.change
    assert change is not None  # the caller knows
    slots = build_slots(change.graphdef, list(map(np.asarray, range(change.graphdef.num_leaves))))
    returned = iter(slots[program_of(change.graphdef).root][1])
    parts: list[Part] = []
    for is_one in outcome.plan.is_root:
        if not is_one:
            parts.append(Part(None, (sum(part.definition is None for part in parts),)))
            continue
        binding = bind(next(returned))
        parts.append(Part(binding.graphdef.definition, tuple(map(int, binding.read()))))
    return parts


def result_leaves(outcome: Outcome, values: Sequence[Any], target: Target) -> tuple[Slopes, Slopes]:
    """The values of a result's leaves: those of models, and the plain ones.

    Args:
      outcome: of the function.
      values: of the graph's leaves that went in.
      target: of the result.
    """
    change = outcome.plan.change
    plain = jax.tree_util.tree_leaves(outcome.output) if change is None else outcome.output
    of_models: list[Any] = []
    if change is not None:
        new = iter(outcome.new)
        of_models = [next(new) if i < 0 else values[i] for i in change.kept]
    return {i: of_models[i] for i in target.values}, {i: plain[i] for i in target.plain}


# ================================================================= slopes


def with_leaves(leaves: Sequence[Any], others: Mapping[int, Any]) -> list[Any]:
    """Leaves with others in the place of some."""
    found = list(leaves)
    for position, leaf in others.items():
        found[position] = leaf
    return found


def add_slopes(found: Iterable[tuple[int, Any]], to: Slopes) -> Slopes:
    """Adds what is found for leaves to what there is."""
    for position, slope in found:
        to[position] = jax.tree_util.tree_map(_sum, to[position], slope) if position in to else slope
    return to


def _sum(one: Any, other: Any) -> Any:
    return one + other if _is_inexact(one) else one


def is_differentiable(value: Any) -> bool:
    """Whether a leaf, or some array in one that is a container, has real or complex numbers."""
    return any(map(_is_inexact, jax.tree_util.tree_leaves(value)))


def _is_inexact(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return isinstance(leaf, (float, complex)) if dtype is None else jnp.issubdtype(dtype, jnp.inexact)


def zeros_for(value: Any) -> Any:
    """The zero slope of a leaf; of integers and keys, that of JAX, which has no numbers."""

    def zero(leaf: Any) -> Any:
        if _is_inexact(leaf):
            return jnp.zeros(leaf.shape, leaf.dtype)
        return np.zeros(leaf.shape, jax.dtypes.float0)

    return jax.tree_util.tree_map(zero, value)


def shape_of(value: Any) -> Any:
    """The shapes and dtypes of a leaf."""
    return jax.tree_util.tree_map(_shape_of_array, value)


def _shape_of_array(array: Any) -> Any:
    try:
        found: Any = jax.typeof(array)
    except TypeError:  # no array
        return describe(array)
    return jax.ShapeDtypeStruct(found.shape, found.dtype)  # type: ignore[no-untyped-call]  # of jax, without types


def fitted(slope: Any, value: Any, where: str) -> Any:
    """A slope of a leaf as JAX wants it: of the leaf's shape and dtype, and empty for integers and keys.

    Args:
      slope: what a user gives.
      value: the leaf, or its `shape_of`.
      where: what to call it in errors.

    Raises:
      TransformError: it has not that shape.
    """
    tree: Any
    leaves, tree = jax.tree_util.tree_flatten(value)
    given = jax.tree_util.tree_leaves(slope)
    if tree == jax.tree_util.tree_structure(slope):
        pairs = list(zip(given, leaves, strict=True))
        if all(_shape_of_array(new) == _shape_of_array(old) for new, old in pairs if _is_inexact(old)):
            fit = [new if _is_inexact(old) else zeros_for(_shape_of_array(old)) for new, old in pairs]
            return jax.tree_util.tree_unflatten(tree, fit)
    problem = "this has not the shape and dtype of what it belongs to"
    fix = "jnp.ones_like(value)        # has the shape and dtype of the array that it belongs to"
    raise TransformError(where, problem, expected=_text_of(shape_of(value)), got=_text_of(shape_of(slope)), fix=fix)


def _text_of(shape: Any) -> str:
    return f"{shape.shape} {shape.dtype}" if isinstance(shape, jax.ShapeDtypeStruct) else str(shape)
