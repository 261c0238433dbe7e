"""The kinds of memory that a user chooses for Variables, by filter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from declax._filters import as_written
from declax._sharding.plan_entries import DEVICE
from declax._typing import Path
from declax._variables.placement import AnyMesh
from declax.errors import ShardingError, describe, suggest
from declax.transforms._engine.prefixes import StateLabels

_KINDS = (DEVICE, "pinned_host")
"""The kinds of memory that types of JAX tell apart, so that a program can move arrays between them."""

_NAMES = (*_KINDS, "unpinned_host")
"""The names that JAX accepts where there are no devices."""

_FIX = 'dx.plan(model, mesh, dx.fsdp, memory={dx.OptVariable: "pinned_host"})'


class MemoryKinds:
    """The kind of memory of each Variable, and which of the filters have selected one.

    Raises:
      ShardingError: these are no kinds of memory by filter, or the devices have no such memory.
    """

    def __init__(self, memory: Any, mesh: AnyMesh) -> None:
        if not isinstance(memory, Mapping):
            raise ShardingError(
                "plan.memory",
                "these are not kinds of memory by filter",
                expected="a mapping from filters",
                got=describe(memory),
                fix=_FIX,
            )
        known = _kinds_of(mesh)
        for kind in memory.values():
            if kind not in known:
                near = suggest(kind, known) if isinstance(kind, str) else None
                raise ShardingError(
                    "plan.memory",
                    "the devices have no such memory",
                    expected=" or ".join(map(repr, known)),
                    got=repr(kind),
                    fix=near or _FIX,
                )
        self._labels: StateLabels[str] = StateLabels(memory)
        self._used: set[int] = set()

    def kind_of(self, path: Path, held: Any, otherwise: str) -> str:
        """The kind of memory of a Variable or array; where no filter takes it, another one."""
        number = self._labels.number_of(path, held)
        if number is None:
            return otherwise
        self._used.add(number)
        return self._labels.labels[number]

    def check_all_select(self) -> None:
        """Raises if a filter other than ``...`` has selected nothing."""
        for filter_ in self._labels.unused(self._used):
            raise ShardingError(
                "plan.memory",
                f"the filter {as_written(filter_)} selects nothing",
                expected="a filter of Variables of the model that no earlier one takes",
                got=repr(dict(zip(map(as_written, self._labels.filters), self._labels.labels, strict=True))),
                fix="correct the filter, or leave it out",
            )


def memories_of(mesh: AnyMesh) -> tuple[str, ...]:
    """The names of the memories of a mesh; of one without devices of this process, those that JAX knows."""
    devices = mesh.devices.flat if isinstance(mesh, Mesh) else ()
    local = next((device for device in devices if device.process_index == jax.process_index()), None)
    there = _NAMES if local is None else {memory.kind for memory in local.addressable_memories()}
    return (DEVICE, *sorted({*there} - {DEVICE}))


def _kinds_of(mesh: AnyMesh) -> tuple[str, ...]:
    """The kinds of memory that a user chooses on a mesh."""
    there = memories_of(mesh)
    return tuple(kind for kind in _KINDS if kind in there)
