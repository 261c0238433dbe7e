"""Trains a GPT with one process, then with several on this machine, and compares the losses.

    python examples/distributed/distributed.py [FILE] [PATH=VALUE ...]

The exit status is 0 if the losses agree to rounding, 1 if they do not, a process failed, or the configuration is wrong,
and 2 if the command line is.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import declax as dx
from distributed_run import Run

HERE = Path(__file__).parent


def train(run: Run, words: Sequence[str], processes: int, devices: int) -> list[dict[str, Any]]:
    """What each of the processes that train together has found."""
    options = {"processes": processes, "devices": devices, "timeout": run.seconds}
    command = [sys.executable, "-m", "declax.launch", *(f"--{name}={value}" for name, value in options.items())]
    program = [str(HERE / "train_distributed.py"), *words]
    printed = subprocess.run([*command, *program], stdout=subprocess.PIPE, text=True, check=True).stdout
    lines = (line.partition(" ")[2] for line in printed.splitlines())  # without the number of the process
    return [json.loads(line) for line in lines if line.startswith("{")]


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    run = dx.cli(Run, words, default=HERE / "distributed.toml")
    results: list[dict[str, Any]] = []
    try:
        for processes, devices in ((1, 1), (run.processes, run.devices)):
            started = time.perf_counter()
            results += train(run, words, processes, devices)
            seconds = time.perf_counter() - started
            first, *_, last = results[-1]["losses"]
            count = results[-1]["devices"]
            print(f"{processes} processes, {count} devices: loss {first:.4f} to {last:.4f}, {seconds:.1f} s")
    except subprocess.CalledProcessError:
        return 1  # the launcher has said why
    alone, *together = (result["losses"] for result in results)
    difference = max(abs(one - other) for losses in together for one, other in zip(losses, alone, strict=True))
    print(f"the losses of {run.steps} steps differ by at most {difference:.1e}")
    if not difference <= run.allowed_difference:
        print(f"more than the {run.allowed_difference} that the configuration allows", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
