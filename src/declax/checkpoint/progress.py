"""Progress: a function of the user that is called with the bytes written or read."""

from __future__ import annotations

import threading
from collections.abc import Callable

from declax.errors import CheckpointError, describe

Progress = Callable[[int, int], None]
"""Is called with the bytes that are done, and all bytes."""


def check_progress(where: str, progress: object) -> None:
    """Raises unless a value can be called, or is None."""
    if not (progress is None or callable(progress)):
        fix = "progress=lambda done, total: print(done, total)"
        raise CheckpointError(where, "progress is a function of two numbers", got=describe(progress), fix=fix)


class Counter:
    """Counts bytes in one or several threads, and tells a function after each addition.

    Args:
      progress: the function; None counts for nobody.
      total: all bytes.
    """

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        """Counts bytes, of which headers come on top of all. The function is not called again after an error of it."""
        with self._lock:
            progress, self._progress = self._progress, None
            if progress is not None:
                self._done = min(self._done + size, self._total)
                progress(self._done, self._total)
                self._progress = progress

    def finish(self) -> None:
        """Counts what is missing: another process wrote it."""
        if self._done < self._total:
            self.add(self._total)
