"""Models, their States, and filters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from mypy.nodes import ArgKind, CallExpr, DictExpr, EllipsisExpr, Expression, TypeInfo
from mypy.plugin import FunctionContext, MethodContext
from mypy.types import (
    AnyType,
    CallableType,
    Instance,
    Overloaded,
    ProperType,
    TupleType,
    Type,
    TypeType,
    get_proper_type,
)

from declax.mypy_plugin import names
from declax.mypy_plugin.declared import declared_fields, is_closed
from declax.mypy_plugin.expressions import arguments_of, fullname_of, info_named, leaves_of, literal
from declax.mypy_plugin.reporting import Reporter, error_code, text_of
from declax.mypy_plugin.statuses import is_array

# --- declax-filter: values that are not filters, filters that hide later ones, and the types of the results

FILTER = error_code("declax-filter", "A value is not a filter, or a filter hides later ones")

_GRAMMAR: Final = "a filter is a kind of Variable, a tag, ..., a function of path and value, or a tuple of these"


class Taker(NamedTuple):
    """A function or method that returns a State for each filter.

    Attributes:
      given: the class of these States; None if it is the class of the State that is split.
      is_headed: whether the GraphDef precedes them.
    """

    given: str | None = names.STATE
    is_headed: bool = False


FUNCTIONS: Final = {
    names.SPLIT: Taker(is_headed=True),
    names.STATE_OF: Taker(),
    names.POP: Taker(),
    names.UNPACK: Taker(names.GRAPH_STATE),
    names.FILTER_STATE: Taker(None),
    names.SPLIT_STATE: Taker(None),
}
"""Functions whose first argument is a node or a State."""
METHODS: Final = {
    f"{names.MODULE}.split": Taker(is_headed=True),
    f"{names.MODULE}.get_state": Taker(),
    **{f"{owner}.{name}": Taker(None) for owner in (names.STATE, names.FLAT_STATE) for name in ("split", "filter")},
}
NAMED: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    names.DIFF_STATE: (("argnum", "filter"), "filter"),
    names.OPTIMIZER: (("model", "tx", "wrt"), "wrt"),
    names.SET_METADATA: (("node",), "only"),
}
"""Functions with one filter: the names of their first parameters, and of the filter."""

Check = Callable[[Any, Reporter], "Type | None"]


def check_taker(taker: Taker) -> Check:
    """The check of a function or method that takes filters."""

    def check(ctx: FunctionContext | MethodContext, report: Reporter) -> Type | None:
        is_method = isinstance(ctx, MethodContext)
        filters = _positional(ctx)[0 if is_method else 1 :]
        _check_order(filters, ctx, report)
        given = ctx.arg_types[0] if ctx.arg_types else []
        node = ctx.type if isinstance(ctx, MethodContext) else given[0] if given else None
        return None if node is None else _exact(taker, node, len(filters), ctx)

    return check


def check_any(ctx: FunctionContext, report: Reporter) -> None:
    """Checks the filters of a call, in any order."""
    for entry in _positional(ctx):
        _check_filter(entry, ctx, report)


def check_labels(ctx: FunctionContext, report: Reporter) -> None:
    """Checks the filters that are keys of a dict of labels."""
    labels = next(iter(_positional(ctx)), None)
    if isinstance(labels, DictExpr):
        _check_order([key for key, _ in labels.items if key is not None], ctx, report)


def check_named(parameters: tuple[str, ...], wanted: str) -> Check:
    """The check of a function with one filter, by the names of its first parameters and of the filter."""

    def check(ctx: FunctionContext, report: Reporter) -> None:
        given = arguments_of(ctx.context, parameters)
        if wanted in given:
            _check_filter(given[wanted], ctx, report)

    return check


def _positional(ctx: FunctionContext | MethodContext) -> list[Expression]:
    """The positional arguments; empty if their number is unknown."""
    call = ctx.context
    if not isinstance(call, CallExpr) or ArgKind.ARG_STAR in call.arg_kinds:
        return []
    return [arg for arg, kind in zip(call.args, call.arg_kinds, strict=True) if kind is ArgKind.ARG_POS]


def _exact(taker: Taker, node: Type, count: int, ctx: FunctionContext | MethodContext) -> Type | None:
    """The type of the result, if there are more filters than overloads."""
    found = get_proper_type(ctx.default_return_type)
    if count < 2 or isinstance(found, TupleType) or isinstance(get_proper_type(node), AnyType):
        return None
    state, head = (None if name is None else info_named(name, ctx.api) for name in (taker.given, names.GRAPHDEF))
    if taker.given is not None and (state is None or head is None):
        return None
    each = node if state is None else Instance(state, [node])
    before = [Instance(head, [node])] if taker.is_headed and head is not None else []
    return TupleType([*before, *[each] * count], ctx.api.named_generic_type("builtins.tuple", [each]))


def _check_order(filters: Sequence[Expression], ctx: Any, report: Reporter) -> None:
    for place, entry in enumerate(filters):
        _check_filter(entry, ctx, report)
        if place < len(filters) - 1 and (isinstance(entry, EllipsisExpr) or literal(entry) is True):
            said = "..." if isinstance(entry, EllipsisExpr) else "True"
            report.error(
                f"{taker_of(ctx)}: the filter {said} matches all leaves, so the filters after it match none",
                entry,
                fix=f"{said} as the last filter",
            )


def _check_filter(expr: Expression, ctx: Any, report: Reporter) -> None:
    for entry in leaves_of(expr):
        problem = _problem_of(entry, report.api)
        if problem is not None:
            report.error(f"{taker_of(ctx)}: {problem}", entry, notes=[_GRAMMAR])


def taker_of(ctx: Any) -> str:
    """The name of the called function."""
    return str(getattr(getattr(ctx.context, "callee", None), "name", "the call"))


def _problem_of(expr: Expression, api: Any) -> str | None:
    if fullname_of(expr) == "typing.Any":
        return "typing.Any is not a filter; use dx.Any(filter, ...), or ... for all leaves"
    typ = get_proper_type(api.lookup_type_or_none(expr))
    info = class_of(typ)
    if info is None:
        is_value = isinstance(typ, Instance) and (typ.type.has_base(names.VARIABLE) or typ.type.has_base(names.PYTREE))
        return f"a value of type {text_of(typ)} is not a filter" if is_value else None
    if info.fallback_to_any or info.has_base(names.VARIABLE):
        return None
    if info.has_base(names.PREDICATE):
        return f"{info.name} is a class, not a filter; use {info.name}(...)"
    if info.has_base(names.PYTREE):
        return f"{info.name} is not a kind of Variable; leaves are Variables and arrays, not modules"
    return None


def class_of(typ: ProperType | None) -> TypeInfo | None:
    """The class, if an expression of this type is a class."""
    if isinstance(typ, (CallableType, Overloaded)):
        return typ.type_object() if typ.is_type_obj() else None
    item = get_proper_type(typ.item) if isinstance(typ, TypeType) else None
    return item.type if isinstance(item, Instance) else None


# --- declax-model: classes passed as models, and States of another model ---------------------------------

MODEL = error_code("declax-model", "A value is not a model, or a State belongs to another model")

_MAX_DEPTH: Final = 5


def check_node(ctx: FunctionContext, report: Reporter) -> None:
    """Checks that the first argument is not a class."""
    for expr, typ in _given(ctx, 0):
        info = class_of(typ)
        if info is not None and info.has_base(names.PYTREE):
            report.error(f"{taker_of(ctx)}: {info.name} is a class, not a model", expr, fix=f"{info.name}(...)")


def check_states(ctx: FunctionContext, report: Reporter) -> None:
    """Checks that the States passed with a model or GraphDef belong to it."""
    strict = arguments_of(ctx.context).get("strict")
    for _, given in _given(ctx, 0):
        is_graphdef = isinstance(given, Instance) and given.type.fullname == names.GRAPHDEF and bool(given.args)
        node = get_proper_type(given.args[0]) if isinstance(given, Instance) and is_graphdef else given
        if not isinstance(node, Instance) or not is_closed(node.type) or literal(strict) is False:
            continue
        for expr, typ in (*_given(ctx, 1), *_given(ctx, 2)):
            other = _model_of(expr, typ, ctx)
            foreign = _foreign(node.type, other.type, ctx.api) if isinstance(other, Instance) else []
            if foreign and isinstance(other, Instance):
                lacking = f"{node.type.name} has no {', '.join(map(repr, foreign))}"
                report.error(f"{taker_of(ctx)}: a State of {other.type.name} does not fit; {lacking}", expr)


def _given(ctx: FunctionContext, at: int) -> Iterator[tuple[Expression, ProperType]]:
    """The arguments for one parameter, with their types."""
    if at < len(ctx.args):
        for expr, typ in zip(ctx.args[at], ctx.arg_types[at], strict=False):
            yield expr, get_proper_type(typ)


def _model_of(expr: Expression, state: ProperType, ctx: FunctionContext) -> ProperType | None:
    """The model of a State; infers a call again, since mypy infers Any if a State of Any is expected."""
    if isinstance(state, Instance) and state.args and isinstance(get_proper_type(state.args[0]), AnyType):
        if isinstance(expr, CallExpr):
            with ctx.api.msg.filter_errors():
                state = get_proper_type(ctx.api.get_expression_type(expr))
    is_state = isinstance(state, Instance) and state.type.fullname == names.STATE and bool(state.args)
    return get_proper_type(state.args[0]) if isinstance(state, Instance) and is_state else None


def _foreign(holder: TypeInfo, other: TypeInfo, api: Any) -> list[str]:
    """The fields with leaves of another class that the class of the model does not have."""
    if holder.has_base(other.fullname) or other.has_base(holder.fullname) or other.fallback_to_any:
        return []
    return [name for name in names_with_leaves(other, api) if holder.get(name) is None]


def names_with_leaves(info: TypeInfo, api: Any, depth: int = 0) -> Iterator[str]:
    """The fields that have leaves in every instance: not Optional, and not a container, which may be empty."""
    for field in declared_fields(info, api).values():
        typ = field.type
        if field.is_init_var or field.is_static or not isinstance(typ, Instance):
            continue
        is_node = typ.type.has_base(names.PYTREE) and depth < _MAX_DEPTH
        if is_array(typ) or (is_node and any(names_with_leaves(typ.type, api, depth + 1))):
            yield field.name
