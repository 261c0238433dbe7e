"""Errors of operations on fields that a class body cannot evaluate."""

from __future__ import annotations

import collections
import dataclasses
import dis
import functools
import inspect
import linecache
import sys
from collections.abc import Iterable
from itertools import islice
from types import FrameType, FunctionType, SimpleNamespace
from typing import Any, Final, NoReturn

from declax._fields.sources import (
    CONTAINERS,
    Term,
    argument_text,
    bare,
    has_expression,
    items,
    text_in_own_class,
    text_of,
)
from declax.errors import DeclaxError, ExpressionError, FieldError

METHOD: Final = (
    "@dx.submodule\ndef part(self, rngs: dx.Rngs) -> dx.Linear: ...        # self has all fields declared above"
)
WHY_CONSTANT: Final = "`is` and isinstance look at the expression itself, and give a constant in the class body"

_LOOKUPS: Final = {
    "BINARY_SUBSCR": "dx.defer(operator.getitem)(table, {})",
    "BINARY_OP": "dx.defer(operator.getitem)(table, {})",
    "CONTAINS_OP": "dx.defer(operator.contains)(values, {})",
}
"""The instructions that look for an object in a dict or set, with the deferred calls."""

_HASH_BY_IDENTITY: Final = frozenset({"jax", "declax", "inspect", "functools", "dataclasses", "typing", "copy"})
"""Packages whose caches may hold expressions."""

_OPERATORS: Final = "declax._fields.expressions"
"""The module of the operators of expressions."""


def refuse(term: Term, operation: str, fix: str = METHOD) -> NoReturn:
    """Raises for an operation that needs the value of a field."""
    require_class_body(term)
    raise ExpressionError(
        in_class_body(argument_text(term, text_of)),
        f"a field has no value until an instance is created, and {operation} needs one",
        fix=_running_call(term) or fix,
    )


def class_body() -> FrameType | None:
    """The innermost class body of a Pytree among the frames that run."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_class_body(frame):
        frame = frame.f_back
    return frame


def is_class_body(frame: FrameType) -> bool:
    """Whether a frame runs the class body of a Pytree, or a text that a debugger evaluates there."""
    # The locals of functions are left alone: they would be copied.
    return not frame.f_code.co_flags & inspect.CO_OPTIMIZED and hasattr(type(frame.f_locals), "_pytree__is_class_body")


def refuse_lookup(term: Term, frame: FrameType) -> None:
    """Raises if a frame of user code looks for an expression in a dict or set, which compare its identity."""
    if str(frame.f_globals.get("__name__")).partition(".")[0] in _HASH_BY_IDENTITY:
        return
    instruction, _ = _instruction(frame)
    fix = _LOOKUPS.get(instruction, METHOD if instruction.startswith(("CALL", "PRECALL")) else None)
    if fix is not None and class_body() is not None:
        refuse(term, "the lookup in a dict or set", fix.format(text_of(term)))


def is_library(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__"))
    return module.startswith("jax.") or module == "inspect"


def is_numpy(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("numpy.")


_TRUTH: Final = ("CACHE", "TO_BOOL", "COMPARE_OP", "NOT_TAKEN")
"""Instructions around a truth test; Python 3.13 asks for the truth of a comparison in its instruction."""


def fix_of_truth_test(term: Term) -> str:
    """The line in place of a truth test of an expression: of `not`, `in`, `assert`, or another."""
    frame, text = class_body(), argument_text(term, text_of)
    following = b"" if frame is None else frame.f_code.co_code[frame.f_lasti :: 2]
    first, second, *_ = [*(name for code in following if (name := dis.opname[code]) not in _TRUTH), "", ""]
    if first == "UNARY_NOT":
        return f"~{text_of(term)}        # or dx.when({text}, other, part)"
    if first == "CONTAINS_OP":
        sought = next((value for value in term._pytree__operands() if isinstance(value, Term)), term)
        return f"dx.defer(operator.contains)(values, {text_of(sought)})"
    if second in ("LOAD_ASSERTION_ERROR", "LOAD_COMMON_CONSTANT"):
        return "def __post_init__(self, ...): assert ...        # or dx.field(check=...), for one field"
    return f"dx.when({text}, part, other)"


def in_class_body(text: str) -> str:
    """An expression with the class whose body runs, if one does."""
    frame = class_body()
    if frame is None:
        return text
    return f"{frame.f_code.co_name}.{text}" if text.isidentifier() else f"{frame.f_code.co_name}: {text}"


def _instruction(frame: FrameType) -> tuple[str, int]:
    """The instruction that a frame runs, and its argument; the interpreter may stand in the caches behind it."""
    place, code = frame.f_lasti, frame.f_code.co_code
    while dis.opname[code[place]] == "CACHE":
        place -= 2
    return dis.opname[code[place]], code[place + 1]


_REMAINDER, _ITEM = 6, 26
"""The arguments of BINARY_OP for `%`, and for a subscript since Python 3.14."""


def _running_call(term: Term) -> str | None:
    """The statement that the class body runs now, written with a deferred call; None if it is not known."""
    frame = class_body()
    if frame is None:
        return None
    instruction, argument = _instruction(frame)
    if instruction.startswith("UNPACK"):
        return f"first, second = {text_of(term)}[0], {text_of(term)}[1]"
    if instruction == "BINARY_SUBSCR" or (instruction, argument) == ("BINARY_OP", _ITEM):
        return _LOOKUPS["BINARY_SUBSCR"].format(text_of(term))
    is_formatting = (instruction, argument) == ("BINARY_OP", _REMAINDER)
    if is_formatting and sys._getframe(2).f_code.co_name in ("__int__", "__float__", "__index__"):
        return f'dx.defer("{{}}".format)({text_of(term)})        # in place of "%d" % {text_of(term)}'
    if not instruction.startswith(("CALL", "LIST_EXTEND")):
        return None
    line, last, start, end = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    source = linecache.getline(frame.f_code.co_filename, line or 0, frame.f_globals).encode()[start:end].decode()
    source = source if line == last else ""
    function, _, arguments = source.partition("(")
    text, is_list = text_of(term), hasattr(term, "_pytree__count")
    if is_list and arguments.startswith("*"):
        return f"{function}({arguments[1:]}"  # a call of a layer takes a list
    if not is_list and instruction.startswith(("LIST_EXTEND", "CALL_FUNCTION_EX")):
        two = f"{text}[0], {text}[1]"
        return source.replace(f"*{text}", two) if f"*{text}" in source else f"{two}        # in place of *{text}"
    if arguments:
        return None if function == "range" else f"dx.defer({function})({arguments}"
    called: Any = sys._getframe(1)
    while called.f_back is not frame:
        called = called.f_back
    if called.f_globals.get("__name__") != _OPERATORS:
        name = called.f_code.co_name
        module = "np." if is_numpy(called) else ""
        return f"dx.defer({module}{name})(...)" if name.isidentifier() else None
    if called.f_code.co_name != "__bool__":
        return None
    operands = ", ".join(map(text_of, term._pytree__operands())) or text_of(term)
    return f"dx.defer(f)({operands})        # in place of f({operands}), such as max or min"


def require_class_body(term: Term, error: type[DeclaxError] = ExpressionError) -> None:
    """Raises outside of a class body: nothing would evaluate the operation."""
    if class_body() is None:
        raise error(
            bare(term),
            "a field has no value until an instance is created, and this is not in the body of a declared class",
            fix="block.dim        # the field of an instance, in place of Block.dim",
        )


def refuse_hidden(value: Any, where: str, depth: int = 8) -> None:
    """Raises for expressions that nothing evaluates: in containers other than literal lists, tuples and dicts."""
    cls: Any = value.__class__
    held = next(filter(has_expression, _hidden_items(value)), None)
    if held is None:
        if cls in CONTAINERS and depth:
            for item in items(value):
                refuse_hidden(item, where, depth - 1)
        return
    text, why = text_of(held), "it would stay an expression there"
    problem = f"a {cls.__name__} holds the field expression {text}"
    fix = f"dx.defer({cls.__name__})(...)        # each instance makes it"
    if issubclass(cls, functools.partial):
        fix = "dx.defer(functools.partial)(f, dim)        # each instance makes the partial"
    elif cls in (set, frozenset, dict):
        problem = f"the field expression {text} is {'a key' if cls is dict else 'an element'} of a {cls.__name__}"
        why = "it would be found by its identity, not by its value"
        fix = "dx.defer(dict)([(dim, part)])" if cls is dict else f"dx.defer({cls.__name__})([dim])"
    elif cls is FunctionType:
        problem = f"the default of a parameter is the field expression {text}"
        fix = f"def {value.__name__}(self, size=None): ...        # and read self.{text_in_own_class(held)} there"
    raise FieldError(where, problem, why=why, fix=fix)


def _hidden_items(value: Any) -> Iterable[Any]:
    """The items of a value that holds them, but does not evaluate expressions."""
    cls: Any = value.__class__
    if isinstance(value, functools.partial):
        return (*value.args, *value.keywords.values())
    if cls is FunctionType:
        return (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
    if cls is slice:
        return (value.start, value.stop, value.step)
    if cls is SimpleNamespace or (dataclasses.is_dataclass(cls) and hasattr(value, "__dict__")):
        return tuple(vars(value).values())
    if cls in (list, tuple):
        return ()
    if isinstance(value, dict):
        return value if cls is dict else (*value, *value.values())
    return value if isinstance(value, (set, frozenset, tuple, list, collections.deque)) else ()
