"""declax-kind: classes and functions that are registered for a base, and give no instance of it."""

from __future__ import annotations

from collections.abc import Iterator

from mypy.nodes import CallExpr, ClassDef, Context, Decorator, TypeInfo
from mypy.plugin import FunctionContext
from mypy.types import CallableType, Instance, Type, get_proper_type

from declax.mypy_plugin import names
from declax.mypy_plugin.checks.models import class_of
from declax.mypy_plugin.expressions import nodes_in_module
from declax.mypy_plugin.reporting import Reporter, error_code

KIND = error_code("declax-kind", "A class is registered for a base of which it is no kind")


def check(ctx: FunctionContext, report: Reporter) -> None:
    """Checks ``register_kind(base, kind)``, and the class or function under ``@register_kind(base)``."""
    base = class_of(get_proper_type(ctx.arg_types[0][0])) if ctx.arg_types[0] else None
    if base is None or base.fallback_to_any or not isinstance(ctx.context, CallExpr):
        return
    given = [(_made_by(typ), arg) for typ, arg in zip(ctx.arg_types[1], ctx.args[1], strict=True)]
    for info, place in given if len(ctx.args) == 3 else _decorated(ctx.context, report):
        problem = None if info is None or info.fallback_to_any else _problem(info, base)
        if info is not None and problem is not None:
            report.error(f"register_kind: {problem}", place, fix=f"class {info.name}({base.name}): ...")


def _decorated(call: CallExpr, report: Reporter) -> Iterator[tuple[TypeInfo | None, Context]]:
    """The class that a call decorates, or the class of what the decorated function returns."""
    for cls in nodes_in_module(report.api, ClassDef):
        if any(decorator is call for decorator in cls.decorators):
            yield cls.info, cls
    for found in nodes_in_module(report.api, Decorator):
        if any(decorator is call for decorator in found.original_decorators):
            yield _made_by(found.func.type), found


def _made_by(typ: Type | None) -> TypeInfo | None:
    """The class of what a class or function gives."""
    found = get_proper_type(typ)
    made = get_proper_type(found.ret_type) if isinstance(found, CallableType) else None
    return class_of(found) or (made.type if isinstance(made, Instance) else None)


def _problem(info: TypeInfo, base: TypeInfo) -> str | None:
    """Why instances of a class are none of a base: no inheritance, or no such members."""
    if info.has_base(base.fullname):
        return None
    if not base.is_protocol:
        return f"{info.name} is no subclass of {base.name}"
    lacking = [name for name in base.protocol_members if not _has(info, name)]
    return f"{info.name} does not implement {base.name}: it has no {', '.join(lacking)}" if lacking else None


def _has(info: TypeInfo, name: str) -> bool:
    return any(name in base.names for base in info.mro if (name, base.fullname) != ("__call__", names.MODULE))
