"""declax-value: operations of a class body that need the value of a field, which only an instance has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from mypy.nodes import (
    ArgKind,
    AssertStmt,
    AssignmentStmt,
    CallExpr,
    ComparisonExpr,
    ConditionalExpr,
    DictExpr,
    DictionaryComprehension,
    Expression,
    ForStmt,
    FuncItem,
    GeneratorExpr,
    IfStmt,
    IndexExpr,
    LambdaExpr,
    MatchStmt,
    MemberExpr,
    NameExpr,
    Node,
    OperatorAssignmentStmt,
    OpExpr,
    RefExpr,
    SetExpr,
    SliceExpr,
    StarExpr,
    StrExpr,
    TypeInfo,
    UnaryExpr,
    WhileStmt,
)
from mypy.plugin import AttributeContext
from mypy.types import Instance, TupleType, get_proper_type

from declax.mypy_plugin import names
from declax.mypy_plugin.checks.keys import is_returned
from declax.mypy_plugin.declared import DeclaredClass, depend_on
from declax.mypy_plugin.expressions import (
    RUN_NOW,
    bindings,
    class_called,
    fullname_of,
    items_of,
    leaves_of,
    nodes_in_module,
    source_of,
    walk,
)
from declax.mypy_plugin.reporting import Reporter, error_code
from declax.mypy_plugin.statuses import describes_behaviour
from declax.mypy_plugin.terms import declares_term, is_term

VALUE = error_code("declax-value", "A class body needs the value of a field, which only an instance has")


class Fault(NamedTuple):
    """What a class body must not do with a term.

    Attributes:
      problem: follows the text of the term in the message.
      operand: the expression that must not be a term.
      fix: the line to write; ``TERM`` stands for the operand.
    """

    problem: str
    operand: Expression | None
    fix: str


def check(cls: DeclaredClass, report: Reporter) -> None:
    """Checks all that runs with the class body; reports one fault a line."""
    told: set[int] = set()
    for node in walk(cls.info.defn.defs, RUN_NOW):
        find = _FAULTS.get(type(node))
        for fault in find(node, cls) if find is not None else ():
            if fault.operand is not None and node.line not in told and is_term(fault.operand, cls.terms):
                told.add(node.line)
                text = source_of(fault.operand)
                where = f"{cls.name}{'.' if text.isidentifier() else ': '}{text}"
                report.error(f"{where}: {fault.problem}", node, fix=fault.fix.replace("TERM", text))
    _check_names(cls, report)


def _check_names(cls: DeclaredClass, report: Reporter) -> None:
    """Checks that no name of a term is bound twice, unless in two branches."""
    bound: set[str] = set()
    for statement in cls.info.defn.defs.body:
        for name in _names_bound(statement):
            if name in bound and name in cls.terms:
                problem = "the class body binds this name twice, and expressions refer to fields and parts by name"
                report.error(f"{cls.name}.{name}: {problem}", statement, fix=f"{name}_2 = ...")
            bound.add(name)


def _names_bound(statement: Node) -> Iterator[str]:
    if isinstance(statement, AssignmentStmt):
        yield from (name for name, _ in bindings(statement))
    elif isinstance(statement, OperatorAssignmentStmt) and isinstance(statement.lvalue, NameExpr):
        yield statement.lvalue.name


def check_outside(info: TypeInfo, ctx: AttributeContext, report: Reporter) -> None:
    """Checks what is done with a term ``Block.dim`` where no class body runs."""
    term, where = ctx.context, report.api.scope.stack[-1]
    depend_on(info, report.api)
    is_body = isinstance(where, LambdaExpr) or (isinstance(where, TypeInfo) and where.has_base(names.PYTREE))
    if not isinstance(term, MemberExpr) or ctx.is_lvalue or is_body or not declares_term(info, term.name):
        return
    for kind, operands_of in _OPERATIONS.items():
        for node in nodes_in_module(report.api, kind):
            if not any(operand is term for operand in operands_of(node)):
                continue
            # the body of a class may call a function that returns a term
            is_helper = isinstance(where, FuncItem) and is_returned(node, where, report.api)
            if not (is_helper and _gives_term(node, term)):
                problem = "a field has no value until an instance is created, and this is not in a class body"
                fix = f"{term.name} of an instance, in place of {source_of(term)}"
                report.error(f"{source_of(term)}: {problem}", node, fix=fix)
                return


def _gives_term(node: Node, term: Expression) -> bool:
    """Whether an operation on a term gives another term."""
    if isinstance(node, (OpExpr, UnaryExpr)):
        return node.op not in ("and", "or", "not")
    is_call = isinstance(node, CallExpr) and node.callee is term
    return is_call or isinstance(node, (ComparisonExpr, IndexExpr, MemberExpr))


# --- the faults of each kind of node ---------------------------------------------------------------------

_WHEN: Final = "dx.when(TERM, part, other)"
_REPEAT: Final = "dx.repeat(n, part); or a method under @dx.submodule"
_NOT: Final = "dx.defer(operator.not_)(TERM)"


def _needs(operation: str, operand: Expression | None, fix: str) -> Fault:
    return Fault(f"a field has no value until an instance is created, and {operation} needs one", operand, fix)


def _tests(test: str, operand: Expression, fix: str) -> Fault:
    return Fault(f"{test} looks at the expression itself, and gives a constant in the class body", operand, fix)


def _of_assignment(node: AssignmentStmt, cls: DeclaredClass) -> Iterator[Fault]:
    if any(items_of(target) for target in node.lvalues):
        yield _needs("unpacking", node.rvalue, "first, second = TERM[0], TERM[1]")


def _of_attribute(node: MemberExpr, cls: DeclaredClass) -> Iterator[Fault]:
    owner = node.expr.node if isinstance(node.expr, RefExpr) else None
    if isinstance(owner, TypeInfo) and owner not in cls.info.mro and not cls.info.fallback_to_any:
        depend_on(owner, cls.api)
        problem = f"{owner.name} is no base of {cls.name}, so nothing gives its field a value"
        yield Fault(problem, node, f"{node.name}: ... = dx.field()        # in {cls.name}")


def _of_comparison(node: ComparisonExpr, cls: DeclaredClass) -> Iterator[Fault]:
    for operator, left, right in zip(node.operators, node.operands, node.operands[1:], strict=False):
        if operator in ("in", "not in"):
            yield _needs("`in`", left, "dx.defer(operator.contains)(values, TERM)")
            yield _needs("`in`", right, "dx.defer(operator.contains)(TERM, value)")
        elif operator in ("is", "is not"):
            for operand in (left, right):
                yield _tests("`is`", operand, "dx.when(TERM == None, part, other)")
    for operand in node.operands[:-1] if len(node.operators) > 1 else ():
        yield _needs("a chain of comparisons", operand, "(low < TERM) & (TERM < high)")


def _of_generator(node: GeneratorExpr | DictionaryComprehension, cls: DeclaredClass) -> Iterator[Fault]:
    yield from (_needs("iteration", sequence, _REPEAT) for sequence in node.sequences)
    yield from (_needs("`if`", condition, _WHEN) for conditions in node.condlists for condition in conditions)


def _of_operator(node: OpExpr, cls: DeclaredClass) -> Iterator[Fault]:
    if node.op in ("and", "or"):
        yield _needs(f"`{node.op}`", node.left, _WHEN)
    elif node.op == "%" and isinstance(node.left, StrExpr):
        yield from (_needs("formatting", leaf, _FORMAT) for leaf in leaves_of(node.right))
    elif node.op == "*":
        for item in (*(items_of(node.left) or ()), *(items_of(node.right) or ())):
            info = class_called(item) if isinstance(item, CallExpr) else None
            if info is not None and info.has_base(names.PYTREE):
                yield Fault("the list repeats one call, which is one object", item, "dx.repeat(n, TERM)")


def _of_subscript(node: IndexExpr, cls: DeclaredClass) -> Iterator[Fault]:
    typ, index = get_proper_type(cls.api.lookup_type_or_none(node.base)), node.index
    is_builtin = isinstance(typ, TupleType) or (isinstance(typ, Instance) and typ.type.module_name == "builtins")
    if is_builtin and not is_term(node.base, cls.terms):
        bounds = (index.begin_index, index.end_index, index.stride) if isinstance(index, SliceExpr) else (index,)
        yield from (_needs("a subscript", bound, "dx.defer(operator.getitem)(values, TERM)") for bound in bounds)


# --- calls that need values, or hold the expression ------------------------------------------------------

_FORMAT: Final = 'dx.defer("{}".format)(TERM)'
_OF_EACH: Final = frozenset("all any max min sorted".split())
"""The functions of Python that test or compare the items of their arguments."""
_OF_VALUES: Final = _OF_EACH | frozenset(
    "ascii bin bool bytes chr complex dict divmod enumerate filter float format frozenset hash hex int iter len list "
    "map next oct ord print range repr reversed round set str sum tuple zip".split()
)
"""The functions of Python that need the values of their arguments."""
_RAISING: Final = frozenset(f"builtins.{name}" for name in _OF_VALUES - {"ascii", "hash", "print", "repr", "str"})
"""Those that raise outside of class bodies too."""
_TYPE_TESTS: Final = frozenset("callable hasattr isinstance issubclass type".split())
"""The functions of Python that test an expression in place of its value."""
_OF_NUMBERS: Final = (
    *("math.", "numpy.", "jax.numpy.", "jax.nn.", "jax.lax.", "jax.random."),
    *("jax._src.numpy.", "jax._src.nn.functions.", "jax._src.lax.", "jax._src.random.", "_operator.not_"),
    *("jax._src.nn.initializers.", "declax.initializers."),
)
"""The functions of these modules need the values of their arguments."""
_UFUNCS: Final = frozenset(
    "add subtract multiply divide floor_divide remainder power matmul bitwise_and bitwise_or bitwise_xor left_shift "
    "right_shift equal not_equal less less_equal greater greater_equal negative positive absolute".split()
)
"""The functions of NumPy that apply an operator."""
_FIXES: Final = {"sqrt": "TERM ** 0.5", "range": "dx.repeat(TERM, part)", "format": _FORMAT}
"""For functions with a shorter way than `defer`, by the last part of their names."""


def _of_call(call: CallExpr, cls: DeclaredClass) -> Iterator[Fault]:
    for arg, kind in zip(call.args, call.arg_kinds, strict=True):
        if kind.is_star():
            yield _needs(f"`{'*' if kind is ArgKind.ARG_STAR else '**'}`", arg, f"{source_of(call.callee)}(TERM)")
    leaves = [leaf for arg in call.args for leaf in leaves_of(arg)]
    positional = [arg for arg, kind in zip(call.args, call.arg_kinds, strict=True) if kind is ArgKind.ARG_POS]
    module, _, name = (fullname_of(call.callee) or "").rpartition(".")
    text = source_of(call.callee)
    fix = _FIXES.get(name, f"dx.defer({text})({', '.join(['TERM', '...'][: len(call.args)])})")
    info = class_called(call)
    if info is not None and info.has_base(names.VARIABLE):
        line = f"{info.name.lower()}: dx.{info.name}[jax.Array] = dx.variable((TERM,), initializer=...)"
        for node in (node for leaf in leaves for node in walk(leaf) if isinstance(node, NameExpr)):
            yield _needs(f"{info.name}(...)", node, line)
    elif module == "builtins" and name in _TYPE_TESTS:
        yield from (_tests(name, arg, fix) for arg in positional[:1])
    elif module == "builtins" and name in _OF_VALUES:
        given = leaves if name in _OF_EACH else positional[1:] if name in ("filter", "map") else positional
        yield from (_needs(f"{name}()", arg, fix) for arg in given)
    elif module == "builtins" and name == "getattr":
        yield from (_needs("a name of an attribute", arg, fix) for arg in positional[1:2])
    elif isinstance(call.callee, MemberExpr) and isinstance(call.callee.expr, StrExpr):
        name = call.callee.name
        yield from (_needs("formatting", leaf, _FIXES.get(name, f'dx.defer("...".{name})(TERM)')) for leaf in leaves)
    elif f"{module}.{name}".startswith(_OF_NUMBERS) and not (module == "numpy" and name in _UFUNCS):
        for leaf in leaves:
            if not describes_behaviour(cls.api.lookup_type_or_none(leaf)):
                yield _needs(f"{text}()", leaf, fix)
    elif info is not None and _keeps_arguments(info):
        yield from (Fault(f"the {info.name} would hold the expression", leaf, fix) for leaf in leaves)
    elif isinstance(call.callee, CallExpr) and fullname_of(call.callee.callee) in names.DEFERRING:
        yield from _of_deferred(call.callee.args, leaves)


def _of_deferred(function: Sequence[Expression], leaves: Sequence[Expression]) -> Iterator[Fault]:
    """The layers in an object that is not part of a State."""
    info = function[0].node if function and isinstance(function[0], RefExpr) else None
    if isinstance(info, TypeInfo) and "dataclass" in info.metadata and not info.has_base(names.PYTREE):
        for leaf in leaves:
            made = class_called(leaf) if isinstance(leaf, CallExpr) else None
            if made is not None and made.has_base(names.PYTREE):
                yield Fault(f"no State contains a layer in {info.name}", leaf, f"class {info.name}(dx.Module): ...")


def _keeps_arguments(info: TypeInfo) -> bool:
    """Whether the instances of a class that is no Pytree keep what they are made of."""
    is_record = "dataclass" in info.metadata or info.is_named_tuple or info.module_name == "collections"
    return (is_record and not info.has_base(names.PYTREE)) or info.fullname == "functools.partial"


_FAULTS: Final[dict[type, Callable[[Any, DeclaredClass], Iterable[Fault]]]] = {
    AssertStmt: lambda node, cls: [_needs("`assert`", node.expr, "a `__post_init__` that tests the fields of self")],
    AssignmentStmt: _of_assignment,
    CallExpr: _of_call,
    ComparisonExpr: _of_comparison,
    ConditionalExpr: lambda node, cls: [_needs("`if`", node.cond, _WHEN)],
    DictExpr: lambda node, cls: [_needs("a dict", key, "dx.defer(dict)([(TERM, value)])") for key, _ in node.items],
    DictionaryComprehension: _of_generator,
    ForStmt: lambda node, cls: [_needs("iteration", node.expr, _REPEAT)],
    GeneratorExpr: _of_generator,
    IfStmt: lambda node, cls: [_needs("`if`", condition, _WHEN) for condition in node.expr],
    IndexExpr: _of_subscript,
    MatchStmt: lambda node, cls: [_needs("`match`", node.subject, "dx.when(TERM == case, part, other)")],
    MemberExpr: _of_attribute,
    OpExpr: _of_operator,
    SetExpr: lambda node, cls: [_needs("a set", item, "(TERM,)") for item in node.items],
    StarExpr: lambda node, cls: [_needs("`*`", node.expr, "TERM without `*`, or TERM[0], TERM[1]")],
    UnaryExpr: lambda node, cls: [_needs(f"`{node.op}`", node.expr, _NOT)] if node.op in ("not", "~") else [],
    WhileStmt: lambda node, cls: [_needs("`while`", node.expr, "a method under @dx.submodule")],
}

_IDENTITIES: Final = frozenset({"==", "!=", "is", "is not"})
_OPERATIONS: Final[dict[type[Node], Callable[[Any], Iterable[Expression]]]] = {
    CallExpr: lambda node: (node.callee, *(node.args if fullname_of(node.callee) in _RAISING else ())),
    ComparisonExpr: lambda node: () if _IDENTITIES.issuperset(node.operators) else node.operands,
    ForStmt: lambda node: (node.expr,),
    IfStmt: lambda node: node.expr,
    IndexExpr: lambda node: (node.base,),
    MemberExpr: lambda node: (node.expr,),
    OpExpr: lambda node: (node.left, node.right),
    UnaryExpr: lambda node: (node.expr,),
}
"""The operations on a term that raise an error outside of class bodies, with their operands."""
