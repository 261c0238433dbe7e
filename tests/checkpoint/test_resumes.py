"""Training that goes on with another number of processes: the losses of one process that was not stopped."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent))
import resumed

pytest.importorskip("orbax.checkpoint")
PROGRAM = Path(resumed.__file__)


@functools.cache
def uninterrupted():
    run = resumed.make()
    return [float(resumed.step(run, jnp.asarray(batch))) for batch in resumed.BATCHES]


def launched(folder, processes, devices, steps):
    options = [f"--processes={processes}", f"--devices={devices}", "--timeout=200"]
    command = [sys.executable, "-m", "declax.launch", *options, str(PROGRAM), str(folder), str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if "losses" in line]
    return [float(word) for word in line.partition("losses")[2].split()]


def test_two_processes_and_then_this_one(tmp_path):
    losses = launched(tmp_path, 2, 1, 2) + resumed.main(tmp_path, 6)
    assert jax.process_count() == jax.device_count() == 1
    np.testing.assert_allclose(losses, uninterrupted(), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("ways", [[(2, 2), (4, 1), (1, 1)], [(1, 1), (4, 2), (2, 1)]], ids=["2-4-1", "1-4-2"])
def test_other_numbers_of_processes_and_devices(tmp_path, ways):
    losses = [loss for number, way in enumerate(ways) for loss in launched(tmp_path, *way, 2 * number + 2)]
    np.testing.assert_allclose(losses, uninterrupted(), rtol=1e-5)
