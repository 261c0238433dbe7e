"""`jit` for functions of mutable, shared objects, and functions whose first arguments are given once.

A call reads as `JitWrapped.__call__` and `JitWrapped._slow_path` do: guard, bind the arguments, look the program up or
trace it, run it, commit. A miss is None at each of these steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, Self, TypeVar, Unpack, cast, overload

import jax
from jax.sharding import Mesh

from declax._graph.binding import Binding, bind, bind_many
from declax._jax import TOP, hide_frames
from declax._jax import trace_state as _trace_state
from declax._lazy import lazy_names
from declax._modes import set_graph_updates
from declax._tree import epoch
from declax._tree.epoch import committing
from declax._typing import MISSING, Missing
from declax._variables.placement import SplitBatch, context_mesh
from declax._variables.variable import write_all_raw
from declax.transforms._engine.call import Call
from declax.transforms._engine.commit import CONFLICT, attempts, commit
from declax.transforms._engine.diagnostics import named
from declax.transforms._engine.guards import ALWAYS, CacheEntry, turns
from declax.transforms._engine.holding import (
    Held,
    all_committed,
    held_shardings,
    mesh_of,
    put_labelled,
    specs_on,
    split_batch,
    with_results_on,
)
from declax.transforms._engine.outcome import UNCHANGED, lifted
from declax.transforms._engine.prefixes import SHARDINGS, Labels, OutputGroups, Prefixes
from declax.transforms._engine.prefixes import StateSharding as StateSharding
from declax.transforms._engine.programs import Donation, Program
from declax.transforms._engine.structure import Mode, Traces, checked_function
from declax.transforms._engine.unsplit import warn_of_unsplit_axes
from declax.transforms._engine.wrapped import Names, Numbers, P, R, Selection, Wrapped, program_for
from declax.transforms.stages import Staged, Traced

if TYPE_CHECKING:
    from declax.transforms._engine.signatures import JitOptions, ModeOptions
    from declax.transforms.sharding import shard_map as shard_map
else:
    __getattr__ = lazy_names(__name__, shard_map="declax.transforms.sharding")  # as the peer's module of this name

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


@overload
def jit(fun: Callable[P, R], **options: Unpack[JitOptions]) -> JitWrapped[P, R]: ...
@overload
def jit(**options: Unpack[JitOptions]) -> Callable[[Callable[P, R]], JitWrapped[P, R]]: ...
def jit(
    fun: Callable[..., Any] | Missing = MISSING,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: Numbers = None,
    static_argnames: Names = None,
    donate_argnums: Numbers = None,
    donate_argnames: Names = None,
    keep_unused: bool = False,
    device: Any = None,
    backend: str | None = None,
    inline: bool = False,
    compiler_options: dict[str, Any] | None = None,
    keep_shardings: bool = True,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Compiles a function whose arguments may be models.

    Changes that the function makes to its arguments reach the caller's objects: Variables that it sets, attributes that
    it adds or removes, references that it makes. Arguments and results may share objects. Captured models, as of a
    closure, count as arguments. If the function raises, all of them stay unchanged.

    Args:
      fun: the function; omit it to use `jit` as a decorator with options.
      in_shardings: a sharding, a `PartitionSpec`, None, or a tree of these: a prefix of the tuple of arguments that
        are not static. `StateSharding` places a model's leaves by filter. After the call, the model's arrays are there.
      out_shardings: likewise for the result.
      static_argnums, static_argnames: arguments that are compiled in; hashable.
      donate_argnums, donate_argnames: arguments whose buffers may be reused; of a model, those of the Variables that
        the function sets.
      keep_shardings: whether Variables that the function sets keep the shardings with which they came; False leaves
        it to XLA. A value that the function constrains or moves, or one of another shape, keeps its own.
      keep_unused, device, backend, inline, compiler_options: as in `jax.jit`.
      graph: False where the arguments have to be trees, in which nothing is shared; None for the default of
        `set_graph_mode` where `jit` is called.
      graph_updates: False where the function may set Variables, but must leave the structure as it is; None for the
        default of `set_graph_updates`.

    Returns:
      The compiled function, which is also usable as a method.

    Raises:
      TransformError: for options that name no parameter, for static arguments without a hash, and for a changed
        structure with ``graph_updates=False``.
      GraphError: for a graph if trees are required; names both paths.

    >>> import declax as dx
    >>> counter = dx.Module()
    >>> counter.count = dx.Variable(0)
    >>> @dx.jit
    ... def step(counter):
    ...     counter.count += 1
    >>> step(counter)
    >>> int(counter.count.value)
    1
    """
    has_none = in_shardings is None and out_shardings is None
    shardings = None if has_none else Prefixes(in_shardings, out_shardings, SHARDINGS, graph=graph)
    static, donated = (static_argnums, static_argnames), (donate_argnums, donate_argnames)
    options: dict[str, Any] = {"keep_unused": keep_unused, "inline": inline}
    given = {"device": device, "backend": backend, "compiler_options": compiler_options}
    options |= {name: value for name, value in given.items() if value is not None}

    def compile_(fun: Callable[..., Any]) -> JitWrapped[..., Any]:
        mode = Mode.of(graph, graph_updates)
        return JitWrapped(fun, shardings, static, donated, options, mode, keep_shardings=keep_shardings)

    return compile_ if fun is MISSING else compile_(fun)


def _unpickled(fun: Callable[..., Any], shardings: tuple[Any, Any] | None, *rest: Any) -> JitWrapped[..., Any]:
    prefixes = None if shardings is None else Prefixes(*shardings, SHARDINGS, graph=True)  # checked when it was made
    return JitWrapped(fun, prefixes, *rest)


class JitWrapped(Wrapped[P, R], Staged[P, R]):
    """A compiled function; see `jit`."""

    __slots__ = ("_entry",)  # a slot, since each call reads it

    _transform = "jit"
    _entry: CacheEntry | None
    _bind: ClassVar[staticmethod[[tuple[Any, ...]], Binding]] = staticmethod(bind_many)

    def __init__(
        self,
        fun: Callable[P, R],
        shardings: Prefixes | None,
        static: tuple[Numbers, Names],
        donated: tuple[Numbers, Names],
        options: dict[str, Any],
        mode: Mode,
        keep_shardings: bool = True,
    ) -> None:
        checked_function("jit", "fun", fun)
        selected = Selection(fun, "static", *static)
        super().__init__(fun, mode, selected)
        self._given = static, donated
        self._options = options
        self._shardings = shardings
        self._keep_shardings = keep_shardings
        self._has_warned: bool = False
        self._donated = Selection(fun, "donate", *donated)
        selected.check_apart(self._donated)

    def __reduce__(self) -> Any:
        """The function with its options, as of `jax.jit`: programs stay in their process."""
        shardings = None if self._shardings is None else (self._shardings.of_arguments, self._shardings.of_results)
        return _unpickled, (
            self._closure.user,
            shardings,
            *self._given,
            self._options,
            self._mode,
            self._keep_shardings,
        )

    def __copy__(self) -> Self:
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        made._forget()
        return made

    def _forget(self) -> None:
        self._programs: dict[Hashable, Program] = {}
        self._entry = None
        self._traces = Traces()
        self._is_turn = turns(False, True)

    def _bind_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        call = super()._bind_arguments(args, kwargs)
        if self._is_turn() and call.binding.sees_other_writes():
            call = super()._bind_arguments(args, kwargs)
        return call

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function with the arguments of its signature."""
        # The fast path is one frame: XLA has just used the cache of the processor, so each function costs more.
        entry = self._entry
        if entry is not None:
            run, plain, binding, kept = entry.run, entry.guard(args, kwargs), entry.binding(), epoch.kept
            values = kept.get(entry.key) if kept else None
            if (
                plain is not None
                and binding is not None
                and binding._token is epoch.token
                and (entry.is_fixed or entry.is_current(binding))
                and not (entry.is_turn() and binding.sees_other_writes())
                and (values is not None or (values := entry.read(binding)) is not None)
            ):
                leaves = values + plain
                output: R
                try:
                    result = run(*leaves)
                    plan, new, output = result
                    if plan is UNCHANGED:
                        return output
                    known, key = entry.writes
                    if plan is known:
                        variables: Any = binding.cells if key else binding.cells.at(plan.changed)
                        with committing:
                            if epoch.kept is kept is not None and _trace_state.value is TOP:  # nobody wrote since
                                write_all_raw(variables, new, {} if key is None else {key: new})
                                return output
                    if plan.calls_back is not False:
                        entry.program.wait_for_callbacks(plan, leaves, result)
                    output = commit(binding, leaves, result, entry.structure)
                    entry.note(plan, binding)
                except BaseException as error:
                    entry.program.explain(Call.from_binding(entry.structure, binding, values, plain), error)
                    raise
                if output is not CONFLICT:
                    entry.program.place(binding, plan)
                    return output  # pyright: ignore[reportReturnType]  # an R
        try:
            return self._slow_path(args, kwargs)
        except Exception as error:
            hide_frames(error)
            raise

    def _slow_path(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        """Binds the arguments, looks the program up or traces it, runs it and commits; again after a conflict."""
        output: Any = CONFLICT
        for _ in attempts():
            call = None if self._entry is None else self._entry.call(args, kwargs)
            if call is None:
                call = self._bind_arguments(args, kwargs).check_arrays()
            program = self._program(call)
            program.prepare(call)
            leaves = call.leaves
            result = program.run(call, leaves)
            if result[0].change is not None:
                self._is_turn = ALWAYS
            if call.captures is not None and call.structure.statics is None:
                self._entry = CacheEntry.of(args, kwargs, call, program)
            output = commit(call.binding, leaves, result, call.structure)
            if output is not CONFLICT:
                program.place(call.binding, result[0])
                break
        return cast("R", output)

    def _program(self, call: Call) -> Program:
        mesh = self._mesh_of(call)
        if mesh is None:
            return program_for(self._programs, call.structure, functools.partial(self._make_program, call, None, None))
        if self._shardings is not None and not all_committed(call.values):
            labels = self._labels(self._shardings, call)
            put_labelled(call, labels.leaves, mesh)
        held = held_shardings(call, mesh) if self._keep_shardings else None
        key = call.structure, held, mesh, context_mesh() is None
        return program_for(self._programs, key, functools.partial(self._make_program, call, held, mesh))

    def _mesh_of(self, call: Call) -> Mesh | None:
        """The mesh on which a call runs: the first of an argument, or that of the function's shardings."""
        if jax.device_count() == 1 or _trace_state.value is not TOP:
            return None
        found = mesh_of(call.leaves)
        return self._shardings.mesh if found is None and self._shardings is not None else found

    def _labels(self, shardings: Prefixes, call: Call) -> Labels:
        structure = call.structure
        skipped = {*self._static.numbers, *structure.static_numbers}
        return shardings.labels(structure, call.leaves, self._closure.function, of_keywords=None, skipped=skipped)

    def _make_program(self, call: Call, held: Held, mesh: Mesh | None) -> Program:
        structure, shardings, user = call.structure, self._shardings, self._closure.function
        labels = None
        placed: tuple[Sequence[Any], OutputGroups] | None = None
        of_specs = mesh if shardings is not None and context_mesh() is None else None
        if shardings is not None:
            labels = self._labels(shardings, call)
            groups = shardings.groups(labels, None)
            placed = (labels.leaves, groups) if of_specs is None else specs_on(of_specs, call, labels.leaves, groups)
        donation = Donation.of(call, self._donated)
        donated = () if donation is None else donation.of_graph
        adapt = functools.partial(self._static.give, statics=structure.statics)
        function = lifted(self._closure, structure, self._mode, labels, adapt, donated)
        if of_specs is not None:
            function = with_results_on(of_specs, function)
        function = named(function, user, structure)
        batch = SplitBatch() if mesh is None else split_batch(call, mesh, () if placed is None else placed[0])
        program = Program(function, structure, donation, self._options, placed, self._traces, held, batch)
        if held is not None and not self._has_warned:
            of_leaves: Sequence[Any] = () if labels is None else labels.leaves
            axes = set() if shardings is None else shardings.batch_axes
            self._has_warned = warn_of_unsplit_axes(
                program.name, call, of_leaves, axes, lambda: program.trace(call).jaxpr
            )
        return program

    @property
    def num_traces(self) -> int:
        """How many times the function was traced; `explain_retrace` says why."""
        return self._traces.count

    @property
    def num_compilations(self) -> int:
        """How many programs were compiled: one trace may serve several, as for arrays on other devices."""
        return sum(program.num_compilations for program in self._programs.values())

    def trace(self, *args: P.args, **kwargs: P.kwargs) -> Traced[R]:
        """Traces the function for arguments, without compiling or running it.

        >>> import declax as dx
        >>> dx.jit(lambda x: x + 1).trace(1).out_info.shape
        ()
        """
        return self.traced_after((), args, kwargs)

    def traced_after(self, first: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced[R]:
        """The stage for some first arguments, which calls of later stages leave out."""

        def take(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
            return self._bind_arguments((*first, *args), kwargs).check_arrays()

        call = take(args, kwargs)
        program = self._program(call)

        def alone(*args: Any, **kwargs: Any) -> R:
            return cast("Callable[..., R]", self)(*first, *args, **kwargs)

        def trace_alone() -> Any:
            """As JAX would trace the function, of the caller's arguments; captured values are constants."""
            alone.__name__ = program.name
            given = range(len(first))
            numbers = [number - (number >= 0) * len(first) for number in self._static.numbers if number not in given]
            return jax.jit(alone, static_argnums=numbers, static_argnames=self._static.names).trace(*args, **kwargs)

        return Traced(program.trace(call), program, take, call, trace_alone)


# ----------------------------------------------------------------- functions with first arguments


@overload
def cached_partial(f: Callable[P, R], **options: Unpack[ModeOptions]) -> Callable[P, R]: ...
@overload
def cached_partial(f: Callable[Concatenate[A, P], R], a: A, /, **options: Unpack[ModeOptions]) -> Callable[P, R]: ...
@overload
def cached_partial(
    f: Callable[Concatenate[A, B, P], R], a: A, b: B, /, **options: Unpack[ModeOptions]
) -> Callable[P, R]: ...
@overload
def cached_partial(
    f: Callable[Concatenate[A, B, C, P], R], a: A, b: B, c: C, /, **options: Unpack[ModeOptions]
) -> Callable[P, R]: ...
@overload
def cached_partial(
    f: Callable[..., R], a: Any, b: Any, c: Any, d: Any, /, *more: Any, **options: Unpack[ModeOptions]
) -> Callable[..., R]: ...
def cached_partial(
    f: Callable[..., Any], *cached_args: Any, graph: bool | None = None, graph_updates: bool | None = None
) -> Callable[..., Any]:
    """A function with its first arguments given.

    It is as fast as the function itself, since `jit` caches the structure of models with the models. Nothing is cloned,
    and the function may change the structure of the models; the next call sees the change.

    Args:
      f: a function, most often one that `declax.jit` made.
      *cached_args: its first arguments. They live as long as the result does.
      graph: False where each of them has to be a tree; None for the default of `set_graph_mode`.
      graph_updates: what transforms inside of the call take for their default, see `set_graph_updates`; None leaves it
        as it is.

    Raises:
      TransformError: `f` is not a function.

    >>> import declax as dx
    >>> count = dx.Variable(0)
    >>> @dx.jit
    ... def step(count, by):
    ...     count += by
    >>> cached_step = dx.cached_partial(step, count)
    >>> cached_step(2), cached_step(3), int(count.value)
    (None, None, 5)
    """
    checked_function("cached_partial", "f", f)
    for argument in cached_args:
        bind(argument, graph)
    in_mode = f if graph_updates is None else set_graph_updates(graph_updates)(f)
    return functools.partial(in_mode, *cached_args)


class JitPartial(functools.partial[R], Staged[P, R], Generic[P, R]):
    """A compiled function with its first arguments; see `jit_partial`.

    >>> import declax as dx
    >>> step = dx.jit_partial(lambda model, x: model.scale * x, dx.Dict(scale=dx.Param(2.0)))
    >>> float(step.lower(3.0).compile()(3.0))
    6.0
    """

    if TYPE_CHECKING:

        def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
            """Calls the function with its first arguments and these."""
            ...

    def trace(self, *args: P.args, **kwargs: P.kwargs) -> Traced[R]:
        """As `JitWrapped.trace`; the stages take the other arguments only."""
        jitted: Any = self.func
        return jitted.traced_after(self.args, args, kwargs)  # type: ignore[no-any-return]  # of a JitWrapped


@overload
def jit_partial(fun: Callable[P, R], **options: Unpack[JitOptions]) -> JitPartial[P, R]: ...
@overload
def jit_partial(fun: Callable[Concatenate[A, P], R], a: A, /, **options: Unpack[JitOptions]) -> JitPartial[P, R]: ...
@overload
def jit_partial(
    fun: Callable[Concatenate[A, B, P], R], a: A, b: B, /, **options: Unpack[JitOptions]
) -> JitPartial[P, R]: ...
@overload
def jit_partial(
    fun: Callable[Concatenate[A, B, C, P], R], a: A, b: B, c: C, /, **options: Unpack[JitOptions]
) -> JitPartial[P, R]: ...
@overload
def jit_partial(
    fun: Callable[..., R], a: Any, b: Any, c: Any, d: Any, /, *more: Any, **options: Unpack[JitOptions]
) -> JitPartial[..., R]: ...
def jit_partial(fun: Callable[..., R], *partial_args: Any, **options: Unpack[JitOptions]) -> JitPartial[..., R]:
    """Compiles a function, and gives it its first arguments.

    As ``cached_partial(jit(fun, ...), *partial_args)``: the partial arguments may change in any way between calls and
    inside of them.

    Args:
      fun: the function.
      *partial_args: its first arguments. They live as long as the result does.
      **options: those of `jit`; numbers count the parameters of `fun`. With ``graph=False`` each partial argument has
        to be a tree.

    Returns:
      The function of the other arguments, with the stages `trace` and `lower`.

    Raises:
      TransformError: `fun` is not a function, or an option names no parameter.

    >>> import declax as dx
    >>> count = dx.Variable(0)
    >>> def step(count, by):
    ...     count += by
    >>> step_by = dx.jit_partial(step, count)
    >>> step_by(2), step_by(3), int(count.value)
    (None, None, 5)
    """
    jitted: Callable[..., R] = jit(fun, **options)
    for argument in partial_args:
        bind(argument, options.get("graph"))
    bind(partial_args, options.get("graph"))  # what they share
    return JitPartial(jitted, *partial_args)
