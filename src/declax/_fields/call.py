"""Calls that are not made yet, and their evaluation.

A class body, a Spec, an override of a part and the record of a construction all describe an object by a `Call`.
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from declax._fields.interning import Shared
from declax._typing import MISSING

CONTAINERS: Final = frozenset({list, tuple, dict})
"""The containers whose literals may hold expressions."""


class Unmade:
    """The value of an attribute until its constructor makes the part."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Call(Unmade, Shared):
    """What is called, and its arguments, which may be or hold terms. Compared by identity: two calls make two objects.

    Attributes:
      target: a class or function, a function for an operation such as `operator.add`, or a term.
    """

    target: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def operands(self) -> tuple[Any, ...]:
        """The values that the call is made of."""
        target = () if id(self.target) in OPERATIONS else (self.target,)
        return (*target, *self.args, *self.kwargs.values())

    def bind(self) -> inspect.BoundArguments:
        """The arguments by the signature. Raises a TypeError or ValueError if it is unknown or does not fit."""
        return inspect.signature(self.target).bind_partial(*self.args, **self.kwargs)

    def arguments(self) -> dict[str, Any]:
        """The arguments by name, also those in ``**kwargs``; raises as `bind` does."""
        bound = self.bind()
        further = bound.arguments.pop(_extra(bound), {})
        return {**bound.arguments, **further}

    def with_arguments(self, changes: Mapping[str, Any]) -> Call:
        """The same call with other arguments, by name."""
        bound = self.bind()
        extra = _extra(bound)
        for name, value in changes.items():
            is_known = name in bound.signature.parameters and name != extra
            (bound.arguments if is_known else bound.arguments.setdefault(extra, {}))[name] = value
        return Call(self.target, bound.args, bound.kwargs)

    def evaluate(self, environment: Environment) -> Any:
        """The value of the call; see `evaluate`."""
        if self.target is chosen:
            flag, item, other = self.args
            return evaluate(item if evaluate(flag, environment) else other, environment)
        if self.target is repeated:
            count, item = self.args
            return [evaluate(item, environment) for _ in range(evaluate(count, environment))]
        return environment.call(self)


def _extra(bound: inspect.BoundArguments) -> str:
    """The name of ``**kwargs``."""
    return next((p.name for p in bound.signature.parameters.values() if p.kind is p.VAR_KEYWORD), "")


# ================================================================= terms


class Term(Unmade):
    """A call in a class body, or a field if it has none: an expression without its operators.

    Attributes:
      _pytree__name: its name in the class body, if it has one.
      _pytree__owner: the name of its class, once that is declared.
      _pytree__specified: the field of the specifier whose default it is, if any.
    """

    # JAX has weak references
    __slots__ = ("__weakref__", "_pytree__call", "_pytree__name", "_pytree__owner", "_pytree__specified")

    def __init__(self, call: Call | None = None) -> None:
        self._pytree__call = call
        self._pytree__name: str | None = None
        self._pytree__owner: str | None = None
        self._pytree__specified: dataclasses.Field[Any] | None = None


def target_of(value: Any) -> Any:
    """What a term calls; None for a field and for other values."""
    call = value._pytree__call if isinstance(value, Term) else None
    return None if call is None else call.target


def call_of(value: Any) -> Call | None:
    """The call of a class or function for which a term stands; None for operations and other values."""
    call = value._pytree__call if isinstance(value, Term) else None
    return None if call is None or id(call.target) in OPERATIONS else call


def operands_of(value: Any) -> tuple[Any, ...]:
    """The operands of a term, or the items of a container; none of other values."""
    if isinstance(value, Term):
        return () if value._pytree__call is None else value._pytree__call.operands()
    if value.__class__ in CONTAINERS:
        return tuple(items(value))
    return ()


def results_of(value: Any) -> tuple[Any, ...]:
    """Those operands of which the value is one, or consists: of another name, a branch, a list or a literal."""
    if not isinstance(value, Term):
        return operands_of(value)
    call = value._pytree__call
    return () if call is None or id(call.target) not in _RESULTS else call.args[_RESULTS[id(call.target)] :]


def unnamed(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Those of some values that have no name in the class body: others are parts of their own."""
    return tuple([value for value in values if not isinstance(value, Term) or value._pytree__name is None])


def unnamed_operands(value: Any) -> tuple[Any, ...]:
    """The operands of a value that are no parts of their own."""
    found = operands_of(value)
    return unnamed(found) if found else ()


def walk(value: Any, below: Callable[[Any], tuple[Any, ...]] = operands_of) -> list[Any]:
    """A value and what it is made of, each once and the outer values first; `below` says what to enter."""
    found: dict[int, Any] = {}
    waiting = [value]
    for value in waiting:
        if id(value) not in found:
            found[id(value)] = value
            waiting += below(value)
    return list(found.values())


def calls_in(value: Any, below: Callable[[Any], tuple[Any, ...]] = operands_of) -> list[Call]:
    """The calls of classes and functions that `walk` finds, the outer ones first."""
    return [call for call in map(call_of, walk(value, below)) if call is not None]


def items(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value


def entries(value: Any) -> Iterable[tuple[Any, Any]]:
    """The items of a container, each with its key."""
    return value.items() if isinstance(value, dict) else enumerate(value)


def rebuilt(value: Any, items: dict[Any, Any]) -> Any:
    """A container like another, with the given items by their keys."""
    return items if isinstance(value, dict) else type(value)(items.values())


def has_expression(value: object, depth: int = 8) -> bool:
    """Whether a value is an expression, or a literal list, tuple or dict that holds one at this depth or above."""
    if isinstance(value, Term):
        return True
    if value.__class__ not in CONTAINERS or depth == 0:
        return False
    for item in items(value):
        if isinstance(item, Term) or (item.__class__ in CONTAINERS and has_expression(item, depth - 1)):
            return True
    return False


# ================================================================= operations


def same(value: Any) -> Any:
    """Another name of a value."""
    return value


def literal(value: Any) -> Any:
    """A list, tuple or dict that holds expressions, made anew."""
    return value


def repeated(count: int, item: Any) -> list[Any]:
    """A list of results; the second operand is evaluated for each."""
    return [item] * count


def chosen(flag: Any, item: Any, other: Any) -> Any:
    """One of two results; the other operand is not evaluated."""
    return item if flag else other


def attribute(owner: Any, name: str) -> Any:
    """An attribute of a value."""
    return getattr(owner, name)


def item_of(owner: Any, key: Any) -> Any:
    """An item of a value."""
    return owner[key]


def _functions(names: str) -> dict[str, Callable[..., Any]]:
    return {name: getattr(operator, f"__{name}__") for name in names.split()}


ARITHMETIC: Final = _functions("add sub mul truediv floordiv mod pow matmul and or xor lshift rshift")
COMPARISONS: Final = _functions("eq ne lt le gt ge")
UNARY: Final = _functions("neg pos abs")
_SYMBOLS: Final = "+ - * / // % ** @ & | ^ << >> == != < <= > >="
_BINARY: Final = map("({{}} {} {{}})".format, _SYMBOLS.split())
_NOTATIONS: Final[list[tuple[Callable[..., Any], str]]] = [
    *zip({**ARITHMETIC, **COMPARISONS}.values(), _BINARY, strict=True),
    *zip(UNARY.values(), ("(-{})", "(+{})", "abs({})"), strict=True),
    (same, "{}"),
    (literal, "{}"),
    (item_of, "{}[{}]"),
    (attribute, "{}.{}"),
    (repeated, "[{1} for _ in range({0})]"),
    (chosen, "({1} if {0} else {2})"),
]
OPERATIONS: Final = {id(function): notation for function, notation in _NOTATIONS}
"""How Python writes each operation, with a place for each operand; by identity, since targets may have no hash."""


_OF_NUMBERS: Final = OPERATIONS.keys() - map(id, (repeated, chosen, literal, attribute, item_of))

_RESULTS: Final = {id(same): 0, id(literal): 0, id(repeated): 1, id(chosen): 1}
"""The first operand that is, or is in, the value of an operation."""


def is_arithmetic(target: Any) -> bool:
    """Whether a function is an operation that gives a number for numbers."""
    return id(target) in _OF_NUMBERS


def is_equality(target: Any) -> bool:
    return target is operator.eq or target is operator.ne


def is_lazy(target: Any) -> bool:
    """Whether a function is an operation of which not each operand is evaluated once."""
    return target is chosen or target is repeated


# ================================================================= evaluation


class Environment:
    """What an evaluation knows: the values of names, and what calls make."""

    def find(self, term: Term) -> Any:
        """The value of a term that has a name; MISSING for another one."""
        return MISSING

    def call(self, call: Call) -> Any:
        """What a call makes."""
        args = [evaluate(value, self) for value in call.args]
        kwargs = {name: evaluate(value, self) for name, value in call.kwargs.items()}
        return evaluate(call.target, self)(*args, **kwargs)


def evaluate(value: Any, environment: Environment) -> Any:
    """The value of a term, or of a literal that holds some; any other value, and a field without a value, as it is.

    Constructors run generated source that does the same (`_classes.part_source`).
    """
    if isinstance(value, Term):
        found = environment.find(value)
        if found is not MISSING:
            return found
        return value if value._pytree__call is None else value._pytree__call.evaluate(environment)
    if value.__class__ in CONTAINERS:
        return rebuilt(value, {key: evaluate(item, environment) for key, item in entries(value)})
    return value
