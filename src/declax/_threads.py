"""What declax has to do with other threads of Python, which may write to the same Variables.

`threading.active_count` counts what runs no more as well: a thread of JAX that
has once called Python, which asked there who it was, stays among the active
ones until the process ends. Python has a class of its own for threads that it
has not started; it is no documented part, so a test tells when it changes.
"""

from __future__ import annotations

import threading
from typing import Final

committing: Final = threading.RLock()
"""Held while Variables are compared with what was read from them, and written; never while JAX runs.

Reentrant, since the garbage collector may run code that writes at any moment.
"""


def is_alone() -> bool:
    """Whether no thread but this one runs that was started by Python, so that nobody writes meanwhile.

    >>> is_alone() in (True, False)
    True
    """
    return threading.active_count() == 1 or _has_no_other()


def _has_no_other() -> bool:
    this = threading.current_thread()
    return all(thread is this or isinstance(thread, threading._DummyThread) for thread in threading.enumerate())
