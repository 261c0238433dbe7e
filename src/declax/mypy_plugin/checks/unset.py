"""declax-unset: fields that the constructor does not take, that have no default, and that nothing sets."""

from __future__ import annotations

from collections.abc import Iterator

from mypy.nodes import (
    AssignmentStmt,
    CallExpr,
    ForStmt,
    MemberExpr,
    Node,
    OperatorAssignmentStmt,
    RefExpr,
    StrExpr,
    TypeInfo,
    WithStmt,
)

from declax.mypy_plugin.declared import DeclaredClass, DeclaredField
from declax.mypy_plugin.expressions import walk
from declax.mypy_plugin.registry import Registry
from declax.mypy_plugin.reporting import Report, error_code

UNSET = error_code("declax-unset", "A field with init=False gets no value")

_ANYTHING = "*"
"""Stands for a name that is not known before the program runs."""


def register(hooks: Registry) -> None:
    """Puts the check at its hook."""
    hooks.declared_class(UNSET, check)


def check(cls: DeclaredClass, report: Report) -> None:
    """Checks all fields that a class declares itself."""
    waiting = [field for field in cls.own if _is_waiting(field)]
    if not waiting or not cls.makes_constructor or cls.info.is_abstract or _has_unread_base(cls.info):
        return
    assigned = set(names_assigned(cls.api.tree))
    if _ANYTHING in assigned:
        return
    for field in waiting:
        if field.name not in assigned and field.statement is not None:
            report.error(
                f"{cls.name}.{field.name}: the constructor does not take it (init=False), and nothing sets it",
                field.statement,
                fix=f"self.{field.name} = ...    # in {cls.name}.__post_init__; or give the field a default",
            )


def _is_waiting(field: DeclaredField) -> bool:
    return field.specifier in ("data", "static", "field") and not field.in_init and not field.has_default


def _has_unread_base(info: TypeInfo) -> bool:
    """Whether a base of another module may set the field; its methods cannot be read here."""
    return info.fallback_to_any or any(
        base.module_name != info.module_name
        and not base.module_name.startswith(("declax.", "builtins", "typing", "abc"))
        for base in info.mro[1:]
    )


def names_assigned(tree: Node) -> Iterator[str]:
    """The names of all attributes that code sets, on any object; `_ANYTHING` where a name is computed."""
    yield from (node.name for node in members_assigned(tree))
    yield from names_set_by_calls(tree)


def members_assigned(tree: Node) -> Iterator[MemberExpr]:
    """The attributes in all that statements assign to."""
    for node in walk(tree):
        if isinstance(node, AssignmentStmt):
            yield from _members(*node.lvalues)
        elif isinstance(node, OperatorAssignmentStmt):
            yield from _members(node.lvalue)
        elif isinstance(node, ForStmt):
            yield from _members(node.index)
        elif isinstance(node, WithStmt):
            yield from _members(*(target for target in node.target if target is not None))


def names_set_by_calls(tree: Node) -> Iterator[str]:
    """The names of the attributes that code sets without an assignment."""
    for node in walk(tree):
        if isinstance(node, MemberExpr) and node.name == "__dict__":
            yield _ANYTHING
        elif isinstance(node, CallExpr):
            yield from _set_by_call(node)


def _members(*targets: Node) -> Iterator[MemberExpr]:
    for target in targets:
        yield from (node for node in walk(target) if isinstance(node, MemberExpr))


def _set_by_call(call: CallExpr) -> Iterator[str]:
    callee = call.callee
    name = callee.name if isinstance(callee, MemberExpr) else callee.fullname if isinstance(callee, RefExpr) else ""
    if name in ("builtins.setattr", "__setattr__", "builtins.vars"):
        given = next((arg.value for arg in call.args if isinstance(arg, StrExpr)), _ANYTHING)
        yield given
    elif name == "set_attributes":
        yield from (named or _ANYTHING for named in call.arg_names)
