"""Runs type checkers over a folder of programs, and reads their reports."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import declax

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = "declax.mypy_plugin"
CHECKERS = ("mypy with the plugin", "mypy", "pyright", "basedpyright", "pyrefly", "ty")
WITH_PLUGIN, MYPY, PYRIGHT, BASEDPYRIGHT, PYREFLY, TY = CHECKERS
STUBS = ROOT / "stubs"
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
        words = [sys.executable, "-m", tool_of(checker), *self._arguments(checker)]
        pipe = subprocess.PIPE
        # A relative path of this process would lead nowhere from the folder.
        env = {**os.environ, "PYTHONPATH": str(Path(declax.__file__).resolve().parents[1])}
        return subprocess.Popen(words, cwd=self.folder, env=env, stdout=pipe, stderr=pipe, encoding="utf-8")

    def _arguments(self, checker: str) -> list[str]:
        """Writes the settings of a checker, and gives what to call it with."""
        match tool_of(checker):
            case "mypy":
                return self._mypy(checker)
            case "pyrefly":
                return self._pyrefly()
            case "ty":
                return self._ty()
            case _:
                return self._pyright(checker)

    def _mypy(self, checker: str) -> list[str]:
        name = folder_name(checker)
        config = self.folder / f"{name}.ini"
        lines = ["[mypy]", "strict = True", *self.of_mypy, f"mypy_path = {':'.join(map(str, search_paths()))}"]
        if checker == WITH_PLUGIN:
            lines.append(f"plugins = {PLUGIN}")
        lines.append(OF_DEPENDENCIES)
        config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        given = ["--config-file", config.name, "--cache-dir", str(self.cache / name), "--output", "json"]
        return [*given, *self.modules()]

    def _pyright(self, checker: str) -> list[str]:
        config = {
            "include": self.modules(),
            "extraPaths": [str(path) for path in search_paths()],
            "stubPath": str(ROOT / "stubs"),
            "typeCheckingMode": "strict",
            "pythonVersion": f"{sys.version_info.major}.{sys.version_info.minor}",
            "reportUnknownMemberType": "none",  # many functions of JAX have parameters without types
            **dict(self.of_pyright),
        }
        (self.folder / f"{checker}.json").write_text(json.dumps(config), encoding="utf-8")
        return ["--outputjson", "--pythonpath", sys.executable, "-p", f"{checker}.json"]

    def _pyrefly(self) -> list[str]:
        config = {"search-path": [*map(str, search_paths()), "."], "python-interpreter-path": sys.executable}
        if search_paths() == [STUBS]:
            # In the packages of the interpreter, a name that comes through a stub is another class than in its module.
            packages = self.folder / "packages"
            packages.mkdir(exist_ok=True)
            (packages / "declax").unlink(missing_ok=True)
            (packages / "declax").symlink_to(Path(declax.__file__).parent)
            config["site-package-path"] = [str(packages)]
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in config.items()]
        (self.folder / "pyrefly.toml").write_text("".join(lines), encoding="utf-8")
        # In threads, it sometimes solves the overloads of one class before it knows the bases of another.
        return ["check", "--threads", "1", "--output-format", "code-climate", *self.modules()]

    def _ty(self) -> list[str]:
        config = {"python": sys.prefix, "extra-paths": [str(path) for path in search_paths()]}
        lines = ["[environment]\n", *(f"{name} = {json.dumps(value)}\n" for name, value in config.items())]
        (self.folder / "ty.toml").write_text("".join(lines), encoding="utf-8")
        return ["check", "--output-format", "gitlab", *self.modules()]

    def modules(self) -> list[str]:
        """The files of the programs."""
        return sorted(path.name for path in self.folder.glob("*.py"))


def folder_name(checker: str) -> str:
    """The folder of a cache that a checker has."""
    return checker.replace(" ", "_")


def tool_of(checker: str) -> str:
    """The package of a checker."""
    return checker.split()[0]


@functools.cache
def version_of(checker: str) -> str:
    """The version of a checker; empty where it is not installed.

    The package pyright of PyPI fetches the program itself when it first runs, so that it may be there without it.
    """
    words = [sys.executable, "-m", tool_of(checker), "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.split()[1] if done.returncode == 0 else ""


def cache_folder(name: str, folders: pytest.TempPathFactory, config: pytest.Config) -> Path:
    """A folder of pytest's cache; a temporary one where pytest runs without its cache (``-p no:cacheprovider``)."""
    cache: pytest.Cache | None = getattr(config, "cache", None)  # its plugin sets it
    return folders.mktemp(f"{name}_cache") if cache is None else cache.mkdir(name)


def search_paths() -> list[Path]:
    """Where the checkers find declax, unless it is among the installed packages, and the stubs."""
    source = Path(declax.__file__).resolve().parents[1]
    return [STUBS] if "site-packages" in source.parts else [source, STUBS]


def _read(checker: str, output: str, complaint: str, code: int) -> list[Report]:
    if code not in (0, 1):
        raise AssertionError(f"{checker} ended with {code}:\n{output}\n{complaint}")
    return sorted(_READERS[tool_of(checker)](output))


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


def _of_code_climate(output: str) -> Iterable[Report]:
    for found in json.loads(output):
        if found["severity"] not in ("info", "minor"):
            place, code = found["location"], found["check_name"].rpartition("/")[2]
            yield Report(Path(place["path"]).stem, place["positions"]["begin"]["line"], code, found["description"])


_READERS: Final[Mapping[str, Callable[[str], Iterable[Report]]]] = {
    "mypy": _of_mypy,
    "pyright": _of_pyright,
    "basedpyright": _of_pyright,
    "pyrefly": _of_code_climate,
    "ty": _of_code_climate,
}
