"""The words of a command line, and the runs that they describe."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from declax.config._cli.output import usage_error
from declax.config._cli.overrides import Override, Run, expand, is_override, parse_override
from declax.config._files.documents import Document
from declax.config._files.reading import FORMATS, read_document
from declax.config.problems import Report
from declax.errors import ConfigError, suggest

T = TypeVar("T")

_TARGET: Final = re.compile(r"[\w./\\-]+:[A-Za-z_][\w.]*")
_EXPECTED: Final = "module:Class, or file.py:Class"


class Words(NamedTuple):
    """The words of a command line that are no options."""

    target: str | None
    files: tuple[str, ...]
    part: str | None
    overrides: tuple[Override, ...]


def read_words(words: Sequence[str], *, takes_part: bool = True) -> Words:
    """Sorts words into a class, files, a part and overrides.

    >>> read_words(["models:Net", "net.toml", "blocks.0"])
    Words(target='models:Net', files=('net.toml',), part='blocks.0', overrides=())
    """
    overrides = tuple(parse_override(word) for word in words if is_override(word))
    rest = [word for word in words if not is_override(word)]
    targets = [word for word in rest if _TARGET.fullmatch(word)]
    others = [word for word in rest if word not in targets]
    files = tuple(word for word in others if _is_file(word) or not takes_part)
    parts = [word for word in others if word not in files]
    return Words(_only("classes", targets), files, _only("parts", parts), overrides)


def _only(kind: str, words: Sequence[str]) -> str | None:
    if len(words) > 1:
        raise usage_error(f"there are two {kind}", got=", ".join(words), fix="name one")
    return words[0] if words else None


def _is_file(word: str) -> bool:
    """Whether a word is meant as a file: by its suffix, or because no part has such a path."""
    return word.lower().endswith(FORMATS) or "/" in word or not is_override(f"{word}=")


def document_of(words: Words) -> Document:
    file = _only("files", words.files)
    return Document(None, {}) if file is None else read_document(file)


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


def read_all(words: Words, read: Callable[[Document], T]) -> list[tuple[Run, T]]:
    found, error = read_runs(document_of(words), words.overrides, read)
    if error is not None:
        raise error
    return found


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


def load_target(word: str) -> Any:
    """The class, or function, that ``module:Class`` or ``file.py:Class`` names.

    A command line is code, which its user writes, so that importing is fine here; it never is for what files say.
    Modules are looked for in the current folder too, a file in its folder, as a script is.

    >>> load_target("declax:Linear").__name__
    'Linear'
    """
    module_name, _, path = word.rpartition(":")
    name, folder = module_name, ""
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise ConfigError(name, "there is no such file", expected=_EXPECTED)
        folder, name = str(Path(name).parent), Path(name).stem
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise  # what the module itself lacks
        fix = suggest(name, sorted(path.stem for path in Path().glob("*.py")))
        raise ConfigError(word, f"there is no module {name!r}", expected=_EXPECTED, fix=fix) from None
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            hint = suggest(part, [name for name in dir(found) if not name.startswith("_")])
            raise ConfigError(word, f"{module_name} has no {part!r}", fix=hint) from None
    return found
