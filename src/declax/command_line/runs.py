"""The runs of a command line: what a file and overrides describe, and one report of all that is wrong with any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from declax.command_line.overrides import Override, Run, expand, is_override, parse_override
from declax.command_line.targets import is_target
from declax.config.files.documents import Document
from declax.config.files.reading import FORMATS, read_document
from declax.config.problems import Report
from declax.errors import ConfigError, DeclaxError

T = TypeVar("T")


class Words(NamedTuple):
    """The words of a command line that are no options.

    Attributes:
      target: ``module:Class``; empty where there is none.
      files: of configurations.
      parts: paths of parts of them.
      overrides: of their values.
    """

    target: str
    files: tuple[str, ...]
    parts: tuple[str, ...]
    overrides: tuple[Override, ...]


def read_words(words: Sequence[str]) -> Words:
    """Sorts words into a class, files, parts and overrides.

    Raises:
      DeclaxError: for two classes.

    >>> read_words(["models:Net", "net.toml", "blocks.0"])
    Words(target='models:Net', files=('net.toml',), parts=('blocks.0',), overrides=())
    """
    overrides = tuple(parse_override(word) for word in words if is_override(word))
    rest = [word for word in words if not is_override(word)]
    targets = [word for word in rest if is_target(word)]
    if len(targets) > 1:
        raise DeclaxError("declax", "there are two classes", got=", ".join(targets), fix="name one")
    others = [word for word in rest if word not in targets]
    files = tuple(word for word in others if _is_file(word))
    parts = tuple(word for word in others if not _is_file(word))
    return Words(targets[0] if targets else "", files, parts, overrides)


def without_parts(words: Words) -> Words:
    """The words of a command that takes no part: all others are meant as files."""
    return words._replace(files=(*words.files, *words.parts), parts=())


def _is_file(word: str) -> bool:
    """Whether a word is meant as a file: by its suffix, or because no part has such a path."""
    return word.lower().endswith(FORMATS) or "/" in word or not is_override(f"{word}=")


def document_of(words: Words) -> Document:
    """The document of the only file, or an empty one.

    Raises:
      DeclaxError: for two files.
      ConfigError: the file cannot be read.
    """
    if len(words.files) > 1:
        raise DeclaxError("declax", "there are two files", got=", ".join(words.files), fix="name one")
    return read_document(words.files[0]) if words.files else Document(None, {})


def read_runs(
    document: Document, overrides: Sequence[Override], read: Callable[[Document], T]
) -> tuple[list[tuple[Run, T]], ConfigError | None]:
    """What reading gives for each run, and one error with the problems of all runs, each once."""
    found: list[tuple[Run, T]] = []
    failures: list[ConfigError] = []
    for run in expand(document, overrides):
        try:
            found.append((run, _read_fitting(run, read)))
        except ConfigError as error:
            failures.append(error)
    problems = dict.fromkeys(problem for error in failures for problem in error.problems)
    if len(failures) < 2 or not problems:
        return found, failures[0] if failures else None
    report = Report()
    report.extend(problems)
    return found, report.error(failures[0].where)


def _read_fitting(run: Run, read: Callable[[Document], T]) -> T:
    """What reading gives; a value that its field refuses is read in the other way where that has the right type."""
    try:
        return read(run.document())
    except ConfigError as error:
        refused = {problem.place.file for problem in error.problems} & {choice[0].origin for choice in run.chosen}
        if not refused:
            raise
    try:
        return read(run.document(refused))
    except ConfigError as error:
        wrong = {problem.place.file for problem in error.problems if problem.code == "wrong-type"}
        return read(run.document(refused - wrong))
