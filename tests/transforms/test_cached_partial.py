"""Functions whose models are given once."""

from __future__ import annotations

import functools
import gc
import inspect
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx
from declax.errors import GraphError, TransformError
from declax.transforms.compilation import cached_partial


def example(lib, cached_partial):
    """The example of the reference; its losses and parameters."""
    model = lib.Linear(2, 3, rngs=lib.Rngs(0))
    optimizer = lib.Optimizer(model, optax.adamw(1e-3), wrt=lib.Param)

    @lib.jit
    def train_step(model, optimizer, x, y):
        def loss_fn(model):
            return jnp.mean((model(x) - y) ** 2)

        loss, grads = lib.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return loss

    cached_train_step = cached_partial(train_step, model, optimizer)
    losses = []
    for _ in range(3):
        x, y = jnp.ones((10, 2)), jnp.ones((10, 3))
        losses.append(float(cached_train_step(x, y)))
    return losses, np.asarray(model.kernel[...]), np.asarray(model.bias[...])


def test_the_example_of_the_reference():
    losses, kernel, bias = example(dx, cached_partial)
    assert losses[0] > losses[1] > losses[2]
    plain = example(dx, functools.partial)
    assert losses == plain[0]
    np.testing.assert_array_equal(kernel, plain[1])
    np.testing.assert_array_equal(bias, plain[2])


def test_the_peer_gets_the_same_values():
    nnx = pytest.importorskip("flax.nnx")
    ours = example(dx, cached_partial)
    with jax.numpy_dtype_promotion("standard"):  # optax as the peer calls it
        theirs = example(nnx, nnx.cached_partial)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5)
    np.testing.assert_allclose(ours[2], theirs[2], rtol=1e-5)
    assert [f"{loss:.3f}" for loss in ours[0][:2]] == ["2.669", "2.660"]


class Counter(dx.Module):
    def __init__(self):
        self.count = dx.Variable(jnp.array(0))


@dx.jit
def step(counter, by):
    counter.count.value = counter.count.value + by


def test_the_structure_may_change():
    counter = Counter()
    traces = []

    @dx.jit
    def grow(counter, by):
        traces.append(1)
        if not hasattr(counter, "part"):
            counter.part = Counter()
        counter.part.count.value = counter.part.count.value + by

    cached = cached_partial(grow, counter)
    for _ in range(3):
        cached(2)
    assert counter.part.count.value == 6
    assert len(traces) == 2
    counter.name = "changed outside"
    cached(2)
    assert counter.part.count.value == 8


def test_values_that_change_outside_are_seen():
    counter = Counter()
    cached = cached_partial(step, counter)
    cached(1)
    counter.count.value = jnp.array(10)
    cached(1)
    assert counter.count.value == 11


def test_nothing_is_cloned():
    counter = Counter()
    seen = []

    def look(given, x):
        seen.append(given)
        return x

    assert cached_partial(look, counter)(3) == 3
    assert seen[0] is counter


def test_arguments_by_keyword_and_of_grad():
    counter = Counter()
    cached_partial(step, counter)(by=3)
    assert counter.count.value == 3
    model = dx.Linear(2, 1, rngs=dx.Rngs(0))
    grads = cached_partial(dx.grad(lambda model, x: model(x).sum()), model)(jnp.ones((3, 2)))
    np.testing.assert_allclose(grads["kernel"].value, np.full((2, 1), 3.0))


def test_several_models_and_none():
    a, b = Counter(), Counter()

    @dx.jit
    def both(a, b, x):
        a.count.value, b.count.value = x, x + 1

    cached_partial(both, a, b)(jnp.array(1))
    assert (int(a.count.value), int(b.count.value)) == (1, 2)
    cached_partial(both)(a, b, jnp.array(5))
    assert int(b.count.value) == 6
    cached_partial(both, a, b, jnp.array(7))()
    assert int(a.count.value) == 7


def test_the_signature_is_that_of_the_rest():
    def train_step(model, optimizer, x, *, rate=0.1):
        """Makes a step."""

    cached = cached_partial(dx.jit(train_step), 1, 2)
    assert str(inspect.signature(cached)) == "(x, *, rate=0.1)"


def test_the_models_live_as_long_as_the_function():
    counter = Counter()
    alive = weakref.ref(counter)
    cached = cached_partial(step, counter)
    del counter
    cached(1)
    assert alive() is not None
    del cached
    gc.collect()
    assert alive() is None


def test_a_function_that_raises_changes_nothing():
    counter = Counter()

    @dx.jit
    def fail(counter, x):
        counter.count.value = x
        counter.new = x
        raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        cached_partial(fail, counter)(jnp.array(3))
    assert counter.count.value == 0
    assert not hasattr(counter, "new")


def test_the_modes():
    shared = Counter()
    shared.again = shared.count
    with pytest.raises(GraphError, match="this is reached twice"):
        cached_partial(step, shared, graph=False)
    with dx.set_graph_mode(False), pytest.raises(GraphError, match="this is reached twice"):
        cached_partial(step, shared)
    cached_partial(step, shared, graph=True)(2)
    assert shared.again.value == 2
    seen = []

    def look(x):
        seen.append(dx.set_graph_updates.current_value())
        return x

    for updates in (True, False, None):
        assert cached_partial(look, 1, graph_updates=updates)() == 1
    assert seen == [True, False, True]
    assert str(inspect.signature(cached_partial(lambda a, b: a, 1, graph_updates=False))) == "(b)"


def test_what_is_no_function():
    with pytest.raises(TransformError, match="cached_partial, f: this is not a function") as caught:
        cached_partial(Counter(), 3)
    assert caught.value.fix == "dx.cached_partial(...), with a function as f"


def test_other_functions():
    assert cached_partial(max, 1, 5)(3) == 5
    assert cached_partial(jax.jit(lambda a, b: a + b), 1)(2) == 3
