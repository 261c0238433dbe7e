"""The program of `test_killed.py`: writers that are killed at random moments, and a reader that checks what they left.

A child process saves steps, reads them back and cleans up, without a device, so that it can be forked from one process
that has imported jax. Each acknowledged step comes through a pipe.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import declax as dx

SIZE = 20_000


def items(step: int) -> dict[str, object]:
    return {"tree": {"a": np.full(SIZE, step), "b": np.full(3, step, np.float32)}, "step": step}


def check(found: dict[str, object], step: int) -> None:
    tree: Any = found["tree"]
    assert found["step"] == step, (found["step"], step)
    assert (tree["a"] == step).all()
    assert (tree["b"] == step).all()


def write_until_killed(folder: Path, acknowledge: int) -> None:
    checkpoints = dx.Checkpoints(folder / "run", keep=2)
    step = 0 if checkpoints.latest is None else checkpoints.latest
    if step:
        check(checkpoints.load(into=items(0)), step)
    while True:
        step += 1
        checkpoints.save(step, items(step))
        os.write(acknowledge, b"r%d\n" % step)
        dx.save(folder / "one", items(step), overwrite=True)
        os.write(acknowledge, b"o%d\n" % step)


def read_back(folder: Path, known: dict[str, int]) -> None:
    """What is there must be complete, and no older than what was acknowledged."""
    checkpoints = dx.Checkpoints(folder / "run")
    steps = checkpoints.steps()
    assert (checkpoints.latest or 0) >= known["r"], (steps, known)
    for step in steps:
        check(checkpoints.load(step, into=items(0)), step)
    if known["o"]:
        found = dx.load(folder / "one", into=items(0))
        assert found["step"] >= known["o"], (found["step"], known)
        check(found, found["step"])


def main(folder: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    known = {"r": 0, "o": 0}
    longest = 0.05  # seconds; about as long as a few saves, however fast the disk is
    for _ in range(kills):
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                write_until_killed(folder, send)
            except BaseException as error:  # noqa: BLE001  # reported through the pipe
                os.write(send, f"x{error!r}\n".encode())
            os._exit(1)
        os.close(send)
        time.sleep(chance.uniform(0.001, longest))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(receive) as pipe:
            lines = pipe.readlines()
            longest *= 0.9 if lines else 1.2
            for line in lines:
                assert line[0] in known, line
                known[line[0]] = int(line[1:])
        read_back(folder, known)
    checkpoints = dx.Checkpoints(folder / "run", keep=2)
    last = (checkpoints.latest or 0) + 1
    checkpoints.save(last, items(last))
    assert len(checkpoints.steps()) == 2
    assert len(list((folder / "run").iterdir())) == 3  # two steps and the lock: rests were removed
    print("steps", known["r"], "overwritten", known["o"])


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".*os.fork.*")
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
