"""Plans on eight devices: creation, compiled steps, checkpoints and a resume on another mesh."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding

import declax as dx
from declax.errors import CheckpointError, ShardingError

P = jax.P
by_size = functools.partial(dx.fsdp, min_size=64)


def mesh_of(data, model, kind=AxisType.Auto):
    devices = jax.devices()[: data * model]
    return jax.make_mesh((data, model), ("data", "model"), axis_types=(kind, kind), devices=devices)


MESH = mesh_of(4, 2)
RULES = {"embed": None, "mlp": "model"}
TX = dx.spec(optax.adam, 1e-2).build()


@dx.dataclass
class Net(dx.Layer):
    dim: int = dx.field()
    hidden: int = dx.field()
    up = dx.Linear(dim, hidden, kernel_metadata={"out_sharding": ("embed", "mlp")})
    down = dx.Linear(hidden, dim, kernel_metadata={"out_sharding": ("mlp", "embed")})

    def __call__(self, x):
        return self.down(jax.nn.relu(self.up(x)))


def make():
    model = Net(16, 32, rngs=dx.Rngs(0))
    return {"model": model, "optimizer": dx.Optimizer(model, TX)}


def plan(mesh=MESH, strategy=by_size):
    return dx.plan(dx.eval_shape(make), mesh, strategy, rules=RULES)


def places(made):
    return {path: (entry.spec, entry.nbytes, entry.memory_kind) for path, entry in made.items()}


def step_of(**options):
    @dx.jit(**options)
    def step(run, x):
        loss, grads = dx.value_and_grad(lambda model: jnp.mean((model(x) - x) ** 2))(run["model"])
        run["optimizer"].update(run["model"], grads)
        return loss

    return step


X = np.asarray(jax.random.normal(jax.random.key(1), (8, 16)))


def batch(mesh=MESH):
    return jax.device_put(X, NamedSharding(mesh, P("data")))


def losses(run, step, x, count=3):
    return [float(step(run, x)) for _ in range(count)]


@functools.cache
def losses_of_one_device():
    return losses(make(), step_of(), jnp.asarray(X))


# --- creation -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("strategy", [None, by_size])
def test_a_model_is_made_where_its_plan_says(kind, strategy):
    """By a plan that was made without devices, on the mesh of the call, of the context, or of the plan."""
    mesh = mesh_of(4, 2, kind)
    made = plan({"data": 4, "model": 2}, strategy)
    on_mesh = dx.init_sharded(make, mesh=mesh, shardings=made)
    assert places(dx.plan(on_mesh)) == places(made)
    with jax.set_mesh(mesh):
        assert places(dx.plan(dx.init_sharded(make, shardings=made))) == places(made)
    assert places(dx.plan(dx.init_sharded(make, shardings=made.on(mesh)))) == places(made)
    for entry in dx.plan(on_mesh).entries:
        assert entry.reason == "placed"
    array = on_mesh["model"].up.kernel.value
    assert array.addressable_shards[0].data.nbytes == made["model.up.kernel"].nbytes


def test_creation_checks_the_plan():
    made = plan()
    with pytest.raises(ShardingError, match="the plan is of another mesh") as caught:
        dx.init_sharded(make, mesh=mesh_of(2, 2), shardings=made)
    assert caught.value.got == "{'data': 2, 'model': 2}"
    with pytest.raises(ShardingError, match="the model has not all arrays of the plan"):
        dx.init_sharded(lambda: make()["model"], mesh=MESH, shardings=made)
    with pytest.raises(
        ShardingError, match=r"init_sharded, model\.down\.kernel: the plan has an array of another shape"
    ):
        dx.init_sharded(lambda: {**make(), "model": Net(16, 64, rngs=dx.Rngs(0))}, mesh=MESH, shardings=made)


def test_a_model_that_exists_moves():
    run = make()
    made = plan()
    state = dx.state(run)
    dx.update(run, jax.device_put(state, dx.get_named_sharding(state, MESH, shardings=made)))
    assert places(dx.plan(run)) == places(made)
    assert dx.plan(run["model"], MESH)["up.kernel"].reason == "placed"


def test_where_the_arrays_are_says_more_than_names():
    """On a mesh of other sizes, the names decide again."""
    run = dx.init_sharded(make, mesh=MESH, shardings=plan())
    there = dx.plan(run, {"data": 2, "model": 4}, rules=RULES)
    assert there["model.up.kernel"].reason == "rule embed=None, mlp=model"
    assert there == dx.plan(dx.eval_shape(make), {"data": 2, "model": 4}, rules=RULES)


def test_memory_of_the_host():
    host = NamedSharding(MESH, P("data"), memory_kind="pinned_host")
    strategy = dx.StateSharding({dx.PathContains("mu"): P("data"), dx.PathContains("up"): host, ...: P()})
    made = plan(MESH, strategy)
    assert made["model.up.kernel"].memory_kind == "pinned_host"
    run = dx.init_sharded(make, shardings=made)
    assert places(dx.plan(run)) == places(made)
    assert run["model"].up.kernel.value.sharding.memory_kind == "pinned_host"
    sizes = dx.bytes_per_device(run, MESH).sizes
    assert sizes["parameters in pinned_host"].local == made["model.up.kernel"].nbytes + made["model.up.bias"].nbytes


def test_a_declared_memory_of_the_host():
    """A compiled initializer and a constraint drop it, so that it is set afterwards."""
    host = NamedSharding(MESH, P("data"), memory_kind="pinned_host")

    @dx.dataclass
    class Cold(dx.Layer):
        table: dx.Param[jax.Array] = dx.variable((8, 4), initializer=dx.initializers.ones, sharding=host)

    for made in (
        dx.Param(jnp.ones((8, 4)), out_sharding=host),
        Cold(rngs=dx.Rngs(0)).table,
        dx.init_sharded(lambda: Cold(rngs=dx.Rngs(0)), mesh=MESH).table,
    ):
        assert made.value.sharding == host
    assert dx.plan(dx.eval_shape(lambda: Cold(rngs=dx.Rngs(0))), MESH)["table"].memory_kind == "pinned_host"


# --- compiled steps ---------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [None, by_size])
def test_compiled_steps_hold_the_plan(strategy):
    made = plan(MESH, strategy)
    run = dx.init_sharded(make, shardings=made)
    for step in (step_of(), step_of(in_shardings=(made, P("data")), donate_argnums=0)):
        with jax.set_mesh(MESH):
            found = losses(run, step, batch())
        assert not made.compare(dx.plan(run))
        assert step.num_compilations == 1
        assert found[2] < found[0]
    with jax.set_mesh(MESH):
        fresh = losses(dx.init_sharded(make, shardings=made), step_of(in_shardings=(made, P("data"))), batch())
    np.testing.assert_allclose(fresh, losses_of_one_device(), rtol=1e-5)


def test_a_step_places_a_model_by_the_plan_of_a_part():
    """Arrays that JAX has not committed to devices move; plans of parts are plans of arguments."""
    made = plan()
    run = make()

    @dx.jit(in_shardings=(made.part("model"), made.part("optimizer"), P("data")))
    def step(model, optimizer, x):
        grads = dx.grad(lambda model: jnp.mean((model(x) - x) ** 2))(model)
        optimizer.update(model, grads)

    with jax.set_mesh(MESH):
        step(run["model"], run["optimizer"], batch())
    assert not made.compare(dx.plan(run))


def test_a_step_refuses_another_plan():
    run = dx.init_sharded(make, shardings=plan())
    with pytest.raises(ShardingError, match="the plan has no such array") as caught:
        dx.jit(lambda model: None, in_shardings=(plan(),))(run["model"])
    assert caught.value.fix.startswith("plan.part('model')")
    with pytest.raises(dx.errors.TransformError, match="elsewhere on the mesh than in_shardings says"):
        dx.jit(lambda run: None, in_shardings=(plan(MESH, dx.StateSharding({...: P()})),))(run)
    with pytest.raises(ShardingError, match="the plan has an array of another shape here"):
        dx.jit(lambda model: None, in_shardings=(plan().part("model"),))(Net(16, 64, rngs=dx.Rngs(0)))


def test_a_step_may_add_numbers_and_no_arrays():
    """A number can only be whole."""
    run = dx.init_sharded(make, shardings=plan())

    added = dx.jit(lambda run: setattr(run["model"], "count", dx.Variable(0)), in_shardings=(plan(),))
    added(run)
    added(run)
    assert int(run["model"].count.value) == 0
    wider = dx.jit(lambda run: setattr(run["model"], "cache", dx.Variable(jnp.zeros(8))), in_shardings=(plan(),))
    with pytest.raises(ShardingError, match=r"cache: the plan has no such array"):
        wider(run)


def test_results_of_a_step():
    model = make()["model"]
    made = dx.plan(model, MESH, by_size, rules=RULES)
    copy = dx.jit(dx.clone, out_shardings=made)(model)
    assert not made.compare(dx.plan(copy))


# --- checkpoints -----------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["declax", "orbax"])
def test_a_checkpoint_keeps_the_plan_and_a_load_takes_one(tmp_path, engine):
    if engine == "orbax":
        pytest.importorskip("orbax.checkpoint")
    run = dx.init_sharded(make, shardings=plan())
    step = step_of()
    losses(run, step, batch())
    dx.save(tmp_path / "c", {**run, "step": 3, "rngs": dx.Rngs(0)}, engine=engine)

    found = dx.load(tmp_path / "c", abstract=True, engine=engine, extra=[Net])
    assert places(found.plan.part("model")) == places(plan().part("model"))
    assert places(found.plan.part("optimizer")) == places(plan().part("optimizer"))
    assert found.plan["rngs.default.count"].reason == "replicated: not on the mesh"

    other = mesh_of(2, 2)
    resumed = dx.plan(found, other, by_size, rules=RULES)
    change = found.plan.compare(resumed)
    assert "from 8 devices (data=4, model=2) to 4 devices (data=2, model=2)" in str(change)
    assert "model.up.kernel" in {".".join(map(str, old.path)) for old, _ in change.moved}

    loaded = dx.load(tmp_path / "c", shardings=resumed, engine=engine, extra=[Net])
    assert places(dx.plan(loaded)) == places(resumed)
    again = dx.load(tmp_path / "c", shardings=found.plan, mesh=MESH, engine=engine, extra=[Net])
    assert not found.plan.compare(dx.plan(again))
    assert loaded["step"] == 3
    after = [float(step_of()(dict(loaded), batch(other))), float(step(run, batch()))]
    assert after[0] == pytest.approx(after[1], rel=1e-5)


def test_the_plan_of_a_model_is_for_an_item(tmp_path):
    model = dx.init_sharded(lambda: make()["model"], mesh=MESH, rules=RULES)
    dx.save(tmp_path / "c", {"net": model})
    made = dx.plan(model, mesh_of(2, 2), by_size, rules=RULES)
    assert not made.compare(dx.plan(dx.load(tmp_path / "c", shardings=made, extra=[Net])["net"]))
    dx.save(tmp_path / "d", {"net": model, "step": 1, "other": dx.Linear(2, 2, rngs=dx.Rngs(0))})
    with pytest.raises(ShardingError, match="the model has not all arrays of the plan"):
        dx.load(tmp_path / "d", shardings=made, extra=[Net])
    with pytest.raises(CheckpointError, match="there is no mesh of devices"):
        dx.load(tmp_path / "c", shardings=plan({"data": 4, "model": 2}).part("model"), extra=[Net])


def test_a_checkpoint_of_one_device_has_no_plan(tmp_path):
    dx.save(tmp_path / "c", make())
    assert dx.load(tmp_path / "c", extra=[Net]).plan is None
    assert '"plan"' not in (tmp_path / "c" / "manifest.json").read_text()


def test_steps_of_a_run_keep_the_plan(tmp_path):
    run = dx.init_sharded(make, shardings=plan())
    with dx.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, run)
    assert places(dx.load(checkpoints.path(1), abstract=True, extra=[Net]).plan) == places(plan())
