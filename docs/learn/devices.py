# %% [markdown]
# # From one device to a mesh
#
# A program for one device also runs on many: put its arrays on several devices, and `dx.jit` distributes the
# computation. This tutorial trains the same model on one device, with a split batch, and with split parameters. You
# learn what a mesh and a sharding are, and how a class declares where its parameters belong.
# [A first model](first_model.py) explains declarations and training steps.
#
# No accelerator is needed: `XLA_FLAGS` lets the CPU act as eight devices. The variable must be set before jax is
# imported. On a machine with eight GPUs or TPUs, leave it out; on one with fewer, also set `JAX_PLATFORMS=cpu`.

# %%
import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jaxtyping import Array, Float
from sklearn.datasets import load_digits

import declax as dx

print(jax.device_count(), "devices")
assert jax.device_count() == 8

# %% [markdown]
# ## One device
#
# The model has two kernels, declared with `dx.variable`: a shape, an initializer, and a name for each dimension. The
# names have no effect yet. We use them at the end.


# %%
@dx.dataclass
class Classifier(dx.Layer):
    hidden: int = dx.field(default=128)
    up: dx.Param[jax.Array] = dx.variable(
        (64, hidden), initializer=dx.initializers.lecun_normal(), sharding=("pixels", "hidden")
    )
    down: dx.Param[jax.Array] = dx.variable(
        (hidden, 10), initializer=dx.initializers.lecun_normal(), sharding=("hidden", "classes")
    )

    def __call__(self, x: Float[Array, "batch 64"]) -> Float[Array, "batch 10"]:
        return dx.relu(x @ self.up) @ self.down


def make() -> tuple[Classifier, dx.Optimizer[Classifier]]:
    model = Classifier(rngs=dx.Rngs(0))
    return model, dx.Optimizer(model, optax.adam(1e-2))


@dx.jit
def train_step(model: Classifier, optimizer: dx.Optimizer[Classifier], x: jax.Array, y: jax.Array) -> jax.Array:
    def loss_of(model: Classifier) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

    loss, grads = dx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


digits = load_digits()
x, y = jnp.asarray(digits.data[:1024] / 16, jnp.float32), jnp.asarray(digits.target[:1024])

model, optimizer = make()
one_device = [float(train_step(model, optimizer, x, y)) for _ in range(20)]
print(f"loss {one_device[0]:.3f} -> {one_device[-1]:.3f}, on", model.up.sharding.device_set)
assert one_device[-1] < 0.5

# %% [markdown]
# ## A mesh, and a split batch
#
# A mesh arranges devices in a grid and names its axes. A sharding says how an array lies on the mesh: `P("data")`
# splits the first dimension along the axis `data`; `P()` splits nothing, so each device has a copy.
#
# For data parallelism, each device has the whole model and an eighth of the batch.

# %%
mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
split = NamedSharding(mesh, jax.P("data"))
everywhere = NamedSharding(mesh, jax.P())

x_split, y_split = jax.device_put(x, split), jax.device_put(y, split)
jax.debug.visualize_array_sharding(x_split)
assert x_split.addressable_shards[0].data.shape == (128, 64)

# %% [markdown]
# The picture shows the rows and columns of the array, and which device holds which part.
#
# The step is the same function. It computes the gradient of each part on its own device, adds the gradients up, and
# changes the parameters everywhere. An optimizer puts its state where the parameters are.

# %%
model = jax.device_put(Classifier(rngs=dx.Rngs(0)), everywhere)
optimizer = dx.Optimizer(model, optax.adam(1e-2))
data_parallel = [float(train_step(model, optimizer, x_split, y_split)) for _ in range(20)]
print(f"loss {data_parallel[0]:.3f} -> {data_parallel[-1]:.3f}, on {len(model.up.sharding.device_set)} devices")
assert np.allclose(data_parallel, one_device, rtol=1e-2)

# %% [markdown]
# The losses agree up to rounding: the devices add in another order.
#
# ## Split parameters
#
# A model that is too large for one device must be split itself. We take a mesh of two axes: four groups for the batch,
# and two devices for the parameters of each group.
#
# The class has named its dimensions: `pixels`, `hidden`, `classes`. *Rules* say which axis of the mesh a name means;
# None leaves a dimension whole. So the class says what its dimensions are, and the program where they go.
# `dx.init_sharded` makes model and optimizer, of which each device makes its own part only.

# %%
mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))
rules = {"pixels": None, "hidden": "model", "classes": None}
model, optimizer = dx.init_sharded(make, mesh=mesh, rules=rules)

print(model.up.out_sharding, "->", model.up.sharding.spec)
jax.debug.visualize_array_sharding(model.up.value)
jax.debug.visualize_array_sharding(model.down.value)
assert model.up.addressable_shards[0].data.shape == (64, 64)

# %% [markdown]
# The columns of `up` and the rows of `down` are split between two groups of devices; the four devices of a group hold
# the same part. The averages of Adam lie with their parameters:

# %%
print(optimizer.opt_state[0].mu["up"].sharding.spec)
assert optimizer.opt_state[0].mu["up"].sharding == model.up.sharding

# %% [markdown]
# The step is still the same function:

# %%
split = NamedSharding(mesh, jax.P("data"))
x_split, y_split = jax.device_put(x, split), jax.device_put(y, split)
both = [float(train_step(model, optimizer, x_split, y_split)) for _ in range(20)]
print(f"loss {both[0]:.3f} -> {both[-1]:.3f}")
assert np.allclose(both, one_device, rtol=1e-2)

# %% mystnb={"image": {"alt": "Three curves of the loss that lie on one another", "width": "70%"}}
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
for losses, style, label in [
    (one_device, "-", "one device"),
    (data_parallel, "--", "split batch"),
    (both, ":", "split batch and parameters"),
]:
    axis.plot(losses, style, label=label, linewidth=2)
axis.set(xlabel="step", ylabel="loss", ylim=(0, None))
_ = axis.legend()

# %% [markdown]
# ## Bytes on each device
#
# `dx.bytes_per_device` computes how much each device holds, for a mesh that need not exist. `dx.eval_shape` makes a
# model of shapes without arrays, so this works for models of any size.

# %%
with dx.sharding_rules(rules):
    print(dx.bytes_per_device(dx.eval_shape(make), {"data": 4, "model": 2}))

# %% [markdown]
# ## Without names
#
# Classes without names can be split too. `dx.fsdp` splits each large array along the data axis, a scheme that is known
# as fully sharded data parallelism. Each device stores an eighth of the parameters and of the optimizer's state.

# %%
mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))


def by_size(made: object) -> dx.StateSharding:
    return dx.fsdp(made, min_size=1024)


names = {"pixels": None, "hidden": None, "classes": None}
model, optimizer = dx.init_sharded(make, mesh=mesh, rules=names, shardings=by_size)
jax.debug.visualize_array_sharding(model.up.value)
assert len({str(shard.index) for shard in model.up.addressable_shards}) == 8

# %% [markdown]
# On the virtual devices of a CPU, read a result of each step before the next one, as `float(loss)` above does. Real
# devices do not need it.
#
# ## What to read next
#
# - [Train on two or more GPUs](../howto/data_parallel.md): one complete program to copy.
# - [Several devices](../parallel.md): explicit axes, `shard_map`, moving models between meshes.
# - [Recipes](../recipes.md): a transformer that is trained in nine ways.
# - [Several processes](../processes.md): more than one machine.
# - [Profiling](../howto/profiling.md): where time and memory go.
