"""The types of gradients of lambdas and generic losses, which annotations cannot express. Reports no errors itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from mypy.nodes import ArgKind, CallExpr, Decorator, LambdaExpr, ReturnStmt, TupleExpr
from mypy.plugin import FunctionContext, MethodContext
from mypy.types import (
    AnyType,
    CallableType,
    Instance,
    ProperType,
    TupleType,
    Type,
    TypeOfAny,
    TypeVarType,
    get_proper_type,
)

from declax.mypy_plugin import names
from declax.mypy_plugin.expressions import fullname_of, info_named, literal
from declax.mypy_plugin.reporting import Reporter

_ANY: Final = AnyType(TypeOfAny.special_form)
_ARRAY: Final = "jax._src.basearray.Array"


class Shape(NamedTuple):
    """Whether the result of a gradient function has the value of the loss, and auxiliary data."""

    has_value: bool
    has_aux: bool

    def around(self, gradient: Type, value: Type, api: Any) -> Type:
        """The type of the result; `value` is the type that the loss returns."""
        if self.has_value:
            return _pair(value, gradient, api)
        if not self.has_aux:
            return gradient
        found = get_proper_type(value)
        is_pair = isinstance(found, TupleType) and len(found.items) == 2
        return _pair(gradient, found.items[1] if isinstance(found, TupleType) and is_pair else _ANY, api)


TRANSFORMS: Final = {names.GRAD: False, names.VALUE_AND_GRAD: True}
"""The transforms, and whether they return the value as well."""
FACTORIES: Final = {
    names.OF_GRAD: Shape(has_value=False, has_aux=False),
    names.OF_GRAD_AUX: Shape(has_value=False, has_aux=True),
    names.OF_VALUE_AND_GRAD: Shape(has_value=True, has_aux=False),
    names.OF_VALUE_AND_GRAD_AUX: Shape(has_value=True, has_aux=True),
}
"""The types of transforms with options but no function, which differentiate the first argument."""


def of_function(ctx: FunctionContext, report: Reporter) -> Type | None:
    """The type of ``grad(f)``, and of a function decorated with ``@grad``."""
    call = ctx.context
    if isinstance(call, Decorator):
        transform = fullname_of(call.decorators[0])
        return _of_loss(ctx, Shape(TRANSFORMS[transform], has_aux=False)) if transform in TRANSFORMS else None
    shape = _shape_of(call) if isinstance(call, CallExpr) else None
    if shape is None or not isinstance(call, CallExpr):
        return None
    if isinstance(call.args[0], LambdaExpr):
        # one type for all overloads; if they differed, mypy would infer Any
        untyped = info_named(names.UNTYPED, report.api)
        return None if untyped is None else Instance(untyped, [])
    return _of_loss(ctx, shape)


def of_decorated(shape: Shape) -> Callable[[MethodContext, Reporter], Type | None]:
    """The type of a function decorated with ``@grad(...)``."""
    return lambda ctx, report: _of_loss(ctx, shape)


def of_lambda(ctx: MethodContext, report: Reporter) -> Type | None:
    """The type of ``grad(lambda model: ...)(model)``."""
    call, api = ctx.context, report.api
    made = call.callee if isinstance(call, CallExpr) and call.arg_kinds[:1] == [ArgKind.ARG_POS] else None
    shape = _shape_of(made) if isinstance(made, CallExpr) else None
    if shape is None or not isinstance(call, CallExpr) or not isinstance(made, CallExpr):
        return None
    loss = made.args[0]
    last = loss.body.body[-1] if isinstance(loss, LambdaExpr) and loss.body.body else None
    if not isinstance(last, ReturnStmt) or (not shape.has_aux and isinstance(last.expr, TupleExpr)):
        return None  # mypy reports an error already
    with api.msg.filter_errors():  # mypy has inferred the arguments with the expected type Any
        model = get_proper_type(api.get_expression_type(call.args[0]))
    gradient = _gradient_of(model, api)
    array = info_named(_ARRAY, api)
    number = _ANY if array is None else Instance(array, [])
    value = _pair(number, _ANY, api) if shape.has_aux else number
    return None if gradient is None else shape.around(gradient, value, api)


def _shape_of(call: CallExpr) -> Shape | None:
    """The shape of the result of ``grad(f, ...)``, if it differentiates the first argument."""
    transform = fullname_of(call.callee)
    if transform not in TRANSFORMS or call.arg_kinds[:1] != [ArgKind.ARG_POS]:
        return None
    options = dict(zip(call.arg_names[1:], call.args[1:], strict=True))
    has_aux = literal(options["has_aux"]) if "has_aux" in options else False
    is_first = "argnums" not in options or literal(options["argnums"]) == 0
    if None in options or not is_first or not isinstance(has_aux, bool):
        return None
    return Shape(TRANSFORMS[transform], has_aux)


def _of_loss(ctx: FunctionContext | MethodContext, shape: Shape) -> Type | None:
    """The gradient function of a loss whose first argument has a type variable as its type."""
    loss = get_proper_type(ctx.arg_types[0][0]) if ctx.arg_types and ctx.arg_types[0] else None
    if not isinstance(loss, CallableType) or not loss.arg_types or not loss.arg_kinds[0].is_positional():
        return None
    if not shape.has_aux and isinstance(get_proper_type(loss.ret_type), TupleType):
        return None  # mypy reports an error already
    first = get_proper_type(loss.arg_types[0])
    gradient = _gradient_of(first, ctx.api) if isinstance(first, TypeVarType) else None
    return None if gradient is None else loss.copy_modified(ret_type=shape.around(gradient, loss.ret_type, ctx.api))


def _gradient_of(typ: ProperType, api: Any) -> Type | None:
    """The type of the gradient with respect to a value of a type: a State for a model."""
    bound = get_proper_type(typ.upper_bound) if isinstance(typ, TypeVarType) else typ
    if not isinstance(bound, Instance) or bound.type.fallback_to_any:
        return None
    if bound.type.has_base(names.PYTREE):
        state = info_named(names.STATE, api)
        return None if state is None else Instance(state, [typ])
    return typ if bound.type.fullname in {names.STATE, *names.ARRAYS} else None


def _pair(one: Type, other: Type, api: Any) -> TupleType:
    return TupleType([one, other], api.named_generic_type("builtins.tuple", [_ANY]))
