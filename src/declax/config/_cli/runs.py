"""The runs that the words of a command line describe, each read into a spec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from declax.config._cli.arguments import Words
from declax.config._cli.sources import documents_of
from declax.config._files.documents import Document
from declax.config._sources.composing import Configuration
from declax.config._sources.loading import Loading
from declax.config._sources.sweep_tables import take_sweeps
from declax.config._sources.sweeps import GRID, Plan, expand
from declax.config._sources.words import Word
from declax.config.problems import Report
from declax.config.specs import Spec
from declax.errors import ConfigError, describe


class ReadRun(NamedTuple):
    """A run of a sweep, or the only run, whose name is empty."""

    name: str
    spec: Spec[Any]
    configuration: Configuration
    words: tuple[str, ...]


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
