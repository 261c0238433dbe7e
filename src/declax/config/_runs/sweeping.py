"""A sweep: a folder for each of its runs that is not complete, and their launch."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from declax.config._cli.output import WRONG, Output, write
from declax.config._runs.clusters import executor_of, submit
from declax.config._runs.commands import script_command
from declax.config._runs.folders import COMPLETE, OUTPUT, RUNNING, UNREADABLE, RunFolder, folders_in
from declax.config._runs.processes import run_all

_RANKS: Final = (COMPLETE, RUNNING)
_INTERRUPTED: Final = 130  # the exit status of programs that SIGINT ends


def known_runs(root: Path) -> dict[tuple[str, int | None], RunFolder]:
    """The folders by the fingerprint and seed of their runs: of equal ones one that is complete, or the newest."""
    found: dict[tuple[str, int | None], RunFolder] = {}
    ranks: dict[tuple[str, int | None], int] = {}
    for folder in folders_in(root):
        status = folder.status
        if status == UNREADABLE:
            continue
        about = folder.about
        key = about.get("fingerprint", ""), about.get("seed")
        rank = _RANKS.index(status) if status in _RANKS else len(_RANKS)
        if rank <= ranks.get(key, rank):
            found[key], ranks[key] = folder, rank
    return found


class Launch:
    """Launches folders, and tells what became of each. It is made before there are folders.

    Raises:
      DeclaxError: nothing can be launched so.
    """

    def __init__(self, options: argparse.Namespace, root: Path, output: Output) -> None:
        script_command()
        self._options = options
        self._output = output
        self._executor: Any = None
        if options.launch is not None:
            self._executor = executor_of(options.launch, root, options.jobs, options.launch_option)
        self._ended = 0
        self._count = 0

    def run(self, folders: Sequence[RunFolder]) -> None:
        """Runs folders; the exit status tells whether one is not complete."""
        self._count = len(folders)
        options = self._options
        if self._executor is not None:
            self._submit(folders)
            return
        try:
            run_all(folders, options.jobs, self._tell)
        except KeyboardInterrupt:
            self._output.status = _INTERRUPTED
            write("interrupted: the runs that were running can be resumed by the same command")

    def _submit(self, folders: Sequence[RunFolder]) -> None:
        jobs = submit(self._executor, folders)
        for job, folder in zip(jobs, folders, strict=True):
            write(f"job {job.job_id}  {folder.path}")
        if self._options.launch == "local":
            for job, folder in zip(jobs, folders, strict=True):
                job.wait()
                self._tell(folder)

    def _tell(self, folder: RunFolder) -> None:
        self._ended += 1
        status = folder.status
        about: dict[str, Any] = {} if status == UNREADABLE else folder.about
        words = " ".join(about.get("words", ()))
        line = f"{self._ended}/{self._count}  {status}  {folder.path.name}  {words}".rstrip()
        if status != COMPLETE:
            self._output.status = max(self._output.status, WRONG)
            line += f"\n  its output is in {folder.path / OUTPUT}"
            if not about.get("attempts"):
                line += "\n  the script ended before dx.cli, or it gives dx.cli other words than those of its process"
        write(line)
