"""The application of a transform to a function: ``vmap(f, ...)``, ``@vmap``, or ``@vmap(...)`` (a factory)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from mypy.nodes import ArgKind, CallExpr, Context, Decorator, Expression, FuncDef, MemberExpr, NameExpr
from mypy.plugin import FunctionContext
from mypy.subtypes import find_member
from mypy.types import CallableType, Instance, ProperType, get_proper_type

from declax.mypy_plugin import names
from declax.mypy_plugin.expressions import fullname_of, nodes_in_module
from declax.mypy_plugin.reporting import Reporter

_KEEPING: Final = frozenset(
    {
        *(names.JIT, names.REMAT, names.VMAP, names.PMAP, names.SCAN),
        *(names.GRAD, names.VALUE_AND_GRAD, names.CUSTOM_VJP),
        *(f"jax._src.api.{name}" for name in ("jit", "vmap", "pmap", "grad", "value_and_grad")),
        "jax._src.ad_checkpoint.checkpoint",
    }
)
"""Decorators that keep the parameters of the function."""


class Parameter(NamedTuple):
    """A parameter of a function; its name is None if only its position is known."""

    name: str | None
    kind: ArgKind
    type: ProperType | None


class Function(NamedTuple):
    """The known facts of a function.

    Attributes:
      name: its name in messages.
      parameters: its parameters.
      result: the type of its result, if known.
    """

    name: str
    parameters: tuple[Parameter, ...]
    result: ProperType | None

    @property
    def positional(self) -> list[Parameter]:
        """The positional parameters."""
        return [parameter for parameter in self.parameters if parameter.kind.is_positional()]

    def takes(self, kind: ArgKind) -> bool:
        """Whether it has a parameter of this kind, such as ``*args``."""
        return any(parameter.kind is kind for parameter in self.parameters)

    @property
    def signature(self) -> str:
        """Its parameters in messages."""
        marks = {ArgKind.ARG_STAR: "*", ArgKind.ARG_STAR2: "**"}
        return ", ".join(marks.get(parameter.kind, "") + (parameter.name or "_") for parameter in self.parameters)


class Application(NamedTuple):
    """A transform with its options and its function.

    Attributes:
      transform: the name of the transform.
      options: the keyword arguments of the call.
      is_whole: whether there are no further options behind ``*`` or ``**``.
      function: the function.
      place: the call, or the decorated function.
      report: reports the findings.
    """

    transform: str
    options: dict[str, Expression]
    is_whole: bool
    function: Function
    place: Context
    report: Reporter


def applied(
    transform: str, check: Callable[[Application], None], options: Sequence[str]
) -> Callable[[FunctionContext, Reporter], None]:
    """A check of the calls of a transform; if options are given, only of calls with one of them."""
    name = transform.rpartition(".")[2]

    def run(ctx: FunctionContext, report: Reporter) -> None:
        given = ctx.context.arg_names if isinstance(ctx.context, CallExpr) else ()
        found = None if options and set(options).isdisjoint(given) else _application(name, ctx, report)
        if found is not None:
            check(found)

    return run


def _application(transform: str, ctx: FunctionContext, report: Reporter) -> Application | None:
    call = ctx.context
    options: dict[str, Expression] = {}
    is_whole = True
    is_given = bool(ctx.arg_types) and bool(ctx.arg_types[0])
    given = get_proper_type(ctx.arg_types[0][0]) if is_given else None
    if not isinstance(call, CallExpr):
        function = function_of(call.func.name if isinstance(call, Decorator) else "the function", given)
    else:
        options = {name: arg for name, arg in zip(call.arg_names, call.args, strict=True) if name is not None}
        is_whole = not any(kind.is_star() for kind in call.arg_kinds)
        if ArgKind.ARG_POS in call.arg_kinds[:1]:
            first = call.args[0]
            function = function_of(first.name if isinstance(first, (NameExpr, MemberExpr)) else "the function", given)
        else:
            function = _function_behind(call, report)
    return None if function is None else Application(transform, options, is_whole, function, call, report)


def function_of(name: str, typ: ProperType | None) -> Function | None:
    """The facts of a function, or of a callable object, from its type."""
    if isinstance(typ, Instance):
        typ = get_proper_type(find_member("__call__", typ, typ, is_operator=True))
    if not isinstance(typ, CallableType) or typ.is_ellipsis_args:
        return None
    parts = zip(typ.arg_names, typ.arg_kinds, typ.arg_types, strict=True)
    parameters = tuple(Parameter(part, kind, get_proper_type(arg)) for part, kind, arg in parts)
    return Function(name, parameters, get_proper_type(typ.ret_type))


def _function_behind(factory: CallExpr, report: Reporter) -> Function | None:
    """The function that a factory decorates; mypy checks the factory first."""
    for found in nodes_in_module(report.api, Decorator):
        if factory in found.decorators and not found.func.is_class:
            behind = found.decorators[found.decorators.index(factory) + 1 :]
            return _function_defined(found.func, not behind) if all(map(_keeps_parameters, behind)) else None
    return None


def _keeps_parameters(decorator: Expression) -> bool:
    if isinstance(decorator, CallExpr):
        return ArgKind.ARG_POS not in decorator.arg_kinds and fullname_of(decorator.callee) in _KEEPING
    return fullname_of(decorator) in _KEEPING


def _function_defined(func: FuncDef, keeps_result: bool) -> Function:
    found = get_proper_type(func.type)
    signature = found if isinstance(found, CallableType) else None
    types = [None] * len(func.arguments) if signature is None else signature.arg_types
    parameters = tuple(
        Parameter(argument.variable.name, argument.kind, get_proper_type(typ))
        for argument, typ in zip(func.arguments, types, strict=True)
    )
    result = get_proper_type(signature.ret_type) if signature is not None and keeps_result else None
    return Function(func.name, parameters, result)
