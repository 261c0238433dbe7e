"""Hashable snapshots of static values.

Vocabulary
----------
static value: a value that is part of a treedef, so JAX hashes and compares it.
frozen:       an immutable snapshot of a container that has no hash of its own
              (list, dict, set, ...); it remembers the type that it stands for.
freeze, thaw: make a snapshot, and make a fresh container from one. Values that
              have a hash pass through both untouched.

A snapshot is taken whenever a treedef is made, so a list that was changed in
place gives another treedef, and a compiled program for the old list is not
taken for the new one.
"""

from __future__ import annotations

import types
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

import jax
import numpy as np

from declax import errors

_PLAIN: Final = frozenset(
    {str, int, float, bool, complex, bytes, type(None), type, types.FunctionType, types.BuiltinFunctionType}
)
"""Types whose values always have a hash: asking it of them would be a waste."""


_INEXACT = frozenset({tuple, float})


def exact_types(value: Any) -> Hashable:
    """What tells equal values of different types apart: 1, True and 1.0; 0.0 and -0.0.

    >>> exact_types((1, "a")) == exact_types((True, "a"))
    False
    """
    cls: type = value.__class__
    if cls is tuple:
        types = tuple(map(type, value))
        return types if _INEXACT.isdisjoint(types) else tuple(map(exact_types, value))
    if cls is float and value == 0.0:
        return repr(value)
    return cls


class Frozen:
    """Base of the snapshots: hashable, equal by value to snapshots of the same type.

    Attributes:
      cls: the type of the container that this stands for.
      items: its frozen elements, in their order.
      extra: what else the type needs to be made again (the `maxlen` of a deque).
    """

    __slots__ = ("_hash", "_types", "cls", "extra", "items")

    cls: type[Any]
    items: tuple[Any, ...]
    extra: Any

    def __init__(self, cls: type[Any], items: tuple[Any, ...], extra: Any = None) -> None:
        self.cls, self.items, self.extra = cls, items, extra
        self._types = self._exact_types()
        self._hash = hash((cls, self._value(), extra))

    def _value(self) -> Hashable:
        """What decides equality."""
        return self.items

    def _exact_types(self) -> Hashable:
        """What keeps `[1]` and `[True]` apart."""
        return exact_types(self.items)

    def thaw(self) -> Any:
        """A fresh container with thawed elements."""
        return self.cls(map(thaw, self.items))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not type(self):
            return False
        return (
            self._hash == other._hash
            and self.cls is other.cls
            and self._types == other._types
            and self.extra == other.extra
            and self._value() == other._value()
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.cls, self.items, self.extra)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.thaw()!r})"


class FrozenList(Frozen):
    """Snapshot of a list, bytearray or deque."""

    __slots__ = ()

    def thaw(self) -> Any:
        elements = map(thaw, self.items)
        return self.cls(elements) if self.extra is None else self.cls(elements, self.extra)


class FrozenTuple(Frozen):
    """Snapshot of a tuple, or named tuple, that holds something without a hash."""

    __slots__ = ()

    def thaw(self) -> Any:
        make = getattr(self.cls, "_make", self.cls)
        return make(map(thaw, self.items))


class FrozenSet(Frozen):
    """Snapshot of a set; the order of its elements does not count."""

    __slots__ = ()

    def _exact_types(self) -> Hashable:
        return frozenset((item, exact_types(item)) for item in self.items)

    def _value(self) -> Hashable:
        return frozenset(self.items)


class FrozenDict(Frozen):
    """Snapshot of a mapping: keeps the order of its keys, compares without it."""

    __slots__ = ()

    def _exact_types(self) -> Hashable:
        return frozenset((key, exact_types(key), exact_types(value)) for key, value in self.items)

    def _value(self) -> Hashable:
        return frozenset(self.items)

    def thaw(self) -> Any:
        content = {key: thaw(value) for key, value in self.items}
        if self.cls is dict:
            return content
        if issubclass(self.cls, defaultdict):
            return self.cls(self.extra, content)
        return self.cls(content)


class FrozenSlice(Frozen):
    """Snapshot of a slice, which has no hash before Python 3.12."""

    __slots__ = ()

    def thaw(self) -> Any:
        return slice(*map(thaw, self.items))


def is_frozen(value: object) -> bool:
    """True of the snapshots that `freeze` makes.

    >>> is_frozen(freeze([1])), is_frozen(freeze(1))
    (True, False)
    """
    return isinstance(value, Frozen)


def thaw(value: Any) -> Any:
    """The value that was frozen: fresh containers, everything else as it is.

    >>> thaw(freeze({"sizes": [8, 16]}))
    {'sizes': [8, 16]}
    """
    return value.thaw() if isinstance(value, Frozen) else value


_EMPTY: dict[type, Frozen] = {list: FrozenList(list, ()), dict: FrozenDict(dict, ()), set: FrozenSet(set, ())}


def freeze(value: Any, where: str = "static value") -> Hashable:
    """A hashable stand-in for a value: itself, or a snapshot of a container.

    Args:
      value: what is to become part of a treedef.
      where: the attribute that holds it, for the message.

    Returns:
      ``value`` itself where it has a hash, else a `Frozen` snapshot.

    Raises:
      StatusError: something in it is an array, or has no hash.

    >>> freeze([1, 2]) == freeze([1, 2])
    True
    >>> freeze("relu")
    'relu'
    """
    cls = type(value)
    if cls in _PLAIN:
        return value  # type: ignore[no-any-return]  # the types in _PLAIN have a hash
    if cls in _EMPTY and not value:
        return _EMPTY[cls]  # most metadata is empty
    return _freeze(value, where, ())


def _freeze(value: Any, where: str, outer: tuple[int, ...]) -> Hashable:
    try:
        hash(value)
    except TypeError:
        pass
    else:
        return value  # type: ignore[no-any-return]  # hash() has just proved it
    if id(value) in outer:
        raise errors.StatusError(
            where,
            "a static container holds itself",
            got=errors.describe(value),
            why="a static value is copied into the treedef, which must be finite",
        )
    freezer = _freezer_of(value)
    if freezer is None:
        raise _unhashable(value, where)
    return freezer(value, where, (*outer, id(value)))


_Freezer = Callable[[Any, str, tuple[int, ...]], Hashable]


def _freezer_of(value: Any) -> _Freezer | None:
    if isinstance(value, (list, bytearray, deque)):
        return _freeze_list
    if isinstance(value, tuple):
        return _freeze_tuple
    if isinstance(value, set):
        return _freeze_set
    if isinstance(value, Mapping):
        return _freeze_mapping
    if isinstance(value, slice):
        return _freeze_slice
    return None


def _freeze_list(value: Any, where: str, outer: tuple[int, ...]) -> Hashable:
    return FrozenList(type(value), _freeze_each(value, where, outer), getattr(value, "maxlen", None))


def _freeze_tuple(value: Any, where: str, outer: tuple[int, ...]) -> Hashable:
    return FrozenTuple(type(value), _freeze_each(value, where, outer))


def _freeze_set(value: Any, where: str, outer: tuple[int, ...]) -> Hashable:
    return FrozenSet(type(value), tuple(value))


def _freeze_mapping(value: Any, where: str, outer: tuple[int, ...]) -> Hashable:
    items = tuple((key, _freeze(item, f"{where}[{key!r}]", outer)) for key, item in value.items())
    return FrozenDict(type(value), items, getattr(value, "default_factory", None))


def _freeze_slice(value: Any, where: str, outer: tuple[int, ...]) -> Hashable:
    return FrozenSlice(slice, _freeze_each((value.start, value.stop, value.step), where, outer))


def _freeze_each(values: Any, where: str, outer: tuple[int, ...]) -> tuple[Hashable, ...]:
    return tuple(_freeze(item, f"{where}[{index}]", outer) for index, item in enumerate(values))


def _unhashable(value: Any, where: str) -> errors.StatusError:
    if isinstance(value, (jax.Array, np.ndarray)):
        return errors.StatusError(
            where,
            "an array cannot be static",
            expected="a hashable value, or a list, dict or set of them",
            got=errors.describe(value),
            why="static values are hashed and compared at each call of a compiled function",
            fix="hold it as data: dx.data(...), or a field annotated jax.Array",
        )
    name = errors.type_name(type(value))
    return errors.StatusError(
        where,
        "a static value must have a hash",
        expected="a hashable value, or a list, dict or set of them",
        got=errors.describe(value),
        why="static values are hashed and compared at each call of a compiled function",
        fix=f"make {name} hashable, as with @dataclasses.dataclass(frozen=True), or hold it as data: dx.data(...)",
    )
