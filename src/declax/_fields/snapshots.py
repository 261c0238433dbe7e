"""Hashable snapshots of static values, taken whenever a treedef is made.

A list that was changed in place then gives another treedef, and a program that was compiled for the old list is not
used for the new one. Values in which nothing can change, and which have a hash, are *fixed*: they enter as they are.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import operator
import sys
import types
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import repeat
from typing import Any, Final, NamedTuple, Self, TypeVar, cast, overload

import jax
import numpy as np

from declax import errors
from declax._fields.annotations import is_data_class
from declax._fields.interning import Interned, Shared

T = TypeVar("T")

_PLAIN: Final[frozenset[type]] = frozenset(
    {str, int, float, bool, complex, bytes, type(None), type, types.FunctionType, types.BuiltinFunctionType}
)
"""Types whose values always have a hash: asking it of them would be a waste."""


_EXACT: Final = {cls.__eq__ for cls in (object, int, str, bytes, np.dtype, types.MethodType)}
"""Comparisons by which values are equal only where they are the same, unless their classes differ."""


class _ByClass(dict[type, bool]):
    """Whether equal values of a class are the same value, unless their classes differ; decided once for each class.

    The comparison of a class that is written in Python decides that itself. One that is written in C may take two
    values for equal that a program tells apart: 0.0 and -0.0, two empty ranges, ``Decimal("1.0")`` and ``("1.00")``,
    one moment in two time zones.
    """

    def __missing__(self, cls: type) -> bool:
        is_compared = dataclasses.is_dataclass(cls) and cls.__dataclass_params__.eq  # type: ignore[attr-defined]  # it has
        is_in_c = isinstance(cls.__eq__, types.WrapperDescriptorType) and cls.__eq__ not in _EXACT
        found = self[cls] = not (is_compared or is_in_c or issubclass(cls, (tuple, frozenset, float, complex)))
        return found


_is_told_by_class: Final = _ByClass({cls: cls not in (float, complex) for cls in _PLAIN})

NAN: Final = float("nan")
"""Stands for each NaN in the description of a graph: no NaN equals another."""

_OPENED = 10_000
"""How many dataclasses one value may hold before their fields count no more; only a cycle holds so many."""


@functools.cache
def _compared_fields(cls: Any) -> tuple[str, ...]:
    """The names of the fields that the ``==`` of a dataclass compares."""
    return tuple([field.name for field in dataclasses.fields(cls) if field.compare])


def exact_types(value: Any) -> Hashable:
    """A key that distinguishes equal values that differ by type, as 1, True and 1.0, or by text, as 0.0 and -0.0.

    Looks into tuples, named tuples, frozensets and dataclasses. Has `NAN` for a NaN.
    """
    cls: type = value.__class__
    if cls is tuple:
        types = tuple(map(type, value))
        return types if all(map(_is_told_by_class.__getitem__, types)) else _types_within(value)
    return cls if _is_told_by_class[cls] else _types_within(value)


def _types_within(value: Any) -> Hashable:
    """The types of a value and of all that it holds, in an order that equal values share."""
    found: list[Hashable] = []
    stack, opened = [value], 0
    while stack:
        item = stack.pop()
        cls = item.__class__
        found.append(cls)
        if _is_told_by_class[cls]:
            continue
        if issubclass(cls, (float, complex, np.floating)):
            found[-1] = _number_type(item, cls)
        elif issubclass(cls, tuple):
            stack.extend(item)
        elif issubclass(cls, frozenset):
            found.append(frozenset((one, _types_within(one)) for one in item))
        elif not hasattr(cls, "__dataclass_fields__"):
            found.append(repr(item))
        elif opened < _OPENED:
            opened += 1
            stack.extend(map(getattr, repeat(item), _compared_fields(cls), repeat(None)))
    return tuple(found)


def _number_type(number: Any, cls: type) -> Hashable:
    """The key of a float or complex number; its text where it has a zero, which may be negative."""
    if number != number:
        return NAN
    return (cls, repr(number)) if 0.0 in (number.real, number.imag) else cls


_nans: Final[dict[type, Any]] = {float: NAN}


def with_one_nan(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values, with one NaN of each class in place of those among them and in tuples."""
    return tuple([with_one_nan(value) if value.__class__ is tuple else _one_nan(value) for value in values])


def _one_nan(value: Any) -> Any:
    is_nan = isinstance(value, (float, np.floating)) and value != value
    return _nans.setdefault(value.__class__, value) if is_nan else value


class Frozen(Shared):
    """A snapshot of one value. Equal snapshots are the same object; the order of a dict counts.

    Attributes:
      cls: the type of the value.
      names: the keys of a mapping, or the names of attributes; None for other values.
      parts: its frozen elements or values, in order.
      extra: what else the type needs to be made again (the `maxlen` of a deque).
      attributes: the snapshot of the attributes that a container has beside its content; `OWN` if they are the content.
    """

    __slots__ = ("__weakref__", "_content", "attributes", "cls", "extra", "names", "parts")

    cls: type[Any]
    names: tuple[Any, ...] | None
    parts: tuple[Any, ...]
    extra: Any
    attributes: Hashable

    def __new__(
        cls,
        of: type[Any],
        parts: Iterable[Any],
        names: Iterable[Any] | None = None,
        extra: Any = None,
        attributes: Hashable = None,
    ) -> Self:
        """The one snapshot with this content."""
        parts, names = tuple(parts), None if names is None else tuple(names)
        types: Any = exact_types(parts)
        if NAN in types:
            parts = with_one_nan(parts)
        content: Any = (parts, types)
        if issubclass(of, set):
            content = frozenset((part, exact_types(part)) for part in parts)
        key = (cls, of, content, names, names and exact_types(names), extra, attributes)

        def make() -> Frozen:
            made: Frozen = object.__new__(cls)
            made.cls, made.parts, made.names, made.extra, made.attributes = of, parts, names, extra, attributes
            return made

        return _table.find_or_make(key, make)  # type: ignore[return-value]  # its class is in the key

    def __reduce__(self) -> tuple[Any, ...]:
        return freeze_array if self.cls is np.ndarray else freeze, (portable(thaw(self)),)

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
        cls,
        entries: Mapping[Any, T] | Iterable[tuple[Any, T]] = (),
        of: type = dict,
        extra: Any = None,
        attributes: Hashable = None,
    ) -> Self:
        content = dict(entries)
        self = Frozen.__new__(cls, of, content.values(), content, extra, attributes)
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


class FrozenSet(Frozen, Set[T]):
    """A snapshot of a set; reads as one."""

    __slots__ = ()

    def __new__(cls, items: Iterable[T] = ()) -> Self:
        return Frozen.__new__(cls, set, items)

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]  # a Set has none

    def __contains__(self, item: object) -> bool:
        return item in self.parts

    def __iter__(self) -> Iterator[T]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)


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
        if _is_child(item) or cls.__hash__ is None:
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


def _is_child(item: Any) -> bool:
    """Whether a value belongs into the tree: a Variable, a Pytree or an array of JAX, except random streams."""
    return item.__class__ is not np.ndarray and is_data_class(type(item)) and not getattr(item, "_pytree__draws", False)


def _open(value: Any) -> tuple[tuple[Any, ...] | None, tuple[Any, ...], Any] | None:
    """The names, parts and extra of a value that is not fixed; None if its parts are unknown."""
    if isinstance(value, Mapping):
        return tuple(value), tuple(value.values()), getattr(value, "default_factory", None)
    if isinstance(value, slice):
        return None, (value.start, value.stop, value.step), None
    if isinstance(value, (list, tuple, set, bytearray, deque)):
        return None, tuple(value), getattr(value, "maxlen", None)
    if isinstance(value, np.ndarray):
        return None, (value.tobytes(),), (value.dtype, value.shape)
    attributes = attributes_of(value)
    return None if attributes is None else (tuple(attributes), tuple(attributes.values()), None)


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
    return value if is_fixed(value) else _freeze(value, where, [])


OWN: Final = "own"
"""Stands for the attributes of a container that is its own ``__dict__``."""

_ATTRIBUTES: Final = object()
"""The key of the attributes of a container among its parts."""

_EMPTY: Final[dict[type, Frozen]] = {list: FrozenList(), dict: FrozenDict(), set: FrozenSet()}

Around = list[tuple[Any, Any]]
"""The values around a part, the outermost first, each with the key or name of the next."""


def _freeze(value: Any, where: str, around: Around) -> Frozen:
    """A snapshot of a value that is not fixed. Each level takes one frame, and `_check` limits the levels."""
    _check(value, where, around)
    opened = _open(value)
    if opened is None:
        return Compared(value)
    names, parts, extra = opened
    model = None if names is None else model_among_keys(names)
    if model is not None:
        raise model_as_key(_place(where, around), model)
    frozen: list[Any] = []
    for key, part in zip(range(len(parts)) if names is None else names, parts, strict=True):
        if type(part) in _PLAIN:
            frozen.append(part)
            continue
        around.append((value, key))
        frozen.append(freeze(part) if is_fixed(part) else _freeze(part, where, around))
        around.pop()
    attributes: Hashable = None
    if isinstance(value, (dict, list, set)) and getattr(value, "__dict__", None):
        around.append((value, _ATTRIBUTES))
        attributes = OWN if vars(value) is value else _freeze(dict(vars(value)), where, around)
        around.pop()
    if type(value) is list:
        return FrozenList(frozen)
    if type(value) is set and attributes is None:
        return FrozenSet(frozen)
    if isinstance(value, Mapping):
        return FrozenDict(zip(names or (), frozen, strict=True), type(value), extra, attributes)
    return Frozen(type(value), frozen, names, extra, attributes)


def freeze_array(array: Any) -> Frozen:
    """The snapshot of an array of numpy by its bytes."""
    return Frozen(np.ndarray, (array.tobytes(),), extra=(array.dtype, array.shape))


def _check(item: Any, where: str, around: Around) -> None:
    """Raises if a value, in those around it, cannot be frozen."""
    if any(outer is item for outer, _ in around):
        raise errors.StatusError(
            _place(where, around),
            "a static container holds itself",
            got=errors.describe(item),
            why="a static value is copied into the treedef, which must be finite",
        )
    is_array = isinstance(item, np.ndarray) and not (_is_constant(item) and any(_is_record(o) for o, _ in around))
    if is_array or _is_child(item):
        has_value = is_array or isinstance(item, jax.Array)
        raise errors.StatusError(
            _place(where, around),
            f"{'an array' if has_value else errors.with_article(errors.type_name(type(item)))} cannot be static",
            expected="a hashable value, or a list, dict, set or dataclass of them",
            got=errors.describe(item),
            why="static values are hashed and compared at each call of a compiled function",
            fix=f"hold it as data: dx.data(...), or {'a field annotated jax.Array' if has_value else 'dx.List([...])'}",
        )
    if len(around) == errors.MAX_DEPTH:
        raise errors.too_deep(where, [key for _, key in around])


def model_among_keys(keys: Iterable[Any]) -> object | None:
    """A key that is a model, or one in a tuple, which no copy of the dict has as its key; None if there is none."""
    if _PLAIN.issuperset(map(type, keys)):
        return None
    waiting = list(keys)
    for key in waiting:
        if isinstance(key, (tuple, frozenset)):
            waiting.extend(key)
        elif key.__class__.__hash__ is object.__hash__ and _is_child(key):
            return cast("object", key)
    return None


def model_as_key(where: str, model: object) -> errors.StatusError:
    """The error of a model as a key."""
    return errors.StatusError(
        where,
        f"{errors.with_article(errors.type_name(type(model)))} cannot be a key in an attribute",
        expected="keys that are values: names, paths or numbers",
        got=errors.describe(model),
        why="keys are static; a copy of the model, as each transform makes, has other parts and would not find them",
        fix='{"encoder": 0.5}        # by the name or path of the part, as dx.iter_modules gives it\n'
        "dx.Param(..., decay=0.5)        # or as metadata of the Variables",
    )


def _is_constant(array: Any) -> bool:
    """Whether an array has bytes that say all of it."""
    return type(array) is np.ndarray and not array.dtype.hasobject


def _is_record(outer: Any) -> bool:
    cls: type = type(outer)
    return _record_of(cls) is not None and not isinstance(outer, Mapping)


def _place(where: str, around: Around) -> str:
    """The last part as code behind the value."""
    keys = [(outer, key) for outer, key in around if key is not _ATTRIBUTES]
    return where + "".join(f".{key}" if _is_record(outer) else f"[{key!r}]" for outer, key in keys)


def thaw(value: Any) -> Any:
    """The value that was frozen: fresh containers, everything else as it is.

    >>> thaw(freeze({"sizes": [8, 16]}))
    {'sizes': [8, 16]}
    """
    if not isinstance(value, Frozen):
        return value
    if isinstance(value, Compared):
        return value.extra
    made = _thawed(value, list(map(thaw, value.parts)))  # one frame a level
    if value.attributes is OWN:
        made.__dict__ = made
    elif value.attributes is not None:
        vars(made).update(thaw(value.attributes))
    return made


def _thawed(frozen: Frozen, parts: list[Any]) -> Any:
    """A fresh value with these parts, like the one that was frozen."""
    cls: Any = frozen.cls
    if cls is list:
        return parts
    if isinstance(frozen, FrozenDict):
        content = dict(zip(frozen, parts, strict=True))
        arguments = (frozen.extra, content) if issubclass(cls, defaultdict) else (content,)
        return content if cls is dict else _container(cls, *arguments)
    if frozen.names is not None:
        made = object.__new__(cls)
        for name, part in zip(frozen.names, parts, strict=True):
            object.__setattr__(made, name, part)
        return made
    if cls is slice:
        return slice(*parts)
    if cls is np.ndarray:
        dtype, shape = frozen.extra
        return np.frombuffer(parts[0], dtype).reshape(shape).copy()
    if issubclass(cls, tuple):
        return getattr(cls, "_make", cls)(parts)
    return _container(cls, parts) if frozen.extra is None else _container(cls, parts, frozen.extra)


def _container(cls: Any, *arguments: Any) -> Any:
    """A container of a class, by the constructor of Python; that of a user may take other arguments."""
    constructors = (vars(base).get("__init__") for base in cls.__mro__)
    fill = next(one for one in constructors if one is not None and not isinstance(one, types.FunctionType))
    if fill is object.__init__:
        return cls(*arguments)
    made = cls.__new__(cls)
    fill(made, *arguments)
    return made


# --- static values in pickles and copies ----------------------------------------


Known = dict[int, tuple[Any, Any]]
"""By its id, each value that was found in others, and what became of it."""


class ByName:
    """Stands for a compiled function in a pickle, or in what is copied deeply, and becomes the function again."""

    def __init__(self, module: str, name: str) -> None:
        self._place = module, name

    def __reduce__(self) -> tuple[Any, ...]:
        return _function_at, self._place

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # a partial takes nothing else
        return _function_at(*self._place)(*args, **kwargs)


def _function_at(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def portable(value: Any, known: Known | None = None) -> Any:
    """A value to be pickled, with names in place of compiled functions of modules, such as ``jax.nn.relu``.

    `pickle` fails at them, and `copy` makes others, which are not equal. Looks into lists, tuples, dicts, partials and
    dataclasses; `known` has the values so far.
    """
    cls = type(value)
    if cls in _PLAIN or is_data_class(cls):
        return value
    known = {} if known is None else known
    if id(value) not in known:
        known[id(value)] = value, value  # a container that holds itself stays
        known[id(value)] = value, _portable(value, known)
    return known[id(value)][1]


def _portable(value: Any, known: Known) -> Any:
    cls: Any = type(value)
    if cls.__module__.partition(".")[0] in ("jax", "jaxlib"):
        return _by_name(value)
    make: Callable[[Any], Any]
    parts: list[Any]
    if cls is list or cls is tuple or (issubclass(cls, tuple) and hasattr(cls, "_make")):
        parts, make = list(value), getattr(cls, "_make", cls)
    elif cls is dict:
        parts, make = list(value.values()), lambda made: dict(zip(value, made, strict=True))
    elif cls is functools.partial:
        parts, make = [value.func, value.args, value.keywords], lambda made: _partial(value, *made)
    elif (attributes := attributes_of(value)) is not None:
        names = tuple(attributes)
        parts, make = list(attributes.values()), lambda made: _thawed(Frozen(cls, (), names), made)
    else:
        return value
    made = [portable(part, known) for part in parts]
    return value if all(map(operator.is_, made, parts)) else make(made)


def _partial(like: functools.partial[Any], function: Any, args: Any, keywords: Any) -> functools.partial[Any]:
    made = functools.partial(function, *args, **keywords)
    vars(made).update(vars(like))
    return made


def _by_name(value: Any) -> Any:
    name = getattr(value, "__name__", None)
    if callable(value) and isinstance(name, str):
        for module in ("jax.nn", value.__module__):
            if getattr(sys.modules.get(module), name, None) is value:
                return ByName(module, name)
    return value
