"""A State as JAX, optax and Orbax see it: as they see the peer's."""

from __future__ import annotations

import copy
import gc
import importlib
import pickle
import threading
import weakref

import jax
import jax.numpy as jnp
import optax
import pytest

import declax as dx
from declax.errors import LayerError, TraceContextError


class Net(dx.Module):
    def __init__(self):
        self.layers = dx.List([dx.Linear(2, 2, rngs=dx.Rngs(i)) for i in range(12)])
        self.norm = dx.BatchNorm(2, rngs=dx.Rngs(0))
        self.plain = dx.data(jnp.ones(3))


def peer_net():
    nnx = pytest.importorskip("flax.nnx")

    class PeerNet(nnx.Module):
        def __init__(self):
            self.layers = nnx.List([nnx.Linear(2, 2, rngs=nnx.Rngs(i)) for i in range(12)])
            self.norm = nnx.BatchNorm(2, rngs=nnx.Rngs(0))
            self.plain = nnx.data(jnp.ones(3))

    return nnx, PeerNet()


def is_variable(value):
    return isinstance(value, dx.Variable)


def kinds_of(state, variable):
    """The class of what is at each leaf, with Variables as leaves, and the text of what is around it."""
    found = jax.tree.map(lambda v: type(v).__name__, state, is_leaf=lambda v: isinstance(v, variable))
    return jax.tree_util.tree_leaves_with_path(found)


# ================================================================= as the peer


def test_key_paths_as_the_peer():
    nnx, theirs = peer_net()
    found = jax.tree_util.tree_leaves_with_path(dx.state(Net()))
    expected = jax.tree_util.tree_leaves_with_path(nnx.state(theirs))
    assert [path for path, _ in found] == [path for path, _ in expected]
    assert [str(path) for path, _ in found] == [str(path) for path, _ in expected]
    assert all(jnp.array_equal(a, b) for (_, a), (_, b) in zip(found, expected, strict=True))


def test_variables_are_leaves_where_they_are_asked_for_as_the_peer():
    nnx, theirs = peer_net()
    assert kinds_of(dx.state(Net()), dx.Variable) == kinds_of(nnx.state(theirs), nnx.Variable)
    params = dx.state(dx.Linear(2, 3, rngs=dx.Rngs(0)), dx.Param)
    names = jax.tree.map(lambda v: type(v).__name__, params, is_leaf=is_variable)
    assert repr(names) == "State({\n  'bias': 'Param',\n  'kernel': 'Param'\n})"


def test_their_types_make_variables_as_the_peers():
    """Also of kinds with a metaclass and a slot of their own."""

    class Meta(type):
        pass

    class Mine(dx.Param, metaclass=Meta):
        __slots__ = ("extra",)

    state = dx.State({"a": Mine(1.0), "b": dx.BatchStat(2.0)})
    doubled = jax.tree.map(lambda v: type(v)(2 * v.value, tag="t"), state, is_leaf=is_variable)
    assert [(v.type, v.value, v.tag) for _, v in doubled.flat_state()] == [(Mine, 2.0, "t"), (dx.BatchStat, 4.0, "t")]


def test_labels_for_optax_as_the_peer():
    nnx, _ = peer_net()

    def trained(lib):
        model = lib.Linear(2, 3, rngs=lib.Rngs(0))
        labels = lib.map_state(lambda path, v: path[-1], lib.state(model, lib.Param))
        tx = optax.partition({"kernel": optax.sgd(0.1), "bias": optax.adam(1.0)}, labels)
        optimizer = lib.Optimizer(model, tx, wrt=lib.Param)
        for _ in range(2):
            optimizer.update(model, lib.grad(lambda m: (m(jnp.ones((1, 2))) ** 2).sum())(model))
        return lib.state(model, lib.Param)

    with jax.numpy_dtype_promotion("standard"):  # which optax counts on
        ours, theirs = trained(dx), trained(nnx)
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    assert all(jnp.allclose(a, b, rtol=1e-6) for a, b in pairs)


def test_layout_of_checkpoints_as_the_peer(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")
    nnx, _ = peer_net()

    def stored(lib, name):
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(tmp_path / name, lib.state(lib.Linear(2, 2, rngs=lib.Rngs(0))))
            checkpointer.wait_until_finished()
            return jax.tree.map(jnp.shape, checkpointer.restore(tmp_path / name))

    assert stored(dx, "ours") == stored(nnx, "theirs") == {"bias": {"value": (2,)}, "kernel": {"value": (2, 2)}}


def test_checkpoints_come_back_into_a_state(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")
    state = dx.state(Net())
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "net", state)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "net", jax.tree.map(jnp.zeros_like, state))
    assert type(restored) is dx.State
    assert restored == state
    assert restored.definition is state.definition


# ================================================================= trees


def test_equal_states_have_one_structure():
    state, other = dx.state(Net()), dx.state(Net())
    structures = [jax.tree.structure(s) for s in (state, other, state.map(lambda _, v: v), copy.deepcopy(state))]
    assert all(s == structures[0] and hash(s) == hash(structures[0]) for s in structures)
    assert jax.tree.structure(state.filter(dx.Param)) != structures[0]
    assert jax.tree.structure(dx.State({"a": dx.Param(1)})) != jax.tree.structure(dx.State({"a": dx.BatchStat(1)}))
    assert jax.tree.structure(dx.State({"a": dx.Param(1)})) != jax.tree.structure(dx.State({"a": 1}))
    tagged = dx.State({"a": dx.Param(1, tag="x")})
    assert jax.tree.structure(dx.State({"a": dx.Param(1)})) != jax.tree.structure(tagged)


def test_a_state_of_labels_is_a_prefix():
    state = dx.state(Net())
    labels = state.map(lambda path, _: path[0])
    assert set(jax.tree.leaves(labels)) == {"layers", "norm", "plain"}
    chosen = jax.tree.map(lambda label, below: below if label == "norm" else None, labels, state)
    assert len(jax.tree.leaves(chosen)) == 4
    assert isinstance(chosen["norm"]["scale"], dx.Param)
    assert chosen["layers"][0]["kernel"] is None
    assert chosen.paths == state.paths


@pytest.mark.parametrize("value", [None, "x", jax.ShapeDtypeStruct((2,), jnp.int32), (1, 2), [3], optax.MaskedNode()])
def test_a_path_may_hold_anything(value):
    state = dx.state(Net()).map(lambda path, v: value)
    assert jax.tree.map(lambda x: x, state) == state
    assert jax.tree.map(lambda v: value, dx.state(Net()), is_leaf=is_variable).paths == state.paths
    assert jax.tree.structure(jax.tree.map(lambda x: x, state)) == jax.tree.structure(state)


def test_variables_may_hold_anything():
    for value in (None, "label", {"a": jnp.ones(2)}, (1, [2])):
        state = dx.State({"x": {"y": dx.Param(value, tag="t")}})
        again = jax.tree.map(lambda leaf: leaf, state)
        assert again["x"]["y"].tag == "t"
        assert again.definition is state.definition
        assert again == state


def test_functions_may_change_the_paths():
    state = dx.State({"a": {"b": dx.Param(1)}, "c": 2})
    grown = jax.tree.map(lambda v: {"x": v, "y": {}}, state, is_leaf=is_variable)
    assert grown.paths == (("a", "b", "x"), ("c", "x"))
    assert grown.a.b.x.value == 1
    assert isinstance(grown.a.b.x, dx.Param)


def test_variables_that_a_function_gives_are_taken_as_they_are():
    state = dx.State({"a": dx.Param(1), "b": dx.Param(2)})
    given = dx.BatchStat(5, tag="t")
    made = jax.tree.map(lambda v: given, state, is_leaf=is_variable)
    given.value = 6
    assert made["a"].value == 5
    assert type(made["a"]) is dx.BatchStat
    assert jax.tree.structure(made) == jax.tree.structure(dx.State({k: dx.BatchStat(1, tag="t") for k in "ab"}))


def test_the_order_of_a_flat_state_is_kept_where_nothing_is_mapped():
    flat = dx.FlatState([(("b",), dx.Param(2)), (("a", "z"), dx.Param(1)), (("a", "c"), 3)])
    state = flat.to_nested_state()
    assert state.leaves == [2, 1, 3]
    assert jax.tree.leaves(state) == [3, 1, 2]
    assert jax.tree.map(lambda x: 10 * x, state) == dx.State({"a": {"z": dx.Param(10), "c": 30}, "b": dx.Param(20)})
    assert dx.jit(lambda s: jax.tree.map(lambda x: 10 * x, s))(state)["a"]["z"].value == 10
    assert dx.jit(lambda s, x: s["b"].value + x)(state, 1) == 3


def test_keys_that_cannot_be_sorted():
    state = dx.State({"a": {1: dx.Param(1), "x": dx.Param(2)}, 3: dx.Param(3)})
    assert jax.tree.leaves(state) == [3, 1, 2]
    doubled = jax.tree.map(lambda x: 2 * x, state)
    assert doubled == dx.State({"a": {1: dx.Param(2), "x": dx.Param(4)}, 3: dx.Param(6)})
    assert jax.tree.structure(doubled) == jax.tree.structure(state)


@pytest.mark.parametrize("depth", [399, 400, 401, 5000])
def test_deep_states(depth):
    path = ("k",) * depth
    state = dx.State.from_flat_path({(*path, "a"): dx.Param(1), (*path, "b"): 2})
    found = jax.tree.map(lambda x: x + 1, state)
    assert found.paths == state.paths
    assert found.leaves == [2, 3]
    assert jax.tree.map(lambda v: "x", state, is_leaf=is_variable).leaves == ["x", "x"]


def test_a_nested_view_is_a_tree_too():
    view = dx.state(Net())["layers"][3]
    assert jax.tree.map(jnp.shape, view).to_pure_dict() == {"bias": (2,), "kernel": (2, 2)}


def test_states_with_their_graphdef():
    net = Net()
    params, rest = dx.unpack(net, dx.Param, ...)
    doubled = jax.tree.map(lambda x: 2 * x, params)
    assert type(doubled) is dx.GraphState
    assert doubled.graphdef is params.graphdef
    assert jnp.array_equal(dx.merge(doubled, rest).norm.scale.value, 2 * net.norm.scale.value)
    assert jax.tree.structure(doubled) == jax.tree.structure(params)
    assert jax.tree.structure(doubled) != jax.tree.structure(dx.state(net, dx.Param))


@pytest.mark.parametrize("vmap", [jax.vmap, dx.vmap])
@pytest.mark.parametrize("is_by_variable", [False, True])
def test_a_state_of_axes_is_a_prefix(vmap, is_by_variable):
    state = dx.state(dx.Linear(2, 3, rngs=dx.Rngs(0)))
    stacked = jax.tree.map(lambda x: jnp.stack([x, x + 1]), state)
    stacked["bias"] = state["bias"]
    axes = {"bias": None, "kernel": 0}
    labels = state.map(lambda path, v: axes[path[0]]) if is_by_variable else dx.State(axes)
    found = vmap(lambda s: s["kernel"].value.sum() + s["bias"].value.sum(), in_axes=(labels,))(stacked)
    assert jnp.allclose(found[1] - found[0], 6.0)
    again = vmap(lambda s: s, in_axes=(labels,), out_axes=labels)(stacked)
    assert again == stacked


# ================================================================= the Variables in the tree


def light_of(variable, key="a"):
    state = dx.State({key: variable})
    return jax.tree.leaves(state, is_leaf=is_variable)[0]


class Hooked(dx.Param):
    unit: str = "m"

    def on_get_value(self, value):
        return value * 10

    def on_create_value(self, value):
        raise AssertionError("nobody creates one")


def test_they_are_snapshots_that_count_as_their_kind():
    found = light_of(dx.Param(jnp.ones(2), tag="t"))
    assert isinstance(found, dx.Param)
    assert found.__class__ is dx.Param
    assert found.type is dx.Param
    assert type(found).__name__ == "Param"
    assert (found + 1).tolist() == [2.0, 2.0]
    assert (found.tag, found.shape, found.get_metadata(exclude_required=True)) == ("t", (2,), {"tag": "t"})
    assert repr(found) == repr(dx.Param(jnp.ones(2), tag="t"))
    own = dx.Param(jnp.zeros(2))
    own.copy_from(found)
    assert own.value.tolist() == [1.0, 1.0]


def test_hooks_run_when_one_is_read_and_not_when_it_is_made():
    state = dx.State({"a": dx.Variable.from_metadata.__func__(Hooked, jnp.ones(2), {})})
    found = jax.tree.leaves(state, is_leaf=is_variable)[0]
    assert found.value.tolist() == [10.0, 10.0]
    assert jax.tree.map(lambda x: x + 1, state)["a"].raw_value.tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    "write",
    [
        lambda v: setattr(v, "value", 2),
        lambda v: v.set_value(2),
        lambda v: v.set_raw_value(2),
        lambda v: v.__setitem__(..., 2),
        lambda v: v.__iadd__(2),
        lambda v: setattr(v, "tag", "x"),
        lambda v: v.set_metadata(tag="x"),
        lambda v: v.copy_from(dx.Param(2)),
    ],
)
def test_they_cannot_be_changed(write):
    found = light_of(dx.Param(1))
    with pytest.raises(LayerError, match=r"(?s)Param: this is part of what JAX sees of a State.*it is a snapshot"):
        write(found)
    assert found.value == 1


def test_copies_of_them_are_variables_of_their_own():
    found = light_of(dx.Param(jnp.ones(2), tag="t"))
    copies = [found.copy(), copy.copy(found), copy.deepcopy(found), pickle.loads(pickle.dumps(found)), found.replace()]
    for made in copies:
        assert type(made) is dx.Param
        made.value = jnp.zeros(2)
        assert made.tag == "t"
    assert found.copy(2.0, tag="s").tag == "s"
    assert found.replace(dx.Param(3.0)).value == 3.0


def test_copies_of_them_map_against_variables_of_a_model():
    """They have a node type for States, which JAX flattens faster; the peer has one type."""
    found, of_model = light_of(dx.Param(jnp.ones(2), tag="t")), dx.Param(jnp.ones(2), tag="t")
    with pytest.raises(ValueError, match="different types"):
        jax.tree.map(jnp.add, found, of_model)
    assert jax.tree.map(jnp.add, found.copy(), of_model).value.tolist() == [2.0, 2.0]
    both = jax.tree.map(jnp.add, dx.State({"a": found}), dx.State({"a": of_model}))
    assert both["a"].value.tolist() == [2.0, 2.0]


def test_they_are_kept_until_a_write():
    state = dx.state(Net())

    def variables():
        return jax.tree.leaves(state, is_leaf=is_variable)

    before = variables()
    assert all(a is b for a, b in zip(before, variables(), strict=True))
    state["norm"]["scale"].value = jnp.full(2, 7.0)
    after = variables()
    scale = state.paths.index(("norm", "scale"))
    assert before[scale].value.tolist() == [1.0, 1.0]
    assert after[scale].value.tolist() == [7.0, 7.0]
    assert all(a is b for a, b in zip(after, variables(), strict=True))


def test_they_go_through_transforms():
    found = light_of(dx.Param(jnp.ones(2), tag="t"))
    assert jax.jit(lambda v: v.value * 2)(found).tolist() == [2.0, 2.0]
    assert dx.jit(lambda v: v * 2)(found).tolist() == [2.0, 2.0]
    assert dx.jit(lambda v: v)(found).tag == "t"
    model = dx.Module()
    model.kernel = found
    assert dx.split(model)[0] == dx.split(dx.clone(model))[0]
    assert type(dx.clone(model).kernel) is dx.Param


# ================================================================= views


def test_a_view_writes_into_its_state():
    state = dx.State({"a": {"b": dx.Param(1), "c": dx.Param(2)}})
    view = state["a"]["b"]
    assert type(view) is dx.Param
    view.value = 5
    view.tag = "t"
    view += 1
    assert (state.leaves, state["a"]["b"].tag, view.value) == ([6, 2], "t", 6)
    state.replace_by_pure_dict({"a": {"b": 7}})
    assert view.value == 7
    state["a"]["d"] = 8
    view.value = 9
    assert state.to_pure_dict() == {"a": {"b": 9, "c": 2, "d": 8}}


@pytest.mark.parametrize(
    "replace",
    [
        lambda s: s["a"].__setitem__("b", dx.Param(3)),
        lambda s: s["a"].__setitem__("b", 3),
        lambda s: s["a"].__delitem__("b"),
        lambda s: s.__setitem__("a", {"b": {"c": 3}}),
        lambda s: s.clear(),
        lambda s: s.replace_by_pure_dict({"a": {"b": 3}}, lambda old, new: dx.BatchStat(new)),
    ],
)
def test_what_takes_the_place_of_a_view_leaves_it_alone(replace):
    state = dx.State({"a": {"b": dx.Param(1)}})
    view = state["a"]["b"]
    replace(state)
    after = state.to_pure_dict()
    view.value = 4
    assert view.value == 4
    assert state.to_pure_dict() == after


def test_a_view_that_stays_in_its_place_stays_one():
    state = dx.State({"a": dx.Param(1)})
    view = state["a"]
    state["a"] = view
    state.a += 1
    view.value += 1
    assert state.leaves == [3]


def test_a_view_keeps_its_hooks():
    class Doubling(dx.Param):
        def on_set_value(self, value):
            return 2 * value

    state = dx.State({"a": Doubling(1)})
    view = state["a"]
    view.value = 3
    assert (state.leaves, view.value) == ([6], 6)


@pytest.mark.parametrize("is_in_model", [False, True])
def test_what_transforms_write_to_views_reaches_the_state(is_in_model):
    state = dx.State({"a": dx.Param(jnp.ones(2)), "b": {"c": dx.Param(jnp.ones(2))}})
    views = dx.List([state["a"], state["b"]["c"]]) if is_in_model else (state["a"], state["b"]["c"])
    assert dx.jit(lambda v: v[0] * 3)(views).tolist() == [3.0, 3.0]

    def write(variables):
        variables[0].value = variables[0].value + 1

    def write_and_tag(variables):
        write(variables)
        variables[1].tag = "seen"

    dx.jit(write)(views)
    dx.jit(write)(views)
    assert (state["a"].value.tolist(), views[0].value.tolist()) == ([3.0, 3.0], [3.0, 3.0])
    dx.jit(write_and_tag)(views)
    assert (state["a"].value.tolist(), state["b"]["c"].tag) == ([4.0, 4.0], "seen")
    dx.update(views, dx.state(dx.List([dx.Param(jnp.zeros(2)), dx.Param(jnp.zeros(2))])))
    assert [leaf.tolist() for leaf in state.leaves] == [[0.0, 0.0], [0.0, 0.0]]


def test_a_view_in_a_model_beside_plain_arrays():
    state = dx.State({"a": dx.Param(jnp.ones(2))})
    model = dx.Module()
    model.weight, model.count = state["a"], jnp.zeros(())

    def write(model):
        model.weight.value = model.weight.value + 1
        model.count = model.count + 1

    dx.jit(write)(model)
    assert (state["a"].value.tolist(), int(model.count)) == ([2.0, 2.0], 1)


def test_streams_cannot_be_split_where_a_state_has_them():
    rngs = dx.Rngs(0)
    state = dx.state(rngs)
    rngs.default.count = state["default"]["count"]
    with pytest.raises(LayerError, match=r"(?s)default: this shows default.count of a State, which would not.*copy"):
        dx.reseed(rngs, default=1)


def test_copies_of_views_become_the_variables_of_a_graph():
    model = dx.List([dx.Param(jnp.ones(2))])
    graphdef, state = dx.split(model)
    flat = state.flat_state()
    made = dx.unflatten(graphdef, flat)
    made[0].value = jnp.zeros(2)
    assert state[0].value.tolist() == flat.leaves[0].value.tolist() == [1.0, 1.0]
    own = dx.FlatState([((0,), dx.Param(jnp.ones(2)))])
    assert dx.unflatten(graphdef, own)[0] is own.leaves[0]


def test_a_view_belongs_to_the_trace_of_its_state():
    state = dx.State({"a": dx.Param(jnp.ones(()))})
    view = state["a"]
    with pytest.raises(TraceContextError, match="a: a State was changed from another trace level"):
        jax.jit(lambda x: setattr(view, "value", x))(1.0)
    assert state.leaves == [1.0]


def test_nobody_keeps_views():
    state = dx.State({"a": dx.Param(jnp.ones(()))})
    assert state["a"] is state["a"]
    gc.disable()
    try:
        view = weakref.ref(state["a"])
        assert view() is None
        view = weakref.ref(state.flat_state().leaves[0])
        assert view() is None
    finally:
        gc.enable()


def test_threads_that_flatten_one_state():
    states = [dx.state(Net()) for _ in range(20)]
    expected = jax.tree.structure(dx.state(Net()))
    wrong = []
    barrier = threading.Barrier(4)

    def run():
        barrier.wait()
        for state in states:
            is_right = jax.tree.structure(state) == expected and state["norm"]["scale"].value.sum() == 2
            wrong.extend([] if is_right else [state])

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ================================================================= the library does not flatten States


def test_the_library_uses_the_flat_form(monkeypatch):
    """Splitting, merging, updating, compiled calls with States: none builds what JAX would see."""
    from declax._state import states

    def refuse(*_):
        raise AssertionError("a State was taken apart by JAX")

    @dx.jit
    def total(state):
        return state["norm"]["scale"].value.sum()

    @dx.jit
    def replace(model, state):
        dx.update(model, state)

    net, holder = Net(), dx.Module()
    holder.kept = dx.data(dx.state(net))
    total(dx.state(net))  # names of arguments are found while it is traced
    replace(net, dx.state(net, dx.Param))
    monkeypatch.setattr(states, "children_of", refuse)
    graphdef, params, rest = dx.split(net, dx.Param, ...)
    merged = dx.merge(graphdef, params, rest)
    dx.update(merged, params)
    dx.clone(merged)
    state = dx.state(net, copy=True)
    copy.deepcopy(state)
    assert state == dx.state(net, copy=False)
    assert total(state) == 2
    grads = dx.grad(lambda m: m.norm.scale.value.sum())(net)
    assert grads["norm"]["scale"].value.tolist() == [1.0, 1.0]
    replace(net, params)
    assert dx.graphdef(dx.clone(holder)) == dx.graphdef(holder)


# ================================================================= treedefs, and States in transforms


class Kinds:
    class Mine(dx.Param):
        pass


@pytest.mark.parametrize("through", [copy.deepcopy, lambda tree: pickle.loads(pickle.dumps(tree))])
@pytest.mark.parametrize(
    "content",
    [
        {"a": dx.Param(1.0)},
        {"a": {"b": dx.Param(1.0)}, "c": 2},
        {1: dx.BatchStat(1.0), "a": 2},
        {"a": Kinds.Mine(1.0)},
        {},
    ],
)
def test_copied_treedef_is_the_same(content, through):
    state = dx.State(content)
    leaves, tree = jax.tree.flatten(state)
    made = through(tree)
    assert made == tree
    assert jax.tree.unflatten(made, leaves) == state


def test_a_kind_of_a_function_has_no_pickled_treedef():
    class Mine(dx.Param):
        pass

    with pytest.raises((pickle.PicklingError, AttributeError), match="Can't pickle"):
        pickle.dumps(jax.tree.structure(dx.State({"a": Mine(1.0)})))
    with pytest.raises(dx.errors.MissingAttributeError, match=r"_state\.tree: it has no attribute 'lights'"):
        importlib.import_module("declax._state.tree").lights  # the access is what is tested


def increment(state):
    return jax.tree.map(lambda leaf: leaf + 1, state)


@pytest.mark.parametrize("value", [dx.Param(jnp.ones(2)), jnp.ones(2), dx.Param(jnp.ones(2), tag="x")])
def test_loops_carry_states(value):
    state = dx.State({"a": {"b": value}})
    expected = jax.lax.fori_loop(0, 3, lambda _, carry: increment(carry), state)
    assert dx.fori_loop(0, 3, lambda _, carry: increment(carry), state) == expected
    found = dx.while_loop(lambda carry: carry[0] < 3, lambda carry: (carry[0] + 1, increment(carry[1])), (0, state))
    assert found[1] == expected
    assert dx.scan(lambda carry, x: (increment(carry), x))(state, jnp.zeros(3))[0] == expected


def test_tangents_of_states_are_states():
    state = dx.State({"a": {"b": dx.Param(jnp.ones(2))}})
    value, tangent = dx.jvp(increment, (state,), (state,))
    assert value == increment(state)
    assert tangent == state
