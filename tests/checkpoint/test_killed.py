"""Training processes that are killed at random moments lose and misread nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("killed.py")


@pytest.mark.parametrize("kills", [50, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.campaign])])
def test_a_killed_writer_loses_nothing(kills, tmp_path):
    done = subprocess.run(
        [sys.executable, PROGRAM, tmp_path, str(kills), "3"],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    _, steps, _, overwritten = done.stdout.split()
    assert int(steps) > kills // 5  # the campaign did save
    assert int(overwritten) > kills // 10
