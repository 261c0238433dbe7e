"""The registry of checks, by the hook of mypy that runs them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from mypy.errorcodes import ErrorCode


class Entry(NamedTuple):
    """A check and its error code. Its result replaces mypy's type or signature; None keeps it."""

    check: Callable[..., Any]
    code: ErrorCode


Table: TypeAlias = defaultdict[str, list[Entry]]


class Registry:
    """All checks by the hook that runs them; several may share a hook.

    Attributes:
      functions: run after a call of a function or class, by its full name.
      signatures: run before the arguments of such a call are checked.
      methods: run after a call of a method, by ``owner.name``; also for subclasses of the owner.
      attributes: run after an attribute is read, by its class; also attributes from ``__getattr__``.
      classes: run once for each class decorated with ``@dx.dataclass``, after its body is checked.
      calls: run after each call of a Pytree class; their first argument is the class.
      call_signatures: run before the arguments of such a call with ``**`` are checked.
    """

    def __init__(self) -> None:
        self.functions: Table = defaultdict(list)
        self.signatures: Table = defaultdict(list)
        self.methods: Table = defaultdict(list)
        self.attributes: Table = defaultdict(list)
        self.classes: list[Entry] = []
        self.calls: list[Entry] = []
        self.call_signatures: list[Entry] = []

    def function(self, names: Iterable[str], entry: Entry) -> None:
        """Adds one entry for several functions."""
        for name in names:
            self.functions[name].append(entry)
