"""Ways to divide the training of a transformer among devices: meshes, and rules for the names of axes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

import jax
from jax.sharding import AxisType, Mesh

NAMES: Final = ("vocab", "embed", "heads", "mlp", "layers", "batch", "sequence")
"""The names of axes in the transformer."""


class Recipe(NamedTuple):
    """How devices share the work.

    Attributes:
      sizes: of each mesh axis; -1 for the devices that remain.
      rules: the mesh axes that split named axes. Other axes are not split.
      is_fully_sharded: whether each large array is split along the data axis, too.
    """

    sizes: Mapping[str, int]
    rules: Mapping[str, str]
    is_fully_sharded: bool = False

    def mesh(self) -> Mesh:
        """All devices of all processes."""
        rest = jax.device_count() // abs(math.prod(self.sizes.values()))
        sizes = [rest if size == -1 else size for size in self.sizes.values()]
        return jax.make_mesh(sizes, tuple(self.sizes), axis_types=(AxisType.Auto,) * len(sizes))

    def all_rules(self) -> dict[str, str | None]:
        """A rule for each name."""
        return {**dict.fromkeys(NAMES), **self.rules}


_OVER_MODEL: Final = {"heads": "model", "mlp": "model"}

RECIPES: Final[Mapping[str, Recipe]] = {
    "data": Recipe({"data": -1}, {"batch": "data"}),
    "fsdp": Recipe({"data": -1}, {"batch": "data"}, is_fully_sharded=True),
    "tensor": Recipe({"model": -1}, _OVER_MODEL),
    "both": Recipe({"data": -1, "model": 2}, {"batch": "data", **_OVER_MODEL}, is_fully_sharded=True),
    "sequence": Recipe({"data": -1, "sequence": 2}, {"batch": "data", "sequence": "sequence"}),
}
