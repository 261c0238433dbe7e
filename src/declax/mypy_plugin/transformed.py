"""The function that a transform is given: by a call, below a decorator, or to what `functools.partial` makes.

Vocabulary
----------
transform:   a function of functions that has options: `vmap`, `jit`, `grad`.
factory:     a call of a transform without a function; its result is called with the function.
application: one transform with its options and the function that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from mypy.errorcodes import ErrorCode
from mypy.nodes import (
    ArgKind,
    CallExpr,
    Decorator,
    Expression,
    FuncDef,
    LambdaExpr,
    MemberExpr,
    NameExpr,
    Node,
    RefExpr,
)
from mypy.plugin import FunctionContext
from mypy.plugins.functools import partial_new_callback
from mypy.subtypes import find_member
from mypy.types import CallableType, Instance, Overloaded, ProperType, Type, get_proper_type

from declax.mypy_plugin import names
from declax.mypy_plugin.expressions import definitions, statements, walk
from declax.mypy_plugin.registry import FunctionCheck, Registry
from declax.mypy_plugin.reporting import FAILED, Report

_KEEPING: Final = frozenset(
    {
        *(names.JIT, names.REMAT, names.VMAP, names.PMAP, names.SCAN),
        *(names.GRAD, names.VALUE_AND_GRAD, names.CUSTOM_VJP),
        *(f"jax._src.api.{name}" for name in ("jit", "vmap", "pmap", "grad", "value_and_grad")),
        "jax._src.ad_checkpoint.checkpoint",
    }
)
"""Decorators whose result takes what the function takes."""


class Parameter(NamedTuple):
    """A parameter of a function; the name is None where only a position is known."""

    name: str | None
    kind: ArgKind
    type: ProperType | None


class Function(NamedTuple):
    """What is known of a function.

    Attributes:
      name: as messages say it.
      parameters: what it takes.
      result: the type of what it returns, where that is known.
    """

    name: str
    parameters: tuple[Parameter, ...]
    result: ProperType | None

    @property
    def positional(self) -> list[Parameter]:
        """The parameters that have a position."""
        return [parameter for parameter in self.parameters if parameter.kind.is_positional()]

    @property
    def least(self) -> int:
        """How many arguments with a position a call has at least."""
        return sum(parameter.kind is ArgKind.ARG_POS for parameter in self.parameters)

    @property
    def takes_more(self) -> bool:
        """Whether it takes any number of arguments by position."""
        return any(parameter.kind is ArgKind.ARG_STAR for parameter in self.parameters)

    @property
    def takes_any(self) -> bool:
        """Whether it takes arguments of any name."""
        return any(parameter.kind is ArgKind.ARG_STAR2 for parameter in self.parameters)

    @property
    def signature(self) -> str:
        """Its parameters, as messages list them."""
        marks = {ArgKind.ARG_STAR: "*", ArgKind.ARG_STAR2: "**"}
        return ", ".join(marks.get(parameter.kind, "") + (parameter.name or "_") for parameter in self.parameters)


class Application(NamedTuple):
    """A transform with its options, and the function that it is given.

    Attributes:
      transform: the name of the transform.
      options: the options that the call names.
      is_whole: whether these are all.
      function: the function, where it is known.
      place: the call, or the decorated function.
      api: mypy's checker.
    """

    transform: str
    options: dict[str, Expression]
    is_whole: bool
    function: Function | None
    place: Any
    api: Any

    def type_of(self, expr: Expression) -> ProperType | None:
        """The type that mypy found for an expression."""
        found = self.api.lookup_type_or_none(expr)
        return None if found is None else get_proper_type(found)


Check: TypeAlias = Callable[[Application, Report], None]


def register_transforms(
    hooks: Registry, transforms: Sequence[str], code: ErrorCode, check: Check, options: frozenset[str] | None = None
) -> None:
    """Runs a check for each application of some transforms.

    Args:
      hooks: where it is registered.
      transforms: their full names.
      code: the code of the check.
      check: the check.
      options: those without all of which there is nothing to check; None where there always is.
    """
    if names.PARTIAL not in hooks.functions:
        hooks.function(names.PARTIAL, FAILED, _type_of_partial)

    def check_call(transform: str) -> FunctionCheck:
        def run(ctx: FunctionContext, report: Report) -> Type | None:
            call = ctx.context
            if options is not None and (not isinstance(call, CallExpr) or options.isdisjoint(call.arg_names)):
                return None
            check(_application(transform.rpartition(".")[2], ctx), report)
            return None

        return run

    def check_partial(ctx: FunctionContext, report: Report) -> Type | None:
        call = ctx.context
        if isinstance(call, CallExpr) and call.args and _fullname(call.args[0]) in transforms:
            check(_application_of((_fullname(call.args[0]) or "").rpartition(".")[2], call, call.args[1:], ctx), report)
        return None

    for transform in transforms:
        hooks.function(transform, code, check_call(transform))
    hooks.function(names.PARTIAL, code, check_partial)


def _type_of_partial(ctx: FunctionContext, report: Report) -> Type | None:
    """The type of `functools.partial`: of a transform with options only, that of the decorator that it makes.

    mypy's own drops what the decorated function takes. Other calls get mypy's, which this hook replaces.
    """
    del report
    found = partial_new_callback(ctx)
    call = ctx.context
    if isinstance(call, CallExpr) and len(call.args) > 1 and ArgKind.ARG_POS not in call.arg_kinds[1:]:
        is_transform = (_fullname(call.args[0]) or "").startswith("declax.transforms.")
        if is_transform and _APPLIED.find(call, _tree(ctx.api)) is not None:
            return _decorator_type(_type_of_argument(call.args[0], ctx)) or found
    return found


def _decorator_type(transform: ProperType | None) -> Type | None:
    """What a transform makes of options only: the result of its overload that needs no function."""
    for item in transform.items if isinstance(transform, Overloaded) else ():
        result = get_proper_type(item.ret_type)
        if not any(kind.is_positional() for kind in item.arg_kinds) and isinstance(result, CallableType):
            return result
    return None


def _tree(api: Any) -> Node:
    tree: Node = api.tree
    return tree


def _fullname(expr: Expression) -> str | None:
    return expr.fullname if isinstance(expr, RefExpr) else None


def _application(transform: str, ctx: FunctionContext) -> Application:
    call = ctx.context
    if isinstance(call, CallExpr):
        return _application_of(transform, call, call.args, ctx)
    given = get_proper_type(ctx.arg_types[0][0]) if ctx.arg_types and ctx.arg_types[0] else None
    name = call.func.name if isinstance(call, Decorator) else "the function"
    return Application(transform, {}, True, function_of(name, given), call, ctx.api)


def _application_of(transform: str, call: CallExpr, given: Sequence[Expression], ctx: FunctionContext) -> Application:
    named = zip(call.arg_names, call.args, strict=True)
    options = {name: arg for name, arg in named if name is not None}
    is_whole = not any(kind.is_star() for kind in call.arg_kinds)
    offset = len(call.args) - len(given)
    by_position = [arg for arg, kind in zip(given, call.arg_kinds[offset:], strict=True) if kind is ArgKind.ARG_POS]
    if by_position:
        function = function_of(_name_of(by_position[0]), _type_of_argument(by_position[0], ctx))
    else:
        function = _function_applied(call, ctx.api) if is_whole else None
    return Application(transform, options, is_whole, function, call, ctx.api)


def _type_of_argument(expr: Expression, ctx: FunctionContext) -> ProperType | None:
    for given, types in zip(ctx.args, ctx.arg_types, strict=True):
        for arg, typ in zip(given, types, strict=True):
            if arg is expr:
                return get_proper_type(typ)
    return None


def _name_of(expr: Expression | None) -> str:
    if isinstance(expr, (NameExpr, MemberExpr)):
        return expr.name
    return "lambda" if isinstance(expr, LambdaExpr) else "the function"


def function_of(name: str, typ: ProperType | None) -> Function | None:
    """What a type of functions, or of objects that can be called, says of one."""
    if isinstance(typ, Instance):
        member = find_member("__call__", typ, typ, is_operator=True)
        typ = None if member is None else get_proper_type(member)
    if not isinstance(typ, CallableType) or typ.is_ellipsis_args:
        return None
    parts = zip(typ.arg_names, typ.arg_kinds, typ.arg_types, strict=True)
    return Function(
        name,
        tuple(Parameter(part, kind, get_proper_type(arg)) for part, kind, arg in parts),
        get_proper_type(typ.ret_type),
    )


def _function_defined(func: FuncDef, *, keeps_result: bool) -> Function:
    typ = get_proper_type(func.type) if func.type is not None else None
    signature = typ if isinstance(typ, CallableType) else None
    types = [None] * len(func.arguments) if signature is None else [get_proper_type(t) for t in signature.arg_types]
    parts = zip(func.arguments, types, strict=True)
    result = get_proper_type(signature.ret_type) if signature is not None and keeps_result else None
    parameters = tuple(Parameter(argument.variable.name, argument.kind, part) for argument, part in parts)
    return Function(func.name, parameters, result)


# --- factories -----------------------------------------------------------------


def _function_applied(factory: CallExpr, api: Any) -> Function | None:
    """The function that the result of a factory is called with."""
    found = _APPLIED.find(factory, _tree(api))
    if isinstance(found, Decorator):
        behind = found.decorators[_index_of(factory, found) + 1 :]
        if all(_keeps_parameters(one) for one in behind) and not found.func.is_class:
            return _function_defined(found.func, keeps_result=not behind)
    elif isinstance(found, CallExpr) and found.args and isinstance(found.args[0], RefExpr):
        return function_of(_name_of(found.args[0]), get_proper_type(api.get_expression_type(found.args[0])))
    return None


def _index_of(factory: CallExpr, decorated: Decorator) -> int:
    return next(index for index, one in enumerate(decorated.decorators) if one is factory)


def _keeps_parameters(decorator: Expression) -> bool:
    if isinstance(decorator, CallExpr):
        return (
            not any(kind is ArgKind.ARG_POS for kind in decorator.arg_kinds) and _fullname(decorator.callee) in _KEEPING
        )
    return _fullname(decorator) in _KEEPING


class _Applied:
    """Where the results of factories in one module go: to a decorated function, or to a call.

    mypy checks a factory before it looks at what is done with the result.
    """

    def __init__(self) -> None:
        self._tree: Node | None = None
        self._found: dict[int, tuple[CallExpr, Node | None]] = {}

    def find(self, factory: CallExpr, tree: Node) -> Node | None:
        """The decorated function, or the call of the result."""
        if tree is not self._tree:
            self._tree, self._found = tree, {}
        if not self._knows(factory):
            self._read(factory, tree)
        return self._found[id(factory)][1]

    def _knows(self, factory: CallExpr) -> bool:
        return self._found.get(id(factory), (None, None))[0] is factory

    def _read(self, factory: CallExpr, tree: Node) -> None:
        """Reads the module, first where most factories are; the daemon puts new nodes into a module that it has."""
        for found in (decorated(definitions(tree)), decorated(statements(tree)), called(tree)):
            self._found |= {id(call): (call, node) for call, node in found}
            if self._knows(factory):
                return
        self._found[id(factory)] = factory, None


def decorated(nodes: Iterator[Node]) -> Iterator[tuple[CallExpr, Node]]:
    """Each call that is a decorator, and what it decorates."""
    for node in nodes:
        if isinstance(node, Decorator):
            yield from ((one, node) for one in node.decorators if isinstance(one, CallExpr))


def called(tree: Node) -> Iterator[tuple[CallExpr, Node]]:
    """Each call whose result is called, and the call of the result."""
    for node in walk(tree):
        if isinstance(node, CallExpr) and isinstance(node.callee, CallExpr):
            yield node.callee, node


_APPLIED: Final = _Applied()
