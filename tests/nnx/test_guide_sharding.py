"""The peer's guide on several devices, retold as a program of eight devices that prints the same under both."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import functools, importlib, sys, tempfile
import jax, jax.numpy as jnp, optax
from jax.sharding import AxisType, NamedSharding
nnx = importlib.import_module(sys.argv[1])
P, sizes, names = jax.P, (2, 4), ("data", "model")
mesh = jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * 2)
explicit = jax.make_mesh(sizes, names, axis_types=(AxisType.Explicit,) * 2)
normal, width, depth = nnx.initializers.lecun_normal(), 64, 2

print("eager", nnx.using_eager_sharding())
with nnx.use_eager_sharding(False):
    print("eager", nnx.using_eager_sharding())
print(nnx.Param(jnp.ones((4, 4)), sharding_names=(None, "model"), eager_sharding=True, mesh=mesh).sharding.spec)

rngs = nnx.Rngs(0)
with jax.set_mesh(mesh):
    w = nnx.Param(rngs.lecun_normal()((4, 8)), sharding_names=(None, "model"))
    print(w.sharding.spec)
    jax.debug.visualize_array_sharding(w)
    kernel_init = nnx.with_partitioning(normal, (None, "model"))
    made = jax.jit(lambda key: nnx.Linear(4, 8, use_bias=False, rngs=nnx.Rngs(key), kernel_init=kernel_init))(rngs())
    print(made.kernel.sharding.spec)
    y = jax.jit(lambda m, x: m(x))(made, jax.device_put(jnp.ones((16, 4)), P("data", None)))
    print(y.sharding.spec, f"{float(y.sum()):.4f}")

class Block(nnx.Module):
    def __init__(self, axes, rngs):
        self.axes = axes
        init = nnx.with_partitioning(normal, axes)
        self.dot1 = nnx.Linear(width, width, kernel_init=init, use_bias=False, rngs=rngs)
        self.w2 = nnx.Param(normal(rngs.params(), (width, width)), sharding=axes[::-1])

    def __call__(self, x):
        y = jax.lax.with_sharding_constraint(jax.nn.relu(self.dot1(x)), P("data", "model"))
        return y @ self.w2[...]

class Blocks(nnx.Module):
    def __init__(self, axes, rngs):
        @nnx.vmap(transform_metadata={nnx.PARTITION_NAME: None})
        def make(rngs):
            return Block(axes, rngs)
        self.layers = make(rngs.fork(split=depth))

    def __call__(self, x):
        return jax.lax.scan(lambda x, layer: (layer(x), None), x, self.layers)[0]

def show(text, model):
    for name, param in (("dot1", model.layers.dot1.kernel), ("w2", model.layers.w2)):
        whole = NamedSharding(param.sharding.mesh, P(None, *{"dot1": (None, "model"), "w2": ("model", None)}[name]))
        print(text, name, param.shape, param.sharding.is_equivalent_to(whole, 3))

@jax.jit
def train_step(model, optimizer, x, y):
    loss, grads = jax.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
    optimizer.update(model, grads)
    return model, optimizer, loss

with jax.set_mesh(mesh):
    x, y = (jax.device_put(rngs.normal((8, width)), P("data", None)) for _ in range(2))
    model = Blocks((None, "model"), nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    print("moments", optimizer.opt_state[0].mu["layers"]["w2"].sharding.is_equivalent_to(model.layers.w2.sharding, 3))
    for step in range(4):
        model, optimizer, loss = train_step(model, optimizer, x, y)
        print(f"loss {float(loss):.4f}")
    show("trained", model)

import orbax.checkpoint as ocp
with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(folder + "/c", nnx.state(model))
    checkpointer.wait_until_finished()
    graphdef, shapes = nnx.get_abstract_model(lambda: Blocks((None, "model"), nnx.Rngs(0)), mesh)
    restored = nnx.merge(graphdef, checkpointer.restore(folder + "/c", target=shapes))
    show("restored", restored)
    print(bool((restored.layers.w2[...] == model.layers.w2[...]).all()))

with jax.set_mesh(mesh), nnx.logical_axis_rules((("hidden", "model"), ("embed", None))):
    model = Blocks(("embed", "hidden"), nnx.Rngs(0))
    show("logical", model)
    print(model(x).sharding.is_equivalent_to(NamedSharding(mesh, P("data", None)), 2))

class Explicit(nnx.Module):
    def __init__(self, rngs):
        init = functools.partial(normal, out_sharding=P(None, "model"))
        self.dot1 = nnx.Linear(width, width, kernel_init=init, use_bias=False, rngs=rngs)
        self.w2 = nnx.Param(normal(rngs.params(), (width, width), out_sharding=P("model", None)))
        self.b2 = nnx.Param(jnp.zeros(width, out_sharding=P(None)))

    def __call__(self, x):
        return jnp.dot(jax.nn.relu(self.dot1(x)), self.w2[...], out_sharding=P("data", None)) + self.b2

class Explicits(nnx.Module):
    def __init__(self, rngs):
        self.layers = jax.vmap(Explicit, spmd_axis_name=None)(rngs.fork(split=depth))

    __call__ = Blocks.__call__

with jax.set_mesh(explicit):
    model = Explicits(nnx.Rngs(0))
    x = jax.device_put(nnx.Rngs(1).normal((8, width)), NamedSharding(explicit, P("data", None)))
    y = model(x)
    print(f"{float(jnp.abs(y).sum()):.3f}", y.sharding.is_equivalent_to(x.sharding, 2))
    show("explicit", model)
    shapes = jax.eval_shape(lambda: Explicits(nnx.Rngs(0)))
    print(shapes.layers.dot1.kernel.sharding.spec, shapes.layers.w2.sharding.spec)
"""


def printed_by(lib: str) -> str:
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", PROGRAM, lib]
    done = subprocess.run(command, env={**os.environ, **flags}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_guide_prints_the_same_under_both() -> None:
    pytest.importorskip("flax.nnx")
    pytest.importorskip("orbax.checkpoint")
    ours = printed_by("declax")
    assert ours.count("True") > 10
    assert ours.count("False") == 1, ours  # eager sharding, switched off
    assert ours == printed_by("flax.nnx")
