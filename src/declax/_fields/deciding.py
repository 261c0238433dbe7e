"""From an annotation to the status of its field; upper layers add the classes whose instances are data."""

from __future__ import annotations

import collections.abc
import datetime
import enum
import functools
import numbers
import pathlib
import types
import uuid
from typing import Any, Final, ForwardRef, NamedTuple

import numpy as np

from declax._fields import meanings
from declax._fields.annotations import AnnotationScope, caches_by_type, is_data_class
from declax._fields.meanings import Meaning, meaning_of, members_of
from declax._fields.specifiers import Status

_NUMBERS: Final = (numbers.Number, np.generic)
_STATIC_TYPES: Final = (
    *(str, bytes, type, type(None), enum.Enum, np.dtype, slice, range),
    *(types.FunctionType, types.BuiltinFunctionType, functools.partial),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, pathlib.PurePath, uuid.UUID),
)
_MUTABLE: Final = (list, dict, set, bytearray)


class Decision(NamedTuple):
    """The status that an annotation gives a field.

    Attributes:
      status: the status, or None if only the value decides.
      is_container: whether an undecided annotation is of a container, so that a value is looked into.
      is_number: whether its static values are numbers, which JAX takes as leaves.
    """

    status: Status | None
    is_container: bool = False
    is_number: bool = False


_UNDECIDED: Final = Decision(None)
_UNDECIDED_ITEMS: Final = Decision(None, is_container=True)
_DATA: Final = Decision(Status.DATA)
_STATIC: Final = Decision(Status.STATIC)
_NUMBER: Final = Decision(Status.STATIC, is_number=True)
_SNAPSHOT: Final = Decision(Status.SNAPSHOT)
_OPEN: Final = Decision(None)
"""Stands for an annotation inside of itself, as long as nothing else decides on it."""

_MAX_OPENED: Final = 50
"""Aliases within aliases: those that grow with each recursion have no end."""


def decide(annotation: Any, scope: AnnotationScope) -> Decision:
    """The status that an annotation gives its field."""
    if isinstance(annotation, (str, ForwardRef)):
        annotation = scope.resolve(annotation)
    if annotation.__class__ is type:  # most are plain classes
        return _by_class[annotation]
    if isinstance(annotation, type) and is_data_class(annotation):
        return _DATA
    found = _Deciding().of(meaning_of(annotation, scope))
    return _UNDECIDED if found is _OPEN else found


class _ByClass(dict[type, Decision]):
    """The decisions of plain classes, each made once."""

    def __missing__(self, cls: type) -> Decision:
        found = self[cls] = _Deciding().of(meaning_of(cls, AnnotationScope(cls)))
        return found


_by_class: Final = _ByClass()
caches_by_type.append(_by_class)


class _Deciding:
    """Decides on one annotation; a part that may refer to itself gets the least decision that agrees with itself."""

    def __init__(self) -> None:
        self._assumed: dict[Meaning, Decision] = {}
        self._recursive: set[Meaning] = set()

    def of(self, meaning: Meaning) -> Decision:
        """The decision for values of a type."""
        match meaning:
            case meanings.ClassType():
                return _DATA if is_data_class(meaning.cls) else self._of_class(meaning)
            case meanings.UnionType():
                return self._of_union(meaning)
            case meanings.CollectionType() if meaning.item is not None:
                is_fixed = issubclass(meaning.cls, (tuple, frozenset))
                return self._of_container((meaning.item,), is_fixed=is_fixed)
            case meanings.TupleType():
                return self._of_container(meaning.items, is_fixed=True)
            case meanings.MappingType() if meaning.item is not None:
                return self._of_container((meaning.item,), is_fixed=False)
            case meanings.CollectionType() | meanings.MappingType():
                return _UNDECIDED_ITEMS
            case meanings.MarkedType():
                status = next((mark for mark in meaning.marks if isinstance(mark, Status)), None)
                return self.of(meaning.inner) if status is None else Decision(status)
            case meanings.LiteralType() | meanings.TypeType() | meanings.CallableType():
                return _STATIC
            case meanings.TypeVarType():
                return _UNDECIDED if meaning.bound is None else self.of(meaning.bound)
            case meanings.AliasType() | meanings.TypedDictType():
                return self._of_recursive(meaning)
            case _:
                return _UNDECIDED

    def _of_recursive(self, meaning: meanings.AliasType | meanings.TypedDictType) -> Decision:
        if meaning in self._assumed:
            self._recursive.add(meaning)
            return self._assumed[meaning]
        if len(self._assumed) > _MAX_OPENED:
            return _UNDECIDED
        tried = [_OPEN]
        while True:
            self._assumed[meaning] = tried[-1]
            if isinstance(meaning, meanings.AliasType):
                found = self.of(meaning.value)
            else:
                found = self._of_container(tuple(meaning.items.values()), is_fixed=False)
            if meaning not in self._recursive or found in tried:
                break
            tried.append(found)
        del self._assumed[meaning]
        self._recursive.discard(meaning)
        return _UNDECIDED if found is _OPEN and not self._assumed else found

    def _of_class(self, meaning: meanings.ClassType) -> Decision:
        cls: Any = meaning.cls
        array_type = getattr(cls, "array_type", None)  # jaxtyping's annotations
        if array_type is not None and hasattr(cls, "dtypes"):
            return self.of(meaning_of(array_type, AnnotationScope(cls)))
        if meaning.annotation is not cls and issubclass(cls, collections.abc.Iterable) and meaning.args:
            return self._of_container(meaning.args, is_fixed=issubclass(cls, (tuple, frozenset)))
        is_tree = cls.__module__.startswith("jaxtyping") and cls.__name__.startswith("PyTree")
        if issubclass(cls, _MUTABLE) or is_tree:
            return _UNDECIDED_ITEMS
        if issubclass(cls, _NUMBERS) and not issubclass(cls, enum.Enum):
            return _NUMBER
        return _STATIC if issubclass(cls, _STATIC_TYPES) else _UNDECIDED

    def _of_union(self, meaning: meanings.UnionType) -> Decision:
        rest = [self.of(member) for member in meaning.members if not _is_none(member)]
        joined = _join(rest)
        if joined.status is Status.DATA and not all(d.status is Status.DATA or d.is_number or d is _OPEN for d in rest):
            # `Linear | Callable`: a function cannot be a leaf of JAX, so the value decides
            return _UNDECIDED_ITEMS
        return joined

    def _of_container(self, items: tuple[Meaning, ...], *, is_fixed: bool) -> Decision:
        inner = _join([self.of(item) for item in items])
        if inner.status is Status.DATA or inner is _OPEN:
            return inner
        if inner.status is None:
            return _UNDECIDED_ITEMS
        return _STATIC if is_fixed and inner.status is Status.STATIC else _SNAPSHOT


def _is_none(meaning: Meaning) -> bool:
    return isinstance(meaning, meanings.ClassType) and meaning.cls is types.NoneType


def _join(decisions: list[Decision]) -> Decision:
    """The decision for a value with parts of several types, such as a tuple."""
    statuses = {d.status for d in decisions if d is not _OPEN}
    if decisions and not statuses:
        return _OPEN
    if Status.DATA in statuses:
        return _DATA
    if None in statuses:
        return Decision(None, is_container=any(d.is_container for d in decisions))
    if Status.SNAPSHOT in statuses:
        return _SNAPSHOT
    return _NUMBER if all(d.is_number or d is _OPEN for d in decisions) else _STATIC


def refuses_data(annotation: object, scope: AnnotationScope) -> bool:
    """Whether an annotation is marked static, or is of values that are not leaves for JAX."""
    meaning = meaning_of(annotation, scope)
    if isinstance(meaning, meanings.MarkedType):
        return any(isinstance(mark, Status) and mark.is_static for mark in meaning.marks)
    if isinstance(meaning, meanings.ClassType):
        return issubclass(meaning.cls, (str, bytes))
    return isinstance(meaning, meanings.TypeType)


def class_within(annotation: Any, scope: AnnotationScope, base: type | tuple[type, ...]) -> type | None:
    """The class in an annotation that derives from a base, or from one of several; also in an Optional."""
    members = members_of(meaning_of(annotation, scope))
    classes = (member.cls for member in members if isinstance(member, meanings.ClassType))
    return next((cls for cls in classes if issubclass(cls, base)), None)
