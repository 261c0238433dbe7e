"""The classes whose constructors surely draw random keys, so that a call needs `rngs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mypy.nodes import ArgKind, CallExpr, TypeInfo
from mypy.types import CallableType, get_proper_type

from declax.mypy_plugin import names
from declax.mypy_plugin.declared import RNGS, DeclaredClass, has_made_constructor, nearest_declared
from declax.mypy_plugin.expressions import arguments_of, class_called, info_named, literal

LAYER_LINE: Final = "class {}(dx.Layer): ...        # its parts get its rngs"
"""The line that gives a class `rngs`."""

_MAX_DEPTH: Final = 8

Flags = Mapping[str, "bool | None"]
"""The arguments of a call by name: the value of a bool literal, and None for other expressions."""


def drawn_by(info: TypeInfo, given: Flags | None, api: Any, depth: int = 0) -> str | None:
    """The path of a Variable that each call with these arguments makes with a key, such as ``up.kernel``.

    Parts that are arguments count if the call does not give them. If the arguments are unknown (None), parts and
    conditions that depend on them do not count.
    """
    cls = nearest_declared(info, api)
    if cls is None or info.fallback_to_any or not has_made_constructor(info) or depth > _MAX_DEPTH:
        return None
    for owner, made in cls.made:
        name: str = made["name"]
        field = cls.fields.get(name)
        if field is not None and field.in_init and (given is None or name in given):
            continue
        if "class" not in made:
            if made["when"] is None or _is_true(made["when"], cls, given):
                return name
            continue
        part = info_named(made["class"], api)
        has_keys = made["passes_rngs"] or (RNGS not in made["named"] and owner.has_base(names.LAYER))
        found = drawn_by(part, _flags_of(part, made), api, depth + 1) if part is not None and has_keys else None
        if found is not None:
            return f"{name}.{found}"
    return None


def _is_true(name: str, cls: DeclaredClass, given: Flags | None) -> bool:
    """Whether a field of a class is True in a call with these arguments."""
    if given is None:
        return False
    return bool(given[name] if name in given else cls.flag(name))


def _flags_of(info: TypeInfo, made: Mapping[str, Any]) -> Flags:
    """The arguments of a call in a class body."""
    signature = _constructor(info)
    positional = () if signature is None else filter(None, signature.arg_names[1:])
    return {**dict(zip(positional, made["positional"], strict=False)), **made["named"]}


def _constructor(info: TypeInfo) -> CallableType | None:
    init = info.get_method("__init__")
    signature = None if init is None else get_proper_type(init.type)
    return signature if isinstance(signature, CallableType) else None


def takes_optional_rngs(info: TypeInfo, api: Any) -> bool:
    """Whether the generated constructor of a class takes `rngs` with a default."""
    cls = nearest_declared(info, api)
    field = None if cls is None else cls.fields.get(RNGS)
    return field is not None and field.in_init and field.has_default


def is_deferred(call: CallExpr, owner: TypeInfo, api: Any) -> bool:
    """Whether the body of a class defers a call for its keys: no `rngs`, which is required or None by default.

    A body that implies no `rngs` defers only calls that need some.
    """
    info = class_called(call)
    signature = None if info is None or not info.has_base(names.PYTREE) else _constructor(info)
    if info is None or signature is None or RNGS not in signature.arg_names or ArgKind.ARG_STAR2 in call.arg_kinds:
        return False
    names_in_order = [name or "" for name in signature.arg_names[1:]]
    given = arguments_of(call, names_in_order).get(RNGS)
    if given is not None and literal(given) is not None:
        return False
    cls = nearest_declared(info, api)
    if cls is not None and cls.flag(RNGS) is not None:
        return False
    is_required = signature.arg_kinds[signature.arg_names.index(RNGS)].is_required()
    return is_required or owner.has_base(names.LAYER) or drawn_by(info, None, api) is not None
