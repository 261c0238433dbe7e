"""Functions that declare parts: `defer`, `repeat` and `when`."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from declax._fields.call import CONTAINERS, call_of, chosen, has_expression, repeated, target_of
from declax._fields.expressions import defer_call, referred
from declax._fields.refusals import refuse_holder
from declax._fields.sources import class_text, text_of
from declax._typing import INFO_KEY, MYPY
from declax.errors import FieldError, describe

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
T = TypeVar("T")
U = TypeVar("U")

if TYPE_CHECKING:
    from declax._fields.functions import Function, FunctionPart

if TYPE_CHECKING and not MYPY:  # which would solve the type variables of `max` by the first one; the plugin helps there

    @overload
    def defer(function: Callable[P, Function[Q, R]], /) -> Callable[P, FunctionPart[Q, R]]: ...
    @overload
    def defer(function: Callable[P, R], /) -> Callable[P, R]: ...


def defer(function: Callable[P, R], /) -> Callable[P, R]:
    """Defers the call of a function, or of a class, to the creation of each instance.

    Its result has the same arguments, and a call declares a part. Calls of Pytree classes with fields among their
    arguments are deferred without it.

    Args:
      function: the function or class.

    >>> import declax as dx
    >>> @dx.dataclass
    ... class Table(dx.Layer):
    ...     size: int = dx.field()
    ...     names: list[str] = dx.defer(sorted)(["b", "a"])
    >>> Table(3).names
    ['a', 'b']
    """
    refuse_holder(function, "defer")

    def deferred(*args: P.args, **kwargs: P.kwargs) -> Any:
        return defer_call(function, args, kwargs)

    return deferred


def repeat(n: int, item: T, /) -> list[T]:
    """Declares a list part: evaluates a deferred call several times.

    Args:
      n: the length of the list, usually a field.
      item: the deferred call.

    Raises:
      FieldError: if all elements would be one object: `item` is not an expression, or a part that has a name; if `n` is
        no number.
      ExpressionError: outside of a class body.

    >>> import declax as dx
    >>> @dx.dataclass
    ... class Tower(dx.Layer):
    ...     depth: int = dx.field()
    ...     dim: int = dx.field()
    ...     layers = dx.repeat(depth, dx.Linear(dim, dim))
    >>> len(Tower(3, 4, rngs=dx.Rngs(0)).layers)
    3
    """
    if not has_expression(item):
        raise FieldError(
            "repeat",
            "the repeated value is not a deferred call, so that all elements would be one object",
            got=describe(item),
            fix=f"dx.repeat({_length_and_call(n, item)})",
        )
    if _is_no_number(n):
        raise FieldError(
            "repeat",
            "the first argument is the number of elements",
            got=text_of(n),
            fix=f"dx.repeat({text_of(item)}, {text_of.term(referred(n))})"
            if has_expression(n)
            else "dx.repeat(3, dx.Linear(dim, dim))",
        )
    part = referred(item)
    if call_of(part) is not None and part._pytree__name is not None:
        raise FieldError(
            "repeat",
            f"the repeated value is the part {text_of(item)}, so that all elements would be one object",
            why="the name of a part refers to the object that an instance has",
            fix=f"dx.repeat(depth, {text_of.term(part)})",
        )
    return defer_call(repeated, (n, item))  # type: ignore[return-value]  # an expression stands for its value


def _is_no_number(n: object) -> bool:
    """Whether no value of an argument can be a number: a literal, or a call that gives a Pytree."""
    target = target_of(referred(n))
    return n.__class__ in (*CONTAINERS, str, float) or (isinstance(target, type) and hasattr(target, INFO_KEY))


def _length_and_call(n: object, item: object) -> str:
    """The arguments that `repeat` needs in place of others: of the other order, a class, a function, or an object."""
    if call_of(n) is not None and not isinstance(item, type):
        return f"{text_of(item)}, {text_of(n)}"
    if isinstance(item, type):
        return f"{text_of(n)}, {class_text(item)}(...)"
    if isinstance(item, FunctionType) and item.__name__.isidentifier():
        return f"{text_of(n)}, dx.defer({item.__name__})(...)"
    return f"{text_of(n)}, dx.defer({class_text(type(item))})(...)"


@overload
def when(flag: bool, item: Function[P, R], /) -> FunctionPart[P, R] | None: ...
@overload
def when(flag: bool, item: Function[P, R], other: Function[Q, T], /) -> FunctionPart[P, R] | FunctionPart[Q, T]: ...
@overload
def when(flag: bool, item: T, /) -> T | None: ...
@overload
def when(flag: bool, item: T, other: U, /) -> T | U: ...
def when(flag: bool, item: Any, other: Any = None, /) -> Any:
    """Declares one of two parts; the other is not made.

    Args:
      flag: a condition on fields.
      item: the part if the condition holds.
      other: the part if it does not.

    Raises:
      ExpressionError: outside of a class body.

    >>> import declax as dx
    >>> @dx.dataclass
    ... class Head(dx.Layer):
    ...     dim: int = dx.field()
    ...     is_small: bool = dx.field(default=True)
    ...     width = dx.when(is_small, dim, 4 * dim)
    >>> Head(3).width, Head(3, is_small=False).width
    (3, 12)
    """
    return defer_call(chosen, (flag, item, other))
