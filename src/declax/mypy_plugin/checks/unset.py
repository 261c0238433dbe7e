"""declax-unset: fields with `init=False` and no default that nothing sets."""

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
    StrExpr,
    TypeInfo,
    WithStmt,
)

from declax.mypy_plugin.declared import ANY_NAME, DeclaredClass, has_made_constructor
from declax.mypy_plugin.expressions import nodes_in_module, walk
from declax.mypy_plugin.reporting import Reporter, error_code

UNSET = error_code("declax-unset", "A field with init=False gets no value")


def check(cls: DeclaredClass, report: Reporter) -> None:
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
