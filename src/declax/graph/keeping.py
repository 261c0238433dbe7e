"""What a binding keeps of its Variables' values from one compiled call to the next.

In a loop, one compiled function writes the same Variables at each call, and
nobody looks at them in between. Then they are not written at all: the binding
has a record that owes them (`_kept_values`). To empty the slots and to fill them
again costs as much as two writes. So a binding owes only after some calls, and
waits longer where it had to settle soon.

Vocabulary
----------
patience: so many calls a binding waits before it owes.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final

from declax import _jax, _kept_values
from declax._kept_values import CAN_KEEP, Members, Record, add, end_rivals, lock, make_room, records, run_all
from declax._variables import Variable, empty_raw, fill_raw
from declax.graph.plain_leaves import PlainLeaves

SHORTEST: Final = 4
"""So many calls a binding waits at first."""

LONGEST: Final = 512
"""So many calls a binding waits at most."""

WORTH_OWING: Final = 8
"""What is read sooner than after so many calls had better been written."""

SURELY_WORTH_OWING: Final = 32
"""A loop that is read after so many calls, as one that logs now and then, owes again at once."""


class Keeper:
    """Keeps the values of a graph's leaves as long as nobody else writes to a Variable.

    Attributes:
      variables: the Variable of each leaf; None for other leaves.
      plain: the leaves, where some are no Variable's.
      mark: the trace of all Variables.
      read: the raw value of each leaf now.
      record: what is kept. A call takes its values as input, and puts what came
        out in their place, if they are still there.
    """

    __slots__ = ("_can_keep", "_patience", "_written", "record")

    variables: list[Variable[Any] | None]
    plain: PlainLeaves | None
    mark: Any
    read: Callable[[], list[Any]]

    def __init__(self, variables: list[Variable[Any] | None]) -> None:
        self.record = Record(Members(variables))
        self._written: tuple[tuple[int, ...], list[Variable[Any] | None]] = ((), [])
        self._patience = SHORTEST
        self._can_keep: bool | None = None

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        record = getattr(self, "record", None)  # an interrupt may come before it has one
        if record is not None and not record.is_ended and not is_finalizing():
            record.end()

    def read_to_keep(self) -> tuple[Record, tuple[Any, ...]]:
        """As `read`; keeps the values, where they are all values of Variables outside of traces."""
        if self._can_keep is None:
            is_outside = self.plain is None and self.mark is _jax.TOP
            self._can_keep = CAN_KEEP and is_outside and _are_ours(self.variables)
        if not self._can_keep:
            return self.record, tuple(self.read())
        with lock:
            last = self.record
            if last.owed is not None:  # it had to settle
                self._patience = self._patience_after(last.calls)
            while True:
                record = Record(last.members)
                add(record)  # first, so that a write from here on ends it
                values = tuple(self.read())
                if not record.is_ended:
                    record.values = values
                    self.record = record
                    return record, values

    def _patience_after(self, calls: int) -> int:
        """How many calls to wait, when values were owed for so many."""
        if calls >= SURELY_WORTH_OWING:
            return 0
        return SHORTEST if calls >= WORTH_OWING else min(2 * self._patience or SHORTEST, LONGEST)

    def variables_at(self, positions: tuple[int, ...]) -> list[Variable[Any] | None]:
        """The Variables of some leaves; remembers those that were asked for last, as a loop writes the same ones."""
        if self._written[0] is not positions:
            self._written = positions, [self.variables[i] for i in positions]
        return self._written[1]

    def put(self, record: Record, values: tuple[Any, ...], positions: tuple[int, ...], new: tuple[Any, ...]) -> bool:
        """Sets leaves that are Variables', or owes them.

        Args:
          record: whose values a call has read.
          values: these values.
          positions: of the leaves; the same tuple at each call of a loop.
          new: the raw value of each.

        Returns:
          Whether it is done; not where the record has other values by now.
        """
        is_all = len(new) == len(values)
        variables: Any = self.variables if is_all else self.variables_at(positions)
        after = new if is_all else replaced(values, positions, new)
        with lock:
            if record.owed is not None:  # others than those that are set now
                record.settle()
                return False
            if record.calls < self._patience:
                record.calls += 1
                return self._write(record, values, map(fill_raw, variables, new), after)
            debt = Record(record.members, after, positions, fill_raw)
            told = map(records.append, (debt,)), map(records.remove, (record,))
            steps = chain(*told, map(empty_raw, variables))
            version = _end_rivals(record)
            if version != _kept_values.version or record.values is not values:
                return False
            _kept_values.version += 1
            record.is_ended, record.values, self.record = True, None, debt
            run_all(steps)
            return True

    def replace(self, record: Record, values: tuple[Any, ...], new: tuple[Any, ...], shapes: list[Any]) -> bool:
        """As `put` for all leaves, of which the shapes are known; owes nothing."""
        with lock:
            if record.owed is not None:
                record.settle()
                return False
            if not self._write(record, values, map(fill_raw, self.variables, new), new):  # type: ignore[arg-type]  # all have Variables
                return False
            record.shapes = shapes
            return True

    def _write(self, record: Record, values: tuple[Any, ...], steps: Iterator[Any], after: tuple[Any, ...]) -> bool:
        version = _end_rivals(record)
        if version != _kept_values.version or record.values is not values:
            return False
        record.values = record.shapes = None  # until all is written, or who interrupts would have what is not true
        run_all(steps)
        if self.record is record and not record.is_ended:
            record.values = after
        return True


def _end_rivals(record: Record) -> int:
    """Ends the other records of these Variables; returns the version in which there were no more."""
    version = _kept_values.version
    if len(records) > 1:
        end_rivals(record.members, but=record)
    make_room()
    return version


def replaced(values: Iterable[Any], positions: tuple[int, ...], new: Iterable[Any]) -> tuple[Any, ...]:
    """A copy of values, with new ones at some positions."""
    after = list(values)
    run_all(map(after.__setitem__, positions, new))
    return tuple(after)


def _are_ours(variables: Iterable[Any]) -> bool:
    """Whether nothing but `Variable` knows the slots of these Variables."""
    return all(map(_is_ours, set(map(type, variables))))


@functools.cache
def _is_ours(kind: Any) -> bool:
    """Whether a kind has no functions or properties of its own, which may read or write the slot past `Variable`."""
    for cls in kind.__mro__:
        if cls is Variable:
            return True
        is_of_declax = cls.__module__.partition(".")[0] == __name__.partition(".")[0]
        if not is_of_declax and any(hasattr(value, "__get__") for value in vars(cls).values()):
            return False
    return False
