"""A lock on a folder that the kernel drops when its process dies, whatever killed it."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import time
from pathlib import Path
from typing import Any, Final

from declax.errors import DeclaxError

FILE: Final = "lock"

_TRIES: Final = 10
"""Who looks whether a lock is held holds it for a moment itself."""

_PAUSE: Final = 0.02  # seconds

_NO_LOCKS: Final = "of a file system without locks"


def _fcntl() -> Any:
    """The module fcntl, or None on a system without it."""
    with contextlib.suppress(ImportError):
        return importlib.import_module("fcntl")
    return None


class Lock:
    """The lock of a folder, held until `release` or the end of the process.

    Where a file system has no locks, the file itself is the lock: it names the process, and its host.

    Raises:
      DeclaxError: another process holds it.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._file = open(self._path, "a+", encoding="utf-8")  # noqa: SIM115  # it stays open while the lock is held
        found = _lock(self._file.fileno(), is_shared=False)
        self._is_of_kernel = found is not None
        if found is False or (found is None and _holder_without_kernel(self._path) is not None):
            self._file.close()
            raise _held(folder, _said(self._path))
        note = "" if self._is_of_kernel else f" {_NO_LOCKS}"
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}{note}\n")
        self._file.flush()
        os.register_at_fork(after_in_child=self._file.close)  # or a child that lives on would keep it

    @property
    def is_held(self) -> bool:
        return not self._file.closed

    def release(self) -> None:
        if self.is_held:
            self._file.truncate(0)
            self._file.close()


def holder_of(folder: Path) -> str | None:
    """Who holds the lock of a folder, as ``process 123 on host``; None if nobody does."""
    path = folder / FILE
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        found = _lock(file, is_shared=True)
    finally:
        os.close(file)  # which drops the lock
    if found is None:
        return _holder_without_kernel(path)
    return None if found else _said(path)


def _lock(file: int, *, is_shared: bool) -> bool | None:
    """Whether a lock could be taken; None if there are none."""
    fcntl = _fcntl()
    if fcntl is None:
        return None
    for _ in range(_TRIES):
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            if is_shared:
                return False
            time.sleep(_PAUSE)
        except OSError:
            return None
        else:
            return True
    return False


def _said(path: Path) -> str:
    """What the file says of the process, which may not have written it yet."""
    for _ in range(_TRIES):
        with contextlib.suppress(OSError):
            if text := path.read_text(encoding="utf-8", errors="replace").strip():
                return text
        time.sleep(_PAUSE)
    return "another process"


def _holder_without_kernel(path: Path) -> str | None:
    """The process that a lock file names, unless it has ended on this host. Other hosts cannot be asked."""
    words = path.read_text(encoding="utf-8", errors="replace").split()
    if len(words) < 4:
        return None
    number, host = words[1], words[3]
    if host == socket.gethostname() and number.isdecimal() and os.name == "posix":
        try:
            os.kill(int(number), 0)
        except ProcessLookupError:
            return None
        except OSError:
            pass
    return " ".join(words)


def _held(folder: Path, holder: str) -> DeclaxError:
    fix = "wait for it, or end it"
    if _NO_LOCKS in holder:
        fix = f"wait for it; if it has ended, and its host did not say so, delete {folder / FILE}"
    return DeclaxError(str(folder), "another process runs this folder", got=holder, fix=fix)
