"""Runs mypy with the plugin over small programs whose lines say what it has to report.

A line that ends with ``# E: declax-field | text`` has to give an error of that code, and the text has to stand in
its message or its notes; two errors on a line are divided by ``&``. Lines without a mark have to give none.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import checkers
from checkers import OF_DEPENDENCIES, PLUGIN, WITH_PLUGIN, search_paths

CACHE = checkers.CACHE / checkers.folder_name(WITH_PLUGIN)

_MARK = re.compile(r"# E: (.+)$")


@dataclass(frozen=True)
class Found:
    """An error, with its notes."""

    file: str
    line: int
    code: str
    text: str


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Writes programs into a folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")


def config(folder: Path, extra: str = "", *, plugins: str = PLUGIN, first: Path | None = None) -> Path:
    """Writes mypy's configuration; `first` is a folder where modules are looked for before all others."""
    paths = ":".join(str(path) for path in [*([first] if first else []), folder, *search_paths()])
    made = folder / "mypy.ini"
    made.write_text(
        f"[mypy]\nstrict = True\nmypy_path = {paths}\nexplicit_package_bases = True\nplugins = {plugins}\n{extra}\n"
        f"{OF_DEPENDENCIES}\n",
        encoding="utf-8",
    )
    return made


def environment(*, debug: bool = True) -> dict[str, str]:
    """The variables of the process: failing checks end the run, unless that is what a test looks at."""
    paths = os.pathsep.join(map(str, [*search_paths(), Path(__file__).parent]))
    kept = {name: value for name, value in os.environ.items() if name != "DECLAX_PLUGIN_DEBUG"}
    return {**kept, "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu", **({"DECLAX_PLUGIN_DEBUG": "1"} if debug else {})}


def mypy(folder: Path, *given: str, cache: Path = CACHE, debug: bool = True, runner: str = "mypy") -> str:
    """Runs mypy over all programs in a folder, and returns what it prints; `runner` is the module that runs it."""
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.py"))
    words = [sys.executable, "-m", runner, "--config-file", "mypy.ini", "--cache-dir", str(cache), *given, *files]
    done = subprocess.run(words, cwd=folder, env=environment(debug=debug), capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def check(folder: Path, files: Mapping[str, str], *, cache: Path = CACHE, extra: str = "") -> list[Found]:
    """Writes programs, runs mypy once, and returns what it found."""
    write(folder, files)
    config(folder, extra)
    return read(mypy(folder, "--output", "json", cache=cache))


def check_statuses(folder: Path, program: str) -> tuple[list[Found], dict[str, str | None]]:
    """Runs mypy once over a program; what it found, and the status that the plugin gives to the field of each class."""
    write(folder, {"program.py": program})
    config(folder)
    output = mypy(folder, "--output", "json", runner="plugin_statuses")
    *errors, statuses = output.splitlines()
    return read("\n".join(errors)), json.loads(statuses)


def read(output: str) -> list[Found]:
    """The errors in mypy's output; the notes behind an error belong to it."""
    found: list[Found] = []
    for line in output.splitlines():
        told = json.loads(line) if line.startswith("{") else None
        if told is None:
            continue
        text = told["message"] + (f"\n{told['hint']}" if told.get("hint") else "")
        if told["severity"] == "error":
            found.append(Found(told["file"], told["line"], told["code"] or "", text))
        elif found and found[-1].line == told["line"]:
            last = found.pop()
            found.append(Found(last.file, last.line, last.code, f"{last.text}\n{text}"))
    return found


def marks(files: Mapping[str, str]) -> list[tuple[str, int, str, str]]:
    """What the lines of programs say that mypy has to report: file, line, code, text."""
    said = []
    for name, text in files.items():
        for number, line in enumerate(textwrap.dedent(text).lstrip("\n").splitlines(), 1):
            mark = _MARK.search(line)
            for one in mark[1].split(" & ") if mark else ():
                code, _, part = one.partition(" | ")
                said.append((name, number, code.strip(), part.strip()))
    return said


def assert_as_marked(files: Mapping[str, str], found: Sequence[Found]) -> None:
    """Holds what mypy found against the marks."""
    said = marks(files)
    wanted = sorted((file, line, code) for file, line, code, _ in said)
    got = sorted({(one.file, one.line, one.code) for one in found})
    missing = [entry for entry in wanted if entry not in got]
    surplus = [one for one in found if (one.file, one.line, one.code) not in wanted]
    assert not missing, f"not reported: {missing}; reported: {found}"
    assert not surplus, "\n".join(f"{one.file}:{one.line}: {one.text} [{one.code}]" for one in surplus)
    for file, line, code, part in said:
        texts = [one.text for one in found if (one.file, one.line, one.code) == (file, line, code)]
        assert any(part in text for text in texts), f"{file}:{line}: no {part!r} in {texts}"
