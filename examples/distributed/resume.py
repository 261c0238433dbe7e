"""Trains on data of Grain, and resumes from the last checkpoint, also with another number of processes.

    python -m declax.launch --processes 2 --devices 1 examples/distributed/resume.py FOLDER STEPS
    python -m declax.launch --processes 4 --devices 1 examples/distributed/resume.py FOLDER MORE_STEPS

Grain cuts each batch for the processes that there are, and its iterators have one position in all of them. So the
position is one item of the checkpoint, beside the model and the optimizer.
"""

from __future__ import annotations

import sys

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding

import declax as dx

BATCH_SIZE = 8  # of all processes together, whose number divides it
NUMBERS = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)


def batches() -> grain.DatasetIterator:
    """This process's share of each batch of shuffled examples."""
    examples = grain.MapDataset.range(len(NUMBERS)).seed(0).shuffle().repeat().map(lambda i: (i, NUMBERS[i]))
    share = grain.sharding.ShardOptions(jax.process_index(), jax.process_count())
    return iter(grain.experimental.ElasticIterator(examples, BATCH_SIZE, share))


@dx.jit
def train_step(model: dx.Linear, optimizer: dx.Optimizer[dx.Linear], x: jax.Array) -> jax.Array:
    def loss_of(model: dx.Linear) -> jax.Array:
        return ((model(x) - x.sum(-1, keepdims=True)) ** 2).mean()

    loss, grads = dx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


def make() -> tuple[dx.Linear, dx.Optimizer[dx.Linear]]:
    """The model and its optimizer."""
    model = dx.Linear(4, 1, rngs=dx.Rngs(0))
    return model, dx.Optimizer(model, dx.spec(optax.adam, 0.1).build())


def main(folder: str, steps: int) -> None:
    """Trains until so many steps are done, those of earlier runs among them."""
    dx.launch.initialize()
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    rows, whole = NamedSharding(mesh, jax.P("data")), NamedSharding(mesh, jax.P())
    model, optimizer = dx.init_sharded(make, mesh=mesh)
    iterator, done = batches(), 0
    gather = jax.jit(jnp.sort, out_shardings=whole)
    with dx.Checkpoints(folder, engine="orbax") as checkpoints:
        if checkpoints.latest is not None:
            done = checkpoints.latest
            into = {"model": model, "optimizer": optimizer, "position": iterator.get_state()}
            iterator.set_state(checkpoints.load("latest", into=into)["position"])
        for step in range(done + 1, steps + 1):
            index, x = (jax.make_array_from_process_local_data(rows, part) for part in next(iterator))
            loss = float(train_step(model, optimizer, x))
            if jax.process_index() == 0:
                print(f"step {step}: loss {loss:.6f}, examples {gather(index).tolist()}")
            else:
                gather(index)
        items = {"model": model, "optimizer": optimizer, "position": iterator.get_state()}
        checkpoints.save(steps, items)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
