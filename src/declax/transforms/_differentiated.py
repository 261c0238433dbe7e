"""The leaves that a transform differentiates, and their gradients, cotangents or tangents.

Users see these in the tree of the arguments or of the result, with a State for each model. The leaves of a call, and
those of a result, have one numbering: first those of the graph, then the plain ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from declax._filters import Filter
from declax._graph.binding import bind
from declax._graph.fit import DERIVATIVE, Difference, Fit, misfit
from declax._graph.nodes import is_ref
from declax._graph.unflattening import blueprint_of, build_slots
from declax._jax import current_trace
from declax._state.definition import StateDef, groups_of
from declax._state.states import State, make_state
from declax._typing import MISSING
from declax._variables.variable import new_variable
from declax.errors import TransformError, describe
from declax.transforms._engine.call import Call
from declax.transforms._engine.captures import Closure
from declax.transforms._engine.names import joined, name_roots, names_of_call, parameters, paths_in
from declax.transforms._engine.outcome import RESULTS, Outcome, Rebuilt, lifted
from declax.transforms._engine.structure import Mode, Structure, flatten, is_root, no_ref, tree_of_jax
from declax.transforms._engine.tracing import output_tree, text_of_value, type_of

Derivatives = dict[int, Any]
"""Gradients, cotangents or tangents, by the position of the leaf that they belong to."""


class LeafGroup(NamedTuple):
    """A root with the definition and the positions of its leaves; or, without a definition, a leaf in no model.

    `rank` counts the roots of the call.
    """

    definition: StateDef | None
    positions: tuple[int, ...]
    rank: int = -1

    def without_those_of_others(self, first: dict[int, int]) -> LeafGroup:
        """The same without the leaves of a root that another rank has; `first` has the first rank of each leaf."""
        if self.definition is None:
            return self
        pairs = enumerate(self.positions)
        kept = tuple([i for i, position in pairs if first.setdefault(position, self.rank) == self.rank])
        return LeafGroup(self.definition.select(kept), tuple([self.positions[i] for i in kept]), self.rank)


class DifferentiatedTree(NamedTuple):
    """An argument or a result, as a tree with roots as leaves, with its differentiated leaves."""

    tree: Any
    parts: tuple[LeafGroup, ...]

    @property
    def positions(self) -> list[int]:
        """The positions of its leaves."""
        return [position for part in self.parts for position in part.positions]

    def name(self, where: str, position: int) -> str:
        """The name of one of its leaves, from the name of the whole."""
        for path, (definition, positions, _) in zip(paths_in(self.tree), self.parts, strict=True):
            if position in positions:
                below = () if definition is None else definition.paths[positions.index(position)]
                return joined(where, (*path, *below))
        return where

    def unflatten(self, found: Mapping[int, Any]) -> Any:
        """The derivatives as users see them; None for a plain leaf that has none."""
        leaves = [
            found.get(positions[0]) if definition is None else _of_root(definition, [found[i] for i in positions])
            for definition, positions, _ in self.parts
        ]
        return jax.tree_util.tree_unflatten(self.tree, leaves)

    def flatten(
        self, given: Any, like: Sequence[Any] | Mapping[int, Any], where: str, wrong: list[Difference]
    ) -> list[tuple[int, Any]]:
        """The derivatives that a user passes, with their positions; several for a leaf that occurs twice.

        None means zeros, as does any value for a leaf that is not differentiable; zeros are left out. What does not
        fit goes to `wrong`.
        """
        found: list[tuple[int, Any]] = []
        if given is None:
            return found
        try:
            leaves = tree_of_jax(self.tree).flatten_up_to(given)
        except (ValueError, TypeError, KeyError):
            shape = jax.tree_util.tree_unflatten(self.tree, ["*"] * len(self.parts))
            wrong.append(Difference(where, repr(shape), describe(given)))
            return found
        for path, (definition, positions, _), leaf in zip(paths_in(self.tree), self.parts, leaves, strict=True):
            root = joined(where, path)
            derivatives = [leaf] if definition is None else _leaves_of_root(definition, leaf, root, wrong)
            for position, derivative in zip(positions, derivatives, strict=True):
                if derivative is None or not is_differentiable(like[position]):
                    continue
                fitted = _fitted(derivative, like[position])
                if fitted is not MISSING:
                    found.append((position, fitted))
                    continue
                name = self.name(where, position)
                wrong.append(Difference(name, text_of_value(like[position]), describe(derivative)))
        return found


def check_derivatives(wrong: Sequence[Difference]) -> None:
    """Raises one error with all derivatives that do not fit, if there are some."""
    if not wrong:
        return
    fix = "jax.tree.map(jnp.ones_like, value)        # has the shapes and dtypes of the value"
    where, expected, got = wrong[0]
    if len(wrong) == 1:
        raise TransformError(where, "this does not match its value", expected=expected, got=got, fix=fix)
    fit = Fit(mismatches=tuple(wrong))
    raise TransformError(where, f"derivatives do not match their values at {fit.count}", got=fit.listed, fix=fix)


def _of_root(definition: StateDef, leaves: list[Any]) -> Any:
    """A State; for a Variable, a Variable of its kind."""
    if definition.paths == ((),) and definition.leaf_defs[0] is not None:
        kind, metadata = definition.leaf_defs[0]
        return new_variable(kind, leaves[0], metadata, current_trace())
    return make_state(definition, leaves)


def _leaves_of_root(definition: StateDef, given: Any, where: str, wrong: list[Difference]) -> Sequence[Any]:
    """The given derivative of each leaf of a root, or None."""
    nothing = [None] * len(definition.paths)
    if given is None:
        return nothing
    if isinstance(given, State):
        found, leaves = given.definition, given.leaves
        for path, leaf in zip(found.paths, leaves, strict=True):
            if definition.position(path) is None:
                expected = "nothing: this leaf is not differentiated"
                wrong.append(Difference(joined(where, path), expected, describe(leaf)))
    elif is_root(given):
        binding = bind(given)
        found, leaves = binding.graphdef.definition, binding.read()
    elif definition.paths == ((),):
        return [given]
    else:
        wrong.append(Difference(where, "a State with the paths of the model, or a model of its kind", describe(given)))
        return nothing
    positions = map(found.position, definition.paths)
    return [None if i is None else leaves[i] for i in positions]


def _fitted(derivative: Any, like: Any) -> Any:
    """A derivative as JAX takes it, empty for integers and keys; MISSING if the shape or dtype differs."""
    tree: Any
    leaves, tree = jax.tree_util.tree_flatten(like)
    given, tree_of_given = jax.tree_util.tree_flatten(derivative)
    if tree_of_given != tree:
        return MISSING
    pairs = list(zip(given, leaves, strict=True))
    if any(_is_inexact(old) and misfit(old, new, DERIVATIVE) is not None for new, old in pairs):
        return MISSING
    return jax.tree_util.tree_unflatten(tree, [new if _is_inexact(old) else zeros_for(old) for new, old in pairs])


class ArgumentLeaves:
    """The positional arguments of a call, and the positions of their leaves in `leaves`."""

    def __init__(self, call: Call, args: tuple[Any, ...], function: Callable[..., Any]) -> None:
        self._call = call
        self._args = args
        self._function = function
        self._by_identity: dict[Any, int] = {}
        self.leaves: list[Any] = call.leaves

    def target(self, number: int, chosen: Filter = ...) -> DifferentiatedTree:
        """An argument, with its plain leaves and those of its models that a filter selects."""
        number = position_of("argnums", number, len(self._args), self._function)
        leaves, tree, _ = flatten(self._args[number])
        before = len(flatten(self._args[:number])[0])
        pattern = self._call.structure.is_root
        ranks = count(sum(pattern[:before]))
        positions = count(len(self._call.values) + before - sum(pattern[:before]))
        parts = [
            self._part(leaf, chosen, next(ranks)) if is_one else LeafGroup(None, (next(positions),))
            for leaf, is_one in zip(leaves, pattern[before:], strict=False)
        ]
        return DifferentiatedTree(tree, tuple(parts))

    def _part(self, root: Any, chosen: Filter, rank: int) -> LeafGroup:
        """A root's leaves; a leaf that two arguments share is one leaf of the call."""
        own = bind(root)
        ((definition, positions),) = groups_of(own.graphdef.definition, own.read(), (chosen,), "", is_exhaustive=False)
        if sum(self._call.structure.is_root) == 1:
            return LeafGroup(definition, positions, rank)
        if not self._by_identity:
            self._by_identity = {identity: i for i, identity in enumerate(self._call.binding.identities())}
        known = own.identities()
        return LeafGroup(definition, tuple(self._by_identity[known[i]] for i in positions), rank)

    def check_aliasing(self, targets: Sequence[DifferentiatedTree]) -> None:
        """Refuses a Variable that is differentiated in one argument, and not in another."""
        structure = self._call.structure
        if not blueprint_of(structure.graphdef).references:
            return
        chosen: dict[int, set[int]] = {}
        for part in chain.from_iterable(target.parts for target in targets):
            chosen.setdefault(part.rank, set()).update(part.positions)
        differentiated = set().union(*chosen.values())
        passed = len(structure.is_root) - structure.tree.children()[2].num_leaves  # captured ones follow
        for rank, root in enumerate(self._call.roots[: sum(structure.is_root[:passed])]):
            definition, positions, _ = self._part(root, ..., rank)
            assert definition is not None  # it is a root
            for path, leaf_def, position in zip(definition.paths, definition.leaf_defs, positions, strict=True):
                if leaf_def is None or position not in differentiated or position in chosen.get(rank, ()):
                    continue
                raise TransformError(
                    joined(name_roots(structure)[rank], path),
                    "this Variable is differentiated in another argument, and not here",
                    got=f"the same Variable as {names_of_call(structure)[position]}",
                    why="its gradient would cover only one of its uses",
                    fix="dx.clone(...)        # in one of the two places, or differentiate both",
                )

    def check_differentiable(self, positions: Iterable[int], *, allow_int: bool) -> None:
        """Refuses array refs and, without `allow_int`, leaves that are not differentiable."""
        for position in positions:
            leaf = self.leaves[position]
            if not is_ref(leaf) and (allow_int or is_differentiable(leaf)):
                continue
            name = names_of_call(self._call.structure)[position]
            if is_ref(leaf):
                raise no_ref(name, "this is an array ref, which has no gradient")
            problem = "this is not a real or complex number, so it has no gradient"
            fix = "argnums=dx.DiffState(0, filter)        # one that does not match it; or allow_int=True"
            raise TransformError(name, problem, got=describe(leaf), fix=fix)


def arguments_of(structure: Structure, found: Mapping[int, Any]) -> tuple[Any, ...]:
    """The positional arguments of a call with derivatives in place of their leaves: objects of the same classes."""
    leaves = [found.get(i) for i in range(structure.num_leaves + structure.is_root.count(False))]
    args: tuple[Any, ...] = Rebuilt(structure, leaves).args
    return args


def each_leaf_once(targets: Iterable[DifferentiatedTree]) -> list[DifferentiatedTree]:
    """The targets, each leaf of a root only in the first place that reaches it."""
    first: dict[int, int] = {}
    found = []
    for target in targets:
        parts = [part.without_those_of_others(first) for part in target.parts]
        found.append(DifferentiatedTree(target.tree, tuple(parts)))
    return found


def position_of(option: str, number: int, length: int, function: Callable[..., Any]) -> int:
    """The position of an argnum among the arguments of a call; it may count from the end."""
    if -length <= number < length:
        return number % length
    named = ", ".join(parameters(function) or ())
    raise TransformError(
        option,
        f"there is no positional argument {number}",
        expected=f"a position below {length}: the call has {length} arguments by position",
        got=f"{number}, of a function of ({named})",
        fix="pass the differentiated argument by position",
    )


def by_position(
    known: Mapping[str, inspect.Parameter] | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """All arguments by position, with defaults, if the parameters are known; and those that are given by name only."""
    if known is None:
        return args, kwargs
    filled = inspect.Signature(list(known.values())).bind(*args, **kwargs)
    filled.apply_defaults()
    return filled.args, {name: value for name, value in filled.kwargs.items() if name in kwargs}


def on_leaves(call: Call, closure: Closure, mode: Mode) -> Callable[[Derivatives], tuple[Outcome, list[Any]]]:
    """A function of some leaves of a call, by position, to its outcome and the leaves of its result."""
    function = lifted(closure, call.structure, mode)

    def run(some: Derivatives) -> tuple[Outcome, list[Any]]:
        leaves = call.leaves
        for position, leaf in some.items():
            leaves[position] = leaf
        outcome = function(*leaves)
        return outcome, result_leaves(outcome, leaves)

    return run


def target_of_result(outcome: Outcome, *, has_aux: bool = False) -> DifferentiatedTree:
    """The result, or the first of it with `has_aux`; its leaves are those of `result_leaves`."""
    tree, is_root_at = output_tree(outcome)
    change = outcome.plan.change
    most = tree.num_leaves + (0 if change is None else change.graphdef.num_leaves)
    # At the leaves of a result that is built of positions are the positions, wherever the leaf is reached.
    built = result_of(outcome, dict(enumerate(map(np.asarray, range(most)))))
    parts: list[LeafGroup] = []
    for is_one, part in zip(is_root_at, tree.flatten_up_to(built), strict=True):
        binding = bind(part) if is_one else None
        definition, leaves = (None, [part]) if binding is None else (binding.graphdef.definition, binding.read())
        parts.append(LeafGroup(definition, tuple(map(int, leaves))))
    if not has_aux:
        return DifferentiatedTree(tree, tuple(parts))
    data = tree.node_data()
    if data is None or not issubclass(data[0], tuple) or len(tree.children()) != 2:
        raise TransformError(
            "has_aux",
            "the function does not return a pair",
            expected="(result, auxiliary result)",
            got=repr(tree).removeprefix("PyTreeDef(").removesuffix(")")[:80],
            fix="return loss, metrics        # or has_aux=False",
        )
    first = tree.children()[0]
    return DifferentiatedTree(first, tuple(parts[: first.num_leaves]))


def result_leaves(outcome: Outcome, leaves: Sequence[Any] | Mapping[int, Any]) -> list[Any]:
    """The leaves of a result, those of models first, from the leaves of the call."""
    change = outcome.plan.change
    if change is None:
        return jax.tree_util.tree_leaves(outcome.output)
    new = iter(outcome.new)
    return [*(next(new) if i < 0 else leaves[i] for i in change.kept), *outcome.output]


def result_of(outcome: Outcome, found: Mapping[int, Any]) -> Any:
    """The result with derivatives in place of its leaves: objects of the same classes."""
    tree, is_root_at = output_tree(outcome)
    change, start = outcome.plan.change, 0
    returned: Iterator[Any] = iter(())
    if change is not None:
        start = change.graphdef.num_leaves
        slots = build_slots(change.graphdef, [found.get(i) for i in range(start)])
        returned = iter(slots[blueprint_of(change.graphdef).root][RESULTS])
    plain = count(start)
    leaves = [next(returned) if is_one else found.get(next(plain)) for is_one in is_root_at]
    return jax.tree_util.tree_unflatten(tree, leaves)


def add_derivatives(found: Iterable[tuple[int, Any]], to: Derivatives) -> Derivatives:
    """Adds derivatives, possibly several for a leaf, to existing ones."""

    def add(one: Any, other: Any) -> Any:
        return one + other if _is_inexact(one) else one

    for position, derivative in found:
        to[position] = jax.tree_util.tree_map(add, to[position], derivative) if position in to else derivative
    return to


def is_differentiable(value: Any) -> bool:
    """Whether a leaf, or an array inside of it, has real or complex numbers."""
    return any(map(_is_inexact, jax.tree_util.tree_leaves(value)))


def _is_inexact(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return isinstance(leaf, (float, complex)) if dtype is None else jnp.issubdtype(dtype, jnp.inexact)


def zeros_for(value: Any) -> Any:
    """The zero derivative of a leaf; of integers and keys, the empty one of JAX."""

    def zero(leaf: Any) -> Any:
        if _is_inexact(leaf):
            return jnp.zeros(leaf.shape, leaf.dtype)
        return np.zeros(np.shape(leaf), jax.dtypes.float0)

    return jax.tree_util.tree_map(zero, value)


def shape_of(value: Any) -> Any:
    """The shapes and dtypes of a leaf."""

    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(*type_of(leaf)[:2])  # type: ignore[no-untyped-call]  # of jax, without types

    return jax.tree_util.tree_map(shape, value)
