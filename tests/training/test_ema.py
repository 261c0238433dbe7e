"""Averages of parameters: their numbers, the Variables that hold them, and what they are refused for."""

from __future__ import annotations

import pickle
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax.errors import OptimizerError, TraceContextError


class Net(dx.Module):
    def __init__(self, rngs: dx.Rngs) -> None:
        self.blocks = dx.List([dx.Linear(3, 3, rngs=rngs), dx.Linear(3, 3, rngs=rngs)])
        self.norm = dx.BatchNorm(3, rngs=rngs)
        self.dropout = dx.Dropout(0.5, rngs=rngs)
        self.tied = self.blocks[0]

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.tied(self.dropout(self.norm(self.blocks[1](self.blocks[0](x)))))


def test_the_average_is_the_formula_over_several_updates():
    model = dx.Linear(3, 2, param_dtype=jnp.bfloat16, kernel_metadata={"tag": 1}, rngs=dx.Rngs(0))
    ema = dx.EMA(model, 0.75)
    average = model.kernel.value
    for step in range(3):
        model.kernel[...] = model.kernel * 2
        ema.update(model if step else dx.state(model))
        average = 0.75 * average + 0.25 * model.kernel.value
    np.testing.assert_array_equal(ema.params.kernel.value, average)
    assert ema.params.kernel.dtype == jnp.bfloat16
    assert isinstance(ema.params["kernel"], dx.Param)
    assert ema.params.kernel.tag == 1


def averaged_by(library: ModuleType) -> np.ndarray:
    model = library.Linear(3, 2, rngs=library.Rngs(0))
    ema = library.EMA(model, decay=0.9, only=library.Param)

    @library.jit
    def step(model, ema):
        model.kernel[...] = model.kernel * 1.1
        ema.update(model)

    for _ in range(3):
        step(model, ema)
    return np.asarray(ema.apply_to(model)(jnp.arange(3.0)))


def test_the_numbers_are_the_peers():
    np.testing.assert_array_equal(averaged_by(dx), averaged_by(pytest.importorskip("flax.nnx")))


def test_the_applied_model_has_the_averages_and_follows_them():
    model = Net(dx.Rngs(0))
    ema = dx.EMA(model, 0.5, only=dx.Param)
    applied = ema.apply_to(model)
    assert isinstance(applied, Net)
    assert applied.blocks[1].kernel is ema.params.blocks[1].kernel is ema.params["blocks"][1]["kernel"]
    assert applied.tied is applied.blocks[0]
    assert applied.norm.mean is model.norm.mean
    assert applied.blocks[1].kernel is not model.blocks[1].kernel

    @dx.jit
    def step(model, ema):
        model(jnp.ones((4, 3)))
        model.blocks[1].kernel[...] = jnp.zeros((3, 3))
        ema.update(model)

    before = model.blocks[1].kernel.value
    step(model, ema)
    np.testing.assert_array_equal(applied.blocks[1].kernel.value, 0.5 * before)
    assert step.num_traces == 1
    step(model, ema)
    assert step.num_traces == 1


def test_counts_and_keys_are_taken_over():
    model = Net(dx.Rngs(0))
    ema = dx.EMA(model, 0.5)
    model(jnp.ones((4, 3)))
    ema.update(model)
    assert int(ema.params.dropout.rngs.count.value) == int(model.dropout.rngs.count.value) == 1
    np.testing.assert_allclose(ema.params.norm.mean.value, 0.5 * model.norm.mean.value)


def test_an_average_is_a_part_of_graphs():
    model = dx.Linear(3, 2, rngs=dx.Rngs(0))
    ema = dx.EMA(model, 0.5)
    graphdef, state = dx.split(ema)
    assert state.paths == (("params", "bias"), ("params", "kernel"))
    assert dx.merge(graphdef, state).params.kernel.value is ema.params.kernel.value
    again = pickle.loads(pickle.dumps(ema))
    model.kernel[...] = jnp.zeros((3, 2))
    again.update(model)
    np.testing.assert_array_equal(again.params.kernel.value, 0.5 * ema.params.kernel.value)
    abstract = dx.eval_shape(lambda: dx.EMA(dx.Linear(3, 2, rngs=dx.Rngs(0)), 0.5))
    assert abstract.params.kernel.shape == (3, 2)
    with jax.numpy_dtype_promotion("strict"):
        again.update(model)


def test_the_average_owns_its_arrays():
    model = dx.Linear(3, 2, rngs=dx.Rngs(0))
    ema = dx.EMA(model, 0.5)
    model.kernel.value.delete()
    assert ema.params.kernel.value.sum().shape == ()


def test_a_model_of_other_parameters_is_refused():
    model = dx.Linear(3, 2, rngs=dx.Rngs(0))
    ema = dx.EMA(model, 0.5)
    before = dx.state(ema)
    with pytest.raises(OptimizerError, match=r"EMA\.update: the model does not have the Variables") as caught:
        ema.update(dx.Linear(3, 2, use_bias=False, rngs=dx.Rngs(0)))
    assert caught.value.got == "missing: bias"
    with pytest.raises(OptimizerError, match=r"other shapes: kernel has \(4, 2\), not \(3, 2\)"):
        ema.apply_to(dx.Linear(4, 2, rngs=dx.Rngs(0)))

    @jax.jit
    def within(x):
        ema.update(model)
        return x

    with pytest.raises(TraceContextError):
        within(jnp.ones(()))
    assert all(new is old for new, old in zip(dx.state(ema).leaves, before.leaves, strict=True))


def test_what_cannot_be_averaged_is_refused():
    model = dx.Linear(3, 2, rngs=dx.Rngs(0))
    with pytest.raises(OptimizerError, match=r"EMA\.only: the filter BatchStat matches nothing in the model"):
        dx.EMA(model, 0.5, only=dx.BatchStat)
    with pytest.raises(OptimizerError, match=r"EMA\.decay: decay is out of range") as caught:
        dx.EMA(model, 1.5)
    assert caught.value.got == "1.5"
    with pytest.raises(OptimizerError, match=r"EMA\.only: the value at a is not in a Variable"):
        dx.EMA({"a": jnp.ones(2)}, 0.5)
