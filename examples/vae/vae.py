"""Trains a variational autoencoder on scikit-learn's handwritten digits, and draws digits from it.

    python examples/vae/vae.py [FILE] [PATH=VALUE ...]

The exit status is 0 if the bound on held-out images is at most what the run requires, 1 if it is more or the
configuration is wrong, and 2 if the command line is.

Kingma and Welling, "Auto-Encoding Variational Bayes", https://arxiv.org/abs/1312.6114.
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
import optax
from jaxtyping import Array, Float, Int
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import declax as dx

HERE = Path(__file__).parent
LEVELS = 17
"""A pixel is the number of dark points among 16."""


def ink(images: jax.Array) -> jax.Array:
    """Pixels from 0 to 1."""
    return images.astype(jnp.float32) / (LEVELS - 1)


@dx.dataclass
class VAE(dx.Layer):
    """Independent normal numbers, the code, for each image, and independent levels of its pixels for each code."""

    pixels: int = dx.field(default=64)
    hidden: int = dx.field(default=128, ge=1, help="features between the pixels and the code, in both directions")
    code: int = dx.field(default=8, ge=1, help="how many numbers stand for an image")
    dropout: float = dx.field(default=0.2, ge=0, le=1, help="the share of these features that is dropped")
    encoder = dx.MLP(pixels, hidden, 2 * code, dropout_rate=dropout)
    decoder = dx.MLP(code, hidden, LEVELS * pixels, dropout_rate=dropout)

    def encode(
        self, images: Int[Array, "n {self.pixels}"]
    ) -> tuple[Float[Array, "n {self.code}"], Float[Array, "n {self.code}"]]:
        """The mean and the logarithm of the variance of the codes of images (n, pixels), each of shape (n, code)."""
        mean, log_variance = jnp.split(self.encoder(ink(images) - 0.5), 2, axis=-1)
        return mean, log_variance

    def decode(self, codes: Float[Array, "n {self.code}"]) -> Float[Array, "n {self.pixels} _"]:
        """The logits of the levels of each pixel, of shape (n, pixels, LEVELS)."""
        return self.decoder(codes).reshape(codes.shape[0], self.pixels, LEVELS)

    def draw(self, codes: Float[Array, "n {self.code}"]) -> Float[Array, "n {self.pixels}"]:
        """The mean images for codes, of shape (n, pixels), with ink from 0 to 1."""
        return dx.softmax(self.decode(codes)) @ jnp.linspace(0, 1, LEVELS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One run.

    Attributes:
      model: the model, which is built with the seed.
      out: the picture that is written; by default out/vae.png next to the script.
    """

    model: dx.Spec[VAE]
    seed: int = dx.static(default=0, help="of the parameters, the order of the images and the noise")
    epochs: int = dx.static(default=60, ge=1)
    batch_size: int = dx.static(default=64, ge=1)
    learning_rate: float = dx.static(default=4e-3, ge=0, help="at the start; it falls to zero as a cosine does")
    required_bound: float = dx.static(default=97.0, help="the largest bound on held-out images, in nats an image")
    out: Path | None = None


def negative_elbo(model: VAE, rngs: dx.Rngs, images: jax.Array) -> jax.Array:
    """An upper bound of the mean of -log p(image), in nats, with one code drawn for each image."""
    mean, log_variance = model.encode(images)
    codes = mean + jnp.exp(log_variance / 2) * rngs.normal(mean.shape)
    misfit = optax.softmax_cross_entropy_with_integer_labels(model.decode(codes), images).sum(axis=-1)
    divergence = (mean**2 + jnp.exp(log_variance) - log_variance - 1).sum(axis=-1) / 2
    return (misfit + divergence).mean()


@dx.jit
def train_epoch(model: VAE, optimizer: dx.Optimizer[VAE], rngs: dx.Rngs, batches: jax.Array) -> jax.Array:
    """A step of gradient descent for each of the batches (steps, n, pixels), in place; returns their mean loss."""

    @dx.scan(in_axes=(0,), out_axes=0)
    def steps(images: jax.Array) -> jax.Array:
        loss, grads = dx.value_and_grad(negative_elbo)(model, rngs, images)
        optimizer.update(model, grads)
        return loss

    return steps(batches).mean()


evaluate = dx.jit(negative_elbo)


def save_picture(path: Path, model: VAE, rngs: dx.Rngs, images: jax.Array) -> None:
    """Writes a PNG: a row of held-out images, a row of their means as the model has them, and rows of samples."""
    rebuilt, drawn = model.draw(model.encode(images[:12])[0]), model.draw(rngs.normal((48, model.code)))
    rows = jnp.concatenate([ink(images[:12]), rebuilt, drawn])
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    for image, axes in zip(np.asarray(rows).reshape(-1, 8, 8), figure.subplots(6, 12).flat, strict=True):
        axes.imshow(image, cmap="gray_r", vmin=0, vmax=1)
        axes.set_axis_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def main(argv: Sequence[str] | None = None) -> int:
    """Trains, tests and draws; says by the exit status whether the bound suffices."""
    started = time.perf_counter()
    run = dx.cli(Run, argv, default=HERE / "vae.toml")
    digits = load_digits()
    images, test_images, _, _ = train_test_split(
        digits.data.astype(np.int32), digits.target, test_size=0.2, random_state=0, stratify=digits.target
    )

    rngs = dx.Rngs(run.seed)
    model = run.model.build(rngs=rngs)
    steps = len(images) // run.batch_size
    schedule = optax.cosine_decay_schedule(run.learning_rate, run.epochs * steps)
    optimizer = dx.Optimizer(model, optax.adam(schedule), wrt=dx.Param)
    print(dx.summary(model))

    rng = np.random.default_rng(run.seed)
    for epoch in range(1, run.epochs + 1):
        shuffled = rng.permutation(images)[: steps * run.batch_size].reshape(steps, run.batch_size, -1)
        loss = train_epoch(model, optimizer, rngs, jnp.asarray(shuffled))
        if epoch % 10 == 0:
            print(f"epoch {epoch}: {loss:.2f} nats an image")

    model.eval()
    bound = float(evaluate(model, rngs, jnp.asarray(test_images)))
    out = run.out or HERE / "out" / "vae.png"
    save_picture(out, model, rngs, jnp.asarray(test_images))
    seconds = time.perf_counter() - started
    print(f"held-out images: {bound:.2f} nats an image after {run.epochs * steps} steps, in {seconds:.1f} s; see {out}")
    if bound > run.required_bound:
        print(f"more than the {run.required_bound} that the configuration requires", file=sys.stderr)
    return int(bound > run.required_bound)


if __name__ == "__main__":
    sys.exit(main())
