"""Trains by recipes of examples/parallel, and writes what came out: started by test_example_parallel.py.

    train_recipes.py OUT RECIPE...

The first process writes to OUT, as pickled values by recipe.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import declax as dx

sys.path.append(str(Path(__file__).parents[1] / "examples" / "parallel"))
from recipes import RECIPES, Recipe
from train_parallel import Run, Trained, collectives, train

CONFIG = {"steps": 4, "batch_size": 8, "length": 32}


def run_of(name: str) -> Run:
    """The run of a recipe; that of experts has eight in each block."""
    model = {"width": 64, "heads": 8, "depth": 2, "experts": 8 if name == "experts" else 0}
    return dx.from_config(Run, {"model": model, **CONFIG})


def told(run: Run, recipe: Recipe) -> dict[str, int]:
    """The bytes on each device that the summary of the model tells, by what they are of."""
    with dx.sharding_rules(recipe.all_rules()):
        summary = run.model.summary(mesh=dict(recipe.mesh().shape), tx=optax.adam(1e-3), shardings=recipe.shardings)
    return {name: size.local for name, size in summary.devices.sizes.items()}


def picture(array: jax.Array) -> str:
    """Which devices have which part of an array."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        jax.debug.visualize_array_sharding(array, use_color=False)
    return printed.getvalue()


def report(trained: Trained) -> dict[str, Any]:
    """What test_example_parallel.py looks at, from this process."""
    parameters = dx.to_flat_state(dx.state(trained.model, dx.Param))
    arrays = {dx.errors.format_path(path): variable.value for path, variable in parameters}
    mesh = next(iter(arrays.values())).sharding.mesh
    mlp = trained.model.blocks[0].mlp
    whole = jax.jit(lambda arrays: arrays, out_shardings=jax.NamedSharding(mesh, jax.P()))(arrays)
    leaves = [*jax.tree.leaves(dx.state(trained.model)), *jax.tree.leaves(dx.state(trained.optimizer))]
    parts = {"parameters": dx.Param, "optimizer state": dx.OptState}
    held = {name: jax.tree.leaves(dx.state((trained.model, trained.optimizer), kind)) for name, kind in parts.items()}
    return {
        "losses": trained.losses,
        "parameters": {path: np.asarray(array.addressable_data(0)) for path, array in whole.items()},
        "shards": {path: array.addressable_data(0).shape for path, array in arrays.items()},
        "bytes": sum(leaf.addressable_data(0).nbytes for leaf in leaves),
        "held": {name: sum(leaf.addressable_data(0).nbytes for leaf in found) for name, found in held.items()},
        "collectives": dict(collectives(trained.program)),
        "picture": picture(mlp.down.kernel.value) if isinstance(mlp, dx.MLP) and jax.process_count() == 1 else "",
        "arguments": trained.program.memory_analysis().argument_size_in_bytes,
    }


def main(out: str, *names: str) -> None:
    dx.launch.initialize()
    runs = {name: (run_of(name), RECIPES[name]) for name in names}
    found = {name: report(train(*both)) | {"told": told(*both)} for name, both in runs.items()}
    if jax.process_index() == 0:
        Path(out).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
