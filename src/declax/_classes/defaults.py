"""Defaults of fields that an object lacks, since an own `__init__` or an old pickle has not set them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from declax._fields.class_info import ClassInfo
from declax._fields.expressions import Expression
from declax._tree.attributes import class_attribute


def add_defaults(node: Any) -> None:
    """Gives an instance the defaults of fields that it lacks, where reading them would not find those of the class."""
    info: ClassInfo = node._pytree__info
    if info.late_defaults is None:
        info.late_defaults = _late_defaults(info) if info.is_dataclass else {}
    attributes = node.__dict__
    for name, make in info.late_defaults.items():
        if name not in attributes:
            attributes[name] = make()


def _late_defaults(info: ClassInfo) -> dict[str, Callable[[], Any]]:
    """The defaults of fields that the class has no attributes with: those of specifiers, and of factories."""
    found: dict[str, Callable[[], Any]] = {}
    cls: Any = info.cls
    for field in dataclasses.fields(cls):
        if info.specs[field.name].recipe is not None or class_attribute(cls, field.name) is not None:
            continue
        make = default_maker(field)
        if make is not None:
            found[field.name] = make
    return found


def default_maker(field: dataclasses.Field[Any]) -> Callable[[], Any] | None:
    """The function that makes the default of a field; None if there is none, or it follows other fields."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory
    is_value = field.default is not dataclasses.MISSING and not isinstance(field.default, Expression)
    return functools.partial(_same, field.default) if is_value else None


def _same(value: Any) -> Any:
    return value
