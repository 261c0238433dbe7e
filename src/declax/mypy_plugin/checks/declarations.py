"""Fields that get no value, and classes without the decorator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mypy.nodes import (
    AssignmentStmt,
    CallExpr,
    ForStmt,
    MemberExpr,
    NameExpr,
    Node,
    OperatorAssignmentStmt,
    RefExpr,
    StrExpr,
    TypeInfo,
    WithStmt,
)
from mypy.plugin import FunctionContext

from declax.mypy_plugin import names
from declax.mypy_plugin.declared import ANY_NAME, DeclaredClass, has_made_constructor
from declax.mypy_plugin.expressions import arguments_of, assigned_names, fullname_of, literal, nodes_in_module, walk
from declax.mypy_plugin.reporting import Reporter, error_code
from declax.mypy_plugin.terms import specifier_of

# --- declax-unset: fields with `init=False` and no default that nothing sets -----------------------------

UNSET = error_code("declax-unset", "A field with init=False gets no value")


def check_unset(cls: DeclaredClass, report: Reporter) -> None:
    """Checks the fields that the class itself declares."""
    waiting = [
        field
        for field in cls.own
        if field.specifier not in (None, "variable", "submodule") and not field.in_init and not field.has_default
    ]
    if not waiting or not has_made_constructor(cls.info) or cls.info.is_abstract or _has_unread_base(cls.info):
        return
    assigned = {*(node.name for node in members_assigned(cls.api)), *names_set_by_calls(cls.api)}
    for field in waiting:
        if not {field.name, ANY_NAME} & assigned and field.statement is not None:
            report.error(
                f"{cls.name}.{field.name}: the constructor does not take it (init=False), and nothing sets it",
                field.statement,
                fix=f"self.{field.name} = ...    # in {cls.name}.__post_init__; or give the field a default",
            )


def _has_unread_base(info: TypeInfo) -> bool:
    """Whether a base from another module may set the field; the plugin cannot read its methods."""
    known = (info.module_name, "declax.", "builtins", "typing", "abc")
    return info.fallback_to_any or not all(base.module_name.startswith(known) for base in info.mro[1:])


def members_assigned(api: Any) -> Iterator[MemberExpr]:
    """The attributes that the statements of the module assign."""
    targets: list[Node | None] = [
        *(target for found in nodes_in_module(api, AssignmentStmt) for target in found.lvalues),
        *(found.lvalue for found in nodes_in_module(api, OperatorAssignmentStmt)),
        *(found.index for found in nodes_in_module(api, ForStmt)),
        *(target for found in nodes_in_module(api, WithStmt) for target in found.target),
    ]
    return (node for target in targets for node in walk(target) if isinstance(node, MemberExpr))


def names_set_by_calls(api: Any) -> Iterator[str]:
    """The names of attributes that calls set, such as `setattr`; `ANY_NAME` for a computed name."""
    if any(node.name == "__dict__" for node in nodes_in_module(api, MemberExpr)):
        yield ANY_NAME
    for call in nodes_in_module(api, CallExpr):
        name = call.callee.name if isinstance(call.callee, (MemberExpr, NameExpr)) else ""
        if name in ("setattr", "__setattr__", "vars"):
            yield next((arg.value for arg in call.args if isinstance(arg, StrExpr)), ANY_NAME)
        elif name == "set_attributes":
            yield from (named or ANY_NAME for named in call.arg_names)


# --- declax-undecorated: fields of a Pytree without `@dx.dataclass`, or with the standard decorator ------

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
    is_hooked = any("__init_subclass__" in base.names for base in own)
    if info.declared_metaclass is not None or info.defn.keywords or is_hooked:
        return True
    calls = [call for call in nodes_in_module(report.api, CallExpr) if isinstance(call.callee, (RefExpr, CallExpr))]
    called = [call for call in calls if fullname_of(call.callee) not in ("builtins.isinstance", "builtins.issubclass")]
    return any(isinstance(arg, NameExpr) and arg.node is info for call in called for arg in call.args)


def check_decorated(cls: DeclaredClass, report: Reporter) -> None:
    """Checks a class with the standard decorator."""
    decorators = {fullname_of(d.callee if isinstance(d, CallExpr) else d): d for d in cls.info.defn.decorators}
    decorator = decorators.get(names.STANDARD_DATACLASS)
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
