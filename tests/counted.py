"""Models that count their calls, each mode of the transforms, and checks of what became of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax.errors import TransformError

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


class Scaled(dx.Module):
    """Scales by three numbers, and counts how often."""

    def __init__(self) -> None:
        self.scale = dx.Param(jnp.arange(3.0))
        self.count = dx.Variable(jnp.array(0))

    def __call__(self, x: Any) -> jax.Array:
        self.count.value = self.count.value + 1
        return self.scale * x


def values_of(model: Any) -> Any:
    """The values of a model, as nested dicts of numpy arrays."""
    return jax.tree.map(np.asarray, dx.to_pure_dict(dx.state(model)))


def assert_same_values(one: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_allclose, values_of(one), values_of(other))


def assert_refused(run: Callable[[Counted], object], text: str) -> None:
    """Checks that a transform refuses what is done, in these words, and leaves the model as it was."""
    model = Counted()
    before, names = values_of(model), set(vars(model))
    with pytest.raises(TransformError, match=text):
        run(model)
    jax.tree.map(np.testing.assert_array_equal, values_of(model), before)
    assert set(vars(model)) == names
