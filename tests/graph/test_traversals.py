"""Nested mappings as flat ones, and back."""

from __future__ import annotations

import copy
import json
import pickle

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from declax.errors import GraphError
from declax.traversals import empty_node, flatten_mapping, flatten_to_sequence, unflatten_mapping

KEYS = st.one_of(st.text("abc", max_size=2), st.integers(0, 3), st.tuples(st.integers(0, 1)))
LEAVES = st.one_of(st.integers(), st.none(), st.lists(st.integers(), max_size=2))
NESTED = st.recursive(
    st.dictionaries(KEYS, LEAVES, max_size=3),
    lambda inner: st.dictionaries(KEYS, st.one_of(inner, LEAVES), max_size=3),
    max_leaves=8,
)
TEXT_NESTED = st.recursive(
    st.dictionaries(st.text("abc", max_size=2), LEAVES, max_size=3),
    lambda inner: st.dictionaries(st.text("abc", max_size=2), st.one_of(inner, LEAVES), max_size=3),
    max_leaves=8,
)

# ================================================================= there and back


@given(NESTED)
def test_unflattening_is_the_inverse(nested):
    assert unflatten_mapping(flatten_mapping(nested, keep_empty_nodes=True)) == nested
    assert unflatten_mapping(flatten_mapping(nested, keep_empty_nodes=True).items()) == nested


@given(TEXT_NESTED, st.sampled_from(["/", ".", "::"]))
def test_so_it_is_with_a_separator(nested, sep):
    flat = flatten_mapping(nested, keep_empty_nodes=True, sep=sep)
    assert all(isinstance(key, str) for key in flat)
    assert unflatten_mapping(flat, sep=sep) == nested


@given(NESTED)
def test_sequences_have_the_same_pairs(nested):
    assert dict(flatten_to_sequence(nested)) == flatten_mapping(nested)


@given(NESTED)
def test_the_peer_gives_the_same(nested):
    peer = pytest.importorskip("flax.nnx").traversals
    assert list(flatten_mapping(nested).items()) == list(peer.flatten_mapping(nested).items())
    assert flatten_to_sequence(nested) == peer.flatten_to_sequence(nested)
    kept = peer.flatten_mapping(nested, keep_empty_nodes=True)
    theirs = {path: empty_node if value is peer.empty_node else value for path, value in kept.items()}
    assert flatten_mapping(nested, keep_empty_nodes=True) == theirs
    flat = flatten_mapping(nested)
    assert unflatten_mapping(flat) == peer.unflatten_mapping(flat)

    def is_short(path, value):
        return len(path) == 1

    assert flatten_mapping(nested, is_leaf=is_short) == peer.flatten_mapping(nested, is_leaf=is_short)
    assert flatten_to_sequence(nested, is_leaf=is_short) == peer.flatten_to_sequence(nested, is_leaf=is_short)


def test_what_is_left_out_and_what_is_kept():
    nested = {"a": 1, "b": {"c": 2, "d": {}}}
    assert flatten_mapping(nested) == {("a",): 1, ("b", "c"): 2}
    assert flatten_mapping(nested, keep_empty_nodes=True)[("b", "d")] is empty_node
    assert flatten_mapping({}, keep_empty_nodes=True) == {}
    assert flatten_to_sequence({"a": {}}) == []
    assert unflatten_mapping({(): empty_node}) == {}
    assert unflatten_mapping({("a",): empty_node}) == {"a": {}}


def test_mappings_taken_whole():
    seen = []

    def is_leaf(path, value):
        seen.append((path, value))
        return path == ("a", "b")

    assert flatten_mapping({"a": {"b": {"c": 1}, "d": 2}}, is_leaf=is_leaf) == {("a", "b"): {"c": 1}, ("a", "d"): 2}
    assert [path for path, _ in seen] == [(), ("a",), ("a", "b")]
    assert flatten_mapping({"a": 1}, is_leaf=lambda path, value: True) == {(): {"a": 1}}
    assert flatten_mapping({"a": {}}, is_leaf=lambda path, value: path == ("a",)) == {("a",): {}}


def test_states_are_mappings_too():
    state = dx.State({"a": {"b": 1}})
    assert flatten_mapping({"s": state}) == {("s", "a", "b"): 1}


def test_values_that_are_dicts_are_not_touched():
    value = {"b": 1}
    made = unflatten_mapping({("a",): value})
    assert made["a"] is value
    with pytest.raises(GraphError, match="a path goes through the value at a"):
        unflatten_mapping({("a",): value, ("a", "c"): 2})
    assert value == {"b": 1}


# ================================================================= errors


def test_what_is_no_mapping():
    with pytest.raises(GraphError, match="flatten_mapping: the argument is not a nested mapping"):
        flatten_mapping([1])
    with pytest.raises(GraphError, match="flatten_to_sequence: the argument is not a nested mapping"):
        flatten_to_sequence(3)
    for wrong in (3, [1], ["abc"]):
        with pytest.raises((TypeError, ValueError), match=r"not iterable|cannot unpack|too many values"):
            unflatten_mapping(wrong)


def test_paths_that_contradict_each_other():
    with pytest.raises(GraphError, match=r"a\.b: a path goes through the value at a\."):
        unflatten_mapping({("a",): 1, ("a", "b"): 2})
    with pytest.raises(GraphError, match="two values have the same path, or one lies inside of the other"):
        unflatten_mapping({("a", "b"): 1, ("a",): 2})
    with pytest.raises(GraphError, match="two values have the same path, or one lies inside of the other"):
        unflatten_mapping([(("a",), 1), (("a",), 2)])
    with pytest.raises(GraphError, match="a path goes through the value at a"):
        unflatten_mapping({("a",): empty_node, ("a", "b"): 1})
    with pytest.raises(GraphError, match="a value at the empty path would be the whole mapping"):
        unflatten_mapping({(): 1})


def test_separators():
    with pytest.raises(GraphError, match="the keys of this path cannot be joined by a separator"):
        flatten_mapping({"a/b": {"c": 1}}, sep="/")
    with pytest.raises(GraphError, match="the keys of this path cannot be joined by a separator"):
        flatten_mapping({"a": {0: 1}}, sep="/")
    with pytest.raises(GraphError, match="this is not a path"):
        unflatten_mapping({("a",): 1}, sep="/")
    with pytest.raises(GraphError, match="this is not a path") as caught:
        unflatten_mapping({"a/b": 1})
    assert 'sep="/"' in str(caught.value)
    with pytest.raises(GraphError, match="the keys of this path cannot be joined by a separator"):
        flatten_mapping({"a": 1}, sep="")
    with pytest.raises(ValueError, match="empty separator"):
        unflatten_mapping({"a": 1}, sep="")


def test_a_mapping_inside_of_itself():
    endless = {"a": {}}
    endless["a"]["b"] = endless
    with pytest.raises(GraphError, match=r"a\.b: the mapping here contains itself"):
        flatten_mapping(endless)
    twice = {"c": 1}
    assert flatten_mapping({"a": twice, "b": twice}) == {("a", "c"): 1, ("b", "c"): 1}


def test_any_depth():
    deep = {"leaf": 1}
    for _ in range(10_000):
        deep = {"k": deep}
    flat = flatten_mapping(deep)
    assert list(map(len, flat)) == [10_001]
    again = unflatten_mapping(flat)
    assert flatten_mapping(again) == flat


# ================================================================= the sentinel


def test_the_empty_node():
    assert repr(empty_node) == "empty_node"
    assert copy.deepcopy(empty_node) is empty_node
    assert pickle.loads(pickle.dumps(empty_node)) is empty_node
    assert jax.tree.leaves({"a": empty_node, "b": 1}) == [1]
    assert jax.tree.map(lambda x: x + 1, {"a": empty_node, "b": 1}) == {"a": empty_node, "b": 2}


def test_json_is_a_round_trip():
    nested = {"a": {"b": 1}, "c": 2}
    assert unflatten_mapping(json.loads(json.dumps(flatten_mapping(nested, sep="/"))), sep="/") == nested
