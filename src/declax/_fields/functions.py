"""Parts that are functions, as type checkers see them; nothing here exists at run time.

Checkers take a function that a class body names for a method. A part is an attribute of each instance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Function(Protocol[P, R_co]):
    """A function, and no other object that can be called."""

    @property
    def __code__(self) -> Any: ...
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class FunctionPart(Function[P, R_co], Protocol[P, R_co]):
    """A part that is a function: the attribute of an instance is the function itself."""

    def __get__(self, instance: object, owner: Any = None) -> Callable[P, R_co]: ...
