"""`init_sharded` makes models leaf by leaf: eager numbers, and compilation that depth does not cost."""

from __future__ import annotations

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

import declax as dx

P = jax.P
KINDS = [AxisType.Auto, AxisType.Explicit]


def mesh_of(kind=AxisType.Auto):
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind,) * 2)


@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field(default=32)
    norm = dx.LayerNorm(dim)
    up = dx.Linear(dim, 4 * dim, kernel_metadata={"out_sharding": (None, "model")})
    down = dx.Linear(4 * dim, dim, bias_init=dx.initializers.normal(0.5))


class Net(dx.Module):
    def __init__(self, depth, dim=32, *, rngs):
        self.embed = dx.Embed(64, dim, rngs=rngs)
        self.blocks = dx.List([Block(dim=dim, rngs=rngs) for _ in range(depth)])


INITIALIZERS = {
    name: getattr(dx.initializers, name)()
    for name in ("normal", "uniform", "truncated_normal", "lecun_normal", "glorot_uniform", "he_normal", "orthogonal")
}


def equal(one, other):
    ours, theirs = jax.tree.leaves(dx.state(one)), jax.tree.leaves(dx.state(other))
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        a, b = (jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in (a, b))
        np.testing.assert_array_equal(a, b)


@pytest.fixture
def compiled(request):
    """The names of what JAX compiles, as a list that grows."""
    found = []
    event = "/jax/core/compile/backend_compile_duration"
    note = lambda name, *_, **kwargs: found.append(kwargs.get("fun_name")) if name == event else None  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(note)
    yield found
    jax.monitoring.unregister_event_duration_listener(note)


@pytest.mark.parametrize("shardings", [None, dx.fsdp], ids=["declared", "fsdp"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_are_those_of_eager_construction(kind, shardings):
    mesh = mesh_of(kind)
    made = dx.init_sharded(Net, 2, rngs=dx.Rngs(0), mesh=mesh, shardings=shardings)
    equal(made, Net(2, rngs=dx.Rngs(0)))
    assert "model" in made.blocks[0].up.kernel.sharding.spec


@pytest.mark.parametrize("name", INITIALIZERS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_each_initializer_draws_the_same(name, dtype):
    def make():
        return dx.Linear(48, 40, kernel_init=INITIALIZERS[name], param_dtype=dtype, rngs=dx.Rngs(1))

    equal(dx.init_sharded(make, mesh=mesh_of(), shardings=dx.fsdp), make())


def test_depth_and_a_second_call_compile_nothing(compiled):
    def make(depth):
        return dx.init_sharded(Net, depth, 56, rngs=dx.Rngs(depth), mesh=mesh_of(), shardings=dx.fsdp)

    make(2)
    assert compiled
    compiled.clear()
    make(2)
    make(9)
    assert not compiled


def test_an_optimizer_is_made_with_its_model():
    def make():
        model = Net(2, rngs=dx.Rngs(0))
        return model, dx.Optimizer(model, optax.adamw(1e-3))

    model, optimizer = dx.init_sharded(make, mesh=mesh_of(), shardings=dx.fsdp)
    equal((model, optimizer), make())
    moments = [leaf for leaf in jax.tree.leaves(dx.state(optimizer, dx.OptState)) if leaf.shape == (32, 128)]
    assert moments
    assert all(moment.sharding.spec == P("data", "model") for moment in moments)


def test_arguments_that_draw_go_on():
    rngs, mine = dx.Rngs(0), dx.Rngs(0)
    dx.init_sharded(Net, 1, rngs=rngs, mesh=mesh_of())
    Net(1, rngs=mine)
    equal(rngs, mine)


class Tables(dx.Module):
    """Two tables whose programs print alike, and a leaf that is computed from another one."""

    def __init__(self, *, rngs):
        tables = [np.arange(64.0, dtype=np.float32).reshape(8, 8) + number for number in range(2)]
        self.first, self.second = (dx.Param(jax.jit(lambda table=table: jnp.asarray(table) * 2)()) for table in tables)
        self.third, self.fourth = (dx.Param(jnp.full((8, 8), 0.1 + number)) for number in range(2))
        self.kernel = dx.Param(dx.initializers.normal()(rngs.params(), (8, 8)))
        self.norm = dx.Param(self.kernel[...] / jnp.linalg.norm(self.kernel[...]))
        self.empty = dx.Variable(jnp.zeros((0, 4)))
        self.static = dx.static(3)


def test_leaves_that_print_alike_are_not_confused():
    made, mine = dx.init_sharded(Tables, rngs=dx.Rngs(0), mesh=mesh_of()), Tables(rngs=dx.Rngs(0))
    for name in ("first", "second", "third", "fourth", "kernel", "empty"):
        np.testing.assert_array_equal(getattr(made, name)[...], getattr(mine, name)[...])
    np.testing.assert_allclose(made.norm[...], mine.norm[...], rtol=1e-6)


class Holder(dx.Module):
    def __init__(self, value):
        self.value = dx.Param(value)


def test_constants_that_print_alike_are_not_confused():
    for number in (0.00123456, 0.001234561):
        scale = np.array(number, np.float32)
        made = dx.init_sharded(lambda scale=scale: Holder(jnp.ones((8, 8)) * scale), mesh=mesh_of())
        np.testing.assert_array_equal(made.value[...], np.full((8, 8), scale))


@pytest.mark.parametrize("is_partitionable", [True, False])
def test_operations_of_another_context_are_not_confused(is_partitionable):
    key = jax.random.key(0)
    with jax.threefry_partitionable(is_partitionable):
        made = dx.init_sharded(lambda: Holder(jax.random.bits(key, (8, 8))), mesh=mesh_of())
        np.testing.assert_array_equal(made.value[...], jax.random.bits(key, (8, 8)))


class DataDependent(dx.Module):
    """Each leaf needs what comes before it, so that leaf by leaf would be quadratic."""

    def __init__(self, *, rngs):
        x = jnp.ones((32, 32))
        kernels = []
        for _ in range(12):
            kernel = dx.initializers.normal(0.1)(rngs.params(), (32, 32))
            x = jnp.tanh(x @ kernel)
            kernels.append(dx.Param(kernel / (1 + jnp.std(x))))
        self.kernels = dx.List(kernels)


def test_a_data_dependent_model_is_made_by_one_program(compiled):
    mine = DataDependent(rngs=dx.Rngs(0))
    compiled.clear()
    made = dx.init_sharded(DataDependent, rngs=dx.Rngs(0), mesh=mesh_of())
    assert len(compiled) <= 3
    for one, other in zip(made.kernels, mine.kernels, strict=True):
        np.testing.assert_allclose(one[...], other[...], rtol=1e-5, atol=1e-6)


def test_effects_run_once(capfd):
    def make():
        jax.debug.print("made")
        return Net(2, rngs=dx.Rngs(0))

    dx.init_sharded(make, mesh=mesh_of())
    jax.effects_barrier()
    assert capfd.readouterr().out.count("made") == 1


def test_stacked_layers_are_the_same():
    class Tower(dx.Module):
        def __init__(self, *, rngs):
            self.blocks = dx.Stacked(lambda rngs: Block(rngs=rngs), 5, rngs=rngs)

    equal(dx.init_sharded(Tower, rngs=dx.Rngs(0), mesh=mesh_of()), Tower(rngs=dx.Rngs(0)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [4, 64])
@pytest.mark.parametrize("device", [None, 1])
def test_arrays_of_one_device_become_leaves(size, device, kind):
    given = jnp.arange(float(size))
    if device is not None:
        given = jax.device_put(given, jax.devices()[device])
    made = dx.init_sharded(lambda: Holder(given), mesh=mesh_of(kind))
    assert made.value.sharding.is_equivalent_to(jax.NamedSharding(mesh_of(kind), P()), 1)
    made.value[...].delete()
    np.testing.assert_array_equal(given, np.arange(float(size)))


@pytest.mark.parametrize("number", [3.0, np.float32(3)])
def test_numbers_become_arrays(number):
    made = dx.init_sharded(lambda: Holder(number), mesh=mesh_of())
    assert isinstance(made.value[...], jax.Array)
    assert made.value[...] == 3


def test_a_key_of_one_device_draws():
    key = jax.device_put(jax.random.key(0), jax.devices()[0])
    equal(dx.init_sharded(lambda: Net(1, rngs=dx.Rngs(key)), mesh=mesh_of()), Net(1, rngs=dx.Rngs(key)))


def test_in_a_compiled_function_or_without_compilation():
    def make():
        return dx.init_sharded(
            lambda: dx.Linear(8, 16, kernel_metadata={"out_sharding": (None, "model")}, rngs=dx.Rngs(0))
        )

    with jax.set_mesh(mesh_of()):
        shapes = dx.eval_shape(make)
        compiled = dx.jit(make)()
        with jax.disable_jit():
            interpreted = make()
    assert shapes.kernel.shape == (8, 16)
    for made in (compiled, interpreted):
        assert made.kernel.sharding.spec == P(None, "model")
        np.testing.assert_allclose(made.kernel[...], dx.Linear(8, 16, rngs=dx.Rngs(0)).kernel[...], rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_draw_is_never_whole_on_a_device(kind):
    def make(key):
        return dx.initializers.normal()(key, (1024, 1024), out_sharding=P("data", "model"))

    with jax.set_mesh(mesh_of(kind)):
        memory = jax.jit(make).lower(jax.random.key(0)).compile().memory_analysis()
    assert memory.output_size_in_bytes == 1024 * 1024 * 4 // 8
    assert memory.temp_size_in_bytes < 1024 * 1024 * 4


@pytest.mark.parametrize("kind", KINDS)
def test_stacked_layers_with_declared_axes_are_the_same(kind):
    def make():
        names = {"out_sharding": ("data", "model")}
        return dx.Stacked(lambda rngs: dx.Linear(32, 32, kernel_metadata=names, rngs=rngs), 3, rngs=dx.Rngs(0))

    made = dx.init_sharded(make, mesh=mesh_of(kind))
    equal(made, make())
