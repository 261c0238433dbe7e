"""States as functions take them; FlatState; pure dicts; differences."""

from __future__ import annotations

import copy
import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from declax.errors import FilterError, GraphError, TraceContextError
from declax.statelib import (
    diff,
    filter_state,
    from_flat_state,
    map_state,
    merge_state,
    replace_by_pure_dict,
    restore_int_paths,
    split_state,
    to_flat_state,
    to_pure_dict,
)
from strategies import graphs


def state_of() -> dx.State:
    return dx.State(
        {
            "head": {"kernel": dx.Param(jnp.ones((2, 3)), tag="x"), "bias": dx.Param(jnp.zeros(3))},
            "blocks": {0: dx.BatchStat(jnp.zeros(2)), 1: jnp.zeros(1)},
        }
    )


LEAVES = st.one_of(
    st.integers(0, 9),
    st.integers(0, 9).map(lambda i: dx.Param(float(i))),
    st.integers(0, 9).map(lambda i: dx.BatchStat(np.arange(i % 3), tag=f"t{i % 2}")),
)
KEYS = st.one_of(st.sampled_from("abc"), st.integers(0, 3))
STATES = st.recursive(
    st.dictionaries(KEYS, LEAVES, max_size=3),
    lambda inner: st.dictionaries(KEYS, st.one_of(inner, LEAVES), max_size=3),
    max_leaves=6,
).map(dx.State)


# ================================================================= flat states


@given(STATES)
def test_flat_states_are_a_round_trip(state):
    assert from_flat_state(to_flat_state(state)) == state
    assert from_flat_state(dict(to_flat_state(state))) == state
    assert from_flat_state(reversed(list(to_flat_state(state)))) == state
    assert to_flat_state(state).to_nested_state() == state
    assert jax.tree.structure(from_flat_state(to_flat_state(state))) == jax.tree.structure(state)


@given(graphs())
def test_also_those_of_models(model):
    state = dx.state(model)
    assert from_flat_state(to_flat_state(state)) == state


def test_flat_states_are_sequences():
    flat = to_flat_state(state_of())
    assert len(flat) == 4
    assert flat.paths == (("blocks", 0), ("blocks", 1), ("head", "bias"), ("head", "kernel"))
    assert [type(value).__name__ for value in flat.leaves] == ["BatchStat", "ArrayImpl", "Param", "Param"]
    assert flat[0] == (("blocks", 0), flat.leaves[0])
    assert isinstance(flat[1:], dx.FlatState)
    assert flat[1:].paths == flat.paths[1:]
    assert list(flat)[-1][1] is flat.leaves[-1]
    assert dict(flat).keys() == set(flat.paths)


def test_flat_states_compare_by_value():
    assert to_flat_state(state_of()) == to_flat_state(state_of())
    assert to_flat_state(state_of()) != to_flat_state(state_of())[:3]
    assert to_flat_state(state_of()) != to_flat_state(state_of().map(lambda path, value: 0))
    other = state_of()
    other["blocks"][1] = jnp.ones(1)
    assert to_flat_state(state_of()) != to_flat_state(other)
    assert to_flat_state(state_of()) != 3
    with pytest.raises(TypeError, match="unhashable"):
        hash(to_flat_state(state_of()))


def test_flat_states_split_filter_and_merge():
    flat = to_flat_state(state_of())
    params, rest = flat.split(dx.Param, ...)
    assert params.paths == (("head", "bias"), ("head", "kernel"))
    assert params.leaves[0] is flat.leaves[2]
    assert flat.filter(dx.BatchStat).paths == (("blocks", 0),)
    assert [part.paths for part in flat.filter(dx.BatchStat, None)] == [(("blocks", 0),), ()]
    assert flat.split(...) == flat
    assert dx.FlatState.merge(rest, params) == flat
    assert dx.FlatState.merge([(("a",), 1)], {("a",): 2}) == dx.FlatState([(("a",), 2)])
    with pytest.raises(FilterError, match=r"FlatState\.split, .*: no filter matches this leaf\. "):
        flat.split(dx.Param, dx.BatchStat)


@pytest.mark.parametrize("function", [split_state, filter_state])
def test_parts_of_what_is_not_a_state(function):
    """Of a nested mapping they are as of its State; the error for anything else names what was given."""
    named, rest = function({"a": {"b": dx.Param(1)}, "c": 2}, dx.Param, ...)
    assert (named, rest) == (dx.State({"a": {"b": dx.Param(1)}}), dx.State({"c": 2}))
    with pytest.raises(FilterError, match=r"State\.split, .*: no filter matches this leaf"):
        split_state({"c": 2}, dx.Param)
    with pytest.raises(GraphError, match="a State requires a nested mapping, or pairs of key and value") as caught:
        function(3, dx.Param)
    assert caught.value.got == "int 3"


def test_flat_states_from_parts():
    made = dx.FlatState.from_sorted_keys_values((("b",), ("a",)), [1, 2])
    assert made.paths == (("b",), ("a",))
    assert dx.FlatState([(("b",), 1), (("a",), 2)], sort=True).paths == (("a",), ("b",))
    assert dx.FlatState([(["b", 0], 1), (("b", "x"), 2), (("b", None), 3)], sort=True).paths == (
        ("b", 0),
        ("b", None),
        ("b", "x"),
    )
    with pytest.raises(GraphError, match="a path is a tuple of keys"):
        dx.FlatState([("ab", 1)])
    with pytest.raises(GraphError, match="a path is a tuple of keys"):
        from_flat_state({"a": 1})
    with pytest.raises(GraphError, match="two leaves have the same path"):
        dx.FlatState([(("a",), 1), (("a",), 2)]).to_nested_state()


def test_flat_states_are_pytrees():
    flat = to_flat_state(state_of())
    assert [leaf.shape for leaf in jax.tree.leaves(flat)] == [(2,), (1,), (3,), (2, 3)]
    doubled = jax.tree.map(lambda x: x + 1, flat)
    assert isinstance(doubled, dx.FlatState)
    assert doubled.leaves[3].tag == "x"
    assert doubled.leaves[3].value[0, 0] == 2
    pairs, structure = jax.tree_util.tree_flatten_with_path(flat)
    assert [jax.tree_util.keystr(path) for path, _ in pairs][::3] == [
        "[('blocks', 0)].value",
        "[('head', 'kernel')].value",
    ]
    assert structure == jax.tree.structure(to_flat_state(state_of()))
    assert structure != jax.tree.structure(flat[:2])
    seen = jax.tree_util.tree_map_with_path(lambda path, x: jax.tree_util.keystr(path), flat)
    assert seen[1] == (("blocks", 1), "[('blocks', 1)]")
    assert jax.jit(lambda f: jax.tree.map(lambda x: x * 2, f))(flat) == jax.tree.map(lambda x: x * 2, flat)


def test_flat_states_are_copied():
    flat = to_flat_state(state_of())
    for made in (copy.copy(flat), copy.deepcopy(flat), pickle.loads(pickle.dumps(flat))):
        assert made == flat
        made.leaves[1] = 0
        assert flat[1][1] is not made[1][1]


def test_flat_states_read_well():
    assert repr(dx.FlatState([(("a",), 1)])) == "FlatState([(('a',), 1)])"
    text = repr(to_flat_state(state_of()))
    assert text.startswith("FlatState([")
    assert "('head', 'kernel')" in text
    assert "tag='x'" in text


def test_states_are_made_of_flat_states():
    model = dx.Linear(2, 3, rngs=dx.Rngs(0))
    graphdef, state = dx.split(model)
    flat = state.map(lambda path, value: value.copy(value.value * 0 + 5)).flat_state()
    assert dx.State(flat) == flat.to_nested_state()
    assert dx.State(flat).definition is state.definition
    dx.update(model, flat)
    assert model.kernel.value.tolist() == [[5.0] * 3] * 2
    assert dx.merge(graphdef, flat).bias.value.tolist() == [5.0] * 3
    assert dx.State(dx.FlatState([(("b",), 1), (("a", "x"), 2)])).paths == (("b",), ("a", "x"))
    with pytest.raises(GraphError, match="two leaves have the same path"):
        dx.State(dx.FlatState([(("a",), 1), (("a",), 2)]))


# ================================================================= pure dicts


def test_pure_dicts_of_states():
    pure = to_pure_dict(state_of())
    assert type(pure["head"]) is dict
    assert isinstance(pure["head"]["kernel"], jax.Array)
    assert pure["blocks"][1].shape == (1,)
    kinds = to_pure_dict(state_of(), lambda value: type(value).__name__)
    assert kinds == {"blocks": {0: "BatchStat", 1: "ArrayImpl"}, "head": {"bias": "Param", "kernel": "Param"}}
    assert to_pure_dict(state_of()["blocks"]).keys() == {0, 1}


@given(STATES)
def test_pure_dicts_are_put_back(state):
    zeros = state.map(
        lambda path, value: value.copy(jnp.zeros(jnp.shape(value.raw_value))) if hasattr(value, "raw_value") else 0
    )
    zeros.replace_by_pure_dict(state.to_pure_dict())
    assert zeros == state


def test_replacing_keeps_kinds_and_metadata():
    state = state_of()
    kernel = state.head.kernel
    bias = state["head"]["bias"]
    assert replace_by_pure_dict(state, {"head": {"kernel": jnp.full((2, 3), 5.0)}, "blocks": {1: np.ones(1)}}) is None
    assert state.head.kernel.value[0, 0] == 5
    assert state.head.kernel.tag == "x"
    assert kernel.value[0, 0] == 5
    assert state.blocks[1][0] == 1
    assert bias.value.tolist() == [0.0] * 3
    state["head"].replace_by_pure_dict({"bias": jnp.ones(3)})
    assert bias.value.tolist() == [1.0] * 3
    before = state.definition
    state.replace_by_pure_dict(state_of())
    assert state == state_of()
    assert state.definition is before
    state.replace_by_pure_dict({})
    assert state == state_of()


def test_replacing_with_a_function():
    state = state_of()
    seen = []

    def replace(old, new):
        seen.append((type(old).__name__, new))
        return old.replace(jnp.full(7, new)) if isinstance(old, dx.Param) else jnp.full(5, new)

    state.replace_by_pure_dict({"head": {"bias": 1.0}, "blocks": {0: 2.0, 1: 3.0}}, replace)
    assert seen == [("Param", 1.0), ("BatchStat", 2.0), ("ArrayImpl", 3.0)]
    assert state.head.bias.shape == (7,)
    assert isinstance(state.blocks[0], dx.BatchStat)
    assert state.blocks[0].shape == (5,)
    assert state.blocks[1].shape == (5,)
    state.replace_by_pure_dict({"head": {"bias": 1.0}}, lambda old, new: dx.Cache(new))
    assert isinstance(state.head.bias, dx.Cache)


def test_all_that_does_not_fit_is_listed():
    state = state_of()
    kernel = state.head.kernel
    wrong = {
        "head": {"kernle": jnp.ones((2, 3)), "bias": jnp.zeros(4)},
        "blocks": 3,
        "more": {"x": 1},
    }
    with pytest.raises(
        GraphError, match="the values do not fit the State at 3 paths, and nothing was changed"
    ) as caught:
        state.replace_by_pure_dict(wrong)
    text = str(caught.value)
    assert "head.kernle: there is no such path; did you mean 'kernel'?" in text
    assert "blocks: expected a mapping of 0, 1, got int 3" in text
    assert "more: there is no such path" in text
    assert "restore_int_paths" not in text
    assert state == state_of()
    assert state.head.kernel is kernel
    with pytest.raises(GraphError, match="the argument is not a nested mapping"):
        state.replace_by_pure_dict([1])
    assert state == state_of()


def test_values_that_are_trees():
    state = dx.State({"a": dx.Param({"x": jnp.ones(2), "y": [jnp.zeros(3)]})})
    state.replace_by_pure_dict(state.map(lambda path, value: value).to_pure_dict())
    state.replace_by_pure_dict({"a": {"x": jnp.zeros(2), "y": [jnp.ones(3)]}})
    assert state.a.value["y"][0].sum() == 3


def test_integer_keys_that_became_texts():
    state = state_of()
    stored = {"blocks": {"0": jnp.ones(2), "1": jnp.ones(1)}}
    with pytest.raises(GraphError, match=r"blocks\['0'\]: there is no such path; the key is the integer 0: dx\.re"):
        state.replace_by_pure_dict(stored)
    state.replace_by_pure_dict(restore_int_paths(stored))
    assert state.blocks[0].value.sum() == 2


def test_a_failing_function_changes_nothing():
    state = state_of()

    def replace(old, new):
        if new == 2:
            raise RuntimeError("no")
        return jnp.ones(3)

    with pytest.raises(RuntimeError, match="no"):
        state.replace_by_pure_dict({"head": {"bias": 1}, "blocks": {0: 2}}, replace)
    assert state == state_of()


def test_variables_of_another_trace():
    state = state_of()
    bias = state.head.bias

    @jax.jit
    def f(x):
        state.replace_by_pure_dict({"blocks": {1: x[:1]}, "head": {"bias": x}})
        return x

    with pytest.raises(TraceContextError, match="trace"):
        f(jnp.ones(3))
    assert state == state_of()
    assert bias.value.tolist() == [0.0] * 3


def test_restoring_integers():
    assert restore_int_paths({"a": {"0": 1, "b": 2, "-1": 5}, "7": {"2": {}}, 8: 9}) == {
        "a": {0: 1, "b": 2, -1: 5},
        7: {2: {}},
        8: 9,
    }
    kept = {"01": 1, "1_0": 2, " 3": 3, "+4": 4, "-0": 5, "--1": 6, "²": 7, "": 8, "9" * 30: 9, "٣": 10}
    assert restore_int_paths(kept) == kept
    assert restore_int_paths(dx.State({"1": {"2": 1}})) == {1: {2: 1}}
    lists = [{"1": 2}]
    assert restore_int_paths({"3": lists})[3] is lists
    with pytest.raises(GraphError, match="two values have the same path"):
        restore_int_paths({"a": {"1": 1, 1: 2}})
    with pytest.raises(GraphError, match="restore_int_paths: the argument is not a nested mapping"):
        restore_int_paths([1])
    endless = {}
    endless["a"] = endless
    with pytest.raises(GraphError, match="the mapping here contains itself"):
        restore_int_paths(endless)


@given(STATES)
def test_integers_come_back_from_json(state):
    pure = state.map(lambda path, value: 1).to_pure_dict()
    assert restore_int_paths(json.loads(json.dumps(pure))) == pure


# ================================================================= whole states


@given(STATES)
def test_merging_is_the_inverse_of_splitting(state):
    parts = split_state(state, dx.Param, dx.PathContains("a"), ...)
    assert len(parts) == 3
    assert merge_state(*parts) == state
    assert merge_state(*reversed(parts)) == state
    assert jax.tree.structure(merge_state(*parts)) == jax.tree.structure(state)
    assert filter_state(state, dx.Param) == parts[0]
    assert filter_state(state, dx.Param, dx.PathContains("a")) == parts[:2]
    assert split_state(state, ...) == state
    assert parts[0] | parts[1] | parts[2] == state


def test_merging_takes_mappings():
    assert merge_state({"a": 1}, {"b": dx.Param(2)}) == dx.State({"a": 1, "b": dx.Param(2)})
    assert dx.State({"a": 1}) | {"b": 2} == {"a": 1, "b": 2}
    assert {"b": 2} | dx.State({"a": 1, "b": 3}) == dx.State({"a": 1, "b": 3})
    first, second = dx.State({"a": 1, "b": 2}), dx.State({"b": 3, "c": 4})
    assert (first | second).to_pure_dict() == {"a": 1, "b": 3, "c": 4}
    assert (second | first).to_pure_dict() == {"a": 1, "b": 2, "c": 4}
    with pytest.raises(GraphError, match="a path goes through the leaf at a"):
        merge_state({"a": 1}, {"a": {"b": 2}})
    with pytest.raises(GraphError, match="a State requires a nested mapping"):
        merge_state(3)


def test_mapping_over_a_state():
    state = state_of()
    assert map_state(lambda path, value: value, state).definition is state.definition
    assert map_state(lambda path, value: path[-1], state).to_pure_dict()["head"] == {"bias": "bias", "kernel": "kernel"}
    assert map_state(lambda path, value: {"x": 1}, dx.State({"a": 1})) == {"a": {"x": 1}}


# ================================================================= differences


@given(STATES, STATES)
def test_what_only_one_state_has(first, second):
    assert diff(first, second) == first - second
    assert set(diff(first, second).paths) == set(first.paths) - set(second.paths)


def test_arrays_of_numpy_and_of_jax_are_compared_alike():
    nan = float("nan")
    assert dx.State({"a": [np.arange(3, dtype=np.int32)]}) == {"a": [jnp.arange(3)]}
    assert dx.State({"a": jnp.ones(2, jnp.bfloat16)}) == {"a": np.array(jnp.ones(2, jnp.bfloat16))}
    assert dx.State({"a": np.zeros((0,), np.float32)}) == {"a": jnp.zeros((0,))}
    assert dx.State({"a": np.ones(2)}) != {"a": jnp.ones(2)}  # of another dtype
    assert dx.State({"a": jnp.array([1.0, nan])}) != {"a": jnp.array([1.0, nan])}


def test_subtraction():
    first = dx.State({"a": 1, "b": {"c": dx.Param(2), "d": 3}})
    assert first - {"b": {"d": 0}} == {"a": 1, "b": {"c": dx.Param(2)}}
    assert first - first == {}
    assert first - {"b": 1} == first
    with pytest.raises(TypeError, match="unsupported operand"):
        first - 3


def test_the_peer_subtracts_likewise():
    nnx = pytest.importorskip("flax.nnx")
    first, second = {"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 5}, "e": 6}
    theirs = nnx.statelib.diff(nnx.State(first), nnx.State(second))
    assert (dx.State(first) - dx.State(second)).to_pure_dict() == nnx.to_pure_dict(theirs)
    assert list(diff(first, second).flat_state()) == list(nnx.to_flat_state(theirs))


def test_the_peer_does_likewise():
    nnx = pytest.importorskip("flax.nnx")
    nested = {"b": {"x": 1, "y": {0: 2}}, "a": 3}
    ours, theirs = dx.State(nested), nnx.State(nested)
    assert to_pure_dict(ours) == nnx.to_pure_dict(theirs)
    assert list(to_flat_state(ours)) == list(nnx.to_flat_state(theirs))
    assert to_flat_state(ours).paths == nnx.to_flat_state(theirs).paths
    assert jax.tree.leaves(ours) == jax.tree.leaves(theirs)
    assert map_state(lambda path, value: len(path), ours).to_pure_dict() == nnx.to_pure_dict(
        nnx.map_state(lambda path, value: len(path), theirs)
    )
    assert merge_state(nested, {"c": 1}).to_pure_dict() == nnx.to_pure_dict(nnx.merge_state(nested, {"c": 1}))
    stored = {"a": {"0": 1, "b": {"10": 2}}}
    assert restore_int_paths(stored) == nnx.restore_int_paths(stored)
    keys = [[jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(s)] for s in (ours, theirs)]
    assert keys[0] == keys[1]
    for state, replace in ((ours, replace_by_pure_dict), (theirs, nnx.replace_by_pure_dict)):
        replace(state, {"b": {"y": {0: 7}}})
        assert state["b"]["y"][0] == 7
    assert ours.raw_mapping == theirs.raw_mapping


# ---- subclasses of State


class Weights(dx.State):
    __slots__ = ()


def test_states_of_a_subclass():
    state = state_of()
    kernel, rest = split_state(state, dx.PathContains("kernel"), ...)
    made = merge_state(kernel, rest, cls=Weights)
    assert type(made) is Weights
    assert made == merge_state(kernel, rest)
    assert made["head"]["kernel"].tag == "x"
    assert type(merge_state(made, cls=Weights)) is Weights
    again = from_flat_state(to_flat_state(made), cls=Weights)
    assert type(again) is Weights
    assert again == made
    assert from_flat_state({("a", "b"): 1}, cls=dict) == {"a": {"b": 1}}


def test_a_subclass_of_state_is_a_pytree_of_its_class():
    made = merge_state(state_of(), cls=Weights)
    doubled = jax.tree.map(lambda x: 2 * x, made)
    assert type(doubled) is Weights
    assert doubled["head"]["kernel"].tag == "x"
    np.testing.assert_array_equal(doubled["head"]["kernel"].value, 2 * np.ones((2, 3)))
    assert jax.tree.structure(doubled) == jax.tree.structure(made) != jax.tree.structure(state_of())
    assert type(copy.deepcopy(made)) is type(copy.copy(made)) is type(pickle.loads(pickle.dumps(made))) is Weights
    assert copy.deepcopy(made) == made
    assert type(jax.jit(lambda state: state)(made)) is Weights
    assert type(dx.jit(lambda state: state)(made)) is Weights
