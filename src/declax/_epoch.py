"""The structure epoch: one token that changes whenever a known structure changes.

Vocabulary
----------
epoch:  the time between two structural changes (an attribute that comes, goes
        or changes its status; metadata that changes; an element of a List).
token:  the object that stands for the epoch. What is derived from a structure
        keeps the token it was derived under, and is good for as long as
        ``kept is current()``.

Whoever keeps a token keeps it alive, so the identity of an old token is never
given to a new one. Changing the token is one assignment, which is atomic: two
threads that advance at once both leave a token that nobody has kept yet.
"""

from __future__ import annotations

token: object = object()
"""The token of this epoch; read it as ``_epoch.token`` where a call is too much."""


def current() -> object:
    """The token of the present epoch, to be kept and compared with ``is``.

    >>> kept = current()
    >>> kept is current()
    True
    """
    return token


def advance() -> None:
    """Ends the epoch: whatever was derived from a structure must be derived again.

    >>> kept = current()
    >>> advance()
    >>> kept is current()
    False
    """
    global token
    token = object()
