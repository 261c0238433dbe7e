# %% [markdown]
# # A GAN with two optimizers
#
# A generative adversarial network (GAN) consists of two models. The generator makes images from noise, and the
# discriminator tells them from real ones. This tutorial trains one on handwritten digits. You learn how a step trains
# two models with two optimizers, and how batch norms and spectral norms keep statistics. [A first
# model](first_model.py) explains declarations and training steps.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from jaxtyping import Array, Float
from sklearn.datasets import load_digits

import declax as dx

images = (load_digits().data / 16).astype(np.float32)

# %% [markdown]
# ## Two models
#
# The generator maps 16 random numbers to 64 pixels. `BatchNorm` normalizes each feature over the batch, and keeps
# running averages of mean and variance for later. `dx.Sequential` calls layers in order.


# %%
@dx.dataclass
class Generator(dx.Layer):
    noise: int = dx.field(default=16)
    hidden: int = dx.field(default=128)
    layers = dx.Sequential(
        dx.Linear(noise, hidden),
        dx.BatchNorm(hidden, momentum=0.9),
        dx.relu,
        dx.Linear(hidden, hidden),
        dx.BatchNorm(hidden, momentum=0.9),
        dx.relu,
        dx.Linear(hidden, 64),
        dx.sigmoid,
    )

    def __call__(self, noise: Float[Array, "batch {self.noise}"]) -> Float[Array, "batch 64"]:
        return self.layers(noise)


# %% [markdown]
# The discriminator maps an image to one number, the log-odds that the image is real. A discriminator that changes
# abruptly teaches the generator nothing. `dx.SpectralNorm` wraps a layer and divides its kernel by the kernel's largest
# singular value, so the layer never increases a distance.


# %%
@dx.dataclass
class Discriminator(dx.Layer):
    hidden: int = dx.field(default=128)
    first = dx.SpectralNorm(dx.Linear(64, hidden))
    second = dx.SpectralNorm(dx.Linear(hidden, hidden))
    head = dx.Linear(hidden, 1)

    def __call__(self, images: Float[Array, "batch 64"]) -> Float[Array, " batch"]:
        x = dx.leaky_relu(self.first(6 * (images - 0.5)), 0.2)
        return self.head(dx.leaky_relu(self.second(x), 0.2))[:, 0]


rngs = dx.Rngs(0)
generator, discriminator = Generator(rngs=rngs), Discriminator(rngs=rngs)
print(dx.summary({"generator": generator, "discriminator": discriminator}, depth=2))

# %% [markdown]
# The summary distinguishes kinds of Variables. `Param` are trained by gradients. `BatchStat` are statistics that the
# layers update when they are called.
#
# ## Two losses
#
# `softplus(-z)` is the loss of log-odds `z` for a real image, and `softplus(z)` for a generated one. The discriminator
# minimizes both. The generator minimizes the loss of its images being taken for real ones.


# %%
def judge(discriminator: Discriminator, real: jax.Array, generated: jax.Array) -> jax.Array:
    return (dx.softplus(-discriminator(real)) + dx.softplus(discriminator(generated))).mean()


def deceive(generator: Generator, discriminator: Discriminator, noise: jax.Array) -> jax.Array:
    return dx.softplus(-discriminator(generator(noise))).mean()


# %% [markdown]
# ## Two optimizers
#
# `dx.value_and_grad` differentiates by the first argument: `judge` by the discriminator, `deceive` by the generator.
# In `deceive`, the discriminator is an argument too, but it gets no gradient. Each optimizer updates its own model.
#
# `dx.scan` runs all steps of an epoch in one compiled program. It carries the changes of both models, both optimizers
# and the random stream from step to step.


# %%
@dx.jit
def train_epoch(
    generator: Generator,
    discriminator: Discriminator,
    generator_optimizer: dx.Optimizer[Generator],
    discriminator_optimizer: dx.Optimizer[Discriminator],
    rngs: dx.Rngs,
    batches: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    @dx.scan(in_axes=(0,), out_axes=0)
    def steps(real: jax.Array) -> tuple[jax.Array, jax.Array]:
        noise = rngs.normal((len(real), generator.noise))
        judged, grads = dx.value_and_grad(judge)(discriminator, real, generator(noise))
        discriminator_optimizer.update(discriminator, grads)
        deceived, generator_grads = dx.value_and_grad(deceive)(generator, discriminator, noise)
        generator_optimizer.update(generator, generator_grads)
        return judged, deceived

    judged, deceived = steps(batches)
    return judged.mean(), deceived.mean()


# %% [markdown]
# Adam's averages assume that the loss function stays the same. Here each model changes the loss of the other, so `b1=0`
# switches the average of the gradients off. The generator learns at half the rate of the discriminator.

# %%
EPOCHS, BATCH = 120, 64
steps = len(images) // BATCH
generator_optimizer = dx.Optimizer(generator, optax.adam(5e-4, b1=0.0))
discriminator_optimizer = dx.Optimizer(discriminator, optax.adam(1e-3, b1=0.0))
rng = np.random.default_rng(0)
losses = []
for epoch in range(1, EPOCHS + 1):
    batches = jnp.asarray(rng.permutation(images)[: steps * BATCH].reshape(steps, BATCH, 64))
    judged, deceived = train_epoch(
        generator, discriminator, generator_optimizer, discriminator_optimizer, rngs, batches
    )
    losses.append((float(judged), float(deceived)))
    if epoch % 20 == 0:
        print(f"epoch {epoch}: discriminator {judged:.2f}, generator {deceived:.2f}")
assert np.isfinite(losses).all()

# %% [markdown]
# The losses of a GAN do not fall to zero. If the discriminator could not tell the images apart, its loss would be 2
# log(2) = 1.39 and that of the generator log(2) = 0.69.

# %% mystnb={"image": {"alt": "Both losses level off instead of falling to zero", "width": "70%"}}
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.plot(np.array(losses), label=["discriminator", "generator"])
axis.axhline(2 * np.log(2), color="tab:blue", linestyle=":", linewidth=0.8)
axis.axhline(np.log(2), color="tab:orange", linestyle=":", linewidth=0.8)
axis.set(xlabel="epoch", ylabel="loss", ylim=(0, None))
_ = axis.legend()

# %% [markdown]
# ## The images
#
# `generator.eval()` makes the batch norms use their running averages. Then an image depends on its own noise only, and
# not on the rest of the batch.

# %%
generator.eval()
noise = rngs.normal((400, generator.noise))
generated = np.asarray(generator(noise))
assert np.allclose(generator(noise[:1]), generated[:1], atol=1e-4)

# %% mystnb={"image": {"alt": "Thirty-six generated digits in three rows, many of them readable", "width": "90%"}}
axes = plt.subplots(3, 12, figsize=(8, 2.1), layout="constrained")[1]
for axis, image in zip(axes.flat, generated[:36], strict=True):
    axis.imshow(image.reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
    axis.axis("off")

# %% [markdown]
# A simple measure of quality is the distance of an image to the nearest real one. It should be about as small as
# between two real images, and much smaller than for images of independent random pixels.


# %%
def distance_to(real: np.ndarray, others: np.ndarray) -> float:
    return float(np.sqrt(((others[:, None] - real) ** 2).sum(axis=-1).min(axis=1)).mean())


shuffled = rng.permuted(images[:400], axis=0)  # each pixel with its own distribution, independently of the others
distances = {
    "real": distance_to(images[400:], images[:400]),
    "generated": distance_to(images[400:], generated),
    "independent pixels": distance_to(images[400:], shuffled),
}
for kind, distance in distances.items():
    print(f"{kind}: {distance:.2f}")
assert distances["generated"] < 0.85 * distances["independent pixels"]

# %% [markdown]
# ## What to read next
#
# - [Optimizers](../howto/optimizers.md): schedules, several optimizers, weight decay by field.
# - [Layers](../layers.md#normalization): batch norms, spectral norms and others.
# - [EMA](../howto/ema.md): averages of the parameters, which improve images of a GAN.
# - [Images from a VAE](vae.py): a model of images with one loss.
