"""Arguments by name against the parameters of a constructor, and the literals of dicts that hold them.

Vocabulary
----------
target:  a class or function that a spec, a configuration or a call with ``**config`` is of.
entries: the arguments that a dict gives, by name, as far as its literal tells.
whole:   of entries, that there are no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from mypy.erasetype import erase_typevars
from mypy.nodes import (
    ArgKind,
    AssignmentStmt,
    CallExpr,
    ComparisonExpr,
    Context,
    DictExpr,
    Expression,
    ForStmt,
    IndexExpr,
    MemberExpr,
    NameExpr,
    Node,
    RefExpr,
    StrExpr,
    Var,
)
from mypy.types import CallableType, Instance, ProperType, Type, get_proper_type

from declax.mypy_plugin.expressions import walk
from declax.mypy_plugin.reporting import Report, suggest
from declax.mypy_plugin.transformed import Function, Parameter, function_of

RNGS: Final = "rngs"


class Target(NamedTuple):
    """What a target takes.

    Attributes:
      name: as messages say it.
      parameters: by name, less those that take any number; type variables are Any.
      positional: the names of those that have a position.
      least: the names of those that have no default.
      takes_any: whether it takes arguments of any name.
      takes_more: whether it takes any number of arguments by position.
    """

    name: str
    parameters: dict[str, Parameter]
    positional: tuple[str, ...]
    least: tuple[str, ...]
    takes_any: bool
    takes_more: bool

    def without_rngs(self) -> Target:
        """The same, less the random streams, which no spec has."""
        return self._replace(
            parameters={name: parameter for name, parameter in self.parameters.items() if name != RNGS},
            positional=tuple(name for name in self.positional if name != RNGS),
            least=tuple(name for name in self.least if name != RNGS),
        )

    def tell_unknown(self, where: str, name: str, place: Context, report: Report) -> None:
        """Says that there is no parameter of a name."""
        report.error(
            f"{where}: {self.name} has no parameter {name!r}{suggest(name, self.parameters)}",
            place,
            notes=[f"its parameters are {', '.join(self.parameters) or 'none'}"],
        )

    def tell_missing(self, where: str, given: Iterable[str], place: Context, report: Report) -> None:
        """Says which parameters get no argument; one that a misspelt name means is not told again."""
        names = set(given)
        unknown = [name for name in names if name not in self.parameters]
        guessed = {suggest(name, self.parameters) for name in unknown}
        missing = [name for name in self.least if name not in names and f"; did you mean {name!r}?" not in guessed]
        if missing:
            told = ", ".join(map(repr, missing))
            report.error(f"{where}: {self.name} needs {told}", place, fix=f"{missing[0]}=...")


def target_of(typ: ProperType | None, name: str | None = None) -> Target | None:
    """The parameters of a class or function of this type; None where they are not known."""
    if not isinstance(typ, CallableType):
        return None
    if typ.is_type_obj() and typ.type_object().fallback_to_any:
        return None
    function = function_of(name or (typ.type_object().name if typ.is_type_obj() else typ.name or "the function"), typ)
    return None if function is None else _target(function)


def target_of_class(typ: Instance, api: Any) -> Target | None:
    """The parameters of the constructor of a class."""
    found = typ.type.get_method("__init__")
    signature = None if found is None or found.type is None else get_proper_type(found.type)
    if not isinstance(signature, CallableType) or typ.type.fallback_to_any or not signature.arg_types:
        return None
    function = function_of(typ.type.name, signature)
    return None if function is None else _target(function._replace(parameters=function.parameters[1:]))


def _target(function: Function) -> Target | None:
    kept = {p.name: _without_variables(p) for p in function.parameters if p.name is not None and not p.kind.is_star()}
    if any(p.name is None for p in function.parameters):
        return None
    return Target(
        function.name,
        kept,
        tuple(p.name or "" for p in function.positional),
        tuple(name for name, p in kept.items() if p.kind.is_required()),
        function.takes_any,
        function.takes_more,
    )


def _without_variables(parameter: Parameter) -> Parameter:
    typ = parameter.type
    return parameter if typ is None else parameter._replace(type=get_proper_type(erase_typevars(typ)))


def type_where_wanted(value: Expression, wanted: ProperType, api: Any) -> ProperType:
    """The type of an expression where a type is wanted, as of ``[]``; as it stands where it cannot have it."""
    before: Type = api.lookup_type(value)
    with api.msg.filter_errors() as watcher:
        found: Type = api.get_expression_type(value, wanted)
        is_wrong = watcher.has_new_errors()
    return get_proper_type(before if is_wrong else found)


# --- literals of dicts ---------------------------------------------------------


class Entries(NamedTuple):
    """What a dict holds.

    Attributes:
      items: the expressions by key.
      is_whole: whether there are no others.
      expr: the literal.
    """

    items: dict[str, Expression]
    is_whole: bool
    expr: Expression


def entries_of(expr: Expression | None, api: Any) -> Entries | None:
    """The entries of a dict: of its literal, or of the only literal that a name stands for."""
    if isinstance(expr, DictExpr):
        return _of_literal(expr)
    if isinstance(expr, CallExpr) and isinstance(expr.callee, RefExpr) and expr.callee.fullname == "builtins.dict":
        is_named = all(kind in (ArgKind.ARG_NAMED, ArgKind.ARG_STAR2) for kind in expr.arg_kinds)
        items = {name: arg for name, arg in zip(expr.arg_names, expr.args, strict=True) if name is not None}
        return Entries(items, ArgKind.ARG_STAR2 not in expr.arg_kinds, expr) if is_named else None
    if isinstance(expr, NameExpr) and isinstance(expr.node, Var):
        return _of_name(expr.node, api)
    return None


def _of_literal(expr: DictExpr) -> Entries | None:
    if any(key is not None and not isinstance(key, StrExpr) for key, _ in expr.items):
        return None
    items = {key.value: value for key, value in expr.items if isinstance(key, StrExpr)}
    return Entries(items, all(key is not None for key, _ in expr.items), expr)


def _of_name(var: Var, api: Any) -> Entries | None:
    """What the dict of a name holds, where it is set once, and nothing takes entries out again."""
    uses = _Uses(var)
    uses.read(api.tree)
    if len(uses.values) != 1 or uses.others or isinstance(uses.values[0], NameExpr):
        return None
    found = entries_of(uses.values[0], api)
    return found if found is None or uses.is_only_read else found._replace(is_whole=False)


_READING: Final = frozenset({"get", "items", "keys", "values", "copy"})
_ADDING: Final = frozenset({"update", "setdefault"})


class _Uses:
    """What a module does with one name.

    Attributes:
      values: what it is set to.
      others: how many uses there are that may do anything.
      is_only_read: whether nothing adds entries, or gives the dict away.
    """

    def __init__(self, var: Var) -> None:
        self._var = var
        self.values: list[Expression] = []
        self.others = 0
        self.is_only_read = True

    def read(self, tree: Node) -> None:
        """Looks at all uses in a module."""
        for node in walk(tree):
            if node is not self._var and isinstance(node, NameExpr) and node.node is self._var:
                self.others += 1
            else:
                self.others -= sum(self._is_harmless(node))

    def _is_harmless(self, node: Node) -> Iterator[bool]:
        """One True for each use directly below a node that takes nothing out."""
        if isinstance(node, AssignmentStmt):
            if len(node.lvalues) == 1 and self._is_it(node.lvalues[0]):
                self.values.append(node.rvalue)
                yield True
            if any(isinstance(target, IndexExpr) and self._is_it(target.base) for target in node.lvalues):
                self.is_only_read = False
        elif isinstance(node, CallExpr):
            for arg, kind in zip(node.args, node.arg_kinds, strict=True):
                if self._is_it(arg):
                    self.is_only_read = self.is_only_read and kind is ArgKind.ARG_STAR2
                    yield True
        elif isinstance(node, DictExpr):
            yield from (True for key, value in node.items if key is None and self._is_it(value))
        elif isinstance(node, MemberExpr) and self._is_it(node.expr) and node.name in _READING | _ADDING:
            self.is_only_read = self.is_only_read and node.name in _READING
            yield True
        elif type(node).__name__ == "DelStmt":
            if any(isinstance(below, NameExpr) and below.node is self._var for below in walk(node)):
                self.values.append(NameExpr("del"))
        elif isinstance(node, IndexExpr):
            yield self._is_it(node.base)
        elif isinstance(node, ForStmt):
            yield self._is_it(node.expr)
        elif isinstance(node, ComparisonExpr):
            yield from (self._is_it(operand) for operand in node.operands)

    def _is_it(self, expr: Expression) -> bool:
        return isinstance(expr, NameExpr) and expr.node is self._var
