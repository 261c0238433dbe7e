"""Two epochs: of structures, and of values. What is read in an epoch stays true until it ends.

Vocabulary
----------
epoch:  the time between two structural changes (an attribute that comes, goes
        or changes its status; metadata that changes; an element of a List).
write epoch: the time between two writes of the raw value of a Variable.
token:  the object that stands for the epoch. What is derived from a structure
        keeps the token it was derived under, and is good for as long as
        ``kept is current()``.

Whoever keeps a token keeps it alive, so the identity of an old token is never
given to a new one. Changing the token is one assignment, which is atomic: two
threads that advance at once both leave a token that nobody has kept yet.
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
