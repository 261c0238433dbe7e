"""declax-field: arrays and models that a call gives for static fields, whose annotations admit them."""

from __future__ import annotations

from mypy.nodes import Expression, TypeInfo
from mypy.plugin import FunctionContext
from mypy.subtypes import is_subtype
from mypy.types import Instance, Type, get_proper_type

from declax.mypy_plugin import names
from declax.mypy_plugin.checks.field import FIELD
from declax.mypy_plugin.checks.path import is_static
from declax.mypy_plugin.declared import declared_fields
from declax.mypy_plugin.recipes import RNGS
from declax.mypy_plugin.registry import Registry
from declax.mypy_plugin.reporting import Report
from declax.mypy_plugin.statuses import status_of
from declax.mypy_plugin.wording import text_of


def register(hooks: Registry) -> None:
    """Puts the check at its hook."""
    hooks.pytree_call(FIELD, check, suits=_has_made_constructor)


def _has_made_constructor(info: TypeInfo) -> bool:
    """Whether the constructor is made from the fields."""
    made = info.get("__init__")
    return made is not None and made.plugin_generated


def check(info: TypeInfo, ctx: FunctionContext, report: Report) -> Type | None:
    """Checks the arguments of one call."""
    # nearly all parameters get nothing, and nearly all arguments are plain: most calls end here
    if not any(_may_be_data(typ) for types in filter(None, ctx.arg_types) for typ in types):
        return None
    for name, given, types in zip(ctx.callee_arg_names, ctx.args, ctx.arg_types, strict=True):
        for arg, typ in zip(given, types, strict=True):
            if name is None or name == RNGS or not isinstance(typ, Instance) or not _may_be_data(typ):
                continue
            if any(base.fullname in names.DATA_BASES for base in typ.type.mro):
                _check_given(info, name, arg, typ, ctx, report)
    return None


def _may_be_data(typ: Type) -> bool:
    if not isinstance(typ, Instance):
        return False
    return typ.type.module_name != "builtins" and typ.type.fullname != names.RNGS


def _check_given(
    info: TypeInfo, name: str, arg: Expression, found: Instance, ctx: FunctionContext, report: Report
) -> None:
    field = declared_fields(info, ctx.api).get(name)
    if field is None or field.is_init_var or not is_static(field) or not is_subtype(found, get_proper_type(field.type)):
        return
    if status_of(field.type) == "data":
        return  # the declaration contradicts itself, which is told there
    report.error(
        f"{info.name}(...): {name} is static, and {text_of(found)} is data",
        arg,
        notes=["arrays, Variables and Pytrees are parts of the tree; jit would bake static ones into the program"],
        fix=None if info.module_name.startswith("declax.") else f"{name}: dx.Data[...]        # where it is declared",
    )
