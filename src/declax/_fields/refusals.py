"""Errors of operations on fields that a class body cannot evaluate."""

from __future__ import annotations

import collections
import functools
import inspect
import itertools
import sys
from collections.abc import Iterable
from types import FrameType, FunctionType, ModuleType
from typing import Any, Final, NoReturn

from declax._fields.body_code import RunningCall, calls_around, initializer_made, name_bound, shape_made
from declax._fields.bytecode import cells_of
from declax._fields.call import (
    COMPARISONS,
    CONTAINERS,
    Call,
    Term,
    calls_in,
    has_expression,
    items,
    operands_of,
    target_of,
)
from declax._fields.keys import OPEN_BODIES
from declax._fields.sources import class_text, text_of
from declax._jax import converts_to_array
from declax.errors import DeclaxError, ExpressionError, FieldError, type_name


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
            name_bound(frame) or "w", variable.function, shape_made(calls[0]), initializer_made(calls[0])
        )
    elif calls and calls[0].is_running and not hasattr(calls[0].function, "_pytree__is_pytree"):
        fix = _fix_of_call(calls[0])
        if target_of(term) in COMPARISONS.values():
            fix = fix.replace("TERM", "FIELD")
    refuse(term, operation, fix)


def _field_in(term: Any) -> Any:
    """The first field or term in a term, as `dim` in ``dim > 3``; what is no term itself."""
    return next((operand for operand in operands_of(term) if isinstance(operand, Term)), term)


_FIXES: Final = {
    "sqrt": "TEXT ** 0.5        # in place of {0}(TERM)\nTEXT ** -0.5        # in place of 1 / {0}(TERM)",
    "range": "dx.repeat(TERM, dx.Linear(dim, dim))        # in place of a comprehension over range(TERM)",
}
"""For functions with a shorter way than `defer`, by the last part of their names."""


def _fix_of_call(call: RunningCall) -> str:
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
    found = frame
    while found is not None and id(found.f_code) not in OPEN_BODIES.codes:
        found = found.f_back
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
        fix = "block.dim        # the field of an instance, in place of Block.dim"
        target = target_of(term)
        if plain is not None and isinstance(target, type) and getattr(target, "_pytree__is_module", False):
            fix = f"@dx.dataclass\nclass {plain}(dx.Layer): ...        # a class without this base has no parts"
        elif plain is not None:
            fix = f"@dx.dataclass\nclass {plain}(dx.Pytree): ...        # a plain dataclass calls no functions\n"
            fix += "def __post_init__(self): ...        # computes them, in a plain one"
        raise error(
            text_of.whole(term),
            "a field has no value until an instance is created, and this is not in the body of a declared class",
            fix=fix,
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


def refuse_holder(value: Any, where: str, depth: int = 8) -> None:
    """Raises for an object that holds an expression and is no literal, also in literals: nothing would evaluate it."""
    kind = value.__class__
    if kind in CONTAINERS:
        for item in items(value) if depth else ():
            refuse_holder(item, where, depth - 1)
        return
    held = None if isinstance(value, NO_HOLDERS) else next(filter(has_expression, _held_by(value)), None)
    if held is not None:
        raise FieldError(
            where,
            f"the {type_name(kind)} holds the field expression {text_of(held)}",
            why="it would stay an expression there",
            fix=variable_line(where.rpartition(".")[2], kind, None, None)
            if hasattr(kind, "raw_value")
            else _fix_of_holder(value, held),
        )


def _fix_of_holder(value: Any, held: Any) -> str:
    kind = value.__class__
    defaults = _defaults_of(value) if kind is FunctionType else {}
    parameter = next((name for name, default in defaults.items() if default is held), None)
    if parameter is not None:
        return f"def {value.__name__}(self, {parameter}=None): ...        # which takes it from self where it is None"
    literal = f"[{text_of(held)}]        # or a literal tuple or dict"
    is_container = issubclass(kind, (list, tuple, dict))
    holds_parts = any(isinstance(c.target, type) and hasattr(c.target, "_pytree__is_pytree") for c in calls_in(held))
    if holds_parts and not is_container:  # which nobody would find in the object
        is_plain = kind is not functools.partial and not issubclass(kind, _COLLECTIONS)
        return f"class {type_name(kind)}(dx.Module): ...        # holds layers\n{literal}" if is_plain else literal
    made = "functools.partial)(f, dim" if kind is functools.partial else f"{_maker_of(value)})(..."
    fix = f"dx.defer({made})        # each instance makes it"
    if kind is FunctionType:
        fix += f"\nself.{text_of(_field_in(held))}        # in a method, and in what decorates it"
    return f"{fix}\n{literal}" if issubclass(kind, _COLLECTIONS) else fix


def _maker_of(value: Any) -> str:
    """The text of the function or class that made an object."""
    if isinstance(value, FunctionType):  # which another function defines around what it got
        around = value.__qualname__.split(".<locals>.")[-2::-1]
        return next((name for name in around if not name.startswith("<")), "function")
    return "dx.spec" if type_name(value.__class__) == "Spec" else class_text(value.__class__)


_COLLECTIONS: Final = (list, tuple, dict, set, frozenset, collections.deque)
NO_HOLDERS: Final = (Term, type, ModuleType, staticmethod, classmethod, str, int, float, type(None))
"""What holds no expression, or what Python calls."""


def _held_by(value: Any) -> Iterable[Any]:
    """What a partial, a collection, the closure and defaults of a function, a Spec or another object holds."""
    if isinstance(value, functools.partial):
        return (*value.args, *value.keywords.values())
    if isinstance(value, _COLLECTIONS):
        return value.values() if isinstance(value, dict) else value
    if isinstance(value, FunctionType):
        return (*cells_of(value).values(), *_defaults_of(value).values())
    slots = (base.__dict__.get("__slots__", ()) for base in type(value).__mro__)
    names = ("start", "stop", "step") if isinstance(value, slice) else itertools.chain(*map(_as_tuple, slots))
    slotted = (getattr(value, name, None) for name in names if not name.startswith("__"))
    held = [*getattr(value, "__dict__", {}).values(), *slotted]
    return [*held, *(operand for item in held if isinstance(item, Call) for operand in item.operands())]


def _defaults_of(function: FunctionType) -> dict[str, Any]:
    """The defaults of a function by the names of its parameters."""
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    return {**dict(zip(names, defaults, strict=True)), **(function.__kwdefaults__ or {})}


def _as_tuple(names: Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
