"""Errors of operations on fields that a class body cannot evaluate."""

from __future__ import annotations

import functools
import inspect
import sys
from types import FrameType
from typing import Any, Final, NoReturn

from declax._fields.body_code import Call, calls_around, initializer_made, shape_made, target_of
from declax._fields.call import CONTAINERS, Term, has_expression, items, operands_of
from declax._fields.keys import OPEN_BODIES
from declax._fields.sources import class_text, text_of
from declax._jax import converts_to_array
from declax.errors import DeclaxError, ExpressionError, FieldError


def refuse(term: Term, operation: str, fix: str) -> NoReturn:
    """Raises for an operation that needs the value of a term, for which ``TERM`` stands in the fix.

    ``TEXT`` stands for the term as an operand, with brackets around arithmetic.
    ``FIELD`` stands for the first field or term in it, as `dim` in ``dim > 3``.
    """
    frame = require_class_body(term)
    text = text_of.argument(term)
    fix = fix.replace("TEXT", text_of(term))
    raise ExpressionError(
        f"{frame.f_code.co_name}.{text}" if text.isidentifier() else f"{frame.f_code.co_name}: {text}",
        f"a field has no value until an instance is created, and {operation} needs one",
        fix=fix.replace("TERM", text).replace("FIELD", text_of(_field_in(term))),
    )


def refuse_function(term: Term, operation: str, fix: str) -> NoReturn:
    """As `refuse`, for a function of numbers; the fix defers the call in the class body, if that is known."""
    frame = class_body()
    calls = [] if frame is None else calls_around(frame)
    variable = next((call for call in calls if hasattr(call.function, "raw_value")), None)
    if frame is not None and variable is not None:
        fix = variable_line(
            target_of(frame) or "w", variable.function, shape_made(calls[0]), initializer_made(calls[0])
        )
    elif calls and calls[0].is_running:
        fix = _fix_of_call(calls[0])
    refuse(term, operation, fix)


def _field_in(term: Term) -> Term:
    """The first field or term in a term, as `dim` in ``dim > 3``."""
    return next((operand for operand in operands_of(term) if isinstance(operand, Term)), term)


_FIXES: Final = {
    "sqrt": "TEXT ** 0.5        # in place of {0}(TERM)\nTEXT ** -0.5        # in place of 1 / {0}(TERM)",
    "range": "dx.repeat(TERM, dx.Linear(dim, dim))        # in place of a comprehension over range(TERM)",
}
"""For functions with a shorter way than `defer`, by the last part of their names."""


def _fix_of_call(call: Call) -> str:
    shorter = _FIXES.get(call.text.rpartition(".")[2])
    return f"dx.defer({call.text}){call.arguments}" if shorter is None else shorter.format(call.text)


def variable_line(name: str, kind: type, shape: str | None, initializer: str | None) -> str:
    """The line that declares a Variable, in place of one that the class body makes of an array.

    Dots stand for a shape or an initializer that is not known.
    """
    annotation = f"{class_text(kind)}[jax.Array]"
    made_by = "..." if initializer is None else f"dx.initializers.{initializer}"
    return f"{name}: {annotation} = dx.variable({shape or '(...)'}, initializer={made_by})"


def class_body() -> FrameType | None:
    """The innermost class body of a Pytree among the frames that run."""
    frame: FrameType | None = sys._getframe(1)
    found = OPEN_BODIES.innermost(frame)
    while found is None and frame is not None:
        found = frame if is_class_body(frame) else None
        frame = frame.f_back
    return found


def is_class_body(frame: FrameType) -> bool:
    """Whether a frame runs the class body of a Pytree, or a text in it, as of a debugger."""
    if OPEN_BODIES.runs(frame):
        return True
    # The locals of functions are left alone: they would be copied.
    return not frame.f_code.co_flags & inspect.CO_OPTIMIZED and hasattr(type(frame.f_locals), "_pytree__is_class_body")


def is_library(frame: FrameType) -> bool:
    """Whether a frame is of JAX or numpy, which look for the attributes of arrays."""
    return str(frame.f_globals.get("__name__")).startswith(("jax.", "numpy."))


def makes_array(frame: FrameType) -> bool:
    """Whether a frame is of a function of ``jax.numpy``, which makes an array of its argument."""
    return converts_to_array(str(frame.f_globals.get("__name__")))


def compares_by_identity(frame: FrameType) -> bool:
    """Whether a frame is of JAX or of a signature; their caches compare what they hold."""
    module = str(frame.f_globals.get("__name__"))
    return module.startswith("jax.") or module == "inspect"


def require_class_body(term: Term, error: type[DeclaxError] = ExpressionError) -> FrameType:
    """The class body that runs; raises outside of one: nothing would evaluate the operation."""
    frame = class_body()
    if frame is None:
        plain = _plain_class_body()
        raise error(
            text_of.whole(term),
            "a field has no value until an instance is created, and this is not in the body of a declared class",
            fix="block.dim        # the field of an instance, in place of Block.dim"
            if plain is None
            else f"@dx.dataclass\nclass {plain}(dx.Pytree): ...        # a plain dataclass calls no functions\n"
            "def __post_init__(self): ...        # computes them, in a plain one",
        )
    return frame


def _plain_class_body() -> str | None:
    """The name of the class, which is no Pytree, whose body runs."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if not frame.f_code.co_flags & inspect.CO_OPTIMIZED and "__qualname__" in frame.f_locals:
            return frame.f_code.co_name
        frame = frame.f_back
    return None


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
