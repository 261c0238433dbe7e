"""Trains networks on scikit-learn's handwritten digits, and reports how well they read.

    python examples/digits/train.py [FILE] [PATH=VALUE ...]

The files next to this one describe a run each, and `--help` tells what may stand in them. Several values, as in
``model.hidden=32,64 training.seed=0,1``, make as many runs and a table of their results.

The exit status is 0 where each test accuracy is at least what its run requires, 1 where one is less or the
configuration is wrong, and 2 where the command line is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import optax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import declax as dx
from data import Digits, Images, Labels, batches, load_split
from model import Model
from plots import save_report
from settings import Run

HERE = Path(__file__).parent


class Result(NamedTuple):
    """What came of a run.

    Attributes:
      parameters: how many numbers the network has.
      loss: of the last step.
      accuracy: the share of the test digits that is read right.
      seconds: what it took.
    """

    parameters: int
    loss: float
    accuracy: float
    seconds: float


@dx.jit
def train_step(
    model: Model, optimizer: dx.Optimizer[Model], images: jax.Array, labels: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """One step of gradient descent, in place; returns the mean loss and the accuracy before it."""

    def loss_of(model: Model) -> tuple[jax.Array, jax.Array]:
        logits = model(images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), logits

    (loss, logits), grads = dx.value_and_grad(loss_of, has_aux=True)(model)
    optimizer.update(model, grads)
    return loss, (logits.argmax(axis=-1) == labels).mean()


@dx.jit
def predict(model: Model, images: jax.Array) -> jax.Array:
    """The digits that a model in eval mode reads, shape (n,)."""
    return model(images).argmax(axis=-1)


def read(model: Model, images: Images) -> Labels:
    """`predict` without dropout and with the running statistics of batch norm."""
    model.eval()
    digits = np.asarray(predict(model, jax.numpy.asarray(images)), np.int32)
    model.train()
    return digits


def train(model: Model, run: Run, digits: Digits) -> list[float]:
    """Trains in place, with a progress bar; returns the loss of each step."""
    optimizer = dx.Optimizer(model, run.optimizer, wrt=dx.Param)
    batch_size = min(run.training.batch_size, len(digits.labels))
    rng = np.random.default_rng(run.training.seed)
    losses: list[jax.Array] = []
    accuracies: list[jax.Array] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("training", total=run.training.epochs * (len(digits.labels) // batch_size))
        for _ in range(run.training.epochs):
            for batch in batches(digits, batch_size, shift=run.data.shift, rng=rng):
                loss, accuracy = train_step(model, optimizer, *map(jax.numpy.asarray, batch))
                losses.append(loss)
                accuracies.append(accuracy)
                progress.advance(task)
            progress.update(task, description=f"loss {float(losses[-1]):.3f}, accuracy {float(accuracies[-1]):4.0%}")
    return [float(loss) for loss in losses]


def run_once(run: Run, out: Path) -> Result:
    """Builds, trains, reports, and tells what came of it."""
    started = time.perf_counter()
    train_digits, test_digits = load_split(run.data)
    model = run.model.build(rngs=dx.Rngs(run.training.seed))
    print(dx.summary(model))
    losses = train(model, run, train_digits)
    predicted = read(model, test_digits.images)
    save_report(out, losses, test_digits, predicted)
    accuracy = float(np.mean(predicted == test_digits.labels))
    seconds = time.perf_counter() - started
    print(f"test accuracy {accuracy:.2%} on {len(predicted)} digits, in {seconds:.1f} s; see {out}")
    parameters = sum(leaf.size for leaf in jax.tree.leaves(dx.state(model, dx.Param)))
    return Result(parameters, losses[-1], accuracy, seconds)


def results_table(runs: Sequence[dx.CliRun[Run]], results: Sequence[Result]) -> Table:
    """A row for each run: the values that the sweep varies, and what came of them."""
    table = Table("run", "parameters", "last loss", "test accuracy", "seconds", title=f"{len(runs)} runs")
    for run, result in zip(runs, results, strict=True):
        figures = (f"{result.parameters:,}", f"{result.loss:.3f}", f"{result.accuracy:.2%}", f"{result.seconds:.1f}")
        table.add_row(run.name, *figures)
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """Trains all runs; the exit status is 0 if each accuracy suffices."""
    runs = dx.cli(Run, argv, default=HERE / "cnn.toml", sweep=True)
    results = []
    for number, run in enumerate(runs, 1):
        if run.name:
            print(f"run {number} of {len(runs)}: {run.name}")
        out = run.config.out or HERE / "out" / "digits.png"
        results.append(run_once(run.config, out.with_stem(f"{out.stem}-{number}") if run.name else out))
    if len(runs) > 1:
        Console().print(results_table(runs, results))
    failed = 0
    for run, result in zip(runs, results, strict=True):
        required = run.config.training.required_accuracy
        if result.accuracy < required:
            failed = 1
            where = f" ({run.name})" if run.name else ""
            print(f"less than the {required:.2%} that the configuration requires{where}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
