"""Draws that are the same in every row, said to be meant.

Vocabulary
----------
broadcast: of a stream, that a function under `vmap` draws from it while it has
           no axis, so that each row gets the same numbers.
meant:     a broadcast that the user has asked for; nobody is warned of it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, ParamSpec, TypeVar

from declax._filters import Filter, Predicate, as_written, to_predicate
from declax._typing import Path
from declax.errors import RngError, describe

P = ParamSpec("P")
R = TypeVar("R")

_meant: Final[ContextVar[tuple[Predicate, ...]]] = ContextVar("declax_broadcast_rngs", default=())
"""What is meant here and now: the predicates of all blocks and decorated calls around this place, outermost first."""

_current: Final = _meant.get


class broadcast_rngs:  # noqa: N801  # reads as a function
    """Says that each row of a `vmap` shall draw the same random numbers.

    A model that `vmap` broadcasts, and that draws, gives each row the same
    numbers: one dropout mask for all of them. That is rarely meant, so `vmap`
    warns of it. In the block of a ``with``, or in calls of a function that this
    decorates, it does not. It holds in the thread or task that says it.

    Args:
      *filters: whose draws are meant; a stream is meant where any of them takes
        its count. All streams where none is given.

    Raises:
      FilterError: for what is no filter.
      RngError: for a decorated generator or coroutine, which runs after the
        call, and for what cannot be called.

    >>> with broadcast_rngs("dropout"):
    ...     print(len(_current()))
    1
    >>> @broadcast_rngs()
    ... def depth():
    ...     return len(_current())
    >>> depth(), len(_current())
    (1, 0)
    """

    __slots__ = ("_filters", "_predicate")

    def __init__(self, *filters: Filter) -> None:
        self._filters = filters
        self._predicate = to_predicate(filters or ...)

    def __enter__(self) -> None:
        _meant.set((*_current(), self._predicate))

    def __exit__(self, *error: object) -> None:
        # No token is kept: one object may be entered again inside of itself, and by many threads.
        _meant.set(_current()[:-1])

    def __call__(self, f: Callable[P, R], /) -> Callable[P, R]:
        """Decorates a function: in its calls the draws are meant."""
        check_can_decorate("broadcast_rngs", f)

        @functools.wraps(f)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return f(*args, **kwargs)

        return call

    def __repr__(self) -> str:
        return f"broadcast_rngs({', '.join(map(as_written, self._filters))})"


def is_broadcast_meant(path: Path, variable: Any) -> bool:
    """Whether a stream may give each row the same numbers, as `broadcast_rngs` says here and now.

    Args:
      path: the path of the stream's count.
      variable: the count.

    >>> is_broadcast_meant(("rngs", "count"), None)
    False
    """
    predicates = _current()
    return bool(predicates) and any(predicate(path, variable) for predicate in predicates)


def check_can_decorate(where: str, f: object) -> None:
    """Checks that what is decorated is a function whose body runs in its call.

    Args:
      where: the name of the decorator.
      f: what is decorated.

    Raises:
      RngError: it is none.
    """
    if not callable(f):
        raise RngError(
            where,
            "what is decorated cannot be called",
            expected="a function",
            got=describe(f),
            fix=f"@dx.{where}(...)        # with parentheses, above `def`",
        )
    of_call = getattr(type(f), "__call__", None)  # noqa: B004  # of a callable object, the method behind it
    if any(is_late(g) for is_late in _RUN_LATER for g in (f, of_call)):
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
