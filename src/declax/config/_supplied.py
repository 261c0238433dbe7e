"""Values that a configuration names and does not say: of the environment, or of a file with a secret."""

from __future__ import annotations

import dataclasses
from typing import Any

from declax._fields.interning import Shared
from declax._fields.snapshots import FrozenDict


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Supplied(Shared):
    """An argument of a spec whose value stands outside of the configuration; equal if the tables that name it are.

    Attributes:
      table: names the value, such as ``{"$env": "DATA"}``; None for a secret that was given in Python.
      value: what the object is built with.
      is_secret: whether nothing may show the value.
    """

    table: FrozenDict[Any] | None
    value: Any = dataclasses.field(compare=False, hash=False)
    is_secret: bool = False

    def __repr__(self) -> str:
        """The value, or of a secret where it is."""
        if not self.is_secret:
            return repr(self.value)
        return f"secret({'given in Python' if self.table is None else dict(self.table)})"


def value_of(value: Any) -> Any:
    """The value that a supplied one stands for; any other value itself."""
    return value.value if isinstance(value, Supplied) else value


def shown_value(value: Any) -> Any:
    """What may be shown: the value, or for a secret the object that names it."""
    return value.value if isinstance(value, Supplied) and not value.is_secret else value
