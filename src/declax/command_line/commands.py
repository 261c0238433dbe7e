"""The commands that need the class, and so JAX."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jax

from declax.command_line.describing import parameter_table
from declax.command_line.main import Words
from declax.command_line.overrides import Run, expand
from declax.command_line.targets import load_target
from declax.config._parameters import target_name
from declax.config.files.documents import Document
from declax.config.files.reading import read_document
from declax.config.loading import config_text, spec_from_config
from declax.config.schema import json_schema
from declax.config.spec import Spec
from declax.errors import ConfigError
from declax.rngs import Rngs
from declax.summarizing import summary as summary_of

_INPUT: Final = re.compile(r"(\w+)\[([\d,\s]*)\]")


def specs(words: Words, *, is_migrating: bool = False) -> Iterator[tuple[Run, Spec[Any]]]:
    """The spec of each run that the words describe.

    Raises:
      ConfigError: with all that is wrong with one.
    """
    assert words.target is not None  # the command looks
    cls = load_target(words.target)
    if len(words.files) > 1:
        raise ConfigError("declax", "there are two files", got=", ".join(words.files), fix="name one")
    document = read_document(words.files[0]) if words.files else Document(None, {})
    for run in expand(document, words.overrides):
        yield run, spec_from_config(cls, run.document, migrate=is_migrating)


def schema(words: Words, options: argparse.Namespace) -> int:
    """Prints the schema of a class, or writes it into a file."""
    assert words.target is not None  # the command looks
    text = json.dumps(json_schema(load_target(words.target)), indent=2) + "\n"
    if options.out is None:
        print(text, end="")
    else:
        Path(options.out).write_text(text, encoding="utf-8")
    return 0


def check(words: Words, options: argparse.Namespace) -> int:
    """Checks configurations with the class itself."""
    for run, spec in specs(words, is_migrating=options.migrate):
        spec.check()
        print(f"{_name(words, run)}: a {target_name(spec.target)}, fingerprint {spec.fingerprint()[:12]}")
    return 0


def show(words: Words, options: argparse.Namespace) -> int:
    """Prints the parameters of a class, or a configuration as it is resolved."""
    if not words.files and not words.overrides:
        assert words.target is not None  # the command looks
        print(parameter_table(load_target(words.target)))
        return 0
    for run, spec in specs(words, is_migrating=options.migrate):
        if run.name:
            print(f"# {run.name}")
        if options.format == "python":
            print(spec.to_python(), end="")
        else:
            print(config_text(spec, f".{options.format}", full=options.full), end="")
    return 0


def summary(words: Words, options: argparse.Namespace) -> int:
    """Prints what would be built, and what it would answer."""
    inputs = [_input(text) for text in options.input]
    for run, spec in specs(words):
        if run.name:
            print(f"# {run.name}")
        print(spec.summary(*inputs))
    return 0


def build(words: Words, options: argparse.Namespace) -> int:
    """Builds what is described, and prints what it has."""
    for run, spec in specs(words):
        if run.name:
            print(f"# {run.name}")
        print(summary_of(spec.build(rngs=Rngs(options.seed))))
    return 0


def diff(words: Words, options: argparse.Namespace) -> int:
    """Prints in which values two configurations differ; the exit status is 1 where they do."""
    del options
    if len(words.files) != 2:
        fix = "declax diff module:Class a.toml b.toml"
        raise ConfigError("declax diff", "it compares two files", got=", ".join(words.files) or "none", fix=fix)
    first, second = (next(specs(words._replace(files=(file,))))[1] for file in words.files)
    found = first.diff(second)
    print(found, end="\n" if found else "")
    return int(bool(found))


def _name(words: Words, run: Run) -> str:
    return ", ".join(filter(None, (*words.files, run.name))) or str(words.target)


def _input(text: str) -> jax.ShapeDtypeStruct:
    """A shape and a dtype, as ``float32[8,3]``."""
    found = _INPUT.fullmatch(text.strip())
    try:
        if found is not None:
            shape = tuple(int(size) for size in found[2].split(",") if size.strip())
            return jax.ShapeDtypeStruct(shape, found[1])  # type: ignore[no-untyped-call]  # of jax, without types
    except (TypeError, ValueError):
        pass
    raise ConfigError("--input", "this is no type of an array", got=repr(text), fix="--input 'float32[8,28,28,1]'")
