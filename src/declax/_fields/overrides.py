"""Declared parts with other arguments than the class body gives them.

A configuration overrides arguments of a part without repeating its call. The call is evaluated where the class body
evaluates it, in the constructor of the owner; so the argument for the part is a `Call` of a `DeclaredPart`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NoReturn

from declax._fields.call import (
    CONTAINERS,
    Call,
    call_of,
    calls_in,
    entries,
    has_expression,
    is_lazy,
    rebuilt,
    results_of,
    target_of,
    unnamed,
)
from declax._fields.expressions import Expression, Literal, Reference
from declax._fields.sources import declared_text
from declax.errors import ConstructionError, type_name


class DeclaredPart:
    """A part as its class body declares it; called with some arguments, the same part with those.

    Two are equal if they have the same expression.

    Attributes:
      steps: the name of the part; for a part of that, the arguments and keys that lead to it.
      name: the class and the steps, for people.
      call: the one in the expression whose arguments the part has.
      function: the class that it calls.
      given: the arguments of the call by name.
    """

    def __init__(self, owner: type, steps: tuple[str | int, ...], expression: Expression, call: Call) -> None:
        self.owner = owner
        self.steps = steps
        self.expression = expression
        self.call = call
        self.function: Any = call.target
        self.given: Mapping[str, Any] = {
            name: with_parts(owner, (*steps, name), value) for name, value in call.arguments().items()
        }
        self.name: str = ".".join(map(str, (type_name(owner), *steps)))
        self.__qualname__ = type_name(self.function)

    def __call__(self, **arguments: object) -> Call:
        """The override of the part by other arguments."""
        return Call(self, (), arguments)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeclaredPart) and other.expression is self.expression

    def __hash__(self) -> int:
        return hash(self.expression)

    def __repr__(self) -> str:
        return declared_text(self.expression)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return part_at, (self.owner, self.steps)


def with_parts(owner: type, steps: tuple[str | int, ...], value: Any) -> Any:
    """A default, or an argument of a declared call, with a `DeclaredPart` in place of each call."""
    value = value._pytree__value if isinstance(value, Literal) else value
    if isinstance(value, Reference) and not has_expression(value._pytree__target):
        return value._pytree__target
    if value.__class__ in CONTAINERS and has_expression(value):
        return rebuilt(value, {key: with_parts(owner, (*steps, key), item) for key, item in entries(value)})
    is_reference = isinstance(value, Expression) and value._pytree__name not in (
        None,
        steps[0] if len(steps) == 1 else None,
    )
    call = _call_in(value)
    if call is None or is_reference or not isinstance(call.target, type):
        return value
    try:
        return DeclaredPart(owner, steps, value, call)
    except (TypeError, ValueError):  # the call lacks arguments, which its evaluation says, or has no signature
        return value


def holds_parts(value: Any) -> bool:
    """Whether a default is a container with a `DeclaredPart` in it."""
    if value.__class__ not in CONTAINERS:
        return False
    return any(isinstance(item, DeclaredPart) or holds_parts(item) for _, item in entries(value))


def override_of(value: Any) -> Call | None:
    """An argument of a constructor that is an override of a declared part; else None."""
    return value if value.__class__ is Call and isinstance(value.target, DeclaredPart) else None


def overriding(value: Any) -> Expression | None:
    """The expression of a part for which an override, or a container with some, was given; else None."""
    opened = _opened(value)
    if opened is value:
        return None
    return opened if isinstance(opened, Expression) else Literal(opened)


def expression_of(override: Call) -> Expression:
    """The expression that makes a part with the arguments of an override."""
    part: DeclaredPart = override.target
    arguments = {name: _opened(value, part.given.get(name)) for name, value in override.kwargs.items()}
    made: Expression = _over(part, part.expression, True, arguments)
    return made


def _call_in(expression: Any) -> Call | None:
    """The one call whose arguments a part has; None if there is none, or two."""
    found = [call for call in calls_in(expression, _branches) if not isinstance(call.target, Expression)]
    return found[0] if len(found) == 1 else None


def _branches(value: Any) -> tuple[Any, ...]:
    """What `repeat` and `when` make; what has a name is another part."""
    return unnamed(results_of(value)) if is_lazy(target_of(value)) else ()


def _over(part: DeclaredPart, value: Any, flag: object, arguments: Mapping[str, Any]) -> Any:
    """An expression whose call has other arguments; a branch without the call, under a flag, takes none."""
    if call_of(value) is part.call:
        return Expression(part.call.with_arguments(arguments))
    if part.call in calls_in(value, _branches):
        outer = value._pytree__call
        flag, *branches = outer.args
        return Expression(Call(outer.target, (flag, *(_over(part, item, flag, arguments) for item in branches))))
    return Expression(Call(_refuse, (part, flag, tuple(arguments)))) if arguments else value


def _refuse(part: DeclaredPart, flag: object, names: Iterable[str]) -> NoReturn:
    raise ConstructionError(
        part.name,
        f"this part is not made here, and the arguments {', '.join(names)} were given for it",
        why=f"the class body declares {part!r}",
        got=f"the condition is {flag!r}",
        fix="leave the arguments out, or change what the condition depends on",
    )


def part_at(owner: Any, steps: tuple[str | int, ...]) -> Any:
    """The declared part of a class at some steps, for copies in other processes."""
    found: Any = with_parts(owner, steps[:1], owner._pytree__info.maker.expressions[steps[0]][0])
    for step in steps[1:]:
        held: Any = found.given if isinstance(found, DeclaredPart) else found
        found = held[step]
    return found


# ================================================================= containers


_ANY: Final = object()


def _opened(value: Any, declared: Any = _ANY) -> Any:
    """A value with the expressions of the overrides in it, if they are of the part that is declared there."""
    override = override_of(value)
    if override is not None:
        return expression_of(override) if declared is _ANY or override.target == declared else value
    if value.__class__ not in CONTAINERS:
        return value
    below = dict(entries(declared)) if declared.__class__ in CONTAINERS else {}
    found = {key: _opened(item, _ANY if declared is _ANY else below.get(key)) for key, item in entries(value)}
    return value if all(found[key] is item for key, item in entries(value)) else rebuilt(value, found)
