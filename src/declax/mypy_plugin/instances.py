"""The class around a specifier, as the type of what its functions are called with."""

from __future__ import annotations

from typing import Any

from mypy.nodes import TypeInfo
from mypy.plugin import FunctionSigContext
from mypy.types import (
    AnyType,
    CallableType,
    Instance,
    TupleType,
    Type,
    TypeAliasType,
    UnionType,
    get_proper_type,
)
from mypy.typevars import fill_typevars

from declax.mypy_plugin import names
from declax.mypy_plugin.declared import is_declared
from declax.mypy_plugin.expressions import is_own_value

_MAX_DEPTH = 20


def class_around(ctx: FunctionSigContext) -> TypeInfo | None:
    """The declared class in whose body this call stands as a specifier."""
    info = class_in_scope(ctx.api)
    return info if info is not None and is_declared(info) and is_own_value(ctx.context, info.defn) else None


def class_in_scope(api: Any) -> TypeInfo | None:
    """The Pytree whose body the checker is in."""
    info = api.scope.active_class()
    return info if isinstance(info, TypeInfo) and info.has_base(names.PYTREE) else None


def with_instance(typ: Type, info: TypeInfo) -> Type:
    """A type in which functions of anything are functions of an instance of the class.

    ``Callable[[Any], int]`` becomes ``Callable[[Block], int]``, wherever it stands.
    """
    return _with_first(typ, fill_typevars(info), 0)


def _with_first(typ: Type, first: Type, depth: int) -> Type:
    typ = get_proper_type(typ) if isinstance(typ, TypeAliasType) else typ
    if depth > _MAX_DEPTH:
        return typ
    if isinstance(typ, CallableType):
        return with_parameter(typ, 0, first)
    if isinstance(typ, UnionType):
        return UnionType([_with_first(item, first, depth + 1) for item in typ.items])
    if isinstance(typ, TupleType):
        return typ.copy_modified(items=[_with_first(item, first, depth + 1) for item in typ.items])
    if isinstance(typ, Instance) and typ.args:
        return typ.copy_modified(args=[_with_first(arg, first, depth + 1) for arg in typ.args])
    return typ


def with_parameter(function: CallableType, at: int, wanted: Type) -> CallableType:
    """A type of functions with one parameter typed, where it was Any."""
    types = list(function.arg_types)
    if at >= len(types) or not isinstance(get_proper_type(types[at]), AnyType):
        return function
    types[at] = wanted
    return function.copy_modified(arg_types=types)
