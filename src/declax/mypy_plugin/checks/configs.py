"""Specs, configurations and `replace`: mypy checks the calls that they describe."""

from __future__ import annotations

import re
from typing import Any

from mypy.nodes import ArgKind, CallExpr, Context, DictExpr, Expression, MemberExpr, NameExpr, TypeInfo
from mypy.plugin import FunctionContext, FunctionSigContext, MethodContext
from mypy.plugins.dataclasses import replace_function_sig_callback
from mypy.types import (
    AnyType,
    CallableType,
    FunctionLike,
    Instance,
    Type,
    TypeVarType,
    UnionType,
    get_proper_type,
)
from mypy.types_utils import remove_optional

from declax.mypy_plugin import names
from declax.mypy_plugin.constructors import (
    Wider,
    arguments_in,
    check_call,
    check_value,
    entries_of,
    expanded,
    named,
    signature_of,
    signature_of_class,
    tell_unknown,
)
from declax.mypy_plugin.declared import RNGS, declared_fields, flag_of, is_declared
from declax.mypy_plugin.drawing import drawn_by
from declax.mypy_plugin.expressions import ANY, arguments_of, fullname_of, info_named, items_of, literal
from declax.mypy_plugin.reporting import Reporter, error_code, suggest
from declax.mypy_plugin.statuses import is_container

# --- declax-spec: the arguments of `spec`, the paths of `Spec.replace`, and the `rngs` of `Spec.build` ---

SPEC = error_code("declax-spec", "A path of a spec is unknown, or `build` lacks streams")


def check_spec(ctx: FunctionContext, report: Reporter) -> None:
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
            where = f"replace({path!r}, ...)"
            wanted = type_at(receiver.args[0], path, where, value, report)
            if wanted is not None:
                check_value(where, wanted, _wider(report.api), value, report)


def type_at(typ: Type, path: str, where: str, place: Context, report: Reporter) -> Type | None:
    """The type of the parameter at a path, if all classes above it are known."""
    for depth, name in enumerate(re.split(r"[.\[]", path.replace("]", ""))):
        found = get_proper_type(remove_optional(typ))
        if isinstance(found, Instance) and is_container(found.type) and found.args:
            typ = found.args[-1]
            continue
        signature = signature_of_class(found, Wider(report.api)) if isinstance(found, Instance) else None
        if signature is None:
            return None
        parameter = signature.argument_by_name(name)
        if parameter is None or parameter.name != name:
            known = [known for known in signature.arg_names if known is not None]
            is_open = signature.is_var_arg or signature.is_kw_arg or name == "*"
            # the class of the part may have more parameters than the class of the annotation
            if not is_open and (not depth or suggest(name, known)):
                tell_unknown(f"{signature.name}, in {where}", name, signature, place, report)
            return None
        typ = parameter.typ
    return typ


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
    made, is_changed = call.callee, False
    while isinstance(made, MemberExpr) and isinstance(made.expr, CallExpr):
        is_changed = (isinstance(made.expr.callee, MemberExpr) and made.expr.callee.name == "replace") or is_changed
        made = made.expr.callee if fullname_of(made.expr.callee) != names.SPEC else made.expr
    if not isinstance(made, CallExpr) or made.arg_kinds[:1] != [ArgKind.ARG_POS]:
        return
    typ = get_proper_type(report.api.lookup_type_or_none(made.args[0]))
    rngs = typ.argument_by_name(RNGS) if isinstance(typ, CallableType) and typ.is_type_obj() else None
    if rngs is None or not isinstance(typ, CallableType):
        return
    is_known = not is_changed and not any(kind.is_star() for kind in made.arg_kinds)
    given = arguments_of(made, ("*", *filter(None, typ.arg_names))) if is_known else None
    flags = None if given is None else {name: flag_of(value) for name, value in given.items()}
    info = typ.type_object()
    if rngs.required or drawn_by(info, flags, report.api) is not None:
        report.error(f"build: {info.name} takes rngs", call, fix="spec.build(rngs=dx.Rngs(0))")


# --- configurations that are literals, and calls with ``**config`` ---------------------------------------


def check_config(ctx: FunctionContext, report: Reporter) -> None:
    """Checks a configuration that is a literal."""
    call = ctx.context
    given = arguments_of(call, ("cls", "source"))
    if not isinstance(call, CallExpr) or "migrate" in given or "cls" not in given:
        return
    # tables and names may describe any value that is not plain data
    wider = Wider(report.api, lambda typ: ANY)
    signature = signature_of(report.api.lookup_type_or_none(given["cls"]), wider)
    if signature is not None:
        _check_table(signature, given["cls"], given.get("source"), wider, call, report)


def _check_table(
    signature: CallableType,
    cls: Expression,
    table: Expression | None,
    wider: Wider,
    place: Expression,
    report: Reporter,
) -> None:
    """Lets mypy check the calls that a table and its inner tables describe."""
    entries = entries_of(table, report.api)
    kind = None if entries is None else entries.get("kind")
    if entries is None or (kind is not None and literal(kind) != signature.name) or "$ref" in entries:
        return
    items = {name: value for name, value in entries.items() if name != "kind" and not name.startswith("$")}
    place = table if isinstance(table, DictExpr) else place
    check_call(signature, cls, named(items), place, report)
    declared = signature_of_class(signature.ret_type, Wider(report.api))
    for name, value in items.items():
        parameter = None if declared is None else declared.argument_by_name(name)
        for item, wanted in _tables_in(value, None if parameter is None else parameter.typ):
            inner = signature_of_class(wanted, wider)
            if inner is not None:
                _check_table(inner, cls, item, wider, place, report)


def _tables_in(value: Expression, wanted: Type | None) -> list[tuple[Expression, Type]]:
    """The tables in a value, with the types of the parts that they describe."""
    typ = None if wanted is None else get_proper_type(wanted)
    items = typ.items if isinstance(typ, UnionType) else [] if typ is None else [typ]
    parts = [part for part in map(get_proper_type, items) if isinstance(part, Instance)]
    if len(parts) != 1:
        return []
    if isinstance(value, DictExpr):
        is_container = any(parts[0].type.has_base(name) for name in (names.LIST, names.DICT, names.SEQUENTIAL))
        return [] if is_container else [(value, parts[0])]
    return [found for item in items_of(value) or () for found in _tables_in(item, (*parts[0].args, parts[0])[0])]


# --- calls with **config -------------------------------------------------------


def without_types(ctx: FunctionSigContext, report: Reporter) -> FunctionLike | None:
    """The signature of a constructor without the types of parameters that known dicts set.

    mypy would compare the joined type of all values of a dict with each parameter. `check_dicts` compares each value.
    """
    dicts = _dicts_of(ctx.context)
    if not all(entries_of(arg, report.api) is not None or _holds_anything(arg, report) for arg in dicts):
        return None
    types = [
        typ if any(arg not in dicts for arg in given) else ANY
        for typ, given in zip(ctx.default_signature.arg_types, ctx.args, strict=True)
    ]
    return ctx.default_signature.copy_modified(arg_types=types)


def _dicts_of(call: object) -> list[Expression]:
    given = arguments_in(call) if isinstance(call, CallExpr) else []
    return [arg for arg, kind, _ in given if kind is ArgKind.ARG_STAR2]


def _holds_anything(arg: Expression, report: Reporter) -> bool:
    """Whether the values of a dict are Any, such as of ``**options: Any``."""
    found = get_proper_type(report.api.get_expression_type(arg)) if isinstance(arg, NameExpr) else None
    return isinstance(found, Instance) and bool(found.args) and isinstance(get_proper_type(found.args[-1]), AnyType)


def check_dicts(info: TypeInfo, ctx: FunctionContext, report: Reporter) -> None:
    """Checks a call with ``**`` and a known dict, as if the entries were arguments."""
    call = ctx.context
    if not isinstance(call, CallExpr) or ArgKind.ARG_STAR2 not in call.arg_kinds:
        return
    given = expanded(arguments_in(call), report.api)
    if given is None:
        return
    signature = get_proper_type(report.api.get_expression_type(call.callee))  # not that of `without_types`
    if isinstance(signature, CallableType):
        check_call(signature, call.callee, given, call, report)


# --- `dx.replace` and `dataclasses.replace`: the parameters of the constructor ---------------------------


def replace_signature(ctx: FunctionSigContext, report: Reporter) -> FunctionLike | None:
    """The signature of one call, without fields that the constructor does not take."""
    if len(ctx.args) != 2 or len(ctx.args[0]) != 1:
        return None
    typ = get_proper_type(report.api.get_expression_type(ctx.args[0][0]))
    typ = get_proper_type(typ.upper_bound) if isinstance(typ, TypeVarType) else typ
    parts = [get_proper_type(item) for item in (typ.items if isinstance(typ, UnionType) else [typ])]
    if not parts or not all(isinstance(part, Instance) and any(map(is_declared, part.type.mro)) for part in parts):
        return None
    found = replace_function_sig_callback(ctx)
    fields = [declared_fields(part.type, report.api) for part in parts if isinstance(part, Instance)]
    made = {field.name for known in fields for field in known.values() if not field.in_init}
    kept = [index for index, name in enumerate(found.arg_names) if name not in made]
    return found.copy_modified(
        arg_names=[found.arg_names[index] for index in kept],
        arg_kinds=[found.arg_kinds[index] for index in kept],
        arg_types=[found.arg_types[index] for index in kept],
    )
