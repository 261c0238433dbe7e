"""`Checkpoints`: the steps of a training run in a folder."""

from __future__ import annotations

import math
import os
import re
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

from declax._filters import Filter
from declax.checkpoint.files import naming
from declax.checkpoint.folders import Claim, remove_folder, remove_rests
from declax.checkpoint.loading import Restored, load
from declax.checkpoint.manifest import NAME, Manifest, read_manifest
from declax.checkpoint.saving import Progress, save
from declax.config.specs import Spec
from declax.errors import CheckpointError

_NAME: Final = re.compile(r"step_(\d{10,})")


class Checkpoints:
    """The checkpoints of a training run, a folder for each step.

    The first `save` claims the folder until `close`, or the end of the process: a second writer gets an error. Readers
    need no claim. Rests of killed processes are removed by the next writer.

    Args:
      folder: is made if it is missing.
      keep: how many of the latest checkpoints stay, besides the best; None for all. A checkpoint is removed only when
        this many later ones are complete.
      best: the name of the metric by which the best checkpoint is chosen. Each `save` must give it then.
      best_mode: whether the best checkpoint has the smallest or the largest value.
      every: only steps that this number divides are saved.

    Raises:
      CheckpointError: an argument is out of range, or the folder cannot be made.

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
    ) -> None:
        self.folder: Path = Path(folder)
        for name, value in (("keep", keep), ("every", every)):
            if value is not None and (type(value) is not int or value < 1):
                problem = f"{name} must be an int of at least 1"
                raise CheckpointError(str(self.folder), problem, got=repr(value))
        if best_mode not in ("min", "max"):
            raise CheckpointError(str(self.folder), "best_mode must be 'min' or 'max'", got=repr(best_mode))
        self.keep = keep
        self.every = every
        self._best = best
        self._best_mode = best_mode
        self._claim: Claim | None = None
        self._lock = threading.Lock()
        with naming(self.folder, "created"):
            self.folder.mkdir(parents=True, exist_ok=True)

    def path(self, step: int) -> Path:
        """The folder of a step."""
        return self.folder / f"step_{step:010}"

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, in order."""
        found = [_NAME.fullmatch(entry.name) for entry in self.folder.glob("step_*") if (entry / NAME).exists()]
        return sorted(int(match[1]) for match in found if match)

    @property
    def latest(self) -> int | None:
        """The last step that has a checkpoint."""
        return max(self.steps(), default=None)

    @property
    def best(self) -> int | None:
        """The step with the best value of the metric, the last of equal ones; None if there is none."""
        return self._best_of(self._complete())

    def _complete(self) -> dict[int, Manifest]:
        """The manifests of the steps whose files are there, in their sizes."""
        found: dict[int, Manifest] = {}
        for step in self.steps():
            folder = self.path(step)
            try:
                manifest = read_manifest(folder)
                sizes = {name: (folder / name).stat().st_size for name in manifest.files}
            except (CheckpointError, OSError):
                continue
            if all(sizes[name] == record.size for name, record in manifest.files.items()):
                found[step] = manifest
        return found

    def _best_of(self, manifests: Mapping[int, Manifest]) -> int | None:
        sign = 1 if self._best_mode == "min" else -1
        values = {step: sign * m.metrics.get(self._best or "", math.nan) for step, m in manifests.items()}
        known = [(value, -step) for step, value in values.items() if not math.isnan(value)]
        return -min(known)[1] if known else None

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
          items, metrics, spec, extra, progress: as in `save`.
          force: save the step even if `every` does not divide it.

        Returns:
          Whether the step was saved.

        Raises:
          CheckpointError: as for `save`; another writer uses the folder; the step is not above the last one; or the
            metric of the best is missing.
        """
        if type(step) is not int or step < 0:
            raise CheckpointError(str(self.folder), "a step must be an int of at least 0", got=repr(step))
        if step % self.every and not force:
            return False
        if self._best is not None and self._best not in (metrics or {}):
            fix = f"checkpoints.save(step, items, metrics={{{self._best!r}: loss}})"
            raise CheckpointError(str(self.folder), f"the metric {self._best!r} is missing", fix=fix)
        with self._lock:
            if self._claim is None:
                self._claim = Claim(self.folder)
                remove_rests(self.folder, "*")
            latest = self.latest
            if latest is not None and step <= latest:
                raise CheckpointError(
                    str(self.folder),
                    f"step {step} is not above the last one",
                    expected=f"a step above {latest}",
                    fix=f"dx.Checkpoints(other_folder)        # or remove the steps from {step} on",
                )
            save(self.path(step), items, spec=spec, metrics=metrics, extra=extra, progress=progress)
            self._remove_old()
        return True

    def _remove_old(self) -> None:
        """Removes complete checkpoints that are neither among the latest nor the best."""
        complete = self._complete()
        kept = {self._best_of(complete), *list(complete)[-self.keep :]} if self.keep is not None else complete.keys()
        for step in complete:
            if step not in kept:
                remove_folder(self.path(step))

    def load(
        self,
        step: int | Literal["latest", "best"] = "latest",
        /,
        into: Mapping[str, Any] | None = None,
        *,
        only: Filter | None = None,
        rename: Mapping[str, str] | None = None,
        strict: bool = True,
        verify: bool = True,
        extra: Iterable[Any] = (),
        progress: Progress | None = None,
    ) -> Restored:
        """Restores a step; the options are those of `load`.

        Raises:
          CheckpointError: as for `load`; or there is no such step.
        """
        found = {"latest": self.latest, "best": self.best}.get(step) if isinstance(step, str) else step
        if found is None or found not in self.steps():
            known = ", ".join(map(str, self.steps())) or "nothing"
            raise CheckpointError(str(self.folder), f"there is no checkpoint {step!r}", expected=known)
        return load(
            self.path(found),
            into,
            only=only,
            rename=rename,
            strict=strict,
            verify=verify,
            extra=extra,
            progress=progress,
        )

    def close(self) -> None:
        """Lets other writers use the folder."""
        with self._lock:
            if self._claim is not None:
                self._claim.release()
                self._claim = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
