"""declax-sizes: adjacent layers of a `Sequential` with different sizes, where these are literals or fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from mypy.nodes import MDEF, CallExpr, Expression, MemberExpr, NameExpr, OpExpr, RefExpr, TypeInfo
from mypy.plugin import FunctionContext

from declax.mypy_plugin import names
from declax.mypy_plugin.declared import declared_fields
from declax.mypy_plugin.expressions import arguments_of, fullname_of, items_of, source_of, value_of
from declax.mypy_plugin.reporting import Reporter, error_code

SIZES = error_code("declax-sizes", "Adjacent layers of a Sequential have different sizes")

Size: TypeAlias = Mapping[tuple[str, ...], int]
"""A polynomial: the names of the fields in each product, and its factor."""

_IN_OUT = ("in_features", "out_features")
_SIZES: Final = {
    names.LINEAR: (_IN_OUT, {"dot_general"}),
    names.CONV: (_IN_OUT, {"conv_general_dilated"}),
    names.EMBED: ((None, "features"), set[str]()),
    names.LAYER_NORM: (("num_features", "num_features"), {"feature_axes", "reduction_axes"}),
    names.BATCH_NORM: (("num_features", "num_features"), {"axis"}),
}
"""The parameters for the input and output features of a layer, and those that change their meaning."""

_PASSING: Final = frozenset(
    "celu elu gelu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu log_sigmoid log_softmax mish relu "
    "relu6 selu sigmoid silu soft_sign softmax softplus sparse_plus sparse_sigmoid squareplus standardize swish tanh "
    "avg_pool max_pool min_pool abs exp sin cos sqrt square log1p".split()
)
"""Functions of JAX and declax that keep the number of features."""


def check(ctx: FunctionContext, report: Reporter) -> None:
    """Checks the layers of one `Sequential`."""
    before: tuple[str, Expression, Size] | None = None
    args = ctx.context.args if isinstance(ctx.context, CallExpr) else []
    for layer in (items_of(args[0]) or args) if len(args) == 1 else args:
        if _passes(layer):
            continue
        name = (fullname_of(layer.callee) or "").rpartition(".")[2] if isinstance(layer, CallExpr) else ""
        taken, given = _sizes_of(layer)
        wanted, made = _size(taken, report.api), _size(given, report.api)
        if before is not None and taken is not None and wanted is not None and _differ(before[2], wanted):
            returned = f"{before[0]} before it returns {source_of(before[1])}"
            report.error(f"Sequential: {name} expects {source_of(taken)} features, but {returned}", layer)
        before = None if given is None or made is None else (name, given, made)


def _passes(layer: Expression) -> bool:
    """Whether a layer keeps the number of features."""
    if isinstance(layer, CallExpr):
        return fullname_of(layer.callee) == names.DROPOUT
    name = fullname_of(layer) or ""
    return name.rpartition(".")[2] in _PASSING and name.startswith(("jax.", "declax."))


def _sizes_of(layer: Expression) -> tuple[Expression | None, Expression | None]:
    """The input and output features of a layer, if they are given."""
    name = fullname_of(layer.callee) if isinstance(layer, CallExpr) else None
    if name not in _SIZES:
        return None, None
    (taken, given), unless = _SIZES[name]
    parameters = [parameter for parameter in dict.fromkeys((taken or "num_embeddings", given)) if parameter]
    arguments = arguments_of(layer, parameters)
    if unless & arguments.keys():
        return None, None
    return arguments.get(taken or ""), arguments.get(given or "")


def _size(expr: Expression | None, api: Any) -> Size | None:
    """A size made of numbers and fields; None if it may equal another one."""
    value = value_of(expr, api)
    if type(value) is int:
        return {(): value}
    if isinstance(expr, OpExpr) and expr.op in ("+", "*"):
        left, right = _size(expr.left, api), _size(expr.right, api)
        if left is None or right is None:
            return None
        terms = [*left.items(), *right.items()]
        if expr.op == "*":
            terms = [((*a, *b), m * n) for a, m in left.items() for b, n in right.items()]
        found: dict[tuple[str, ...], int] = {}
        for fields, count in terms:
            key = tuple(sorted(fields))
            found[key] = found.get(key, 0) + count
        return found
    name = _field_named(expr, api)
    return None if name is None else {(name,): 1}


def _field_named(expr: Expression | None, api: Any) -> str | None:
    """The field that an expression of a class body names, unless its default follows other fields."""
    owner = api.scope.active_class()
    if isinstance(expr, MemberExpr) and isinstance(expr.expr, RefExpr):
        owner = expr.expr.node
    elif not isinstance(expr, NameExpr) or expr.kind != MDEF:
        return None
    field = declared_fields(owner, api).get(expr.name) if isinstance(owner, TypeInfo) else None
    return expr.name if field is not None and field.specifier in ("field", "static") else None


def _differ(one: Size, other: Size) -> bool:
    """Whether two sizes are different numbers, or different expressions of fields."""
    return one != other and any(one) == any(other)  # a number is not compared with a field
