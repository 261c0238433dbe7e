"""A small model that learns a curve, for the examples of runs. As a script, it makes one run, or a sweep.

python examples/runs/curve.py [FILE] [PATH=VALUE ...] [--jobs 4]
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

import declax as dx


@dataclasses.dataclass(kw_only=True)
class Train:
    """One run.

    Attributes:
      hidden: the size of the hidden layer.
      rate: the learning rate.
    """

    hidden: int = dx.field(default=16, ge=1)
    rate: float = dx.field(default=0.01, ge=0)
    steps: int = dx.field(default=200, ge=1)
    seed: int = 0


@dx.jit
def train_step(model: dx.MLP, optimizer: dx.Optimizer[dx.MLP], x: jax.Array, y: jax.Array) -> jax.Array:
    loss, grads = dx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
    optimizer.update(model, grads)
    return loss


def train(run: dx.Run[Train], log: Callable[[int, float], object] = lambda step, loss: None) -> float:
    """Trains, from the last checkpoint of the run if it has one; returns the loss, and writes it to its folder."""
    config = run.config
    model = dx.MLP(1, config.hidden, 1, rngs=dx.Rngs(config.seed))
    optimizer = dx.Optimizer(model, dx.spec(optax.adam, config.rate).build())
    x = jnp.linspace(-1, 1, 64)[:, None]
    y = jnp.sin(3 * x)
    with dx.Checkpoints(run.path / "checkpoints", keep=1, every=50) as checkpoints:
        first = checkpoints.latest or 0
        if first:
            checkpoints.load("latest", into={"model": model, "optimizer": optimizer})
        for step in range(first + 1, config.steps + 1):
            loss = float(train_step(model, optimizer, x, y))
            log(step, loss)
            checkpoints.save(step, {"model": model, "optimizer": optimizer})
    loss = float(jnp.mean((model(x) - y) ** 2))
    (run.path / "result.json").write_text(json.dumps({"loss": loss}), encoding="utf-8")
    return loss


if __name__ == "__main__":
    with dx.cli(Train, runs="runs") as this_run:
        print(f"{this_run.name}: loss {train(this_run):.4f}")
