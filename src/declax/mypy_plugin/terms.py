"""Terms: the expressions of a class body that have no value until an instance is created.

Fields with a specifier are terms, and so are operations on terms, and calls that a class body defers.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from mypy.nodes import (
    MDEF,
    CallExpr,
    ClassDef,
    ComparisonExpr,
    ConditionalExpr,
    Decorator,
    Expression,
    IndexExpr,
    MemberExpr,
    NameExpr,
    OpExpr,
    RefExpr,
    StrExpr,
    TypeInfo,
    UnaryExpr,
)

from declax.mypy_plugin import names
from declax.mypy_plugin.expressions import assignments, bindings, class_called, fullname_of, leaves_of

_APPLYING: Final = frozenset({"builtins.abs", "builtins.pow"})
"""The functions that apply an operator to a term."""
_COMPARISONS: Final = frozenset({"==", "!=", "<", "<=", ">", ">="})
"""The comparisons that give a term."""


def specifier_of(value: Expression) -> str | None:
    """The specifier that an expression calls; None for other expressions."""
    return names.SPECIFIERS.get(fullname_of(value.callee) or "") if isinstance(value, CallExpr) else None


def terms_in(defn: ClassDef) -> list[str]:
    """The names of a class body that it binds to terms, in order."""
    found: dict[str, None] = {}
    for statement in defn.defs.body:
        if isinstance(statement, Decorator) and names.SUBMODULE in map(fullname_of, statement.original_decorators):
            found[statement.name] = None
        for assignment in assignments([statement]):
            for name, value in bindings(assignment):
                parts = leaves_of(value) if assignment.new_syntax else (value,)  # a literal is a part if annotated
                if specifier_of(value) not in (None, "standard") or any(is_term(part, found) for part in parts):
                    found[name] = None
    return list(found)


def declares_term(info: TypeInfo, name: str) -> bool:
    """Whether ``Base.name`` is a term in the body of another class."""
    for base in info.mro:
        noted = base.metadata.get(names.METADATA, {"terms": [], "fields": []})
        if name in noted["terms"]:
            return True
        is_bare = any(entry["name"] == name and not entry["has_value"] for entry in noted["fields"])
        if name in base.names and not is_bare:
            return False
    return False


def is_term(expr: Expression, own: Container[str]) -> bool:
    """Whether an expression of a class body certainly is a term; `own` has the names of terms in the body."""
    if isinstance(expr, NameExpr):
        return expr.kind == MDEF and expr.name in own
    if isinstance(expr, MemberExpr):
        owner = expr.expr.node if isinstance(expr.expr, RefExpr) else None
        return declares_term(owner, expr.name) if isinstance(owner, TypeInfo) else is_term(expr.expr, own)
    if isinstance(expr, CallExpr):
        return _is_deferred(expr, own)
    if isinstance(expr, OpExpr):
        is_operation = expr.op not in ("and", "or") and not (expr.op == "%" and isinstance(expr.left, StrExpr))
        return is_operation and (is_term(expr.left, own) or is_term(expr.right, own))
    if isinstance(expr, ComparisonExpr):
        is_one = len(expr.operators) == 1 and expr.operators[0] in _COMPARISONS
        return is_one and any(is_term(operand, own) for operand in expr.operands)
    if isinstance(expr, ConditionalExpr):
        return is_term(expr.if_expr, own) and is_term(expr.else_expr, own)
    if isinstance(expr, UnaryExpr):
        return expr.op in ("-", "+") and is_term(expr.expr, own)
    return isinstance(expr, IndexExpr) and is_term(expr.base, own)


def _is_deferred(call: CallExpr, own: Container[str]) -> bool:
    """Whether a call gives a term; one of a Pytree class does, or all instances would share the object."""
    name = fullname_of(call.callee) or ""
    if name in names.DEFERRING or is_term(call.callee, own):
        return True
    info = class_called(call)
    is_made = info is not None and info.has_base(names.PYTREE)
    if info is not None and is_made and not info.metadata.get("dataclass", {}).get("frozen"):
        return True
    return (is_made or name in _APPLYING) and any(is_term(leaf, own) for arg in call.args for leaf in leaves_of(arg))
