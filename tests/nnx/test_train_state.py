"""`TrainState`: a loop of pure functions."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx
from declax.errors import GraphError


@pytest.fixture(params=["declax", "flax.nnx"])
def nnx(request):
    return pytest.importorskip(request.param)


def make(nnx):
    class Stateful(nnx.TrainState):
        batch_stats: nnx.State

    class Model(nnx.Module):
        def __init__(self):
            self.scale = nnx.Param(jnp.arange(1.0, 4.0))
            self.seen = nnx.BatchStat(jnp.array(0.0))

        def __call__(self, x):
            self.seen[...] += 1
            return x * self.scale

    graphdef, params, batch_stats = nnx.split(Model(), nnx.Param, nnx.BatchStat)
    return Stateful.create(graphdef, params=params, tx=optax.sgd(0.5, momentum=0.9), batch_stats=batch_stats)


def test_a_step_gives_the_numbers_of_the_peer():
    def train(nnx):
        @jax.jit
        def step(state):
            def loss(scale):
                return jnp.sum((scale * jnp.arange(3.0)) ** 2)

            _, (_, updated) = state.apply("params", state.batch_stats)(jnp.ones(3))
            grads = jax.tree.map(jax.grad(loss), state.params)
            return state.apply_gradients(grads, batch_stats=nnx.filter_state(updated, nnx.BatchStat))

        state = step(step(make(nnx)))
        return state.params["scale"][...], state.batch_stats["seen"][...], state.step

    ours, theirs = train(dx), train(pytest.importorskip("flax.nnx"))
    for value, expected in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(value, expected)


def test_it_is_an_immutable_pytree(nnx):
    state = make(nnx)
    assert len(jax.tree.leaves(state)) == 4  # scale, its momentum, the statistic, the step
    assert state.replace(step=jnp.array(7)).step == 7
    assert state.step == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.step = 3


def test_a_subclass_may_have_static_fields():
    class Named(dx.TrainState):
        name: str = dataclasses.field(default="a", metadata={"static": True})

    graphdef, params = dx.split(dx.Param(1.0))
    state = Named.create(graphdef, params=params, tx=optax.sgd(0.1), name="b")
    assert jax.jit(lambda state: state)(state).name == "b"


def test_the_name_of_a_field_that_holds_no_state():
    with pytest.raises(GraphError, match=r"Stateful\.step: this is not a State"):
        make(dx).apply("params", "step")
    with pytest.raises(GraphError, match=r"Stateful\.apply: this is not a State"):
        make(dx).apply({})
