"""declax-spec: the arguments of `spec`, the paths of `Spec.replace`, and the `rngs` of `Spec.build`."""

from __future__ import annotations

import re
from typing import Any

from mypy.nodes import ArgKind, CallExpr, Context, Expression, MemberExpr
from mypy.plugin import FunctionContext, MethodContext
from mypy.types import CallableType, Instance, NoneType, Type, UnionType, get_proper_type

from declax.mypy_plugin import names
from declax.mypy_plugin.constructors import (
    RNGS,
    Wider,
    arguments_in,
    check_call,
    check_value,
    entries_of,
    expanded,
    signature_of,
    signature_of_class,
    tell_unknown,
)
from declax.mypy_plugin.expressions import fullname_of, info_named, literal
from declax.mypy_plugin.reporting import Reporter, error_code, suggest
from declax.mypy_plugin.statuses import is_container

SPEC = error_code("declax-spec", "A path of a spec is unknown, or `build` lacks streams")


def check(ctx: FunctionContext, report: Reporter) -> None:
    """Checks a call of `spec` as a call of its target without `rngs`."""
    call = ctx.context
    if not isinstance(call, CallExpr) or call.arg_kinds[:1] != [ArgKind.ARG_POS]:
        return
    signature = signature_of(report.api.lookup_type_or_none(call.args[0]), _wider(report.api))
    given = expanded(arguments_in(call)[1:], report.api)
    if signature is not None and given is not None:
        check_call(signature, call.args[0], given, call, report)


def _wider(api: Any) -> Wider:
    """A spec or a Ref may replace a part."""
    spec, ref = (info_named(name, api) for name in (names.SPEC_CLASS, names.REF))

    def of(typ: Type) -> Type:
        is_spec = isinstance(typ, Instance) and typ.type is spec
        if spec is None or ref is None or is_spec:
            return typ
        return UnionType([typ, Instance(spec, [typ]), Instance(ref, [])])

    return Wider(api, of)


def check_replace(ctx: MethodContext, report: Reporter) -> None:
    """Checks the paths in ``spec.replace({"path": value})``, and the values."""
    receiver = get_proper_type(ctx.type)
    if isinstance(receiver, Instance) and receiver.args and isinstance(ctx.context, CallExpr):
        for path, value in _changes(ctx.context, report.api).items():
            wanted = _type_at(receiver.args[0], path, value, report)
            if wanted is not None:
                check_value(f"replace({path!r}, ...)", wanted, _wider(report.api), value, report)


def _type_at(typ: Type, path: str, place: Context, report: Reporter) -> Type | None:
    """The type of the parameter at a path, if all classes above it are known."""
    for depth, name in enumerate(re.split(r"[.\[]", path.replace("]", ""))):
        found = _part_of(typ)
        if isinstance(found, Instance) and is_container(found.type) and found.args:
            typ = found.args[-1]
            continue
        signature = None if found is None else signature_of_class(found, Wider(report.api))
        if signature is None:
            return None
        parameter = signature.argument_by_name(name)
        if parameter is None or parameter.name != name:
            known = [known for known in signature.arg_names if known is not None]
            is_open = signature.is_var_arg or signature.is_kw_arg or name == "*"
            # the class of the part may have more parameters than the class of the annotation
            if not is_open and (not depth or suggest(name, known)):
                tell_unknown(f"{signature.name}, in replace({path!r}, ...)", name, signature, place, report)
            return None
        typ = parameter.typ
    return typ


def _part_of(typ: Type) -> Instance | None:
    """The type without None, if it is a single class."""
    typ = get_proper_type(typ)
    items = typ.items if isinstance(typ, UnionType) else [typ]
    parts = [part for part in map(get_proper_type, items) if not isinstance(part, NoneType)]
    return parts[0] if len(parts) == 1 and isinstance(parts[0], Instance) else None


def _changes(call: CallExpr, api: Any) -> dict[str, Expression]:
    found: dict[str, Expression] = {}
    for arg, _, name in arguments_in(call):
        found |= {name: arg} if name is not None else entries_of(arg, api) or {}
    return found


def check_build(ctx: MethodContext, report: Reporter) -> None:
    """Checks that ``dx.spec(C, ...).build()`` passes the `rngs` that C requires."""
    call = ctx.context
    if not isinstance(call, CallExpr) or (call.args and literal(call.args[0]) is not None):
        return
    made = call.callee
    while isinstance(made, MemberExpr) and isinstance(made.expr, CallExpr):
        made = made.expr.callee if fullname_of(made.expr.callee) != names.SPEC else made.expr
    if not isinstance(made, CallExpr) or made.arg_kinds[:1] != [ArgKind.ARG_POS]:
        return
    typ = get_proper_type(report.api.lookup_type_or_none(made.args[0]))
    rngs = typ.argument_by_name(RNGS) if isinstance(typ, CallableType) and typ.is_type_obj() else None
    if rngs is not None and rngs.required:
        report.error(f"build: {typ.type_object().name} takes rngs", call, fix="spec.build(rngs=dx.Rngs(0))")
