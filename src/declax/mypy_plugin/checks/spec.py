"""declax-spec: the arguments of `spec` against what its target takes, less the random streams.

Vocabulary
----------
fits: of a value, that `Spec.build` makes of it what a parameter's annotation says: itself, or what is built of a spec.
"""

from __future__ import annotations

from typing import Any

from mypy.nodes import (
    ArgKind,
    AssignmentStmt,
    CallExpr,
    Context,
    DictExpr,
    Expression,
    MemberExpr,
    NameExpr,
    RefExpr,
    StrExpr,
    Var,
)
from mypy.plugin import FunctionContext, FunctionSigContext, MethodContext
from mypy.subtypes import is_subtype
from mypy.types import (
    AnyType,
    CallableType,
    FunctionLike,
    Instance,
    ParamSpecType,
    ProperType,
    TupleType,
    Type,
    TypeOfAny,
    UnionType,
    get_proper_type,
)

from declax.mypy_plugin import names
from declax.mypy_plugin.constructors import RNGS, Target, entries_of, target_of, target_of_class, type_where_wanted
from declax.mypy_plugin.expressions import items_of, literal, walk
from declax.mypy_plugin.registry import Registry
from declax.mypy_plugin.reporting import Report, error_code
from declax.mypy_plugin.wording import text_of

SPEC = error_code("declax-spec", "A spec has arguments that its target does not take")

_MAX_DEPTH = 30


def register(hooks: Registry) -> None:
    """Puts the check at its hooks."""
    hooks.function_signature(names.SPEC, SPEC, any_arguments)
    hooks.function(names.SPEC, SPEC, check)
    hooks.method(names.SPEC_CLASS, "replace", SPEC, check_replace)
    hooks.method(names.SPEC_CLASS, "build", SPEC, check_build)


def any_arguments(ctx: FunctionSigContext, report: Report) -> FunctionLike | None:
    """A signature that takes any arguments, whose types are inferred as they stand; `check` compares them.

    The annotations have one for all arguments and one for those of a target without streams. Any as the type of an
    argument would make mypy forget of what a spec in it is.
    """
    del report
    signature, kept = ctx.default_signature, get_proper_type(ctx.default_signature.ret_type)
    target = get_proper_type(signature.arg_types[0]) if signature.arg_types else None
    if not isinstance(target, CallableType) or not isinstance(kept, Instance):
        return None
    anything = AnyType(TypeOfAny.special_form)
    made = target.copy_modified(
        arg_types=[anything, anything],
        arg_kinds=[ArgKind.ARG_STAR, ArgKind.ARG_STAR2],
        arg_names=[None, None],
        is_ellipsis_args=True,
    )
    any_object = ctx.api.named_generic_type("builtins.object", [])
    return signature.copy_modified(
        arg_types=[made, any_object, any_object],
        arg_kinds=[ArgKind.ARG_POS, ArgKind.ARG_STAR, ArgKind.ARG_STAR2],
        arg_names=[None, "args", "kwargs"],
        variables=[variable for variable in signature.variables if not isinstance(variable, ParamSpecType)],
    )


def check(ctx: FunctionContext, report: Report) -> Type | None:
    """Checks a call of `spec`."""
    call = ctx.context
    if not isinstance(call, CallExpr) or not call.args or call.arg_kinds[0] is not ArgKind.ARG_POS:
        return None
    found = ctx.api.lookup_type_or_none(call.args[0])  # type: ignore[attr-defined]  # of the checker, not of its interface
    target = target_of(None if found is None else get_proper_type(found))
    if target is not None:
        _Call(call, target, ctx.api, report).check()
    return None


class _Call:
    """One call of `spec` with a target that is known."""

    def __init__(self, call: CallExpr, target: Target, api: Any, report: Report) -> None:
        self._call = call
        self._takes_rngs = RNGS in target.parameters
        self._target = target.without_rngs()
        self._api = api
        self._report = report
        self._where = f"spec({target.name}, ...)"
        self._is_whole = True

    def check(self) -> None:
        """Binds the arguments to the parameters, and compares them."""
        given = self._bound()
        for name, value in given.items():
            if name in self._target.parameters:
                check_value(
                    f"{self._where}: {name}", self._target.parameters[name].type, value, self._api, self._report
                )
            elif name == RNGS and self._takes_rngs:
                self._report.error(
                    f"{self._where}: random streams are no part of a spec",
                    value,
                    fix=f"dx.spec({self._target.name}, ...).build(rngs=...)",
                )
            elif not self._target.takes_any:
                self._target.tell_unknown(self._where, name, value, self._report)
        if self._is_whole:
            self._target.tell_missing(self._where, given, self._call, self._report)

    def _bound(self) -> dict[str, Expression]:
        given: dict[str, Expression] = {}
        left = list(self._target.positional)
        arguments = list(zip(self._call.args, self._call.arg_kinds, self._call.arg_names, strict=True))[1:]
        for arg, kind, name in arguments:
            if kind is ArgKind.ARG_POS:
                if left:
                    given[left.pop(0)] = arg
                elif not self._target.takes_more and self._is_whole:
                    self._tell_surplus(arg)
            elif name is not None:
                if name in given:
                    self._report.error(f"{self._where}: {name!r} is given twice, by position and by name", arg)
                given[name] = arg
            else:
                self._take_more(given, arg, kind)
        return given

    def _take_more(self, given: dict[str, Expression], arg: Expression, kind: ArgKind) -> None:
        """Takes what ``*`` or ``**`` gives."""
        entries = entries_of(arg, self._api) if kind is ArgKind.ARG_STAR2 else None
        given.update({} if entries is None else entries.items)
        self._is_whole = self._is_whole and entries is not None and entries.is_whole

    def _tell_surplus(self, arg: Expression) -> None:
        taken = ", ".join(self._target.positional) or "none"
        self._report.error(
            f"{self._where}: one argument too many by position; {self._target.name} takes {taken}",
            arg,
            notes=["rngs have no position here: build takes them"] if self._takes_rngs else (),
        )


# --- values --------------------------------------------------------------------


def check_value(where: str, wanted: ProperType | None, value: Expression, api: Any, report: Report) -> None:
    """Says where a value does not fit."""
    _check_value(where, wanted, value, api, report, 0)


def _check_value(
    where: str, wanted: ProperType | None, value: Expression, api: Any, report: Report, depth: int
) -> None:
    if wanted is None or _expression_fits(value, wanted, api, 0):
        return
    items = items_of(value) or ()
    options = [parts for option in _options(wanted) if (parts := _parts_of(option, len(items))) is not None]
    if items and len(options) == 1 and depth < _MAX_DEPTH:
        for index, (item, part) in enumerate(zip(items, options[0], strict=True)):
            _check_value(f"{where}[{index}]", part, item, api, report, depth + 1)
        return
    found = type_where_wanted(value, wanted, api)
    if not fits(found, wanted):
        report.error(f"{where}: expected {text_of(wanted)}, got {text_of(found)}", value)


def _expression_fits(value: Expression, wanted: ProperType, api: Any, depth: int) -> bool:
    found = api.lookup_type_or_none(value)
    if found is None:
        return True  # not looked at: unreachable code
    if fits(get_proper_type(found), wanted):
        return True
    items = items_of(value)
    if items is None or depth > _MAX_DEPTH:
        return False
    return any(
        all(_expression_fits(item, part, api, depth + 1) for item, part in zip(items, parts, strict=True))
        for option in _options(wanted)
        if (parts := _parts_of(option, len(items))) is not None
    )


def _options(wanted: ProperType) -> list[ProperType]:
    return [get_proper_type(item) for item in wanted.items] if isinstance(wanted, UnionType) else [wanted]


def _parts_of(wanted: ProperType, count: int) -> list[ProperType] | None:
    """What the entries of a list or tuple display have to be."""
    if isinstance(wanted, TupleType):
        parts = [get_proper_type(item) for item in wanted.items]
        return parts if len(parts) == count else None
    if isinstance(wanted, Instance) and len(wanted.args) == 1 and wanted.type.has_base("typing.Iterable"):
        return [get_proper_type(wanted.args[0])] * count
    return None


def fits(found: ProperType, wanted: ProperType, depth: int = 0) -> bool:
    """Whether values of one type are built to values of another."""
    if is_subtype(found, wanted) or depth > _MAX_DEPTH:
        return True
    if isinstance(found, UnionType):
        return all(fits(get_proper_type(item), wanted, depth + 1) for item in found.items)
    if isinstance(wanted, UnionType):
        return any(fits(found, get_proper_type(item), depth + 1) for item in wanted.items)
    if isinstance(found, AnyType) or not isinstance(found, (Instance, TupleType)):
        return isinstance(found, AnyType)
    if isinstance(found, Instance) and found.type.fullname == names.REF:
        return True
    if isinstance(found, Instance) and found.type.fullname == names.SPEC_CLASS:
        return not found.args or fits(get_proper_type(found.args[0]), wanted, depth + 1)
    if isinstance(found, TupleType):
        parts = _parts_of(wanted, len(found.items))
        pairs = zip(found.items, parts or (), strict=False)
        return parts is not None and all(fits(get_proper_type(item), part, depth + 1) for item, part in pairs)
    if not isinstance(wanted, Instance) or len(found.args) != len(wanted.args) or not found.args:
        return False
    if not found.type.has_base(wanted.type.fullname):
        return False
    both = zip(found.args, wanted.args, strict=True)
    return all(fits(get_proper_type(one), get_proper_type(other), depth + 1) for one, other in both)


# --- replace -------------------------------------------------------------------


def check_replace(ctx: MethodContext, report: Report) -> Type | None:
    """Checks the first names of the paths in ``spec.replace({"path": value})``."""
    receiver, call = get_proper_type(ctx.type), ctx.context
    made = get_proper_type(receiver.args[0]) if isinstance(receiver, Instance) and receiver.args else None
    target = target_of_class(made, ctx.api) if isinstance(made, Instance) else None
    if target is None or not isinstance(call, CallExpr):
        return None
    target = target.without_rngs()
    for path, value, place in _changes(call, ctx.api):
        name, _, rest = path.replace("[", ".").partition(".")
        where = f"Spec[{target.name}].replace"
        if name in target.parameters:
            if not rest:
                check_value(f"{where}: {name}", target.parameters[name].type, value, ctx.api, report)
        elif name != "*" and not target.takes_any and not target.takes_more:
            target.tell_unknown(where, name, place, report)
    return None


def _changes(call: CallExpr, api: Any) -> list[tuple[str, Expression, Context]]:
    found: list[tuple[str, Expression, Context]] = []
    for arg, kind, name in zip(call.args, call.arg_kinds, call.arg_names, strict=True):
        if name is not None:
            found.append((name, arg, arg))
        elif isinstance(arg, DictExpr):
            found += [(key.value, value, key) for key, value in arg.items if isinstance(key, StrExpr)]
        elif kind in (ArgKind.ARG_POS, ArgKind.ARG_STAR2):
            entries = entries_of(arg, api)
            found += [] if entries is None else [(key, value, call) for key, value in entries.items.items()]
    return found


# --- build ---------------------------------------------------------------------


def check_build(ctx: MethodContext, report: Report) -> Type | None:
    """Checks that ``dx.spec(C, ...).build()`` has the random streams that C asks for.

    A spec whose call is not seen may be of a function, which gives a C and takes no streams.
    """
    call = ctx.context
    if not isinstance(call, CallExpr) or not isinstance(call.callee, MemberExpr) or _has_streams(call):
        return None
    made = _call_of_spec(call.callee.expr, ctx.api)
    found = None if made is None else ctx.api.lookup_type_or_none(made.args[0])  # type: ignore[attr-defined]  # as above
    typ = None if found is None else get_proper_type(found)
    target = target_of(typ) if isinstance(typ, CallableType) and typ.is_type_obj() else None
    if target is not None and RNGS in target.least:
        report.error(
            f"spec({target.name}, ...).build(): {target.name} takes rngs, and build is given none",
            call,
            fix="spec.build(rngs=dx.Rngs(0))",
        )
    return None


def _has_streams(call: CallExpr) -> bool:
    return any(kind is not ArgKind.ARG_NAMED or literal(arg) is not None for arg, kind in _arguments(call))


def _arguments(call: CallExpr) -> list[tuple[Expression, ArgKind]]:
    return list(zip(call.args, call.arg_kinds, strict=True))


def _call_of_spec(expr: Expression, api: Any) -> CallExpr | None:
    """The call of `spec` that an expression is made by, also where `replace` changes it, or a name stands for it."""
    expr = _replaced(expr)
    if isinstance(expr, NameExpr) and isinstance(expr.node, Var):
        expr = _replaced(_value_of(expr.node, api) or expr)
    if not isinstance(expr, CallExpr) or not isinstance(expr.callee, RefExpr) or expr.callee.fullname != names.SPEC:
        return None
    return expr if expr.args and expr.arg_kinds[0] is ArgKind.ARG_POS else None


def _replaced(expr: Expression) -> Expression:
    """What ``replace`` is called of."""
    while isinstance(expr, CallExpr) and isinstance(expr.callee, MemberExpr) and expr.callee.name == "replace":
        expr = expr.callee.expr
    return expr


def _value_of(var: Var, api: Any) -> Expression | None:
    """What a name is set to, where one statement sets it and nothing else does."""
    uses = [node for node in walk(api.tree) if isinstance(node, AssignmentStmt) and _sets(node, var)]
    count = sum(isinstance(node, NameExpr) and node.node is var and node.is_inferred_def for node in walk(api.tree))
    if len(uses) != 1 or count > 1 or not isinstance(uses[0].lvalues[0], NameExpr):
        return None
    return uses[0].rvalue


def _sets(statement: AssignmentStmt, var: Var) -> bool:
    return any(isinstance(node, NameExpr) and node.node is var for target in statement.lvalues for node in walk(target))
