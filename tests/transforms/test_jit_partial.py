"""`jit` of functions whose first arguments are given."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import declax as dx
from declax.errors import GraphError, TransformError
from declax.transforms.compilation import jit_partial
from strategies import Open, apply_edits, build, edits, objects_of, recipes, same_graph

MODES = [{"graph": False}, {"graph": True, "graph_updates": False}, {"graph": True, "graph_updates": True}]
each_mode = pytest.mark.parametrize("mode", MODES, ids=str)


@settings(max_examples=15)
@given(recipes(max_nodes=3), edits(), edits())
def test_it_does_what_the_function_does(recipe, first, between):
    inside, outside = build(recipe), build(recipe)
    known = list(zip(objects_of(inside), objects_of(outside), strict=True))
    step = jit_partial(lambda m: apply_edits(m, first), inside)
    for _ in range(2):
        step()
        apply_edits(outside, first)
        apply_edits(inside, between)
        apply_edits(outside, between)
        assert same_graph(inside, outside, known)


@given(st.lists(st.floats(-2, 2, width=16), min_size=1, max_size=4))
def test_results_are_those_of_raw_jit(values):
    total = dx.Variable(jnp.float32(0))

    def add(total, x):
        total.value = total.value + x
        return total.value * 2

    step = jit_partial(add, total)
    raw = jax.jit(lambda t, x: (t + x, (t + x) * 2))
    expected = jnp.float32(0)
    for value in map(jnp.float32, values):
        expected, y = raw(expected, value)
        assert float(step(value)) == float(y)
    assert float(total.value) == float(expected)


def loop(lib, make):
    x, y = jnp.ones((4, 2)), jnp.ones((4, 3))
    model = lib.Linear(2, 3, rngs=lib.Rngs(0))
    optimizer = lib.Optimizer(model, optax.adamw(1e-2), wrt=lib.Param)

    def train_step(model, optimizer, x, y):
        loss, grads = lib.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
        optimizer.update(model, grads)
        return loss

    step = make(train_step, model, optimizer, graph=False)
    return [float(step(x, y)) for _ in range(3)], np.asarray(model.kernel[...])


def test_a_training_loop_is_that_of_the_peer():
    nnx = pytest.importorskip("flax.nnx")
    with jax.numpy_dtype_promotion("standard"):
        ours, peers = loop(dx, jit_partial), loop(nnx, nnx.jit_partial)
    np.testing.assert_allclose(ours[0], peers[0], rtol=1e-5)
    np.testing.assert_allclose(ours[1], peers[1], rtol=1e-5)


@each_mode
def test_captured_models_in_each_mode(mode):
    model, captured = Open(), Open()
    model.w, captured.w = dx.Param(jnp.ones(2)), dx.Param(jnp.ones(2))

    def step(model, x):
        captured.w.value = captured.w + x
        return model.w * captured.w

    step_of = jit_partial(step, model, **mode)
    assert step_of(1.0).tolist() == [2, 2]
    captured.w.value = jnp.zeros(2)
    with jax.checking_leaks():
        assert dx.jit(step_of, **mode)(3.0).tolist() == [3, 3]
    assert captured.w.value.tolist() == [3, 3]
    assert jit_partial(lambda m: m.w is model.w, model, **mode)()


def test_options():
    model = Open()
    model.w = dx.Param(jnp.ones(2))
    traces = []

    def step(model, times, x):
        traces.append(times)
        model.w.value = model.w * times
        return x * 2

    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    step_of = jit_partial(
        step, model, static_argnames="times", donate_argnums=0, in_shardings=(None, sharding), out_shardings=sharding
    )
    w = model.w.value
    assert float(step_of(2, jnp.float32(1))) == 2
    assert w.is_deleted()
    assert float(step_of(times=2, x=jnp.float32(1))) == 2
    assert float(step_of(3, jnp.float32(1))) == 2
    assert set(traces) == {2, 3}
    assert model.w.value.tolist() == [12, 12]


def test_arguments_are_placed():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.NamedSharding(mesh, jax.P("data"))
    model = Open()
    model.w = dx.Param(jnp.ones(2))
    jit_partial(lambda model, x: setattr(model.w, "value", model.w * x), model, in_shardings=(rows, None))(2.0)
    assert model.w.value.sharding == rows
    with pytest.raises(TransformError, match="the prefix does not fit the tree"):
        jit_partial(lambda model, x: x, model, in_shardings=(rows, None, None))(2.0)


def test_errors_of_jit_partial():
    model = Open()
    model.w = dx.Param(jnp.ones(2))
    model.again = model.w

    def fail(model):
        model.w.value = model.w * 2
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        jit_partial(fail, model)()
    assert model.w.value.tolist() == [1, 1]
    with pytest.raises(GraphError, match="reached twice"):
        jit_partial(fail, model, graph=False)
    with pytest.raises(TransformError, match="changes the structure of its arguments"):
        jit_partial(lambda m: setattr(m, "name", "x"), model, graph_updates=False)()
    with pytest.raises(TransformError, match="jit, fun: this is not a function"):
        jit_partial(3)
    with pytest.raises(TransformError, match="static_argnames: the function has no parameter"):
        jit_partial(lambda m: m, model, static_argnames="n")
