"""Hashable snapshots of static values, taken whenever a treedef is made.

A list that was changed in place then gives another treedef, and a program that was compiled for the old list is not
used for the new one. Values in which nothing can change, and which have a hash, are *fixed*: they enter as they are.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple, Self, TypeVar, overload

import jax
import numpy as np

from declax import errors
from declax._fields.interning import Interned, Shared

T = TypeVar("T")

_PLAIN: Final[frozenset[type]] = frozenset(
    {str, int, float, bool, complex, bytes, type(None), type, types.FunctionType, types.BuiltinFunctionType}
)
"""Types whose values always have a hash: asking it of them would be a waste."""


class _ByClass(dict[type, bool]):
    """Whether equal values of a class are the same value, unless their classes differ; decided once for each class."""

    def __missing__(self, cls: type) -> bool:
        is_compared = dataclasses.is_dataclass(cls) and cls.__dataclass_params__.eq  # type: ignore[attr-defined]  # it has
        found = self[cls] = not (is_compared or issubclass(cls, (tuple, frozenset, float)))
        return found


_is_told_by_class: Final = _ByClass({cls: cls is not float for cls in _PLAIN})

_OPENED = 10_000
"""How many dataclasses one value may hold before their fields count no more; only a cycle holds so many."""

_SETS = 20
"""How many frozensets may lie in one another before their elements count no more."""


@functools.cache
def _compared_fields(cls: Any) -> tuple[str, ...]:
    """The names of the fields that the ``==`` of a dataclass compares."""
    return tuple([field.name for field in dataclasses.fields(cls) if field.compare])


def exact_types(value: Any) -> Hashable:
    """A key that distinguishes equal values of different types: 1, True and 1.0; 0.0 and -0.0.

    Looks into tuples, named tuples, frozensets and dataclasses.
    """
    cls: type = value.__class__
    if cls is tuple:
        types = tuple(map(type, value))
        return types if all(map(_is_told_by_class.__getitem__, types)) else _types_within(value, _SETS)
    return cls if _is_told_by_class[cls] else _types_within(value, _SETS)


def _types_within(value: Any, sets_left: int) -> Hashable:
    """The types of a value and of all that it holds, in an order that equal values share."""
    found: list[Hashable] = []
    stack, opened = [value], 0
    while stack:
        item = stack.pop()
        cls = item.__class__
        found.append(cls)
        if _is_told_by_class[cls]:
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
            stack.extend(map(getattr, repeat(item), _compared_fields(cls), repeat(None)))
    return tuple(found)


class Frozen(Shared):
    """A snapshot of one value. Equal snapshots are the same object; the order of a dict counts.

    Attributes:
      cls: the type of the value.
      names: the keys of a mapping, or the names of attributes; None for other values.
      parts: its frozen elements or values, in order.
      extra: what else the type needs to be made again (the `maxlen` of a deque).
    """

    __slots__ = ("__weakref__", "_content", "cls", "extra", "names", "parts")

    cls: type[Any]
    names: tuple[Any, ...] | None
    parts: tuple[Any, ...]
    extra: Any

    def __new__(
        cls, of: type[Any], parts: Iterable[Any], names: Iterable[Any] | None = None, extra: Any = None
    ) -> Self:
        """The one snapshot with this content."""
        parts, names = tuple(parts), None if names is None else tuple(names)
        content: Any = (parts, exact_types(parts))
        if issubclass(of, set):
            content = frozenset((part, exact_types(part)) for part in parts)
        key = (cls, of, content, names, names and exact_types(names), extra)

        def make() -> Frozen:
            made: Frozen = object.__new__(cls)
            made.cls, made.parts, made.names, made.extra = of, parts, names, extra
            return made

        return _table.find_or_make(key, make)  # type: ignore[return-value]  # its class is in the key

    def __reduce__(self) -> tuple[Any, ...]:
        return freeze, (thaw(self),)

    def __repr__(self) -> str:
        return repr(thaw(self))


_table: Final[Interned[Frozen]] = Interned()


class FrozenList(Frozen, Sequence[T]):
    """A snapshot of a list; reads as one."""

    __slots__ = ()

    def __new__(cls, items: Iterable[T] = ()) -> Self:
        return Frozen.__new__(cls, list, items)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: Any) -> Any:
        return self.parts[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)


class FrozenDict(Frozen, Mapping[Any, T]):
    """A snapshot of a mapping; reads as one."""

    __slots__ = ("_entries",)

    _entries: dict[Any, T]

    def __new__(
        cls, entries: Mapping[Any, T] | Iterable[tuple[Any, T]] = (), of: type = dict, extra: Any = None
    ) -> Self:
        content = dict(entries)
        self = Frozen.__new__(cls, of, content.values(), content, extra)
        self._entries = content
        return self

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]  # a Mapping has none

    def __getitem__(self, key: Any) -> T:
        return self._entries[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class Compared(Frozen):
    """Represents an object without a hash whose parts are unknown: equal if the objects are, by their ``==``."""

    __slots__ = ()

    def __new__(cls, value: Any) -> Self:
        self = object.__new__(cls)
        self.cls, self.parts, self.names, self.extra = type(value), (), None, value
        return self

    def __hash__(self) -> int:
        return hash(self.cls)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Compared) or self.cls is not other.cls:
            return False
        if self.extra is other.extra:
            return True
        try:
            return bool(self.extra == other.extra)
        except (TypeError, ValueError):  # no comparison that says yes or no
            return False


class FrozenPartial(Compared):
    """Stands for a `functools.partial`: equal if the functions, arguments and keywords are."""

    __slots__ = ("_key",)

    _key: tuple[Hashable, ...]

    @staticmethod
    def of(value: functools.partial[Any]) -> Hashable:
        """The stand-in of a partial; the partial itself if its parts may change or it has attributes."""
        parts = (value.func, *value.args, *value.keywords.values())
        if vars(value) or not is_fixed(parts):
            return value
        parts = tuple(map(freeze, parts))
        self = FrozenPartial(value)
        self._key = (parts, exact_types(parts), tuple(value.keywords))
        return self

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrozenPartial) and (self.extra is other.extra or self._key == other._key)


def is_frozen(value: object) -> bool:
    """True of the snapshots that `freeze` makes."""
    return isinstance(value, Frozen)


# --- fixed values, and values with parts -------------------------------------


class _DataclassInfo(NamedTuple):
    """A dataclass whose instances can be copied by parts; cached properties are computed again."""

    is_frozen: bool
    slots: tuple[str, ...]
    computed: tuple[str, ...]

    def attributes(self, value: Any) -> dict[str, Any]:
        """The attributes of an instance by name."""
        found = {name: getattr(value, name) for name in self.slots if hasattr(value, name)}
        found.update(getattr(value, "__dict__", ()))
        for name in self.computed:
            found.pop(name, None)
        return found


@functools.cache
def _record_of(cls: Any) -> _DataclassInfo | None:
    """How to take instances of a dataclass apart; None for other classes."""
    if not hasattr(cls, "__dataclass_fields__") or issubclass(cls, enum.Enum):
        return None
    try:
        object.__new__(cls)
    except TypeError:  # an abstract class, or one that derives from a builtin type
        return None
    content = {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
    slots = [f.name for f in dataclasses.fields(cls) if isinstance(content.get(f.name), types.MemberDescriptorType)]
    computed = [name for name, value in content.items() if isinstance(value, functools.cached_property)]
    return _DataclassInfo(cls.__dataclass_params__.frozen, tuple(slots), tuple(computed))


def attributes_of(value: Any) -> dict[str, Any] | None:
    """The attributes of an instance of a dataclass by name; None for other values."""
    cls: type = type(value)
    record = _record_of(cls)
    return None if record is None else record.attributes(value)


def is_fixed(value: Any) -> bool:
    """Whether a value enters a treedef as it is: nothing in it can change, and it has a hash."""
    stack, seen = [value], set()
    while stack:
        item = stack.pop()
        cls: type = type(item)
        if cls in _PLAIN:
            continue
        if cls.__hash__ is None:
            return False
        if isinstance(item, tuple):
            stack.extend(item)
            continue
        record = _record_of(cls)
        if record is None:
            try:
                hash(item)
            except TypeError:
                return False
        elif not record.is_frozen:
            return False
        elif id(item) not in seen:
            seen.add(id(item))
            stack.extend(record.attributes(item).values())
    return True


def _open(value: Any) -> tuple[tuple[Any, ...] | None, tuple[Any, ...]] | None:
    """The names and parts of a value that is not fixed; None if its parts are unknown."""
    if _has_attributes(value):
        base = next(base for base in (dict, list, set) if isinstance(value, base))
        return None, (base(value), dict(vars(value)))
    if isinstance(value, Mapping):
        return tuple(value), tuple(value.values())
    if isinstance(value, slice):
        return None, (value.start, value.stop, value.step)
    if isinstance(value, (list, tuple, set, bytearray, deque)):
        return None, tuple(value)
    if isinstance(value, np.ndarray):
        return None, (value.tobytes(),)
    attributes = attributes_of(value)
    return None if attributes is None else (tuple(attributes), tuple(attributes.values()))


def _has_attributes(value: Any) -> bool:
    """Whether a container of a user's class has attributes beside its content, other than the content itself."""
    return (
        isinstance(value, (dict, list, set))
        and not isinstance(value, defaultdict)
        and bool(getattr(value, "__dict__", None))
        and vars(value) is not value
    )


# --- freeze and thaw ----------------------------------------------------------


def freeze(value: Any, where: str = "static value") -> Hashable:
    """A hashable stand-in for a value: itself, or a snapshot.

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
    if cls is functools.partial:
        return FrozenPartial.of(value)
    return value if is_fixed(value) else _freeze(value, where)  # type: ignore[no-any-return]  # it has a hash


_WITH_ATTRIBUTES: Final = "with attributes"
"""Marks the snapshot of a container with attributes; its parts are the content and the attributes by name."""

_EMPTY: Final[dict[type, Frozen]] = {list: FrozenList(), dict: FrozenDict(), set: Frozen(set, ())}


class _Opened:
    """A value in progress: its names, the remaining parts, and the finished ones."""

    __slots__ = ("made", "names", "rest", "value")

    def __init__(self, value: Any, names: tuple[Any, ...] | None, parts: tuple[Any, ...]) -> None:
        self.value, self.names = value, names
        self.rest = iter(parts)
        self.made: list[Any] = []

    def key(self) -> Any:
        """The key or name of the part that is made now."""
        return len(self.made) if self.names is None else self.names[len(self.made)]

    def place(self) -> str:
        """The part that is made now, as code behind the value."""
        if _has_attributes(self.value):
            return ""  # the content, or the attributes
        is_attribute = self.names is not None and not isinstance(self.value, Mapping)
        return f".{self.key()}" if is_attribute else f"[{self.key()!r}]"


def _rebuild(root: _Opened, opened: Callable[[Any, list[_Opened]], Any], close: Callable[[Any, Any, Any], Any]) -> Any:
    """Makes a value anew from its parts, innermost first; without recursion, however deep."""
    stack = [root]
    while True:
        top = stack[-1]
        for item in top.rest:
            part = opened(item, stack)
            if part.__class__ is _Opened:
                stack.append(part)
                break
            top.made.append(part)
        else:
            stack.pop()
            made = close(top.value, top.names, top.made)
            if not stack:
                return made
            stack[-1].made.append(made)


def _freeze(value: Any, where: str) -> Any:
    """A snapshot of a value that is not fixed."""

    def opened(item: Any, around: list[_Opened]) -> Any:
        if type(item) in _PLAIN:
            return item
        if around and is_fixed(item):
            return freeze(item)
        _check(item, around, where)
        names, parts = _open(item) or (None, ())
        is_flat = _PLAIN.issuperset(map(type, parts))
        return _snapshot(item, names, parts) if is_flat else _Opened(item, names, parts)

    root = opened(value, [])
    return _rebuild(root, opened, _snapshot) if root.__class__ is _Opened else root


def _check(item: Any, around: list[_Opened], where: str) -> None:
    """Raises if a value, in those around it, cannot be frozen."""
    if any(outer.value is item for outer in around):
        raise errors.StatusError(
            _place(where, around),
            "a static container holds itself",
            got=errors.describe(item),
            why="a static value is copied into the treedef, which must be finite",
        )
    is_array = isinstance(item, np.ndarray) and not (_is_constant(item) and any(map(_is_record, around)))
    if is_array or isinstance(item, jax.Array):
        raise errors.StatusError(
            _place(where, around),
            "an array cannot be static",
            expected="a hashable value, or a list, dict, set or dataclass of them",
            got=errors.describe(item),
            why="static values are hashed and compared at each call of a compiled function",
            fix="hold it as data: dx.data(...), or a field annotated jax.Array",
        )
    if len(around) == errors.MAX_DEPTH:
        raise errors.too_deep(where, [outer.key() for outer in around])


def _is_constant(array: Any) -> bool:
    """Whether an array has bytes that say all of it."""
    return type(array) is np.ndarray and not array.dtype.hasobject


def _is_record(outer: _Opened) -> bool:
    return attributes_of(outer.value) is not None


def _place(where: str, around: list[_Opened]) -> str:
    return where + "".join(outer.place() for outer in around)


def _snapshot(value: Any, names: tuple[Any, ...] | None, parts: Sequence[Any]) -> Frozen:
    """The snapshot of a value whose parts are frozen."""
    cls = type(value)
    if cls is list:
        return FrozenList(parts)
    if _has_attributes(value):
        return Frozen(cls, parts, extra=_WITH_ATTRIBUTES)
    if isinstance(value, Mapping):
        return FrozenDict(zip(names or (), parts, strict=True), cls, getattr(value, "default_factory", None))
    if isinstance(value, deque):
        return Frozen(cls, parts, extra=value.maxlen)
    if isinstance(value, np.ndarray):
        return Frozen(cls, parts, extra=(value.dtype, value.shape))
    return Compared(value) if _open(value) is None else Frozen(cls, parts, names)


def thaw(value: Any) -> Any:
    """The value that was frozen: fresh containers, everything else as it is.

    >>> thaw(freeze({"sizes": [8, 16]}))
    {'sizes': [8, 16]}
    """
    part = _opened_frozen(value)
    return _rebuild(part, _opened_frozen, _thawed) if part.__class__ is _Opened else part


def _opened_frozen(value: Any, _: object = None) -> Any:
    if not isinstance(value, Frozen):
        return value
    is_nested = any(isinstance(part, Frozen) for part in value.parts)
    return _Opened(value, value.names, value.parts) if is_nested else _thawed(value, value.names, value.parts)


def _thawed(frozen: Frozen, names: tuple[Any, ...] | None, parts: Sequence[Any]) -> Any:
    """A fresh value like the one that was frozen."""
    cls: Any = frozen.cls
    if cls is list:
        return list(parts)
    if isinstance(frozen, Compared):
        return frozen.extra
    if frozen.extra is _WITH_ATTRIBUTES:
        content, attributes = parts
        made = _container(cls, content)
        vars(made).update(attributes)
        return made
    if isinstance(frozen, FrozenDict):
        content = dict(zip(frozen, parts, strict=True))
        if issubclass(cls, defaultdict):
            return cls(frozen.extra, content)
        return content if cls is dict else _container(cls, content)
    if names is not None:
        made = object.__new__(cls)
        for name, part in zip(names, parts, strict=True):
            object.__setattr__(made, name, part)
        return made
    if cls is slice:
        return slice(*parts)
    if cls is np.ndarray:
        dtype, shape = frozen.extra
        return np.frombuffer(parts[0], dtype).reshape(shape).copy()
    if issubclass(cls, tuple):
        return getattr(cls, "_make", cls)(parts)
    return _container(cls, list(parts)) if frozen.extra is None else cls(parts, frozen.extra)


def _container(cls: Any, content: Any) -> Any:
    """A container of a class, whose own constructor may take other arguments than the content."""
    constructors = ((base, vars(base).get("__init__")) for base in cls.__mro__)
    base = next(base for base, made_by in constructors if made_by and not isinstance(made_by, types.FunctionType))
    if base is cls or base is object:
        return cls(content)
    try:
        made = cls(content)
        if made == content:
            return made
    except TypeError:  # it takes other arguments
        pass
    made = cls.__new__(cls)
    base.__init__(made, content)
    return made
