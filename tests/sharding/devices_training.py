"""Training on eight devices: fully sharded and by declaration, against one device."""

from __future__ import annotations

import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding

import declax as dx
from declax.errors import ReplicationWarning, ShardingError

P = jax.P
MESH = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
normal = dx.initializers.lecun_normal()


@dx.dataclass
class Net(dx.Layer):
    dim: int = dx.field()
    hidden: int = dx.field()
    up: dx.Param[jax.Array] = dx.variable((dim, hidden), initializer=normal, sharding=(None, "model"))
    bias: dx.Param[jax.Array] = dx.variable((hidden,), initializer=dx.initializers.zeros, sharding=("model",))
    down: dx.Param[jax.Array] = dx.variable((hidden, dim), initializer=normal, sharding=("model", None))

    def __call__(self, x):
        return jax.nn.relu(x @ self.up.value + self.bias.value) @ self.down.value


def make():
    model = Net(64, 128, rngs=dx.Rngs(0))
    return model, dx.Optimizer(model, optax.adam(1e-2))


def step(model, optimizer, x):
    loss, grads = dx.value_and_grad(lambda model: jnp.mean((model(x) - x) ** 2))(model)
    optimizer.update(model, grads)
    return loss


X = np.asarray(jax.random.normal(jax.random.key(1), (16, 64)))


def trained_alone():
    model, optimizer = make()
    losses = [float(dx.jit(step)(model, optimizer, jnp.asarray(X))) for _ in range(3)]
    return losses, dx.state(model)


def collectives(text):
    return Counter(
        re.findall(r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(", text)
    )


def check_close(losses, model):
    expected, state = trained_alone()
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    for one, two in zip(jax.tree.leaves(dx.state(model)), jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-4)


def test_fsdp_splits_the_largest_free_dimension():
    model, optimizer = dx.eval_shape(make)
    with dx.sharding_rules({"model": None}):
        labels = dx.fsdp(model, mesh=MESH, min_size=128)
        assert set(labels.shardings) == {NamedSharding(MESH, spec) for spec in (P("data"), P(None, "data"), P())}
        with jax.set_mesh(MESH):
            assert dx.fsdp(model).shardings == (P("data"), P(None, "data"), P())
            moments = dx.fsdp(optimizer)
    both = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(both):
        assert set(dx.fsdp(model).shardings) == {P("data", "model"), P("model", "data"), P("model"), P()}
    assert set(moments.shardings) == {P("data"), P(None, "data"), P()}
    with pytest.raises(ShardingError, match="there is no mesh"):
        dx.fsdp(model)
    with pytest.raises(ShardingError, match="the mesh has no axis 'fsdp'"):
        dx.fsdp(model, "fsdp", mesh=MESH)


def test_fsdp_takes_several_axes_and_dimensions_that_names_have_split():
    mesh = jax.make_mesh((2, 2, 2), ("slices", "data", "model"), axis_types=(AxisType.Auto,) * 3)
    model = dx.eval_shape(lambda: Net(64, 128, rngs=dx.Rngs(0)))
    with jax.set_mesh(mesh):
        assert set(dx.fsdp(model, ("slices", "data")).shardings) == {
            P(("slices", "data"), "model"),
            P("model", ("slices", "data")),
            P("model"),
            P(),
        }
        one_free = dx.eval_shape(lambda: dx.Param(jnp.zeros((3, 4096)), sharding=(None, "model")))
        assert dx.fsdp(one_free, ("slices", "data")).shardings == (P(None, ("model", "slices", "data")), P())
    with pytest.raises(ShardingError, match=r"the mesh has no axis \(\)"):
        dx.fsdp(model, (), mesh=mesh)
    with pytest.raises(ShardingError, match="the mesh has no axis 'slice'"):
        dx.fsdp(model, ("slice", "data"), mesh=mesh)


def test_fsdp_warns_of_what_stays_whole():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    odd = dx.eval_shape(lambda: dx.Linear(4097, 50257, rngs=dx.Rngs(0)))
    with pytest.warns(
        ReplicationWarning, match=r"are whole on each device(.|\n)*multiple of 8, the size of 'data'"
    ) as got:
        dx.fsdp(odd, mesh=mesh)
    assert "kernel f32[4097,50257] (823.6 MB): pad 50257 to 50264" in str(got[0].message)
    even = dx.eval_shape(lambda: dx.Linear(12, 4095, rngs=dx.Rngs(0)))
    with pytest.warns(ReplicationWarning, match="pad 4095 to 4096, or a mesh axis of 4"):
        dx.fsdp(even, mesh=mesh)
    small = dx.eval_shape(lambda: [dx.Linear(64, 4096, rngs=dx.Rngs(0)), dx.Linear(63, 65, rngs=dx.Rngs(0))])
    dx.fsdp(small, mesh=mesh)  # less than a tenth


def test_fully_sharded_training_is_that_of_one_device():
    with jax.set_mesh(MESH), dx.sharding_rules({"model": None}):
        model, optimizer = dx.init_sharded(make, shardings=dx.fsdp)
        places = dx.fsdp(model), dx.fsdp(optimizer)
        x = jax.device_put(X, P("data"))
        traces = []

        def traced(*args):
            traces.append(None)
            return step(*args)

        run = dx.jit(traced, in_shardings=(*places, P("data")), donate_argnums=(0, 1))
        losses = []
        for _ in range(3):
            before = model.up.value
            losses.append(float(run(model, optimizer, x)))
            assert before.is_deleted()
            assert model.up.value.sharding.is_equivalent_to(NamedSharding(MESH, P(None, "data")), 2)
            assert optimizer.opt_state[0].mu["down"].value.sharding.is_equivalent_to(NamedSharding(MESH, P("data")), 2)
            assert {shard.data.size for shard in model.up.value.addressable_shards} == {64 * 128 // 8}
        assert len(traces) == 1
    check_close(losses, model)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def test_tensor_parallel_training_is_that_of_one_device(kind):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind,) * 2)
    with jax.set_mesh(mesh):
        model, optimizer = dx.init_sharded(make)
        x = jax.device_put(X, P("data"))
        losses = []
        places = [(leaf.sharding, leaf.ndim) for leaf in jax.tree.leaves((model, optimizer))]
        if kind is AxisType.Explicit:
            Net.__call__, before = explicit_call, Net.__call__
        try:
            run = dx.jit(step)
            losses = [float(run(model, optimizer, x)) for _ in range(3)]
        finally:
            if kind is AxisType.Explicit:
                Net.__call__ = before
        after = jax.tree.leaves((model, optimizer))
        assert all(leaf.sharding.is_equivalent_to(*place) for leaf, place in zip(after, places, strict=True))
    check_close(losses, model)


def explicit_call(self, x):
    hidden = jax.nn.relu(x @ self.up.value + self.bias.value)
    return jnp.dot(hidden, self.down.value, out_sharding=P("data", None))


def test_data_parallel_training_reduces_gradients_once_each():
    with jax.set_mesh(MESH), dx.sharding_rules({"model": None}):
        model, optimizer = dx.init_sharded(make)
        x = jax.device_put(X, P("data"))
        run = dx.jit(step)
        text = run.lower(model, optimizer, x).compile().as_text()
        losses = [float(run(model, optimizer, x)) for _ in range(3)]
    found = collectives(text)
    assert set(found) == {"all-reduce"}
    check_close(losses, model)


def test_a_whole_parameter_is_on_no_device_while_a_model_is_made():
    with jax.set_mesh(MESH), dx.sharding_rules({"model": "data"}):
        lowered = dx.jit(lambda: dx.init_sharded(lambda: Net(512, 2048, rngs=dx.Rngs(0)))).lower()
        memory = lowered.compile().memory_analysis()
    parameters = 4 * (2 * 512 * 2048 + 2048)
    assert memory.output_size_in_bytes <= parameters // 8 + 512
    assert memory.temp_size_in_bytes < 4 * 512 * 2048


def test_the_bytes_on_a_device_are_those_of_the_summary():
    spec = dx.spec(Net, 64, 128)
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    tx = optax.adam(1e-2)
    for shardings in (None, dx.fsdp):
        with jax.set_mesh(mesh):
            made = dx.init_sharded(make, shardings=shardings)
        told = spec.summary(mesh={"data": 4, "model": 2}, tx=tx, shardings=shardings).devices
        first = jax.devices()[0]
        for kind, name in {dx.Param: "parameters", dx.OptState: "optimizer state"}.items():
            arrays = jax.tree.leaves(dx.state(made, kind))
            shards = [shard for array in arrays for shard in array.addressable_shards if shard.device == first]
            assert sum(shard.data.nbytes for shard in shards) == told.sizes[name].local
            assert sum(array.nbytes for array in arrays) == told.sizes[name].whole
    with dx.sharding_rules({"model": None}):
        assert [name for name, _ in spec.summary(mesh=MESH).devices.replicated] == [
            "down f32[128,64]",
            "up f32[64,128]",
        ]


# ================================================================= one class, and several meshes


@dx.dataclass
class Block(dx.Layer):
    """A class that knows no mesh: it names the dimensions of its parameters and activations."""

    width: int = dx.field()
    norm = dx.LayerNorm(width)
    up = dx.Linear(
        width,
        4 * width,
        kernel_metadata={"out_sharding": ("embed", "mlp")},
        bias_metadata={"out_sharding": ("mlp",)},  # without it, the bias stays whole, and each step gathers it
    )
    down = dx.Linear(4 * width, width, kernel_metadata={"out_sharding": ("mlp", "embed")})

    def __call__(self, x):
        x = dx.with_sharding_constraint(x, ("batch", None))
        return x + self.down(dx.gelu(self.up(self.norm(x))))


def make_block():
    model = Block(64, rngs=dx.Rngs(0))
    return model, dx.Optimizer(model, optax.adam(1e-2))


def train_block():
    """Trains as on a laptop; returns the losses, the model, and the operations between devices."""
    model, optimizer = make_block()
    run = dx.jit(step)
    x = jnp.asarray(X)
    compiled = run.lower(model, optimizer, x).compile().as_text()
    return [float(run(model, optimizer, x)) for _ in range(5)], model, set(collectives(compiled))


WHOLE = {"batch": None, "embed": None, "mlp": None}
MESHES = {
    "data parallel": ({"data": 8}, {"batch": "data"}, P(), {"all-reduce"}),
    "fully sharded": ({"data": 8}, {"batch": "data", "embed": "data"}, P("data"), {"all-gather", "all-reduce"}),
    "tensor parallel": ({"model": 8}, {"mlp": "model"}, P(None, "model"), {"all-reduce"}),
    "data and tensor parallel": (
        {"data": 4, "model": 2},
        {"batch": "data", "mlp": "model"},
        P(None, "model"),
        {"all-reduce"},
    ),
}


@pytest.mark.parametrize("name", MESHES)
def test_a_model_that_trains_on_a_laptop_trains_on_a_mesh_without_an_edit_to_its_classes(name):
    sizes, rules, spec, operations = MESHES[name]
    losses, alone, nothing = train_block()  # without a mesh and rules
    assert nothing == set()
    assert alone.up.kernel.value.sharding.device_set == {jax.devices()[0]}
    mesh = jax.make_mesh((*sizes.values(),), (*sizes,), axis_types=(AxisType.Auto,) * len(sizes))
    with jax.set_mesh(mesh), dx.sharding_rules(WHOLE | rules):
        found, model, used = train_block()
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(found, losses, rtol=1e-4)
    for one, two in zip(jax.tree.leaves(dx.state(model)), jax.tree.leaves(dx.state(alone)), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-3)
    assert model.up.kernel.value.sharding.is_equivalent_to(NamedSharding(mesh, spec), 2)
    assert used == operations


# ================================================================= bad input


def test_a_tree_of_shardings_that_differs_says_how():
    state = dx.state(dx.Linear(8, 8, rngs=dx.Rngs(0)))
    place = NamedSharding(MESH, P())
    for shardings in (dx.State({"kernel": place, "bias": place}), dx.get_named_sharding(state, MESH), place):
        assert jax.device_put(state, shardings)["kernel"].value.sharding == place
    other = dx.state(dx.Linear(8, 8, kernel_metadata={"tag": "x"}, rngs=dx.Rngs(0)))
    with pytest.raises(ValueError, match=r"different pytree metadata at key path(.|\n)*'kernel'(.|\n)*'tag': 'x'"):
        jax.device_put(state, dx.get_named_sharding(other, MESH))
    smaller = dx.state(dx.Linear(8, 8, use_bias=False, rngs=dx.Rngs(0)))
    with pytest.raises(ValueError, match=r"symmetric difference on key sets is\n *(\['bias'\]|bias)"):
        jax.device_put(state, dx.get_named_sharding(smaller, MESH))


def test_a_failed_step_keeps_what_it_was_to_donate():
    with jax.set_mesh(MESH), dx.sharding_rules({"model": "data"}):
        model, optimizer = dx.init_sharded(make)
        run = dx.jit(step, donate_argnums=(0, 1))
        with pytest.raises(TypeError):
            run(model, optimizer, jnp.ones((16, 65)))
        assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((model, optimizer)))
        run(model, optimizer, jax.device_put(X, P("data")))
