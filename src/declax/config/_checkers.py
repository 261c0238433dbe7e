"""What type checkers other than mypy see of specs, in place of what the plugin does.

Those read the last declaration of a name in an imported module.
"""

# pyright: reportRedeclaration=false

from __future__ import annotations

from types import CodeType
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, ParamSpec, Protocol, TypeAlias, TypeVar

from declax._typing import MYPY

__all__ = ["Explicit", "Function", "Unchecked"]

P = ParamSpec("P")
M = TypeVar("M")

if not TYPE_CHECKING or MYPY:
    from collections.abc import Callable as Unchecked

    class Function: ...
else:

    class _Nothing(Generic[P, M]): ...

    Unchecked: TypeAlias = _Nothing[P, M]
    """No target: arguments are compared with those of the constructor."""

    class Function(Protocol):
        """A function, and no class."""

        @property
        def __code__(self) -> CodeType: ...


class Explicit(Protocol):
    """An instance of a class that is no Layer, so that its constructor may require `rngs`."""

    _pytree__keys: ClassVar[Literal["explicit"]]
