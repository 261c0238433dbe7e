"""Reading mypy's syntax trees: literals, arguments, and traversal.

mypy's own visitors are compiled and cannot have interpreted subclasses.
"""

from __future__ import annotations

import enum
import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

from mypy.nodes import (
    ArgKind,
    AssignmentStmt,
    CallExpr,
    ClassDef,
    Context,
    DictExpr,
    Expression,
    IfStmt,
    IntExpr,
    ListExpr,
    NameExpr,
    Node,
    RefExpr,
    Statement,
    StrExpr,
    TupleExpr,
    TypeInfo,
    UnaryExpr,
)

N = TypeVar("N", bound=Node)


class Unknown(enum.Enum):
    """The value of an expression that is not a literal."""

    UNKNOWN = "UNKNOWN"


UNKNOWN: Final = Unknown.UNKNOWN

_CONSTANTS: Final = {"builtins.None": None, "builtins.True": True, "builtins.False": False}


def literal(expr: Expression | None) -> Any:
    """The value of a literal: None, bool, int, str, or a tuple or list of those; else `UNKNOWN`."""
    if isinstance(expr, (StrExpr, IntExpr)):
        return expr.value
    if isinstance(expr, RefExpr):
        return _CONSTANTS.get(expr.fullname, UNKNOWN)
    if isinstance(expr, UnaryExpr) and expr.op == "-":
        value = literal(expr.expr)
        return -value if isinstance(value, int) else UNKNOWN
    return UNKNOWN


def items_of(expr: Expression | None) -> Sequence[Expression] | None:
    """The expressions in a tuple or list display, or None for anything else."""
    return expr.items if isinstance(expr, (TupleExpr, ListExpr)) else None


def leaves_of(expr: Expression) -> Iterator[Expression]:
    """The expressions inside tuple, list and dict displays at any depth; other expressions give themselves."""
    items = [value for _, value in expr.items] if isinstance(expr, DictExpr) else items_of(expr)
    if items is None:
        yield expr
    for item in items or ():
        yield from leaves_of(item)


def fullname_of(expr: Node | None) -> str | None:
    """The full name of the object that an expression names."""
    return expr.fullname if isinstance(expr, RefExpr) else None


def arguments_of(call: Context, positional: Sequence[str] = ()) -> dict[str, Expression]:
    """The arguments of a call by name. The first positional ones get the given names; those after ``*`` are omitted."""
    found: dict[str, Expression] = {}
    if not isinstance(call, CallExpr):
        return found
    names = iter(positional)
    for arg, kind, name in zip(call.args, call.arg_kinds, call.arg_names, strict=True):
        if kind is ArgKind.ARG_STAR:
            names = iter(())
        elif kind is ArgKind.ARG_POS:
            found[next(names, f"*{len(found)}")] = arg
        elif name is not None:
            found[name] = arg
    return found


def assigned_names(statements: Sequence[Statement]) -> Iterator[tuple[str, AssignmentStmt]]:
    """The names that a class body assigns or annotates, also inside an ``if``, in order."""
    for statement in statements:
        if isinstance(statement, AssignmentStmt):
            if isinstance(statement.lvalues[0], NameExpr):
                yield statement.lvalues[0].name, statement
        elif isinstance(statement, IfStmt):
            for block in [*statement.body, *([statement.else_body] if statement.else_body else [])]:
                if not block.is_unreachable:
                    yield from assigned_names(block.body)


def own_fields(defn: ClassDef) -> Iterator[tuple[str, AssignmentStmt]]:
    """The annotated names in the body of a class."""
    return ((name, found) for name, found in assigned_names(defn.defs.body) if found.new_syntax)


_CHILDREN: Final = {
    kind: tuple(names)
    for kind, *names in (
        line.split()
        for line in """
        MypyFile defs; Block body; ExpressionStmt expr; AssignmentStmt lvalues rvalue; ReturnStmt expr
        OperatorAssignmentStmt lvalue rvalue; WhileStmt expr body else_body; ForStmt index expr body else_body
        AssertStmt expr msg; DelStmt expr; RaiseStmt expr from_expr; TryStmt body types handlers else_body finally_body
        WithStmt expr target body; MatchStmt subject guards bodies; IfStmt expr body else_body
        Decorator decorators func; OverloadedFuncDef items; FuncDef arguments body; Argument initializer; ClassDef defs
        MemberExpr expr; CallExpr callee args; OpExpr left right; ComparisonExpr operands; UnaryExpr expr
        IndexExpr base index; SliceExpr begin_index end_index stride; TupleExpr items; ListExpr items; SetExpr items
        DictExpr items; LambdaExpr body; ConditionalExpr cond if_expr else_expr; ListComprehension generator
        GeneratorExpr left_expr indices sequences condlists; SetComprehension generator
        DictionaryComprehension key value indices sequences condlists; StarExpr expr; AwaitExpr expr; YieldExpr expr
        YieldFromExpr expr; AssignmentExpr target value; CastExpr expr; AssertTypeExpr expr; RevealExpr expr
        TypeApplication expr; SuperExpr call
        """.replace(";", "\n").split("\n")
        if line.strip()
    )
}
"""The attributes with the children of a node. By class name, since versions of mypy have different classes."""


@functools.cache
def _children_of(kind: type) -> tuple[str, ...] | None:
    """The attributes with the children of a node, in reverse order, by its class; None for other values."""
    names = [name for name in _CHILDREN.get(kind.__name__, ()) if hasattr(kind, name)]
    return tuple(reversed(names)) if issubclass(kind, Node) else None


def walk(node: Node | None) -> Iterator[Node]:
    """A node and all nodes below it, parents first, in source order."""
    stack: list[Any] = [node]
    while stack:
        found = stack.pop()
        kind: type = type(found)
        if kind is list or kind is tuple:
            stack.extend(reversed(found))
            continue
        children = _children_of(kind)
        if children is None:
            continue
        yield found
        for name in children:
            child = getattr(found, name)
            if child is not None:
                stack.append(child)


_tree: Node | None = None
_nodes: dict[type, list[Any]] = {}


def nodes_in_module(api: Any, kind: type[N]) -> list[N]:
    """All nodes of one class in the checked module; not cached in the daemon, which replaces nodes."""
    global _tree
    if _tree is not api.tree or api.options.fine_grained_incremental:
        _tree = api.tree
        _nodes.clear()
        found = defaultdict(list)
        for node in walk(_tree):
            found[type(node)].append(node)
        _nodes.update(found)
    return _nodes.get(kind, [])


def info_named(fullname: str, api: Any) -> TypeInfo | None:
    """A class by its full name; mypy's own lookup fails in packages that the program does not import."""
    module, _, name = fullname.rpartition(".")
    tree = api.modules.get(module)
    found = None if tree is None else tree.names.get(name)
    return found.node if found is not None and isinstance(found.node, TypeInfo) else None
