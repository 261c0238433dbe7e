"""The types of results that annotations cannot express: items, captured States, and calls of recurrent layers.

Where the arguments of a call decide the types of later results, the type of its result remembers them, in attributes
whose names are no identifiers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mypy.nodes import ArgKind, AssignmentStmt, CallExpr, Expression, IndexExpr, MemberExpr, TypeInfo
from mypy.plugin import FunctionContext, MethodContext
from mypy.types import (
    CallableType,
    Instance,
    LiteralType,
    NoneType,
    ProperType,
    TupleType,
    Type,
    UnionType,
    get_proper_type,
)

from declax.mypy_plugin import names
from declax.mypy_plugin.checks.configs import type_at
from declax.mypy_plugin.checks.gradients import array_type
from declax.mypy_plugin.constructors import entries_of
from declax.mypy_plugin.declared import flag_of
from declax.mypy_plugin.expressions import ANY, arguments_of, info_named, items_of, literal, nodes_in_module, tuple_of
from declax.mypy_plugin.reporting import Reporter, suggest

# --- what a type remembers of the call that made it ----------------------------------------------------------

_MARK: Final = "declax:"


def _remember(typ: Type, found: Mapping[str, Type]) -> Type | None:
    """A type that remembers other types by name; None if there is nothing to remember."""
    result = get_proper_type(typ)
    if not isinstance(result, Instance) or not found:
        return None
    for name, remembered in found.items():
        result = result.copy_with_extra_attr(_MARK + name, remembered)
    return result


def _remembered(typ: Type) -> dict[str, Type]:
    """The types that a type remembers, by name."""
    found = get_proper_type(typ)
    attrs = found.extra_attrs.attrs if isinstance(found, Instance) and found.extra_attrs is not None else {}
    return {name.removeprefix(_MARK): attr for name, attr in attrs.items() if name.startswith(_MARK)}


def _type_of(expr: Expression, api: Any) -> ProperType:
    """The type of an expression; of a literal, that of its class."""
    with api.msg.filter_errors():
        found = get_proper_type(api.get_expression_type(expr))
    return found.copy_modified(last_known_value=None) if isinstance(found, Instance) else found


# --- items of checkpoints ------------------------------------------------------------------------------------

_SCALARS: Final = frozenset({"builtins.int", "builtins.float", "builtins.bool", "builtins.str"})


def of_load(ctx: FunctionContext | MethodContext, report: Reporter) -> Type | None:
    """The type of ``load(path, into={...})``, which remembers the types of the items."""
    into = arguments_of(ctx.context, ("path", "into")).get("into")
    entries = entries_of(into, report.api) or {}
    return _remember(ctx.default_return_type, {name: _item(value, report.api) for name, value in entries.items()})


def _item(target: Expression, api: Any) -> Type:
    """The type of an item with a target: that of the target, if it is a graph, a State or a number."""
    found = _type_of(target, api)
    if not isinstance(found, Instance):
        return ANY
    is_kept = found.type.fullname in _SCALARS or any(found.type.has_base(one) for one in (names.PYTREE, names.STATE))
    return found if is_kept else ANY


def of_restored(ctx: MethodContext, report: Reporter) -> Type | None:
    """The type of ``restored["model"]``."""
    items, place = _remembered(ctx.type), ctx.context
    name = literal(place.index) if isinstance(place, IndexExpr) else None
    if not isinstance(name, str):
        return None
    hint = suggest(name, items)
    if hint and name not in items:  # another name may be that of an item of another call
        report.error(f"Restored: into= has no item {name!r}{hint}", place)
    return items.get(name)


# --- elements of Sequential ----------------------------------------------------------------------------------


def of_sequential(ctx: FunctionContext, report: Reporter) -> Type | None:
    """The type of ``Sequential(...)``, which remembers the types of its elements."""
    call = ctx.context
    if not isinstance(call, CallExpr) or any(kind is not ArgKind.ARG_POS for kind in call.arg_kinds):
        return None
    listed = items_of(call.args[0]) if len(call.args) == 1 else None
    elements = call.args if listed is None else listed
    types = [_type_of(element, report.api) for element in elements]
    return _remember(ctx.default_return_type, {str(index): typ for index, typ in enumerate(types)})


def of_element(ctx: MethodContext, report: Reporter) -> Type | None:
    """The type of ``sequential[0]``, if the module sets no element."""
    elements, place = list(_remembered(ctx.type).values()), ctx.context
    index = literal(place.index) if isinstance(place, IndexExpr) else None
    if not isinstance(index, int) or not -len(elements) <= index < len(elements) or _sets_elements(report.api):
        return None
    return elements[index]


def _sets_elements(api: Any) -> bool:
    """Whether the module sets an element of a Sequential."""
    targets = [target for found in nodes_in_module(api, AssignmentStmt) for target in found.lvalues]
    bases = [target.base for target in targets if isinstance(target, IndexExpr)]
    types = [get_proper_type(api.lookup_type_or_none(base)) for base in bases]
    return any(isinstance(typ, Instance) and typ.type.has_base(names.SEQUENTIAL) for typ in types)


# --- calls of recurrent layers -------------------------------------------------------------------------------

_RETURN_CARRY: Final = "return_carry"


def of_constructor(info: TypeInfo, ctx: FunctionContext, report: Reporter) -> Type | None:
    """The type of ``RNN(...)`` and ``Bidirectional(...)``, which remembers whether calls return the last state."""
    call = ctx.context
    if info.fullname not in names.RECURRENT or not isinstance(call, CallExpr) or ArgKind.ARG_STAR2 in call.arg_kinds:
        return None
    given = arguments_of(call).get(_RETURN_CARRY)
    flag = False if given is None else flag_of(given)
    if flag is None:
        return None
    boolean = report.api.named_type("builtins.bool")
    return _remember(ctx.default_return_type, {_RETURN_CARRY: LiteralType(flag, boolean)})


def of_recurrent(ctx: MethodContext, report: Reporter) -> Type | None:
    """The type of ``rnn(x)``: the outputs, or with `return_carry` the last state and the outputs."""
    flag, layer = _remembered(ctx.type).get(_RETURN_CARRY), get_proper_type(ctx.type)
    is_given = _RETURN_CARRY in arguments_of(ctx.context)
    if not isinstance(flag, LiteralType) or is_given or not isinstance(layer, Instance):
        return None
    outputs = array_type(report.api)
    if not flag.value:
        return outputs
    carry = layer.args[0] if layer.args else None
    if carry is None:
        return None
    return tuple_of([carry, outputs], report.api)


# --- captured States -----------------------------------------------------------------------------------------


def of_capture(ctx: FunctionContext, report: Reporter) -> Type | None:
    """The type of ``capture(model, dx.Intermediate)``: a State of the model for each kind."""
    call, found = ctx.context, get_proper_type(ctx.default_return_type)
    if not isinstance(call, CallExpr) or not isinstance(found, CallableType) or not call.args:
        return None
    if any(kind.is_star() for kind in call.arg_kinds):
        return None
    kinds = sum(kind is ArgKind.ARG_POS for kind in call.arg_kinds) - 1
    model, result = _model_of(call.args[0], ctx, report.api), get_proper_type(found.ret_type)
    state = info_named(names.STATE, report.api)
    if kinds < 1 or model is None or state is None or not isinstance(result, (TupleType, Instance)):
        return None
    value = result.items[0] if isinstance(result, TupleType) else ANY
    states = [Instance(state, [model]) for _ in range(kinds)]
    return found.copy_modified(ret_type=tuple_of([value, *states], report.api))


def _model_of(function: Expression, ctx: FunctionContext, api: Any) -> Type | None:
    """The model whose modules sow while a function runs: the module, that of a method, or the first argument."""
    typ = get_proper_type(ctx.arg_types[0][0]) if ctx.arg_types and ctx.arg_types[0] else None
    owner = get_proper_type(api.lookup_type_or_none(function.expr)) if isinstance(function, MemberExpr) else None
    if isinstance(owner, Instance) and owner.type.get_method(getattr(function, "name", "")) is not None:
        model: ProperType | None = owner
    elif isinstance(typ, CallableType):
        is_positional = bool(typ.arg_types) and typ.arg_kinds[0].is_positional()
        model = get_proper_type(typ.arg_types[0]) if is_positional else None
    else:
        model = typ
    return model if isinstance(model, Instance) and model.type.has_base(names.PYTREE) else None


# --- items of specs ------------------------------------------------------------------------------------------

_TUPLE: Final = "builtins.tuple"
_FROZEN: Final = {_TUPLE: _TUPLE, "builtins.list": "typing.Sequence", "builtins.dict": "typing.Mapping"}
"""What the containers of parameters are in a spec."""


def of_spec_item(ctx: MethodContext, report: Reporter) -> Type | None:
    """The type of ``spec["up.out_features"]``."""
    receiver, place = get_proper_type(ctx.type), ctx.context
    path = literal(place.index) if isinstance(place, IndexExpr) else None
    if not isinstance(receiver, Instance) or not receiver.args or not isinstance(path, str):
        return None
    wanted = type_at(receiver.args[0], path, f"spec[{path!r}]", place, report)
    return None if wanted is None else _described(wanted, report.api)


def _described(typ: Type, api: Any) -> Type | None:
    """The type that a spec holds for a parameter of a type: a Spec for a part; None if it is unknown."""
    found = get_proper_type(typ)
    if isinstance(found, (NoneType, LiteralType, CallableType)):
        return found
    if isinstance(found, (UnionType, TupleType)):
        items = _all_described(found.items, api)
        if items is None:
            return None
        return UnionType.make_union(items) if isinstance(found, UnionType) else found.copy_modified(items=items)
    if not isinstance(found, Instance):
        return None
    if found.type.has_base(names.PYTREE):
        spec = info_named(names.SPEC_CLASS, api)
        return None if spec is None else Instance(spec, [found])
    if found.type.fullname in _FROZEN:
        args = _all_described(found.args, api)
        return None if args is None else api.named_generic_type(_FROZEN[found.type.fullname], args)
    return found if found.type.fullname in _SCALARS or found.type.is_enum else None


def _all_described(types: Sequence[Type], api: Any) -> list[Type] | None:
    described = [_described(typ, api) for typ in types]
    known = [typ for typ in described if typ is not None]
    return known if len(known) == len(described) else None
