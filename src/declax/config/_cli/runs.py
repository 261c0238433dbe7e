"""The runs that the words of a command line describe, each read into a spec."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from declax.config._cli.arguments import STANDARD_INPUT, Words
from declax.config._cli.output import usage_error
from declax.config._files.documents import MAX_BYTES, Document
from declax.config._files.formats import SUFFIXES, read_document, read_text
from declax.config._sources.composing import Configuration
from declax.config._sources.loading import Loading
from declax.config._sources.sweep_tables import take_sweeps
from declax.config._sources.sweeps import GRID, Plan, expand
from declax.config._sources.words import Word
from declax.config.problems import Report, steps_of
from declax.config.specs import Spec
from declax.errors import ConfigError, describe, suggest


class ReadRun(NamedTuple):
    """A run of a sweep, or the only run, whose name is empty."""

    name: str
    spec: Spec[Any]
    configuration: Configuration
    words: tuple[str, ...]


def documents_of(words: Words) -> list[Document]:
    """The files that words name; `-` is the standard input."""
    missing = [file for file in words.files if file != STANDARD_INPUT and not Path(file).exists()]
    if missing:
        sliced = next((word for word in missing if re.search(r"\[\d*:\d*\]", word.partition("=")[0])), None)
        if sliced is not None:
            star = re.sub(r"\[\d*:\d*\]", "[*]", sliced)
            raise usage_error("a path has an index or a star, and no slice", got=sliced, fix=star)
        names = sorted(str(path) for path in Path().glob("*.*") if path.suffix.lower() in SUFFIXES)
        fix = suggest(missing[0], names) or (f"{missing[0]}=..." if steps_of(missing[0]) is not None else None)
        raise usage_error("there is no such file", got=", ".join(missing), fix=fix)
    return [_from_standard_input() if file == STANDARD_INPUT else read_document(file) for file in words.files]


def _from_standard_input() -> Document:
    """The text of the standard input; its first line tells the format."""
    text = sys.stdin.read(MAX_BYTES + 1)
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), "")
    is_toml = "=" in first or first.startswith("[")
    return read_text(text, "standard input", ".json" if first.startswith("{") else ".toml" if is_toml else ".yaml")


def read_runs(
    documents: Sequence[Document], changes: Sequence[Word], loading: Loading, plan: Plan = GRID
) -> tuple[list[ReadRun], ConfigError | None]:
    """Each run, and one error with the problems of all runs, each once."""
    found: list[ReadRun] = []
    failures: list[ConfigError] = []
    documents, changes, plan = take_sweeps(documents, changes, plan)
    for run in expand(changes, plan):
        try:
            value, configuration = loading.run(documents, run)
        except ConfigError as error:
            failures.append(error)
            continue
        if not isinstance(value, Spec):
            raise ConfigError("the command line", "the configuration describes no object", got=describe(value))
        found.append(ReadRun(run.name, value, configuration, tuple(run.texts)))
    problems = dict.fromkeys(problem for error in failures for problem in error.problems)
    if len(failures) < 2 or not problems:
        return found, failures[0] if failures else None
    report = Report()
    report.extend(problems)
    return found, report.error(failures[0].where)


def read_all(words: Words, loading: Loading, plan: Plan = GRID) -> list[ReadRun]:
    """All runs; raises one error with the problems of all."""
    found, error = read_runs(documents_of(words), words.changes, loading, plan)
    if error is not None:
        raise error
    return found
