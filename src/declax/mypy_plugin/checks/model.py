"""declax-model: what stands in the place of a model, and States of another model.

Vocabulary
----------
holder: the class of the model that is given a State.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mypy.nodes import CallExpr, Expression, TypeInfo
from mypy.plugin import FunctionContext
from mypy.types import AnyType, Instance, ProperType, Type, get_proper_type

from declax.mypy_plugin import names
from declax.mypy_plugin.checks.filtering import class_of, taker_of
from declax.mypy_plugin.checks.path import is_closed, is_static
from declax.mypy_plugin.declared import declared_fields
from declax.mypy_plugin.expressions import arguments_of, literal
from declax.mypy_plugin.registry import Registry
from declax.mypy_plugin.reporting import Report, error_code
from declax.mypy_plugin.wording import text_of

MODEL = error_code("declax-model", "What stands in the place of a model is none, or a State is of another model")

_TAKERS: Final = (
    *(names.SPLIT, names.STATE_OF, names.GRAPHDEF_OF, names.CLONE, names.POP, names.UNPACK, names.UPDATE),
    *(names.VIEW, names.WITH_ATTRIBUTES, names.SUMMARY, names.AS_ABSTRACT, names.AS_PURE, names.SET_METADATA),
    *(names.TO_REFS, names.TO_ARRAYS, names.FIND_DUPLICATES, names.EXPLAIN_FILTERS),
    *(names.SPEC_OF, names.TO_CONFIG, names.OPTIMIZER, names.VARIABLES_OF, names.ITER_GRAPH, names.ITER_MODULES),
)
_MAX_DEPTH: Final = 5


def register(hooks: Registry) -> None:
    """Puts the check at its hooks."""
    for function in _TAKERS:
        hooks.function(function, MODEL, check_node)
    hooks.function(names.UPDATE, MODEL, check_update)
    hooks.function(names.MERGE, MODEL, check_merge)


def check_node(ctx: FunctionContext, report: Report) -> Type | None:
    """Checks that the first argument is no class."""
    for expr, typ in _given(ctx, 0):
        info = class_of(typ)
        if info is not None and info.has_base(names.PYTREE):
            report.error(
                f"{taker_of(ctx)}: {info.name} is a class, and no model",
                expr,
                fix=f"{info.name}(...)        # an instance",
            )
    return None


def check_update(ctx: FunctionContext, report: Report) -> Type | None:
    """Checks the States that a model is given."""
    strict = arguments_of(ctx.context).get("strict") if isinstance(ctx.context, CallExpr) else None
    if strict is None or literal(strict) is True:
        for _, node in _given(ctx, 0):
            _check_states(node, ctx, report, "dx.update(..., strict=False)        # takes what fits")
    return None


def check_merge(ctx: FunctionContext, report: Report) -> Type | None:
    """Checks the States that go with a GraphDef."""
    for _, graphdef in _given(ctx, 0):
        if isinstance(graphdef, Instance) and graphdef.type.fullname == names.GRAPHDEF and graphdef.args:
            _check_states(get_proper_type(graphdef.args[0]), ctx, report, None)
    return None


def _given(ctx: FunctionContext, at: int) -> Iterator[tuple[Expression, ProperType]]:
    """What is given for one parameter."""
    if at < len(ctx.args):
        for expr, typ in zip(ctx.args[at], ctx.arg_types[at], strict=False):
            yield expr, get_proper_type(typ)


def _check_states(node: ProperType, ctx: FunctionContext, report: Report, fix: str | None) -> None:
    if not isinstance(node, Instance) or not is_closed(node.type):
        return
    for expr, state in (*_given(ctx, 1), *_given(ctx, 2)):
        if not isinstance(state, Instance) or state.type.fullname != names.STATE or not state.args:
            continue
        other: ProperType | None = get_proper_type(state.args[0])
        if isinstance(other, AnyType) and isinstance(expr, CallExpr):
            other = _of_call(expr, ctx)
        foreign = _foreign(node.type, other, ctx) if isinstance(other, Instance) else []
        if foreign and other is not None:
            name = node.type.name
            report.error(
                f"{taker_of(ctx)}: a State[{text_of(other)}] in the place of a State of {name};"
                f" {name} has no {', '.join(map(repr, foreign))}",
                expr,
                fix=fix,
            )


def _of_call(expr: CallExpr, ctx: FunctionContext) -> ProperType | None:
    """What the State is of that a call gives; where a State of Any is asked for, mypy takes it for that."""
    with ctx.api.msg.filter_errors():
        found = get_proper_type(ctx.api.get_expression_type(expr))
    is_state = isinstance(found, Instance) and found.type.fullname == names.STATE and bool(found.args)
    return get_proper_type(found.args[0]) if isinstance(found, Instance) and is_state else None


def _foreign(holder: TypeInfo, other: Instance, ctx: FunctionContext) -> list[str]:
    """The fields whose leaves a State of the other class has, and that the holder has not."""
    info = other.type
    if holder.has_base(info.fullname) or info.has_base(holder.fullname) or info.fallback_to_any:
        return []
    return [name for name in _names_with_leaves(info, ctx, 0) if holder.get(name) is None]


def _names_with_leaves(info: TypeInfo, ctx: FunctionContext, depth: int) -> Iterator[str]:
    """The fields that have leaves in any instance: no Optional, and no container that may be empty."""
    for field in declared_fields(info, ctx.api).values():
        typ = field.type
        if field.is_init_var or is_static(field) or not isinstance(typ, Instance):
            continue
        bases = {base.fullname for base in typ.type.mro}
        is_leaf = names.VARIABLE in bases or bool(bases & names.ARRAYS)
        is_node = names.PYTREE in bases and depth < _MAX_DEPTH
        if is_leaf or (is_node and any(_names_with_leaves(typ.type, ctx, depth + 1))):
            yield field.name
