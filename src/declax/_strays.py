"""Says so when a traced function reads a Variable past its arguments and captures.

What a function is given or captures are copies while a transform of declax traces
it, and they belong to the trace. A Variable of the top level that is read then is
one that captures do not look for: its value is a constant of what is traced.

Vocabulary
----------
body:  a user's function, while a transform of declax traces it.
stray: a Variable of the top level that a body reads.
"""

from __future__ import annotations

import linecache
import sys
import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

from declax import _jax
from declax.errors import WHERE_CAPTURES_ARE_SOUGHT, OverlookedModelWarning, type_name

_trace_state: Final = _jax.trace_state

is_watching: bool = False
"""Whether a body is traced, by whatever thread: a Variable that is read asks `look` then."""

never_refs: Final[set[type]] = set()
"""Classes of raw values that were found to be no refs, so that each is asked once.

It is empty while a body is traced. What is read takes the longer way then, and
nothing has to be asked on the shorter one.
"""

_bodies = 0
_lock: Final = threading.Lock()
_told: Final[set[tuple[object, int]]] = set()
"""The code and the line of each reading that a warning has named; each is named once."""


class _Here(threading.local):
    """How many bodies this thread is in."""

    depth = 0


_here: Final = _Here()


@contextmanager
def body() -> Generator[None, None, None]:
    """Watches what is read while a user's function is traced; of what runs at the top level, copies are of it too."""
    if _trace_state.value is _jax.TOP:
        yield
        return
    global _bodies, is_watching
    with _lock:
        _bodies += 1
        is_watching = True
    never_refs.clear()
    _here.depth += 1
    try:
        yield
    finally:
        _here.depth -= 1
        with _lock:
            _bodies -= 1
            is_watching = _bodies > 0


def look(variable: Any) -> None:
    """Warns of a Variable that is read, where it is a stray."""
    if variable._trace is not _jax.TOP or _trace_state.value is _jax.TOP or not _here.depth:
        return
    level = _jax.level_of_user(sys._getframe(0))
    frame = sys._getframe(level - 1)
    if (frame.f_code, frame.f_lineno) in _told:
        return
    _told.add((frame.f_code, frame.f_lineno))
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno, frame.f_globals).strip()
    kind = type_name(type(variable))
    warnings.warn(
        f"{frame.f_code.co_name!r} reads a {kind} that is no argument and was not found"
        f"{f', in `{line}`' if line else ''}: its value is a constant of what is traced, and later ones are not seen. "
        f"Pass it, or the model that has it, as an argument.\n{WHERE_CAPTURES_ARE_SOUGHT}.",
        OverlookedModelWarning,
        stacklevel=level,
    )


def forget_told() -> None:
    """Has each reading named again; for tests."""
    _told.clear()
