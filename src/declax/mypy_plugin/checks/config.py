"""Configurations that are literals, and calls with ``**config``: mypy checks the equivalent calls."""

from __future__ import annotations

from mypy.nodes import ArgKind, CallExpr, DictExpr, Expression, NameExpr, TypeInfo
from mypy.plugin import FunctionContext, FunctionSigContext
from mypy.types import AnyType, CallableType, FunctionLike, Instance, Type, TypeOfAny, UnionType, get_proper_type

from declax.mypy_plugin import names
from declax.mypy_plugin.constructors import (
    Wider,
    arguments_in,
    check_call,
    entries_of,
    expanded,
    named,
    signature_of,
    signature_of_class,
)
from declax.mypy_plugin.expressions import arguments_of, items_of, literal
from declax.mypy_plugin.reporting import Reporter

_ANY = AnyType(TypeOfAny.special_form)


def check(ctx: FunctionContext, report: Reporter) -> None:
    """Checks a configuration that is a literal."""
    call = ctx.context
    given = arguments_of(call, ("cls", "source"))
    if not isinstance(call, CallExpr) or "migrate" in given or "cls" not in given:
        return
    # tables and names may describe any value that is not plain data
    wider = Wider(report.api, lambda typ: _ANY)
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
        typ if any(arg not in dicts for arg in given) else _ANY
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
    given = expanded(arguments_in(call), report.api) if isinstance(call, CallExpr) and _dicts_of(call) else None
    if given is None or not isinstance(call, CallExpr):
        return
    signature = get_proper_type(report.api.get_expression_type(call.callee))  # not that of `without_types`
    if isinstance(signature, CallableType):
        check_call(signature, call.callee, given, call, report)
