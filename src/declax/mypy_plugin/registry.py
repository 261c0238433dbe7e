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


def table(*rows: tuple[Iterable[str], Callable[..., Any], ErrorCode]) -> Table:
    """The checks of some full names; several may share a name."""
    made: Table = defaultdict(list)
    for names, check, code in rows:
        for name in names:
            made[name].append(Entry(check, code))
    return made


class Registry(NamedTuple):
    """All checks by the hook that runs them.

    Attributes:
      functions: run after a call of a function or class, by its full name.
      signatures: run before the arguments of such a call are checked.
      methods: run after a call of a method, by ``owner.name``; also for subclasses of the owner.
      attributes: run after an attribute is read, by its class; also attributes from ``__getattr__``.
      class_attributes: run after an attribute of a Pytree class is read; their first argument is the class.
      classes: run once for each class decorated with ``@dx.dataclass``, after its body is checked.
      calls: run after each call of a Pytree class; their first argument is the class.
      call_signatures: run before the arguments of such a call with ``**`` are checked.
    """

    functions: Table
    signatures: Table
    methods: Table
    attributes: Table
    class_attributes: list[Entry]
    classes: list[Entry]
    calls: list[Entry]
    call_signatures: list[Entry]
