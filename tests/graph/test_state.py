"""State: a nested mapping, a flat list, a pytree."""

from __future__ import annotations

import copy
import pickle
from collections.abc import MutableMapping

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from declax.errors import FilterError, GraphError
from strategies import Open, graphs


def model_of() -> Open:
    model = Open()
    model.part = Open()
    model.part.kernel = dx.Param(jnp.ones((2, 3)), note=1)
    model.part.bias = dx.Param(jnp.zeros(3))
    model.mean = dx.BatchStat(jnp.zeros(3))
    model.raw = jnp.zeros(2)
    model.blocks = dx.List([Open(), Open()])
    model.blocks[1].scale = dx.Param(jnp.full(1, 5.0))
    return model


# ================================================================= a mapping


def test_it_is_a_nested_mapping():
    state = dx.state(model_of())
    assert isinstance(state, MutableMapping)
    assert list(state) == ["blocks", "mean", "part", "raw"]
    assert len(state) == 4
    assert set(state["part"]) == {"bias", "kernel"}
    assert "part" in state
    assert "nothing" not in state
    assert "kernel" in state["part"]
    assert state.get("nothing", 3) == 3
    assert isinstance(state["part"]["kernel"], dx.Param)
    assert state["part"]["kernel"].note == 1
    assert isinstance(state["raw"], jax.Array)
    assert state["blocks"][1]["scale"].value.tolist() == [5.0]
    assert {key: type(value).__name__ for key, value in state.items()} == {
        "blocks": "State",
        "mean": "BatchStat",
        "part": "State",
        "raw": "ArrayImpl",
    }
    assert not dx.State()


def test_attributes_read_and_write_too():
    state = dx.state(model_of())
    assert state.part.kernel.value.shape == (2, 3)
    state.part.kernel = dx.Param(jnp.zeros(1))
    assert state["part"]["kernel"].value.shape == (1,)
    del state.part.kernel
    assert list(state.part) == ["bias"]
    assert not hasattr(state, "nothing")


def test_missing_paths_are_named():
    state = dx.state(model_of())
    with pytest.raises(KeyError, match=r"part.kernle: the State has nothing at this path; did you mean 'kernel'"):
        state["part"]["kernle"]
    with pytest.raises(AttributeError, match=r"State\.nothing: the State has no such attribute or entry"):
        state.nothing
    with pytest.raises(AttributeError, match="the State has no such attribute or entry; did you mean 'part'"):
        state.prat
    with pytest.raises(KeyError, match="the State has nothing at this path"):
        del state["nothing"]
    with pytest.raises(AttributeError, match="the State has no such attribute or entry"):
        del state.nothing


def test_mappings_methods():
    state = dx.state(model_of())
    state.update({"mean": dx.BatchStat(jnp.ones(3)), "more": {"deep": {"x": 1}}})
    assert state["mean"].value.sum() == 3
    assert state["more"]["deep"]["x"] == 1
    assert state.setdefault("more", 1)["deep"]["x"] == 1
    assert state.pop("raw").shape == (2,)
    assert "raw" not in state
    assert dict(state["more"]["deep"]) == {"x": 1}
    state.clear()
    assert len(state) == 0
    assert jax.tree.leaves(state) == []


def test_whole_subtrees_are_set_and_deleted():
    state = dx.state(model_of())
    state["part"] = {"new": dx.Param(jnp.ones(1))}
    assert list(state["part"]) == ["new"]
    state["blocks"][0] = state["part"]
    assert state["blocks"][0]["new"].value.sum() == 1
    del state["blocks"][1]
    assert list(state["blocks"]) == [0]
    state["part"] = dx.State({"a": {"b": 2}})
    assert state["part"]["a"]["b"] == 2


def test_states_from_mappings_and_pairs():
    state = dx.State({"a": {"b": dx.Param(1.0)}, "c": 2})
    assert state.paths == (("a", "b"), ("c",))
    assert dx.State(state) == state
    assert dx.State([("c", 2), ("a", {"b": dx.Param(1.0)})]) == state
    assert dx.State(state.to_pure_dict()).paths == state.paths
    assert dx.State({}).to_pure_dict() == {}
    assert state.to_pure_dict() == {"a": {"b": 1.0}, "c": 2}


def test_the_order_of_entries_does_not_count():
    first = dx.State({"b": {"y": 1, "x": 2}, "a": 3})
    second = dx.State({"a": 3, "b": {"x": 2, "y": 1}})
    assert first == second
    assert jax.tree.structure(first) == jax.tree.structure(second)
    assert jax.tree.leaves(first) == [3, 2, 1]


def test_paths_that_contradict_each_other():
    with pytest.raises(GraphError, match="a path goes through the leaf at a"):
        dx.State.from_flat_path([(("a",), 1), (("a", "b"), 2)])
    with pytest.raises(GraphError, match="a path goes through the leaf at a"):
        dx.State.from_flat_path([(("a", "b"), 1), (("a",), 2)])
    with pytest.raises(GraphError, match="two leaves have the same path, or one lies inside of the other"):
        dx.State.from_flat_path([(("a",), 1), (("a",), 2)])


# ================================================================= views


def test_nested_views_write_through():
    state = dx.state(model_of())
    part = state["part"]
    kernel = part["kernel"]
    kernel.value = jnp.full((2, 3), 7.0)
    assert state["part"]["kernel"].value[0, 0] == 7
    assert part.leaves[1][0, 0] == 7
    assert any(leaf.ndim == 2 and leaf[0, 0] == 7 for leaf in jax.tree.leaves(state))
    part["bias"] = dx.Param(jnp.full(3, 8.0))
    assert state["part"]["bias"].value[0] == 8
    state["part"]["kernel"] = dx.Param(jnp.full((2, 3), 9.0))
    assert part["kernel"].value[0, 0] == 9
    part["kernel"][0, 0] = 1.0
    assert state["part"]["kernel"].value[0, 0] == 1
    part["kernel"] += 1
    assert state["part"]["kernel"].value[0, 0] == 2


def test_writes_through_a_view_reach_every_way_of_reading():
    def fresh():
        state = dx.state(model_of())
        state["mean"].value = jnp.full(3, 4.0)
        return state

    reads = [
        lambda s: s["mean"].value,
        lambda s: s.flat_state()[1][1].value,
        lambda s: s.to_pure_dict()["mean"],
        lambda s: s.filter(dx.BatchStat)["mean"].value,
        lambda s: s.split(dx.BatchStat, ...)[0]["mean"].value,
        lambda s: dx.State.merge(s, dx.State())["mean"].value,
        lambda s: s.map(lambda path, value: value)["mean"].value,
        lambda s: copy.copy(s)["mean"].value,
        lambda s: copy.deepcopy(s)["mean"].value,
        lambda s: pickle.loads(pickle.dumps(s))["mean"].value,
        lambda s: jax.tree.map(lambda x: x, s)["mean"].value,
        lambda s: dict(jax.tree_util.tree_flatten_with_path(s)[0])[dx.state(model_of()).definition.keys[1],],
        lambda s: s.leaves[1],
        lambda s: dx.merge(dx.graphdef(model_of()), s).mean.value,
    ]
    for read in reads:
        assert read(fresh()).tolist() == [4.0] * 3


def test_metadata_changed_through_a_view_is_kept():
    state = dx.state(model_of())
    state["mean"].set_metadata(note=5)
    assert state["mean"].note == 5
    assert dict(state.flat_state())[("mean",)].note == 5
    assert jax.tree.map(lambda x: x, state)["mean"].note == 5


def test_views_are_pytrees():
    part = dx.state(model_of())["part"]
    assert [x.shape for x in jax.tree.leaves(part)] == [(3,), (2, 3)]
    doubled = jax.tree.map(lambda x: x * 2, part)
    assert doubled["kernel"].value[0, 0] == 2
    assert part["kernel"].value[0, 0] == 1
    assert doubled.paths == (("bias",), ("kernel",))


# ================================================================= flat


def test_flat_state():
    state = dx.state(model_of())
    flat = state.flat_state()
    assert isinstance(flat, dx.FlatState)
    assert len(flat) == 5
    assert flat.paths == state.paths
    assert [path for path, _ in flat] == list(state.paths)
    assert flat[0][0] == ("blocks", 1, "scale")
    assert flat[1:3].paths == state.paths[1:3]
    assert isinstance(flat.leaves[0], dx.Param)
    assert repr(dx.State({"a": 1}).flat_state()) == "FlatState([(('a',), 1)])"
    assert dx.State.from_flat_path(flat) == state
    assert dx.State.from_flat_path(dict(flat)) == state


@given(graphs())
def test_flat_states_are_the_inverse_of_from_flat_path(model):
    state = dx.state(model)
    again = dx.State.from_flat_path(state.flat_state())
    assert again.paths == state.paths
    assert jax.tree.structure(again) == jax.tree.structure(state)
    assert all(a is b for a, b in zip(state.leaves, again.leaves, strict=True))


# ================================================================= a pytree


def test_leaves_are_raw_values():
    state = dx.state(model_of())
    leaves, structure = jax.tree.flatten(state)
    assert [type(leaf).__name__ for leaf in leaves] == ["ArrayImpl"] * 5
    assert jax.tree.unflatten(structure, leaves) == state
    assert jax.tree.structure(dx.state(model_of())) == structure
    assert hash(structure) == hash(jax.tree.structure(dx.state(model_of())))


def test_keys_of_leaves():
    pairs, _ = jax.tree_util.tree_flatten_with_path({"s": dx.state(model_of())})
    assert [jax.tree_util.keystr(path) for path, _ in pairs] == [
        "['s']['blocks'][1]['scale'].value",
        "['s']['mean'].value",
        "['s']['part']['bias'].value",
        "['s']['part']['kernel'].value",
        "['s']['raw']",
    ]
    ours, theirs = (jax.tree_util.tree_flatten_with_path(dx.state(model_of()))[0][0][0][0] for _ in range(2))
    assert ours == theirs
    assert hash(ours) == hash(theirs)
    assert ours != 3
    assert "scale" in repr(ours)


def test_states_go_through_transforms():
    state = dx.state(model_of())
    doubled = jax.jit(lambda s: jax.tree.map(lambda x: x * 2, s))(state)
    assert doubled["part"]["kernel"].note == 1
    assert doubled["part"]["kernel"].value[0, 0] == 2

    def set_inside(s):
        s["mean"].value = s["mean"].value + 1
        s["part"]["kernel"] = dx.Param(s["part"]["kernel"].value * 3)
        return s

    changed = jax.jit(set_inside)(state)
    assert changed["mean"].value.tolist() == [1.0] * 3
    assert changed["part"]["kernel"].value[0, 0] == 3
    assert state["mean"].value.tolist() == [0.0] * 3
    grads = jax.grad(lambda s: (s["part"]["kernel"].value ** 2).sum())(state)
    assert grads["part"]["kernel"].value[0, 0] == 2


# ================================================================= snapshots


def test_later_changes_of_the_model_do_not_show():
    model = model_of()
    state = dx.state(model)
    _, again = dx.split(model)
    before = copy.deepcopy(state)
    model.mean.value = model.mean + 1
    model.raw = model.raw + 1
    model.part.kernel = dx.Cache(jnp.zeros(1))
    model.part.bias.set_metadata(note=2)
    model.part.bias[0] = 5.0
    model.extra = dx.Param(jnp.zeros(1))
    del model.blocks[1]
    assert state == before
    assert again == before
    assert state.paths == before.paths
    assert state["part"]["bias"].get_metadata() == {}


def test_changes_of_a_state_do_not_show_in_the_model():
    model = model_of()
    state = dx.state(model)
    state["mean"].value = jnp.ones(3)
    state["raw"] = jnp.ones(2)
    state["part"]["bias"][0] = 3.0
    assert model.mean.value.tolist() == [0.0] * 3
    assert model.raw.tolist() == [0.0] * 2
    assert model.part.bias.value.tolist() == [0.0] * 3
    assert dx.state(model)["mean"].value.tolist() == [0.0] * 3


def test_two_states_of_one_model_are_independent():
    model = model_of()
    first, second = dx.state(model), dx.state(model)
    first["mean"].value = jnp.ones(3)
    first["more"] = 1
    assert second["mean"].value.tolist() == [0.0] * 3
    assert "more" not in second
    params = first.filter(dx.Param)
    params["part"]["bias"].value = jnp.full(3, 9.0)
    assert first["part"]["bias"].value.tolist() == [0.0] * 3


# ================================================================= copies


@given(graphs())
def test_copies_are_equal(model):
    state = dx.state(model)
    for made in (copy.copy(state), copy.deepcopy(state), pickle.loads(pickle.dumps(state))):
        assert made == state
        assert made.definition is state.definition


def test_copies_are_independent():
    model = model_of()
    model.host = dx.Param(np.zeros(2))
    state = dx.state(model)
    shallow, deep = copy.copy(state), copy.deepcopy(state)
    shallow["mean"].value = jnp.ones(3)
    deep["mean"].value = jnp.full(3, 2.0)
    assert state["mean"].value.tolist() == [0.0] * 3
    model.host.value[0] = 1  # NumPy arrays change in place
    assert deep["host"].value.tolist() == [0.0, 0.0]


def test_views_are_copied_as_states_of_their_own():
    state = dx.state(model_of())
    for make in (copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))):
        part = make(state["part"])
        assert part == state["part"]
        part["bias"].value = jnp.ones(3)
        assert state["part"]["bias"].value.tolist() == [0.0] * 3


def test_equality():
    assert dx.state(model_of()) == dx.state(model_of())
    other = model_of()
    other.mean.value = jnp.ones(3)
    assert dx.state(other) != dx.state(model_of())
    other = model_of()
    other.mean.set_metadata(note=1)
    assert dx.state(other) != dx.state(model_of())
    assert dx.state(model_of()) != {"a": 1}
    with pytest.raises(TypeError, match="unhashable"):
        hash(dx.State())


# ================================================================= whole states


def test_split_and_filter():
    state = dx.state(model_of())
    params, rest = state.split(dx.Param, ...)
    assert params.paths == (("blocks", 1, "scale"), ("part", "bias"), ("part", "kernel"))
    assert rest.paths == (("mean",), ("raw",))
    assert state.filter(dx.BatchStat).paths == (("mean",),)
    stats, kernels = state.filter(dx.BatchStat, dx.PathContains("kernel"))
    assert (stats.paths, kernels.paths) == ((("mean",),), (("part", "kernel"),))
    assert state.split(...) == state
    assert state["part"].filter(dx.PathIn(("kernel",))).paths == (("kernel",),)
    with pytest.raises(FilterError, match="no filter takes this leaf"):
        state.split(dx.Param, dx.BatchStat)


def test_merge_and_or():
    state = dx.state(model_of())
    params, rest = state.split(dx.Param, ...)
    for merged in (dx.State.merge(params, rest), dx.State.merge(rest, params), rest | params):
        assert merged == state
        assert jax.tree.structure(merged) == jax.tree.structure(state)
    newer = jax.tree.map(lambda x: x + 1, params)
    assert (state | newer)["part"]["bias"].value.tolist() == [1.0] * 3
    assert (newer | state)["part"]["bias"].value.tolist() == [0.0] * 3
    with pytest.raises(TypeError, match="unsupported operand"):
        state | 3


def test_map_sees_paths_and_variables():
    state = dx.state(model_of())
    seen = []

    def note(path, value):
        seen.append(path)
        return value.copy(value.value * 2) if isinstance(value, dx.Param) else value

    mapped = state.map(note)
    assert seen == list(state.paths)
    assert mapped["part"]["kernel"].value[0, 0] == 2
    assert mapped["part"]["kernel"].note == 1
    assert mapped.map(lambda path, value: 0).leaves == [0] * 5


@given(
    st.dictionaries(
        st.sampled_from("abc"), st.dictionaries(st.sampled_from("xyz"), st.integers(), min_size=1), min_size=1
    )
)
def test_a_state_is_the_dict_it_was_made_from(nested):
    state = dx.State(nested)
    assert state.to_pure_dict() == nested
    assert {key: dict(value) for key, value in state.items()} == nested
    assert jax.tree.leaves(state) == jax.tree.leaves(nested)


def test_display():
    text = repr(dx.State({"a": {"b": dx.Param(jnp.ones(2))}, "c": 1}))
    assert "'a'" in text
    assert "Param" in text
    assert "'c': 1" in text
