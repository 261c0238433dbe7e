"""Programs with States as pytrees, which do the same with `import declax as nnx` as with Flax NNX."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx

flax_nnx = pytest.importorskip("flax.nnx")
X = jnp.ones((1, 2))


def assert_same(program: Callable[[Any], Any]) -> None:
    """Runs a program with both libraries, and compares the leaves that it returns and their key paths."""
    found, wanted = (dict(jax.tree_util.tree_leaves_with_path(program(nnx))) for nnx in (dx, flax_nnx))
    assert found.keys() == wanted.keys()
    for path, value in wanted.items():
        if isinstance(value, str):
            assert found[path] == value
        else:
            np.testing.assert_allclose(found[path], value, rtol=1e-6)


def model_of(nnx: Any) -> Any:
    return nnx.Dict(first=nnx.Linear(2, 3, rngs=nnx.Rngs(0)), rest=nnx.List([nnx.BatchNorm(3, rngs=nnx.Rngs(1))]))


def kinds_of(nnx: Any, state: Any) -> Any:
    return jax.tree.map(lambda v: type(v).__name__, state, is_leaf=lambda x: isinstance(x, nnx.Variable))


@pytest.mark.parametrize("part", ["Param", "BatchStat", None])
def test_variables_are_leaves_by_is_leaf(part: str | None) -> None:
    def program(nnx: Any) -> Any:
        model = model_of(nnx)
        state = nnx.state(model) if part is None else nnx.state(model, getattr(nnx, part))
        return kinds_of(nnx, state)

    assert_same(program)


def test_variables_of_gradients_and_of_mapped_states_are_leaves_too() -> None:
    def program(nnx: Any) -> Any:
        model = model_of(nnx)
        grads = nnx.grad(lambda m: m["first"](X).sum())(model)
        zeros = jax.tree.map(
            lambda v: type(v)(jnp.zeros_like(v.get_value()), **v.get_metadata()),
            nnx.state(model),
            is_leaf=lambda x: isinstance(x, nnx.Variable),
        )
        merged = nnx.merge_state(zeros, grads)
        return [kinds_of(nnx, state) for state in (grads, zeros, merged)], zeros, grads

    assert_same(program)


def test_states_through_jax() -> None:
    def program(nnx: Any) -> Any:
        graphdef, params, rest = nnx.split(model_of(nnx)["first"], nnx.Param, ...)
        apply = lambda params: nnx.merge(graphdef, params, rest)(X)  # noqa: E731  # as users write it
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), params, params)
        vector, unravel = jax.flatten_util.ravel_pytree(params)
        halved, _ = jax.lax.scan(lambda p, _: (jax.tree.map(lambda x: x / 2, p), None), params, jnp.arange(2))
        return [
            jax.vmap(apply)(stacked),
            jax.jacobian(lambda p: apply(p).sum())(params),
            unravel(2 * vector),
            halved,
            jax.eval_shape(apply, params).shape,
            jax.tree_util.tree_map_with_path(lambda path, _: jax.tree_util.keystr(path), params),
        ]

    assert_same(program)


def test_a_configuration_without_a_hash() -> None:
    def program(nnx: Any) -> Any:
        @dataclasses.dataclass
        class Config:
            dim: int
            names: list[str]

        class Model(nnx.Module):
            def __init__(self, config: Config) -> None:
                self.config = config
                self.linear = nnx.Linear(config.dim, config.dim, rngs=nnx.Rngs(0))

            def __call__(self, x: Any) -> Any:
                return self.linear(x) * len(self.config.names)

        model = Model(Config(2, ["a"]))
        merged = nnx.merge(*nnx.split(model))
        return nnx.jit(lambda m, x: m(x))(model, X), merged(X), nnx.state(model)

    assert_same(program)


def test_gradients_of_states() -> None:
    def program(nnx: Any) -> Any:
        class Model(nnx.Module):
            def __init__(self) -> None:
                self.shift, self.scale = nnx.Perturbation(jnp.ones(2)), nnx.Param(jnp.full(2, 3.0))

        graphdef, shifts, rest = nnx.split(Model(), nnx.Perturbation, ...)

        def loss(state: Any) -> Any:
            return (nnx.merge(graphdef, state, rest).shift[...] ** 2).sum()

        def product(x: Any, state: Any) -> Any:
            return loss(state) * x.sum()

        return nnx.grad(loss)(shifts), nnx.grad(product, argnums=(0, 1))(jnp.ones(2), shifts)

    assert_same(program)


class Point(NamedTuple):
    y: Any
    x: Any


def test_flat_states_are_in_the_order_of_sorted_keys() -> None:
    def program(nnx: Any) -> Any:
        point = Point(nnx.Param(jnp.ones(1)), nnx.BatchStat(jnp.full(2, 2.0)))
        model = nnx.Dict(point=nnx.data(point), list=nnx.List([nnx.Param(jnp.full(1, float(i))) for i in range(11)]))
        state = nnx.state(model)
        flat = list(nnx.to_flat_state(state))
        again = nnx.merge(nnx.graphdef(model), nnx.from_flat_state(flat))
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)]
        return [str(path) for path, _ in flat], [v[...] for _, v in flat], paths, again.point.x[...], again.point.y[...]

    assert_same(program)


def test_flat_states_and_pure_dicts() -> None:
    def program(nnx: Any) -> Any:
        state = nnx.state(model_of(nnx))
        flat = nnx.to_flat_state(state)
        biases = nnx.from_flat_state({path: v for path, v in flat if path[-1] == "bias"})
        pure = nnx.to_pure_dict(state)
        texts = {"first": pure["first"], "rest": {str(key): value for key, value in pure["rest"].items()}}
        nnx.replace_by_pure_dict(state, jax.tree.map(lambda x: x + 1, nnx.restore_int_paths(texts)))
        named, others = nnx.split_state(state, lambda path, _: path[-1] == "bias", ...)
        return biases, pure, state, named, others, nnx.merge_state(named, others), nnx.filter_state(state, nnx.Param)

    assert_same(program)


def zeroed_by_pairs(nnx: Any, grads: Any) -> None:
    for _, grad in nnx.to_flat_state(grads):
        grad.set_value(grad.get_value() * 0)


def zeroed_by_map(nnx: Any, grads: Any) -> None:
    nnx.map_state(lambda path, grad: grad.set_value(grad.get_value() * 0), grads)


def zeroed_in_raw_mapping(nnx: Any, grads: Any) -> None:
    for grad in grads["first"].raw_mapping.values():
        grad.set_value(grad.get_value() * 0)


def zeroed_while_extracting(nnx: Any, grads: Any) -> None:
    nnx.to_pure_dict(grads, lambda grad: grad.set_value(grad.get_value() * 0))


def zeroed_in_jit(nnx: Any, grads: Any) -> None:
    @nnx.jit
    def zero(flat: Any) -> None:
        for _, grad in flat:
            grad.set_value(grad.get_value() * 0)

    zero(nnx.to_flat_state(grads))


@pytest.mark.parametrize(
    "zero",
    [zeroed_by_pairs, zeroed_by_map, zeroed_in_raw_mapping, zeroed_while_extracting, zeroed_in_jit],
)
def test_writes_to_variables_of_gradients_count(zero: Callable[[Any, Any], None]) -> None:
    def program(nnx: Any) -> Any:
        model = model_of(nnx)
        grads = nnx.grad(lambda m: m["first"](X).sum())(model)
        zero(nnx, grads)
        nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param).update(model, grads)
        return jax.tree.leaves(nnx.state(model, nnx.Param))

    assert_same(program)


@pytest.mark.parametrize("part", ["filter", "split", "merge"])
def test_writes_to_parts_of_a_state_reach_the_model_by_update(part: str) -> None:
    def program(nnx: Any) -> Any:
        model = model_of(nnx)
        state = nnx.state(model)
        found = {
            "filter": lambda: nnx.filter_state(state, nnx.Param),
            "split": lambda: nnx.split_state(state, nnx.Param, ...)[0],
            "merge": lambda: nnx.merge_state(state, {}),
        }[part]()
        found["first"]["bias"].set_value(jnp.full(3, 7.0))
        nnx.update(model, found)
        return jax.tree.leaves(nnx.state(model))

    assert_same(program)


def test_variables_of_a_state_become_those_of_a_model() -> None:
    def program(nnx: Any) -> Any:
        model = model_of(nnx)["first"]
        state = nnx.state(model_of(nnx)["first"])
        for path, variable in nnx.to_flat_state(state):
            setattr(model, path[-1], variable)
        optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

        @nnx.jit
        def step(model: Any, optimizer: Any) -> None:
            optimizer.update(model, nnx.grad(lambda m: m(X).sum())(model))

        step(model, optimizer)
        nnx.update(model, jax.tree.map(lambda x: x + 1, nnx.state(model)))
        return jax.tree.leaves(nnx.state(model)), jax.tree.leaves(state)

    assert_same(program)


def scale_state() -> Any:
    model = dx.Module()
    model.scale, model.shift = dx.Param(jnp.array(1.0)), dx.Param(jnp.array(2.0))
    return dx.state(model)


def set_in_place(state: Any) -> None:
    state["scale"][...] = jnp.array(5.0)


@pytest.mark.parametrize(
    "lift",
    [dx.jit, dx.remat, dx.vmap, lambda f: dx.grad(f, argnums=0), lambda f: dx.jit(dx.jit(f))],
    ids=["jit", "remat", "vmap", "grad", "nested"],
)
def test_a_write_to_an_argument_that_would_be_lost(lift: Any) -> None:
    def lose(state: Any) -> Any:
        set_in_place(state)
        return state["shift"].value.sum()

    state = jax.tree.map(jnp.atleast_1d, scale_state()) if lift is dx.vmap else scale_state()
    before = list(state.leaves)
    with pytest.raises(dx.DeclaxError, match=r"scale: the function writes to a State that it got as an argument"):
        lift(lose)(state)
    assert all(map(operator.is_, state.leaves, before))


def test_writes_to_an_argument_that_come_back() -> None:
    def whole(state: Any) -> Any:
        set_in_place(state)
        return {"state": state}

    def value(state: Any) -> Any:
        set_in_place(state)
        return dx.to_pure_dict(state)

    def part(state: Any) -> Any:
        set_in_place(state)
        return dx.Param(state["scale"].value)

    def copied(state: Any) -> Any:
        state = dx.State(state)
        set_in_place(state)
        return state["scale"].value * 2

    assert dx.jit(whole)(scale_state())["state"]["scale"].value == 5.0
    assert dx.jit(value)(scale_state())["scale"] == 5.0
    assert dx.jit(part)(scale_state()).value == 5.0
    assert dx.jit(copied)(scale_state()) == 10.0


def test_a_write_to_the_carried_state() -> None:
    def step(i: Any, state: Any) -> Any:
        state["scale"][...] += i
        return state

    assert dx.fori_loop(0, 3, step, scale_state())["scale"].value == 4.0
