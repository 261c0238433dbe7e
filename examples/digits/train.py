"""Trains a small CNN on scikit-learn's handwritten digits, and reports how well it reads.

    python examples/digits/train.py [--config FILE] [--epochs N] [--out FILE]

The exit status is 0 where the test accuracy is at least what the config
requires, 1 where it is less, and 2 where the command line or config is wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import optax
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import declax as dx
from data import Digits, Images, Labels, batches, load_split
from model import CNN
from plots import save_report
from settings import Settings, SettingsError, load_settings

HERE = Path(__file__).parent


@dx.jit
def train_step(
    model: CNN, optimizer: dx.Optimizer[CNN], images: jax.Array, labels: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """One step of gradient descent, in place; returns the mean loss and the accuracy before it."""

    def loss_of(model: CNN) -> tuple[jax.Array, jax.Array]:
        logits = model(images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), logits

    (loss, logits), grads = dx.value_and_grad(loss_of, has_aux=True)(model)
    optimizer.update(model, grads)
    return loss, (logits.argmax(axis=-1) == labels).mean()


@dx.jit
def predict(model: CNN, images: jax.Array) -> jax.Array:
    """The digits that a model in eval mode reads, shape (n,)."""
    return model(images).argmax(axis=-1)


def read(model: CNN, images: Images) -> Labels:
    """`predict` without dropout and with the running statistics of batch norm."""
    model.eval()
    digits = np.asarray(predict(model, jax.numpy.asarray(images)), np.int32)
    model.train()
    return digits


def make_optimizer(model: CNN, settings: Settings, steps_per_epoch: int) -> dx.Optimizer[CNN]:
    """AdamW, warmed up for one epoch, then decayed to nothing along a cosine."""
    training = settings.training
    schedule = optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=training.learning_rate,
        warmup_steps=steps_per_epoch,
        decay_steps=max(training.epochs, 2) * steps_per_epoch,
    )
    return dx.Optimizer(model, optax.adamw(schedule, weight_decay=training.weight_decay), wrt=dx.Param)


def train(model: CNN, settings: Settings, digits: Digits) -> list[float]:
    """Trains in place, with a progress bar; returns the loss of each step."""
    training = settings.training
    batch_size = min(training.batch_size, len(digits.labels))
    steps_per_epoch = len(digits.labels) // batch_size
    optimizer = make_optimizer(model, settings, steps_per_epoch)
    rng = np.random.default_rng(training.seed)
    losses: list[jax.Array] = []
    accuracies: list[jax.Array] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("training", total=training.epochs * steps_per_epoch)
        for _ in range(training.epochs):
            for batch in batches(digits, batch_size, shift=settings.data.shift, rng=rng):
                loss, accuracy = train_step(model, optimizer, *map(jax.numpy.asarray, batch))
                losses.append(loss)
                accuracies.append(accuracy)
                progress.advance(task)
            progress.update(task, description=f"loss {float(losses[-1]):.3f}, accuracy {float(accuracies[-1]):4.0%}")
    return [float(loss) for loss in losses]


def parse_arguments(argv: Sequence[str] | None) -> tuple[Settings, Path]:
    """The settings of this run, and where its report goes."""
    parser = argparse.ArgumentParser(description="Train a small CNN on handwritten digits.")
    parser.add_argument("--config", type=Path, default=HERE / "digits.toml", help="a TOML file of hyperparameters")
    parser.add_argument("--epochs", type=int, help="train for so many epochs, whatever the config says")
    parser.add_argument("--out", type=Path, default=HERE / "out" / "digits.png", help="where the report goes")
    arguments = parser.parse_args(argv)
    try:
        settings = load_settings(arguments.config)
        if arguments.epochs is not None:
            training = dataclasses.replace(settings.training, epochs=arguments.epochs)
            settings = dataclasses.replace(settings, training=training)
    except SettingsError as error:
        parser.error(str(error))
    return settings, arguments.out


def main(argv: Sequence[str] | None = None) -> int:
    """Trains, reports, and says by the exit status whether the accuracy suffices."""
    settings, out = parse_arguments(argv)
    started = time.perf_counter()
    train_digits, test_digits = load_split(settings.data)
    model = CNN(**dataclasses.asdict(settings.model), rngs=dx.Rngs(settings.training.seed))
    print(dx.summary(model))
    losses = train(model, settings, train_digits)
    predicted = read(model, test_digits.images)
    save_report(out, losses, test_digits, predicted)
    accuracy = float(np.mean(predicted == test_digits.labels))
    seconds = time.perf_counter() - started
    print(f"test accuracy {accuracy:.2%} on {len(predicted)} digits, in {seconds:.1f} s; see {out}")
    if accuracy < settings.training.required_accuracy:
        print(f"less than the {settings.training.required_accuracy:.2%} that the config requires", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
