"""`jit` for functions of mutable, shared objects.

Vocabulary
----------
program:  what is compiled for one structure and one set of static arguments.
dispatch: from a call's arguments to its program and back; nothing is walked
          while the structure of the arguments stands.
"""

from __future__ import annotations

import copy
import functools
import threading
import types
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Concatenate, Generic, ParamSpec, overload

from typing_extensions import TypeVar

from declax import _jax
from declax._kept_values import keep
from declax._pytree import Pytree
from declax._typing import MISSING, Missing
from declax.errors import TransformError, describe
from declax.graph.binding import Binding
from declax.transforms._arguments import positional
from declax.transforms._closure import Closure, Survey
from declax.transforms._explaining import explain
from declax.transforms._lift import UNCHANGED, Call, Outcome, apply, lifted, write
from declax.transforms._naming import named
from declax.transforms._placing import Placing
from declax.transforms._program import Program
from declax.transforms._retraces import Traces, roots_of
from declax.transforms._roots import is_leaf
from declax.transforms._running import run
from declax.transforms._selection import Names, Numbers, Selection
from declax.transforms._structure import Mode
from declax.transforms._wrapping import look_like
from declax.transforms.stages import Lowered, Traced

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", default=Any)  # which mypy takes where a method returns Self; it would take Never
T = TypeVar("T")

MAX_PROGRAMS = 1024
"""How many structures one function keeps programs for; the oldest goes first."""


@overload
def jit(
    fun: Callable[P, R],
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
) -> JitWrapped[P, R]: ...
@overload
def jit(
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
) -> Callable[[Callable[P, R]], JitWrapped[P, R]]: ...
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
    placing = Placing(in_shardings, out_shardings)
    static, donated = (static_argnums, static_argnames), (donate_argnums, donate_argnames)
    options: dict[str, Any] = {"keep_unused": keep_unused, "inline": inline}
    given = {"device": device, "backend": backend, "compiler_options": compiler_options}
    options |= {name: value for name, value in given.items() if value is not None}

    def compile_(fun: Callable[..., Any]) -> JitWrapped[..., Any]:
        return JitWrapped(fun, placing, static, donated, options, Mode.of(graph, graph_updates))

    return compile_ if fun is MISSING else compile_(fun)


class JitWrapped(Generic[P, R]):
    """A compiled function; see `jit`."""

    def __init__(
        self,
        fun: Callable[P, R],
        placing: Placing,
        static: tuple[Numbers, Names],
        donated: tuple[Numbers, Names],
        options: dict[str, Any],
        mode: Mode,
    ) -> None:
        if not callable(fun):
            raise TransformError("jit", "the argument is no function", got=describe(fun), fix="dx.jit(function)")
        look_like(self, fun)
        self._closure = Closure(fun)
        self._options = options
        self._placing = placing
        self._static = Selection(fun, "static", *static)
        self._donated = Selection(fun, "donate", *donated)
        self._mode = mode
        self._forget()

    def _forget(self) -> None:
        self._programs: dict[Hashable, Program] = {}
        self._last: _LastCall | None = None
        self._traces = Traces()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function with arguments of its own signature."""
        last, first = self._last, None
        if last is not None and not kwargs:
            plain = last.match(args, self._closure.find())
            binding = None if plain is None else last.binding()
            if plain is not None and binding is not None and binding.is_valid():
                if last.run is not None and threading.active_count() == 1:
                    again: R = self._run_again(last, last.run, binding, plain)
                    return again
                first = Call.again(last.structure, binding, plain)
        result: R = run(
            lambda: self._take(args, kwargs),
            lambda call: (last.program if call is first else self._program(call, None if kwargs else args)).run(call),  # type: ignore[union-attr]  # there is a first call where there was a last
            first,
        )
        return result

    @staticmethod
    def _run_again(last: _LastCall, run: Callable[..., Outcome], binding: Binding, plain: list[Any]) -> Any:
        """The way of most calls: as `_run`, without an object for the call."""
        values = binding.kept_values
        if values is None:
            values = binding.read()
            if binding.mark is _jax.TOP and not binding.has_plain:
                keep(binding, values)
        try:
            outcome = run(*values, *plain)
        except (RecursionError, SystemError):
            binding.check_depth()
            raise
        except Exception as error:
            explain(Call.again(last.structure, binding, plain), error)
            raise
        plan = outcome.plan
        if plan is UNCHANGED:
            return outcome.output
        if plan.change is not None:
            return apply(outcome, binding.objects(), values)
        is_kept = binding.kept_values is values  # nobody has written to a Variable while it ran
        write(binding, plan.changed, outcome.new)
        if is_kept:
            keep(binding, plan.put(values, outcome.new))
        return outcome.output

    def _take(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Takes the arguments apart."""
        if kwargs and not self._placing.is_empty:
            kwargs = dict(kwargs)  # the same call may be taken again
            args = positional(self._closure.function, args, kwargs)
        statics = None
        if not self._static.is_empty:
            args, kwargs, statics = self._static.take(args, kwargs)
        call = Call(args, kwargs, self._mode, self._closure.find(), statics)
        call.check_arrays()
        return call

    def _program(self, call: Call, given: tuple[Any, ...] | None = None) -> Program:
        """What runs a call.

        Args:
          call: the call.
          given: its arguments, if all of them were given by position.
        """
        program = self._programs.get(call.key)
        if program is None:
            while len(self._programs) >= MAX_PROGRAMS:
                self._programs.pop(next(iter(tuple(self._programs))), None)
            program = self._programs.setdefault(call.key, self._make_program(call))
        if given is not None and call.statics is None:
            self._last = _LastCall.of(given, call, program, self._closure.find())
        return program

    def _make_program(self, call: Call) -> Program:
        structure, placing, statics = call.structure, self._placing, call.statics
        adapt = None if statics is None else functools.partial(self._static.give, statics=statics)
        numbers = () if statics is None else tuple(number for number, _ in statics[0])
        labels = None if placing.is_empty else placing.labels(structure, call.values)
        user = self._closure.function
        function = named(lifted(self._closure, structure, self._mode, labels, adapt), user, structure, statics)
        placed = None if labels is None else (labels, placing.groups(labels))
        note = functools.partial(self._traces.note, user, structure, statics, roots_of(call.binding))
        program = Program(function, len(call.values), self._donated, numbers, self._options, placed, note)
        program.look(call)
        return program

    @overload
    def __get__(self, instance: None, owner: type) -> JitWrapped[P, R]: ...
    @overload
    def __get__(self: JitWrapped[Concatenate[T, Q], R], instance: T, owner: type | None = None) -> Callable[Q, R]: ...
    @overload
    def __get__(
        self: JitWrapped[Concatenate[type[T], Q], R], instance: T, owner: type | None = None
    ) -> Callable[Q, R]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Callable[P, R]: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> Any:
        """The compiled method of an instance."""
        return self if instance is None else types.MethodType(self, instance)

    def _over(self, closure: Closure) -> JitWrapped[P, R]:
        """The same compilation of another function."""
        made: JitWrapped[P, R] = copy.copy(self)
        made._closure = closure
        made._forget()
        return made

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
        call = self._take(args, kwargs)
        program = self._program(call)
        traced = program.compiled(call).trace(*call.values, *call.plain)
        return Traced(traced, program, self._take, call)

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


class _LastCall:
    """The models of the last call, to recognise them in the next one.

    Training calls one function with the same models and new arrays. Then
    nothing is taken apart: the binding is valid, or it is not. A binding that
    lives says that its roots do too, so that identities tell them.

    Attributes:
      binding: a reference to the binding of the roots.
      structure: of the call.
      program: what the call ran.
      run: JAX's function, where its results are the outcome as it is.
    """

    __slots__ = ("_roots", "_survey", "binding", "program", "run", "structure")

    def __init__(self, roots: tuple[int | None, ...], call: Call, program: Program, survey: Survey) -> None:
        self._roots = roots
        self._survey = survey
        assert call.binding is not None  # `of` looks
        self.binding: Callable[[], Binding | None] = weakref.ref(call.binding)
        self.structure = call.structure
        self.program = program
        self.run: Callable[..., Outcome] | None = program.jitted if program.is_plain else None

    @staticmethod
    def of(args: tuple[Any, ...], call: Call, program: Program, survey: Survey) -> _LastCall | None:
        """What to remember of a call; None where its arguments hold trees."""
        if call.binding is None or not all(is_leaf(arg) or isinstance(arg, Pytree) for arg in args):
            return None
        return _LastCall(tuple(None if is_leaf(arg) else id(arg) for arg in args), call, program, survey)

    def match(self, args: tuple[Any, ...], survey: Survey) -> list[Any] | None:
        """The other arguments, if these have the same models, provided that the binding lives."""
        if survey is not self._survey or len(args) != len(self._roots):
            return None
        plain = []
        for arg, root in zip(args, self._roots):  # noqa: B905  # just compared
            if root is None:
                if not is_leaf(arg):
                    return None
                plain.append(arg)
            elif root != id(arg):
                return None
        return plain
