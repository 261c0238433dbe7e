"""Which check runs at which place.

Vocabulary
----------
hook:  a place where mypy asks its plugins.
check: a function that is run at a hook, under one error code.
entry: a check with its code.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from mypy.errorcodes import ErrorCode


class Entry(NamedTuple):
    """A check and its code. What the check gives replaces what mypy found; None leaves it."""

    check: Callable[..., Any]
    code: ErrorCode


Table: TypeAlias = defaultdict[str, list[Entry]]


class Registry:
    """All checks by the hook that runs them; several may share one.

    Attributes:
      functions: run after a call of a function or class, by its full name.
      signatures: run before the arguments of such a call are checked.
      methods: run after a call of a method, by ``owner.name``; also of classes derived from the owner.
      attributes: run where an attribute is read that a class defines, or answers for by ``__getattr__``.
      classes: run once for each class under ``@dx.dataclass``, when all types in its body are known.
      calls: run after each call of a Pytree class; they are given the class first.
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
        """Puts one entry at the calls of several functions."""
        for name in names:
            self.functions[name].append(entry)
