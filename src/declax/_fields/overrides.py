"""Declared parts with other arguments than the class body gives them.

A configuration overrides arguments of a part without repeating its call. The call is evaluated where the class body
evaluates it, in the constructor of the owner; so the argument is an expression, a `PartOverride`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NoReturn

from declax._fields.expressions import Choice, Deferred, Expression, Literal, Reference, Repeated
from declax._fields.sources import CONTAINERS, Unmade, declared_text, entries, has_expression, rebuilt
from declax.errors import ConstructionError, type_name


class DeclaredPart:
    """A part as its class body declares it; called with some arguments, the same part with those.

    Two are equal if they have the same expression.

    Attributes:
      steps: the name of the part; for a part of that, the arguments and keys that lead to it.
      name: the class and the steps, for people.
      function: the class that the expression calls.
      given: the arguments of the call by name.
    """

    def __init__(self, owner: type, steps: tuple[str | int, ...], expression: Expression) -> None:
        call = _call_in(expression)
        assert call is not None
        self.owner = owner
        self.steps = steps
        self.expression = expression
        self.function: Any = call._pytree__function
        self.given: Mapping[str, Any] = {
            name: with_parts(owner, (*steps, name), value) for name, value in arguments_of(call).items()
        }
        self.name: str = ".".join(map(str, (type_name(owner), *steps)))
        self.__qualname__ = type_name(self.function)

    def __call__(self, **arguments: object) -> PartOverride:
        """The part with other arguments."""
        return PartOverride(self, arguments)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeclaredPart) and other.expression is self.expression

    def __hash__(self) -> int:
        return hash(self.expression)

    def __repr__(self) -> str:
        return declared_text(self.expression)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return _part_at, (self.owner, self.steps)


class PartOverride(Unmade):
    """The argument of a constructor for a part: its declared call with other arguments."""

    __slots__ = ("arguments", "part")

    def __init__(self, part: DeclaredPart, arguments: Mapping[str, Any]) -> None:
        self.part: DeclaredPart = part
        self.arguments: Mapping[str, Any] = arguments

    def __deepcopy__(self, memo: object) -> PartOverride:
        return self

    @property
    def expression(self) -> Expression:
        """The function that makes the part."""
        made: Expression = _over(self.part, self.part.expression, self.arguments)
        return made


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
    if call is None or is_reference or not isinstance(call._pytree__function, type):
        return value
    try:
        return DeclaredPart(owner, steps, value)
    except (TypeError, ValueError):  # the call lacks arguments, which its evaluation says, or has no signature
        return value


def holds_parts(value: Any) -> bool:
    """Whether a default is a container with a `DeclaredPart` in it."""
    if value.__class__ not in CONTAINERS:
        return False
    return any(isinstance(item, DeclaredPart) or holds_parts(item) for _, item in entries(value))


def overriding(value: Any) -> Expression | None:
    """The expression of a part for which a `PartOverride`, or a container with some, was given; else None."""
    if value.__class__ is PartOverride:
        expression: Expression = value.expression
        return expression
    opened = _opened(value)
    return None if opened is value else Literal(opened)


# ================================================================= calls


def _call_in(expression: Any) -> Deferred | None:
    """The one call whose arguments a part has; None if there is none, or two."""
    if isinstance(expression, Deferred):
        return None if isinstance(expression._pytree__function, Expression) else expression
    if isinstance(expression, Repeated):
        return _call_in(expression._pytree__values[1])
    if isinstance(expression, Choice):
        found = [call for branch in expression._pytree__values[1:] if (call := _call_of_branch(branch)) is not None]
        return found[0] if len(found) == 1 else None
    return None


def _call_of_branch(branch: Any) -> Deferred | None:
    is_reference = isinstance(branch, Expression) and branch._pytree__name is not None
    return None if is_reference else _call_in(branch)


def _bound(call: Deferred) -> tuple[inspect.BoundArguments, str]:
    """The arguments of a call, and the name of its ``**kwargs``."""
    signature = inspect.signature(call._pytree__function)
    names = (p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD)
    return signature.bind_partial(*call._pytree__args, **call._pytree__kwargs), next(names, "")


def arguments_of(call: Deferred) -> dict[str, Any]:
    """The arguments of a call by name."""
    bound, extra = _bound(call)
    found = dict(bound.arguments)
    return {**found, **found.pop(extra, {})}


def _over(part: DeclaredPart, expression: Any, arguments: Mapping[str, Any]) -> Any:
    """An expression whose call has other arguments."""
    if isinstance(expression, Repeated):
        count, item = expression._pytree__values
        return Repeated(count, _over(part, item, arguments))
    if isinstance(expression, Choice):
        flag, *pair = expression._pytree__values
        refused = Deferred(_refuse, (part, flag, tuple(arguments)), {})
        branches = (
            _over(part, branch, arguments)
            if _call_of_branch(branch) is not None
            else (refused if arguments else branch)
            for branch in pair
        )
        return Choice(flag, *branches)
    bound, extra = _bound(expression)
    for name, value in arguments.items():
        is_known = name in bound.signature.parameters and name != extra
        opened = _opened(value, part.given.get(name))
        (bound.arguments if is_known else bound.arguments.setdefault(extra, {}))[name] = opened
    return Deferred(expression._pytree__function, bound.args, bound.kwargs)


def _refuse(part: DeclaredPart, flag: object, names: Iterable[str]) -> NoReturn:
    raise ConstructionError(
        part.name,
        f"this part is not made here, and the arguments {', '.join(names)} were given for it",
        why=f"the class body declares {part!r}",
        got=f"the condition is {flag!r}",
        fix="leave the arguments out, or change what the condition depends on",
    )


def _part_at(owner: Any, steps: tuple[str | int, ...]) -> Any:
    """The declared part of a class at some steps, for copies in other processes."""
    found: Any = with_parts(owner, steps[:1], owner._pytree__expressions[steps[0]][0])
    for step in steps[1:]:
        held: Any = found.given if isinstance(found, DeclaredPart) else found
        found = held[step]
    return found


# ================================================================= containers


_ANY: Final = object()


def _opened(value: Any, declared: Any = _ANY) -> Any:
    """A value with the expressions of the overrides in it, if they are of the part that is declared there."""
    if value.__class__ is PartOverride:
        return value.expression if declared is _ANY or value.part == declared else value
    if value.__class__ not in CONTAINERS:
        return value
    below = dict(entries(declared)) if declared.__class__ in CONTAINERS else {}
    found = {key: _opened(item, _ANY if declared is _ANY else below.get(key)) for key, item in entries(value)}
    return value if all(found[key] is item for key, item in entries(value)) else rebuilt(value, found)
