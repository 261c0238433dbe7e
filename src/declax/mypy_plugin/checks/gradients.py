"""The types of gradients that annotations cannot express. Reports no errors itself.

Annotations know the gradients of the first and second argument, and of both. The plugin knows those of any argument, of
several, of containers of models and arrays, of generic losses and lambdas, and with other options.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from mypy.nodes import ArgKind, CallExpr, Decorator, Expression, LambdaExpr, ReturnStmt, TupleExpr
from mypy.plugin import FunctionContext, MethodContext
from mypy.subtypes import find_member
from mypy.types import (
    AnyType,
    CallableType,
    Instance,
    NoneType,
    TupleType,
    Type,
    TypeVarType,
    UnionType,
    get_proper_type,
)
from mypy.types_utils import is_overlapping_none, remove_optional

from declax.mypy_plugin import names
from declax.mypy_plugin.expressions import ANY, arguments_of, fullname_of, info_named, items_of, literal, tuple_of
from declax.mypy_plugin.reporting import Reporter

_ARRAY: Final = "jax._src.basearray.Array"
_NUMBERS: Final = frozenset({"builtins.int", "builtins.float", "builtins.complex", "numpy.ndarray", "numpy.generic"})

TRANSFORMS: Final = {names.GRAD: False, names.VALUE_AND_GRAD: True, names.ACCUMULATE: True}
"""The transforms, and whether they return the value as well."""


class Options(NamedTuple):
    """The options of a transform that decide the type of its result.

    Attributes:
      has_value, has_aux: whether the result has the value of the loss, and auxiliary data.
      argnums: the numbers of the arguments that are differentiated, each with whether a `DiffState` selects its leaves.
      is_single: whether one argument is differentiated, whose gradient is not in a tuple.
      has_states: whether the gradient of a model is a State; otherwise, it is a model.
    """

    has_value: bool
    has_aux: bool
    argnums: tuple[tuple[int, bool], ...]
    is_single: bool
    has_states: bool

    def result(self, of: Callable[[int], Type | None], value: Type, api: Any) -> Type | None:
        """The type of the result, from the types of the arguments and of what the loss returns."""
        gradients = [self._gradient(of(argnum), is_selected, api) for argnum, is_selected in self.argnums]
        known = [gradient for gradient in gradients if gradient is not None]
        if len(known) < len(gradients):
            return None
        gradient = known[0] if self.is_single else tuple_of(known, api)
        if self.has_value:
            return tuple_of([value, gradient], api)
        if not self.has_aux:
            return gradient
        found = get_proper_type(value)
        is_pair = isinstance(found, TupleType) and len(found.items) == 2
        aux = found.items[1] if isinstance(found, TupleType) and is_pair else ANY
        return tuple_of([gradient, aux], api)

    def _gradient(self, typ: Type | None, is_selected: bool, api: Any) -> Type | None:
        """The type of the gradient of a value; None if it is unknown."""
        typ = None if typ is None else get_proper_type(typ)
        if typ is None or isinstance(typ, NoneType):
            return typ
        if is_overlapping_none(typ):
            gradient = self._gradient(remove_optional(typ), is_selected, api)
            return None if gradient is None else UnionType.make_union([gradient, NoneType()])
        if isinstance(typ, TupleType):
            items = [self._gradient(item, is_selected, api) for item in typ.items]
            known = [item for item in items if item is not None]
            return typ.copy_modified(items=known) if len(known) == len(items) else None
        bound = get_proper_type(typ.upper_bound) if isinstance(typ, TypeVarType) else typ
        if not isinstance(bound, Instance) or bound.type.fallback_to_any:
            return None
        if bound.type.has_base(names.PYTREE):
            state = info_named(names.STATE, api)
            return typ if not (self.has_states or is_selected) else None if state is None else Instance(state, [typ])
        if any(bound.type.has_base(name) for name in (names.STATE, names.VARIABLE, _ARRAY)):
            return typ
        if any(bound.type.has_base(name) for name in _NUMBERS):
            return array_type(api)
        if isinstance(typ, Instance) and typ.type.fullname in ("builtins.list", "builtins.dict", "builtins.tuple"):
            value = self._gradient(typ.args[-1], is_selected, api)
            return None if value is None else typ.copy_modified(args=[*typ.args[:-1], value])
        return None


def of_function(ctx: FunctionContext, report: Reporter) -> Type | None:
    """The type of ``grad(f)``, and of a function decorated with ``@grad``."""
    call = ctx.context
    if isinstance(call, Decorator):
        applied = [fullname_of(one) for one in call.decorators]
        transforms = [name for name in applied if name in TRANSFORMS]
        return _of_loss(ctx, lambda: _options(transforms[0], {})) if len(transforms) == 1 else None
    transform = fullname_of(call.callee) if isinstance(call, CallExpr) else None
    if not isinstance(call, CallExpr) or transform is None or call.arg_kinds[:1] != [ArgKind.ARG_POS]:
        return None
    if not isinstance(call.args[0], LambdaExpr):
        return _of_loss(ctx, lambda: options_of(call))
    options = options_of(call)
    # one type for all overloads; if they differed, mypy would infer Any
    is_plain = options is not None and options == _options(transform, {})
    untyped = info_named(names.OF_LAMBDA.get(transform, names.UNTYPED) if is_plain else names.UNTYPED, report.api)
    return None if untyped is None else Instance(untyped, [])


def of_decorated(ctx: MethodContext, report: Reporter) -> Type | None:
    """The type of ``grad(...)(f)``, and of a function decorated with ``@grad(...)``."""
    place = ctx.context
    made = place.decorators if isinstance(place, Decorator) else [place.callee] if isinstance(place, CallExpr) else []
    calls = [call for call in made if isinstance(call, CallExpr) and fullname_of(call.callee) in TRANSFORMS]
    return _of_loss(ctx, lambda: options_of(calls[0])) if len(calls) == 1 else None


def of_lambda(ctx: MethodContext, report: Reporter) -> Type | None:
    """The type of ``grad(lambda model: ..., argnums=1)(model)``."""
    call, api = ctx.context, report.api
    made = call.callee if isinstance(call, CallExpr) else None
    options = options_of(made) if isinstance(made, CallExpr) else None
    if options is None or not isinstance(call, CallExpr) or not isinstance(made, CallExpr):
        return None
    loss = made.args[0]
    last = loss.body.body[-1] if isinstance(loss, LambdaExpr) and loss.body.body else None
    if not isinstance(last, ReturnStmt) or (not options.has_aux and isinstance(last.expr, TupleExpr)):
        return None  # mypy reports an error already
    count = next((at for at, kind in enumerate(call.arg_kinds) if kind is not ArgKind.ARG_POS), len(call.args))

    def argument(argnum: int) -> Type | None:
        if not 0 <= argnum < count:
            return None
        with api.msg.filter_errors():  # mypy has inferred the arguments with the expected type Any
            found: Type = api.get_expression_type(call.args[argnum])
        return found

    array = array_type(api)
    return options.result(argument, tuple_of([array, ANY], api) if options.has_aux else array, api)


def options_of(call: CallExpr) -> Options | None:
    """The options of a call of a transform; None if one that matters is no literal."""
    transform = fullname_of(call.callee)
    given = arguments_of(call)
    is_open = any(kind.is_star() for kind in call.arg_kinds)
    return None if is_open or transform not in TRANSFORMS else _options(transform, given)


def _options(transform: str, given: dict[str, Expression]) -> Options | None:
    has_aux = literal(given["has_aux"]) if "has_aux" in given else False
    modes = [literal(given[name]) for name in ("graph", "graph_updates") if name in given]
    entries = given.get("argnums")
    several = items_of(entries)
    argnums = [(0, False)] if entries is None else [_argnum(one) for one in (several or [entries])]
    known = tuple(argnum for argnum in argnums if argnum is not None)
    if not isinstance(has_aux, bool) or not known or len(known) < len(argnums):
        return None
    if any(mode not in (None, True, False) for mode in modes):
        return None
    return Options(TRANSFORMS[transform], has_aux, known, several is None, False not in modes)


def _argnum(entry: Expression) -> tuple[int, bool] | None:
    """The number of an entry of `argnums`, and whether it is a `DiffState`."""
    is_selected = isinstance(entry, CallExpr) and fullname_of(entry.callee) == names.DIFF_STATE
    number = literal(arguments_of(entry, ("argnum",)).get("argnum") if is_selected else entry)
    return (number, is_selected) if isinstance(number, int) and not isinstance(number, bool) else None


def _of_loss(ctx: FunctionContext | MethodContext, options_given: Callable[[], Options | None]) -> Type | None:
    """The gradient function of a loss, where mypy does not know it."""
    loss = _signature(ctx.arg_types[0][0]) if ctx.arg_types and ctx.arg_types[0] else None
    if loss is None or (not loss.variables and _is_known(ctx.default_return_type)):
        return None
    options = options_given()
    if options is None:
        return None
    if not options.has_aux and isinstance(get_proper_type(loss.ret_type), TupleType):
        return None  # mypy reports an error already
    positional = [typ for typ, kind in zip(loss.arg_types, loss.arg_kinds, strict=True) if kind.is_positional()]
    result = options.result(lambda n: positional[n] if 0 <= n < len(positional) else None, loss.ret_type, ctx.api)
    return None if result is None else loss.copy_modified(ret_type=result)


def _signature(typ: Type) -> CallableType | None:
    """The signature of a function, of a `functools.partial`, or of a callable object."""
    given = get_proper_type(typ)
    if isinstance(given, Instance) and given.extra_attrs is not None:
        given = get_proper_type(given.extra_attrs.attrs.get("__mypy_partial", given))
    found = find_member("__call__", given, given, is_operator=True) if isinstance(given, Instance) else given
    found = get_proper_type(found)
    return found if isinstance(found, CallableType) and not found.is_ellipsis_args else None


def _is_known(typ: Type) -> bool:
    """Whether mypy knows the result of a gradient function."""
    found = get_proper_type(typ)
    return isinstance(found, CallableType) and not _has_any(found.ret_type)


def _has_any(typ: Type) -> bool:
    """Whether a result has a gradient without a type."""
    found = get_proper_type(typ)
    if isinstance(found, Instance) and found.type.fullname == names.STATE:
        return any(map(_has_any, found.args))
    return any(map(_has_any, found.items)) if isinstance(found, TupleType) else isinstance(found, AnyType)


def array_type(api: Any) -> Type:
    """The type of an array of JAX."""
    array = info_named(_ARRAY, api)
    return ANY if array is None else Instance(array, [])
