"""Runs as jobs of a cluster, by submitit."""

from __future__ import annotations

import importlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from declax.config._cli.output import usage_error
from declax.config._runs.commands import command_for, environment_for
from declax.config._runs.folders import OUTPUT, RunFolder
from declax.config._sources.words import value_of
from declax.errors import MissingExtraError

_FOLDER: Final = ".submitit"
_EXAMPLE: Final = "--launch-option timeout_min=60"


class Job:
    """What a job does: it runs a folder. After a preemption or at its time limit, the job is sent again."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.command = command_for(folder)
        self.place = os.getcwd()

    def __call__(self) -> int:
        with open(Path(self.place, self.folder, OUTPUT), "ab") as output:
            return subprocess.run(
                self.command,
                cwd=self.place,
                env=environment_for(Path(self.folder)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode

    def checkpoint(self) -> Any:
        """What submitit sends again: the same, since ``--resume`` goes on where the run stopped."""
        return importlib.import_module("submitit").helpers.DelayedSubmission(self)


def executor_of(cluster: str, root: Path, jobs: int, options: Sequence[str]) -> Any:
    """What sends jobs to a cluster, of which `jobs` run at once.

    Raises:
      MissingExtraError: submitit is not installed.
      DeclaxError: submitit has no such option, or finds no such cluster.
    """
    given = _options(options)
    try:
        submitit: Any = importlib.import_module("submitit")
    except ImportError:
        problem, fix = "submitit, which sends runs to a cluster, is not installed", 'pip install "declax[slurm]"'
        raise MissingExtraError("--launch", problem, fix=fix) from None
    if cluster == "slurm" and jobs > 1:
        given.setdefault("slurm_array_parallelism", jobs)
    try:
        executor = submitit.AutoExecutor(folder=root / _FOLDER, cluster=cluster)
        executor.update_parameters(**given)
    except RuntimeError as error:
        problem = f"--launch {cluster}: submitit finds no such cluster here"
        raise usage_error(problem, why=str(error), fix="--launch local") from None
    except (NameError, TypeError, ValueError) as error:
        got, problem = " ".join(options), "--launch-option: submitit refuses it"
        raise usage_error(problem, got=got, why=str(error), fix=_EXAMPLE) from None
    return executor


def submit(executor: Any, folders: Sequence[RunFolder]) -> list[Any]:
    """Submits a job for each folder, as one array."""
    with executor.batch():
        return [executor.submit(Job(folder.path)) for folder in folders]


def _options(words: Sequence[str]) -> dict[str, Any]:
    pairs = [word.partition("=") for word in words]
    wrong = next((word for word, (name, equals, _) in zip(words, pairs, strict=True) if not (name and equals)), None)
    if wrong is not None:
        raise usage_error("--launch-option: not a name with a value", got=repr(wrong), fix=_EXAMPLE)
    return {name: value_of(value) for name, _, value in pairs}
