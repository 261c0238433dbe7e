"""`MLP` and `GatedMLP`: their formula, options, and use in transforms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import declax as dx
from declax.errors import LayerError


def affine(linear, x):
    y = x @ linear.kernel.value
    return y if linear.bias is None else y + linear.bias.value


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("out_features", [None, 4])
def test_the_formulas(normal, close, use_bias, dtype, out_features):
    options = {"use_bias": use_bias, "param_dtype": dtype, "bias_init": dx.initializers.normal(), "rngs": dx.Rngs(0)}
    x = normal(2, 5, 3, dtype=dtype)
    plain = dx.MLP(3, 8, out_features, **options)
    gated = dx.GatedMLP(3, 8, out_features, **options)
    close(plain(x), affine(plain.down, jax.nn.gelu(affine(plain.up, x))))
    close(gated(x), affine(gated.down, jax.nn.silu(affine(gated.gate, x)) * affine(gated.up, x)))
    assert plain(x).shape == (2, 5, out_features or 3)
    geglu = dx.GatedMLP(3, 8, activation=dx.gelu, **options)
    close(geglu(x), affine(geglu.down, jax.nn.gelu(affine(geglu.gate, x)) * affine(geglu.up, x)))


@pytest.mark.parametrize("layer", [dx.MLP, dx.GatedMLP])
def test_the_dtype_rules_are_those_of_linear(normal, layer):
    mixed = layer(3, 8, dtype=jnp.bfloat16, rngs=dx.Rngs(0))
    assert mixed.up.kernel.dtype == jnp.float32
    assert mixed(normal(2, 3)).dtype == jnp.bfloat16
    assert mixed.up.dtype == mixed.down.dtype == jnp.bfloat16


def test_no_two_maps_draw_one_key():
    layer = dx.GatedMLP(4, 4, rngs=dx.Rngs(0))
    kernels = [layer.up.kernel.value, layer.gate.kernel.value, layer.down.kernel.value]
    assert len({float(kernel[0, 0]) for kernel in kernels}) == 3


def test_metadata_reaches_each_map():
    layer = dx.GatedMLP(3, 8, kernel_metadata={"tag": 1}, bias_metadata={"tag": 2}, rngs=dx.Rngs(0))
    assert {linear.kernel.tag for linear in (layer.up, layer.gate, layer.down)} == {1}
    assert {linear.bias.tag for linear in (layer.up, layer.gate, layer.down)} == {2}


@pytest.mark.parametrize("layer", [dx.MLP, dx.GatedMLP])
def test_the_map_back_may_have_other_metadata(layer):
    wide, narrow = {"sharding": ("embed", "mlp")}, {"sharding": ("mlp", "embed")}
    made = layer(3, 8, kernel_metadata=wide, down_kernel_metadata=narrow, rngs=dx.Rngs(0))
    assert made.up.kernel.out_sharding == ("embed", "mlp")
    assert made.down.kernel.out_sharding == ("mlp", "embed")
    assert layer(3, 8, kernel_metadata=wide, rngs=dx.Rngs(0)).down.kernel.out_sharding == ("embed", "mlp")


def test_dropout_falls_on_the_hidden_layer():
    layer = dx.MLP(3, 64, dropout_rate=0.5, use_bias=False, activation=dx.identity, rngs=dx.Rngs(0))
    layer.up.kernel.value, layer.down.kernel.value = jnp.ones((3, 64)), jnp.eye(64, 3)
    outputs = layer(jnp.ones((200, 3)))
    assert set(np.unique(outputs)) == {0.0, 6.0}
    layer.eval()
    np.testing.assert_array_equal(layer(jnp.ones((2, 3))), jnp.full((2, 3), 3.0))
    assert dx.MLP(3, 8, rngs=dx.Rngs(0)).dropout is None


@pytest.mark.parametrize("layer", [dx.MLP, dx.GatedMLP])
def test_transforms(normal, close, layer):
    model = layer(3, 4, rngs=dx.Rngs(0))
    x = normal(2, 3)
    expected = model(x)
    step = dx.jit(lambda model, x: model(x))
    close(step(model, x), expected)
    close(step(model, x), expected)
    assert step.num_traces == 1
    close(dx.vmap(lambda model, row: model(row), in_axes=(None, 0))(model, x), expected)
    close(dx.remat(lambda model, x: model(x))(model, x), expected)
    graphdef, state = dx.split(model)
    check_grads(lambda state: dx.merge(graphdef, state)(x), (state,), order=1, modes=["rev"], atol=1e-2, rtol=1e-2)
    abstract = dx.eval_shape(lambda: layer(3, 4, rngs=dx.Rngs(0)))
    assert dx.graphdef(abstract) == graphdef


def test_blocks_can_be_stacked(normal):
    blocks = dx.Stacked(lambda rngs: dx.GatedMLP(4, 8, rngs=rngs), 3, rngs=dx.Rngs(0))
    assert blocks(normal(2, 4)).shape == (2, 4)


def test_sizes_that_do_not_fit():
    with pytest.raises(dx.DeclaxError, match="hidden_features"):
        dx.MLP(3, 0, rngs=dx.Rngs(0))
    with pytest.raises(
        LayerError, match=r"Linear\.in_features, in up of MLP: the last axis of 'inputs' has the wrong size"
    ) as caught:
        dx.MLP(3, 8, rngs=dx.Rngs(0))(jnp.ones((2, 4)))
    assert "(2, 4)" in str(caught.value)
    assert caught.value.expected == "an array of shape (..., 3)"
