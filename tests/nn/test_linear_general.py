"""`LinearGeneral` and `Einsum`: the formulas, the numbers of the peer, and bad input."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx

pytestmark = pytest.mark.sampled(3)

NOISE = {"bias_init": dx.initializers.normal(1.0)}


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
@pytest.mark.parametrize(
    ("args", "options", "shape"),
    [
        ((6, (2, 3)), {}, (4, 5, 6)),
        (((2, 3), 6), {"axis": (-2, -1)}, (4, 2, 3)),
        (((2, 3), (5,)), {"axis": (1, 3), "use_bias": False}, (4, 2, 7, 3)),
        ((3, (2, 2)), {"batch_axis": {0: 4}}, (4, 5, 3)),
        ((3, 2), {"batch_axis": {0: 4, 1: 5}, "preferred_element_type": jnp.float32}, (4, 5, 6, 3)),
    ],
)
def test_linear_general_has_the_numbers_of_the_peer(same, normal, args, options, shape, dtype):
    same(dx.LinearGeneral, *args, call=(normal(*shape),), dtype=dtype, **{**NOISE, **options})


def test_linear_general_contracts_each_axis_with_its_size(normal):
    layer = dx.LinearGeneral((3, 2), 5, axis=(2, 1), **NOISE, rngs=dx.Rngs(0))
    x = normal(4, 2, 3)
    expected = np.einsum("nba,abo->no", x, layer.kernel.value) + np.asarray(layer.bias.value)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
@pytest.mark.parametrize("bias", [None, (8, 4)])
def test_einsum_has_the_numbers_of_the_peer(same, normal, bias, dtype):
    same(dx.Einsum, "nta, hab -> nthb", (8, 2, 4), bias, call=(normal(3, 5, 2),), dtype=dtype, **NOISE)
    given = {"einsum_str": "ab,bc->c"}
    same(dx.Einsum, "ab,bc->ac", (2, 4), None, call=(normal(5, 2),), call_options=given, dtype=dtype)


@pytest.mark.parametrize(
    ("equation", "kernel", "bias", "shape"),
    [
        ("...d,...dn->...n", (2, 3, 4), (2, 4), (2, 3)),
        ("...d,...dn->...n", (2, 3, 4), (2, 4), (5, 2, 3)),
        ("d...,dn->n...", (3, 4), (4,), (3, 2)),
    ],
)
def test_an_ellipsis_of_the_kernel_or_within_the_result(same, normal, equation, kernel, bias, shape):
    ours, _ = same(dx.Einsum, equation, kernel, bias, call=(normal(*shape),), **NOISE)
    assert ours.bias.shape == bias


def test_layers_of_equal_options_share_a_program(normal):
    layers = [dx.LinearGeneral(6, (2, 3), rngs=dx.Rngs(seed)) for seed in range(2)]
    assert dx.graphdef(layers[0]) == dx.graphdef(layers[1])
    assert jax.vmap(layers[0])(normal(4, 6)).shape == (4, 2, 3)


def test_bad_arguments_are_refused(normal):
    refused = dx.errors.LayerError
    with pytest.raises(refused, match="each size of the input needs an axis"):
        dx.LinearGeneral((2, 3), 4, rngs=dx.Rngs(0))
    with pytest.raises(refused, match="batch axes are the first axes of the input"):
        dx.LinearGeneral(2, 3, batch_axis={1: 4}, rngs=dx.Rngs(0))
    layer = dx.LinearGeneral((2, 3), 4, axis=(-2, -1), rngs=dx.Rngs(0))
    for shape in ((3, 2), (2,), (3,)):
        with pytest.raises(refused, match="the axes of 'inputs' have the wrong sizes"):
            layer(normal(*shape))
    for equation in ("ab,bc", "ab->b", "a,b,c->abc"):
        with pytest.raises(refused, match="this is not an equation of two operands with a result"):
            dx.Einsum(equation, (2, 3), rngs=dx.Rngs(0))
    layer = dx.Einsum("...ab,bc->...ac", (4, 3), rngs=dx.Rngs(0))
    for shape in ((2, 5), (3, 2, 5), (4,)):
        with pytest.raises(refused, match=r"'inputs' do not fit the equation(?s:.)*size 4 along axis \d \(b\)"):
            layer(normal(*shape))
    assert layer(normal(2, 1)).shape == (2, 3)  # one element is taken for all, as in jax.numpy.einsum
    with pytest.raises(
        refused, match=r"expected: the axes 'ab', with size 4(?s:.)*got:      Array of shape \(2, 3, 4\)"
    ):
        dx.Einsum("ab,bc->ac", (4, 3), rngs=dx.Rngs(0))(normal(2, 3, 4))
    with pytest.raises(
        dx.errors.LayerError, match=r"Einsum\.bias_shape: the bias does not fit(?s:.)*3 elements(?s:.)*shape \(5,\)"
    ):
        dx.Einsum("ab,bc->ac", (4, 3), (5,), rngs=dx.Rngs(0))(normal(2, 4))


def test_an_initializer_brings_metadata():
    kernel_init = dx.with_partitioning(dx.initializers.lecun_normal(), (None, "model", None))
    bias_init = dx.with_metadata(dx.initializers.zeros, tag="bias")
    layer = dx.LinearGeneral(4, (2, 3), kernel_init=kernel_init, bias_init=bias_init, rngs=dx.Rngs(0))
    assert layer.kernel.out_sharding == (None, "model", None)
    assert layer.bias.get_metadata("tag") == "bias"
    np.testing.assert_array_equal(layer.kernel[...], dx.LinearGeneral(4, (2, 3), rngs=dx.Rngs(0)).kernel[...])
    attention = dx.MultiHeadAttention(2, 4, kernel_init=kernel_init, decode=False, rngs=dx.Rngs(0))
    assert attention.query.kernel.out_sharding == (None, "model", None)
