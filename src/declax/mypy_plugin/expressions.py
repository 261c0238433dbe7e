"""Reading mypy's syntax trees: literals, arguments, and traversal.

mypy's own visitors are compiled and cannot have interpreted subclasses.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from mypy.nodes import (
    ArgKind,
    AssignmentStmt,
    Block,
    CallExpr,
    ClassDef,
    ComparisonExpr,
    Context,
    DictExpr,
    Expression,
    FloatExpr,
    IfStmt,
    IndexExpr,
    IntExpr,
    ListExpr,
    MemberExpr,
    NameExpr,
    Node,
    OpExpr,
    RefExpr,
    Statement,
    StrExpr,
    TupleExpr,
    TypeAlias,
    TypeInfo,
    UnaryExpr,
)
from mypy.types import AnyType, Instance, LiteralType, TupleType, Type, TypeOfAny, get_proper_type

N = TypeVar("N", bound=Node)


class Unknown(enum.Enum):
    """The value of an expression that is not a literal."""

    UNKNOWN = "UNKNOWN"


UNKNOWN: Final = Unknown.UNKNOWN

ANY: Final = AnyType(TypeOfAny.special_form)
"""The type of what is not known."""

_CONSTANTS: Final = {"builtins.None": None, "builtins.True": True, "builtins.False": False}


def literal(expr: Expression | None) -> Any:
    """The value of a literal: None, bool, int, float or str; else `UNKNOWN`."""
    if isinstance(expr, (StrExpr, IntExpr, FloatExpr)):
        return expr.value
    if isinstance(expr, RefExpr):
        return _CONSTANTS.get(expr.fullname, UNKNOWN)
    if isinstance(expr, UnaryExpr) and expr.op == "-":
        value = literal(expr.expr)
        return -value if isinstance(value, (int, float)) else UNKNOWN
    return UNKNOWN


def value_of(expr: Expression | None, api: Any) -> Any:
    """The value of a literal, or of a Final name; else `UNKNOWN`."""
    found = literal(expr)
    typ = None if expr is None or found is not UNKNOWN else get_proper_type(api.lookup_type_or_none(expr))
    if isinstance(typ, Instance):
        typ = typ.last_known_value
    return typ.value if isinstance(typ, LiteralType) and not typ.is_enum_literal() else found


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


def source_of(expr: Expression) -> str:
    """The source of an expression, with dots for its longer parts."""
    if isinstance(expr, NameExpr):
        return expr.name
    if isinstance(expr, MemberExpr):
        return f"{source_of(expr.expr)}.{expr.name}"
    if isinstance(expr, (IntExpr, StrExpr)):
        return repr(expr.value)
    if isinstance(expr, CallExpr):
        return f"{source_of(expr.callee)}(...)"
    if isinstance(expr, IndexExpr):
        return f"{source_of(expr.base)}[{source_of(expr.index)}]"
    if isinstance(expr, OpExpr):
        return f"{_operand_of(expr.left)} {expr.op} {_operand_of(expr.right)}"
    if isinstance(expr, ComparisonExpr):
        return f"{_operand_of(expr.operands[0])} {expr.operators[0]} {_operand_of(expr.operands[1])}"
    return "..."


def _operand_of(expr: Expression) -> str:
    return f"({source_of(expr)})" if isinstance(expr, (OpExpr, ComparisonExpr)) else source_of(expr)


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


def assignments(statements: Sequence[Statement]) -> Iterator[AssignmentStmt]:
    """The assignments and annotations in a class body, also inside an ``if``, in order."""
    for statement in statements:
        if isinstance(statement, AssignmentStmt):
            yield statement
        elif isinstance(statement, IfStmt):
            for block in [*statement.body, *([statement.else_body] if statement.else_body else [])]:
                if not block.is_unreachable:
                    yield from assignments(block.body)


def assigned_names(statements: Sequence[Statement]) -> Iterator[tuple[str, AssignmentStmt]]:
    """The names that a class body assigns or annotates, also inside an ``if``, in order."""
    for statement in assignments(statements):
        if isinstance(statement.lvalues[0], NameExpr):
            yield statement.lvalues[0].name, statement


def bindings(statement: AssignmentStmt) -> Iterator[tuple[str, Expression]]:
    """The names that an assignment binds, each with its value; also ``a, b = c, d``."""
    for target in statement.lvalues:
        targets, values = items_of(target), items_of(statement.rvalue)
        pairs = zip(targets, values, strict=False) if targets and values else [(target, statement.rvalue)]
        yield from ((one.name, value) for one, value in pairs if isinstance(one, NameExpr))


def class_called(call: CallExpr) -> TypeInfo | None:
    """The class that a call names."""
    node = call.callee.node if isinstance(call.callee, RefExpr) else None
    if isinstance(node, TypeAlias):
        target = get_proper_type(node.target)
        return target.type if isinstance(target, Instance) else None
    return node if isinstance(node, TypeInfo) else None


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
        WithStmt expr target body; MatchStmt subject patterns guards bodies
        AsPattern pattern; OrPattern patterns; ValuePattern expr; SequencePattern patterns; MappingPattern keys values
        ClassPattern class_ref positionals keyword_values; IfStmt expr body else_body
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


class Children(dict[type, "tuple[str, ...] | None"]):
    """The attributes with the children of a node, in reverse order, by its class; None for other values."""

    def __init__(self, by_name: Mapping[str, tuple[str, ...]]) -> None:
        self._by_name = by_name

    def __missing__(self, kind: type) -> tuple[str, ...] | None:
        names = [name for name in self._by_name.get(kind.__name__, ()) if hasattr(kind, name)]
        self[kind] = tuple(reversed(names)) if issubclass(kind, Node) else None
        return self[kind]


ALL: Final = Children(_CHILDREN)
RUN_NOW: Final = Children({**_CHILDREN, "FuncDef": ("arguments",), "LambdaExpr": (), "ClassDef": ()})
"""The children that run with a node: not the bodies of functions and nested classes, and no unreachable blocks."""

_WITH_STATEMENTS: Final = frozenset("defs body else_body handlers finally_body bodies func items".split())
STATEMENTS: Final = Children({k: tuple(n for n in names if n in _WITH_STATEMENTS) for k, names in _CHILDREN.items()})
"""The children that are statements, or have some."""


def walk(node: Node | None, children: Children = ALL) -> Iterator[Node]:
    """A node and all nodes below it, parents first, in source order."""
    stack: list[Any] = [node]
    while stack:
        found = stack.pop()
        kind: type = type(found)
        if kind is list or kind is tuple:
            stack.extend(reversed(found))
            continue
        below = children[kind]
        if below is None or (children is RUN_NOW and isinstance(found, Block) and found.is_unreachable):
            continue
        yield found
        for name in below:
            child = getattr(found, name)
            if child is not None:
                stack.append(child)


_tree: Node | None = None
_nodes: dict[bool, dict[type, list[Any]]] = {}


def nodes_in_module(api: Any, kind: type[N]) -> list[N]:
    """All nodes of one class in the checked module; not cached in the daemon, which replaces nodes."""
    global _tree
    if _tree is not api.tree or api.options.fine_grained_incremental:
        _tree = api.tree
        _nodes.clear()
    is_statement = issubclass(kind, Statement)
    if is_statement not in _nodes:
        found = _nodes[is_statement] = defaultdict(list)
        for node in walk(_tree, STATEMENTS if is_statement else ALL):
            found[type(node)].append(node)
    return _nodes[is_statement].get(kind, [])


def info_named(fullname: str, api: Any) -> TypeInfo | None:
    """A class by its full name; mypy's own lookup fails in packages that the program does not import."""
    module, _, name = fullname.rpartition(".")
    tree = api.modules.get(module)
    found = None if tree is None else tree.names.get(name)
    return found.node if found is not None and isinstance(found.node, TypeInfo) else None


def tuple_of(items: list[Type], api: Any) -> TupleType:
    """The type of a tuple with items of these types."""
    return TupleType(items, api.named_generic_type("builtins.tuple", [ANY]))
