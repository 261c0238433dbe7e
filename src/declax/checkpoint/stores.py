"""Where the steps of a run are: which there are, which stay, and who may write them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from declax.checkpoint.files import after_commit, naming
from declax.checkpoint.folders import Claim, make_folder, remove_folder, remove_rests
from declax.checkpoint.manifest import NAME, Manifest, read_manifest
from declax.checkpoint.orbax_engine import is_of_orbax
from declax.checkpoint.progress import Progress
from declax.checkpoint.saving import save
from declax.config.specs import Spec
from declax.errors import CheckpointError

Metrics = Mapping[int, Mapping[str, float]]
"""The metrics of each complete step, in the order of the steps."""


class Retention(NamedTuple):
    """Which steps stay.

    Attributes:
      keep: how many of the latest; None for all.
      best: the name of the metric whose best step stays too.
      mode: whether the smallest or the largest value is the best.
    """

    keep: int | None
    best: str | None
    mode: str

    def best_of(self, metrics: Metrics) -> int | None:
        """The step with the best value, the last of equal ones; None if no step has a value."""
        sign = 1 if self.mode == "min" else -1
        values = {step: sign * found.get(self.best or "", math.nan) for step, found in metrics.items()}
        known = [(value, -step) for step, value in values.items() if not math.isnan(value)]
        return -min(known)[1] if known else None

    def kept(self, metrics: Metrics) -> set[int]:
        """The steps that stay."""
        latest = metrics if self.keep is None else list(metrics)[-self.keep :]
        best = self.best_of(metrics)
        return {*latest} if best is None else {*latest, best}


class Step(NamedTuple):
    """What is saved of a step; the attributes are the arguments of `save`."""

    items: Mapping[str, Any]
    spec: Spec[Any] | Mapping[str, Spec[Any]] | None
    metrics: Mapping[str, float] | None
    extra: Iterable[Any]
    progress: Progress | None


def other_engine(folder: object, engine: str) -> CheckpointError:
    """The error of a folder with the steps of another engine: the two would not see the steps of each other."""
    fix = f'dx.Checkpoints({str(folder)!r}, engine="{engine}")'
    return CheckpointError(str(folder), f'the folder has steps of engine="{engine}"', fix=fix)


_NAME: Final = re.compile(r"step_(\d{10,})")


class FolderStore:
    """Steps as checkpoints of declax: ``step_0000000012``."""

    def __init__(self, folder: str | os.PathLike[str], retention: Retention) -> None:
        self._folder = Path(folder)
        self._retention = retention
        self._claim: Claim | None = None
        make_folder(self._folder)
        with naming(self._folder, "listed"):
            is_other = any(entry.name.isdecimal() and is_of_orbax(entry) for entry in self._folder.iterdir())
        if is_other:
            raise other_engine(self._folder, "orbax")

    def path(self, step: int) -> Path:
        """The folder of a step."""
        return self._folder / f"step_{step:010}"

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, in order."""
        with naming(self._folder, "listed"):
            found = [_NAME.fullmatch(entry.name) for entry in self._folder.glob("step_*") if (entry / NAME).exists()]
        return sorted(int(match[1]) for match in found if match)

    def metrics(self) -> Metrics:
        """The metrics of the steps whose files are there, in their sizes."""
        return {step: manifest.metrics for step in self.steps() if (manifest := self._complete(step)) is not None}

    def _complete(self, step: int) -> Manifest | None:
        folder = self.path(step)
        try:
            manifest = read_manifest(folder)
            sizes = {name: (folder / name).stat().st_size for name in manifest.files}
        except (CheckpointError, OSError):
            return None
        return manifest if all(sizes[name] == record.size for name, record in manifest.files.items()) else None

    def claim(self) -> None:
        """Claims the folder, and removes what killed writers have left."""
        if self._claim is None or not self._claim.is_held:
            self._claim = Claim(self._folder)
            remove_rests(self._folder, None)

    def write(self, step: int, saved: Step) -> None:
        """Saves a step, and then removes complete ones that do not stay."""
        save(
            self.path(step),
            saved.items,
            spec=saved.spec,
            metrics=saved.metrics,
            extra=saved.extra,
            progress=saved.progress,
        )
        complete = self.metrics()
        for old in sorted(complete.keys() - self._retention.kept(complete)):
            with after_commit(self.path(step), f"step {old} cannot be removed"):
                remove_folder(self.path(old))

    def wait(self) -> None:
        """Does nothing: `write` has waited."""

    def close(self) -> None:
        """Lets other writers use the folder."""
        if self._claim is not None:
            self._claim.release()
            self._claim = None
