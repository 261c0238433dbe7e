"""Numbers that no two objects of a process share."""

from __future__ import annotations

import itertools
from typing import Any

_numbers = itertools.count(1)


class UUID:
    """A number that compares and hashes by value; a copy has a new number.

    >>> import copy
    >>> import declax as dx
    >>> number = dx.ids.uuid()
    >>> number == number, number == copy.copy(number)
    (True, False)
    """

    __slots__ = ("id",)

    id: int

    def __init__(self, rawid: int) -> None:
        self.id = rawid

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UUID) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __copy__(self) -> UUID:
        return uuid()

    def __deepcopy__(self, memo: dict[int, Any]) -> UUID:
        return uuid()

    def __repr__(self) -> str:
        return f"UUID({self.id})"


def uuid() -> UUID:
    """A number that this process has not given before."""
    return UUID(next(_numbers))
