"""Low-rank adapters: the formula, the draws of the peer, and errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
def test_a_lora_linear_is_that_of_the_peer(dtype: Any) -> None:
    nnx = pytest.importorskip("flax.nnx")
    ours = dx.LoRALinear(3, 4, lora_rank=2, b_initializer=dx.initializers.ones, lora_dtype=dtype, rngs=dx.Rngs(0))
    theirs = nnx.LoRALinear(3, 4, lora_rank=2, b_initializer=nnx.initializers.ones, lora_dtype=dtype, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (5, 3))
    with jax.numpy_dtype_promotion("standard"):
        np.testing.assert_array_equal(ours(x), theirs(x))
    paths = [path for path, _ in dx.to_flat_state(dx.state(ours))]
    assert paths == [path for path, _ in nnx.to_flat_state(nnx.state(theirs))]


def test_an_adapter_starts_as_its_base() -> None:
    base = dx.Linear(3, 4, rngs=dx.Rngs(0))
    layer = dx.LoRA(3, 2, 4, base_module=base, rngs=dx.Rngs(1))
    x = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(layer(x), base(x))
    layer.lora_b[...] = jnp.ones((2, 4))
    np.testing.assert_allclose(layer(x), base(x) + x @ layer.lora_a[...] @ jnp.ones((2, 4)), rtol=1e-6)


def test_only_the_adapter_learns() -> None:
    layer = dx.LoRALinear(3, 2, lora_rank=1, rngs=dx.Rngs(0))

    def loss(layer: dx.LoRALinear) -> jax.Array:
        return (layer(jnp.ones((1, 3))) ** 2).sum()

    gradients = dx.grad(loss, argnums=dx.DiffState(0, dx.LoRAParam))(layer)
    assert [path for path, _ in dx.to_flat_state(gradients)] == [("lora", "lora_a"), ("lora", "lora_b")]


def test_the_type_of_the_factors_is_an_argument() -> None:
    class Adapter(dx.Param[jax.Array]):
        __slots__ = ()

    layer = dx.LoRA(3, 2, 4, lora_param_type=Adapter, a_metadata={"tag": 1}, rngs=dx.Rngs(0))
    assert type(layer.lora_a) is Adapter
    assert layer.lora_a.get_metadata("tag") == 1
    assert dx.LoRA(3, 2, 4, rngs=dx.Rngs(0))(jnp.ones(3)).shape == (4,)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(dx.errors.LayerError, match="the base cannot be called"):
        dx.LoRA(3, 2, 4, base_module=dx.Module(), rngs=dx.Rngs(0))
    with pytest.raises(dx.errors.LayerError, match="the last axis of 'x' has the wrong size"):
        dx.LoRA(3, 2, 4, rngs=dx.Rngs(0))(jnp.ones(4))
