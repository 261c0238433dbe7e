"""Folders that appear completely or not at all, and have one writer at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import socket
import weakref
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import jax

from declax._jax import first_to_say
from declax.checkpoint.files import NO_FOLLOW, after_commit, naming, open_regular
from declax.errors import CheckpointError

LOCK = ".lock"
"""The file whose lock a writer of a folder holds; the system releases it when the process ends."""


_CURES = """\
if jax.process_index() == 0: {save}        # one process writes; each has the whole arrays
{orbax}        # all processes write, each its part of the arrays"""
OF_ONE_PATH = _CURES.format(save="dx.save(path, items)", orbax='dx.save(path, items, engine="orbax")')
OF_STEPS = _CURES.format(save="checkpoints.save(step, items)", orbax='dx.Checkpoints(folder, engine="orbax")')
"""What to write where several processes save to one folder."""

_saves: Counter[str] = Counter()
"""How often this process has saved to each path."""


def check_one_process_writes(folder: Path) -> None:
    """Raises if another process of this program and machine saves to the path too: the last one would win.

    Processes that save the same number of times to a path do it together, whichever comes first.
    """
    if not jax.distributed.is_initialized():
        return
    path = os.path.abspath(folder)
    _saves[path] += 1
    here = str(jax.process_index())
    first = first_to_say(f"declax/save/{socket.gethostname()}/{path}/{_saves[path]}", here)
    if first != here:
        raise CheckpointError(str(folder), f"process {first} saves to this path too", fix=OF_ONE_PATH)


class Claim:
    """The right to write to a folder, until `release`, or until nothing refers to it.

    A process that was forked from the one with the claim does not have it.

    Attributes:
      release: gives the right back.
      is_held: whether this process has the right.

    Raises:
      CheckpointError: another process or thread has it, or the folder cannot be written to.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK
        with naming(self._path, "created"):
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | NO_FOLLOW, 0o644)
        self.release: weakref.finalize[..., Claim] = weakref.finalize(self, os.close, descriptor)
        _claims.add(self)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = os.fstat(descriptor).st_ino == os.stat(self._path, follow_symlinks=False).st_ino
        except BlockingIOError:
            holder = os.read(descriptor, 200).decode("utf-8", "replace")
            self.release()
            closed = "checkpoints.close()        # of the Checkpoints that wrote there"
            fix = OF_STEPS if jax.distributed.is_initialized() else closed
            raise CheckpointError(str(folder), "another writer uses this folder", got=holder or None, fix=fix) from None
        except OSError as error:
            self.release()
            raise CheckpointError(str(self._path), "the file cannot be locked", got=error.strerror) from error
        if not held:  # the folder was removed as the rest of a killed process
            self.release()
            raise CheckpointError(str(folder), "another writer removed this folder")
        try:
            with naming(self._path, "written"):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"process {os.getpid()}{_this_machine()}".encode(), 0)
        except BaseException:
            self.release()
            raise

    @property
    def is_held(self) -> bool:
        """Whether it was not released."""
        return self.release.alive

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


def _this_machine() -> str:
    """How the text in a lock ends that was written on this machine."""
    return f" on {socket.gethostname()}"


_claims: weakref.WeakSet[Claim] = weakref.WeakSet()


def _release_all() -> None:
    """Ends the claims that a fork has copied: the lock belongs to the open file, which both processes would have."""
    for claim in list(_claims):
        claim.release()


os.register_at_fork(after_in_child=_release_all)

TEMPORARY = ".tmp-"
"""What the names of unfinished folders have between the name and a random part."""
_REST = re.compile(rf"\.(?P<name>.+){re.escape(TEMPORARY)}[0-9a-f]{{16}}")


@contextmanager
def new_folder(path: Path, *, replaces_empty: bool = False) -> Generator[Path, None, None]:
    """A temporary folder, which is renamed to the path after the block, or removed if the block raises.

    Args:
      path: its name in the end.
      replaces_empty: whether an empty folder may be there.

    Raises:
      CheckpointError: the path exists, now or in the end.
    """
    if os.path.lexists(path) and not replaces_empty:
        raise exists_already(path)
    make_folder(path.parent)
    remove_rests(path.parent, path.name)
    temporary, claim = _claimed(path)
    try:
        with claim:
            yield temporary
            sync_folder(temporary)
            with naming(path, "created"):
                _rename_to_new(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    with after_commit(path, "a failure of power may take it away"):
        sync_folder(path.parent)


def _claimed(path: Path) -> tuple[Path, Claim]:
    """A new folder beside the path, and the claim on it."""
    while True:
        temporary = path.with_name(f".{path.name}{TEMPORARY}{secrets.token_hex(8)}")
        with naming(temporary, "created"):
            temporary.mkdir()
        try:
            return temporary, Claim(temporary)
        except BaseException:
            if temporary.exists():
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            # Another writer took it for a rest of a killed process, since nobody had claimed it yet.


def _rename_to_new(temporary: Path, path: Path) -> None:
    try:
        os.rename(temporary, path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise exists_already(path) from None
        raise


def exists_already(path: Path) -> CheckpointError:
    """The error of a checkpoint that would be overwritten."""
    fix = "dx.save(path, items, overwrite=True)        # replaces a checkpoint"
    if jax.distributed.is_initialized():
        fix = f"{fix}\n{OF_ONE_PATH}"
    return CheckpointError(str(path), "the path exists already", fix=fix)


def make_folder(path: Path) -> None:
    """Makes a folder and those above it, where they are missing, and syncs their names."""
    with naming(path, "created"):
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)


def remove_folder(path: Path) -> None:
    """Removes a folder, which is not seen under its name while its files disappear."""
    rest = path.with_name(f".{path.name}{TEMPORARY}{secrets.token_hex(8)}")
    with naming(path, "removed"):
        os.rename(path, rest)
    sync_folder(path.parent)  # a failure of power must not bring the name of a damaged folder back
    with naming(path, "removed"):
        shutil.rmtree(rest)


def remove_rests(folder: Path, name: str | None) -> None:
    """Removes what killed processes have left: of folders of a name, None for any, and all that is of this machine.

    On other machines a process may be writing, since not every file system on a network tells of locks.
    """
    with naming(folder, "listed"):
        entries = [entry for entry in folder.iterdir() if TEMPORARY in entry.name]
    for rest in entries:
        found = _REST.fullmatch(rest.name)
        if found is None or rest.is_symlink() or not rest.is_dir():
            continue
        if name not in (None, found["name"]) and not _is_of_this_machine(rest):
            continue
        try:
            with Claim(rest):
                shutil.rmtree(rest)
        except (CheckpointError, OSError):
            continue  # another process writes there, or removes it as well


def _is_of_this_machine(rest: Path) -> bool:
    try:
        with open_regular(rest / LOCK, follow_links=False) as lock:
            return lock.read(200).decode("utf-8", "replace").endswith(_this_machine())
    except (CheckpointError, OSError):
        return False


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Syncs the entries of a folder: what was created, renamed and removed in it."""
    with naming(path, "synced"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
