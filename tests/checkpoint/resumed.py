"""The program of `test_resumes.py`: trains fully sharded on all devices, from the last checkpoint on.

    resumed.py FOLDER STEPS

Saves after so many steps, those of earlier runs among them; the first process prints the losses of this run.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding

import declax as dx

BATCHES = np.random.default_rng(0).normal(size=(6, 8, 16)).astype(np.float32)


def make() -> dict[str, Any]:
    model = dx.MLP(16, 32, rngs=dx.Rngs(0))
    return {"model": model, "optimizer": dx.Optimizer(model, dx.spec(optax.adam, 1e-2).build())}


@dx.jit
def step(run: dict[str, Any], x: jax.Array) -> jax.Array:
    loss, grads = dx.value_and_grad(lambda model: jnp.mean((model(x) - x) ** 2))(run["model"])
    run["optimizer"].update(run["model"], grads)
    return loss


def main(folder: Path, steps: int) -> list[float]:
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    rows, by_size = NamedSharding(mesh, jax.P("data")), functools.partial(dx.fsdp, min_size=64)
    saved = sorted(map(int, (path.name for path in folder.glob("*"))))
    if saved:
        run = dict(dx.load(folder / str(saved[-1]), mesh=mesh, shardings=by_size, engine="orbax"))
    else:
        run = dx.init_sharded(make, mesh=mesh, shardings=by_size)
    kernel = run["model"].up.kernel.value
    assert kernel.addressable_data(0).size * jax.device_count() == kernel.size
    batches = BATCHES[saved[-1] if saved else 0 : steps]
    parts = [jax.make_array_from_callback(batch.shape, rows, batch.__getitem__) for batch in batches]
    losses = [float(step(run, x)) for x in parts]
    dx.save(folder / str(steps), run, engine="orbax")
    return losses


if __name__ == "__main__":
    dx.launch.initialize()
    found = main(Path(sys.argv[1]), int(sys.argv[2]))
    if jax.process_index() == 0:
        print("losses", *found)
