"""Bytes on each device of a mesh, of parameters, gradients and optimizer state, without any device."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from declax._graph.api import state as state_of
from declax._sharding.declared import Shardings as Shardings
from declax._sharding.declared import labels_of, shardings_of_leaves
from declax._text.arrays import bytes_text, measure, shape_text
from declax._typing import Path
from declax._variables.kinds import Param
from declax._variables.metadata import OPTIMIZER_AXES
from declax._variables.placement import AnyMesh
from declax._variables.selection import is_trainable
from declax.errors import ShardingError, format_path
from declax.training import Optimizer, OptState
from declax.transforms.abstract import eval_shape

_LISTED = 8
_SHARE = 100


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
      sizes: of ``parameters``, ``gradients``, ``optimizer state`` and ``other``; only what there is.
      replicated: the large parameters that are whole on each device, the largest first: description and bytes.
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
      a hundredth of the bytes of all parameters.

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
    held = _held(model, tx, devices) if labels is None else lambda path, array: None
    state = state_of(whole_model)
    placed = shardings_of_leaves("bytes_per_device", state.definition, state.leaves, devices, labels, held)
    sizes = {name: Size() for name in ("parameters", "gradients", "optimizer state", "other")}
    replicated: list[tuple[str, int]] = []
    for (path, variable), tree in zip(state._read_pairs(), placed, strict=True):
        kind = "parameters" if isinstance(variable, Param) else "other"
        kind = "optimizer state" if isinstance(variable, OptState) else kind
        kinds = [kind, "gradients"] if is_trainable(path, variable) else [kind]
        arrays = jax.tree.leaves(getattr(variable, "raw_value", variable))
        for array, sharding in zip(arrays, jax.tree.leaves(tree), strict=True):
            if not hasattr(array, "dtype"):
                continue
            whole = measure(array)[1]
            local = math.prod(sharding.shard_shape(array.shape)) * array.dtype.itemsize
            for name in kinds:
                sizes[name].local += local
                sizes[name].whole += whole
            if kind == "parameters" and local == whole and devices.size > 1:
                where = format_path(path if tx is None else path[1:])
                replicated.append((f"{where} {shape_text(array)}", whole))
    large = [entry for entry in replicated if entry[1] * _SHARE >= sizes["parameters"].whole]
    found = {name: size for name, size in sizes.items() if size.whole}
    return DeviceBytes(dict(devices.shape), found, tuple(sorted(large, key=lambda entry: -entry[1])))


def _held(model: Any, tx: Any, mesh: AnyMesh) -> Callable[[Path, Any], NamedSharding | None]:
    """Where an array is, if that is such a mesh; for the state of `tx`, where the parameter is that it mirrors."""

    def own(array: Any) -> NamedSharding | None:
        sharding = getattr(array, "sharding", None)
        is_there = isinstance(sharding, NamedSharding) and dict(sharding.mesh.shape) == dict(mesh.shape)
        return sharding if is_there else None

    mirrored = {
        path: (getattr(variable.raw_value, "shape", None), own(variable.raw_value))
        for path, variable in state_of(model, Param).flat_state()
        if OPTIMIZER_AXES not in variable._metadata
    }

    def held(path: Path, array: Any) -> NamedSharding | None:
        is_planned = tx is not None and path[0] == 1
        ends = (path[start:] for start in range(2, len(path)))
        shape, sharding = next((mirrored[end] for end in ends if is_planned and end in mirrored), (None, None))
        return own(array) or (sharding if shape == getattr(array, "shape", ()) else None)

    return held


def abstract_mesh(sizes: Mapping[str, int]) -> AbstractMesh:
    """A mesh without devices."""
    given: Any = sizes
    if not isinstance(given, Mapping) or not all(type(size) is int and size > 0 for size in given.values()):
        raise ShardingError(
            "mesh",
            "this is not a mesh",
            expected="a Mesh, or the sizes of its axes by name",
            got=repr(sizes),
            fix='{"data": 4, "model": 2}',
        )
    return AbstractMesh(tuple(sizes.values()), tuple(sizes))
