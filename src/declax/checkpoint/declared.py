"""What classes declare of their fields, against the values that objects have there."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from declax._classes.conformance import misfit_of
from declax._fields.annotations import AnnotationScope, annotation_text, is_data_class, own_annotations
from declax._fields.class_info import info_of
from declax._fields.meanings import ClassType, Meaning, bindings_of, meaning_of, members_of
from declax._fields.specifiers import Status
from declax._typing import MISSING
from declax._variables.variable import Variable

_ARRAYS = (jax.Array, np.ndarray, jax.ShapeDtypeStruct)
_KINDS = (Variable, *_ARRAYS)
_ROWS = frozenset({list, tuple, dict})


class _Field(NamedTuple):
    """What a class says of an attribute; the meaning is None for one that it does not declare."""

    status: Status | None
    meaning: Meaning | None

    @property
    def text(self) -> str:
        """The declaration."""
        annotation = "" if self.meaning is None else annotation_text(self.meaning.annotation)
        return annotation if self.status is None else f"{annotation} ({self.status.value})"


class Declarations(dict[tuple[type, Any], _Field]):
    """The declared fields of classes, each read once."""

    def __missing__(self, key: tuple[Any, Any]) -> _Field:
        cls, name = key
        owner = next((base for base in cls.__mro__ if name in own_annotations(base)), None)
        spec = info_of(cls).specs.get(name)
        found = _Field(None, None)
        if owner is not None and spec is not None:
            bindings = bindings_of(cls).get(owner, {})
            meaning = meaning_of(own_annotations(owner)[name], AnnotationScope(owner), bindings)
            found = _Field(spec.status if cls._pytree__is_pytree else None, meaning)
        self[key] = found
        return found

    def is_misfit(self, cls: type, name: Any, value: Any) -> bool:
        """Whether a static value is surely not one of its field."""
        meaning = self[cls, name].meaning
        return meaning is not None and misfit_of(value, meaning) is not None

    def deviates(self, cls: type, name: Any, status: Status, value: Any) -> bool:
        """Whether an attribute has another status than its class declares, or an array or Variable of another kind.

        Objects are not asked: an int8 layer stands where a Linear was declared.
        """
        declared, meaning = self[cls, name]
        if declared is not None and declared.is_static is not status.is_static:
            return True
        if meaning is None or status.is_static:
            return False
        if isinstance(value, Variable) and _is_array(meaning):
            return True
        if isinstance(value, jax.ShapeDtypeStruct):  # an array that is not read yet
            value = _ARRAY
        is_asked = (
            isinstance(value, _KINDS) or type(value) in _ROWS or getattr(type(value), "_pytree__holds_elements", False)
        )
        found = misfit_of(value, meaning) if is_asked else None
        return found is not None and isinstance(found.value, _KINDS)


_ARRAY = np.zeros(())


def _is_array(meaning: Meaning) -> bool:
    """Whether all values of a type are arrays, or None."""
    found = [member.cls if isinstance(member, ClassType) else MISSING for member in members_of(meaning)]
    classes = [getattr(cls, "array_type", cls) for cls in found]  # jaxtyping's annotations
    return all(
        isinstance(cls, type) and (cls is type(None) or (is_data_class(cls) and issubclass(cls, _ARRAYS)))
        for cls in classes
    )
