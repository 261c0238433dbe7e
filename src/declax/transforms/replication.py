"""`pmap` for functions of models.

Vocabulary
----------
instance: one of the calls that run side by side, each on a device of its own.
shared:   without an axis; the same in all instances.
program:  what is compiled for one structure, one set of axes and one of static arguments.
"""

from __future__ import annotations

import copy
import functools
import types
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, overload

import jax
from typing_extensions import TypeVar

from declax._nodes import is_ref
from declax._typing import MISSING, Missing
from declax.errors import TransformError, describe
from declax.transforms._arguments import Numbers, Selection
from declax.transforms._closure import Closure
from declax.transforms._explaining import named_leaves, no_ref
from declax.transforms._lift import Call, Outcome, Plan, lifted, written_leaves
from declax.transforms._naming import name_of
from declax.transforms._output_groups import OutputGroups, from_groups, in_groups
from declax.transforms._running import run, wait
from declax.transforms._structure import Mode
from declax.transforms._wrapping import look_like
from declax.transforms.axis_names import check_metadata, name_axes
from declax.transforms.prefixes import Labels, Prefixes
from declax.transforms.vectorization import check_shared

if TYPE_CHECKING:
    from declax.transforms._signatures import AxisTree

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", default=Any)  # which mypy takes where a method returns Self; it would take Never
T = TypeVar("T")

MAX_PROGRAMS = 1024
"""How many programs one function keeps; the oldest goes first."""


@overload
def pmap(
    f: Callable[P, R],
    /,
    *,
    axis_name: Hashable | None = None,
    in_axes: AxisTree = 0,
    out_axes: AxisTree = 0,
    static_broadcasted_argnums: Numbers = None,
    devices: Sequence[Any] | None = None,
    backend: str | None = None,
    axis_size: int | None = None,
    donate_argnums: Numbers = None,
    transform_metadata: Mapping[str, Any] | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> PmapWrapped[P, R]: ...
@overload
def pmap(
    *,
    axis_name: Hashable | None = None,
    in_axes: AxisTree = 0,
    out_axes: AxisTree = 0,
    static_broadcasted_argnums: Numbers = None,
    devices: Sequence[Any] | None = None,
    backend: str | None = None,
    axis_size: int | None = None,
    donate_argnums: Numbers = None,
    transform_metadata: Mapping[str, Any] | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[[Callable[P, R]], PmapWrapped[P, R]]: ...
def pmap(
    f: Callable[..., Any] | Missing = MISSING,
    /,
    *,
    axis_name: Hashable | None = None,
    in_axes: AxisTree = 0,
    out_axes: AxisTree = 0,
    static_broadcasted_argnums: Numbers = None,
    devices: Sequence[Any] | None = None,
    backend: str | None = None,
    axis_size: int | None = None,
    donate_argnums: Numbers = None,
    transform_metadata: Mapping[str, Any] | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Maps a function of models over axes of its arguments, each instance on a device of its own.

    As `vmap` otherwise: what the function does to its arguments happens to the
    caller's, at the axes that they have. What all instances share may be set
    to what is the same for all, as by `jax.lax.pmean`.

    Args:
      f: the function; leave it out to use `pmap` as a decorator with options.
      axis_name: for collectives inside of the function.
      in_axes, out_axes: as in `vmap`. A tuple has an entry for static arguments
        too, which is not looked at.
      static_broadcasted_argnums: arguments that are compiled in; hashable.
      devices, backend, axis_size: as in `jax.pmap`.
      donate_argnums: arguments whose buffers may be reused. Of a model, those
        of the Variables that the function sets are.
      transform_metadata: as in `vmap`.
      graph, graph_updates: as in `jit`.

    Returns:
      The mapped function, which is also usable as a method.

    Raises:
      TransformError: for axes that do not fit, and for what has no axis and
        comes out different in the instances.

    >>> import jax.numpy as jnp
    >>> from declax._variables import Param
    >>> p = Param(jnp.arange(3.0)[None])  # on one device
    >>> pmap(lambda p, x: p * x, in_axes=(0, None))(p, 2.0)
    Array([[0., 2., 4.]], dtype=float32)
    """
    check_metadata(transform_metadata)
    options: dict[str, Any] = {"axis_name": axis_name, "axis_size": axis_size}
    placed = {name: given for name, given in (("devices", devices), ("backend", backend)) if given is not None}
    mode = Mode.of(graph, graph_updates)

    def map_(f: Callable[..., Any]) -> PmapWrapped[..., Any]:
        if not callable(f):
            raise TransformError("pmap", "the argument is no function", got=describe(f), fix="dx.pmap(function)")
        static = Selection(f, "static_broadcasted", static_broadcasted_argnums, None)
        donated = Selection(f, "donate", donate_argnums, None)
        static.check_apart(donated)
        axes = Prefixes(_without(in_axes, static.numbers), out_axes)
        return PmapWrapped(f, axes, (static, donated), options, placed, transform_metadata, mode)

    return map_ if f is MISSING else map_(f)


def _without(in_axes: Any, statics: tuple[int, ...]) -> Any:
    """The axes of the arguments that are not static."""
    if not statics or not isinstance(in_axes, (tuple, list)):
        return in_axes
    return tuple(axis for i, axis in enumerate(in_axes) if i not in statics)


class PmapWrapped(Generic[P, R]):
    """A function that is mapped over devices; see `pmap`."""

    def __init__(
        self,
        f: Callable[P, R],
        axes: Prefixes,
        selected: tuple[Selection, Selection],
        options: dict[str, Any],
        placed: dict[str, Any],
        metadata: Mapping[str, Any] | None,
        mode: Mode,
    ) -> None:
        look_like(self, f)
        self._closure = Closure(f)
        self._axes = axes
        self._static, self._donated = selected
        self._options = options
        self._placed = placed
        self._metadata = metadata
        self._mode = mode
        self._warned: set[str] = set()
        self._programs: dict[Hashable, _Program] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function with arguments that have one axis more."""
        result: R = run(lambda: self._take(args, kwargs), lambda call: self._program(call).run(call))
        return result

    def _take(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Takes the arguments apart."""
        statics = None
        if not self._static.is_empty:
            args, kwargs, statics = self._static.take(args, kwargs)
        call = Call(args, kwargs, self._mode, self._closure.find(), statics)
        call.check_arrays()
        return call

    def _program(self, call: Call) -> _Program:
        """What runs a call."""
        statics = () if call.statics is None else call.statics[0]
        skipped = {*self._static.numbers, *(number for number, _ in statics)}
        labels = self._axes.labels(call, self._closure.function, skipped=skipped)
        key = (call.key, tuple(labels.values), tuple(labels.plain))
        program = self._programs.get(key)
        if program is None:
            while len(self._programs) >= MAX_PROGRAMS:
                self._programs.pop(next(iter(tuple(self._programs))), None)
            program = self._programs[key] = self._make_program(call, labels)
        return program

    def _make_program(self, call: Call, labels: Labels) -> _Program:
        statics = call.statics

        def adapt(function: Callable[..., Any]) -> Callable[..., Any]:
            function = function if statics is None else self._static.give(function, statics)
            return name_axes(function, self._axes, self._metadata)

        body = lifted(self._closure, call.structure, self._mode, labels, adapt)
        body.__name__ = name_of(self._closure.function)
        groups = self._axes.groups(labels, None)
        donated = None if self._donated.is_empty else functools.partial(self._positions, statics)
        return _Program(body, (labels, groups), self._options, self._placed, donated, self._warned)

    def _positions(self, statics: Any, call: Call, outcome: Outcome) -> tuple[int, ...]:
        """The donated leaves: of models those that are written, and the plain ones."""
        structure = call.structure
        args, kwargs, _ = jax.tree_util.tree_unflatten(structure.tree, range(len(structure.is_root)))
        given = list(args)
        for number, _ in () if statics is None else statics[0]:
            given.insert(number, None)
        chosen = set(jax.tree.leaves(self._donated.chosen(given, kwargs)))
        written = written_leaves(call, outcome)
        values = [i for i, root in enumerate(call.leaf_roots()) if root in chosen and i in written]
        plain_at = [i for i, is_one in enumerate(structure.is_root) if not is_one]
        plain = [len(call.values) + rank for rank, i in enumerate(plain_at) if i in chosen]
        return (*values, *plain)

    @overload
    def __get__(self, instance: None, owner: type) -> PmapWrapped[P, R]: ...
    @overload
    def __get__(self: PmapWrapped[Concatenate[T, Q], R], instance: T, owner: type | None = None) -> Callable[Q, R]: ...
    @overload
    def __get__(
        self: PmapWrapped[Concatenate[type[T], Q], R], instance: T, owner: type | None = None
    ) -> Callable[Q, R]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Callable[P, R]: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> Any:
        """The mapped method of an instance."""
        return self if instance is None else types.MethodType(self, instance)

    def _over(self, closure: Closure) -> PmapWrapped[P, R]:
        """The same mapping of another function."""
        made: PmapWrapped[P, R] = copy.copy(self)
        made._closure, made._programs = closure, {}
        return made

    def __repr__(self) -> str:
        return f"pmap({self._closure.function!r})"


class _Program:
    """What is compiled for one structure.

    Args:
      body: of the graph's leaves and the plain ones; made by `lifted`.
      labels: the axes of the leaves, and those that results can have.
      options: of `jax.vmap` and `jax.pmap`.
      placed: of `jax.pmap` only.
      donated: says which leaves are, once it is known which are set; None for none.
      warned: the paths of which a warning has told.
    """

    def __init__(
        self,
        body: Callable[..., Outcome],
        labels: tuple[Labels, OutputGroups],
        options: dict[str, Any],
        placed: dict[str, Any],
        donated: Callable[[Call, Outcome], tuple[int, ...]] | None,
        warned: set[str],
    ) -> None:
        self._body = body
        self._labels, self._groups = labels
        self._options = options
        self._placed = placed
        self._donated = donated
        self._warned = warned
        self._is_checked = True
        self._calls_back: bool | None = None  # not known before it is traced
        self._checked: set[Hashable] = set()
        self._in_groups = in_groups(body, self._groups, self._note)
        self._pmapped: Any = self._pmap(()) if donated is None else None

    def _pmap(self, donated: tuple[int, ...]) -> Any:
        itself = weakref.ref(self)  # since JAX keeps each function that it maps so, and all it refers to, for ever
        count = len(self._labels.values)

        def flat(*leaves: Any) -> Any:
            program = itself()
            assert program is not None  # it is calling
            return program._in_groups(leaves[:count], leaves[count:])

        flat.__name__ = flat.__qualname__ = self._body.__name__
        in_axes = (*self._labels.values, *self._labels.plain)
        options: dict[str, Any] = {**self._options, **self._placed, "donate_argnums": donated}
        return jax.pmap(flat, in_axes=in_axes, out_axes=(None, self._groups.known), **options)

    def _note(self, plan: Plan, leaves: Sequence[Any]) -> None:
        assert plan.labels is not None  # the function has labels
        self._is_checked = None not in plan.labels

    def run(self, call: Call) -> Outcome:
        """Runs it on the leaves of a call.

        Raises:
          TransformError: what has no axis comes out different in the instances.
        """
        leaves = (*call.values, *call.plain)
        if self._calls_back is None:
            self._prepare(call, leaves)
        outcome = from_groups(self._pmapped(*leaves))
        if self._calls_back:
            wait(outcome)
        if not self._is_checked:
            self._check(call)
        return outcome

    def _prepare(self, call: Call, leaves: tuple[Any, ...]) -> None:
        """Finds out whether the function calls back, and what may be donated; JAX keeps the trace for running it.

        JAX tells of what it has mapped so nothing but the lowered text, in
        which a callback is a call of that name, or a transfer to the host.
        """
        pmapped = self._pmap(()) if self._pmapped is None else self._pmapped
        try:
            lowered = pmapped.lower(*leaves)
        except (TypeError, ValueError):
            labels = (*self._labels.plain, *self._labels.values)
            for (name, leaf), label in zip(named_leaves(call), labels, strict=True):
                if label is not None and is_ref(leaf):
                    raise no_ref(name, "this is an array ref, which cannot be spread over devices") from None
            raise
        text = lowered.as_text()
        self._calls_back = "callback" in text or "host_transfer" in text
        if self._donated is not None:
            if not self._is_checked:
                self._check(call)
            self._pmapped = self._pmap(self._donated(call, from_groups(lowered.out_info)))

    def _check(self, call: Call) -> None:
        """Traces the function once more, under `jax.vmap`, which tells what differs between instances.

        Once for leaves of the same shapes; JAX traces more often, as for other shardings.
        """
        shapes = tuple((jax.numpy.shape(leaf), jax.numpy.result_type(leaf)) for leaf in (*call.values, *call.plain))
        if shapes in self._checked:
            self._is_checked = True
            return
        look = functools.partial(check_shared, call, self._labels, self._warned, transform="pmap")
        function = in_groups(self._body, self._groups, look)
        in_axes = (self._labels.values, self._labels.plain)
        mapped = jax.vmap(function, in_axes=in_axes, out_axes=(None, self._groups.known), **self._options)
        try:
            jax.eval_shape(mapped, call.values, call.plain)
        except NotImplementedError as error:
            raise TransformError(
                "pmap",
                "it cannot be told whether what has no axis is the same in all instances",
                why=f"JAX has no rule for a collective that the function uses: {error}",
                fix="in_axes=dx.StateAxes({...: 0}), out_axes=0        # an axis for each",
            ) from error
        self._checked.add(shapes)
        self._is_checked = True
