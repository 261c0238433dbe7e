"""Values that are set keep their place, and models that exist move to a mesh; on eight devices."""

from __future__ import annotations

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding

import declax as dx
from declax.errors import ShardingError

P = jax.P


def mesh_of(data=4, model=2, kind=AxisType.Auto, devices=None):
    return jax.make_mesh((data, model), ("data", "model"), axis_types=(kind, kind), devices=devices)


MESH = mesh_of()
EXPLICIT = mesh_of(kind=AxisType.Explicit)
both = pytest.mark.parametrize("mesh", [MESH, EXPLICIT], ids=["auto", "explicit"])
KERNEL = {"out_sharding": ("embed", "mlp")}
RULES = {"embed": None, "mlp": "model"}


def layer_on(mesh):
    with jax.set_mesh(mesh), dx.sharding_rules(RULES):
        return dx.Linear(8, 16, kernel_metadata=KERNEL, rngs=dx.Rngs(0))


def is_at(array, mesh, *entries):
    return array.sharding.is_equivalent_to(NamedSharding(mesh, P(*entries)), array.ndim)


# ================================================================= values that are set

NEW = {
    "an array": lambda: jnp.ones((8, 16)),
    "of numpy": lambda: np.ones((8, 16), np.float32),
    "computed": lambda: jax.random.normal(jax.random.key(0), (8, 16)),
}
SETTERS = {
    "value": lambda kernel, new: setattr(kernel, "value", new),
    "set_value": lambda kernel, new: kernel.set_value(new),
    "index": lambda kernel, new: kernel.__setitem__(..., new),
}


@both
@pytest.mark.parametrize("is_within", [True, False], ids=["under the mesh", "without"])
def test_a_value_that_is_set_is_where_the_old_one_was(mesh, is_within):
    """New arrays are whole on each device under a mesh, and on the first device without."""
    declared, by_hand = layer_on(mesh).kernel, dx.Param(jnp.ones((8, 16)))
    by_hand.value = jax.device_put(by_hand.value, NamedSharding(mesh, P("data")))
    with jax.set_mesh(mesh) if is_within else contextlib.nullcontext():
        for new in NEW.values():
            for set_ in SETTERS.values():
                for kernel, place in ((declared, (None, "model")), (by_hand, ("data",))):
                    value = new()
                    set_(kernel, value)
                    assert is_at(kernel.value, mesh, *place)
                    np.testing.assert_array_equal(kernel.value, value)


def test_a_value_with_a_place_of_its_own_keeps_it():
    kernel = layer_on(MESH).kernel
    by_rows = NamedSharding(MESH, P("data"))
    kernel.value = value = jax.device_put(kernel.value, by_rows)
    assert kernel.value is value
    kernel.value = 2 * kernel.value
    assert kernel.sharding == by_rows
    other = NamedSharding(mesh_of(2, 1, devices=jax.devices()[:2]), P("data"))
    kernel[...] = jax.device_put(kernel.value, other)
    assert kernel.sharding == other


@both
def test_all_of_an_array_is_written_where_it_is(mesh):
    """By `kernel[...] = value`, as in NNX, wherever on its devices the value was."""
    kernel = layer_on(mesh).kernel
    kernel[...] = jax.device_put(2 * kernel.value, NamedSharding(mesh, P("data")))
    assert is_at(kernel.value, mesh, None, "model")


def test_a_value_of_another_shape_is_placed_as_a_new_one():
    kernel = layer_on(MESH).kernel
    with jax.set_mesh(MESH), dx.sharding_rules(RULES):
        kernel.value = jnp.ones((8, 32))
        assert is_at(kernel.value, MESH, None, "model")
        with pytest.raises(ShardingError, match="its size 31 is not divisible by 2"):
            kernel.value = jnp.ones((8, 31))
    assert kernel.shape == (8, 32)
    free = dx.Param(jnp.ones(8))
    free.value = jax.device_put(free.value, NamedSharding(MESH, P("data")))
    free.value = jnp.ones(9)
    assert free.shape == (9,)


def test_containers_of_arrays():
    pair = dx.Variable({"a": jnp.ones(8), "b": jnp.ones(8)})
    pair.value = jax.device_put(pair.value, NamedSharding(MESH, P("data")))
    pair.value = {"a": jnp.zeros(8), "b": np.zeros(8, np.float32)}
    assert is_at(pair.value["a"], MESH, "data")
    assert is_at(pair.value["b"], MESH, "data")


def test_on_one_device_values_are_taken_as_they_are():
    kernel, value = dx.Param(jnp.ones(8)), jnp.zeros(8)
    kernel.value = value
    assert kernel.value is value
    kernel[...] = other = jnp.ones(8)
    assert kernel.value is other
    kernel.value = there = jax.device_put(value, jax.devices()[3])
    assert kernel.value is there
    kernel.value = value
    assert kernel.devices() == {jax.devices()[3]}


@both
@pytest.mark.parametrize("how", ["one by one", "at once", "some"])
def test_update_keeps_the_place_of_arrays(mesh, how):
    layer, other = layer_on(mesh), dx.state(dx.Linear(8, 16, kernel_metadata=KERNEL, rngs=dx.Rngs(1)))
    if how == "one by one":
        other = dx.State({"kernel": np.asarray(other["kernel"].value), "bias": other["bias"].value})
    dx.update(layer, other, strict=how != "some")
    assert is_at(layer.kernel.value, mesh, None, "model")
    np.testing.assert_array_equal(layer.kernel.value, jnp.asarray(other["kernel"]))


def test_update_moves_a_model():
    layer, everywhere = layer_on(MESH), NamedSharding(MESH, P())
    for state in (dx.state(layer), dx.State({"kernel": np.ones((8, 16), np.float32), "bias": np.ones(16, np.float32)})):
        dx.update(layer, jax.device_put(state, everywhere))
        assert layer.kernel.sharding == everywhere


def test_in_an_explicit_trace_all_of_an_array_is_written_where_it_is():
    layer = layer_on(EXPLICIT)

    @dx.jit
    def reset(layer):
        layer.kernel[...] = jnp.ones(layer.kernel.shape)

    with jax.set_mesh(EXPLICIT):
        reset(layer)
    assert is_at(layer.kernel.value, EXPLICIT, None, "model")
    assert layer.kernel.value.sum() == 8 * 16


# ================================================================= axes of vmap


@both
@pytest.mark.parametrize("init", [lambda make: make(), dx.init_sharded, lambda make: dx.jit(make)()], ids=str)
def test_vmap_splits_new_variables_along_its_axis(mesh, init):
    @dx.vmap(transform_metadata={dx.PARTITION_NAME: "layers"})
    def make(rngs):
        return dx.Linear(8, 16, kernel_metadata=KERNEL, rngs=rngs)

    with jax.set_mesh(mesh), dx.sharding_rules({**RULES, "layers": "data"}):
        made = init(lambda: make(dx.Rngs(0).split(4)))
    assert made.kernel.out_sharding == ("layers", "embed", "mlp")
    assert is_at(made.kernel.value, mesh, "data", None, "model")


def test_scan_splits_new_variables_along_its_axis():
    def add(model, x):
        made = dx.Param(x * jnp.ones(8), out_sharding=("mlp",))
        return model, made

    add = dx.scan(add, in_axes=(dx.Carry, 0), transform_metadata={dx.PARTITION_NAME: "layers"})
    with jax.set_mesh(MESH), dx.sharding_rules({**RULES, "layers": "data"}):
        _, made = add(jnp.ones(()), jnp.arange(4.0))
    assert made.out_sharding == ("layers", "mlp")
    assert is_at(made.value, MESH, "data", "model")


def test_a_mapped_axis_that_does_not_fit_is_named():
    @dx.vmap(transform_metadata={dx.PARTITION_NAME: "layers"})
    def make(rngs):
        return dx.Linear(8, 16, kernel_metadata=KERNEL, rngs=rngs)

    refused = pytest.raises(ShardingError, match=r"the result\.kernel: dimension 0 of \(3, 8, 16\), 'layers'")
    with jax.set_mesh(MESH), dx.sharding_rules({**RULES, "layers": "data"}), refused:
        make(dx.Rngs(0).split(3))


def test_what_vmap_is_given_stays_where_it_is():
    kernel = dx.Param(jnp.ones((4, 8)), out_sharding=("layers", "mlp"))
    kernel.value = before = jax.device_put(kernel.value, NamedSharding(MESH, P("model")))

    @dx.vmap(transform_metadata={dx.PARTITION_NAME: "layers"})
    def double(kernel):
        kernel.value = 2 * kernel.value
        return dx.Param(kernel.value[:2], out_sharding=(None,))

    with jax.set_mesh(MESH), dx.sharding_rules({**RULES, "layers": "data"}):
        made = double(kernel)
    assert kernel.value.sharding == before.sharding
    assert is_at(made.value, MESH, "data")


# ================================================================= models that exist


def make():
    model = dx.Linear(64, 128, kernel_metadata=KERNEL, rngs=dx.Rngs(0))
    return model, dx.Optimizer(model, optax.adam(1e-3))


def step(model, optimizer, x):
    loss, grads = dx.value_and_grad(lambda model: jnp.mean((model(x) - 1) ** 2))(model)
    optimizer.update(model, grads)
    return loss


PLACES = {None: P(None, "model"), dx.fsdp: P("data", "model")}


@both
@pytest.mark.parametrize("shardings", PLACES, ids=["declared", "fsdp"])
def test_a_model_that_exists_moves_to_a_mesh(mesh, shardings):
    pair, alone = make(), make()
    with dx.sharding_rules(RULES):
        state = dx.state(pair)
        dx.update(pair, jax.device_put(state, dx.get_named_sharding(state, mesh, shardings=shardings)))
    model, optimizer = pair
    for value in (model.kernel.value, optimizer.opt_state[0].mu["kernel"].value):
        assert value.sharding.is_equivalent_to(NamedSharding(mesh, PLACES[shardings]), 2)
    assert all(len(leaf.sharding.device_set) == 8 for leaf in jax.tree.leaves(pair))
    if mesh is MESH:
        x = jnp.ones((16, 64))
        split = jax.device_put(x, NamedSharding(mesh, P("data")))
        np.testing.assert_allclose(float(dx.jit(step)(*pair, split)), float(dx.jit(step)(*alone, x)), rtol=1e-5)


def test_from_one_mesh_to_another():
    layer, other = layer_on(MESH), mesh_of(1, 8)
    state = dx.state(layer)
    with dx.sharding_rules(RULES):
        dx.update(layer, jax.device_put(state, dx.get_named_sharding(state, other)))
    assert is_at(layer.kernel.value, other, None, "model")


def test_shardings_by_filter_in_place_of_names():
    state = dx.state(make()[0])
    rows = dx.StateSharding({dx.PathContains("kernel"): P("data"), ...: P()})
    found = dx.get_named_sharding(state, MESH, shardings=rows)
    assert found["kernel"].value == NamedSharding(MESH, P("data"))
    assert found["bias"].value == NamedSharding(MESH, P())
    wrong = dx.StateSharding({...: P("model", "data")})
    with pytest.raises(ShardingError, match=r"bias: the sharding .* has 2 entries, for an array of shape"):
        dx.get_named_sharding(state, MESH, shardings=wrong)
    with pytest.raises(ShardingError, match=r"get_named_sharding\.shardings: these are not shardings by filter"):
        dx.get_named_sharding(state, MESH, shardings=P("data"))


def test_device_put_with_trees_that_look_equal():
    state = dx.state(make()[0])
    place = NamedSharding(MESH, P())
    shardings = dx.get_named_sharding(state, MESH, shardings=dx.StateSharding({...: P()}))
    looks_equal = [
        shardings,
        dx.State({"kernel": place, "bias": place}),
        dx.State({"kernel": dx.Param(place, **KERNEL), "bias": dx.Param(place)}),
        place,
    ]
    for tree in looks_equal:
        assert jax.device_put(state, tree)["kernel"].value.sharding == place


# ================================================================= bytes


def told(*args, **options):
    return {name: size.local for name, size in dx.bytes_per_device(*args, **options).sizes.items()}


def held(pair):
    first = jax.devices()[0]
    found = {}
    for name, kind in {"parameters": dx.Param, "optimizer state": dx.OptState}.items():
        arrays = jax.tree.leaves(dx.state(pair, kind))
        shards = [shard for array in arrays for shard in array.addressable_shards if shard.device == first]
        found[name] = sum(shard.data.nbytes for shard in shards)
    return found


@pytest.mark.parametrize("shardings", PLACES, ids=["declared", "fsdp"])
@pytest.mark.parametrize("mesh", [MESH, {"data": 4, "model": 2}], ids=["mesh", "sizes"])
def test_arrays_count_where_they_are(mesh, shardings):
    pair = dx.init_sharded(make, mesh=MESH, rules=RULES, shardings=shardings)
    found = told(list(pair), mesh)  # no rules: where they are is known
    assert {name: found[name] for name in held(pair)} == held(pair)
    assert found["gradients"] == found["parameters"]
    planned = told(pair[0], mesh, tx=optax.adam(1e-3))
    assert {name: planned[name] for name in held(pair)} == held(pair)


def test_other_arrays_count_as_they_would_be_made():
    kernel, bias = 64 * 128 * 4, 128 * 4
    alone = make()[0]
    pair = dx.init_sharded(make, mesh=MESH, rules=RULES, shardings=dx.fsdp)
    with dx.sharding_rules(RULES):
        assert told(alone, MESH)["parameters"] == kernel // 2 + bias
        assert told(pair[0], {"data": 2, "model": 4})["parameters"] == kernel // 4 + bias
        assert told(pair[0], MESH)["parameters"] == kernel // 8 + bias
        by_filter = functools.partial(told, pair[0], MESH)
        assert by_filter(shardings=dx.StateSharding({...: P()}))["parameters"] == kernel + bias


def test_other_places_of_optimizer_state_count():
    layer = dx.Linear(64, 128, kernel_metadata={"optimizer_sharding": ("data", "model")}, rngs=dx.Rngs(0))
    with jax.set_mesh(MESH):
        layer.kernel.value = jax.device_put(layer.kernel.value, P())
        layer.bias.value = jax.device_put(layer.bias.value, P())
        pair = [layer, dx.Optimizer(layer, optax.adam(1e-3))]
        assert told(layer, MESH, tx=optax.adam(1e-3))["optimizer state"] == held(pair)["optimizer state"]


@pytest.mark.parametrize("names", ["", "a", "ab"])
def test_a_function_moves_arrays_that_it_does_not_set_at_each_call(names):
    """The first call puts and traces; later ones take a shorter way."""
    place = NamedSharding(MESH, P("data"))
    model = dx.Dict(a=dx.Param(jnp.zeros(8)), b=dx.Param(jnp.zeros(8)))

    @dx.jit(in_shardings=place)
    def step(model):
        for name in names:
            model[name].value += 1

    for count in range(5):
        model.b.set_raw_value(jnp.full(8, count))
        step(model)
        assert model.a.value.sharding == model.b.value.sharding == place
        assert model.b.value[0] == count + ("b" in names)
    assert model.a.value[0] == 5 * ("a" in names)
    assert step.num_traces == 1


def test_arrays_outside_of_variables_move_too():
    """In attributes, and in containers at any depth, of which the nodes get new ones."""

    class Plain(dx.Module):
        def __init__(self):
            self.array, self.weight = jnp.arange(8.0), dx.Param(jnp.ones(8))
            self.items = dx.data([jnp.zeros(8), {"deep": (jnp.ones(8),)}])

    place = NamedSharding(MESH, P("data"))
    model = Plain()
    total = dx.jit(lambda model: sum(leaf.sum() for leaf in jax.tree.leaves(model)), in_shardings=place)
    for _ in range(3):
        assert total(model) == 28 + 8 + 0 + 8
        assert all(leaf.sharding == place for leaf in jax.tree.leaves(model))
    assert total.num_traces <= 2
