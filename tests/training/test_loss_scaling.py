"""Loss scaling: training in float16 where the gradients of the plain loss are zero."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx
from declax.errors import OptimizerError


def make_model():
    return dx.Linear(1, 1, use_bias=False, dtype=jnp.float16, kernel_init=dx.initializers.zeros, rngs=dx.Rngs(0))


def small_loss(model, scale=1.0):
    """A loss whose gradient underflows in float16."""
    y = model(jnp.full((1, 1), 1e-3, jnp.float16))
    return (y * jnp.float16(1e-5) * jnp.asarray(scale, jnp.float16)).sum()


@dx.jit
def plain_step(model, optimizer):
    grads = dx.grad(small_loss)(model)
    optimizer.update(model, grads)
    return grads


@dx.jit
def scaled_step(model, optimizer):
    grads = dx.grad(small_loss)(model, optimizer.opt_state.scale.value)
    optimizer.update(model, grads)
    return grads


def test_a_scaled_loss_trains_where_the_plain_one_underflows():
    plain, scaled = make_model(), make_model()
    optimizer = dx.Optimizer(plain, optax.sgd(1.0))
    grads = plain_step(plain, optimizer)
    assert grads.kernel.value == 0
    assert plain.kernel.value == 0
    optimizer = dx.Optimizer(scaled, dx.dynamic_loss_scale(optax.sgd(1.0)))
    for _ in range(3):
        scaled_step(scaled, optimizer)
    np.testing.assert_allclose(scaled.kernel.value, -3e-8, rtol=0.02)
    assert optimizer.opt_state.scale.value == 2.0**15


def growing(**options):
    model = make_model()
    optimizer = dx.Optimizer(model, dx.dynamic_loss_scale(optax.adam(0.1), **options))
    ones = jax.tree.map(jnp.ones_like, dx.state(model, dx.Param))
    return model, optimizer, ones


def test_the_scale_grows_after_an_interval_without_overflow():
    model, optimizer, ones = growing(scale=4.0, growth_interval=3)
    scales = []
    for _ in range(7):
        optimizer.update(model, ones)
        scales.append(float(optimizer.opt_state.scale))
    assert scales == [4, 4, 8, 8, 8, 16, 16]
    assert int(optimizer.opt_state.good_steps) == 1


@pytest.mark.parametrize("bad", [jnp.inf, -jnp.inf, jnp.nan])
def test_a_step_with_a_gradient_that_is_not_finite_is_skipped(bad):
    model, optimizer, ones = growing(scale=4.0, growth_interval=2)
    step = dx.jit(lambda model, optimizer, grads: optimizer.update(model, grads))
    step(model, optimizer, ones)
    before, adam = model.kernel.value, jax.tree.leaves(optimizer.optax_state().inner.inner_state)
    step(model, optimizer, jax.tree.map(lambda g: g * bad, ones))
    assert model.kernel.value == before
    assert all(map(np.array_equal, adam, jax.tree.leaves(optimizer.optax_state().inner.inner_state)))
    state = optimizer.opt_state
    assert (float(state.scale), int(state.good_steps), int(state.inner.total_notfinite)) == (2.0, 0, 1)
    step(model, optimizer, ones)
    assert model.kernel.value != before


def test_the_scale_stays_positive_and_finite():
    model, optimizer, ones = growing(scale=2.0**127, growth_interval=1)
    optimizer.update(model, ones)
    assert optimizer.opt_state.scale.value == 2.0**127
    model, optimizer, ones = growing(scale=2.0**-126)
    optimizer.update(model, jax.tree.map(lambda g: g * jnp.nan, ones))
    assert optimizer.opt_state.scale.value == 2.0**-126


def test_updates_are_those_of_the_transformation_for_the_unscaled_gradients():
    model, optimizer, ones = growing(scale=4.0)
    other = make_model()
    plain = dx.Optimizer(other, optax.adam(0.1))
    for factor in (1.0, 2.0, 3.0):
        optimizer.update(model, jax.tree.map(lambda g, factor=factor: 4 * factor * g, ones))
        plain.update(other, jax.tree.map(lambda g, factor=factor: factor * g, ones))
    np.testing.assert_allclose(model.kernel.value, other.kernel.value, rtol=1e-6)


def test_a_step_compiles_once_and_is_the_same_in_a_scan():
    model, optimizer, ones = growing(scale=4.0, growth_interval=2)
    traces = []

    @dx.jit
    def step(model, optimizer, grads):
        traces.append(None)
        optimizer.update(model, grads)

    for _ in range(3):
        step(model, optimizer, ones)
    assert len(traces) == 1
    again, scanned, ones = growing(scale=4.0, growth_interval=2)
    dx.scan(lambda carry, _: (carry[1].update(carry[0], ones), (carry, None))[1], in_axes=(dx.Carry, None), length=3)(
        (again, scanned), None
    )
    assert float(scanned.opt_state.scale) == float(optimizer.opt_state.scale) == 8.0


def test_one_that_is_built_from_a_spec_pickles():
    model = make_model()
    tx = dx.spec(dx.dynamic_loss_scale, dx.spec(optax.sgd, 1.0), scale=8.0).build()
    optimizer = pickle.loads(pickle.dumps(dx.Optimizer(model, tx)))
    optimizer.update(model, jax.tree.map(lambda p: 8 * jnp.ones_like(p), dx.state(model, dx.Param)))
    assert model.kernel.value == -1


@pytest.mark.parametrize(
    "options", [{"scale": 0.0}, {"scale": -1.0}, {"growth_interval": 0}, {"growth": 0.5}, {"backoff": 1.0}]
)
def test_options_that_could_not_adapt_the_scale(options):
    (name,) = options
    with pytest.raises(OptimizerError, match=f"dynamic_loss_scale.{name}: the scale could not adapt"):
        dx.dynamic_loss_scale(optax.sgd(1.0), **options)
