"""Files that are written completely or not at all, and files that are read without trust."""

from __future__ import annotations

import json
import os
import stat
import weakref
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from declax.config._files.bounded_json import TOO_MUCH, takes_too_much
from declax.errors import CheckpointError

NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
"""The flag that refuses symbolic links, where the system has it."""
_SYNCED_AT_ONCE: Final = 1 << 26
"""After how many bytes a file begins to be synced while it is written."""


@contextmanager
def naming(path: str | os.PathLike[str], action: str) -> Generator[None, None, None]:
    """Names the file in errors of the operating system, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(os.fspath(path), f"the file cannot be {action}", got=reason) from error


@contextmanager
def after_commit(path: Path, problem: str) -> Generator[None, None, None]:
    """Says in errors that a checkpoint is saved, where only what follows has failed."""
    try:
        yield
    except (CheckpointError, OSError) as error:
        got = error.got or error.problem if isinstance(error, CheckpointError) else error.strerror or str(error)
        raise CheckpointError(str(path), f"the checkpoint is saved, but {problem}", got=got) from error


@contextmanager
def open_regular(path: str | os.PathLike[str], *, follow_links: bool = True) -> Generator[IO[bytes], None, None]:
    """Opens a file for reading, unbuffered; refuses folders, devices and pipes, without waiting for them."""
    opened = OpenFile(path, follow_links=follow_links)
    with opened, os.fdopen(opened.descriptor, "rb", buffering=0, closefd=False) as file:
        yield file


class OpenFile:
    """A regular file that is open for reading, until `close`, or until nothing refers to it.

    It is read at places, by several threads at a time.

    Attributes:
      path: its name.
      descriptor: of the system.
      size: in bytes, when it was opened.
      close: closes it.

    Raises:
      CheckpointError: it cannot be opened, or is a folder, a device or a pipe, which are not waited for.
    """

    def __init__(self, path: str | os.PathLike[str], *, follow_links: bool = True) -> None:
        self.path: Path = Path(path)
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        with naming(path, "opened"):
            self.descriptor: int = os.open(path, flags | (0 if follow_links else NO_FOLLOW))
            self.close: weakref.finalize[..., OpenFile] = weakref.finalize(self, os.close, self.descriptor)
            found = os.fstat(self.descriptor)
        if not stat.S_ISREG(found.st_mode):
            self.close()
            raise CheckpointError(os.fspath(path), "this is not a regular file")
        self.size: int = found.st_size

    def read(self, start: int, length: int) -> bytearray:
        """The bytes at a place; all of them, or an error."""
        content = bytearray(length)
        self.read_into(memoryview(content), start)
        return content

    def read_into(self, buffer: memoryview, start: int) -> None:
        """Fills a buffer with the bytes at a place.

        Raises:
          CheckpointError: the file ends before, or cannot be read.
        """
        rest = buffer
        with naming(self.path, "read"):
            while rest:
                count = os.preadv(self.descriptor, [rest], start)
                if not count:
                    raise CheckpointError(str(self.path), "the file ended while it was read")
                rest = rest[count:]
                start += count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def check_json(path: Path, text: bytes | bytearray) -> None:
    """Raises if a JSON text would be refused for the memory that its values take."""
    if takes_too_much(text):
        raise CheckpointError(str(path), "the JSON takes too much memory", why=TOO_MUCH)


def parse_json(path: Path, text: bytes | bytearray) -> Any:
    """The value of a JSON text of limited size; refuses keys that occur twice, which readers understand differently."""
    check_json(path, text)
    try:
        found = json.loads(text.decode("utf-8"), object_pairs_hook=_table)
    except RecursionError:
        raise CheckpointError(str(path), "the JSON is nested too deeply") from None
    except ValueError as error:
        raise CheckpointError(str(path), "the JSON is invalid", got=str(error)[:200]) from None
    return found


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key occurs twice")
    for key in table:
        if has_half_pair(key):
            raise ValueError(f"the key {key!a} has half of a surrogate pair")
    return table


def has_half_pair(text: str) -> bool:
    """Whether a text has half of a surrogate pair, which UTF-8 cannot write."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


@contextmanager
def new_file(path: str | os.PathLike[str]) -> Generator[Output, None, None]:
    """Creates a file, syncs it after the block, and removes it if the block raises."""
    with naming(path, "created"):
        file: IO[bytes] = open(path, "xb", buffering=0)  # noqa: SIM115  # closed below, where errors are named
    try:
        with naming(path, "written"), file, Output(file) as output:
            yield output
            output.sync()
    except BaseException:
        Path(path).unlink(missing_ok=True)
        raise


class Output:
    """A file that writes all bytes that it is given, and has the system put them on the disk meanwhile."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._pool = ThreadPoolExecutor(1)
        self._under_way: Future[None] | None = None
        self._waiting = 0

    def write(self, content: bytes | memoryview) -> None:
        """Writes bytes; the system may take a part of them at a time."""
        rest = memoryview(content)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._waiting += len(content)
        if self._waiting >= _SYNCED_AT_ONCE and (self._under_way is None or self._under_way.done()):
            self._finish()
            self._under_way = self._pool.submit(os.fsync, self._file.fileno())
            self._waiting = 0

    def sync(self) -> None:
        """Waits until all bytes are on the disk."""
        self._finish()
        os.fsync(self._file.fileno())

    def _finish(self) -> None:
        """Waits for the sync that is under way; its error would not come again."""
        if self._under_way is not None:
            self._under_way.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown()


class Digests:
    """A hash that a thread computes while the caller writes the same bytes."""

    def __init__(self, digest: Any) -> None:
        self._digest = digest
        self._pool = ThreadPoolExecutor(1)
        self._last: Future[None] | None = None

    def add(self, content: bytes | memoryview) -> None:
        """Adds bytes, which must not change until the next call returns."""
        previous, self._last = self._last, self._pool.submit(self._digest.update, content)
        if previous is not None:
            previous.result()

    def hexdigest(self) -> str:
        """The hash of all bytes."""
        if self._last is not None:
            self._last.result()
        return str(self._digest.hexdigest())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown()
