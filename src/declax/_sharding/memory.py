"""Bytes on each device of a mesh, of parameters, gradients and optimizer state, without any device."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jax.sharding import AbstractMesh, Mesh, NamedSharding

from declax._graph.api import state as state_of
from declax._sharding.declared import Shardings as Shardings
from declax._sharding.declared import labels_of
from declax._sharding.plan_entries import DEVICE, PlanEntry
from declax._sharding.planning import Held, own_sharding, rows_of
from declax._sharding.plans import abstract_mesh
from declax._text.arrays import bytes_text
from declax._text.folding import Line, folded
from declax._typing import Path
from declax._variables.kinds import Param
from declax._variables.metadata import OPTIMIZER_AXES
from declax._variables.placement import AnyMesh
from declax._variables.selection import is_trainable
from declax.errors import format_path
from declax.training import Optimizer, OptState
from declax.transforms.abstract import eval_shape

_LISTED = 8
_SHARE = 100
_KINDS = ("parameters", "gradients", "optimizer state", "other")


@dataclasses.dataclass
class Size:
    """Bytes on each device, and of all arrays as if on one."""

    local: int = 0
    whole: int = 0

    def __str__(self) -> str:
        return f"{bytes_text(self.local)} of {bytes_text(self.whole)}"


@dataclasses.dataclass(frozen=True)
class DeviceBytes:
    """How many bytes of a model each device of a mesh holds.

    Attributes:
      mesh: the sizes of the mesh axes by name.
      sizes: of ``parameters``, ``gradients``, ``optimizer state`` and ``other``; only what there is. What is in the
        memory of the host counts apart, as ``optimizer state in pinned_host``.
      replicated: the large parameters that are whole on each device, the largest first: description and bytes. Equal
        layers count together.
    """

    mesh: Mapping[str, int]
    sizes: Mapping[str, Size]
    replicated: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in self.mesh.items())
        lines = [f"on each of {math.prod(self.mesh.values())} devices ({axes}):"]
        width = max(map(len, self.sizes), default=0)
        lines += [f"  {name.ljust(width)}  {size}" for name, size in self.sizes.items()]
        if self.replicated:
            lines.append("large parameters that are whole on each device:")
            lines += [f"  {name} ({bytes_text(size)})" for name, size in self.replicated[:_LISTED]]
            more = len(self.replicated) - _LISTED
            lines += [f"  and {more} more"] if more > 0 else []
        return "\n".join(lines)


def bytes_per_device(
    model: Any, mesh: AnyMesh | Mapping[str, int], *, tx: Any = None, shardings: Shardings = None
) -> DeviceBytes:
    """The bytes of a model on each device of a mesh; no device is needed.

    An array that is on a mesh of these sizes counts where it is, with the optimizer state that `tx` would give it.
    Other arrays count where their Variables declare, as if they were made on the mesh.

    Args:
      model: a model, or a model with its optimizer in a container; may be abstract.
      mesh: the devices, or the sizes of the axes by name.
      tx: an optax transformation, whose state is added.
      shardings: a `StateSharding`, or a function of the model that returns one, such as `fsdp`, in place of where
        arrays are and what Variables declare.

    Returns:
      Bytes of parameters, gradients, optimizer state and the rest; prints as a table. A large parameter has at least
      a hundredth of the bytes of all parameters; so have equal parameters of several layers together.

    Raises:
      ShardingError: declared names do not fit the mesh, or an axis has no size.

    >>> import declax as dx
    >>> layer = dx.Linear(64, 128, kernel_metadata={"out_sharding": (None, "model")}, rngs=dx.Rngs(0))
    >>> print(dx.bytes_per_device(layer, {"data": 4, "model": 2}))
    on each of 8 devices (data=4, model=2):
      parameters  16.9 KB of 33.3 KB
      gradients   16.9 KB of 33.3 KB
    large parameters that are whole on each device:
      bias f32[128] (512 B)
    """
    devices = mesh if isinstance(mesh, (Mesh, AbstractMesh)) else abstract_mesh(mesh)
    whole_model = model if tx is None else [model, eval_shape(Optimizer, model, tx)]
    labels = labels_of("bytes_per_device", shardings, whole_model, devices)
    found: dict[tuple[str, str], Size] = {}
    whole: list[Line[PlanEntry]] = []
    for entry, variable in rows_of("bytes_per_device", whole_model, devices, labels, _held(model, tx, devices)):
        kind = "parameters" if isinstance(variable, Param) else "other"
        kind = "optimizer state" if isinstance(variable, OptState) else kind
        kinds = [(kind, entry.memory_kind)]
        kinds += [("gradients", DEVICE)] if is_trainable(entry.path, variable) else []
        for key in kinds:
            size = found.setdefault(key, Size())
            size.local += entry.nbytes
            size.whole += entry.whole
        if kind == "parameters" and entry.is_whole and devices.size > 1:
            whole.append(Line(entry.path if tx is None else entry.path[1:], replace(entry, path=(), reason="")))
    order = sorted(found, key=lambda key: (_KINDS.index(key[0]), key[1] != DEVICE, key[1]))
    sizes = {kind if memory == DEVICE else f"{kind} in {memory}": found[kind, memory] for kind, memory in order}
    total = sum(size.whole for (kind, _), size in found.items() if kind == "parameters")
    lines = [
        (f"{format_path(line.path)} {line.content.shape_text}", line.times * line.content.whole)
        for line in folded(whole)
    ]
    large = [line for line in lines if line[1] * _SHARE >= total]
    return DeviceBytes(dict(devices.shape), sizes, tuple(sorted(large, key=lambda line: -line[1])))


def _held(model: Any, tx: Any, mesh: AnyMesh) -> Held:
    """Where an array is, if that is such a mesh; for the state of `tx`, where the parameter is that it mirrors."""
    mirrored = {
        path: (getattr(variable.raw_value, "shape", None), own_sharding(variable.raw_value, mesh))
        for path, variable in state_of(model, Param).flat_state()
        if OPTIMIZER_AXES not in variable._metadata
    }

    def held(path: Path, array: Any) -> NamedSharding | None:
        is_planned = tx is not None and path[0] == 1
        ends = (path[start:] for start in range(2, len(path)))
        shape, sharding = next((mirrored[end] for end in ends if is_planned and end in mirrored), (None, None))
        return own_sharding(array, mesh) or (sharding if shape == getattr(array, "shape", ()) else None)

    return held
