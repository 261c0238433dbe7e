"""`Checkpoints`: the steps of a training run in a folder."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import jax

from declax._filters import Filter
from declax._sharding.declared import Shardings
from declax._variables.placement import AxisRules
from declax.checkpoint.loading import Restored, load
from declax.checkpoint.orbax_store import OrbaxStore
from declax.checkpoint.progress import Progress, check_progress
from declax.checkpoint.saving import Engine, check_engine
from declax.checkpoint.stores import FolderStore, Retention, Step
from declax.config.specs import Spec
from declax.errors import CheckpointError


class Checkpoints:
    """The checkpoints of a training run, a folder for each step.

    The first `save` claims the folder until `close`, or until the object or the process ends: a second writer gets an
    error. Readers need no claim. The next writer removes the leftovers of killed processes.

    Args:
      folder: created if it is missing.
      keep: how many of the latest checkpoints stay, besides the best; None for all. A checkpoint is removed only when
        this many later ones are complete.
      best: the name of the metric by which the best checkpoint is chosen. Each `save` must give it then.
      best_mode: whether the best checkpoint has the smallest or the largest value.
      every: only steps that this number divides are saved.
      engine: ``"orbax"`` uses the CheckpointManager of Orbax, in its layout. `save` copies the items and returns; the
        manager writes them in the background. An error of it is raised by the next `save`, by `wait` or by `close`.

    Raises:
      CheckpointError: an argument is out of range, the folder cannot be made, or it has steps of the other engine.
      MissingExtraError: the engine is not installed.

    >>> import declax as dx
    >>> model = dx.Linear(2, 3, rngs=dx.Rngs(0))
    >>> with dx.Checkpoints("run", keep=2, best="loss") as checkpoints:
    ...     for step, loss in enumerate([0.5, 0.1, 0.3, 0.2]):
    ...         _ = checkpoints.save(step, {"model": model, "step": step}, metrics={"loss": loss})
    >>> checkpoints.steps(), checkpoints.latest, checkpoints.best
    ([1, 2, 3], 3, 1)
    >>> checkpoints.load("best", into={"model": model, "step": 0})["step"]
    1
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int | None = 3,
        best: str | None = None,
        best_mode: Literal["min", "max"] = "min",
        every: int = 1,
        engine: Engine = "declax",
    ) -> None:
        self.folder: Path = Path(folder)
        for name, value in (("keep", keep), ("every", every)):
            if value is not None and (type(value) is not int or value < 1):
                problem = f"{name} must be an int of at least 1"
                raise CheckpointError(str(self.folder), problem, got=repr(value))
        if best is not None and (type(best) is not str or not best):
            raise CheckpointError(
                str(self.folder), "best must be the name of a metric", got=repr(best)[:80], fix='best="loss"'
            )
        if best_mode not in ("min", "max"):
            raise CheckpointError(str(self.folder), "best_mode must be 'min' or 'max'", got=repr(best_mode))
        check_engine(str(self.folder), engine)
        self.keep = keep
        self.every = every
        self._engine: Engine = engine
        self._retention = Retention(keep, best, best_mode)
        self._lock = threading.Lock()
        self._store = (OrbaxStore if engine == "orbax" else FolderStore)(folder, self._retention)

    def path(self, step: int) -> Path:
        """The folder of a step; with the engine of Orbax, a path of etils."""
        found: Path = self._store.path(step)
        return found

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, in order; not the one that is being saved in the background."""
        return self._store.steps()

    @property
    def latest(self) -> int | None:
        """The last step that has a checkpoint."""
        return max(self.steps(), default=None)

    @property
    def best(self) -> int | None:
        """The step with the best value of the metric, the last of equal ones; None if there is none."""
        return self._retention.best_of(self._store.metrics())

    def save(
        self,
        step: int,
        items: Mapping[str, Any],
        *,
        metrics: Mapping[str, float] | None = None,
        force: bool = False,
        spec: Spec[Any] | Mapping[str, Spec[Any]] | None = None,
        extra: Iterable[Any] = (),
        progress: Progress | None = None,
    ) -> bool:
        """Saves the checkpoint of a step, and then removes those that are not kept.

        Args:
          step: a number above that of the last checkpoint.
          items: by name, as in `declax.save`.
          metrics: numbers of this step, with that of `best` among them.
          force: save the step even if `every` does not divide it.
          spec, extra: how `load` rebuilds the items, and the classes that this needs, as in `declax.save`.
          progress: as in `declax.save`. Orbax calls it from the threads that write, also after this function has
            returned.

        Returns:
          Whether the step was saved.

        Raises:
          CheckpointError: as for `declax.save`; another writer uses the folder; the step is not above the last one; or
            the metric of the best is missing.
        """
        if type(step) is not int or step < 0:
            raise CheckpointError(
                str(self.folder), "a step must be an int of at least 0", got=repr(step), fix="int(step)"
            )
        if step % self.every and not force:
            return False
        best = self._retention.best
        if best is not None and best not in (metrics or {}):
            fix = f"checkpoints.save(step, items, metrics={{{best!r}: loss}})"
            raise CheckpointError(str(self.folder), f"the metric {best!r} is missing", fix=fix)
        check_progress(str(self.folder), progress)
        with self._lock:
            self._store.claim()
            latest = self.latest
            if latest is not None and step <= latest:
                raise CheckpointError(
                    str(self.folder),
                    f"step {step} is not above the last one",
                    expected=f"a step above {latest}",
                    fix=f"dx.Checkpoints(other_folder)        # or remove the steps from {step} on",
                )
            self._store.write(step, Step(items, spec, metrics, extra, progress))
        return True

    def load(
        self,
        step: int | Literal["latest", "best"] = "latest",
        /,
        into: Mapping[str, Any] | None = None,
        *,
        items: Collection[str] | None = None,
        only: Filter | None = None,
        rename: Mapping[str, str] | None = None,
        strict: bool = True,
        verify: bool = True,
        extra: Iterable[Any] = (),
        abstract: bool = False,
        mesh: jax.sharding.Mesh | None = None,
        rules: AxisRules | None = None,
        shardings: Shardings = None,
        progress: Progress | None = None,
    ) -> Restored:
        """Restores a step; the options are those of `load`.

        Raises:
          CheckpointError: as for `load`; or there is no such step.
        """
        self.wait()
        found = {"latest": self.latest, "best": self.best}.get(step) if isinstance(step, str) else step
        if found is None or found not in self.steps():
            known = ", ".join(map(str, self.steps()))
            expected, got = (f"one of {known}", None) if known else (None, "a folder without checkpoints")
            is_unnamed = step == "best" and self._retention.best is None
            fix = f'dx.Checkpoints({str(self.folder)!r}, best="loss")        # the metric' if is_unnamed else None
            raise CheckpointError(
                str(self.folder), f"there is no checkpoint {step!r}", expected=expected, got=got, fix=fix
            )
        return load(
            self.path(found),
            into,
            items=items,
            only=only,
            rename=rename,
            strict=strict,
            verify=verify,
            extra=extra,
            abstract=abstract,
            mesh=mesh,
            rules=rules,
            shardings=shardings,
            progress=progress,
            engine=self._engine,
        )

    def wait(self) -> None:
        """Waits until the steps that were saved are on the disk.

        Raises:
          CheckpointError: the last step could not be saved in the background.
        """
        with self._lock:
            self._store.wait()

    def close(self) -> None:
        """Waits, and lets other writers use the folder; raises as `wait` does."""
        with self._lock:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
