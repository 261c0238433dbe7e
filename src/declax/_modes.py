"""Defaults of the keyword arguments `graph` and `graph_updates`.

Vocabulary
----------
graph mode:    objects that are reached twice stay one object.
tree mode:     the argument has to be a tree: nothing may be reached twice.
graph updates: changes of structure inside of a transform come back, not only
               new values of Variables.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import ClassVar

from declax.errors import GraphError, describe


class _Mode:
    """A default: set from now on, or for the block of a ``with``."""

    _name: ClassVar[str]
    _current: ClassVar[ContextVar[bool]]

    def __init__(self, value: bool, /) -> None:
        if not isinstance(value, bool):
            fix = f"dx.{self._name}(True)"
            raise GraphError(self._name, "a mode is on or off", expected="True or False", got=describe(value), fix=fix)
        self._before = self._current.get()
        self._current.set(value)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        self._current.set(self._before)

    @classmethod
    def current_value(cls) -> bool:
        """The default that holds now.

        >>> set_graph_mode.current_value()
        True
        """
        return cls._current.get()

    def __repr__(self) -> str:
        return f"{self._name}({self._current.get()})"


class set_graph_mode(_Mode):  # noqa: N801  # reads as a function
    """Sets what ``graph=None`` means: True for graphs, False for trees.

    A call sets it from now on; as the subject of a ``with``, until the end of
    the block. It holds in the thread or task that sets it. Declax starts with
    True.

    Args:
      value: the default.

    Raises:
      GraphError: for what is no bool.

    >>> with set_graph_mode(False):
    ...     set_graph_mode.current_value()
    False
    >>> set_graph_mode.current_value()
    True
    """

    _name = "set_graph_mode"
    _current = ContextVar("declax_graph", default=True)


class set_graph_updates(_Mode):  # noqa: N801  # reads as a function
    """Sets what ``graph_updates=None`` means: whether changes of structure come back.

    A call sets it from now on; as the subject of a ``with``, until the end of
    the block. It holds in the thread or task that sets it. Declax starts with
    True.

    Args:
      value: the default.

    Raises:
      GraphError: for what is no bool.

    >>> with set_graph_updates(False):
    ...     set_graph_updates.current_value()
    False
    """

    _name = "set_graph_updates"
    _current = ContextVar("declax_graph_updates", default=True)


is_graph_mode = set_graph_mode._current.get
"""`set_graph_mode.current_value` without the cost of a method."""

__all__ = ["is_graph_mode", "set_graph_mode", "set_graph_updates"]
