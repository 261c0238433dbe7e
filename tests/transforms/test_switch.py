"""`switch`: what the branch that runs does to models happens to the caller's."""

from __future__ import annotations

import operator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from counted import Counted, assert_refused, each_mode
from declax.transforms.branching import switch
from strategies import build, modes_and_recipes, objects_of, on_state, recipes, same_graph, set_some

# ================================================================= against raw JAX, and against calls without one


@given(
    modes_and_recipes(),
    st.lists(st.lists(st.integers(0, 7), max_size=3), min_size=1, max_size=3),
    st.integers(-1, 4),
    st.booleans(),
)
def test_random_models_against_lax_on_explicit_state(moded, branches, index, is_traced):
    mode, recipe = moded
    model = build(recipe)
    graphdef, state = dx.split(model)

    def run(model, index):
        return switch(index, [partial(set_some, numbers) for numbers in branches], model, **mode)

    expected, state = jax.lax.switch(
        index, [on_state(graphdef, partial(set_some, numbers)) for numbers in branches], state
    )
    parts = objects_of(model)
    output = (dx.jit(run, **mode) if is_traced else run)(model, index)
    assert all(map(operator.is_, objects_of(model), parts))
    np.testing.assert_allclose(output, expected, rtol=1e-5)
    assert same_graph(model, dx.merge(graphdef, state))


@given(recipes(), st.lists(st.lists(st.integers(0, 7), max_size=3), min_size=1, max_size=3), st.integers(-1, 4))
def test_a_branch_is_a_call_of_it(recipe, branches, index):
    inside, outside = build(recipe), build(recipe)
    known = list(zip(objects_of(inside), objects_of(outside), strict=True))
    functions = [partial(set_some, numbers) for numbers in branches]
    output = dx.jit(lambda m, i: switch(i, functions, m))(inside, index)
    np.testing.assert_allclose(output, functions[max(0, min(index, len(functions) - 1))](outside), rtol=1e-5)
    assert same_graph(inside, outside, known)


@pytest.mark.parametrize("index", [-3, 0, 1, 2, 9])
def test_an_index_out_of_range_is_the_nearest(index):
    functions = [lambda x: x, lambda x: x * 2, lambda x: x * 3]
    assert switch(index, functions, 5) == jax.lax.switch(index, functions, 5)


@each_mode
def test_branches_that_capture(mode):
    models = [Counted(1.0), Counted(2.0), Counted(3.0)]
    branches = [model.step for model in models]

    def run(index):
        return switch(index, branches, jnp.ones(2), **mode)

    for function in (run, dx.jit(run, **mode)):
        for index, model in enumerate(models):
            model.scale.value = model.scale.value * 10
            assert function(index).tolist() == model.scale.value.tolist()
    assert [int(model.seen.value) for model in models] == [2, 2, 2]


# ================================================================= errors


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (
            lambda m: switch(0, [lambda: {"a": 1}, lambda: {"a": 1.0}]),
            "branch 1 differs from branch 0 in structure or type",
        ),
        (lambda m: switch(0, [lambda: {"a": 1}, lambda: {"a": 1.0}]), r"switch, the output\.a: "),
        (lambda m: switch(0, []), "this is not a sequence of functions"),
        (lambda m: switch(0, [lambda: 1, "f"]), "switch, branch 1: this is not a function"),
    ],
)
def test_errors(run, text):
    assert_refused(run, text)
