"""Training that goes on with fewer or more devices, or another strategy: the losses of one that was not stopped."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding

import declax as dx

P = jax.P
by_size = functools.partial(dx.fsdp, min_size=64)
RULES = {"embed": None, "mlp": "model"}
BATCHES = np.asarray(jax.random.normal(jax.random.key(1), (6, 8, 16)))


def make():
    names = {
        "kernel_metadata": {"out_sharding": ("embed", "mlp")},
        "down_kernel_metadata": {"out_sharding": ("mlp", "embed")},
    }
    model = dx.MLP(16, 32, **names, rngs=dx.Rngs(0))
    return {"model": model, "optimizer": dx.Optimizer(model, dx.spec(optax.adam, 1e-2).build())}


def mesh_of(data, model=1):
    devices = jax.devices()[: data * model]
    return jax.make_mesh((data, model), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=devices)


@dx.jit
def step(run, x):
    loss, grads = dx.value_and_grad(lambda model: jnp.mean((model(x) - x) ** 2))(run["model"])
    run["optimizer"].update(run["model"], grads)
    return loss


def train(run, mesh, first, last):
    place = jax.devices()[0] if mesh is None else NamedSharding(mesh, P("data"))
    return [float(step(run, jax.device_put(batch, place))) for batch in BATCHES[first:last]]


@functools.cache
def uninterrupted():
    """The losses of one device, which no checkpoint stops."""
    return train(make(), None, 0, len(BATCHES))


MESHES = {
    "8, 4 and 1 devices": [mesh_of(8), mesh_of(4), None],
    "1, 4 and 8 devices": [None, mesh_of(4), mesh_of(8)],
    "fully sharded, with tensor parallelism, and a mesh of one device": [mesh_of(8), mesh_of(2, 2), mesh_of(1)],
}


@pytest.mark.parametrize("engine", ["declax", "orbax"])
@pytest.mark.parametrize("name", MESHES)
def test_a_run_goes_on_with_other_devices(tmp_path, name, engine):
    if engine == "orbax":
        pytest.importorskip("orbax.checkpoint")
    losses, where = [], None
    for number, mesh in enumerate(MESHES[name]):
        on_mesh = {} if mesh is None else {"mesh": mesh, "rules": RULES, "shardings": by_size}
        if where is not None:
            run = dict(dx.load(where, engine=engine, **on_mesh))
        else:
            run = make() if mesh is None else dx.init_sharded(make, **on_mesh)
        assert holders(run) == set(jax.devices()[: 1 if mesh is None else mesh.size])
        losses += train(run, mesh, 2 * number, 2 * number + 2)
        where = tmp_path / str(number)
        dx.save(where, run, engine=engine)
    np.testing.assert_allclose(losses, uninterrupted(), rtol=1e-5)


def holders(run):
    """The devices that hold some array, each of which all of them hold."""
    sets = {frozenset(leaf.sharding.device_set) for leaf in jax.tree.leaves(run)}
    assert len(sets) == 1
    return set(*sets)


def test_a_comparison_shows_what_the_resume_moves(tmp_path):
    """Before an array is read."""
    run = dx.init_sharded(make, mesh=mesh_of(4, 2), rules=RULES, shardings=by_size)
    dx.save(tmp_path / "c", run)
    saved = dx.load(tmp_path / "c", abstract=True)
    planned = dx.plan(dict(saved), mesh_of(2, 2), by_size, rules=RULES)
    change = str(saved.plan.compare(planned))
    lines = change.splitlines()
    up = next(line.split("  ") for line in lines if line.startswith("model.up.kernel "))
    assert [part.strip() for part in up if part.strip()][1:] == [
        "f32[16,32]",
        "P('data', 'model')",
        "P('data', 'model')",
        "256 B -> 512 B",
    ]
    assert "from 8 devices (data=4, model=2) to 4 devices (data=2, model=2)" in lines[-1]
    loaded = dx.load(tmp_path / "c", shardings=planned)
    assert not planned.compare(dx.plan(dict(loaded)))
