"""Copies own their arrays, wherever those are, and share inside what was shared."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax._graph.copying import CHUNK


def donate(state: dx.State) -> None:
    """Ends all arrays of a State, as a training step does that is given them for good."""
    leaves = [leaf for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array)]
    jax.block_until_ready(jax.jit(lambda xs: [x + 1 for x in xs], donate_argnums=0)(leaves))
    assert all(leaf.is_deleted() for leaf in leaves)


class Model(dx.Module):
    def __init__(self, size: int = 2):
        self.layers = dx.List([dx.Param(jnp.full((3,), float(i))) for i in range(size)])
        self.tied = self.layers[0]
        self.buffer = jnp.arange(4)
        self.names = ["a", "b"]


COPIES = {
    "clone": dx.clone,
    "state": lambda model: dx.merge(dx.graphdef(model), dx.state(model, copy=True)),
    "merge": lambda model: dx.merge(*dx.split(model), copy=True),
    "get_state": lambda model: dx.graphdef(model).merge(model.get_state(copy=True)),
}
each_copy = pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)


@each_copy
@pytest.mark.parametrize("size", [1, 2, CHUNK + 3])
def test_copies_live_on_when_the_original_is_donated(copied, size):
    model = Model(size)
    values = [np.array(leaf) for leaf in dx.state(model).leaves]
    copies = [copied(model) for _ in range(3)]  # the first copy of a structure takes another way
    donate(dx.state(model))
    for copy in copies:
        for leaf, value in zip(dx.state(copy).leaves, values, strict=True):
            np.testing.assert_array_equal(leaf, value)
        assert copy.tied is copy.layers[0]


def test_what_does_not_copy_shares():
    model = Model()
    for shared in (dx.merge(*dx.split(model)), dx.merge(dx.graphdef(model), dx.state(model))):
        assert shared.layers[1].value is model.layers[1].value


def test_filtered_states_own_their_arrays_too():
    model = Model()
    params, rest = dx.state(model, dx.Param, ..., copy=True)
    assert params.layers[1].value is not model.layers[1].value
    assert rest["buffer"] is not model.buffer


def test_all_kinds_of_leaves():
    class Odd(dx.Module):
        def __init__(self):
            self.key = dx.RngKey(jax.random.key(0), tag="a")
            self.numpy = dx.Param(np.arange(3))
            self.number = dx.Param(2.5)
            self.tree = dx.Param({"a": jnp.ones(2), "b": (np.ones(2), None)})
            self.weak = dx.Param(jax.jit(lambda: 1.0)())
            self.bfloat = dx.Param(jnp.ones(2, jnp.bfloat16))
            self.plain = jnp.ones(2)

    model = Odd()
    for _ in range(2):
        made = dx.clone(model)
        assert dx.state(made) == dx.state(model)
        assert made.numpy.value is not model.numpy.value
        assert made.tree.value["a"] is not model.tree.value["a"]
        assert made.tree.value["b"][0] is not model.tree.value["b"][0]
        assert made.weak.value.weak_type
        assert made.weak.value is not model.weak.value
        assert made.key.value is not model.key.value
        assert made.plain is not model.plain


def test_clones_inside_of_transforms():
    model = Model()

    @jax.jit
    def inside(state):
        made = dx.clone(dx.merge(dx.graphdef(model), state))
        made.layers[0].value = made.layers[0].value + 1
        return made.layers[0].value, state.layers[0].value

    changed, kept = inside(dx.state(model))
    np.testing.assert_array_equal(changed, kept + 1)

    def loss(model):
        return (dx.clone(model).layers[1].value ** 2).sum()

    grads = dx.grad(loss)(Model())
    np.testing.assert_array_equal(grads.layers[1].value, [2.0, 2.0, 2.0])


def test_a_clone_with_the_same_variables():
    model = Model()
    made = dx.clone(model, variables=False)
    assert made is not model
    assert made.layers is not model.layers
    assert made.layers[1] is model.layers[1]
    assert made.tied is made.layers[0]
    assert made.buffer is model.buffer
    made.layers.append(dx.Param(1))
    made.names.append("c")
    assert len(model.layers) == 2
    assert model.names == ["a", "b"]


def test_shardings_are_kept():
    """In a process of its own, which has four devices."""
    code = """
    import os
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    import jax, jax.numpy as jnp, numpy as np
    import declax as dx
    mesh = jax.make_mesh((4,), ("x",))
    sharded = jax.NamedSharding(mesh, jax.P("x"))
    devices = jax.devices()
    values = [
        jax.device_put(jnp.arange(8.0), sharded),
        jax.device_put(jnp.arange(3.0), devices[2]),
        jax.device_put(jnp.arange(5.0), devices[1]),
        jnp.ones(2),
    ]
    for chosen in (values, values[1:2] * 3, values[:1] * 2, values[3:] * 3):
        model = dx.List([dx.Param(value) for value in chosen])
        for _ in range(3):
            made = dx.clone(model)
            for a, b in zip(model, made):
                assert b.value.sharding == a.value.sharding, (a.value.sharding, b.value.sharding)
                assert b.value.committed == a.value.committed
                assert b.value is not a.value
                np.testing.assert_array_equal(a.value, b.value)
    print("kept")
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "kept", ran.stderr


def test_what_is_left_out_is_not_copied():
    model = dx.List([dx.Param(jnp.ones(2)), dx.BatchStat(jnp.ones(2))])
    model[1].value.delete()
    assert dx.state(model, dx.Param, copy=True).leaves[0].tolist() == [1, 1]


def test_other_shapes_are_not_compiled_for():
    from declax._graph import copying

    programs = copying._copy_all
    before = programs._cache_size()
    model = dx.List([dx.Param(jnp.ones(2)), dx.Cache(jnp.ones(1))])
    for size in range(41, 46):
        model[1].value = jnp.ones(size)
        dx.clone(model)
    assert programs._cache_size() == before
    dx.clone(model)
    assert programs._cache_size() == before + 1


def test_placement_is_kept_by_every_copy():
    """In a process of its own, which has four devices."""
    code = """
    import os
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    import jax, jax.numpy as jnp
    import declax as dx
    model = dx.List([dx.Param(jnp.arange(8.0)), dx.Param(jax.device_put(jnp.arange(4.0), jax.devices()[0]))])
    for _ in range(3):
        assert [v.value.committed for v in dx.clone(model)] == [False, True]
    print("kept")
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "kept", ran.stderr


# --- an update from another model ---------------------------------------------------


def pair() -> tuple[dx.MLP, dx.MLP]:
    """A model, and a target with other weights."""
    return dx.MLP(2, 4, 2, rngs=dx.Rngs(0)), dx.MLP(2, 4, 2, rngs=dx.Rngs(1))


OF_A_MODEL = {
    "state": dx.state,
    "split": lambda m: dx.split(m)[1],
    "unpack": dx.unpack,
    "variables": dx.variables,
    "a filter": lambda m: dx.state(m, dx.Param),
    "filtered later": lambda m: dx.state(m).filter(dx.Param),
    "split later": lambda m: dx.state(m).split(dx.Param, ...)[0],
    "variables, filtered": lambda m: dx.variables(m).filter(dx.Param),
    "a union": lambda m: dx.state(m, dx.PathContains("up")) | dx.state(m, dx.PathContains("down")),
    "a difference": lambda m: dx.state(m) - dx.State({"none": 0}),
    "a state with a new entry": lambda m: with_entry(dx.state(m)),
}


def with_entry(state):
    state["up"]["bias"] = jnp.ones(4)
    return state


@pytest.mark.parametrize("name", OF_A_MODEL)
@pytest.mark.parametrize("options", [{}, {"strict": False}, {"strict": True}, {"complete": True}])
def test_arrays_of_another_model_are_copied(name, options):
    model, target = pair()
    dx.update(target, OF_A_MODEL[name](model), **options)
    before = target.down.kernel.value
    assert (before == model.down.kernel.value).all()
    dx.jit(lambda m: m.down.kernel.set_value(m.down.kernel + 1), donate_argnums=0)(model)
    assert target.down.kernel.value is before
    assert target(jnp.ones((1, 2))).shape == (1, 2)  # no buffer is gone
    state = OF_A_MODEL[name](model)
    kernel = model.down.kernel.value
    dx.update(target, state, copy=False, **options)
    assert target.down.kernel.value is kernel


def test_a_part_of_a_state_is_copied():
    model, target = pair()
    dx.update(target.up, dx.state(model)["up"])
    assert target.up.kernel.value is not model.up.kernel.value
    assert (target.up.kernel.value == model.up.kernel.value).all()


OF_ITS_OWN = {
    "a step": lambda m: dx.jit(lambda state: jax.tree.map(lambda x: x + 1, state))(dx.state(m)),
    "jax.tree.map": lambda m: jax.tree.map(lambda x: x * 2, dx.state(m)),
    "map": lambda m: dx.state(m).map(lambda path, v: v.replace(v.value * 2)),
    "a copy": lambda m: dx.state(m, copy=True),
    "nested dicts": lambda m: dx.state(m).to_pure_dict(),
    "a model that is gone": lambda m: dx.state(dx.clone(m)),
}


@pytest.mark.parametrize("name", OF_ITS_OWN)
def test_arrays_that_no_other_model_has_are_not_copied(name):
    model, target = pair()
    state = OF_ITS_OWN[name](model)
    kernel = state["down"]["kernel"]
    dx.update(target, state)
    assert target.down.kernel.value is getattr(kernel, "value", kernel)


def test_a_model_takes_its_own_state_back():
    model, _ = pair()
    kept = dx.state(model)
    model.down.kernel += 1
    dx.update(model, kept)
    assert model.down.kernel.value is kept.down.kernel.value
    part = dx.view(model)
    dx.update(part, kept)
    assert part.down.kernel.value is kept.down.kernel.value


def test_of_several_states_those_of_others_are_copied():
    model, target = pair()
    own = {"up": {"kernel": jnp.ones((2, 4))}}
    dx.update(target, dx.state(model), own)
    assert target.up.kernel.value is own["up"]["kernel"]
    assert target.down.kernel.value is not model.down.kernel.value


def test_numpy_arrays_of_another_model_are_copied():
    model, target = (
        dx.Dict(x=dx.Variable(np.ones(2)), n=dx.Variable(1)),
        dx.Dict(x=dx.Variable(np.zeros(2)), n=dx.Variable(0)),
    )
    dx.update(target, dx.state(model))
    model["x"].value[0] = 5
    assert target["x"].value.tolist() == [1, 1]
    assert target["n"].value == 1


def test_a_trace_copies_nothing():
    model, target = pair()
    made = dx.make_jaxpr(lambda m, t: dx.update(t, dx.state(m)))(model, target)
    assert made.jaxpr.eqns == []
    dx.jit(lambda m, t: dx.update(t, dx.state(m)))(model, target)
    assert (target.up.kernel.value == model.up.kernel.value).all()


def test_a_state_does_not_keep_its_model_alive():
    model, _ = pair()
    state = dx.state(model)
    held = weakref.ref(model.up.kernel)
    del model
    gc.collect()
    assert held() is None
    assert state.up.kernel.value.shape == (2, 4)


def test_the_flag_is_checked():
    model, target = pair()
    with pytest.raises(dx.errors.GraphError, match="this is not a valid flag"):
        dx.update(target, dx.state(model), copy="no")
