"""Measures models from configuration: ``python -m benchmarks.config --help``.

The figures: reading plain data into a spec, reading and checking files, the dry run of a large model, `declax check`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import declax as dx
from benchmarks import report
from benchmarks.configured import Transformer, config
from benchmarks.harness import Batch, Effort, Spread, compare

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SUFFIXES = (".toml", ".json", ".yaml")
BLOCKS = 96

DRY_RUN = """
import time
import jax, jax.numpy as jnp
import declax as dx
from benchmarks.configured import Transformer, config
spec = dx.spec_from_config(Transformer, config(32))
start = time.perf_counter_ns()
found = spec.summary({inputs})
str(found)
print(time.perf_counter_ns() - start, found.count("Param"))
"""

CHECK = """
import sys, time
start = time.perf_counter_ns()
from declax.config._cli.main import main
status = main(sys.argv[1:])
print(time.perf_counter_ns() - start)
sys.exit(status)
"""

FIRST = """
import time
from collections.abc import Callable
start = time.perf_counter_ns()
import jax
of_jax = time.perf_counter_ns() - start
import declax as dx

@dx.dataclass
class Small(dx.Layer):
    dim: int = dx.field(ge=1)
    rate: float = dx.field(default=0.1, ge=0, le=1)
    activation: Callable[[jax.Array], jax.Array] = dx.static(default=dx.relu)
    up: dx.Linear = dx.Linear(dim, 4 * dim)

Small(2, rngs=dx.Rngs(0))
rngs = dx.Rngs(0)
data = {"dim": 2, "rate": 0.5, "activation": "gelu", "up": {"use_bias": False}}
dx.from_config
times = []
for _ in range(10):
    start = time.perf_counter_ns()
    dx.from_config(Small, data, rngs=rngs)
    times.append(time.perf_counter_ns() - start)
print(times[0] - sorted(times[1:])[4], of_jax)
"""


@dataclass
class Line:
    """One line of the table.

    Attributes:
      title: what is measured.
      times: nanoseconds.
      bar: the most that the median may be; None where there is no bar.
    """

    title: str
    times: list[float]
    bar: float | None = None
    spread: Spread = field(init=False)

    def __post_init__(self) -> None:
        self.spread = Spread.of(self.times)

    @property
    def is_met(self) -> bool:
        """Whether the line meets its bar."""
        return self.bar is None or self.spread.median <= self.bar


def repeated(work: Callable[[], object]) -> Batch:
    def batch(n: int) -> None:
        for _ in range(n):
            work()

    return batch


def structuring(effort: Effort) -> list[Line]:
    """Plain data to a spec, and files of the same configuration."""
    data = config(BLOCKS, dim=8, hidden=16, heads=2, is_mixed=True)
    title = f"structuring a configuration of {BLOCKS} blocks, {_count(data)} values"
    with tempfile.TemporaryDirectory() as name:
        batches = {title: repeated(partial(dx.spec_from_config, Transformer, data))}
        for suffix in SUFFIXES:
            path = Path(name) / f"transformer{suffix}"
            dx.write_config(path, dx.spec_from_config(Transformer, data))
            batches[f"the same from a file, {suffix}"] = repeated(partial(dx.spec_from_config, Transformer, path))
        samples = compare(batches, effort)
    return [Line(name, times, 10e6 if name == title else None) for name, times in samples.items()]


def _count(data: object) -> int:
    """How many keys and items there are in plain data."""
    children = list(data.values()) if isinstance(data, dict) else data if isinstance(data, list) else []
    return len(children) + sum(map(_count, children))


def fresh(code: str, words: Sequence[str], folder: Path, rounds: int) -> list[list[str]]:
    """The last line that a program prints, from fresh processes; the first process writes byte code and is ignored."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", code, *words]
    runs = [subprocess.check_output(command, text=True, env=env, cwd=folder) for _ in range(rounds + 1)]
    return [run.splitlines()[-1].split() for run in runs[1:]]


def dry_runs(rounds: int) -> list[Line]:
    """The first dry run of a process: nothing has been traced yet."""
    lines = []
    for title, inputs in (("", ""), (" and its answer to 4,096 tokens", "jax.ShapeDtypeStruct((1, 4096), jnp.int32)")):
        found = fresh(DRY_RUN.format(inputs=inputs), [], ROOT, rounds)
        count = int(found[0][1])
        what = f"the summary of 32 blocks, {count / 1e9:.2f} billion parameters{title}"
        lines.append(Line(what, [float(time) for time, _ in found], 2e9))
    return lines


def first_reads(rounds: int) -> list[Line]:
    """How much longer the first `from_config` of a process takes than a later one, over the import of JAX."""
    found = [(float(more), float(of_jax)) for more, of_jax in fresh(FIRST, [], ROOT, rounds)]
    of_jax = sorted(time for _, time in found)[len(found) // 2]
    title = (
        f"the first from_config of a small class, beyond a later one; the import of JAX takes {report.duration(of_jax)}"
    )
    return [Line(title, [more for more, _ in found], 0.02 * of_jax)]


def checks(rounds: int) -> list[Line]:
    """`declax check` in fresh processes, import of declax included."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dx.write_config(folder / "transformer.toml", dx.spec_from_config(Transformer, config(32)))
        words = ["check", "benchmarks.configured:Transformer", "transformer.toml"]
        times = [float(time) for (time,) in fresh(CHECK, words, folder, rounds)]
    return [Line("declax check of 32 blocks", times)]


def table(lines: Sequence[Line]) -> str:
    """The medians, with the quartiles behind them."""
    rows = ["| what | time | bar |", "| --- | --- | --- |"]
    for line in lines:
        low, median, high = map(report.duration, (line.spread.low, line.spread.median, line.spread.high))
        verdict = "met" if line.is_met else "MISSED"
        bar = f"{report.duration(line.bar)}: {verdict}" if line.bar is not None else ""
        rows.append(f"| {line.title} | **{median}** ({low} to {high}) | {bar} |")
    return "\n".join(rows)


def main(words: Sequence[str] | None = None) -> int:
    """Measures, prints, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.config", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}/config.md")
    parser.add_argument("--check", action="store_true", help="fail where a bar is missed")
    chosen = parser.parse_args(words)
    effort = Effort(rounds=5 if chosen.quick else 31)
    rounds = 2 if chosen.quick else 7
    lines = [*structuring(effort), *first_reads(rounds), *dry_runs(rounds), *checks(rounds)]
    made = table(lines)
    print(made)
    if chosen.write:
        parts = [
            "# Models from configuration, measured",
            f"One run of `python -m benchmarks.config --write` on {report.machine()}.",
            made,
            "[The README](../README.md) describes each line.",
        ]
        (RESULTS / "config.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return int(chosen.check and not all(line.is_met for line in lines))


if __name__ == "__main__":
    sys.exit(main())
