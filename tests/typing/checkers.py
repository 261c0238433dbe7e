"""Runs mypy with the plugin, mypy without, and pyright over a folder of programs, and reads their reports."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import declax

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = "declax.mypy_plugin"
WITH_PLUGIN, MYPY, PYRIGHT = CHECKERS = ("mypy with the plugin", "mypy", "pyright")
CACHE = ROOT / ".mypy_cache" / "tests"
"""Shared by all runs with the same settings, so that JAX is read once by each checker."""

OF_DEPENDENCIES = "[mypy-optax.*,treescope.*]\nfollow_untyped_imports = True"
"""Settings that all runs have: with other ones, mypy would read these packages again."""


class Report(NamedTuple):
    """An error that a checker found."""

    module: str
    line: int
    code: str
    text: str

    def __str__(self) -> str:
        return f"{self.module}.py:{self.line}: {self.text} [{self.code}]"


@dataclass(frozen=True)
class Programs:
    """A folder of programs to check, and what the checkers may keep between runs.

    Attributes:
      folder: with the programs, each a module.
      cache: where mypy may keep what it knows of other modules.
      of_mypy: lines of its settings, besides the strict mode.
      of_pyright: its settings, besides the strict mode.
    """

    folder: Path
    cache: Path
    of_mypy: tuple[str, ...] = ()
    of_pyright: tuple[tuple[str, str], ...] = ()

    def check(self, checkers: Sequence[str] = CHECKERS) -> dict[str, list[Report]]:
        """Runs the checkers that are installed, all at once, each once over all programs."""
        running = {checker: self._start(checker) for checker in checkers if version_of(checker)}
        ended = {checker: (process.communicate(), process.returncode) for checker, process in running.items()}
        return {checker: _read(checker, *output, code) for checker, (output, code) in ended.items()}

    def _start(self, checker: str) -> subprocess.Popen[str]:
        words = self._pyright() if checker == PYRIGHT else self._mypy(checker)
        pipe = subprocess.PIPE
        # A relative path of this process would lead nowhere from the folder.
        env = {**os.environ, "PYTHONPATH": str(Path(declax.__file__).resolve().parents[1])}
        return subprocess.Popen(words, cwd=self.folder, env=env, stdout=pipe, stderr=pipe, encoding="utf-8")

    def _mypy(self, checker: str) -> list[str]:
        name = folder_name(checker)
        config = self.folder / f"{name}.ini"
        lines = ["[mypy]", "strict = True", *self.of_mypy, f"mypy_path = {':'.join(map(str, search_paths()))}"]
        if checker == WITH_PLUGIN:
            lines.append(f"plugins = {PLUGIN}")
        lines.append(OF_DEPENDENCIES)
        config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        given = ["--config-file", config.name, "--cache-dir", str(self.cache / name), "--output", "json"]
        return [sys.executable, "-m", "mypy", *given, *self.modules()]

    def _pyright(self) -> list[str]:
        config = {
            "include": self.modules(),
            "extraPaths": [str(path) for path in search_paths()],
            "stubPath": str(ROOT / "stubs"),
            "typeCheckingMode": "strict",
            "pythonVersion": f"{sys.version_info.major}.{sys.version_info.minor}",
            "reportUnknownMemberType": "none",  # many functions of JAX have parameters without types
            **dict(self.of_pyright),
        }
        (self.folder / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
        return [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", "."]

    def modules(self) -> list[str]:
        """The files of the programs."""
        return sorted(path.name for path in self.folder.glob("*.py"))


def folder_name(checker: str) -> str:
    """The folder of a cache that a checker has."""
    return checker.replace(" ", "_")


@functools.cache
def version_of(checker: str) -> str:
    """The version of a checker; empty where it is not installed.

    The package pyright of PyPI fetches the program itself when it first runs, so that it may be there without it.
    """
    tool = "pyright" if checker == PYRIGHT else "mypy"
    done = subprocess.run([sys.executable, "-m", tool, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.split()[1] if done.returncode == 0 else ""


def cache_folder(name: str, folders: pytest.TempPathFactory, config: pytest.Config) -> Path:
    """A folder of pytest's cache; a temporary one where pytest runs without its cache (``-p no:cacheprovider``)."""
    cache: pytest.Cache | None = getattr(config, "cache", None)  # its plugin sets it
    return folders.mktemp(f"{name}_cache") if cache is None else cache.mkdir(name)


def search_paths() -> list[Path]:
    """Where the checkers find declax, unless it is among the installed packages, and the stubs."""
    source = Path(declax.__file__).resolve().parents[1]
    return [ROOT / "stubs"] if "site-packages" in source.parts else [source, ROOT / "stubs"]


def _read(checker: str, output: str, complaint: str, code: int) -> list[Report]:
    if code not in (0, 1):
        raise AssertionError(f"{checker} ended with {code}:\n{output}\n{complaint}")
    return sorted(_of_pyright(output) if checker == PYRIGHT else _of_mypy(output))


def _of_mypy(output: str) -> Iterable[Report]:
    for line in output.splitlines():
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            if found["severity"] == "error":
                yield Report(Path(found["file"]).stem, found["line"], found["code"] or "", found["message"])


def _of_pyright(output: str) -> Iterable[Report]:
    for found in json.loads(output)["generalDiagnostics"]:
        if found["severity"] == "error":
            line = found["range"]["start"]["line"] + 1
            yield Report(Path(found["file"]).stem, line, found.get("rule", ""), found["message"])
