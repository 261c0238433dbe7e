"""declax-model: classes passed as models, and States of another model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from mypy.nodes import CallExpr, Expression, TypeInfo
from mypy.plugin import FunctionContext
from mypy.types import AnyType, Instance, ProperType, get_proper_type

from declax.mypy_plugin import names
from declax.mypy_plugin.checks.filtering import class_of, taker_of
from declax.mypy_plugin.declared import declared_fields, is_closed
from declax.mypy_plugin.expressions import arguments_of, literal
from declax.mypy_plugin.reporting import Reporter, error_code
from declax.mypy_plugin.statuses import is_array

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
