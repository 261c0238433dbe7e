"""Two epochs: of structures, and of values. What is read in an epoch stays true until it ends.

An epoch lasts from one structural change (an attribute that comes, goes or changes its status; metadata; an element
of a List) to the next, a write epoch from one write of a raw value to the next. A token stands for it. Whoever keeps
a token keeps it alive, so that its identity is never given again; replacing it is one assignment, which is atomic.
"""

from __future__ import annotations

from typing import Any

token: object = object()
"""The token of this epoch; read it as ``_epoch.token`` where a call is too much."""

kept: dict[int, tuple[Any, ...]] | None = {}
"""The token of this write epoch, with the values that were read in it, by the identity of the reader.

A write sets it to None before, and to a new dict after: so kept values are freed with
their epoch, and an interrupted write leaves nothing that is kept. Who reads takes the
token first, and adds to the token that it took.
"""


def current() -> object:
    """The token of the present epoch, to be kept and compared with ``is``."""
    return token


def advance() -> None:
    """Ends the epoch: whatever was derived from a structure must be derived again."""
    global token
    token = object()
