"""The commands that need the class, and so JAX."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import re
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import jax

from declax.command_line.describing import parameter_table
from declax.command_line.main import Words, check_each, check_files
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
    for run in expand(_document(words.files), words.overrides):
        yield run, spec_from_config(cls, run.document, migrate=is_migrating)


def _document(files: Sequence[str]) -> Document:
    return read_document(files[0]) if files else Document(None, {})


@contextlib.contextmanager
def _placed(run: Run) -> Generator[None, None, None]:
    """Notes at an error of a part where its arguments are written."""
    try:
        yield
    except Exception as error:
        path = getattr(error, "config_path", None)
        place = "" if path is None else str(run.document.place_of(tuple(path)))
        if place:
            error.add_note(f"its arguments are written in {place}")
        raise


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
    assert words.target is not None  # the command looks
    cls = load_target(words.target)

    def check_run(name: str | None, run: Run) -> None:
        spec = spec_from_config(cls, run.document, migrate=options.migrate)
        spec.check()
        title = ", ".join(filter(None, (name, run.name))) or words.target
        print(f"{title}: a {target_name(spec.target)}, fingerprint {spec.fingerprint()[:12]}")

    def check_file(file: str) -> int:
        return check_each(expand(read_document(file), words.overrides), functools.partial(check_run, file))

    if words.files:
        return check_files(words.files, check_file)
    return check_each(expand(Document(None, {}), words.overrides), functools.partial(check_run, None))


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
        with _placed(run):
            print(spec.summary(*inputs))
    return 0


def build(words: Words, options: argparse.Namespace) -> int:
    """Builds what is described, and prints what it has."""
    for run, spec in specs(words):
        if run.name:
            print(f"# {run.name}")
        with _placed(run):
            print(summary_of(spec.build(rngs=Rngs(options.seed))))
    return 0


def diff(words: Words, options: argparse.Namespace) -> int:
    """Prints in which values two configurations differ; the exit status is 1 where they do."""
    del options
    if len(words.files) != 2:
        fix = "declax diff module:Class a.toml b.toml"
        raise ConfigError("declax diff", "it compares two files", got=", ".join(words.files) or "none", fix=fix)
    sweep = next((override for override in words.overrides if len(override.values) > 1), None)
    if sweep is not None:
        problem = "a sweep has several runs, and two configurations are compared"
        raise ConfigError("declax diff", problem, got=sweep.text, fix="give one value")
    first, second = (next(specs(words._replace(files=(file,))))[1] for file in words.files)
    found = first.diff(second)
    print(found, end="\n" if found else "")
    return int(bool(found))


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
