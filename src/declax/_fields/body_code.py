"""What the byte code of a class body says: what it does with the names of fields, and which calls run in it."""

from __future__ import annotations

import ast
import builtins
import contextlib
import dis
import inspect
import itertools
import linecache
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import CodeType, FrameType, ModuleType
from typing import Any, Final, NamedTuple

_OF_CLASSES: Final = ("LOAD_NAME", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS", "LOAD_FROM_DICT_OR_DEREF")
"""How the body of a class reads a name."""
_OUTSIDE: Final = ("LOAD_GLOBAL", "LOAD_DEREF")
"""How functions read a name that is not theirs."""
_READS: Final = ("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_CLASSDEREF", "LOAD_DEREF", "LOAD_FROM_DICT_OR_DEREF")
"""How code reads a name."""
_ATTRIBUTES: Final = ("LOAD_ATTR", "LOAD_METHOD")
_CALLS: Final = ("CALL", "CALL_KW", "CALL_FUNCTION_EX")
_SCALES: Final = frozenset({"LOAD_CONST", "LOAD_SMALL_INT", "BINARY_OP", "UNARY_NEGATIVE"})
"""The instructions of arithmetic with numbers."""


_SCOPES: Final = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>")
_IDENTITY_TESTS: Final = frozenset(
    code for name, code in dis.opmap.items() if name == "IS_OP" or name.endswith("_NONE")
)
"""The instructions of `is`."""
_TYPE_TESTS: Final = frozenset({"callable", "hasattr", "isinstance", "type"})
"""The functions of Python that test the expression in place of its value."""


# --- names in a class body ------------------------------------------------------


class BodyFaults(NamedTuple):
    """What a class body does with names that it must not do with fields.

    Attributes:
      read_inside: the names that scopes in it read from outside of themselves, each with what reads it, and where.
      tested: the operands of ``is`` and the arguments of functions like isinstance: pairs of the test and a name.
    """

    read_inside: Mapping[str, str]
    tested: tuple[tuple[str, str], ...]


NO_FAULTS: Final = BodyFaults({}, ())


def body_faults(code: CodeType) -> BodyFaults:
    """Looks once at the code of a class body, and of comprehensions, lambdas and classes in it."""
    inside: list[tuple[str, str]] = []
    for scope in code.co_consts:
        if isinstance(scope, CodeType):
            inside += _names_inside(scope, frozenset(code.co_cellvars), is_outermost=True)
    has_tests = not (_IDENTITY_TESTS.isdisjoint(code.co_code[::2]) and _TYPE_TESTS.isdisjoint(code.co_names))
    if not (has_tests or code.co_nlocals):
        return BodyFaults(dict(inside), ()) if inside else NO_FAULTS
    instructions = list(dis.get_instructions(code))
    if code.co_nlocals:  # since Python 3.12, comprehensions are a part of the code, and their variables locals
        read = _reads(instructions, code, _COMPREHENSION, _OUTSIDE)
        inside += [(name, where) for name, where in read if name not in code.co_cellvars]
    return BodyFaults(dict(inside), tuple(_names_tested(instructions)) if has_tests else ())


_COMPREHENSION: Final = "comprehension or lambda"


def _names_inside(code: CodeType, around: frozenset[str], *, is_outermost: bool = False) -> Iterator[tuple[str, str]]:
    """The names that a scope in a class body, and those in it, read from outside of the class body.

    `around` are the variables of the scopes between the code and the class body.
    """
    if code.co_name in _SCOPES:
        variables = around.union(code.co_cellvars)
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                yield from _names_inside(inner, variables)
        read = _reads(dis.get_instructions(code), code, _COMPREHENSION, _OUTSIDE)
        yield from ((name, where) for name, where in read if name not in variables)
    elif is_outermost and not code.co_flags & inspect.CO_OPTIMIZED:
        instructions = list(dis.get_instructions(code))
        bound = {found.argval for found in instructions if found.opname == "STORE_NAME"}
        read = _reads(instructions, code, f"nested class {code.co_name}", _OF_CLASSES)
        yield from ((name, where) for name, where in read if name not in bound)


def _reads(
    instructions: Iterable[dis.Instruction], code: CodeType, scope: str, operations: Collection[str]
) -> Iterator[tuple[str, str]]:
    """The names that instructions read by some operations, each with the scope and its line."""
    for found in instructions:
        if found.opname in operations:
            line = found.positions.lineno if found.positions else None
            yield found.argval, f"{scope} in line {line or code.co_firstlineno}"


def _names_tested(instructions: Iterable[dis.Instruction]) -> Iterator[tuple[str, str]]:
    reads: list[tuple[tuple[int, int], str]] = []
    start = end = 0, 0
    called = set[tuple[int, int]]()
    for instruction in instructions:
        found = instruction.positions or dis.Positions()
        if not instruction.opname.endswith("_NONE"):  # a jump, which tests the result of the last instruction
            start = found.lineno or 0, found.col_offset or 0
            end = found.end_lineno or 0, found.end_col_offset or 0
        if instruction.opname in _OF_CLASSES:
            reads.append((start, instruction.argval))
        elif instruction.opcode in _IDENTITY_TESTS:
            yield from (("`is`", name) for place, name in reads if start <= place < end)
        elif instruction.opname == "CALL":
            within = [name for place, name in reads if start <= place < end]
            if within and within[0] in _TYPE_TESTS and start not in called:  # `type(x)(dim)` applies what type gives
                yield from ((within[0], name) for name in within)
            called.add(start)


def binds(code: CodeType, name: str) -> bool:
    """Whether the code of a class body has a statement that binds a name."""
    return any(made.opname == "STORE_NAME" and made.argval == name for made in dis.get_instructions(code))


# --- calls that run ---------------------------------------------------------------


class Call(NamedTuple):
    """A call in a class body whose arguments are being computed, or that runs.

    Attributes:
      text: the function as the class body writes it, such as ``jnp.zeros``.
      function: the function; None if it is not known.
      arguments: their source with the brackets; without a source file, ``TERM`` stands for the field among them.
      is_running: whether the function runs, and not only its arguments.
      is_scaled: whether its result is an operand of arithmetic with numbers, and that a last argument.
      is_passed_on: whether its result is the last argument of the call around it.
    """

    text: str
    function: Any
    arguments: str
    is_running: bool
    is_scaled: bool
    is_passed_on: bool


def calls_around(frame: FrameType) -> list[Call]:
    """The calls around the operation that a class body runs now, the innermost first."""
    instructions = list(dis.get_instructions(frame.f_code))
    now = max((i for i in instructions if i.offset <= frame.f_lasti), key=lambda i: i.offset)  # or in its caches
    if _span(now) is None:  # the interpreter was started without positions
        return []
    calls = [
        found
        for found in instructions
        if found.opname in _CALLS and found.offset >= now.offset and _is_around(_span(found), _span(now))
    ]
    return [call for found in calls if (call := _call(frame, instructions, found, is_running=found is now)) is not None]


def target_of(frame: FrameType) -> str | None:
    """The name that the running statement of a class body binds."""
    stores = (i.argval for i in dis.get_instructions(frame.f_code) if i.offset > frame.f_lasti and "STORE" in i.opname)
    return next((name for name in stores if isinstance(name, str)), None)


def attribute_called(frame: FrameType, last: int) -> tuple[Any, str] | None:
    """The object and the name of the attribute that a function calls at an instruction, as in ``self.norm(x)``."""
    instructions = list(dis.get_instructions(frame.f_code))
    made = next((found for found in instructions if found.offset == last and found.opname in _CALLS), None)
    if made is None or _span(made) is None:
        return None
    call = _call(frame, instructions, made, is_running=True)
    first, *names = call.text.split(".") if call is not None else [""]
    owner = frame.f_locals.get(first)
    for name in names[:-1]:
        owner = getattr(owner, "__dict__", {}).get(name)
    return (owner, names[-1]) if names else None


def attribute_read(frame: FrameType) -> str | None:
    """The attribute that the next instruction reads, as `dim` where ``self`` is read in ``self.dim``."""
    following = (i for i in dis.get_instructions(frame.f_code) if i.offset > frame.f_lasti)
    found = next(following, None)
    return found.argval if found is not None and found.opname in _ATTRIBUTES else None


_Span = tuple[tuple[int, int], tuple[int, int]]


def _span(instruction: dis.Instruction) -> _Span | None:
    """Where the source of an instruction begins and ends: pairs of a line and a column."""
    found = instruction.positions
    if found is None or found.lineno is None or found.end_lineno is None:
        return None
    if found.col_offset is None or found.end_col_offset is None:
        return None
    return (found.lineno, found.col_offset), (found.end_lineno, found.end_col_offset)


def _is_around(outer: _Span | None, inner: _Span | None) -> bool:
    return outer is not None and inner is not None and outer[0] <= inner[0] and inner[1] <= outer[1]


def _call(
    frame: FrameType, instructions: list[dis.Instruction], made: dis.Instruction, *, is_running: bool
) -> Call | None:
    """A call, if its function is a name or an attribute of one."""
    span = _span(made)
    assert span is not None
    names: list[str] = []
    end = span[0]
    for found in instructions:
        place = _span(found)
        if found.offset >= made.offset or place is None or place[0] != span[0]:
            continue
        if found.opname in _CALLS:  # the function is the result of a call
            return None
        if (found.opname in _READS and not names) or (found.opname in _ATTRIBUTES and names):
            names.append(found.argval)
            end = place[1]
    if not names:
        return None
    arguments = _source(frame.f_code, end, span[1])
    if arguments is None:
        builds = any(i.opname.startswith("BUILD_") and _is_around(span, _span(i)) for i in instructions)
        arguments = "(...)" if builds else "(TERM)" if made.argval == 1 else "(..., TERM)"
    after = itertools.takewhile(lambda i: i.opname not in _CALLS, (i for i in instructions if i.offset > made.offset))
    following = {found.opname for found in after} - {"PRECALL"}
    is_scaled = bool(following) and following <= _SCALES
    return Call(".".join(names), _resolved(frame, names), arguments, is_running, is_scaled, not following)


def _resolved(frame: FrameType, names: list[str]) -> Any:
    """The object of a name and its attributes, without running code of users."""
    scopes: tuple[Any, ...] = (frame.f_locals, frame.f_globals, vars(builtins))
    found = next((scope.get(names[0]) for scope in scopes if names[0] in scope), None)  # past `ClassBody.__getitem__`
    for name in names[1:]:
        found = getattr(found, name, None) if isinstance(found, (ModuleType, type)) else None
    return found


def _source(code: CodeType, start: tuple[int, int], end: tuple[int, int]) -> str | None:
    """The source between two places, on one line; None if there is no source, or it has comments."""
    lines = [linecache.getline(code.co_filename, number).encode() for number in range(start[0], end[0] + 1)]
    lines[-1] = lines[-1][: end[1]]
    lines[0] = lines[0][start[1] :]
    text = b"".join(lines).decode()
    if len(lines) == 1:
        return text or None
    return " ".join(text.split()) if text and "#" not in text else None


_SHAPES: Final = {"zeros": 0, "ones": 0, "empty": 0, "full": 0, "arange": 0, "normal": 1, "uniform": 1}
"""The position of the shape among the arguments of functions of arrays."""


def shape_made(call: Call) -> str | None:
    """The source of the shape of the array that a call makes for a Variable around it, if the call tells."""
    name = call.text.rpartition(".")[2]
    is_initializer = "initializers" in getattr(call.function, "__module__", "")
    given = _argument(call, 1 if is_initializer else _SHAPES.get(name), "shape")
    if given is None or not (call.is_scaled or call.is_passed_on):
        return None
    sizes = given.elts if isinstance(given, (ast.Tuple, ast.List)) else [given]
    is_known = not any(isinstance(size, ast.Starred) or ast.unparse(size) == "..." for size in sizes)
    return ast.unparse(ast.Tuple(sizes)) if is_known and (name != "arange" or len(_parsed(call).args) == 1) else None


def initializer_made(call: Call) -> str | None:
    """The initializer of declax for the array that a call makes for a Variable around it, if the call tells."""
    name = call.text.rpartition(".")[2]
    if not call.is_passed_on:
        return None
    if name == "full":
        value = _argument(call, 1, "fill_value")
        is_number = value is not None and not any(isinstance(node, ast.Name) for node in ast.walk(value))
        return f"constant({ast.unparse(value)})" if value is not None and is_number else None
    return {"zeros": "zeros", "ones": "ones", "empty": "zeros", "normal": "normal(0.02)"}.get(name)


def _argument(call: Call, position: int | None, name: str) -> ast.expr | None:
    """The argument of a call at a position, or of a name."""
    made = _parsed(call)
    if position is None or any(isinstance(arg, ast.Starred) for arg in made.args):
        return None
    if position < len(made.args):
        return made.args[position]
    return next((keyword.value for keyword in made.keywords if keyword.arg == name), None)


def _parsed(call: Call) -> ast.Call:
    with contextlib.suppress(SyntaxError):
        made = ast.parse(f"f{call.arguments}", mode="eval").body
        if isinstance(made, ast.Call):
            return made
    return ast.Call(ast.Name("f"), [], [])
