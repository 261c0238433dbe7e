"""Activations: JAX's own, which keep their identity through copies."""

from __future__ import annotations

import copy
import dataclasses
import functools
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


@dataclasses.dataclass
class Config:
    activation: Any
    rates: tuple[float, ...] = (0.5,)


@jax.jit
def mine(x: jax.Array) -> jax.Array:
    return x + 1


def holder(function: Any) -> dx.Module:
    model = dx.Module()
    model.inner = dx.Module()
    model.act = function
    model.acts = dx.static({"one": function, "two": [function, (function,)]})
    model.config = dx.static(Config(function))
    model.inner.part = functools.partial(function, jnp.float32)
    return model


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("through", [copy.copy, copy.deepcopy, pickled, dx.clone])
@pytest.mark.parametrize("function", [*(getattr(activations, name) for name in NAMES), mine], ids=[*NAMES, "mine"])
def test_a_model_keeps_it_through_copies(function: Any, through: Any) -> None:
    model = holder(function)
    made = through(model)
    assert made.act is made.acts["one"] is made.acts["two"][0] is made.acts["two"][1][0] is function
    assert made.config.activation is made.inner.part.func is function
    assert (made.config.rates, made.inner.part.args) == ((0.5,), (jnp.float32,))
    assert (through is copy.copy) is (made.acts is model.acts) is (made.inner is model.inner)
    assert dx.graphdef(made) == dx.graphdef(model) == pickled(dx.graphdef(model))


def test_the_attributes_of_a_partial_are_kept() -> None:
    model = dx.Module()
    model.part = functools.partial(jax.nn.silu)
    model.part.tag = "a"
    assert (pickled(model).part.tag, pickled(model).part.func) == ("a", jax.nn.silu)


def test_a_spec_keeps_it_through_copies() -> None:
    spec = dx.spec(Config, jax.nn.silu)
    assert spec == copy.copy(spec) == copy.deepcopy(spec) == pickled(spec)


def test_nothing_is_changed_but_copies() -> None:
    function = jax.nn.silu
    model = holder(function)
    acts, config, part = model.acts, model.config, model.inner.part
    pickle.dumps(model)
    assert (model.acts, model.config, model.inner.part) == (acts, config, part)
    assert acts["two"][0] is config.activation is part.func is function


def test_a_compiled_function_without_a_name_is_as_for_pickle() -> None:
    model = dx.Module()
    model.act = jax.jit(lambda x: x)
    assert copy.copy(model).act is model.act
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(model)


def test_a_container_that_holds_itself_is_copied() -> None:
    box = dx.Object()
    box.items = [jax.nn.gelu]
    box.items.append(box.items)
    for made in (copy.deepcopy(box), pickled(box)):
        assert made.items[1] is made.items is not box.items


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
