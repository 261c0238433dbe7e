"""Trains an ensemble of classifiers at once, by `dx.vmap`, on scikit-learn's handwritten digits.

    python examples/ensemble/ensemble.py [FILE] [PATH=VALUE ...]

The exit status is 0 if the loss of the ensemble on the test digits is at most what the run requires, 1 if it is more
or the configuration is wrong, and 2 if the command line is.

Lakshminarayanan et al., "Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles",
https://arxiv.org/abs/1612.01474.
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
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import declax as dx

HERE = Path(__file__).parent


@dx.dataclass
class Classifier(dx.Layer):
    """A member: two hidden layers over the pixels."""

    pixels: int = dx.field(default=64)
    hidden: int = dx.field(default=64, ge=1, help="size of both hidden layers")
    dropout: float = dx.field(default=0.2, ge=0, le=1, help="the share that is dropped after each of them")
    classes: int = dx.field(default=10)
    first = dx.Linear(pixels, hidden)
    second = dx.Linear(hidden, hidden)
    drop = dx.Dropout(dropout)
    head = dx.Linear(hidden, classes)

    def __call__(self, images: Float[Array, "n {self.pixels}"]) -> Float[Array, "n {self.classes}"]:
        """Maps images (n, pixels) to logits (n, classes)."""
        x = self.drop(dx.relu(self.first(images)))
        return self.head(self.drop(dx.relu(self.second(x))))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One run.

    Attributes:
      model: a member of the ensemble.
    """

    model: dx.Spec[Classifier]
    members: int = dx.static(default=10, ge=1)
    seed: int = dx.static(default=0, help="of the parameters, the dropout and the orders of the images")
    epochs: int = dx.static(default=40, ge=1)
    batch_size: int = dx.static(default=64, ge=1)
    learning_rate: float = dx.static(default=3e-3, ge=0)
    required_loss: float = dx.static(default=0.085, help="the largest loss of the ensemble on test digits, in nats")


def make(run: Run) -> tuple[Classifier, dx.Optimizer[Classifier]]:
    """All members and their optimizers, each as one object whose arrays have a first axis for the members."""

    @dx.vmap
    def make_one(rngs: dx.Rngs) -> tuple[Classifier, dx.Optimizer[Classifier]]:
        model = run.model.build(rngs=rngs)
        return model, dx.Optimizer(model, optax.adam(run.learning_rate), wrt=dx.Param)

    return make_one(dx.Rngs(run.seed).split(run.members))


def loss_of(model: Classifier, images: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()


@dx.jit
@dx.vmap(in_axes=(0, 0, None, None, 0))
def train_epoch(
    model: Classifier, optimizer: dx.Optimizer[Classifier], images: jax.Array, labels: jax.Array, batches: jax.Array
) -> jax.Array:
    """Trains a member with the images at the positions in batches (steps, n), in place; returns the mean loss."""

    @dx.scan(in_axes=(0,), out_axes=0)
    def steps(chosen: jax.Array) -> jax.Array:
        loss, grads = dx.value_and_grad(loss_of)(model, images[chosen], labels[chosen])
        optimizer.update(model, grads)
        return loss

    return steps(batches).mean()


@dx.jit
@dx.vmap(in_axes=(0, None))
def log_probabilities(model: Classifier, images: jax.Array) -> jax.Array:
    """What a member thinks of each class, shape (n, classes)."""
    return dx.log_softmax(model(images))


def score(log_probabilities: jax.Array, labels: npt.NDArray[np.int32]) -> tuple[float, float]:
    """The accuracy and the mean loss of predictions (..., n, classes)."""
    accuracy = (log_probabilities.argmax(axis=-1) == labels).mean()
    return float(accuracy), -float(log_probabilities[..., np.arange(len(labels)), labels].mean())


def main(argv: Sequence[str] | None = None) -> int:
    """Trains and tests; says by the exit status whether the loss of the ensemble suffices."""
    started = time.perf_counter()
    run = dx.cli(Run, argv, default=HERE / "ensemble.toml")
    digits = load_digits()
    images, test_images, labels, test_labels = train_test_split(
        (digits.data / 16).astype(np.float32),
        digits.target.astype(np.int32),
        test_size=0.2,
        random_state=0,
        stratify=digits.target,
    )
    members, optimizers = make(run)
    print(dx.summary(members))

    rng = np.random.default_rng(run.seed)
    steps = len(labels) // run.batch_size
    for epoch in range(1, run.epochs + 1):
        orders = np.stack([rng.permutation(len(labels)) for _ in range(run.members)])
        batches = orders[:, : steps * run.batch_size].reshape(run.members, steps, run.batch_size)
        losses = train_epoch(members, optimizers, jnp.asarray(images), jnp.asarray(labels), jnp.asarray(batches))
        if epoch % 10 == 0:
            print(f"epoch {epoch}: loss {losses.min():.3f} to {losses.max():.3f}")

    members.eval()
    each = log_probabilities(members, jnp.asarray(test_images))
    together = dx.logsumexp(each, axis=0) - jnp.log(run.members)  # the mean of the probabilities
    accuracy, loss = score(each, test_labels)
    print(f"a member: accuracy {accuracy:.2%}, loss {loss:.3f} on average")
    accuracy, loss = score(together, test_labels)
    seconds = time.perf_counter() - started
    print(f"together: accuracy {accuracy:.2%}, loss {loss:.3f} after {run.epochs * steps} steps, in {seconds:.1f} s")
    if loss > run.required_loss:
        print(f"more than the {run.required_loss} that the configuration requires", file=sys.stderr)
    return int(loss > run.required_loss)


if __name__ == "__main__":
    sys.exit(main())
