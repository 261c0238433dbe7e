"""`graph=`: a graph or a tree, and the defaults of modes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax.errors import GraphError


class Pair(dx.Module):
    def __init__(self):
        self.left = dx.Module()
        self.left.scale = dx.Param(jnp.ones(2))
        self.right = dx.Module()
        self.right.scale = dx.Param(jnp.ones(2))


def shared_variable() -> Pair:
    model = Pair()
    model.right.scale = model.left.scale
    return model


def shared_node() -> Pair:
    model = Pair()
    model.right = model.left
    return model


def cycle() -> Pair:
    model = Pair()
    model.right.back = model
    return model


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "split": dx.split,
    "state": dx.state,
    "variables": dx.variables,
    "graphdef": dx.graphdef,
    "clone": dx.clone,
    "clone, same Variables": lambda node, **mode: dx.clone(node, variables=False, **mode),
    "unpack": dx.unpack,
    "flatten": dx.flatten,
    "flatten with others": lambda node, **mode: dx.flatten(node, ref_index=dx.RefMap(), **mode),
    "update": lambda node, **mode: dx.update(node, {}, **mode),
    "pop": lambda node, **mode: dx.pop(node, dx.Intermediate, **mode),
    "iter_graph": lambda node, **mode: list(dx.iter_graph(node, **mode)),
    "iter_modules": lambda node, **mode: list(dx.iter_modules(node, **mode)),
    "iter_children": lambda node, **mode: list(dx.iter_children(node, **mode)),
    "iter_module_children": lambda node, **mode: list(dx.iter_module_children(node, **mode)),
    "Module.split": lambda node, **mode: node.split(**mode),
    "Module.get_state": lambda node, **mode: node.get_state(**mode),
    "Module.update": lambda node, **mode: node.update({}, **mode),
    "map": lambda node, **mode: dx.map(lambda path, value: value, node, **mode),
    "recursive_map": lambda node, **mode: dx.recursive_map(lambda path, value: value, node, **mode),
    "view": dx.view,
    "view_info": dx.view_info,
    "with_attributes": dx.with_attributes,
}
each_function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)


@each_function
def test_trees_are_taken_in_both_modes(function):
    function(Pair(), graph=False)
    function(Pair(), graph=True)


@each_function
@pytest.mark.parametrize(
    ("make", "first", "second"),
    [(shared_variable, "left.scale", "right.scale"), (shared_node, "left", "right")],
    ids=["variable", "node"],
)
def test_sharing_is_an_error_of_trees_that_names_both_paths(function, make, first, second):
    model = make()
    function(model, graph=True)
    with pytest.raises(GraphError, match="reached twice") as caught:
        function(model, graph=False)
    assert f"found at paths {first} and {second}" in str(caught.value)
    assert "fix:      graph=True" in str(caught.value)


@each_function
def test_a_cycle_is_an_error_of_trees(function):
    with pytest.raises(GraphError, match="a node that holds itself") as caught:
        function(cycle(), graph=False)
    assert "right.back" in str(caught.value)


def test_refs_are_shared_things_too():
    ref = dx.array_ref(jnp.ones(2))
    for function in (dx.split, lambda node, graph: list(dx.iter_graph(node, graph=graph))):
        with pytest.raises(GraphError, match="reached twice"):
            function([ref, ref], graph=False)


def test_an_error_of_the_tree_mode_changes_nothing():
    model = shared_variable()
    model.left.seen = dx.Intermediate(1)
    with pytest.raises(GraphError, match="reached twice"):
        dx.pop(model, dx.Intermediate, graph=False)
    with pytest.raises(GraphError, match="reached twice"):
        dx.update(model, {"left": {"scale": jnp.zeros(2)}}, graph=False)
    assert model.left.seen.value == 1
    assert model.left.scale.value.all()


@each_function
def test_the_default_is_that_of_the_mode(function):
    with dx.set_graph_mode(False):
        function(Pair())
        function(shared_node(), graph=True)
        with pytest.raises(GraphError, match="reached twice"):
            function(shared_node())
    function(shared_node())


def loss(model, x):
    return jnp.sum(model(x) ** 2)


LIBRARY = {
    "accumulate": lambda: (
        jax.tree.leaves(dx.accumulate(loss, steps=2)(dx.Linear(2, 3, rngs=dx.Rngs(0)), jnp.ones((4, 2)))[1])[0].shape
    ),
    "RNN": lambda: dx.RNN(dx.GRUCell(2, 3, rngs=dx.Rngs(0)))(jnp.ones((1, 4, 2))).shape,
    "Stacked": lambda: dx.Stacked(lambda rngs: dx.Linear(2, 2, rngs=rngs), 3, rngs=dx.Rngs(0))(jnp.ones(2)).shape,
}


@pytest.mark.parametrize("program", LIBRARY.values(), ids=LIBRARY)
def test_functions_of_the_library_select_by_filter_in_tree_mode_too(program):
    in_graphs = program()
    with dx.set_graph_mode(False):
        assert program() == in_graphs


@pytest.mark.parametrize("mode", [dx.set_graph_mode, dx.set_graph_updates])
def test_defaults(mode):
    assert mode.current_value() is True
    with mode(False):
        assert mode.current_value() is False
        with mode(True):
            assert mode.current_value() is True
        assert mode.current_value() is False
    assert mode.current_value() is True
    mode(False)
    try:
        assert mode.current_value() is False
    finally:
        mode(True)
    assert mode.current_value() is True


@pytest.mark.parametrize("mode", [dx.set_graph_mode, dx.set_graph_updates])
def test_the_block_ends_with_an_error_too(mode):
    with pytest.raises(ZeroDivisionError), mode(False):
        1 / 0
    assert mode.current_value() is True


@pytest.mark.parametrize("mode", [dx.set_graph_mode, dx.set_graph_updates])
def test_a_mode_is_a_bool(mode):
    with pytest.raises(GraphError, match="a mode must be True or False"):
        mode("tree")
    assert mode.current_value() is True


def test_repr_shows_the_default():
    assert repr(dx.set_graph_mode(True)) == "set_graph_mode(True)"
    assert repr(dx.set_graph_updates(True)) == "set_graph_updates(True)"


def test_a_mode_belongs_to_its_thread():
    seen = []
    with dx.set_graph_mode(False):
        thread = threading.Thread(target=lambda: seen.append(dx.set_graph_mode.current_value()))
        thread.start()
        thread.join()
    assert seen == [True]


def test_a_mode_belongs_to_its_task():
    async def tree(entered: asyncio.Event, leave: asyncio.Event) -> bool:
        with dx.set_graph_mode(False):
            entered.set()
            await leave.wait()
            return dx.set_graph_mode.current_value()

    async def both() -> tuple[bool, bool]:
        entered, leave = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(tree(entered, leave))
        await entered.wait()
        here = dx.set_graph_mode.current_value()
        leave.set()
        return here, await task

    assert asyncio.run(both()) == (True, False)


# ================================================================= flags

FLAGS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "state": ("copy", lambda flag: dx.state(Pair(), copy=flag)),
    "merge": ("copy", lambda flag: dx.merge(*dx.split(Pair()), copy=flag)),
    "clone": ("variables", lambda flag: dx.clone(Pair(), flag)),
    "update, complete": ("complete", lambda flag: dx.update(Pair(), dx.state(Pair()), complete=flag)),
    "update, strict": ("strict", lambda flag: dx.update(Pair(), dx.state(Pair()), strict=flag)),
    "flatten": ("with_paths", lambda flag: dx.flatten(Pair(), with_paths=flag)),
    "unflatten": ("copy_variables", lambda flag: dx.unflatten(*dx.flatten(Pair()), copy_variables=flag)),
    "with_vars, ref": ("ref", lambda flag: dx.with_vars(Pair(), ref=flag)),
    "with_vars": ("allow_duplicates", lambda flag: dx.with_vars(Pair(), allow_duplicates=flag)),
    "to_arrays": ("allow_duplicates", lambda flag: dx.to_arrays(Pair(), allow_duplicates=flag)),
    "view": ("raise_if_not_found", lambda flag: dx.view(Pair(), raise_if_not_found=flag)),
    "with_attributes": ("raise_if_not_found", lambda flag: dx.with_attributes(Pair(), raise_if_not_found=flag)),
    "set_attributes": ("raise_if_not_found", lambda flag: Pair().set_attributes(raise_if_not_found=flag)),
    "FlatState": ("sort", lambda flag: dx.FlatState([], sort=flag)),
    "eval_shape": ("graph_updates", lambda flag: dx.eval_shape(Pair, graph_updates=flag)),
    "eval_shape, graph": ("graph", lambda flag: dx.eval_shape(Pair, graph=flag)),
}


@pytest.mark.parametrize("wrong", [3, 1, 0, "x", np.True_], ids=repr)
@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_is_true_or_false(name, wrong):
    flag, use = FLAGS[name]
    use(True), use(False)
    with pytest.raises(GraphError, match="this is not a valid flag") as caught:
        use(wrong)
    assert caught.value.where == flag
    assert caught.value.fix == f"{flag}=True"


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_graph_is_a_flag(function):
    with pytest.raises(GraphError, match="True, False, or None for the default"):
        function(Pair(), graph=3)


def test_a_wrong_flag_changes_nothing():
    model = Pair()
    with pytest.raises(GraphError, match="this is not a valid flag"):
        dx.update(model, {"left": {"scale": jnp.zeros(2)}}, strict=3)  # type: ignore[call-overload]  # what it is about
    with pytest.raises(GraphError, match="this is not a valid flag"):
        dx.pop(model, dx.Param, graph=3)  # type: ignore[call-overload]  # as above
    assert model.left.scale.value.all()
