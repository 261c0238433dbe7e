"""The record of a construction: the arguments that an object does not keep as attributes."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

from declax._tree.statuses import PLAIN, data_within
from declax._variables.policy import NO_POLICY, Policy


class Record(NamedTuple):
    """The arguments that a constructor received and did not keep.

    Attributes:
      values: the InitVars that were given and are not their defaults, with MISSING in place of data.
      made: the annotated parts that the constructor made, each with the override of its call that was given, or None.
      policy: the one around the constructor, where its arguments do not say the dtypes of the parts.
      objects: for each of these what it was made of, by which a later assignment is seen; None before that is known.
    """

    values: Mapping[str, Any]
    made: Mapping[str, Any]
    policy: Policy = NO_POLICY
    objects: Mapping[str, tuple[object, ...]] | None = None

    def seal(self, attributes: Mapping[str, Any]) -> Record:
        """The record of an instance whose parts are made, or copied."""
        if not self.made:
            return self
        return self._replace(objects={name: _identity(attributes.get(name)) for name in self.made})

    def unseal(self, attributes: Mapping[str, Any]) -> Record:
        """The record for a copy, without the parts that were replaced since."""
        return Record(self.values, self.made_now(attributes), self.policy) if self.made else self

    def made_now(self, attributes: Mapping[str, Any]) -> Mapping[str, Any]:
        """The entries of `made` whose parts nobody replaced since."""
        objects = self.objects
        if objects is None:
            return self.made
        return {
            name: override
            for name, override in self.made.items()
            if _is_same(objects[name], _identity(attributes.get(name)))
        }


def _identity(value: Any) -> tuple[object, ...]:
    """The arrays and nodes in a value, held weakly, or the value itself."""
    if value.__class__ in PLAIN:
        return (value,)
    return tuple(map(_weakly, data_within(value))) or (value,)


def _weakly(item: object) -> object:
    try:
        return weakref.ref(item)
    except TypeError:
        return item


def _is_same(before: tuple[object, ...], now: tuple[object, ...]) -> bool:
    return len(before) == len(now) and all(
        a is b or (a.__class__ in PLAIN and b.__class__ in PLAIN and a == b) for a, b in zip(before, now, strict=True)
    )
