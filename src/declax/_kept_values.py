"""Values that were read from Variables, kept until a Variable is written.

A loop calls one compiled function with one model, again and again, and nobody
else writes to the model meanwhile. Then its values need not be read anew for
each call. Nor need they be written: a holder may owe its Variables what came
out, until somebody reads one of them.

Whoever writes to an existing Variable calls `forget` before the write, so that
an interrupt between the two leaves nothing that is no longer true, and holds
`committing` for both, so that no other thread reads in between. The writers are
those of `_variables` and of `graph.keeping`; nobody else has the slot.

Vocabulary
----------
holder: what keeps values, in its attribute `kept_values`.
owed:   a value that a holder keeps, and that its Variable has not been given.
        The slot of the Variable is empty, so that to read it is to `settle`.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable
from typing import Any, Final, Protocol

from declax._threads import committing

MOST = 8
"""So many holders there are at most."""


class Holder(Protocol):
    """What can keep values.

    Attributes:
      kept_values: what it keeps; None for nothing.
      kept_shapes: of these values; None where nobody has looked.
      variable_ids: the identities of the Variables.
    """

    kept_values: tuple[Any, ...] | None
    kept_shapes: list[Any] | None

    @property
    def variable_ids(self) -> frozenset[int]: ...

    def settle(self) -> None:
        """Gives its Variables what it owes them."""


holders: Final[list[weakref.ref[Any]]] = []
"""References to what keeps values now; empty where there is nothing to forget."""


def register(holder: Holder) -> weakref.ref[Any]:
    """Has a holder told of writes from now on; to be called before it reads what it will keep.

    Returns:
      What is in `holders` until it has something to forget.
    """
    reference = weakref.ref(holder)
    with committing:
        if reference not in holders:
            if len(holders) >= MOST:
                for other in tuple(holders):
                    forget_of(other)
            holders.append(reference)
    return reference


def forget(written: Iterable[int]) -> None:
    """Says that Variables are about to be written, or were: what is kept of them is no longer true.

    Args:
      written: the identities of the Variables.
    """
    with committing:
        for reference in tuple(holders):
            holder = reference()
            if holder is None or not holder.variable_ids.isdisjoint(written):
                forget_of(reference)


def forget_of(reference: weakref.ref[Any]) -> None:
    """Has a holder keep nothing any more."""
    holder = reference()
    if holder is not None:
        holder.settle()
        holder.kept_values = None
    with contextlib.suppress(ValueError):  # what the garbage collector has run was faster
        holders.remove(reference)  # last, or an interrupt would leave one that nobody tells


def settle(identity: int) -> None:
    """Has a Variable given what it is owed."""
    with committing:
        for reference in tuple(holders):
            holder = reference()
            if holder is not None and identity in holder.variable_ids:
                holder.settle()
