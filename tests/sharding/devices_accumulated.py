"""Gradients in parts of a batch that is split over devices."""

from __future__ import annotations

import re
import warnings

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


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def test_parts_that_devices_cannot_share_are_warned_of(kind):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(kind,))
    with jax.set_mesh(mesh):
        model = dx.init_sharded(lambda: dx.MLP(24, 40, 24, rngs=dx.Rngs(0)))
    step = dx.jit(dx.accumulate(loss_of, STEPS))
    uneven = jax.device_put(np.ones((96, 24), np.float32), NamedSharding(mesh, P("data")))
    if kind is AxisType.Explicit:
        with pytest.raises(dx.errors.TransformError, match=r"8 devices cannot share a part of 12(?s:.*)a batch of 128"):
            step.lower(model, uneven)
    else:
        with pytest.warns(dx.errors.ReplicationWarning, match="8 devices cannot share .* Take a batch of 128"):
            step.lower(model, uneven)
    even = jax.device_put(np.ones((128, 24), np.float32), NamedSharding(mesh, P("data")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step.lower(model, even)
        dx.jit(dx.accumulate(loss_of, STEPS)).lower(dx.MLP(24, 40, 24, rngs=dx.Rngs(0)), np.ones((96, 24), np.float32))


def test_uneven_parts_are_seen_without_jit():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    x = jax.device_put(np.ones((24, 24), np.float32), NamedSharding(mesh, P("data")))
    with pytest.warns(dx.errors.ReplicationWarning, match="4 devices cannot share a part of 6 .* a batch of 32"):
        dx.accumulate(loss_of, 4)(dx.MLP(24, 40, 24, rngs=dx.Rngs(0)), x)
