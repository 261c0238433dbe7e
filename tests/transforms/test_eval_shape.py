"""`eval_shape`: the shapes of what a function would return, and of the models that it would leave."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from counted import Scaled
from declax.errors import GraphError
from strategies import build, modes_and_recipes, objects_of, on_state, same_graph, set_some


@given(modes_and_recipes(), st.lists(st.integers(0, 7), max_size=3))
def test_random_models_against_jax_on_explicit_state(moded, numbers):
    mode, recipe = moded
    model, twin = build(recipe), build(recipe)
    graphdef, state = dx.split(model)

    def compute(model, x):
        return set_some(numbers, model) * x

    x = jnp.ones((3,))
    expected, shapes = jax.eval_shape(on_state(graphdef, compute), state, x)
    assert dx.eval_shape(compute, model, x, **mode) == expected
    output, left = dx.eval_shape(lambda m, x: (compute(m, x), dx.state(m)), model, x, **mode)
    assert output == expected
    assert left.paths == shapes.paths
    assert [(leaf.shape, leaf.dtype) for leaf in left.leaves] == [(leaf.shape, leaf.dtype) for leaf in shapes.leaves]
    assert same_graph(model, twin, list(zip(objects_of(model), objects_of(twin), strict=True)))


def test_eval_shape_of_what_captures():
    model, mode = Scaled(), {}

    def call(x):
        return model(x), model

    y, same = dx.eval_shape(call, jnp.ones(3), **mode)
    assert y.shape == (3,)
    assert isinstance(same.scale.value, jax.ShapeDtypeStruct)
    assert int(model.count.value) == 0
    model.scale.value = jnp.ones((2, 3))
    assert dx.eval_shape(call, jnp.ones(3), **mode)[0].shape == (2, 3)
    assert dx.eval_shape(model, jnp.ones(3), **mode).shape == (2, 3)
    assert dx.eval_shape(model.__call__, jnp.ones(3), **mode).shape == (2, 3)
    assert len({id(m) for m in dx.eval_shape(lambda m: (m, model), model, **mode)}) == 1
    assert dx.eval_shape(dx.jit(call), jnp.ones(3), **mode)[0].shape == (2, 3)


def test_eval_shape_holds_the_mode():
    model = Scaled()
    with pytest.raises(GraphError, match="reached twice"):
        dx.eval_shape(lambda a, b: 1, model, model, graph=False)
    model.again = model.scale
    with pytest.raises(GraphError, match="reached twice"):
        dx.eval_shape(lambda: model.scale, graph=False)
