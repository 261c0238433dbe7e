"""Models as trees of States, and graphs of labels."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

import declax as dx
from declax.errors import DepthError, GraphError, TransformError
from declax.transforms._engine.prefixes import StateAxes, label_at
from declax.transforms.labels import prefix
from declax.transforms.trees import NodeStates, from_tree, is_node_states, merge_node, split_node, to_tree
from declax.transforms.vectorization import vmap
from strategies import build, graphs, recipes, same_graph

MODES = [{"graph": False}, {"graph": True, "graph_updates": False}, {"graph": True, "graph_updates": True}]
each_mode = pytest.mark.parametrize("mode", MODES, ids=str)


class Model(dx.Module):
    def __init__(self, n=4):
        self.w = dx.Param(jnp.arange(2.0 * n).reshape(n, 2))
        self.mean = dx.BatchStat(jnp.array(3.0))
        self.raw = jnp.arange(float(n))
        self.parts = dx.data({"a": [dx.Param(jnp.ones(n)), jnp.zeros(n)]})
        self.name = "model"


def compute(model, x):
    return model.w.sum() + model.mean + model.raw + model.parts["a"][0] * x + model.parts["a"][1].sum()


# ================================================================= graphs of labels


@settings(max_examples=40)
@given(graphs())
def test_a_graph_of_labels_has_one_at_each_path(model):
    places = []

    def label(path, leaf):
        places.append(path)
        return len(places) - 1

    labels = prefix(model, label)
    state = dx.state(model)
    assert places == list(state.paths)
    assert [label_at(labels, path, None, None, "") for path in places] == list(range(len(places)))
    of_state = prefix(state, lambda path, leaf: places.index(path))
    assert (of_state.paths, of_state.leaves) == (state.paths, list(range(len(places))))


def test_labels_by_filter_and_by_function():
    model = Model()
    by_filter = prefix(model, {dx.Param: 0, dx.PathContains("raw"): 1, ...: None})
    by_function = prefix(model, lambda path, leaf: 0 if isinstance(leaf, dx.Param) else 1 if path == ("raw",) else None)
    for labels in (
        by_filter,
        by_function,
        prefix(model, StateAxes({dx.Param: 0, dx.PathContains("raw"): 1, ...: None})),
    ):
        assert (labels.w.value, labels.mean.value, labels.raw, labels.name) == (0, None, 1, "model")
        assert labels.parts["a"][0].value == 0
        assert labels.parts["a"][1] is None
    assert model.w.shape == (4, 2)


@each_mode
@pytest.mark.parametrize("is_jitted", [False, True])
def test_as_axes(mode, is_jitted):
    model, x = Model(), jnp.arange(4.0)
    labels = prefix(model, {dx.BatchStat: None, ...: 0}, graph=mode["graph"])
    mapped = vmap(compute, in_axes=(labels, 0), **mode)
    got = (dx.jit(mapped, **mode) if is_jitted else mapped)(model, x)
    expected = vmap(compute, in_axes=(StateAxes({dx.BatchStat: None, ...: 0}), 0))(model, x)
    assert got.tolist() == expected.tolist()
    raw = prefix(model, lambda path, leaf: None if path[-1] == 1 or path == ("mean",) else 0)
    assert vmap(lambda m: m.parts["a"][1].sum() + m.raw, in_axes=(raw,), **mode)(model).tolist() == [0, 1, 2, 3]


def test_labels_of_containers():
    model, x = Model(), jnp.ones(3)
    seen = []

    def label(path, leaf):
        seen.append((path, type(leaf).__name__))
        return len(path)

    labels = prefix({"m": [model.mean], "x": (x, 2.0), "s": dx.state(model, dx.Param), "t": to_tree(model.mean)}, label)
    assert labels["m"][0].value == 2
    assert labels["x"] == (2, 2)
    assert labels["s"].leaves == [4, 2]
    assert labels["t"].state.leaves == [1]
    assert seen[0] == (("m", 0), "BatchStat")
    assert (("s", "w"), "Param") in seen
    got = vmap(lambda m, xs: m.w.sum() * xs[0] * xs[1], in_axes=prefix((model, (x[0], jnp.ones(4))), _axis_of))
    assert got(model, (2.0, jnp.ones(4))).tolist() == [2, 10, 18, 26]


def _axis_of(path, leaf):
    return None if path in ((1, 0), (0, "mean")) else 0


def test_as_axes_of_results():
    def make(x):
        model = dx.Module()
        model.w, model.mean = dx.Param(x * jnp.ones(2)), dx.BatchStat(jnp.ones(2))
        return model

    labels = prefix(make(0.0), {dx.Param: 1, ...: None})
    made = vmap(make, out_axes=labels)(jnp.arange(3.0))
    assert (made.w.shape, made.mean.shape) == ((2, 3), (2,))


def test_as_axes_of_what_is_shared_and_of_cycles():
    model = Model()
    model.again, model.itself = model.parts["a"][0], model
    labels = prefix((model, model), {dx.BatchStat: None, ...: 0})
    assert labels[0] is labels[1]
    assert labels[0].again is labels[0].parts["a"][0]

    def step(one, other):
        assert one is other
        one.again.value = one.itself.again + 1
        return one.w.sum()

    assert vmap(step, in_axes=labels)(model, model).tolist() == [1, 5, 9, 13]
    assert model.again.value.tolist() == [2] * 4
    with pytest.raises(TransformError, match="one Variable has two labels here"):
        vmap(step, in_axes=(prefix(model, {...: 0}), prefix(model, {...: None})))(model, model)


def test_a_label_above_holds_for_all_below():
    model = Model()
    labels = prefix(model, {...: 0})
    labels.parts = dx.data({"a": 0})
    labels.mean = dx.BatchStat(None)
    assert vmap(compute, in_axes=(labels, 0))(model, jnp.ones(4)).shape == (4,)


def test_in_raw_jax():
    model, x = Model(), jnp.arange(4.0)
    labels = prefix(model, {dx.BatchStat: None, ...: 0})
    expected = vmap(compute, in_axes=(labels, 0))(model, x)
    assert jax.vmap(compute, in_axes=(labels, 0))(model, x).tolist() == expected.tolist()
    labels = prefix(to_tree(model), {dx.BatchStat: None, ...: 0})
    assert isinstance(labels, NodeStates)
    of_tree = jax.vmap(lambda tree, x: compute(from_tree(tree), x), in_axes=(labels, 0))
    assert of_tree(to_tree(model), x).tolist() == expected.tolist()


def test_labels_of_tree_mode_are_those_of_the_peer():
    nnx = pytest.importorskip("flax.nnx")

    def of(lib, prefix_):
        content = {"a": lib.Param(jnp.array(2)), "b": lib.BatchStat(jnp.arange(5))}
        labels = prefix_(content, {lib.Param: None, lib.BatchStat: 0}, graph=False)
        map_ = vmap if lib is dx else lib.vmap
        return map_(lambda d: d["a"] * d["b"], in_axes=(labels,), graph=False)(content).tolist()

    assert of(dx, prefix) == of(nnx, nnx.prefix) == [0, 2, 4, 6, 8]


def test_labels_are_read_in_compiled_functions_without_a_warning():
    model = Model()
    axes = prefix(model, {...: None})

    @dx.jit
    def run(m, x):
        return vmap(compute, in_axes=(axes, 0))(m, x)

    assert run(model, jnp.ones((2, 4))).shape[0] == 2


def test_a_variable_whose_places_would_have_two_labels_is_refused():
    shared = dx.Param(jnp.ones(3))
    first, second = dx.List([shared]), dx.List([shared, shared])
    text = r"(?s)prefix, \[1\]\[0\]: Inconsistent aliasing.*0, as at \[0\]\[0\].*got: +1"
    with pytest.raises(TransformError, match=text):
        prefix((first, second), {lambda path, leaf: path[0] == 0: 0, ...: 1})
    assert prefix((first, second), {...: 0})[1][1].raw_value == 0


def test_wrong_labels():
    model = Model()
    with pytest.raises(TransformError, match="prefix, mean: no filter matches this leaf"):
        prefix(model, {dx.Param: 0})
    for wrong in (3, None, model):
        with pytest.raises(TransformError, match="prefix: these are not labels by filter"):
            prefix(model, wrong)
    with pytest.raises(GraphError, match="reached twice"):
        prefix((model, model), {...: 0}, graph=False)
    other = dx.Module()
    other.v, other.parts = dx.Param(jnp.ones(4)), dx.data({"a": [0]})
    for labels in (prefix(other, lambda path, leaf: 0), dx.State({"v": 0})):
        with pytest.raises(TransformError, match=r"in_axes: the graph of labels has none at (w|mean|parts.a)"):
            vmap(compute, in_axes=(labels, 0))(model, jnp.ones(4))
    with pytest.raises(TransformError, match=r"in_axes\[0\]: this is not a label of leaves"):
        vmap(compute, in_axes=(prefix(model, {...: "rows"}), 0))


def test_filters_of_a_prefix_label_what_the_function_adds():
    model = Model()
    axes = prefix(
        (model, jnp.ones(3)), {dx.Intermediate: 0, dx.BatchStat: None, (lambda path, leaf: path == (1,)): 0, ...: None}
    )

    @vmap(in_axes=axes)
    def double(m, x):
        m.sow(dx.Intermediate, "seen", x)
        return 2 * x

    for count in (1, 2):
        assert double(model, jnp.ones(3)).tolist() == [2.0] * 3
        assert [leaf.shape for leaf in model.seen.value] == [(3,)] * count


# ================================================================= to_tree and from_tree


@settings(max_examples=40)
@given(recipes(roots=True), recipes(max_nodes=2))
def test_there_and_back(recipe, other):
    one, two = build(recipe), build(other)
    tree = {"one": one, "rest": [two, one, "text", None, jnp.ones(2)]}
    again = from_tree(to_tree(tree))
    assert same_graph(again, tree)


@settings(max_examples=15)
@given(recipes(max_nodes=3))
def test_through_raw_jit(recipe):
    model = build(recipe)
    model.extra = dx.data([dx.Param(jnp.ones(2)), model])

    @jax.jit
    def step(tree, x):
        model, same = from_tree(tree)
        assert model is same
        model.extra[0].value = model.extra[0] * x
        return to_tree([model])

    (made,) = from_tree(step(to_tree((model, model)), 3.0))
    assert made.extra[0].value.tolist() == [3, 3]
    assert made.extra[1] is made
    assert model.extra[0].value.tolist() == [1, 1]


def test_gradients_of_raw_jax():
    model = Model()
    grads = jax.grad(lambda tree: (from_tree(tree).w ** 2).sum())(to_tree(model))
    np.testing.assert_allclose(from_tree(grads).w.value, 2 * model.w.value)


def test_what_stands_for_a_model():
    model, param = Model(), dx.Param(jnp.ones(2))
    tree = to_tree({"model": model, "again": [model], "param": param, "x": 3})
    assert tree["x"] == 3
    assert is_node_states(tree["model"])
    first = tree["again"][0]  # sorted keys: this comes first
    assert first.graphdef == dx.graphdef(model)
    assert first.state == dx.state(model)
    assert tree["model"].state.leaves == []
    assert tree["param"].states[0].leaves[0] is param.value
    assert repr(to_tree(dx.Param(2))).startswith("NodeStates(GraphDef(")
    assert "metadata=1" in repr(NodeStates.from_prefixes((0,), metadata=1))


def test_split_by_filters_and_axes_for_raw_vmap():
    model, x = Model(), jnp.arange(4.0)
    axes = StateAxes({dx.BatchStat: None, ...: 0})

    def split(ctx, path, label, node):
        return NodeStates.from_split(*ctx.split(node, *label.filters), metadata=label)

    tree = to_tree((model, x), prefix=(axes, 0), split_fn=split)
    assert [len(state.leaves) for state in tree[0].states] == [1, 4]
    in_axes = (NodeStates.from_prefixes(axes.axes, metadata=axes), 0)
    got = jax.vmap(lambda *tree: compute(*from_tree(tree)), in_axes=in_axes)(*tree)
    assert got.tolist() == vmap(compute, in_axes=(axes, 0))(model, x).tolist()


def test_functions_get_paths_and_labels():
    model, seen = Model(), []

    def split(ctx, path, label, node):
        seen.append((path, label, type(node).__name__))
        return split_node(ctx, path, label, node) if isinstance(node, dx.Pytree) else node

    def merge(ctx, path, label, node):
        seen.append((path, label, type(node).__name__))
        return merge_node(ctx, path, label, node) if is_node_states(node) else node

    tree = to_tree({"m": [model], "x": 1}, prefix={"m": [7], "x": 8}, split_fn=split, map_non_graph_nodes=True)
    assert seen == [(("m", 0), 7, "Model"), (("x",), 8, "int")]
    seen.clear()
    back = from_tree(tree, prefix={"m": 5, "x": None}, merge_fn=merge, map_non_graph_nodes=True)
    assert seen == [(("m", 0), 5, "NodeStates"), (("x",), None, "int")]
    assert same_graph(back, {"m": [model], "x": 1})
    seen.clear()
    from_tree(to_tree({"m": model, "x": 1}, split_fn=split), merge_fn=merge)
    assert [name for _, _, name in seen] == ["Model", "NodeStates"]
    pair = from_tree(
        (2, [3]), is_leaf=lambda v: isinstance(v, list), is_node_leaf=list.__instancecheck__, merge_fn=merge
    )
    assert pair == (2, [3])


def test_what_is_reached_twice_has_one_label():
    model = Model()
    axes = StateAxes({dx.Param: 0, ...: None})
    to_tree((model, {"b": model}), prefix=(axes, {"b": axes}))
    with pytest.raises(TransformError, match="one Variable has two labels here") as caught:
        to_tree((model, {"b": model}), prefix=(axes, 0))
    assert "argument 0[1].b.mean" in str(caught.value)
    assert "None, as at argument 0[0].mean" in str(caught.value)
    unchecked = to_tree((model, model), prefix=(axes, 0), check_aliasing=False)
    one, other = from_tree(unchecked)
    assert one is other


def test_changes_of_structure_come_back_in_an_update_context():
    model = Model()

    @jax.jit
    def grow(tree):
        (model,) = from_tree(tree, ctxtag="grow", is_inner=True)
        model.new, model.itself = dx.Param(model.w * 2), model
        return to_tree((model,), ctxtag="grow")

    with dx.update_context("grow"):
        (same,) = from_tree(grow(to_tree((model,), ctxtag="grow")), ctxtag="grow", is_inner=False)
    assert same is model
    assert model.itself is model
    assert model.new.value.tolist() == (2 * model.w.value).tolist()


def test_it_is_like_the_peers():
    nnx = pytest.importorskip("flax.nnx")

    def of(lib, to, back):
        layer = lib.Linear(2, 3, rngs=lib.Rngs(0))

        @jax.jit
        def step(tree, x):
            one, other = back(tree)
            one.kernel[...] = other.kernel[...] * x
            return to((one, other))

        one, other = back(step(to((layer, layer)), 2.0))
        return one is other, np.asarray(one.kernel[...])

    ours, peers = of(dx, to_tree, from_tree), of(nnx, nnx.to_tree, nnx.from_tree)
    assert ours[0] is peers[0] is True
    np.testing.assert_allclose(ours[1], peers[1], rtol=1e-6)


def test_wrong_trees():
    model = Model()
    tree = to_tree((model, model))
    with pytest.raises(GraphError, match="refers to object 0 of earlier graphs, which is not there"):
        from_tree(tree[1])
    with pytest.raises(GraphError, match=r"NodeStates\.graphdef: this NodeStates has no GraphDef"):
        from_tree(NodeStates.from_states(tree[0].state))
    with pytest.raises(GraphError, match=r"NodeStates\.state: exactly one State is required"):
        NodeStates.from_states(1, 2).state
    with pytest.raises(TransformError, match="to_tree, prefix: the prefix does not fit the tree"):
        to_tree((model,), prefix=(0, 1))
    with pytest.raises(TransformError, match="from_tree, prefix: the prefix does not fit the tree"):
        from_tree(tree, prefix=(0, 1, 2))
    deep = model
    for _ in range(1000):
        deep = [deep]
    for function in (to_tree, from_tree):
        with pytest.raises(DepthError, match="a container is nested more than"):
            function(deep)


@pytest.mark.parametrize("around", [dx.jit, dx.remat, lambda f: dx.jit(dx.remat(f))])
def test_a_graph_of_labels_is_no_model_that_a_function_captures(around):
    def fresh():
        model = Model()
        model.total = dx.BatchStat(jnp.zeros(()))
        return model

    def add(model):
        model.total.value = model.total.value + model.w.value.sum()
        return model.total.value

    axes = prefix(fresh(), {dx.Param: 0, dx.BatchStat: dx.Carry, ...: None})
    model, same = fresh(), fresh()
    expected = dx.scan(add, in_axes=(axes,), out_axes=0)(same)
    np.testing.assert_allclose(around(dx.scan(add, in_axes=(axes,), out_axes=0))(model), expected)
    mapped = prefix(model, {dx.Param: 0, ...: None})
    doubled = dx.vmap(lambda m: m.w.value * 2, in_axes=(mapped,))
    np.testing.assert_allclose(around(doubled)(model), model.w.value * 2)
    assert mapped.w.value == 0
