"""The commands that need the class, and so JAX."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import re
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import jax

from declax.command_line.describing import parameter_table, part_target
from declax.command_line.output import WRONG, Output, write
from declax.command_line.overrides import Run
from declax.command_line.runs import Words, document_of, read_runs
from declax.command_line.targets import load_target
from declax.config._dry_run import shapes_text
from declax.config._parameters import target_name
from declax.config.files.formatting import format_json
from declax.config.files.reading import read_document
from declax.config.loading import config_text, spec_from_config, to_config
from declax.config.schema import json_schema
from declax.config.spec import Spec
from declax.errors import ConfigError, DeclaxError, describe
from declax.rngs import Rngs
from declax.summarizing import Summary
from declax.summarizing import summary as summary_of

_INPUT: Final = re.compile(r"(\w+)\[([\d,\s]*)\]")


def _specs(words: Words, *, migrate: bool = False) -> list[tuple[Run, Spec[Any]]]:
    """The spec of each run that the words describe, or of the part that they name.

    Raises:
      ConfigError: with all that is wrong with any.
    """
    read = functools.partial(spec_from_config, load_target(words.target), migrate=migrate)
    found, error = read_runs(document_of(words), words.overrides, read)
    if error is not None:
        raise error
    return [(run, _part_of(spec, _part(words))) for run, spec in found]


def _part(words: Words) -> str | None:
    if len(words.parts) > 1:
        raise DeclaxError("declax", "there are two parts", got=", ".join(words.parts), fix="name one")
    return words.parts[0] if words.parts else None


def _part_of(spec: Spec[Any], part: str | None) -> Spec[Any]:
    found = spec if part is None else spec[part]
    if not isinstance(found, Spec):
        expected = "one that is described by a table, and written out there"
        raise ConfigError(f"{target_name(spec.target)}.{part}", "not a part", expected=expected, got=describe(found))
    return found


@contextlib.contextmanager
def _placed(run: Run, part: str | None) -> Generator[None, None, None]:
    """Notes at an error of a part where its arguments are written."""
    try:
        yield
    except Exception as error:
        path = getattr(error, "config_path", None)
        place = "" if path is None or part is not None else str(run.document().place_of(tuple(path)))
        if place:
            error.add_note(f"its arguments are written in {place}")
        raise


def schema(words: Words, options: argparse.Namespace, output: Output) -> None:
    """Prints the schema of a class, or writes it into a file."""
    del output
    text = format_json(json_schema(load_target(words.target)))
    if options.out is None:
        write(text, "json")
    else:
        Path(options.out).write_text(text, encoding="utf-8")


def check(words: Words, options: argparse.Namespace, output: Output) -> None:
    """Checks configurations with the class itself."""
    read = functools.partial(_checked, load_target(words.target), options.migrate)
    for file in words.files or (None,):
        with output.catching():
            found, error = read_runs(document_of(words) if file is None else read_document(file), words.overrides, read)
            for run, spec in found:
                kind, fingerprint = target_name(spec.target), spec.fingerprint()
                title = ", ".join(filter(None, (file, run.name))) or words.target
                data = {"file": file, "run": run.name, "kind": kind, "fingerprint": fingerprint}
                output.add("", f"{title}: a {kind}, fingerprint {fingerprint[:12]}", data)
            if error is not None:
                raise error


def _checked(cls: Any, migrate: bool, document: Any) -> Spec[Any]:
    spec: Spec[Any] = spec_from_config(cls, document, migrate=migrate)
    spec.check()
    return spec


def show(words: Words, options: argparse.Namespace, output: Output) -> None:
    """Prints the parameters of a class, or a configuration as it is resolved."""
    if not words.files and not words.overrides:
        target = part_target(load_target(words.target), _part(words))
        output.add("", parameter_table(target), json_schema(target) if output.is_json else None)
        return
    for run, spec in _specs(words, migrate=options.migrate):
        if output.is_json:
            output.add(run.name, "", to_config(spec, full=options.full))
        elif options.format == "python":
            output.add(run.name, spec.to_python(), None, "python")
        else:
            output.add(run.name, config_text(spec, f".{options.format}", full=options.full), None, options.format)


def summary(words: Words, options: argparse.Namespace, output: Output) -> None:
    """Prints what would be built, and what it would answer."""
    inputs = [_input(text) for text in options.input]
    for run, spec in _specs(words):
        with _placed(run, _part(words)):
            found = spec.summary(*inputs)
        data = _summary_data(found)
        if found.output is not None:
            data["output"] = shapes_text(found.output)
        output.add(run.name, str(found), data, "table")
        _hint_at_parts(spec, found, words)


def build(words: Words, options: argparse.Namespace, output: Output) -> None:
    """Builds what is described, and prints what it has."""
    for run, spec in _specs(words):
        with _placed(run, _part(words)):
            found = summary_of(spec.build(rngs=Rngs(options.seed)))
        output.add(run.name, str(found), _summary_data(found), "table")
        _hint_at_parts(spec, found, words)


def _summary_data(found: Summary) -> dict[str, Any]:
    totals = {kind: {"elements": found.count(kind), "bytes": found.nbytes(kind)} for kind in found.kinds}
    return {"modules": list(map(dataclasses.asdict, found.rows)), "totals": totals}


def _hint_at_parts(spec: Spec[Any], found: Summary, words: Words) -> None:
    """Says which parts have arrays, where the whole has none since it keeps descriptions of them."""
    parts = [name for name, value in spec.arguments.items() if isinstance(value, Spec)]
    if not found.rows and parts and not words.parts:
        name = target_name(spec.target)
        write(f"{name} itself has no arrays. Name a part, as the last word: {', '.join(parts)}", "", sys.stderr)


def diff(words: Words, options: argparse.Namespace, output: Output) -> None:
    """Prints in which values two configurations differ; the exit status is 1 where they do."""
    del options
    if len(words.files) != 2:
        got = ", ".join(words.files) or "none"
        fix = "declax diff module:Class a.toml b.toml"
        raise DeclaxError("declax diff", "it compares two files", got=got, fix=fix)
    sweep = next((override for override in words.overrides if len(override.values) > 1), None)
    if sweep is not None:
        problem = "a sweep has several runs, and two configurations are compared"
        raise DeclaxError("declax diff", problem, got=sweep.text, fix="give one value")
    first, second = (_specs(words._replace(files=(file,)))[0][1] for file in words.files)
    found = first.diff(second)
    if found:
        write(str(found))
        output.status = WRONG


def _input(text: str) -> jax.ShapeDtypeStruct:
    """A shape and a dtype, as ``float32[8,3]``."""
    found = _INPUT.fullmatch(text.strip())
    try:
        if found is not None:
            shape = tuple(int(size) for size in found[2].split(",") if size.strip())
            return jax.ShapeDtypeStruct(shape, found[1])  # type: ignore[no-untyped-call]  # of jax, without types
    except (TypeError, ValueError):
        pass
    raise DeclaxError("--input", "not the type of an array", got=repr(text), fix="--input 'float32[8,28,28,1]'")
