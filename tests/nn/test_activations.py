"""Activations: JAX's own, which keep their identity through copies."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import declax as dx
from declax.nn import activations

NAMES = (
    "celu elu gelu glu hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu log_sigmoid log_softmax logsumexp "
    "one_hot relu relu6 selu sigmoid silu soft_sign softmax softplus standardize swish tanh identity "
    "log1mexp logmeanexp mish sparse_plus sparse_sigmoid squareplus"
).split()

FORMULAS: dict[str, Callable[[Any], Any]] = {
    "celu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "glu": lambda x: x[..., :2] / (1 + np.exp(-x[..., 2:])),
    "hard_sigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hard_silu": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hard_swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hard_tanh": lambda x: np.clip(x, -1, 1),
    "identity": lambda x: x,
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "log_sigmoid": lambda x: -np.log1p(np.exp(-x)),
    "log_softmax": lambda x: x - np.log(np.exp(x).sum(-1, keepdims=True)),
    "logmeanexp": lambda x: np.log(np.exp(x).mean()),
    "logsumexp": lambda x: np.log(np.exp(x).sum()),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "sparse_plus": lambda x: np.where(x <= -1, 0, np.where(x >= 1, x, (x + 1) ** 2 / 4)),
    "sparse_sigmoid": lambda x: np.clip((x + 1) / 2, 0, 1),
    "squareplus": lambda x: (x + np.sqrt(x**2 + 4)) / 2,
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "soft_sign": lambda x: x / (1 + np.abs(x)),
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "standardize": lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5),
    "swish": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


@pytest.mark.parametrize("name", NAMES)
def test_is_the_function_of_jax(name: str) -> None:
    assert getattr(activations, name) is getattr(jax.nn, name)


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_against_the_formula(name: str) -> None:
    x = np.linspace(-4, 7, 12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_allclose(getattr(activations, name)(x), FORMULAS[name](x), rtol=2e-5, atol=2e-6)


def test_log1mexp() -> None:
    x = np.array([0.1, 1.0, 4.0], np.float32)
    np.testing.assert_allclose(activations.log1mexp(x), np.log1p(-np.exp(-x)), rtol=1e-5)


def test_one_hot() -> None:
    np.testing.assert_array_equal(activations.one_hot(jnp.array([2, 0]), 3), [[0, 0, 1], [1, 0, 0]])


@pytest.mark.parametrize("name", NAMES)
def test_keeps_its_identity_through_copies(name: str) -> None:
    function = getattr(activations, name)
    assert copy.copy(function) is function
    assert copy.deepcopy({"activation": function})["activation"] is function
    assert pickle.loads(pickle.dumps(function)) is function


def test_other_jitted_functions_are_copied_as_before() -> None:
    jitted = jax.jit(np.sin)
    assert copy.deepcopy(jitted) is not jitted
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(jax.jit(lambda x: x))


def test_every_activation_of_the_peer_is_here() -> None:
    nnx = pytest.importorskip("flax.nnx")
    shared = {n for n in dir(nnx) if hasattr(jax.nn, n) and not n.startswith("__")}
    assert shared - {"dot_product_attention", "initializers"} <= set(NAMES)


@pytest.mark.parametrize("dtype", [None, jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("param_dtype", [jnp.float32, jnp.float16])
@pytest.mark.parametrize("input_dtype", [jnp.float32, jnp.bfloat16])
def test_prelu_is_that_of_the_peer(dtype: Any, param_dtype: Any, input_dtype: Any) -> None:
    nnx = pytest.importorskip("flax.nnx")
    options = {"dtype": dtype, "param_dtype": param_dtype, "negative_slope_metadata": {"tag": 1}}
    ours, theirs = dx.PReLU(0.3, **options), nnx.PReLU(0.3, **options)
    x = jax.random.normal(jax.random.key(1), (5, 3), input_dtype)
    with jax.numpy_dtype_promotion("strict"):
        y = ours(x)
    np.testing.assert_array_equal(y, theirs(x))
    assert y.dtype == theirs(x).dtype == (input_dtype if dtype is None else dtype)
    assert ours.negative_slope.value.dtype == param_dtype
    assert ours.negative_slope.get_metadata("tag") == 1


def test_prelu_learns_its_slope_in_all_transforms() -> None:
    layer, x = dx.PReLU(0.3), jax.random.normal(jax.random.key(1), (4, 3))
    np.testing.assert_allclose(layer(x), np.where(x >= 0, x, np.float32(0.3) * x), rtol=1e-6)
    gradient = dx.grad(lambda layer: layer(x).sum())(layer)
    np.testing.assert_allclose(gradient.negative_slope.value, np.minimum(x, 0).sum(), rtol=1e-6)
    check_grads(lambda slope, x: dx.PReLU(slope)(x), (jnp.float32(0.3), x), order=1)
    step = dx.jit(lambda layer, x: layer(x))
    for factor in (1.0, 2.0):
        np.testing.assert_allclose(step(layer, factor * x), layer(factor * x), rtol=1e-6)
    assert step.num_traces == 1
    np.testing.assert_array_equal(dx.remat(lambda layer, x: layer(x))(layer, x), layer(x))
    np.testing.assert_array_equal(dx.vmap(lambda layer, x: layer(x), in_axes=(None, 0))(layer, x), layer(x))
    np.testing.assert_array_equal(dx.scan(lambda layer, x: layer(x), in_axes=(None, 0), out_axes=0)(layer, x), layer(x))
    abstract = dx.eval_shape(dx.PReLU)
    assert (abstract.negative_slope.shape, abstract.negative_slope.dtype) == ((), jnp.float32)


def test_prelu_takes_integers_and_one_slope_a_feature() -> None:
    assert dx.PReLU(0.5)(jnp.array([-4, 3])).tolist() == [-2.0, 3.0]
    assert dx.PReLU(jnp.array([0.5, 0.25]))(jnp.full((1, 2), -4.0)).tolist() == [[-2.0, -1.0]]
    with pytest.raises(dx.errors.LayerError, match="a layer cannot compute in this dtype"):
        dx.PReLU(dtype=jnp.int32)(jnp.ones(2))
