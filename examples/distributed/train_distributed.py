"""One of the processes that train a GPT together: each has its share of each batch, all have the same model.

    python examples/distributed/train_distributed.py [FILE] [PATH=VALUE ...]

A launcher starts this program once for each process; alone, it trains with one process. The losses are printed as
JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding

import declax as dx
from distributed_run import Run
from gpt import GPT
from train_gpt import Tokens, load_topics, train_step

HERE = Path(__file__).parent


def own_windows(text: Tokens, run: Run, rng: np.random.Generator) -> Tokens:
    """This process's share of a batch of random windows. All processes choose the same windows, and cut their own."""
    starts = rng.integers(0, len(text) - run.length, run.batch_size)
    own = np.split(starts, jax.process_count())[jax.process_index()]
    share: Tokens = text[own[:, None] + np.arange(run.length + 1)]
    return share


def train(run: Run) -> list[float]:
    """Trains with all devices of all processes; returns the loss of each step."""

    def make() -> tuple[GPT, dx.Optimizer[GPT]]:
        model = run.model.build(rngs=dx.Rngs(run.seed))
        return model, dx.Optimizer(model, optax.adam(run.learning_rate), wrt=dx.Param)

    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    model, optimizer = dx.init_sharded(make, mesh=mesh)
    batches = NamedSharding(mesh, jax.P("data"))
    text, _ = load_topics()
    rng = np.random.default_rng(run.seed)
    losses = []
    for _ in range(run.steps):
        tokens = jax.make_array_from_process_local_data(batches, own_windows(text, run, rng))
        # Each step ends before the next begins: virtual devices share threads, and two steps at once can lock up.
        losses.append(float(train_step(model, optimizer, tokens)))
    return losses


def main(argv: Sequence[str] | None = None) -> int:
    run = dx.cli(Run, argv, default=HERE / "distributed.toml")
    dx.launch.initialize()
    losses = train(run)
    print(json.dumps({"devices": jax.device_count(), "losses": losses}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
