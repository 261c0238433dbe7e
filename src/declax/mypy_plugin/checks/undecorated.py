"""declax-undecorated: fields of a Pytree without `@dx.dataclass`, or with the standard decorator."""

from __future__ import annotations

from mypy.nodes import CallExpr, Expression, NameExpr, RefExpr, TypeInfo
from mypy.plugin import FunctionContext

from declax.mypy_plugin import names
from declax.mypy_plugin.declared import DeclaredClass, specifier_of
from declax.mypy_plugin.expressions import arguments_of, assigned_names, fullname_of, literal, nodes_in_module
from declax.mypy_plugin.reporting import Reporter, error_code

UNDECORATED = error_code("declax-undecorated", "A Pytree declares fields without @dx.dataclass")


def check_specifier(ctx: FunctionContext, report: Reporter) -> None:
    """Checks the class whose body calls a specifier."""
    info = report.api.scope.active_class()
    if not isinstance(info, TypeInfo) or not info.has_base(names.PYTREE) or info.defn.decorators:
        return
    if "dataclass" in info.metadata or _is_made_otherwise(info, report):
        return
    values = {name: found.rvalue for name, found in assigned_names(info.defn.defs.body)}
    declared = [name for name, value in values.items() if specifier_of(value) is not None]
    if any(value is ctx.context for value in values.values()):
        report.error(
            f"{info.name} declares {', '.join(declared)} but is not decorated, so these are not fields",
            info.defn,
            fix=f"@dx.dataclass above class {info.name}",
        )


def _is_made_otherwise(info: TypeInfo, report: Reporter) -> bool:
    """Whether a base, a metaclass or a later call makes the class a dataclass."""
    own = [base for base in info.mro[1:] if not base.module_name.startswith(("declax.", "builtins", "typing", "abc"))]
    if (
        info.declared_metaclass is not None
        or info.defn.keywords
        or any("__init_subclass__" in base.names for base in own)
    ):
        return True
    calls = [call for call in nodes_in_module(report.api, CallExpr) if isinstance(call.callee, (RefExpr, CallExpr))]
    called = [call for call in calls if fullname_of(call.callee) not in ("builtins.isinstance", "builtins.issubclass")]
    return any(isinstance(arg, NameExpr) and arg.node is info for call in called for arg in call.args)


def check_decorated(cls: DeclaredClass, report: Reporter) -> None:
    """Checks a class with the standard decorator."""
    decorator = _standard_decorator(cls.info)
    if decorator is None:
        return
    specified = [field.name for field in cls.own if field.specifier not in (None, "standard")]
    if specified:
        problem = f"{', '.join(specified)}: the standard decorator does not know the specifiers of declax"
    elif cls.own and cls.info.has_base(names.MODULE) and literal(arguments_of(decorator).get("eq")) is not False:
        problem = "the standard decorator compares models by value, and removes their hash"
    else:
        return
    report.error(f"{cls.name}: {problem}", cls.info.defn, fix=f"@dx.dataclass above class {cls.name}")


def _standard_decorator(info: TypeInfo) -> Expression | None:
    for decorator in info.defn.decorators:
        called = decorator.callee if isinstance(decorator, CallExpr) else decorator
        if fullname_of(called) == names.STANDARD_DATACLASS:
            return decorator
    return None
