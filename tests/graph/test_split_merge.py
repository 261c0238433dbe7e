"""Taking graphs apart and putting them together again."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
from collections import OrderedDict, defaultdict, namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from declax._graph.nodes import open_container, put_in_container
from declax.errors import FilterError, GraphError, StatusError
from strategies import Box, Declared, Open, Scale, apply_edits, build, edits, graphs, objects_of, recipes, same_graph

Pair = namedtuple("Pair", ["second", "first"])


def tied() -> Open:
    model = Open()
    model.encoder, model.decoder = Open(), Open()
    model.encoder.kernel = dx.Param(jnp.ones((2, 3)))
    model.decoder.kernel = model.encoder.kernel
    model.decoder.back = model
    model.mean = dx.BatchStat(jnp.zeros(3))
    model.dim, model.sizes = 3, [1, 2]
    return model


# ================================================================= round trips


@given(graphs(roots=True))
def test_merge_is_the_inverse_of_split(model):
    assert same_graph(dx.merge(*dx.split(model)), model)


@given(graphs())
def test_merge_of_several_states_is_the_inverse_of_split(model):
    graphdef, *states = dx.split(model, dx.BatchStat, dx.PathContains("a"), dx.Param, ...)
    assert same_graph(dx.merge(graphdef, *states), model)
    assert same_graph(dx.merge(graphdef, *reversed(states)), model)


@given(graphs())
def test_splitting_twice_gives_the_same_definition(model):
    graphdef, state = dx.split(model)
    again, state_again = dx.split(dx.merge(graphdef, state))
    assert again is graphdef
    assert jax.tree.structure(state) == jax.tree.structure(state_again)
    assert state.paths == state_again.paths


@given(recipes(), edits())
def test_merge_is_the_inverse_of_split_after_any_edit(recipe, todo):
    model = build(recipe)
    dx.split(model)  # whatever was kept of the first look must not be used for the second
    for edit in todo:
        apply_edits(model, [edit])
        assert same_graph(dx.merge(*dx.split(model)), model)


@given(graphs())
def test_pickled_definitions_and_states_merge_to_the_same_graph(model):
    graphdef, state = pickle.loads(pickle.dumps(dx.split(model)))
    assert graphdef is dx.graphdef(model)
    assert same_graph(dx.merge(graphdef, state), model)


@pytest.mark.parametrize("base", [dx.Module, dx.Object])
def test_pickled_definitions_of_a_class_without_an_instance(base, monkeypatch):
    def define():  # as another process does that imports the module
        class Net(base):
            def __init__(self):
                self.weight, self.dim = dx.Param(jnp.ones(3)), 2

        Net.__qualname__ = "Net"
        monkeypatch.setitem(globals(), "Net", Net)
        return Net

    written = pickle.dumps(dx.split(define()()))
    other = define()
    merged = dx.merge(*pickle.loads(written))
    assert type(merged) is other
    assert len(jax.tree.leaves(merged)) == 1
    assert jax.tree.leaves(merged)[0] is (merged.weight.value if base is dx.Module else merged)
    assert same_graph(merged, other())


@given(graphs())
def test_models_with_a_binding_are_copied_and_pickled(model):
    dx.split(model)
    assert same_graph(copy.deepcopy(model), model)
    assert same_graph(pickle.loads(pickle.dumps(model)), model)


@given(graphs())
def test_a_state_goes_through_jax_tree_map(model):
    graphdef, state = dx.split(model)
    doubled = jax.tree.map(lambda x: jnp.asarray(x) * 2, state)
    assert doubled.paths == state.paths
    twice = dx.state(dx.merge(graphdef, doubled))
    for before, after in zip(state.leaves, twice.leaves, strict=True):
        np.testing.assert_allclose(np.asarray(before) * 2, np.asarray(after))


def test_a_merged_model_shares_nothing_mutable_with_the_first():
    model = tied()
    model.parts = dx.data([dx.Param(jnp.ones(2))])
    copied = dx.merge(*dx.split(model))
    originals = set(map(id, objects_of(model)))
    assert not originals & set(map(id, objects_of(copied)))
    copied.sizes.append(9)
    copied.parts.append(1)
    copied.mean.value = copied.mean + 1
    assert model.sizes == [1, 2]
    assert len(model.parts) == 1
    assert model.mean.value.tolist() == [0.0, 0.0, 0.0]


def test_two_merges_of_one_definition_are_independent():
    graphdef, state = dx.split(tied())
    first, second = dx.merge(graphdef, state), dx.merge(graphdef, state)
    first.sizes.append(3)
    first.mean.value = first.mean + 1
    first.mean.set_metadata(note=1)
    first.extra = 3
    assert second.sizes == [1, 2]
    assert second.mean.value.tolist() == [0.0] * 3
    assert second.mean.get_metadata(exclude_required=True) == {}
    assert not hasattr(second, "extra")
    assert same_graph(dx.merge(graphdef, state), second)


def test_merge_can_copy():
    model = tied()
    graphdef, state = dx.split(model)
    assert dx.merge(graphdef, state).mean.value is model.mean.value
    copied = dx.merge(graphdef, state, copy=True)
    assert copied.mean.value is not model.mean.value
    assert same_graph(copied, model)


@pytest.mark.parametrize(
    "pair", [(1, True), (1, 1.0), (0, False), ((1,), (True,)), ([1], [1.0]), ({"a": 1}, {"a": True}), (0.0, -0.0)]
)
def test_equal_statics_of_other_types_are_kept_apart(pair):
    models = []
    for value in pair:
        model = Open()
        model.static = value
        models.append(model)
    for model, value in zip(models, pair, strict=True):
        assert repr(dx.merge(*dx.split(model)).static) == repr(value)


def test_a_node_may_be_open_and_a_dataclass_and_an_object():
    root = Open()
    root.declared = Declared(kernel=dx.Param(jnp.ones(2)), parts=[Open()], sizes=[4])
    root.declared.extra = jnp.zeros(2)
    root.box = Box()
    root.box.things = [jnp.ones(1), {"x": dx.Param(1.0)}]
    root.box.name = "box"
    root.elements = dx.List([Open(), 3, jnp.ones(2)])
    root.entries = dx.Dict(left=root.declared, right="text")
    merged = dx.merge(*dx.split(root))
    assert same_graph(merged, root)
    assert merged.entries.left is merged.declared
    # what came out of merge can be changed as what a constructor made
    del merged.declared.extra
    del merged.box.name
    merged.box.other = 3
    merged.elements.append(jnp.ones(1))
    merged.entries["third"] = dx.Param(1.0)
    assert same_graph(dx.merge(*dx.split(merged)), merged)


# ================================================================= roots


@pytest.mark.parametrize(
    "make",
    [
        lambda m: [m, m],
        lambda m: (m, {"again": m}),
        lambda m: {"b": m, "a": [m.mean]},
        lambda m: Pair(m, jnp.ones(2)),
        lambda m: OrderedDict([("z", m), ("a", m.mean)]),
        lambda m: m.mean,
        lambda m: jnp.ones(2),
        lambda m: {0: m, 1: m.mean},
        lambda m: [],
        lambda m: None,
    ],
    ids=["list", "tuple", "dict", "namedtuple", "ordered", "variable", "array", "int keys", "empty", "none"],
)
def test_any_pytree_may_be_the_root(make):
    root = make(tied())
    graphdef, state = dx.split(root)
    assert same_graph(dx.merge(graphdef, state), root)
    graphdef, *states = dx.split(root, dx.BatchStat, ...)
    assert same_graph(dx.merge(graphdef, *states), root)


def test_variables_that_hold_trees():
    model = Open()
    model.seen = dx.Intermediate((jnp.ones(2), {"x": jnp.zeros(1)}))
    graphdef, state = dx.split(model)
    assert len(jax.tree.leaves(state)) == 2
    assert same_graph(dx.merge(graphdef, state), model)
    assert same_graph(dx.merge(graphdef, jax.tree.map(lambda x: x, state)), model)


# ================================================================= sharing and cycles


def test_sharing_and_cycles_come_back():
    merged = dx.merge(*dx.split(tied()))
    assert merged.encoder.kernel is merged.decoder.kernel
    assert merged.decoder.back is merged


def test_a_shared_variable_is_one_leaf_at_its_first_path():
    paths = dx.state(tied()).paths
    assert paths == (("decoder", "kernel"), ("mean",))


def test_arrays_that_sit_twice_in_a_graph_are_two_leaves():
    array = jnp.ones(2)
    model = Open()
    model.a, model.b = array, dx.Param(array)
    assert len(dx.state(model).leaves) == 2


# ================================================================= order


def test_leaves_are_in_the_order_of_names_not_of_assignment():
    first, second = Open(), Open()
    for model, names in ((first, "abc"), (second, "cab")):
        for name in names:
            setattr(model, name, dx.Param(float(ord(name))))
    assert dx.graphdef(first) is dx.graphdef(second)
    assert dx.state(second).paths == (("a",), ("b",), ("c",))


def test_elements_are_in_the_order_of_their_indices():
    model = Open()
    model.layers = dx.List([dx.Param(float(i)) for i in range(12)])
    model.plain = dx.data([jnp.float32(i) for i in range(12)])
    state = dx.state(model)
    assert [path[1] for path in state.paths] == [*range(12), *range(12)]
    assert [float(x) for x in state.leaves] == [float(i) for i in (*range(12), *range(12))]


def test_the_order_is_the_peers():
    nnx = pytest.importorskip("flax.nnx")

    def make(lib, data):
        class Net(lib.Module):
            def __init__(self, rngs):
                self.norm = lib.BatchNorm(2, rngs=rngs)
                self.blocks = lib.List([lib.Linear(2, 2, rngs=rngs) for _ in range(11)])
                self.alpha = lib.Param(jnp.ones(2))
                self.holder = data({"z": lib.Param(jnp.ones(1)), "b": lib.Param(jnp.ones(1))})
                self.tied = self.blocks[0]

        return Net(lib.Rngs(0, params=1))

    ours = dx.state(make(dx, dx.data))
    theirs = nnx.state(make(nnx, nnx.data))
    assert list(ours.paths) == [path for path, _ in nnx.to_flat_state(theirs)]
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(mine, other)


# ================================================================= filters


def test_filters_make_disjoint_states():
    model = tied()
    model.special = Scale(jnp.ones(1))
    graphdef, special, params, rest = dx.split(model, Scale, dx.Param, ...)
    assert special.paths == (("special",),)
    assert params.paths == (("decoder", "kernel"),)
    assert rest.paths == (("mean",),)
    assert same_graph(dx.merge(graphdef, rest, special, params), model)


def test_the_first_filter_that_takes_a_leaf_has_it():
    model = tied()
    model.special = Scale(jnp.ones(1))
    _, params, special, rest = dx.split(model, dx.Param, Scale, ...)
    assert len(special) == 0
    assert params.paths == (("decoder", "kernel"), ("special",))
    assert rest.paths == (("mean",),)


def test_filters_that_leave_something_over_are_an_error():
    model = tied()
    with pytest.raises(FilterError, match="no filter matches this leaf") as caught:
        dx.split(model, dx.BatchStat)
    assert "decoder.kernel" in str(caught.value)
    with pytest.raises(FilterError, match="match all leaves, so the filters after them match none"):
        dx.split(model, ..., dx.Param)
    with pytest.raises(FilterError, match="this is not a filter"):
        dx.split(model, 3)


def test_state_leaves_out_what_no_filter_takes():
    model = tied()
    assert dx.state(model, dx.BatchStat).paths == (("mean",),)
    stats, params = dx.state(model, dx.BatchStat, dx.Param)
    assert (stats.paths, params.paths) == ((("mean",),), (("decoder", "kernel"),))
    assert len(dx.state(model, dx.Cache)) == 0


def test_variables_is_state():
    model = tied()
    assert dx.variables(model, dx.Param) == dx.state(model, dx.Param)


@given(graphs(), st.permutations([dx.Param, dx.BatchStat, dx.Cache]))
def test_states_of_filters_partition_the_leaves(model, order):
    _, *states = dx.split(model, *order, ...)
    together = sorted((path for state in states for path in state.paths), key=repr)
    assert together == sorted(dx.state(model).paths, key=repr)
    for kind, state in zip(order, states, strict=False):
        assert all(isinstance(value, kind) for _, value in state.flat_state())


# ================================================================= definitions


def test_definitions_are_interned_hashable_and_immutable():
    a, b = dx.graphdef(tied()), dx.graphdef(tied())
    assert a is b
    assert a == b
    assert hash(a) == hash(b)
    assert copy.copy(a) is a
    assert copy.deepcopy(a) is a
    assert pickle.loads(pickle.dumps(a)) is a
    assert {a: 1}[b] == 1
    other = tied()
    other.dim = 4
    assert dx.graphdef(other) is not a
    assert dx.graphdef(other) != a
    assert repr(a).startswith("GraphDef(Open")


def test_definitions_differ_where_structures_differ():
    def variants():
        for change in (
            lambda m: None,
            lambda m: setattr(m, "extra", 1),
            lambda m: setattr(m, "extra", dx.data(1)),
            lambda m: setattr(m.mean, "note", 1),
            lambda m: setattr(m.mean, "note", True),
            lambda m: setattr(m, "mean", dx.Cache(jnp.zeros(3))),
            lambda m: setattr(m.decoder, "kernel", dx.Param(jnp.ones((2, 3)))),
            lambda m: setattr(m.decoder, "back", m.encoder),
            lambda m: m.sizes.append(3),
            lambda m: setattr(m, "sizes", (1, 2)),
            lambda m: setattr(m, "parts", dx.data([])),
            lambda m: setattr(m, "parts", dx.data(())),
            lambda m: setattr(m, "parts", dx.List([])),
        ):
            model = tied()
            change(model)
            yield dx.graphdef(model)

    found = list(variants())
    assert len(set(map(id, found))) == len(found)


def test_definitions_are_freed_with_their_last_user():
    from declax._graph.flattening import GraphDef

    gc.collect()
    before = len(GraphDef._interned)
    for i in range(20):
        model = Open()
        model.unique = f"only here {i}"
        dx.split(model)
        del model
    gc.collect()
    assert len(GraphDef._interned) <= before + 1


def test_a_definition_is_a_static_argument_of_jax():
    model = tied()
    graphdef, state = dx.split(model)

    @jax.jit
    def forward(graphdef, state):
        return dx.merge(graphdef, state).mean.value + 1

    assert forward(graphdef, state).tolist() == [1.0] * 3
    assert jax.tree.leaves(graphdef) == []
    assert jax.tree.map(lambda x: x, graphdef) is graphdef


def test_models_go_through_jax_jit_by_split_and_merge():
    model = tied()
    graphdef, state = dx.split(model)

    @jax.jit
    def step(graphdef, state):
        inner = dx.merge(graphdef, state)
        assert inner.encoder.kernel is inner.decoder.kernel
        inner.encoder.kernel.value = inner.encoder.kernel * 2
        return dx.state(inner)

    dx.update(model, step(graphdef, state))
    assert model.decoder.kernel.value.tolist() == (2 * jnp.ones((2, 3))).tolist()
    assert model.encoder.kernel is model.decoder.kernel


# ================================================================= states that do not fit


def test_merge_takes_no_unrelated_state():
    graphdef, state = dx.split(tied())
    _, other = dx.split(Declared(kernel=dx.Param(jnp.ones(2))))
    with pytest.raises(GraphError, match="the State does not fit the graph at 3 paths") as caught:
        dx.merge(graphdef, other)
    text = str(caught.value)
    assert "kernel" in text
    assert "mean: expected a BatchStat, got nothing" in text
    with pytest.raises(GraphError, match="expected one value, got a second one in another State"):
        dx.merge(graphdef, state, state.filter(dx.BatchStat))
    with pytest.raises(GraphError, match="got nothing"):
        dx.merge(graphdef, state.filter(dx.Param))


def test_merge_takes_no_other_kind_of_variable():
    graphdef, state = dx.split(tied())
    state["mean"] = dx.Cache(jnp.zeros(3))
    with pytest.raises(GraphError, match="mean: expected a BatchStat, got a Cache"):
        dx.merge(graphdef, state)


def test_merge_names_the_nearest_path():
    graphdef, state = dx.split(tied())
    state["maen"] = state["mean"]
    del state["mean"]
    with pytest.raises(GraphError, match="did you mean 'mean'"):
        dx.merge(graphdef, state)


def test_merge_takes_metadata_from_the_state():
    graphdef, state = dx.split(tied())
    state["mean"] = dx.BatchStat(jnp.zeros(3), note=7)
    merged = dx.merge(graphdef, state)
    assert merged.mean.get_metadata(exclude_required=True) == {"note": 7}
    assert dx.merge(*dx.split(tied())).mean.get_metadata(exclude_required=True) == {}


def test_merge_takes_raw_values_for_variables():
    graphdef, state = dx.split(tied())
    merged = dx.merge(graphdef, dx.State(state.to_pure_dict()))
    assert same_graph(merged, tied())
    assert same_graph(dx.merge(graphdef, state.to_pure_dict()), tied())


def test_merge_wants_a_definition():
    graphdef, state = dx.split(tied())
    with pytest.raises(GraphError, match="the first argument is not a GraphDef"):
        dx.merge(state, graphdef)


def test_a_static_object_without_a_hash_is_kept_as_it_is():
    class Odd:
        __hash__ = None

    model = Box()
    model.odd = Odd()
    assert dx.merge(*dx.split(model)).odd is model.odd


# ================================================================= keys of containers


def test_keys_that_are_equal_but_of_other_types_are_kept():
    param = dx.Param(jnp.ones(2))
    graphdefs = [dx.graphdef({key: param}) for key in (1, True, 1.0)]
    assert len({id(graphdef) for graphdef in graphdefs}) == 3
    for key, graphdef in zip((1, True, 1.0), graphdefs, strict=True):
        assert dx.graphdef({key: param}) is graphdef
        assert [type(k) for k in dx.clone({key: param})] == [type(key)]
        assert pickle.loads(pickle.dumps(graphdef)) is graphdef


def test_data_under_keys_that_cannot_be_sorted_is_one_error():
    param = dx.Param(jnp.ones(2))
    with pytest.raises(StatusError, match=r"a dict with the keys 1, 'a': the keys of a dict .* cannot be sorted"):
        dx.split({1: param, "a": param})
    model = Open()
    model.parts = dx.data(defaultdict(list, {1: jnp.ones(1), "a": jnp.ones(1)}))
    with pytest.raises(StatusError, match=r"a defaultdict with the keys 1, 'a'"):
        dx.split(model)
    with pytest.raises(StatusError, match=r"0, 1, 2, 3, 4, 5, \.\.\.: the keys of a dict"):
        dx.split({**dict.fromkeys(range(20), param), "a": param})


def test_a_dict_may_be_the_first_container_that_is_met_whatever_its_keys():
    code = "import declax as dx; m = dx.Module(); m.d = {1: 'a', 'b': 2}; print(len(list(dx.iter_graph(m))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "4\n", done.stderr


@pytest.mark.parametrize("make", [dict, lambda pairs: defaultdict(list, pairs), OrderedDict])
def test_static_dicts_may_have_any_keys(make):
    model = Open()
    model.kernel = dx.Param(jnp.ones(2))
    model.names = make([("b", 2), (1, "a"), (None, 0)])
    paths = [path for path, _ in dx.iter_graph(model)]
    assert {("names", "b"), ("names", 1), ("names", None)} <= {*paths}
    made = dx.recursive_map(lambda path, value: 3 if path == ("names", "b") else value, model)
    assert type(made.names) is type(model.names)
    assert list(made.names.items()) == [("b", 3), (1, "a"), (None, 0)]
    assert getattr(made.names, "default_factory", None) is getattr(model.names, "default_factory", None)
    assert dx.graphdef(dx.merge(*dx.split(model))) is dx.graphdef(model)


# ================================================================= States in models


def test_the_leaves_of_a_state_in_a_model_have_paths_of_their_own():
    model = Open()
    model.s = dx.data(dx.State({"a": {"b": {"c": 1 * jnp.ones(1)}, "b.c": jnp.ones(2)}, "d": jnp.ones(3)}))
    state = dx.state(model)
    assert {*state.paths} == {("s", ("a", "b", "c")), ("s", ("a", "b.c")), ("s", "d")}
    merged = dx.merge(*dx.split(model))
    assert merged.s.paths == model.s.paths


def test_leaves_are_put_into_a_state_by_path():
    param = dx.Param(jnp.ones(2), tag="t")
    state = dx.State({"a": {"k": param}, "b": jnp.ones(2)})
    keys, _, _ = open_container(state)
    for key in keys:
        put_in_container(state, key, 3 * jnp.ones(2))
    assert state.paths == (("a", "k"), ("b",))
    assert (state.a.k.tag, type(state.a.k)) == ("t", dx.Param)
    assert np.array_equal(state.a.k.value, [3, 3])
    assert np.array_equal(state.b, [3, 3])
    plain = {("x", "y"): 1, "z": 2}
    put_in_container(plain, ("x", "y"), 5)
    assert plain == {("x", "y"): 5, "z": 2}
