"""A checkpoint of eight devices on other meshes, on one device, and in two processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx

PROGRAM = Path(__file__).with_name("meshes.py")
VALUES = np.arange(64.0, dtype=np.float32).reshape(8, 8)


def start(devices, *arguments):
    flags = f"--xla_force_host_platform_device_count={devices}"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-3000:]
    return output


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("meshes")
    finish(start(8, folder, "save"))
    return folder


def test_eight_devices_on_other_meshes_and_on_one_device(saved):
    model = dx.Module()
    model.w, model.half = dx.Param(jnp.zeros((8, 8))), dx.Param(jnp.zeros((8, 8), jnp.bfloat16))
    dx.load(saved / "c", into={"model": model})
    assert (model.w.value == VALUES).all()
    assert (model.half.value == VALUES.astype(jnp.bfloat16)).all()


@pytest.mark.slow
def test_eight_devices_in_two_processes(saved):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    processes = [start(4, saved, number, port) for number in (0, 1)]
    for process in processes:
        assert "this process holds only a part of the array" in finish(process)
    assert [entry.name for entry in saved.iterdir()] == ["c"]
