"""One array of a plan: its spec, its bytes on each device, and both as data of JSON."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jax.sharding import PartitionSpec

from declax._text.arrays import dtype_text
from declax._typing import Path, Shape
from declax._variables.placement import make_spec, names_of_entry
from declax.errors import ShardingError, format_path

DEVICE = "device"
"""The memory of a device, whatever its name there."""

FSDP = "fsdp"
"""The reason of an array that is split along the axes of the batch too."""


@dataclass(frozen=True)
class PlanEntry:
    """One array of a plan.

    Attributes:
      path: its keys; of an array in a Variable that holds a tree, with the keys in the tree.
      shape, dtype: of the whole array; the dtype by name.
      spec: the mesh axes that split its dimensions.
      nbytes: its bytes on each device.
      whole: the bytes of the whole array.
      memory_kind: the memory that holds it: ``"device"``, or another, such as ``"pinned_host"``.
      reason: why: ``"declared"``, ``"rule mlp=model"``, the strategy, ``"placed"`` for an array that is there, or
        ``"replicated: ..."``.
    """

    path: Path
    shape: Shape
    dtype: str
    spec: PartitionSpec
    nbytes: int
    whole: int
    memory_kind: str = DEVICE
    reason: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether each device holds all of it."""
        return self.nbytes == self.whole

    @property
    def shape_text(self) -> str:
        """Its dtype and shape, as ``f32[2,3]``."""
        return f"{dtype_text(self.dtype)}[{','.join(map(str, self.shape))}]"

    def place(self, sizes: Mapping[str, int]) -> Any:
        """What decides which part of it a device of a mesh holds."""
        axes = ([(name, sizes[name]) for name in names_of_entry(part) if sizes[name] > 1] for part in self.spec)
        return self.shape, {dimension: names for dimension, names in enumerate(axes) if names}, self.memory_kind

    def to_table(self) -> dict[str, Any]:
        """The entry as data of JSON; without its bytes on a device, which follow from its spec."""
        return {
            "path": [list(key) if isinstance(key, tuple) else key for key in self.path],
            "shape": list(self.shape),
            "dtype": self.dtype,
            "bytes": self.whole,
            "spec": [_part_as_json(part) for part in self.spec],
            "memory_kind": self.memory_kind,
            "reason": self.reason,
        }


# --- specs ------------------------------------------------------------------------


def without_rest(spec: PartitionSpec) -> PartitionSpec:
    """A spec without None at its end, which is the same one, and what JAX makes of it in compiled functions."""
    entries = list(spec)
    while entries and entries[-1] is None:
        entries.pop()
    return make_spec(*entries)


def count_of(spec: PartitionSpec, sizes: Mapping[str, int]) -> int:
    """The number of parts into which a spec divides an array."""
    return math.prod(sizes[name] for part in spec for name in names_of_entry(part))


# --- JSON ------------------------------------------------------------------------


def _part_as_json(part: Any) -> Any:
    if part is PartitionSpec.UNCONSTRAINED:
        return {"unconstrained": True}
    return list(part) if isinstance(part, tuple) else part


def entry_of_table(table: Mapping[str, Any]) -> PlanEntry:
    """An entry without its bytes on each device, which follow from its spec."""
    path = tuple(tuple(key) if isinstance(key, list) else key for key in table["path"])
    shape, whole = tuple(map(operator.index, table["shape"])), operator.index(table["bytes"])
    spec = without_rest(make_spec(*map(_part_of, table["spec"])))
    texts = (str(table[name]) for name in ("memory_kind", "reason"))
    return PlanEntry(path, shape, str(table["dtype"]), spec, 0, whole, *texts)


def measured(where: str, entry: PlanEntry, sizes: Mapping[str, int]) -> PlanEntry:
    """An entry with its bytes on each device.

    Raises:
      ShardingError: the mesh cannot split the array so.
    """
    names = [names_of_entry(part) for part in entry.spec]
    flat = [name for part in names for name in part]
    fits = set(flat) <= set(sizes) and len(set(flat)) == len(flat) and len(names) <= len(entry.shape)
    counts = [math.prod(sizes[name] for name in part) for part in names] if fits else []
    if not fits or any(size % count for size, count in zip(entry.shape, counts, strict=False)):
        raise ShardingError(
            f"{where}, {format_path(entry.path)}",
            "the mesh cannot split an array of this shape so",
            expected=f"an entry for each dimension of {entry.shape}, with axes of {dict(sizes)} that divide it",
            got=str(entry.spec),
        )
    return replace(entry, nbytes=entry.whole // math.prod(counts))


def _part_of(given: Any) -> Any:
    if isinstance(given, dict):
        return PartitionSpec.UNCONSTRAINED
    return tuple(given) if isinstance(given, list) else given
