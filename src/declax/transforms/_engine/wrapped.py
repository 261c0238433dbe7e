"""Functions that a transform makes of others, and the arguments that their options select."""

from __future__ import annotations

import copy
import functools
import inspect
import types
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, ParamSpec, Self, SupportsIndex, overload

from typing_extensions import TypeVar

from declax._fields.snapshots import NAN, exact_types, with_one_nan
from declax._graph.binding import Binding, bind, bind_as_written
from declax.errors import TransformError, describe
from declax.transforms._engine.call import Call
from declax.transforms._engine.captures import Closure
from declax.transforms._engine.names import parameters
from declax.transforms._engine.structure import Mode, Statics, is_root

F = TypeVar("F")
P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", default=Any)  # which mypy takes where a method returns Self; it would take Never
T = TypeVar("T")

Numbers = int | Sequence[int] | None


Names = str | Iterable[str] | None


class Selection:
    """Arguments that an option, as ``"static"``, selects by number or by name.

    Numbers that count from the end of ``*args`` are known with a call only.
    """

    def __init__(self, fun: Callable[..., Any], option: str, numbers: Numbers, names: Names) -> None:
        listed: Sequence[Any] = (numbers,) if isinstance(numbers, SupportsIndex) else tuple(numbers or ())
        self.names = (names,) if isinstance(names, str) else tuple(names or ())
        for number in listed:
            if not isinstance(number, SupportsIndex):
                raise TransformError(
                    f"{option}_argnums",
                    "this is not the number of a parameter",
                    expected="an int or several",
                    got=describe(number),
                    fix=f"{option}_argnames={number!r}" if isinstance(number, str) else f"{option}_argnums=0",
                )
        self.numbers: tuple[int, ...] = tuple(map(int, listed))
        self.is_empty: bool = not self.numbers and not self.names
        known = None if self.is_empty else parameters(fun)
        if known is None:
            return
        kinds = {parameter.kind for parameter in known.values()}
        positional = [name for name, p in known.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        count = len(positional)
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            by_name = [name for name, p in known.items() if p.kind is not p.POSITIONAL_ONLY]
            _check_known(f"{option}_argnames", "parameter", [n for n in self.names if n not in known], by_name)
        if inspect.Parameter.VAR_POSITIONAL not in kinds:
            unknown = [number for number in self.numbers if not -count <= number < count]
            _check_known(f"{option}_argnums", "positional parameter", unknown, dict(enumerate(positional)))
            self.numbers = tuple(number % count for number in self.numbers)
        places = {positional.index(name) for name in self.names if name in positional}
        self.names = (*self.names, *(positional[number] for number in self.numbers if 0 <= number < count))
        self.numbers = tuple(sorted({*self.numbers, *places}))

    def check_apart(self, donated: Selection) -> None:
        """Raises a TransformError where a static argument is donated too."""
        both = [name for name in self.names if name in donated.names]
        both = both or [str(number) for number in self.numbers if number in donated.numbers]
        if both:
            raise TransformError(
                f"argument {both[0]}",
                "it is static, and donated too",
                why="a static argument is a constant of the program, and has no buffer",
                fix="leave it out of donate_argnums and donate_argnames",
            )

    def take(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], Statics | None]:
        """The other arguments, and the selected ones by number and name; None where none can be selected."""
        if self.is_empty:
            return args, kwargs, None
        numbers = self._numbers_among(args)
        by_number = tuple((i, args[i]) for i in numbers)
        by_name = tuple((n, kwargs[n]) for n in self.names if n in kwargs)
        for label, value in (*by_number, *by_name):
            try:
                hash(value)
            except TypeError:
                raise TransformError(
                    f"argument {label!r}",
                    "a static argument is not hashable",
                    got=describe(value),
                    fix="pass a tuple instead of a list, or leave it out of the static arguments",
                ) from None
            if is_root(value) and bind(value).graphdef.num_leaves:
                raise TransformError(
                    f"argument {label!r}",
                    "a model cannot be a static argument",
                    got=describe(value),
                    why="its values would be constants of the program",
                    fix="leave it out of the static arguments: what is static in a model is compiled in anyway",
                )
        rest = tuple(a for i, a in enumerate(args) if i not in numbers)
        exact: Any = exact_types((by_number, by_name))
        if NAN in exact:
            by_number, by_name = with_one_nan((by_number, by_name))
        statics = Statics(by_number, by_name, exact)
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
        return [args[i] for i in self._numbers_among(args)] + [v for n, v in kwargs.items() if n in self.names]

    def _numbers_among(self, args: Sequence[Any]) -> list[int]:
        """The positions that are selected in a call; as in JAX, it may leave some out."""
        places = {number + len(args) if number < 0 else number for number in self.numbers}
        return [place for place in sorted(places) if 0 <= place < len(args)]


def _check_known(option: str, what: str, unknown: Sequence[Any], known: Collection[Any]) -> None:
    for given in unknown:
        numbered = [f"{number} for {name!r}" for number, name in known.items()] if isinstance(known, dict) else known
        raise TransformError(
            option,
            f"the function has no {what} {given!r}",
            expected=", ".join(numbered) or f"none, since the function has no {what}s",
            fix=f"{option}={[*known][-1]!r}" if known else f"leave out {option}",
        )


MAX_PROGRAMS = 1024
"""How many structures one function keeps programs for; the oldest goes first."""


class Wrapped(Generic[P, R]):
    """A function that a transform has made of another; also usable as a method."""

    _transform: ClassVar[str]
    _bind: ClassVar[staticmethod[[tuple[Any, ...]], Binding]] = staticmethod(bind_as_written)

    def __init__(self, function: Callable[P, R], mode: Mode, static: Selection | None = None) -> None:
        look_like(self, function)
        self._closure = Closure(function)
        self._mode = mode
        self._static = Selection(function, "static", None, None) if static is None else static
        self._forget()

    def __repr__(self) -> str:
        return f"{self._transform}({self._closure.user!r})"

    def _forget(self) -> None:
        """Drops the cached programs of the function."""

    def _over(self, closure: Closure) -> Self:
        """The same transform of another function."""
        made = copy.copy(self)
        made._closure = closure
        made._forget()
        return made

    def _bind_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        args, kwargs, statics = self._static.take(args, kwargs)
        return Call(args, kwargs, self._mode, self._closure.find(), statics, self._bind)

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload  # by its class for mypy, which then knows a method that returns Self; as a function for the others
    def __get__(self: Wrapped[Concatenate[T, Q], R], instance: T, owner: type | None = None) -> Callable[Q, R]: ...
    @overload
    def __get__(self: Callable[Concatenate[T, Q], R], instance: T, owner: type | None = None) -> Callable[Q, R]: ...
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
