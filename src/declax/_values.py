"""What a value is by itself: data, static, or static by snapshot.

Vocabulary
----------
data:     what JAX shall see as a child of the tree: arrays, Variables, Pytrees.
static:   all else; part of the tree's definition.
plain:    of a type whose values are always static and hold nothing.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Final

import jax

from declax import _epoch
from declax._annotations import add_data_type, is_data_class
from declax._fields import Status, Tagged

PLAIN: Final = frozenset({int, float, bool, complex, str, bytes, type(None), type})
CONTAINERS: Final = (list, tuple, dict, set, frozenset)
_FUNCTIONS: Final = frozenset({types.FunctionType, types.BuiltinFunctionType, types.MethodType})


def is_data(value: object, /) -> bool:
    """Whether a value, by itself, is pytree data.

    Arrays, array refs, Variables, Pytrees and types registered by
    `register_data_type` are; all else is static.

    >>> is_data(jax.numpy.zeros(3)), is_data(3), is_data([jax.numpy.zeros(3)])
    (True, False, False)
    """
    cls = value.__class__
    return cls not in PLAIN and is_data_class(cls)


def has_data(value: object, /) -> bool:
    """Whether a value is data or, being a container, holds some.

    >>> has_data([1, {"a": jax.numpy.zeros(3)}])
    True
    """
    return next(data_within(value), None) is not None


def data_within(value: object, _around: tuple[int, ...] = ()) -> Iterator[object]:
    """All data in a value, or the value itself."""
    if value.__class__ in PLAIN or id(value) in _around:
        return
    if is_data(value):
        yield value
    elif isinstance(value, CONTAINERS):
        for item in value.values() if isinstance(value, dict) else value:
            yield from data_within(item, (*_around, id(value)))
    elif value.__class__ not in _FUNCTIONS:
        yield from filter(is_data, jax.tree.leaves(value, is_leaf=is_data))


def tags_within(value: object, _around: tuple[int, ...] = ()) -> Iterator[Tagged[Any]]:
    """All tags in a container."""
    if isinstance(value, Tagged):
        yield value
    elif isinstance(value, CONTAINERS) and id(value) not in _around:
        for item in value.values() if isinstance(value, dict) else value:
            if item.__class__ not in PLAIN:
                yield from tags_within(item, (*_around, id(value)))


def register_data_type(cls: type, /) -> type:
    """Makes instances of a class data wherever they are assigned.

    Args:
      cls: the class; usable as a decorator.

    Returns:
      The class.

    >>> @register_data_type
    ... class Table: pass
    >>> is_data(Table())
    True
    """
    add_data_type(cls)
    _epoch.advance()  # graphs that hold an instance have one leaf more now
    return cls


def status_of_value(value: object) -> Status:
    """The status that a value gives an attribute that has none yet."""
    if is_data(value):
        return Status.DATA
    return static_status(value)


def static_status(value: object) -> Status:
    """Static, or static by snapshot where the value has no hash."""
    if value.__class__ in PLAIN:
        return Status.STATIC
    try:
        hash(value)
    except TypeError:
        return Status.SNAPSHOT
    return Status.STATIC
