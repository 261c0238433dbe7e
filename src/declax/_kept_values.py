"""Values that were read from Variables, kept until a Variable is written.

A loop calls one compiled function with one model, again and again, and nobody
else writes to the model meanwhile. Then its values need not be read anew for
each call. Whoever writes to an existing Variable says so by `forget`, before the
write, so that an interrupt between the two leaves nothing that is no longer true;
the writers are those of `_variables`, and nobody else has the slot.

Vocabulary
----------
holder: what keeps values, in its attribute `kept_values`.
"""

from __future__ import annotations

import weakref
from typing import Any, Final, Protocol

MOST = 8
"""So many holders there are at most."""


class Holder(Protocol):
    """What can keep values."""

    kept_values: list[Any] | None
    kept_shapes: list[Any] | None


holders: Final[list[weakref.ref[Any]]] = []
"""References to what keeps values now; empty where there is nothing to forget."""


def keep(holder: Holder, values: list[Any], shapes: list[Any] | None = None) -> None:
    """Has a holder keep the values that it has read, or has written, just now.

    Args:
      holder: what keeps them.
      values: a list that nobody changes.
      shapes: of the values, where they are known; they are kept too.
    """
    if holder.kept_values is None:
        if len(holders) >= MOST:
            forget()
        holders.append(weakref.ref(holder))
    holder.kept_values, holder.kept_shapes = values, shapes


def forget() -> None:
    """Says that some Variable is about to be written: whatever was kept is no longer true."""
    for reference in tuple(holders):
        holder = reference()
        if holder is not None:
            holder.kept_values = None
        try:
            holders.remove(reference)  # last, or an interrupt would leave one that nobody tells
        except ValueError:  # another thread has taken it
            continue
