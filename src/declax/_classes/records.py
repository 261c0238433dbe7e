"""The record of a construction: the arguments that an object does not keep as attributes."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from declax._tree.statuses import CONTAINERS, PLAIN, data_within, is_data
from declax._typing import RECORD_KEY
from declax._variables.policy import NO_POLICY, Policy


class Record(NamedTuple):
    """The arguments that a constructor received and did not keep.

    Attributes:
      values: the InitVars that were given and are not their defaults, with MISSING in place of data.
      made: the parts that the constructor made, each with the override of its call that was given, or None.
      policy: the one around the constructor, where its arguments do not say the dtypes of the parts.
      objects: for each of these what it was made of, by which a later assignment is seen; None before that is known.
      assigned: the names of parts that were assigned before the object was copied.
    """

    values: Mapping[str, Any]
    made: Mapping[str, Any]
    policy: Policy = NO_POLICY
    objects: Mapping[str, tuple[object, ...]] | None = None
    assigned: frozenset[str] = frozenset()

    def seal(self, attributes: Mapping[str, Any]) -> Record:
        """The record of an instance whose parts are made, or copied."""
        if not self.made:
            return self
        return self._replace(objects={name: _identity(attributes.get(name)) for name in self.made})

    def unseal(self, attributes: Mapping[str, Any]) -> Record:
        """The record for a copy, without the parts that were assigned since."""
        if self.objects is None:
            return self
        kept = {name: self.made[name] for name in self.made if self._is_kept(name, attributes)}
        return Record(self.values, kept, self.policy, None, self.assigned.union(self.made.keys() - kept.keys()))

    def as_made(self, attributes: Mapping[str, Any]) -> Mapping[str, Any]:
        """The entries of `made` of which nobody assigned the part, or a part within it."""
        if self.objects is None:
            return self.made
        return {
            name: override
            for name, override in self.made.items()
            if self._is_kept(name, attributes) and all(map(_is_as_made, data_within(attributes[name])))
        }

    def _is_kept(self, name: str, attributes: Mapping[str, Any]) -> bool:
        objects = self.objects or {}
        return name in attributes and _is_same(objects[name], _identity(attributes[name]))


def _is_as_made(node: Any) -> bool:
    """Whether nobody assigned a part of an object since its construction, as far as it has a record."""
    attributes: Mapping[str, Any] = getattr(node, "__dict__", {})
    record: Record | None = attributes.get(RECORD_KEY)
    return record is None or (not record.assigned and len(record.as_made(attributes)) == len(record.made))


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
