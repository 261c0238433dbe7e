"""Leaves that are no Variable's: arrays that are attributes of nodes, or that sit in containers.

A write of an attribute is told to nobody, so they are read anew for each call;
but those that a node has next to each other are read and written at once.

Vocabulary
----------
source: the node and the attribute of a leaf; None for one in a container.
run:    leaves that follow one another, of one node or of Variables.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter, setitem
from typing import Any, NamedTuple

from declax import _jax
from declax._attributes import wrong_trace
from declax._layout import TRACE_KEY
from declax._pytree import Pytree
from declax._typing import MISSING
from declax._variables import Variable, raw_values, set_all_raw
from declax.graph.change import check_marks
from declax.graph.walk import Source

_Reader = tuple[Callable[[], Any] | None, Callable[[Any], Iterable[Any]], Any]
"""A reference to a node, how to read its dict, and what to read in the same way where there is no node."""


class _Run(NamedTuple):
    """Leaves that follow one another.

    Attributes:
      owner: a reference to their node; None for those of Variables, and `_nobody` for those in containers.
      names: the attributes; the Variables; the positions.
      ranks: which of the leaves in question they are.
    """

    owner: Callable[[], Any] | None
    names: list[Any]
    ranks: range


class _Writes(NamedTuple):
    """Where new values of some leaves go.

    Attributes:
      positions: of the leaves.
      owners: a reference to each node, the first of its attributes here, and how many there are.
      names: all attributes.
      plain: which of the leaves these are.
      boxes: the Variables.
      boxed: which of the leaves are theirs.
    """

    positions: tuple[int, ...]
    owners: list[tuple[Callable[[], Any], str, int]]
    names: list[Any]
    plain: list[int]
    boxes: list[Variable[Any]]
    boxed: list[int]


class PlainLeaves:
    """The leaves of a graph of which some are no Variable's.

    Args:
      found: the leaves without a Variable by position, and their sources.
      boxes: the Variable of each leaf; None for the others.
    """

    __slots__ = ("_boxes", "_constants", "_is_read", "_readers", "_sources", "_written")

    def __init__(self, found: Mapping[int, tuple[Any, Source]], boxes: Sequence[Variable[Any] | None]) -> None:
        self._boxes = boxes
        self._sources: dict[int, Source] = {i: source for i, (_, source) in found.items()}
        self._constants = {i: value for i, (value, source) in found.items() if source is None}
        self._is_read = False
        self._readers: list[_Reader] | None = None
        self._written: _Writes | None = None

    def read(self) -> list[Any]:
        """The value of each leaf now, those of Variables among them."""
        if self._readers is None:
            if not self._is_read:  # what is read once is not worth more
                self._is_read = True
                return self._read_each()
            self._readers = [self._reader(*run) for run in self._runs(range(len(self._boxes)))]
        leaves: list[Any] = []
        try:
            for owner, get, known in self._readers:
                leaves += get(known if owner is None else owner().__dict__)
        except (KeyError, AttributeError):  # another thread has removed one
            return self._read_each()
        return leaves

    def _reader(self, owner: Callable[[], Any] | None, names: list[Any], _: range) -> _Reader:
        if owner is _nobody:
            return None, list, [self._constants[position] for position in names]
        return (None, raw_values, names) if owner is None else (owner, _getter(*names), None)

    def _read_each(self) -> list[Any]:
        return [self._read_one(position) if box is None else box.raw_value for position, box in enumerate(self._boxes)]

    def _read_one(self, position: int) -> Any:
        """The value of a leaf that is no Variable's; `MISSING` where it was removed."""
        source = self._sources[position]
        if source is None:
            return self._constants[position]
        owner = source[0]()
        assert owner is not None  # a node of a graph that the caller holds
        return owner.__dict__.get(source[1], MISSING)

    def source(self, position: int) -> tuple[Pytree, Any] | None:
        """The node and the attribute of a leaf that is no Variable's."""
        source = self._sources.get(position)
        owner = source[0]() if source is not None else None
        return None if source is None or owner is None else (owner, source[1])

    def is_in_container(self, position: int) -> bool:
        """Whether a leaf sits in a container, not in a node."""
        return self._boxes[position] is None and self._sources[position] is None

    def check(self, position: int) -> None:
        """Checks that a leaf may be set at this trace level.

        Raises:
          TraceContextError: where its node is of another one.
        """
        source = self.source(position)
        if source is not None and source[0].__dict__.get(TRACE_KEY, _jax.TOP) is not _jax.current_trace():
            raise wrong_trace(*source)

    def write(self, positions: tuple[int, ...], new: Iterable[Any]) -> None:
        """Sets leaves, none of them in a container.

        Args:
          positions: of the leaves; the same tuple at each call of a loop.
          new: the value of each.

        Raises:
          TraceContextError: for one of another trace level; nothing is set then.
        """
        writes = self._written  # read once: another thread may write others
        if writes is None or writes.positions is not positions:
            writes = self._written = self._writes_at(positions)
        _, owners, names, plain, boxes, boxed = writes
        values, mark = tuple(new), _jax.current_trace()
        check_marks(boxes)
        dicts: list[dict[Any, Any]] = []
        for owner, name, count in owners:
            node = owner()
            attributes = {} if node is None else node.__dict__  # another thread may have removed it
            if attributes.get(TRACE_KEY, _jax.TOP) is not mark and node is not None:
                raise wrong_trace(node, name)
            dicts += (attributes,) * count
        if boxes:
            set_all_raw(boxes, [values[rank] for rank in boxed])
            values = tuple([values[rank] for rank in plain])
        deque(map(setitem, dicts, names, values), 0)

    def _writes_at(self, positions: tuple[int, ...]) -> _Writes:
        found = _Writes(positions, [], [], [], [], [])
        for owner, names, ranks in self._runs(positions):
            if owner is None:
                found.boxes.extend(names)
                found.boxed.extend(ranks)
            else:
                found.owners.append((owner, names[0], len(names)))
                found.names.extend(names)
                found.plain.extend(ranks)
        return found

    def _runs(self, positions: Sequence[int]) -> Iterator[_Run]:
        last: Any = MISSING
        names: list[Any] = []
        for rank, position in enumerate(positions):
            box, source = self._boxes[position], self._sources.get(position)
            owner = None if box is not None else _nobody if source is None else source[0]
            if owner is not last:
                if names:
                    yield _Run(last, names, range(rank - len(names), rank))
                last, names = owner, []
            names.append(box if box is not None else position if source is None else source[1])
        if names:
            yield _Run(last, names, range(len(positions) - len(names), len(positions)))


def _nobody() -> None:
    """In the place of a node for leaves that sit in containers."""


def _getter(first: Any, *others: Any) -> Callable[[dict[Any, Any]], Iterable[Any]]:
    return itemgetter(first, *others) if others else lambda attributes: (attributes[first],)
