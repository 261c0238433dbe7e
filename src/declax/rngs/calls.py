"""Changes that last for a call: the decorator form of all functions of this package, and `broadcast_rngs`."""

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
"""What a decorator does with the arguments of a call: the context of the call, and its arguments."""


def around_calls(where: str, enter: Enter) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator whose functions run in a context that is made from their arguments.

    Args:
      where: the name of the decorator.
      enter: makes the context.

    The decorator raises RngError for a generator or coroutine function, which
    runs after its call, and for objects that cannot be called.
    """

    def decorate(f: Callable[P, R]) -> Callable[P, R]:
        _check_can_decorate(where, f)

        @functools.wraps(f)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            context, given = enter(Arguments(args, kwargs))
            with context:
                return f(*given.args, **given.kwargs)

        return call

    return decorate


def _check_can_decorate(where: str, f: object) -> None:
    if not callable(f):
        raise RngError(
            where,
            "what is decorated cannot be called",
            expected="a function",
            got=describe(f),
            fix=f"@dx.{where}(...)        # with parentheses, above `def`",
        )
    of_call = getattr(type(f), "__call__", None)  # noqa: B004  # of a callable object, the method behind it
    if any(runs_later(g) for runs_later in _RUN_LATER for g in (f, of_call)):
        raise RngError(
            where,
            "a generator or coroutine function runs after its call, so this would end before it begins",
            got=describe(f),
            fix=f"with dx.{where}(...):        # inside of the function",
        )


_RUN_LATER: Final[tuple[Callable[[Any], bool], ...]] = (
    inspect.isgeneratorfunction,
    inspect.iscoroutinefunction,
    inspect.isasyncgenfunction,
)


# --- equal draws in all rows, on purpose -------------------------------------

_broadcast: Final[ContextVar[tuple[Predicate, ...]]] = ContextVar("declax_broadcast_rngs", default=())
"""The predicates of all blocks and decorated calls around this place, outermost first."""


class broadcast_rngs:  # noqa: N801  # reads as a function
    """Allows the rows of a `vmap` to draw the same random numbers.

    A model that `vmap` broadcasts, and that draws, gives each row the same
    numbers: one dropout mask for all of them. This is rarely what you want, so
    `vmap` warns about it, except in the block of a ``with`` or in calls of a
    function that this decorates. It holds in the thread or task that says it.

    Args:
      *filters: which streams: those whose count any of the filters takes. All
        streams if none is given.

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
        # No token is kept: one object may be entered again inside of itself, and by many threads.
        _broadcast.set(_broadcast.get()[:-1])

    def __call__(self, f: Callable[P, R], /) -> Callable[P, R]:
        """Decorates a function."""
        decorated: Callable[P, R] = around_calls("broadcast_rngs", lambda given: (self, given))(f)
        return decorated

    def __repr__(self) -> str:
        return f"broadcast_rngs({', '.join(map(as_written, self._filters))})"


def is_broadcast_meant(path: Path, variable: Any) -> bool:
    """Whether `broadcast_rngs` allows a stream to give each row the same numbers.

    Args:
      path: the path of the stream's count.
      variable: the count.

    >>> is_broadcast_meant(("rngs", "count"), None)
    False
    """
    return any(predicate(path, variable) for predicate in _broadcast.get())
