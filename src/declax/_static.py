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

import dataclasses
import types
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import jax
import numpy as np

from declax import errors

_PLAIN: Final = frozenset(
    {str, int, float, bool, complex, bytes, type(None), type, types.FunctionType, types.BuiltinFunctionType}
)
"""Types whose values always have a hash: asking it of them would be a waste."""


_told_by_class: dict[type, bool] = {}
"""Of the classes that were met, whether a value's class is all that tells it from equal values."""

_OPENED = 10_000
"""How many dataclasses one value may hold before their fields count no more; only a cycle holds so many."""


def _is_told_by_class(cls: type) -> bool:
    found = _told_by_class.get(cls)
    if found is None:
        is_compared = dataclasses.is_dataclass(cls) and cls.__dataclass_params__.eq  # type: ignore[attr-defined]  # it has
        found = _told_by_class[cls] = not (is_compared or issubclass(cls, (tuple, frozenset, float)))
        if found:
            _TOLD.add(cls)
    return found


_TOLD: Final[set[type]] = set()
"""Those of which it is so."""


def exact_types(value: Any) -> Hashable:
    """What tells equal values of different types apart: 1, True and 1.0; 0.0 and -0.0.

    Looks into tuples, named tuples, frozensets and dataclasses.

    >>> exact_types((1, "a")) == exact_types((True, "a"))
    False
    """
    cls: type = value.__class__
    if cls is tuple:
        types = tuple(map(type, value))
        if _TOLD.issuperset(types) or all(map(_is_told_by_class, types)):
            return types
        return _types_within(value, _SETS) if tuple in types else tuple(map(exact_types, value))  # floats
    if cls is float:
        return repr(value) if value == 0.0 else cls
    return cls if cls in _TOLD or _is_told_by_class(cls) else _types_within(value, _SETS)


_SETS = 20
"""How many frozensets may lie in one another before their elements count no more."""


def _types_within(value: Any, sets_left: int) -> Hashable:
    """The types of a value and of all that it holds, in an order that equal values share."""
    found: list[Hashable] = []
    stack, opened = [value], 0
    while stack:
        item = stack.pop()
        cls = item.__class__
        found.append(cls)
        if cls in _TOLD or _is_told_by_class(cls):
            continue
        if issubclass(cls, float):
            found[-1] = repr(item) if cls is float and item == 0.0 else cls
        elif issubclass(cls, tuple):
            stack.extend(item)
        elif issubclass(cls, frozenset):
            if sets_left:
                found.append(frozenset((one, _types_within(one, sets_left - 1)) for one in item))
        elif opened < _OPENED:
            opened += 1
            stack.extend(getattr(item, field.name, None) for field in dataclasses.fields(item) if field.compare)
    return tuple(found)


class Frozen:
    """Base of the snapshots: hashable, equal by value to snapshots of the same type.

    Attributes:
      cls: the type of the container that this stands for.
      items: its frozen elements, in their order.
      extra: what else the type needs to be made again (the `maxlen` of a deque).
    """

    __slots__ = ("_hash", "_types", "cls", "extra", "is_nested", "items")

    cls: type[Any]
    items: tuple[Any, ...]
    extra: Any
    is_nested: bool
    """Whether there are snapshots among the parts."""

    def __init__(self, cls: type[Any], items: tuple[Any, ...], extra: Any = None) -> None:
        self.cls, self.items, self.extra = cls, items, extra
        self.is_nested = not _SNAPSHOTS.isdisjoint(map(type, self.parts()))
        self._types = self._exact_types()
        self._hash = hash((cls, self._value(), extra))

    def _value(self) -> Hashable:
        """What decides equality."""
        return self.items

    def _exact_types(self) -> Hashable:
        """What keeps `[1]` and `[True]` apart."""
        return exact_types(self.items)

    def parts(self) -> tuple[Any, ...]:
        """The frozen elements or values."""
        return self.items

    def remake(self, parts: Sequence[Any]) -> Any:
        """A fresh container with these for its elements or values."""
        return self.cls(parts)

    def _pairs(self, other: Any) -> Iterable[tuple[Any, Any]]:
        """The parts that have to be equal, where all else is."""
        return zip(self.items, other.items, strict=True)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not type(self):
            return False
        if not self._is_alike(other):
            return False
        if not self.is_nested:
            return self._value() == other._value()
        stack = [*self._pairs(other)]
        while stack:
            one, two = stack.pop()
            if one is two:
                continue
            if not isinstance(one, Frozen) or not one.is_nested or type(one) is not type(two):
                if one != two:
                    return False
            elif one._is_alike(two):
                stack.extend(one._pairs(two))
            else:
                return False
        return True

    def _is_alike(self, other: Any) -> bool:
        """Whether all is equal but, perhaps, the parts."""
        return bool(
            self._hash == other._hash
            and self.cls is other.cls
            and self._types == other._types
            and self.extra == other.extra
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.cls, self.items, self.extra)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({thaw(self)!r})"


class FrozenList(Frozen):
    """Snapshot of a list, bytearray or deque."""

    __slots__ = ()

    def remake(self, parts: Sequence[Any]) -> Any:
        return self.cls(parts) if self.extra is None else self.cls(parts, self.extra)


class FrozenTuple(Frozen):
    """Snapshot of a tuple, or named tuple, that holds something without a hash."""

    __slots__ = ()

    def remake(self, parts: Sequence[Any]) -> Any:
        return getattr(self.cls, "_make", self.cls)(parts)


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

    def parts(self) -> tuple[Any, ...]:
        return tuple(value for _, value in self.items)

    def _pairs(self, other: Any) -> Iterable[tuple[Any, Any]]:
        theirs = dict(other.items)  # has the same keys, which the exact types say
        return ((value, theirs[key]) for key, value in self.items)

    def remake(self, parts: Sequence[Any]) -> Any:
        content = {key: value for (key, _), value in zip(self.items, parts, strict=True)}
        if self.cls is dict:
            return content
        if issubclass(self.cls, defaultdict):
            return self.cls(self.extra, content)
        return self.cls(content)


class FrozenSlice(Frozen):
    """Snapshot of a slice, which has no hash before Python 3.12."""

    __slots__ = ()

    def remake(self, parts: Sequence[Any]) -> Any:
        return slice(*parts)


_SNAPSHOTS: Final = frozenset({FrozenList, FrozenTuple, FrozenSet, FrozenDict, FrozenSlice})


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
    if not isinstance(value, Frozen):
        return value
    if not value.is_nested:
        return value.remake(value.parts())
    stack: list[tuple[Frozen, Iterator[Any], list[Any]]] = [(value, iter(value.parts()), [])]
    while True:
        frozen, rest, made = stack[-1]
        for item in rest:
            if isinstance(item, Frozen) and item.is_nested:
                stack.append((item, iter(item.parts()), []))
                break
            made.append(thaw(item))
        else:
            stack.pop()
            thawed = frozen.remake(made)
            if not stack:
                return thawed
            stack[-1][2].append(thawed)


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
      DepthError: for containers that are nested too deeply.

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
    return value if _has_hash(value) else _freeze(value, where)


def _has_hash(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


class _Opened:
    """A container that is being frozen: its keys, its elements that are left, and those that are frozen."""

    __slots__ = ("frozen", "keys", "rest", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.keys: Sequence[Any] | None = None
        if value.__class__ is dict or isinstance(value, Mapping):
            self.keys = tuple(value)
            items = tuple(value.values())
        else:
            items = (value.start, value.stop, value.step) if isinstance(value, slice) else tuple(value)
        is_plain = _PLAIN.issuperset(map(type, items))
        self.frozen: list[Hashable] = [*items] if is_plain else []
        self.rest = iter(() if is_plain else items)

    def key(self) -> Any:
        """The key of the element that is frozen now."""
        return len(self.frozen) if self.keys is None else self.keys[len(self.frozen)]

    def close(self) -> Frozen:
        value, cls, items = self.value, type(self.value), tuple(self.frozen)
        if self.keys is not None:
            pairs = tuple(zip(self.keys, items, strict=True))
            return FrozenDict(cls, pairs, getattr(value, "default_factory", None))
        if isinstance(value, tuple):
            return FrozenTuple(cls, items)
        if isinstance(value, set):
            return FrozenSet(cls, items)
        if isinstance(value, slice):
            return FrozenSlice(slice, items)
        return FrozenList(cls, items, getattr(value, "maxlen", None))


_FREEZABLE: Final = (list, tuple, set, bytearray, deque, Mapping, slice)


def _freeze(value: Any, where: str) -> Frozen:
    """A snapshot of a value without a hash; without recursion, however deep."""
    if not isinstance(value, _FREEZABLE):
        raise _unhashable(value, where)
    stack = [_Opened(value)]
    while True:
        opened = stack[-1]
        for item in opened.rest:
            if type(item) in _PLAIN or _has_hash(item):
                opened.frozen.append(item)
                continue
            _check_item(item, stack, where)
            stack.append(_Opened(item))
            break
        else:
            stack.pop()
            frozen = opened.close()
            if not stack:
                return frozen
            stack[-1].frozen.append(frozen)


def _check_item(item: Any, stack: list[_Opened], where: str) -> None:
    """Raises where an element without a hash, of the last container, cannot be frozen."""
    if any(opened.value is item for opened in stack):
        raise errors.StatusError(
            _at(where, _path(stack)),
            "a static container holds itself",
            got=errors.describe(item),
            why="a static value is copied into the treedef, which must be finite",
        )
    if not isinstance(item, _FREEZABLE):
        raise _unhashable(item, _at(where, _path(stack)))
    if len(stack) == errors.MAX_DEPTH:
        raise errors.too_deep(where, _path(stack))


def _path(stack: list[_Opened]) -> list[Any]:
    return [opened.key() for opened in stack]


def _at(where: str, path: Iterable[Any]) -> str:
    return where + "".join(f"[{key!r}]" for key in path)


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
