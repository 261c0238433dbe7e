"""New graphs by functions of leaves and nodes; metadata of many Variables."""

from __future__ import annotations

import collections
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given

import declax as dx
from declax._graph.editing import set_metadata
from declax._graph.rewriting import map as map_leaves
from declax._graph.rewriting import recursive_map
from declax._tree import epoch
from declax.errors import FilterError, GraphError, MetadataError, StatusError, TraceContextError
from strategies import Box, Open, graphs, objects_of, same_graph


class Block(dx.Module):
    def __init__(self, rngs=None):
        rngs = dx.Rngs(0) if rngs is None else rngs
        self.linear = dx.Linear(2, 2, use_bias=False, rngs=rngs)
        self.tied = self.linear
        self.norm = dx.BatchNorm(2, rngs=rngs)
        self.raw = jnp.ones(1)
        self.count = 3


def variables_of(model):
    return [value for value in objects_of(model) if isinstance(value, dx.Variable)]


def deep(depth: int) -> Any:
    node: Any = Open()
    node.leaf = dx.Param(jnp.ones(1))
    for _ in range(depth):
        outer: Any = Open()
        outer.inner = node
        node = outer
    return node


# ================================================================= map


@given(graphs(max_nodes=4))
def test_map_of_the_identity_has_the_same_variables(model):
    before = dx.split(model)
    made = map_leaves(lambda path, value: value, model)
    assert same_graph(made, model)
    assert {id(v) for v in variables_of(made)} == {id(v) for v in variables_of(model)}
    assert dx.graphdef(model) is before[0]
    assert dx.state(model) == before[1]


@given(graphs(max_nodes=4))
def test_map_sees_what_the_state_has(model):
    seen = []
    map_leaves(lambda path, value: seen.append((path, type(value))) or value, model)
    assert seen == [(path, type(value)) for path, value in dx.state(model).flat_state()]


def test_map_changes_values_kinds_and_metadata():
    model = Block()

    def change(path, value):
        if path == ("raw",):
            return value + 1
        if isinstance(value, dx.BatchStat):
            return dx.Cache(value.value + 5, tag="was_stat")
        if path[-1] == "kernel":
            return value.replace(value.value * 0, tag="zero")
        return jnp.full(2, 7.0)  # raw, in a Variable of the same kind

    made = map_leaves(change, model)
    assert isinstance(made, Block)
    assert made.tied is made.linear
    assert made.raw == 2
    assert made.linear.kernel.tag == "zero"
    assert (made.linear.kernel.value == 0).all()
    assert type(made.norm.mean) is dx.Cache
    assert made.norm.mean.tag == "was_stat"
    assert (made.norm.mean.value == 5).all()
    assert type(made.norm.bias) is dx.Param
    assert (made.norm.bias.value == 7).all()
    assert type(model.norm.mean) is dx.BatchStat
    assert not model.linear.kernel.has_metadata("tag")
    assert (model.raw == 1).all()


def test_a_variable_changed_in_the_function_is_that_of_the_model():
    model = Block()

    def change(path, value):
        if isinstance(value, dx.Variable):
            value.value = value.value + 1
            value.tag = "changed"
        return value

    made = map_leaves(change, model)
    assert (made.norm.mean.value == 1).all()
    assert made.norm.mean is model.norm.mean
    assert model.norm.mean.tag == "changed"


def test_map_keeps_cycles_containers_and_objects():
    model: Any = Open()
    model.me = model
    model.items = dx.data([dx.Param(jnp.ones(1)), {"x": jnp.ones(2)}, (jnp.ones(3),)])
    model.box = Box()
    model.box.up, model.box.p = model, model.items[0]
    made = map_leaves(lambda path, value: value * 2 if isinstance(value, jax.Array) else value, model)
    assert made.me is made is made.box.up
    assert made.box.p is made.items[0] is model.items[0]
    assert made.items[1]["x"].sum() == 4
    assert made.items[2][0].sum() == 6


def test_map_of_a_variable_and_of_a_container():
    scale = dx.Param(jnp.ones(2))
    made = map_leaves(lambda path, value: value.replace(value.value + 1), scale)
    assert type(made) is dx.Param
    assert (made.value == 2).all()
    assert (scale.value == 1).all()
    left, right = map_leaves(lambda path, value: value.replace(), [scale, scale])
    assert left is right is not scale


def test_map_keeps_a_none_that_was_there():
    model: Any = Open()
    model.seen = dx.Intermediate(None)
    assert map_leaves(lambda path, value: value.value, model).seen.value is None


def test_map_takes_trees_in_variables_and_numbers_in_nodes():
    model: Any = Open()
    model.seen, model.raw = dx.Intermediate((jnp.ones(1),)), jnp.ones(2)
    made = map_leaves(lambda path, value: [{"a": jnp.zeros(1)}, None, 2] if path == ("seen",) else 0.5, model)
    assert made.seen.value[0]["a"] == 0
    assert made.raw == 0.5
    assert dx.state(made).paths == dx.state(model).paths


def test_map_names_what_came_in_place_of_an_array():
    with pytest.raises(GraphError, match="raw: expected an array, got Param of shape"):
        map_leaves(lambda path, value: dx.Param(value) if path == ("raw",) else value, Block())
    with pytest.raises(GraphError, match="raw: expected an array, got None"):
        map_leaves(lambda path, value: None, Block())


def test_map_keeps_arrays_in_containers_arrays():
    # a number in a container is static, so that the structure would change
    assert isinstance(map_leaves(lambda path, value: 1.0, [jnp.ones(1)])[0], jax.Array)


def test_map_keeps_refs_refs():
    model: Any = Open()
    model.ref, model.raw = jax.new_ref(jnp.ones(1)), jnp.ones(1)
    made = map_leaves(lambda path, value: jax.new_ref(value[...] + 1) if path == ("ref",) else value, model)
    assert made.ref[...] == 2


def test_map_in_a_compiled_function():
    model = Block()
    made = dx.jit(lambda m: map_leaves(lambda p, v: v.value * 2 if isinstance(v, dx.Param) else v, m))(model)
    assert jnp.allclose(made.linear.kernel.value, 2 * model.linear.kernel.value)
    assert made.tied is made.linear


def test_map_of_a_tree_only():
    with pytest.raises(GraphError, match=r"tied: this is reached twice[\s\S]*paths linear and tied"):
        map_leaves(lambda path, value: value, Block(), graph=False)
    with dx.set_graph_mode(False), pytest.raises(GraphError, match="this is reached twice"):
        map_leaves(lambda path, value: value, Block())
    assert map_leaves(lambda path, value: value, Block().norm, graph=False).mean is not None


def test_map_as_the_peer():
    nnx = pytest.importorskip("flax.nnx")
    ours, theirs = dx.BatchNorm(2, rngs=dx.Rngs(0)), nnx.BatchNorm(2, rngs=nnx.Rngs(0))
    seen: dict[str, list[Any]] = {"ours": [], "theirs": []}

    def shifted(name):
        def f(path, v):
            seen[name].append((path, type(v).__name__))
            return v.replace(v[...] + 1, tag="x")

        return f

    made, expected = map_leaves(shifted("ours"), ours), nnx.map(shifted("theirs"), theirs)
    assert seen["ours"] == seen["theirs"]
    for name in ("mean", "var", "scale", "bias"):
        assert (getattr(made, name)[...] == getattr(expected, name)[...]).all()
        assert getattr(made, name).tag == getattr(expected, name).tag == "x"
    raw = map_leaves(lambda path, v: jnp.zeros(2), ours)
    assert type(raw.mean).__name__ == type(nnx.map(lambda path, v: jnp.zeros(2), theirs).mean).__name__


# ================================================================= recursive_map


@given(graphs(max_nodes=4))
def test_recursive_map_of_the_identity_has_new_nodes_and_the_same_variables(model):
    before = dx.split(model)
    made = recursive_map(lambda path, value: value, model)
    assert same_graph(made, model)
    assert {id(v) for v in variables_of(made)} == {id(v) for v in variables_of(model)}
    nodes = [{id(o) for o in objects_of(m) if isinstance(o, dx.Pytree)} for m in (made, model)]
    assert not nodes[0] & nodes[1]
    assert dx.graphdef(made) is dx.graphdef(model) is before[0]
    assert dx.state(model) == before[1]


@given(graphs(max_nodes=4))
def test_recursive_map_visits_what_iter_graph_does(model):
    seen = []
    recursive_map(lambda path, value: seen.append((path, type(value))) or value, model)
    assert seen == [(path, type(value)) for path, value in dx.iter_graph(model)]


class LoRA(dx.Module):
    def __init__(self, base, rank, rngs):
        self.base = base
        self.down = dx.Param(jax.random.normal(rngs.params(), (base.in_features, rank)))
        self.up = dx.Param(jnp.zeros((rank, base.out_features)))

    def __call__(self, x):
        return self.base(x) + x @ self.down @ self.up


def test_layers_are_replaced_and_stay_shared():
    model = Block()
    before = dx.graphdef(model)
    rngs = dx.Rngs(1)
    made = recursive_map(lambda path, v: LoRA(v, 1, rngs) if isinstance(v, dx.Linear) else v, model)
    assert isinstance(made.linear, LoRA)
    assert made.tied is made.linear
    assert made.linear.base is not model.linear
    assert made.linear.base.kernel is model.linear.kernel
    assert dx.graphdef(model) is before
    x = jnp.ones((1, 2))
    assert (made.linear(x) == model.linear(x)).all()


def test_variables_and_arrays_are_replaced_where_they_are_shared():
    model: Any = Open()
    model.a = model.b = dx.Param(jnp.ones(1))
    model.raw, model.ref = jnp.ones(1), jax.new_ref(jnp.ones(1))
    model.items = dx.data([model.a, model.ref])
    calls = []

    def change(path, value):
        calls.append(path)
        if isinstance(value, dx.Param):
            return dx.Cache(value.value)
        return dx.Param(value) if path == ("raw",) else value

    made = recursive_map(change, model)
    assert made.a is made.b is made.items[0]
    assert type(made.a) is dx.Cache
    assert made.items[1] is made.ref is model.ref
    assert type(made.raw) is dx.Param
    assert calls.count(("a",)) == 1
    assert ("b",) not in calls


def test_static_values_are_seen_and_replaced():
    model = dx.Conv(1, 1, (3, 3), rngs=dx.Rngs(0))
    made = recursive_map(lambda path, v: 5 if path == ("kernel_size", 0) else v, model)
    assert (made.kernel_size, model.kernel_size) == ((5, 3), (3, 3))
    with pytest.raises(GraphError, match=r"use_bias: .*returned a value that its place cannot hold"):
        recursive_map(lambda path, v: jnp.ones(1) if path == ("use_bias",) else v, model)
    with pytest.raises(
        GraphError, match=r"kernel_size: .*returned a value that its place cannot hold[\s\S]*got: +a value of type"
    ):
        recursive_map(lambda path, v: jnp.ones(1) if path == ("kernel_size", 0) else v, model)
    assert model.kernel_size == (3, 3)


def test_the_function_may_change_the_new_nodes():
    model = Block()

    def change(path, value):
        if isinstance(value, Block):
            value.extra = dx.Param(jnp.ones(1))
            del value.raw
        return value

    made = recursive_map(change, model)
    assert dx.state(made).paths == (("extra",), *(p for p in dx.state(model).paths if p != ("raw",)))
    assert hasattr(model, "raw")
    assert not hasattr(model, "extra")


def test_frozen_nodes_are_rewritten():
    @dx.dataclass(frozen=True)
    class Frozen(dx.Module):
        part: dx.Param[jax.Array]
        width: int = 2

    model = Frozen(dx.Param(jnp.ones(1)))
    made = recursive_map(lambda path, v: 3 if path == ("width",) else v, model)
    assert (made.width, model.width) == (3, 2)
    assert made.part is model.part


def test_elements_of_lists_and_dicts_are_replaced():
    model: Any = Open()
    model.layers = dx.List([dx.Linear(1, 1, rngs=dx.Rngs(0)), 2])
    model.parts = dx.Dict(a=dx.Linear(1, 1, rngs=dx.Rngs(0)), b="text")
    made = recursive_map(lambda path, v: dx.Param(v.kernel.value) if isinstance(v, dx.Linear) else v, model)
    assert type(made.layers[0]) is type(made.parts.a) is dx.Param
    assert made.layers[1:][0] == 2
    assert dict(made.parts)["b"] == "text"
    assert isinstance(model.layers[0], dx.Linear)
    assert dx.state(made).paths == (("layers", 0), ("parts", "a"))


def cyclic() -> Any:
    parent: Any = Open()
    parent.child = Open()
    parent.child.up = parent
    parent.child.weight = dx.Param(jnp.ones(1))
    return parent


def test_cycles_stay_where_their_nodes_do():
    model = cyclic()
    made = recursive_map(lambda path, v: dx.Cache(v.value) if isinstance(v, dx.Param) else v, model)
    assert made.child.up is made is not model
    assert type(made.child.weight) is dx.Cache
    assert model.child.up is model
    assert type(model.child.weight) is dx.Param


def test_a_node_that_holds_itself_cannot_be_replaced():
    model = cyclic()
    with pytest.raises(
        GraphError, match=r"cannot be replaced by recursive_map[\s\S]*for the node that is also at child\.up"
    ):
        recursive_map(lambda path, v: dx.List([v]) if path == () else v, model)
    assert model.child.up is model


def test_a_container_that_holds_itself():
    items: list[Any] = []
    items.append(items)
    with pytest.raises(StatusError, match="a plain container holds itself"):
        recursive_map(lambda path, v: v, items)


def test_a_function_without_return():
    with pytest.raises(GraphError, match="the function returned None for the root"):
        recursive_map(lambda path, v: None, Block())
    assert recursive_map(lambda path, v: v, None) is None
    assert recursive_map(lambda path, v: v + 1, 3) == 4


def test_an_error_of_the_function_leaves_the_original():
    model = Block()
    before = dx.split(model)
    with pytest.raises(ZeroDivisionError):
        recursive_map(lambda path, v: 1 / 0 if path == ("raw",) else v, model)
    assert (dx.graphdef(model), dx.state(model)) == before


def test_recursive_map_of_a_tree_only():
    with pytest.raises(GraphError, match=r"paths linear and tied"):
        recursive_map(lambda path, value: value, Block(), graph=False)
    with pytest.raises(GraphError, match="this is a node that holds itself, so the argument is not a tree"):
        recursive_map(lambda path, value: value, cyclic(), graph=False)
    assert recursive_map(lambda path, value: value, Block().norm, graph=False).num_features == 2


def test_deep_models_are_mapped():
    model = deep(10_000)
    made = recursive_map(lambda path, v: v, model)
    assert dx.graphdef(made) is dx.graphdef(model)
    made = map_leaves(lambda path, v: v.value + len(path), model)
    assert dx.state(made).leaves[0] == 10_002


def test_recursive_map_in_a_compiled_function_marks_the_new_nodes():
    @dx.jit
    def f(model):
        made = recursive_map(lambda path, v: v, model)
        made.raw = made.raw + 1  # of this trace, so it may
        return made.raw

    assert f(Block()) == 2


def test_recursive_map_as_the_peer():
    nnx = pytest.importorskip("flax.nnx")

    def models(lib):
        class Two(lib.Module):
            def __init__(self, rngs):
                self.norm = lib.BatchNorm(2, rngs=rngs)
                self.first = lib.Linear(2, 2, rngs=rngs)
                self.again = self.first
                self.sizes = (1, 2)
                self.raw = jnp.ones(1)

        return Two(lib.Rngs(0))

    def visited(lib, run):
        seen = []

        def f(path, value):
            if isinstance(value, (lib.Module, lib.Variable, jax.Array, tuple)) or path[0] == "sizes":
                seen.append((path, type(value).__name__))
            return lib.List([value]) if isinstance(value, lib.Linear) else value

        made = run(f, models(lib))
        return seen, made

    seen, made = visited(dx, recursive_map)
    peer_seen, peer_made = visited(nnx, nnx.recursive_map)
    assert seen == peer_seen
    for m in (made, peer_made):
        assert m.again is m.first
        assert len(m.first) == 1


# ================================================================= set_metadata


def test_set_metadata_of_all_that_match():
    model = Block()
    before = dx.graphdef(model)
    token = epoch.token
    assert set_metadata(model, only=dx.BatchStat, note="x") is None
    assert epoch.token is not token
    assert dx.graphdef(model) is not before
    assert model.norm.mean.note == model.norm.var.note == "x"
    assert not model.norm.scale.has_metadata("note")
    set_metadata(model, only=dx.PathContains("linear"), trainable=False, sharding=("a", None))
    assert model.linear.kernel.get_metadata(exclude_required=True) == {"trainable": False, "out_sharding": ("a", None)}
    set_metadata(model, tag="all")
    assert {v.tag for v in variables_of(model)} == {"all"}
    assert model.norm.mean.note == "x"


@pytest.mark.parametrize(
    ("metadata", "error"),
    [({"trainabel": False}, MetadataError), ({"note": jnp.ones(1)}, StatusError), ({"copy": 1}, MetadataError)],
)
def test_set_metadata_is_all_or_nothing(metadata, error):
    model = Block()
    before = dx.graphdef(model)
    with pytest.raises(error):
        set_metadata(model, tag="a", **metadata)
    assert dx.graphdef(model) is before


def test_set_metadata_of_one_kind_that_refuses_changes_no_other():
    class Strict(dx.Param[Any]):
        def unit(self):
            return "m"

    model: Any = Open()
    model.a, model.b = dx.Param(1.0), Strict(2.0)
    with pytest.raises(MetadataError, match=r"Strict\.unit: metadata would hide"):
        set_metadata(model, unit="s")
    assert not model.a.has_metadata("unit")


def test_set_metadata_needs_a_match():
    with pytest.raises(FilterError, match="the filter `only` matches no Variable of the graph"):
        set_metadata(Block(), only=dx.Cache, tag="a")


def test_set_metadata_at_another_trace_level():
    model = Block()

    @jax.jit
    def f(x):
        set_metadata(model, tag="a")
        return x

    with pytest.raises(TraceContextError, match=r"metadata \(at linear\.kernel\) of a Param was changed"):
        f(jnp.ones(1))
    assert not model.linear.kernel.has_metadata("tag")


def test_set_metadata_of_a_tree_only():
    with pytest.raises(GraphError, match="paths linear and tied"):
        set_metadata(Block(), tag="a", graph=False)


@pytest.mark.parametrize("function", [dx.map, dx.recursive_map])
def test_model_and_function_swapped(function):
    model = dx.List([dx.Param(1)])
    for first in (model, 3):
        with pytest.raises(GraphError, match="the first argument must be a function of path and value"):
            function(first, lambda path, value: value)


# ================================================================= functions that raise


def refuses(path, value):
    if path == ("a", "scale"):
        raise LookupError("of the user")
    return value


@pytest.mark.parametrize("function", [map_leaves, recursive_map])
def test_an_error_of_the_function_is_kept_and_tells_the_path(function):
    model = Open()
    model.a = Open()
    model.a.scale, model.b = dx.Param(1), dx.Param(2)
    with pytest.raises(LookupError, match="of the user") as caught:
        function(refuses, model)
    name = function.__name__
    assert caught.value.__notes__ == [f"raised by the function given to {name}, at a.scale"]


def test_static_values_that_can_be_changed_are_not_shared():
    model, box = Open(), Box()
    model.names, model.last, model.raw = {"a"}, collections.deque([[1]], maxlen=3), bytearray(b"x")
    model.box = box
    box.kept = collections.deque([jnp.ones(1)])
    made = recursive_map(lambda path, value: value, model)
    made.names.add("b")
    made.last[0].append(2)
    made.last.append(3)
    made.raw.append(0)
    made.box.kept.clear()
    assert (model.names, model.last, model.raw) == ({"a"}, collections.deque([[1]]), b"x")
    assert len(model.box.kept) == 1
    assert made.last == collections.deque([[1, 2], 3])
    assert made.last.maxlen == 3
