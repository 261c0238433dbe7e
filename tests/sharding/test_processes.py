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


def test_processes_that_make_different_models_are_told(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    options = ["--processes", "2", "--devices", "1", "--timeout", "200"]
    command = [sys.executable, "-m", "declax.launch", *options, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for process in range(2):
        lines = [line for line in done.stdout.splitlines() if line.startswith(f"[{process}] ")]
        told = f"[{process}] the processes make different values others in 1"
        assert lines.count(told) == 3, done.stdout
        assert f"[{process}] done" in lines
