"""Copies own their arrays, wherever those are, and share inside what was shared."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax._graph.api import CHUNK


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
    from declax._graph import api as copying

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
