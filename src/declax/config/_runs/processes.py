"""Runs in processes of this machine, some at once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

from declax.config._runs.commands import command_for, environment_for
from declax.config._runs.folders import OUTPUT, RunFolder

_PAUSE: Final = 0.05  # seconds
_GRACE: Final = 10.0  # seconds between the interrupt and the kill

_ENDING: Final = ("SIGTERM", "SIGHUP")
"""Signals that end the children too, as Ctrl-C does."""


def run_all(folders: Sequence[RunFolder], jobs: int, ended: Callable[[RunFolder], None]) -> None:
    """Runs folders in processes; Calls `ended` for each that ended. An interrupt ends all of them."""
    waiting, running = list(reversed(folders)), dict[int, tuple[subprocess.Popen[bytes], RunFolder]]()
    with _interrupted_by_signals():
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    folder = waiting.pop()
                    process = _started(folder)
                    running[process.pid] = process, folder
                for process, folder in list(running.values()):
                    if process.poll() is not None:
                        del running[process.pid]
                        ended(folder)
                time.sleep(_PAUSE)
        finally:
            _end([process for process, _ in running.values()])


def _started(folder: RunFolder) -> subprocess.Popen[bytes]:
    with open(folder.path / OUTPUT, "ab") as output:
        return subprocess.Popen(
            command_for(folder.path),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment_for(folder.path),
            start_new_session=True,  # a terminal interrupts this process, which interrupts each child once
        )


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Interrupts processes, so that they can save, and kills those that do not end, with their own children."""
    try:
        for process in processes:
            _signal(process, "SIGINT")
        until = time.monotonic() + _GRACE
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
    finally:  # also where the user does not want to wait
        for process in processes:
            _signal(process, "SIGKILL")
            process.wait()


def _signal(process: subprocess.Popen[bytes], name: str) -> None:
    if os.name != "posix":
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, getattr(signal, name))


@contextlib.contextmanager
def _interrupted_by_signals() -> Generator[None]:
    """Signals that would end this process at once interrupt it."""
    before: dict[Any, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (getattr(signal, name) for name in _ENDING if hasattr(signal, name)):
            before[number] = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
