"""The program of `test_processes.py`: all processes save to one path, in each way; prints what comes out."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

import declax as dx


def tried(name: str, save: Callable[[], object]) -> None:
    """Prints the problem, or that there is none."""
    multihost_utils.sync_global_devices(name)
    try:
        save()
    except dx.CheckpointError as error:
        print(f"{name}: {error}".replace("\n", "|"), flush=True)
    else:
        print(f"{name}: saved", flush=True)
    multihost_utils.sync_global_devices(f"after {name}")


def main(folder: Path) -> None:
    dx.launch.initialize()
    me = jax.process_index()
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    items = {"model": dx.init_sharded(dx.Linear, 2, 2, rngs=dx.Rngs(0), mesh=mesh), "own": {"x": jnp.ones(2)}}
    tried("new", lambda: dx.save(folder / "new", items))
    for name in ("replaced", "again"):
        tried(name, lambda: dx.save(folder / "replaced", items, overwrite=True))
    for name in ("first", "second"):
        tried(f"one process, {name}", lambda: me or dx.save(folder / "one", items, overwrite=True))
    tried("a path each", lambda: dx.save(folder / f"of {me}", items))
    checkpoints = dx.Checkpoints(folder / "run")
    for step in range(2):
        tried("steps", functools.partial(checkpoints.save, step, items))
    del items["own"]
    tried("orbax", lambda: dx.save(folder / "orbax", items, engine="orbax"))
    for number in range(2):  # not at once, so that the first is done
        multihost_utils.sync_global_devices(f"turn {number}")
        if me == number:
            try:
                dx.save(folder / "in turn", items, overwrite=True)
            except dx.CheckpointError as error:
                print(f"in turn: {error}".partition("\n")[0], flush=True)
    multihost_utils.sync_global_devices("end")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
