"""State: a nested mapping, a flat list, a pytree."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import MutableMapping
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.tree_util import DictKey, GetAttrKey

import declax as dx
from declax._state.definition import StateDef
from declax.errors import FilterError, GraphError, TraceContextError
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
    with pytest.raises(KeyError, match=r"part.kernle: there is no such path; did you mean 'kernel'"):
        state["part"]["kernle"]
    with pytest.raises(AttributeError, match=r"State\.nothing: there is no such path"):
        state.nothing
    with pytest.raises(AttributeError, match="there is no such path; did you mean 'part'"):
        state.prat
    with pytest.raises(KeyError, match="there is no such path"):
        del state["nothing"]
    with pytest.raises(AttributeError, match="there is no such path"):
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
        lambda s: dict(jax.tree_util.tree_flatten_with_path(s)[0])[DictKey("mean"), GetAttrKey("value")],
        lambda s: jax.tree.leaves(s, is_leaf=lambda x: isinstance(x, dx.BatchStat))[1].value,
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
    assert pairs[1][0] == (DictKey("s"), DictKey("mean"), GetAttrKey("value"))


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


# ================================================================= trace levels


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, jax.vmap])
def test_a_read_inside_of_a_trace_leaves_a_state_as_it_was(transform):
    state = dx.State({"a": dx.Param(jnp.ones(())), "b": {"c": dx.Param(jnp.ones(()))}})
    x = jnp.ones(1) if transform is jax.vmap else 1.0
    transform(lambda x: x + state["a"].value + state["b"]["c"].value)(x)
    state["a"].value = jnp.zeros(())
    state.replace_by_pure_dict({"b": {"c": jnp.full((), 2.0)}})
    state["b"]["c"].value += 1.0
    assert state.to_pure_dict() == {"a": 0.0, "b": {"c": 3.0}}


@pytest.mark.parametrize(
    ("write", "path"),
    [
        (lambda s, x: s.__setitem__("a", x), "^a: a State was changed from another"),
        (lambda s, x: setattr(s, "a", dx.Param(x)), "^a: a State was changed from another"),
        (lambda s, x: s["b"].__setitem__("c", x), r"^b\.c: a State was changed from another"),
        (lambda s, x: s.__setitem__("new", {"d": x}), "^new: a State was changed from another"),
        (lambda s, x: s.update({"a": x}), "^a: a State was changed from another"),
        (lambda s, x: s["b"].pop("c"), r"(?s)^b\.c: a State was changed from another.*a deletion"),
        (lambda s, x: s.clear(), "^a: a State was changed from another"),
        (lambda s, x: s.replace_by_pure_dict({"b": {"c": x}}), r"^b\.c: a State was changed from another"),
        (lambda s, x: s["b"].replace_by_pure_dict({"c": x}), r"^b\.c: a State was changed from another"),
        (lambda s, x: setattr(s["a"], "value", x), "^a: a State was changed from another"),
        (lambda s, x: s["a"].set_metadata(note=1), "^a: a State was changed from another"),
    ],
)
@pytest.mark.parametrize("is_read_before", [False, True])
def test_a_state_of_another_trace_refuses_writes(write, path, is_read_before):
    def make():
        return dx.State({"a": dx.Param(jnp.ones(())), "b": {"c": dx.Param(jnp.ones(()))}})

    state = make()
    if is_read_before:
        state["a"], state["b"]["c"]

    def f(x):
        write(state, x)
        return x

    with jax.checking_leaks(), pytest.raises(TraceContextError, match=path):
        jax.jit(f)(1.0)
    assert state == make()
    write(state, jnp.zeros(()))  # its own level
    assert state != make()


def test_states_made_inside_of_a_trace_are_written_there():
    outer = dx.State({"a": dx.Param(jnp.ones(()))})
    kept = []

    @jax.jit
    def f(x):
        made = [copy.copy(outer), copy.deepcopy(outer), outer.split(...), outer.map(lambda path, value: value)]
        made += [outer | {}, outer.flat_state().to_nested_state(), jax.tree.map(lambda leaf: leaf, outer)]
        for state in made:
            state["a"].value = x
            state["a"] = dx.Param(state["a"].value + 1)
        kept.append(made[0])
        return made

    assert [state["a"].value.item() for state in f(2.0)] == [3.0] * 7
    assert outer["a"].value == 1
    with pytest.raises(TraceContextError, match="a State was changed from another trace level than its own"):
        kept[0]["a"] = 1.0


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
    assert state["part"]["bias"].get_metadata(exclude_required=True) == {}


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


@pytest.mark.parametrize("read", [lambda s: s, lambda s: s["b"], lambda s: dx.unpack(model_of())])
def test_deep_copies_own_their_arrays(read):
    state = read(dx.State({"a": dx.Param(jnp.ones(2)), "b": {"c": [jnp.ones(2), None], "d": jax.random.key(0)}}))
    made = copy.deepcopy(state)
    assert type(made) is type(state)
    for leaf in jax.tree.leaves(state):
        leaf.delete()  # as donation does
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(made))
    jax.block_until_ready(jax.tree.map(lambda leaf: leaf.reshape(-1), made))


def test_deep_copies_share_what_was_shared():
    shared = jnp.ones(2)
    both = copy.deepcopy(dx.State({"a": shared, "b": dx.Param(shared)}))
    assert both["a"] is both["b"].value


def test_deep_copies_keep_what_is_no_array():
    def f():
        return None

    @jax.jit
    def trace(x):
        state = dx.State({"x": dx.Param(x)})
        assert copy.deepcopy(state)["x"].raw_value is x
        return x

    trace(1.0)
    assert copy.deepcopy(dx.State({"f": f, "t": "text"})).to_pure_dict() == {"f": f, "t": "text"}


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
    with pytest.raises(FilterError, match="no filter matches this leaf"):
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


# ================================================================= writes


def test_any_order_of_writes_and_reads_is_that_of_a_dict():
    """What has been read in between, flat or nested, makes no difference."""
    reads = [lambda s: None, lambda s: s.leaves, lambda s: s["a"]["x"], repr, lambda s: s["a"].paths, list]
    results = []
    for read in reads:
        state = dx.State({"a": {"x": dx.Param(1), "y": 2}, "b": 3})
        state["b"] = dx.Param(4)
        read(state)
        state["a"]["z"] = 5
        read(state)
        state["c"] = {"d": {"e": 6}}
        read(state)
        del state["a"]["y"]
        state["a"]["x"].value = 7
        read(state)
        state["c"]["d"] = {"e": 8, "f": 9}
        state["A"] = state["a"]
        read(state)
        results.append(state)
    for state in results:
        assert state.paths == (("A", "x"), ("A", "z"), ("a", "x"), ("a", "z"), ("b",), ("c", "d", "e"), ("c", "d", "f"))
        assert state.leaves == [7, 5, 7, 5, 4, 8, 9]
        assert [kind and kind[0] for kind in state.definition.leaf_defs][:5] == [
            dx.Param,
            None,
            dx.Param,
            None,
            dx.Param,
        ]
        assert jax.tree.structure(state) == jax.tree.structure(results[0])


EDITS = st.lists(
    st.tuples(
        st.sampled_from(["set", "delete", "flat", "box", "nested", "pair"]),
        st.lists(st.sampled_from("abc"), min_size=1, max_size=3),
        st.one_of(st.integers(0, 99), st.dictionaries(st.sampled_from("abc"), st.integers(0, 9), max_size=2)),
    ),
    max_size=12,
)


def _set(nested, path, value):
    """Sets an item; an empty dict has no leaf, so neither it nor the dicts that have nothing else are there."""
    key, *rest = path
    if rest:
        _set(nested[key], rest, value)
    else:
        nested[key] = copy.deepcopy(value)
    if nested[key] == {}:
        del nested[key]


def full(nested):
    """A nested dict without its empty ones."""
    parts = {key: full(value) if isinstance(value, dict) else value for key, value in nested.items()}
    return {key: value for key, value in parts.items() if value != {}}


@given(EDITS)
def test_edits_agree_with_plain_dicts(edits):
    state, model = (
        dx.State({"a": {"b": 1}, "b": 2, "c": {"a": {"c": 3}}}),
        {"a": {"b": 1}, "b": 2, "c": {"a": {"c": 3}}},
    )
    for what, path, value in edits:
        node, ours = model, state
        for key in path[:-1]:
            node = node.get(key)
            if not isinstance(node, dict):
                break
            ours = ours[key]
        else:
            if what == "set":
                _set(model, path, value)
                ours[path[-1]] = value
            elif what == "delete" and path[-1] in node:
                del node[path[-1]]
                del ours[path[-1]]
            elif what == "box" and not isinstance(node.get(path[-1], {}), dict):
                ours[path[-1]] = dx.Param(0)
                ours[path[-1]].value = node[path[-1]] = 77
        if what == "flat":
            assert jax.tree.leaves(state) == jax.tree.leaves(model)
        elif what == "nested":
            assert sorted(state) == sorted(model)  # empty dicts come last
        elif what == "pair":
            assert copy.copy(state) == state
    assert state.to_pure_dict() == full(model)
    assert jax.tree.leaves(state) == jax.tree.leaves(model)
    assert len(state) == len(model)


@pytest.mark.parametrize("make", [dx.state, dx.variables])
def test_a_mapping_whose_last_entry_is_deleted_is_empty(make):
    state = make(model_of())
    del state["part"]["kernel"]
    del state["part"]["bias"]
    assert (state["part"], len(state["part"])) == ({}, 0)
    assert "part" in state
    assert copy.copy(state)["part"] == jax.tree.map(lambda x: x, state)["part"] == {}
    assert "part" not in state.to_pure_dict()
    assert list(state.to_pure_dict()) == [name for name in state if name != "part"]
    assert pickle.loads(pickle.dumps(dx.state(state))) == state
    assert jax.jit(lambda state: state)(dx.state(state))["part"] == {}
    assert "part" not in dx.filter_state(state, ...)
    assert state != dx.filter_state(state, ...)
    state["part"]["bias"] = dx.Param(jnp.ones(2))
    del state["part"]
    assert "part" not in state


def test_other_variables_stay_linked_when_one_is_written():
    state = dx.state(model_of())
    mean, kernel = state["mean"], state["part"]["kernel"]
    state["raw"] = jnp.ones(2)
    state["another"] = 1
    del state["blocks"]
    mean.value = jnp.full(3, 6.0)
    assert state["mean"] is mean
    assert state.to_pure_dict()["mean"].tolist() == [6.0] * 3
    state["part"]["kernel"] = dx.Param(jnp.zeros((2, 3)))
    kernel.value = jnp.ones((2, 3))  # no longer of the State
    assert state["part"]["kernel"].value.sum() == 0


def test_a_graphs_own_order_is_kept_until_there_are_new_paths():
    flat = [(("b",), dx.Param(1)), (("a", "x"), 2), (("a", "y"), 3)]
    state = dx.State.from_flat_path(dx.FlatState(flat))
    state["b"] = 5
    state["a"]["x"] = dx.Param(6)
    del state["a"]["y"]
    assert state.paths == (("b",), ("a", "x"))
    assert list(state) == ["b", "a"]
    state["a"]["y"] = 1
    assert state.paths == (("a", "x"), ("a", "y"), ("b",))
    assert list(state) == ["a", "b"]
    assert state == dx.State({"a": {"x": dx.Param(6), "y": 1}, "b": 5})
    assert state == dx.State.from_flat_path(dx.FlatState(reversed(list(state.flat_state()))))


def test_views_of_what_is_gone_are_empty():
    state = dx.State({"a": {"b": {"c": 1}}, "d": 2})
    inner = state["a"]["b"]
    state["a"]["b"] = 5
    assert (len(inner), inner.leaves, inner.to_pure_dict(), list(inner)) == (0, [], {}, [])
    with pytest.raises(GraphError, match=r"a path goes through the leaf at a\.b"):
        inner["x"] = 1
    assert state == {"a": {"b": 5}, "d": 2}
    del state["a"]
    assert inner == {}
    inner["x"] = 1
    assert state == {"a": {"b": {"x": 1}}, "d": 2}
    assert inner == {"x": 1}


def test_writes_that_contradict_themselves_change_nothing():
    state = dx.State({"a": {"b": 1}, "c": 2})
    endless = {}
    endless["x"] = endless
    with pytest.raises(GraphError, match="the mapping here contains itself"):
        state["a"] = endless
    with pytest.raises(TypeError, match="unhashable"):
        state[[]] = 1
    assert state == {"a": {"b": 1}, "c": 2}
    state["c"] = state  # a State is taken as it is now
    assert state.to_pure_dict() == {"a": {"b": 1}, "c": {"a": {"b": 1}, "c": 2}}
    state["c"] = {}
    assert list(state) == ["a"]


def test_names_that_every_state_has():
    state = dx.State({"values": 1})
    with pytest.raises(AttributeError, match="so an entry of this name is reached by its key"):
        state.values = 2
    with pytest.raises(AttributeError, match="every State has an attribute of this name"):
        del state.values
    state["values"] = 2
    assert state["values"] == 2
    assert "part" in dir(dx.state(model_of()))
    assert "leaves" in dir(state)


def test_a_state_that_is_read_as_its_model_has_its_values_only():
    model = dx.Linear(2, 3, rngs=dx.Rngs(0))
    params = dx.state(model, dx.Param)
    assert params.as_model.kernel is params.kernel
    params.as_model.bias.value = jnp.ones(3)
    assert params.to_pure_dict()["bias"].sum() == 3
    with pytest.raises(dx.errors.MissingAttributeError, match=r"State\.in_features: there is no such path"):
        _ = params.as_model.in_features
    with pytest.raises(dx.errors.MissingAttributeError, match=r"state\['as_model'\]"):
        params.as_model = 1
    ema = dx.EMA(model, 0.9)
    assert ema.params.as_model.kernel is ema.params.kernel


def test_what_no_state_can_be_made_of():
    for wrong in (3, [1, 2], "ab"):
        with pytest.raises(GraphError, match="a State requires a nested mapping, or pairs"):
            dx.State(wrong)
    endless = {"a": {}}
    endless["a"]["b"] = endless
    with pytest.raises(GraphError, match=r"a\.b: the mapping here contains itself"):
        dx.State(endless)
    assert dx.State({"a": 1}) != endless


def test_missing_keys_of_large_states_are_told_quickly_and_briefly():
    state = dx.State({f"key{i}": i for i in range(1000)})
    with pytest.raises(KeyError, match="and 980 more"):
        state["kex"]
    assert "kex" not in state
    assert state.get("kex") is None
    assert state.get("key1") == 1
    with pytest.raises(KeyError, match="nothing: the State is empty"):
        dx.State()["a"]


def test_raw_mapping():
    state = dx.state(model_of())
    raw = state.raw_mapping
    assert raw["part"]["kernel"] is state["part"]["kernel"]
    raw["part"]["kernel"].value = jnp.zeros((2, 3))
    assert state.leaves[3].sum() == 0
    assert raw["raw"] is state["raw"]
    assert state["part"].raw_mapping["bias"] is state["part"]["bias"]
    raw["part"].clear()
    assert len(state["part"]) == 2


def test_equality_with_mappings():
    assert dx.State({"a": {"b": 1}}) == {"a": {"b": 1}}
    assert dx.State({"a": dx.Param(1)}) != {"a": 1}
    assert dx.State({"a": jnp.ones(2)}) == {"a": jnp.ones(2)}
    assert dx.State({"a": dx.Param({"x": jnp.ones(2)})}) == dx.State({"a": dx.Param({"x": jnp.ones(2)})})
    assert dx.State({"a": dx.Param({"x": jnp.ones(2)})}) != dx.State({"a": dx.Param({"x": jnp.zeros(2)})})
    assert dx.State({"a": 1}) != 3
    assert dx.State({"a": 1}) != {"a": {"b": 1}}


# ================================================================= any leaves


@pytest.mark.parametrize(
    "leaf",
    [
        jnp.ones(2),
        np.ones(2),
        1,
        2.5,
        True,
        "text",
        None,
        jax.ShapeDtypeStruct((2,), jnp.float32),
        jax.random.key(0),
        (jnp.ones(1), [2]),
    ],
    ids=lambda leaf: type(leaf).__name__,
)
@pytest.mark.parametrize("wrap", [lambda leaf: leaf, dx.Param])
def test_leaves_of_any_type(leaf, wrap):
    state = dx.State({"a": {"b": wrap(leaf)}, "c": wrap(leaf)})
    read = state["a"]["b"]
    assert (read.raw_value if isinstance(read, dx.Param) else read) is leaf
    assert state.to_pure_dict()["c"] is leaf
    assert copy.copy(state) == state
    assert state.split(dx.PathContains("b"), ...)[0].paths == (("a", "b"),)
    assert dx.State.merge(*state.split(dx.PathContains("b"), ...)) == state
    assert dx.State.from_flat_path(state.flat_state()) == state
    assert "'a'" in repr(state)
    assert state == copy.deepcopy(state) or isinstance(leaf, jax.Array)
    state["c"] = wrap(0)
    assert state.to_pure_dict()["c"] == 0
    if not isinstance(leaf, jax.Array) or not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        assert pickle.loads(pickle.dumps(state)) == state


def test_states_inside_of_jit():
    state = dx.state(model_of())

    texts = []

    @jax.jit
    def f(s, other):
        assert s.definition is state.definition
        added = jax.tree.map(lambda x, y: x + y, s, other)
        added["raw"] = added["raw"] * 2
        added["part"]["new"] = dx.Param(added["mean"].value)
        params, rest = added.split(dx.Param, ...)
        rest.replace_by_pure_dict({"mean": rest["mean"].value + 1})
        assert not (params - params)
        texts.append(repr(s))
        return dx.State.merge(params, rest), added["part"].map(lambda path, value: value.copy(value.value * 0))

    with jax.checking_leaks():
        merged, zeros = f(state, state)
    assert "Tracer" in texts[0]
    assert merged["part"]["new"].shape == (3,)
    assert merged["raw"].tolist() == [0.0, 0.0]
    assert merged["mean"].value.tolist() == [1.0] * 3
    assert merged["part"]["kernel"].note == 1
    assert zeros.paths == (("bias",), ("kernel",), ("new",))
    assert state == dx.state(model_of())


def test_tree_map_over_two_states():
    state = dx.state(model_of())
    assert jax.tree.map(lambda x, y: x - y, state, state).leaves[0].tolist() == [0.0]
    with pytest.raises(ValueError, match="different numbers of pytree children"):
        jax.tree.map(lambda x, y: x, state, state.filter(dx.Param))


def test_simple_keys():
    pairs, _ = jax.tree_util.tree_flatten_with_path(dx.state(model_of()))
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in pairs]
    assert names == ["blocks.1.scale.value", "mean.value", "part.bias.value", "part.kernel.value", "raw"]


# ================================================================= depth and size


@pytest.mark.slow
def test_any_depth():
    deep = {"leaf": dx.Param(1), "other": 2}
    for _ in range(10_000):
        deep = {"k": deep}
    state = dx.State(deep)
    assert [len(path) for path in state.paths] == [10_001, 10_001]
    pure = state.to_pure_dict()
    assert dx.State(pure).paths == state.paths
    assert dx.State.from_flat_path(state.flat_state()) == state
    assert state == dx.State(deep)
    assert pickle.loads(pickle.dumps(state)) == state
    assert copy.deepcopy(state) == state
    assert dx.State.merge(*state.split(dx.Param, ...)) == state
    assert state.raw_mapping.keys() == {"k"}
    state.replace_by_pure_dict(pure)
    assert "(...)" in repr(state)
    with pytest.raises(GraphError, match="the values do not fit the State at 1 path"):
        state.replace_by_pure_dict(dx.State.merge({"k": {"k": {"z": 1}}}).to_pure_dict())
    view = state
    for _ in range(1_000):
        view = view["k"]
    view["new"] = 3
    assert [len(path) for path in state.paths] == [10_001, 10_001, 1_001]
    del view["k"]
    assert state.leaves == [3]


def test_the_work_does_not_grow_faster_than_the_state(monkeypatch):
    """Interning a definition takes all paths: a loop that keeps paths and kinds does not do it."""
    made = []
    real = StateDef.of
    monkeypatch.setattr(StateDef, "of", staticmethod(lambda *parts: made.append(1) or real(*parts)))
    state = dx.State({f"l{i}": {"k": dx.Param(i), "b": i} for i in range(500)})
    before = state.definition
    made.clear()
    for i in range(500):
        state[f"l{i}"]["k"] = dx.Param(-i)
        state[f"l{i}"]["b"] = -i
    assert state.definition is before
    assert sum(state.leaves) == -500 * 499
    for i in range(500):
        state[f"l{i}"]["k"].value -= i
    assert not made
    assert sum(state.leaves) == -750 * 499
    for i in range(20):
        state[f"l{i}"]["k"] = i
        state[f"l{i}"]["new"] = i
        del state[f"l{i}"]["b"]
    assert len(state.leaves) == 1000
    assert state["l7"]["k"] == 7
    state.clear()
    assert state.leaves == []


def test_definitions_are_freed_without_the_collector():
    gc.collect()
    gc.disable()
    try:
        state = dx.State({"free": {"me": dx.Param(1)}, "and": 2})
        parts = state.split(dx.Param, ...)
        merged = dx.State.merge(*parts)
        state["free"]["me"].value = 3
        seen = [weakref.ref(s) for s in (state, *parts, merged)]
        del state, parts, merged
        assert [ref() for ref in seen] == [None] * 4
    finally:
        gc.enable()


# ================================================================= threads


def test_threads_may_read_one_state():
    def read(state, barrier):
        barrier.wait()
        for _ in range(20):
            assert state["part"]["kernel"] is state.part.kernel
            assert [leaf.shape for leaf in jax.tree.leaves(state)] == shapes
            assert state["new"]["x"] == 1
            assert state["part"].to_pure_dict().keys() == {"bias", "kernel"}
            assert len(state.flat_state()) == 6
        return state["mean"]

    shapes = [(1,), (3,), (), (3,), (2, 3), (2,)]
    for _ in range(5):
        state = dx.state(model_of())
        state["new"] = {"x": np.ones(())}
        barrier = threading.Barrier(4)
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: read(state, barrier), range(4)))  # noqa: B023  # used within the turn
        assert all(variable is found[0] for variable in found)
        found[0].value = jnp.ones(3)
        assert state.to_pure_dict()["mean"].sum() == 3


# ================================================================= functions that raise, or are none


def test_what_is_no_function():
    state = dx.State({"a": 1})
    with pytest.raises(GraphError, match="this argument must be a function") as caught:
        state.map(3)
    assert (caught.value.where, caught.value.fix) == ("State.map", "State.map(function)")
    with pytest.raises(GraphError, match="this argument must be a function") as caught:
        state.to_pure_dict(3)
    assert caught.value.where == "State.to_pure_dict"
    with pytest.raises(GraphError, match="this argument must be a function"):
        state.replace_by_pure_dict({"a": 2}, 3)
    assert state.a == 1


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("State.map", lambda state: state.map(lambda path, value: 1 // value)),
        ("State.to_pure_dict", lambda state: state.to_pure_dict(lambda value: 1 // value)),
        (
            "replace_by_pure_dict",
            lambda state: state.replace_by_pure_dict(state.to_pure_dict(), lambda old, new: 1 // new),
        ),
    ],
)
def test_an_error_of_a_function_is_kept_and_tells_the_path(name, use):
    state = dx.State({"a": {"b": 1, "c": 0, "d": 1}})
    with pytest.raises(ZeroDivisionError) as caught:
        use(state)
    assert caught.value.__notes__ == [f"raised by the function given to {name}, at a.c"]
    assert state.to_pure_dict() == {"a": {"b": 1, "c": 0, "d": 1}}


def test_a_function_that_ends_an_iteration_ends_nothing_else():
    def stop(path, value):
        raise StopIteration

    with pytest.raises(StopIteration):
        dx.State({"a": 1}).map(stop)


# ================================================================= equality

EQUAL = [
    (jnp.ones(2), jnp.ones(2), True),
    (jnp.ones(2), np.ones(2, np.float32), True),
    (jnp.ones(2), np.ones(2), False),
    (jnp.ones(2), jnp.ones((2, 1)), False),
    (jnp.ones(2), jnp.array([1.0, 2.0]), False),
    (jnp.ones(0), jnp.ones(0), True),
    (jnp.array(jnp.nan), jnp.array(jnp.nan), False),
    (jnp.array(0.0), jnp.array(-0.0), True),
    (jnp.ones(2, jnp.bfloat16), jnp.ones(2, jnp.bfloat16), True),
    (jnp.ones(1), 1.0, False),
    (jnp.ones(20_000), jnp.ones(20_000), True),
    (jnp.ones(20_000), jnp.ones(20_000).at[7].set(0), False),
    (jax.random.key(0), jax.random.key(0), True),
    (jax.random.key(0), jax.random.key(1), False),
    ([jnp.ones(2), 1], [jnp.ones(2), 1], True),
    ([jnp.ones(2), 1], [jnp.ones(2), 2], False),
    ("a", "a", True),
    (1, True, True),
]


@pytest.mark.parametrize(("first", "second", "is_equal"), EQUAL)
def test_equality_of_leaves(first, second, is_equal):
    states = [dx.State({"a": dx.Param(value), "b": value}) for value in (first, second)]
    assert (states[0] == states[1]) is is_equal
    assert (states[1] == states[0]) is is_equal


def test_a_number_of_numpy_and_one_of_python_can_be_equal():
    assert dx.State({"a": np.float32(1)}) == dx.State({"a": 1.0})


def test_one_array_is_equal_to_itself():
    array = jnp.array(jnp.nan)
    assert dx.State({"a": array}) == dx.State({"a": array})
