"""What a transform takes apart, and what it hands to JAX as it is.

Vocabulary
----------
root: a Variable, Pytree or Object among the arguments.
"""

from __future__ import annotations

from typing import Final
from weakref import WeakValueDictionary

from declax._nodes import Kind, is_number, kind_of
from declax._pytree import Pytree, layout_of

_root_kinds = (Kind.NODE, Kind.OBJECT, Kind.VARIABLE)
_is_root_class: dict[type, bool] = {}
_is_leaf_class: dict[type, bool] = {}


def is_root(value: object) -> bool:
    """Whether a value is a Variable, Pytree or Object."""
    found = _is_root_class.get(type(value))
    if found is None:
        found = _is_root_class[type(value)] = kind_of(value) in _root_kinds
    return found


def is_leaf(value: object) -> bool:
    """Whether a value is an array or a number: a tree of one leaf."""
    found = _is_leaf_class.get(value.__class__)
    if found is None:
        found = _is_leaf_class[value.__class__] = kind_of(value) in (Kind.LEAF, Kind.REF) or is_number(value)
    return found


def is_array_like(value: object) -> bool:
    """Whether JAX can take a value for an array."""
    return is_leaf(value) or hasattr(value, "__jax_array__") or hasattr(value, "dtype")


_labels: Final[WeakValueDictionary[int, object]] = WeakValueDictionary()
"""The graphs of labels, by identity."""


def add_labels(graph: object) -> None:
    """Makes known that a graph holds labels in the place of arrays."""
    _labels[id(graph)] = graph


def is_labels(root: object) -> bool:
    """Whether a root holds labels, as `prefix` makes: it is no model, and transforms that reach it leave it alone."""
    return _labels.get(id(root)) is root


def is_finished(root: object) -> bool:
    """Whether a root has all that its class declares: not so while it is being made.

    Then a function that reaches it, such as one that makes its parts, has it
    as it is, and no transform takes it apart.
    """
    if not isinstance(root, Pytree) or not root._pytree__is_pytree:
        return True
    return layout_of(root).statuses.keys() <= vars(root).keys()
