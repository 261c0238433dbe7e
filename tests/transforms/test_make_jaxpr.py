"""`make_jaxpr`: what a function of models computes, as a program of JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

import declax as dx
from counted import Scaled
from declax.errors import GraphError, TransformError
from declax.transforms.abstract import make_jaxpr
from strategies import apply_edits, build, edits, recipes


def evaluate(made, *leaves):
    return jax.core.eval_jaxpr(getattr(made, "jaxpr", made), getattr(made, "consts", ()), *leaves)


# ================================================================= make_jaxpr


@settings(max_examples=15)
@given(recipes(max_nodes=3), edits(max_size=3))
def test_a_jaxpr_computes_what_explicit_state_does(recipe, todo):
    todo = [edit for edit in todo if edit[0] in ("scale", "scale_raw")]

    def compute(model, x):
        apply_edits(model, todo)
        return sum((jnp.sum(jnp.asarray(leaf)) for leaf in dx.state(model).leaves), start=x)

    model, x = build(recipe), jnp.float32(1)
    leaves = dx.state(model).leaves
    made = make_jaxpr(compute)(model, x)
    assert [id(leaf) for leaf in dx.state(model).leaves] == [id(leaf) for leaf in leaves]
    *changed, y = evaluate(made, *leaves, x)
    twin = build(recipe)
    np.testing.assert_allclose(y, compute(twin, x), rtol=1e-6)
    after = [
        leaf for leaf, before in zip(dx.state(twin).leaves, leaves, strict=True) if not np.array_equal(leaf, before)
    ]
    assert len(changed) >= len(after)


def test_inputs_and_outputs():
    model = Scaled()
    made = make_jaxpr(lambda m, x: m(x))(model, jnp.ones(3))
    assert [aval.shape for aval in made.in_avals] == [(), (3,), (3,)]
    assert [aval.shape for aval in made.out_avals] == [(), (3,)]
    count, y = evaluate(made, 4, model.scale.value, jnp.full(3, 2.0))
    assert (int(count), y.tolist()) == (5, [0, 2, 4])
    assert int(model.count.value) == 0


JAXPR_MODES = pytest.mark.parametrize("mode", [{}, {"graph_updates": False}, {"graph": False}])


@JAXPR_MODES
def test_captured_models_are_inputs(mode):
    model = Scaled()
    trace = make_jaxpr(lambda x: model(x) * 1, **mode)
    for n in (3, 2):
        model.scale.value = jnp.ones(n)
        made = trace(jnp.ones(n))
        assert [aval.shape for aval in made.in_avals] == [(), (n,), (n,)]
    made = make_jaxpr(lambda m: m.scale + model.scale, **mode)(model)
    assert len(made.in_avals) == 2
    assert int(model.count.value) == 0


@JAXPR_MODES
def test_inside_of_jit(mode):
    model, seen = Scaled(), []

    @dx.jit(**mode)
    def step(x):
        seen.append(make_jaxpr(lambda x: model(x) * 1, **mode)(x))
        return model(x)

    with jax.checking_leaks():
        step(jnp.ones(3))
    assert len(seen[0].in_avals) == 3
    assert int(model.count.value) == 1


def test_static_arguments():
    power = make_jaxpr(lambda n, model, x: model.scale**n * x, static_argnums=0)
    made = power(2, Scaled(), 3.0)
    assert evaluate(made, 0, jnp.arange(3.0), 3.0)[0].tolist() == [0, 3, 12]
    assert str(power(n=2, model=Scaled(), x=3.0)) == str(made)
    with pytest.raises(TransformError, match="a static argument is not hashable"):
        power([2], Scaled(), 3.0)


def test_the_jaxpr_is_that_of_the_peer():
    nnx = pytest.importorskip("flax.nnx")

    def of(lib, trace):
        layer = lib.Linear(2, 3, rngs=lib.Rngs(0))
        made = trace(lambda layer, x: layer(x), graph_updates=False)(layer, jnp.ones((4, 2)))
        out = [aval.shape for aval in made.out_avals]
        y = evaluate(made, layer.bias[...], layer.kernel[...], jnp.ones((4, 2)))[-1]
        return [aval.shape for aval in made.in_avals], out[-1], np.asarray(y)

    ours, peers = of(dx, make_jaxpr), of(nnx, nnx.make_jaxpr)
    assert ours[:2] == peers[:2]
    np.testing.assert_allclose(ours[2], peers[2], rtol=1e-6)


def test_errors_of_make_jaxpr():
    model = Scaled()

    def grow(model):
        model.new = dx.Param(jnp.ones(1))
        raise ZeroDivisionError

    state = dx.split(model)
    with pytest.raises(ZeroDivisionError):
        make_jaxpr(grow)(model)
    with pytest.raises(TransformError, match="changes the structure of its arguments"):
        make_jaxpr(lambda m: setattr(m, "name", "x"), graph_updates=False)(model)
    with pytest.raises(GraphError, match="reached twice"):
        make_jaxpr(lambda a, b: 1, graph=False)(model, model)
    with pytest.raises(TransformError, match="make_jaxpr, f: this is not a function"):
        make_jaxpr(3)
    assert dx.split(model) == state
