"""`MoE` against a loop over tokens and experts: choices, weights, capacity, the balance loss, and what it refuses."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import declax as dx
from declax.errors import LayerError
from declax.nn import routing

SHAPE = (3, 10, 6)


def made(**options):
    return dx.MoE(6, 8, 5, rngs=dx.Rngs(0), **options)


def silu(x):
    return x / (1 + np.exp(-x))


def reference(layer, x, *, top_k=2, renormalize=True, capacity=None):
    """Token by token, in NumPy; and how many choices have no effect."""
    router, up, down = (np.asarray(v, np.float64) for v in (layer.router.kernel, layer.up, layer.down))
    gate = None if layer.gate is None else np.asarray(layer.gate, np.float64)
    x = np.asarray(x, np.float64)
    result, dropped = np.zeros_like(x), 0
    for example in range(x.shape[0]):
        logits = x[example] @ router
        probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        order = np.argsort(-probabilities, axis=-1, kind="stable")[:, :top_k]
        used = np.zeros(len(up), int)
        for rank in range(top_k):  # all first choices, then all second choices
            for token, row in enumerate(x[example]):
                expert = order[token, rank]
                used[expert] += 1
                if capacity is not None and used[expert] > capacity:
                    dropped += 1
                    continue
                weight = probabilities[token, expert]
                if renormalize:
                    weight /= probabilities[token, order[token]].sum()
                hidden = silu(row @ (up if gate is None else gate)[expert])
                hidden = hidden if gate is None else hidden * (row @ up[expert])
                result[example, token] += weight * (hidden @ down[expert])
    return result, dropped


@pytest.mark.parametrize("use_gate", [True, False])
@pytest.mark.parametrize("top_k", [1, 2, 5])
@pytest.mark.parametrize("renormalize", [None, True, False])
def test_dropless_is_the_sum_over_chosen_experts(normal, use_gate, top_k, renormalize):
    layer, x = made(use_gate=use_gate, top_k=top_k, renormalize=renormalize), normal(*SHAPE)
    expected, _ = reference(layer, x, top_k=top_k, renormalize=top_k > 1 if renormalize is None else renormalize)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("factor", [0.25, 0.5, 1.0, 1.25, 2.0, 100.0])
def test_an_expert_computes_as_many_tokens_as_it_has_room(normal, factor, top_k):
    layer, x = made(top_k=top_k, capacity_factor=factor), normal(*SHAPE)
    room = math.ceil(factor * top_k * SHAPE[1] / 5)
    expected, dropped = reference(layer, x, top_k=top_k, renormalize=top_k > 1, capacity=room)
    y, sown = dx.capture(layer, dx.Intermediate)(x)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    (fraction,) = sown["dropped"].value
    assert float(fraction) == pytest.approx(dropped / (30 * top_k))
    assert (dropped > 0) == (factor <= 1.25)


def test_with_room_for_all_nothing_is_dropped(normal, close):
    x = normal(*SHAPE)
    close(made(capacity_factor=2.5)(x), made()(x))


def test_examples_do_not_compete_for_experts(normal, close):
    layer, x = made(capacity_factor=0.5), normal(*SHAPE)
    close(layer(x)[1:2], layer(x[1:2]))
    close(layer(x[0]), layer(x[:1])[0])


@pytest.mark.parametrize("factor", [None, 0.5])
@pytest.mark.parametrize("shape", [(6,), (10, 6), (3, 10, 6), (2, 3, 10, 6), (0, 10, 6), (3, 0, 6)])
def test_any_number_of_axes_before_the_tokens(normal, close, shape, factor):
    layer, x = made(capacity_factor=factor), normal(*shape)
    y = layer(x)
    assert y.shape == shape
    if x.size:
        rows = x.reshape(-1, 1, 6) if factor is None or len(shape) == 1 else x.reshape(-1, *shape[-2:])
        close(y.reshape(rows.shape), layer(rows))


@pytest.mark.parametrize("factor", [None, 0.5])
@pytest.mark.parametrize("top_k", [1, 2])
def test_gradients_reach_router_and_experts(normal, factor, top_k):
    layer, x = made(top_k=top_k, capacity_factor=factor), normal(*SHAPE)
    grads = dx.grad(lambda layer: jnp.sin(layer(x)).sum())(layer)
    assert all(float(jnp.abs(leaf).max()) > 0 for leaf in jax.tree.leaves(grads))
    graphdef, state = dx.split(layer)
    check_grads(dx.merge(graphdef, state), (x,), order=1, modes=["rev", "fwd"], atol=2e-2, rtol=2e-2)


def test_the_balance_loss_is_that_of_switch_transformers(normal):
    layer, x = made(), normal(*SHAPE)
    _, sown = dx.capture(layer, dx.Intermediate)(x)
    probabilities = np.asarray(jax.nn.softmax(x @ layer.router.kernel.value))
    chosen = np.argsort(-probabilities, axis=-1)[..., :2]
    fractions = np.bincount(chosen.reshape(-1), minlength=5) / chosen.size
    (loss,) = sown["balance_loss"].value
    assert float(loss) == pytest.approx(5 * (fractions * probabilities.mean((0, 1))).sum(), rel=1e-5)
    assert sown.paths == (("balance_loss",),)


def test_training_on_the_balance_loss_balances(normal):
    layer, x = dx.MoE(6, 8, 4, top_k=1, rngs=dx.Rngs(1)), 1 + normal(8, 16, 6)

    def loss_of(layer):
        _, sown = dx.capture(layer, dx.Intermediate)(x)
        return sown["balance_loss"].value[0]

    before = float(loss_of(layer))
    for _ in range(100):
        grads = dx.grad(loss_of)(layer)
        dx.update(layer, jax.tree.map(lambda p, g: p - 0.5 * g, dx.state(layer, dx.Param), grads))
    assert before > 1.05
    assert float(loss_of(layer)) < 1 + (before - 1) / 3


def test_a_call_without_capture_changes_nothing(normal):
    layer = made(capacity_factor=1.0)
    before = dx.graphdef(layer)
    layer(normal(*SHAPE))
    assert dx.graphdef(layer) == before
    assert not dx.state(layer, dx.Intermediate).leaves


def test_blocks_can_be_stacked_and_sow_for_each_layer(normal):
    blocks = dx.Stacked(lambda rngs: dx.MoE(6, 8, 4, rngs=rngs), 3, rngs=dx.Rngs(0))
    y, sown = dx.capture(blocks, dx.Intermediate)(normal(*SHAPE))
    assert y.shape == SHAPE
    (loss,) = jax.tree.leaves(sown)
    assert loss.shape == (3,)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_router_computes_in_float32_at_least(normal, dtype):
    layer = made(dtype=jnp.bfloat16, param_dtype=dtype)
    seen = dx.capture(layer, dx.Intermediate, method_outputs=dx.Intermediate)(normal(*SHAPE, dtype=dtype))[1]
    assert seen["router"]["__call__"].value[0].dtype == jnp.float32
    assert seen["__call__"].value[0].dtype == jnp.bfloat16
    assert layer.up.dtype == layer.router.kernel.dtype == dtype


def test_kernels_are_those_of_single_experts():
    """Their fan-in is that of one expert, and no two draw one key."""
    layer = dx.MoE(64, 256, 8, rngs=dx.Rngs(0))
    assert float(layer.up.value.std()) == pytest.approx(64**-0.5, rel=0.05)
    assert float(layer.down.value.std()) == pytest.approx(256**-0.5, rel=0.05)
    firsts = {float(kernel[e, 0, 0]) for kernel in (layer.up, layer.gate) for e in range(8)}
    assert len(firsts) == 16


def test_metadata_reaches_the_kernels():
    layer = made(kernel_metadata={"tag": 1})
    assert {kernel.tag for kernel in (layer.up, layer.gate, layer.down)} == {1}
    other = made(kernel_metadata={"tag": 1}, down_kernel_metadata={"tag": 2})
    assert (other.up.tag, other.down.tag) == (1, 2)


@pytest.mark.parametrize("factor", [None, 0.5])
def test_under_vmap(normal, close, factor):
    """Shared, where JAX cannot map the product of a dropless layer, and mapped itself."""
    layer, x = made(capacity_factor=factor), normal(2, *SHAPE)
    close(dx.vmap(lambda layer, x: layer(x), in_axes=(None, 0))(layer, x)[1], layer(x[1]))
    by_example = dx.vmap(lambda layer, x: dx.grad(lambda m: m(x).sum())(layer), in_axes=(None, 0))(layer, x)
    alone = dx.grad(lambda m: m(x[1]).sum())(layer)
    jax.tree.map(lambda many, one: close(many[1], one), by_example, alone)
    keys = jax.random.split(jax.random.key(0), 2)
    many = dx.vmap(lambda key: dx.MoE(6, 8, 5, capacity_factor=factor, rngs=dx.Rngs(key)))(keys)
    alone = dx.MoE(6, 8, 5, capacity_factor=factor, rngs=dx.Rngs(keys[1]))
    close(dx.vmap(lambda layer, x: layer(x))(many, x)[1], alone(x[1]))


def test_a_configuration_describes_it():
    spec = dx.spec(dx.MoE, 6, 8, 5, capacity_factor=1.25, router=dx.spec(dx.Linear, 6, 5, use_bias=True))
    layer = spec.build(rngs=dx.Rngs(0))
    assert layer.router.bias is not None
    assert dx.spec_of(made(top_k=1)) == dx.spec(dx.MoE, 6, 8, 5, top_k=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"top_k": 6}, r"MoE.top_k: a token cannot use more experts than there are"),
        ({"capacity_factor": 0.0}, r"MoE.capacity_factor: the experts would compute nothing"),
        ({"capacity_factor": -1.0}, r"MoE.capacity_factor: the experts would compute nothing"),
        ({"capacity_factor": math.nan}, r"MoE.capacity_factor: the experts would compute nothing"),
    ],
)
def test_what_it_refuses(options, said):
    with pytest.raises(LayerError, match=said):
        made(**options)


def test_sizes_that_do_not_fit(normal):
    with pytest.raises(LayerError, match=r"MoE\.in_features: the last axis of 'inputs' has the wrong size"):
        made()(normal(2, 3, 5))
    with pytest.raises(dx.DeclaxError, match="num_experts"):
        dx.MoE(6, 8, 0, rngs=dx.Rngs(0))


@pytest.mark.parametrize("length", range(1, 9))
@pytest.mark.parametrize("factor", [0.1, 1 / 3, 1.0, 1.25, 3.0])
def test_capacities(length, factor):
    expected = min(length, math.ceil(round(factor * 2 * length / 4, 6)))
    assert routing.capacity(factor, 2, length, 4) == expected


def test_a_compiled_dropless_layer_cannot_be_mapped_over_tokens_alone(normal):
    """As its description says; tells when JAX can."""
    layer, x = made(), normal(2, *SHAPE)
    with pytest.raises(NotImplementedError, match="ragged_dot"):
        dx.vmap(dx.jit(lambda layer, x: layer(x)), in_axes=(None, 0))(layer, x)
    dx.vmap(dx.jit(lambda layer, x: layer(x)), in_axes=(None, 0))(made(capacity_factor=1.0), x)


def test_an_initializer_brings_metadata_to_the_kernels_of_experts_only():
    kernel_init = dx.with_partitioning(dx.initializers.lecun_normal(), ("expert", None, None))
    layer = dx.MoE(4, 8, 2, kernel_init=kernel_init, rngs=dx.Rngs(0))
    assert layer.up.out_sharding == layer.down.out_sharding == layer.gate.out_sharding == ("expert", None, None)
    assert "out_sharding" not in layer.router.kernel.get_metadata()
    np.testing.assert_array_equal(layer.up[...], dx.MoE(4, 8, 2, rngs=dx.Rngs(0)).up[...])
