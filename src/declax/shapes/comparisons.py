"""Questions about sizes that JAX cannot decide: `==`, truth and lookups, which it answers, and others, which raise."""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import jax
import jax.export

from declax._jax import is_symbolic

ASKED: Final = "_declax_asked"
_ORDERS: Final = {"__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}
_SEARCHES: Final = {**_ORDERS, "max": ">=", "rmax": ">=", "min": ">=", "rmin": ">="}
"""The methods that search for an answer, with the sign of the comparison."""
_MOST_STEPS: Final = 5000
"""How many subtractions JAX may make in one search. A search may be exponential, and few need 400."""
_lock: Final = threading.RLock()


@contextmanager
def watching_comparisons(
    note: Callable[[Any, Any, FrameType], None], is_watched: Callable[[FrameType], bool]
) -> Generator[None, None, None]:
    """Calls a function with the sides and the frame of each undecided `==` and `!=` in frames that are watched.

    ``if n % 2`` compares with 0. The right side is None where a size is looked up in a set or dict, as by
    ``n in {5, 7}``: JAX has another hash than the number.

    JAX itself compares sizes all the time, such as in its caches; these comparisons are not watched. The error of
    another undecided comparison gets the attribute `ASKED`: whether it stands in a frame that is watched.
    """
    (size,) = jax.export.symbolic_shape("size")
    cls: Any = type(size)
    original: Any = cls.__eq__
    hash_of: Any = cls.__hash__
    thread = threading.get_ident()

    def note_undecided(left: Any, right: Any, frame: FrameType) -> None:
        if threading.get_ident() == thread and is_watched(frame) and _is_undecided(left, right):
            note(left, right, frame)

    def __eq__(self: Any, other: Any) -> Any:
        equal = original(self, other)
        if equal is False:
            note_undecided(self, other, sys._getframe(1))
        return equal

    def __ne__(self: Any, other: Any) -> Any:
        equal = original(self, other)
        if equal is False:
            note_undecided(self, other, sys._getframe(1))
        return not equal

    def __bool__(self: Any) -> bool:
        note_undecided(self, 0, sys._getframe(1))
        return True  # as without this method

    def __hash__(self: Any) -> int:
        frame = sys._getframe(1)
        if threading.get_ident() == thread and is_watched(frame) and _is_lookup(frame):
            note(self, None, frame)
        found: int = hash_of(self)
        return found

    replaced = {name: _noting_frame(getattr(cls, name), is_watched) for name in _ORDERS}
    with _lock:
        kept = {name: getattr(cls, name) for name in ("__eq__", "__ne__", "__hash__", *_ORDERS)}
        try:
            for method in (__eq__, __ne__, __bool__, __hash__):
                setattr(cls, method.__name__, method)
            for name, method in replaced.items():
                setattr(cls, name, method)
            yield
        finally:
            del cls.__bool__
            for name, method in kept.items():
                setattr(cls, name, method)


def _noting_frame(compare: Any, is_watched: Callable[[FrameType], bool]) -> Any:
    """A comparison whose error knows whether the user's code asked."""

    def comparison(self: Any, other: Any) -> Any:
        try:
            return compare(self, other)
        except jax.errors.InconclusiveDimensionOperation as error:
            frame = sys._getframe(1)
            if not hasattr(error, ASKED):
                setattr(error, ASKED, is_watched(frame))
            raise

    return comparison


def _is_undecided(left: Any, right: Any) -> bool:
    if isinstance(right, bool) or not (isinstance(right, int) or is_symbolic(right)):
        return False
    try:
        difference = left - right
        return is_symbolic(difference) and not (difference > 0 or difference < 0)
    except jax.errors.InconclusiveDimensionOperation:
        return True
    except ValueError:  # sizes of two scopes
        return False


def _is_lookup(frame: FrameType) -> bool:
    """Whether a frame asks whether a container has a value, or for the entry under a key."""
    instruction = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    return instruction in ("CONTAINS_OP", "BINARY_SUBSCR")


# --- how long JAX searches --------------------------------------------------------------


class _TooLongError(Exception):
    """JAX has searched too long."""


@contextmanager
def limiting_searches() -> Generator[None, None, None]:
    """While comparisons, and `max` and `min`, are not decided in this thread if JAX searches too long.

    The steps that are counted are subtractions, so that a busy machine changes no verdict.
    """
    (size,) = jax.export.symbolic_shape("size")
    cls: Any = type(size)
    thread = threading.get_ident()
    subtract = cls.__sub__
    left: list[int] = []  # the steps that are left, during a search

    def counted(self: Any, other: Any) -> Any:
        if left and threading.get_ident() == thread:
            left[0] -= 1
            if left[0] < 0:
                raise _TooLongError
        return subtract(self, other)

    def limited(search: Any, sign: str) -> Any:
        def searching(self: Any, other: Any) -> Any:
            if left or threading.get_ident() != thread:
                return search(self, other)
            left.append(_MOST_STEPS)
            try:
                return search(self, other)
            except (_TooLongError, RecursionError):  # JAX's search does not end for some equations
                left.clear()  # texts of sizes compare too
                text = f"Symbolic dimension comparison '{self}' {sign} '{other}' is inconclusive."
                raise jax.errors.InconclusiveDimensionOperation(text) from None
            finally:
                left.clear()

        return searching

    with _lock:
        kept = {name: getattr(cls, name) for name in ("__sub__", *_SEARCHES)}
        try:
            cls.__sub__ = counted
            for name, sign in _SEARCHES.items():
                setattr(cls, name, limited(kept[name], sign))
            yield
        finally:
            for name, method in kept.items():
                setattr(cls, name, method)
