"""Shardings of what `jit` takes and gives back, on four devices of one machine."""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import pytest

import declax as dx
from declax.errors import TransformError
from declax.transforms._engine.prefixes import StateSharding

ONE = jax.sharding.SingleDeviceSharding(jax.devices()[0])

SETUP = """
import jax, jax.numpy as jnp
import declax as dx
from declax.transforms._engine.prefixes import StateSharding
mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
rows = jax.NamedSharding(mesh, jax.P("data"))
everywhere = jax.NamedSharding(mesh, jax.P())

class Model(dx.Module):
    def __init__(self):
        self.kernel = dx.Param(jnp.arange(8.0))
        self.count = dx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, x):
        self.count += 1
        self.kernel[...] = self.kernel + 0
        return x * self.kernel

model, x = Model(), jnp.ones(8)
"""

CASES = {
    "by filter, in and back out": """
        place = StateSharding({dx.Param: rows, ...: everywhere})
        y = dx.jit(lambda m, x: m(x), in_shardings=(place, rows), out_shardings=everywhere)(model, x)
        assert y.sharding == everywhere and model.kernel.value.sharding == rows
        assert model.count.value.sharding == everywhere and int(model.count) == 1
        assert y.tolist() == list(range(8))
    """,
    "one for all": """
        small = Model()
        small.count = dx.Variable(jnp.zeros(4))
        dx.jit(lambda m, x: m(x), in_shardings=rows)(small, x)
        assert small.kernel.value.sharding == small.count.value.sharding == rows
    """,
    "results only": """
        y = dx.jit(lambda m, x: {"a": m(x), "b": x}, out_shardings={"a": rows, "b": None})(model, x)
        assert y["a"].sharding == rows and int(model.count) == 1
    """,
    "a returned model": """
        made = dx.jit(Model, out_shardings=StateSharding({dx.Param: rows, ...: everywhere}))()
        assert made.kernel.value.sharding == rows and made.count.value.sharding == everywhere
    """,
    "captured models keep their place, and are no argument": """
        y = dx.jit(lambda x: model(x), in_shardings=rows)(x)
        assert y.sharding == rows and int(model.count) == 1
    """,
    "arguments by name have the sharding of their position": """
        f = dx.jit(lambda m, x: m(x), in_shardings=(None, rows), out_shardings=rows)
        assert f(model, x=x).sharding == rows and f(m=model, x=x).sharding == rows
    """,
    "arguments by keyword only stay where they are": """
        for prefix in (everywhere, (everywhere,), (None,)):
            f = dx.jit(lambda m, *, x: x * 2, in_shardings=prefix)
            assert f(model, x=jax.device_put(x, rows)).sharding == rows
    """,
    "static arguments have none": """
        f = dx.jit(lambda m, n, x: m(x) * n, static_argnames="n", in_shardings=(None, rows), out_shardings=rows)
        assert f(model, 3, x).tolist() == [3.0 * i for i in range(8)]
    """,
    "with donation": """
        place = StateSharding({dx.Param: rows, ...: everywhere})
        f = dx.jit(lambda m, x: m(x), in_shardings=(place, rows), donate_argnums=0)
        f(model, x)
        before = model.kernel.value
        f(model, x)
        assert before.is_deleted() and model.kernel.value.sharding == rows
    """,
    "a PartitionSpec of the mesh of the context": """
        place = StateSharding({dx.Param: jax.P("data"), ...: None})
        with jax.set_mesh(mesh):
            dx.jit(lambda m, x: m(x), in_shardings=(place, None))(model, x)
        assert model.kernel.value.sharding.spec == jax.P("data")
    """,
}


@pytest.mark.slow
def test_on_four_devices():
    """All cases in one process, since starting JAX takes most of the time."""
    bodies = [textwrap.indent(SETUP + textwrap.dedent(case), "    ") for case in CASES.values()]
    body = "\n".join(f"def case_{i}():\n{text}" for i, text in enumerate(bodies))
    calls = "\n".join(f"print({name!r}, flush=True); case_{i}()" for i, name in enumerate(CASES))
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    code = [sys.executable, "-W", "error", "-c", f"{body}\n{calls}"]
    result = subprocess.run(code, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"


def test_what_is_no_sharding_is_refused():
    with pytest.raises(TransformError, match="in_shardings: this is not a label of leaves"):
        dx.jit(lambda x: x, in_shardings="rows")
    with pytest.raises(TransformError, match=r"out_shardings\[1\]: this is not a label of leaves"):
        dx.jit(lambda x: x, out_shardings=(ONE, 3))
    with pytest.raises(TransformError, match="this is not a label of leaves"):
        dx.jit(lambda x: x, in_shardings=StateSharding({dx.Param: 0, ...: None}))


def test_a_prefix_that_does_not_fit_is_refused():
    f = dx.jit(lambda a, b: a, in_shardings=(ONE, ONE, ONE))
    with pytest.raises(TransformError, match=r"the prefix does not fit the tree(.|\n)*in_shardings=P\('data'"):
        f(1.0, 2.0)
    g = dx.jit(lambda a: (a, a), out_shardings=(ONE,))
    with pytest.raises(TransformError, match="out_shardings: the prefix does not fit the tree"):
        g(1.0)


def test_results_with_several_labels_keep_their_order():
    """JAX returns them in groups of one label."""
    for labels in itertools.product((ONE, None), repeat=4):
        f = dx.jit(lambda *xs: xs, in_shardings=ONE, out_shardings=labels)
        for _ in range(2):
            assert f(0, 1, 2, 3) == (0, 1, 2, 3)
    model = dx.Dict(a=dx.Param(jnp.zeros(())), b=dx.BatchStat(jnp.ones(())), c=dx.Param(jnp.full((), 2.0)))

    @dx.jit(in_shardings=StateSharding({dx.BatchStat: ONE, ...: None}))
    def rotate(model):
        model.a.value, model.b.value, model.c.value = model.b.value, model.c.value, model.a.value

    for _ in range(4):
        rotate(model)
    assert [float(model[name].value) for name in "abc"] == [1, 2, 0]


def test_a_leaf_that_no_filter_takes_is_named():
    model = dx.Linear(2, 2, rngs=dx.Rngs(0))
    model.seen = dx.BatchStat(jnp.zeros(2))
    f = dx.jit(lambda m: m.kernel + 0, in_shardings=StateSharding({dx.Param: ONE}))
    with pytest.raises(TransformError, match="in_shardings, seen: no filter matches this leaf"):
        f(model)


def test_one_variable_with_two_shardings_is_refused():
    model = dx.Linear(2, 2, rngs=dx.Rngs(0))
    with pytest.raises(TransformError, match="one Variable has two labels here"):
        dx.jit(lambda a, b: None, in_shardings=(ONE, None))(model, model)
    assert dx.jit(lambda a, b: 1, in_shardings=(ONE, ONE))(model, model) == 1


def test_labels_by_filter_are_values():
    one, other = StateSharding({dx.Param: ONE, ...: None}), StateSharding([(dx.Param, ONE), (..., None)])
    assert one == other
    assert hash(one) == hash(other)
    assert one != StateSharding({dx.Param: None, ...: None})
    assert list(one.items()) == [(dx.Param, ONE), (..., None)]
    assert repr(StateSharding({dx.Param: jax.P("data"), "stat": None})).startswith("StateSharding({Param: P")
    with pytest.raises(dx.errors.MissingAttributeError, match=r"StateSharding\.labels: this value cannot be changed"):
        one.labels = ()
    with pytest.raises(TransformError, match="these are not labels by filter"):
        StateSharding(3)


def test_the_mesh_of_the_context_serves_under_a_trace():
    """Where it is abstract, and there is nothing to move."""
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    scale, x = dx.Param(jnp.array(2.0)), jnp.arange(4.0)
    place = StateSharding({dx.Param: jax.P(), ...: None})
    inner = [
        dx.shard_map(lambda scale, x: x * scale, in_specs=(None, jax.P("data")), out_specs=jax.P("data")),
        dx.jit(lambda scale, x: x * scale, in_shardings=(place, jax.P("data"))),
    ]
    with jax.set_mesh(mesh):
        for f in inner:
            assert dx.jit(lambda x, f=f: f(scale, x))(x).tolist() == jax.jit(lambda x, f=f: f(scale, x))(x).tolist()
            assert f(scale, x).tolist() == [0.0, 2.0, 4.0, 6.0]


KERNEL = {dx.PathContains("kernel"): ONE, ...: None}


def test_a_filter_that_selects_nothing_is_an_error() -> None:
    layer = dx.Linear(2, 3, rngs=dx.Rngs(0))
    misspelt = dx.StateSharding({dx.PathContains("kernle"): ONE, ...: None})
    hidden = dx.StateSharding({dx.Param: None, dx.PathContains("kernel"): ONE, ...: None})
    for sharding, name in ((misspelt, "kernle"), (hidden, "kernel")):
        with pytest.raises(dx.errors.TransformError, match=f"in_shardings: .*{name}.*selects nothing") as found:
            dx.jit(lambda m: None, in_shardings=(sharding,))(layer)
        assert "bias, kernel" in str(found.value)
        with pytest.raises(dx.errors.TransformError, match=f"out_shardings: .*{name}.* selects nothing"):
            dx.jit(lambda: dx.Linear(2, 3, rngs=dx.Rngs(0)), out_shardings=sharding)()


def test_each_filter_may_select_in_one_of_several_arguments() -> None:
    layer, loose = dx.Linear(2, 3, rngs=dx.Rngs(0)), dx.Dict(count=dx.Variable(0))
    sharding = dx.StateSharding({dx.PathContains("kernel"): ONE, dx.PathContains("count"): ONE, ...: None})
    dx.jit(lambda m, n: None, in_shardings=sharding)(layer, loose)


def test_filters_of_results_select_in_what_is_returned() -> None:
    """Also if it came in as an argument; and filters of arguments are not asked again when the structure changes."""
    layer = dx.Linear(2, 3, rngs=dx.Rngs(0))

    @functools.partial(dx.jit, in_shardings=(dx.StateSharding(KERNEL),), out_shardings=dx.StateSharding(KERNEL))
    def replace_kernel(m: dx.Linear) -> dx.Linear:
        m.added = dx.Param(jnp.ones(3))
        return m

    @functools.partial(dx.jit, in_shardings=(dx.StateSharding(KERNEL),))
    def remove_kernel(m: dx.Linear) -> None:
        del m.kernel

    assert replace_kernel(layer) is layer
    remove_kernel(layer)


def test_models_without_leaves_need_no_filter() -> None:
    dx.jit(lambda m: None, in_shardings=(dx.StateSharding(KERNEL),))(dx.Dict())
