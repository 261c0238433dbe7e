"""declax-sizes: the sizes of layers that stand next to each other in a `Sequential`, where literals tell them.

Vocabulary
----------
size:   of the last axis: the features that a layer takes or gives.
passed: of a layer, that it gives the size that it takes: an activation, a dropout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from mypy.nodes import ArgKind, CallExpr, Expression, RefExpr, StarExpr
from mypy.plugin import FunctionContext
from mypy.types import Instance, LiteralType, Type, get_proper_type

from declax.mypy_plugin import names
from declax.mypy_plugin.expressions import arguments_of, items_of, literal
from declax.mypy_plugin.registry import Registry
from declax.mypy_plugin.reporting import Report, error_code

SIZES = error_code("declax-sizes", "A layer of a Sequential does not take what the layer before it gives")


class Kind(NamedTuple):
    """How a class of layers says its sizes.

    Attributes:
      parameters: the first parameters of its constructor.
      taken, given: those that are the sizes; None where it takes none.
      unless: parameters that change what the sizes mean.
    """

    parameters: tuple[str, ...]
    taken: str | None
    given: str
    unless: tuple[str, ...] = ()


_KINDS: Final = {
    names.LINEAR: Kind(("in_features", "out_features"), "in_features", "out_features", ("dot_general",)),
    names.CONV: Kind(("in_features", "out_features"), "in_features", "out_features", ("conv_general_dilated",)),
    names.EMBED: Kind(("num_embeddings", "features"), None, "features"),
    names.LAYER_NORM: Kind(("num_features",), "num_features", "num_features", ("feature_axes", "reduction_axes")),
    names.BATCH_NORM: Kind(("num_features",), "num_features", "num_features", ("axis",)),
}

_PASSING: Final = frozenset(
    "celu elu gelu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu log_sigmoid log_softmax mish relu "
    "relu6 selu sigmoid silu soft_sign softmax softplus sparse_plus sparse_sigmoid squareplus standardize swish tanh "
    "avg_pool max_pool min_pool abs exp sin cos sqrt square log1p".split()
)
"""Functions of JAX and of declax that give the size that they take."""

_MAX_DEPTH: Final = 50


class Layer(NamedTuple):
    """One layer: the sizes that it takes and gives, where they are known, and where it stands."""

    place: Expression
    name: str
    taken: int | None
    given: int | None
    is_passed: bool = False


def register(hooks: Registry) -> None:
    """Puts the check at its hook."""
    hooks.function(names.SEQUENTIAL, SIZES, check)


def check(ctx: FunctionContext, report: Report) -> Type | None:
    """Checks the layers of one chain."""
    call = ctx.context
    before: Layer | None = None
    for layer in _layers_of(call, ctx.api, 0) if isinstance(call, CallExpr) else ():
        if layer.is_passed:
            continue
        if before is not None and None not in (before.given, layer.taken) and before.given != layer.taken:
            report.error(
                f"Sequential: {layer.name} takes {layer.taken} features, and {before.name} before it gives"
                f" {before.given}",
                layer.place,
            )
        before = layer
    return None


def _layers_of(call: CallExpr, api: Any, depth: int) -> Iterator[Layer]:
    """The layers of a chain; those of chains in it are layers of their own."""
    for expr in _arguments(call):
        is_chain = isinstance(expr, CallExpr) and _fullname(expr.callee) == names.SEQUENTIAL
        if isinstance(expr, CallExpr) and is_chain and depth < _MAX_DEPTH:
            yield from _of_inner(expr, api, depth)
        else:
            yield _layer(expr, api)


def _of_inner(chain: CallExpr, api: Any, depth: int) -> Iterator[Layer]:
    """What a chain in a chain takes and gives; what is wrong inside of it is told at its own call."""
    layers = [layer for layer in _layers_of(chain, api, depth + 1) if not layer.is_passed]
    if layers:
        yield Layer(chain, "Sequential(...)", layers[0].taken, layers[-1].given)


def _arguments(call: CallExpr) -> Sequence[Expression]:
    """The expressions of the layers: arguments, or the entries of one list."""
    items = items_of(call.args[0]) if len(call.args) == 1 and call.arg_kinds[0] is ArgKind.ARG_POS else None
    return call.args if items is None else items


def _layer(expr: Expression, api: Any) -> Layer:
    if _passes(expr):
        return Layer(expr, "", None, None, is_passed=True)
    if not isinstance(expr, CallExpr):
        return Layer(expr, "", None, None)
    name = _fullname(expr.callee)
    if name == names.DROPOUT:
        return Layer(expr, "", None, None, is_passed=True)
    kind = _KINDS.get(name or "")
    given = {} if kind is None else arguments_of(expr, kind.parameters)
    if kind is None or any(option in given for option in kind.unless):
        return Layer(expr, "", None, None)
    sizes = {size: _number(given.get(size), api) for size in (kind.taken, kind.given) if size is not None}
    said = ", ".join("..." if number is None else str(number) for number in sizes.values())
    taken = None if kind.taken is None else sizes[kind.taken]
    return Layer(expr, f"{(name or '').rpartition('.')[2]}({said})", taken, sizes[kind.given])


def _passes(expr: Expression) -> bool:
    """Whether a layer is a function that keeps the last axis; `functools.partial` of one is too."""
    if isinstance(expr, CallExpr) and _fullname(expr.callee) == names.PARTIAL and expr.args:
        return _passes(expr.args[0])
    name = _fullname(expr)
    if name is None or isinstance(expr, StarExpr):
        return False
    module, _, last = name.rpartition(".")
    return last in _PASSING and (module == "jax" or module.startswith(("jax.", "declax.")))


def _fullname(expr: Expression) -> str | None:
    return expr.fullname if isinstance(expr, RefExpr) else None


def _number(expr: Expression | None, api: Any) -> int | None:
    """The int that an expression is, as a literal or by a name that is Final."""
    value = literal(expr)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = None if expr is None else api.lookup_type_or_none(expr)
    typ = None if found is None else get_proper_type(found)
    if isinstance(typ, Instance) and isinstance(expr, RefExpr) and typ.last_known_value is not None:
        typ = typ.last_known_value
    return typ.value if isinstance(typ, LiteralType) and type(typ.value) is int else None
