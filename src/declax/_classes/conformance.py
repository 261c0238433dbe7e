"""Whether a value is of the type that an annotation says, as far as that can be told safely.

Nothing is said about dtypes, arrays and unknown names, about values that stand for others (tracers, shapes, specs,
expressions, shardings), and about classes that answer `isinstance` themselves, such as those of jaxtyping. Of
protocols, only those under `runtime_checkable` are asked, of numbers, texts and containers.
"""

from __future__ import annotations

import numbers
import types
import typing
from abc import ABCMeta
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from declax._classes.pytree import Pytree
from declax._fields import meanings
from declax._fields.annotations import is_data_class
from declax._fields.call import Unmade
from declax._fields.interning import Shared
from declax._fields.meanings import Meaning, members_of
from declax._fields.specifiers import Tagged
from declax._variables.variable import Variable

PLAIN_DATA: Final = frozenset({bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset})
"""Classes whose instances nobody calls."""

_STAND_INS: Final = (Tracer, jax.ShapeDtypeStruct, jax.Ref, jax.sharding.Sharding, jax.P, Unmade, Shared, Tagged)
_ARRAYS: Final = (jax.Array, np.ndarray)
_TEXTS: Final = (str, bytes, bytearray)
_SAFE: Final[tuple[object, ...]] = (type.__instancecheck__, ABCMeta.__instancecheck__)
"""The instance checks of the standard."""


class _Number(NamedTuple):
    """The classes of numbers of a type, and those of which all instances are."""

    classes: tuple[type, ...]
    exact: frozenset[type]


_NUMBERS: Final[Mapping[type, _Number]] = {
    bool: _Number((bool, np.bool_), frozenset({bool})),
    int: _Number((int, np.integer), frozenset({int})),
    float: _Number((numbers.Real, np.integer, np.floating), frozenset({float, int})),
    complex: _Number((numbers.Complex, np.number), frozenset({complex, float, int})),
}


class Misfit(NamedTuple):
    """A value that is not of its type, and its subscripts within the value that was given."""

    path: str
    meaning: Meaning
    value: Any


class Quick(NamedTuple):
    """What the class of a value tells of it, without a look at the value.

    Attributes:
      classes: all instances of these are of the type.
      is_open: whether the same holds of all classes but `PLAIN_DATA`.
      needs_look: whether values of other classes may be of the type too, apart from subclasses.
    """

    classes: frozenset[type]
    is_open: bool = False
    needs_look: bool = False


def quick_test(meaning: Meaning) -> Quick | None:
    """What the classes of values tell of them; None if each value may be of the type."""
    classes: frozenset[type] = frozenset()
    is_open = needs_look = False
    for member in members_of(meaning):
        found = _quick_test_of_member(member)
        if found is None:
            return None
        classes |= found.classes
        is_open |= found.is_open
        needs_look |= found.needs_look
    return Quick(classes, is_open, needs_look)


_LOOK: Final = Quick(frozenset(), needs_look=True)


def _quick_test_of_member(member: Meaning) -> Quick | None:
    match member:
        case meanings.CallableType():
            return Quick(frozenset(), is_open=True)
        case meanings.TypeType():
            return _LOOK if _bases_of(member) else Quick(frozenset(), is_open=True)
        case meanings.ClassType():
            if _is_runtime_protocol(member.cls):
                return Quick(frozenset(), is_open=True)
            if not _is_asked(member.cls):
                return None
            is_container = issubclass(member.cls, (Sequence, Mapping)) and bool(member.args)
            number = _NUMBERS.get(member.cls)
            return _LOOK if is_container else Quick(number.exact if number else frozenset({member.cls}))
        case meanings.TypeVarType():
            found = list(map(quick_test, _options(member)))
            return _LOOK if found and None not in found else None
        case meanings.AnyType() | meanings.UnknownType() | meanings.DtypeType():
            return None
        case _:
            return _LOOK


def _options(variable: meanings.TypeVarType) -> tuple[Meaning, ...]:
    """The types of which one is that of a type variable; none if it may be any."""
    bound = variable.bound
    return variable.constraints or (() if bound is None else (bound,))


def is_anything(member: Meaning) -> bool:
    """Whether an annotation says that all values are welcome."""
    is_free = isinstance(member, meanings.TypeVarType) and not _options(member)
    return is_free or isinstance(member, meanings.AnyType)


def _is_asked(cls: Any) -> bool:
    """Whether an instance check of a class is safe, and says something."""
    if getattr(cls, "_is_protocol", False) or getattr(cls, "_pytree__draws", False):
        return False
    if issubclass(cls, (np.generic, np.dtype)) or (is_data_class(cls) and not issubclass(cls, (Pytree, Variable))):
        return False
    return any(type(cls).__instancecheck__ is safe for safe in _SAFE)


def _is_called(cls: Any) -> bool:
    """Whether a class is a protocol of functions."""
    return getattr(cls, "_is_protocol", False) and "__call__" in vars(cls)


def _is_runtime_protocol(cls: Any) -> bool:
    """Whether a class is a protocol of objects that may be asked; of functions, names may stand for them."""
    is_protocol = getattr(cls, "_is_protocol", False) and getattr(cls, "_is_runtime_protocol", False)
    return is_protocol and "__call__" not in vars(cls)


def _bases_of(member: Meaning) -> tuple[type, ...]:
    """The classes of ``type[X]`` and ``type[X | Y]``; none if they cannot be asked, or are of numbers."""
    of = typing.get_args(member.annotation)
    classes = typing.get_args(of[0]) if of and isinstance(of[0], types.UnionType) else of
    is_known = all(isinstance(cls, type) and _is_asked(cls) and cls not in _NUMBERS for cls in classes)
    return classes if is_known and not any(map(typing.get_origin, classes)) else ()


_MAX_DEPTH: Final = 6
"""How deep annotations are looked into; they may contain themselves."""


def names_parts(meaning: Meaning, depth: int = 0) -> bool:
    """Whether an annotation names classes of parts only, also within containers; a protocol says less."""
    return all(_names_part(member, depth) for member in members_of(meaning))


def _names_part(member: Meaning, depth: int) -> bool:
    if depth > _MAX_DEPTH:
        return not isinstance(member, meanings.TypedDictType)
    items: tuple[Meaning, ...] = ()
    match member:
        case meanings.ClassType():
            items = member.args if issubclass(member.cls, (Sequence, Mapping)) else ()
            if not items:
                return _is_asked(member.cls) and issubclass(member.cls, (types.NoneType, Pytree, Variable))
        case meanings.CollectionType() | meanings.MappingType():
            items = () if member.item is None else (member.item,)
        case meanings.TupleType():
            items = member.items
        case meanings.TypedDictType():
            items = tuple(member.items.values())
        case meanings.TypeVarType():
            return bool(_options(member)) and all(names_parts(option, depth + 1) for option in _options(member))
        case _:
            return False
    return any(names_parts(item, depth + 1) for item in items)


# ================================================================= values


def misfit_of(value: Any, meaning: Meaning, path: str = "") -> Misfit | None:
    """The first value, in a given one, that is not of the type of an annotation; None if all are."""
    if isinstance(value, _STAND_INS):
        return None
    deepest: Misfit | None = None
    for member in members_of(meaning):
        found = _misfit_of_member(value, member, path)
        if found is None:
            return None
        if len(found.path) > len(path) and deepest is None:
            deepest = found
    return deepest or Misfit(path, meaning, value)


_SEQUENCES: Final = (list, tuple)


def fast_test(meaning: Meaning) -> Callable[[Any], bool]:
    """A function that says whether a value is of the type of an annotation; quick for the usual values."""
    quick = quick_test(meaning)
    classes = frozenset[type]() if quick is None else quick.classes
    literals: set[Any] = set()
    held: dict[type, frozenset[type]] = {}
    for member in members_of(meaning):
        if isinstance(member, meanings.LiteralType):
            literals |= {value for value in member.values if value.__class__ is str}
        elif isinstance(member, meanings.CollectionType) and issubclass(member.cls, (Sequence, Set)):
            inner = None if member.item is None else quick_test(member.item)
            for cls in _SEQUENCES if issubclass(member.cls, Sequence) else (set, frozenset):
                held[cls] = held.get(cls, frozenset()) if inner is None else inner.classes

    def test(value: Any) -> bool:
        cls = value.__class__
        if cls in held and held[cls].issuperset(map(type, value)):
            return True
        if cls in classes or (cls is str and value in literals):
            return True
        return misfit_of(value, meaning) is None

    return test


def _misfit_of_member(value: Any, member: Meaning, path: str) -> Misfit | None:
    wrong = Misfit(path, member, value)
    match member:
        case meanings.ClassType():
            return _misfit_of_class(value, member, path)
        case meanings.LiteralType():
            is_one = value.__class__.__hash__ is not None and not isinstance(value, _ARRAYS) and value in member.values
            return None if is_one else wrong
        case meanings.TypeType() if isinstance(value, type):
            bases = _bases_of(member)
            return None if not bases or issubclass(value, bases) else wrong
        case meanings.CallableType() | meanings.TypeType():
            is_plain = value.__class__ in PLAIN_DATA or isinstance(value, _ARRAYS)
            return wrong if is_plain and not callable(value) else None
        case meanings.CollectionType():
            return _misfit_of_items(value, member, path) if _is_collection(value, member) else wrong
        case meanings.TupleType():
            is_fine = isinstance(value, Sequence) and not isinstance(value, _TEXTS) and len(value) == len(member.items)
            pairs = zip(range(len(member.items)), value, member.items, strict=True) if is_fine else ()
            return _first(misfit_of(v, m, f"{path}[{i}]") for i, v, m in pairs) if is_fine else wrong
        case meanings.MappingType():
            return _misfit_of_entries(value, member.names, member.item, path) if isinstance(value, Mapping) else wrong
        case meanings.TypedDictType():
            is_fine = isinstance(value, Mapping) and member.required <= value.keys() <= member.items.keys()
            entries = value.items() if is_fine else ()
            return _first(misfit_of(v, member.items[k], f"{path}[{k!r}]") for k, v in entries) if is_fine else wrong
        case meanings.TypeVarType():
            found = [misfit_of(value, option, path) for option in _options(member)]
            return None if None in found or not found else found[0]
        case _:
            return None


def _misfit_of_class(value: Any, member: meanings.ClassType, path: str) -> Misfit | None:
    cls, wrong = member.cls, Misfit(path, member, value)
    if not _is_asked(cls):
        is_refused = _is_called(cls) or (_is_runtime_protocol(cls) and not isinstance(value, cls))
        return wrong if value.__class__ in PLAIN_DATA and is_refused else None
    if cls in _NUMBERS:
        return None if _is_number(value, cls) else wrong
    if issubclass(cls, Mapping) and isinstance(value, Mapping):
        names, item = member.args if len(member.args) == 2 else (None, member.args[0] if member.args else None)
        return _misfit_of_entries(value, names, item, path)
    if issubclass(cls, Sequence) and issubclass(cls, Pytree):
        is_fine = isinstance(value, Sequence) and not isinstance(value, _TEXTS)
        pairs = enumerate(value) if is_fine and len(member.args) == 1 else ()
        return _first(misfit_of(v, member.args[0], f"{path}[{i}]") for i, v in pairs) if is_fine else wrong
    if issubclass(cls, Variable) and not isinstance(value, (Variable, Pytree, *_ARRAYS, *_TEXTS)):
        return None  # such as the axis in a prefix of `vmap`
    return None if isinstance(value, (bytes, bytearray) if cls is bytes else cls) else wrong


def _is_number(value: Any, cls: type) -> bool:
    """Whether a value is a number of a class; arrays are refused, or not, by their status."""
    if isinstance(value, (*_NUMBERS[cls].classes, *_ARRAYS)):
        return True
    if cls is bool:
        return value.__class__ is int and value in (0, 1)
    # such as a symbolic size of `jax.export`
    is_like = hasattr(type(value), "__index__") or hasattr(type(value), "__jax_array__")
    return is_like and not isinstance(value, (Pytree, Variable))


def _is_collection(value: Any, member: meanings.CollectionType) -> bool:
    cls: Any = member.cls
    if issubclass(cls, Set):
        return isinstance(value, Set)
    if isinstance(value, _TEXTS):
        return cls not in (list, tuple) and isinstance(value, cls)
    return isinstance(value, Sequence if issubclass(cls, Sequence) else cls)


def _misfit_of_items(value: Any, member: meanings.CollectionType, path: str) -> Misfit | None:
    item = member.item
    quick = None if item is None else quick_test(item)
    if item is None or quick is None or not isinstance(value, (Sequence, Set)) or isinstance(value, (*_TEXTS, range)):
        is_wrong = isinstance(value, str) and quick is not None and not (quick.needs_look or str in quick.classes)
        return Misfit(path, member, value) if is_wrong else None  # an iterator would be used up
    if quick.classes.issuperset(map(type, value)):
        return None
    return _first(misfit_of(v, item, f"{path}[{i}]") for i, v in enumerate(value))


def _misfit_of_entries(
    value: Mapping[Any, Any], names: Meaning | None, item: Meaning | None, path: str
) -> Misfit | None:
    found = None if names is None else _first(misfit_of(key, names, f"{path}[{key!r}]") for key in value)
    if found is not None or item is None or quick_test(item) is None:
        return found
    return _first(misfit_of(v, item, f"{path}[{key!r}]") for key, v in value.items())


def _first(found: Iterable[Misfit | None]) -> Misfit | None:
    return next((one for one in found if one is not None), None)
