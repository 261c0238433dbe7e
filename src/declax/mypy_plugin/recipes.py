"""What `variable` and `submodule` say of other fields: names of fields, `when`, functions of the instance.

Vocabulary
----------
option: an argument that may be the name of a field.
wanted: what the type of that field has to be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mypy.nodes import Context, Expression, NameExpr, StrExpr
from mypy.types import (
    AnyType,
    CallableType,
    Instance,
    NoneType,
    Overloaded,
    ProperType,
    Type,
    TypeType,
    TypeVarType,
    UnionType,
    get_proper_type,
)

from declax.mypy_plugin import names
from declax.mypy_plugin.declared import DeclaredClass, DeclaredField
from declax.mypy_plugin.expressions import literal, members_in
from declax.mypy_plugin.reporting import Report, suggest
from declax.mypy_plugin.wording import text_of

RNGS = "rngs"


class Recipe(NamedTuple):
    """The declaration of a member that the object makes itself, and where to tell of it."""

    cls: DeclaredClass
    field: DeclaredField
    report: Report

    @property
    def where(self) -> str:
        """The field, as messages say it."""
        return f"{self.cls.name}.{self.field.name}"

    @property
    def place(self) -> Context:
        """The line that declares the field."""
        assert self.field.statement is not None
        return self.field.statement

    def check_name(self, option: str, expr: Expression, wanted: str, suits: Callable[[ProperType], bool]) -> None:
        """Checks an option that is the name of a field; any other expression is left alone."""
        if not isinstance(expr, StrExpr) or not self.cls.is_complete:
            return
        named = self.cls.fields.get(expr.value)
        if named is None or named.is_init_var:
            self._tell_unknown(option, expr)
        elif not self._has_value(named):
            self.report.error(
                f"{self.where}: {option} names {expr.value!r}, which has no value yet when this member is made",
                expr,
                fix=f"declare {expr.value} as a parameter of the constructor, or above {self.field.name}",
            )
        elif not any(map(suits, _parts(named.type))):
            self.report.error(
                f"{self.where}: {option} names the field {expr.value!r}, which is no {wanted}",
                expr,
                notes=[f"it is declared as {expr.value}: {text_of(named.type)}"],
            )

    def _tell_unknown(self, option: str, expr: StrExpr) -> None:
        is_passed = expr.value in self.cls.fields
        known = [name for name, field in self.cls.fields.items() if not field.is_init_var]
        others = [name for name in known if name != self.field.name]
        hint = "; an InitVar is gone when members are made" if is_passed else suggest(expr.value, others)
        fields = ", ".join(others) or "none"
        text = f"{self.where}: {option} names {expr.value!r}, which is no field of the class{hint}"
        self.report.error(text, expr, notes=[f"its fields are {fields}"])

    def check_when(self) -> None:
        """Checks that `when` names a bool field, and that the annotation allows for None."""
        when = self.field.arguments.get("when")
        if when is None or literal(when) is None:
            return
        self.check_name("when", when, "bool", is_bool)
        if isinstance(literal(when), str) and not any(map(_may_be_none, _parts(self.field.type))):
            said = text_of(self.field.type)
            self.report.error(
                f"{self.where}: `when` can leave the field None, which its annotation {said} does not allow",
                self.place,
                fix=f"{self.field.name}: {said} | None = dx.{self.field.specifier}(...)",
            )

    def check_attributes(self, function: Expression, parameter: str) -> None:
        """Checks that a function of the instance reads no member that is made after this one."""
        for node in members_in(function):
            if isinstance(node.expr, NameExpr) and node.expr.name == parameter:
                named = self.cls.fields.get(node.name)
                if named is not None and not self._has_value(named):
                    self.report.error(
                        f"{self.where}: {parameter}.{node.name} has no value yet when this member is made",
                        node,
                        notes=["declared members are made in declaration order, before __post_init__"],
                        fix=f"declare {node.name} above {self.field.name}, or as a parameter of the constructor",
                    )

    def _has_value(self, named: DeclaredField) -> bool:
        """Whether a field has a value when this one is made, as far as the declaration tells."""
        if named.in_init or named.has_default or not self.cls.makes_constructor:
            return True
        order = list(self.cls.fields)
        return named.is_made and order.index(named.name) < order.index(self.field.name)


def _parts(typ: Type) -> list[ProperType]:
    typ = get_proper_type(typ)
    return [get_proper_type(item) for item in typ.items] if isinstance(typ, UnionType) else [typ]


def _may_be_none(typ: ProperType) -> bool:
    return isinstance(typ, (NoneType, AnyType, TypeVarType)) or _is_object(typ)


def _is_object(typ: ProperType) -> bool:
    return isinstance(typ, Instance) and typ.type.fullname == "builtins.object"


def _is_open(typ: ProperType) -> bool:
    """Whether a value of this type may be anything."""
    if isinstance(typ, Instance):
        return typ.type.fallback_to_any or _is_object(typ)
    return isinstance(typ, (AnyType, TypeVarType))


def is_bool(typ: ProperType) -> bool:
    """Whether a value of this type may be a bool."""
    return _is_open(typ) or (isinstance(typ, Instance) and typ.type.fullname in ("builtins.bool", "numpy.bool"))


def is_size(typ: ProperType) -> bool:
    """Whether a value of this type may be the size of an axis."""
    if isinstance(typ, Instance) and typ.type.fullname != "builtins.bool":
        return _is_open(typ) or typ.type.get("__index__") is not None
    return _is_open(typ) or not isinstance(typ, (Instance, NoneType, CallableType, TypeType))


def is_shape(typ: ProperType) -> bool:
    """Whether a value of this type may be a whole shape."""
    if isinstance(typ, Instance):
        return is_size(typ) or (typ.type.has_base("typing.Iterable") and typ.type.fullname != "builtins.str")
    return is_size(typ)


def is_initializer(typ: ProperType) -> bool:
    """Whether a value of this type may be called."""
    if isinstance(typ, Instance):
        return _is_open(typ) or typ.type.get("__call__") is not None
    return isinstance(typ, (CallableType, Overloaded, TypeType)) or _is_open(typ)


def is_dtype(typ: ProperType) -> bool:
    """Whether a value of this type may be a dtype."""
    if not isinstance(typ, Instance) or typ.type.has_base("builtins.type"):
        return not isinstance(typ, NoneType)
    numbers = ("builtins.int", "builtins.float", "builtins.bool", "builtins.complex")
    return typ.type.fullname not in numbers and not any(typ.type.has_base(base) for base in names.DATA_BASES)
