"""Axes of a mesh that split no argument are warned of, on eight devices."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import declax as dx
from declax.errors import ReplicationWarning

P = jax.P
MESH = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
TWO_AXES = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def make(mesh=MESH, **options):
    return dx.init_sharded(lambda: dx.Linear(16, 16, **options, rngs=dx.Rngs(0)), mesh=mesh)


def forward():
    @dx.jit
    def forward(model, x):
        return model(x)

    return forward


def on(mesh, *axes):
    return jax.NamedSharding(mesh, P(*axes))


@pytest.fixture
def without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("batch", [jnp.ones((16, 16)), np.ones((16, 16), np.float32)], ids=["jax", "numpy"])
def test_a_batch_that_is_not_split_is_warned_of_once(batch):
    run, model = forward(), make()
    with pytest.warns(
        ReplicationWarning, match=r"forward: the axis 'data' of the mesh, of size 8.*If x is a batch"
    ) as found:
        run(model, batch)
    assert [warning.filename for warning in found] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(model, jnp.ones((32, 16)))


def test_the_axis_that_splits_nothing_is_named():
    columns = {"out_sharding": (None, "model")}
    model = make(TWO_AXES, kernel_metadata=columns)
    with pytest.warns(ReplicationWarning, match="the axis 'data' of the mesh, of size 4"):
        forward()(model, jnp.ones((16, 16)))


def _tensor_parallel():
    mesh = jax.make_mesh((8,), ("model",), axis_types=(AxisType.Auto,))
    return make(mesh, kernel_metadata={"out_sharding": (None, "model")}), jnp.ones((16, 16))


@pytest.mark.usefixtures("without_warnings")
@pytest.mark.parametrize(
    "case",
    [
        lambda: (make(), jax.device_put(jnp.ones((16, 16)), on(MESH, "data"))),
        lambda: (make(), jax.device_put(jnp.ones((16, 16)), on(MESH, None, "data"))),
        lambda: (make(), jnp.ones((1, 16))),  # one prompt
        lambda: (make(TWO_AXES), jax.device_put(jnp.ones((16, 16)), on(TWO_AXES, ("data", "model")))),
        lambda: (dx.Linear(16, 16, rngs=dx.Rngs(0)), jnp.ones((16, 16))),  # no mesh
        _tensor_parallel,
    ],
    ids=["split", "split by features", "one example", "by both axes", "no mesh", "tensor parallel"],
)
def test_what_is_not_warned_of(case):
    forward()(*case())


@pytest.mark.usefixtures("without_warnings")
def test_functions_that_take_no_batch_are_not_warned_of():
    model = make()
    dx.jit(lambda model: jnp.sum(model.kernel[...]))(model)
    dx.jit(lambda model, key, rate: model.kernel * rate + jax.random.normal(key))(model, jax.random.key(0), 0.1)
    dx.jit(lambda model, rates: model.kernel * rates[3])(model, np.linspace(0.0, 1.0, 100))
    dx.jit(lambda model, keys: model.kernel + jax.random.normal(keys[1, 2]))(
        model, jax.random.split(jax.random.key(0), (16, 4))
    )


@pytest.mark.usefixtures("without_warnings")
def test_what_is_on_the_mesh_already_is_not_warned_of():
    model, x = make(), jnp.ones((16, 16))
    forward()(model, jax.device_put(x, on(MESH)))
    gradients = dx.grad(lambda model: jnp.sum(model(x) ** 2))(model)
    dx.jit(lambda model, gradients: model.kernel - gradients.kernel)(model, gradients)


@pytest.mark.usefixtures("without_warnings")
def test_a_batch_that_is_split_by_the_program_is_not_warned_of():
    model, x = make(), jnp.ones((16, 16))
    with jax.set_mesh(MESH):
        dx.jit(lambda model, x: model(dx.with_sharding_constraint(x, ("data",))))(model, x)
    dx.jit(lambda model, x: model(x), in_shardings=(None, on(MESH, "data")))(model, np.ones((16, 16), np.float32))
    mapped = dx.shard_map(lambda model, x: model(x), mesh=MESH, in_specs=(None, P("data")), out_specs=P("data"))
    dx.jit(mapped)(model, x)
