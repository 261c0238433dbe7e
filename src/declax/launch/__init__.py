"""Programs of several processes: ``python -m declax.launch`` starts them on one machine, `initialize` connects them."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from types import TracebackType
from typing import Any, Final

import jax

from declax._jax import is_on_a_cluster

__all__ = ["initialize"]

PROCESSES: Final = "DECLAX_PROCESSES"
"""The variable with the number of processes."""
PROCESS: Final = "DECLAX_PROCESS"
"""The variable with the number of this one, from 0. JAX itself reads the address from ``JAX_COORDINATOR_ADDRESS``."""
REPORTS: Final = "DECLAX_LAUNCH_REPORTS"
"""The variable with the file descriptor to which a process writes the error with which it ends."""
END_OF_REPORT: Final = "\0\n"
"""The last line of an error. Helpers of the process may keep the descriptor open."""
AT_END: Final = "\0end\n"
"""The line of a process whose program is over, by itself, by an error or by ``sys.exit``."""


def initialize(**options: Any) -> None:
    """Connects this process to the others of its program; does nothing in a program that runs alone.

    Call it before JAX uses a device. Under ``python -m declax.launch`` it passes the address, the number of processes
    and that of this one to `jax.distributed.initialize`; on a cluster that JAX knows, JAX finds them. An error that
    nobody catches ends the whole program then: the launcher learns of it at once, and JAX would wait for the others.

    Args:
      **options: further arguments of `jax.distributed.initialize`. Under the launcher, the default of
        `shutdown_timeout_seconds` is 30: so long a process that calls ``sys.exit(1)`` waits for the others. When
        they fail meanwhile, the launcher names the one that waited.

    Raises:
      RuntimeError: it was called before, or JAX has used a device.

    >>> import declax as dx
    >>> dx.launch.initialize()
    >>> jax.process_count()
    1
    """
    if PROCESS not in os.environ:
        if options or "JAX_COORDINATOR_ADDRESS" in os.environ or is_on_a_cluster():
            jax.distributed.initialize(**options)
        return
    numbers = {"num_processes": int(os.environ[PROCESSES]), "process_id": int(os.environ[PROCESS])}
    given: dict[str, Any] = {"shutdown_timeout_seconds": 30, **numbers, **options}
    jax.distributed.initialize(**given)
    if REPORTS in os.environ:
        _report_errors(int(os.environ[REPORTS]))


def _report_errors(descriptor: int) -> None:
    """Tells the launcher of an error that ends this process, and of its end, before JAX waits there for the others.

    Python does not say at the end of a program whether ``sys.exit`` has given a status.
    """
    shown_before, process = sys.excepthook, os.getpid()

    def show(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
        shown_before(kind, error, at)
        if isinstance(error, Exception):  # not Ctrl-C
            write("".join(traceback.format_exception(kind, error, at)) + END_OF_REPORT)

    def write(text: str) -> None:
        if os.getpid() == process:  # not in a fork
            with open(descriptor, "w", encoding="utf-8", errors="replace", closefd=False) as report:
                report.write(text)

    sys.excepthook = show
    atexit.register(write, AT_END)  # runs before what was registered earlier, with which JAX waits
