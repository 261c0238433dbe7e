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
    TypeAliasType,
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
_OPEN = Decision(None)
"""Stands for a recursive alias inside of itself, as long as nothing else decides on it."""


def status_of(typ: Type) -> str | None:
    """The status that an annotation of this type gives its field."""
    return decide(typ).status


def decide(typ: Type) -> Decision:
    """What a type says of a field's status."""
    return _Deciding().decide(typ)


class _Deciding:
    """Decides on one type; a recursive alias inside of itself counts as what is found for it."""

    def __init__(self) -> None:
        self._assumed: dict[Type, Decision] = {}
        self._recursive: set[Type] = set()

    def decide(self, typ: Type) -> Decision:
        """As `decide`."""
        if not (isinstance(typ, TypeAliasType) and typ.is_recursive):
            return self._decide_proper(get_proper_type(typ))
        if typ in self._assumed:
            self._recursive.add(typ)
            return self._assumed[typ]
        tried = [_OPEN]
        while True:
            self._assumed[typ] = tried[-1]
            found = self._decide_proper(get_proper_type(typ))
            if typ not in self._recursive or found in tried:
                break
            tried.append(found)
        del self._assumed[typ]
        self._recursive.discard(typ)
        return _UNDECIDED if found is _OPEN and not self._assumed else found

    def _decide_proper(self, typ: ProperType) -> Decision:
        if isinstance(typ, UnionType):
            return self._decide_union(typ)
        if isinstance(typ, TupleType):
            is_plain = typ.partial_fallback.type.fullname == "builtins.tuple"
            return _joined_in_tuple(list(map(self.decide, typ.items))) if is_plain else _UNDECIDED
        if isinstance(typ, (CallableType, Overloaded, TypeType, NoneType)):
            return _STATIC_ONE
        if isinstance(typ, LiteralType):
            return self.decide(typ.fallback)
        if isinstance(typ, TypeVarType):
            return _UNDECIDED if typ.values else self.decide(typ.upper_bound)
        return self._decide_instance(typ) if isinstance(typ, Instance) else _UNDECIDED

    def _decide_instance(self, typ: Instance) -> Decision:
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
            return self._decide_container(typ, bases)
        if info.is_protocol and "__call__" in info.names:
            return _STATIC_ONE
        return _UNDECIDED

    def _decide_container(self, typ: Instance, bases: set[str]) -> Decision:
        args: Sequence[Type] = typ.args
        if not args or not is_container(typ.type):
            return _UNDECIDED
        if "typing.Mapping" in bases and len(args) == 2:
            args = args[1:]
        joined = _join(list(map(self.decide, args)))
        if joined.status in ("data", None):
            return joined
        is_frozen = bool(bases & {"builtins.tuple", "builtins.frozenset"}) and joined.status == "static"
        return _STATIC_ONE if is_frozen else _SNAPSHOT

    def _decide_union(self, typ: UnionType) -> Decision:
        parts = [self.decide(item) for item in typ.items if not isinstance(get_proper_type(item), NoneType)]
        joined = _join(parts)
        is_mixed = joined.status == "data" and not all(p.status == "data" or p.is_number or p is _OPEN for p in parts)
        return _UNDECIDED if is_mixed else joined


def is_container(info: TypeInfo) -> bool:
    """Whether a class is one of the standard's containers."""
    return info.module_name in _CONTAINERS and info.has_base("typing.Iterable")


def _joined_in_tuple(items: Sequence[Decision]) -> Decision:
    joined = _join(items)
    return joined if joined is _OPEN else Decision(joined.status)


def _join(parts: Sequence[Decision]) -> Decision:
    known = [part for part in parts if part is not _OPEN]
    if parts and not known:
        return _OPEN
    statuses = {part.status for part in known}
    if "data" in statuses:
        return _DATA
    if None in statuses:
        return _UNDECIDED
    if "snapshot" in statuses:
        return _SNAPSHOT
    return _NUMBER if known and all(part.is_number for part in known) else _STATIC_ONE


def holds_no_leaf(typ: Type, within: frozenset[Type] = frozenset()) -> bool:
    """Whether nothing in a value of this type is a leaf that JAX could take.

    A function counts as a leaf here: a Module may stand in its place.

    Args:
      typ: the type.
      within: the recursive aliases that it is in, which are no leaf by themselves.
    """
    if isinstance(typ, TypeAliasType) and typ.is_recursive:
        if typ in within:
            return True
        within |= {typ}
    typ = get_proper_type(typ)
    if isinstance(typ, UnionType):
        parts = [item for item in typ.items if not isinstance(get_proper_type(item), NoneType)]
        return bool(parts) and all(holds_no_leaf(part, within) for part in parts)
    if isinstance(typ, TupleType):
        is_plain = typ.partial_fallback.type.fullname == "builtins.tuple"
        return is_plain and bool(typ.items) and all(holds_no_leaf(item, within) for item in typ.items)
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
        return holds_no_leaf(typ.args[-1], within)
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
