"""Values that are only known to be Modules, and the methods of all Modules."""

from __future__ import annotations

from typing import Final

from mypy.errorcodes import TYPE_ARG
from mypy.nodes import ArgKind, Expression, MemberExpr, NameExpr, Var
from mypy.plugin import AnalyzeTypeContext, AttributeContext
from mypy.types import AnyType, CallableType, Type, UnionType, get_proper_type

from declax.mypy_plugin import names
from declax.mypy_plugin.expressions import ANY
from declax.mypy_plugin.reporting import Reporter

CALLED: Final = frozenset({names.MODULE, names.LAYER})
"""Classes without a ``__call__``, whose values may be called if nothing else is known of them; subclasses need one."""


def callable_module(fullname: str, ctx: AnalyzeTypeContext) -> Type:
    """The type of an annotation by a class of `CALLED`: a value can be called with anything."""
    owner = ctx.api.named_type(fullname, [])
    if ctx.type.args:
        ctx.api.fail(
            f'"{owner.type.name}" expects no type arguments, but {len(ctx.type.args)} given', ctx.context, code=TYPE_ARG
        )
    stars, function = [ArgKind.ARG_STAR, ArgKind.ARG_STAR2], ctx.api.named_type("builtins.function", [])
    call = CallableType([ANY, ANY], stars, [None, None], ANY, function, is_ellipsis_args=True)
    found = owner.copy_with_extra_attr("__call__", call)
    found.set_line(ctx.context)
    return found


FLAGS: Final = frozenset({"train", "eval"})
"""The methods whose names are also those of flags, as in ``self.train = True``."""


def method_of_module(ctx: AttributeContext, report: Reporter) -> Type | None:
    """The type of a method of `Module` without Any, which is there for classes that have something else of its name.

    Any stays where mypy compares a method with that of a base class, in an assignment to an attribute of ``self``, and
    where a flag may be read.
    """
    target, found = ctx.context, get_proper_type(ctx.default_attr_type)
    if not isinstance(target, MemberExpr) or target.is_new_def or not isinstance(found, UnionType):
        return None
    if _is_self(target.expr) if ctx.is_lvalue else target.name in FLAGS:
        return None
    return UnionType.make_union([item for item in found.items if not isinstance(get_proper_type(item), AnyType)])


def _is_self(expr: Expression) -> bool:
    return isinstance(expr, NameExpr) and isinstance(expr.node, Var) and expr.node.is_self
