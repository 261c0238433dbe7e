"""From a type to the status of a field, by the rules that the annotations have at run time.

Vocabulary
----------
status: "data", "static", "snapshot" (static and mutable), or None where only the value decides.
leaf:   what JAX can take as part of a tree: an array or a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from mypy.nodes import FuncBase, SymbolTableNode, TypeInfo, Var
from mypy.types import (
    CallableType,
    Instance,
    LiteralType,
    NoneType,
    Overloaded,
    ProperType,
    TupleType,
    Type,
    TypeType,
    TypeVarType,
    UnionType,
    get_proper_type,
)

from declax.mypy_plugin import names

_NUMBERS: Final = frozenset(
    {"builtins.int", "builtins.float", "builtins.complex", "numbers.Number", "numpy.generic", "decimal.Decimal"}
)
_NO_LEAVES: Final = frozenset({"builtins.str", "builtins.bytes", "builtins.type", "enum.Enum", "numpy.dtype"})
_STATIC: Final = _NO_LEAVES | {"builtins.slice", "builtins.range", "builtins.function", "functools.partial"}
_MUTABLE: Final = frozenset({"builtins.list", "builtins.dict", "builtins.set", "builtins.bytearray"})
_CONTAINERS: Final = frozenset({"builtins", "typing", "typing_extensions", "collections", "collections.abc"})
"""Modules whose iterables are containers."""

_KEY: Final = "declax"


class Decision(NamedTuple):
    """What a type says of a field's status."""

    status: str | None
    is_number: bool = False


_UNDECIDED = Decision(None)
_DATA = Decision("data")
_STATIC_ONE = Decision("static")
_NUMBER = Decision("static", is_number=True)
_SNAPSHOT = Decision("snapshot")


def status_of(typ: Type) -> str | None:
    """The status that an annotation of this type gives its field."""
    return decide(typ).status


def decide(typ: Type) -> Decision:
    """What a type says of a field's status."""
    typ = get_proper_type(typ)
    if isinstance(typ, UnionType):
        return _decide_union(typ)
    if isinstance(typ, TupleType):
        is_plain = typ.partial_fallback.type.fullname == "builtins.tuple"
        return _joined_in_tuple([decide(item) for item in typ.items]) if is_plain else _UNDECIDED
    if isinstance(typ, (CallableType, Overloaded, TypeType, NoneType)):
        return _STATIC_ONE
    if isinstance(typ, LiteralType):
        return decide(typ.fallback)
    if isinstance(typ, TypeVarType):
        return _UNDECIDED if typ.values else decide(typ.upper_bound)
    return _decide_instance(typ) if isinstance(typ, Instance) else _UNDECIDED


def _decide_instance(typ: Instance) -> Decision:
    info = typ.type
    bases = {base.fullname for base in info.mro}
    if bases & names.DATA_BASES:
        return _DATA
    if "enum.Enum" in bases:
        return _STATIC_ONE
    if bases & _NUMBERS:
        return _NUMBER
    if bases & _STATIC:
        return _STATIC_ONE
    if bases & _MUTABLE or is_container(info):
        return _decide_container(typ, bases)
    if info.is_protocol and "__call__" in info.names:
        return _STATIC_ONE
    return _UNDECIDED


def is_container(info: TypeInfo) -> bool:
    """Whether a class is one of the standard's containers."""
    return info.module_name in _CONTAINERS and info.has_base("typing.Iterable")


def _decide_container(typ: Instance, bases: set[str]) -> Decision:
    args: Sequence[Type] = typ.args
    if not args or not is_container(typ.type):
        return _UNDECIDED
    if "typing.Mapping" in bases and len(args) == 2:
        args = args[1:]
    joined = _join([decide(arg) for arg in args])
    if joined.status in ("data", None):
        return joined
    is_frozen = bool(bases & {"builtins.tuple", "builtins.frozenset"}) and joined.status == "static"
    return _STATIC_ONE if is_frozen else _SNAPSHOT


def _joined_in_tuple(items: Sequence[Decision]) -> Decision:
    joined = _join(items)
    return Decision(joined.status)


def _decide_union(typ: UnionType) -> Decision:
    parts = [decide(item) for item in typ.items if not isinstance(get_proper_type(item), NoneType)]
    joined = _join(parts)
    is_mixed = joined.status == "data" and not all(part.status == "data" or part.is_number for part in parts)
    return _UNDECIDED if is_mixed else joined


def _join(parts: Sequence[Decision]) -> Decision:
    statuses = {part.status for part in parts}
    if "data" in statuses:
        return _DATA
    if None in statuses:
        return _UNDECIDED
    if "snapshot" in statuses:
        return _SNAPSHOT
    return _NUMBER if parts and all(part.is_number for part in parts) else _STATIC_ONE


def holds_no_leaf(typ: Type) -> bool:
    """Whether nothing in a value of this type is a leaf that JAX could take.

    A function counts as a leaf here: a Module may stand in its place.
    """
    typ = get_proper_type(typ)
    if isinstance(typ, UnionType):
        parts = [item for item in typ.items if not isinstance(get_proper_type(item), NoneType)]
        return bool(parts) and all(map(holds_no_leaf, parts))
    if isinstance(typ, TupleType):
        is_plain = typ.partial_fallback.type.fullname == "builtins.tuple"
        return is_plain and bool(typ.items) and all(map(holds_no_leaf, typ.items))
    if isinstance(typ, LiteralType):
        return holds_no_leaf(typ.fallback)
    if isinstance(typ, TypeType):
        return True
    if not isinstance(typ, Instance):
        return False
    bases = {base.fullname for base in typ.type.mro}
    if bases & (_NUMBERS | names.DATA_BASES):
        return False
    if bases & _NO_LEAVES:
        return True
    if is_container(typ.type) and typ.args:
        return holds_no_leaf(typ.args[-1])
    return False


def is_unhashable(typ: Type) -> bool:
    """Whether no value of this type has a hash."""
    typ = get_proper_type(typ)
    return isinstance(typ, Instance) and _is_unhashable_class(typ.type)


def _is_unhashable_class(info: TypeInfo) -> bool:
    if info.fallback_to_any or info.is_protocol or info.is_abstract:
        return False
    for base in info.mro:
        if base.metadata.get(_KEY, {}).get("hash") is False:
            return True
        found = base.names.get("__hash__")
        if found is not None:
            return _is_none(found)
        if "dataclass" in base.metadata and base.metadata["dataclass"].get("frozen"):
            return False
        equal = base.names.get("__eq__")
        if equal is not None and isinstance(equal.node, FuncBase) and not equal.plugin_generated:
            # Python takes the hash from a class that says what is equal; stubs need not tell so
            return base.fullname != "builtins.object" and not _is_of_stub(base)
    return False


def _is_none(found: SymbolTableNode) -> bool:
    return isinstance(found.node, Var) and isinstance(get_proper_type(found.node.type), NoneType)


def _is_of_stub(info: TypeInfo) -> bool:
    return info.module_name in ("builtins", "typing", "collections", "enum", "abc")


def is_shared_mutable(typ: ProperType) -> bool:
    """Whether a default of this type would be one mutable object for all instances."""
    if is_unhashable(typ):
        return True
    if not isinstance(typ, Instance) or decide(typ).status != "data":
        return False
    return not typ.type.metadata.get("dataclass", {}).get("frozen", False)
