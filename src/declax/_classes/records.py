"""The record of a construction: the arguments that an object does not keep as attributes."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import jax

from declax._fields.call import Call
from declax._tree.statuses import CONTAINERS, PLAIN, data_within, is_data
from declax._typing import RECORD_KEY
from declax._variables.policy import NO_POLICY, Policy
from declax.errors import DeclaxError, type_name

NEW: Final[tuple[object, ...]] = ()
"""What a part is made of, until its constructor or the copy of its owner is finished."""


class Record(NamedTuple):
    """The call that constructed an object, without the arguments that the object keeps as attributes.

    Attributes:
      call: its arguments are the InitVars that were given and are not their defaults, with MISSING in place of data,
        and the overrides of parts.
      parts: those that the constructor made, each with what it is made of, by which a later assignment is seen; None if
        it was assigned before the object was copied.
      policy: the one around the constructor, where its arguments do not say the dtypes of the parts.
    """

    call: Call
    parts: Mapping[str, tuple[object, ...] | None]
    policy: Policy = NO_POLICY

    def seal(self, attributes: Mapping[str, Any]) -> Record:
        """The record of an instance whose parts are made, or copied."""
        if not self.parts:
            return self
        parts = {name: None if known is None else _identity(attributes.get(name)) for name, known in self.parts.items()}
        return Record(self.call, parts, self.policy)

    def unseal(self, attributes: Mapping[str, Any]) -> Record:
        """The record for a copy."""
        parts = {name: NEW if self._is_kept(name, attributes) else None for name in self.parts}
        return Record(self.call, parts, self.policy)

    def as_made(self, attributes: Mapping[str, Any]) -> set[str]:
        """The parts that nobody assigned since, nor a part within them."""
        return {
            name
            for name, known in self.parts.items()
            if self._is_kept(name, attributes)
            and (known is NEW or all(map(_is_as_made, data_within(attributes[name]))))
        }

    def _is_kept(self, name: str, attributes: Mapping[str, Any]) -> bool:
        known = self.parts[name]
        if known is None or known is NEW:
            return known is NEW
        return name in attributes and _is_same(known, _identity(attributes[name]))


def record_of(obj: Any) -> Record | None:
    """The record of a construction; None for objects from `merge`, tree functions and transforms."""
    found: Record | None = getattr(obj, "__dict__", {}).get(RECORD_KEY)
    return found


def refuse_own_init(cls: type, operation: str, error: type[DeclaxError], where: str, fix: str) -> None:
    """Raises for a subclass of a dataclass with its own `__init__`: what it does with its arguments is unknown."""
    owner = next(base for base in cls.__mro__ if "__init__" in base.__dict__)
    if "__dataclass_fields__" not in owner.__dict__:
        problem = (
            f"{operation} gives the constructor the fields, and this class has its own __init__, which may change them"
        )
        instead = "\ndef __post_init__(self): ...        # in place of __init__, with @dx.dataclass above the class"
        raise error(where, problem, fix=fix.format(type_name(cls)) + instead)


def _is_as_made(node: Any) -> bool:
    """Whether nobody assigned a part of an object since its construction, as far as it has a record."""
    record = record_of(node)
    return record is None or len(record.as_made(node.__dict__)) == len(record.parts)


def _identity(value: Any) -> tuple[object, ...]:
    """The items and nodes in a value, held weakly, or the value itself."""
    if value.__class__ in PLAIN:
        return (value,)
    if is_data(value):
        return (_weakly(value),)
    items = jax.tree.leaves(value, is_leaf=is_data) if isinstance(value, CONTAINERS) else data_within(value)
    return tuple(map(_weakly, items)) or (value,)


def _weakly(item: object) -> object:
    try:
        return weakref.ref(item)
    except TypeError:
        return item


def _is_same(before: tuple[object, ...], now: tuple[object, ...]) -> bool:
    return len(before) == len(now) and all(
        a is b or (a.__class__ in PLAIN and b.__class__ in PLAIN and a == b) for a, b in zip(before, now, strict=True)
    )
