"""The values of a graph at one moment, for a thread that pickles it while other threads train.

`pickle` asks each object for its state when it reaches it, and steps of other threads may end in between. The object
that it reaches first reads all values at once, and those below it give these. `pickle` makes no call at its end: an
object behind the attributes of the first one, which it reaches last, ends the moment.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from declax._tree.layout import BOUND_KEY


class Moment(NamedTuple):
    """Values by the identities of what has them.

    Attributes:
      root: the object that was reached first.
      objects: the Variables and objects below it, so that no identity is given again.
      values: the value of each Variable.
      attributes: of each object, those that are arrays.
    """

    root: Any
    objects: Mapping[int, Any]
    values: Mapping[int, Any]
    attributes: Mapping[int, Mapping[str, Any]]


class _Local(threading.local):
    """The moments that the thread is pickling, the innermost last."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []


_local = _Local()
_readers: list[Callable[[Any], Moment]] = []


def read_with(reader: Callable[[Any], Moment]) -> None:
    """Sets the function that reads the moment of an object; the graphs, which know how, stand above this module."""
    _readers[:] = [reader]


def value_of(variable: Any) -> Any:
    """The raw value of a Variable, now or at the moment that is being pickled."""
    for moment in reversed(_local.moments):
        if id(variable) in moment.values:
            return moment.values[id(variable)]
    return variable.raw_value


def reduced_at(node: Any, reduced: Any) -> Any:
    """What an object is reduced to, with the values of the moment that is being pickled, or else of a new one."""
    if type(reduced) is not tuple or len(reduced) < 3 or type(reduced[2]) is not dict or BOUND_KEY not in node.__dict__:
        return reduced  # no compiled function writes to what is not bound
    state, moments = reduced[2], _local.moments
    # The same root again is one that a pickler has left behind, as after an error.
    moments[:] = [moment for moment in moments if moment.root is not node]
    around = next((moment for moment in reversed(moments) if id(node) in moment.objects), None)
    if around is None:
        return (*reduced[:2], _Attributes(state, node), *reduced[3:])
    return (*reduced[:2], {**state, **around.attributes.get(id(node), {})}, *reduced[3:])


class _Attributes(dict[str, Any]):
    """The attributes of the object that is reached first, as a dict when they are loaded."""

    __slots__ = ("_node",)

    def __init__(self, state: Mapping[str, Any], node: Any) -> None:
        super().__init__(state)
        self._node = node

    def __reduce_ex__(self, protocol: Any) -> Any:
        moment = _readers[0](self._node)
        attributes = {**self, **moment.attributes.get(id(self._node), {})}
        return operator.or_, (attributes, _End(moment))


class _End:
    """Ends a moment when it is reached, or left behind; an empty dict when it is loaded."""

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self._moments = _local.moments
        self._moments.append(moment)

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._end()
        return dict, ()

    def _end(self) -> None:
        self._moments[:] = [moment for moment in self._moments if moment is not self._moment]

    __del__ = _end
