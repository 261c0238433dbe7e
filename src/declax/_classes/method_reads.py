"""The attributes of an object that methods read where they make parts, by their code."""

from __future__ import annotations

import dis
import functools
import itertools
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple

from declax._fields.bytecode import (
    Code,
    Place,
    Span,
    all_called,
    chains_in,
    chains_of,
    code_of,
    codes_within,
    is_around,
    span_of,
)
from declax._tree.attributes import class_attribute
from declax._tree.iterators import is_model_class

_MOST: Final = 64
"""How many methods are looked into for one part."""


class Read(NamedTuple):
    """An attribute that code reads from the object, with those behind it, as in ``self.config.dim``.

    Attributes:
      names: of the attributes.
      is_tested: whether a condition of the code reads it.
    """

    names: tuple[str, ...]
    is_tested: bool


def reads_of(cls: type, method: Any) -> set[Read]:
    """What a method and the methods, properties and functions to which it passes the object read from it.

    What a check reads that only raises an error is left out.
    """
    found, seen = set[Read](), set[tuple[CodeType, int]]()
    waiting = [(method, 0)]
    while waiting and len(seen) < _MOST:
        function, position = waiting.pop()
        code = code_of(function)
        if code is None or (code.code, position) in seen or position >= code.code.co_argcount:
            continue
        seen.add((code.code, position))
        name = code.code.co_varnames[position]
        for read in _reads_in(code.code, name):
            below = _function_of(class_attribute(cls, read.names[0])) if read.names else None
            if below is not None:
                waiting.append((below, 0))
            elif read.names:
                found.add(read)
            else:  # the object itself may be an argument of each function
                waiting += ((called, at) for called in _functions(code) for at in range(called.__code__.co_argcount))
    return found


def reads_in_calls(cls: type, method: Any) -> Iterator[tuple[str, Read]]:
    """What a method reads from the object for the calls that make models; each with the attribute that is assigned.

    That are their arguments, variables that are computed before, and conditions and loops around them.
    """
    code = code_of(method)
    if code is None or not code.code.co_argcount:
        return
    name, instructions = code.code.co_varnames[0], list(dis.get_instructions(code.code))
    calls = list(_model_calls(cls, code, name, instructions))
    for call in calls:
        waiting, known = {call.span}, set[Span]()
        while waiting:
            span = waiting.pop()
            known.add(span)
            for read, place in _placed_reads(code.code, name):
                if is_around(span, place):
                    below = _function_of(class_attribute(cls, read.names[0])) if read.names else None
                    yield from ((call.target, each) for each in ([read] if below is None else reads_of(cls, below)))
            waiting |= {made for variable, made in _computed(instructions) if _reads(code.code, variable, span)} - known
        for offsets, around in _around(instructions, name):
            if call.offset in offsets:
                yield from ((call.target, read) for read in around)


class _ModelCall(NamedTuple):
    offset: int
    span: Span
    target: str


def _model_calls(cls: type, code: Code, name: str, instructions: list[dis.Instruction]) -> Iterator[_ModelCall]:
    """The calls in the code of a method that make models, by themselves or by functions of users."""
    starts = set[Place]()
    for inner in codes_within(code.code):
        for chain in chains_in(inner):
            of_self = chain.names[0] == name and len(chain.names) == 2
            called = _function_of(class_attribute(cls, chain.names[1])) if of_self else code.resolved(chain.names)
            if chain.is_called and (is_model_class(called) or any(map(is_model_class, all_called(called)))):
                starts.add(chain.span[0])
    for index, instruction in enumerate(instructions):
        span = span_of(instruction)
        if instruction.opname.startswith("CALL") and any(span[0] <= start < span[1] for start in starts):
            later = (each.argval for each in instructions[index:] if each.opname == "STORE_ATTR")
            yield _ModelCall(instruction.offset, span, next(later, "__post_init__"))


def _placed_reads(code: CodeType, name: str) -> Iterator[tuple[Read, Span]]:
    for inner in codes_within(code):
        for chain in chains_in(inner):
            if chain.names[0] == name and len(chain.names) > 1:
                yield Read(chain.names[1:], False), chain.span


def _reads(code: CodeType, variable: str, span: Span) -> bool:
    """Whether code reads a variable within a span."""
    chains = (chain for inner in codes_within(code) for chain in chains_in(inner))
    return any(chain.names[0] == variable and is_around(span, chain.span) for chain in chains)


def _computed(instructions: list[dis.Instruction]) -> Iterator[tuple[str, Span]]:
    """The variables that code assigns, each with the span of its value."""
    for before, instruction in itertools.pairwise(instructions):
        if instruction.opname in ("STORE_FAST", "STORE_DEREF"):
            yield instruction.argval, span_of(before)


def _around(instructions: list[dis.Instruction], name: str) -> Iterator[tuple[range, list[Read]]]:
    """The conditions and loops of code: the offsets to which they apply, and what they read."""
    for at, jump, reads in _statements(instructions, name):
        if reads and jump.opname == "FOR_ITER":
            yield range(jump.offset, jump.argval), [Read(read, False) for read in reads]
        elif reads and _is_conditional(jump.opname) and not _is_check(instructions, at):
            last = [each for each in instructions if each.offset < jump.argval][-1]
            end = last.argval if last.opname == "JUMP_FORWARD" else jump.argval
            yield range(jump.offset, end), [Read(read, True) for read in reads]


def _reads_in(code: CodeType, name: str) -> Iterator[Read]:
    """What code reads from a parameter, without checks; no names for the object itself."""
    for inner in codes_within(code):
        if inner is not code and name in inner.co_varnames[: inner.co_argcount]:
            continue
        instructions = list(dis.get_instructions(inner))
        for at, end, reads in _statements(instructions, name, bare=True):
            is_test = _is_conditional(end.opname)
            if not (end.opname == "RAISE_VARARGS" or (is_test and _is_check(instructions, at))):
                yield from (Read(read, is_test) for read in reads)


_ENDS: Final = ("STORE_", "POP_TOP", "RETURN_", "YIELD_", "RAISE_", "FOR_ITER")


def _statements(
    instructions: list[dis.Instruction], name: str, *, bare: bool = False
) -> Iterator[tuple[int, dis.Instruction, list[tuple[str, ...]]]]:
    """What the instructions up to each assignment, jump or end read from a name; with the last and its index."""
    chains = [chain for chain in chains_of(instructions) if chain.names[0] == name and (bare or len(chain.names) > 1)]
    begin = 0
    for at, instruction in enumerate(instructions):
        operation = instruction.opname
        if operation.startswith(_ENDS) or _is_conditional(operation) or instruction is instructions[-1]:
            yield at, instruction, [chain.names[1:] for chain in chains if begin <= chain.at < at]
            begin = at  # an instruction that assigns a variable may read another one


def _is_conditional(operation: str) -> bool:
    return "JUMP" in operation and "IF_" in operation


def _is_check(instructions: list[dis.Instruction], at: int) -> bool:
    """Whether a conditional jump decides only that an error is raised."""
    return any(_raises(instructions, first) for first in _followers(instructions, at))


def _followers(instructions: list[dis.Instruction], at: int) -> Iterator[int]:
    yield at + 1
    if "IF_TRUE" in instructions[at].opname:  # the first operand of an `or`
        yield next((i for i, each in enumerate(instructions) if each.offset == instructions[at].argval), at)


def _raises(instructions: list[dis.Instruction], first: int) -> bool:
    for each in instructions[first:]:
        if each.opname == "RAISE_VARARGS":
            return True
        if each.opname.startswith(_ENDS) or each.opname == "JUMP_FORWARD":
            return False
    return False


def _function_of(definition: Any) -> FunctionType | None:
    """The function of a method or a property; None for other definitions of a class."""
    if isinstance(definition, property):
        definition = definition.fget
    if isinstance(definition, functools.cached_property):
        definition = definition.func
    definition = getattr(definition, "__wrapped__", definition)
    return definition if isinstance(definition, FunctionType) else None


def _functions(code: Code) -> Iterable[FunctionType]:
    return (called for called in code.called() if isinstance(called, FunctionType))
