"""What training programs combine: each gives the same numbers with declax and with Flax NNX."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from agreement import agrees

X = jnp.linspace(-1.0, 1.0, 24).reshape(6, 4)


@pytest.fixture(autouse=True)
def _standard_promotion():
    with jax.numpy_dtype_promotion("standard"):  # of optax
        yield


def layer_of(nnx: Any, seed: int = 0) -> Any:
    return nnx.Linear(4, 4, rngs=nnx.Rngs(seed))


def copied(state: Any) -> Any:
    return jax.tree.map(jnp.copy, state)


@agrees
def test_an_update_that_is_skipped_for_gradients_that_are_not_finite(nnx):
    model = layer_of(nnx)
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)

    def apply(model, optimizer, grads):
        optimizer.update(model, grads)
        return jnp.array(True)

    @nnx.jit
    def step(model, optimizer, x):
        loss, grads = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
        return nnx.cond(jnp.isfinite(loss), apply, lambda *_: jnp.array(False), model, optimizer, grads)

    done = [step(model, optimizer, x) for x in (X, X * jnp.nan, X)]
    return done, nnx.state(model), nnx.state(optimizer)


@agrees
def test_gradients_that_a_scan_adds_up(nnx):
    model = layer_of(nnx)

    @nnx.scan(in_axes=(nnx.Carry, None, 0), out_axes=(nnx.Carry, 0))
    def add(total, model, x):
        loss, grads = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
        return jax.tree.map(jnp.add, total, grads), loss

    zeros = jax.tree.map(jnp.zeros_like, nnx.state(model, nnx.Param))
    total, losses = nnx.jit(add)(zeros, model, X.reshape(3, 2, 4))
    return jax.tree.map(lambda grad: grad / 3, total), losses


@agrees
def test_a_constructor_that_is_mapped(nnx):
    axes = nnx.StateAxes({nnx.PathContains("grid"): None, nnx.Variable: 0})

    class Heads(nnx.Module):
        @nnx.vmap(in_axes=(axes, None, 0))
        def __init__(self, features, rngs):
            self.layer = nnx.Linear(4, features, rngs=rngs)
            self.norm = nnx.BatchNorm(features, rngs=rngs)
            self.grid = nnx.Variable(jnp.linspace(-1.0, 1.0, features))

        @nnx.vmap(in_axes=(axes, None))
        def __call__(self, x):
            return self.norm(self.layer(x)) * self.grid

    heads = Heads(3, nnx.Rngs(0).split(2))
    grads = nnx.grad(lambda heads: (heads(X) ** 2).sum())(heads)
    return heads(X), grads, nnx.state(heads)


@agrees
def test_streams_that_are_split_around_a_step(nnx):
    class Noisy(nnx.Module):
        def __init__(self, rngs):
            self.layer = nnx.Linear(4, 4, rngs=rngs)
            self.rngs = rngs

        def __call__(self, x):
            return self.layer(x) + self.rngs.normal(x.shape)

    model = Noisy(nnx.Rngs(0))
    wrt = nnx.All(nnx.Param, nnx.PathContains("layer"))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=wrt)
    axes = nnx.StateAxes({"default": 0, ...: None})
    samples = nnx.vmap(lambda model, x: model(x), in_axes=(axes, None))

    @functools.partial(nnx.jit, static_argnames="power")
    def step(model, optimizer, x, power):
        loss = lambda model, x: (samples(model, x) ** power).mean()  # noqa: E731  # short
        value, grads = nnx.value_and_grad(f=loss, argnums=nnx.DiffState(0, optimizer.wrt))(model, x)
        optimizer.update(model=model, grads=grads)
        return value

    losses = []
    for _ in range(2):
        with nnx.split_rngs(model, splits=3):
            losses.append(step(model, optimizer, X, power=2))
    return losses, nnx.state(model)


@agrees
def test_compiled_functions_as_attributes(nnx):
    class Learner(nnx.Module):
        def __init__(self, rngs):
            self.policy, self.critic = layer_of(nnx, 0), layer_of(nnx, 1)
            self.noise = nnx.Dropout(0.5, rngs=rngs)
            self.optimizer = nnx.Optimizer(self.critic, optax.adam(0.1), wrt=nnx.Param)
            self.act = nnx.cached_partial(nnx.jit(lambda p, noise, x: noise(p(x))), self.policy, self.noise)
            self.train_critic = nnx.cached_partial(nnx.jit(self._train), self.critic, self.optimizer)

        @staticmethod
        def _train(critic, optimizer, x):
            loss, grads = nnx.value_and_grad(lambda critic: (critic(x) ** 2).mean())(critic)
            optimizer.update(critic, grads)
            return loss

    learner = Learner(nnx.Rngs(2))
    seen = [learner.act(X), learner.train_critic(X), learner.act(X), learner.train_critic(X)]
    nnx.update(learner.policy, nnx.state(learner.critic))
    return seen, learner.act(X), nnx.state(learner)


@agrees
def test_a_raw_step_on_the_states_of_chosen_parameters(nnx):
    def is_frozen(path, _):
        return path[1] == 0

    model = nnx.Sequential(layer_of(nnx), nnx.BatchNorm(4, rngs=nnx.Rngs(1)), layer_of(nnx, 2))
    trainable = nnx.All(nnx.Param, nnx.Not(is_frozen))
    graphdef, state = nnx.split(model)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))

    @jax.jit
    def step(state, opt_state, x):
        model = nnx.merge(graphdef, state)
        loss, grads = nnx.value_and_grad(lambda model, x: (model(x) ** 2).mean(), argnums=nnx.DiffState(0, trainable))(
            model, x
        )
        params = nnx.filter_state(nnx.state(model), trainable)
        updates, opt_state = tx.update(grads, opt_state, params)
        nnx.update(model, optax.apply_updates(params, updates))
        return nnx.state(model), opt_state, loss, optax.tree_utils.tree_norm(grads)

    opt_state, seen = tx.init(nnx.filter_state(state, trainable)), []
    for _ in range(2):
        state, opt_state, *numbers = step(state, opt_state, X)
        seen += numbers
    return seen, state, jax.tree.leaves(opt_state)


@agrees
def test_a_rollout_of_a_model_that_is_merged_in_a_raw_function(nnx):
    class Layers(nnx.Module):
        def __init__(self, rngs):
            self.layers = nnx.List([layer_of(nnx), nnx.BatchNorm(4, rngs=rngs), nnx.swish, None])

        def __call__(self, x):
            for layer in self.layers:
                x = x if layer is None else layer(x)
            return x

    graphdef, state = nnx.split(Layers(nnx.Rngs(0)))

    @jax.jit
    def unroll(state, start, inputs):
        @nnx.scan(in_axes=(nnx.StateAxes({nnx.BatchStat: nnx.Carry, ...: None}), nnx.Carry, 0))
        def step(model, x, given):
            after = model(x + given)
            return after, after

        model = nnx.merge(graphdef, copied(state))
        return step(model, start, inputs), nnx.state(model)

    return unroll(state, X, jnp.linspace(0.0, 1.0, 3))
