"""Measures the transforms beside raw JAX: ``python -m benchmarks.transforms --help``.

The system *flat* does the same work on plain arrays, by raw `jax.jit`. The system *functional* takes a training step on
the leaves of States: `split` once, raw `jax.jit` of a list of arrays, `merge` and `state` inside.
"""

from __future__ import annotations

import gc
import itertools
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import declax as dx
from benchmarks.core import run
from benchmarks.figures import FLOOR, OURS, Count, Figure, Measure
from benchmarks.harness import Batch, Effort, Samples, compare, interleave
from benchmarks.systems import System, wait_for
from benchmarks.transformer import flat_parameters, flat_step, make_model, model_step

FUNCTIONAL = "functional"
PEER = "flax nnx"
SIZES = (12, 120, 1200, 12000)
BATCH = 32


class Bag(dx.Module):
    """Small Variables of one kind."""

    def __init__(self, count: int, kind: type[dx.Variable[Any]]) -> None:
        self.items = dx.List([kind(jnp.full((4,), float(i))) for i in range(count)])


class Plain(dx.Module):
    """Three plain arrays."""

    def __init__(self) -> None:
        self.a, self.b, self.c = (jnp.full((4,), float(i)) for i in range(3))


class Totals(dx.Module):
    """The Variables of metrics."""

    def __init__(self) -> None:
        self.total = dx.Variable(jnp.zeros(()))
        self.count = dx.Variable(jnp.zeros((), jnp.int32))


def _arguments(leaves: int) -> tuple[Bag, Bag, Totals]:
    """A model, an optimizer and metrics with so many leaves together."""
    optimizer = max(1, leaves // 3)
    return Bag(leaves - optimizer - 2, dx.Param), Bag(optimizer, dx.Variable), Totals()


def _reading(leaves: int) -> dict[str, Batch]:
    model, optimizer, totals = _arguments(leaves)
    flat = jax.tree.leaves(dx.state((model, optimizer, totals)))
    x = jnp.ones((4,))
    lifted = dx.jit(lambda m, o, t, x: m.items[0] * x + t.total, keep_unused=True)
    raw = jax.jit(lambda *leaves: leaves[0] * leaves[-1] + leaves[-2], keep_unused=True)

    def ours(n: int) -> None:
        out = x
        for _ in range(n):
            out = lifted(model, optimizer, totals, x)
        wait_for(out)

    def floor(n: int) -> None:
        out = x
        for _ in range(n):
            out = raw(*flat, x)
        wait_for(out)

    return {OURS: ours, FLOOR: floor}


def _writing(leaves: int) -> dict[str, Batch]:
    model, optimizer, totals = _arguments(leaves)
    flat = [jax.tree.leaves(dx.state((model, optimizer, totals)))]

    @dx.jit
    def lifted(model: Bag, optimizer: Bag, totals: Totals) -> None:
        for variable in (*model.items, *optimizer.items, totals.total, totals.count):
            variable[...] = variable[...] + 1

    raw = jax.jit(lambda *leaves: [leaf + 1 for leaf in leaves])

    def ours(n: int) -> None:
        for _ in range(n):
            lifted(model, optimizer, totals)
        wait_for(totals.count.get_value())

    def floor(n: int) -> None:
        values = flat[0]
        for _ in range(n):
            values = raw(*values)
        flat[0] = values
        wait_for(values[-1])

    return {OURS: ours, FLOOR: floor}


def _plain(leaves: int, *, is_writing: bool) -> dict[str, Batch]:
    """A model of arrays in attributes, three in each part."""
    model = dx.List([Plain() for _ in range(leaves // 3)])
    flat = [jax.tree.leaves(model)]

    @dx.jit(keep_unused=True)
    def lifted(model: dx.List[Plain]) -> jax.Array:
        if is_writing:
            for part in model:
                part.a, part.b, part.c = part.a + 1, part.b + 1, part.c + 1
        return model[0].a * 2

    @partial(jax.jit, keep_unused=True)
    def raw(*leaves: jax.Array) -> list[jax.Array]:
        return [leaves[0] * 2, *([leaf + 1 for leaf in leaves] if is_writing else [])]

    def ours(n: int) -> None:
        out = flat[0][0]
        for _ in range(n):
            out = lifted(model)
        wait_for(out)

    def floor(n: int) -> None:
        out = flat[0][0]
        for _ in range(n):
            out, *values = raw(*flat[0])
            flat[0] = values or flat[0]
        wait_for(out)

    return {OURS: ours, FLOOR: floor}


def _steady(make: Callable[[int], dict[str, Batch]], leaves: int) -> Measure:
    def take(_: Sequence[System], effort: Effort) -> Samples:
        return compare(make(leaves), replace(effort, rounds=max(15, effort.rounds // (1 if leaves < 1200 else 3))))

    return take


# ================================================================= a training step


class Net(dx.Module):
    """The shape of the peer's benchmark: blocks of a linear layer and a normalization, and a count of the calls."""

    def __init__(self, blocks: int, rngs: dx.Rngs) -> None:
        widths = [1, *[32] * (blocks - 1), 1]
        pairs = list(itertools.pairwise(widths))
        self.linears = dx.List([dx.Linear(inputs, outputs, rngs=rngs) for inputs, outputs in pairs])
        self.norms = dx.List([dx.BatchNorm(outputs, rngs=rngs) for _, outputs in pairs])
        self.calls = dx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, x: jax.Array) -> jax.Array:
        self.calls += 1
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x = dx.relu(norm(linear(x)))
        return x


Batched = tuple[Any, Any]  # arrays of JAX or of numpy


def _loss(model: Net, batch: Batched) -> jax.Array:
    x, y = batch
    return jnp.mean((model(x) - y) ** 2)


def _train(model: Net, optimizer: dx.Optimizer[Net], batch: Batched) -> jax.Array:
    loss, grads = dx.value_and_grad(_loss)(model, batch)
    optimizer.update(model, grads)
    return loss


def _make_training() -> tuple[Net, dx.Optimizer[Net]]:
    model = Net(5, dx.Rngs(0))
    return model, dx.Optimizer(model, optax.sgd(1e-3), wrt=dx.Param)


def _batches() -> Iterator[Batched]:
    """The data of the peer's script: points of a parabola with noise, different in each batch."""
    draw = np.random.default_rng(0)
    x = np.linspace(0, 1, 100, dtype=np.float32)[:, None]
    y = 0.8 * x**2 + 0.1 + draw.normal(0, 0.1, x.shape).astype(np.float32)
    chosen = [draw.integers(len(x), size=BATCH) for _ in range(64)]
    return itertools.cycle([(x[some], y[some]) for some in chosen])


def _training_steps(*, is_evaluated: bool) -> dict[str, Batch]:
    """So many steps of training, and one of evaluation, or the loss of the last one."""
    batches = _batches()
    model, optimizer = _make_training()
    lifted, lifted_loss = dx.jit(_train, donate_argnums=(0, 1)), dx.jit(_loss, donate_argnums=0)

    def ours(n: int) -> None:
        loss = None
        for _ in range(n):
            loss = lifted(model, optimizer, next(batches))
        wait_for(lifted_loss(model, next(batches)) if is_evaluated else loss)

    graphdef, first = dx.split(_make_training())
    leaves, tree = jax.tree.flatten(first)
    held = [leaves]

    @partial(jax.jit, donate_argnums=0)
    def raw(leaves: list[jax.Array], batch: Batched) -> tuple[list[jax.Array], jax.Array]:
        model, optimizer = dx.merge(graphdef, jax.tree.unflatten(tree, leaves))
        loss = _train(model, optimizer, batch)
        return jax.tree.leaves(dx.state((model, optimizer))), loss

    @partial(jax.jit, donate_argnums=0)
    def raw_loss(leaves: list[jax.Array], batch: Batched) -> tuple[list[jax.Array], jax.Array]:
        model, optimizer = dx.merge(graphdef, jax.tree.unflatten(tree, leaves))
        loss = _loss(model, batch)
        return jax.tree.leaves(dx.state((model, optimizer))), loss

    def functional(n: int) -> None:
        leaves, loss = held[0], None
        for _ in range(n):
            leaves, loss = raw(leaves, next(batches))
        if is_evaluated:
            leaves, loss = raw_loss(leaves, next(batches))
        held[0] = leaves
        wait_for(loss)

    return {OURS: ours, FUNCTIONAL: functional}


def _steps_beside(use: str) -> dict[str, Batch]:
    """Steps, each followed by an evaluation, a read of a Variable, or a write."""
    batches = _batches()
    model, optimizer = _make_training()
    lifted, lifted_loss = dx.jit(_train), dx.jit(_loss)
    calls = jnp.zeros((), jnp.int32)

    def ours(n: int) -> None:
        last = None
        for _ in range(n):
            last = lifted(model, optimizer, next(batches))
            if use == "evaluated":
                last = lifted_loss(model, next(batches))
            elif use == "read":
                last = model.calls.value
            else:
                model.calls.value = calls
        wait_for(last)

    graphdef, first = dx.split(_make_training())
    leaves, tree = jax.tree.flatten(first)
    held = [leaves]

    @jax.jit
    def raw(leaves: list[jax.Array], batch: Batched, set_to: Any) -> tuple[list[jax.Array], jax.Array]:
        model, optimizer = dx.merge(graphdef, jax.tree.unflatten(tree, leaves))
        if set_to is not None:
            model.calls.value = set_to
        loss = _train(model, optimizer, batch)
        return jax.tree.leaves(dx.state((model, optimizer))), loss

    @jax.jit
    def raw_loss(leaves: list[jax.Array], batch: Batched) -> tuple[list[jax.Array], jax.Array]:
        model, optimizer = dx.merge(graphdef, jax.tree.unflatten(tree, leaves))
        loss = _loss(model, batch)
        return jax.tree.leaves(dx.state((model, optimizer))), loss

    def functional(n: int) -> None:
        leaves, last = held[0], None
        for _ in range(n):
            leaves, last = raw(leaves, next(batches), calls if use == "set" else None)
            if use == "evaluated":
                leaves, last = raw_loss(leaves, next(batches))
            elif use == "read":
                last = leaves[0]
        held[0] = leaves
        wait_for(last)

    return {OURS: ours, FUNCTIONAL: functional}


def _training_beside(use: str) -> Measure:
    def take(_: Sequence[System], effort: Effort) -> Samples:
        return compare(_steps_beside(use), replace(effort, rounds=4 * effort.rounds), repeats=50)

    return take


def _training(_: Sequence[System], effort: Effort) -> Samples:
    """The steps between two evaluations, of which the peer's script has a thousand.

    One part of a sample is not like the next: XLA's threads meet by chance. So there are many rounds.
    """
    return compare(_training_steps(is_evaluated=False), replace(effort, rounds=8 * effort.rounds), repeats=50)


def _training_beside_peer(_: Sequence[System], effort: Effort) -> Samples:
    return compare(_training_steps(is_evaluated=True) | _peer_training(), effort, repeats=20)


def _peer_training() -> dict[str, Batch]:
    try:
        from benchmarks.systems.of_flax import make_training  # where it is installed
    except ImportError:
        return {}
    batch: Batch = make_training(5, _batches())
    return {PEER: batch}


# ================================================================= tracing


def _tracing(_: Sequence[System], effort: Effort) -> Samples:
    """Each sample traces anew, since JAX keeps traces by function, without the garbage of the one before."""
    model, arrays = make_model(), flat_parameters()
    optimizer = dx.Optimizer(model, optax.sgd(1e-3), wrt=dx.Param)
    tokens = jnp.zeros((2, 16), jnp.int32)

    def ours() -> float:
        step = dx.jit(partial(model_step))
        gc.collect()
        start = time.perf_counter_ns()
        step.trace(model, optimizer, tokens)
        return float(time.perf_counter_ns() - start)

    def floor() -> float:
        step = jax.jit(partial(flat_step))
        gc.collect()
        start = time.perf_counter_ns()
        step.trace(arrays, tokens)
        return float(time.perf_counter_ns() - start)

    for warm in (ours, floor):
        warm()
    return interleave({OURS: ours, FLOOR: floor}, max(5, effort.rounds // 2))


# ================================================================= what must stand still


def retraces() -> int:
    """How often a loop of 1,000 steps with switches between train and eval traces its step."""
    model = Net(2, dx.Rngs(0))
    optimizer = dx.Optimizer(model, optax.sgd(1e-3), wrt=dx.Param)
    x, y = jnp.ones((4, 1)), jnp.ones((4, 1))
    step = dx.jit(_train)
    evaluate = dx.jit(lambda model, x: model(x))
    for number in range(1000):
        model.train()
        step(model, optimizer, (x, y))
        if number % 50 == 0:
            model.eval()
            evaluate(model, x)
    return step.num_traces + evaluate.num_traces


def growth_of_steps() -> float:
    """Mebibytes that 1,000 steps leave behind, after the first 100."""
    model = Net(2, dx.Rngs(0))
    optimizer = dx.Optimizer(model, optax.sgd(1e-3), wrt=dx.Param)
    x, y = jnp.ones((4, 1)), jnp.ones((4, 1))
    step = dx.jit(_train)
    return _growth(lambda _: step(model, optimizer, (x, y)), 100, 1000)


def growth_of_models() -> float:
    """Mebibytes that 450 models, each trained for one step, leave behind, after the first 450."""
    x, y = jnp.ones((4, 1)), jnp.ones((4, 1))
    step = dx.jit(_train)
    tx = optax.sgd(1e-3)  # one object: transformations compare by identity

    def one(seed: int) -> None:
        model = Net(2, dx.Rngs(seed))
        step(model, dx.Optimizer(model, tx, wrt=dx.Param), (x, y))

    return _growth(one, 450, 450)


def _live_arrays() -> int:
    find: Callable[[], list[Any]] = jax.live_arrays  # without types
    return len(find())


def _resident() -> int:
    """Bytes in memory now; the peak, where the system does not report the current size."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()


def _growth(work: Callable[[int], object], first: int, count: int) -> float:
    for number in range(first):
        work(number)
    gc.collect()
    before = _live_arrays(), _resident()
    for number in range(count):
        work(number)
    gc.collect()
    arrays = _live_arrays() - before[0]
    assert arrays <= 0, f"{arrays} arrays were left behind"
    return (_resident() - before[1]) / 2**20


FIGURES = (
    *(Figure("steady", f"jit, {n} leaves, read only", FLOOR, _steady(_reading, n), bar=1.15) for n in SIZES[1:]),
    *(Figure("steady", f"jit, {n} leaves, all written", FLOOR, _steady(_writing, n), bar=1.15) for n in SIZES[1:]),
    Figure("steady", "jit, 120 plain arrays, read only", FLOOR, _steady(partial(_plain, is_writing=False), 120)),
    Figure("steady", "jit, 120 plain arrays, all written", FLOOR, _steady(partial(_plain, is_writing=True), 120)),
    Figure("steady", "jit, 12 leaves, read only", FLOOR, _steady(_reading, 12), bar=8.0, unit="µs"),
    Figure("steady", "jit, 12 leaves, all written", FLOOR, _steady(_writing, 12), bar=8.0, unit="µs"),
    Figure("training", "a step of 5 blocks, SGD, batch 32", FUNCTIONAL, _training, bar=1.1),
    Figure("training", "the same in turns with an evaluation", FUNCTIONAL, _training_beside("evaluated"), bar=1.15),
    Figure("training", "the same, one Variable read after each step", FUNCTIONAL, _training_beside("read"), bar=1.15),
    Figure("training", "the same, one Variable set after each step", FUNCTIONAL, _training_beside("set"), bar=1.15),
    Figure("training", "the same beside the peer, evaluated every 20 steps", FUNCTIONAL, _training_beside_peer),
    Figure("tracing", "tracing a step of a 12-block transformer", FLOOR, _tracing, bar=1.1),
)
COUNTS = (
    Count("counts", "traces in 1,000 steps with switches between train and eval", retraces, bar=2),
    Count("counts", "MiB left by 1,000 steps", growth_of_steps, bar=1),
    Count("counts", "MiB left by 450 models", growth_of_models, bar=1),
)


def main(words: Sequence[str] | None = None) -> int:
    """Measures the transforms, prints, and returns the exit status."""
    return run(FIGURES, "transforms", "The transforms, measured", __doc__, words, COUNTS)


if __name__ == "__main__":
    sys.exit(main())
