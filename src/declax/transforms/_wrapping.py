"""The functions that transforms return.

Vocabulary
----------
wrapper: what a transform returns; its ``__wrapped__`` is the user's function.
program: what a wrapper keeps for the calls of one structure.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Hashable
from typing import Any, Concatenate, Generic, ParamSpec, Self, overload

from typing_extensions import TypeVar

from declax.transforms._arguments import Selection
from declax.transforms._closure import Closure
from declax.transforms._lift import Call
from declax.transforms._roots import is_root
from declax.transforms._structure import Mode

F = TypeVar("F")
P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", default=Any)  # which mypy takes where a method returns Self; it would take Never
T = TypeVar("T")

MAX_PROGRAMS = 1024
"""How many structures one function keeps programs for; the oldest goes first."""


class Wrapped(Generic[P, R]):
    """A function that a transform has made of another; also usable as a method.

    Args:
      function: the user's function.
      mode: of the calls.
      static: which arguments stay Python values; None for none.
    """

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
        return None if call.statics is None else functools.partial(self._static.give, statics=call.statics)

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
    """Gives a wrapper the name, docstring and signature of a function.

    Of a callable model, without its attributes: those are its fields.
    """
    made: Any = wrapper
    if is_root(function):
        made.__wrapped__ = type(function).__call__
        made.__name__ = made.__qualname__ = type(function).__name__
        made.__doc__ = type(function).__call__.__doc__
    else:
        functools.update_wrapper(made, function)
    return wrapper
