"""Marks of objects that cannot be changed.

An object can be changed only under the trace of its token. These tokens are of no trace.
"""

from __future__ import annotations

from typing import Any

from declax.errors import DeclaxError, LayerError, TraceContextError


class ReadOnly:
    """The token of objects that cannot be changed.

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
    """The token of Variables that are views: a change of one changes the object that it shows."""

    __slots__ = ()

    @property
    def trace(self) -> Any:
        """The token of the trace that may write."""

    def write(self, variable: Any, method: str, *args: Any, **options: Any) -> None:
        """Does the work of a method of the Variable."""

    def publish(self, variable: Any) -> None:
        """Changes the object as its view, a Variable, was changed."""

    def read(self, variable: Any) -> None:
        """Takes note that somebody reads the Variable, where reads are watched."""


class EndedTrace(ReadOnly):
    """The token, and the value, of a Variable that has outlived the trace of a transform; `kind` names its class."""

    __slots__ = ("_kind",)

    def __init__(self, kind: str) -> None:
        super().__init__("a trace that has ended", "its value was an array of the trace", "")
        self._kind = kind

    def refusal(self, where: str | None = None) -> DeclaxError:
        """The error of a use."""
        return TraceContextError(
            where or self._kind,
            f"this {self._kind} belongs to a trace that has ended",
            why="a transformed function was called with a copy of the model, and kept this part of the copy",
            fix="keep the model, and read the Variable from it where it is used",
        )

    def __repr__(self) -> str:
        return f"<{self._kind} of a trace that has ended>"
