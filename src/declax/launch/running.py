"""Processes of one program on this machine: they end together, and each line has the number of its process."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from types import FrameType
from typing import IO, Any, Final, NamedTuple, TypeAlias

from declax.launch import AT_END, END_OF_REPORT, PROCESS, PROCESSES, REPORTS

TIMED_OUT: Final = 124
"""The exit status where time is up, as that of ``timeout``."""
AFTER_FAILURE: Final = 5.0
"""Seconds of grace after a failure: the others can only wait for the one that failed."""
LAST_LINES: Final = 100
"""How many lines of a process that failed are shown again at the end."""
ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
BY_LAUNCHER: Final = (-signal.SIGTERM, -signal.SIGKILL)
"""The statuses of processes that the launcher has ended."""
FORWARDED: Final = (*ENDING, signal.SIGUSR1, signal.SIGUSR2)


class Event(NamedTuple):
    """A process failed, which may take time to end, or has ended."""

    child: Child
    status: int
    has_ended: bool


Events: TypeAlias = "queue.SimpleQueue[Event]"


class Child:
    """One of the processes, in a process group of its own, which has its helpers too.

    Attributes:
      error: the traceback that ended it, if it told.
      is_at_end: whether its program is over, so that it waits for the others or has ended.
    """

    def __init__(self, number: int, words: Sequence[str], environment: dict[str, str]) -> None:
        self.number: int = number
        self.error: str = ""
        self.is_at_end: bool = False
        self._prefix = f"[{number}] "
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        reading, writing = os.pipe()
        self._report = open(reading, encoding="utf-8", errors="replace")  # noqa: SIM115 (closed by its thread)
        try:
            self._process = subprocess.Popen(
                words,
                env={**environment, REPORTS: str(writing)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                pass_fds=(writing,),
                process_group=0,
            )
        finally:
            os.close(writing)

    def watch(self, events: Events) -> None:
        """Passes on what the process prints, and puts an event when it fails and when it ends."""
        pairs = ((self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr))
        streams = [_thread(self._pass_on, source, sink) for source, sink in pairs]
        _thread(self._read_report, events)
        _thread(self._wait, streams, events)

    def _pass_on(self, source: IO[str], sink: IO[str]) -> None:
        for line in source:
            if sink is sys.stderr:
                self._lines.append(line)
            text = line if line.endswith("\n") else line + "\n"
            with _printing, contextlib.suppress(OSError):  # nobody may read it any more
                sink.write(self._prefix + text)
                sink.flush()

    def _read_report(self, events: Events) -> None:
        lines: list[str] = []
        with self._report:
            for line in self._report:
                if line == AT_END:
                    self.is_at_end = True
                elif line == END_OF_REPORT:
                    self.error = "".join(lines)
                    events.put(Event(self, 1, has_ended=False))
                else:
                    lines.append(line)

    def _wait(self, streams: list[threading.Thread], events: Events) -> None:
        status = self._process.wait()
        for stream in streams:
            stream.join(1)  # a helper that lives on may keep it open
        events.put(Event(self, status, has_ended=True))

    def send(self, number: int) -> None:
        """Sends a signal to the process and its helpers."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def last_words(self) -> str:
        """The error that ended the process, or else the last lines of its stderr."""
        return self.error or "".join(self._lines)


def run(
    words: Sequence[str], *, processes: int, devices: int | None = None, grace: float = 30, timeout: float | None = None
) -> int:
    """Runs a command in several processes, and returns the exit status of the one that fails first.

    Args:
      words: the command.
      processes: how many.
      devices: virtual devices of the CPU for each; None for the devices of the machine.
      grace: seconds between SIGTERM and SIGKILL.
      timeout: seconds after which all are ended.
    """
    events: Events = queue.SimpleQueue()
    with _free_port() as port, contextlib.ExitStack() as stack:
        children: list[Child] = []
        ending = _Ending(children, grace)
        stack.callback(ending.kill)
        stack.enter_context(_forwarding(ending))
        for number in range(processes):
            children.append(Child(number, words, _environment(port, processes, number, devices)))
            children[-1].watch(events)
        return _wait(children, events, ending, timeout)


class _Ending:
    """Ends all processes: with a signal, and by SIGKILL after the grace time."""

    def __init__(self, children: list[Child], grace: float) -> None:
        self._children, self._grace = children, grace
        self._deadline = math.inf

    def forward(self, number: int, frame: FrameType | None = None) -> None:
        """Sends a signal to all, as a handler of signals; some of them ask to end."""
        if number in ENDING:
            self._deadline = min(self._deadline, time.monotonic() + self._grace)
        for child in self._children:
            child.send(number)

    def begin(self, but: Sequence[Child] = ()) -> None:
        """Asks all to end, but those that end by themselves."""
        self._deadline = min(self._deadline, time.monotonic() + min(self._grace, AFTER_FAILURE))
        for child in self._children:
            if child not in but:
                child.send(signal.SIGTERM)

    def kill_if_due(self) -> bool:
        """Kills all that are left, if the grace time is over."""
        is_due = time.monotonic() > self._deadline
        if is_due:
            self.kill()
        return is_due

    def kill(self) -> None:
        """Kills all that are left."""
        for child in self._children:
            child.send(signal.SIGKILL)


def _wait(children: list[Child], events: Events, ending: _Ending, timeout: float | None) -> int:
    """Waits for all; the status of the first that fails, whose error it prints last."""
    problem: tuple[Child, str, int] | None = None
    until = math.inf if timeout is None else time.monotonic() + timeout
    running, suspects = list(children), list[Child]()
    while running:
        if ending.kill_if_due() and problem is None:
            problem = running[0], "did not end in the grace time, and was killed", 128 + signal.SIGKILL
        if problem is None and time.monotonic() > until:
            problem = running[0], f"took longer than {timeout:g} s", TIMED_OUT
            ending.begin()
        try:
            event = events.get(timeout=0.1)
        except queue.Empty:
            continue
        if event.has_ended:
            running.remove(event.child)
        if event.status and problem is None:
            # One may have failed before: JAX waits at the end of a program for the others, with its status.
            suspects = [child for child in running if child.is_at_end and child is not event.child]
            problem = event.child, *_said(event.status)
            ending.begin(but=(event.child, *suspects))
        elif event.child in suspects and event.has_ended and event.status not in (0, *BY_LAUNCHER):
            problem, suspects = (event.child, *_said(event.status)), []
    if problem is None:
        return 0
    child, text, status = problem
    lines = child.last_words().rstrip()
    sys.stderr.write(f"process {child.number} of {len(children)} {text}" + (f":\n{lines}\n" if lines else "\n"))
    return status


def _said(status: int) -> tuple[str, int]:
    """An exit status in words, and as a shell counts it."""
    if status > 0:
        return f"ended with status {status}", status
    return f"was ended by {signal.Signals(-status).name}", 128 - status


_printing = threading.Lock()


def _thread(function: Callable[..., object], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


@contextlib.contextmanager
def _forwarding(ending: _Ending) -> Generator[None, None, None]:
    before = {number: signal.signal(number, ending.forward) for number in FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _environment(port: int, processes: int, number: int, devices: int | None) -> dict[str, str]:
    address = f"127.0.0.1:{port}"
    found = {
        "PYTHONUNBUFFERED": "1",
        **os.environ,
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_COORDINATOR_BIND_ADDRESS": address,  # JAX's own default is reached from other machines
        PROCESSES: str(processes),
        PROCESS: str(number),
    }
    if devices is None:
        return {"JAX_LOCAL_DEVICE_IDS": str(number), **found} if processes > 1 else found  # a GPU each, as under SLURM
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    return {**found, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags.strip()}


@contextlib.contextmanager
def _free_port() -> Generator[int, None, None]:
    """A port that nobody else is given meanwhile: bound, and not listening."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]
