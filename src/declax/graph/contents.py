"""The attributes of nodes as they were when a graph was read, to see writes past ``__setattr__``."""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any

from declax._layout import INTERNAL_KEYS
from declax._nodes import Kind, kinds

_attributes = attrgetter("__dict__")
_call: Any = operator.call  # its type takes no functions of several types
_LEAF = Kind.LEAF


class Contents:
    """What the nodes of a graph have in their ``__dict__``; arrays, which may be replaced at any time, do not count.

    Args:
      nodes: the nodes. They are not kept alive, unless others of them hold them.
    """

    __slots__ = ("_classes", "_counts", "_nodes", "_readers", "_values")

    def __init__(self, nodes: Sequence[Any]) -> None:
        attributes = [*map(_attributes, nodes)]
        self._nodes = [*map(weakref.ref, nodes)]
        self._classes = [*map(type, nodes)]
        self._counts = [*map(len, attributes)]
        self._readers = [_reader(names) for names in map(_compared_names, attributes)]
        self._values = [*chain.from_iterable(map(_call, self._readers, attributes))]

    def are_same(self) -> bool:
        """Whether the nodes still have the same attributes, by identity, and the same classes."""
        try:
            nodes = [*map(_call, self._nodes)]
            attributes = [*map(_attributes, nodes)]
            if [*map(len, attributes)] != self._counts or [*map(type, nodes)] != self._classes:
                return False
            return all(map(is_, chain.from_iterable(map(_call, self._readers, attributes)), self._values))
        except (AttributeError, KeyError):  # a node or an attribute is gone
            return False


def _compared_names(attributes: dict[Any, Any]) -> tuple[Any, ...]:
    """The names of a node's attributes, without those of arrays; the walk has met the types of all of these."""
    return tuple([n for n, v in attributes.items() if n not in INTERNAL_KEYS and kinds.get(v.__class__) is not _LEAF])


@functools.lru_cache(maxsize=1024)
def _reader(names: tuple[Any, ...]) -> Callable[[dict[Any, Any]], tuple[Any, ...]]:
    """Reads values from a dict; the first one twice, so that it gives a tuple for one name too."""
    return itemgetter(names[0], *names) if names else lambda _: ()
