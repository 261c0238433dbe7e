"""Recognises the arguments of the last call in the next one, without taking them apart by JAX.

Training calls one function with the same models and new arrays in the same
containers, such as a batch that is a tuple or a dict. A pattern says which
models, and which containers of how many items; matching it gives the arrays.

Vocabulary
----------
pattern: of an array or a number ``None``, of a Pytree its identity, of a
         container a `Container`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from declax._pytree import Pytree
from declax._typing import MISSING
from declax.transforms._roots import is_leaf, leaf_classes

DEEPEST: Final = 8
"""So many containers may lie in one another; deeper ones are taken apart by JAX at each call."""


class Container(NamedTuple):
    """The pattern of a list, tuple or dict, or of None, which has no items.

    Attributes:
      cls: its class.
      size: how many items it has.
      keys: of a dict, in the order in which JAX takes its items; None for others.
      items: their patterns.
    """

    cls: type
    size: int
    keys: tuple[Any, ...] | None
    items: tuple[Any, ...]


_NOTHING: Final = Container(type(None), 0, None, ())


def pattern_of(value: object, depth: int = 0) -> Any:
    """The pattern of an argument; `MISSING` for what has none."""
    if is_leaf(value):
        return None
    if isinstance(value, Pytree):
        return id(value)
    cls = value.__class__
    if value is None:
        return _NOTHING
    if cls not in (tuple, list, dict) or depth == DEEPEST:
        return MISSING
    keys, items = None, value
    if isinstance(value, dict):
        try:
            keys = tuple(sorted(value))
        except TypeError:
            return MISSING
        items = [value[key] for key in keys]
    patterns = tuple(pattern_of(item, depth + 1) for item in items)  # type: ignore[attr-defined]  # a container
    return MISSING if MISSING in patterns else Container(cls, len(patterns), keys, patterns)


def match_all(patterns: tuple[Any, ...], values: Iterable[Any], leaves: list[Any]) -> bool:
    """Whether values have these patterns, of which there are as many; their arrays and numbers go into `leaves`."""
    for value, pattern in zip(values, patterns):  # noqa: B905  # compared by who calls
        if pattern is None:
            if not (leaf_classes.get(value.__class__) or is_leaf(value)):
                return False
            leaves.append(value)
        elif pattern.__class__ is int:
            if pattern != id(value):
                return False
        elif not _match(pattern, value, leaves):
            return False
    return True


def _match(pattern: Container, value: Any, leaves: list[Any]) -> bool:
    cls, size, keys, patterns = pattern
    if value.__class__ is not cls:
        return False
    items: Any = value
    if pattern is _NOTHING:
        return True
    if len(items) != size:
        return False
    if keys is not None:
        items = [items.get(key, MISSING) for key in keys]  # which is no leaf
    return match_all(patterns, items, leaves)
