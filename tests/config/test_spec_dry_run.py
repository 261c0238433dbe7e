"""What would be built and answered, in shapes."""

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

import declax as dx
from config.spec_models import Gate, Mlp, Train, small
from declax.errors import ConfigError, InitializerError, LayerError


@dx.dataclass
class Attention(dx.Layer):
    dim: int = dx.field()
    query = dx.Linear(dim, dim, use_bias=False)
    key = dx.Linear(dim, dim, use_bias=False)
    value = dx.Linear(dim, dim, use_bias=False)
    out = dx.Linear(dim, dim, use_bias=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(jax.nn.softmax(self.query(x) @ self.key(x).T) @ self.value(x))


@dx.dataclass
class Gated(dx.Layer):
    dim: int = dx.field()
    hidden: int = dx.field()
    up = dx.Linear(dim, hidden, use_bias=False)
    gate = dx.Linear(dim, hidden, use_bias=False)
    down = dx.Linear(hidden, dim, use_bias=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


@dx.dataclass
class Layer(dx.Module):
    attention: Attention
    mlp: Gated
    norm: dx.LayerNorm

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.mlp(self.norm(x + self.attention(x)))


def large(blocks: int = 32, dim: int = 4096, hidden: int = 11008) -> dx.Spec[dx.Sequential]:
    layer = dx.spec(Layer, dx.spec(Attention, dim), dx.spec(Gated, dim, hidden), dx.spec(dx.LayerNorm, dim))
    embed = dx.spec(dx.Embed, 32_000, dim)
    return dx.spec(dx.Sequential, embed, *[layer] * blocks, dx.spec(dx.Linear, dim, 32_000, use_bias=False))


def by_hand(key: jax.Array, tokens: jax.Array, blocks: int = 32, dim: int = 4096, hidden: int = 11008) -> jax.Array:
    """The program of `large`, parameters included, in plain JAX."""
    draw = jax.nn.initializers.lecun_normal()

    def linear(x: jax.Array, size: int) -> jax.Array:
        return x @ draw(key, (x.shape[-1], size))

    def norm(x: jax.Array) -> jax.Array:
        return jax.nn.standardize(x, epsilon=1e-6) * jnp.ones(dim) + jnp.zeros(dim)

    x = draw(key, (32_000, dim))[tokens]
    for _ in range(blocks):
        y = norm(x + linear(jax.nn.softmax(linear(x, dim) @ linear(x, dim).T) @ linear(x, dim), dim))
        x = x + linear(jax.nn.silu(linear(y, hidden)) * linear(y, hidden), dim)
    return linear(x, 32_000)


def seconds_of_a_first_call(work: Callable[[], object]) -> float:
    """Of the processor: other programs do not count."""
    jax.clear_caches()
    gc.collect()
    start = time.process_time()
    work()
    return time.process_time() - start


@pytest.mark.slow
@pytest.mark.timed
def test_seven_billion_parameters_take_a_few_traces_of_the_program():
    """The bar is two seconds. The unit is what plain JAX takes to trace the program: 0.2 s where this took 0.35 s."""
    before = len(jax.live_arrays())
    tokens = jax.ShapeDtypeStruct((128,), jnp.int32)
    found = large().summary(tokens)
    assert found.count("Param") == 2 * 32_000 * 4096 + 32 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096)
    assert found.output.shape == (128, 32_000)
    assert len(jax.live_arrays()) - before < 10  # nothing of the model is there
    ratios = []
    for _ in range(3):
        unit = seconds_of_a_first_call(lambda: jax.eval_shape(by_hand, jax.random.key(0), tokens))
        ratios.append(seconds_of_a_first_call(lambda: large().summary(tokens)) / unit)
    assert statistics.median(ratios) < 4


def test_sizes_by_kind_and_dtype_and_the_table():
    spec = dx.spec(
        dx.Sequential, dx.spec(dx.Linear, 3, 4, param_dtype=jnp.bfloat16, dtype=jnp.float32), dx.spec(dx.BatchNorm, 4)
    )
    found = spec.summary(jnp.zeros((2, 3)))
    assert found.sizes == {("Param", "bfloat16"): 32, ("Param", "float32"): 32, ("BatchStat", "float32"): 32}
    text = str(found)
    assert "Param in bfloat16: 32 B" in text
    assert text.splitlines()[-1] == "output: f32[2,4]"
    assert "output" not in str(spec.summary())
    assert spec.summary().output is None
    model = spec.build(rngs=dx.Rngs(0))
    assert str(dx.summary(model)) in text
    assert found.output.shape == model(jnp.zeros((2, 3))).shape


def test_a_shared_part_counts_once():
    assert small(0).summary().count() == 44
    assert small(0).summary(jnp.array([1, 2])).output.shape == (2, 11)


def test_wrong_sizes_say_where():
    spec = small(3).replace({"blocks.2.mixer": dx.spec(Mlp, 5)})
    with pytest.raises(LayerError, match="the last axis of 'inputs' has the wrong size") as caught:
        spec.summary(jax.ShapeDtypeStruct((7,), jnp.int32))
    assert "in blocks[2].mixer.up of Model" in str(caught.value)


def test_wrong_sizes_that_only_jax_sees():
    spec = small(1).replace({"blocks.0.mixer": dx.spec(Gate, 6)})
    with pytest.raises(TypeError) as caught:
        spec.summary(jnp.array([1]))
    assert "raised in blocks[0].mixer of Model" in caught.value.__notes__


def test_errors_of_construction_say_where():
    spec = small().replace({"blocks.1.mixer.init": dx.initializers.delta_orthogonal()})
    with pytest.raises(InitializerError, match="cannot make an array of shape") as caught:
        spec.summary()
    assert "in the configuration at blocks.1.mixer (Gate)" in caught.value.__notes__
    with pytest.raises(ConfigError, match="the value is out of range"):
        small().replace({"blocks.0.rate": 3.0}).summary()


def test_named_inputs_and_outputs_of_several_arrays():
    class Two(dx.Module):
        def __call__(self, *, x, y):
            return {"sum": x + y, "both": (x, y)}

    found = dx.spec(Two).summary(x=jnp.ones(2), y=jnp.ones(2))
    assert str(found).endswith("output: f32[2], f32[2], f32[2]")
    assert set(found.output) == {"sum", "both"}


def test_parts_of_a_plain_dataclass():
    found = dx.spec(Train, small(0), dx.spec(Mlp, 4)).summary()
    assert [(row.path[0], row.module) for row in found.rows] == [
        ("model", "Embed"),
        ("other", "Linear"),
        ("other", "Linear"),
    ]
    with pytest.raises(ConfigError, match="inputs were given, but the object that the spec builds is not callable"):
        dx.spec(Train, small(0)).summary(jnp.ones(2))


def test_a_model_that_cannot_be_called():
    with pytest.raises(ConfigError, match="the object that the spec builds is not callable"):
        dx.spec(dx.List, [1]).summary(jnp.ones(2))


def test_nothing_to_count():
    @dataclasses.dataclass
    class Empty:
        x: int

    assert dx.spec(Empty, 1).summary().count() == 0
