"""`scan` for functions of models.

Vocabulary
----------
axis:   of a leaf: which of its dimensions the steps go along. None for a leaf
        that all steps share, `Carry` for one that goes from step to step.
carried: what differs from step to step; see `_carrying`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any, ParamSpec, overload

import jax
from jax.core import Tracer

from declax._typing import MISSING, Missing
from declax.errors import TransformError, describe
from declax.transforms._captures import Captures, Closure, content_of
from declax.transforms._carry_invariants import ErrorContext
from declax.transforms._lift import Call, Outcome, lifted, run, wait
from declax.transforms._naming import named
from declax.transforms._scanned import Parts, Scan, carry_parts
from declax.transforms._structure import Mode, Structure, joined, parameters
from declax.transforms._tracing import Traced
from declax.transforms._wrapping import Positioned, R, Wrapped, positioned
from declax.transforms.axis_names import check_metadata, name_axes
from declax.transforms.prefixes import Carry, Labels, Prefixes, is_step_axis

if TYPE_CHECKING:
    from typing import Unpack

    from declax.transforms._signatures import AxisTree, C, F, Of, OfScan, ScanOptions, Untyped, Y

P = ParamSpec("P")


@overload
def scan(
    f: F,  # pyright: ignore[reportInvalidTypeVarUse]  # see F
    /,
    *,
    in_axes: AxisTree = (Carry, 0),
    out_axes: AxisTree = (Carry, 0),
    **options: Unpack[ScanOptions],
) -> Untyped: ...
@overload
def scan(f: Of[C, P, tuple[C, Y]], /, **options: Unpack[ScanOptions]) -> Of[C, P, tuple[C, Y]]: ...
@overload
def scan(
    f: Callable[P, R], /, *, in_axes: AxisTree, out_axes: AxisTree = (Carry, 0), **options: Unpack[ScanOptions]
) -> Callable[P, R]: ...
@overload
def scan(f: Callable[P, R], /, *, out_axes: AxisTree, **options: Unpack[ScanOptions]) -> Callable[P, R]: ...
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
    /,
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

    What goes from step to step is labelled `Carry`, in the arguments and in
    what the function returns, in the same order. A model that goes from step
    to step is the same object in all of them, and need not be returned. A
    model with an axis is one instance a step: what the function sets in it,
    and new Variables, get that axis. What the function captures goes from
    step to step where it is set, and costs nothing where it is only read.

    Args:
      f: the function of one step; leave it out to use `scan` as a decorator
        with options.
      length: the number of steps, where no axis says it.
      reverse: whether the last step comes first; its results are the last ones
        all the same.
      unroll: as in `jax.lax.scan`.
      in_axes: an axis, None, `Carry`, or a tree of these, a prefix of the tuple
        of arguments. `StateAxes` gives a model's leaves axes by filter.
        Arguments by name have that of their position; those that have no
        position, axis 0.
      out_axes: likewise for the result, without None.
      transform_metadata: ``{dx.PARTITION_NAME: name}`` gives the axis a name
        in the sharding metadata of Variables outside of the function.
      graph, graph_updates: as in `jit`.

    Returns:
      A function of the same arguments that takes all steps.

    Raises:
      TransformError: for axes that do not fit, for different lengths, for
        setting what all steps share, and where what goes from step to step
        changes its structure, shape or dtype.

    >>> import jax.numpy as jnp
    >>> total, sums = scan(lambda total, x: (total + x, total))(0, jnp.arange(4))
    >>> int(total), sums.tolist()
    (6, [0, 0, 1, 3])
    """
    settings = {"length": length, "reverse": reverse, "unroll": unroll}
    if _split_transpose:
        settings["_split_transpose"] = True

    def make(f: Callable[..., Any]) -> Scanned[..., Any]:
        if not callable(f):
            raise TransformError("scan", "the argument is no function", got=describe(f), fix="dx.scan(function)")
        check_metadata(transform_metadata)
        axes = ScanAxes(in_axes, out_axes, transform_metadata)
        return Scanned(f, axes, Mode.of(graph, graph_updates), settings)

    return make if f is MISSING else make(f)


class ScanAxes:
    """What a user wrote of the axes of a scan.

    Args:
      in_axes, out_axes: the axes.
      metadata: of ``transform_metadata=``.
    """

    def __init__(self, in_axes: Any, out_axes: Any, metadata: Mapping[str, Any] | None) -> None:
        self._axes = Prefixes(in_axes, out_axes, is_label=is_step_axis)
        self._metadata = metadata

    @property
    def adapt(self) -> Callable[[Callable[..., Any]], Callable[..., Any]] | None:
        """What names axes in metadata, for `lifted`."""
        if not self._metadata:
            return None
        return functools.partial(name_axes, axes=self._axes, metadata=self._metadata)

    def labels(self, structure: Structure, values: Sequence[Any], arguments: Positioned) -> Labels:
        """The label of each leaf of a call; `Carry` for what is captured only."""
        return self._axes.labels_of(structure, values, arguments, default=Carry, of_keywords=0)

    def parts(self, structure: Structure, arguments: Positioned, context: ErrorContext) -> Parts:
        """What goes from step to step."""
        prefix = self._axes.of_arguments
        if prefix is Carry and len(arguments.tree.children()) == 1:
            prefix = (Carry,)

        def name(path: Sequence[Any]) -> str:
            return joined(context.argument(path[0]), path[1:]) if path else "the arguments"

        found = carry_parts(prefix, arguments.tree, structure.is_root, name)
        given = [part._replace(leaves=[arguments.leaves[i] for i in part.leaves]) for part in found]
        return Parts(given, self._of_output)

    def _of_output(self, tree: Any, is_root: Sequence[bool]) -> list[Any]:
        return carry_parts(self._axes.of_results, tree, is_root, lambda path: joined("the output", path))


class Scanned(Wrapped[P, R]):
    """A function that takes all steps; what `scan` returns."""

    def __init__(self, f: Callable[P, R], axes: ScanAxes, mode: Mode, options: dict[str, Any]) -> None:
        super().__init__(f, mode)
        self._axes = axes
        self._options = options
        self._calls_back = False

    def _forget(self) -> None:
        self._seen: list[Any] = []
        self._programs: dict[Structure, Callable[..., Outcome]] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function step by step."""
        result: R = run(lambda: self._take(args, kwargs).check_arrays(), self._run)
        return result

    def _run(self, call: Call) -> Outcome:
        outcome = self._program_of(call.structure, call.captures)(call.values, call.plain)
        if self._calls_back:
            wait(outcome)
        return outcome

    def _program_of(self, structure: Structure, captures: Captures | None) -> Callable[..., Outcome]:
        """What runs the calls of one structure: as in an earlier call, where the function closes over the same things.

        Models among these are handled as arguments. Others are part of the
        program; arrays of a trace would be so beyond its end.
        """
        seen: list[Any] = [captures, *map(content_of, getattr(self._closure.function, "__closure__", None) or ())]
        if any(isinstance(content, Tracer) for content in seen):
            return self._program(structure)
        if len(seen) != len(self._seen) or not all(map(is_, seen, self._seen)):
            self._seen, self._programs = seen, {}
        program = self._programs.get(structure)
        if program is None:
            program = self._programs[structure] = self._program(structure)
        return program

    def _program(self, structure: Structure) -> Callable[..., Outcome]:
        """What runs the calls of one structure; JAX keeps a trace of it for each set of shapes."""
        axes, closure, mode, options = self._axes, self._closure, self._mode, self._options
        context = ErrorContext("scan", "the function", functools.partial(_name_argument, closure))

        def run(values: Sequence[Any], plain: Sequence[Any]) -> Outcome:
            arguments = positioned(closure.function, structure.tree)
            labels = axes.labels(structure, values, arguments)
            step = lifted(closure, structure, mode, labels, axes.adapt)
            traced = Traced(named(step, closure.function, structure))
            outcome = Scan(structure, labels, axes.parts(structure, arguments, context), context).run(
                traced, values, plain, dict(options)
            )
            self._calls_back |= traced.calls_back
            return outcome

        return jax.jit(run, inline=True)

    def __repr__(self) -> str:
        return f"scan({self._closure.function!r})"


def _name_argument(closure: Closure, number: int) -> str:
    names = [name for name, p in (parameters(closure.function) or {}).items() if p.kind <= p.POSITIONAL_OR_KEYWORD]
    return names[number] if number < len(names) else f"argument {number}"
