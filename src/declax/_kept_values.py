"""Values of Variables that are kept from one compiled call to the next, until somebody writes to one of them.

A loop calls one compiled function with one model, again and again, and nobody
else writes to the model meanwhile. Then its values need not be read anew for
each call. Nor need they be written: a record may *owe* its Variables what came
out, until somebody reads one of them.

Readers, writers and loops may be in several threads, and in one thread they may
interrupt each other: a signal handler, a finalizer or a callback of the garbage
collector runs wherever the interpreter looks for such, which is when a call has
returned and where a loop jumps back. So each change is one statement, or
one call into C, that follows upon the check that it relies on *without a call
in between*. Where there is no such interpreter (free threading), nothing is kept.

Vocabulary
----------
record:  values of some Variables, as long as they are true.
owed:    a value that a record has and its Variable has not: the slot is empty,
         so that to read it is to settle.
settle:  to give Variables what they are owed; the record ends with that.
rival:   another record of a Variable that is about to be written.
version: counts the records, so that a writer sees that one was added.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

MOST: Final = 8
"""So many records there are at most."""

CAN_KEEP: Final = bool(getattr(sys, "_is_gil_enabled", lambda: True)())
"""Whether the interpreter switches threads only where this module takes it to."""

lock: Final = threading.RLock()
"""Held while records change, but by who replaces the values of one. Never while JAX runs, or code of users."""

records: Final[list[Record]] = []
"""What is kept now; empty where there is nothing to forget."""

version = 0

run_all: Final[Callable[[Iterator[Any]], None]] = deque[Any](maxlen=0).extend
"""Runs an iterator to its end: one call into C, which makes no object."""

_serials = itertools.count()


if sys.version_info >= (3, 12):

    def make_room() -> None:
        """Nothing: the collector runs where the interpreter looks for signals, not in the middle of `run_all`."""

else:

    def make_room() -> None:
        """Leaves two tuples for `run_all`, whose allocation would let the collector run in the middle of it."""
        places: Any = (None, make_room), (make_room,)
        del places


class Members:
    """The Variables of a graph.

    Attributes:
      variables: each of them.
      serial: a number of its own.
      apart: the serials of others with which it shares none.
    """

    __slots__ = ("_ids", "apart", "serial", "variables")

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = variables
        self.serial = next(_serials)
        self.apart: set[int] = set()
        self._ids: frozenset[int] | None = None

    @property
    def ids(self) -> frozenset[int]:
        """The identities of the Variables."""
        if self._ids is None:
            self._ids = frozenset(map(id, self.variables))
        return self._ids

    def is_apart_from(self, other: Members) -> bool:
        """Whether the two share no Variable; remembers it."""
        if other.serial in self.apart:
            return True
        is_apart = self.ids.isdisjoint(other.ids)
        if is_apart:
            if len(self.apart) > 8 * MOST:
                self.apart.clear()
            self.apart.add(other.serial)
        return is_apart


class Record:
    """Values of the Variables of a graph.

    Args:
      members: the Variables.
      values: the raw value of each.
      owed: the positions of those whose slots are empty; None where all are full.
      fill: puts a value into the slot of a Variable; of a record that owes.

    Attributes:
      members, owed: as given; they never change.
      values: None once they are not true any more, and while nobody has read them.
      shapes: of the values, all of them arrays; None where nobody has looked.
      is_ended: whether it never has values again.
      calls: how many calls there were since it began.
    """

    __slots__ = ("_fill", "_settling", "calls", "is_ended", "members", "owed", "shapes", "values")

    def __init__(
        self,
        members: Members,
        values: tuple[Any, ...] | None = None,
        owed: tuple[int, ...] | None = None,
        fill: Callable[[Any, Any], None] | None = None,
    ) -> None:
        self.members = members
        self.owed = owed
        self.values = values
        self.shapes: list[Any] | None = None
        self.is_ended = False
        self.calls = 0
        self._settling: tuple[Any, ...] | None = None
        self._fill = fill

    def settle(self) -> None:
        """Gives its Variables what it owes them, and ends; to be called with the lock.

        May be called again before it has returned, and after an interrupt:
        nobody writes to its Variables without having called it.
        """
        if self.owed is None:
            return
        if self.values is not None:
            self._settling, self.values = self.values, None
        values = self._settling
        if values is None:
            return
        variables, owed = self.members.variables, self.owed
        if len(owed) < len(values):
            steps = map(self._fill, [variables[i] for i in owed], [values[i] for i in owed])  # type: ignore[arg-type]  # it owes
        else:
            steps = map(self._fill, variables, values)  # type: ignore[arg-type]  # it owes
        make_room()
        if self._settling is values:
            run_all(steps)
        self._settling = None
        self.is_ended = True
        discard(self)

    def end(self) -> None:
        """Has its values forgotten: some Variable is about to be written."""
        with lock:
            self.settle()
            self.is_ended = True
            self.values = None
            discard(self)


def discard(record: Record) -> None:
    """Takes a record out of those that are told of writes."""
    with contextlib.suppress(ValueError):
        records.remove(record)


def add(record: Record) -> None:
    """Has a record told of writes from now on; to be called with the lock, before its values are read."""
    global version
    version += 1
    while len(records) >= MOST:
        records[0].end()
    records.append(record)


def end_rivals(of: Members, but: Record | None = None) -> None:
    """Ends the records of any of some Variables, except one; to be called with the lock."""
    for record in tuple(records):
        if record is not but and (record.members is of or not of.is_apart_from(record.members)):
            record.end()


def write(variables: Collection[Any], steps: Iterator[Any], read: Callable[[Any], Any]) -> list[Any]:
    """Writes to Variables, of which some may be kept.

    Args:
      variables: the Variables.
      steps: what `run_all` has to run.
      read: gives what is in a Variable.

    Returns:
      What was in them, so that it dies with the caller: what dies may run code
      of users, or have the interpreter switch threads, in the middle of the
      writing, and would have the lock.
    """
    ids = [*map(id, variables)]
    with lock:
        while True:
            before = version
            for record in tuple(records):
                if not record.members.ids.isdisjoint(ids):
                    record.end()
            old = list(map(read, variables))
            make_room()
            if version == before:
                break
        run_all(steps)
    return old


def settle(variable: object) -> None:
    """Has a Variable given what it is owed; to be called with the lock."""
    for record in tuple(records):
        if record.owed is not None and id(variable) in record.members.ids:
            record.settle()


if hasattr(os, "register_at_fork"):  # a child has no thread that would release it
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
