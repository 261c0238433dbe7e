"""Where arrays are after a call with shardings, compared with the peer."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys, importlib
import jax, jax.numpy as jnp
nnx = importlib.import_module(sys.argv[1])
P, mesh = jax.P, jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
place = lambda *names: jax.sharding.NamedSharding(mesh, P(*names))

def model():
    return nnx.Linear(4, 8, rngs=nnx.Rngs(0))

def show(text, m):
    print(text, *(getattr(v.get_value().sharding, "spec", None) for v in (m.kernel, m.bias)))

by_filter = nnx.StateSharding({nnx.PathContains("kernel"): place("a", "b"), ...: place("b")})
m = model()
nnx.jit(lambda m: None, in_shardings=(by_filter,))(m)
show("jit", m)
m = model()
step = nnx.jit(lambda m, x: m(x), in_shardings=(by_filter, None))
kernel = [step(m, jnp.ones((2, 4))), m.kernel.get_value()][1]
step(m, jnp.ones((2, 4)))
show("jit that reads", m)
m = model()
with jax.set_mesh(mesh):
    nnx.jit(lambda m: None, in_shardings=(nnx.StateSharding({nnx.PathContains("kernel"): P("a"), ...: P()}),))(m)
show("specs", m)
specs = nnx.StateSharding({nnx.PathContains("kernel"): P(None, "a"), ...: P()})
m = model()
nnx.shard_map(lambda m: None, mesh=mesh, in_specs=(specs,), out_specs=None)(m)
show("shard_map", m)
m = model()
specs = nnx.StateSharding(nnx.State({"kernel": P(None, "a"), "bias": P()}))
nnx.shard_map(lambda m: None, mesh=mesh, in_specs=(specs,), out_specs=None)(m)
show("a State of specs", m)
m = model()
graphdef, state = nnx.split(m)
specs = nnx.State({"kernel": P(None, "a"), "bias": P("a")})
as_variables = nnx.State({"kernel": nnx.Param(P(None, "a")), "bias": nnx.Param(P("a"))})
apply = lambda s, x: nnx.merge(graphdef, s)(x)
results = [
    nnx.shard_map(apply, mesh=mesh, in_specs=(given, P()), out_specs=P(None, "a"))(state, jnp.ones((2, 4)))
    for given in ([specs, as_variables] if nnx.__name__ == "declax" else [specs])  # the peer refuses Variables here
]
alone = jax.sharding.NamedSharding(jax.make_mesh((1,), ("a",), devices=jax.devices()[:1]), P())
m = model()
nnx.jit(lambda m: None, in_shardings=(alone,))(m)
show("a mesh of one device", m)
print(results[0].shape, all(bool((result == results[0]).all()) for result in results))
"""


def lines_of(lib: str) -> list[str]:
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", PROGRAM, lib]
    done = subprocess.run(command, env={**os.environ, **flags}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_arrays_are_where_the_shardings_say():
    pytest.importorskip("flax.nnx")
    ours = lines_of("declax")
    assert ours[0] == "jit P('a', 'b') P('b',)"
    assert ours == lines_of("flax.nnx")
