"""Measures compiled calls and the making of models on eight devices: ``python -m benchmarks.sharded --help``."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import declax as dx
from benchmarks import styles, transformer
from benchmarks.core import run
from benchmarks.figures import FLOOR, OURS, PEER, Count, Figure
from benchmarks.harness import Batch, Effort, Sampler, Samples, compare, interleave
from benchmarks.systems import System, wait_for

DEVICES = 8
SMALL = 2**12
"""Arrays with fewer elements are not split."""

RUNS = 7
"""So often each library makes the model."""


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


def _on_mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((DEVICES,), ("data",), axis_types=(AxisType.Auto,))


def _make(library: Any, gpt: Any) -> tuple[Any, Any]:
    """A GPT of 12 blocks with its optimizer."""
    model = gpt(64, 64, 128, 4, 12, rngs=library.Rngs(0))
    return model, library.Optimizer(model, optax.adam(1e-3), wrt=library.Param)


def _make_ours(gpt: Any) -> object:
    made = dx.init_sharded(_make, dx, gpt, mesh=_on_mesh(), shardings=partial(dx.fsdp, min_size=SMALL))
    return jax.tree.leaves(made)


def _make_peers(library: Any, gpt: Any) -> object:
    """`nnx.jit` of the same, whose arrays have constraints: large ones are split along their largest dimension."""
    mesh = _on_mesh()

    def constrained(array: jax.Array) -> jax.Array:
        spec: list[str | None] = [None] * array.ndim
        fitting = [size if size % DEVICES == 0 else 0 for size in array.shape]
        if array.size >= SMALL and max(fitting):
            spec[fitting.index(max(fitting))] = "data"
        placed: jax.Array = jax.lax.with_sharding_constraint(array, NamedSharding(mesh, PartitionSpec(*spec)))
        return placed

    def make() -> tuple[Any, Any]:
        made = _make(library, gpt)
        for part in made:
            library.update(part, jax.tree.map(constrained, library.state(part)))
        return made

    return [leaf for part in library.jit(make)() for leaf in jax.tree.leaves(library.state(part))]


def _creations(_: Sequence[System], effort: Effort) -> Samples:
    """Models that are made by programs which are traced and compiled anew."""
    samplers: dict[str, Sampler] = {}
    for program in styles.programs("A GPT"):
        try:
            library, gpt = importlib.import_module(program.library), program.run()["GPT"]
        except ImportError:
            continue
        make = partial(_make_ours, gpt) if library is dx else partial(_make_peers, library, gpt)
        samplers[OURS if library is dx else PEER] = partial(_time_compiled, make)
    return interleave(samplers, min(effort.rounds, RUNS))


def _time_compiled(make: Callable[[], object]) -> float:
    jax.clear_caches()
    start = time.perf_counter_ns()
    jax.block_until_ready(make())
    return time.perf_counter_ns() - start


# ================================================================= memory


def _memory() -> float:
    """The bytes on each device of a compiled step, over those of the same step on plain arrays, as XLA plans both.

    To three digits: the optimizer of declax counts its steps too, which are four bytes.
    """
    tx = optax.adam(1e-3)
    tokens = jax.device_put(jnp.zeros((DEVICES, 32), jnp.int32), NamedSharding(_on_mesh(), PartitionSpec("data")))

    def make() -> tuple[transformer.Transformer, dx.Optimizer[transformer.Transformer]]:
        model = transformer.make_model()
        return model, dx.Optimizer(model, tx, wrt=dx.Param)

    def functional(params: Any, state: Any, tokens: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(lambda p: transformer.loss_of(transformer.flat_model(p, tokens), tokens))(
            params
        )
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    model, optimizer = dx.init_sharded(make, mesh=_on_mesh(), shardings=partial(dx.fsdp, min_size=SMALL))
    params = dx.to_pure_dict(dx.state(model, dx.Param))
    programs = (
        dx.jit(transformer.model_step).lower(model, optimizer, tokens),
        jax.jit(functional).lower(params, tx.init(params), tokens),
    )
    ours, floor = (_bytes(program.compile().memory_analysis()) for program in programs)
    return float(round(ours / floor, 3))


def _bytes(plan: Any) -> int:
    held = plan.argument_size_in_bytes + plan.output_size_in_bytes - plan.alias_size_in_bytes
    return int(held + plan.temp_size_in_bytes)


FIGURES = (
    Figure("sharded", "jit, 120 sharded leaves, all written", FLOOR, partial(_take, is_given=False), bar=1.15),
    Figure("sharded", "the same with in_shardings", FLOOR, partial(_take, is_given=True), bar=1.15),
    Figure("creation", "making a sharded GPT of 12 blocks and its optimizer", PEER, _creations, bar=1.0),
)
COUNTS = (Count("memory", "bytes on each device of a step of a GPT of 12 blocks", _memory, bar=1.0),)


def main(words: Sequence[str] | None = None) -> int:
    """Measures the calls, prints, and returns the exit status."""
    jax.config.update("jax_num_cpu_devices", DEVICES)
    return run(FIGURES, "sharded", "Compiled calls on eight devices, measured", __doc__, words, COUNTS)


if __name__ == "__main__":
    sys.exit(main())
