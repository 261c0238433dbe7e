"""Programs with the graph functions, which do the same with `import declax as nnx` as with Flax NNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx

flax_nnx = pytest.importorskip("flax.nnx")


def same(program: Callable[[Any], Any]) -> Any:
    """What a program returns with both libraries."""
    ours, peers = program(dx), program(flax_nnx)
    assert ours == peers
    return ours


def opaque(nnx: Any) -> Any:
    class Opaque(nnx.Pytree, pytree=False):
        def __init__(self) -> None:
            self.x = nnx.Param(jnp.ones(2))

    return Opaque()


@pytest.mark.parametrize(
    "function",
    [
        lambda nnx, node: nnx.split(node, graph=False),
        lambda nnx, node: nnx.state(node, graph=False),
        lambda nnx, node: list(nnx.iter_graph(node, graph=False)),
        lambda nnx, node: list(nnx.iter_children(node[0], graph=False)),
        lambda nnx, node: nnx.recursive_map(lambda path, value: value, node, graph=False),
    ],
)
def test_a_class_that_is_no_pytree_where_a_tree_is_asked_for(function: Any) -> None:
    for nnx in (dx, flax_nnx):
        with pytest.raises(ValueError, match="pytree=False"):
            function(nnx, nnx.List([opaque(nnx)]))
    assert len(dx.split(dx.List([opaque(dx)]))[1].paths) == 1


def test_values_in_the_place_of_variables() -> None:
    def program(nnx: Any) -> Any:
        made = nnx.map(lambda path, value: len(path), nnx.Rngs(0), recreate_variables=False)
        return made.default.count, made.default.key

    assert same(program) == (2, 2)


@pytest.mark.parametrize("graph", [True, False])
def test_functions_of_map_write_to_the_model(graph: bool) -> None:
    def program(nnx: Any) -> Any:
        model = nnx.Linear(1, 2, rngs=nnx.Rngs(0))
        returned = nnx.map(lambda path, v: v.set_value(jnp.full(v.shape, 2.0)), model, graph=graph)
        seen = [float(model.kernel.sum()), float(model.bias.sum()), returned.kernel.get_raw_value()]

        @nnx.jit(graph=graph, graph_updates=graph)
        def halve(model: Any) -> None:
            nnx.map(lambda path, v: v.set_value(v[...] / 2), model, graph=graph)

        halve(model)
        kept = nnx.map(lambda path, v: v, model, graph=graph)
        doubled = nnx.map(lambda path, v: v.replace(v[...] * 2), model, graph=graph)
        shared = kept.kernel is model.kernel, doubled.kernel is model.kernel
        return *seen, shared, float(model.kernel.sum()), float(doubled.kernel.sum())

    assert same(program) == (4.0, 4.0, None, (True, False), 2.0, 4.0)


def test_map_of_a_state() -> None:
    def program(nnx: Any) -> Any:
        layer = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        state = nnx.merge_state(nnx.state(layer), {"steps": jnp.array(3)})
        labels = nnx.map(lambda path, v: "decay" if path[-1] == "kernel" else "none", state)
        doubled = nnx.map(lambda path, v: v * 2 if path == ("steps",) else v.get_value() * 2, state)
        tagged = nnx.map(lambda path, v: v if path == ("steps",) else v.replace(v[...], tag=path[-1]), state)
        shapes = nnx.map(lambda path, v: v.shape, state, recreate_variables=False)
        seen = [[type(value).__name__ for _, value in nnx.to_flat_state(made)] for made in (labels, doubled, tagged)]
        masked = optax.masked(optax.add_decayed_weights(0.5), nnx.map(lambda path, v: path[-1] == "kernel", state))
        updates, _ = masked.update(state, masked.init(state), state)
        numbers = [float(updates["kernel"].sum()), int(doubled["steps"]), float(doubled["kernel"].sum())]
        return jax.tree.leaves(labels), seen, tagged["bias"].tag, nnx.to_pure_dict(shapes), numbers

    labels, seen, tag, shapes, _ = same(program)
    assert labels == ["none", "decay", "none"]
    assert seen[1] == seen[2] == ["Param", "Param", "ArrayImpl"]
    assert tag == "bias"
    assert shapes == {"bias": (3,), "kernel": (2, 3), "steps": ()}


@pytest.mark.parametrize("graph", [True, False])
def test_attributes_of_all_modules_in_both_modes(graph: bool) -> None:
    def program(nnx: Any) -> Any:
        model = nnx.List([nnx.Dropout(0.5, rngs=nnx.Rngs(0)), nnx.Dropout(0.1)])
        model.set_attributes(rate=0.2, graph=graph)
        model.eval(graph=graph)
        return [(layer.rate, layer.deterministic) for layer in model]

    same(program)
    layer = dx.Dropout(0.1)
    with pytest.raises(ValueError, match="reached twice"):
        dx.List([layer, layer]).set_attributes(rate=0.3, graph=False)
    assert layer.rate == 0.1


def test_values_of_ml_dtypes_from_numpy() -> None:
    def program(nnx: Any) -> Any:
        model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        nnx.update(model, jax.tree.map(lambda x: np.asarray(x.astype(jnp.bfloat16)), nnx.state(model)))
        return str(model.kernel.dtype), model.bias.shape

    same(program)
    with pytest.raises(ValueError, match="an array of numbers of shape"):
        dx.update(dx.Param(jnp.ones(2)), dx.State({(): dx.Param(np.zeros(2, dtype="i4,f4"))}))


def holder(nnx: Any) -> Any:
    model = nnx.Module()
    model.raw, model.numbers, model.kernel = jnp.ones(2), np.ones(2), nnx.Param(jnp.ones(1))
    model.number, model.part = nnx.data(1.5), nnx.Dict(raw=jnp.ones(1), stat=nnx.BatchStat(jnp.zeros(1)))
    model.key, model.ref = jax.random.key(0), nnx.data(jax.new_ref(jnp.ones(1)))
    return model


@pytest.mark.parametrize(
    "filters_of",
    [
        lambda nnx: [...],
        lambda nnx: [True],
        lambda nnx: [nnx.Param],
        lambda nnx: [nnx.Variable],
        lambda nnx: [nnx.Not(nnx.Param)],
        lambda nnx: [jax.Array],
        lambda nnx: [np.ndarray, nnx.BatchStat],
        lambda nnx: [float],
        lambda nnx: [nnx.PathContains("raw")],
        lambda nnx: [lambda path, value: path[-1] in ("raw", "number")],
        lambda nnx: [nnx.Param, ...],
        lambda nnx: [nnx.Any("tag", nnx.BatchStat), lambda path, value: isinstance(value, jax.Array)],
    ],
)
def test_pop_of_variables_arrays_and_refs(filters_of: Callable[[Any], list[Any]]) -> None:
    def program(nnx: Any) -> Any:
        model = holder(nnx)
        popped = nnx.pop(model, *filters_of(nnx))
        states = popped if isinstance(popped, tuple) else (popped,)
        taken = [[(path, type(value).__name__) for path, value in nnx.to_flat_state(state)] for state in states]
        return taken, [path for path, _ in nnx.to_flat_state(nnx.state(model))]

    same(program)


def test_pop_of_an_array_in_a_tuple() -> None:
    for nnx in (dx, flax_nnx):
        model = holder(nnx)
        model.pair = nnx.data((jnp.ones(1),))
        with pytest.raises(ValueError, match="tuple"):
            nnx.pop(model, nnx.PathContains("pair"))
