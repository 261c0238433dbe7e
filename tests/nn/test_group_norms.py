"""`RMSNorm`, `GroupNorm` and `InstanceNorm`: the formulas, the numbers of the peer, and bad input."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx

pytestmark = pytest.mark.sampled(3)

NOISE = {"scale_init": dx.initializers.normal(1.0)}
BOTH = {**NOISE, "bias_init": dx.initializers.normal(1.0)}


def parameters(layer: Any) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(layer.scale.value), np.asarray(layer.bias.value)


@pytest.mark.parametrize("is_fast", [True, False])
@pytest.mark.parametrize("spatial", [(), (5,), (2, 3)])
def test_the_formulas(normal, spatial, is_fast):
    x = np.asarray(normal(4, *spatial, 6)) + 0.5
    rms = dx.RMSNorm(6, epsilon=0.1, **NOISE, rngs=dx.Rngs(0))
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.1) * np.asarray(rms.scale.value)
    np.testing.assert_allclose(rms(jnp.asarray(x)), expected, rtol=1e-5, atol=1e-5)

    group = dx.GroupNorm(6, 3, epsilon=0.1, use_fast_variance=is_fast, **BOTH, rngs=dx.Rngs(0))
    scale, bias = parameters(group)
    grouped = x.reshape(4, -1, 3, 2)
    mean, var = grouped.mean((1, 3), keepdims=True), grouped.var((1, 3), keepdims=True)
    expected = ((grouped - mean) / np.sqrt(var + 0.1)).reshape(x.shape) * scale + bias
    np.testing.assert_allclose(group(jnp.asarray(x)), expected, rtol=1e-4, atol=1e-4)
    by_size = dx.GroupNorm(6, None, 2, epsilon=0.1, use_fast_variance=is_fast, **BOTH, rngs=dx.Rngs(0))
    np.testing.assert_array_equal(group(jnp.asarray(x)), by_size(jnp.asarray(x)))

    if spatial:
        instance = dx.InstanceNorm(6, epsilon=0.1, use_fast_variance=is_fast, **BOTH, rngs=dx.Rngs(0))
        scale, bias = parameters(instance)
        axes = tuple(range(1, x.ndim - 1))
        mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
        expected = (x - mean) / np.sqrt(var + 0.1) * scale + bias
        np.testing.assert_allclose(instance(jnp.asarray(x)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("x_dtype", [jnp.float32, jnp.bfloat16, jnp.int32])
@pytest.mark.parametrize("masked", [False, True])
def test_the_numbers_of_the_peer(same, normal, dtype, x_dtype, masked):
    x = (4 * normal(4, 5, 6) + 1).astype(x_dtype)
    mask = normal(4, 5, 6, seed=1) > -1 if masked else None
    given = {"mask": mask} if masked else {}
    same(dx.RMSNorm, 6, call=(x,), call_options=given, dtype=dtype, **NOISE)
    same(dx.GroupNorm, 6, 3, call=(x,), call_options=given, dtype=dtype, **BOTH)
    same(dx.GroupNorm, 6, None, 3, call=(x,), call_options=given, dtype=dtype, use_bias=False, **NOISE)
    same(dx.InstanceNorm, 6, call=(x,), call_options=given, dtype=dtype, **BOTH)


def test_a_mapped_axis_is_averaged_over(normal):
    x = normal(4, 6)
    layer = dx.RMSNorm(12, axis_name="parts", feature_axes=-1, use_scale=False, rngs=dx.Rngs(0))
    halves = dx.RMSNorm(3, axis_name="parts", use_scale=False, rngs=dx.Rngs(0))
    whole = dx.RMSNorm(6, use_scale=False, rngs=dx.Rngs(0))
    parts = jax.vmap(halves, in_axes=1, out_axes=1, axis_name="parts")(x.reshape(4, 2, 3))
    np.testing.assert_allclose(parts.reshape(4, 6), whole(x), rtol=1e-5)
    assert layer.scale is None


def test_bad_arguments_are_refused(normal):
    refused = dx.errors.LayerError
    for groups in ((4, None), (None, None), (3, 2), (0, None), (None, 4)):
        with pytest.raises(refused, match="the features cannot be split into these groups"):
            dx.GroupNorm(6, *groups, rngs=dx.Rngs(0))
    for features in (6, 48, 37, 1, 16):
        with pytest.raises(refused, match="the features cannot be split into these groups") as caught:
            dx.GroupNorm(features, features + 1, rngs=dx.Rngs(0))
        for line in caught.value.fix.splitlines():
            assert eval(line, {"dx": dx, "rngs": dx.Rngs(0)}).num_features == features
    with pytest.raises(refused, match="'x' has another number of features"):
        dx.GroupNorm(6, 3, rngs=dx.Rngs(0))(normal(2, 5))
    with pytest.raises(refused, match="the first axis is the batch"):
        dx.InstanceNorm(6, rngs=dx.Rngs(0))(normal(6))
    with pytest.raises(refused, match="'mask' does not broadcast to 'x'"):
        dx.RMSNorm(6, rngs=dx.Rngs(0))(normal(2, 6), mask=jnp.ones(5))
    with pytest.raises(refused, match="this names no axes"):
        dx.RMSNorm(6, reduction_axes=(), rngs=dx.Rngs(0))


def test_replace_keeps_the_groups():
    layer = dx.GroupNorm(8, None, 2, rngs=dx.Rngs(0))
    assert dx.replace(layer, num_features=4, rngs=dx.Rngs(0))(jnp.ones((1, 4))).shape == (1, 4)
