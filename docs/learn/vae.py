# %% [markdown]
# # Images from a VAE
#
# A variational autoencoder (VAE) learns to describe an image by a few numbers, its code, and to draw images from
# codes. Random codes then give new images. This tutorial trains one on handwritten digits. You learn how a model with
# several methods is declared, how a loss draws random numbers, and how `dx.scan` runs an epoch as one compiled
# program. [A first model](first_model.py) explains declarations and training steps.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from jaxtyping import Array, Float
from sklearn.datasets import load_digits

import declax as dx

# %% [markdown]
# ## The data
#
# The images have 8 by 8 pixels, each with a value from 0 to 16. Scaled to the range from 0 to 1, a pixel says how much
# ink it has. The VAE needs no labels.

# %%
images = np.random.default_rng(0).permutation((load_digits().data / 16).astype(np.float32))
images, test_images = images[:1440], images[1440:]
print(images.shape, test_images.shape)

# %% [markdown]
# ## The model
#
# The encoder maps an image to a normal distribution of codes: a mean, and the logarithm of a variance, for each number
# of the code. The decoder maps a code to the logits of the pixels. Both are a `dx.MLP`, two affine maps with an
# activation between them.
#
# A model may have any methods. Only a call `model(...)` needs `__call__`, and this model has none.


# %%
@dx.dataclass
class VAE(dx.Layer):
    code: int = dx.field(default=6)
    hidden: int = dx.field(default=128)
    encoder = dx.MLP(64, hidden, 2 * code)
    decoder = dx.MLP(code, hidden, 64)

    def encode(
        self, images: Float[Array, "batch 64"]
    ) -> tuple[Float[Array, "batch {self.code}"], Float[Array, "batch {self.code}"]]:
        mean, log_variance = jnp.split(self.encoder(images), 2, axis=-1)
        return mean, log_variance

    def draw(self, codes: Float[Array, "batch {self.code}"]) -> Float[Array, "batch 64"]:
        return dx.sigmoid(self.decoder(codes))


rngs = dx.Rngs(0)
model = VAE(rngs=rngs)
print(dx.summary(model))

# %% [markdown]
# ## The loss
#
# The loss has two terms. The *misfit* is the cross entropy between the pixels and those that the decoder makes from a
# random code of the image. The *divergence* measures how far the distribution of these codes is from the standard
# normal one. It keeps the codes of all images near this distribution, so standard normal numbers can serve as codes
# later.
#
# `rngs.normal(shape)` draws from a random stream. Each draw advances the stream, also in compiled functions, so each
# step sees new noise. A function that draws takes the `Rngs` as an argument.


# %%
def loss_of(model: VAE, rngs: dx.Rngs, images: jax.Array) -> jax.Array:
    mean, log_variance = model.encode(images)
    codes = mean + jnp.exp(log_variance / 2) * rngs.normal(mean.shape)
    misfit = optax.sigmoid_binary_cross_entropy(model.decoder(codes), images).sum(axis=-1)
    divergence = (mean**2 + jnp.exp(log_variance) - log_variance - 1).sum(axis=-1) / 2
    return (misfit + divergence).mean()


first, second = (float(loss_of(model, rngs, jnp.asarray(images))) for _ in range(2))
print(f"before training: {first:.3f} with some noise, {second:.3f} with other noise")
assert first != second

# %% [markdown]
# ## An epoch as one program
#
# A step of this model takes less time than the loop of Python around it. `dx.scan` loops within the compiled program:
# it calls `step` with one batch after another. Model, optimizer and random streams are captured from the enclosing
# function, and `scan` carries their changes from step to step.


# %%
@dx.jit
def train_epoch(model: VAE, optimizer: dx.Optimizer[VAE], rngs: dx.Rngs, batches: jax.Array) -> jax.Array:
    @dx.scan(in_axes=(0,), out_axes=0)
    def steps(images: jax.Array) -> jax.Array:
        loss, grads = dx.value_and_grad(loss_of)(model, rngs, images)
        optimizer.update(model, grads)
        return loss

    return steps(batches).mean()


# %% [markdown]
# The batches of an epoch are one array of shape (steps, images, pixels).

# %%
EPOCHS, BATCH = 60, 64
steps = len(images) // BATCH
optimizer = dx.Optimizer(model, optax.adam(optax.cosine_decay_schedule(3e-3, EPOCHS * steps)))
rng = np.random.default_rng(0)
losses = []
for epoch in range(1, EPOCHS + 1):
    batches = rng.permutation(images)[: steps * BATCH].reshape(steps, BATCH, 64)
    losses.append(float(train_epoch(model, optimizer, rngs, jnp.asarray(batches))))
    if epoch % 20 == 0:
        print(f"epoch {epoch}: loss {losses[-1]:.2f}")
assert losses[-1] < 0.75 * losses[0]

# %% mystnb={"image": {"alt": "The loss falls steeply at first, and then slowly", "width": "70%"}}
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.plot(losses)
axis.set(xlabel="epoch", ylabel="loss in nats an image")
axis.grid(alpha=0.3)

# %% [markdown]
# ## What the code keeps
#
# The upper row shows images that the model has not seen. The lower row shows what the decoder draws from their codes:
# six numbers instead of 64 pixels.

# %%
codes, _ = model.encode(jnp.asarray(test_images))
error = float(jnp.abs(model.draw(codes) - test_images).mean())
baseline = float(np.abs(images.mean(axis=0) - test_images).mean())
print(f"mean error of a pixel: {error:.3f}; of the mean image: {baseline:.3f}")
assert error < 0.6 * baseline


# %% mystnb={"image": {"alt": "Ten test digits, and below each its slightly blurred copy", "width": "90%"}}
def show(rows: jax.Array, height: float) -> None:
    axes = plt.subplots(*rows.shape[:2], figsize=(8, height), layout="constrained")[1]
    for axis, image in zip(axes.flat, np.asarray(rows).reshape(-1, 8, 8), strict=True):
        axis.imshow(image, cmap="gray_r", vmin=0, vmax=1)
        axis.axis("off")


show(jnp.stack([jnp.asarray(test_images[:10]), model.draw(codes[:10])]), height=1.8)

# %% [markdown]
# ## New images
#
# Standard normal numbers as codes give digits that nobody wrote.

# %% mystnb={"image": {"alt": "Thirty generated digits in three rows; many are readable", "width": "90%"}}
samples = model.draw(rngs.normal((30, model.code)))
show(samples.reshape(3, 10, 64), height=2.6)

# %% [markdown]
# Between two codes lie codes of intermediate images. Here a digit turns into another one:

# %% mystnb={"image": {"alt": "A row of ten images, in which one digit changes gradually into another", "width": "90%"}}
way = jnp.linspace(0, 1, 10)[:, None]
show(model.draw((1 - way) * codes[0] + way * codes[3])[None], height=1.0)

# %% [markdown]
# ## What to read next
#
# - [Random numbers](../random.md): streams, keys, and how a run is reproduced.
# - [Loops and branches](../control_flow.md): `scan`, `while_loop` and `cond` with models.
# - [A GAN with two optimizers](gan.py): another way to draw images.
# - [Images with ResNet-18](resnet.py): convolutions and batch norms.
