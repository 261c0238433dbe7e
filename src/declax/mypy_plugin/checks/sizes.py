"""declax-sizes: adjacent layers of a `Sequential` with different sizes, where these are literals."""

from __future__ import annotations

from typing import Final

from mypy.nodes import CallExpr, Expression
from mypy.plugin import FunctionContext
from mypy.types import Instance, LiteralType, get_proper_type

from declax.mypy_plugin import names
from declax.mypy_plugin.expressions import arguments_of, fullname_of, items_of
from declax.mypy_plugin.reporting import Reporter, error_code

SIZES = error_code("declax-sizes", "Adjacent layers of a Sequential have different sizes")

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
    before: tuple[str, int] | None = None
    args = ctx.context.args if isinstance(ctx.context, CallExpr) else []
    for layer in (items_of(args[0]) or args) if len(args) == 1 else args:
        if _passes(layer):
            continue
        name = (fullname_of(layer.callee) or "").rpartition(".")[2] if isinstance(layer, CallExpr) else ""
        taken, given = _sizes_of(layer, report)
        if before is not None and taken is not None and before[1] != taken:
            text = f"Sequential: {name} expects {taken} features, but {before[0]} before it returns {before[1]}"
            report.error(text, layer)
        before = None if given is None else (name, given)


def _passes(layer: Expression) -> bool:
    """Whether a layer keeps the number of features."""
    if isinstance(layer, CallExpr):
        return fullname_of(layer.callee) == names.DROPOUT
    name = fullname_of(layer) or ""
    return name.rpartition(".")[2] in _PASSING and name.startswith(("jax.", "declax."))


def _sizes_of(layer: Expression, report: Reporter) -> tuple[int | None, int | None]:
    """The input and output features of a layer, if they are known."""
    name = fullname_of(layer.callee) if isinstance(layer, CallExpr) else None
    if name not in _SIZES:
        return None, None
    (taken, given), unless = _SIZES[name]
    parameters = [parameter for parameter in dict.fromkeys((taken or "num_embeddings", given)) if parameter]
    arguments = arguments_of(layer, parameters)
    if unless & arguments.keys():
        return None, None
    return _number(arguments.get(taken or ""), report), _number(arguments.get(given or ""), report)


def _number(expr: Expression | None, report: Reporter) -> int | None:
    """The value of an int literal, or of a Final name."""
    typ = None if expr is None else get_proper_type(report.api.lookup_type_or_none(expr))
    if isinstance(typ, Instance) and typ.last_known_value is not None:
        typ = typ.last_known_value
    return typ.value if isinstance(typ, LiteralType) and type(typ.value) is int else None
