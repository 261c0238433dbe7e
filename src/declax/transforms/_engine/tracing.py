"""Lifted functions that are traced once, before the loop or branch in which they run.

JAX requires the carry of a loop before it traces the function, but only the trace shows which Variables are set. A
*place* is a leaf of an outcome: first come those of the graph in which its plan ends, which is the graph of the call or
of its `StructureChange`, and then those of the output.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, cast

import jax
import jax.core
import jax.numpy as jnp

from declax._graph.nodes import is_ref
from declax._jax import is_jit_disabled
from declax._variables.variable import Variable
from declax.errors import TransformError, describe
from declax.transforms._engine.commit import calls_back
from declax.transforms._engine.names import paths_in
from declax.transforms._engine.outcome import Outcome, Plan, leaf_origins
from declax.transforms._engine.structure import Structure


class TracedFunction:
    """A lifted function that was traced for leaves of some types; a call of it does what that trace says.

    The loop or branch around it sees only the leaves that it uses.

    Attributes:
      outcome: its results: shapes and dtypes, and the plan.
      refs: the array refs that it reads or writes: the number of a leaf, or the identity of what it closes over.
    """

    __slots__ = ("_function", "_program", "_tree", "_types", "calls_back", "outcome", "refs")

    def __init__(self, function: Callable[..., Outcome], leaves: Sequence[Any]) -> None:
        self.outcome: Outcome
        jaxpr, self.outcome = jax.make_jaxpr(function, return_shape=True)(*leaves)
        self.calls_back: bool = calls_back(jaxpr)
        self.refs: set[Hashable] = _refs_in(jaxpr) if jaxpr.effects else set()
        self._function = function
        self._program: Any = functools.partial(jax.core.eval_jaxpr, jaxpr.jaxpr, jaxpr.consts)
        self._types: list[Any] = jaxpr.in_avals
        self._tree: Any = jax.tree_util.tree_structure(self.outcome)

    def __call__(self, leaves: Sequence[Any]) -> Outcome:
        """The results for leaves of these types."""
        if is_jit_disabled():  # whoever sets this wants to see the user's function run
            return self._function(*leaves)
        made = self._program(*map(_as_array, jax.tree_util.tree_leaves(leaves), self._types))
        return cast("Outcome", jax.tree_util.tree_unflatten(self._tree, made))


def _refs_in(jaxpr: Any) -> set[Hashable]:
    names: dict[Any, Hashable] = {variable: number for number, variable in enumerate(jaxpr.jaxpr.invars)}
    closed_over = zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True)
    names |= {variable: ("closed over", id(ref)) for variable, ref in closed_over}
    kinds = ("ReadEffect", "WriteEffect", "AccumEffect")
    return {names[effect.input] for effect in jaxpr.effects if type(effect).__name__ in kinds}


def _as_array(leaf: Any, type_: Any) -> Any:
    """A leaf of the type for which a function was traced; numbers and arrays of NumPy may have others."""
    if isinstance(leaf, jax.Array) or is_ref(leaf) or not hasattr(type_, "dtype"):
        return leaf
    return jnp.asarray(leaf) if type_.weak_type else jnp.asarray(leaf, type_.dtype)


def new_values(plan: Plan) -> dict[int, int]:
    """The places that a plan gives new values, with their positions among these."""
    places = plan.changed if plan.change is None else [i for i, kept in enumerate(plan.change.kept) if kept < 0]
    return {place: position for position, place in enumerate(places)}


def written_leaves(structure: Structure, plan: Plan) -> dict[int, int]:
    """The leaves of a call that a plan gives new values, with their positions among these."""
    new = new_values(plan)
    if plan.change is None:
        return new
    origins = leaf_origins(structure, plan.change)
    return {origins[place]: position for place, position in new.items() if place in origins}


def kept_leaves(structure: Structure, plan: Plan) -> tuple[int, ...]:
    """For each place of the graph in which a plan ends the leaf of the call that is there; -1 for a new value."""
    if plan.change is not None:
        return plan.change.kept
    changed = set(plan.changed)
    return tuple([-1 if leaf in changed else leaf for leaf in range(structure.num_leaves)])


def values_at(structure: Structure, places: Sequence[int], outcome: Outcome, leaves: Sequence[Any]) -> list[Any]:
    """The values of an outcome at some places, from the leaves of the call."""
    new = iter(outcome.new)
    found = [next(new) if leaf < 0 else leaves[leaf] for leaf in kept_leaves(structure, outcome.plan)]
    found += jax.tree_util.tree_leaves(outcome.output)
    return [found[place] for place in places]


def output_tree(outcome: Outcome) -> tuple[Any, tuple[bool, ...]]:
    """The tree of the result of a function, with roots as leaves; and which leaves are roots."""
    if outcome.plan.change is not None:
        return outcome.plan.tree, outcome.plan.is_root
    tree: Any = jax.tree_util.tree_structure(outcome.output)
    return tree, (False,) * tree.num_leaves


# ----------------------------------------------------------------- types of leaves


def type_of(leaf: Any) -> tuple[tuple[int, ...], Any, bool]:
    """The shape, the dtype, and whether it is weak, of an array, a number or what stands for one."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        leaf = jax.typeof(leaf)
    return leaf.shape, leaf.dtype, bool(getattr(leaf, "weak_type", False))


def text_of_type(leaf: Any) -> str:
    """A type as errors show it."""
    shape, dtype, _ = type_of(leaf)
    return f"{dtype}[{','.join(map(str, shape))}]"


def types_of(value: Any) -> tuple[Any, list[Any]]:
    """The tree of a raw value, and the shapes and dtypes in it."""
    leaves, tree = jax.tree_util.tree_flatten(value)
    return tree, [type_of(leaf)[:2] for leaf in leaves]


def text_of_value(value: Any) -> str:
    """The types in a raw value as errors show them."""
    leaves, tree = jax.tree_util.tree_flatten(value)
    if jax.tree_util.treedef_is_leaf(tree):
        return text_of_type(leaves[0])
    return repr(jax.tree_util.tree_unflatten(tree, list(map(text_of_type, leaves)))).replace("'", "")


# ----------------------------------------------------------------- differences


def text_of_tree(tree: Any, is_root: Sequence[bool]) -> str:
    """A tree as errors show it."""
    text = repr(jax.tree_util.tree_unflatten(tree, ["model" if is_one else "*" for is_one in is_root]))
    return text.replace("'model'", "model").replace("'*'", "*")


def differing_leaf(tree: Any, other: Any) -> list[Any]:
    """The path of the first leaf that one tree has and the other lacks."""
    paths, others = paths_in(tree), paths_in(other)
    for path in paths:
        if path not in others:
            return list(path)
    return list(next((path for path in others if path not in paths), ()))


def check_scalar(where: str, value: Any, expected: str, *kinds: Any, fix: str) -> None:
    """Checks that a value is one number of some kind."""
    try:
        shape, dtype, _ = type_of(value.value if isinstance(value, Variable) else value)
    except TypeError:
        raise TransformError(where, "this is not an array", expected=expected, got=describe(value), fix=fix) from None
    if shape != ():
        problem = "this is an array of several, and one of them has to be chosen"
        raise TransformError(where, problem, expected=expected, got=text_of_type(value), fix=fix)
    if not any(jnp.issubdtype(dtype, kind) for kind in kinds):
        problem = f"this is not {expected}"
        raise TransformError(where, problem, expected=expected, got=text_of_type(value), fix=fix)
