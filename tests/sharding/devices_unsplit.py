"""Axes of a mesh that split no argument are warned of, on eight devices."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
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


# --- fully sharded -----------------------------------------------------------------------------

WIDE = 64


def make_run(mesh=MESH, shardings=dx.fsdp, **options):
    def make():
        model = dx.Linear(WIDE, WIDE, **options, rngs=dx.Rngs(0))
        return model, dx.Optimizer(model, optax.sgd(0.1, momentum=0.9))

    return dx.init_sharded(make, mesh=mesh, shardings=shardings)


def labels(mesh=MESH, **options):
    return tuple(dx.fsdp(part, mesh=mesh, **options) for part in make_run(mesh))


def step_of(**options):
    @dx.jit(**options)
    def step(model, optimizer, x):
        optimizer.update(model, dx.grad(lambda model: jnp.mean(model(x) ** 2))(model))

    return step


BATCH = jnp.ones((16, WIDE))
FSDP = r"step: the axis 'data' of the mesh, of size 8, splits the model as dx.fsdp does, and no batch.*If x is a batch"


def test_a_gradient_is_no_split():
    """JAX begins a gradient with a number that it puts on the mesh."""
    model, optimizer = make_run(shardings=None)
    with pytest.warns(ReplicationWarning, match="step: the axis 'data' of the mesh, of size 8, splits no argument"):
        step_of()(model, optimizer, BATCH)


def _by_a_plan():
    shapes = dx.eval_shape(lambda: dx.Linear(WIDE, WIDE, rngs=dx.Rngs(0)))
    made = dx.plan(shapes, MESH, dx.fsdp)
    return dx.init_sharded(lambda: dx.Linear(WIDE, WIDE, rngs=dx.Rngs(0)), shardings=made)


@pytest.mark.parametrize("in_labels", [False, True], ids=["made by init_sharded", "in_shardings"])
def test_fsdp_whose_batch_is_not_split_is_warned_of_once(in_labels):
    model, optimizer = make_run()
    step = step_of(**({"in_shardings": (*labels(), None)} if in_labels else {}))
    with pytest.warns(ReplicationWarning, match=FSDP) as found:
        step(model, optimizer, BATCH)
    assert [warning.filename for warning in found] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(model, optimizer, BATCH)
        step(model, optimizer, jnp.ones((32, WIDE)))


def test_fsdp_is_known_by_a_plan():
    model = _by_a_plan()
    with pytest.warns(ReplicationWarning, match="splits the model as dx.fsdp does"):
        forward()(model, BATCH)
    made = dx.plan(model, MESH, dx.fsdp)
    read = type(made).from_table("here", made.to_table()).on(MESH)
    copied = dx.clone(model)
    for shardings in (made, read):
        with pytest.warns(ReplicationWarning, match="splits the model as dx.fsdp does"):
            dx.jit(lambda model, x: model(x), in_shardings=(shardings, None))(copied, BATCH)


@pytest.mark.parametrize("engine", ["declax", "orbax"])
def test_fsdp_is_known_of_loaded_models(tmp_path, engine):
    """By a strategy and by a plan, of all items or of one; others are placed by hand."""
    if engine == "orbax":
        pytest.importorskip("orbax.checkpoint")
    model = dx.Linear(WIDE, WIDE, rngs=dx.Rngs(0))
    items = {"model": model, "optimizer": dx.Optimizer(model, dx.spec(optax.sgd, 0.1, momentum=0.9).build())}
    dx.save(tmp_path / "saved", items, engine=engine)
    for shardings in (dx.fsdp, dx.plan(items, MESH, dx.fsdp)):
        loaded = dx.load(tmp_path / "saved", mesh=MESH, shardings=shardings, engine=engine)
        with pytest.warns(ReplicationWarning, match=FSDP):
            step_of()(loaded["model"], loaded["optimizer"], BATCH)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            step_of()(loaded["model"], loaded["optimizer"], _split(MESH, "data"))
    by_hand = dx.load(tmp_path / "saved", items=["model"], mesh=MESH, shardings=BY_HAND, engine=engine)["model"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forward()(by_hand, BATCH)


def test_fsdp_under_set_mesh():
    """Where JAX puts a new batch whole on each device."""
    model, optimizer = make_run()
    with jax.set_mesh(MESH):
        batch = jnp.ones((16, WIDE))
        with pytest.warns(ReplicationWarning, match=FSDP):
            step_of()(model, optimizer, batch)


def test_fsdp_beside_tensor_parallel():
    """The axis of fsdp is named, also where the other one splits the batch or nothing."""
    columns = {"kernel_metadata": {"out_sharding": (None, "model")}}
    model, optimizer = make_run(TWO_AXES, **columns)
    with pytest.warns(ReplicationWarning, match="the axis 'data' of the mesh, of size 4, splits the model as dx.fsdp"):
        step_of()(model, optimizer, BATCH)


def _split(mesh, *axes):
    return jax.device_put(BATCH, on(mesh, *axes))


def _moved(mesh, shardings):
    """A model that was made elsewhere, and put on the mesh by hand."""
    model = dx.Linear(WIDE, WIDE, rngs=dx.Rngs(0))
    state = dx.state(model)
    dx.update(model, jax.device_put(state, dx.get_named_sharding(state, mesh, shardings=shardings)))
    return model, dx.Optimizer(model, optax.sgd(0.1, momentum=0.9))


BY_HAND = dx.StateSharding({dx.PathContains("kernel"): P(None, "data"), ...: P()})


@pytest.mark.usefixtures("without_warnings")
@pytest.mark.parametrize(
    "case",
    [
        lambda: (*make_run(), _split(MESH, "data")),
        lambda: (*make_run(), _split(MESH, None, "data")),
        lambda: (*make_run(), BATCH[:4]),
        lambda: (*make_run(TWO_AXES), _split(TWO_AXES, "data")),
        lambda: (*make_run(shardings=BY_HAND), BATCH),
        lambda: (*_moved(MESH, BY_HAND), BATCH),
    ],
    ids=["split", "split by features", "a small batch", "one of two axes", "tensor parallel", "moved by hand"],
)
def test_what_is_not_warned_of_under_fsdp(case):
    step_of()(*case())


@pytest.mark.usefixtures("without_warnings")
def test_functions_under_fsdp_that_take_no_batch():
    model, optimizer = make_run()
    dx.jit(lambda model: jnp.sum(model.kernel[...]))(model)
    dx.jit(lambda model, rates: model.kernel * rates[3])(model, np.linspace(0.0, 1.0, 100))
    dx.jit(lambda model, keys: model.kernel + jax.random.normal(keys[1, 2]))(
        model, jax.random.split(jax.random.key(0), (16, 4))
    )
    gradients = jax.device_put(dx.grad(lambda model: jnp.sum(model(BATCH) ** 2))(model), on(MESH))
    dx.jit(lambda model, optimizer, gradients: optimizer.update(model, gradients))(model, optimizer, gradients)


@pytest.mark.usefixtures("without_warnings")
def test_a_batch_under_fsdp_that_is_split_by_the_program_or_by_its_label():
    model, optimizer = make_run()
    with jax.set_mesh(MESH):
        dx.jit(lambda model, x: model(dx.with_sharding_constraint(x, ("data",))))(model, BATCH)
    step_of(in_shardings=(*labels(), on(MESH, "data")))(model, optimizer, np.ones((16, WIDE), np.float32))
