"""Trains a ResNet-18 on scikit-learn's handwritten digits.

    python examples/resnet/resnet.py [FILE] [PATH=VALUE ...]

The exit status is 0 if the accuracy on the test digits is at least what the run requires, 1 if it is less or the
configuration is wrong, and 2 if the command line is.

He et al., "Deep Residual Learning for Image Recognition", https://arxiv.org/abs/1512.03385.
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
from jaxtyping import Array, Float
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import declax as dx

HERE = Path(__file__).parent


@dx.dataclass
class ConvNorm(dx.Layer):
    """A convolution and a batch norm, whose bias stands for that of the convolution."""

    inputs: int = dx.field()
    outputs: int = dx.field()
    kernel: int = dx.field(default=3)
    stride: int = dx.field(default=1)
    conv = dx.Conv(inputs, outputs, (kernel, kernel), stride, use_bias=False)
    norm = dx.BatchNorm(outputs, momentum=0.9)

    def __call__(self, x: Float[Array, "n h w {self.inputs}"]) -> Float[Array, "n _ _ {self.outputs}"]:
        return self.norm(self.conv(x))


@dx.dataclass
class Residual(dx.Layer):
    """Two convolutions, added to their input; a third one gives the input their shape if it has another."""

    inputs: int = dx.field()
    outputs: int = dx.field()
    stride: int = dx.field(default=1)
    first = ConvNorm(inputs, outputs, stride=stride)
    second = ConvNorm(outputs, outputs)
    shortcut = dx.when((stride != 1) | (inputs != outputs), ConvNorm(inputs, outputs, 1, stride))

    def __call__(self, x: Float[Array, "n h w {self.inputs}"]) -> Float[Array, "n _ _ {self.outputs}"]:
        """Maps (n, height, width, inputs) to (n, height / stride, width / stride, outputs)."""
        y = self.second(dx.relu(self.first(x)))
        return dx.relu(y + (x if self.shortcut is None else self.shortcut(x)))


@dx.dataclass
class ResNet18(dx.Layer):
    """Four stages of two blocks; each stage but the first halves the image and doubles the channels.

    The stem keeps the size of the image, as is usual for small ones.
    """

    width: int = dx.field(default=16, ge=1, help="channels of the first stage")
    classes: int = dx.field(default=10)
    stem = ConvNorm(1, width)
    blocks = dx.Sequential(
        Residual(width, width),
        Residual(width, width),
        Residual(width, 2 * width, 2),
        Residual(2 * width, 2 * width),
        Residual(2 * width, 4 * width, 2),
        Residual(4 * width, 4 * width),
        Residual(4 * width, 8 * width, 2),
        Residual(8 * width, 8 * width),
    )
    head = dx.Linear(8 * width, classes)

    def __call__(self, images: Float[Array, "n h w 1"]) -> Float[Array, "n {self.classes}"]:
        """Maps images (n, height, width, 1) to logits (n, classes)."""
        return self.head(dx.global_avg_pool(self.blocks(dx.relu(self.stem(images)))))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One run.

    Attributes:
      model: the network, which is built with the seed.
    """

    model: dx.Spec[ResNet18]
    seed: int = dx.static(default=0, help="of the parameters and the order of the images")
    epochs: int = dx.static(default=24, ge=1)
    batch_size: int = dx.static(default=64, ge=1)
    learning_rate: float = dx.static(default=2e-3, ge=0, help="at the start; it falls to zero as a cosine does")
    required_accuracy: float = dx.static(default=0.97, ge=0, help="the least share of right test digits")


def loss_of(model: ResNet18, metrics: dx.MultiMetric, images: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean loss of a batch, which also enters the metrics."""
    logits = model(images)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    metrics.update(logits=logits, labels=labels, loss=losses)
    return losses.mean()


@dx.jit
def train_step(
    model: ResNet18, optimizer: dx.Optimizer[ResNet18], metrics: dx.MultiMetric, images: jax.Array, labels: jax.Array
) -> None:
    """One step of gradient descent; changes all three in place."""
    grads = dx.grad(loss_of)(model, metrics, images, labels)
    optimizer.update(model, grads)


evaluate = dx.jit(loss_of)


def shifted(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Images of 8x8 pixels, each moved by up to one pixel in both directions."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (8, 8), axis=(1, 2))[:, :, :, 0]
    down, right = rng.integers(3, size=(2, len(images)))
    moved: np.ndarray = windows[np.arange(len(images)), down, right]
    return moved[..., np.newaxis]


def main(argv: Sequence[str] | None = None) -> int:
    """Trains and tests; says by the exit status whether the accuracy suffices."""
    started = time.perf_counter()
    run = dx.cli(Run, argv, default=HERE / "resnet.toml")
    digits = load_digits()
    images, labels = (digits.images[..., np.newaxis] / 16).astype(np.float32), digits.target.astype(np.int32)
    images, test_images, labels, test_labels = train_test_split(
        images, labels, test_size=0.2, random_state=0, stratify=labels
    )

    model = run.model.build(rngs=dx.Rngs(run.seed))
    evaluated = dx.view(model, use_running_average=True)  # has the Variables of the model
    steps = len(labels) // run.batch_size
    schedule = optax.cosine_decay_schedule(run.learning_rate, run.epochs * steps)
    optimizer = dx.Optimizer(model, optax.adamw(schedule), wrt=dx.Param)
    metrics = dx.MultiMetric(accuracy=dx.metrics.Accuracy(), loss=dx.metrics.Average("loss"))
    print(dx.summary(model, depth=1))

    rng = np.random.default_rng(run.seed)
    for epoch in range(1, run.epochs + 1):
        for chosen in rng.permutation(len(labels))[: steps * run.batch_size].reshape(steps, -1):
            batch = shifted(images[chosen], rng)
            train_step(model, optimizer, metrics, jnp.asarray(batch), jnp.asarray(labels[chosen]))
        print(f"epoch {epoch}: " + ", ".join(f"{name} {value:.3f}" for name, value in metrics.compute().items()))
        metrics.reset()

    evaluate(evaluated, metrics, jnp.asarray(test_images), jnp.asarray(test_labels))
    accuracy = float(metrics.compute()["accuracy"])
    print(f"test accuracy {accuracy:.2%} after {run.epochs * steps} steps, in {time.perf_counter() - started:.1f} s")
    if accuracy < run.required_accuracy:
        print(f"less than the {run.required_accuracy:.2%} that the configuration requires", file=sys.stderr)
    return int(accuracy < run.required_accuracy)


if __name__ == "__main__":
    sys.exit(main())
