"""Starts a program in several processes of this machine, as SLURM or Kubernetes would on several."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import jax


class LaunchError(Exception):
    """A process failed, or the processes took too long; the others were ended."""


def launch(words: Sequence[str], *, processes: int, devices: int = 1, seconds: float = 600) -> list[str]:
    """Runs a Python program in several processes, each with some devices of the CPU.

    The first process that fails ends all of them, as a process that waits for it would wait for long.

    Args:
      words: the program and the words of its command line.
      processes: how many there are.
      devices: of each process.
      seconds: the time after which the processes are ended.

    Returns:
      What each process has printed.

    Raises:
      LaunchError: a process failed, or time was up; with the last lines of each.
    """
    with tempfile.TemporaryDirectory() as folder, _free_port() as port:
        outputs = [Path(folder) / f"{number}.txt" for number in range(processes)]
        with contextlib.ExitStack() as stack:
            running = []
            for number, path in enumerate(outputs):
                environment = _environment(port, processes, number, devices)
                file = stack.enter_context(path.open("w", encoding="utf-8"))
                running.append(stack.enter_context(_process([*words], environment, file)))
            problem = _wait(running, time.monotonic() + seconds)
        texts = [path.read_text(encoding="utf-8") for path in outputs]
    if problem is not None:
        ends = [f"--- process {number}:\n{text[-3000:]}" for number, text in enumerate(texts)]
        raise LaunchError("\n".join([problem, *ends]))
    return texts


def join() -> None:
    """Makes this process one of those that `launch` has started; does nothing in a program that runs alone.

    On a cluster that JAX knows, `jax.distributed.initialize()` finds the three numbers by itself.
    """
    if "PROCESS_ID" not in os.environ:
        return
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        coordinator_address=os.environ["COORDINATOR"],
        num_processes=int(os.environ["PROCESSES"]),
        process_id=int(os.environ["PROCESS_ID"]),
        initialization_timeout=60,
        shutdown_timeout_seconds=30,  # where one fails, the others learn it when it has waited so long for them
    )


def _environment(port: int, processes: int, number: int, devices: int) -> dict[str, str]:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags.strip()}
    if processes == 1:
        return environment
    three = {"COORDINATOR": f"127.0.0.1:{port}", "PROCESSES": str(processes), "PROCESS_ID": str(number)}
    return environment | three


@contextlib.contextmanager
def _free_port() -> Iterator[int]:
    """A port that nobody else is given meanwhile: bound, and not listening."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


@contextlib.contextmanager
def _process(words: list[str], environment: dict[str, str], output: IO[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that does not outlive the block."""
    command = [sys.executable, *words]
    process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _wait(running: list[subprocess.Popen[str]], deadline: float) -> str | None:
    """Which process fails first, and how; None if all succeed."""
    while True:
        statuses = [process.poll() for process in running]
        failed = next((number for number, status in enumerate(statuses) if status), None)
        if failed is not None:
            return f"process {failed} of {len(running)} ended with status {statuses[failed]}"
        if None not in statuses:
            return None
        if time.monotonic() > deadline:
            return f"process {statuses.index(None)} of {len(running)} took too long"
        time.sleep(0.05)
