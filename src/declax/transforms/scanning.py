"""`scan` for functions of models."""

# Type checkers find no use for `F` of a lambda, see there.
# pyright: reportInvalidTypeVarUse=false

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any, Unpack, overload

import jax
import jax.numpy as jnp
from jax.core import Tracer

from declax._graph.nodes import is_ref
from declax._jax import is_symbolic
from declax._typing import MISSING, Missing
from declax._variables.kinds import RngState
from declax.errors import TransformError
from declax.transforms._carry import ErrorContext, Steps, has_step_axis, no_axis
from declax.transforms._engine.call import Call
from declax.transforms._engine.captures import Captures, content_of
from declax.transforms._engine.commit import run, wait
from declax.transforms._engine.diagnostics import named
from declax.transforms._engine.names import namer_of
from declax.transforms._engine.outcome import Outcome, lifted
from declax.transforms._engine.prefixes import (
    STEP_AXES,
    Carry,
    Labels,
    Prefixes,
    check_axis,
    is_spec,
    is_step_axis,
    labels_in,
    size_along_axes,
)
from declax.transforms._engine.structure import Mode, Structure, checked_function, no_ref
from declax.transforms._engine.tracing import values_at
from declax.transforms._engine.wrapped import P, R, Wrapped, program_for
from declax.transforms.axis_names import check_metadata, name_axes, place_new
from declax.transforms.vectorization import warn_of_equal_draws

if TYPE_CHECKING:
    from declax.transforms._engine.signatures import AxisTree, C, F, Of, OfScan, ScanOptions, Untyped, Y


@overload
def scan(
    f: F, *, in_axes: AxisTree = (Carry, 0), out_axes: AxisTree = (Carry, 0), **options: Unpack[ScanOptions]
) -> Untyped: ...
@overload
def scan(f: Of[C, P, tuple[C, Y]], **options: Unpack[ScanOptions]) -> Of[C, P, tuple[C, Y]]: ...
@overload
def scan(
    f: Callable[P, R], *, in_axes: AxisTree, out_axes: AxisTree = (Carry, 0), **options: Unpack[ScanOptions]
) -> Callable[P, R]: ...
@overload
def scan(f: Callable[P, R], *, out_axes: AxisTree, **options: Unpack[ScanOptions]) -> Callable[P, R]: ...
@overload
def scan(**options: Unpack[ScanOptions]) -> OfScan: ...
@overload
def scan(
    *, in_axes: AxisTree, out_axes: AxisTree = (Carry, 0), **options: Unpack[ScanOptions]
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@overload
def scan(*, out_axes: AxisTree, **options: Unpack[ScanOptions]) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def scan(
    f: Callable[..., Any] | Missing = MISSING,
    *,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    in_axes: Any = (Carry, 0),
    out_axes: Any = (Carry, 0),
    transform_metadata: Mapping[str, Any] | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
    _split_transpose: bool = False,
) -> Any:
    """Calls a function step by step along axes of its arguments.

    `Carry` labels what goes from step to step: one argument, and one result. A carried model is one object in all
    steps, unless a step returns a new one of the same structure; as ``StateAxes({...: Carry})`` it need not be
    returned. Of a model with an axis, each step sees one slice; Variables that the function sets or creates in it get
    that axis. A captured model, and one with the axis None, is carried if the function sets it; but a stream with the
    axis None gives all steps the same numbers, unless `graph_updates` is off.

    Args:
      f: the function of one step; omit it to use `scan` as a decorator with options.
      length: the number of steps, if no argument has an axis.
      reverse: whether to run the last step first; results keep their places.
      unroll: as in `jax.lax.scan`.
      in_axes: an axis, None, `Carry`, or a tree of these, a prefix of the tuple of arguments. `StateAxes`
        selects the axes of a model's leaves by filter. A keyword argument has the axis of its position, or
        axis 0 if it has no position.
      out_axes: likewise for the result, without None.
      transform_metadata: ``{dx.PARTITION_NAME: name}`` names the axis in the sharding metadata of Variables, and on a
        mesh splits new ones by this name too.
      graph, graph_updates: as in `jit`.

    Raises:
      TransformError: axes or lengths do not match; a carried value changes its structure, shape or dtype.

    >>> import declax as dx
    >>> import jax.numpy as jnp
    >>> total, sums = dx.scan(lambda total, x: (total + x, total))(0, jnp.arange(4))
    >>> int(total), sums.tolist()
    (6, [0, 0, 1, 3])
    """
    settings = {"length": length, "reverse": reverse, "unroll": unroll}
    if _split_transpose:  # a private option of JAX
        settings["_split_transpose"] = True

    def make(f: Callable[..., Any]) -> Scanned[..., Any]:
        checked_function("scan", "f", f)
        check_metadata(transform_metadata)
        axes = Prefixes(in_axes, out_axes, STEP_AXES, graph=graph)
        _check_out_axes(axes)
        return Scanned(f, axes, transform_metadata, Mode.of(graph, graph_updates), settings)

    return make if f is MISSING else make(f)


class Scanned(Wrapped[P, R]):
    """A function that runs all steps; see `scan`."""

    _transform = "scan"

    def __init__(
        self,
        f: Callable[P, R],
        axes: Prefixes,
        metadata: Mapping[str, Any] | None,
        mode: Mode,
        options: dict[str, Any],
    ) -> None:
        super().__init__(f, mode)
        self._axes = axes
        self._metadata = metadata
        self._options = options
        self._calls_back = False

    def _forget(self) -> None:
        self._seen: list[Any] = []
        self._traces = 0
        self._programs: dict[Hashable, Callable[..., Outcome]] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function step by step."""
        result: R = run(lambda: self._bind_arguments(args, kwargs).check_arrays(), self._run)
        return result

    def _run(self, call: Call) -> Outcome:
        program, traces = self._program_of(call.structure, call.captures), self._traces
        outcome = program(*call.leaves)
        if self._traces != traces and self._programs.get(call.structure) is program:
            self._seen = self._closed_over(call.captures)  # the function may rebind what it closes over, as a counter
        if self._calls_back:
            wait(outcome)
        return place_new(call.structure, outcome) if self._metadata else outcome

    def _program_of(self, structure: Structure, captures: Captures | None) -> Callable[..., Outcome]:
        """The compiled steps for one structure, kept while the function closes over the same values without tracers."""
        seen = self._closed_over(captures)
        if any(isinstance(content, Tracer) for content in seen):
            return self._program(structure)
        if len(seen) != len(self._seen) or not all(map(is_, seen, self._seen)):
            self._seen, self._programs = seen, {}
        known = self._programs.get(structure)
        return known or program_for(self._programs, structure, lambda: self._program(structure))

    def _closed_over(self, captures: Captures | None) -> list[Any]:
        return [captures, *map(content_of, getattr(self._closure.function, "__closure__", None) or ())]

    def _program(self, structure: Structure) -> Callable[..., Outcome]:
        """The compiled steps for one structure; JAX keeps a trace for each set of shapes."""
        axes, closure, mode, options = self._axes, self._closure, self._mode, self._options
        adapt = functools.partial(name_axes, axes=axes, metadata=self._metadata)
        context = ErrorContext("scan", "the function", structure, namer_of(closure.function), mode)

        def run(*leaves: Any) -> Outcome:
            steps = _Scan(axes, closure.function, leaves, context)
            step = lifted(closure, structure, mode, steps.labels, adapt)
            outcome, calls_back = steps.run(named(step, closure.function, structure), leaves, **options)
            self._calls_back |= calls_back
            self._traces += 1
            return outcome

        return jax.jit(run, inline=True)


class _Scan(Steps):
    def __init__(
        self, axes: Prefixes, function: Callable[..., Any], leaves: Sequence[Any], context: ErrorContext
    ) -> None:
        super().__init__(axes, function, leaves, context)
        self._streams = _shared_streams(context.structure, self.labels) if context.mode.updates else []

    def run(
        self, function: Callable[..., Outcome], leaves: Sequence[Any], *, length: int | None, **options: Any
    ) -> tuple[Outcome, bool]:
        """Runs all steps; whether they call Python."""
        length = size_along_axes("scan", self._named(leaves), length, "length")
        pairs = zip(leaves, self.labels.leaves, strict=True)
        xs = [_move_axis(value, axis, 0) for value, axis in pairs if has_step_axis(axis)]
        traced, step, shared = self.trace(function, self._with_slices(leaves, _types_of_steps(xs)))
        if self._streams:
            plan, new = traced.outcome.plan, traced.outcome.new
            warn_of_equal_draws("scan", step.structure, self.labels, plan, new, set())

        def advance(carried: Any, own: Any) -> Any:
            full = step.put(carried, self._with_slices(shared, own))
            for leaf in self._streams:
                full[leaf] = shared[leaf]
            made = traced(full)
            return step.read(made, full), values_at(step.structure, tuple(step.stacked), made, full)

        counted = None if is_symbolic(length) else length  # JAX takes a symbolic one from `xs` only
        last, ys = jax.lax.scan(advance, [shared[i] for i in step.leaves], xs, length=counted, **options)
        return step.conclude(traced.outcome, last, map(_in_place, step.stacked.values(), ys)), traced.calls_back

    def _with_slices(self, leaves: Sequence[Any], own: Sequence[Any]) -> list[Any]:
        """All leaves, with the slices of one step in place of leaves with an axis."""
        each = iter(own)
        pairs = zip(leaves, self.labels.leaves, strict=True)
        return [next(each) if has_step_axis(axis) else leaf for leaf, axis in pairs]

    def _named(self, leaves: Sequence[Any]) -> Iterator[tuple[str, Any, Any]]:
        """The name, value and axis of each leaf with an axis."""
        for position, (value, axis) in enumerate(zip(leaves, self.labels.leaves, strict=True)):
            if has_step_axis(axis):
                name = self._context.of_leaf(position)
                if any(map(is_ref, jax.tree_util.tree_leaves(value))):
                    raise no_ref(name, "this is an array ref, which cannot be scanned along an axis")
                yield name, value, axis


def _check_out_axes(axes: Prefixes) -> None:
    """Checks that each result has an axis, and that one argument and one result have Carry, or none."""
    if any(label is None for label in labels_in(axes.of_results, is_step_axis)):
        raise no_axis("None")
    counts = [_specs_with_carry(prefix) for prefix in (axes.of_arguments, axes.of_results)]
    if counts[0] != counts[1] or counts[0] > 1:
        raise TransformError(
            "scan, in_axes and out_axes",
            "Carry labels one argument and one result, or none of either",
            got=f"{counts[0]} in in_axes, {counts[1]} in out_axes",
            fix="in_axes=(dx.Carry, 0), out_axes=(dx.Carry, 0)        # a tuple carries several values\n"
            "in_axes=(dx.StateAxes({...: dx.Carry}), 0), out_axes=0        # for a model, which is not returned",
        )


def _specs_with_carry(prefix: Any) -> int:
    specs = jax.tree_util.tree_leaves(prefix, is_leaf=lambda value: is_spec(value, is_step_axis))
    return sum(spec is Carry for spec in specs)


def _shared_streams(structure: Structure, labels: Labels) -> list[int]:
    """The leaves of streams without an axis, from which each step draws the same numbers."""
    pairs = zip(structure.graphdef.definition.leaf_defs, labels.leaves, strict=False)  # those of plain leaves follow
    return [i for i, (d, label) in enumerate(pairs) if label is None and d is not None and issubclass(d[0], RngState)]


def _in_place(axis: int, y: Any) -> Any:
    """A stacked result, with the axis of steps at its place."""
    for leaf in jax.tree_util.tree_leaves(y):
        check_axis("scan, a result", axis, leaf, leaf.ndim)
    return _move_axis(y, 0, axis)


def _move_axis(value: Any, source: int, destination: int) -> Any:
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, source, destination), value)


def _types_of_steps(xs: list[Any]) -> list[Any]:
    """The types of the slices of arrays that are scanned along axis 0."""
    found: list[Any] = []

    def see(slices: Any) -> int:
        found.append(jax.tree.map(jax.typeof, slices))
        return 0

    if jax.tree_util.tree_leaves(xs):
        jax.eval_shape(jax.vmap(see, out_axes=None), xs)
    return found[0] if found else xs
