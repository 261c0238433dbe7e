"""The command ``declax``.

Only commands that need a class load JAX: `check` by a saved schema, completion and help do not.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from declax import errors
from declax.command_line.completion import SHELLS, candidates, script
from declax.command_line.overrides import Override, Run, expand, is_override, parse_override, text_with_hints
from declax.command_line.schemas import load_schema, problems_by_schema, schema_of_file
from declax.command_line.targets import is_target
from declax.config.files.reading import FORMATS, read_document
from declax.config.problems import Report

WRONG: Final = 1
"""The exit status where a configuration is wrong, or two differ."""

USAGE: Final = 2
"""The exit status where the command line is."""


_OF_TRACEBACKS: Final = "JAX_TRACEBACK_FILTERING"
"""What a note of JAX speaks of, which is of use below a traceback only."""


class Words(NamedTuple):
    """The words of a command line that stand for themselves.

    Attributes:
      target: ``module:Class``; None where there is none.
      files: of configurations.
      overrides: of their values.
    """

    target: str | None
    files: tuple[str, ...]
    overrides: tuple[Override, ...]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command, and returns its exit status: 0, 1 for a wrong configuration, 2 for a wrong command line."""
    options = _parse(_parser(), argv)
    try:
        status: int = options.run(options)
    except (errors.DeclaxError, _UsageError) as error:
        return tell(error)
    return status


def tell(error: errors.DeclaxError | _UsageError) -> int:
    """Prints an error, with the notes that say where in a configuration it arose, and returns the exit status."""
    shown = text_with_hints(error) if isinstance(error, errors.ConfigError) else str(error)
    notes = [note for note in getattr(error, "__notes__", ()) if _OF_TRACEBACKS not in note]
    print(shown, *notes, sep="\n", file=sys.stderr)
    is_of_configuration = isinstance(error, errors.ConfigError) or hasattr(error, "config_path")
    return WRONG if is_of_configuration else USAGE


def check_each(runs: Iterable[Run], check: Callable[[Run], None]) -> int:
    """Checks all runs, also after one that is wrong, and returns the exit status."""
    status = 0
    for run in runs:
        try:
            check(run)
        except errors.ConfigError as error:
            status = max(status, tell(error))
    return status


def check_files(files: Sequence[str], check: Callable[[str], int]) -> int:
    """Checks all files, also after one that is wrong, and returns the exit status."""
    status = 0
    for file in files:
        try:
            status = max(status, check(file))
        except (errors.ConfigError, _UsageError) as error:
            status = max(status, tell(error))
    return status


def _parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Options may stand between words, which `argparse` alone takes as one run only where there are commands."""
    options, rest = parser.parse_known_args(argv)
    if rest and (not hasattr(options, "words") or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.words += rest
    return options


class _UsageError(Exception):
    """A command line that says too little or too much."""


def read_words(words: Sequence[str]) -> Words:
    """Sorts words into a class, files and overrides.

    Raises:
      ConfigError: for two classes.
    """
    overrides = tuple(parse_override(word) for word in words if is_override(word))
    rest = [word for word in words if not is_override(word)]
    targets = [word for word in rest if is_target(word)]
    if len(targets) > 1:
        raise errors.ConfigError("declax", "there are two classes", got=", ".join(targets), fix="name one")
    files = tuple(word for word in rest if word not in targets)
    return Words(targets[0] if targets else None, files, overrides)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="declax", description="Shows, checks, changes and builds configured models.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Any, about: str, words: str | None = None) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=about, description=about)
        made.set_defaults(run=run)
        if words is not None:
            made.add_argument("words", nargs="*", metavar="WORD", help=words)
        return made

    some = f"module:Class, a file ({', '.join(FORMATS)}), and overrides such as blocks.0.hidden=128 or blocks[*].rate=0"
    schema = add("schema", _with_class("schema"), "writes the JSON schema of a class, for editors", "module:Class")
    schema.add_argument("-o", "--out", metavar="FILE", help="write it into a file")
    check = add("check", _check, "says what is wrong with a configuration, all at once", some)
    check.add_argument("--schema", metavar="FILE", help="by a saved schema, without loading the class or JAX")
    check.add_argument("--migrate", action="store_true", help="take old names and versions too")
    show = add(
        "show", _with_class("show"), "shows the parameters of a class, or a configuration as it is resolved", some
    )
    show.add_argument("--format", choices=("toml", "json", "yaml", "python"), default="toml")
    show.add_argument("--full", action="store_true", help="with all defaults")
    show.add_argument("--migrate", action="store_true", help="take old names and versions too")
    summary = add("summary", _with_class("summary"), "counts parameters and bytes without allocating any", some)
    summary.add_argument("--input", action="append", default=[], metavar="TYPE", help="such as float32[8,28,28,1]")
    build = add("build", _with_class("build"), "builds the model, and prints what it has", some)
    build.add_argument("--seed", type=int, default=0, help="of the random streams (default 0)")
    add("diff", _with_class("diff"), "says in which values two configurations differ", "module:Class and two files")
    complete = add("complete", _complete, "prints what may stand in the place of a word")
    complete.add_argument("--schema", required=True, metavar="FILE")
    complete.add_argument("word", nargs="?", default="")
    completion = add("completion", _completion, "prints what a shell has to read to complete overrides")
    completion.add_argument("shell", choices=tuple(SHELLS))
    completion.add_argument("--schema", required=True, metavar="FILE", help="as `declax schema` has written it")
    completion.add_argument("--command", default="declax", help="what is completed, such as ./train.py")
    return parser


def _with_class(name: str) -> Any:
    """A command that needs the class, and so JAX, which is loaded now."""

    def run(options: argparse.Namespace) -> int:
        words = read_words(options.words)
        if words.target is None:
            raise _UsageError(f"declax {name}: which class? Name it as module:Class, such as models:Net")
        commands = importlib.import_module("declax.command_line.commands")
        status: int = getattr(commands, name)(words, options)
        return status

    return run


def _check(options: argparse.Namespace) -> int:
    words = read_words(options.words)
    if words.target is not None:
        return _with_class("check")(options)  # type: ignore[no-any-return]  # it is an int
    if not words.files:
        raise _UsageError("declax check: which file?")
    return check_files(words.files, lambda file: _check_by_schema(file, words, options.schema))


def _check_by_schema(file: str, words: Words, saved: str | None) -> int:
    document = read_document(file)
    path = saved or schema_of_file(file, document)
    if path is None:
        raise _UsageError(
            f"declax check: {file} names no schema. Name the class (declax check module:Class {file}), or --schema, or "
            "begin the file with `#:schema model.schema.json`."
        )
    schema = load_schema(path)

    def check(run: Run) -> None:
        report = Report()
        report.extend(run.document.problems)
        if run.document.data is not None:
            report.extend(problems_by_schema(run.document, schema))
        if report:
            raise report.error(_title(file, run), run.document.place_of)
        print(f"{_title(file, run)}: as the schema has it")

    return check_each(expand(document, words.overrides), check)


def _title(file: str, run: Run) -> str:
    return f"{file}, {run.name}" if run.name else file


def _complete(options: argparse.Namespace) -> int:
    print("\n".join(candidates(load_schema(options.schema), options.word)))
    return 0


def _completion(options: argparse.Namespace) -> int:
    print(script(options.shell, options.command, options.schema), end="")
    return 0
