"""Gradients in parts of a batch that is split over devices."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding

import declax as dx

P = jax.P
ROWS, STEPS = 1024, 8


def loss_of(model, x):
    return jnp.mean((model(x) - x) ** 2)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def test_each_device_computes_a_share_of_each_part(kind):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(kind,))
    x = np.asarray(jax.random.normal(jax.random.key(0), (ROWS, 24)))
    alone = dx.MLP(24, 40, 24, rngs=dx.Rngs(0))
    expected, gradient = dx.jit(dx.value_and_grad(loss_of))(alone, x)
    with jax.set_mesh(mesh):
        model = dx.init_sharded(lambda: dx.MLP(24, 40, 24, rngs=dx.Rngs(0)))
    split = jax.device_put(x, NamedSharding(mesh, P("data")))
    step = dx.jit(dx.accumulate(loss_of, STEPS))
    text = step.lower(model, split).compile().as_text()
    rows = {int(size) for size in re.findall(r"= f32\[(\d+),40\]\S* dot\(", text)}
    assert rows == {ROWS // (8 * STEPS), 24}  # the other one is the gradient of the kernel
    assert "all-gather" not in text
    loss, grads = step(model, split)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for one, two in zip(jax.tree.leaves(grads), jax.tree.leaves(gradient), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)
