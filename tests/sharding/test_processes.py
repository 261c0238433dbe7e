"""Models that several processes make together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import jax
import declax as dx

dx.launch.initialize()
mesh, rank = jax.make_mesh((2,), ("data",)), jax.process_index()
dx.init_sharded(dx.Linear, 4, 8, rngs=dx.Rngs(0), mesh=mesh)
if rank == 0:  # on its own devices, a process may do as it likes
    own = jax.make_mesh((1,), ("data",), devices=jax.local_devices())
    dx.init_sharded(dx.Linear, 4, 8, rngs=dx.Rngs(7), mesh=own)
for make in (
    lambda: dx.init_sharded(lambda: dx.Linear(4, 8, rngs=dx.Rngs(rank)), mesh=mesh),
    lambda: dx.init_sharded(lambda: dx.Linear(4, 8 + 8 * rank, rngs=dx.Rngs(0)), mesh=mesh),
    lambda: dx.init_sharded(dx.Linear, 4, 8, rngs=dx.Rngs(rank), mesh=mesh),
):
    try:
        make()
    except dx.errors.ShardingError as error:
        print(error.problem, error.got)
print("done")
"""

METRICS = """
import warnings
import jax
import numpy as np
import declax as dx

dx.launch.initialize()
warnings.simplefilter("always")
mesh, rank = jax.make_mesh((2,), ("data",)), jax.process_index()
rows = jax.NamedSharding(mesh, jax.P("data"))
for make in (dx.metrics.Average, dx.metrics.Welford):
    own, common = make(), make()
    values = np.array([float(rank)], np.float32)
    own.update(values=values)
    dx.jit(lambda metric, values: metric.update(values=values))(
        common, jax.make_array_from_process_local_data(rows, values)
    )
    for metric in (own, common):
        with warnings.catch_warnings(record=True) as found:
            result = metric.compute()
        print(make.__name__, float(result.mean if make is dx.metrics.Welford else result))
        print(*(str(warning.message).partition(",")[0] for warning in found))
"""


def launched(program: Path, text: str) -> list[list[str]]:
    """The lines that each of two processes prints."""
    program.write_text(text)
    options = ["--processes", "2", "--devices", "1", "--timeout", "200"]
    command = [sys.executable, "-m", "declax.launch", *options, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    return [[line[4:] for line in lines if line.startswith(f"[{process}] ")] for process in range(2)]


def test_processes_that_make_different_models_are_told(tmp_path: Path) -> None:
    for lines in launched(tmp_path / "program.py", PROGRAM):
        assert lines.count("the processes make different values others in 1") == 3, lines
        assert "done" in lines


def test_metrics_of_one_process_are_told_from_those_of_all(tmp_path: Path) -> None:
    for process, lines in enumerate(launched(tmp_path / "program.py", METRICS)):
        for name in ("Average", "Welford"):
            first = lines.index(f"{name} {float(process)}")
            assert lines[first + 1] == f"{name}.compute: this is the value of process {process} alone"
            assert lines[first + 2 : first + 4] == [f"{name} 0.5", ""]
