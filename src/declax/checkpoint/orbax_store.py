"""The steps of a run in the CheckpointManager of Orbax, which saves them in the background."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from declax.checkpoint import orbax_engine
from declax.checkpoint.folders import Claim
from declax.checkpoint.manifest import NAME
from declax.checkpoint.orbax_progress import Counted, counter_of
from declax.checkpoint.saving import items_for_orbax
from declax.checkpoint.stores import Metrics, Retention, Step, other_engine


class OrbaxStore:
    """Steps as the CheckpointManager of Orbax names them: ``12``.

    The manager is made by the first `write`. All processes write together; the first one holds the lock of the folder.
    """

    def __init__(self, folder: str | os.PathLike[str], retention: Retention) -> None:
        self._folder = orbax_engine.new_folder_of(folder)
        if any((entry / NAME).exists() for entry in self._folder.glob("step_*")):
            raise other_engine(self._folder, "declax")
        self._retention = retention
        self._manager: Any = None
        self._counted: Counted | None = None
        self._close: weakref.finalize[..., Any] | None = None

    def path(self, step: int) -> Any:
        """The folder of a step."""
        return self._folder / str(step)

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, in order; not the one that is being saved."""
        return orbax_engine.steps_in(self._folder)

    def metrics(self) -> Metrics:
        """The metrics of each step."""
        return {step: orbax_engine.metrics_of(self.path(step)) for step in self.steps()}

    def claim(self) -> None:
        """Claims the folder, and waits for the step that is being saved; its error is raised here."""
        if self._manager is not None:
            self.wait()
            return
        is_local = "://" not in str(self._folder)
        claim = Claim(Path(self._folder)) if is_local and jax.process_index() == 0 else None
        policy, best = _Policy(self._retention), self._retention.best
        self._manager, self._counted = orbax_engine.manager_of(self._folder, policy, best)
        self._close = weakref.finalize(self, _close, self._folder, self._manager, claim, os.getpid())
        _writers.add(self)

    def write(self, step: int, saved: Step) -> None:
        """Copies the items, and saves them in the background; the manager removes the steps that do not stay."""
        path = self.path(step)
        read, records, numbers = items_for_orbax(str(path), *saved[:-1])
        if self._counted is not None:
            self._counted.counter = counter_of(saved.progress, read)
        orbax_engine.write_step(self._manager, path, step, read, records, numbers)

    def wait(self) -> None:
        """Waits until the last step is on the disk."""
        if self._manager is not None:
            with orbax_engine.naming_errors(self._folder, "write the checkpoint"):
                self._manager.wait_until_finished()
        self._finish_progress()

    def close(self) -> None:
        """Waits, and lets other writers use the folder."""
        close, self._close, self._manager = self._close, None, None
        if close is not None:
            close()
        self._finish_progress()

    def _finish_progress(self) -> None:
        if self._counted is not None:
            self._counted.finish()


_writers: weakref.WeakSet[OrbaxStore] = weakref.WeakSet()


def _close_all() -> None:
    """Waits for the steps that are being saved when the main thread ends."""
    for store in list(_writers):
        try:
            store.close()
        except Exception as error:  # noqa: BLE001  # nothing is above this
            sys.excepthook(type(error), error, error.__traceback__)


# Orbax saves in threads that start others, which Python refuses when it runs `atexit`; so executors use this, too.
getattr(threading, "_register_atexit", atexit.register)(_close_all)


def _close(folder: Any, manager: Any, claim: Claim | None, process: int) -> None:
    if os.getpid() != process:  # a fork, which has no threads that save
        return
    try:
        with orbax_engine.naming_errors(folder, "write the checkpoint"):
            manager.close()
    finally:
        if claim is not None:
            claim.release()


class _Policy:
    """A `Retention` as Orbax asks for it."""

    def __init__(self, retention: Retention) -> None:
        self._retention = retention

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Whether each checkpoint stays."""
        kept = self._retention.kept({found.step: found.metrics or {} for found in checkpoints})
        return [found.step in kept for found in checkpoints]
