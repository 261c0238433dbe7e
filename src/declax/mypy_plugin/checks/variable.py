"""declax-variable: what `variable(shape, initializer, dtype, when)` refers to, and what it is annotated with."""

from __future__ import annotations

import re

from mypy.nodes import Expression, IntExpr, LambdaExpr, MemberExpr, NameExpr, StrExpr
from mypy.plugin import FunctionSigContext
from mypy.types import AnyType, CallableType, FunctionLike, Instance, ProperType, UnionType, get_proper_type

from declax.mypy_plugin import names
from declax.mypy_plugin.declared import DeclaredClass
from declax.mypy_plugin.expressions import items_of, literal
from declax.mypy_plugin.instances import class_around, with_instance
from declax.mypy_plugin.recipes import RNGS, Recipe, is_dtype, is_initializer, is_shape, is_size
from declax.mypy_plugin.registry import Registry
from declax.mypy_plugin.reporting import Report, error_code
from declax.mypy_plugin.wording import text_of

VARIABLE = error_code("declax-variable", "A declared Variable refers to what there is not, or is annotated as none")

_DTYPE = r"(b?float|u?int|complex)\d*(_\w+)?|float\d_\w+|bool_?|half|single|double|[<>=|]?[?bhilqefdgBHILQFDG]\d*"
"""Names of dtypes: numpy's, those of jax, and their codes."""


def register(hooks: Registry) -> None:
    """Puts the check at its hooks."""
    hooks.declared_class(VARIABLE, check)
    hooks.function_signature(names.VARIABLE_FIELD, VARIABLE, typed_self)


def check(cls: DeclaredClass, report: Report) -> None:
    """Checks all Variables that a class declares itself."""
    for field in cls.own:
        if field.specifier == "variable" and field.statement is not None:
            recipe = Recipe(cls, field, report)
            _check_annotation(recipe)
            _check_rngs(recipe)
            recipe.check_when()
            _check_options(recipe)


def typed_self(ctx: FunctionSigContext, report: Report) -> FunctionLike | None:
    """Types the parameter of the functions in a shape as the class."""
    del report
    signature = ctx.default_signature
    at = signature.arg_names.index("shape") if "shape" in signature.arg_names else None
    info = class_around(ctx) if at is not None and any(map(_may_have_function, ctx.args[at])) else None
    if info is None or at is None:
        return None
    types = list(signature.arg_types)
    types[at] = with_instance(types[at], info)
    return signature.copy_modified(arg_types=types)


def _may_have_function(shape: Expression) -> bool:
    """Whether a shape is more than names of fields and numbers, as most are."""
    return not all(isinstance(entry, (StrExpr, IntExpr)) for entry in items_of(shape) or (shape,))


def _check_annotation(recipe: Recipe) -> None:
    typ = recipe.field.type
    if any(_is_variable(get_proper_type(part)) for part in (typ.items if isinstance(typ, UnionType) else [typ])):
        return
    recipe.report.error(
        f"{recipe.where}: variable(...) declares a Variable, and its annotation {text_of(typ)} is none",
        recipe.place,
        fix=f"{recipe.field.name}: dx.Param[jax.Array] = dx.variable(...)",
    )


def _is_variable(typ: ProperType) -> bool:
    if isinstance(typ, Instance):
        return typ.type.has_base(names.VARIABLE) or typ.type.fallback_to_any
    return isinstance(typ, AnyType)


def _check_rngs(recipe: Recipe) -> None:
    stream = recipe.field.arguments.get("stream")
    if RNGS in recipe.cls.fields or not recipe.cls.is_complete:
        return
    drawn = "params" if stream is None else literal(stream)
    if not isinstance(drawn, str):
        return
    recipe.report.error(
        f"{recipe.where}: a declared Variable draws from the stream {drawn!r}, and the class takes no rngs",
        recipe.place,
        fix=f"{RNGS}: dx.InitVar[dx.Rngs]      # or variable(..., stream=None), which draws no key",
    )


def _check_options(recipe: Recipe) -> None:
    given = recipe.field.arguments
    if "shape" in given:
        _check_shape(recipe, given["shape"])
    if "initializer" in given:
        recipe.check_name("initializer", given["initializer"], "initializer", is_initializer)
        _check_made(recipe, given["initializer"])
    if "metadata" in given:
        recipe.check_name("metadata", given["metadata"], "mapping", lambda typ: True)
    dtype = given.get("dtype")
    if isinstance(dtype, StrExpr) and (dtype.value in recipe.cls.fields or not re.fullmatch(_DTYPE, dtype.value)):
        recipe.check_name("dtype", dtype, "dtype", is_dtype)


def _check_made(recipe: Recipe, given: Expression) -> None:
    """Tells of a function that makes an initializer; the signatures that mypy compares say nothing to most."""
    if not isinstance(given, (MemberExpr, NameExpr)):
        return
    typ = recipe.cls.type_of(given)
    if isinstance(typ, Instance):  # of a Protocol, as the factories of one signature are
        call = typ.type.get("__call__")
        typ = None if call is None else get_proper_type(call.type)
    if not isinstance(typ, CallableType):
        return
    made = get_proper_type(typ.ret_type)
    if isinstance(made, Instance) and made.type.fullname == names.INITIALIZER:
        arguments = "..." if typ.min_args else ""
        recipe.report.error(
            f"{recipe.where}: {given.name} makes an initializer, and is none",
            given,
            fix=f"{given.name}({arguments})",
        )


def _check_shape(recipe: Recipe, shape: Expression) -> None:
    recipe.check_name("shape", shape, "shape", is_shape)
    for entry in (shape, *(items_of(shape) or ())):
        if entry is not shape:
            recipe.check_name("shape", entry, "int", is_size)
        if isinstance(entry, LambdaExpr) and entry.arg_names:
            recipe.check_attributes(entry, entry.arg_names[0] or "")
