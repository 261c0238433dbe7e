"""Settings of a model that hold random streams, as public programs write them; compared with the peer."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax.errors import StatusError, TraceContextError

nnx = pytest.importorskip("flax.nnx")

BOTH = (dx, nnx)


@dataclasses.dataclass
class Settings:
    """Sizes, and the streams that the layers are made from."""

    dim: int
    rngs: Any


def network(lib):
    class Network(lib.Module):
        def __init__(self, settings):
            self.settings = settings
            self.layer = lib.Linear(settings.dim, settings.dim, rngs=settings.rngs)

        def __call__(self, x):
            return self.layer(x) * self.settings.dim

    return Network(Settings(3, lib.Rngs(0)))


def test_a_model_keeps_settings_with_streams():
    found = []
    for lib in BOTH:
        model = network(lib)
        value, grads = lib.jit(lib.value_and_grad(lambda m, x: m(x).sum()))(model, jnp.ones((2, 3)))
        copy = lib.merge(*lib.split(model))
        paths = sorted(path for path, _ in lib.to_flat_state(lib.state(model)))
        drawn = copy.settings.rngs.params.uniform()
        assert copy.settings.rngs is model.settings.rngs
        found.append((paths, value, jax.tree.leaves(grads), drawn))
    jax.tree.map(np.testing.assert_array_equal, *found)


def test_streams_of_settings_draw_outside_of_transforms_only():
    for lib in BOTH:
        with pytest.raises(Exception, match="trace level"):
            lib.jit(lambda model: model.settings.rngs.params.uniform())(network(lib))
    with pytest.raises(TraceContextError, match="RngCount"):
        dx.jit(lambda model: model.settings.rngs.params.uniform())(network(dx))


def test_other_data_in_settings_is_refused():
    model = network(dx)
    for data in (jnp.ones(2), dx.Param(1.0), model.layer, [dx.Rngs(0)]):
        with pytest.raises(StatusError, match="data was assigned to an attribute that is static"):
            model.settings = Settings(3, data)
    assert model.settings.dim == 3
