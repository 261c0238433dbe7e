"""Types as a user writes them."""

from __future__ import annotations

from mypy.types import (
    AnyType,
    CallableType,
    Instance,
    LiteralType,
    NoneType,
    TupleType,
    Type,
    TypeAliasType,
    TypeType,
    TypeVarType,
    UnionType,
    get_proper_type,
)

_MODULES = {"builtins": "", "jax._src.basearray": "jax.", "numpy": "np."}
"""What stands before a class's name instead of its module."""


def text_of(typ: Type) -> str:
    """A type as an annotation says it."""
    if isinstance(typ, TypeAliasType) and typ.is_recursive and typ.alias is not None:
        return typ.alias.name
    typ = get_proper_type(typ)
    if isinstance(typ, Instance):
        return _name_of(typ) + _args_of(typ)
    if isinstance(typ, UnionType):
        return " | ".join(map(text_of, typ.items))
    if isinstance(typ, NoneType):
        return "None"
    if isinstance(typ, AnyType):
        return "Any"
    if isinstance(typ, TupleType):
        return f"tuple[{', '.join(map(text_of, typ.items)) or '()'}]"
    if isinstance(typ, CallableType):
        args = "..." if typ.is_ellipsis_args else f"[{', '.join(map(text_of, typ.arg_types))}]"
        return f"Callable[{args}, {text_of(typ.ret_type)}]"
    if isinstance(typ, TypeType):
        return f"type[{text_of(typ.item)}]"
    if isinstance(typ, LiteralType):
        return f"Literal[{typ.value!r}]"
    return typ.name if isinstance(typ, TypeVarType) else str(typ)


def _name_of(typ: Instance) -> str:
    module = typ.type.module_name
    if module.startswith("declax."):
        return f"dx.{typ.type.name}"
    return _MODULES.get(module, "") + typ.type.name


def _args_of(typ: Instance) -> str:
    if not typ.args or all(isinstance(get_proper_type(arg), AnyType) for arg in typ.args):
        return ""
    args = ", ".join(map(text_of, typ.args))
    return f"[{args}, ...]" if typ.type.fullname == "builtins.tuple" else f"[{args}]"
