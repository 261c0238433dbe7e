"""Trains a generative adversarial network on scikit-learn's handwritten digits: two models, two optimizers.

    python examples/gan/gan.py [FILE] [PATH=VALUE ...]

The exit status is 0 if the nearest neighbour tells generated digits from held-out ones at most as often as the run
allows, 1 if it does more often or the configuration is wrong, and 2 if the command line is.

Goodfellow et al., "Generative Adversarial Networks", https://arxiv.org/abs/1406.2661; Miyato et al., "Spectral
Normalization for Generative Adversarial Networks", https://arxiv.org/abs/1802.05957.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from jaxtyping import Array, Float
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import declax as dx

HERE = Path(__file__).parent
Images = npt.NDArray[np.float32]


@dx.dataclass
class Generator(dx.Layer):
    """Makes images of normal noise."""

    noise: int = dx.field(default=16, ge=1, help="how many random numbers make an image")
    hidden: int = dx.field(default=256, ge=1, help="size of both hidden layers")
    pixels: int = dx.field(default=64)
    layers = dx.Sequential(
        dx.Linear(noise, hidden),
        dx.BatchNorm(hidden, momentum=0.9),
        dx.relu,
        dx.Linear(hidden, hidden),
        dx.BatchNorm(hidden, momentum=0.9),
        dx.relu,
        dx.Linear(hidden, pixels),
    )

    def __call__(self, noise: Float[Array, "n {self.noise}"]) -> Float[Array, "n {self.pixels}"]:
        """Maps noise (n, noise) to images (n, pixels), with ink from 0 to 1."""
        return dx.sigmoid(self.layers(noise))


@dx.dataclass
class Discriminator(dx.Layer):
    """Tells real images from generated ones. Its hidden layers never increase the distance between two images."""

    pixels: int = dx.field(default=64)
    hidden: int = dx.field(default=256, ge=1, help="size of both hidden layers")
    contrast: float = dx.field(default=6.0, ge=0, help="the factor of distances before the first layer")
    first = dx.SpectralNorm(dx.Linear(pixels, hidden))
    second = dx.SpectralNorm(dx.Linear(hidden, hidden))
    head = dx.Linear(hidden, 1)

    def __call__(self, images: Float[Array, "n {self.pixels}"]) -> Float[Array, " n"]:
        """Maps images (n, pixels) to the log-odds (n,) that they are real."""
        x = dx.leaky_relu(self.first(self.contrast * (images - 0.5)), 0.2)
        x = dx.leaky_relu(self.second(x), 0.2)
        return self.head(x)[:, 0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One run.

    Attributes:
      generator: makes images.
      discriminator: judges them.
      out: the picture that is written; by default out/gan.png next to the script.
    """

    generator: dx.Spec[Generator]
    discriminator: dx.Spec[Discriminator]
    seed: int = dx.static(default=0, help="of the parameters, the order of the images and the noise")
    epochs: int = dx.static(default=150, ge=1)
    batch_size: int = dx.static(default=64, ge=1)
    generator_rate: float = dx.static(default=5e-4, ge=0, help="the learning rate of the generator")
    discriminator_rate: float = dx.static(default=1e-3, ge=0, help="the learning rate of the discriminator")
    allowed_accuracy: float = dx.static(
        default=0.78, ge=0, help="how often the nearest neighbour may tell generated digits from held-out ones"
    )
    out: Path | None = None


def judge(discriminator: Discriminator, real: jax.Array, generated: jax.Array) -> jax.Array:
    """The loss of the discriminator: the mean cross entropy of its judgements."""
    return (dx.softplus(-discriminator(real)) + dx.softplus(discriminator(generated))).mean()


def deceive(generator: Generator, discriminator: Discriminator, noise: jax.Array) -> jax.Array:
    """The loss of the generator, which is small if the discriminator takes its images for real ones."""
    return dx.softplus(-discriminator(generator(noise))).mean()


@dx.jit
def train_epoch(
    generator: Generator,
    discriminator: Discriminator,
    generator_optimizer: dx.Optimizer[Generator],
    discriminator_optimizer: dx.Optimizer[Discriminator],
    rngs: dx.Rngs,
    batches: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """A step of each model for each of the batches (steps, n, pixels), in place; returns both losses of each step."""

    @dx.scan(in_axes=(0,), out_axes=0)
    def steps(real: jax.Array) -> tuple[jax.Array, jax.Array]:
        noise = rngs.normal((len(real), generator.noise))
        judged, grads = dx.value_and_grad(judge)(discriminator, real, generator(noise))
        discriminator_optimizer.update(discriminator, grads)
        deceived, generator_grads = dx.value_and_grad(deceive)(generator, discriminator, noise)
        generator_optimizer.update(generator, generator_grads)
        return judged, deceived

    return steps(batches)


def nearest_neighbour_accuracy(real: Images, generated: Images) -> float:
    """How often the nearest neighbour of an image is of its own kind: 0.5 if both kinds are alike, 1 if they differ.

    Lopez-Paz and Oquab, "Revisiting Classifier Two-Sample Tests", https://arxiv.org/abs/1610.06545.
    """
    images = np.concatenate([real, generated])
    is_real = np.arange(len(images)) < len(real)
    distances = ((images[:, None] - images) ** 2).sum(axis=-1)
    np.fill_diagonal(distances, np.inf)
    return float(np.mean(is_real[distances.argmin(axis=1)] == is_real))


def save_picture(path: Path, images: Images) -> None:
    """Writes a PNG with 36 images."""
    figure = Figure(figsize=(6, 1.6), layout="constrained")
    for image, axes in zip(images[:36], figure.subplots(3, 12).flat, strict=True):
        axes.imshow(image.reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
        axes.set_axis_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def main(argv: Sequence[str] | None = None) -> int:
    """Trains, draws and tests; says by the exit status whether the test suffices."""
    started = time.perf_counter()
    run = dx.cli(Run, argv, default=HERE / "gan.toml")
    digits = load_digits()
    images, held_out, _, _ = train_test_split(
        (digits.data / 16).astype(np.float32), digits.target, test_size=0.2, random_state=0, stratify=digits.target
    )

    rngs = dx.Rngs(run.seed)
    generator, discriminator = run.generator.build(rngs=rngs), run.discriminator.build(rngs=rngs)
    generator_optimizer = dx.Optimizer(generator, optax.adam(run.generator_rate, b1=0.0), wrt=dx.Param)
    discriminator_optimizer = dx.Optimizer(discriminator, optax.adam(run.discriminator_rate, b1=0.0), wrt=dx.Param)
    print(dx.summary({"generator": generator, "discriminator": discriminator}))

    rng = np.random.default_rng(run.seed)
    steps = len(images) // run.batch_size
    for epoch in range(1, run.epochs + 1):
        shuffled = jnp.asarray(rng.permutation(images)[: steps * run.batch_size].reshape(steps, run.batch_size, -1))
        judged, deceived = train_epoch(
            generator, discriminator, generator_optimizer, discriminator_optimizer, rngs, shuffled
        )
        if epoch % 20 == 0:
            print(
                f"epoch {epoch}: loss {judged.mean():.3f} of the discriminator, {deceived.mean():.3f} of the generator"
            )

    generator.eval()
    generated = np.asarray(generator(rngs.normal((len(held_out), generator.noise))))
    out = run.out or HERE / "out" / "gan.png"
    save_picture(out, generated)
    accuracy = nearest_neighbour_accuracy(held_out, generated)
    seconds = time.perf_counter() - started
    print(f"the nearest neighbour tells {accuracy:.1%} after {run.epochs * steps} steps, in {seconds:.1f} s; see {out}")
    if accuracy > run.allowed_accuracy:
        print(f"more than the {run.allowed_accuracy:.1%} that the configuration allows", file=sys.stderr)
    return int(accuracy > run.allowed_accuracy)


if __name__ == "__main__":
    sys.exit(main())
