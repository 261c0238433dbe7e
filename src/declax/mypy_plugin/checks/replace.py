"""declax-replace: `dx.replace` and `dataclasses.replace`, field by field."""

from __future__ import annotations

from typing import Any

from mypy.expandtype import expand_type_by_instance
from mypy.maptype import map_instance_to_supertype
from mypy.nodes import ArgKind, CallExpr, Expression
from mypy.plugin import CheckerPluginInterface, FunctionContext
from mypy.subtypes import is_subtype
from mypy.types import Instance, ProperType, Type, TypeVarType, UnionType, get_proper_type

from declax.mypy_plugin import names
from declax.mypy_plugin.declared import DeclaredField, declared_fields, is_declared
from declax.mypy_plugin.registry import Registry
from declax.mypy_plugin.reporting import Report, error_code, suggest
from declax.mypy_plugin.wording import text_of

REPLACE = error_code("declax-replace", "replace names what is no parameter of the constructor, or gives a wrong type")


def register(hooks: Registry) -> None:
    """Puts the check at its hooks."""
    hooks.function(names.REPLACE, REPLACE, check)
    hooks.function(names.STANDARD_REPLACE, REPLACE, check_standard)


def check(ctx: FunctionContext, report: Report) -> Type | None:
    """Checks a call of `dx.replace`."""
    for obj in _objects(ctx):
        if not _check_names(obj, ctx, report):
            _check_missing(obj, ctx, report)
    return None


def check_standard(ctx: FunctionContext, report: Report) -> Type | None:
    """Checks a call of `dataclasses.replace` for what mypy itself lets through."""
    for obj in _objects(ctx):
        fields = declared_fields(obj.type, ctx.api)
        for name, value in _changes(ctx.context):
            if name in fields and not fields[name].in_init:
                _tell_made(obj, fields[name], value, report)
    return None


def _objects(ctx: FunctionContext) -> list[Instance]:
    """The types that the object may have, as far as they are declared classes."""
    given = ctx.arg_types[0] if ctx.arg_types else []
    if not given or not isinstance(ctx.context, CallExpr):
        return []
    found = _parts(get_proper_type(given[0]))
    return [typ for typ in found if isinstance(typ, Instance) and _is_known(typ)]


def _parts(typ: ProperType) -> list[ProperType]:
    if isinstance(typ, TypeVarType):
        return _parts(get_proper_type(typ.upper_bound))
    if isinstance(typ, UnionType):
        return [part for item in typ.items for part in _parts(get_proper_type(item))]
    return [typ]


def _is_known(typ: Instance) -> bool:
    is_pytree = typ.type.has_base(names.PYTREE) and not typ.type.fallback_to_any
    return is_pytree and any(is_declared(base) for base in typ.type.mro)


def _changes(call: Any) -> list[tuple[str, Expression]]:
    named = zip(call.arg_names, call.args, strict=True)
    return [(name, value) for name, value in named if name is not None]


def _check_names(obj: Instance, ctx: FunctionContext, report: Report) -> bool:
    """Checks each name and value; whether a name is unknown, which is what has to be mended first."""
    fields = declared_fields(obj.type, ctx.api)
    missing = _missing(obj, ctx)
    has_unknown = False
    for name, value in _changes(ctx.context):
        field = fields.get(name)
        if field is None:
            known = [field.name for field in fields.values() if field.in_init]
            needed = [f"replace constructs anew, and the constructor needs {wanted!r}" for wanted in missing]
            report.error(
                f"replace({obj.type.name}, ...): {name!r} is no field of {obj.type.name}{suggest(name, known)}",
                value,
                notes=[f"its fields are {', '.join(known)}", *needed],
            )
            has_unknown = True
        elif not field.in_init:
            _tell_made(obj, field, value, report)
        else:
            _check_type(obj, field, value, ctx, report)
    return has_unknown


def _tell_made(obj: Instance, field: DeclaredField, value: Expression, report: Report) -> None:
    report.error(
        f"replace({obj.type.name}, ...): the object makes {field.name!r} itself; replace cannot set it",
        value,
        fix=f"new = dx.clone(obj); new.{field.name} = ...",
    )


def _check_type(obj: Instance, field: DeclaredField, value: Expression, ctx: FunctionContext, report: Report) -> None:
    wanted = expand_type_by_instance(field.type, map_instance_to_supertype(obj, field_class(obj)))
    # What the arguments were checked as says little: to mypy any of them is asked to be Any.
    _, is_right = _inferred(value, wanted, ctx.api)
    if not is_right:
        got = text_of(_inferred(value, None, ctx.api)[0])
        report.error(f"replace({obj.type.name}, {field.name}=...): expected {text_of(wanted)}, got {got}", value)


def _inferred(value: Expression, wanted: Type | None, api: CheckerPluginInterface) -> tuple[Type, bool]:
    """The type of an expression where a type is asked for (``[]`` may be a list of anything), and whether it fits."""
    with api.msg.filter_errors() as watcher:
        found = api.get_expression_type(value, wanted)
    return found, not watcher.has_new_errors() and (wanted is None or is_subtype(found, wanted))


def field_class(obj: Instance) -> Any:
    """The class in whose terms the fields of an object are typed: the nearest declared one."""
    return next(base for base in obj.type.mro if is_declared(base))


def _check_missing(obj: Instance, ctx: FunctionContext, report: Report) -> None:
    for name in _missing(obj, ctx):
        report.error(
            f"replace({obj.type.name}, ...) constructs anew, and the constructor needs {name!r}",
            ctx.context,
            fix=f"dx.replace(obj, {name}=...)",
        )


def _missing(obj: Instance, ctx: FunctionContext) -> list[str]:
    """The InitVars without a default that the call does not give."""
    call = ctx.context
    assert isinstance(call, CallExpr)
    if ArgKind.ARG_STAR2 in call.arg_kinds:
        return []
    given = {name for name, _ in _changes(call)}
    fields = declared_fields(obj.type, ctx.api).values()
    return [field.name for field in fields if field.is_init_var and not field.has_default and field.name not in given]
