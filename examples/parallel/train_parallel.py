"""Trains a transformer with all devices, by a recipe.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python examples/parallel/train_parallel.py recipe=tensor

The exit status is 0 if the loss falls below what the run requires, 1 if it does not or the configuration is wrong, and
2 if the command line is.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from pydoc_data import topics
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import numpy.typing as npt
import optax

import declax as dx
from recipes import RECIPES, Recipe
from transformer import Transformer

HERE = Path(__file__).parent


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One run.

    Attributes:
      model: the transformer, which is built with the seed.
    """

    recipe: Literal["data", "zero1", "fsdp", "tensor", "both", "sequence", "experts", "pipeline", "slices"] = dx.static(
        default="data", help="how devices share the work; experts needs model.experts"
    )
    model: dx.Spec[Transformer]
    learning_rate: float = dx.static(default=3e-3, ge=0)
    seed: int = dx.static(default=0, help="of the parameters and the windows")
    steps: int = dx.static(default=100, ge=1)
    batch_size: int = dx.static(default=16, ge=1)
    length: int = dx.static(default=64, ge=2, help="characters of a window")
    required_loss: float = dx.static(default=2.6, help="the largest loss of the last step, in nats a character")


class Trained(NamedTuple):
    """What training gives: the model, its optimizer, the loss of each step, and the compiled step."""

    model: Transformer
    optimizer: dx.Optimizer[Transformer]
    losses: list[float]
    program: Any


def windows(run: Run) -> npt.NDArray[np.int32]:
    """Random windows of the reference texts that come with CPython, of shape (steps, n, length + 1)."""
    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int32)
    starts = np.random.default_rng(run.seed).integers(0, len(codes) - run.length, (run.steps, run.batch_size, 1))
    found: npt.NDArray[np.int32] = codes[starts + np.arange(run.length + 1)]
    return found


def loss_of(model: Transformer, tokens: jax.Array) -> jax.Array:
    """The mean loss of predicting each character from those before it, in nats."""
    return optax.softmax_cross_entropy_with_integer_labels(model(tokens[:, :-1]), tokens[:, 1:]).mean()


def train_step(model: Transformer, optimizer: dx.Optimizer[Transformer], tokens: jax.Array) -> jax.Array:
    """One step of gradient descent, in place; returns the loss before it."""
    loss, grads = dx.value_and_grad(loss_of)(model, tokens)
    optimizer.update(model, grads)
    return loss


def train(run: Run, recipe: Recipe) -> Trained:
    """Trains with all devices of all processes; all processes have the same batches."""

    def make() -> tuple[Transformer, dx.Optimizer[Transformer]]:
        model = run.model.build(rngs=dx.Rngs(run.seed))
        return model, dx.Optimizer(model, optax.adam(run.learning_rate), wrt=dx.Param)

    mesh = recipe.mesh()
    rows = jax.NamedSharding(mesh, jax.P(recipe.rules.get("batch")))
    with jax.set_mesh(mesh), dx.sharding_rules(recipe.all_rules()):
        model, optimizer = dx.init_sharded(make, shardings=recipe.shardings)
        places = [jax.tree.map(lambda array: array.sharding, dx.state(part)) for part in (model, optimizer)]
        step = dx.jit(train_step, in_shardings=(*places, rows), donate_argnums=(0, 1))
        batches = [jax.make_array_from_callback(batch.shape, rows, batch.__getitem__) for batch in windows(run)]
        program = step.lower(model, optimizer, batches[0]).compile()
        # Each step ends before the next begins: virtual devices share threads, and two steps at once can lock up.
        losses = [float(program(model, optimizer, batch)) for batch in batches]
    return Trained(model, optimizer, losses, program)


def collectives(program: Any) -> Counter[str]:
    """How many operations of a compiled program move values between devices, by kind."""
    kinds = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
    return Counter(re.findall(rf" ({kinds})(?:-start)?\(", program.as_text()))


def main(argv: Sequence[str] | None = None) -> int:
    run = dx.cli(Run, argv, default=HERE / "parallel.toml")
    if run.recipe == "experts" and run.model.full_arguments["experts"] < 2:
        print("recipe=experts splits experts, of which the model has none: set model.experts=8", file=sys.stderr)
        return 1
    recipe = RECIPES[run.recipe]
    model, _, losses, program = train(run, recipe)
    print(f"{run.recipe}: {jax.device_count()} devices, {dict(recipe.mesh().shape)}, {dict(collectives(program))}")
    if isinstance(mlp := model.blocks[0].mlp, dx.MLP):
        print("the kernel of the first block's map down, (4 width, width):")
        jax.debug.visualize_array_sharding(mlp.down.kernel.value, use_color=False)
    print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} after {run.steps} steps")
    if losses[-1] > run.required_loss:
        print(f"more than the {run.required_loss} that the configuration requires", file=sys.stderr)
    return int(losses[-1] > run.required_loss)


if __name__ == "__main__":
    sys.exit(main())
