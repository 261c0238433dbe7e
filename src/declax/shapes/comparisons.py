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
_MOST_STEPS: Final = 5000
"""How many subtractions JAX may make for one comparison. Its search is exponential; few comparisons need 400."""
_lock: Final = threading.RLock()


@contextmanager
def watching_comparisons(
    note: Callable[[Any, Any, FrameType], None], is_watched: Callable[[FrameType], bool]
) -> Generator[None, None, None]:
    """Calls a function with the sides and the frame of each undecided `==` and `!=` in frames that are watched.

    ``if n % 2`` compares with 0. The right side is None where a size is looked up in a set or dict, as by
    ``n in {5, 7}``: JAX has another hash than the number.

    JAX itself compares sizes all the time, such as in its caches; these comparisons are not watched. The error of
    another undecided comparison gets the attribute `ASKED`: whether it stands in a frame that is watched. A comparison
    for which JAX searches too long is not decided.
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

    steps = _Steps(thread)
    replaced = {name: _noting_frame(getattr(cls, name), sign, steps, is_watched) for name, sign in _ORDERS.items()}
    replaced["__sub__"] = steps.counted(cls.__sub__)
    with _lock:
        kept = {name: getattr(cls, name) for name in ("__eq__", "__ne__", "__hash__", *replaced)}
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


class _TooLongError(Exception):
    """JAX has searched too long."""


class _Steps:
    """Counts the subtractions during one comparison in a thread."""

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._left: int | None = None  # None outside of comparisons

    @contextmanager
    def counting(self) -> Generator[None, None, None]:
        """During a comparison, which may be within another one."""
        if self._left is not None or threading.get_ident() != self._thread:
            yield
            return
        self._left = _MOST_STEPS
        try:
            yield
        finally:
            self._left = None

    def counted(self, subtract: Any) -> Any:
        """A subtraction that is counted, and raises where there have been too many."""

        def __sub__(size: Any, other: Any) -> Any:
            if self._left is not None and threading.get_ident() == self._thread:
                self._left -= 1
                if self._left < 0:
                    raise _TooLongError
            return subtract(size, other)

        return __sub__


def _noting_frame(compare: Any, sign: str, steps: _Steps, is_watched: Callable[[FrameType], bool]) -> Any:
    """A comparison whose error knows whether the user's code asked, and that takes a limited number of steps."""

    def comparison(self: Any, other: Any) -> Any:
        try:
            with steps.counting():
                return compare(self, other)
        except (jax.errors.InconclusiveDimensionOperation, _TooLongError) as error:
            if isinstance(error, _TooLongError):
                text = f"Symbolic dimension comparison '{self}' {sign} '{other}' is inconclusive."
                error = jax.errors.InconclusiveDimensionOperation(text)
            frame = sys._getframe(1)
            if not hasattr(error, ASKED):
                setattr(error, ASKED, is_watched(frame))
            raise error from None

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
