"""`RoPE`, and decoding with it."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx


def test_products_depend_on_the_distance(normal):
    rope = dx.RoPE(scale_factor=2.0)
    q, k = normal(6), normal(6, seed=1)
    at = [rope(q[None], jnp.array([i])) @ rope(k[None], jnp.array([i + 3])).T for i in (0, 20)]
    np.testing.assert_allclose(at[0], at[1], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_it_is_the_product_with_a_complex_number(normal):
    x, i = normal(2, 5, 3, 6), np.arange(5)
    turned = (np.asarray(x[..., :2]) + 1j * np.asarray(x[..., 2:4])) * np.exp(
        1j * i[:, None, None] / 2 * 100.0 ** -np.array([0, 0.5])
    )
    got = dx.RoPE(theta=100.0, scale_factor=2.0, rotary_features=4)(x, axis=-3)
    expected = np.concatenate([turned.real, turned.imag, x[..., 4:]], -1)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert dx.RoPE()(x.astype(jnp.bfloat16), axis=-3).dtype == jnp.bfloat16


@pytest.mark.slow
def test_a_prompt_and_steps_give_the_whole(normal):
    rotated = functools.partial(dx.dot_product_attention_with_rope, rope=dx.RoPE())
    layer = dx.MultiHeadAttention(2, 8, attention_fn=rotated, rngs=dx.Rngs(0))
    x, traces = normal(2, 6, 8), []
    whole = layer(x, is_causal=True, decode=False)
    layer.init_cache(x.shape)

    @dx.jit
    def step(layer, x):
        traces.append(None)
        return layer(x, is_causal=True, decode=True)

    parts = [step(layer, x[:, :3]), *(step(layer, x[:, i : i + 1]) for i in range(3, 6))]
    np.testing.assert_allclose(jnp.concatenate(parts, 1), whole, rtol=1e-5, atol=1e-5)
    assert len(traces) == 2


def test_bad_arguments_are_refused():
    refused, rope = dx.errors.LayerError, dx.RoPE()
    with pytest.raises(refused, match="features are rotated in pairs"):
        rope(jnp.ones((2, 3)))
    with pytest.raises(refused, match="axis 1 is not an axis of positions"):
        rope(jnp.ones((2, 4)), axis=1)
    with pytest.raises(refused, match="the positions do not fit 'x'"):
        rope(jnp.ones((2, 4)), jnp.arange(3))
