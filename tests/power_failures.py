"""A disk that forgets what was not synced: all states in which a failure of power may leave it.

A disk may forget the content of a file until the file is synced, and each change of a folder (a new entry, a removed
one, a rename within the folder) until the folder is synced, whatever the order of the changes.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from declax.checkpoint import files
from declax.checkpoint.folders import LOCK, TEMPORARY

Tree = tuple[tuple[str, Any], ...] | bytes
"""A folder, as names with the trees there, or the content of a file."""


@dataclass
class File:
    """Its path while it exists, and what is certainly on the disk."""

    synced: bytes | None = None

    def states(self, path: Path) -> Iterator[Tree]:
        if self.synced is not None:
            yield self.synced
            return
        content = path.read_bytes() if path.exists() and path.name != LOCK else b""
        yield from {content, content[: len(content) // 2], b""}


@dataclass
class Folder:
    """Its entries as programs see them, as they certainly are on the disk, and the changes between the two."""

    now: dict[str, File | Folder] = field(default_factory=dict)
    synced: dict[str, File | Folder] = field(default_factory=dict)
    changes: list[dict[str, File | Folder | None]] = field(default_factory=list)

    def change(self, entries: dict[str, File | Folder | None]) -> None:
        self.changes.append(entries)
        for name, entry in entries.items():
            self.now.pop(name, None)
            if entry is not None:
                self.now[name] = entry

    def sync(self) -> None:
        self.synced, self.changes = dict(self.now), []

    def states(self, path: Path) -> Iterator[Tree]:
        choices = itertools.product([False, True], repeat=len(self.changes))
        if TEMPORARY in path.name:  # what is inside is never read: all of its changes, or none
            choices = iter([(False,) * len(self.changes), (True,) * len(self.changes)])
        for kept in choices:
            entries: dict[str, File | Folder | None] = dict(self.synced)
            for change in itertools.compress(self.changes, kept):
                entries |= change
            present = sorted((name, entry) for name, entry in entries.items() if entry is not None)
            places = [list(entry.states(path / name)) for name, entry in present]
            for combination in itertools.product(*places):
                yield tuple(zip([name for name, _ in present], combination, strict=True))


class Disk:
    """The states of a folder after each operation on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.content = Folder()
        self.states: dict[Tree, None] = {}
        self._lock = threading.Lock()

    def note(self) -> None:
        """Collects the states in which a failure of power now would leave the disk."""
        self.states |= dict.fromkeys(self.content.states(self.root))

    def place(self, path: str | os.PathLike[str], folder: int | None = None) -> tuple[Folder, str] | None:
        """The folder of a path and its name there; None if it is not on this disk."""
        whole = Path(os.readlink(f"/proc/self/fd/{folder}") if folder is not None else "/") / os.path.abspath(path)
        if folder is not None:
            whole = Path(os.readlink(f"/proc/self/fd/{folder}")) / path
        if whole == self.root or not whole.is_relative_to(self.root):
            return None
        found = self.content
        *outer, name = whole.relative_to(self.root).parts
        for part in outer:
            inner = found.now[part]
            assert isinstance(inner, Folder)
            found = inner
        return found, name

    @contextmanager
    def logging(self) -> Iterator[None]:
        """Notes the operations of the block."""
        with pytest.MonkeyPatch.context() as patch:
            for name in ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync", "open"):
                patch.setattr(os, name, self._logged(getattr(self, f"_{name}"), getattr(os, name)))
            patch.setattr(files, "open", self._logged(self._created, open), raising=False)
            self.note()
            yield

    def _logged(self, log: Callable[..., None], real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                existed = isinstance(arguments[0], int) or os.path.lexists(arguments[0])
                result = real(*arguments, **options)
                log(*arguments, existed=existed, **options)
                self.note()
            return result

        return call

    def _mkdir(self, path: Any, *_: Any, **__: Any) -> None:
        if place := self.place(path):
            place[0].change({place[1]: Folder()})

    def _rename(self, source: Any, target: Any, **_: Any) -> None:
        place, other = self.place(source), self.place(target)
        if place and other:
            assert place[0] is other[0], "a rename between two folders"
            place[0].change({place[1]: None, other[1]: place[0].now[place[1]]})

    _replace = _rename

    def _unlink(self, path: Any, *, dir_fd: int | None = None, **_: Any) -> None:
        if place := self.place(path, dir_fd):
            place[0].change({place[1]: None})

    _rmdir = _unlink

    def _open(self, path: Any, flags: int, *_: Any, existed: bool, **__: Any) -> None:
        if flags & os.O_CREAT and not existed and (place := self.place(path)):
            place[0].change({place[1]: File()})

    def _created(self, path: Any, *_: Any, **__: Any) -> None:
        if place := self.place(path):
            place[0].change({place[1]: File()})

    def _fsync(self, descriptor: int, **_: Any) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path == self.root:
            self.content.sync()
        elif place := self.place(path):
            entry = place[0].now[place[1]]
            if isinstance(entry, Folder):
                entry.sync()
            else:
                entry.synced = path.read_bytes()


def write(tree: Tree, path: Path) -> None:
    """Makes a state real."""
    if isinstance(tree, bytes):
        path.write_bytes(tree)
        return
    path.mkdir()
    for name, inner in tree:
        write(inner, path / name)
