"""Measures compiled calls on eight virtual devices: ``python -m benchmarks.sharded --help``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

import declax as dx
from benchmarks.core import run
from benchmarks.figures import FLOOR, OURS, Figure
from benchmarks.harness import Batch, Effort, Samples, compare
from benchmarks.systems import System, wait_for

DEVICES = 8


class Bag(dx.Module):
    """Variables whose arrays lie on all devices."""

    def __init__(self, leaves: int, sharding: NamedSharding) -> None:
        made = [jax.device_put(jnp.ones((DEVICES, 4)), sharding) for _ in range(leaves)]
        self.items = dx.List([dx.Param(value) for value in made])


def _step(model: Bag) -> None:
    for variable in model.items:
        variable[...] = variable[...] + 1


def _calls(leaves: int, *, is_given: bool) -> dict[str, Batch]:
    """A call that writes all leaves; `is_given` names the shardings to `jit` too."""
    sharding = NamedSharding(jax.make_mesh((DEVICES,), ("data",)), PartitionSpec("data"))
    model = Bag(leaves, sharding)
    flat = [jax.tree.leaves(dx.state(model))]
    lifted = dx.jit(_step, in_shardings=sharding) if is_given else dx.jit(_step)
    given: dict[str, Any] = {"in_shardings": (sharding,) * leaves} if is_given else {}
    raw = jax.jit(lambda *values: [value + 1 for value in values], **given)

    def ours(n: int) -> None:
        for _ in range(n):
            lifted(model)
        wait_for(model.items[-1].get_value())

    def floor(n: int) -> None:
        values = flat[0]
        for _ in range(n):
            values = raw(*values)
        flat[0] = values
        wait_for(values[-1])

    return {OURS: ours, FLOOR: floor}


def _take(_: Sequence[System], effort: Effort, *, is_given: bool) -> Samples:
    return compare(_calls(120, is_given=is_given), effort)


FIGURES = (
    Figure("sharded", "jit, 120 sharded leaves, all written", FLOOR, partial(_take, is_given=False), bar=1.15),
    Figure("sharded", "the same with in_shardings", FLOOR, partial(_take, is_given=True), bar=1.15),
)


def main(words: Sequence[str] | None = None) -> int:
    """Measures the calls, prints, and returns the exit status."""
    jax.config.update("jax_num_cpu_devices", DEVICES)
    return run(FIGURES, "sharded", "Compiled calls on eight devices, measured", __doc__, words)


if __name__ == "__main__":
    sys.exit(main())
