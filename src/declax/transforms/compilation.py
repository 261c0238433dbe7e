"""`jit` for functions of mutable, shared objects, and functions whose first arguments are given once.

A call reads as `JitWrapped.__call__` and `JitWrapped._slow_path` do: guard, bind the arguments, look the program up or
trace it, run it, commit. A miss is None at each of these steps.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, Self, TypeVar, Unpack, cast, overload

import jax
from jax.sharding import NamedSharding

from declax._classes.pytree import Pytree
from declax._graph.binding import Binding, bind
from declax._jax import TOP, hide_frames, is_jit_disabled
from declax._jax import trace_state as _trace_state
from declax._lazy import lazy_names
from declax._modes import set_graph_updates
from declax._tree import epoch
from declax._tree.codegen import compile_functions
from declax._typing import MISSING, Missing
from declax._variables.donation import note_donor
from declax._variables.placement import context_mesh
from declax._variables.variable import fill_raw, run_all
from declax.transforms._engine.lift import (
    CONFLICT,
    UNCHANGED,
    Call,
    Names,
    Numbers,
    Outcome,
    P,
    Plan,
    R,
    Selection,
    Wrapped,
    attempts,
    calls_back,
    commit,
    lifted,
    program_for,
    wait,
)
from declax.transforms._engine.placement import place, shardings_of
from declax.transforms._engine.prefixes import SHARDINGS, Labels, OutputGroups, Prefixes, from_groups, in_groups
from declax.transforms._engine.prefixes import StateSharding as StateSharding
from declax.transforms._engine.refusals import check_results, explain_shardings, unless_elsewhere
from declax.transforms._engine.structure import (
    Mode,
    Structure,
    Trace,
    Traces,
    checked_function,
    deleted_leaves,
    explain,
    is_leaf,
    name_of,
    named,
    unless_deleted,
)
from declax.transforms._engine.tracing import written_leaves
from declax.transforms.stages import Staged, Traced

if TYPE_CHECKING:
    from declax.transforms._engine.signatures import JitOptions, ModeOptions
    from declax.transforms.sharding import shard_map as shard_map
else:
    __getattr__ = lazy_names(__name__, shard_map="declax.transforms.sharding")  # as the peer's module of this name

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")

_acquire, _release = epoch.committing.acquire, epoch.committing.release
"""In half of the time of a `with`. Between `try` and the first, the interpreter does not look for signals."""


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
    shardings = None if has_none else Prefixes(in_shardings, out_shardings, SHARDINGS)
    static, donated = (static_argnums, static_argnames), (donate_argnums, donate_argnames)
    options: dict[str, Any] = {"keep_unused": keep_unused, "inline": inline}
    given = {"device": device, "backend": backend, "compiler_options": compiler_options}
    options |= {name: value for name, value in given.items() if value is not None}

    def compile_(fun: Callable[..., Any]) -> JitWrapped[..., Any]:
        return JitWrapped(fun, shardings, static, donated, options, Mode.of(graph, graph_updates))

    return compile_ if fun is MISSING else compile_(fun)


def _unpickled(fun: Callable[..., Any], shardings: tuple[Any, Any] | None, *rest: Any) -> JitWrapped[..., Any]:
    prefixes = None if shardings is None else Prefixes(*shardings, SHARDINGS)
    return JitWrapped(fun, prefixes, *rest)


class JitWrapped(Wrapped[P, R], Staged[P, R]):
    """A compiled function; see `jit`."""

    __slots__ = ("_entry",)  # a slot, since each call reads it

    _transform = "jit"
    _entry: CacheEntry | None

    def __init__(
        self,
        fun: Callable[P, R],
        shardings: Prefixes | None,
        static: tuple[Numbers, Names],
        donated: tuple[Numbers, Names],
        options: dict[str, Any],
        mode: Mode,
    ) -> None:
        checked_function("jit", "fun", fun)
        selected = Selection(fun, "static", *static)
        super().__init__(fun, mode, selected)
        self._given = static, donated
        self._options = options
        self._shardings = shardings
        self._donated = Selection(fun, "donate", *donated)
        selected.check_apart(self._donated)

    def __reduce__(self) -> Any:
        """The function with its options, as of `jax.jit`: programs stay in their process."""
        shardings = None if self._shardings is None else (self._shardings.of_arguments, self._shardings.of_results)
        return _unpickled, (self._closure.user, shardings, *self._given, self._options, self._mode)

    def __copy__(self) -> Self:
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        made._forget()
        return made

    def _forget(self) -> None:
        self._programs: dict[Hashable, Program] = {}
        self._entry = None
        self._traces = Traces()

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
                and (values is not None or (values := binding.values()) is not None)
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
                        variables: Any = binding.variables if key else binding.variables_at(plan.changed)
                        steps, after = map(fill_raw, variables, new), {} if key is None else {key: new}
                        try:
                            _acquire()
                            if _trace_state.value is TOP and epoch.kept is kept is not None:
                                epoch.kept = after  # no call until all is written, so that no other write comes between
                                run_all(steps)
                                return output
                        finally:
                            _release()
                    if plan.calls_back is not False:
                        entry.program.wait_for_callbacks(plan, leaves, result)
                    output = commit(binding, leaves, result)
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
            outcome = program.run(call)
            if call.captures is not None and call.structure.statics is None:
                self._entry = CacheEntry.of(args, kwargs, call, program)
            output = commit(call.binding, call.leaves, outcome.parts())
            if output is not CONFLICT:
                program.place(call.binding, outcome.plan)
                break
        return cast("R", output)

    def _program(self, call: Call) -> Program:
        return program_for(self._programs, call.structure, functools.partial(self._make_program, call))

    def _make_program(self, call: Call) -> Program:
        structure, shardings, user = call.structure, self._shardings, self._closure.function
        placed = labels = None
        if shardings is not None:
            skipped = {*self._static.numbers, *structure.static_numbers}
            labels = shardings.labels(structure, call.leaves, user, of_keywords=None, skipped=skipped)
            placed = (labels, shardings.groups(labels, None))
        donation = Donation.of(call, self._donated)
        donated = () if donation is None else donation.of_graph
        adapt = functools.partial(self._static.give, statics=structure.statics)
        function = lifted(self._closure, structure, self._mode, labels, adapt, donated)
        function = named(function, user, structure)
        return Program(function, structure, donation, self._options, placed, self._traces)

    @property
    def num_traces(self) -> int:
        """How many times the function was traced; `explain_retrace` says why."""
        return self._traces.count

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


# ----------------------------------------------------------------- programs


class Donation:
    """Which leaves a program donates, of donated models those that the function sets; known once it was traced.

    A later trace, for other shapes, returns the values of the donated leaves of the graph also where it sets none.
    """

    __slots__ = ("_values", "of_graph", "plain", "positions")

    def __init__(self, values: frozenset[int], plain: tuple[int, ...]) -> None:
        self._values = values
        self.plain: tuple[int, ...] = plain
        self.of_graph: set[int] = set()
        self.positions: tuple[int, ...] | None = None

    @staticmethod
    def of(call: Call, selection: Selection) -> Donation | None:
        """The donated leaves of a call; None if there are none."""
        if selection.is_empty:
            return None
        structure = call.structure
        args, kwargs, _ = jax.tree_util.tree_unflatten(structure.tree, range(len(structure.is_root)))
        args = list(args)
        for number in structure.static_numbers:
            args.insert(number, None)
        chosen = set(jax.tree.leaves(selection.chosen(args, kwargs)))
        values = frozenset(i for i, root in enumerate(structure.leaf_roots()) if root in chosen)
        plain_at = [i for i, is_one in enumerate(structure.is_root) if not is_one]
        return Donation(values, tuple(len(call.values) + rank for rank, i in enumerate(plain_at) if i in chosen))

    def choose(self, written: set[int]) -> None:
        """Donates those of the graph's leaves that are written."""
        self.of_graph |= self._values & written
        self.positions = (*sorted(self.of_graph), *self.plain)


ROOM: Final = 2**14
"""How many words Python reserves for the frames of a trace.

It maps memory for 16 KiB of frames at a time, and unmaps it when the first of these returns. The frames of a trace need
20 to 40 KiB, so that the calls across the border of 16 KiB would map memory thousands of times.
"""


class Program:
    """The compiled programs of one structure.

    JAX traces the function once for each set of shapes, at the first call with them. Each trace has its own `Plan`.
    Only a program with donation is traced before its first call, since it donates the values that the function sets.
    `run_fast` takes the leaves of a call, and returns the parts of an Outcome.
    """

    def __init__(
        self,
        function: Callable[..., Outcome],
        structure: Structure,
        donation: Donation | None,
        options: dict[str, Any],
        placed: tuple[Labels, OutputGroups] | None,
        traces: Traces,
    ) -> None:
        self._structure = structure
        self._donation = donation
        self._is_packed = placed is not None
        self._labels: tuple[Any, ...] = ()
        self._results: Sequence[Any] = ()
        self._options: dict[str, Any] = options
        packed: Callable[..., Any] | None = None
        if placed is not None:
            labels, groups = placed
            packed = in_groups(function, groups, functools.partial(check_results, structure))
            self._labels, self._results = tuple(labels.leaves), groups.known
            self._options = {**options, "in_shardings": self._labels, "out_shardings": (None, self._results)}
        self._shardings = functools.lru_cache(1)(functools.partial(shardings_of, structure, self._labels))
        self.moves_arrays: bool = any(label is not None for label in self._labels[: structure.num_leaves])

        def flat(*leaves: Any) -> Any:
            traces.note(Trace.of(structure, leaves))
            return function(*leaves).parts() if packed is None else packed(*leaves)

        flat.__code__ = flat.__code__.replace(co_stacksize=ROOM)
        self._flat = functools.update_wrapper(flat, function)
        self._compile()

    def _compile(self) -> None:
        """Compiles the function, anew once it is known what it donates; JAX keeps its traces."""
        positions = None if self._donation is None else self._donation.positions
        if positions:
            note_donor(self.name)
        self._jitted: Any = jax.jit(self._flat, donate_argnums=positions, **self._options)
        donated = self._donation is not None and self._donation.plain
        run = unless_deleted(self._jitted, self._structure, donated) if donated else self._jitted
        if any(isinstance(label, NamedSharding) for label in self._labels):
            run = unless_elsewhere(run, self._structure, self._labels)
        self.run_fast: Callable[..., Any] = (lambda *leaves: from_groups(run(*leaves))) if self._is_packed else run

    @property
    def name(self) -> str:
        """The name of the user's function."""
        return name_of(self._flat)

    def run(self, call: Call) -> Outcome:
        """Runs it on the leaves of a call, some of which are lost if it donates; an error names those."""
        leaves = call.leaves
        try:
            self._choose_donated(call)
            result = self.run_fast(*leaves)
            outcome = Outcome(*result)
            self.wait_for_callbacks(outcome.plan, leaves, result)
        except BaseException as error:
            self.explain(call, error)
            raise
        return outcome

    def place(self, binding: Binding, plan: Plan) -> None:
        """Moves the arrays of the arguments that the function has not set to where `in_shardings` says."""
        if self.moves_arrays and len(plan.changed) < len(binding.variables):
            place(binding, self._shardings(context_mesh()))

    def trace(self, call: Call) -> Any:
        """The stage of JAX for a call."""
        try:
            self._choose_donated(call)
            return self._trace(call)[0]
        except Exception as error:
            self.explain(call, error)
            raise

    def _choose_donated(self, call: Call) -> None:
        """Decides what to donate, before the first call."""
        if (donation := self._donation) and donation.positions is None and not is_jit_disabled():
            traced, plan = self._trace(call)
            plan.calls_back = calls_back(traced.jaxpr)  # later, donated arrays are gone
            donation.choose(set(written_leaves(call.structure, plan)))
            self._compile()

    def _trace(self, call: Call) -> tuple[Any, Plan]:
        traced = self._jitted.trace(*call.leaves)
        return traced, self.outcome(traced.out_info).plan

    def wait_for_callbacks(self, plan: Plan, leaves: Sequence[Any], result: Any) -> None:
        """Waits for what ran, if it calls Python while it runs: it may still fail, and nothing is committed then."""
        if plan.calls_back is None:
            plan.calls_back = not is_jit_disabled() and calls_back(self._jitted.trace(*leaves).jaxpr)
        if plan.calls_back:
            wait(result)

    def explain(self, call: Call, error: BaseException) -> None:
        """Explains an error of a run in the user's words, and notes which donated leaves have lost their buffers."""
        lost = [] if self._donation is None else [name for name, _ in deleted_leaves(call)]
        if lost:
            error.add_note(
                "The arguments of this call were donated, and these have lost their buffers: "
                f"{', '.join(lost)}. Load a checkpoint, or call it without donation."
            )
        explain_shardings(call, self._labels, self._results, context_mesh(), error)
        explain(call, error)

    def outcome(self, result: Any) -> Outcome:
        """The plan and values in a result of JAX's function, grouped or not."""
        return Outcome(*from_groups(result)) if self._is_packed else Outcome(*result)


# ----------------------------------------------------------------- calls like the last one

MOST: Final = 64
"""The largest number of models, containers and arrays in arguments with a shape; JAX flattens more at each call."""

FEW: Final = 6
"""Up to this many arrays of a container, each has its own line in the guard; more of them share one."""

Guard = Callable[[tuple[Any, ...], dict[str, Any]], "tuple[Any, ...] | None"]
"""Gives the arrays and numbers among arguments, in JAX's order; None for other arguments."""


class CacheEntry:
    """A call, to recognise the next one like it.

    A binding that lives implies that its roots live, so identities tell them apart. Values are kept under the `key`.
    `writes` are the last plan that only sets Variables, and the key if it sets all of the graph.
    """

    __slots__ = ("binding", "captures_the_same", "guard", "is_fixed", "key", "program", "run", "structure", "writes")

    def __init__(
        self, guard: Guard, binding: Binding, call: Call, program: Program, captures_the_same: Callable[[], bool] | None
    ) -> None:
        self.guard: Guard = guard
        self.captures_the_same: Callable[[], bool] | None = captures_the_same
        self.structure: Structure = call.structure
        self.binding: Callable[[], Binding | None] = weakref.ref(binding)
        self.is_fixed: bool = binding.is_fixed and captures_the_same is None
        self.key: int = id(binding)
        self.program: Program = program
        self.run: Callable[..., Any] = program.run_fast
        self.writes: tuple[Plan, int | None] = UNCHANGED, None

    @staticmethod
    def of(args: tuple[Any, ...], kwargs: dict[str, Any], call: Call, program: Program) -> CacheEntry | None:
        """The entry of a call; None if no guard can recognise its arguments."""
        if not call.roots or call.captures is None:
            return None
        watched, captures_the_same = call.captures.watched(), None
        if watched is None or len(watched) > MOST:
            watched, captures_the_same = [], call.captures.is_current
        guard = make_guard(args, kwargs, watched)
        return None if guard is None else CacheEntry(guard, call.binding, call, program, captures_the_same)

    def note(self, plan: Plan, binding: Binding) -> None:
        """Notes a plan that sets Variables and does nothing else, so that the next call commits it at once."""
        sets_all = len(plan.changed) == len(binding.variables)
        is_plain = plan.change is None and plan.calls_back is False and binding.is_kept
        if is_plain and (sets_all or not self.program.moves_arrays):
            self.writes = plan, self.key if sets_all else None

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """A call like this one; None for another one."""
        plain, binding = self.guard(args, kwargs), self.binding()
        values = None if plain is None or binding is None or not self.is_current(binding) else binding.values()
        if plain is None or binding is None or values is None:
            return None
        return Call.from_binding(self.structure, binding, values, plain)

    def is_current(self, binding: Binding) -> bool:
        """Whether the graph and the captures are still those of the call."""
        return binding.is_valid() and (self.captures_the_same is None or self.captures_the_same())


def make_guard(
    args: tuple[Any, ...], kwargs: dict[str, Any], watched: Sequence[tuple[Any, str | None, Any]] = ()
) -> Guard | None:
    """The guard of arguments like these; None for arguments without a shape.

    >>> guard = make_guard(({"x": 1, "y": 2},), {})
    >>> guard(({"y": 4, "x": 3},), {}), guard(([3, 4],), {})
    ((3, 4), None)
    """
    writer = _GuardWriter()
    try:
        writer.look("args", args, is_tuple=True)
        if kwargs:
            writer.look("kwargs", kwargs)
        else:
            writer.demand("not kwargs")
        for place in watched:
            writer.watch(*place)
    except _NoShapeError:
        return None
    guard = _compiled(writer.source())
    return types.FunctionType(guard.__code__, guard.__globals__, guard.__name__, tuple(writer.given))


class _NoShapeError(Exception):
    """Arguments are not recognised."""


class _GuardWriter:
    """Writes a guard; `given` are the objects ``g0``, ``g1``, ... of the source."""

    def __init__(self) -> None:
        self.given: list[Any] = []
        self._names = map("v{}".format, count())
        self._lines: list[str] = []
        self._leaves: list[str] = []

    def demand(self, condition: str) -> None:
        """Requires arguments to meet a condition."""
        self._lines.append(f"if not ({condition}): return None")

    def look(self, name: str, value: Any, *, is_tuple: bool = False) -> None:
        """Requires the value of a name to be like a value; raises _NoShapeError for values that no guard knows."""
        if len(self._lines) > 2 * MOST:
            raise _NoShapeError
        cls = value.__class__
        if isinstance(value, Pytree):
            self.demand(f"{name} is {self._give(weakref.ref(value))}()")
        elif value is None:
            self.demand(f"{name} is None")
        elif cls in (tuple, list, dict):
            if not is_tuple:
                self.demand(f"{name}.__class__ is {cls.__name__}")
            self.demand(f"len({name}) == {len(value)}")
            if value:
                self._look_into(name, value)
        elif is_leaf(value):
            self.demand(f"type({name}) is {self._give(type(value))} or is_leaf({name})")
            self._leaves.append(name)
        else:
            raise _NoShapeError

    def watch(self, holder: Any, key: str | None, content: object) -> None:
        """Requires the contents of a cell, or of a name of a module, to be the same."""
        place = ".cell_contents" if key is None else f"[{self._give(key)}]"
        self.demand(f"{self._give(holder)}{place} is {self._give(content)}")

    def _look_into(self, name: str, value: Any) -> None:
        items = value
        if isinstance(value, dict):
            try:
                keys = tuple(sorted(value))
            except TypeError as error:
                raise _NoShapeError from error
            items = [value[key] for key in keys]
            taken = next(self._names)
            if len(keys) > FEW:
                self._lines.append(f"{taken} = [{name}[key] for key in {self._give(keys)}]")
            else:
                self._lines.append(f"{taken} = {''.join([f'{name}[{self._give(key)}], ' for key in keys])}")
            name = taken
        if len(items) > FEW and all_leaves(items):
            self.demand(f"all_leaves({name})")
            self._leaves.append(f"*{name}")
            return
        parts = [next(self._names) for _ in items]
        self._lines.append(f"{', '.join(parts)}, = {name}")
        for part, item in zip(parts, items, strict=True):
            self.look(part, item)

    def _give(self, value: Any) -> str:
        self.given.append(value)
        return f"g{len(self.given) - 1}"

    def source(self) -> str:
        """The source of the guard, whose defaults are the given objects, next to each other in memory."""
        given = "".join([f", g{number}" for number in range(len(self.given))])
        lines = [
            f"def guard(args, kwargs{given}):",
            "    try:",
            *[f"        {line}" for line in self._lines],
            f"        return ({''.join([f'{leaf}, ' for leaf in self._leaves])})",
            "    except (KeyError, ValueError):  # another key, no content, or a list that another thread changes",
            "        return None",
        ]
        return "\n".join(lines)


def all_leaves(values: Iterable[Any]) -> bool:
    """Whether all values are arrays or numbers."""
    return all(map(is_leaf, values))


@functools.lru_cache(maxsize=256)
def _compiled(source: str) -> Any:
    parameters = {"is_leaf": is_leaf, "all_leaves": all_leaves}
    return compile_functions("arguments", [source], parameters)[0]
