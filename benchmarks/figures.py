"""Figures: one line of a table each, with its batches and its bar.

A ratio divides the time of a system by the time of the system in `over`. The bar is the largest ratio, or the largest
difference, that declax may show. An outcome is a figure with its samples.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import jax

from benchmarks import styles
from benchmarks.harness import Batch, Effort, Samples, Spread, compare, difference, interleave, ratio
from benchmarks.systems import GraphBatches, System, repeat

OURS = "declax"
FLOOR = "floor (jax)"
PEER = "flax nnx"
IMPORTED = "JAX and optax imported"
DATACLASS = "declax, declared"
BY_HAND = "declax, by hand"
LEAVES_OF_A_BLOCK = 6

Measure: TypeAlias = Callable[[Sequence[System], Effort], Samples]
Unit: TypeAlias = Literal["ms", "µs"]
NANOSECONDS: Mapping[Unit, float] = {"ms": 1e6, "µs": 1e3}


@dataclass(frozen=True)
class Figure:
    """Some work to compare.

    Attributes:
        group: what ``--only`` names.
        title: the work, in words.
        over: the subject that the others are compared with.
        measure: takes the samples of all subjects that are there.
        bar: what declax may show at most; None where nothing is promised.
        unit: of a comparison that is a difference; None for a ratio.
    """

    group: str
    title: str
    over: str
    measure: Measure
    bar: float | None = None
    unit: Unit | None = None


@dataclass(frozen=True)
class Outcome:
    """The result of one figure."""

    figure: Figure
    samples: Samples

    def compared(self, subject: str) -> Spread | None:
        """`subject` over the figure's reference: a ratio or a difference; None where either was not measured."""
        if subject not in self.samples or self.figure.over not in self.samples:
            return None
        if self.figure.unit is None:
            return ratio(self.samples, subject, self.figure.over)
        nanoseconds, size = difference(self.samples, subject, self.figure.over), NANOSECONDS[self.figure.unit]
        return Spread(nanoseconds.low / size, nanoseconds.median / size, nanoseconds.high / size)

    @property
    def met(self) -> bool | None:
        """Whether declax meets the bar; None without a bar or a comparison."""
        spread = self.compared(OURS)
        return None if spread is None or self.figure.bar is None else spread.median <= self.figure.bar


@dataclass(frozen=True)
class Count:
    """A number that is counted once.

    Attributes:
        group: what ``--only`` names.
        title: what is counted, with its unit.
        take: counts.
        bar: what may come out at most.
    """

    group: str
    title: str
    take: Callable[[], float]
    bar: float


def measure(figure: Figure, systems: Sequence[System], effort: Effort) -> Outcome:
    return Outcome(figure, figure.measure(systems, effort))


def round_trip(tree: object) -> Batch:
    """Rebuilds, then flattens the result, as a transform does with its arguments and results."""
    flatten, unflatten = jax.tree_util.tree_flatten, jax.tree_util.tree_unflatten
    leaves, treedef = flatten(tree)

    def batch(n: int) -> None:
        for _ in range(n):
            flatten(unflatten(treedef, leaves))

    return batch


def both_ways(tree: object) -> Batch:
    """Flatten the object that the constructor made, and rebuild it, repeatedly."""
    flatten, unflatten = jax.tree_util.tree_flatten, jax.tree_util.tree_unflatten
    leaves, treedef = flatten(tree)

    def batch(n: int) -> None:
        for _ in range(n):
            flatten(tree)
            unflatten(treedef, leaves)

    return batch


def _trees(maker: str, trip: Callable[[object], Batch]) -> Measure:
    def take(systems: Sequence[System], effort: Effort) -> Samples:
        makers = {system.name: getattr(system, maker) for system in systems}
        return compare({name: trip(make()) for name, make in makers.items() if make}, effort)

    return take


def _open_trees(systems: Sequence[System], effort: Effort) -> Samples:
    """Open classes of each system, over the dataclass of declax."""
    batches = {system.name: round_trip(system.make_open_tree()) for system in systems if system.make_open_tree}
    for system in systems:
        if system.name == OURS and system.make_tree:
            batches[DATACLASS] = round_trip(system.make_tree())
    return compare(batches, effort)


def _steps(leaves: int) -> Measure:
    def take(systems: Sequence[System], effort: Effort) -> Samples:
        makers = {system.name: system.make_step for system in systems}
        return compare({name: make(leaves // LEAVES_OF_A_BLOCK) for name, make in makers.items() if make}, effort)

    return take


def _graphs(part: Callable[[GraphBatches], Batch | None]) -> Measure:
    def take(systems: Sequence[System], effort: Effort) -> Samples:
        makers = {system.name: system.make_graph for system in systems}
        parts = {name: part(make(120 // LEAVES_OF_A_BLOCK)) for name, make in makers.items() if make}
        return compare({name: batch for name, batch in parts.items() if batch}, effort)

    return take


def _classes(systems: Sequence[System], effort: Effort, maker: str = "make_class") -> Samples:
    """JAX registers a class forever, so a few suffice."""
    makers = {system.name: getattr(system, maker) or system.make_class for system in systems}
    batches = {name: repeat(make) for name, make in makers.items() if make}
    return compare(batches, replace(effort, rounds=min(effort.rounds, 31)), repeats=1)


def _layers(systems: Sequence[System], effort: Effort) -> Samples:
    """A layer of each system, over the class of declax that is written with an ``__init__``."""
    batches = {system.name: system.make_layer for system in systems if system.make_layer}
    for system in systems:
        if system.make_layer_by_hand:
            batches[BY_HAND] = system.make_layer_by_hand
    return compare(batches, effort)


def _models(systems: Sequence[System], effort: Effort) -> Samples:
    """The GPT of docs/two_styles.md, with 12 blocks."""
    batches = {}
    for system in systems:
        for program in styles.programs("A GPT"):
            if program.library == system.package:
                library = importlib.import_module(program.library)
                batches[system.name] = repeat(partial(_construct, program.run()["GPT"], library.Rngs))
    return compare(batches, effort)


def _construct(make: Callable[..., object], rngs: Callable[[int], object]) -> object:
    return make(256, 16, 16, 2, 12, rngs=rngs(0))


SCRIPT = (
    "BatchNorm, Conv, Dropout, Linear, Module, Optimizer, Param, Rngs, dataclass, jit, merge, split, state, "
    "value_and_grad"
)
"""The names that a training script uses. declax loads these only; its peers load everything."""


def _imports(systems: Sequence[System], effort: Effort, names: str = SCRIPT) -> Samples:
    """Fresh processes time an import behind those of JAX and optax; a sample is the faster of two.

    Bytecode is written and read, as where packages are installed, whatever the
    environment says; the first round, which compiles, does not count. JAX and
    optax leave a full garbage collection due, which the next objects of
    whatever import set off, so it is done before.
    """
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(Path(tempfile.gettempdir()) / "declax-benchmark-bytecode")

    def sample(statement: str) -> float:
        timed = f"start = time.perf_counter_ns(); {statement}; print(time.perf_counter_ns() - start)"
        code = f"import gc, time, jax, optax; gc.collect(); {timed}"
        runs = [subprocess.check_output([sys.executable, "-c", code], text=True, env=env) for _ in range(2)]
        return min(float(run.split()[-1]) for run in runs)

    statements = {system.name: f"import {system.package}" for system in systems if system.package}
    statements |= {IMPORTED: "pass", OURS: f"from declax import {names}"}
    samplers = {name: partial(sample, statement) for name, statement in statements.items()}
    for warm in samplers.values():  # writes the byte code of a package that runs for the first time
        warm()
    return interleave(samplers, min(effort.rounds, 9))


FIGURES = (
    Figure("trees", "flatten + unflatten, 8 arrays", FLOOR, _trees("make_tree", round_trip), bar=0.9),
    Figure("trees", "the same, 5 arrays and 3 static", FLOOR, _trees("make_mixed_tree", round_trip), bar=0.9),
    Figure("trees", "the same, 8 arrays, one object again and again", FLOOR, _trees("make_tree", both_ways)),
    Figure("trees", "open class, 8 arrays", DATACLASS, _open_trees, bar=1.2),
    Figure("jit", "jit, 12 leaves read and written", FLOOR, _steps(12)),
    Figure("jit", "jit, 120 leaves read and written", FLOOR, _steps(120), bar=1.15),
    Figure("jit", "jit, 1200 leaves read and written", FLOOR, _steps(1200)),
    Figure("graph", "split, 120 leaves", PEER, _graphs(lambda graph: graph.split), bar=0.1),
    Figure("graph", "split after a static attribute changed", PEER, _graphs(lambda graph: graph.split_changed)),
    Figure("graph", "merge, 120 leaves", PEER, _graphs(lambda graph: graph.merge), bar=0.1),
    Figure("classes", "making a dataclass of 8 fields", FLOOR, _classes, bar=3.0),
    Figure(
        "classes", "the same, each with a specifier", FLOOR, partial(_classes, maker="make_declared_class"), bar=3.0
    ),
    Figure("construction", "constructing a declared linear layer", BY_HAND, _layers),
    Figure("construction", "constructing a model of 12 blocks, in both styles", PEER, _models, bar=0.35),
    Figure(
        "import",
        "import of the names of a training script",
        IMPORTED,
        _imports,
        bar=60.0,
        unit="ms",
    ),
    Figure("import", "import of every name", IMPORTED, partial(_imports, names="*"), unit="ms"),
)
