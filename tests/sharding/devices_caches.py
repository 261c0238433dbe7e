"""Caches of attention are made with the sharding of their keys and values."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import declax as dx

P = jax.P
MESH = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
EXPLICIT = jax.make_mesh((2, 4), ("data", "model"))
BY_HEADS = {"out_sharding": (None, "model", None)}
CACHE = {"out_sharding": ("data", None, "model", None)}


def make(**options):
    out = {"out_sharding": ("model", None, None)}
    return dx.MultiHeadAttention(4, 16, kernel_metadata=BY_HEADS, out_kernel_metadata=out, decode=True, **options)


def layer_on(mesh=MESH):
    return dx.init_sharded(lambda: make(rngs=dx.Rngs(0)), mesh=mesh)


def test_a_cache_has_the_heads_of_the_kernel():
    layer = layer_on()
    layer.init_cache((8, 6, 16))
    split = jax.NamedSharding(MESH, P(None, None, "model", None))
    assert layer.cached_key.value.sharding.is_equivalent_to(split, 4)
    assert layer.cached_value.value.sharding.is_equivalent_to(split, 4)


def test_metadata_name_the_axes():
    layer = layer_on()
    with jax.set_mesh(MESH), dx.sharding_rules({"batch": "data", "heads": "model"}):
        layer.init_cache((8, 6, 16), metadata={"out_sharding": ("batch", None, "heads", None)})
    assert layer.cached_key.value.sharding.spec == P("data", None, "model", None)
    with jax.set_mesh(MESH):
        viewed = dx.view(layer, batch_size=8, max_length=6, cache_metadata=CACHE)
    assert viewed.cached_value.value.sharding.spec == P("data", None, "model", None)
    with jax.set_mesh(MESH), pytest.raises(dx.errors.ShardingError, match="dat"):
        layer.init_cache((8, 6, 16), metadata={"out_sharding": ("dat", None, "model", None)})


def test_a_cache_of_stacked_layers_has_the_axes_of_one():
    stack = dx.init_sharded(lambda: dx.Stacked(lambda rngs: make(rngs=rngs), 3, rngs=dx.Rngs(0)), mesh=MESH)
    with jax.set_mesh(MESH):
        stack.layers.init_cache((8, 6, 16), metadata=CACHE)
        assert stack.layers.cached_key.value.sharding.spec == P(None, "data", None, "model", None)
    stack.layers.init_cache((8, 6, 16))
    split = jax.NamedSharding(MESH, P(None, None, None, "model", None))
    assert stack.layers.cached_key.value.sharding.is_equivalent_to(split, 5)


def test_steps_keep_the_sharding_and_compile_once():
    layer, alone = layer_on(), make(rngs=dx.Rngs(0))
    alone.init_cache((8, 6, 16))
    with jax.set_mesh(MESH):
        layer.init_cache((8, 6, 16), metadata=CACHE)
    step = dx.jit(lambda layer, x: layer(x))
    x = jax.random.normal(jax.random.key(1), (8, 6, 16))
    for position in range(6):
        token = x[:, position : position + 1]
        found = step(layer, jax.device_put(token, jax.NamedSharding(MESH, P("data"))))
        np.testing.assert_allclose(found, alone(token), rtol=1e-4, atol=1e-5)
    assert step.num_compilations == 1
    assert layer.cached_key.value.sharding.spec == P("data", None, "model", None)


def test_a_cache_is_made_as_shards():
    """Each device makes an eighth."""
    layer = layer_on()
    with jax.set_mesh(MESH):
        layer.init_cache((64, 2**12, 16), metadata=CACHE)
        assert layer.cached_key.value.addressable_shards[0].data.nbytes * 8 == layer.cached_key.value.nbytes


def test_without_a_mesh_nothing_changes():
    layer = make(rngs=dx.Rngs(0))
    layer.init_cache((2, 3, 16), jnp.bfloat16)
    assert layer.cached_key.shape == (2, 3, 4, 4)
    assert layer.cached_key.dtype == jnp.bfloat16
    assert not layer.cached_key.value.committed


def test_a_cache_that_jit_makes_has_the_heads_of_the_kernel():
    layer = layer_on()
    dx.jit(lambda layer: layer.init_cache((8, 6, 16)))(layer)
    split = jax.NamedSharding(MESH, P(None, None, "model", None))
    assert layer.cached_key.value.sharding.is_equivalent_to(split, 4)
    assert layer.cached_value.value.sharding.is_equivalent_to(split, 4)


def test_a_cache_that_jit_makes_on_explicit_axes_has_the_heads_of_the_kernel():
    with jax.set_mesh(EXPLICIT):
        layer = dx.init_sharded(lambda: make(rngs=dx.Rngs(0)))
        dx.jit(lambda layer: layer.init_cache((8, 6, 16)))(layer)
    assert layer.cached_key.value.sharding.is_equivalent_to(
        jax.NamedSharding(EXPLICIT, P(None, None, "model", None)), 4
    )


def test_a_cache_that_jit_makes_in_a_shard_map_is_that_of_the_shard():
    layer = make(rngs=dx.Rngs(0))

    def decode(layer, x):
        own = dx.clone(layer)
        own.init_cache(x.shape)
        return own(x)

    x = jax.random.normal(jax.random.key(1), (8, 6, 16))
    found = dx.shard_map(decode, mesh=MESH, in_specs=(None, P("data")), out_specs=P("data"))(layer, x)
    layer.init_cache(x.shape)
    np.testing.assert_allclose(found, layer(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("metadata", [{}, CACHE])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_steps_on_explicit_axes_write_at_the_sharding_of_the_cache(metadata, is_compiled):
    """The batch of the tokens is split; that of a cache without names is not."""
    alone = make(rngs=dx.Rngs(0))
    alone.init_cache((8, 6, 16))
    x = jax.random.normal(jax.random.key(1), (8, 6, 16))
    pairs = [(x[:, at : at + 2], alone(x[:, at : at + 2])) for at in range(0, 6, 2)]
    with jax.set_mesh(EXPLICIT):
        out = {"out_sharding": ("model", None, None), "act_names": ("data", None, None)}
        layer = dx.init_sharded(
            lambda: dx.MultiHeadAttention(
                4, 16, kernel_metadata=BY_HEADS, out_kernel_metadata=out, decode=True, rngs=dx.Rngs(0)
            )
        )
        layer.init_cache((8, 6, 16), metadata=metadata)
        before = layer.cached_key.value.sharding
        step = dx.jit(lambda layer, x: layer(x))
        for tokens, wanted in pairs:
            call = step if is_compiled else type(layer).__call__
            found = call(layer, jax.device_put(tokens, jax.NamedSharding(EXPLICIT, P("data"))))
            assert jax.typeof(found).sharding.spec[:1] == ("data",)
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert layer.cached_key.value.sharding.is_equivalent_to(before, 4)
    if is_compiled:
        assert step.num_compilations == 1
