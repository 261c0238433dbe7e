"""The constructor calls that specs, configurations and dicts describe; mypy checks these calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mypy.erasetype import erase_typevars
from mypy.nodes import ArgKind, AssignmentStmt, CallExpr, Context, DictExpr, Expression, NameExpr, StrExpr, Var
from mypy.subtypes import is_subtype
from mypy.typeops import bind_self
from mypy.types import (
    AnyType,
    CallableType,
    Instance,
    LiteralType,
    NoneType,
    ProperType,
    TupleType,
    Type,
    TypeAliasType,
    TypedDictType,
    UnionType,
    get_proper_type,
)

from declax.mypy_plugin import names
from declax.mypy_plugin.declared import RNGS, depend_on
from declax.mypy_plugin.expressions import ANY, fullname_of, nodes_in_module
from declax.mypy_plugin.reporting import Reporter, outside_of_trials, suggest, text_of
from declax.mypy_plugin.statuses import MAX_OPEN, is_container


class Wider:
    """Widens a type to all types that are accepted for its values; for a container, any sequence or mapping.

    Args:
      api: mypy's checker.
      of: widens the types of values that are neither containers nor plain data; None widens nothing.
    """

    def __init__(self, api: Any, of: Callable[[Type], Type] | None = None) -> None:
        self.api = api
        self._of = of
        self._open: list[Type] = []

    def __call__(self, typ: Type) -> Type:
        """The wider type. A recursive alias stays as it is inside of itself, where all values are accepted."""
        if not isinstance(typ, TypeAliasType) or not typ.is_recursive:
            return self._wider(get_proper_type(typ))
        if typ in self._open or len(self._open) > MAX_OPEN:
            return ANY
        self._open.append(typ)
        try:
            return self._wider(get_proper_type(typ))
        finally:
            self._open.pop()

    def _wider(self, typ: ProperType) -> Type:
        if self._of is None or isinstance(typ, (NoneType, LiteralType, AnyType)):
            return typ
        if isinstance(typ, UnionType):
            return UnionType.make_union([self(item) for item in typ.items])
        if isinstance(typ, TypedDictType):
            is_plain = all(self(item) == get_proper_type(item) for item in typ.items.values())
            return typ if is_plain else ANY  # mypy reads the types of keys from the class
        if isinstance(typ, TupleType):
            items = [self(item) for item in typ.items]
            is_named = typ.partial_fallback.type.fullname != "builtins.tuple"
            whole = self._of(typ) if is_named else typ.copy_modified(items=items)
            return UnionType([whole, self._sequence(UnionType.make_union(items))])
        if isinstance(typ, Instance) and is_container(typ.type) and typ.args:
            args = [self(arg) for arg in typ.args]
            if typ.type.has_base("typing.Mapping"):
                return typ.copy_modified(args=args)
            if typ.type.has_base("typing.AbstractSet"):
                found = self.api.named_generic_type("typing.AbstractSet", args)
                return UnionType([self._sequence(args[0]), found])
            if not isinstance(args[0], AnyType):
                return self._sequence(args[0])
            table = self.api.named_generic_type("typing.Mapping", [self.api.named_type("builtins.str"), args[0]])
            return UnionType([self._sequence(args[0]), table])  # a table overrides all elements of a dx.repeat
        return typ if isinstance(typ, Instance) and typ.type.module_name == "builtins" else self._of(typ)

    def _sequence(self, item: Type) -> Type:
        found: Type = self.api.named_generic_type("typing.Sequence", [item])
        return found


def signature_of(typ: Type | None, wider: Wider) -> CallableType | None:
    """The parameters of a class or function except `rngs`, with wider types."""
    typ = get_proper_type(typ)
    if not isinstance(typ, CallableType) or typ.is_ellipsis_args:
        return None
    if typ.is_type_obj() and typ.type_object().fallback_to_any:
        return None
    erased = erase_typevars(typ)
    assert isinstance(erased, CallableType)
    kept = [index for index, name in enumerate(typ.arg_names) if name != RNGS]
    return erased.copy_modified(
        arg_names=[typ.arg_names[index] for index in kept],
        arg_kinds=[typ.arg_kinds[index] for index in kept],
        arg_types=[wider(erased.arg_types[index]) for index in kept],
        variables=[],
    )


def signature_of_class(typ: Type, wider: Wider) -> CallableType | None:
    """The parameters, except `rngs`, of the constructor of a Pytree class."""
    typ = get_proper_type(typ)
    if not isinstance(typ, Instance) or not typ.type.has_base(names.PYTREE) or typ.type.fallback_to_any:
        return None
    depend_on(typ.type, wider.api)
    init = typ.type.get_method("__init__")
    found = None if init is None else get_proper_type(init.type)
    if not isinstance(found, CallableType):
        return None
    return signature_of(bind_self(found, typ).copy_modified(name=typ.type.name), wider)


Argument = tuple[Expression, ArgKind, "str | None"]


def arguments_in(call: CallExpr) -> list[Argument]:
    """The arguments of a call, each with its kind and name."""
    return list(zip(call.args, call.arg_kinds, call.arg_names, strict=True))


def expanded(given: list[Argument], api: Any) -> list[Argument] | None:
    """Arguments with ``**`` dicts replaced by their entries; None if a dict is unknown."""
    found: list[Argument] = []
    for arg, kind, name in given:
        entries = entries_of(arg, api) if kind is ArgKind.ARG_STAR2 else None
        if kind is ArgKind.ARG_STAR or (kind is ArgKind.ARG_STAR2 and entries is None):
            return None
        found += [(arg, kind, name)] if entries is None else named(entries)
    return found


def named(entries: dict[str, Expression]) -> list[Argument]:
    """The entries of a dict as arguments."""
    return [(value, ArgKind.ARG_NAMED, name) for name, value in entries.items()]


def check_call(
    signature: CallableType, callee: Expression, given: list[Argument], place: Context, report: Reporter
) -> None:
    """Lets mypy check a call, and report errors at a place."""
    with outside_of_trials(report.api) as is_shown:
        if is_shown:
            args, kinds, arg_names = map(list, zip(*given, strict=True)) if given else ([], [], [])
            call = CallExpr(callee, args, kinds, arg_names)
            call.set_line(place)
            report.api.expr_checker.check_call(signature, args, kinds, call, arg_names)


def check_value(where: str, wanted: Type, wider: Wider, value: Expression, report: Reporter) -> None:
    """Compares a value with the type of its parameter."""
    with report.api.msg.filter_errors() as watcher:
        found = report.api.get_expression_type(value, wider(wanted))
    if watcher.has_new_errors() or not is_subtype(found, wider(wanted)):
        report.error(f"{where}: expected {text_of(wanted)}, got {text_of(found)}", value)


def tell_unknown(where: str, name: str, signature: CallableType, place: Context, report: Reporter) -> None:
    """Reports an unknown parameter."""
    known = [known for known in signature.arg_names if known is not None]
    report.error(f"{where}: there is no parameter {name!r}{suggest(name, known)}", place)


def entries_of(expr: Expression | None, api: Any) -> dict[str, Expression] | None:
    """The entries of a dict literal, also of a name that is assigned once."""
    if isinstance(expr, NameExpr) and isinstance(expr.node, Var):
        expr = _value_of(expr.node, api)
    if isinstance(expr, CallExpr) and fullname_of(expr.callee) == "builtins.dict":
        is_named = all(kind is ArgKind.ARG_NAMED for kind in expr.arg_kinds)
        return {name or "": arg for arg, _, name in arguments_in(expr)} if is_named else None
    if not isinstance(expr, DictExpr) or not all(isinstance(key, StrExpr) for key, _ in expr.items):
        return None
    return {key.value: value for key, value in expr.items if isinstance(key, StrExpr)}


def _value_of(var: Var, api: Any) -> Expression | None:
    """The value of a name that is assigned once and used only as ``**name``, or by functions that only read a dict."""
    values = [found for found in nodes_in_module(api, AssignmentStmt) if _is(found.lvalues[0], var)]
    uses = sum(found.node is var for found in nodes_in_module(api, NameExpr))
    read = sum(
        _is(arg, var) and (kind is ArgKind.ARG_STAR2 or fullname_of(call.callee) in names.DICT_READERS)
        for call in nodes_in_module(api, CallExpr)
        for arg, kind, _ in arguments_in(call)
    )
    read += sum(key is None and _is(item, var) for found in nodes_in_module(api, DictExpr) for key, item in found.items)
    return values[0].rvalue if len(values) == 1 and uses == 1 + read else None


def _is(expr: Expression, var: Var) -> bool:
    return isinstance(expr, NameExpr) and expr.node is var
