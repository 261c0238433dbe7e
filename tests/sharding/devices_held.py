"""Shardings that a compiled function keeps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding

import declax as dx
from declax.errors import ReplicationWarning, ShardingError, TransformError

P = jax.P
AUTO = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
EXPLICIT = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
BOTH = pytest.mark.parametrize("mesh", [AUTO, EXPLICIT], ids=["auto", "explicit"])


class Cache(dx.Module):
    def __init__(self):
        self.c = dx.Variable(jnp.ones((8, 8)), out_sharding=("data", None))
        self.count = dx.Variable(jnp.zeros((), jnp.int32))


def cache(mesh):
    with jax.set_mesh(mesh):
        return Cache()


@dx.jit
def reset(m):
    m.c[...] = jnp.zeros((8, 8))
    m.count[...] += 1


@BOTH
def test_a_write_keeps_the_sharding(mesh):
    m = cache(mesh)
    for _ in range(3):
        reset(m)
        assert m.c.value.sharding == NamedSharding(mesh, P("data", None))
    with jax.set_mesh(mesh):
        reset(m)
        assert m.c.value.sharding == NamedSharding(mesh, P("data", None))


@BOTH
def test_an_uncommitted_counter_is_put_before_the_first_run(mesh):
    m = cache(mesh)
    m.count = dx.Variable(jnp.zeros((), jnp.int32))
    step = dx.jit(reset._closure.user)
    for _ in range(3):
        step(m)
    assert m.count.value.sharding.is_fully_replicated
    assert m.count.value.sharding.device_set == m.c.value.sharding.device_set
    assert (step.num_traces, step.num_compilations) == (1, 1)


@pytest.mark.parametrize("where", [P(None, "data"), P()], ids=str)
@BOTH
def test_a_value_that_the_user_places_stays_there(mesh, where):
    there = NamedSharding(mesh, where)
    put = jax.lax.with_sharding_constraint if mesh is AUTO else jax.sharding.reshard

    @dx.jit
    def move(m):
        m.c.set_value(put(m.c.value + 1, there))

    m = cache(mesh)
    move(m)
    assert m.c.value.sharding.is_equivalent_to(there, 2)


@pytest.mark.parametrize("where", [P(None, "data"), P()], ids=str)
@BOTH
def test_a_value_that_the_user_puts_stays_there(mesh, where):
    """XLA ignores a `jax.device_put` within one memory."""
    there = NamedSharding(mesh, where)

    @dx.jit
    def move(m):
        m.c.value, m.count.value = jax.device_put((m.c.value + 1, m.count.value + 1), (there, NamedSharding(mesh, P())))

    m = cache(mesh)
    for _ in range(2):
        move(m)
        assert m.c.value.sharding.is_equivalent_to(there, 2)


def test_keep_shardings_false_leaves_it_to_xla():
    m = cache(AUTO)
    step = dx.jit(lambda m: m.c.set_value(jnp.zeros((8, 8))), keep_shardings=False)
    step(m)
    assert m.c.value.sharding != NamedSharding(AUTO, P("data", None))


def test_zero_1():
    """The optimizer's state is split, and the parameters stay whole."""

    class Net(dx.Module):
        def __init__(self):
            self.w = dx.Param(jnp.ones((16, 8)), out_sharding=(None, None), optimizer_sharding=("data", None))

        def __call__(self, x):
            return x @ self.w.value

    with jax.set_mesh(AUTO):
        model = Net()
        optimizer = dx.Optimizer(model, optax.adam(1e-2))

    @dx.jit
    def step(model, optimizer, x):
        grads = dx.grad(lambda m: jnp.mean(m(x) ** 2))(model)
        optimizer.update(model, grads)

    x = jax.device_put(jnp.ones((8, 16)), NamedSharding(AUTO, P("data")))
    before = [leaf.sharding for leaf in jax.tree.leaves(dx.state((model, optimizer))) if leaf.committed]
    for _ in range(3):
        step(model, optimizer, x)
    assert model.w.value.sharding == NamedSharding(AUTO, P(None, None))
    after = [leaf.sharding for leaf in jax.tree.leaves(dx.state((model, optimizer)))]
    assert set(before) <= set(after)
    assert (step.num_traces, step.num_compilations) == (1, 1)


def test_fsdp_of_a_class_that_declares_other_names():
    names = {"out_sharding": (None, "mlp")}
    with dx.sharding_rules({"mlp": None}):
        layer = dx.init_sharded(
            dx.spec(dx.Linear, 64, 128, kernel_metadata=names), rngs=dx.Rngs(0), mesh=AUTO, shardings=dx.fsdp
        )
        placed = layer.kernel.value.sharding
        assert "data" in placed.spec
        scale = dx.jit(lambda layer: layer.kernel.set_value(jnp.ones((64, 128))))
        scale(layer)
    assert layer.kernel.value.sharding == placed


def test_another_mesh_of_the_same_devices():
    """Each model keeps its own mesh, in one function."""
    square = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    one, two = cache(AUTO), cache(square)
    for m in (one, two, one):
        reset(m)
    assert one.c.value.sharding == NamedSharding(AUTO, P("data", None))
    assert two.c.value.sharding == NamedSharding(square, P("data", None))


def test_a_kind_of_memory():
    there = NamedSharding(AUTO, P("data", None), memory_kind="pinned_host")
    m = cache(AUTO)
    m.c.set_value(jax.device_put(m.c.value, there))
    step = dx.jit(lambda m: m.c.set_value(jnp.zeros((8, 8))))
    step(m)
    step(m)
    assert m.c.value.sharding == there


def test_a_value_of_another_shape_follows_xla():
    m = cache(AUTO)
    with pytest.warns(ReplicationWarning, match="its size 3 is not divisible by 8"):
        dx.jit(lambda m: m.c.set_value(jnp.zeros((3, 5))))(m)
    assert m.c.value.shape == (3, 5)


def test_an_eager_move_is_seen():
    """A function that was compiled for one place keeps another one that the user chose since."""
    m = cache(AUTO)
    reset(m)
    there = NamedSharding(AUTO, P(None, "data"))
    m.c.set_value(jax.device_put(m.c.value, there))
    reset(m)
    assert m.c.value.sharding == there


def test_stages_keep_shardings():
    m = cache(AUTO)
    reset.lower(m).compile()(m)
    assert m.c.value.sharding == NamedSharding(AUTO, P("data", None))


def test_a_change_of_structure_keeps_shardings():
    @dx.jit
    def grow(m):
        m.c[...] = jnp.zeros((8, 8))
        m.more = dx.Variable(jnp.ones(3))

    m = cache(AUTO)
    grow(m)
    assert m.c.value.sharding == NamedSharding(AUTO, P("data", None))


@BOTH
def test_a_constraint_takes_the_mesh_of_the_arguments(mesh):
    """Where no mesh is set: names of the library, and Variables that are made inside."""
    m = cache(mesh)
    with dx.sharding_rules({"batch": "data"}):
        made = dx.jit(lambda m: dx.with_sharding_constraint(m.c.value * 2, ("batch", None)))(m)
    assert made.sharding.is_equivalent_to(NamedSharding(mesh, P("data", None)), 2)
    new = dx.jit(lambda m: dx.Variable(m.c.value + 1, out_sharding=("data", None)))(m)
    assert new.value.sharding.is_equivalent_to(NamedSharding(mesh, P("data", None)), 2)


def by_batch(mesh):
    return NamedSharding(mesh, P("data"))


def named_rows(m, x):
    m.count.value += 1
    return dx.with_sharding_constraint((x + 0 * m.c.value) * 2, ("batch", None))


def uncommitted():
    m = Cache()
    assert not m.c.value.committed
    return m


LABELS = {
    "all": lambda mesh: (NamedSharding(mesh, P()), by_batch(mesh)),
    "the batch": lambda mesh: (None, by_batch(mesh)),
    "the model": lambda mesh: (NamedSharding(mesh, P()), None),
    "by filter": lambda mesh: (dx.StateSharding({dx.PathContains("c"): by_batch(mesh), ...: None}), None),
    "a spec beside": lambda mesh: (NamedSharding(mesh, P()), P("data")),
}


@pytest.mark.filterwarnings("ignore::declax.errors.ReplicationWarning")
@pytest.mark.parametrize("labels", LABELS)
@BOTH
def test_in_shardings_give_the_mesh(mesh, labels):
    """Of names inside, where no argument lies on one."""
    with dx.sharding_rules({"batch": "data"}):
        m, step = uncommitted(), dx.jit(named_rows, in_shardings=LABELS[labels](mesh))
        for _ in range(3):
            assert step(m, np.ones((8, 8), np.float32)).sharding.is_equivalent_to(by_batch(mesh), 2)
        traces = 2 if labels == "the batch" else 1  # the first one says which arrays of the model are to be put
        assert (step.num_traces, step.num_compilations) == (traces, 1)
        assert int(m.count.value) == 3
    with dx.sharding_rules({"batch": "dtaa"}), pytest.raises(ShardingError, match="dtaa"):
        dx.jit(named_rows, in_shardings=LABELS[labels](mesh))(uncommitted(), np.ones((8, 8), np.float32))


@pytest.mark.filterwarnings("ignore::declax.errors.ReplicationWarning")
@BOTH
def test_out_shardings_give_the_mesh(mesh):
    step = dx.jit(
        lambda m, x: (dx.with_sharding_constraint(x, ("data", None)), x), out_shardings=(None, by_batch(mesh))
    )
    found, _ = step(uncommitted(), np.ones((8, 8), np.float32))
    assert found.sharding.is_equivalent_to(by_batch(mesh), 2)


@BOTH
def test_specs_are_on_the_mesh_of_an_argument(mesh):
    def step(m, x):
        m.count.value += 1
        return (m.c.value * x).sum(), x

    m = cache(mesh)
    f = dx.jit(step, in_shardings=(None, P("data")), out_shardings=(None, P(None, "data")))
    for _ in range(2):
        _, x = f(m, np.ones((8, 8), np.float32))
        assert x.sharding == NamedSharding(mesh, P(None, "data"))
    assert (f.num_traces, f.num_compilations) == (1, 1)
    f = dx.jit(step, in_shardings=(None, P("dtaa")))
    with pytest.raises(TransformError, match=r"^x: this cannot be split by P\('dtaa',\)"):
        f(m, np.ones((8, 8), np.float32))
    f = dx.jit(step, out_shardings=(None, P("dtaa")))
    with pytest.raises(TransformError, match=r"^out_shardings: 'dtaa' of P\('dtaa',\) is not an axis"):
        f(m, np.ones((8, 8), np.float32))


@BOTH
def test_a_function_without_a_model_takes_the_mesh_of_its_arguments(mesh):
    f = dx.jit(lambda x: dx.with_sharding_constraint(x * 2, (None, "data")))
    x = jax.device_put(jnp.ones((8, 8)), by_batch(mesh))
    for _ in range(2):
        assert f(x).sharding.is_equivalent_to(NamedSharding(mesh, P(None, "data")), 2)
    assert (f.num_traces, f.num_compilations) == (1, 1)


def test_in_shardings_of_what_is_no_array_of_jax():
    m = dx.Dict(a=dx.Variable(np.zeros(8)), b=dx.Variable(2), c=dx.Variable([jnp.ones(8)]), d=jax.new_ref(jnp.ones(8)))
    total = dx.jit(lambda m: m.a.value.sum() + m.b.value + m.c.value[0].sum() + m.d[...].sum())
    labels = dx.StateSharding({dx.PathContains("b"): NamedSharding(AUTO, P()), ...: by_batch(AUTO)})
    assert dx.jit(lambda m: m.a.value.sum() + m.b.value, in_shardings=(labels,))(dx.Dict(a=m.a, b=m.b)) == 2
    assert dx.jit(lambda m: m.c.value[0].sum(), in_shardings=(by_batch(AUTO),))(dx.Dict(c=m.c)) == 8
    assert total(m) == 18


def test_in_shardings_that_cannot_split_a_model_leave_it_alone():
    m = uncommitted()
    with pytest.raises(TransformError, match="cannot be split"):
        dx.jit(named_rows, in_shardings=(NamedSharding(AUTO, P(None, None, "data")), None))(m, np.ones((8, 8)))
    assert not m.c.value.committed


def test_a_program_on_a_mesh_has_the_name_of_its_function():
    model = dx.init_sharded(lambda: dx.Linear(16, 16, rngs=dx.Rngs(0)), mesh=jax.make_mesh((8,), ("data",)))

    @dx.jit
    def evaluate(model):
        return jnp.sum(model.kernel[...])

    assert "evaluate" in evaluate.lower(model).as_text().splitlines()[0]
