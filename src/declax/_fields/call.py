"""Calls that are not made yet, and their evaluation.

A class body, a Spec, an override of a part and the record of a construction all describe an object by a `Call`.
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
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
      target: a class or function, a `Form`, or a term.
    """

    target: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def operands(self) -> Iterator[Any]:
        """The values that the call is made of."""
        if not isinstance(self.target, Form):
            yield self.target
        yield from self.args
        yield from self.kwargs.values()

    def _bound(self) -> tuple[inspect.BoundArguments, str]:
        """The arguments by name, and the name of ``**kwargs``."""
        signature = inspect.signature(self.target)
        names = (p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD)
        return signature.bind_partial(*self.args, **self.kwargs), next(names, "")

    def arguments(self) -> dict[str, Any]:
        """The arguments by name. Raises a TypeError or ValueError if the signature is unknown or does not fit."""
        bound, extra = self._bound()
        further = bound.arguments.pop(extra, {})
        return {**bound.arguments, **further}

    def with_arguments(self, changes: Mapping[str, Any]) -> Call:
        """The same call with other arguments, by name."""
        bound, extra = self._bound()
        for name, value in changes.items():
            is_known = name in bound.signature.parameters and name != extra
            (bound.arguments if is_known else bound.arguments.setdefault(extra, {}))[name] = value
        return Call(self.target, bound.args, bound.kwargs)

    def evaluate(self, environment: Environment) -> Any:
        """The value of the call; see `evaluate`."""
        target = self.target
        if isinstance(target, Operator):
            return target.function(*(environment.operand(evaluate(value, environment)) for value in self.args))
        if target is WHEN:
            flag, chosen, other = self.args
            return evaluate(chosen if evaluate(flag, environment) else other, environment)
        if target is REPEAT:
            count, item = self.args
            return [evaluate(item, environment) for _ in range(evaluate(count, environment))]
        return evaluate(self.args[0], environment) if isinstance(target, Form) else environment.call(self)


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

    def _pytree__operands(self) -> Iterator[Any]:
        """The values that the term is made of."""
        return iter(()) if self._pytree__call is None else self._pytree__call.operands()


def call_of(value: Any) -> Call | None:
    """The call of a class or function for which a term stands; None for operations and other values."""
    call = value._pytree__call if isinstance(value, Term) else None
    return None if call is None or isinstance(call.target, Form) else call


def form_of(value: Any) -> Form | None:
    """The form or operator of a term; None for calls of classes and functions, and for other values."""
    call = value._pytree__call if isinstance(value, Term) else None
    return call.target if call is not None and isinstance(call.target, Form) else None


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


# ================================================================= forms and operators


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Form:
    """What Python writes in another way than the call of a function. `Call.evaluate` has the rule of each.

    Attributes:
      template: the source, with a place for each operand.
      name: the function that a class body calls for it, if any.
    """

    template: str
    name: str | None = None

    def __reduce__(self) -> str | tuple[Any, ...]:
        return next(name for name, form in _FORMS.items() if form is self)

    @property
    def is_bracketed(self) -> bool:
        """Whether the source has brackets around all of it."""
        return self.template[0] == "("


REFERENCE: Final = Form("{}")
"""Another name of its operand."""

LITERAL: Final = Form("{}")
"""A list, tuple or dict that holds expressions, made anew."""

REPEAT: Final = Form("[{1} for _ in range({0})]", "dx.repeat")
WHEN: Final = Form("({1} if {0} else {2})", "dx.when")
_FORMS: Final = {"REFERENCE": REFERENCE, "LITERAL": LITERAL, "REPEAT": REPEAT, "WHEN": WHEN}


class Operator(Form):
    """A form of which a function gives the value."""

    __slots__ = ("function",)

    function: Callable[..., Any]

    def __init__(self, template: str, function: Callable[..., Any]) -> None:
        super().__init__(template)
        object.__setattr__(self, "function", function)

    def __reduce__(self) -> tuple[Any, ...]:
        return Operator, (self.template, self.function)

    @property
    def is_equality(self) -> bool:
        return self.template in ("({} == {})", "({} != {})")

    @property
    def is_arithmetic(self) -> bool:
        """Whether it gives a number for numbers: it reads no attribute or item."""
        return {".", "["}.isdisjoint(self.template)


_BINARY: Final = "add:+ sub:- mul:* truediv:/ floordiv:// mod:% pow:** matmul:@ and:& or:| xor:^ lshift:<< rshift:>>"
_COMPARISONS: Final = "eq:== ne:!= lt:< le:<= gt:> ge:>="
_UNARY: Final = "neg:- pos:+"


def _operators(symbols: str, template: str) -> dict[str, Operator]:
    pairs = (entry.split(":") for entry in symbols.split())
    return {name: Operator(template.format(symbol), getattr(operator, f"__{name}__")) for name, symbol in pairs}


ARITHMETIC: Final = _operators(_BINARY, "({{}} {} {{}})")
COMPARISONS: Final = _operators(_COMPARISONS, "({{}} {} {{}})")
UNARY: Final = {**_operators(_UNARY, "({}{{}})"), "abs": Operator("abs({})", abs)}
ITEM: Final = Operator("{}[{}]", operator.getitem)


def attribute(name: str) -> Operator:
    """The operator that reads an attribute."""
    return Operator("{}." + name, operator.attrgetter(name))


# ================================================================= evaluation


class Environment:
    """What an evaluation knows: the values of names, and what calls make."""

    def find(self, term: Term) -> Any:
        """The value of a term that has a name; MISSING for another one."""
        return MISSING

    def operand(self, value: Any) -> Any:
        """The value of an operand as an operator sees it."""
        return value

    def call(self, call: Call) -> Any:
        """What the call of a class or function makes."""
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
