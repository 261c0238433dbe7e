"""declax-field: specifiers that contradict the annotation or their own arguments, and data for static fields."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

from mypy.nodes import ArgKind, CallExpr, Expression, StarExpr, TypeInfo
from mypy.plugin import FunctionContext
from mypy.subtypes import is_subtype
from mypy.types import CallableType, Instance, Type, TypeVarType, get_proper_type
from mypy.types_utils import remove_optional

from declax.mypy_plugin import names
from declax.mypy_plugin.declared import DeclaredClass, DeclaredField, declared_fields, has_made_constructor
from declax.mypy_plugin.expressions import UNKNOWN, class_called, items_of, value_of
from declax.mypy_plugin.reporting import Reporter, error_code, text_of
from declax.mypy_plugin.statuses import holds_no_leaf, status_of

FIELD = error_code("declax-field", "A specifier contradicts its annotation or an argument")

_DATA = "arrays, Variables and Pytrees are data"
_NO_DATA = "it contains no leaf that JAX accepts"


def check_statuses(cls: DeclaredClass, report: Reporter) -> None:
    """Checks the fields that the class itself declares."""
    for field in cls.own:
        found = None if field.statement is None else _contradiction(field, cls.api)
        if found is not None and field.statement is not None:
            said, problem, right = found
            typ = text_of(field.type)
            annotation = typ if field.mark is None else f"dx.{field.mark.title()}[{typ}]"
            report.error(
                f"{cls.name}.{field.name}: {said} contradicts the annotation {annotation}{problem}",
                field.statement,
                fix=f"{field.name}: {annotation if field.specifier else typ} = dx.{right}(...)",
            )


def _contradiction(field: DeclaredField, api: Any) -> tuple[str, str, str] | None:
    """The contradicting specifier or mark, the reason, and the right specifier."""
    said, mark = field.specifier, field.mark
    if said == "static" and (mark == "data" or (mark is None and status_of(field.type) == "data")):
        return "static(...)", "" if mark else f": {_DATA}", "data"
    if said == "data" and (mark == "static" or (mark is None and holds_no_leaf(field.type))):
        return "data(...)", "" if mark else f": {_NO_DATA}", "static"
    if said in (None, "field") and mark == "static":
        if status_of(field.type) == "data":
            return "its type", f": {_DATA}", "data"
        part = None if said or field.statement is None else api.lookup_type_or_none(field.statement.rvalue)
        if part is not None and status_of(part) == "data":
            return "its value", f": {_DATA}", "data"
    return None


def check_arguments(cls: DeclaredClass, report: Reporter) -> None:
    """Checks the arguments of specifiers against each other, and against the annotation."""
    for field in cls.own:
        for name, problem in _problems(field, field.arguments, cls.api) if field.arguments else ():
            report.error(f"{cls.name}.{field.name}: {problem}", field.arguments[name])


def _problems(field: DeclaredField, given: Mapping[str, Expression], api: Any) -> Iterator[tuple[str, str]]:
    """The names of wrong arguments, and what is wrong with them."""
    default = value_of(given.get("default"), api)
    choices = [value_of(choice, api) for choice in items_of(given.get("choices")) or ()]
    if choices and UNKNOWN not in choices and default not in (None, UNKNOWN, *choices):
        yield "default", f"the default {default!r} is not among the choices {', '.join(map(repr, choices))}"
    for name, is_outside, said in (("ge", operator.lt, "below"), ("le", operator.gt, "above")):
        bound = value_of(given.get(name), api)
        if isinstance(bound, (int, float)) and isinstance(default, (int, float)) and is_outside(default, bound):
            yield "default", f"the default {default} is {said} {name}={bound}"
    taken = _taken_by(given.get("check"), api)
    wanted = remove_optional(field.type)
    if taken is not None and not isinstance(wanted, TypeVarType) and not is_subtype(wanted, taken):
        yield "check", f"its check takes {text_of(taken)}, but the field is {text_of(wanted)}"
    size, axes = _axes_of(given.get("shape", given.get("*0")), api), _axes_of(given.get("sharding"), api)
    if field.specifier == "variable" and size is not None and axes is not None and size < axes:
        yield "sharding", f"{axes} names of axes for a shape of {size}"


def _taken_by(check: Expression | None, api: Any) -> Type | None:
    """The type of values that a check takes."""
    typ = None if check is None else get_proper_type(api.lookup_type_or_none(check))
    is_known = isinstance(typ, CallableType) and not typ.variables and bool(typ.arg_types)
    return typ.arg_types[0] if isinstance(typ, CallableType) and is_known and typ.arg_kinds[0].is_positional() else None


def _axes_of(expr: Expression | None, api: Any) -> int | None:
    """The number of axes in a shape or sharding: the length of a literal or of a `PartitionSpec`, 1 for a size."""
    items = items_of(expr)
    info = class_called(expr) if isinstance(expr, CallExpr) else None
    if isinstance(expr, CallExpr) and info is not None and info.fullname in names.PARTITION_SPECS:
        items = expr.args if set(expr.arg_kinds) <= {ArgKind.ARG_POS} else None
    if items is not None:
        return None if any(isinstance(item, StarExpr) for item in items) else len(items)
    typ = None if expr is None else get_proper_type(api.lookup_type_or_none(expr))
    return 1 if isinstance(typ, Instance) and typ.type.fullname == "builtins.int" else None


def check_call(info: TypeInfo, ctx: FunctionContext, report: Reporter) -> None:
    """Checks that a call passes no data to static fields."""
    # the fast path: most arguments are plain values
    if not any(_may_be_data(typ) for types in filter(None, ctx.arg_types) for typ in types):
        return
    fields = declared_fields(info, ctx.api) if has_made_constructor(info) else {}
    for name, given, types in zip(ctx.callee_arg_names, ctx.args, ctx.arg_types, strict=True):
        field = fields.get(name or "")
        for arg, typ in zip(given, types, strict=True):
            # the class reports a contradictory declaration
            if field is not None and _is_data_for_static(typ, field):
                report.error(
                    f"{info.name}(...): {name} is static, but {text_of(typ)} is data",
                    arg,
                    notes=["arrays, Variables and Pytrees must be data; jit compiles static values into the program"],
                    fix=None if info.module_name.startswith("declax.") else f"{name}: dx.Data[...]  # in {info.name}",
                )


def _may_be_data(typ: Type) -> bool:
    return isinstance(typ, Instance) and typ.type.module_name != "builtins" and typ.type.fullname != names.RNGS


def _is_data_for_static(typ: Type, field: DeclaredField) -> bool:
    if not isinstance(typ, Instance) or not any(base.fullname in names.DATA_BASES for base in typ.type.mro):
        return False
    is_static = field.is_static and not field.is_init_var and status_of(field.type) != "data"
    return is_static and is_subtype(typ, field.type)
