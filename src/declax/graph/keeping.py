"""What a binding keeps of its Variables' values from one compiled call to the next.

In a loop, one compiled function writes the same Variables at each call, and
nobody looks at them in between. Then they are not written at all: the binding
keeps what came out, as input of the next call, and owes it to the Variables.
Their slots are empty meanwhile, so that whoever reads one comes to `settle`
first. To empty the slots and to fill them again costs as much as two writes. So
a binding owes only after some calls, and waits longer where it had to settle soon.

Vocabulary
----------
owed:     the positions of the leaves whose Variables have empty slots, or may have.
owing:    the same positions, from when all slots are empty until one may be filled.
patience: so many calls a binding waits before it owes.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from declax import _jax
from declax._kept_values import MOST, forget_of, holders, register
from declax._threads import committing
from declax._variables import Variable, empty_raw, fill_raw
from declax.graph.plain_leaves import PlainLeaves

SHORTEST: Final = 4
"""So many calls a binding waits at first."""

LONGEST: Final = 512
"""So many calls a binding waits at most."""

HAS_GIL: Final = bool(getattr(sys, "_is_gil_enabled", lambda: True)())
"""Whether threads switch at few places; who puts others in the place of the kept values relies on it."""

WORTH_OWING: Final = 8
"""What is read sooner than after so many calls had better been written."""


class Keeper:
    """Keeps the values of a graph's leaves as long as nobody else writes to a Variable.

    Attributes:
      variables: the Variable of each leaf; None for other leaves.
      plain: the leaves, where some are no Variable's.
      mark: the trace of all Variables.
      read: the raw value of each leaf now.
      kept_values: of the leaves, if no Variable was written since; see `_kept_values`.
      kept_shapes: of the kept values, all of them arrays; None where nobody has looked.
      owing: positions of leaves. While they are these, who has compared the
        kept values may put others in their place, and count it as a call.
      calls: how many there were since it began to owe, or since it had to settle.
    """

    __slots__ = (
        "_apart",
        "_owed",
        "_patience",
        "_variable_ids",
        "_written",
        "calls",
        "kept_shapes",
        "kept_values",
        "owing",
    )

    variables: list[Variable[Any] | None]
    plain: PlainLeaves | None
    mark: Any
    read: Callable[[], list[Any]]

    def __init__(self) -> None:
        self.kept_values: tuple[Any, ...] | None = None
        self.kept_shapes: list[Any] | None = None
        self._written: tuple[tuple[int, ...], list[Variable[Any] | None]] = ((), [])
        self._owed: tuple[int, ...] | None = None
        self.owing: tuple[int, ...] | None = None
        self._patience = SHORTEST
        self._variable_ids: frozenset[int] | None = None
        self._apart: set[weakref.ref[Any]] = set()
        self.calls = 0

    def __del__(self) -> None:
        if self._owed is not None:
            self.settle()

    @property
    def variable_ids(self) -> frozenset[int]:
        """The identities of the Variables."""
        if self._variable_ids is None:
            self._variable_ids = frozenset(map(id, self.variables))
        return self._variable_ids

    def read_to_keep(self) -> tuple[Any, ...]:
        """As `read`; keeps the values, where they are all values of Variables outside of traces.

        Says that it keeps before it reads, so that a write of another thread
        meanwhile is noticed by who writes.
        """
        if self.plain is not None or self.mark is not _jax.TOP:
            return tuple(self.read())
        with committing:
            reference = register(self)
            values = tuple(self.read())
            if reference in holders:  # what the garbage collector has run did not write
                self.kept_values, self.kept_shapes = values, None
        return values

    def variables_at(self, positions: tuple[int, ...]) -> list[Variable[Any] | None]:
        """The Variables of some leaves; remembers those that were asked for last, as a loop writes the same ones."""
        if self._written[0] is not positions:
            self._written = positions, [self.variables[i] for i in positions]
        return self._written[1]

    def put(self, positions: tuple[int, ...], new: tuple[Any, ...]) -> None:
        """Sets leaves that are Variables', or owes them; to be called by who has compared the kept values.

        Args:
          positions: of the leaves; the same tuple at each call of a loop.
          new: the raw value of each.
        """
        kept = self.kept_values
        assert kept is not None  # they were compared
        after = new if len(new) == len(kept) else replaced(kept, positions, new)
        self.calls += 1
        if self.owing is positions:
            self.kept_values = after
            return
        if self._owed is not None:
            self.settle()
        if len(holders) > 1:
            self._forget_rivals()
        variables: Any = self.variables if len(new) == len(kept) else self.variables_at(positions)
        if self.calls > self._patience and HAS_GIL and _can_be_empty(variables):
            self._owed, self.kept_shapes, self.calls = positions, None, 0
            deque(map(empty_raw, variables), 0)
            self.kept_values = after
            self.owing = positions
        else:
            self._write(variables, new, after)

    def replace(self, new: tuple[Any, ...], shapes: list[Any]) -> None:
        """Sets all leaves, and keeps them.

        Args:
          new: the raw value of each.
          shapes: of these.
        """
        with committing:
            self.settle()
            self._forget_rivals()
            register(self)
            self._write(self.variables, new, new)
            self.kept_shapes = shapes

    def _write(self, variables: Any, new: Iterable[Any], after: tuple[Any, ...]) -> None:
        self.kept_values = None  # until all is written, or an interrupt would leave what is not true
        deque(map(fill_raw, variables, new), 0)
        self.kept_values, self.kept_shapes = after, None

    def _forget_rivals(self) -> None:
        """Has others forget the values that they keep of the same Variables."""
        for reference in tuple(holders):
            other = reference()
            if other is self or (other is not None and reference in self._apart):
                continue
            if other is None or not self.variable_ids.isdisjoint(other.variable_ids):
                forget_of(reference)
            else:
                if len(self._apart) > MOST:
                    self._apart.clear()
                self._apart.add(reference)

    def settle(self) -> None:
        """Gives the Variables what it owes them.

        An interrupt leaves either all as it was, or all given: the slots are
        filled by one call into C.
        """
        with committing:
            positions, values = self._owed, self.kept_values
            if positions is None:
                return
            assert values is not None  # what is owed is kept
            if self.owing is not None:
                self.owing = None
                self._patience = SHORTEST if self.calls >= WORTH_OWING else min(2 * self._patience, LONGEST)
                self.calls = 0
            is_all = len(positions) == len(values)
            variables: Any = self.variables if is_all else self.variables_at(positions)
            deque(map(fill_raw, variables, values if is_all else map(values.__getitem__, positions)), 0)
            self._owed = None


def replaced(values: Iterable[Any], positions: tuple[int, ...], new: Iterable[Any]) -> tuple[Any, ...]:
    """A copy of values, with new ones at some positions."""
    after = list(values)
    deque(map(after.__setitem__, positions, new), 0)
    return tuple(after)


def _can_be_empty(variables: Iterable[Variable[Any]]) -> bool:
    """Whether all Variables are of kinds that find a value which they are owed."""
    return all(map(_finds_what_is_owed, set(map(type, variables))))


@functools.cache
def _finds_what_is_owed(kind: Any) -> bool:
    """Whether a kind looks up attributes as `Variable` does, whose `__getattr__` knows of empty slots."""
    return kind.__getattr__ is Variable.__getattr__ and kind.__getattribute__ is object.__getattribute__
