"""Errors of operations on fields that a class body cannot evaluate."""

from __future__ import annotations

import functools
import inspect
import sys
from types import FrameType
from typing import Any, NoReturn

from declax._fields.call import CONTAINERS, Term, has_expression, items, operands_of
from declax._fields.keys import OPEN_BODIES
from declax._fields.sources import argument_text, bare, text_of
from declax.errors import DeclaxError, ExpressionError, FieldError


def refuse(term: Term, operation: str, fix: str) -> NoReturn:
    """Raises for an operation that needs the value of a term, for which ``TERM`` stands in the fix.

    ``FIELD`` stands for the first field or term in it, as `dim` in ``dim > 3``.
    """
    require_class_body(term)
    text = argument_text(term, text_of)
    field = next((operand for operand in operands_of(term) if isinstance(operand, Term)), term)
    raise ExpressionError(
        in_class_body(text),
        f"a field has no value until an instance is created, and {operation} needs one",
        fix=fix.replace("TERM", text).replace("FIELD", text_of(field)),
    )


def class_body() -> FrameType | None:
    """The innermost class body of a Pytree among the frames that run."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_class_body(frame):
        frame = frame.f_back
    return frame


def is_class_body(frame: FrameType) -> bool:
    """Whether a frame runs the class body of a Pytree, or a text that a debugger evaluates there."""
    if OPEN_BODIES.runs(frame):
        return True
    # The locals of functions are left alone: they would be copied.
    return not frame.f_code.co_flags & inspect.CO_OPTIMIZED and hasattr(type(frame.f_locals), "_pytree__is_class_body")


def is_library(frame: FrameType) -> bool:
    """Whether a frame is of JAX or numpy, which look for the attributes of arrays."""
    return str(frame.f_globals.get("__name__")).startswith(("jax.", "numpy."))


def compares_by_identity(frame: FrameType) -> bool:
    """Whether a frame is of JAX or of a signature; their caches compare what they hold."""
    module = str(frame.f_globals.get("__name__"))
    return module.startswith("jax.") or module == "inspect"


def in_class_body(text: str) -> str:
    """An expression with the class whose body runs, if one does."""
    frame = class_body()
    if frame is None:
        return text
    return f"{frame.f_code.co_name}.{text}" if text.isidentifier() else f"{frame.f_code.co_name}: {text}"


def require_class_body(term: Term, error: type[DeclaxError] = ExpressionError) -> None:
    """Raises outside of a class body: nothing would evaluate the operation."""
    if class_body() is None:
        raise error(
            bare(term),
            "a field has no value until an instance is created, and this is not in the body of a declared class",
            fix="block.dim        # the field of an instance, in place of Block.dim",
        )


def refuse_partial(value: Any, where: str, depth: int = 8) -> None:
    """Raises for a `functools.partial` over an expression, also in literals: nothing would evaluate it."""
    if value.__class__ in CONTAINERS and depth:
        for item in items(value):
            refuse_partial(item, where, depth - 1)
    if not isinstance(value, functools.partial):
        return
    held = next(filter(has_expression, (*value.args, *value.keywords.values())), None)
    if held is not None:
        raise FieldError(
            where,
            f"a partial holds the field expression {text_of(held)}",
            why="it would stay an expression there",
            fix="dx.defer(functools.partial)(f, dim)        # each instance makes the partial",
        )
