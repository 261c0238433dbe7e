"""Decorators that change streams for the time of a call, and `broadcast_rngs`."""

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


class Arguments(NamedTuple):
    """The arguments of a decorated function."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


Enter: TypeAlias = Callable[[Arguments], tuple[AbstractContextManager[object], Arguments]]
"""Makes the context of a call from its arguments, and the arguments that the function gets."""


def around_calls(where: str, enter: Enter) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator named `where`, whose functions run in a context that is made from their arguments."""

    def decorate(f: Callable[P, R]) -> Callable[P, R]:
        kinds = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
        if any(is_kind(f) for is_kind in kinds) or not callable(f):
            raise RngError(
                where,
                "only a function that runs when it is called can be decorated",
                expected="a function, not a generator or a coroutine",
                got=describe(f),
                fix=f"@dx.{where}(...)        # above `def`; or, inside of the function: with dx.{where}(...):",
            )

        @functools.wraps(f)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            context, given = enter(Arguments(args, kwargs))
            with context:
                return f(*given.args, **given.kwargs)

        return call

    return decorate


_broadcast: Final[ContextVar[tuple[Predicate, ...]]] = ContextVar("declax_broadcast_rngs", default=())
"""The predicates of the blocks and decorated calls that are running, outermost first."""


class broadcast_rngs:  # noqa: N801  # reads as a function
    """Allows the rows of a `vmap` to draw the same random numbers.

    A model that `vmap` broadcasts, and that draws, gives each row the same
    numbers: one dropout mask for all of them. This is rarely what you want, so
    `vmap` warns about it, except in the block of a ``with`` or in calls of a
    function that this decorates. It holds in the thread or task that enters it.

    Args:
      *filters: selects streams by their count; all streams if none is given.

    Raises:
      FilterError: for a value that is not a filter.
      RngError: for a decorated generator or coroutine, which runs after the
        call, and for objects that cannot be called.

    >>> with broadcast_rngs("dropout"):
    ...     print(len(_broadcast.get()))
    1
    >>> @broadcast_rngs()
    ... def depth():
    ...     return len(_broadcast.get())
    >>> depth(), len(_broadcast.get())
    (1, 0)
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
        decorated: Callable[P, R] = around_calls("broadcast_rngs", lambda given: (self, given))(f)
        return decorated

    def __repr__(self) -> str:
        return f"broadcast_rngs({', '.join(map(as_written, self._filters))})"


def is_broadcast_allowed(path: Path, count: Any) -> bool:
    """Whether `broadcast_rngs` allows the stream of this count to give each row the same numbers."""
    return any(predicate(path, count) for predicate in _broadcast.get())
