"""Defaults of the keyword arguments `graph` and `graph_updates`, and of named scopes; the values of flags.

In graph mode objects that are reached twice stay one object; in tree mode nothing may be. With graph updates, changes
of structure inside of a transform come back, not only new values of Variables.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ClassVar, Generic, TypeVar

from declax.errors import GraphError, describe

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def is_on(flag: str, value: object, default: Callable[[], bool] | None = None) -> bool:
    """Whether a flag is on; all functions with flags ask here."""
    if value is True or value is False:
        return value
    if value is None and default is not None:
        return default()
    expected = "True or False" if default is None else "True, False, or None for the default"
    why = "a flag is True or False"
    raise GraphError(
        flag, "this is not a valid flag", expected=expected, got=describe(value), why=why, fix=f"{flag}=True"
    )


class Default(Generic[T]):
    """A default: set from now on, for the block of a ``with``, or for the calls of a decorated function."""

    _current: ClassVar[ContextVar[Any]]

    def __init__(self, value: T, /) -> None:
        self._value = value
        self._before: T = self._current.get()
        self._current.set(value)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        self._current.set(self._before)

    def __call__(self, function: F, /) -> F:
        """The function with this default during its calls; it holds no longer outside of them."""
        self._current.set(self._before)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with type(self)(self._value):
                return function(*args, **kwargs)

        return call  # type: ignore[return-value]  # has the parameters of the function


class Mode(Default[bool]):
    """A default that is on or off."""

    _current: ClassVar[ContextVar[bool]]

    def __init__(self, value: bool, /) -> None:
        if not isinstance(value, bool):
            name = type(self).__name__
            raise GraphError(name, "a mode must be True or False", got=describe(value), fix=f"dx.{name}(True)")
        super().__init__(value)

    @classmethod
    def current_value(cls) -> bool:
        """The default that holds now."""
        return cls._current.get()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._current.get()})"


class set_graph_mode(Mode):  # noqa: N801  # reads as a function
    """Sets what ``graph=None`` means: True for graphs, False for trees.

    A call sets it from now on, in a ``with`` until the end of the block, and as a decorator during the calls of a
    function; for this thread or task. Initially True.

    Raises:
      GraphError: the value is not a bool.

    >>> import declax as dx
    >>> with dx.set_graph_mode(False):
    ...     dx.set_graph_mode.current_value()
    False
    >>> dx.set_graph_mode.current_value()
    True
    """

    _current = ContextVar("declax_graph", default=True)


class set_graph_updates(Mode):  # noqa: N801  # reads as a function
    """Sets what ``graph_updates=None`` means: whether changes of structure come back.

    It is set as `set_graph_mode` is.

    >>> import declax as dx
    >>> with dx.set_graph_updates(False):
    ...     dx.set_graph_updates.current_value()
    False
    """

    _current = ContextVar("declax_graph_updates", default=True)


class set_named_scopes(Mode):  # noqa: N801  # reads as a function
    """Sets whether operations that JAX traces in a module carry its path, as a `jax.named_scope`.

    It is set as `set_graph_mode` is. It holds while JAX traces: a compiled function keeps its names, or has none, and
    takes the same time with both.

    >>> import declax as dx
    >>> with dx.set_named_scopes(False):
    ...     dx.set_named_scopes.current_value()
    False
    """

    _current = ContextVar("declax_named_scopes", default=True)


has_named_scopes = set_named_scopes._current.get
"""`set_named_scopes.current_value` without the cost of a method."""

is_graph_mode = set_graph_mode._current.get
"""`set_graph_mode.current_value` without the cost of a method."""


def is_graph(graph: object) -> bool:
    """The graph mode of an argument `graph`: False requires a tree."""
    return is_on("graph", graph, is_graph_mode)


def in_graph_mode(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with graphs and graph updates on, where it has these flags."""
    parameters = inspect.signature(function).parameters
    flags = {name: True for name in ("graph", "graph_updates") if name in parameters}
    return functools.partial(function, **flags)
