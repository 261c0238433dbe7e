"""A run of a script, with its folder."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from declax.config._runs.folders import COMPLETE, ERROR, FAILED, KILLED, RunFolder, now, write_whole
from declax.config._runs.locks import Lock
from declax.config.specs import Spec

T_co = TypeVar("T_co", covariant=True)


class Run(Generic[T_co]):
    """A run of a script, whose folder has its exact configuration, versions, the state of git, and its status.

    `cli` makes it. While it runs, the process holds a lock on the folder, which the kernel drops when the process
    dies. In a ``with`` block, the end of the block completes the run, and an exception makes it a failed one, with
    the traceback in ``error.txt``; a run that leaves by ``sys.exit()`` can be resumed. Without a block, call
    `complete`. Of several processes that make one run, the first says what becomes of it.

    >>> import dataclasses, declax as dx
    >>> @dataclasses.dataclass
    ... class Train:
    ...     rate: float = 0.1
    >>> with dx.cli(Train, ["rate=0.5"], runs="runs") as run:
    ...     _ = (run.path / "loss.txt").write_text(str(run.config.rate))
    >>> run.status, sorted(path.name for path in run.path.iterdir() if path.suffix in (".json", ".toml"))
    ('complete', ['config.toml', 'run.json', 'schema.json'])
    """

    def __init__(self, folder: RunFolder, lock: Lock | None, spec: Spec[Any], *, is_resumed: bool) -> None:
        self._folder = folder
        self._lock = lock  # None in other processes than the first of a program
        self._spec = spec
        self._config: Any = None
        self._is_resumed = is_resumed

    def build(self, build: Callable[[Spec[Any]], Any]) -> None:
        """Makes the object; a run whose object cannot be made failed."""
        try:
            self._config = build(self._spec)
        except BaseException as error:
            self.fail(error)
            raise

    @property
    def config(self) -> T_co:
        """The object of the class."""
        found: T_co = self._config
        return found

    @property
    def spec(self) -> Spec[T_co]:
        """The spec from which the object was built."""
        return self._spec

    @property
    def path(self) -> Path:
        """The folder, to which the script may add files."""
        return self._folder.path

    @property
    def about(self) -> dict[str, Any]:
        """What ``run.json`` says: words, versions, the state of git, and each attempt."""
        return self._folder.about

    @property
    def is_resumed(self) -> bool:
        """Whether the run was begun before, so that the folder may have checkpoints."""
        return self._is_resumed

    @property
    def name(self) -> str:
        """The name of the folder: the beginning of the fingerprint, and the time."""
        return self.path.name

    @property
    def status(self) -> str:
        """The state: ``prepared``, ``running``, ``complete``, ``failed`` or ``killed``."""
        return self._folder.status

    def complete(self) -> None:
        """Says that the run is complete, so that a sweep or ``--resume`` does not run it again."""
        self._end(COMPLETE)

    def fail(self, error: BaseException) -> None:
        """Says that the run failed, and writes the traceback to ``error.txt``."""
        if self._lock is not None and self._lock.is_held:
            write_whole(self.path / ERROR, "".join(traceback.format_exception(error)))
        self._end(FAILED)

    def _end(self, status: str) -> None:
        if self._lock is not None and self._lock.is_held:
            self._folder.update(status=status, ended=now())
            self._lock.release()

    def __enter__(self) -> Run[T_co]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.complete()
        elif isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and not error.code):
            self._end(KILLED)
        else:
            self.fail(error)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.status})"
