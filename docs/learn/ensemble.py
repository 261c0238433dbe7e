# %% [markdown]
# # Ensembles by vmap
#
# Several models that were trained independently know more than one: where they agree, the data decide; where they
# disagree, the answer is uncertain. This tutorial trains 20 networks at once, as one compiled program. You learn how
# `dx.vmap` makes, trains and calls many models as one object. [A first model](first_model.py) explains declarations
# and training steps.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from jaxtyping import Array, Float

import declax as dx

# %% [markdown]
# ## The data
#
# The data are noisy points on a curve, with none between -1 and 1 or beyond -4 and 4.

# %%
rng = np.random.default_rng(0)
x = np.concatenate([rng.uniform(-4, -1, 60), rng.uniform(1, 4, 60)]).astype(np.float32)[:, None]
y = (np.sin(2 * x) + 0.1 * rng.normal(size=x.shape)).astype(np.float32)
print(x.shape, y.shape)

# %% [markdown]
# ## One model
#
# The class is that of a single model.


# %%
@dx.dataclass
class Net(dx.Layer):
    hidden: int = dx.field(default=32)
    layers = dx.Sequential(
        dx.Linear(1, hidden),
        dx.tanh,
        dx.Linear(hidden, hidden),
        dx.tanh,
        dx.Linear(hidden, 1),
    )

    def __call__(self, x: Float[Array, "batch 1"]) -> Float[Array, "batch 1"]:
        return self.layers(x)


# %% [markdown]
# ## Make an ensemble
#
# `dx.vmap(f)` calls `f` for all instances at once. The instances differ in their arguments: here in their random
# streams. `dx.Rngs(0).split(20)` is one object that holds 20 independent streams. The result is one `Net` whose arrays
# have a first axis of 20, and one `Optimizer` with the state of all.

# %%
MEMBERS = 20


@dx.vmap
def make(rngs: dx.Rngs) -> tuple[Net, dx.Optimizer[Net]]:
    net = Net(rngs=rngs)
    return net, dx.Optimizer(net, optax.adam(1e-2))


nets, optimizers = make(dx.Rngs(0).split(MEMBERS))
print(type(nets).__name__, nets.layers[2].kernel.shape, optimizers.step.shape)
assert nets.layers[2].kernel.shape == (MEMBERS, 32, 32)

# %% [markdown]
# ## Train all members
#
# The training step is that of a single model; `dx.vmap` above it makes a step for all. `in_axes` says which arguments
# have an axis for the instances: 0 for models and optimizers, None for the data, which all share. The changes of each
# instance go to its own place in the arrays.


# %%
@dx.jit
@dx.vmap(in_axes=(0, 0, None, None))
def train_step(net: Net, optimizer: dx.Optimizer[Net], x: jax.Array, y: jax.Array) -> jax.Array:
    loss, grads = dx.value_and_grad(lambda net: jnp.mean((net(x) - y) ** 2))(net)
    optimizer.update(net, grads)
    return loss


losses = np.stack([train_step(nets, optimizers, jnp.asarray(x), jnp.asarray(y)) for _ in range(500)])
print(f"losses from {losses[-1].min():.3f} to {losses[-1].max():.3f} after {len(losses)} steps")
assert losses.shape == (500, MEMBERS)
assert losses[-1].max() < 0.05

# %% mystnb={"image": {"alt": "Twenty losses fall together from about one to about 0.01", "width": "70%"}}
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.plot(losses, linewidth=0.5)
axis.set(xlabel="step", ylabel="loss", yscale="log")
axis.grid(alpha=0.3)

# %% [markdown]
# ## Predict with all members
#
# All members predict for the same inputs. The mean is the prediction of the ensemble, and the standard deviation shows
# how far the members disagree.

# %%
grid = jnp.linspace(-6, 6, 241)[:, None]
answers = np.asarray(dx.vmap(lambda net, x: net(x), in_axes=(0, None))(nets, grid))[..., 0]
mean, spread = answers.mean(axis=0), answers.std(axis=0)
points = np.asarray(grid[:, 0])
known = (np.abs(points) > 1.2) & (np.abs(points) < 3.8)
print(f"spread {spread[known].mean():.3f} among the data, {spread[np.abs(points) > 5].mean():.3f} beyond them")
assert spread[np.abs(points) > 5].mean() > 4 * spread[known].mean()

# %% mystnb={"image": {"alt": "Curves agree where there are points, and fan out elsewhere", "width": "80%"}}
figure, axis = plt.subplots(figsize=(7, 3.5), layout="constrained")
axis.plot(points, answers.T, color="tab:blue", linewidth=0.4, alpha=0.5)
axis.fill_between(points, mean - 2 * spread, mean + 2 * spread, alpha=0.2)
axis.plot(points, mean, color="tab:blue", label="mean of the ensemble")
axis.plot(x, y, ".", color="black", markersize=4, label="data")
axis.set(ylim=(-3, 3))
_ = axis.legend()

# %% [markdown]
# ## One member
#
# A member is a slice of all arrays. Models are pytrees, so `jax.tree.map` takes it out.

# %%
third = jax.tree.map(lambda leaf: leaf[2], nets)
print(type(third).__name__, third.layers[2].kernel.shape)
assert np.allclose(third(grid)[:, 0], answers[2], atol=1e-4)

# %% [markdown]
# ## Different hyperparameters
#
# Members may also differ in numbers that are arrays. `optax.inject_hyperparams` puts the learning rate into the state
# of the optimizer, so each member can have its own:


# %%
@dx.vmap
def make_with_rate(rngs: dx.Rngs, rate: jax.Array) -> tuple[Net, dx.Optimizer[Net]]:
    net = Net(rngs=rngs)
    optimizer = dx.Optimizer(net, optax.inject_hyperparams(optax.adam)(learning_rate=0.0))
    optimizer.opt_state.hyperparams["learning_rate"].value = rate
    return net, optimizer


rates = jnp.logspace(-4, -1, 8)
tried, their_optimizers = make_with_rate(dx.Rngs(1).split(8), rates)
last = [train_step(tried, their_optimizers, jnp.asarray(x), jnp.asarray(y)) for _ in range(300)][-1]
for rate, loss in zip(rates, last, strict=True):
    print(f"learning rate {rate:.4f}: loss {loss:.3f}")
assert last.min() < 0.1 * last[0]

# %% [markdown]
# ## What to read next
#
# - [Vectorization](../vmap.md): axes by filter, shared parts, random numbers.
# - [Hyperparameter search](../howto/hyperparameters.md): runs that differ in more than numbers.
# - [From one device to a mesh](devices.py): spread the members over devices.
# - [Random numbers](../random.md): `split`, `fork` and streams.
