"""What a subclass takes from its bases; the MRO is the only rule for fields, parts and methods."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, Final

from declax._fields.annotations import AnnotationScope, own_annotations
from declax._fields.class_info import ClassInfo
from declax._fields.expressions import Expression
from declax._fields.specifiers import CLASS_VAR
from declax._typing import INFO_KEY


def inherited_expressions(cls: type) -> dict[str, tuple[Expression, ...]]:
    """The expressions of the bases by name, in the order of evaluation, each followed by those that it overrides."""
    found: dict[str, tuple[Expression, ...]] = {}
    for base in reversed(cls.__mro__[1:]):
        info: ClassInfo | None = base.__dict__.get(INFO_KEY)
        if info is not None and info.is_declared:
            override(found, info.maker.own)
    return found


def override(known: dict[str, tuple[Expression, ...]], own: Mapping[str, Expression]) -> None:
    """Puts the expressions of a nearer class in front of those of its bases."""
    for name, expression in own.items():
        known[name] = (expression, *known.get(name, ()))


def inherited(cls: type, name: str) -> tuple[type, dataclasses.Field[Any]] | None:
    """The nearest base that declares a field of a name, with the field."""
    for base in cls.__mro__[1:]:
        field: Any = base.__dict__.get("__dataclass_fields__", {}).get(name)
        if field is not None and field._field_type is not CLASS_VAR and name in own_annotations(base):
            return base, field
    return None


def inherited_annotation(cls: type, name: str) -> object:
    """The annotation of the nearest base that declares a field of a name, resolved where all its names exist."""
    owner, field = inherited(cls, name) or (cls, None)
    scope = AnnotationScope(owner)
    resolved = Any if field is None else scope.resolve(field.type)
    return resolved if field is None or scope.is_complete else field.type


_OPTIONS: Final = ("default", "default_factory", "init", "repr", "hash", "compare", "metadata")


def take_fields(info: ClassInfo, known: Collection[str]) -> list[str]:
    """Redeclares the inherited fields that the standard's decorator would take otherwise; returns their names.

    An annotation without a value keeps the inherited declaration, of which the class shows no default. Of several
    bases, the standard prefers all fields of the nearer one, also those that this inherits.
    """
    cls, taken = info.cls, []
    for name in info.annotations:
        nearest = inherited(cls, name) if name in known and name not in cls.__dict__ else None
        if nearest is not None:
            setattr(cls, name, dataclasses.field(**{option: getattr(nearest[1], option) for option in _OPTIONS}))
            taken.append(name)
    if len(cls.__bases__) < 2 or sum(hasattr(base, "__dataclass_fields__") for base in cls.__bases__) < 2:
        return taken
    mro = reversed(cls.__mro__[1:])
    by_standard = {name: f for base in mro for name, f in getattr(base, "__dataclass_fields__", {}).items()}
    added: dict[str, Any] = {}
    for name, field in by_standard.items():
        nearest = None if name in info.annotations or name in cls.__dict__ else inherited(cls, name)
        if nearest is not None and nearest[1] is not field:
            added[name] = inherited_annotation(cls, name)
            setattr(cls, name, copy.copy(nearest[1]))
    if added:
        info.annotate({**info.annotations, **added})
    return [*taken, *added]
