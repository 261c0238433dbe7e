"""`variables` gives the Variables of the model itself, as in Flax NNX: programs with both libraries, and the limits."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx

flax_nnx = pytest.importorskip("flax.nnx")


def model_of(nnx: Any) -> Any:
    return nnx.Dict(first=nnx.Linear(2, 3, rngs=nnx.Rngs(0)), rest=nnx.List([nnx.BatchNorm(3, rngs=nnx.Rngs(1))]))


def write_flat(nnx: Any, model: Any) -> None:
    for path, variable in nnx.to_flat_state(nnx.variables(model)):
        variable[...] = jnp.full_like(variable[...], len(path))


def write_value(nnx: Any, model: Any) -> None:
    for _, variable in nnx.to_flat_state(nnx.variables(model, nnx.Param)):
        variable.set_value(variable.get_value() * 2)


def write_nested(nnx: Any, model: Any) -> None:
    found = nnx.variables(model)
    found["first"]["kernel"][0] = 7.0
    found["rest"][0]["mean"][...] += 1.0


def write_filtered(nnx: Any, model: Any) -> None:
    stats = nnx.filter_state(nnx.variables(model), nnx.BatchStat)
    stats["rest"][0]["var"][...] *= 5.0
    params, _ = nnx.split_state(nnx.variables(model), nnx.Param, ...)
    params["first"]["bias"][...] = jnp.arange(3.0)


def write_part(nnx: Any, model: Any) -> None:
    first, *_ = nnx.variables(model, nnx.PathContains("first"), ...)
    nnx.filter_state(first["first"], nnx.Param)["bias"][...] = jnp.ones(3)


def write_metadata(nnx: Any, model: Any) -> None:
    for path, variable in nnx.to_flat_state(nnx.variables(model, nnx.Param)):
        variable.set_metadata(where="/".join(map(str, path)))
    assert model["first"].kernel.where == "first/kernel"


def write_in_jit(nnx: Any, model: Any) -> None:
    @nnx.jit
    def clip(model: Any) -> None:
        for _, variable in nnx.to_flat_state(nnx.variables(model, nnx.Param)):
            variable[...] = jnp.clip(variable[...], -0.1, 0.1)

    clip(model)


def put_entry(nnx: Any, model: Any) -> None:
    found = nnx.variables(model)
    found["first"]["bias"] = nnx.Param(jnp.full(3, 9.0))  # replaces the entry, not the Variable
    found["first"]["kernel"][...] = jnp.zeros((2, 3))
    assert found["first"]["bias"][0] == 9.0
    nnx.update(model, nnx.filter_state(found, nnx.PathContains("bias")))


def write_after(nnx: Any, model: Any) -> None:
    found = nnx.variables(model)
    model["first"].bias[...] = jnp.full(3, 4.0)
    model["first"].kernel[...] = found["first"]["bias"][...] * jnp.ones((2, 1))


def update_with_them(nnx: Any, model: Any) -> None:
    found = nnx.variables(model, nnx.Param)
    nnx.update(model, found)
    nnx.update(model, jax.tree.map(lambda x: x + 1, found))


PROGRAMS = [write_flat, write_value, write_nested, write_filtered, write_part, write_metadata]
PROGRAMS += [write_in_jit, put_entry, write_after, update_with_them]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_changes_the_model_as_in_flax(program: Any) -> None:
    states = []
    for nnx in (dx, flax_nnx):
        model = model_of(nnx)
        program(nnx, model)
        states.append(nnx.to_pure_dict(nnx.state(model)))
    jax.tree.map(np.testing.assert_allclose, *states)


def test_the_variables_are_those_of_the_model() -> None:
    model = model_of(dx)
    found = dx.variables(model)
    assert found["first"].kernel is model["first"].kernel
    assert [v for _, v in found.flat_state()] == [v for _, v in dx.iter_graph(model) if isinstance(v, dx.Variable)]
    assert list(found) == ["first", "rest"]
    assert found == dx.state(model)
    assert dx.variables(found, dx.Param).first.bias is model["first"].bias


def test_a_variable_is_changed_in_place() -> None:
    model = model_of(dx)
    found = dx.variables(model)
    found["first"].bias += 3.0
    found["first"]["bias"] *= 2.0
    assert found["first"].bias is model["first"].bias
    assert model["first"].bias.value[0] == 6.0


def test_values_and_metadata_follow_the_model() -> None:
    model = model_of(dx)
    found = dx.variables(model)
    model["first"].bias.value = jnp.full(3, 4.0)
    model["first"].bias.set_metadata(tag="late")
    assert found.to_pure_dict()["first"]["bias"][0] == 4.0
    assert found.filter("late").paths == (("first", "bias"),)
    (light,) = [
        v
        for v in jax.tree.leaves(found, is_leaf=is_variable)
        if v.get_metadata(exclude_required=True) == {"tag": "late"}
    ]
    assert light.value[0] == 4.0


def is_variable(value: object) -> bool:
    return isinstance(value, dx.Variable)


def test_a_plain_array_is_shown_as_it_was() -> None:
    model = dx.Module()
    model.table, model.scale = jnp.zeros(2), dx.Param(1.0)
    found = dx.variables(model)
    model.table = jnp.ones(2)
    assert found["table"].sum() == 0.0
    assert found.scale is model.scale


@pytest.mark.parametrize(
    "snapshot_of",
    [
        copy.copy,
        copy.deepcopy,
        lambda found: pickle.loads(pickle.dumps(found)),
        lambda found: found.map(lambda path, variable: variable),
        dx.merge_state,
        lambda found: jax.tree.map(lambda x: x, found),
        dx.jit(lambda found: found),
    ],
)
def test_what_is_made_of_them_is_a_snapshot(snapshot_of: Any) -> None:
    model = model_of(dx)
    found = dx.variables(model)
    snapshot = snapshot_of(found)
    assert snapshot == found
    snapshot.first.bias.value = jnp.full(3, 8.0)
    assert model["first"].bias.value[0] == 0.0


def test_entries_are_replaced_in_the_state_only() -> None:
    model = model_of(dx)
    found = dx.variables(model)
    found["extra"] = {"a": dx.Param(1.0), "b": 2}
    found.first.bias = jnp.full(3, 8.0)
    del found["rest"]
    assert found.paths == (("extra", "a"), ("extra", "b"), ("first", "bias"), ("first", "kernel"))
    assert model["first"].bias.value[0] == 0.0
    assert found.first.kernel is model["first"].kernel
    found.replace_by_pure_dict({"extra": {"a": 5.0}})
    assert found.extra.a.value == 5.0


def test_a_state_of_them_as_an_argument_is_a_snapshot() -> None:
    model = model_of(dx)

    @dx.jit
    def lose(found: Any) -> None:
        found["first"]["bias"][...] += 1.0

    with pytest.raises(dx.errors.TransformError, match="writes to a State that it got as an argument"):
        lose(dx.variables(model))
    grads = dx.grad(lambda found: (found["first"]["kernel"] ** 2).sum())(dx.variables(model, dx.Param))
    np.testing.assert_allclose(grads["first"]["kernel"].value, 2 * model["first"].kernel.value, rtol=1e-6)


def test_during_a_captured_call_they_come_without_what_is_sown() -> None:
    class Net(dx.Module):
        def __init__(self) -> None:
            self.scale = dx.Param(jnp.ones(()))

        def __call__(self, x: Any) -> Any:
            self.sow(dx.Intermediate, "seen", x)
            dx.variables(self, dx.Param)["scale"].value = jnp.full((), 3.0)
            return x * self.scale

    net = Net()
    y, seen = dx.capture(net, dx.Intermediate)(jnp.ones(()))
    assert (y, net.scale.value, seen["seen"].value) == (3.0, 3.0, (1.0,))


def test_a_tree_is_asked_for() -> None:
    shared = dx.Param(1.0)
    with pytest.raises(dx.errors.GraphError, match="reached twice"):
        dx.variables([shared, shared], graph=False)
