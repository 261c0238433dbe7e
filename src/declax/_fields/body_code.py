"""What the byte code of a class body says: what it does with the names of fields, and which calls run in it."""

from __future__ import annotations

import ast
import contextlib
import dis
import inspect
import itertools
import linecache
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from declax._fields.bytecode import ATTRIBUTES, CALLS, NOWHERE, Code, Place, chains_in, is_around, span_of

_OF_CLASSES: Final = ("LOAD_NAME", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS", "LOAD_FROM_DICT_OR_DEREF")
"""How the body of a class reads a name."""
_OUTSIDE: Final = ("LOAD_GLOBAL", "LOAD_DEREF")
"""How functions read a name that is not theirs."""
_SCALES: Final = frozenset({"LOAD_CONST", "LOAD_SMALL_INT", "BINARY_OP", "UNARY_NEGATIVE"})
"""The instructions of arithmetic with numbers."""
_SCOPES: Final = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>")
_IDENTITY_TESTS: Final = frozenset(
    code for name, code in dis.opmap.items() if name == "IS_OP" or name.endswith("_NONE")
)
"""The instructions of `is`."""
_UNPACKINGS: Final = ("UNPACK_SEQUENCE", "UNPACK_EX")
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
    reads: list[tuple[Place, str]] = []
    start, end = NOWHERE
    called = set[Place]()
    for instruction in instructions:
        if not instruction.opname.endswith("_NONE"):  # a jump, which tests the result of the last instruction
            start, end = span_of(instruction)
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


def is_subscript(frame: FrameType) -> bool:
    """Whether a frame reads an item or a slice now, as in ``values[dim]``."""
    now = next((i for i in dis.get_instructions(frame.f_code) if i.offset == frame.f_lasti), None)
    return now is not None and (now.opname in ("BINARY_SUBSCR", "BINARY_SLICE") or now.argrepr == "[]")


def unpacked_with(frame: FrameType) -> list[str]:
    """The names that the unpacking which runs has bound so far: `q` and `k` where ``q, k, v = ...`` binds `v`."""
    bound: list[str] = []
    waiting = 0  # targets of the unpacking
    for found in itertools.takewhile(lambda i: i.offset < frame.f_lasti, dis.get_instructions(frame.f_code)):
        if found.opname in _UNPACKINGS:
            targets = found.arg or 0
            bound = bound if waiting else []
            waiting += (targets & 0xFF) + (targets >> 8) + (found.opname == "UNPACK_EX") - (waiting > 0)
        elif waiting and found.opname.startswith("STORE_"):
            bound.append(found.argval)
            waiting -= 1
    return bound if waiting else []


# --- calls that run ---------------------------------------------------------------


class RunningCall(NamedTuple):
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


def calls_around(frame: FrameType) -> list[RunningCall]:
    """The calls around the operation that a class body runs now, the innermost first."""
    instructions = list(dis.get_instructions(frame.f_code))
    now = max((i for i in instructions if i.offset <= frame.f_lasti), key=lambda i: i.offset)  # or in its caches
    if span_of(now) == NOWHERE:
        return []
    calls = [
        found
        for found in instructions
        if found.opname in CALLS and found.offset >= now.offset and is_around(span_of(found), span_of(now))
    ]
    return [call for found in calls if (call := _call(frame, instructions, found, is_running=found is now)) is not None]


def name_bound(frame: FrameType) -> str | None:
    """The name that the running statement of a class body binds."""
    stores = (i.argval for i in dis.get_instructions(frame.f_code) if i.offset > frame.f_lasti and "STORE" in i.opname)
    return next((name for name in stores if isinstance(name, str)), None)


def attribute_read(frame: FrameType) -> str | None:
    """The attribute that the next instruction reads, as `dim` where ``self`` is read in ``self.dim``."""
    following = (i for i in dis.get_instructions(frame.f_code) if i.offset > frame.f_lasti)
    found = next(following, None)
    return found.argval if found is not None and found.opname in ATTRIBUTES else None


def _call(
    frame: FrameType, instructions: list[dis.Instruction], made: dis.Instruction, *, is_running: bool
) -> RunningCall | None:
    """A call, if its function is a name or an attribute of one."""
    start, end = span_of(made)
    function = next((chain for chain in chains_in(frame.f_code) if chain.span[0] == start), None)
    earlier = (found for found in instructions if found.offset < made.offset and found.opname in CALLS)
    if function is None or any(span_of(found)[0] == start for found in earlier):  # it is the result of a call
        return None
    arguments = _source(frame.f_code, function.span[1], end)
    if arguments is None:
        builds = any(i.opname.startswith("BUILD_") and is_around((start, end), span_of(i)) for i in instructions)
        arguments = "(...)" if builds else "(TERM)" if made.argval == 1 else "(..., TERM)"
    after = itertools.takewhile(lambda i: i.opname not in CALLS, (i for i in instructions if i.offset > made.offset))
    following = {found.opname for found in after} - {"PRECALL"}
    is_scaled = bool(following) and following <= _SCALES
    called = Code(frame.f_code, frame.f_locals, frame.f_globals).resolved(function.names)
    return RunningCall(".".join(function.names), called, arguments, is_running, is_scaled, not following)


def _source(code: CodeType, start: Place, end: Place) -> str | None:
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


def shape_made(call: RunningCall) -> str | None:
    """The source of the shape of the array that a call makes for a Variable around it, if the call tells."""
    name = call.text.rpartition(".")[2]
    is_initializer = "initializers" in getattr(call.function, "__module__", "")
    given = _argument(call, 1 if is_initializer else _SHAPES.get(name), "shape")
    if given is None or not (call.is_scaled or call.is_passed_on):
        return None
    sizes = given.elts if isinstance(given, (ast.Tuple, ast.List)) else [given]
    is_known = not any(isinstance(size, ast.Starred) or ast.unparse(size) == "..." for size in sizes)
    return ast.unparse(ast.Tuple(sizes)) if is_known and (name != "arange" or len(_parsed(call).args) == 1) else None


def initializer_made(call: RunningCall) -> str | None:
    """The initializer of declax for the array that a call makes for a Variable around it, if the call tells."""
    name = call.text.rpartition(".")[2]
    if not call.is_passed_on:
        return None
    if name == "full":
        value = _argument(call, 1, "fill_value")
        is_number = value is not None and not any(isinstance(node, ast.Name) for node in ast.walk(value))
        return f"constant({ast.unparse(value)})" if value is not None and is_number else None
    return {"zeros": "zeros", "ones": "ones", "empty": "zeros", "normal": "normal(0.02)"}.get(name)


def _argument(call: RunningCall, position: int | None, name: str) -> ast.expr | None:
    """The argument of a call at a position, or of a name."""
    made = _parsed(call)
    if position is None or any(isinstance(arg, ast.Starred) for arg in made.args):
        return None
    if position < len(made.args):
        return made.args[position]
    return next((keyword.value for keyword in made.keywords if keyword.arg == name), None)


def _parsed(call: RunningCall) -> ast.Call:
    with contextlib.suppress(SyntaxError):
        made = ast.parse(f"f{call.arguments}", mode="eval").body
        if isinstance(made, ast.Call):
            return made
    return ast.Call(ast.Name("f"), [], [])
