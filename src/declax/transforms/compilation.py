"""`jit` for functions of mutable, shared objects.

Vocabulary
----------
program: what is compiled for one structure and one set of static arguments.
dispatch: from a call's arguments to its program and back; nothing is walked
          while the structure of the arguments stands.
"""

from __future__ import annotations

import functools
import inspect
import threading
import types
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

import jax

from declax._pytree import Pytree
from declax._static import exact_types
from declax._typing import MISSING, Missing
from declax.errors import TransformError, describe
from declax.transforms._lift import Call, Mode, Outcome, Structure, commit, is_current, is_leaf, lifted, written_leaves

P = ParamSpec("P")
R = TypeVar("R")

_committing = threading.RLock()

Numbers = int | Sequence[int] | None
Names = str | Iterable[str] | None


@overload
def jit(
    fun: Callable[P, R],
    /,
    *,
    static_argnums: Numbers = None,
    static_argnames: Names = None,
    donate_argnums: Numbers = None,
    donate_argnames: Names = None,
    keep_unused: bool = False,
    inline: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> JitWrapped[P, R]: ...
@overload
def jit(
    *,
    static_argnums: Numbers = None,
    static_argnames: Names = None,
    donate_argnums: Numbers = None,
    donate_argnames: Names = None,
    keep_unused: bool = False,
    inline: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[[Callable[P, R]], JitWrapped[P, R]]: ...
def jit(
    fun: Callable[..., Any] | Missing = MISSING,
    /,
    *,
    static_argnums: Numbers = None,
    static_argnames: Names = None,
    donate_argnums: Numbers = None,
    donate_argnames: Names = None,
    keep_unused: bool = False,
    inline: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Compiles a function whose arguments may be models.

    What the function does to its arguments happens to the caller's: Variables
    that it sets, attributes that it adds or removes, references that it makes.
    Arguments and results may share objects. A function that raises leaves
    all arguments as they were.

    Args:
      fun: the function; leave it out to use `jit` as a decorator with options.
      static_argnums, static_argnames: arguments that are compiled in; hashable.
      donate_argnums, donate_argnames: arguments whose buffers may be reused.
        Of a model, those of the Variables that the function sets are.
      keep_unused, inline: as in `jax.jit`.
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
    options: dict[str, Any] = {
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
        "keep_unused": keep_unused,
        "inline": inline,
        "graph": graph,
        "graph_updates": graph_updates,
    }
    if fun is MISSING:
        return functools.partial(jit, **options)
    return JitWrapped(fun, **options)


class JitWrapped(Generic[P, R]):
    """A compiled function; see `jit`."""

    def __init__(
        self,
        fun: Callable[P, R],
        *,
        static_argnums: Numbers,
        static_argnames: Names,
        donate_argnums: Numbers,
        donate_argnames: Names,
        keep_unused: bool,
        inline: bool,
        graph: bool | None = None,
        graph_updates: bool | None = None,
    ) -> None:
        if not callable(fun):
            raise TransformError("jit", "the argument is no function", got=describe(fun), fix="dx.jit(function)")
        functools.update_wrapper(self, fun)
        self._fun = fun
        self._options = {"keep_unused": keep_unused, "inline": inline}
        self._static = _Selection(fun, "static", static_argnums, static_argnames)
        self._donated = _Selection(fun, "donate", donate_argnums, donate_argnames)
        self._mode = Mode.of(graph, graph_updates)
        self._programs: dict[Hashable, _Program] = {}
        self._last: _LastCall | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function with arguments of its own signature."""
        last = self._last
        call = last.match(args) if last is not None and not kwargs else None
        if call is not None:
            program = last.program  # type: ignore[union-attr]  # only a last call matches
        else:
            call, program = self._dispatch(args, kwargs)
        outcome = program.run(call)
        if threading.active_count() > 1 and not program.is_donating:  # donated buffers cannot be read again
            return self._commit_among_threads(call, program, outcome)
        result: R = commit(call, outcome)
        return result

    def _commit_among_threads(self, call: Call, program: _Program, outcome: Outcome) -> R:
        """Commits, unless another thread has set what this call has read: then it runs again.

        The lock is held for the comparison and the writes only, never while
        JAX runs, so that a function that calls back cannot wait for itself.
        """
        while True:
            with _committing:
                if is_current(call, outcome):
                    result: R = commit(call, outcome)
                    return result
            call.read_again()
            outcome = program.run(call)

    def _dispatch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, _Program]:
        given = args
        if not self._static.is_empty:
            args, kwargs, statics = self._static.take(args, kwargs)
        else:
            statics = None
        call = Call(args, kwargs, self._mode)
        key: Hashable = call.structure if statics is None else (call.structure, statics, exact_types(statics))
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = self._make_program(call.structure, statics)
        if statics is None and not kwargs:
            self._last = _LastCall.of(given, call, program)
        return call, program

    def _make_program(self, structure: Structure, statics: Any) -> _Program:
        function = self._fun if statics is None else self._static.give(self._fun, statics)
        numbers = () if statics is None else tuple(number for number, _ in statics[0])
        return _Program(lifted(function, structure, self._mode), self._donated, numbers, self._options)

    @overload
    def __get__(self, instance: None, owner: type) -> JitWrapped[P, R]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., R]: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> Any:
        """The compiled method of an instance."""
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"jit({self._fun!r})"

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Lowered:
        """Lowers the function for arguments without running it."""
        call, program = self._dispatch(args, kwargs)
        lowered: jax.stages.Lowered = program.compiled(call).lower(*call.values, *call.plain)
        return lowered


class _LastCall:
    """The models of the last call, to recognise them in the next one.

    Training calls one function with the same models and new arrays. Then
    nothing is taken apart: the binding is valid, or it is not.

    Attributes:
      program: what the call ran.
    """

    __slots__ = ("_binding", "_roots", "_structure", "program")

    def __init__(self, roots: tuple[Any, ...], binding: Any, structure: Structure, program: _Program) -> None:
        self._roots = roots
        self._binding = binding
        self._structure = structure
        self.program = program

    @staticmethod
    def of(args: tuple[Any, ...], call: Call, program: _Program) -> _LastCall | None:
        """What to remember of a call; None where its arguments hold trees."""
        if call.binding is None or not all(is_leaf(arg) or isinstance(arg, Pytree) for arg in args):
            return None
        roots = tuple(weakref.ref(arg) if isinstance(arg, Pytree) else None for arg in args)
        return _LastCall(roots, weakref.ref(call.binding), call.structure, program)

    def match(self, args: tuple[Any, ...]) -> Call | None:
        """The call with these arguments, if they are the same models and other arrays."""
        if len(args) != len(self._roots):
            return None
        plain = []
        for arg, root in zip(args, self._roots):  # noqa: B905  # just compared
            if root is None:
                if not is_leaf(arg):
                    return None
                plain.append(arg)
            elif root() is not arg:
                return None
        binding = self._binding()
        if binding is None or not binding.is_valid():
            return None
        return Call.again(self._structure, binding, plain)


class _Program:
    """What is compiled for one structure.

    Donation needs to know which Variables the function sets, since the others
    must keep their buffers. So the function is traced first; JAX keeps that
    trace, and compiles it with the donation that suits.
    """

    __slots__ = ("_donated", "_flat", "_jitted", "_options", "_sizes", "_statics", "_with_donation", "is_donating")

    def __init__(
        self, function: Callable[..., Outcome], donated: _Selection, statics: tuple[int, ...], options: dict[str, Any]
    ) -> None:
        self._donated = donated
        self._statics = statics
        self._options = options
        self._sizes: int = 0

        def flat(*leaves: Any) -> Outcome:
            return function(leaves[: self._sizes], leaves[self._sizes :])

        self._flat = flat
        self._jitted = jax.jit(flat, **options)
        self.is_donating = not donated.is_empty
        self._with_donation: Any = None

    def run(self, call: Call) -> Outcome:
        self._sizes = len(call.values)
        jitted = self._jitted if not self.is_donating else self.compiled(call)
        outcome: Outcome = jitted(*call.values, *call.plain)
        return outcome

    def compiled(self, call: Call) -> Any:
        """The function of JAX that runs the calls of this structure."""
        self._sizes = len(call.values)
        if not self.is_donating:
            return self._jitted
        if self._with_donation is None:
            traced = self._jitted.trace(*call.values, *call.plain)
            positions = self._positions(call, written_leaves(call, traced.out_info))
            self._with_donation = jax.jit(self._flat, donate_argnums=positions, **self._options)
        return self._with_donation

    def _positions(self, call: Call, written: set[int]) -> tuple[int, ...]:
        args, kwargs = jax.tree_util.tree_unflatten(call.structure.tree, range(len(call.structure.is_root)))
        args = list(args)
        for number in self._statics:
            args.insert(number, None)
        chosen = set(jax.tree.leaves(self._donated.chosen(args, kwargs)))
        values = [i for i, root in enumerate(call.leaf_roots()) if root in chosen and i in written]
        plain_at = [i for i, is_one in enumerate(call.structure.is_root) if not is_one]
        plain = [len(call.values) + rank for rank, i in enumerate(plain_at) if i in chosen]
        return (*values, *plain)


class _Selection:
    """Arguments that an option selects by number or by name."""

    def __init__(self, fun: Callable[..., Any], option: str, numbers: Numbers, names: Names) -> None:
        self.numbers = (numbers,) if isinstance(numbers, int) else tuple(numbers or ())
        self.names = (names,) if isinstance(names, str) else tuple(names or ())
        self.is_empty = not self.numbers and not self.names
        if self.is_empty:
            return
        parameters = _parameters(fun)
        if parameters is None:
            return
        positional = [n for n, p in parameters.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        takes_more = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
        for name in self.names:
            if name not in parameters and not takes_any:
                raise TransformError(
                    f"{option}_argnames",
                    f"the function has no parameter {name!r}",
                    expected=", ".join(parameters),
                )
        for number in self.numbers:
            if not -len(positional) <= number < len(positional) and not takes_more:
                raise TransformError(
                    f"{option}_argnums",
                    f"the function has no positional parameter {number}",
                    expected=f"a number below {len(positional)}",
                )
        numbers_ = [n % len(positional) if n < 0 else n for n in self.numbers]
        by_name = [positional.index(n) for n in self.names if n in positional]
        self.names = (*self.names, *(positional[n] for n in numbers_ if n < len(positional)))
        self.numbers = tuple(sorted({*numbers_, *by_name}))

    def take(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]]:
        """The other arguments, and the selected ones by number and name."""
        by_number = tuple((i, args[i]) for i in self.numbers if i < len(args))
        by_name = tuple((n, kwargs[n]) for n in self.names if n in kwargs)
        for label, value in (*by_number, *by_name):
            try:
                hash(value)
            except TypeError:
                raise TransformError(
                    f"argument {label!r}",
                    "a static argument has no hash",
                    got=describe(value),
                    fix="pass a tuple instead of a list, or leave it out of static_argnames",
                ) from None
        rest = tuple(a for i, a in enumerate(args) if i not in self.numbers)
        return rest, {n: v for n, v in kwargs.items() if n not in self.names}, (by_number, by_name)

    def give(self, fun: Callable[..., Any], statics: tuple[Any, ...]) -> Callable[..., Any]:
        """The function of the other arguments."""
        by_number, by_name = statics

        def with_statics(*args: Any, **kwargs: Any) -> Any:
            listed = list(args)
            for index, value in by_number:
                listed.insert(index, value)
            return fun(*listed, **kwargs, **dict(by_name))

        return with_statics

    def chosen(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """The selected ones of given arguments."""
        return [args[i] for i in self.numbers if i < len(args)] + [v for n, v in kwargs.items() if n in self.names]


def _parameters(fun: Callable[..., Any]) -> dict[str, inspect.Parameter] | None:
    try:
        return dict(inspect.signature(fun).parameters)
    except (TypeError, ValueError):
        return None
