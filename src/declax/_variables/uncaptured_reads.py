"""Warns when a traced function reads a Variable that is neither an argument nor captured.

While a transform of declax traces a function (a *body*), its arguments and captures are copies that belong to the
trace. The value of any other Variable is a constant of the program.
"""

from __future__ import annotations

import linecache
import sys
import threading
import types
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final

from declax import _jax
from declax._tree import epoch
from declax._tree.read_only import WritesThrough
from declax.errors import WHERE_CAPTURES_ARE_FOUND, OverlookedModelWarning, type_name, with_article

_trace_state: Final = _jax.trace_state

is_watching: bool = False
"""Whether some thread traces a body: whatever reads a Variable calls `warn_if_uncaptured` then."""

never_refs: Final[set[type]] = set()
"""Classes of raw values that were found to be no refs, so that each is asked once.

It is empty while a body is traced, so that `Variable.value` takes its longer way, and
the shorter one has nothing to ask.
"""

_lock: Final = threading.RLock()  # a finalizer may run while it is held
_watches = 0


class _TraceReads:
    """The uncaptured Variables that one body reads, and the user's frame that read the first."""

    def __init__(self) -> None:
        self.trace_token: Any = _trace_state.value
        self.found: dict[int, Any] = {}
        self.frame: types.FrameType | None = None

    @cached_property
    def outer(self) -> list[Any]:
        """The tokens of the traces around that of the body."""
        return _jax.outer_trace_tokens(self.trace_token)

    def add(self, variable: Any) -> None:
        """Notes a Variable that was read."""
        if not self.found:
            self.frame = _jax.frame_of_user(sys._getframe(0))
        self.found[id(variable)] = variable

    def warn(self) -> None:
        """Warns once of all that was read, at the line that read the first."""
        frame, count = self.frame, len(self.found) - 1
        if frame is None:
            return
        first = next(iter(self.found.values()))
        code, number = frame.f_code, frame.f_lineno
        line = linecache.getline(code.co_filename, number, frame.f_globals).strip()
        others = "" if count == 0 else f" and {count} other Variable{'s' if count > 1 else ''}"
        warnings.warn_explicit(
            f"{code.co_name!r} reads {with_article(type_name(type(first)))}{others}, neither passed nor captured"
            f"{f', in `{line}`' if line else ''}. The trace takes the values as constants, and a compiled function "
            f"does not see later ones. Pass the model as an argument.\n{WHERE_CAPTURES_ARE_FOUND}.",
            OverlookedModelWarning,
            code.co_filename,
            number,
        )


class _ThreadTraces(threading.local):
    """The bodies that this thread is in, the outermost first."""

    def __init__(self) -> None:
        self.bodies: list[_TraceReads] = []


_here: Final = _ThreadTraces()


@contextmanager
def body() -> Generator[None, None, None]:
    """Watches reads while a user's function is traced, and warns at its end.

    Without a trace, copies are like other Variables, and nothing is watched.
    """
    if _trace_state.value is _jax.TOP:
        yield
        return
    watch()
    watched = _TraceReads()
    _here.bodies.append(watched)
    try:
        yield
    finally:
        _here.bodies.pop()
        watch(False)
    watched.warn()


def watch(begins: bool = True) -> None:
    """Lets whatever reads a Variable call `warn_if_uncaptured`, until each watch has ended."""
    global _watches, is_watching
    with _lock:
        _watches += 1 if begins else -1
        is_watching = _watches > 0
    if begins:
        never_refs.clear()
        epoch.kept = {}  # values that are kept would be read without a call of `warn_if_uncaptured`


def is_of_body(trace: Any) -> bool:
    """Whether a trace is that of the innermost body of this thread."""
    return bool(_here.bodies) and _here.bodies[-1].trace_token is trace


def warn_if_uncaptured(variable: Any) -> None:
    """Notes a Variable that a traced function did not receive; the outermost such function warns at its end."""
    trace_token = variable._trace
    if isinstance(trace_token, WritesThrough):
        trace_token.read(variable)
        trace_token = trace_token.trace
    if trace_token is _trace_state.value:
        return
    for watched in _here.bodies:
        if any(trace_token is outer for outer in watched.outer):
            watched.add(variable)
            return
