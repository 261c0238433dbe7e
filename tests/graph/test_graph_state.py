"""States that have their GraphDef with them."""

from __future__ import annotations

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax.errors import FilterError, GraphError


class Model(dx.Module):
    def __init__(self):
        self.linear = dx.Linear(2, 3, rngs=dx.Rngs(0))
        self.norm = dx.BatchNorm(3, rngs=dx.Rngs(0))
        self.tied = self.linear


def test_one_state():
    model = Model()
    state = dx.unpack(model)
    assert isinstance(state, dx.State)
    assert state.graphdef is dx.graphdef(model)
    assert state.linear.kernel.value is model.linear.kernel.value
    made = dx.merge(state)
    assert isinstance(made, Model)
    assert made.tied is made.linear


def test_states_by_filter():
    model = Model()
    params, stats = dx.unpack(model, dx.Param, dx.BatchStat)
    assert dx.state(dx.merge(params, stats)) == dx.state(model)
    assert dx.state(dx.merge(stats, params)) == dx.state(model)
    (only,) = (dx.unpack(model, ...),)
    assert dx.merge(only).tied
    with pytest.raises(FilterError, match="no filter matches this leaf"):
        dx.unpack(model, dx.Param)


def test_parts_are_missed():
    params, _ = dx.unpack(Model(), dx.Param, ...)
    with pytest.raises(GraphError, match="the State does not fit the graph at 2 paths"):
        dx.merge(params)


def test_merge_copies_where_asked():
    state = dx.unpack(Model())
    assert dx.merge(state).linear.kernel.value is state.linear.kernel.value
    assert dx.merge(state, copy=True).linear.kernel.value is not state.linear.kernel.value


def test_as_a_pytree():
    state = dx.unpack(Model())
    doubled = jax.tree.map(lambda x: 2 * x, state)
    assert doubled.graphdef is state.graphdef
    np.testing.assert_array_equal(dx.merge(doubled).linear.kernel.value, 2 * state.linear.kernel.value)
    keyed = jax.tree_util.tree_flatten_with_path(state)[0]
    plain = jax.tree_util.tree_flatten_with_path(dx.state(dx.merge(state)))[0]
    assert [jax.tree_util.keystr(k) for k, _ in keyed] == [jax.tree_util.keystr(k) for k, _ in plain]


def test_through_jit():
    @jax.jit
    def forward(state, x):
        model = dx.merge(state)
        return model.linear(x), dx.unpack(model)

    state = dx.unpack(Model())
    y, after = forward(state, jnp.ones(2))
    assert y.shape == (3,)
    assert after.graphdef is state.graphdef
    assert dx.merge(after).tied is not None


def test_a_change_of_what_was_read_is_in_what_is_merged():
    state = dx.unpack(Model())
    state.linear.kernel.value = jnp.zeros((2, 3))
    assert not dx.merge(state).linear.kernel.value.any()
    assert not jax.tree.leaves(state)[1].any()


def test_copies_and_pickles():
    state = dx.unpack(Model())
    for made in (copy.copy(state), copy.deepcopy(state), pickle.loads(pickle.dumps(state))):
        assert made.graphdef is state.graphdef
        assert made == state
        assert dx.merge(made).tied is not None


def test_parts_of_it_have_no_structure_of_their_own():
    state = dx.unpack(Model())
    assert type(state.linear) is dx.State
    params, rest = state.split(dx.Param, ...)
    assert dx.state(dx.merge(state.graphdef, params, rest)) == state.filter(...)


@pytest.mark.parametrize("function", [dx.split, dx.pop])
def test_a_state_is_no_model(function):
    for state in (dx.state(Model()), dx.unpack(Model())):
        with pytest.raises(GraphError, match="a State is not a graph"):
            function(state, dx.Param)


def test_a_state_is_its_own_state():
    model = Model()
    for state in (dx.state(model), dx.unpack(model)):
        assert dx.state(state) is state
        assert dx.state(state, dx.Param) == state.filter(dx.Param) == dx.state(model, dx.Param)
        params, rest = dx.state(state, dx.Param, ...)
        assert params == state.filter(dx.Param)
        assert len(params.leaves) + len(rest.leaves) == len(state.leaves)
        own, of_params = dx.state(state, copy=True), dx.state(state, dx.Param, copy=True)
        assert own == state
        assert of_params == params
        for copied in (own, of_params):
            assert not any(leaf is other for leaf in copied.leaves for other in state.leaves if hasattr(leaf, "dtype"))
