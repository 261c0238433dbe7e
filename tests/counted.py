"""A model that counts its calls, each mode of the transforms, and comparisons of values."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx

MODES: tuple[dict[str, bool], ...] = ({"graph": False}, {"graph_updates": False}, {"graph_updates": True})
each_mode = pytest.mark.parametrize("mode", MODES, ids=["tree", "no-updates", "updates"])


class Counted(dx.Module):
    """Scales, counts how often, and sums up what it was given."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = dx.Param(jnp.full((2,), scale))
        self.seen = dx.BatchStat(jnp.array(0))
        self.raw = jnp.zeros(2)

    def step(self, x: jax.Array) -> jax.Array:
        self.seen.value = self.seen.value + 1
        self.raw = self.raw + x
        return x * self.scale


def values_of(model: Any) -> Any:
    """The values of a model, as nested dicts of numpy arrays."""
    return jax.tree.map(np.asarray, dx.to_pure_dict(dx.state(model)))


def assert_same_values(one: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_allclose, values_of(one), values_of(other))
