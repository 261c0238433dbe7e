"""declax-filter: what stands in the place of a filter, and how many States come of several.

Vocabulary
----------
taker: a function or method that takes filters; some give a State for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from mypy.nodes import ArgKind, CallExpr, DictExpr, EllipsisExpr, Expression, RefExpr, TypeInfo
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
from declax.mypy_plugin.expressions import arguments_of, items_of, literal
from declax.mypy_plugin.registry import Registry
from declax.mypy_plugin.reporting import Report, error_code
from declax.mypy_plugin.wording import text_of

FILTER = error_code("declax-filter", "What stands in the place of a filter is none, or takes what later ones ask for")

_GRAMMAR: Final = "a filter is a kind of Variable, a tag, ..., a function of path and value, or a tuple of these"


class Taker(NamedTuple):
    """A function or method that gives a State for each filter.

    Attributes:
      given: the class of these States, which are of the node; None where they are as the State that is parted.
      is_headed: whether the GraphDef comes before them.
    """

    given: str | None = names.STATE
    is_headed: bool = False


_FUNCTIONS: Final = {
    names.SPLIT: Taker(is_headed=True),
    names.STATE_OF: Taker(),
    names.POP: Taker(),
    names.UNPACK: Taker(names.GRAPH_STATE),
    names.FILTER_STATE: Taker(None),
    names.SPLIT_STATE: Taker(None),
}
"""Their first argument is a node, or a State."""
_METHODS: Final = {
    (names.MODULE, "split"): Taker(is_headed=True),
    (names.MODULE, "get_state"): Taker(),
    **{(owner, name): Taker(None) for owner in (names.STATE, names.FLAT_STATE) for name in ("split", "filter")},
}
_NAMED: Final = {
    names.DIFF_STATE: (("argnum", "filter"), "filter"),
    names.OPTIMIZER: (("model", "tx", "wrt"), "wrt"),
    names.SET_METADATA: (("node",), "only"),
}
"""Functions that take one filter by name: the names of their first parameters, and that of the filter."""


def register(hooks: Registry) -> None:
    """Puts the check at its hooks."""
    for function, taker in _FUNCTIONS.items():
        hooks.function(function, FILTER, _check_function(taker))
    for (owner, name), taker in _METHODS.items():
        hooks.method(owner, name, FILTER, _check_method(taker))
    for combination in names.FILTERS:
        hooks.function(combination, FILTER, check_combination)
    hooks.function(names.EXPLAIN_FILTERS, FILTER, check_explained)
    for function, (parameters, wanted) in _NAMED.items():
        hooks.function(function, FILTER, _check_named(parameters, wanted))
    for labels in (names.STATE_AXES, names.STATE_SHARDING):
        hooks.function(labels, FILTER, check_labels)


def _check_function(taker: Taker) -> Callable[[FunctionContext, Report], Type | None]:
    def check(ctx: FunctionContext, report: Report) -> Type | None:
        filters = _positional(ctx, skipped=1)
        if filters is None:
            return None
        _check_order(filters, ctx, report)
        node = ctx.arg_types[0][0] if ctx.arg_types and ctx.arg_types[0] else None
        return None if node is None else _exact(taker, node, len(filters), ctx)

    return check


def _check_method(taker: Taker) -> Callable[[MethodContext, Report], Type | None]:
    def check(ctx: MethodContext, report: Report) -> Type | None:
        filters = _positional(ctx, skipped=0)
        if filters is None:
            return None
        _check_order(filters, ctx, report)
        return _exact(taker, ctx.type, len(filters), ctx)

    return check


def check_explained(ctx: FunctionContext, report: Report) -> Type | None:
    """Checks a call whose filters need not be in a sensible order: it is asked what they do."""
    for entry in _positional(ctx, skipped=1) or ():
        _check_filter(entry, ctx, report)
    return None


def check_combination(ctx: FunctionContext, report: Report) -> Type | None:
    """Checks a call of a filter that combines others."""
    for entry in _positional(ctx, skipped=0) or ():
        _check_filter(entry, ctx, report)
    return None


def check_labels(ctx: FunctionContext, report: Report) -> Type | None:
    """Checks the keys of labels by filter."""
    call = ctx.context
    labels = call.args[0] if isinstance(call, CallExpr) and call.args else None
    if isinstance(labels, DictExpr) and all(key is not None for key, _ in labels.items):
        _check_order([key for key, _ in labels.items if key is not None], ctx, report)
    return None


def _check_named(parameters: tuple[str, ...], wanted: str) -> Callable[[FunctionContext, Report], Type | None]:
    def check(ctx: FunctionContext, report: Report) -> Type | None:
        given = arguments_of(ctx.context, parameters) if isinstance(ctx.context, CallExpr) else {}
        if wanted in given:
            _check_filter(given[wanted], ctx, report)
        return None

    return check


def _positional(ctx: FunctionContext | MethodContext, *, skipped: int) -> list[Expression] | None:
    """The arguments by position, less the first ones; None where their number is not known."""
    call = ctx.context
    if not isinstance(call, CallExpr) or ArgKind.ARG_STAR in call.arg_kinds:
        return None
    return [arg for arg, kind in zip(call.args, call.arg_kinds, strict=True) if kind is ArgKind.ARG_POS][skipped:]


def _exact(taker: Taker, node: Type, count: int, ctx: FunctionContext | MethodContext) -> Type | None:
    """The tuple of the result, where there are more filters than the annotations have overloads for."""
    found = get_proper_type(ctx.default_return_type)
    if count < 2 or isinstance(found, TupleType) or isinstance(get_proper_type(node), AnyType):
        return None
    state, head = (None if name is None else info_named(name, ctx.api) for name in (taker.given, names.GRAPHDEF))
    if taker.given is not None and (state is None or head is None):
        return None
    each = node if state is None else Instance(state, [node])
    before = [Instance(head, [node])] if taker.is_headed and head is not None else []
    return TupleType([*before, *[each] * count], ctx.api.named_generic_type("builtins.tuple", [each]))


def info_named(fullname: str, api: Any) -> TypeInfo | None:
    """A class by its full name; the checker's own search finds none in a package that nobody imports as a whole."""
    module, _, name = fullname.rpartition(".")
    tree = api.modules.get(module)
    found = None if tree is None else tree.names.get(name)
    return found.node if found is not None and isinstance(found.node, TypeInfo) else None


def _check_order(filters: list[Expression], ctx: Any, report: Report) -> None:
    for place, entry in enumerate(filters):
        _check_filter(entry, ctx, report)
        if place < len(filters) - 1 and (isinstance(entry, EllipsisExpr) or literal(entry) is True):
            said = "..." if isinstance(entry, EllipsisExpr) else "True"
            report.error(
                f"{taker_of(ctx)}: the filter {said} takes all leaves, so the filters behind it take none",
                entry,
                fix=f"{said} as the last filter",
            )


def _check_filter(expr: Expression, ctx: Any, report: Report) -> None:
    for entry in _leaves(expr):
        problem = _problem_of(entry, ctx.api)
        if problem is not None:
            report.error(f"{taker_of(ctx)}: {problem}", entry, notes=[_GRAMMAR])


def _leaves(expr: Expression) -> Iterator[Expression]:
    waiting = [expr]
    while waiting:
        entry = waiting.pop()
        items = items_of(entry)
        if items is None:
            yield entry
        else:
            waiting += items


def taker_of(ctx: Any) -> str:
    """The name of what is called."""
    call = ctx.context
    callee = call.callee if isinstance(call, CallExpr) else None
    return str(getattr(callee, "name", "the call"))


def _problem_of(expr: Expression, api: Any) -> str | None:
    if isinstance(expr, RefExpr) and expr.fullname == "typing.Any":
        return "typing.Any is no filter; dx.Any(filter, ...) is, and ... takes all leaves"
    found = api.lookup_type_or_none(expr)
    typ = None if found is None else get_proper_type(found)
    info = class_of(typ)
    if info is not None:
        return _problem_of_class(info)
    if isinstance(typ, Instance) and (typ.type.has_base(names.VARIABLE) or typ.type.has_base(names.PYTREE)):
        return f"a value of type {text_of(typ)} is no filter"
    return None


def class_of(typ: ProperType | None) -> TypeInfo | None:
    """The class that an expression of this type is."""
    if isinstance(typ, (CallableType, Overloaded)):
        return typ.type_object() if typ.is_type_obj() else None
    item = get_proper_type(typ.item) if isinstance(typ, TypeType) else None
    return item.type if isinstance(item, Instance) else None


def _problem_of_class(info: TypeInfo) -> str | None:
    if info.fallback_to_any or info.has_base(names.VARIABLE):
        return None
    if any(info.has_base(base) for base in names.PREDICATES):
        return f"{info.name} is the class of a filter, and no filter; {info.name}(...) is one"
    if info.has_base(names.PYTREE):
        return f"{info.name} is no kind of Variable; leaves are Variables and arrays, never modules"
    return None
