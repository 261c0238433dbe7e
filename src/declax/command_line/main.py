"""The command ``declax``.

Only commands that need a class load JAX: `check` by a saved schema, completion and help do not.
"""

from __future__ import annotations

import argparse
import functools
import importlib
from collections.abc import Sequence

from declax.command_line.completion import candidates, script
from declax.command_line.output import Output, ending_with_the_pipe, write
from declax.command_line.parsing import declax_parser
from declax.command_line.runs import Words, read_runs, read_words, without_parts
from declax.command_line.schemas import check_by_schema, load_schema, schema_of_file
from declax.config.files.reading import read_document
from declax.errors import DeclaxError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command, and returns its exit status: 0, 1 for a wrong configuration, 2 for a wrong command line."""
    with ending_with_the_pipe():
        options = declax_parser().parse_words(argv)
        output = Output(is_json=getattr(options, "format", None) == "json")
        with output.running():
            _run(options, output)
    return output.status


def _run(options: argparse.Namespace, output: Output) -> None:
    if options.command == "complete":
        write("\n".join(candidates(options.line, options.schema)))
    elif options.command == "completion":
        write(script(options.shell, options.completed, options.schema))
    else:
        words = read_words(options.words)
        if options.command not in ("show", "summary", "build"):
            words = without_parts(words)
        if options.command == "check" and not words.target:
            _check_files(words, options, output)
        else:
            _with_class(words, options, output)


def _with_class(words: Words, options: argparse.Namespace, output: Output) -> None:
    """Runs a command that needs the class, and so JAX, which is loaded now."""
    if not words.target:
        raise DeclaxError(f"declax {options.command}", "which class?", expected="module:Class, such as models:Net")
    commands = importlib.import_module("declax.command_line.with_class")
    getattr(commands, options.command)(words, options, output)


def _check_files(words: Words, options: argparse.Namespace, output: Output) -> None:
    """Checks files by a schema."""
    if not words.files:
        raise DeclaxError("declax check", "which file?")
    for file in words.files:
        with output.catching():
            _check_by_schema(file, words, options, output)


def _check_by_schema(file: str, words: Words, options: argparse.Namespace, output: Output) -> None:
    document = read_document(file)
    path = options.schema or schema_of_file(file, document)
    if path is None:
        fix = f"declax check module:Class {file}       # or --schema FILE, or a first line `#:schema FILE` in the file"
        raise DeclaxError("declax check", f"{file} names no schema", fix=fix)
    check = functools.partial(check_by_schema, schema=load_schema(path))
    found, error = read_runs(document, words.overrides, check)
    for run, _ in found:
        title = f"{file}, {run.name}" if run.name else file
        output.add("", f"{title}: as the schema has it", {"file": file, "run": run.name})
    if error is not None:
        output.fail(error)
