"""Reads byte code: which names and attributes code reads, and what it calls. Nothing runs."""

from __future__ import annotations

import builtins
import dis
import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, Final, NamedTuple, TypeAlias

_NAMES: Final = ("LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_")
ATTRIBUTES: Final = ("LOAD_ATTR", "LOAD_METHOD")
CALLS: Final = ("CALL", "CALL_KW", "CALL_FUNCTION_EX")
_LIBRARIES: Final = ("declax", "jax", "jaxlib", "numpy", "flax", "optax", "functools", "itertools", "typing")
"""Packages whose functions are not looked into."""

Place: TypeAlias = tuple[int, int]
"""A line and a column of the source."""
Span: TypeAlias = tuple[Place, Place]
NOWHERE: Final[Span] = (0, 0), (0, 0)
"""The span of code without positions: ``-X no_debug_ranges``, and what the compiler adds."""


def span_of(instruction: dis.Instruction) -> Span:
    """Where the source of an instruction begins and ends."""
    found = instruction.positions
    if found is None or found.lineno is None or found.end_lineno is None:
        return NOWHERE
    if found.col_offset is None or found.end_col_offset is None:
        return NOWHERE
    return (found.lineno, found.col_offset), (found.end_lineno, found.end_col_offset)


def is_around(outer: Span, inner: Span) -> bool:
    """Whether the source of one piece of code contains that of another."""
    return outer[0] <= inner[0] and inner[1] <= outer[1]


class Chain(NamedTuple):
    """A name that code reads, and the attributes that it reads from it, as ``dx.nn.Linear``.

    Attributes:
      names: the name, and those of the attributes.
      at: the index of the instruction that reads the name.
      span: its place in the source.
      is_called: whether it is the function of a call.
    """

    names: tuple[str, ...]
    at: int
    span: Span
    is_called: bool


def chains_of(instructions: Iterable[dis.Instruction]) -> list[Chain]:
    """The names that instructions read, in their order."""
    found: list[Chain] = []
    ends: dict[Place, Place] = {}  # of calls
    is_open = False  # whether the last instruction reads a name, or an attribute of one
    for at, instruction in enumerate(instructions):
        operation, value, span = instruction.opname, instruction.argval, span_of(instruction)
        if operation in ATTRIBUTES and is_open:
            found[-1] = Chain((*found[-1].names, value), found[-1].at, span, False)
        elif operation == "STORE_FAST_LOAD_FAST":
            found.append(Chain(value[1:], at, span, False))
            is_open = True
        elif operation.startswith(_NAMES):
            read = value if isinstance(value, tuple) else (value,)  # some instructions read two variables
            found += (Chain((name,), at, span, False) for name in read)
            is_open = True
        elif operation != "EXTENDED_ARG":
            is_open = False
            if operation in CALLS:
                ends[span[0]] = max(span[1], ends.get(span[0], span[1]))
    return [chain._replace(is_called=ends.get(chain.span[0], chain.span[1]) > chain.span[1]) for chain in found]


@functools.lru_cache(maxsize=1024)
def chains_in(code: CodeType) -> list[Chain]:
    """The names that code reads, without those of functions inside of it."""
    return chains_of(dis.get_instructions(code))


def chains_at(code: CodeType, offset: int) -> list[Chain]:
    """The operands of an instruction that are names, as `self.norm` and `x` in ``self.norm(x)``; not those of calls."""
    done = [found for found in dis.get_instructions(code) if found.offset <= offset]
    place = span_of(done[-2 if done[-1].opname.startswith("UNPACK_") else -1])  # not that of the targets
    if place == NOWHERE:
        return []
    calls = [span for found in done[:-1] if found.opname in CALLS and is_around(place, span := span_of(found))]
    chains = [chain for chain in chains_of(done) if is_around(place, chain.span)]
    return [chain for chain in chains if not any(is_around(call, chain.span) for call in calls)]


def codes_within(code: CodeType) -> Iterator[CodeType]:
    """Code, and that of comprehensions, lambdas and functions inside of it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from codes_within(inner)


class Code(NamedTuple):
    """Code with the values of the names that it reads from outside."""

    code: CodeType
    variables: Mapping[str, Any]
    globals: Mapping[str, Any]

    def called(self) -> Iterator[Any]:
        """The functions and classes that it calls by name, as far as names and modules tell."""
        for code in codes_within(self.code):
            for chain in chains_in(code):
                if chain.is_called:
                    yield self.resolved(chain.names)

    def resolved(self, names: tuple[str, ...]) -> Any:
        """The object of a name and its attributes, without running code of users; None if that is not known."""
        scopes = (self.variables, self.globals, vars(builtins))
        found = next(
            (scope.get(names[0]) for scope in scopes if names[0] in scope), None
        )  # not `__getitem__`: ClassBody
        for name in names[1:]:
            if isinstance(found, (ModuleType, type)):
                found = getattr(found, name, None)
            else:
                method = inspect.getattr_static(type(found), name, None)
                found = method if isinstance(method, FunctionType) else None
        return found


def code_of(function: Any) -> Code | None:
    """The code of a function of Python, a method, a partial or a generator; None for others, and those of libraries."""
    while isinstance(function, (functools.partial, MethodType)):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    if isinstance(function, GeneratorType):
        frame = function.gi_frame
        return None if frame is None else Code(frame.f_code, dict(frame.f_locals), frame.f_globals)
    if not isinstance(function, FunctionType) or str(function.__module__).partition(".")[0] in _LIBRARIES:
        return None
    return Code(function.__code__, cells_of(function), function.__globals__)


def cells_of(function: FunctionType) -> dict[str, Any]:
    """What the cells of a function hold, by name; those that are empty are filled later."""
    cells = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            cells[name] = cell.cell_contents
        except ValueError:
            continue
    return cells


def all_called(function: Any, depth: int = 3) -> Iterator[Any]:
    """The functions and classes that a function calls, also by functions of users that it calls."""
    waiting, seen = [(function, depth)], set[int]()
    while waiting:
        caller, left = waiting.pop()
        code = code_of(caller)
        for called in () if code is None or id(code.code) in seen else code.called():
            yield called
            if left:
                waiting.append((called, left - 1))
        if code is not None:
            seen.add(id(code.code))
