"""A folder for each run: how it is made, found and read, and the state of its run."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from declax.config._runs.locks import Lock, holder_of
from declax.errors import DeclaxError, suggest

ABOUT: Final = "run.json"
OUTPUT: Final = "output.txt"
ERROR: Final = "error.txt"
_RECORD: Final = "config"

PREPARED: Final = "prepared"
RUNNING: Final = "running"
COMPLETE: Final = "complete"
FAILED: Final = "failed"
KILLED: Final = "killed"
UNREADABLE: Final = "unreadable"

_TIME: Final = "%Y%m%dT%H%M%SZ"


def now() -> str:
    """The time in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


class RunFolder:
    """The folder of a run.

    Attributes:
      path: of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def about(self) -> dict[str, Any]:
        """What `run.json` says.

        Raises:
          DeclaxError: it cannot be read.
        """
        path = self.path / ABOUT
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            why = "it has no table"
        except (OSError, ValueError) as error:
            found, why = None, f"{type(error).__name__}: {error}"
        if not isinstance(found, dict):
            raise DeclaxError(str(path), "the record of a run cannot be read", why=why)
        return found

    @property
    def record(self) -> Path:
        """The file with the exact configuration."""
        toml = self.path / f"{_RECORD}.toml"
        return toml if toml.exists() else toml.with_suffix(".json")

    @property
    def status(self) -> str:
        """The state of the run. One that says `running` while no process holds its lock was killed."""
        try:
            said = self.about.get("status")
        except DeclaxError:
            return UNREADABLE
        if said in (PREPARED, RUNNING) and holder_of(self.path) is not None:
            return RUNNING
        return KILLED if said == RUNNING else str(said)

    def update(self, **changes: Any) -> None:
        """Changes `run.json`, at once: a reader sees the old text or the new one."""
        write_whole(self.path / ABOUT, json_text({**self.about, **changes}))

    def begin(self, attempt: Mapping[str, Any]) -> None:
        """Notes that a process runs the folder, whose lock it has."""
        self.update(status=RUNNING, attempts=[*self.about.get("attempts", []), dict(attempt)])
        (self.path / ERROR).unlink(missing_ok=True)

    def lock(self) -> Lock:
        """Takes the lock, or raises an error that names the process which has it."""
        return Lock(self.path)

    def keep_record(self, suffix: str, text: str) -> None:
        """Replaces the exact record; the older one stays as ``config.1.toml``. There is a record at each moment."""
        old, new = self.record, self.path / f"{_RECORD}{suffix}"
        number = next(n for n in itertools.count(1) if not list(self.path.glob(f"{_RECORD}.{n}.*")))
        shutil.copyfile(old, old.with_name(f"{_RECORD}.{number}{old.suffix}"))
        write_whole(new, text)
        if old != new:
            old.unlink()


def make_folder(root: Path, fingerprint: str, files: Mapping[str, str | bytes]) -> RunFolder:
    """Makes a folder with some files, which is seen with all of them or not at all."""
    root.mkdir(parents=True, exist_ok=True)
    name = f"{fingerprint[:8]}-{datetime.datetime.now(datetime.UTC).strftime(_TIME)}"
    made = root / f".{name}.{os.getpid()}"
    made.mkdir()
    try:
        for file, content in files.items():
            (made / file).write_bytes(content.encode() if isinstance(content, str) else content)
        path, number = root / name, 1
        while True:
            try:
                os.rename(made, path)  # refuses a folder that has files
            except OSError:
                if not path.exists():
                    raise
                number += 1
                path = root / f"{name}-{number}"
            else:
                return RunFolder(path)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def folders_in(root: Path) -> list[RunFolder]:
    """The folders of runs, the oldest first."""
    found = [path for path in root.iterdir() if _is_run(path)] if root.is_dir() else []
    return [RunFolder(path) for path in sorted(found, key=lambda path: (path.name.partition("-")[2], path.name))]


def find_folder(word: str, root: Path) -> RunFolder:
    """The folder that a word means: its path, or the beginning of its name.

    Raises:
      DeclaxError: there is none, or there are several.
    """
    path = Path(word)
    if _is_run(path):
        return RunFolder(path)
    inside = path.parent if len(path.parts) > 1 else root
    names = [folder.path.name for folder in folders_in(inside)]
    found = [name for name in names if name.startswith(path.name)]
    if len(found) == 1 or path.name in found:
        return RunFolder(inside / (path.name if path.name in found else found[0]))
    if found:
        few = ", ".join(found[:6]) + (f", ... {len(found) - 6} more" if len(found) > 6 else "")
        raise DeclaxError(word, "several runs have names that begin so", got=few, fix="write more of the name")
    # Names differ in their times: the nearest beginning is what counts.
    near = suggest(path.name, [name[: max(len(path.name), 8)] for name in names] + names)
    known = ", ".join(names[-6:]) or "no run is there"
    raise DeclaxError(word, f"there is no such run in {inside}", expected=known, fix=near)


def _is_run(path: Path) -> bool:
    return not path.name.startswith(".") and (path / ABOUT).is_file()


def write_whole(path: Path, text: str) -> None:
    """Writes a file in one step, so that a process that dies leaves the old one."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


def json_text(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
