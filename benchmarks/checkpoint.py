"""Saves and loads 1 GB beside numpy's `tofile` with fsync, and `fromfile`: ``python -m benchmarks.checkpoint``.

Files are read from the disk, as when a run resumes, or with ``--cached`` from the memory of the system.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import declax as dx

BAR = 1.3


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


class Subjects:
    """The same bytes as a model in a checkpoint, and as arrays in one file."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self.folder = folder
        self.arrays = [np.random.default_rng(n).random(1 << 22, np.float32) for n in range(megabytes // 16)]
        self.model = self.model_of(self.arrays)
        self.target = self.model_of([np.zeros(1, np.float32)] * len(self.arrays))

    @staticmethod
    def model_of(arrays: list[np.ndarray]) -> dx.Module:
        model = dx.Module()
        model.layers = dx.List([dx.Param(jnp.asarray(array)) for array in arrays])
        return model

    def save(self) -> None:
        dx.save(self.folder / "checkpoint", {"model": self.model})

    def write(self) -> None:
        with (self.folder / "floor").open("wb") as file:
            for array in self.arrays:
                array.tofile(file)
            file.flush()
            os.fsync(file.fileno())

    def load(self) -> None:
        shape = jax.ShapeDtypeStruct((1 << 22,), jnp.float32)  # type: ignore[no-untyped-call]  # of JAX
        for _, variable in dx.iter_graph(self.target):
            if isinstance(variable, dx.Param):
                variable.value = shape
        dx.load(self.folder / "checkpoint", into={"model": self.target})

    def read(self) -> None:
        with (self.folder / "floor").open("rb") as file:
            read = [np.fromfile(file, np.float32, array.size) for array in self.arrays]
        assert len(read) == len(self.arrays)

    def forget(self) -> None:
        """Takes the files out of the memory of the system."""
        for file in [self.folder / "floor", *(self.folder / "checkpoint").glob("*.safetensors")]:
            descriptor = os.open(file, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

    def remove(self) -> None:
        shutil.rmtree(self.folder / "checkpoint", ignore_errors=True)
        (self.folder / "floor").unlink(missing_ok=True)
        os.sync()


def main() -> int:
    """Measures in turns, prints medians and ratios, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1024, help="the size of the model")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure")
    parser.add_argument("--cached", action="store_true", help="read what the system has in its memory")
    parser.add_argument("--check", action="store_true", help=f"fail where a ratio is above {BAR}")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        subjects = Subjects(Path(folder), chosen.megabytes)
        times: dict[str, list[float]] = {"save": [], "write": [], "load": [], "read": []}
        for number in range(chosen.rounds + 1):
            subjects.remove()
            pairs = [("save", "write"), ("load", "read")]
            for pair in pairs:
                for name in pair if number % 2 else reversed(pair):
                    if name in ("load", "read") and not chosen.cached:
                        subjects.forget()
                    taken = timed(getattr(subjects, name))
                    if number:  # the first round warms up
                        times[name].append(taken)
    missed = False
    for mine, floor in [("save", "write"), ("load", "read")]:
        ratio = statistics.median(a / b for a, b in zip(times[mine], times[floor], strict=True))
        missed |= ratio > BAR
        seconds = [statistics.median(times[name]) for name in (mine, floor)]
        fastest = min(times[mine]) / min(times[floor])
        print(f"{mine}: {seconds[0]:.2f} s, numpy {seconds[1]:.2f} s, ratio {ratio:.2f}, of the fastest {fastest:.2f}")
    return int(chosen.check and missed)


if __name__ == "__main__":
    sys.exit(main())
