"""The functions that transforms return, and the arguments that their options select."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Self, SupportsIndex, overload

import jax
from typing_extensions import TypeVar

from declax._fields.snapshots import exact_types
from declax._graph.binding import bind
from declax.errors import TransformError, describe
from declax.transforms._engine.captures import Closure
from declax.transforms._engine.lift import Call
from declax.transforms._engine.structure import Mode, Statics, is_root, parameters

_NOTHING: Any = jax.tree_util.tree_structure(None)


class Positioned(NamedTuple):
    """The tree of the positioned arguments of a call, and the numbers of its leaves and of the other leaves."""

    tree: Any
    leaves: Sequence[int]
    named: Sequence[int]


def positioned(function: Callable[..., Any], tree: Any, skipped: Collection[int] = ()) -> Positioned:
    """The arguments of a call that have a position, also by name; the call has none at skipped positions."""
    args, kwargs, *_ = tree.children()
    count = args.num_leaves
    if not kwargs.children():
        return Positioned(args, range(count), ())
    taken = {place: rank for rank, place in enumerate(_places(function, skipped))}
    listed = [(part, range(start, start + part.num_leaves)) for part, start in _with_starts(args.children(), 0)]
    named: list[int] = []
    for name, (part, start) in zip(kwargs.node_data()[1], _with_starts(kwargs.children(), count), strict=True):
        numbers = range(start, start + part.num_leaves)
        place = taken.get(name, -1)
        if place < len(args.children()):  # none, or one that is taken, which is an error of the call
            named += numbers
            continue
        listed += [(_NOTHING, range(0))] * (place + 1 - len(listed))
        listed[place] = part, numbers
    return Positioned(
        jax.tree_util.treedef_tuple([part for part, _ in listed]), [i for _, numbers in listed for i in numbers], named
    )


def _places(function: Callable[..., Any], skipped: Collection[int]) -> list[str | None]:
    """The names of the parameters that have a position, in order; None for those that only have a position."""
    known = (parameters(function) or {}).values()
    found = [p for p in known if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    # a name of a positional-only parameter may be one of the others, that `**kwargs` takes
    names = [p.name if p.kind is p.POSITIONAL_OR_KEYWORD else None for p in found]
    return [name for place, name in enumerate(names) if place not in skipped]


def _with_starts(parts: Sequence[Any], start: int) -> Iterator[tuple[Any, int]]:
    """Trees with the numbers of their first leaves."""
    for part in parts:
        yield part, start
        start += part.num_leaves


# --- arguments that an option selects ---------------------------------------------

Numbers = int | Sequence[int] | None
Names = str | Iterable[str] | None


class Selection:
    """Arguments that an option, as ``"static"``, selects by number or by name.

    Numbers that count from the end of ``*args`` are known with a call only.
    """

    def __init__(self, fun: Callable[..., Any], option: str, numbers: Numbers, names: Names) -> None:
        self._option = option
        self._from_end: tuple[int, ...] = ()
        self.numbers: tuple[int, ...] = (int(numbers),) if isinstance(numbers, SupportsIndex) else tuple(numbers or ())
        self.names = (names,) if isinstance(names, str) else tuple(names or ())
        for number in self.numbers:
            if not isinstance(number, SupportsIndex):
                raise TransformError(
                    f"{option}_argnums",
                    "this is no number of a parameter",
                    expected="an int or several",
                    got=describe(number),
                    fix=f"{option}_argnames={number!r}" if isinstance(number, str) else f"{option}_argnums=0",
                )
        self.is_empty: bool = not self.numbers and not self.names
        if self.is_empty:
            return
        known = parameters(fun)
        if known is None:
            return
        positional = [n for n, p in known.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        takes_any = any(p.kind is p.VAR_KEYWORD for p in known.values())
        takes_more = any(p.kind is p.VAR_POSITIONAL for p in known.values())
        for name in self.names:
            if name not in known and not takes_any:
                raise TransformError(
                    f"{option}_argnames",
                    f"the function has no parameter {name!r}",
                    expected=", ".join(known),
                    fix=_fix(option, "names", [n for n, p in known.items() if p.kind is not p.POSITIONAL_ONLY]),
                )
        for number in self.numbers:
            if not -len(positional) <= number < len(positional) and not takes_more:
                raise TransformError(
                    f"{option}_argnums",
                    f"the function has no positional parameter {number}",
                    expected=_numbers_of(positional),
                    fix=_fix(option, "nums", list(range(len(positional)))),
                )
        if takes_more:
            self._from_end = tuple(number for number in self.numbers if number < 0)
            self.numbers = tuple(number for number in self.numbers if number >= 0)
        numbers_ = [number % len(positional) if number < 0 else number for number in self.numbers]
        by_name = [positional.index(n) for n in self.names if n in positional]
        self.names = (*self.names, *(positional[n] for n in numbers_ if n < len(positional)))
        self.numbers = tuple(sorted({*numbers_, *by_name}))

    def check_apart(self, donated: Selection) -> None:
        """Raises a TransformError where a static argument is donated too."""
        both = [name for name in self.names if name in donated.names]
        both = both or [str(number) for number in self.numbers if number in donated.numbers]
        if both:
            raise TransformError(
                f"argument {both[0]}",
                "it is static, and donated too",
                why="a static argument is compiled in: it has no buffer that a result could take over",
                fix="leave it out of donate_argnums and donate_argnames",
            )

    def take(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], Statics | None]:
        """The other arguments, and the selected ones by number and name; None where none can be selected."""
        if self.is_empty:
            return args, kwargs, None
        numbers = self._numbers_of(args)
        by_number = tuple((i, args[i]) for i in numbers if i < len(args))
        by_name = tuple((n, kwargs[n]) for n in self.names if n in kwargs)
        for label, value in (*by_number, *by_name):
            try:
                hash(value)
            except TypeError:
                raise TransformError(
                    f"argument {label!r}",
                    "a static argument has no hash",
                    got=describe(value),
                    fix="pass a tuple instead of a list, or leave it out of the static arguments",
                ) from None
            if is_root(value) and bind(value).graphdef.num_leaves:
                raise TransformError(
                    f"argument {label!r}",
                    "a model is no static argument",
                    got=describe(value),
                    why="its values would be compiled in, and later ones not be seen",
                    fix="leave it out of the static arguments: what is static in a model is compiled in anyway",
                )
        rest = tuple(a for i, a in enumerate(args) if i not in numbers)
        statics = Statics(by_number, by_name, exact_types((by_number, by_name)))
        return rest, {n: v for n, v in kwargs.items() if n not in self.names}, statics

    def give(self, fun: Callable[..., Any], statics: Statics | None) -> Callable[..., Any]:
        """The function of the other arguments."""
        if statics is None:
            return fun

        def with_statics(*args: Any, **kwargs: Any) -> Any:
            listed = list(args)
            for index, value in statics.by_number:
                listed.insert(index, value)
            return fun(*listed, **kwargs, **dict(statics.by_name))

        return with_statics

    def chosen(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """The selected ones of given arguments."""
        by_number = [args[i] for i in self._numbers_of(args) if i < len(args)]
        return by_number + [v for n, v in kwargs.items() if n in self.names]

    def _numbers_of(self, args: Sequence[Any]) -> tuple[int, ...]:
        """The positions that are selected in a call."""
        if not self._from_end:
            return self.numbers
        for number in self._from_end:
            if number < -len(args):
                raise TransformError(
                    f"{self._option}_argnums",
                    f"the call has no positional argument {number}",
                    expected=f"at least {-number} positional arguments",
                    got=str(len(args)),
                    fix=f"{self._option}_argnums=0        # or give more arguments by position",
                )
        return tuple(sorted({*self.numbers, *(len(args) + number for number in self._from_end)}))


def _numbers_of(positional: Sequence[str]) -> str:
    """The numbers that a selection can have."""
    if not positional:
        return "no number, since the function has no positional parameters"
    last = len(positional) - 1
    return f"a number from {-len(positional)} to {last}, where 0 is {positional[0]!r}" + (
        f" and {last} is {positional[-1]!r}" if last else ""
    )


def _fix(option: str, kind: str, known: Sequence[Any]) -> str:
    """The line that selects the last parameter."""
    return f"{option}_arg{kind}={known[-1]!r}" if known else f"leave out {option}_arg{kind}"


F = TypeVar("F")
P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", default=Any)  # which mypy takes where a method returns Self; it would take Never
T = TypeVar("T")

MAX_PROGRAMS = 1024
"""How many structures one function keeps programs for; the oldest goes first."""


class Wrapped(Generic[P, R]):
    """A function that a transform has made of another; also usable as a method."""

    def __init__(self, function: Callable[P, R], mode: Mode, static: Selection | None = None) -> None:
        look_like(self, function)
        self._closure = Closure(function)
        self._mode = mode
        self._static = Selection(function, "static", None, None) if static is None else static
        self._forget()

    def _forget(self) -> None:
        """Drops what was kept for the calls of the function."""

    def _over(self, closure: Closure) -> Self:
        """The same transform of another function."""
        made = copy.copy(self)
        made._closure = closure
        made._forget()
        return made

    def _take(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Takes the arguments apart."""
        args, kwargs, statics = self._static.take(args, kwargs)
        return Call(args, kwargs, self._mode, self._closure.find(), statics)

    def _adapt(self, call: Call) -> Callable[[Callable[..., Any]], Callable[..., Any]] | None:
        """What gives the function its static arguments, for `lifted`; None where there are none."""
        statics = call.structure.statics
        return None if statics is None else functools.partial(self._static.give, statics=statics)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self: Wrapped[Concatenate[T, Q], R], instance: T, owner: type | None = None) -> Callable[Q, R]: ...
    @overload
    def __get__(
        self: Wrapped[Concatenate[type[T], Q], R], instance: T, owner: type | None = None
    ) -> Callable[Q, R]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Callable[P, R]: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> Any:
        """The method of an instance."""
        function: Any = self  # which subclasses make callable
        return self if instance is None else types.MethodType(function, instance)


def program_for(programs: dict[Hashable, T], key: Hashable, make: Callable[[], T]) -> T:
    """The program of a key, which is made if there is none; the oldest goes first."""
    program = programs.get(key)
    if program is None:
        while len(programs) >= MAX_PROGRAMS:
            programs.pop(next(iter(tuple(programs))), None)
        program = programs.setdefault(key, make())
    return program


def look_like(wrapper: F, function: Callable[..., Any]) -> F:
    """Gives a wrapper the name, docstring and signature of a function; of a model, those of its `__call__`."""
    made: Any = wrapper
    if is_root(function):
        made.__wrapped__ = type(function).__call__
        made.__name__ = made.__qualname__ = type(function).__name__
        made.__doc__ = type(function).__call__.__doc__
    else:
        functools.update_wrapper(made, function)
    return wrapper
