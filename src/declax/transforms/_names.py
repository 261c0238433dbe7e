"""The names of a module, with other things in place of captured models.

Vocabulary
----------
base: the names of the module itself.
lent: of a name: it is here as in the base, since Python looks for it here only.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator
from typing import Any

from declax._typing import MISSING


class Names(dict[str, Any]):
    """The names of a module, with other things in place of the captured ones.

    A function looks names up here first, and then in the module; what it
    assigns with ``global`` stays here. Python itself looks some names up
    without a call of `__missing__`: those are lent.

    Args:
      base: the names of the module.

    Attributes:
      base: likewise.
      replaced: the other things.
    """

    def __init__(self, base: dict[str, Any]) -> None:
        super().__init__(__builtins__=base.get("__builtins__", vars(builtins)))
        self.base = base
        self.replaced: dict[str, Any] = {}
        self._lent: dict[str, Any] = {"__builtins__": self["__builtins__"]}
        self.lend(name for name in list(base_of(base)) if name[:2] == "__")

    def __missing__(self, name: str) -> Any:
        return self.base[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The thing of a name."""
        return self[name] if name in self else self.base.get(name, default)

    def lend(self, names: Iterable[str] | None) -> None:
        """Takes what the module has for some names, or for all; what is replaced stays so."""
        for name in list(base_of(self)) if names is None else names:
            value = self.base.get(name, MISSING)
            if value is not MISSING and name not in self:
                self[name] = self._lent[name] = value

    def replace(self, name: str, value: Any) -> None:
        """Puts another thing in the place of a captured one."""
        self[name] = self.replaced[name] = value

    def assigned(self) -> Iterator[tuple[str, Any]]:
        """What a function has assigned with ``global``; `MISSING` for what it has deleted."""
        given = self._lent | self.replaced
        for name, value in self.items():
            if given.get(name, MISSING) is not value:
                yield name, value
        for name in given.keys() - self.keys():
            yield name, MISSING

    def release(self) -> None:
        """Has all names mean again what they mean in the module, also when that changes later."""
        self.replaced.clear()
        names = list(self._lent)
        self.clear()
        self["__builtins__"] = self._lent["__builtins__"]
        self.lend(names)


def base_of(names: dict[str, Any]) -> dict[str, Any]:
    """The names of the module itself."""
    while isinstance(names, Names):
        names = names.base
    return names
