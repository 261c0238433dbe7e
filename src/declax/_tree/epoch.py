"""When kept facts end: the structure epoch, the write epoch of raw values, and the lock of readers and writers.

A structure epoch ends with each structural change (an attribute that is added, removed or changes its status; metadata;
an element of a List), a write epoch with each write of a raw value, and with the structure epoch. A token identifies an
epoch. Keeping the token keeps its identity from being reused; replacing it is one assignment, which is atomic.
"""

from __future__ import annotations

import threading
from typing import Any, Final

committing: Final = threading.RLock()
"""Held while Variables are read or compared, and written, so that no thread sees half of a step; never while JAX runs.

Reentrant, since the garbage collector may run code that writes at any moment.
"""

token: object = object()
"""The token of the structure epoch, to be kept and compared with ``is``."""

kept: dict[int, tuple[Any, ...]] | None = {}
"""The token of the write epoch, with the values that were read in it, by the identity of the reader.

A write sets it to None before, and to a new dict after. This frees kept values with their epoch, and an interrupted
write leaves none. A reader takes the token first, and adds to the token that it took.
"""


def advance() -> None:
    """Ends both epochs: facts derived from a structure must be derived again, and values of its leaves read again."""
    global token, kept
    token, kept = object(), {}
