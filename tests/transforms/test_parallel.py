"""Runs the tests that need several devices in a process that has them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.mark.slow
def test_on_four_devices():
    files = sorted(str(path) for path in HERE.glob("devices_*.py"))
    assert len(files) == 2
    flags = "--xla_force_host_platform_device_count=4"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(
        command, cwd=HERE.parents[1], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout or "flax" in done.stdout
