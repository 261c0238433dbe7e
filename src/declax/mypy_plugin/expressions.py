"""Reading mypy's syntax trees: literals, arguments, and all nodes below one.

mypy's own visitors are compiled and take no subclass that is interpreted, so the tree is walked by hand.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from mypy import traverser
from mypy.nodes import (
    ArgKind,
    AssignmentStmt,
    Block,
    CallExpr,
    ClassDef,
    Context,
    DictExpr,
    Expression,
    IfStmt,
    IntExpr,
    LambdaExpr,
    ListExpr,
    MemberExpr,
    NameExpr,
    Node,
    RefExpr,
    ReturnStmt,
    Statement,
    StrExpr,
    TupleExpr,
    UnaryExpr,
)


class Unknown(enum.Enum):
    """What an expression gives that is no literal."""

    UNKNOWN = "UNKNOWN"


UNKNOWN: Final = Unknown.UNKNOWN

_CONSTANTS: Final = {"builtins.None": None, "builtins.True": True, "builtins.False": False}


def literal(expr: Expression | None) -> Any:
    """The value of a literal: None, bool, int, str, or a tuple, list or dict of those; else `UNKNOWN`.

    An entry that is no literal is `UNKNOWN` in its place; a ``**`` makes the whole dict `UNKNOWN`.
    """
    if isinstance(expr, (StrExpr, IntExpr)):
        return expr.value
    if isinstance(expr, RefExpr):
        return _CONSTANTS.get(expr.fullname, UNKNOWN)
    if isinstance(expr, UnaryExpr) and expr.op == "-":
        value = literal(expr.expr)
        return -value if isinstance(value, int) else UNKNOWN
    if isinstance(expr, TupleExpr):
        return tuple(map(literal, expr.items))
    if isinstance(expr, ListExpr):
        return list(map(literal, expr.items))
    if isinstance(expr, DictExpr):
        keys = [literal(key) for key, _ in expr.items]
        if any(key is UNKNOWN or isinstance(key, (list, dict)) for key in keys):
            return UNKNOWN
        return dict(zip(keys, (literal(value) for _, value in expr.items), strict=True))
    return UNKNOWN


def items_of(expr: Expression | None) -> Sequence[Expression] | None:
    """The expressions in a tuple or list display, or None for anything else."""
    return expr.items if isinstance(expr, (TupleExpr, ListExpr)) else None


def arguments_of(call: CallExpr, positional: Sequence[str] = ()) -> dict[str, Expression]:
    """The arguments of a call by name; the first ones have the given names. Those behind ``*`` are left out."""
    found: dict[str, Expression] = {}
    names = iter(positional)
    for arg, kind, name in zip(call.args, call.arg_kinds, call.arg_names, strict=True):
        if kind is ArgKind.ARG_STAR:
            names = iter(())
        elif kind is ArgKind.ARG_POS:
            found[next(names, f"*{len(found)}")] = arg
        elif name is not None:
            found[name] = arg
    return found


def lambda_result(expr: LambdaExpr) -> Expression | None:
    """The expression that a lambda returns."""
    last = expr.body.body[-1] if expr.body.body else None
    return last.expr if isinstance(last, ReturnStmt) else None


def own_fields(defn: ClassDef) -> Iterator[tuple[str, AssignmentStmt]]:
    """The annotated names in the body of a class, also under an ``if``, in order."""
    yield from _annotated(defn.defs.body)


_values: dict[int, tuple[Expression, ClassDef]] = {}
"""The values of the annotated names of the class that was asked for last: each of its specifiers asks."""


def is_own_value(expr: Context, defn: ClassDef) -> bool:
    """Whether an expression is what stands behind an annotated name in the body of a class."""
    value, owner = _values.get(id(expr), (None, None))
    if value is not expr or owner is not defn:
        _values.clear()
        _values.update((id(statement.rvalue), (statement.rvalue, defn)) for _, statement in own_fields(defn))
    return id(expr) in _values


def _annotated(statements: Sequence[Statement]) -> Iterator[tuple[str, AssignmentStmt]]:
    for statement in statements:
        if isinstance(statement, AssignmentStmt):
            target = statement.lvalues[0]
            if statement.new_syntax and isinstance(target, NameExpr):
                yield target.name, statement
        elif isinstance(statement, IfStmt):
            blocks = [*statement.body, *([statement.else_body] if statement.else_body else [])]
            for block in blocks:
                if not block.is_unreachable:
                    yield from _annotated(block.body)


_COLLECT: Final = getattr(traverser, "all_name_and_member_expressions", None)
"""mypy's own search for attributes; mypy 1 has none."""


def members_in(node: Expression | Block) -> list[MemberExpr]:
    """All attributes in a tree, parents first; much quicker than `walk` where mypy has a search of its own."""
    if _COLLECT is None:
        return [found for found in walk(node) if isinstance(found, MemberExpr)]
    tree = LambdaExpr([], node) if isinstance(node, Block) else node  # it takes expressions only
    found: list[MemberExpr] = _COLLECT(tree)[1]
    return found


_CHILDREN: Final[Mapping[str, tuple[str, ...]]] = {
    # statements
    "MypyFile": ("defs",),
    "Block": ("body",),
    "ExpressionStmt": ("expr",),
    "AssignmentStmt": ("lvalues", "rvalue"),
    "OperatorAssignmentStmt": ("lvalue", "rvalue"),
    "WhileStmt": ("expr", "body", "else_body"),
    "ForStmt": ("index", "expr", "body", "else_body"),
    "ReturnStmt": ("expr",),
    "AssertStmt": ("expr", "msg"),
    "DelStmt": ("expr",),
    "RaiseStmt": ("expr", "from_expr"),
    "TryStmt": ("body", "types", "handlers", "else_body", "finally_body"),
    "WithStmt": ("expr", "target", "body"),
    "MatchStmt": ("subject", "guards", "bodies"),
    "IfStmt": ("expr", "body", "else_body"),
    "Decorator": ("decorators", "func"),
    "OverloadedFuncDef": ("items",),
    "FuncDef": ("body",),
    "ClassDef": ("defs",),
    # expressions
    "MemberExpr": ("expr",),
    "CallExpr": ("callee", "args"),
    "OpExpr": ("left", "right"),
    "ComparisonExpr": ("operands",),
    "UnaryExpr": ("expr",),
    "IndexExpr": ("base", "index"),
    "SliceExpr": ("begin_index", "end_index", "stride"),
    "TupleExpr": ("items",),
    "ListExpr": ("items",),
    "SetExpr": ("items",),
    "DictExpr": ("items",),
    "LambdaExpr": ("body",),
    "ConditionalExpr": ("cond", "if_expr", "else_expr"),
    "GeneratorExpr": ("left_expr", "indices", "sequences", "condlists"),
    "ListComprehension": ("generator",),
    "SetComprehension": ("generator",),
    "DictionaryComprehension": ("key", "value", "indices", "sequences", "condlists"),
    "StarExpr": ("expr",),
    "AwaitExpr": ("expr",),
    "YieldExpr": ("expr",),
    "YieldFromExpr": ("expr",),
    "AssignmentExpr": ("target", "value"),
    "CastExpr": ("expr",),
    "AssertTypeExpr": ("expr",),
    "RevealExpr": ("expr",),
    "TypeApplication": ("expr",),
    "SuperExpr": ("call",),
}
"""Where the children of a node are. By name, since not every version of mypy has every class."""


_BODIES: Final[Mapping[str, tuple[str, ...]]] = {
    "MypyFile": ("defs",),
    "Block": ("body",),
    "WhileStmt": ("body", "else_body"),
    "ForStmt": ("body", "else_body"),
    "TryStmt": ("body", "handlers", "else_body", "finally_body"),
    "WithStmt": ("body",),
    "MatchStmt": ("bodies",),
    "IfStmt": ("body", "else_body"),
    "Decorator": ("func",),
    "OverloadedFuncDef": ("items",),
    "FuncDef": ("body",),
    "ClassDef": ("defs",),
}
"""Where statements have statements."""


class _Children(dict[type, "tuple[str, ...] | None"]):
    """Where the children of a node are, by class and last first; None for what is no node. Filled as classes come."""

    def __init__(self, table: Mapping[str, tuple[str, ...]]) -> None:
        super().__init__()
        self._table = table

    def __missing__(self, kind: type) -> tuple[str, ...] | None:
        names = [name for name in self._table.get(kind.__name__, ()) if hasattr(kind, name)]
        self[kind] = tuple(reversed(names)) if issubclass(kind, Node) else None
        return self[kind]


_ALL: Final = _Children(_CHILDREN)
_STATEMENTS: Final = _Children(_BODIES)
_DEFINITIONS: Final = _Children({**_BODIES, "FuncDef": ()})


def walk(node: Node | None) -> Iterator[Node]:
    """A node and all nodes below it, parents first, in the order of the source."""
    return _walk(node, _ALL)


def statements(node: Node | None) -> Iterator[Node]:
    """All statements and definitions in a node, parents first; much quicker than `walk`."""
    return _walk(node, _STATEMENTS)


def definitions(node: Node | None) -> Iterator[Node]:
    """As `statements`, less what is in functions."""
    return _walk(node, _DEFINITIONS)


def _walk(node: Node | None, children_of: _Children) -> Iterator[Node]:
    stack: list[Any] = [node]
    while stack:
        found = stack.pop()
        kind = type(found)
        if kind is list or kind is tuple:
            stack.extend(reversed(found))
            continue
        children = children_of[kind]
        if children is None:
            continue
        yield found
        for name in children:
            child = getattr(found, name)
            if child is not None:
                stack.append(child)
