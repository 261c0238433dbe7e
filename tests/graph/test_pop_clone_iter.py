"""Taking Variables out, copying, and looking around."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

import declax as dx
from declax.errors import FilterError, GraphError, TraceContextError
from strategies import Box, Declared, Open, build, graphs, objects_of, recipes, same_graph

# ================================================================= pop


class Net(dx.Module):
    def __init__(self):
        self.first, self.second = dx.Linear(2, 3, rngs=dx.Rngs(0)), dx.Linear(3, 4, rngs=dx.Rngs(1))

    def __call__(self, x):
        x = self.first(x)
        self.sow(dx.Intermediate, "seen", x)
        return self.second(x)


def test_pop_takes_what_was_sown():
    net = Net()
    before = dx.graphdef(net)
    net(jnp.ones((1, 2)))
    popped = dx.pop(net, dx.Intermediate)
    assert popped["seen"].value[0].shape == (1, 3)
    assert not hasattr(net, "seen")
    assert dx.graphdef(net) is before
    assert len(dx.pop(net, dx.Intermediate)) == 0


def test_pop_takes_a_variable_from_all_places():
    model = Open()
    model.a = dx.Cache(jnp.ones(1))
    model.b = model.a
    model.part = Open()
    model.part.c = model.a
    model.part.up = model
    model.plain = dx.data([model.a, jnp.ones(2), {"x": model.a, "y": 1}, model.a])
    model.elements = dx.List([1, model.a, "text", model.a])
    model.entries = dx.Dict(left=model.a, right=2)
    model.box = Box()
    model.box.held = model.a
    popped = dx.pop(model, dx.Cache)
    assert popped.paths == (("a",),)
    assert not {"a", "b"} & set(vars(model))
    assert not hasattr(model.part, "c")
    assert len(model.plain) == 2
    assert model.plain[1] == {"y": 1}
    assert list(model.elements) == [1, "text"]
    assert dict(model.entries) == {"right": 2}
    assert not hasattr(model.box, "held")
    assert len(dx.state(model, dx.Cache)) == 0


def test_pop_by_several_filters():
    net = Net()
    net(jnp.ones((1, 2)))
    net.first.mean = dx.BatchStat(jnp.zeros(1))
    seen, stats = dx.pop(net, dx.Intermediate, dx.BatchStat)
    assert (seen.paths, stats.paths) == ((("seen",),), (("first", "mean"),))
    assert not hasattr(net.first, "mean")


def test_pop_from_an_object_that_merge_made():
    box = Box()
    box.seen, box.name = dx.Intermediate(jnp.ones(1)), "box"
    box = dx.merge(*dx.split(box))
    assert dx.pop(box, dx.Intermediate).paths == (("seen",),)
    assert not hasattr(box, "seen")


def test_pop_from_a_declared_field():
    model = Declared(kernel=dx.Param(jnp.ones(1)))
    dx.pop(model, dx.Param)
    assert "kernel" not in vars(model)
    model.kernel = dx.Param(jnp.ones(1))
    assert dx.state(model).paths == (("kernel",),)


def test_pop_takes_arrays_but_no_numbers():
    model = Open()
    model.raw, model.kernel, model.number = jnp.ones(2), dx.Param(jnp.ones(1)), dx.data(1.5)
    model.also = model.raw  # an array has no identity: each place is its own
    model.items = dx.data([jnp.zeros(1), dx.Param(2), np.zeros(2)])
    assert dx.pop(model, dx.Param).paths == (("items", 1), ("kernel",))
    assert dx.pop(model, lambda path, value: path[-1] == "raw").paths == (("raw",),)
    arrays, rest = dx.pop(model, jax.Array, ...)
    assert (arrays.paths, rest.paths) == ((("also",), ("items", 0)), (("items", 1),))
    assert dx.to_pure_dict(dx.state(model)) == {"number": 1.5}


def test_pop_of_an_array_in_a_tuple_changes_nothing():
    model = Open()
    model.raw, model.pair = jnp.ones(2), dx.data((jnp.ones(1),))
    with pytest.raises(GraphError, match="this leaf sits in a tuple, which cannot be changed in place"):
        dx.pop(model, ...)
    assert hasattr(model, "raw")


def test_pop_from_a_tuple_is_refused_before_anything_changes():
    model = Open()
    model.a = dx.Cache(jnp.ones(1))
    model.pair = dx.data((model.a,))
    with pytest.raises(GraphError, match="this leaf sits in a tuple, which cannot be changed in place"):
        dx.pop(model, dx.Cache)
    assert hasattr(model, "a")


def test_pop_needs_a_filter():
    with pytest.raises(FilterError, match="at least one filter is required"):
        dx.pop(Net())


@given(graphs(max_nodes=4))
def test_nothing_is_left_of_what_was_popped(model):
    expected = dx.state(model, dx.Param)
    try:
        popped = dx.pop(model, dx.Param)
    except GraphError:
        return  # one sits in a tuple
    assert popped == expected
    assert len(dx.state(model, dx.Param)) == 0


# ================================================================= clone


@given(recipes())
def test_a_clone_is_equal_and_shares_no_object(recipe):
    model = build(recipe)
    clone = dx.clone(model)
    assert same_graph(clone, model)
    assert not set(map(id, objects_of(model))) & set(map(id, objects_of(clone)))
    arrays = {id(x) for x in jax.tree.leaves(dx.state(model))}
    assert not arrays & {id(x) for x in jax.tree.leaves(dx.state(clone))}


def test_a_clone_owns_its_buffers():
    model = Net()
    clone = dx.clone(model)
    jax.jit(lambda leaves: jax.tree.map(lambda x: x + 1, leaves), donate_argnums=0)(dx.state(model).leaves)
    assert bool(jnp.isfinite(clone(jnp.ones((1, 2)))).all())


def test_a_clone_owns_its_numpy_arrays():
    model = Open()
    model.a, model.b = dx.Param(np.zeros(2)), np.zeros(2)
    clone = dx.clone(model)
    model.a.value[0] = model.b[0] = 1
    assert clone.a.value.tolist() == clone.b.tolist() == [0.0, 0.0]


def test_a_clone_of_random_streams_draws_the_same_keys():
    rngs = dx.Rngs(0, dropout=1)
    rngs.dropout()
    clone = dx.clone(rngs)
    assert clone.uniform((2,)).tolist() == rngs.uniform((2,)).tolist()
    assert clone.dropout.uniform((2,)).tolist() == rngs.dropout.uniform((2,)).tolist()
    clone()
    assert int(clone.default.count) == int(rngs.default.count) + 1


def test_statics_of_a_clone_are_its_own():
    model = Open()
    model.sizes, model.table = [1, [2]], {"a": [1]}
    clone = dx.clone(model)
    clone.sizes[1].append(3)
    clone.table["a"].append(2)
    assert (model.sizes, model.table) == ([1, [2]], {"a": [1]})


def test_a_clone_of_a_container():
    model = Net()
    first, second = dx.clone([model, model])
    assert first is second is not model


# ================================================================= iter_graph


def test_iter_graph_has_the_order_of_the_reference():
    class Linear(dx.Module):
        def __init__(self, din, dout):
            self.din, self.dout = din, dout
            self.w = dx.Param(jnp.ones((din, dout)))
            self.b = dx.Param(jnp.zeros((dout,)))

    module = Linear(3, 4)
    found = [(path, type(value).__name__) for path, value in dx.iter_graph([module, module])]
    assert found == [
        ((0, "b"), "Param"),
        ((0, "din"), "int"),
        ((0, "dout"), "int"),
        ((0, "w"), "Param"),
        ((0,), "Linear"),
        ((), "list"),
    ]


def test_iter_graph_follows_cycles_and_containers_once():
    model = Open()
    model.up = model
    model.box = Box()
    model.box.model, model.box.text = model, "t"
    model.plain = dx.data({"b": (jnp.ones(1), 2), "a": [model.box]})
    model.elements = dx.List(["x", jnp.zeros(1)])
    paths = [path for path, _ in dx.iter_graph(model)]
    assert paths == [
        ("box", "text"),
        ("box",),
        ("elements", 0),
        ("elements", 1),
        ("elements",),
        ("plain", "a"),
        ("plain", "b", 0),
        ("plain", "b", 1),
        ("plain", "b"),
        ("plain",),
        (),
    ]


@given(graphs(max_nodes=4))
def test_iter_graph_has_every_node_and_variable_once(model):
    found = [value for _, value in dx.iter_graph(model) if isinstance(value, (dx.Pytree, dx.Variable))]
    assert len(set(map(id, found))) == len(found)
    assert set(map(id, found)) == set(map(id, objects_of(model)))


def test_iter_modules_and_children():
    model = Open()
    model.b, model.a = Open(), dx.List([Open(), Box()])
    model.a[0].up = model
    assert [path for path, _ in dx.iter_modules(model)] == [("a", 0), ("a",), ("b",), ()]
    assert [path for path, _ in model.iter_modules()] == [("a", 0), ("a",), ("b",), ()]
    assert [name for name, _ in dx.iter_children(model)] == ["a", "b"]
    assert [name for name, _ in model.iter_children()] == ["a", "b"]
    assert [path for path, _ in dx.iter_modules([model.b, model.b])] == [(0,)]


# ================================================================= find_duplicates


def test_find_duplicates_of_variables():
    model = Open()
    model.a, model.b = dx.Param(jnp.array(1.0)), dx.Param(jnp.array(2.0))
    model.c = model.b
    assert dx.find_duplicates(model) == [[("b",), ("c",)]]


def test_find_duplicates_of_nodes_lists_the_node_only():
    model = Open()
    model.a, model.b = dx.Linear(1, 1, rngs=dx.Rngs(0)), dx.Linear(1, 1, rngs=dx.Rngs(0))
    model.c = model.a
    assert dx.find_duplicates(model) == [[("a",), ("c",)]]
    assert dx.find_duplicates([model.b, {"x": model.b}]) == [[(0,), (1, "x")]]


def test_find_duplicates_of_a_tree_and_of_a_cycle():
    model = Open()
    model.a = Open()
    assert dx.find_duplicates(model) == []
    model.a.up = model
    assert dx.find_duplicates(model) == [[(), ("a", "up")]]


def test_find_duplicates_of_what_a_filter_takes():
    model = Open()
    model.a = dx.Param(jnp.ones(1))
    model.b, model.c = model.a, Open()
    model.d = model.c
    assert dx.find_duplicates(model, only=dx.Param) == [[("a",), ("b",)]]
    assert dx.find_duplicates(model, only=Open) == [[("c",), ("d",)]]
    assert dx.find_duplicates(model, only=dx.BatchStat) == []
    with pytest.raises(FilterError, match="this is not a filter"):
        dx.find_duplicates(model, only=3)


# ================================================================= pop, all or nothing


@dx.dataclass(frozen=True)
class Fixed(dx.Module):
    seen: dx.Intermediate[int]


def test_pop_changes_nothing_where_one_variable_cannot_be_taken_out():
    model = Open()
    model.part = Fixed(dx.Intermediate(1))
    model.seen = dx.Intermediate(2)
    with pytest.raises(GraphError, match="this leaf sits in a Fixed") as caught:
        dx.pop(model, dx.Intermediate)
    assert "part.seen" in str(caught.value)
    assert "Fixed" in str(caught.value)
    assert model.seen.value == 2
    del model.part
    model.pair = dx.data((dx.Intermediate(1),))
    with pytest.raises(GraphError, match="this leaf sits in a tuple, which cannot be changed in place"):
        dx.pop(model, dx.Intermediate)
    assert model.seen.value == 2


def test_pop_from_another_trace_level_changes_nothing():
    model = Open()
    model.seen = dx.Intermediate(jnp.ones(1))

    def inside(x):
        other = Open()
        other.seen = dx.Intermediate(x)
        with pytest.raises(TraceContextError, match="cannot mutate"):
            dx.pop([other, model], dx.Intermediate)
        return other.seen.value

    jax.jit(inside)(jnp.ones(1))
    assert hasattr(model, "seen")


def test_pop_takes_all_references():
    shared = dx.Intermediate(1)
    model = Open()
    model.a = model.b = shared
    model.items = dx.data([shared, dx.Param(1), shared])
    model.more = dx.List([dx.Param(2), shared, shared])
    model.also = model.more
    held = [shared]
    model.plain, model.again = dx.data(held), dx.data(held)
    found = dx.pop(model, dx.Intermediate)
    assert found.paths == (("a",),)
    assert not hasattr(model, "a")
    assert not hasattr(model, "b")
    assert [v.value for v in model.items] == [1]
    assert [v.value for v in model.more] == [2]
    assert held == []


def test_pop_asks_filters_in_their_order():
    model = Open()
    model.a, model.b, model.c = dx.Intermediate(1), dx.Perturbation(2), dx.Intermediate(3, tag="x")
    tagged, perturbations, rest = dx.pop(model, "x", dx.Perturbation, lambda path, value: path == ("a",))
    assert (tagged.paths, perturbations.paths, rest.paths) == ((("c",),), (("b",),), (("a",),))
    assert len(dx.state(model)) == 0


def test_pop_finds_them_in_the_order_of_split():
    model = Open()
    model.a = Open()
    model.a.z = dx.Intermediate(1)
    model.b = dx.Intermediate(2)
    model.c = dx.data([dx.Intermediate(3), {"x": dx.Intermediate(4)}])
    model.d = model.a
    paths = dx.state(model, dx.Intermediate).paths
    assert dx.pop(model, dx.Intermediate).paths == paths


def test_pop_and_state_agree_on_shared_variables_and_paths():
    model = Open()
    model.a, model.part = dx.Param(1), Open()
    model.part.b = model.a
    assert dx.pop(model, dx.PathContains("part")).paths == dx.state(model, dx.PathContains("part")).paths == ()
    assert dx.pop(model, dx.PathContains("a")).paths == (("a",),)
    assert not hasattr(model.part, "b")


def test_containers_are_values_to_all_walks():
    model, x, y = Open(), Open(), Open()
    y.seen = dx.Intermediate(1)
    model.a = dx.data([x, y])
    x.alias = dx.data(model.a)
    paths = [path for path, _ in dx.iter_graph(model) if path and path[-1] == "seen"]
    assert paths == [("a", 0, "alias", 1, "seen")] == list(dx.state(model).paths)
    assert ("a", 0, "alias", 1) in [path for path, _ in dx.iter_modules(model)]
    assert dx.pop(model, dx.Intermediate).paths == (("a", 0, "alias", 1, "seen"),)


def test_shared_arrays_are_duplicates():
    x = jnp.ones(1)
    assert dx.find_duplicates([x, x, jnp.ones(1)]) == [[(0,), (1,)]]
    with pytest.raises(FilterError, match="this is not a filter"):
        dx.find_duplicates(Open(), only=3)
