"""The command ``declax``.

Only commands that need a class load JAX: `check` by a saved schema, completion and help do not.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import sys
from collections.abc import Sequence

from declax.config._cli.completion import script
from declax.config._cli.output import Output, ending_with_the_pipe, usage_error, write
from declax.config._cli.parsing import declax_parser
from declax.config._cli.schemas import check_by_schema, load_schema, schema_of_file
from declax.config._cli.words import Words, load_target, read_runs, read_words
from declax.config._files.reading import read_document


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command, and returns its exit status: 0, 1 for a wrong configuration, 2 for a wrong command line."""
    given = list(sys.argv[1:] if argv is None else argv)
    is_json = "--format=json" in given or ("--format", "json") in itertools.pairwise(given)
    output = Output(is_json=is_json)  # known before the words are, whose errors are printed so
    with ending_with_the_pipe(), output.running():
        options = declax_parser().parse_words(given)
        if options.command == "completion":
            write(script(options.shell, options.completed))
            return 0
        words = read_words(options.words, takes_part=options.command in ("show", "summary", "build"))
        if words.target is not None:
            commands = importlib.import_module("declax.config._cli.with_class")  # which loads JAX
            getattr(commands, options.command)(load_target(words.target), words, options, output)
        elif options.command != "check":
            raise usage_error("which class?", expected="module:Class, such as models:Net")
        elif not words.files:
            raise usage_error("which file?")
        for file in words.files if words.target is None else ():
            with output.catching():
                _check_by_schema(file, words, options, output)
    return output.status


def _check_by_schema(file: str, words: Words, options: argparse.Namespace, output: Output) -> None:
    document = read_document(file)
    path = options.schema or schema_of_file(file, document)
    if path is None:
        fix = f"declax check module:Class {file}       # or --schema FILE, or a first line `#:schema FILE` in the file"
        raise usage_error(f"{file} names no schema", fix=fix)
    check = functools.partial(check_by_schema, schema=load_schema(path))
    found, error = read_runs(document, words.overrides, check)
    for run, _ in found:
        title = f"{file}, {run.name}" if run.name else file
        output.add("", f"{title}: as the schema has it", {"file": file, "run": run.name})
    if error is not None:
        output.fail(error)
