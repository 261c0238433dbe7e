"""Errors of attributes that a class declares and an object lacks, as one from an old pickle does."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from declax._fields.class_info import ClassInfo
from declax._tree.attributes import class_attribute
from declax._typing import INFO_KEY
from declax.errors import MissingAttributeError, type_name


def declared_names(info: ClassInfo) -> Collection[str]:
    """The names of the fields of a class, or the annotated names of an open one."""
    if info.is_dataclass:
        return info.specs.keys()
    infos = (base.__dict__.get(INFO_KEY) for base in info.cls.__mro__)
    return {name for one in infos if one is not None for name in one.annotations if name != "_"}


def note_missing(node: Any) -> None:
    """Gives a class a ``__getattr__`` once an object lacks what it declares; reads of other classes stay fast."""
    cls = type(node)
    if not cls._pytree__info.declared <= node.__dict__.keys() and class_attribute(cls, "__getattr__") is None:
        cls.__getattr__ = _explain_missing


def _explain_missing(self: Any, name: str) -> Any:
    cls = type(self)
    if name not in cls._pytree__info.declared:
        return object.__getattribute__(self, name)  # raises the error of Python, or that of a property
    raise MissingAttributeError(
        f"{type_name(cls)}.{name}",
        "this object lacks the attribute, which its class declares",
        why="it was pickled, or made, before the class had the attribute; or its `__init__` has not assigned it",
        fix=f"model.{name} = ...        # or for all old pickles, in class {cls.__name__}:\n"
        f"def __setstate__(self, state): super().__setstate__({{{name!r}: ..., **state}})",
    )
