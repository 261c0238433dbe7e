"""One scan: what goes from step to step, what each step has its own part of, and what all of them share.

Vocabulary
----------
stacked: what comes out of each step, and has an axis of steps outside.
handed:  an argument whose place in the next step what the function returns takes.
fixed:   a root whose structure has to stand, since all of it goes from step to step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from declax._nodes import is_ref, plain_key
from declax._state_def import LeafDef
from declax.errors import TransformError, type_name
from declax.graph.unflattening import Change
from declax.rngs.streams import RngCount
from declax.transforms._carry_invariants import Comparison, ErrorContext
from declax.transforms._carrying import (
    Part,
    Step,
    paired,
    plain_pairs,
    settled,
)
from declax.transforms._lift import Outcome
from declax.transforms._naming import no_ref
from declax.transforms._structure import Structure
from declax.transforms._tracing import (
    Traced,
    leaf_origins,
    new_values,
    output_tree,
    text_of_type,
)
from declax.transforms.prefixes import CAPTURED, Carry, Labels, is_spec, is_step_axis


class Parts(NamedTuple):
    """The arguments and results that go from step to step, in order.

    Attributes:
      given: those of the arguments.
      of_output: finds those of an output.
    """

    given: list[Part]
    of_output: Callable[[Any, Sequence[bool]], list[Part]]


def carry_parts(prefix: Any, tree: Any, is_root: Sequence[bool], name: Callable[[Sequence[Any]], str]) -> list[Part]:
    """The parts of a tree that a prefix labels `Carry`."""
    found: list[Part] = []
    numbered = jax.tree_util.tree_unflatten(tree, range(tree.num_leaves))

    def see(keys: Any, label: Any, below: Any) -> None:
        if label is Carry:
            leaves, own = jax.tree_util.tree_flatten(below)
            found.append(Part(own, leaves, is_root, name(list(map(plain_key, keys)))))

    jax.tree_util.tree_map_with_path(see, prefix, numbered, is_leaf=lambda value: is_spec(value, is_step_axis))
    return found


class Scan:
    """A scan over leaves of one structure and one set of shapes.

    Args:
      structure, labels: of the call.
      parts: what is handed on.
      context: for errors.
    """

    def __init__(self, structure: Structure, labels: Labels, parts: Parts, context: ErrorContext) -> None:
        self._structure = structure
        self._labels = labels
        self._parts = parts
        self._context = context
        self._places: dict[int, int] = {}  # of stacked new values of the graph, with their axes
        self._results: dict[int, int] = {}  # of stacked plain leaves of the output, likewise

    def run(self, traced: Traced, values: Sequence[Any], plain: Sequence[Any], options: dict[str, Any]) -> Outcome:
        """Runs all steps.

        Args:
          traced: the function, with these labels.
          values, plain: the leaves.
          options: of `jax.lax.scan`.

        Raises:
          TransformError: for axes that leaves do not have, for different
            lengths, and for what cannot go from step to step.
        """
        length = self._length(values, plain, options.pop("length"))
        xs = self._own(values, plain)
        looks = self._with_own(values, plain, _types_of_steps(xs))
        outcome, step, shared = settled(traced, self._structure, *looks, self._analyse, self._context)
        places, results = self._places, self._results

        def advance(carried: Any, own: Any) -> Any:
            full, full_plain = step.put(carried, *self._with_own(*shared, own))
            made = traced(full, full_plain)
            at = new_values(made.plan)
            output = jax.tree_util.tree_leaves(made.output)
            return step.next_values(made, full), (
                [made.new[at[place]] for place in places],
                [output[i] for i in results],
            )

        last, (ys, results_of_steps) = jax.lax.scan(advance, step.first(*shared), xs, length=length, **options)
        return step.conclude(outcome, last, self._out(places, ys), self._out(results, results_of_steps))

    def _own(self, values: Sequence[Any], plain: Sequence[Any]) -> list[Any]:
        """What each step has its own part of, with the axis of steps first."""
        labels = [*self._labels.values, *self._labels.plain]
        return [_moved(v, a, 0) for v, a in zip([*values, *plain], labels, strict=True) if _is_own(a)]

    def _with_own(self, values: Sequence[Any], plain: Sequence[Any], own: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """All leaves, with the part of one step in the place of what has an axis."""
        each = iter(own)
        pairs = zip((values, plain), (self._labels.values, self._labels.plain), strict=True)
        full, full_plain = ([next(each) if _is_own(a) else v for v, a in zip(*pair, strict=True)] for pair in pairs)
        return full, full_plain

    def _out(self, axes: dict[int, int], ys: Sequence[Any]) -> dict[int, Any]:
        """What came out of all steps, with the axis of steps in its place."""
        return {position: self._moved_out(y, axis) for (position, axis), y in zip(axes.items(), ys, strict=True)}

    def _moved_out(self, value: Any, axis: int) -> Any:
        for leaf in jax.tree_util.tree_leaves(value):
            if not -leaf.ndim <= axis < leaf.ndim:
                raise TransformError(
                    f"{self._context.transform}, out_axes",
                    f"there is no axis {axis} in a result",
                    expected=f"an axis from {-leaf.ndim} to {leaf.ndim - 1}",
                    got=f"{text_of_type(leaf)} with the axis of steps first",
                    fix="out_axes=(dx.Carry, 0)",
                )
        return _moved(value, 0, axis)

    # ----------------------------------------------------------------- lengths

    def _length(self, values: Sequence[Any], plain: Sequence[Any], length: int | None) -> int:
        """The number of steps.

        Raises:
          TransformError: nothing says it, or two things say it differently.
        """
        sizes = list(self._sizes(values, plain))
        if length is not None:
            sizes.insert(0, ("length", length))
        if not sizes:
            raise TransformError(
                self._context.transform, "nothing says how many steps there are", fix="dx.scan(f, length=10, ...)"
            )
        if len({size for _, size in sizes}) > 1:
            first = sizes[0]
            other = next(entry for entry in sizes if entry[1] != first[1])
            raise TransformError(
                f"{self._context.transform}, {other[0]}",
                "this has another length along its axis",
                expected=f"{first[1]}, as {first[0]}",
                got=str(other[1]),
                fix="check in_axes and length: all axes that are scanned have one length",
            )
        return sizes[0][1]

    def _sizes(self, values: Sequence[Any], plain: Sequence[Any]) -> Iterator[tuple[str, int]]:
        """The name and the size of each leaf that has an axis."""
        at_plain = [i for i, is_one in enumerate(self._structure.is_root) if not is_one]
        for of_graph, leaves, labels in ((True, values, self._labels.values), (False, plain, self._labels.plain)):
            for position, (value, axis) in enumerate(zip(leaves, labels, strict=True)):
                if not _is_own(axis):
                    continue
                of_leaf = self._context.of_leaf if of_graph else self._context.of_argument
                name = of_leaf(self._structure, position if of_graph else at_plain[position])
                for leaf in jax.tree_util.tree_leaves(value):
                    if is_ref(leaf):
                        raise no_ref(name, "this is an array ref, which cannot be scanned along an axis")
                    ndim = jnp.ndim(leaf)
                    if not -ndim <= axis < ndim:
                        raise TransformError(
                            name,
                            f"this is scanned along axis {axis}, which it does not have",
                            got=text_of_type(leaf),
                            fix="in_axes=(dx.Carry, 0)        # None for what all steps share, Carry for what goes on",
                        )
                    yield name.partition(", ")[2], jnp.shape(leaf)[axis]

    # ----------------------------------------------------------------- what a step comes to

    def _analyse(self, outcome: Outcome) -> Step:
        """Finds what is carried, and what is stacked.

        Raises:
          TransformError: for what can be neither.
        """
        tree, is_root = output_tree(outcome)
        given, returned = self._matched(self._parts.of_output(tree, is_root))
        pairs = [pair for a, b in zip(given, returned, strict=True) for pair in paired(a, b, self._context)]
        plain, results = plain_pairs(pairs, self._structure.is_root, is_root)
        assert outcome.plan.labels is not None  # the function has labels
        new = len(new_values(outcome.plan))
        self._places, self._results = {}, {}
        for position, label in enumerate(outcome.plan.labels[new:]):
            if position not in results:
                self._stack_result(position, label)
        roots = [(sum(self._structure.is_root[:a]), sum(is_root[:b])) for a, b in pairs if is_root[b]]
        places = self._carried(outcome, roots)
        return Step(tuple(places), tuple(places.values()), plain, results)

    def _matched(self, returned: list[Part]) -> tuple[list[Part], list[Part]]:
        """The handed parts of the arguments, and those of the output in the same order.

        Models need not be returned.
        """
        given = self._parts.given
        if len(given) != len(returned):
            given = [part for part in given if not all(part.is_root[leaf] for leaf in part.leaves)]
        if len(given) != len(returned):
            raise TransformError(
                f"{self._context.transform}, out_axes",
                "there are as many results with Carry as there are arguments with it",
                expected=", ".join(part.name for part in given) or "none",
                got=", ".join(part.name for part in returned) or "none",
                fix="in_axes=(dx.Carry, 0), out_axes=(dx.Carry, 0)",
            )
        return given, returned

    def _stack_result(self, position: int, axis: Any) -> None:
        if not _is_own(axis):
            label = "None" if axis is None else "Carry, in a new model"
            raise TransformError(
                f"{self._context.transform}, out_axes",
                f"the axis of a result is {label}",
                expected="an int, or Carry as in in_axes",
                why="there is a result of each step, and they have to go somewhere",
                fix="out_axes=(dx.Carry, 0)",
            )
        self._results[position] = axis

    def _carried(self, outcome: Outcome, roots: Sequence[tuple[int, int]]) -> dict[int, int]:
        """The places of the next values of what goes from step to step, by leaf; notes what is stacked."""
        change, new = outcome.plan.change, new_values(outcome.plan)
        labels = dict(zip(new, outcome.plan.labels or (), strict=False))
        places: dict[int, int] = {}
        if change is None or self._structure.graphdef is None:
            leaf_at = {place: place for place in new} if change is None else {}
        else:
            fixed = [i for i, spec in enumerate(self._labels.of_roots) if _is_fixed(spec)]
            comparison = Comparison(self._structure, change, self._context)
            comparison.check_structure_preserved(fixed)
            places = dict(comparison.next_of_fresh(roots))
            leaf_at = leaf_origins(self._structure, change)
            places |= self._kept_elsewhere(change, leaf_at, new)
        taken = set(places.values())
        for place, label in labels.items():
            if place in taken:
                continue
            if _is_own(label):
                self._places[place] = label
            elif label is Carry and place in leaf_at:
                places[leaf_at[place]] = place
            else:
                raise self._cannot_set(outcome, place, label)
        return places

    def _kept_elsewhere(self, change: Change, leaf_at: dict[int, int], new: Any) -> dict[int, int]:
        """The leaves that go from step to step and take the value of another leaf."""
        found = {leaf: place for place, leaf in leaf_at.items() if place not in new and change.kept[place] != leaf}
        gone = set(range(len(self._labels.values))) - set(leaf_at.values())
        for leaf in gone:
            if self._labels.values[leaf] is Carry:
                raise TransformError(
                    self._context.of_leaf(self._structure, leaf),
                    f"{self._context.function} removes this, which goes from step to step",
                    fix="remove it after the loop, as by dx.pop",
                )
        return {leaf: place for leaf, place in found.items() if self._labels.values[leaf] is Carry}

    def _cannot_set(self, outcome: Outcome, place: int, label: Any) -> TransformError:
        change = outcome.plan.change
        graphdef: Any = self._structure.graphdef if change is None else change.graphdef
        path, leaf_def = graphdef.definition.paths[place], graphdef.definition.leaf_defs[place]
        where = f"{self._context.transform}, the output"
        if change is None or path[0] == 0:
            where = self._context.of_path(self._structure, path if change is None else path[1:])
        kind = "leaf" if leaf_def is None else type_name(leaf_def[0])
        filter_ = "..." if leaf_def is None else f"dx.{kind}" if leaf_def[0].__module__.startswith("declax.") else kind
        if label is Carry:
            return TransformError(
                where,
                f"{self._context.function} makes this {kind}, where all goes from step to step",
                why="the first step is given a model without it, and each step is the same program",
                fix=f"make it before the scan, or give it an axis: dx.StateAxes({{{filter_}: 0, ...: dx.Carry}})",
            )
        return _is_shared(where, kind, filter_, leaf_def, self._context)


def _is_shared(where: str, kind: str, filter_: str, leaf_def: LeafDef, context: ErrorContext) -> TransformError:
    axes = f"in_axes=dx.StateAxes({{{filter_}: dx.Carry, ...: None}})"
    if leaf_def is not None and issubclass(leaf_def[0], RngCount):
        return TransformError(
            where,
            f"{context.function} draws from this stream, whose axis is None",
            why="all steps share what has the axis None, so that each would draw the same numbers",
            fix="in_axes=dx.StateAxes({dx.RngState: dx.Carry, ...: None})        # one stream for all steps\n"
            "dx.split_rngs(model, splits=n), and in_axes=dx.StateAxes({dx.RngState: 0, ...: None})  # or one for each",
        )
    return TransformError(
        where,
        f"{context.function} sets this {kind}, whose axis is None",
        why="all steps share what has the axis None",
        fix=f"{axes}        # Carry: it goes from step to step; 0: each step has its own",
    )


def _is_own(axis: Any) -> bool:
    """Whether each step has its own part of what has this label."""
    return axis is not None and axis is not Carry


def _is_fixed(spec: Any) -> bool:
    """Whether all of a root goes from step to step, or is shared by all of them, so that its structure has to stand."""
    return spec is Carry or spec is None or spec is CAPTURED


def _moved(value: Any, source: int, destination: int) -> Any:
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, source, destination), value)


def _types_of_steps(xs: Any) -> list[Any]:
    """What a step sees of arrays that are scanned along axis 0: types in place of arrays."""
    leaves, tree = jax.tree_util.tree_flatten(xs)
    found: list[Any] = []

    def see(*parts: Any) -> int:
        found.extend(map(jax.typeof, parts))
        return 0

    if leaves:
        jax.eval_shape(jax.vmap(see, out_axes=None), *leaves)
    types: list[Any] = jax.tree_util.tree_unflatten(tree, found)
    return types
