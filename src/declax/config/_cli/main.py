"""The command ``declax``; only commands that read a class load JAX."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

from declax.config._cli.arguments import load_target, read_words
from declax.config._cli.output import Output, usage_error, write
from declax.config._cli.parsing import COMPLETE, completion_script, declax_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status: 0, 1 for a wrong configuration, 2 for a wrong command line."""
    given = list(sys.argv[1:] if argv is None else argv)
    is_json = "--format=json" in given or ("--format", "json") in itertools.pairwise(given)
    output = Output(is_json=is_json)  # known before parsing, since errors of parsing have this format too
    with output.running():
        if given[:1] == [COMPLETE]:
            completing = importlib.import_module("declax.config._cli.completing")  # loads JAX
            write("\n".join(completing.complete(given[1:])))
            return 0
        options = declax_parser().parse_words(given)
        if options.command == "completion":
            write(completion_script(options.shell))
            return 0
        if options.command == "runs":
            listing = importlib.import_module("declax.config._runs.listing")
            listing.list_runs(Path(options.folder), output)
            return output.status
        if options.command == "rename":
            renaming = importlib.import_module("declax.config._cli.rename")
            renaming.rename(options.words, output, write=options.write)
            return output.status
        if options.command == "check" and options.words and all(word.endswith(".py") for word in options.words):
            files = importlib.import_module("declax.config._cli.shapes")
            files.check_files(options.words, output, strict=options.strict)
            return output.status
        if options.command in ("set", "migrate"):
            edits = importlib.import_module("declax.config._cli.edits")
            change = edits.set_values if options.command == "set" else edits.migrate
            change(read_words(options.words, takes_part=False), options, output)
            return output.status
        words = read_words(options.words, takes_part=options.command in ("show", "summary", "plan", "build"))
        if options.command == "schema" and (words.files or words.changes):
            found = ", ".join([*words.files, *(word.text for word in words.changes)])
            raise usage_error("schema takes a class only", got=found, fix=f"declax schema {words.target}")
        if words.target is None:
            raise usage_error("the class is missing", fix=f"declax {options.command} module:Class, such as models:Net")
        commands = importlib.import_module("declax.config._cli.with_class")  # loads JAX
        getattr(commands, options.command)(load_target(words.target), words, options, output)
    return output.status
