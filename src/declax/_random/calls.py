"""Decorators that change streams during a call, and `broadcast_rngs`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, ParamSpec, TypeAlias, TypeVar

from declax._filters import Filter, Predicate, as_written, to_predicate
from declax._typing import Path
from declax.errors import RngError, describe

P = ParamSpec("P")
R = TypeVar("R")


class CallArguments(NamedTuple):
    """The arguments of a decorated function."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


_RUNS_LATER: Final = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)

Enter: TypeAlias = Callable[[CallArguments], tuple[AbstractContextManager[object], CallArguments]]
"""Makes the context of a call from its arguments, and the arguments that the function gets."""


def around_calls(where: str, enter: Enter) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator named `where`, whose functions run in a context that is made from their arguments."""

    def decorate(f: Callable[P, R]) -> Callable[P, R]:
        runs_later = any(is_such(f) for is_such in _RUNS_LATER)
        if runs_later or not callable(f):
            raise RngError(
                where,
                "only a function that runs when it is called can be decorated",
                expected="a function, not a generator or a coroutine",
                got=describe(f),
                fix=f"@dx.{where}(...)        # above `def`; or, inside of the function: with dx.{where}(...):",
            )

        @functools.wraps(f)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            context, given = enter(CallArguments(args, kwargs))
            with context:
                return f(*given.args, **given.kwargs)

        return call

    return decorate


_broadcast: Final[ContextVar[tuple[Predicate, ...]]] = ContextVar("declax_broadcast_rngs", default=())
"""The predicates of the blocks and decorated calls that are running, outermost first."""


class broadcast_rngs:  # noqa: N801  # reads as a function
    """Allows the rows of a `vmap` to draw the same random numbers.

    A model that `vmap` broadcasts draws the same numbers for each row: one
    dropout mask for all. This is rarely what you want, so `vmap` warns about
    it, except in the block of a ``with``, in the thread or task that enters it,
    and in calls of a function that this decorates.

    Args:
      *filters: selects streams by their count; all streams if none is given.

    Raises:
      FilterError: for a value that is not a filter.
      RngError: for a decorated generator or coroutine, which runs after the
        call, and for objects that cannot be called.

    >>> import declax as dx
    >>> layer, x = dx.Dropout(0.5, rngs=dx.Rngs(0)), dx.Rngs(1).normal((2, 9))
    >>> with dx.broadcast_rngs():
    ...     y = dx.vmap(lambda layer, x: layer(x), in_axes=(None, 0))(layer, x)
    >>> bool(((y[0] == 0) == (y[1] == 0)).all())
    True
    """

    __slots__ = ("_filters", "_predicate")

    def __init__(self, *filters: Filter) -> None:
        self._filters = filters
        self._predicate = to_predicate(filters or ...)

    def __enter__(self) -> None:
        _broadcast.set((*_broadcast.get(), self._predicate))

    def __exit__(self, *error: object) -> None:
        # without a token, since one object may be entered again inside of itself, and by many threads
        _broadcast.set(_broadcast.get()[:-1])

    def __call__(self, f: Callable[P, R], /) -> Callable[P, R]:
        """Decorates a function."""
        return around_calls("broadcast_rngs", lambda given: (self, given))(f)

    def __repr__(self) -> str:
        return f"broadcast_rngs({', '.join(map(as_written, self._filters))})"


def is_broadcast_allowed(path: Path, count: Any) -> bool:
    """Whether `broadcast_rngs` allows the stream of this count to give each row the same numbers."""
    return any(predicate(path, count) for predicate in _broadcast.get())
