"""The types of gradients that no annotation says: of lambdas, of generic losses, and of methods in subclasses.

No errors of its own: mypy then finds what is wrong with what is done with the gradient.

Vocabulary
----------
shape: what a gradient function returns, less the gradient: with or without the value, with or without `has_aux`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from mypy.nodes import (
    ArgKind,
    CallExpr,
    Decorator,
    Expression,
    FuncDef,
    LambdaExpr,
    MemberExpr,
    RefExpr,
    TupleExpr,
    TypeInfo,
)
from mypy.plugin import FunctionContext, MethodContext
from mypy.types import (
    AnyType,
    CallableType,
    Instance,
    ProperType,
    TupleType,
    Type,
    TypeOfAny,
    TypeVarId,
    TypeVarType,
    get_proper_type,
)

from declax.mypy_plugin import names
from declax.mypy_plugin.checks.filtering import info_named
from declax.mypy_plugin.expressions import lambda_result, literal
from declax.mypy_plugin.registry import Registry
from declax.mypy_plugin.reporting import FAILED, Report

_ANY: Final = AnyType(TypeOfAny.special_form)
_ARRAY: Final = "jax._src.basearray.Array"


class Shape(NamedTuple):
    """What stands beside the gradient in a result."""

    has_value: bool
    has_aux: bool

    def around(self, gradient: Type, value: Type, api: Any) -> Type:
        """The result of a gradient function; `value` is what the loss returns."""
        if self.has_value:
            return _pair(value, gradient, api)
        if not self.has_aux:
            return gradient
        found = get_proper_type(value)
        is_pair = isinstance(found, TupleType) and len(found.items) == 2
        return _pair(gradient, found.items[1] if isinstance(found, TupleType) and is_pair else _ANY, api)


_TRANSFORMS: Final = {names.GRAD: False, names.VALUE_AND_GRAD: True}
"""Whether they give the value too."""
_FACTORIES: Final = {
    names.OF_GRAD: Shape(has_value=False, has_aux=False),
    names.OF_GRAD_AUX: Shape(has_value=False, has_aux=True),
    names.OF_VALUE_AND_GRAD: Shape(has_value=True, has_aux=False),
    names.OF_VALUE_AND_GRAD_AUX: Shape(has_value=True, has_aux=True),
}
"""What the transforms are with options only, which differentiates the first argument."""


def register(hooks: Registry) -> None:
    """Puts the types at their hooks."""
    for transform in _TRANSFORMS:
        hooks.function(transform, FAILED, of_function)
    for factory, shape in _FACTORIES.items():
        hooks.method(factory, "__call__", FAILED, _of_decorated(shape))
    hooks.method(names.UNTYPED, "__call__", FAILED, of_call)


def of_function(ctx: FunctionContext, report: Report) -> Type | None:
    """The type of ``grad(f)``, and of a function below ``@grad``."""
    del report
    call = ctx.context
    if isinstance(call, Decorator):
        transform = _fullname(call.decorators[0])
        shape = Shape(_TRANSFORMS[transform], has_aux=False) if transform in _TRANSFORMS else None
        return None if shape is None else _of_loss(_first(ctx), shape, _method_below(call), ctx.api)
    shape = _shape_of(call) if isinstance(call, CallExpr) else None
    if shape is None or not isinstance(call, CallExpr):
        return None
    if isinstance(call.args[0], LambdaExpr):
        # The same for all overloads: mypy takes a lambda, whose arguments are Any, for Any where they differ.
        untyped = info_named(names.UNTYPED, ctx.api)
        return None if untyped is None else Instance(untyped, [])
    return _of_loss(_first(ctx), shape, _method_of_class(call.args[0]), ctx.api)


def _method_of_class(expr: Expression) -> FuncDef | None:
    """The method that ``C.method`` is, which instances of classes derived from C are given too."""
    owner = expr.expr.node if isinstance(expr, MemberExpr) and isinstance(expr.expr, RefExpr) else None
    found = owner.get(expr.name) if isinstance(expr, MemberExpr) and isinstance(owner, TypeInfo) else None
    return found.node if found is not None and isinstance(found.node, FuncDef) else None


def _of_decorated(shape: Shape) -> Callable[[MethodContext, Report], Type | None]:
    def check(ctx: MethodContext, report: Report) -> Type | None:
        del report
        method = _method_below(ctx.context) if isinstance(ctx.context, Decorator) else None
        return _of_loss(_first(ctx), shape, method, ctx.api)

    return check


def _method_below(decorated: Decorator) -> FuncDef | None:
    return decorated.func if len(decorated.decorators) == 1 else None


def of_call(ctx: MethodContext, report: Report) -> Type | None:
    """The type of ``grad(lambda model: ...)(model)``."""
    del report
    call = ctx.context
    made = call.callee if isinstance(call, CallExpr) else None
    shape = _shape_of(made) if isinstance(made, CallExpr) else None
    if shape is None or not isinstance(call, CallExpr) or not call.args or call.arg_kinds[0] is not ArgKind.ARG_POS:
        return None
    loss = made.args[0] if isinstance(made, CallExpr) else None
    if not isinstance(loss, LambdaExpr) or (not shape.has_aux and isinstance(lambda_result(loss), TupleExpr)):
        return None  # a function whose result is an error already
    with ctx.api.msg.filter_errors():  # the types of the arguments are those of what is asked to be Any
        found = get_proper_type(ctx.api.get_expression_type(call.args[0]))
    gradient = _gradient_of(found, ctx.api)
    return None if gradient is None else shape.around(gradient, _value_of(loss, found, shape, ctx.api), ctx.api)


def _value_of(loss: LambdaExpr, model: Type, shape: Shape, api: Any) -> Type:
    """What a lambda returns for a model; the loss is an array where types do not tell, so that it may be returned."""
    types: list[Type] = [_ANY] * len(loss.arg_kinds)
    if loss.arg_kinds and loss.arg_kinds[0].is_positional():
        types[0] = model
    function = api.named_generic_type("builtins.function", [])
    wanted = CallableType(types, loss.arg_kinds, loss.arg_names, _ANY, function)
    with api.msg.filter_errors():
        found = get_proper_type(api.get_expression_type(loss, wanted))
    result = get_proper_type(found.ret_type) if isinstance(found, CallableType) else _ANY
    if not shape.has_aux:
        return _number(result, api)
    items = result.items if isinstance(result, TupleType) and len(result.items) == 2 else (_ANY, _ANY)
    return _pair(_number(get_proper_type(items[0]), api), items[1], api)


def _number(found: ProperType, api: Any) -> Type:
    array = info_named(_ARRAY, api) if isinstance(found, AnyType) else None
    return found if array is None else Instance(array, [])


def _fullname(expr: Expression) -> str | None:
    return expr.fullname if isinstance(expr, RefExpr) else None


def _first(ctx: FunctionContext | MethodContext) -> ProperType | None:
    return get_proper_type(ctx.arg_types[0][0]) if ctx.arg_types and ctx.arg_types[0] else None


def _shape_of(call: CallExpr) -> Shape | None:
    """What a call of a transform with a function makes, where it differentiates the first argument."""
    transform = _fullname(call.callee)
    if transform not in _TRANSFORMS or not call.args or call.arg_kinds[0] is not ArgKind.ARG_POS:
        return None
    options = dict(zip(call.arg_names[1:], call.args[1:], strict=True))
    has_aux = literal(options["has_aux"]) if "has_aux" in options else False
    is_first = "argnums" not in options or (type(number := literal(options["argnums"])) is int and number == 0)
    if None in options or not is_first or not isinstance(has_aux, bool):
        return None
    return Shape(_TRANSFORMS[transform], has_aux)


def _of_loss(loss: ProperType | None, shape: Shape, method: FuncDef | None, api: Any) -> Type | None:
    """The gradient function of a loss whose first argument is of a type variable, or is `self`."""
    if not isinstance(loss, CallableType) or not loss.arg_types or not loss.arg_kinds[0].is_positional():
        return None
    if method is not None:
        loss = _of_any_self(loss, method)
    if not shape.has_aux and isinstance(get_proper_type(loss.ret_type), TupleType):
        return None  # an error already
    first = get_proper_type(loss.arg_types[0])
    gradient = _gradient_of(first, api) if isinstance(first, TypeVarType) else None
    return None if gradient is None else loss.copy_modified(ret_type=shape.around(gradient, loss.ret_type, api))


def _of_any_self(method: CallableType, func: FuncDef) -> CallableType:
    """A method for instances of its class and of those derived from it, each with its own type."""
    first = get_proper_type(method.arg_types[0])
    if not func.info or func.is_static or func.is_class or not isinstance(first, Instance):
        return method
    if first.type is not func.info or first.args:
        return method
    number = min([variable.id.raw_id for variable in method.variables], default=0) - 1
    of_class = TypeVarType(
        "Self",
        f"{func.fullname}.Self",
        TypeVarId(number, namespace=func.fullname),
        [],
        first,
        AnyType(TypeOfAny.from_omitted_generics),
    )
    return method.copy_modified(arg_types=[of_class, *method.arg_types[1:]], variables=[of_class, *method.variables])


def _gradient_of(typ: ProperType, api: Any) -> Type | None:
    """The gradient with respect to a value of this type: a State for a model."""
    bound = get_proper_type(typ.upper_bound) if isinstance(typ, TypeVarType) else typ
    if not isinstance(bound, Instance) or bound.type.fallback_to_any:
        return None
    if bound.type.has_base(names.PYTREE):
        state = info_named(names.STATE, api)
        return None if state is None else Instance(state, [typ])
    is_same = bound.type.fullname == names.STATE or bound.type.fullname in names.ARRAYS
    return typ if is_same else None


def _pair(one: Type, other: Type, api: Any) -> TupleType:
    return TupleType([one, other], api.named_generic_type("builtins.tuple", [_ANY]))
