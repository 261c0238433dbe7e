"""Runs the tests that need eight devices in processes that have them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
DEVICES = 8

LONG = {"devices_explicit.py", "devices_layers.py", "devices_moe.py", "devices_offload.py"}
"""Files that compile a program for each of many layers or optimizers."""


EXACT = {"devices_by_leaf.py"}
"""Files that compare bits, compiled as users compile them: the flags of `tests/conftest.py` change some."""


def run(names, flags=None):
    files = sorted(str(path) for path in HERE.glob("devices_*.py") if path.name in names)
    flags = os.environ.get("XLA_FLAGS", "") if flags is None else flags
    flags = f"{flags} --xla_force_host_platform_device_count={DEVICES}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *files]
    done = subprocess.run(
        command, cwd=HERE.parents[1], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_on_eight_devices():
    run({path.name for path in HERE.glob("devices_*.py")} - LONG - EXACT)


def test_bits_on_eight_devices():
    run(EXACT, flags="")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LONG))
def test_layers_on_eight_devices(name):
    run({name})
