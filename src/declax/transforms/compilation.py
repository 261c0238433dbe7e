"""`jit` for functions of mutable, shared objects.

Vocabulary
----------
program:  what is compiled for one structure and one set of static arguments.
dispatch: from a call's arguments to its program and back; nothing is walked
          while the structure of the arguments stands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, ParamSpec, overload

from declax import _epoch
from declax._typing import MISSING, Missing
from declax.errors import TransformError, describe
from declax.transforms._arguments import Names, Numbers, Selection
from declax.transforms._dispatch import CacheEntry
from declax.transforms._lift import UNCHANGED, Call, Outcome, lifted
from declax.transforms._naming import named
from declax.transforms._program import Donation, NarrowedError, Program
from declax.transforms._retraces import Traces, roots_of
from declax.transforms._running import run
from declax.transforms._structure import Mode
from declax.transforms._wrapping import R, Wrapped, program_for
from declax.transforms.prefixes import Prefixes
from declax.transforms.shardings import jit_shardings
from declax.transforms.stages import Lowered, Traced

if TYPE_CHECKING:
    from typing import Unpack

    from declax.transforms._signatures import JitOptions

P = ParamSpec("P")


@overload
def jit(fun: Callable[P, R], /, **options: Unpack[JitOptions]) -> JitWrapped[P, R]: ...
@overload
def jit(**options: Unpack[JitOptions]) -> Callable[[Callable[P, R]], JitWrapped[P, R]]: ...
def jit(
    fun: Callable[..., Any] | Missing = MISSING,
    /,
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

    What the function does to its arguments happens to the caller's: Variables
    that it sets, attributes that it adds or removes, references that it makes.
    Arguments and results may share objects. Models that it captures, as by
    its closure, are handled as arguments too. A function that raises leaves
    all of them as they were.

    Args:
      fun: the function; leave it out to use `jit` as a decorator with options.
      in_shardings: a sharding, a `PartitionSpec`, None, or a tree of these: a
        prefix of the tuple of arguments that are not static. `StateSharding`
        places a model's leaves by filter. What the function sets stays so placed.
      out_shardings: likewise for the result.
      static_argnums, static_argnames: arguments that are compiled in; hashable.
      donate_argnums, donate_argnames: arguments whose buffers may be reused.
        Of a model, those of the Variables that the function sets are.
      keep_unused, device, backend, inline, compiler_options: as in `jax.jit`.
      graph: False where the arguments have to be trees, in which nothing is
        shared; None for the default of `set_graph_mode` where `jit` is called.
      graph_updates: False where the function may set Variables, but must leave
        the structure as it is; None for the default of `set_graph_updates`.

    Returns:
      The compiled function, which is also usable as a method.

    Raises:
      TransformError: for options that name no parameter, for static arguments
        without a hash, and for a changed structure with ``graph_updates=False``.
      GraphError: for a graph where trees are asked for; names both paths.

    >>> from declax._module import Module
    >>> from declax._variables import Variable
    >>> counter = Module()
    >>> counter.count = Variable(0)
    >>> @jit
    ... def step(counter):
    ...     counter.count += 1
    >>> step(counter)
    >>> int(counter.count.value)
    1
    """
    shardings = jit_shardings(in_shardings, out_shardings)
    static, donated = (static_argnums, static_argnames), (donate_argnums, donate_argnames)
    options: dict[str, Any] = {"keep_unused": keep_unused, "inline": inline}
    given = {"device": device, "backend": backend, "compiler_options": compiler_options}
    options |= {name: value for name, value in given.items() if value is not None}

    def compile_(fun: Callable[..., Any]) -> JitWrapped[..., Any]:
        return JitWrapped(fun, shardings, static, donated, options, Mode.of(graph, graph_updates))

    return compile_ if fun is MISSING else compile_(fun)


class JitWrapped(Wrapped[P, R]):
    """A compiled function; see `jit`."""

    __slots__ = ("_entry",)  # a slot, since each call reads it

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
        if not callable(fun):
            raise TransformError("jit", "the argument is no function", got=describe(fun), fix="dx.jit(function)")
        selected = Selection(fun, "static", *static)
        super().__init__(fun, mode, selected)
        self._options = options
        self._shardings = shardings
        self._donated = Selection(fun, "donate", *donated)
        selected.check_apart(self._donated)

    def _forget(self) -> None:
        self._programs: dict[Hashable, Program] = {}
        self._entry = None
        self._traces = Traces()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function with arguments of its own signature."""
        # The fast path is one frame: XLA has just used the cache of the processor, so each function costs more.
        entry = self._entry
        if entry is not None:
            run, plain, binding = entry.program.run_fast, entry.guard(args, kwargs), entry.binding()
            if (
                plain is not None
                and run is not None
                and binding is not None
                and (entry.captures_the_same is None or entry.captures_the_same())
                and binding._token is _epoch.token
                and (binding.is_fixed or binding.is_valid())
            ):
                kept = _epoch.kept
                values = kept.get(entry.key) if kept else None
                leaves = (binding.values() if values is None else values) + plain
                output: R
                try:
                    result = run(*leaves)
                    plan, _, output = result
                    if plan is UNCHANGED:
                        return output
                    output = entry.commit(binding, kept, leaves, result)
                except NarrowedError:
                    return self._slow_path(args, kwargs)
                except BaseException as error:
                    entry.explain(binding, plain, error)
                    raise
                if output is not MISSING:
                    return output
        return self._slow_path(args, kwargs)

    def _slow_path(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        """Binds the arguments, looks the program up or makes it, runs it and commits; again after a conflict."""

        def body(call: Call) -> Outcome:
            program = self._program(call)
            if call.captures is not None and call.statics is None:
                self._entry = CacheEntry.of(args, kwargs, call, program)
            return program.run(call)

        result: R = run(functools.partial(self._bind_again, args, kwargs), body)
        return result

    def _bind_again(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """The call with these arguments, which are taken apart unless they are like those of the last call."""
        found = None if self._entry is None else self._entry.call(args, kwargs)
        return self._bind_arguments(args, kwargs) if found is None else found

    def _bind_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Takes the arguments apart."""
        return self._take(args, kwargs).check_arrays()

    def _program(self, call: Call) -> Program:
        """The program of a call."""
        return program_for(self._programs, call.key, functools.partial(self._make_program, call))

    def _make_program(self, call: Call) -> Program:
        structure, shardings, statics = call.structure, self._shardings, call.statics
        numbers = () if statics is None else tuple(number for number, _ in statics[0])
        skipped = {*self._static.numbers, *numbers}
        labels = placed = None
        if shardings is not None:
            labels = shardings.labels(call, self._closure.function, of_keywords=None, skipped=skipped)
            placed = (labels, shardings.groups(labels, None))
        user = self._closure.function
        function = named(
            lifted(self._closure, structure, self._mode, labels, self._adapt(call)), user, structure, statics
        )
        note = functools.partial(self._traces.note, user, structure, statics, roots_of(call.binding))
        donation = Donation.of(call, self._donated, numbers)
        return Program(function, structure, len(call.values), donation, self._options, placed, note)

    @property
    def num_traces(self) -> int:
        """How many times the function was traced; `explain_retrace` says why."""
        return self._traces.count

    def __repr__(self) -> str:
        return f"jit({self._closure.function!r})"

    def trace(self, *args: P.args, **kwargs: P.kwargs) -> Traced[R]:
        """Traces the function for arguments, without compiling or running it.

        >>> jit(lambda x: x + 1).trace(1).out_info.shape
        ()
        """
        call = self._bind_arguments(args, kwargs)
        program = self._program(call)
        traced = program.trace(call)
        return Traced(traced, program, self._bind_arguments, call)

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Lowered[R]:
        """Lowers the function for arguments, without compiling or running it.

        >>> "add" in jit(lambda x: x + 1).lower(1).as_text()
        True
        """
        return self.trace(*args, **kwargs).lower()

    def eval_shape(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What a call would return, with shapes and dtypes in the place of arrays.

        >>> jit(lambda x: x + 1).eval_shape(1).dtype
        dtype('int32')
        """
        return self.trace(*args, **kwargs).out_info
