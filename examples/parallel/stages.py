"""Blocks that are divided among devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

import declax as dx

AXIS = "stage"
MICROBATCHES = 2


def in_stages(blocks: dx.Stacked[Any]) -> Callable[[jax.Array], jax.Array]:
    """The blocks, as a pipeline if the mesh has an axis for its stages."""
    if AXIS not in jax.sharding.get_abstract_mesh().axis_names:
        return blocks
    return dx.pipeline(blocks, AXIS, MICROBATCHES)
