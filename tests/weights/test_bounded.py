"""What is read of files of weights, and the memory that it takes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import bounded
from declax import weights as w
from declax.checkpoint.files import OpenFile
from declax.checkpoint.safetensors import open_tensors, write_tensors
from declax.weights.layouts import take
from declax.weights.parts import fill


@pytest.mark.parametrize(
    ("destination", "half"),
    [
        ("a", np.s_[:512, :]),
        ("a", np.s_[:, 2048:]),
        (w.transpose("a"), np.s_[:, :512]),
        (w.reshape("a", "(h d) i -> i h d", d=64), np.s_[:, 8:, :]),
        (w.split(w.transpose("a"), w.transpose("b"), axis=0), np.s_[:, :]),
    ],
)
def test_the_part_of_one_device_is_read_alone(destination, half, tmp_path, monkeypatch):
    array = np.random.default_rng(0).normal(size=(1024, 4096)).astype(np.float32)
    write_tensors(tmp_path / "m.safetensors", {"t": array})
    tensor = open_tensors(tmp_path / "m.safetensors")["t"]
    shapes = {"a": (4096, 512), "b": (4096, 512)}
    if not isinstance(destination, w.Layout):
        shapes["a"] = (1024, 4096)
    elif len(destination.to) == 1:
        shapes["a"] = (4096, 1024) if "Transpose" in repr(destination) else (4096, 16, 64)
    part = take(destination, tensor, "a", shapes.__getitem__)
    expected = np.asarray(take(destination, array, "a", shapes.__getitem__))[half]
    read, into = [], OpenFile.read_into
    monkeypatch.setattr(OpenFile, "read_into", lambda *args: read.append(len(args[1])) or into(*args))
    index = tuple([slice(*each.indices(size)[:2]) for each, size in zip(half, part.shape, strict=True)])
    found = np.empty(expected.shape, np.float32)
    fill(found, part, index)
    np.testing.assert_array_equal(found, expected)
    assert sum(read) == array.nbytes / 2


@pytest.mark.slow
def test_large_files_take_little_memory_beside_the_result(tmp_path):
    subprocess.run([sys.executable, bounded.__file__, "make", str(tmp_path), "1024"], check=True, capture_output=True)
    for devices in (1, 4):
        for kind in ("weights", "checkpoint"):
            found = bounded.measured(tmp_path, kind, devices)
            assert found["largest"] == 1 << 28
            assert found["beside"] < 1.3, (kind, devices, found)
            assert found["read"] < 1.01, (kind, devices, found)
