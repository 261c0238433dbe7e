"""declax-field: a specifier, `Data` or `Static` that contradicts the annotation, or the argument of a call."""

from __future__ import annotations

from mypy.nodes import TypeInfo
from mypy.plugin import FunctionContext
from mypy.subtypes import is_subtype
from mypy.types import Instance, Type

from declax.mypy_plugin import names
from declax.mypy_plugin.declared import DeclaredClass, DeclaredField, declared_fields, has_made_constructor
from declax.mypy_plugin.reporting import Reporter, error_code, text_of
from declax.mypy_plugin.statuses import holds_no_leaf, status_of

FIELD = error_code("declax-field", "A field's status contradicts its annotation or an argument")

_DATA = "arrays, Variables and Pytrees are data"
_NO_DATA = "it contains no leaf that JAX accepts"


def check(cls: DeclaredClass, report: Reporter) -> None:
    """Checks the fields that the class itself declares."""
    for field in cls.own:
        found = None if field.statement is None else _contradiction(field)
        if found is not None and field.statement is not None:
            said, problem, right = found
            annotation = (
                text_of(field.type) if field.mark is None else f"dx.{field.mark.title()}[{text_of(field.type)}]"
            )
            report.error(
                f"{cls.name}.{field.name}: {said} contradicts the annotation {annotation}{problem}",
                field.statement,
                fix=f"{field.name}: {annotation if field.specifier else text_of(field.type)} = dx.{right}(...)",
            )


def _contradiction(field: DeclaredField) -> tuple[str, str, str] | None:
    """The contradicting specifier or mark, the reason, and the right specifier."""
    said, mark = field.specifier, field.mark
    if said == "static" and (mark == "data" or (mark is None and status_of(field.type) == "data")):
        return "static(...)", "" if mark else f": {_DATA}", "data"
    if said == "data" and (mark == "static" or (mark is None and holds_no_leaf(field.type))):
        return "data(...)", "" if mark else f": {_NO_DATA}", "static"
    if said in (None, "field") and mark == "static" and status_of(field.type) == "data":
        return "its type", f": {_DATA}", "data"
    return None


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
