"""Arrays in the memory of the host, on eight devices: optimizer state, averages, activations and parameters."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, NamedSharding, SingleDeviceSharding

import declax as dx
from declax.errors import ShardingError, TransformError

P = jax.P
HOST = "pinned_host"
DEVICE = jax.devices()[0].default_memory().kind
AUTO = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
EXPLICIT = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
ONE = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
TWO_AXES = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
MOMENTS = {dx.OptVariable: HOST}
X = np.asarray(jax.random.normal(jax.random.key(1), (16, 16)))
ADAM = dx.spec(optax.adam, 1e-2).build()
by_size = functools.partial(dx.fsdp, min_size=64)


@dx.dataclass
class Net(dx.Layer):
    dim: int = dx.field()
    up = dx.Linear(dim, dim)

    def __call__(self, x):
        return jax.nn.relu(self.up(x))


def make(tx=ADAM):
    model = Net(16, rngs=dx.Rngs(0))
    return {"model": model, "optimizer": dx.Optimizer(model, tx)}


def plan(mesh=AUTO, strategy=by_size, memory=MOMENTS, make=make):
    return dx.plan(dx.eval_shape(make), mesh, strategy, memory=memory)


def loss_of(model, x):
    return jnp.mean((model(x) - x) ** 2)


def update(run, x):
    loss, grads = dx.value_and_grad(loss_of)(run["model"], x)
    run["optimizer"].update(run["model"], grads)
    return loss


def train(run, step, x, count=3):
    return [float(step(run, x)) for _ in range(count)]


def batch(mesh=AUTO):
    return jax.device_put(X, NamedSharding(mesh, P("data")))


def kinds(model, only=...):
    return {array.sharding.memory_kind for array in jax.tree.leaves(dx.state(model, only))}


def places(made):
    return {path: (entry.spec, entry.nbytes, entry.memory_kind) for path, entry in made.items()}


def in_host_memory(model):
    dx.update(model, jax.device_put(dx.state(model), SingleDeviceSharding(jax.devices()[0], memory_kind=HOST)))
    return model


def primitives(program):
    """The kinds of memory to which a program moves values, as its equations say."""
    text = str(program)
    return text.count("MemorySpace.Host"), text.count("MemorySpace.Device")


# --- plans --------------------------------------------------------------------------------------


def test_a_plan_says_which_memory_holds_an_array():
    made = plan()
    assert made["optimizer.opt_state[0].mu.up.kernel"].memory_kind == HOST
    assert made["optimizer.opt_state[0].mu.up.kernel"].spec == made["model.up.kernel"].spec == P("data")
    assert made["model.up.kernel"].memory_kind == made["optimizer.step"].memory_kind == "device"
    assert "pinned_host" in str(made)
    assert made.part("optimizer")["opt_state[0].nu.up.kernel"].memory_kind == HOST
    first = plan(memory={dx.PathContains("nu"): "device", dx.OptVariable: HOST})
    assert first["optimizer.opt_state[0].nu.up.kernel"].memory_kind == "device"
    assert plan({"data": 8}).on(AUTO) == made


def test_a_memory_that_the_devices_do_not_have():
    with pytest.raises(ShardingError, match="the devices have no such memory"):
        plan(memory={dx.OptVariable: "unpinned_host"})


def test_bytes_of_the_optimizer():
    made = plan()
    run = dx.init_sharded(make, shardings=made)
    sizes = dx.bytes_per_device(run, AUTO).sizes
    moments = [entry for entry in made.entries if entry.memory_kind == HOST]
    assert len(moments) == 4
    assert sizes["optimizer state in pinned_host"].local == sum(entry.nbytes for entry in moments)
    assert sizes["optimizer state"].local == 8  # two counts
    assert str(sizes["optimizer state in pinned_host"]) in str(dx.bytes_per_device(run, AUTO))
    of_plan = dx.bytes_per_device(dx.eval_shape(make), AUTO, shardings=made).sizes
    assert of_plan == sizes


@functools.cache
def losses_in_device_memory(mesh, strategy):
    run = dx.init_sharded(make, shardings=plan(mesh, strategy, memory=None))
    with jax.set_mesh(mesh):
        return train(run, dx.jit(update), batch(mesh))


# --- optimizers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("in_labels", [False, True], ids=["", "in_shardings"])
@pytest.mark.parametrize(
    ("mesh", "strategy"),
    [(AUTO, None), (AUTO, by_size), (TWO_AXES, by_size), (ONE, None), (EXPLICIT, None), (EXPLICIT, by_size)],
    ids=["auto", "fsdp", "two axes", "one device", "explicit", "explicit fsdp"],
)
def test_an_optimizer_in_host_memory_trains(mesh, strategy, in_labels):
    made = plan(mesh, strategy)
    run = dx.init_sharded(make, shardings=made)
    step = dx.jit(update, **({"in_shardings": (made, P("data")), "donate_argnums": 0} if in_labels else {}))
    with jax.set_mesh(mesh):
        losses = train(run, step, batch(mesh))
    if not (mesh is EXPLICIT and in_labels):  # where the first step changes the spelling of specs
        assert (step.num_traces, step.num_compilations) == (1, 1)
    assert not made.compare(dx.plan(run))
    assert losses == losses_in_device_memory(mesh, strategy)
    assert losses[2] < losses[0]


def test_without_a_mesh():
    """An array on one device, which has no mesh."""
    host = SingleDeviceSharding(jax.devices()[0], memory_kind=HOST)
    run, other = make(), make()
    moments = dx.state(run["optimizer"], dx.OptVariable)
    dx.update(run["optimizer"], jax.device_put(moments, host))
    step = dx.jit(update)
    assert train(run, step, X) == train(other, dx.jit(update), X)
    assert kinds(run["optimizer"], dx.OptVariable) == {HOST}
    assert kinds(run["model"]) == kinds(run["optimizer"], dx.OptArray) == {DEVICE}
    assert step.num_traces == 1  # but two programs: the first step commits the model to the device of the moments


def test_labels_of_another_memory():
    """JAX would not name the array."""
    run = dx.init_sharded(make, shardings=plan())
    with pytest.raises(TransformError, match=r"mu\.up\.bias: this array is in another memory") as caught:
        dx.jit(update, in_shardings=(plan(memory=None), None))(run, batch())
    assert caught.value.got.endswith("in pinned_host")
    assert caught.value.fix.startswith("dx.plan(..., memory=")
    with pytest.raises(TransformError, match="is in another memory than in_shardings says") as caught:
        dx.jit(update, in_shardings=(plan(), None))(make(), X)
    assert caught.value.got.endswith("in device")
    assert "jax.device_put(dx.state(model), sharding)" in caught.value.fix


def test_all_of_an_optimizer():
    """Counts too."""
    made = plan(memory={dx.OptState: HOST})
    run = dx.init_sharded(make, shardings=made)
    step = dx.jit(update)
    assert train(run, step, batch()) == losses_in_device_memory(AUTO, by_size)
    assert kinds(run["optimizer"]) == {HOST}
    assert int(run["optimizer"].step.value) == 3
    assert step.num_compilations == 1


@pytest.mark.parametrize(
    "tx",
    [
        optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2)),
        optax.sgd(1e-2, momentum=0.9),
        optax.MultiSteps(optax.adam(1e-2), 2),
        optax.inject_hyperparams(optax.adam)(1e-2),
        dx.dynamic_loss_scale(optax.adam(1e-2), scale=1.0),
    ],
    ids=["clip", "momentum", "MultiSteps", "hyperparams", "loss scale"],
)
def test_other_transformations(tx):
    made = functools.partial(make, tx)
    host = plan(make=made)
    run, other = (dx.init_sharded(made, shardings=of) for of in (host, plan(memory=None, make=made)))
    step = dx.jit(update)
    assert train(run, step, batch(), 4) == train(other, dx.jit(update), batch(), 4)
    assert not host.compare(dx.plan(run))
    assert step.num_compilations == 1


def test_an_eager_update():
    run, other = (dx.init_sharded(make, shardings=of) for of in (plan(), plan(memory=None)))
    assert train(run, update, batch(), 2) == train(other, update, batch(), 2)
    for path, entry in dx.plan(run).items():  # eagerly, XLA chooses the specs
        assert entry.memory_kind == plan()[path].memory_kind


def test_stages():
    run = dx.init_sharded(make, shardings=plan())
    compiled = dx.jit(update).lower(run, batch()).compile()
    losses = train(run, compiled, batch())
    assert losses[2] < losses[0]
    assert not plan().compare(dx.plan(run))


def test_jit_of_jax():
    """Of pytrees, whose results say in their types which memory they are in."""
    run = dx.init_sharded(make, shardings=plan())

    @jax.jit
    def step(model, optimizer, x):
        _, grads = dx.value_and_grad(loss_of)(model, x)
        optimizer.update(model, grads)
        return model, optimizer

    model, optimizer = step(run["model"], run["optimizer"], batch())
    model, optimizer = step(model, optimizer, batch())
    assert kinds(optimizer, dx.OptVariable) == {HOST}
    assert kinds(model) == {DEVICE}


def test_the_program_moves_each_moment_twice():
    run, plain = (dx.init_sharded(make, shardings=of) for of in (plan(), plan(memory=None)))
    assert primitives(dx.jit(update).trace(run, batch()).jaxpr) == (4, 4)
    assert primitives(dx.jit(update).trace(plain, batch()).jaxpr) == (0, 0)


def test_what_xla_drops_for_cpus():
    """The transfers. The memory of arguments and results remains, which XLA counts with that of the device."""
    lowered = dx.jit(update).lower(dx.init_sharded(make, shardings=plan()), batch())
    assert lowered.as_text().count('mhlo.memory_kind = "pinned_host"') == 8
    compiled = lowered.compile()
    in_host = [line for line in compiled.as_text().splitlines() if "S(5)" in line]
    assert [line.count("S(5)") for line in in_host if "entry_computation_layout" in line] == [8]
    assert len(in_host) == 1
    assert "annotate_device_placement" not in compiled.as_text()
    assert compiled.memory_analysis().host_argument_size_in_bytes == 0


# --- what keeps the memory --------------------------------------------------------------------------


def test_a_write_in_a_compiled_function_keeps_the_memory():
    """On one device too, where shardings are not held."""
    for device in (
        SingleDeviceSharding(jax.devices()[0], memory_kind=HOST),
        NamedSharding(AUTO, P(), memory_kind=HOST),
    ):
        variable = dx.Variable(jax.device_put(jnp.ones((8, 8)), device))
        reset = dx.jit(lambda variable: variable.set_value(jnp.zeros((8, 8))))
        reset(variable)
        reset(variable)
        assert variable.value.sharding == device
        assert (reset.num_traces, reset.num_compilations) == (1, 1)


def test_an_update_in_a_compiled_function_keeps_the_memory():
    """Of another structure too, and where XLA chooses the shardings."""

    def overwrite(model, state):
        dx.update(model, state)
        model.note = dx.Variable(jnp.zeros(()))

    for keeps in (True, False):
        model = in_host_memory(Net(16, rngs=dx.Rngs(0)))
        state = jax.tree.map(jnp.zeros_like, dx.state(Net(16, rngs=dx.Rngs(0))))
        dx.jit(overwrite, keep_shardings=keeps)(model, state)
        assert kinds(model.up) == {HOST}


def test_a_value_that_is_moved_inside_stays_there():
    host, there = (NamedSharding(AUTO, P("data"), memory_kind=kind) for kind in (HOST, DEVICE))
    variable = dx.Variable(jax.device_put(jnp.ones((8, 8)), host))
    dx.jit(lambda variable: variable.set_value(jax.device_put(variable.value, there)))(variable)
    assert variable.value.sharding.memory_kind == DEVICE


def test_assignments_keep_the_memory():
    run = dx.init_sharded(make, shardings=plan())
    moment = run["optimizer"].opt_state[0].mu["up"]["kernel"]
    before = moment.value.sharding
    moment[...] = jnp.zeros(moment.shape)
    assert moment.value.sharding == before
    moment.value = np.zeros(moment.shape, np.float32)
    assert moment.value.sharding == before
    dx.update(run["optimizer"], jax.tree.map(np.asarray, dx.state(run["optimizer"])))
    assert places(dx.plan(run)) == places(plan())


def test_moving_on_one_device():
    """An array in host memory is no array without a place."""
    host = SingleDeviceSharding(jax.devices()[0], memory_kind=HOST)
    one, two = (dx.Variable(jax.device_put(jnp.ones(4), jax.devices()[0])) for _ in range(2))
    dx.update(one, jax.device_put(dx.state(one), host))
    two.value = jax.device_put(two.value, host)
    assert one.value.sharding == two.value.sharding == host


def test_copies_keep_the_memory():
    run = dx.init_sharded(make, shardings=plan())
    assert places(dx.plan(dx.clone(run))) == places(plan())
    assert places(dx.plan(jax.device_put(run, dx.get_named_sharding(run, AUTO, shardings=plan())))) == places(plan())


@pytest.mark.parametrize("engine", ["declax", "orbax"])
def test_checkpoints_keep_the_memory(tmp_path, engine):
    if engine == "orbax":
        pytest.importorskip("orbax.checkpoint")
    run = dx.init_sharded(make, shardings=plan())
    train(run, dx.jit(update), batch())
    dx.save(tmp_path / "c", run, engine=engine)
    assert places(dx.load(tmp_path / "c", abstract=True, engine=engine, extra=[Net]).plan) == places(plan())
    target = dx.init_sharded(make, shardings=plan())
    dx.load(tmp_path / "c", target, engine=engine)
    loaded = dx.load(tmp_path / "c", shardings=plan(), engine=engine, extra=[Net])
    for found in (target, loaded):
        assert places(dx.plan(dict(found))) == places(plan())
    assert float(dx.jit(update)(target, batch())) == float(dx.jit(update)(run, batch()))


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "jit"])
def test_an_average_in_host_memory(is_compiled):
    def make_all():
        model = Net(16, rngs=dx.Rngs(0))
        return {"model": model, "ema": dx.EMA(model, 0.9)}

    def move(run):
        run["model"].up.kernel.value = run["model"].up.kernel.value * 2
        run["ema"].update(run["model"])

    made = dx.plan(dx.eval_shape(make_all), AUTO, by_size, memory={dx.PathContains("ema"): HOST})
    run = dx.init_sharded(make_all, shardings=made)
    (dx.jit(move) if is_compiled else move)(run)
    assert not made.compare(dx.plan(run))
    kernel = make_all()["model"].up.kernel.value
    np.testing.assert_allclose(run["ema"].params["up"]["kernel"].value, 0.9 * kernel + 0.1 * 2 * kernel, rtol=1e-6)


# --- activations --------------------------------------------------------------------------------------


def offload_names(*names):
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=list(names),
        offload_src="device",
        offload_dst="pinned_host",
    )


OFFLOAD_DOTS = jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host")


@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field()
    up = dx.Linear(dim, 2 * dim)
    down = dx.Linear(2 * dim, dim)

    def __call__(self, x):
        hidden = checkpoint_name(jnp.tanh(self.up(x)), "hidden")
        return x + self.down(hidden)


@dx.dataclass
class Deep(dx.Layer):
    dim: int = dx.field()
    policy: object = dx.static(default=False)
    blocks = dx.Stacked(Block(dim), 3, remat=policy)

    def __call__(self, x):
        return self.blocks(x)


@pytest.mark.parametrize("policy", [offload_names("hidden"), OFFLOAD_DOTS], ids=["names", "dots"])
def test_activations_of_a_stack_in_host_memory(policy):
    runs = []
    for chosen in (policy, True):
        model = dx.init_sharded(lambda chosen=chosen: Deep(16, chosen, rngs=dx.Rngs(0)), mesh=AUTO, shardings=by_size)
        gradient = dx.jit(dx.value_and_grad(loss_of))
        runs.append((gradient(model, batch()), primitives(gradient.trace(model, batch()).jaxpr)))
    (offloaded, moves), (recomputed, none) = runs
    assert min(moves) > 0
    assert none == (0, 0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), offloaded, recomputed)
    assert kinds(offloaded[1]) == {DEVICE}


@pytest.mark.parametrize("policy", [offload_names("hidden"), OFFLOAD_DOTS], ids=["names", "dots"])
def test_activations_of_remat_in_host_memory(policy):
    model = dx.init_sharded(lambda: Block(16, rngs=dx.Rngs(0)), mesh=AUTO, shardings=by_size)
    run = dx.remat(lambda model, x: model(x), policy=policy)
    gradient = dx.jit(dx.value_and_grad(lambda model, x: jnp.mean(run(model, x) ** 2)))
    plain = dx.jit(dx.value_and_grad(lambda model, x: jnp.mean(model(x) ** 2)))
    assert min(primitives(gradient.trace(model, batch()).jaxpr)) > 0
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7),
        gradient(model, batch()),
        plain(model, batch()),
    )


def test_activations_and_optimizer_at_once():
    policy = offload_names("hidden")

    def make_all():
        model = Deep(16, policy, rngs=dx.Rngs(0))
        return {"model": model, "optimizer": dx.Optimizer(model, ADAM)}

    host = dx.plan(dx.eval_shape(make_all), AUTO, by_size, memory=MOMENTS)
    run, other = dx.init_sharded(make_all, shardings=host), dx.init_sharded(make_all, mesh=AUTO, shardings=by_size)
    step = dx.jit(update)
    np.testing.assert_allclose(train(run, step, batch()), train(other, dx.jit(update), batch()), rtol=1e-6)
    assert not host.compare(dx.plan(run))
    assert step.num_compilations == 1


# --- parameters ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("remat", [True, False], ids=["remat", ""])
@pytest.mark.parametrize("steps", [1, 2], ids=["", "accumulate"])
def test_layers_in_host_memory(remat, steps):
    """A stack moves a layer at a time; gradients and moments of its layers are in host memory too, if these are."""

    def make_all():
        model = Deep(16, remat, rngs=dx.Rngs(0))
        return {"model": model, "optimizer": dx.Optimizer(model, ADAM)}

    def step(run, x):
        compute = dx.value_and_grad(loss_of) if steps == 1 else dx.accumulate(loss_of, steps)
        loss, grads = compute(run["model"], x)
        run["optimizer"].update(run["model"], grads)
        return loss

    shapes = dx.eval_shape(make_all)
    host = dx.plan(shapes, AUTO, by_size, memory={dx.Param: HOST, dx.OptVariable: HOST})
    run, other = dx.init_sharded(make_all, shardings=host), dx.init_sharded(make_all, mesh=AUTO, shardings=by_size)
    compiled = dx.jit(step)
    np.testing.assert_allclose(train(run, compiled, batch()), train(other, dx.jit(step), batch()), rtol=1e-6)
    assert not host.compare(dx.plan(run))
    assert compiled.num_compilations == 1


def test_a_layer_that_does_not_move_its_parameters():
    model = in_host_memory(Net(16, rngs=dx.Rngs(0)))
    for call in (model, lambda x: dx.jit(lambda model, x: model(x))(model, x)):
        with pytest.raises(ValueError, match="memory_space of all inputs passed to `dot_general`") as caught:
            call(X)
        (note,) = [note for note in caught.value.__notes__ if "host memory" in note]
        assert note.startswith("Linear: 'kernel', 'bias' in host memory")
        assert "jax.device_put(model, jax.memory.Space.Device)" in note

    def loss(model, x):
        return jnp.mean(jax.device_put(model, jax.memory.Space.Device)(x) ** 2)

    grads = dx.jit(dx.grad(loss))(model, X)
    assert kinds(grads) == {HOST}
    plain = dx.jit(dx.grad(lambda model, x: jnp.mean(model(x) ** 2)))(Net(16, rngs=dx.Rngs(0)), X)
    jax.tree.map(np.testing.assert_array_equal, grads, plain)


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "jit"])
def test_state_is_made_where_the_parameters_are(is_compiled):
    model = in_host_memory(Net(16, rngs=dx.Rngs(0)))
    wrap = dx.jit if is_compiled else lambda f: f
    optimizer = wrap(lambda model: dx.Optimizer(model, ADAM))(model)
    assert kinds(optimizer, dx.OptVariable) == {HOST}
    assert kinds(optimizer, dx.OptArray) == {DEVICE}
    assert kinds(wrap(lambda model: dx.EMA(model, 0.9))(model)) == {HOST}


def test_writes_in_other_transforms():
    """A slice, and what a loop carries."""

    def variable():
        return in_host_memory(dx.Variable(jnp.ones(4)))

    mapped, carried = variable(), variable()
    dx.vmap(lambda v: v.set_value(jnp.zeros(())))(mapped)
    axes = (dx.StateAxes({...: dx.Carry}), 0)
    dx.scan(lambda v, x: (v.set_value(jnp.zeros(4)), x)[1], in_axes=axes, out_axes=0)(carried, jnp.ones(3))
    for found in (mapped, carried):
        assert kinds(found) == {HOST}
        assert not found.value.any()


def test_a_constraint_in_a_compiled_function():
    """It says how the value is split, and not where it is."""
    variable = dx.Variable(jax.device_put(jnp.ones((8, 8)), NamedSharding(AUTO, P("data"), memory_kind=HOST)))
    there = NamedSharding(AUTO, P(None, "data"))

    @dx.jit
    def move(variable):
        variable.value = jax.lax.with_sharding_constraint(jnp.zeros((8, 8)), there)

    move(variable)
    assert variable.value.sharding.is_equivalent_to(there.with_memory_kind(HOST), 2)


def test_train_state():
    graphdef, params = dx.split(Net(16, rngs=dx.Rngs(0)))
    state = dx.TrainState.create(graphdef, params=params, tx=optax.sgd(0.1, momentum=0.9))
    host = SingleDeviceSharding(jax.devices()[0], memory_kind=HOST)
    moved = state.replace(opt_state=jax.device_put(state.opt_state, host))
    one, two = (jax.jit(lambda state: state.apply_gradients(state.params))(given) for given in (state, moved))
    assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(two.opt_state)} == {HOST}
    jax.tree.map(np.testing.assert_array_equal, one.params, two.params)


def test_explicit_axes():
    """Layers, activations and moments at once."""

    def make_all():
        model = Deep(16, offload_names("hidden"), rngs=dx.Rngs(0))
        return {"model": model, "optimizer": dx.Optimizer(model, ADAM)}

    host = dx.plan(dx.eval_shape(make_all), EXPLICIT, memory={dx.Param: HOST, dx.OptVariable: HOST})
    run, step = dx.init_sharded(make_all, shardings=host), dx.jit(update)
    with jax.set_mesh(EXPLICIT):
        losses = train(run, step, batch(EXPLICIT))
    np.testing.assert_allclose(losses, train(make_all(), dx.jit(update), X), rtol=1e-5)
    assert not host.compare(dx.plan(run))
    assert step.num_compilations == 1


def test_a_pipeline_moves_the_layers_of_a_stage():
    mesh = jax.make_mesh((2,), ("stage",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])

    def stack():
        return dx.Stacked(lambda rngs: dx.Linear(16, 16, rngs=rngs), 4, rngs=dx.Rngs(0))

    split, whole = stack(), stack()
    place = NamedSharding(mesh, P("stage"), memory_kind=HOST)
    dx.update(split, jax.device_put(dx.state(split), place))
    run = dx.jit(dx.value_and_grad(lambda stack, x: jnp.mean(dx.pipeline(stack, "stage", microbatches=2)(x) ** 2)))
    with jax.set_mesh(mesh):
        loss, grads = run(split, X)
    expected, of_whole = dx.jit(dx.value_and_grad(lambda stack, x: jnp.mean(stack(x) ** 2)))(whole, X)
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), grads, of_whole)
    assert kinds(grads) == kinds(split) == {HOST}
