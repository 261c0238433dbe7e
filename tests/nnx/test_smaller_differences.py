"""Rows of the table "What is different" in ``docs/coming_from_nnx.md``: what each library does."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import declax as dx
from declax.errors import GraphError, StatusError


def after_a_compiled_call(nnx):
    model = nnx.Dict(step=nnx.Variable(3), rate=nnx.data(0.5))
    nnx.jit(lambda model: model.step + model.rate)(model)
    return [isinstance(value, jax.Array) for value in (model.step.get_value(), model.rate)]


def an_array_in_a_static_list(nnx):
    class Model(nnx.Module):
        def __init__(self):
            self.scale, self.losses = nnx.Param(jnp.ones(())), []

    model = Model()
    compiled = nnx.jit(lambda model: model.scale * len(model.losses))
    seen = [float(compiled(model))]
    model.losses.append(jnp.ones(()))
    return [*seen, float(compiled(model))]


def keys_of_a_state(nnx):
    state = nnx.State({"b": 1})
    state["c"], state["a"] = 2, 3
    return list(state)


def labels_of_arrays(nnx):
    model = nnx.Dict(w=nnx.Param(jnp.ones(2)), x=jnp.ones(2))
    return nnx.map(lambda path, leaf: "label", model)["x"]


def a_sown_kind_that_derives(nnx):
    class Activation(nnx.Intermediate):
        pass

    class Model(nnx.Module):
        def __call__(self, x):
            self.sow(Activation, "h", x)
            self.sow(nnx.Intermediate, "i", x)

    return list(nnx.capture(Model(), nnx.Intermediate)(1.0)[1])


@pytest.mark.parametrize(
    ("program", "theirs", "ours"),
    [
        (after_a_compiled_call, [True, True], [False, False]),
        (an_array_in_a_static_list, [0.0, 0.0], StatusError),
        (keys_of_a_state, ["b", "c", "a"], ["a", "b", "c"]),
        (labels_of_arrays, "label", GraphError),
        (a_sown_kind_that_derives, ["i"], ["h", "i"]),
    ],
)
def test_a_row_of_the_table(program, theirs, ours):
    if isinstance(ours, type):
        with pytest.raises(ours, match=r"an array cannot be static|expected an array, got str"):
            program(dx)
    else:
        assert program(dx) == ours
    assert program(pytest.importorskip("flax.nnx")) == theirs
