"""Methods that classes of users may replace by any method, field or part of the same name.

Type checkers compare a method with that of the base class, and report other parameters. They compare nothing with a
value that may be anything, so the type of these methods is that of the function, or Any. Calls are checked against the
first, and results have its type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from declax._typing import MYPY, TYPE_CHECKING_WITH_PYREFLY

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING_WITH_PYREFLY:
    if not MYPY:  # which reads both branches around this one

        class overridable:  # noqa: N801  # pyright: ignore[reportRedeclaration]  # see below
            """To pyrefly, which compares unions too, a descriptor that gives Any."""

            def __init__(self, method: Callable[..., Any], /) -> None: ...
            def __get__(self, instance: object, owner: Any = None) -> Any: ...
else:

    def overridable(method: F, /) -> F | Any:
        """A method of `Module` that a subclass may replace by anything; at run time, the method itself."""
        return method


def same_as(function: F, /) -> Callable[[object], F]:
    """Gives this function in place of the decorated one: the overloads of a method cannot be decorated.

    Their type would be inferred from an assignment in the class body, and of a package that is installed, checkers need
    not infer any.
    """
    return lambda stub: function
