"""What the functions of a loop or choice compute, and in what they have to agree.

`scan`, `while_loop`, `fori_loop`, `cond` and `switch` trace their functions first. `Slots` are the values that the
program then computes; all other leaves of the call are constants of it. The steps of a loop keep the structure and
types of what they carry: `Steps` compares what a step gives with what it has received. The branches of a choice give
the same structure and types: `agreed` compares each with the first. `ErrorContext` words what differs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import eq, itemgetter, ne
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from declax._graph.differences import first_differing, paths_of_objects
from declax._graph.flattening import GraphDef, walk
from declax._graph.nodes import plain_key
from declax._graph.unflattening import StructureChange, blueprint_of, build_slots
from declax._jax import varying_axes
from declax._variables.variable import Variable
from declax.errors import TransformError
from declax.transforms._engine.captures import Closure
from declax.transforms._engine.diagnostics import named
from declax.transforms._engine.names import joined, name_path, names_of_call, paths_in
from declax.transforms._engine.outcome import (
    ARGUMENTS,
    RESULTS,
    TAKEN_OUT,
    Outcome,
    Plan,
    leaf_origins,
    leaf_paths,
    lifted,
)
from declax.transforms._engine.prefixes import (
    CAPTURED,
    Carry,
    Labels,
    Prefixes,
    is_spec,
    is_step_axis,
    kind_and_filter,
    positioned,
)
from declax.transforms._engine.structure import Mode, Structure
from declax.transforms._engine.tracing import (
    TracedFunction,
    differing_leaf,
    kept_leaves,
    new_values,
    output_tree,
    text_of_tree,
    text_of_value,
    type_of,
    types_of,
    values_at,
)


class ErrorContext(NamedTuple):
    """The names that errors of a loop or choice use: of the transform, of its function and of each argument.

    `branch` is the name of the branch that is compared with the function; None in a loop.
    """

    transform: str
    function: str
    structure: Structure
    argument: Callable[[int], str]
    mode: Mode = Mode()
    branch: str | None = None

    def of_path(self, path: Sequence[Any]) -> str:
        """The name of a place in the graph of the call."""
        return f"{self.transform}, {name_path(self.structure, path, self.argument)}"

    def of_leaf(self, position: int) -> str:
        """The name of a leaf of the call."""
        return f"{self.transform}, {names_of_call(self.structure, self.argument)[position]}"

    def of_change(self, path: Sequence[Any]) -> str:
        """The name of a place in the graph of a `StructureChange`."""
        if path[:1] == (RESULTS,) or len(path) < 2:
            return f"{self.transform}, the output"
        return self.of_path(path[1:]) if path[0] == ARGUMENTS else f"{self.transform}, an object that it takes out"

    def of_place(self, outcome: Outcome, place: int) -> str:
        """The name of a place of an outcome."""
        change, count = outcome.plan.change, len(kept_leaves(self.structure, outcome.plan))
        if place >= count:
            tree, is_root = output_tree(outcome)
            plain = [path for path, is_one in zip(paths_in(tree), is_root, strict=True) if not is_one]
            return f"{self.transform}, {joined('the output', plain[place - count])}"
        return self.of_leaf(place) if change is None else self.of_change(leaf_paths(self.structure, change)[place])

    def changed(self, where: str, fix: str, expected: str | None = None, got: str | None = None) -> TransformError:
        """The error for a structure or type that a step does not keep, or in which branches differ."""
        if self.branch is None:
            problem = f"{self.function} changes the structure or type of this"
            why = "all steps run one program, so a carried value keeps its structure and type"
        else:
            problem = f"{self.branch} differs from {self.function} in structure or type"
            why = "the program chooses a branch when it runs, so all branches return one structure and type"
        return TransformError(where, problem, expected=expected, got=got, why=why, fix=fix)


def functions_of(
    closure: Closure, structure: Structure, mode: Mode, labels: Labels | None = None
) -> list[Callable[..., Outcome]]:
    """The functions of a loop or choice, which one closure holds, as functions of the leaves of a call."""
    return [
        named(lifted(closure, structure, mode, labels, itemgetter(number)), user, structure)
        for number, user in enumerate(closure.function)
    ]


class Slots(NamedTuple):
    """What a loop or choice computes: places of an outcome, and in a loop the leaves of the call that they replace.

    All other leaves are constants. `stacked` are the places, with their axes, of which each step has its own value.
    """

    structure: Structure
    places: tuple[int, ...]
    leaves: tuple[int, ...] = ()
    stacked: dict[int, int] = {}  # noqa: RUF012  # never changed

    def put(self, carried: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        """All leaves of a step, from the carried values and the constant ones."""
        full = list(leaves)
        for position, value in zip(self.leaves, carried, strict=True):
            full[position] = value
        return full

    def read(self, outcome: Outcome, leaves: Sequence[Any]) -> list[Any]:
        """The values at the places, from an outcome and the leaves before it."""
        return values_at(self.structure, self.places, outcome, leaves)

    def conclude(self, outcome: Outcome, found: Sequence[Any], stacked: Iterable[Any] = ()) -> Outcome:
        """The outcome of the loop or choice, from its values at the places, and the stacked ones."""
        plan, count = outcome.plan, len(kept_leaves(self.structure, outcome.plan))
        by_place = dict(zip(self.places, found, strict=True)) | dict(zip(self.stacked, stacked, strict=True))
        values = {place: by_place[place] for place in sorted(by_place)}
        new = {place: value for place, value in values.items() if place < count}
        plain = [value for place, value in values.items() if place >= count]
        if plan.change is None:
            tree, _ = output_tree(outcome)
            return Outcome(Plan(tuple(new)), tuple(new.values()), tree.unflatten(plain))
        kept = tuple(-1 if place in new else source for place, source in enumerate(plan.change.kept))
        change = plan.change._replace(kept=kept)
        return Outcome(Plan((), change, plan.tree, plan.is_root), tuple(new.values()), plain)


# ----------------------------------------------------------------- types


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


def _missing_axes(value: Any, new: Any) -> list[frozenset[Any]]:
    """For each array, the axes of a `shard_map` along which only its next value varies."""
    pairs = zip(jax.tree_util.tree_leaves(value), jax.tree_util.tree_leaves(new), strict=True)
    return [varying_axes(result) - varying_axes(leaf) for leaf, result in pairs]


def _varying_as(value: Any, new: Any) -> Any:
    """A first value that varies along the axes of the next one, too."""
    leaves, tree = jax.tree_util.tree_flatten(value)
    pairs = zip(leaves, _missing_axes(value, new), strict=True)
    made = [jax.lax.pcast(leaf, tuple(axes), to="varying") if axes else leaf for leaf, axes in pairs]
    return jax.tree_util.tree_unflatten(tree, made)


# ----------------------------------------------------------------- structure


class Subtree(NamedTuple):
    """A part of the arguments or of the output; `is_root` says of each leaf of the whole whether it is a root."""

    tree: Any
    leaves: Sequence[int]
    is_root: Sequence[bool]
    name: str

    @staticmethod
    def of_output(outcome: Outcome) -> Subtree:
        """The whole output."""
        tree, is_root = output_tree(outcome)
        return Subtree(tree, range(tree.num_leaves), is_root, "the output")

    def pairs(self, other: Subtree, context: ErrorContext, fix: str | None = None) -> list[tuple[int, int]]:
        """The leaves of this part with those of a part that comes in its place, of the same structure."""
        roots, others = ([part.is_root[i] for i in part.leaves] for part in (self, other))
        if self.tree == other.tree and roots == others:
            return list(zip(self.leaves, other.leaves, strict=True))
        path = differing_leaf(self.tree, other.tree)
        if self.tree == other.tree:
            path = list(paths_in(self.tree)[[*map(ne, roots, others)].index(True)])
        raise context.changed(
            f"{context.transform}, {joined(self.name, path)}",
            fix or f"return a value with the structure of {self.name}",
            expected=text_of_tree(self.tree, roots),
            got=text_of_tree(other.tree, others),
        )


class Steps:
    """The steps of one loop: what they carry, by the labels of arguments and results.

    In a `while_loop` and a `fori_loop`, all that is not constant has the label `Carry`.
    """

    def __init__(
        self, axes: Prefixes, function: Callable[..., Any], leaves: Sequence[Any], context: ErrorContext
    ) -> None:
        self.labels: Labels = axes.labels(context.structure, leaves, function, default=Carry)
        self._axes = axes
        self._context = context
        self._arguments = positioned(function, context.structure.tree)

    def trace(self, function: Callable[..., Outcome], leaves: Sequence[Any]) -> tuple[TracedFunction, Slots, list[Any]]:
        """Traces a function until a step keeps the types of its carry; returns leaves of these types.

        As in JAX, a first value of weak type takes the dtype of its next value, and the function is traced again. So
        is it in a `shard_map` if the next value varies along more axes than the first one, as after a layer of a shard.
        """
        given = list(leaves)
        while True:
            traced = TracedFunction(function, given)
            step = self._analyse(traced.outcome)
            pairs = list(zip(step.leaves, step.read(traced.outcome, given), strict=True))
            unlike = [(leaf, result) for leaf, result in pairs if types_of(given[leaf]) != types_of(result)]
            for leaf, result in unlike:
                given[leaf] = _promoted(given[leaf], result, self._context.of_leaf(leaf), self._context)
            narrow = [(leaf, result) for leaf, result in pairs if any(_missing_axes(given[leaf], result))]
            for leaf, result in narrow:
                given[leaf] = _varying_as(given[leaf], result)
            if not unlike and not narrow:
                return traced, step, given

    def _analyse(self, outcome: Outcome) -> Slots:
        """Finds the carry, and what is stacked."""
        context, (tree, is_root) = self._context, output_tree(outcome)
        prefix = self._axes.of_arguments
        if prefix is Carry and len(self._arguments) == 1:
            prefix = (Carry,)
        given = _carried_parts(prefix, self._arguments, context.structure.is_root, self._name)
        numbered = jax.tree_util.tree_unflatten(tree, range(tree.num_leaves))
        returned = _carried_parts(self._axes.of_results, numbered, is_root, functools.partial(joined, "the output"))
        pairs = [pair for a, b in zip(given, returned, strict=True) for pair in a.pairs(b, context)]
        return _step_of(outcome, pairs, is_root, context, self.labels)

    def _name(self, path: Sequence[Any]) -> str:
        return joined(self._context.argument(path[0]), path[1:]) if path else "the arguments"


def _carried_parts(
    prefix: Any, numbered: Any, is_root: Sequence[bool], name: Callable[[Sequence[Any]], str]
) -> list[Subtree]:
    """The parts of a tree of numbers that a prefix labels `Carry`."""
    found: list[Subtree] = []

    def see(keys: Any, label: Any, below: Any) -> None:
        if label is Carry:
            leaves, own = jax.tree_util.tree_flatten(below)
            found.append(Subtree(own, leaves, is_root, name(list(map(plain_key, keys)))))

    jax.tree_util.tree_map_with_path(see, prefix, numbered, is_leaf=lambda value: is_spec(value, is_step_axis))
    return found


def _step_of(
    outcome: Outcome,
    pairs: Sequence[tuple[int, int]],
    is_root_returned: Sequence[bool],
    context: ErrorContext,
    labels: Labels,
) -> Slots:
    """The carry of a step, and what is stacked; the pairs are leaves of the arguments with those that replace them."""
    plan, is_root = outcome.plan, context.structure.is_root
    if plan.change is not None:
        _check_orders(plan.change, context)
    made = new_values(plan)
    new = dict(zip(made, plan.labels, strict=False))  # behind them are those of the output
    origins = dict(zip(made, made, strict=True))
    places: dict[int, int] = {}
    if plan.change is not None:
        roots = {sum(is_root[:a]): sum(is_root_returned[:b]) for a, b in pairs if is_root[a]}
        places = _places_of_new(plan.change, roots, labels, context)
        origins = _origins(plan.change, labels, context, places)
    stacked: dict[int, int] = {}
    for place in sorted((new.keys() | origins.keys()) - set(places.values())):
        leaf = origins.get(place)
        if place in new and has_step_axis(new[place]):
            stacked[place] = new[place]
        elif leaf is not None:  # a label of None too: the next step sees the new value
            if leaf in places:
                raise _is_set_and_replaced(leaf, context)
            places[leaf] = place
        else:
            raise _cannot_set(outcome, place, new[place], context)
    end = len(kept_leaves(context.structure, plan))
    for a, b in pairs:
        if not is_root[a]:
            places[context.structure.num_leaves + a - sum(is_root[:a])] = end + b - sum(is_root_returned[:b])
    carried = set(places.values())
    of_output = {place: axis for place, axis in enumerate(plan.labels[len(made) :], end) if place not in carried}
    if not all(map(has_step_axis, of_output.values())):
        raise no_axis("Carry, in a new model")
    return Slots(context.structure, tuple(places.values()), tuple(places), stacked | of_output)


def no_axis(got: str) -> TransformError:
    """The error of a result without an axis."""
    return TransformError(
        "scan, out_axes",
        "Cannot broadcast output state: a result of each step needs an axis",
        expected="an int, or Carry as in in_axes",
        got=got,
        why="each step returns its own result, and None would broadcast one for all",
        fix="out_axes=(dx.Carry, 0)",
    )


def has_step_axis(axis: Any) -> bool:
    """Whether each step has its own slice of a leaf with this label."""
    return axis is not None and axis is not Carry


def _origins(
    change: StructureChange, labels: Labels, context: ErrorContext, replaced: Mapping[int, int]
) -> dict[int, int]:
    """The leaves that a function sets, or that get the value of another leaf, by place."""
    found = leaf_origins(context.structure, change)
    of_graph = labels.leaves[: context.structure.num_leaves]
    carried = {i for i, label in enumerate(of_graph) if not has_step_axis(label)}
    kept = {i for i in carried if of_graph[i] is Carry}
    paths = change.graphdef.leaf_paths
    for leaf in kept.difference((leaf for place, leaf in found.items() if paths[place][0] != TAKEN_OUT), replaced):
        raise context.changed(context.of_leaf(leaf), "remove it after the loop, for example by dx.pop")
    return {
        place: leaf
        for place, leaf in found.items()
        if change.kept[place] == -1 or (leaf in carried and change.kept[place] != leaf)
    }


_SET_VALUES: Final = (
    "create the Variable before the loop, set its value in the loop, and return the model that was passed in"
)


def _places_of_new(
    change: StructureChange, roots: Mapping[int, int], labels: Labels, context: ErrorContext
) -> dict[int, int]:
    """The leaves whose root or Variable the function replaces, with the places of their next values."""
    structure = context.structure
    whole = [rank for rank, spec in enumerate(labels.of_roots) if spec is Carry or spec is None or spec is CAPTURED]
    before, objects = _built(structure.graphdef)
    (after, _, returned), objects_after = _built(change.graphdef)
    pairs = zip(objects_after, change.origins, strict=True)
    origin_of = {id(made): objects[origin] for made, origin in pairs if origin >= 0}
    new = {a: returned[b] for a, b in roots.items() if origin_of.get(id(returned[b])) is not before[a]}
    walked = walk(tuple(before[rank] for rank in whole))
    places: dict[int, int] = {}
    for replaced in ({}, new):  # the roots that were handed in, then those that come next
        next_roots = dict(enumerate(after)) | replaced
        found = walk(tuple(next_roots[rank] for rank in whole))
        objects_of_both = zip(walked.objects, found.objects, strict=False)
        is_same = [_is_kept(a, b, origin_of, replaced, context) for a, b in objects_of_both]
        if walked.graphdef is not found.graphdef or not all(is_same):
            differs = first_differing(walked.graphdef, found.graphdef, is_same)
            path: Any = differs.path
            raise context.changed(context.of_path((whole[path[0]], *path[1:])), **differs.details(_SET_VALUES))
        # the leaves whose Variable has another one in its place
        leaves = zip(walked.read(), found.read(), found.cells, strict=True)
        places |= {int(a): int(b) for a, b, made in leaves if isinstance(made, Variable) and id(made) not in origin_of}
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
    """Checks that a loop may return a new root: as in JAX that of `scan`, of others those of the peer."""
    walked, found = walk((before,)), walk((after,))
    if context.transform == "scan" or not any(isinstance(cell, Variable) for cell in walked.cells):
        return
    if not context.mode.updates:
        pairs = zip(walked.cells, found.cells, strict=True)
        may_replace = all(not isinstance(a, Variable) or origin_of.get(id(b)) is a for a, b in pairs)
    else:
        may_replace = context.transform == "fori_loop"
    if not may_replace:
        kind = "Variable" if isinstance(after, Variable) else "model"
        raise TransformError(
            context.of_path((rank,)),
            f"{context.function} returns a new {kind} in place of this one",
            why="the loop updates the caller's objects, so each step returns the Variables that it received",
            fix="model.count[...] += 1; return model        # set values, and return the object itself",
        )


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
    change, where = outcome.plan.change, context.of_place(outcome, place)
    definition = (context.structure.graphdef if change is None else change.graphdef).definition
    kind, filter_ = kind_and_filter(definition.paths[place], definition.leaf_defs[place])
    if label is Carry:
        fix = f"create it before the loop, or give it an axis: dx.StateAxes({{{filter_}: 0, ...: dx.Carry}})"
        return context.changed(where, fix)
    return TransformError(
        where,
        f"{context.function} creates this {kind}, whose axis is None",
        why="all steps share a leaf with the axis None, so it must exist before the first step",
        fix=f"in_axes=dx.StateAxes({{{filter_}: 0, ...: None}})        # each step has its own",
    )


def _check_orders(change: StructureChange, context: ErrorContext) -> None:
    """Checks that a step returns each Dict that went in with its order."""
    graph, structure = change.graphdef, context.structure
    for index, names in change.orders.names.items():
        origin = change.origins[index]
        if origin >= 0 and graph.classes[index]._pytree__holds_elements:
            before = blueprint_of(structure.graphdef).order_of(origin, structure.orders)
            expected, got = (", ".join(map(str, one)) for one in (before, names))
            fix = "set entries in place: table[key] = ...; or change the order outside"
            raise context.changed(context.of_change(paths_of_objects(graph)[index]), fix, f"the order {expected}", got)


# ----------------------------------------------------------------- branches


def agreed(outcomes: Mapping[str, Outcome], leaves: Sequence[Any], context: ErrorContext) -> Slots:
    """What the branches give different values, and the output; checks that they agree in structure and types."""
    first, *others = outcomes.values()
    contexts = [context._replace(branch=name) for name in outcomes][1:]
    for outcome, names in zip(others, contexts, strict=True):
        _check_structure(first, outcome, names)
    kept = [kept_leaves(context.structure, outcome.plan) for outcome in outcomes.values()]
    differing = [i for i, sources in enumerate(zip(*kept, strict=True)) if sources[0] < 0 or len(set(sources)) > 1]
    end = len(kept[0])
    slots = Slots(context.structure, (*differing, *range(end, end + len(jax.tree_util.tree_leaves(first.output)))))
    values = slots.read(first, leaves)
    for outcome, names in zip(others, contexts, strict=True):
        for place, value, other in zip(slots.places, values, slots.read(outcome, leaves), strict=True):
            if types_of(value) != types_of(other):
                fix = "convert it in one branch: value.astype(...), jnp.asarray(value, dtype)"
                raise names.changed(names.of_place(outcome, place), fix, text_of_value(value), text_of_value(other))
    return slots


def _check_structure(first: Outcome, outcome: Outcome, context: ErrorContext) -> None:
    """Checks that a branch returns, and leaves behind, the structure of the first."""
    fix = "return the same structure from all branches"
    Subtree.of_output(first).pairs(Subtree.of_output(outcome), context, fix)
    one, other = first.plan.change, outcome.plan.change
    if one is None or other is None:
        return
    if one.graphdef is other.graphdef and one.origins == other.origins:
        return
    found = first_differing(one.graphdef, other.graphdef, [*map(eq, one.origins, other.origins)])
    details = found.details("create the same Variables in all branches, and return the same models")
    raise context.changed(context.of_change(found.path), **details)
