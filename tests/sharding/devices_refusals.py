"""Shardings, meshes and donated States that do not fit, on eight devices: errors with paths and axes, and no loss."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding

import declax as dx
from declax.errors import TransformError

pytestmark = pytest.mark.filterwarnings("ignore:.* splits no argument:declax.errors.ReplicationWarning")

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


# ----------------------------------------------------------------- arrays of two meshes


def mesh_of(devices, *names, kind=AxisType.Auto):
    sizes = (len(devices),) if len(names) == 1 else (2, len(devices) // 2)
    return jax.make_mesh(sizes, names, axis_types=(kind,) * len(names), devices=devices)


def linear(place):
    return jax.device_put(dx.Linear(8, 8, rngs=dx.Rngs(0)), place)


DEVICES = jax.devices()
FIRST, LAST = DEVICES[:4], DEVICES[4:]
ON_FIRST = r"Mesh\('data': 4, axis_types=\(Auto,\)\) of the devices 0, 1, 2, 3"
ON_LAST = r"Mesh\('data': 4, axis_types=\(Auto,\)\) of the devices 4, 5, 6, 7"
MESHES = {
    "other devices": (mesh_of(FIRST, "data"), mesh_of(LAST, "data"), ON_FIRST, ON_LAST),
    "more devices": (
        mesh_of(FIRST, "data"),
        mesh_of(DEVICES, "data", "model"),
        ON_FIRST,
        r"Mesh\('data': 2, 'model': 4, axis_types=\(Auto, Auto\)\) of the devices 0, 1, 2, 3, 4, 5, 6, 7",
    ),
    "another order": (
        mesh_of(FIRST, "data"),
        mesh_of(FIRST[::-1], "data"),
        ON_FIRST,
        r"Mesh\('data': 4, axis_types=\(Auto,\)\) of the devices 3, 2, 1, 0",
    ),
    "explicit axes": (
        mesh_of(FIRST, "data", kind=AxisType.Explicit),
        mesh_of(FIRST, "model", kind=AxisType.Explicit),
        r"Mesh\('data': 4, axis_types=\(Explicit,\)\) of the devices 0, 1, 2, 3",
        r"Mesh\('model': 4, axis_types=\(Explicit,\)\) of the devices 0, 1, 2, 3",
    ),
}


@pytest.mark.parametrize("donated", [(), (0, 1)], ids=["", "donated"])
@pytest.mark.parametrize("case", MESHES)
def test_arrays_of_two_meshes(case, donated):
    one, two, first, second = MESHES[case]
    a, b = linear(NamedSharding(one, P())), linear(NamedSharding(two, P()))
    before = jax.tree.leaves((a, b))

    def apply(a, b, x):
        a.bias.value += 1
        return b(a(x))

    step = dx.jit(apply, donate_argnums=donated)
    text = r"^b\.bias: this is on another mesh than a\.bias(.|\n)*"
    text += rf" a\.bias and 1 more: {first}\n *b\.bias and 1 more: {second}\n"
    for run in (step, step.lower):
        with pytest.raises(TransformError, match=text):
            run(a, b, jnp.ones((8, 8)))
    assert all(x is y and not x.is_deleted() for x, y in zip(jax.tree.leaves((a, b)), before, strict=True))


def test_arrays_of_another_mesh_than_those_before():
    """A call like the last one takes a shorter way."""
    model = linear(NamedSharding(mesh_of(FIRST, "data"), P()))
    run = dx.jit(lambda model, x: model(x))
    x, other = (jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh_of(part, "data"), P())) for part in (FIRST, LAST))
    for _ in range(2):
        run(model, x)
    with pytest.raises(TransformError, match=rf"^x: this is on another mesh than model\.bias(.|\n)* x: {ON_LAST}"):
        run(model, other)
    with pytest.raises(TransformError, match=r"^x: this is on another mesh than model\.bias(.|\n)* x: device 5\n"):
        run(model, jax.device_put(x, jax.devices()[5]))


def test_a_model_of_another_mesh_than_the_call():
    model, x = linear(NamedSharding(mesh_of(FIRST, "data"), P())), jnp.ones((8, 8))
    mesh = mesh_of(LAST, "data")
    text = r"^model\.bias: this is on another mesh than the mesh of %s(.|\n)*"
    text += rf": {ON_LAST}\n *model\.bias and 1 more: {ON_FIRST}"
    with jax.set_mesh(mesh), pytest.raises(TransformError, match=text % r"jax\.set_mesh"):
        dx.jit(lambda model, x: model(x))(model, x)
    with pytest.raises(TransformError, match=text % "shard_map"):
        dx.shard_map(lambda model, x: model(x), mesh=mesh, in_specs=(None, P("data")), out_specs=P("data"))(model, x)


def test_shardings_of_two_meshes():
    one, two = (NamedSharding(mesh_of(part, "data"), P()) for part in (FIRST, LAST))
    model, x = dx.Linear(8, 8, rngs=dx.Rngs(0)), jnp.ones((8, 8))
    with pytest.raises(TransformError, match=rf"^x: (.|\n)* model\.bias and 1 more: {ON_FIRST}\n *x: {ON_LAST}"):
        dx.jit(lambda model, x: model(x), in_shardings=(one, two))(model, x)
    with pytest.raises(
        TransformError, match=rf"^out_shardings: this is on another mesh than model\.bias(.|\n)*{ON_LAST}"
    ):
        dx.jit(lambda model, x: model(x), out_shardings=two)(linear(one), x)


def test_arrays_of_another_mesh_than_their_shardings():
    """JAX moves these, and XLA ends the process at a later call, after one with arrays on the right mesh."""
    one, two = (NamedSharding(mesh_of(part, "data"), P("data")) for part in (FIRST, LAST))
    step = dx.jit(lambda model, x: model.b.value + x, in_shardings=one, donate_argnums=0)
    model, x = dx.Dict(a=dx.Param(jnp.ones(8)), b=dx.Param(jnp.ones(8))), jnp.ones(8)
    text = rf"^%s: this is on another mesh than in_shardings(.|\n)* in_shardings: {ON_FIRST}\n *%s: {ON_LAST}\n"
    for _ in range(4):
        step(model, x)
        before = jax.tree.leaves(model)
        with pytest.raises(TransformError, match=text % ("x", "x")):
            step(model, jax.device_put(x, two))
        with pytest.raises(TransformError, match=text % (r"model\.a", r"model\.a")):
            step(jax.device_put(model, two), x)
        assert all(a is b and not a.is_deleted() for a, b in zip(jax.tree.leaves(model), before, strict=True))


def test_a_compiled_function_of_another_mesh():
    model, x = linear(NamedSharding(mesh_of(FIRST, "data"), P())), jnp.ones((8, 8))
    compiled = dx.jit(lambda model, x: model(x)).lower(model, x).compile()
    with pytest.raises(TransformError, match=r"x: the mesh was none, and is data=4 \(Auto\)\n"):
        compiled(model, jax.device_put(x, NamedSharding(mesh_of(FIRST, "data"), P("data"))))


def test_a_shard_map_without_a_mesh():
    with pytest.raises(TransformError, match=r"^x: there is no mesh for P\('data',\)"):
        dx.shard_map(lambda x: x, in_specs=P("data"), out_specs=P("data"))(jnp.ones(8))
