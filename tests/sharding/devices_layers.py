"""Every layer on meshes of explicit axes, against the same layer without a mesh; on four of eight devices."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import declax as dx

P = jax.P
MESH = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2, devices=jax.devices()[:4])
BY_COLUMN = {"out_sharding": (None, "model")}
SPLIT = {"out_sharding": ("model",)}
IMAGES, SEQUENCES, ROWS = (4, 8, 8, 4), (4, 6, 8), (4, 8)


def followed_by(layer, rngs):
    """A layer without parameters, after one with."""
    return dx.Sequential(dx.Linear(8, 8, rngs=rngs), layer)


def gru(rngs, **options):
    return dx.RNN(dx.GRUCell(8, 4, rngs=rngs), rngs=rngs, **options)


class Called(dx.Module):
    """A layer that is called by a function."""

    def __init__(self, layer, call):
        self.layer, self.call = layer, dx.static(call)

    def __call__(self, x):
        return self.call(self.layer, x)


LENGTHS = jnp.array([6, 2, 0, 3])

LAYERS = {
    "Linear": (lambda rngs: dx.Linear(8, 4, rngs=rngs), ROWS),
    "Linear, columns split": (
        lambda rngs: dx.Linear(8, 4, kernel_metadata=BY_COLUMN, bias_metadata=SPLIT, rngs=rngs),
        ROWS,
    ),
    "LinearGeneral": (lambda rngs: dx.LinearGeneral(8, (2, 4), rngs=rngs), SEQUENCES),
    "Einsum": (lambda rngs: dx.Einsum("blk,kh->blh", (8, 4), (4,), rngs=rngs), SEQUENCES),
    "Conv": (lambda rngs: dx.Conv(4, 6, (3, 3), rngs=rngs), IMAGES),
    "Conv, circular": (lambda rngs: dx.Conv(4, 6, (3, 3), padding="CIRCULAR", rngs=rngs), IMAGES),
    "Conv, strided": (lambda rngs: dx.Conv(4, 8, (3, 3), strides=2, rngs=rngs), IMAGES),
    "ConvTranspose": (lambda rngs: dx.ConvTranspose(4, 6, (3, 3), strides=2, rngs=rngs), IMAGES),
    "BatchNorm": (lambda rngs: dx.BatchNorm(4, rngs=rngs), IMAGES),
    "BatchNorm, evaluated": (lambda rngs: dx.BatchNorm(4, use_running_average=True, rngs=rngs), IMAGES),
    "LayerNorm": (lambda rngs: dx.LayerNorm(8, rngs=rngs), SEQUENCES),
    "RMSNorm": (lambda rngs: dx.RMSNorm(8, rngs=rngs), SEQUENCES),
    "GroupNorm": (lambda rngs: dx.GroupNorm(4, num_groups=2, rngs=rngs), IMAGES),
    "InstanceNorm": (lambda rngs: dx.InstanceNorm(4, rngs=rngs), IMAGES),
    "WeightNorm": (lambda rngs: dx.WeightNorm(dx.Linear(8, 4, rngs=rngs), rngs=rngs), ROWS),
    "SpectralNorm": (lambda rngs: dx.SpectralNorm(dx.Linear(8, 4, rngs=rngs), rngs=rngs), ROWS),
    "MLP": (lambda rngs: dx.MLP(8, 16, rngs=rngs), SEQUENCES),
    "GatedMLP": (lambda rngs: dx.GatedMLP(8, 16, rngs=rngs), SEQUENCES),
    "MoE": (lambda rngs: dx.MoE(8, 16, 4, rngs=rngs), SEQUENCES),
    "MoE, rows": (lambda rngs: dx.MoE(8, 16, 4, rngs=rngs), ROWS),
    "MoE, with a capacity": (lambda rngs: dx.MoE(8, 16, 4, capacity_factor=0.75, rngs=rngs), SEQUENCES),
    "LoRA": (lambda rngs: dx.LoRA(8, 2, 4, rngs=rngs), ROWS),
    "LoRALinear": (lambda rngs: dx.LoRALinear(8, 4, lora_rank=2, rngs=rngs), ROWS),
    "PReLU": (lambda rngs: dx.PReLU(), ROWS),
    "attention": (lambda rngs: dx.MultiHeadAttention(2, 8, decode=False, rngs=rngs), SEQUENCES),
    "attention with RoPE": (
        lambda rngs: dx.MultiHeadAttention(2, 8, decode=False, rope=dx.RoPE(), rngs=rngs),
        SEQUENCES,
    ),
    "RNN": (lambda rngs: dx.RNN(dx.SimpleCell(8, 4, rngs=rngs), rngs=rngs), SEQUENCES),
    "LSTM": (lambda rngs: dx.RNN(dx.LSTMCell(8, 4, rngs=rngs), rngs=rngs), SEQUENCES),
    "optimized LSTM": (lambda rngs: dx.RNN(dx.OptimizedLSTMCell(8, 4, rngs=rngs), rngs=rngs), SEQUENCES),
    "GRU": (gru, SEQUENCES),
    "GRU, reversed, of some lengths": (
        lambda rngs: Called(
            gru(rngs, reverse=True, keep_order=True), lambda rnn, x: rnn(x, seq_lengths=LENGTHS, return_carry=True)
        ),
        SEQUENCES,
    ),
    "GRU, time first": (
        lambda rngs: Called(gru(rngs, time_major=True), lambda rnn, x: rnn(x.swapaxes(0, 1)).swapaxes(0, 1)),
        SEQUENCES,
    ),
    "bidirectional": (
        lambda rngs: dx.Bidirectional(gru(rngs), gru(rngs), rngs=rngs),
        SEQUENCES,
    ),
    "Stacked": (lambda rngs: dx.Stacked(lambda rngs: dx.Linear(8, 8, rngs=rngs), 3, rngs=rngs), SEQUENCES),
    "Dropout": (lambda rngs: followed_by(dx.Dropout(0.5, rngs=rngs), rngs), SEQUENCES),
    "DropPath": (lambda rngs: followed_by(dx.DropPath(0.5, rngs=rngs), rngs), SEQUENCES),
    "Embed": (lambda rngs: dx.Embed(16, 8, rngs=rngs), "tokens"),
    "Embed, columns split": (lambda rngs: dx.Embed(16, 8, embedding_metadata=BY_COLUMN, rngs=rngs), "tokens"),
}

FUNCTIONS = {
    "avg_pool": (functools.partial(dx.avg_pool, window_shape=(2, 2), strides=(2, 2)), IMAGES),
    "max_pool": (functools.partial(dx.max_pool, window_shape=(2, 2), strides=(2, 2)), IMAGES),
    "min_pool": (functools.partial(dx.min_pool, window_shape=(2, 2)), IMAGES),
    "global_avg_pool": (dx.global_avg_pool, IMAGES),
    "global_max_pool": (dx.global_max_pool, IMAGES),
    "dot_product_attention": (lambda x: dx.dot_product_attention(x, x, x), (4, 6, 2, 4)),
    "causal attention": (
        lambda x: dx.dot_product_attention(x, x, x, mask=dx.make_causal_mask(jnp.ones((4, 6)))),
        (4, 6, 2, 4),
    ),
    "glu": (dx.glu, ROWS),
    "softmax": (dx.softmax, ROWS),
    "gelu": (dx.gelu, ROWS),
    "standardize": (dx.standardize, ROWS),
    "RoPE": (dx.RoPE(), (4, 6, 2, 4)),
}


def input_of(shape):
    if shape == "tokens":
        return jnp.arange(24).reshape(4, 6) % 16
    return jax.random.normal(jax.random.key(1), shape)


@pytest.mark.parametrize("spec", [P("data"), P(None, "data"), P("data", "model"), P(None, None, "data")])
def test_a_convolution_with_several_batch_axes(spec):
    x, layer = jax.random.normal(jax.random.key(1), (2, 4, 6, 8, 3)), dx.Conv(3, 4, (3,), rngs=dx.Rngs(0))
    expected = step(layer, x)
    with jax.set_mesh(MESH):
        y, grads = step(layer, jax.device_put(x, spec))  # a layer that was made before the mesh was set
        assert jax.typeof(y).sharding.spec == P(*spec, *[None] * (5 - len(spec)))
        check_close((y, grads), expected)


def test_a_convolution_names_its_activations():
    names = {"out_sharding": (None, "model", None), "act_names": ("data", None, "model")}
    x, layer = jax.random.normal(jax.random.key(1), (4, 6, 8)), dx.Conv(8, 4, (3,), strides=2, rngs=dx.Rngs(0))
    with jax.set_mesh(MESH):
        made = dx.Conv(8, 4, (3,), strides=2, kernel_metadata=names, rngs=dx.Rngs(0))
        y = dx.jit(lambda layer, x: layer(x))(made, jax.device_put(x, P("data", None, "model")))
        assert jax.typeof(y).sharding.spec == P("data", None, "model")
    check_close(y, layer(x))


def is_split_along_the_batch(y):
    return all(jax.typeof(leaf).sharding.spec[0] == "data" for leaf in jax.tree.leaves(y))


def loss_of(layer, x):
    y = layer(x)
    return sum(jnp.tanh(leaf).sum() for leaf in jax.tree.leaves(y)), y


@dx.jit
def step(layer, x):
    (_, y), grads = dx.value_and_grad(loss_of, has_aux=True)(layer, x)
    return y, grads


def check_close(found, expected):
    for pair in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        one, two = (jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in pair)
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_the_same_and_keeps_the_batch_split(name):
    make, shape = LAYERS[name]
    x, layer = input_of(shape), make(dx.Rngs(0))
    expected = step(layer, x), dx.state(layer)
    with jax.set_mesh(MESH):
        made = make(dx.Rngs(0))
        y, grads = step(made, jax.device_put(x, P("data")))
        assert is_split_along_the_batch(y)
        check_close(((y, grads), dx.state(made)), expected)
        for parameter, grad in zip(jax.tree.leaves(dx.state(made, dx.Param)), jax.tree.leaves(grads), strict=True):
            assert grad.sharding.is_equivalent_to(parameter.sharding, grad.ndim)


BY_BOTH = ("Conv", "ConvTranspose", "GatedMLP", "WeightNorm", "attention", "LSTM", "Stacked")


@pytest.mark.parametrize(
    ("name", "axis"),
    [
        *((name, "data") for name in LAYERS if name != "PReLU"),  # whose parameter is a scalar
        *((name, ("data", "model")) for name in BY_BOTH),  # of which one splits the batch
    ],
)
def test_a_layer_gathers_what_fsdp_has_split(name, axis):
    """Parameters are split along the axis of the batch, gathered where they are read, and their gradients scattered."""
    make, shape = LAYERS[name]
    x, layer = input_of(shape), make(dx.Rngs(0))
    expected = step(layer, x), dx.state(layer)
    with jax.set_mesh(MESH):
        made = make(dx.Rngs(0))
        state = dx.state(made)
        shardings = dx.get_named_sharding(state, MESH, shardings=functools.partial(dx.fsdp, axis=axis, min_size=1))
        dx.update(made, jax.device_put(state, shardings))
        assert any(axis in leaf.sharding.spec for leaf in jax.tree.leaves(dx.state(made, dx.Param)))
        y, grads = step(made, jax.device_put(x, P("data")))
        assert is_split_along_the_batch(y)
        check_close(((y, grads), dx.state(made)), expected)
        for parameter, grad in zip(jax.tree.leaves(dx.state(made, dx.Param)), jax.tree.leaves(grads), strict=True):
            assert grad.sharding.is_equivalent_to(parameter.sharding, grad.ndim)


BY_ROW = {"out_sharding": ("model", None)}
BY_HEAD = {"out_sharding": (None, "model", None)}
PRODUCTS = {
    "Linear": (lambda rngs: dx.Linear(8, 4, kernel_metadata=BY_ROW, rngs=rngs), P("data", "model")),
    "LoRALinear": (
        lambda rngs: dx.LoRALinear(8, 4, lora_rank=2, kernel_metadata=BY_ROW, rngs=rngs),
        P("data", "model"),
    ),
    "LinearGeneral": (
        lambda rngs: dx.LinearGeneral(8, 4, kernel_metadata=BY_ROW, rngs=rngs),
        P("data", None, "model"),
    ),
    "Einsum": (
        lambda rngs: dx.Einsum("blk,kh->blh", (8, 4), kernel_metadata=BY_ROW, rngs=rngs),
        P("data", None, "model"),
    ),
    "Conv": (
        lambda rngs: dx.Conv(8, 4, (3,), kernel_metadata={"out_sharding": (None, "model", None)}, rngs=rngs),
        P("data", None, "model"),
    ),
    "attention, heads split": (
        lambda rngs: dx.MultiHeadAttention(
            2,
            8,
            decode=False,
            kernel_metadata=BY_HEAD,
            out_kernel_metadata={"out_sharding": ("model", None, None)},
            rngs=rngs,
        ),
        P("data"),
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_over_a_split_dimension_asks_for_out_sharding(name):
    """JAX asks, in NNX too; declax adds the path, and each layer takes the argument."""
    make, place = PRODUCTS[name]
    x = input_of(SEQUENCES if len(place) != 2 else ROWS)
    expected = make(dx.Rngs(0))(x)
    with jax.set_mesh(MESH):
        model = dx.Sequential(make(dx.Rngs(0)))
        x = jax.device_put(x, place)
        with pytest.raises(Exception, match="out_sharding") as caught:
            dx.jit(lambda model, x: model(x))(model, x)
        assert type(caught.value).__name__ == "ShardingTypeError"
        layer = "Linear" if "attention" in name else name
        split = rf"{layer}.*: dimension \d of 'kernel', of shape .*, is split by 'model'; .*out_sharding=jax.P"
        assert any(re.match(split, note) for note in caught.value.__notes__)
        assert any("layers[0]" in note for note in caught.value.__notes__)
        y = dx.jit(lambda model, x: model.layers[0](x, out_sharding=P("data")))(model, x)
        assert is_split_along_the_batch(y)
    check_close(y, expected)


def of_xla(*sizes, **options):
    """A convolution as XLA computes it, right on one device."""
    own = functools.partial(jax.lax.conv_general_dilated)  # another function, which declax leaves as it is
    return dx.Conv(*sizes, **options, conv_general_dilated=own, rngs=dx.Rngs(0))


GROUPED = {
    "same": ({}, (3, 3)),
    "depthwise": ({"feature_group_count": 4}, (3, 3)),
    "strided, even kernel": ({"strides": 2}, (4, 2)),
    "valid, dilated kernel": ({"padding": "VALID", "kernel_dilation": (2, 1)}, (3, 2)),
    "dilated input": ({"padding": ((1, 2), (0, 1)), "input_dilation": 2}, (3, 3)),
    "same_lower": ({"padding": "SAME_LOWER", "strides": (1, 2)}, (2, 4)),
    "circular": ({"padding": "CIRCULAR"}, (3, 3)),
    "one pixel": ({"preferred_element_type": jnp.float32}, (1, 1)),
}


@pytest.mark.parametrize(
    ("name", "model", "kind"),
    [
        *((name, 2, AxisType.Auto) for name in GROUPED),
        *((name, 2, AxisType.Explicit) for name in ("same", "strided, even kernel")),
        *(("same", 1, kind) for kind in (AxisType.Auto, AxisType.Explicit)),
    ],
)
def test_grouped_convolutions(name, model, kind):
    """XLA multiplies the gradient of the kernel on a mesh of two axes; see "Limits" in docs/parallel.md."""
    options, size = GROUPED[name]
    options = {"feature_group_count": 2, **options}
    x, layer = input_of(IMAGES), dx.Conv(4, 8, size, **options, rngs=dx.Rngs(0))
    expected = step(of_xla(4, 8, size, **options), x)
    check_close(step(layer, x), expected)  # without a mesh
    mesh = jax.make_mesh((2, model), ("data", "model"), axis_types=(kind,) * 2, devices=jax.devices()[: 2 * model])
    with jax.set_mesh(mesh):
        check_close(step(layer, jax.device_put(x, P("data"))), expected)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_grouped_convolution_takes_out_sharding(kind):
    layer = dx.Conv(4, 8, (3,), feature_group_count=2, rngs=dx.Rngs(0))
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(kind,) * 2, devices=jax.devices()[:4])
    with jax.set_mesh(mesh):
        x = jax.device_put(input_of((4, 6, 4)), P("data"))
        y = dx.jit(lambda layer, x: layer(x, out_sharding=P("data", None, "model")))(layer, x)
    assert y.sharding.spec == P("data", None, "model")


def on_two_axes(*spec):
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])
    return jax.NamedSharding(mesh, P(*spec))


def grads_with(layer, x):
    return dx.value_and_grad(loss_of, has_aux=True)(layer, x)


def constrained_inside(layer, x):
    return grads_with(layer, jax.lax.with_sharding_constraint(x, on_two_axes("data")))


WAYS_TO_A_MESH = {
    "jit": lambda layer, x: dx.jit(grads_with)(layer, jax.device_put(x, on_two_axes("data"))),
    "eager": lambda layer, x: grads_with(layer, jax.device_put(x, on_two_axes("data"))),
    "in_shardings": dx.jit(grads_with, in_shardings=(on_two_axes(), on_two_axes("data"))),
    "constraint": dx.jit(constrained_inside),
    "jax.jit": lambda layer, x: jax.jit(grads_with)(layer, jax.device_put(x, on_two_axes("data"))),
}


@pytest.mark.filterwarnings("ignore::declax.errors.ReplicationWarning")  # the axis of the model splits nothing
@pytest.mark.parametrize("way", WAYS_TO_A_MESH)
def test_grouped_convolutions_without_set_mesh(way):
    """Also where a layer cannot know the mesh."""
    x, options = input_of(IMAGES), {"feature_group_count": 2}
    layer = dx.Conv(4, 8, (3, 3), **options, rngs=dx.Rngs(0))
    check_close(WAYS_TO_A_MESH[way](layer, x), grads_with(of_xla(4, 8, (3, 3), **options), x))


def test_second_derivatives_of_a_grouped_convolution():
    def penalty(layer, x):
        return (jax.grad(lambda x: (jnp.tanh(layer(x)) ** 2).sum())(x) ** 2).sum()

    x, options = input_of(IMAGES), {"feature_group_count": 2}
    layer = dx.Conv(4, 8, (3, 3), **options, rngs=dx.Rngs(0))
    found = dx.grad(penalty)(layer, jax.device_put(x, on_two_axes("data")))
    check_close(found, dx.grad(penalty)(of_xla(4, 8, (3, 3), **options), x))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_computes_the_same_and_keeps_the_batch_split(name):
    function, shape = FUNCTIONS[name]
    x = input_of(shape)
    expected = jax.jit(function)(x)
    with jax.set_mesh(MESH):
        y = jax.jit(function)(jax.device_put(x, P("data")))
    assert is_split_along_the_batch(y)
    check_close(y, expected)
