"""Checks in functions of models."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental import checkify as raw

import declax as dx
from declax.errors import GraphError, TransformError
from declax.transforms.checking import checkify

MODES = [{"graph": False}, {"graph": True, "graph_updates": False}, {"graph": True, "graph_updates": True}]
each_mode = pytest.mark.parametrize("mode", MODES, ids=str)


class Model(dx.Module):
    def __init__(self):
        self.scale = dx.Param(jnp.arange(3.0))
        self.count = dx.Variable(jnp.array(0))

    def __call__(self, x):
        self.count.value = self.count.value + 1
        raw.check(jnp.all(x > 0), "x is not positive")
        return jnp.log(self.scale * x)


@given(st.lists(st.floats(-2, 2, width=16), min_size=3, max_size=3), st.sampled_from(["user", "float", "index", "all"]))
def test_errors_and_results_are_those_of_explicit_state(values, kind):
    errors = getattr(raw, f"{kind}_checks")
    model, x = Model(), jnp.array(values)
    graphdef, state = dx.split(model)

    def explicit(state, x):
        m = dx.merge(graphdef, state)
        return m(x), dx.state(m)

    error, (expected, after) = raw.checkify(explicit, errors=errors)(state, x)
    found, y = checkify(lambda m, x: m(x), errors=errors)(model, x)
    assert (found.get() is None) == (error.get() is None)
    assert (found.get() or "").split(" (")[0].splitlines()[:1] == (error.get() or "").split(" (")[0].splitlines()[:1]
    assert str(y.tolist()) == str(expected.tolist())
    assert int(model.count.value) == int(after["count"].value) == 1


@each_mode
@pytest.mark.parametrize("is_jitted", [False, True])
def test_captured_models_come_back(mode, is_jitted):
    model = Model()
    checked = checkify(lambda x: model(x) * 1, **mode)
    checked = dx.jit(checked, **mode) if is_jitted else checked
    error, y = checked(jnp.ones(3))
    assert error.get() is None
    assert float(y[1]) == 0
    model.scale.value = model.scale.value * 0 + 1
    error, y = checked(-jnp.ones(3))
    assert "x is not positive" in error.get()
    with pytest.raises(raw.JaxRuntimeError, match="x is not positive"):
        error.throw()
    assert int(model.count.value) == 2
    assert checked(jnp.ones(3))[1].tolist() == [0, 0, 0]


@each_mode
def test_of_a_jitted_function_and_what_is_passed_too(mode):
    model = Model()

    @dx.jit(**mode)
    def step(passed, x):
        assert passed is model
        return model(x)

    with jax.checking_leaks():
        error, _ = checkify(step, **mode)(model, -jnp.ones(3))
    assert "x is not positive" in error.get()
    assert int(model.count.value) == 1


def test_structure_and_looks():
    @checkify
    def grow(model, *, x):
        """Grows."""
        model.new = dx.Param(x)
        return model

    model = Model()
    error, same = grow(model, x=jnp.ones(2))
    assert error.get() is None
    assert same is model
    assert model.new.shape == (2,)
    assert (grow.__name__, grow.__doc__) == ("grow", "Grows.")


def test_it_is_like_the_peers():
    nnx = pytest.importorskip("flax.nnx")

    def of(lib, check):
        class Foo(lib.Module):
            def __init__(self):
                self.a = lib.Param(jnp.array(jnp.inf))

        error, y = check(lib.jit(lambda m: m.a + jnp.sin(m.a[...])), errors=raw.float_checks)(Foo())
        return error.get().split(".")[0], str(y)

    assert of(dx, checkify) == of(nnx, nnx.checkify)


def test_errors_of_checkify():
    model = Model()

    def fail(model):
        model.count.value = model.count.value + 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        checkify(fail)(model)
    with pytest.raises(TransformError, match="changes the structure of its arguments"):
        checkify(lambda m: setattr(m, "name", "x"), graph_updates=False)(model)
    with pytest.raises(GraphError, match="reached twice"):
        checkify(lambda a, b: 1, graph=False)(model, model)
    with pytest.raises(TransformError, match="checkify, f: this is not a function"):
        checkify(3)
    assert int(model.count.value) == 0
