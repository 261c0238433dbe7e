"""Shardings, meshes and donated States that do not fit, on eight devices: errors with paths and axes, and no loss."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding

import declax as dx
from declax.errors import TransformError

P = jax.P
MESH = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
SIZES = r"on a mesh of \{'data': 4, 'model': 2\}"


def make():
    return dx.Sequential(dx.Linear(8, 15, rngs=dx.Rngs(0)), dx.Linear(15, 8, rngs=dx.Rngs(1)))


def on_mesh(*entries):
    return NamedSharding(MESH, P(*entries))


REFUSED = {
    "a size": (
        P("data"),
        True,
        rf"layers\[0\]\.bias: this cannot be split by P\('data',\)(.|\n)*\(15,\)(.|\n)*{SIZES}",
    ),
    "a size, with the mesh": (on_mesh("data"), False, rf"layers\[0\]\.bias: (.|\n)*{SIZES}"),
    "an axis": (P("datum"), True, rf"layers\[0\]\.bias: this cannot be split by P\('datum',\)(.|\n)*{SIZES}"),
    "a dimension": (on_mesh(None, None, "data"), False, rf"layers\[0\]\.bias: this cannot be split (.|\n)*{SIZES}"),
    "no mesh": (P("data"), False, r"layers\[0\]\.bias: there is no mesh for P\('data',\)"),
}


@pytest.mark.parametrize("donated", [(), (0,)], ids=["", "donated"])
@pytest.mark.parametrize("case", REFUSED)
def test_a_sharding_of_an_argument_that_does_not_fit(case, donated):
    label, is_within, text = REFUSED[case]
    model = make()
    before = jax.tree.leaves(model)

    def double(model, x):
        model.layers[0].kernel.value *= 2
        return model(x)

    step = dx.jit(double, in_shardings=(dx.StateSharding({dx.Param: label, ...: None}), None), donate_argnums=donated)
    with jax.set_mesh(MESH) if is_within else contextlib.nullcontext():
        for run in (step, step.lower):
            with pytest.raises(TransformError, match=rf"^model\.{text}"):
                run(model, jnp.ones((2, 8)))
    assert all(one is two and not one.is_deleted() for one, two in zip(jax.tree.leaves(model), before, strict=True))
    assert model(jnp.ones((2, 8))).shape == (2, 8)


@pytest.mark.parametrize("label", [on_mesh("data"), P("data")], ids=["sharding", "spec"])
def test_an_array_that_is_elsewhere_on_the_mesh(label):
    model = dx.Linear(8, 16, rngs=dx.Rngs(0))
    model.kernel.value = before = jax.device_put(model.kernel.value, on_mesh("model"))

    def double(model):
        model.kernel.value *= 2

    step = dx.jit(
        double, in_shardings=dx.StateSharding({dx.PathContains("kernel"): label, ...: None}), donate_argnums=0
    )
    text = r"^model\.kernel: this array is elsewhere (.|\n)*P\('data',?\)(.|\n)*split by P\('model',?\)"
    with jax.set_mesh(MESH), pytest.raises(TransformError, match=text):
        step(model)
    assert model.kernel.value is before
    assert not before.is_deleted()


@pytest.mark.parametrize("case", REFUSED)
def test_a_sharding_of_a_result_that_does_not_fit(case):
    label, is_within, text = REFUSED[case]
    made = dx.jit(make, out_shardings=dx.StateSharding({dx.Param: label, ...: None}))
    with jax.set_mesh(MESH) if is_within else contextlib.nullcontext():
        is_known_before = case in ("an axis", "no mesh")  # of the trace
        where = "out_shardings: ('datum' of|there is no mesh)" if is_known_before else rf"the result\.{text}"
        with pytest.raises(TransformError, match=f"^{where}"):
            made()
        with pytest.raises(TransformError, match="^out_shardings: " if is_known_before else r"^the result\.b: "):
            dx.jit(lambda x: {"a": x, "b": x.sum()}, out_shardings=label)(jnp.ones((8, 8, 8)))


def test_a_state_that_was_donated_is_named():
    """XLA ends the process if an array on several devices is given again."""
    with jax.set_mesh(MESH):
        graphdef, state = dx.split(jax.device_put(make(), on_mesh()))
    double = dx.jit(lambda state, x: jax.tree.map(lambda leaf: 2 * leaf, state), donate_argnums=0)
    x = jax.device_put(jnp.ones((4, 8)), on_mesh("data"))
    once = double(state, x)
    for _ in range(2):
        with pytest.raises(TransformError, match=r"this array was deleted, since its buffer was donated"):
            double(state, x)
    twice = double(once, x)
    assert dx.merge(graphdef, twice)(x).shape == (4, 8)
    assert all(leaf.sharding == on_mesh() for leaf in jax.tree.leaves(twice))
