"""Copies that are not to be changed, since nobody would see the change.

Vocabulary
----------
read only: of a Variable or Pytree: marked by something that is no trace. Objects
           can be changed only under the trace that they are marked with, so each
           way of changing one refuses, and has nothing more to ask than before.
"""

from __future__ import annotations

from typing import Any

from declax.errors import DeclaxError, LayerError


class ReadOnly:
    """A mark of objects that cannot be changed.

    Args:
      what: the object that they are part of, and why it is as it is.
      why: why a change would be lost.
      fix: what to write in place of it.

    >>> print(ReadOnly("a copy", "nobody sees it", "dx.clone(it)").refusal("Param"))
    Param: this is part of a copy, and cannot be changed. [layer]
      why:      nobody sees it
      fix:      dx.clone(it)
    """

    __slots__ = ("_fix", "_what", "_why")

    def __init__(self, what: str, why: str, fix: str) -> None:
        self._what, self._why, self._fix = what, why, fix

    def refusal(self, where: str) -> DeclaxError:
        """The error of a change."""
        return LayerError(where, f"this is part of {self._what}, and cannot be changed", why=self._why, fix=self._fix)


class WritesThrough(ReadOnly):
    """A mark of Variables that show what something else holds: that is what a change of one changes."""

    __slots__ = ()

    @property
    def trace(self) -> Any:
        """The mark of the trace that may write."""

    def write(self, variable: Any, method: str, *args: Any, **options: Any) -> None:
        """Does what a method of the Variable would do."""


__all__ = ["ReadOnly", "WritesThrough"]
