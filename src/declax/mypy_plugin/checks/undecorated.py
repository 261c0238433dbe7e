"""declax-undecorated: fields that are declared in a Pytree which is no dataclass."""

from __future__ import annotations

from mypy.nodes import CallExpr, Expression, NameExpr, RefExpr, SymbolTableNode, TypeInfo, Var
from mypy.plugin import FunctionContext
from mypy.types import Type

from declax.mypy_plugin import names
from declax.mypy_plugin.declared import DeclaredClass, specifier_call
from declax.mypy_plugin.expressions import arguments_of, is_own_value, literal, own_fields, walk
from declax.mypy_plugin.instances import class_in_scope
from declax.mypy_plugin.registry import Registry
from declax.mypy_plugin.reporting import Report, error_code

UNDECORATED = error_code("declax-undecorated", "A Pytree declares fields without @dx.dataclass")


def register(hooks: Registry) -> None:
    """Puts the check at its hooks."""
    for specifier in names.SPECIFIERS:
        hooks.function(specifier, UNDECORATED, check_specifier)
    hooks.pytree_call(UNDECORATED, check_call, suits=_may_be_undecorated)
    hooks.declared_class(UNDECORATED, check_decorated)


def check_specifier(ctx: FunctionContext, report: Report) -> Type | None:
    """Checks the class in whose body a specifier is called."""
    info = class_in_scope(ctx.api)
    if info is None or _is_dataclass(info) or info.defn.decorators or _is_made_otherwise(info, ctx):
        return None
    if is_own_value(ctx.context, info.defn):
        declared = [name for name, statement in own_fields(info.defn) if specifier_call(statement) is not None]
        _tell(info, declared, ctx, report)
    return None


def _tell(info: TypeInfo, declared: list[str], ctx: FunctionContext, report: Report) -> None:
    report.error(
        f"{info.name} declares {', '.join(declared)} and is not decorated, so they are no fields",
        info.defn,
        fix=f"@dx.dataclass above class {info.name}",
    )


def check_decorated(cls: DeclaredClass, report: Report) -> None:
    """Checks a class under the standard's decorator."""
    decorator = _standard_decorator(cls.info)
    if decorator is None:
        return
    made = [field.name for field in cls.own if field.is_made]
    specified = [field.name for field in cls.own if field.specifier in ("data", "static")]
    if made:
        problem = f"{', '.join(made)}: the standard decorator makes no declared Variables and submodules"
    elif specified:
        problem = f"{', '.join(specified)}: below the standard decorator, checkers take a specifier for a default"
    elif cls.own and cls.info.has_base(names.MODULE) and not _keeps_identity(decorator):
        problem = "the standard decorator compares models by value, array by array, and takes their hash"
    else:
        return
    report.error(f"{cls.name}: {problem}", cls.info.defn, fix=f"@dx.dataclass above class {cls.name}")


def _standard_decorator(info: TypeInfo) -> Expression | None:
    for decorator in info.defn.decorators:
        called = decorator.callee if isinstance(decorator, CallExpr) else decorator
        if isinstance(called, RefExpr) and called.fullname == names.STANDARD_DATACLASS:
            return decorator
    return None


def _keeps_identity(decorator: Expression) -> bool:
    """Whether ``eq`` is given, and may be False."""
    equal = arguments_of(decorator).get("eq") if isinstance(decorator, CallExpr) else None
    return equal is not None and literal(equal) is not True


def _may_be_undecorated(info: TypeInfo) -> bool:
    return not _is_dataclass(info) and not info.module_name.startswith("declax.")


def _is_dataclass(info: TypeInfo) -> bool:
    return "dataclass" in info.metadata or info.dataclass_transform_spec is not None


def _is_made_otherwise(info: TypeInfo, ctx: FunctionContext) -> bool:
    """Whether a base, a metaclass or a later call makes the class a dataclass."""
    if info.declared_metaclass is not None or info.defn.keywords:
        return True
    for base in info.mro[1:]:
        is_own = not base.module_name.startswith(("declax.", "builtins", "typing", "abc"))
        if base.dataclass_transform_spec is not None or (is_own and "__init_subclass__" in base.names):
            return True
    return any(_decorates(node, info) for node in walk(getattr(ctx.api, "tree", None)) if isinstance(node, CallExpr))


def _decorates(call: CallExpr, info: TypeInfo) -> bool:
    is_named = any(isinstance(arg, NameExpr) and arg.node is info for arg in call.args)
    return is_named and isinstance(call.callee, (RefExpr, CallExpr)) and not _is_plain(call)


def _is_plain(call: CallExpr) -> bool:
    callee = call.callee
    return isinstance(callee, RefExpr) and callee.fullname in ("builtins.isinstance", "builtins.issubclass")


def check_call(info: TypeInfo, ctx: FunctionContext, report: Report) -> Type | None:
    """Checks a call with arguments that only fields could take."""
    if not isinstance(ctx.context, CallExpr) or info.fallback_to_any:
        return None
    constructor = info.get("__init__")
    if constructor is None or info.defn.decorators or not _is_without_fields(constructor):
        return None
    declared = [name for name, symbol in info.names.items() if _is_annotated(symbol)]
    given = [name for name in ctx.context.arg_names if name is not None]
    taken = {name for formal in ctx.arg_names for name in formal}
    is_named = any(name in declared and name not in taken for name in given)
    is_more = len(ctx.context.args) > sum(map(len, ctx.args)) and None in ctx.context.arg_names
    if declared and (is_named or is_more):
        report.error(
            f"{info.name}(...): {info.name} declares {', '.join(declared)} and is not decorated, so they are no fields",
            ctx.context,
            fix=f"@dx.dataclass above class {info.name}",
        )
    return None


def _is_without_fields(constructor: SymbolTableNode) -> bool:
    """Whether a constructor is made from the fields of a base, or takes nothing."""
    owner = getattr(constructor.node, "info", None)
    is_of_declax = isinstance(owner, TypeInfo) and owner.fullname in (names.PYTREE, names.MODULE, "builtins.object")
    return constructor.plugin_generated or is_of_declax


def _is_annotated(symbol: SymbolTableNode) -> bool:
    node = symbol.node
    if not isinstance(node, Var) or symbol.plugin_generated or node.name.startswith("__"):
        return False
    return not node.is_classvar and not node.is_inferred and node.type is not None
