"""What an annotation allows, and how it is asked of what is inside of a value.

An annotation allows dtypes where `numpy.dtype` is a member, as it is of `jax.typing.DTypeLike`; the other members by
which that spells dtypes (str, type[Any], protocols) stand for nothing else then.
"""

from __future__ import annotations

import collections.abc
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Final

import jax
import numpy as np
import typing_extensions

DTYPE_MARK: Final = "dtype"
"""What `declax._typing.Dtype` is annotated with at run time."""

_ALIASES: Final[tuple[Any, ...]] = (
    typing_extensions.TypeAliasType,
    getattr(typing, "TypeAliasType", typing_extensions.TypeAliasType),
)
MAX_NESTED: Final = 100
"""How deep annotations are looked at."""

_QUALIFIERS: Final = (typing.Final, typing.ClassVar, typing.Required, typing.NotRequired)
_PYTHON_DTYPES: Final = (bool, int, float, complex)
_ABSTRACT: Final = frozenset(
    {np.generic, np.number, np.integer, np.signedinteger, np.unsignedinteger, np.inexact, np.floating}
    | {np.complexfloating, np.flexible, np.character}
)


def allowed_classes(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the annotation alone; aliases and `Annotated` are opened."""
    opened = _opened(annotation)
    if typing.get_origin(opened) in (typing.Union, types.UnionType):
        return tuple(member for arg in typing.get_args(opened) for member in allowed_classes(arg))
    return (type(None) if opened is None else opened,)


def _opened(annotation: Any) -> Any:
    """The annotation inside of aliases, new types, `Annotated`, `Final` and the like."""
    while True:
        origin = typing.get_origin(annotation)
        if isinstance(annotation, _ALIASES):
            annotation = annotation.__value__
        elif origin is typing.Annotated:
            annotation = np.dtype if DTYPE_MARK in annotation.__metadata__ else typing.get_args(annotation)[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif origin in _QUALIFIERS:
            annotation = typing.get_args(annotation)[0]
        else:
            return annotation


def mentioned(annotation: Any, depth: int = 0) -> Iterator[Any]:
    """The members of an annotation, and those of the annotations of its elements."""
    for member in allowed_classes(annotation):
        yield member
        origin = typing.get_origin(member)
        if isinstance(origin, type) and issubclass(origin, collections.abc.Iterable) and depth < MAX_NESTED:
            for inner in typing.get_args(member):
                yield from mentioned(inner, depth + 1) if inner is not Ellipsis else ()


def element_annotation(annotation: Any, value: Any, key: str | int) -> Any:
    """The annotation of an element of a list, tuple or dict; Any where the annotation does not tell."""
    is_mapping = isinstance(value, Mapping)
    for member in allowed_classes(annotation):
        origin, args = typing.get_origin(member), typing.get_args(member)
        if not isinstance(origin, type) or not args or not issubclass(origin, collections.abc.Iterable):
            continue
        if issubclass(origin, collections.abc.Mapping):
            if is_mapping and len(args) == 2:
                return args[1]
        elif not is_mapping:
            if issubclass(origin, tuple) and not (len(args) == 2 and args[1] is Ellipsis):
                return args[key] if isinstance(key, int) and key < len(args) else Any
            return args[0]
    return Any


# --- values that annotations decide ---------------------------------------------


def allows_dtypes(members: tuple[Any, ...]) -> bool:
    """Whether the members of an annotation are, among others, those that spell dtypes."""
    return any(member is np.dtype or typing.get_origin(member) is np.dtype for member in members)


def spells_dtypes(member: Any) -> bool:
    """Whether a member of an annotation that allows dtypes is one of those that spell them."""
    if member in (np.dtype, str) or typing.get_origin(member) in (type, np.dtype):
        return True
    return bool(getattr(member, "_is_protocol", False)) and hasattr(member, "dtype")


def is_dtype(value: object) -> bool:
    """Whether a value stands for a dtype of arrays: `numpy.dtype`, its scalar classes, and those of `jax.numpy`."""
    if isinstance(value, np.dtype):
        return True
    if isinstance(value, type) and issubclass(value, np.generic):
        return value not in _ABSTRACT and not issubclass(value, jax.dtypes.extended)
    return type(value).__name__ == "_ScalarMeta" and isinstance(getattr(value, "dtype", None), np.dtype)


def is_dtype_like(value: object) -> bool:
    """Whether `jax.numpy.dtype` takes a value that is no text: a dtype, a type of Python's numbers, that of a key."""
    if is_dtype(value) or any(value is number for number in _PYTHON_DTYPES):
        return True
    scalar = None if isinstance(value, type) else getattr(value, "type", None)
    return isinstance(scalar, type) and issubclass(scalar, jax.dtypes.extended)
