"""What Variables ask of their parts: declared metadata, items of values, axes of shardings."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from declax import errors
from declax._fields.annotations import annotations_of
from declax._typing import MISSING

_spec: Callable[..., PartitionSpec] = PartitionSpec  # which jax leaves without types


class DeclaredMetadata:
    """Descriptor of metadata that a kind declares by an annotation.

    Without it the default in the class would hide the metadata of an instance.
    """

    def __init__(self, name: str, default: Any) -> None:
        self.name = name
        self.default = default

    def __get__(self, variable: Any, owner: type) -> Any:
        if variable is None:
            return self.default
        return variable.__getattr__(self.name)

    def __set__(self, variable: Any, value: Any) -> None:
        variable.set_metadata(self.name, value)


def declared_metadata(cls: type) -> dict[str, Any]:
    """The metadata that a class body declares, with defaults or MISSING; puts descriptors in their place."""
    declared: dict[str, Any] = {}
    for name, annotation in annotations_of(cls).items():
        if name.startswith("_") or name == "raw_value" or "ClassVar" in str(annotation):
            continue
        default = cls.__dict__.get(name, MISSING)
        if hasattr(type(default), "__set__"):
            continue  # a property or slot of that name
        declared[name] = default
        if default is not MISSING:
            setattr(cls, name, DeclaredMetadata(name, default))
    return declared


def item_set(whole: Any, index: Any, part: Any) -> Any:
    """A value with one item changed; the given one keeps its own, unless it is a Ref.

    For arrays ``whole.at[index].set(part)``. At ``...`` a part of the same shape
    and dtype is the new value itself, so no copy is made.
    """
    if isinstance(whole, jax.Array):
        return part if index is ... and _alike(whole, part) else whole.at[index].set(part)
    if isinstance(whole, jax.Ref):
        whole[index] = part
        return whole
    if index is ... and not isinstance(whole, np.ndarray):
        return part
    changed = copy.copy(whole)
    changed[index] = part
    return changed


def _alike(whole: Any, part: Any) -> bool:
    return bool(whole.shape == getattr(part, "shape", None) and whole.dtype == getattr(part, "dtype", None))


def insert_axis(names: Any, index: int, axis_name: str | None) -> Any:
    """The names of the axes of an array that has got one more.

    Takes tuples, lists, `PartitionSpec` and `NamedSharding`; anything else does
    not name axes and stays as it is. Axes at the end need no entry.
    """
    entries = names_of_axes(names)
    if entries is None:
        return names
    at = index if index >= 0 else index + len(entries) + 1
    entries.extend([None] * (at - len(entries)))
    entries.insert(at, axis_name)
    return _with_entries(names, entries)


def remove_axis(kind: type, names: Any, index: int, axis_name: str | None) -> Any:
    """The names of the axes of an array that has lost one."""
    entries = names_of_axes(names)
    if entries is None or not -len(entries) <= index < len(entries):
        return names
    removed = entries.pop(index)
    if removed != axis_name:
        raise errors.MetadataError(
            f"{errors.type_name(kind)}.remove_axis",
            f"axis {index} goes by another name",
            expected=repr(axis_name),
            got=f"{removed!r} in {names!r}",
        )
    return _with_entries(names, entries)


def names_of_axes(names: Any) -> list[Any] | None:
    if isinstance(names, NamedSharding):
        return list(names.spec)
    return list(names) if isinstance(names, (tuple, list, PartitionSpec)) else None


def _with_entries(names: Any, entries: list[Any]) -> Any:
    if isinstance(names, NamedSharding):
        return NamedSharding(names.mesh, _spec(*entries), memory_kind=names.memory_kind)
    return _spec(*entries) if isinstance(names, PartitionSpec) else type(names)(entries)
