"""The status of a field by its type: "data", "static", "snapshot", or None if the value decides.

The rules are those of `declax._fields.annotations`. A leaf here is an array or a number.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mypy.nodes import TypeInfo, Var
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
    TypedDictType,
    TypeType,
    TypeVarType,
    UnionType,
    get_proper_type,
)

from declax.mypy_plugin import names

_NUMBERS: Final = frozenset(
    {"builtins.int", "builtins.float", "builtins.complex", "numbers.Number", "numpy.generic", "decimal.Decimal"}
)
_STATIC: Final = frozenset(
    {"builtins.str", "builtins.bytes", "builtins.type", "enum.Enum", "numpy.dtype", "builtins.slice", "builtins.range"}
    | {"datetime.date", "datetime.time", "datetime.timedelta", "datetime.tzinfo", "pathlib.PurePath", "uuid.UUID"}
)
_FUNCTIONS: Final = frozenset({"builtins.function", "functools.partial"})
_CONTAINERS: Final = frozenset({"builtins", "typing", "typing_extensions", "collections", "collections.abc"})
"""The modules whose iterables are containers."""

MAX_OPEN: Final = 50
"""How many recursive aliases are opened within each other; ``type Tree[T] = T | list[Tree[list[T]]]`` has no end."""

_NUMBER: Final = "number"
"""The status of a number: static, but in a union with an array it is data."""
_OPEN: Final = "open"
"""The status of a recursive alias inside itself; the other members decide."""


def status_of(typ: Type) -> str | None:
    """The status of a field with this type."""
    found = _Statuses().of(typ)
    return {_NUMBER: "static", _OPEN: None}.get(found, found) if found else None


def holds_no_leaf(typ: Type) -> bool:
    """Whether values of this type contain no leaf, and no function (which may be a Module)."""
    return _Statuses(is_of_leaves=True).of(typ) in ("static", "snapshot")


class _Statuses:
    """The statuses of types; those of the values of leaves if numbers are data and functions may be Modules."""

    def __init__(self, *, is_of_leaves: bool = False) -> None:
        self.is_of_leaves = is_of_leaves
        self._assumed: dict[Type, str | None] = {}
        self._recursive: set[Type] = set()

    def of(self, typ: Type) -> str | None:
        """The status of a type."""
        is_recursive = isinstance(typ, TypeAliasType) and typ.is_recursive
        return self._of_recursive(typ) if is_recursive else self._of_proper(get_proper_type(typ))

    def _of_recursive(self, typ: Type) -> str | None:
        """The status of a recursive alias: the least one that agrees with itself inside of the alias."""
        if typ in self._assumed:
            self._recursive.add(typ)
            return self._assumed[typ]
        if len(self._assumed) > MAX_OPEN:  # one that grows with each step
            return None
        tried: list[str | None] = [_OPEN]
        while True:
            self._assumed[typ] = tried[-1]
            found = self._of_proper(get_proper_type(typ))
            if typ not in self._recursive or found in tried:
                break
            tried.append(found)
        del self._assumed[typ]
        self._recursive.discard(typ)
        return found

    def _of_proper(self, typ: ProperType) -> str | None:
        if isinstance(typ, UnionType):
            parts = [self.of(item) for item in typ.items if not isinstance(get_proper_type(item), NoneType)]
            is_mixed = "data" in parts and not {"data", _NUMBER, _OPEN}.issuperset(parts)
            return None if is_mixed else _joined(parts)
        if isinstance(typ, TupleType):
            is_plain = typ.partial_fallback.type.fullname == "builtins.tuple"
            is_known = is_plain and (bool(typ.items) or not self.is_of_leaves)
            return self._in_container(typ.items, "static") if is_known else None
        if isinstance(typ, TypedDictType):
            return self._in_container(typ.items.values(), "snapshot")
        if isinstance(typ, (TypeType, NoneType)):
            return "static"
        if isinstance(typ, (CallableType, Overloaded)):
            return None if self.is_of_leaves else "static"
        if isinstance(typ, LiteralType):
            return self.of(typ.fallback)
        if isinstance(typ, TypeVarType):
            return None if typ.values else self.of(typ.upper_bound)
        return self._of_instance(typ) if isinstance(typ, Instance) else None

    def _of_instance(self, typ: Instance) -> str | None:
        bases = {base.fullname for base in typ.type.mro}
        if bases & names.DATA_BASES:
            return "data"
        if bases & _NUMBERS and (self.is_of_leaves or "enum.Enum" not in bases):
            return "data" if self.is_of_leaves else _NUMBER
        if bases & _STATIC or (bases & _FUNCTIONS and not self.is_of_leaves):
            return "static"
        if not is_container(typ.type) or not typ.args:
            return None
        parts = typ.args[1:] if "typing.Mapping" in bases and len(typ.args) == 2 else typ.args
        is_frozen = bool(bases & {"builtins.tuple", "builtins.frozenset"})
        return self._in_container(parts, "static" if is_frozen else "snapshot")

    def _in_container(self, parts: Iterable[Type], static: str) -> str | None:
        joined = _joined([self.of(part) for part in parts])
        return static if joined in ("static", _NUMBER) else joined


def _joined(parts: list[str | None]) -> str | None:
    known = {part for part in parts if part != _OPEN}
    for status in ("data", None, "snapshot", "static", _NUMBER):
        if status in known:
            return status
    return _OPEN if parts else "static"


def is_container(info: TypeInfo) -> bool:
    """Whether a class is a container of the standard library."""
    return info.module_name in _CONTAINERS and info.has_base("typing.Iterable")


def describes_behaviour(typ: Type) -> bool:
    """Whether a type is a Protocol or a function, or an Optional of one, which a module fits as well."""
    typ = get_proper_type(typ)
    if isinstance(typ, UnionType):
        return any(describes_behaviour(item) for item in typ.items)
    return isinstance(typ, (CallableType, Overloaded)) or (isinstance(typ, Instance) and typ.type.is_protocol)


def is_array(typ: Type | None) -> bool:
    """Whether values of a type are arrays or Variables."""
    return isinstance(typ, Instance) and any(base.fullname in names.ARRAYS_AND_VARIABLES for base in typ.type.mro)


def is_unhashable(typ: ProperType) -> bool:
    """Whether values of this type are unhashable: arrays, lists, and classes with ``__hash__ = None``."""
    found = typ.type.get("__hash__") if isinstance(typ, Instance) and not typ.type.is_protocol else None
    node = None if found is None else found.node
    return is_array(typ) or (isinstance(node, Var) and isinstance(get_proper_type(node.type), NoneType))
