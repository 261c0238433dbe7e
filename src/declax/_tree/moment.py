"""The values of a graph at one moment, for a thread that pickles or copies it while other threads train.

`pickle` asks each object for its state when it reaches it, and steps of other threads may end in between. The object
that it reaches first reads all values at once, and those below it give these. `pickle` makes no call at its end: an
object behind the attributes of the first one, which it reaches last, ends the moment.
"""

from __future__ import annotations

import contextlib
import operator
import threading
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

from declax import _jax
from declax._tree.layout import BOUND_KEY
from declax.errors import type_name


class Moment(NamedTuple):
    """Values by the identities of what has them.

    Attributes:
      root: the object that was reached first.
      objects: the Variables and objects below it, so that no identity is given again.
      values: the value of each Variable.
      attributes: of each object, those that are arrays.
      places: the path of each Variable, and of each of these attributes by its owner and name, as a text.
      pickled: what stands for each array while it is pickled, so that shared ones stay shared.
    """

    root: Any
    objects: Mapping[int, Any]
    values: Mapping[int, Any]
    attributes: Mapping[int, Mapping[str, Any]]
    places: Mapping[Any, str]
    pickled: dict[int, Any]


class _Local(threading.local):
    """The moments that the thread is pickling or copying, the innermost last."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []


_local = _Local()
_readers: list[Callable[[Any], Moment]] = []


def read_with(reader: Callable[[Any], Moment]) -> None:
    """Sets the function that reads the moment of an object; the graphs, which know how, stand above this module."""
    _readers[:] = [reader]


def value_of(variable: Any) -> Any:
    """The raw value of a Variable, now or at the moment that is being pickled or copied."""
    for moment in reversed(_local.moments):
        if id(variable) in moment.values:
            return moment.values[id(variable)]
    return variable.raw_value


def place_of(variable: Any) -> str:
    """Where a Variable is in what is pickled or copied; its kind, if it is alone."""
    found = (moment.places[id(variable)] for moment in reversed(_local.moments) if id(variable) in moment.places)
    return next(found, type_name(type(variable)))


def pickled(variable: Any, wrap: Callable[[Any, str], Any]) -> Any:
    """What stands for the raw value of a Variable that is pickled: one object for each array."""
    value = value_of(variable)
    moment = next((moment for moment in reversed(_local.moments) if id(variable) in moment.values), None)
    return value if moment is None else _pickled_at(moment, value, place_of(variable), wrap)


def _pickled_at(moment: Moment, value: Any, place: str, wrap: Callable[[Any, str], Any]) -> Any:
    return moment.pickled.setdefault(id(value), wrap(value, place)) if value.__class__ is _jax.ArrayImpl else value


def _attributes_at(moment: Moment, node: Any, wrap: Callable[[Any, str], Any]) -> dict[str, Any]:
    """What stands for the arrays in attributes of an object that is pickled."""
    found = moment.attributes.get(id(node), {})
    return {name: _pickled_at(moment, value, moment.places[id(node), name], wrap) for name, value in found.items()}


def reduced_at(node: Any, reduced: Any, wrap: Callable[[Any, str], Any]) -> Any:
    """What an object is reduced to, with the values of the moment that is being pickled, or else of a new one.

    Args:
      node: the object.
      reduced: as of `__reduce_ex__`.
      wrap: makes what stands for an array, of the array and its path.
    """
    if type(reduced) is not tuple or len(reduced) < 3 or type(reduced[2]) is not dict or BOUND_KEY not in node.__dict__:
        return reduced  # no compiled function writes to what is not bound
    state, moments = reduced[2], _local.moments
    # The same root again is one that a pickler has left behind, as after an error.
    moments[:] = [moment for moment in moments if moment.root is not node]
    around = next((moment for moment in reversed(moments) if id(node) in moment.objects), None)
    if around is None:
        return (*reduced[:2], _Attributes(state, node, wrap), *reduced[3:])
    return (*reduced[:2], {**state, **_attributes_at(around, node, wrap)}, *reduced[3:])


@contextlib.contextmanager
def moment_of(root: Any) -> Generator[Moment]:
    """A moment of an object, for as long as it is copied."""
    end = _End(_readers[0](root))
    try:
        yield end.moment
    finally:
        end.end()


class _Attributes(dict[str, Any]):
    """The attributes of the object that is reached first, as a dict when they are loaded."""

    __slots__ = ("_node", "_wrap")

    def __init__(self, state: Mapping[str, Any], node: Any, wrap: Callable[[Any, str], Any]) -> None:
        super().__init__(state)
        self._node = node
        self._wrap = wrap

    def __reduce_ex__(self, protocol: Any) -> Any:
        moment = _readers[0](self._node)
        attributes = {**self, **_attributes_at(moment, self._node, self._wrap)}
        return operator.or_, (attributes, _End(moment))


class _End:
    """Ends a moment when it is reached, or left behind; an empty dict when it is loaded."""

    def __init__(self, moment: Moment) -> None:
        self.moment = moment
        self._moments = _local.moments
        self._moments.append(moment)

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.end()
        return dict, ()

    def end(self) -> None:
        """Ends it."""
        self._moments[:] = [moment for moment in self._moments if moment is not self.moment]

    __del__ = end
