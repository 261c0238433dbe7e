"""Ways to divide the training of a transformer among devices: meshes, and rules for the names of axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import jax
from jax.sharding import AxisType, Mesh

import declax as dx

NAMES: Final = ("vocab", "embed", "moments", "heads", "mlp", "experts", "layers", "batch", "sequence")
"""The names of axes in the transformer."""


class Recipe(NamedTuple):
    """How devices share the work.

    Attributes:
      sizes: of each mesh axis; -1 for the devices that remain.
      rules: the mesh axes that split named axes. Other axes are not split.
      shardings: what splits arrays further, as `dx.fsdp` does.
    """

    sizes: Mapping[str, int]
    rules: Mapping[str, str | tuple[str, ...]]
    shardings: Callable[[Any], dx.StateSharding] | None = None

    def mesh(self) -> Mesh:
        """All devices of all processes."""
        rest = jax.device_count() // abs(math.prod(self.sizes.values()))
        sizes = [rest if size == -1 else size for size in self.sizes.values()]
        return jax.make_mesh(sizes, tuple(self.sizes), axis_types=(AxisType.Auto,) * len(sizes))

    def all_rules(self) -> dict[str, str | tuple[str, ...] | None]:
        """A rule for each name."""
        return {**dict.fromkeys(NAMES), **self.rules}


RECIPES: Final[Mapping[str, Recipe]] = {
    "data": Recipe({"data": -1}, {"batch": "data"}),
    "zero1": Recipe({"data": -1}, {"batch": "data", "moments": "data"}),
    "fsdp": Recipe({"data": -1}, {"batch": "data"}, dx.fsdp),
    "tensor": Recipe({"model": -1}, {"heads": "model", "mlp": "model"}),
    "both": Recipe({"data": -1, "model": 2}, {"batch": "data", "heads": "model", "mlp": "model"}, dx.fsdp),
    "sequence": Recipe({"data": -1, "sequence": 2}, {"batch": "data", "sequence": "sequence"}),
    "experts": Recipe({"expert": -1}, {"batch": "expert", "experts": "expert"}),
    "pipeline": Recipe({"data": -1, "stage": 2}, {"batch": "data", "layers": "stage"}),
    "slices": Recipe({"slices": 2, "data": -1}, {"batch": ("slices", "data")}, dx.fsdp),
}
