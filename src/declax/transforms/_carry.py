"""The carry of `scan`, `while_loop` and `fori_loop`: the leaves that the function of a step sets or returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from declax._graph.differences import Differing, first_differing, paths_of_objects
from declax._graph.flattening import GraphDef, walk
from declax._graph.unflattening import StructureChange, blueprint_of, build_slots
from declax._variables.variable import Variable
from declax.errors import TransformError
from declax.transforms._engine.lift import Outcome, leaf_origins
from declax.transforms._engine.prefixes import CAPTURED, Carry, Labels, kind_and_filter
from declax.transforms._engine.structure import Mode, Structure, joined, name_path, names_of_call, paths_in
from declax.transforms._engine.tracing import (
    TracedFunction,
    concluded,
    differing_leaf,
    kept_leaves,
    new_values,
    text_of_tree,
    text_of_value,
    type_of,
    types_of,
    values_at,
)


class ErrorContext(NamedTuple):
    """The names that errors of a loop or branch use: of the transform, of its function and of each argument."""

    transform: str
    function: str
    structure: Structure
    argument: Callable[[int], str]
    mode: Mode = Mode()

    def of_path(self, path: Sequence[Any]) -> str:
        """The name of a place in the graph of the call."""
        return f"{self.transform}, {name_path(self.structure, path, self.argument)}"

    def of_leaf(self, position: int) -> str:
        """The name of a leaf of the call."""
        return f"{self.transform}, {names_of_call(self.structure, self.argument)[position]}"

    def changed(self, where: str, fix: str, expected: str | None = None, got: str | None = None) -> TransformError:
        """The error for a carry that changes its structure or type."""
        return TransformError(
            where,
            f"{self.function} changes the structure or type of this",
            expected=expected,
            got=got,
            why="all steps run one program, so a carried value keeps its structure and type",
            fix=fix,
        )


class CarrySlots(NamedTuple):
    """The carry: leaves of the call, and the places of their next values; and the axes of what is stacked, by place."""

    structure: Structure
    leaves: tuple[int, ...]
    places: tuple[int, ...]
    stacked: dict[int, int]

    def put(self, carried: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        """All leaves of a step, from the carried values and the constant ones."""
        full = list(leaves)
        for position, value in zip(self.leaves, carried, strict=True):
            full[position] = value
        return full

    def next_values(self, outcome: Outcome, leaves: Sequence[Any]) -> list[Any]:
        """The carried values after a step, from its outcome and the leaves before it."""
        return values_at(self.structure, self.places, outcome, leaves)

    def conclude(self, outcome: Outcome, last: Sequence[Any], others: Mapping[int, Any] | None = None) -> Outcome:
        """The outcome of a loop, from the carried values after it and the others, by place."""
        return concluded(self.structure, outcome, {**dict(zip(self.places, last, strict=True)), **(others or {})})


def trace_until_stable(
    function: Callable[..., Outcome],
    leaves: Sequence[Any],
    analyse: Callable[[Outcome], CarrySlots],
    context: ErrorContext,
) -> tuple[TracedFunction, CarrySlots, list[Any]]:
    """Traces a function until a step keeps the types of its carry; returns leaves of these types.

    As in JAX, a first value of weak type takes the dtype of its next value, and the function is traced again.
    """
    given = list(leaves)
    while True:
        traced = TracedFunction(function, given)
        step = analyse(traced.outcome)
        is_stable = True
        for position, result in zip(step.leaves, step.next_values(traced.outcome, given), strict=True):
            if types_of(given[position]) != types_of(result):
                given[position] = _promoted(given[position], result, context.of_leaf(position), context)
                is_stable = False
        if is_stable:
            return traced, step, given


def _promoted(value: Any, new: Any, where: str, context: ErrorContext) -> Any:
    """A first value of weak type, converted to the dtype of the step."""
    tree: Any
    leaves, tree = jax.tree_util.tree_flatten(value)
    results, tree_of_results = jax.tree_util.tree_flatten(new)
    if tree != tree_of_results or not all(map(_is_promotable, leaves, results)):
        raise context.changed(
            where,
            f"start with a value of type {text_of_value(new)}, or convert the result: value.astype(...)",
            expected=f"{text_of_value(value)}, as before the step",
            got=text_of_value(new),
        )
    dtypes = [type_of(result)[1] for result in results]
    made = [
        leaf if type_of(leaf)[1] == dtype else jax.lax.convert_element_type(leaf, dtype)
        for leaf, dtype in zip(leaves, dtypes, strict=True)
    ]
    return jax.tree_util.tree_unflatten(tree, made)


def _is_promotable(leaf: Any, new: Any) -> bool:
    shape, dtype, is_weak = type_of(leaf)
    new_shape, new_dtype, _ = type_of(new)
    return shape == new_shape and (dtype == new_dtype or (is_weak and jnp.result_type(leaf, new_dtype) == new_dtype))


class Subtree(NamedTuple):
    """A part of the arguments or of the output; `is_root` says of each leaf of the whole whether it is a root."""

    tree: Any
    leaves: Sequence[int]
    is_root: Sequence[bool]
    name: str

    def pairs(self, returned: Subtree, context: ErrorContext) -> Iterator[tuple[int, int]]:
        """The leaves of this part of the arguments, with those of the result that replaces it."""
        roots = [self.is_root[i] for i in self.leaves]
        roots_returned = [returned.is_root[i] for i in returned.leaves]
        if self.tree == returned.tree and roots == roots_returned:
            yield from zip(self.leaves, returned.leaves, strict=True)
            return
        path = differing_leaf(self.tree, returned.tree)
        if self.tree == returned.tree:
            differ = [one != other for one, other in zip(roots, roots_returned, strict=True)]
            path = list(paths_in(self.tree)[differ.index(True)])
        raise context.changed(
            f"{context.transform}, {joined(self.name, path)}",
            f"return a value with the structure of {self.name}",
            expected=text_of_tree(self.tree, roots),
            got=text_of_tree(returned.tree, roots_returned),
        )


def step_of(
    outcome: Outcome,
    pairs: Sequence[tuple[int, int]],
    is_root_returned: Sequence[bool],
    context: ErrorContext,
    labels: Labels | None = None,
) -> CarrySlots:
    """The carry of a function, and the new values that are stacked.

    The pairs are leaves of the arguments with those of the result that replace them. Without labels, all is carried.
    """
    is_root, change = context.structure.is_root, outcome.plan.change
    new: dict[int, Any] = dict.fromkeys(new_values(outcome.plan), Carry)
    origins: dict[int, int] = {place: place for place in new}
    places: dict[int, int] = {}
    if labels is not None:
        new = dict(zip(new, outcome.plan.labels, strict=False))  # behind them are those of the output
    if change is not None:
        roots = {sum(is_root[:a]): sum(is_root_returned[:b]) for a, b in pairs if is_root[a]}
        places = _places_of_new(change, roots, labels, context)
        origins = _origins(change, labels, context, places)
    replaced = set(places.values())
    stacked: dict[int, int] = {}
    for place in sorted((new.keys() | origins.keys()) - replaced):
        leaf = origins.get(place)
        if place in new and has_step_axis(new[place]):
            stacked[place] = new[place]
        elif leaf is not None:  # a label of None too: the next step sees the new value
            if leaf in places:
                raise _is_set_and_replaced(leaf, context)
            places[leaf] = place
        else:
            raise _cannot_set(outcome, place, new[place], context)
    ends = len(kept_leaves(context.structure, outcome.plan))
    for a, b in pairs:
        if not is_root[a]:
            places[context.structure.num_leaves + a - sum(is_root[:a])] = ends + b - sum(is_root_returned[:b])
    return CarrySlots(context.structure, tuple(places), tuple(places.values()), stacked)


def has_step_axis(axis: Any) -> bool:
    """Whether each step has its own slice of a leaf with this label."""
    return axis is not None and axis is not Carry


def _origins(
    change: StructureChange, labels: Labels | None, context: ErrorContext, replaced: Mapping[int, int]
) -> dict[int, int]:
    """The leaves that a function sets, or that get the value of another leaf, by place."""
    found = leaf_origins(context.structure, change)
    count = context.structure.graphdef.num_leaves
    labels_of_leaves = [Carry] * count if labels is None else labels.leaves[:count]
    carried = {i for i, label in enumerate(labels_of_leaves) if not has_step_axis(label)}
    kept = {i for i in carried if labels_of_leaves[i] is Carry}
    for leaf in kept.difference(found.values(), replaced):
        raise context.changed(context.of_leaf(leaf), "remove it after the loop, for example by dx.pop")
    return {
        place: leaf
        for place, leaf in found.items()
        if change.kept[place] == -1 or (leaf in carried and change.kept[place] != leaf)
    }


def _places_of_new(
    change: StructureChange, roots: Mapping[int, int], labels: Labels | None, context: ErrorContext
) -> dict[int, int]:
    """The leaves whose root or Variable the function replaces, with the places of their next values."""
    structure = context.structure
    whole = [rank for rank in range(sum(structure.is_root)) if labels is None or _is_whole(labels.of_roots[rank])]
    before, objects = _built(structure.graphdef)
    (after, returned), objects_after = _built(change.graphdef)
    pairs = zip(objects_after, change.origins, strict=True)
    origin_of = {id(made): objects[origin] for made, origin in pairs if origin >= 0}
    new = {a: returned[b] for a, b in roots.items() if origin_of.get(id(returned[b])) is not before[a]}
    walked = walk(tuple(before[rank] for rank in whole))
    places: dict[int, int] = {}
    for replaced in ({}, new):  # the roots that were handed in, then those that come next
        next_roots = dict(enumerate(after)) | replaced
        found = walk(tuple(next_roots[rank] for rank in whole))
        differs = first_differing(walked.graphdef, found.graphdef)
        if walked.graphdef is found.graphdef:
            pairs_of_objects = list(zip(walked.objects, found.objects, strict=True))
            is_same = [_is_kept(a, b, origin_of, replaced, context) for a, b in pairs_of_objects]
            if all(is_same):
                # the leaves whose Variable has another one in its place
                leaves = zip(walked.read(), found.read(), found.variables, strict=True)
                places |= {int(a): int(b) for a, b, made in leaves if made is not None and id(made) not in origin_of}
                continue
            differs = Differing(paths_of_objects(walked.graphdef)[is_same.index(False)])
        path: Any = differs.path
        fix = "create the Variable before the loop, set its value in the loop, and return the model that was passed in"
        raise context.changed(context.of_path((whole[path[0]], *path[1:])), **differs.details(fix))
    for rank, root in new.items():
        _check_replaced(before[rank], root, origin_of, context, rank)
    first = walk(tuple(before[rank] for rank in new)).read()
    return places | dict(zip(map(int, first), map(int, walk(tuple(new.values())).read()), strict=True))


def _is_kept(
    before: Any, after: Any, origin_of: Mapping[int, Any], replaced: Mapping[int, Any], context: ErrorContext
) -> bool:
    """Whether an object of the next step is that of this one, or a new one that may take its place."""
    origin = origin_of.get(id(after))
    if origin is None:
        # as in the peer, an attribute of a model may get another Variable of the same kind
        return bool(replaced) or (isinstance(after, Variable) and context.transform != "while_loop")
    return origin is before


def _check_replaced(before: Any, after: Any, origin_of: Mapping[int, Any], context: ErrorContext, rank: int) -> None:
    """Checks that a loop may return a new root: the peer's loops differ in the references that they keep."""
    walked, found = walk((before,)), walk((after,))
    if not any(variable is not None for variable in walked.variables):
        return  # nothing in it is a reference to anything of the caller
    if not context.mode.updates:
        pairs = zip(walked.variables, found.variables, strict=True)
        may_replace = all(a is None or origin_of.get(id(b)) is a for a, b in pairs)
    else:
        may_replace = context.transform == "fori_loop" or (context.transform == "scan" and isinstance(after, Variable))
    if not may_replace:
        kind = "Variable" if isinstance(after, Variable) else "model"
        raise TransformError(
            context.of_path((rank,)),
            f"{context.function} returns a new {kind} in place of this one",
            why="the loop updates the caller's objects, so each step returns the Variables that it received",
            fix="model.count[...] += 1; return model        # set values, and return the object itself",
        )


def _is_whole(spec: Any) -> bool:
    return spec is Carry or spec is None or spec is CAPTURED


def _built(graphdef: GraphDef[Any]) -> tuple[Any, list[Any]]:
    """The root and the objects of a graph whose leaves are their own positions."""
    slots = build_slots(graphdef, list(map(np.asarray, range(graphdef.num_leaves))))
    blueprint = blueprint_of(graphdef)
    return slots[blueprint.root], [slots[i] for i in blueprint.indexed]


def _is_set_and_replaced(leaf: int, context: ErrorContext) -> TransformError:
    return TransformError(
        context.of_leaf(leaf),
        f"{context.function} sets this, and returns a new model in place of the one that holds it",
        why="the next step receives the new model, so this change would be lost",
        fix="return the model itself, or do not change it",
    )


def _cannot_set(outcome: Outcome, place: int, label: Any, context: ErrorContext) -> TransformError:
    change = outcome.plan.change
    graphdef: Any = context.structure.graphdef if change is None else change.graphdef
    path, leaf_def = graphdef.definition.paths[place], graphdef.definition.leaf_defs[place]
    where = f"{context.transform}, the output"
    if change is None or path[0] == 0:
        where = context.of_path(path if change is None else path[1:])
    kind, filter_ = kind_and_filter(path, leaf_def)
    if label is Carry:
        fix = f"create it before the loop, or give it an axis: dx.StateAxes({{{filter_}: 0, ...: dx.Carry}})"
        return context.changed(where, fix)
    return TransformError(
        where,
        f"{context.function} creates this {kind}, whose axis is None",
        why="all steps share a leaf with the axis None, so it must exist before the first step",
        fix=f"in_axes=dx.StateAxes({{{filter_}: 0, ...: None}})        # each step has its own",
    )
