"""declax-submodule: the function that makes a part, typed by the class that it makes it for."""

from __future__ import annotations

from collections.abc import Mapping

from mypy.nodes import CallExpr, Expression, FuncDef, LambdaExpr, NameExpr, RefExpr, TypeInfo
from mypy.plugin import FunctionSigContext
from mypy.subtypes import is_subtype
from mypy.types import (
    AnyType,
    CallableType,
    FunctionLike,
    Instance,
    NoneType,
    Type,
    TypeOfAny,
    UnionType,
    get_proper_type,
)
from mypy.typevars import fill_typevars

from declax.mypy_plugin import names
from declax.mypy_plugin.declared import DeclaredClass, DeclaredField, declared_fields
from declax.mypy_plugin.expressions import walk
from declax.mypy_plugin.instances import class_around, with_parameter
from declax.mypy_plugin.recipes import RNGS, Recipe
from declax.mypy_plugin.registry import Registry
from declax.mypy_plugin.reporting import Report, error_code

SUBMODULE = error_code("declax-submodule", "A declared part refers to what there is not, or not yet")


def register(hooks: Registry) -> None:
    """Puts the check at its hooks."""
    hooks.declared_class(SUBMODULE, check)
    hooks.function_signature(names.SUBMODULE, SUBMODULE, typed_build)


def check(cls: DeclaredClass, report: Report) -> None:
    """Checks all parts that a class declares itself."""
    for field in cls.own:
        if field.specifier != "submodule" or field.statement is None:
            continue
        recipe = Recipe(cls, field, report)
        recipe.check_when()
        build = field.arguments.get("build")
        if isinstance(build, LambdaExpr) and build.arg_names:
            recipe.check_attributes(build, build.arg_names[0] or "")
            _check_streams(cls, field, build, report)


def _check_streams(cls: DeclaredClass, field: DeclaredField, build: LambdaExpr, report: Report) -> None:
    """Says where the None comes from that a part is given for its random streams."""
    if len(build.arg_names) < 2 or _has_streams(cls.info, cls.fields):
        return
    for node in walk(build):
        if not isinstance(node, CallExpr):
            continue
        for name, arg in zip(node.arg_names, node.args, strict=True):
            if name == RNGS and isinstance(arg, NameExpr) and arg.node is build.arguments[1].variable:
                callee = cls.type_of(node.callee)
                wanted = _parameter(callee, RNGS) if isinstance(callee, CallableType) else None
                if wanted is not None and not is_subtype(NoneType(), wanted):
                    report.error(
                        f"{cls.name}.{field.name}: {arg.name} is None here, as the class takes no rngs",
                        arg,
                        fix=f"{RNGS}: dx.InitVar[dx.Rngs]        # in {cls.name}",
                    )


def _parameter(function: CallableType, name: str) -> Type | None:
    found = function.argument_by_name(name)
    return None if found is None else found.typ


def typed_build(ctx: FunctionSigContext, report: Report) -> FunctionLike | None:
    """Types ``self`` of the function as the class, and ``rngs`` as what the constructor takes."""
    del report
    info = class_around(ctx)
    signature = ctx.default_signature
    if info is None or "build" not in signature.arg_names:
        return None
    at = signature.arg_names.index("build")
    build = get_proper_type(signature.arg_types[at])
    if not isinstance(build, CallableType):
        return None
    if not any(map(_asks_for_protocol, ctx.args[at])):
        build = with_parameter(build, 0, fill_typevars(info))
    types = list(signature.arg_types)
    types[at] = with_parameter(build, 1, _rngs_of(info, ctx))
    return signature.copy_modified(arg_types=types)


def _asks_for_protocol(function: Expression) -> bool:
    """Whether a function takes whatever has some fields.

    A protocol asks for fields that can be set, which those of a frozen class cannot.
    """
    node = function.node if isinstance(function, RefExpr) else None
    typ = get_proper_type(node.type) if isinstance(node, FuncDef) else None
    first = get_proper_type(typ.arg_types[0]) if isinstance(typ, CallableType) and typ.arg_types else None
    return isinstance(first, Instance) and first.type.is_protocol


def _has_streams(info: TypeInfo, fields: Mapping[str, DeclaredField]) -> bool:
    return RNGS in fields or info.fallback_to_any or info.get(RNGS) is not None


def _rngs_of(info: TypeInfo, ctx: FunctionSigContext) -> Type:
    fields = declared_fields(info, ctx.api)
    if not _has_streams(info, fields):
        return NoneType()
    if RNGS not in fields:
        return AnyType(TypeOfAny.special_form)
    typ = fields[RNGS].type
    if not isinstance(typ, UnionType):
        return typ
    # whether None is ever given is the caller's business
    return UnionType.make_union([item for item in typ.items if not isinstance(get_proper_type(item), NoneType)])
