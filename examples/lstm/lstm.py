"""Trains a bidirectional LSTM to tell the package of the standard library that a line of source comes from.

    python examples/lstm/lstm.py [FILE] [PATH=VALUE ...]

The exit status is 0 if the accuracy on held-out lines is at least what the run requires, 1 if it is less or the
configuration is wrong, and 2 if the command line is.

Schuster and Paliwal, "Bidirectional Recurrent Neural Networks", https://doi.org/10.1109/78.650093.
"""

from __future__ import annotations

import asyncio
import dataclasses
import email
import multiprocessing
import sys
import time
import unittest
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

import declax as dx

HERE = Path(__file__).parent
PACKAGES = (asyncio, email, multiprocessing, unittest)
SHORTEST, LONGEST = 16, 64
"""Shorter lines are left out, and the rest of longer ones."""


@dx.dataclass
class LineClassifier(dx.Layer):
    """Reads a line in both directions, keeps the largest value of each feature, and scores the classes."""

    classes: int = dx.field(default=len(PACKAGES))
    characters: int = dx.field(default=128, ge=1, help="how many different characters there are")
    width: int = dx.field(default=48, ge=1, help="features of a character, and of each direction")
    dropout: float = dx.field(default=0.2, ge=0, le=1, help="the share that is dropped before the last layer")
    embed = dx.Embed(characters, width)
    lstm = dx.Bidirectional(dx.RNN(dx.OptimizedLSTMCell(width, width)), dx.RNN(dx.OptimizedLSTMCell(width, width)))
    drop = dx.Dropout(dropout)
    head = dx.Linear(2 * width, classes)

    def __call__(self, tokens: Int[Array, "n length"], lengths: Int[Array, " n"]) -> Float[Array, "n {self.classes}"]:
        """Maps tokens (n, length), of which the first lengths (n,) count, to logits (n, classes)."""
        features = self.lstm(self.embed(tokens), seq_lengths=lengths)
        is_text = jnp.arange(tokens.shape[1]) < lengths[:, None]
        return self.head(self.drop(features.max(axis=1, where=is_text[..., None], initial=-1.0)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One run.

    Attributes:
      model: the classifier, which is built with the seed.
    """

    model: dx.Spec[LineClassifier]
    seed: int = dx.static(default=0, help="of the parameters, the dropout and the order of the lines")
    steps: int = dx.static(default=600, ge=1)
    batch_size: int = dx.static(default=64, ge=1)
    learning_rate: float = dx.static(default=2e-2, ge=0, help="at the start; it falls to zero as a cosine does")
    required_accuracy: float = dx.static(default=0.75, ge=0, help="the least share of right held-out lines")


class Lines(NamedTuple):
    """Lines of source.

    Attributes:
      tokens: ASCII codes, shape (n, LONGEST), zero after the line.
      lengths: of the lines, shape (n,).
      labels: positions in PACKAGES, shape (n,).
    """

    tokens: jax.Array
    lengths: jax.Array
    labels: jax.Array


def lines_of(package: ModuleType) -> set[str]:
    """The ASCII lines of the modules of a package, without indentation, cut to LONGEST."""
    sources = [file.read_text("ascii", "ignore") for file in Path(package.__path__[0]).glob("*.py")]
    lines = {line.strip()[:LONGEST] for source in sources for line in source.splitlines()}
    return {line for line in lines if len(line) >= SHORTEST}


def encode(texts: Sequence[str], labels: Sequence[int]) -> Lines:
    tokens = np.stack([np.frombuffer(text.ljust(LONGEST, "\0").encode("ascii"), np.uint8) for text in texts])
    return Lines(jnp.asarray(tokens, jnp.int32), jnp.asarray([len(text) for text in texts]), jnp.asarray(labels))


def load_lines(rng: np.random.Generator) -> tuple[Lines, Lines, Sequence[str]]:
    """Lines for training, a tenth that is held out, and the text of the latter.

    A line that occurs again counts once, and one that several packages have does not count: no held-out line is known.
    """
    found = [lines_of(package) for package in PACKAGES]
    packages_of = Counter(line for lines in found for line in lines)
    kept = [(line, label) for label, lines in enumerate(found) for line in sorted(lines) if packages_of[line] == 1]
    texts, labels = zip(*(kept[i] for i in rng.permutation(len(kept))), strict=True)
    border = len(kept) // 10
    return encode(texts[border:], labels[border:]), encode(texts[:border], labels[:border]), texts[:border]


@dx.jit
def train_step(model: LineClassifier, optimizer: dx.Optimizer[LineClassifier], lines: Lines) -> jax.Array:
    """One step of gradient descent, in place; returns the loss before it."""

    def loss_of(model: LineClassifier) -> jax.Array:
        logits = model(lines.tokens, lines.lengths)
        return optax.softmax_cross_entropy_with_integer_labels(logits, lines.labels).mean()

    loss, grads = dx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


@dx.jit
def predict(model: LineClassifier, lines: Lines) -> jax.Array:
    """The most likely classes, shape (n,)."""
    return model(lines.tokens, lines.lengths).argmax(axis=-1)


def main(argv: Sequence[str] | None = None) -> int:
    """Trains and tests; says by the exit status whether the accuracy suffices."""
    started = time.perf_counter()
    run = dx.cli(Run, argv, default=HERE / "lstm.toml")
    rng = np.random.default_rng(run.seed)
    lines, held_out, texts = load_lines(rng)
    model = run.model.build(rngs=dx.Rngs(run.seed))
    schedule = optax.cosine_decay_schedule(run.learning_rate, run.steps)
    optimizer = dx.Optimizer(model, optax.adam(schedule), wrt=dx.Param)
    print(dx.summary(model))

    for step in range(1, run.steps + 1):
        chosen = rng.integers(0, len(lines.labels), run.batch_size)
        loss = train_step(model, optimizer, Lines(*(values[chosen] for values in lines)))
        if step % 100 == 0:
            print(f"step {step}: loss {loss:.3f}")

    model.eval()
    labels, predicted = np.asarray(held_out.labels), np.asarray(predict(model, held_out))
    for text, label, answer in zip(texts[:8], labels, predicted, strict=False):
        mistake = "" if label == answer else f" taken for {PACKAGES[answer].__name__}"
        print(f"{PACKAGES[label].__name__:>15}: {text}{mistake}")
    accuracy = float(np.mean(predicted == labels))
    most_common = np.bincount(labels).max() / len(texts)
    print(f"accuracy {accuracy:.2%} on {len(texts)} held-out lines; the most common package has {most_common:.2%}")
    print(f"{run.steps} steps, {time.perf_counter() - started:.1f} s")
    if accuracy < run.required_accuracy:
        print(f"less than the {run.required_accuracy:.2%} that the configuration requires", file=sys.stderr)
    return int(accuracy < run.required_accuracy)


if __name__ == "__main__":
    sys.exit(main())
