"""declax-rngs: calls without `rngs` of classes that surely draw random keys, and `rngs` that a Layer has anyway."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mypy.nodes import (
    ArgKind,
    AssignmentStmt,
    CallExpr,
    Decorator,
    Expression,
    FuncItem,
    MemberExpr,
    NameExpr,
    Node,
    ReturnStmt,
    TypeInfo,
    YieldExpr,
)
from mypy.plugin import FunctionContext
from mypy.types import Instance, get_proper_type

from declax.mypy_plugin import names
from declax.mypy_plugin.declared import RNGS, DeclaredClass, declared_class, flag_of, is_declared
from declax.mypy_plugin.drawing import LAYER_LINE, drawn_by, takes_optional_rngs
from declax.mypy_plugin.expressions import assigned_names, fullname_of, nodes_in_module, walk
from declax.mypy_plugin.reporting import Reporter, error_code

KEYS = error_code("declax-rngs", "A call lacks the rngs that it draws keys from, or a Layer declares rngs")


def check_call(info: TypeInfo, ctx: FunctionContext, report: Reporter) -> None:
    """Checks that a call passes `rngs` if the constructor draws keys."""
    call = ctx.context
    if not isinstance(call, CallExpr) or RNGS in call.arg_names or ArgKind.ARG_STAR2 in call.arg_kinds:
        return
    where = report.api.scope.stack[-1]
    body = where if isinstance(where, TypeInfo) and where.has_base(names.PYTREE) else None
    is_deferred = body is not None and (body.has_base(names.LAYER) or not is_declared(body))
    given = {name: args[0] for name, args in zip(ctx.callee_arg_names, ctx.args, strict=True) if name and args}
    if is_deferred or RNGS in given or not takes_optional_rngs(info, report.api):
        return
    is_known = ArgKind.ARG_STAR not in call.arg_kinds
    drawn = drawn_by(info, {name: flag_of(value) for name, value in given.items()} if is_known else None, report.api)
    # `spec` lets mypy check calls that are not in the module
    if drawn is None or not _is_in_module(call, report.api):
        return
    if body is not None:
        _tell_part(declared_class(body, report.api), call, info.name, drawn, report)
    elif not isinstance(where, FuncItem) or not is_returned(call, where, report.api):
        problem = f"{drawn} draws a key, but the call has no {RNGS}"
        report.error(f"{info.name}(...): {problem}", call, fix=_fix_in(where, info.name, report.api))


def _fix_in(where: Any, target: str, api: Any) -> str:
    """The line that gives keys to a call in a function or module."""
    is_method = isinstance(where, FuncItem) and _is_submodule(where, api)
    has_keys = isinstance(where, FuncItem) and RNGS in where.arg_names
    fix = f"{target}(..., {RNGS}={RNGS if has_keys or is_method else 'dx.Rngs(0)'})"
    return f"{fix}, in def {where.name}(self, rngs: dx.Rngs)" if is_method and not has_keys else fix


def check_replace(ctx: FunctionContext, report: Reporter) -> None:
    """Checks that ``replace(model, ...)`` passes `rngs` if the constructor draws keys."""
    call, typ = ctx.context, get_proper_type(ctx.arg_types[0][0]) if ctx.arg_types[0] else None
    is_open = not isinstance(call, CallExpr) or ArgKind.ARG_STAR2 in call.arg_kinds or RNGS in call.arg_names
    if is_open or not isinstance(typ, Instance) or not takes_optional_rngs(typ.type, report.api):
        return
    drawn = drawn_by(typ.type, None, report.api)  # the model may have been given its other parts
    if drawn is not None:
        problem = f"{typ.type.name}.{drawn} draws a key, but the call has no {RNGS}"
        report.error(f"replace: {problem}", call, fix=f"replace(..., {RNGS}=dx.Rngs(0))")


def _is_in_module(call: CallExpr, api: Any) -> bool:
    return any(node is call for node in nodes_in_module(api, CallExpr))


def _tell_part(cls: DeclaredClass, call: CallExpr, target: str, drawn: str, report: Reporter) -> None:
    """Reports a call in the body of a class that passes `rngs` explicitly."""
    statements = assigned_names(cls.info.defn.defs.body)
    part = next((name for name, found in statements if any(node is call for node in walk(found.rvalue))), target)
    is_explicit = RNGS in cls.fields
    fix = f"{target}(..., {RNGS}={RNGS})" if is_explicit else LAYER_LINE.format(cls.name)
    report.error(f"{cls.name}.{part}: {target}.{drawn} draws a key, but the call has no {RNGS}", call, fix=fix)


def check_declared(cls: DeclaredClass, report: Reporter) -> None:
    """Checks that a Layer does not declare the `rngs` that it has."""
    field = cls.fields.get(RNGS)
    if field is None or field.owner is not cls.info or not field.is_init_var or field.statement is None:
        return
    if any(base.fullname == names.LAYER for base in cls.info.mro[1:]):
        report.error(
            f"{cls.name}.{RNGS}: a Layer has this argument, and passes it to its parts",
            field.statement,
            fix=f"leave it and each {RNGS}={RNGS} out; or class {cls.name}(dx.Module), to pass keys explicitly",
        )


# --- what a function returns: a class body that calls the function defers it -----------------------------


def is_returned(expr: Node, function: FuncItem, api: Any) -> bool:
    """Whether the value of an expression may be in what a function returns; never for a method under `dx.submodule`."""
    if _is_submodule(function, api):
        return False
    nodes = list(walk(function.body))
    flowing: list[Expression | None] = [node.expr for node in nodes if isinstance(node, (ReturnStmt, YieldExpr))]
    known = set[str]()
    while flowing:
        for node in _held_by(flowing.pop()):
            if node is expr:
                return True
            if isinstance(node, NameExpr) and node.name not in known:
                known.add(node.name)
                flowing += _put_into(node.name, nodes)
    return False


def _is_submodule(function: FuncItem, api: Any) -> bool:
    decorators = (found.original_decorators for found in nodes_in_module(api, Decorator) if found.func is function)
    return any(names.SPECIFIERS.get(fullname_of(one) or "") for given in decorators for one in given)


def _put_into(name: str, nodes: list[Node]) -> Iterator[Expression]:
    """The values that the statements of a function assign to a name, or pass to its methods."""
    for node in nodes:
        if isinstance(node, AssignmentStmt):
            targets = [found.name for target in node.lvalues for found in walk(target) if isinstance(found, NameExpr)]
            yield from [node.rvalue] if name in targets else []
        elif isinstance(node, CallExpr) and isinstance(node.callee, MemberExpr):
            owner = node.callee.expr
            yield from node.args if isinstance(owner, NameExpr) and owner.name == name else []


def _held_by(expr: Node | None) -> Iterator[Node]:
    """An expression and those whose values its value may hold, so not what it calls."""
    called = {id(node) for call in walk(expr) if isinstance(call, CallExpr) for node in walk(call.callee)}
    return (node for node in walk(expr) if id(node) not in called)
