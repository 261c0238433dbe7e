"""Configuration files whose tables name a class: TOML, JSON and YAML."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mypy.nodes import TypeInfo
from mypy.types import Instance
from mypy.typevars import fill_typevars_with_any

from declax.config._files.documents import MAX_BYTES
from declax.config._files.formats import SUFFIXES, format_of, read_document
from declax.config._rename.declaration import Family
from declax.config._rename.project import files_below
from declax.config._rename.tables import Keys, Span, table_of_data
from declax.config._rename.texts import Text
from declax.config.problems import KIND
from declax.config.problems import Path as KeyPath
from declax.errors import ConfigError


def changed_files(
    family: Family, classes: list[TypeInfo], roots: Iterable[TypeInfo], named: Mapping[str, TypeInfo], notes: list[str]
) -> Iterator[Text]:
    """The configuration files with keys for a field, edited.

    Args:
      family: the field.
      classes: the classes of the project.
      roots: the classes that the project reads from configurations.
      named: the class of a file, where the project names both.
      notes: gets what could not be decided.
    """
    roots = list(roots)
    word = re.compile(rf"\b{family.old}\b".encode())
    for path in files_below(Path(), SUFFIXES):
        if path.stat().st_size > MAX_BYTES or not word.search(path.read_bytes()):
            continue
        try:
            document = read_document(path)
            text = Text.read(path)
        except ConfigError as error:
            notes.append(f"{path}: not read: {error.problems[0].message if error.problems else error.problem}")
            continue
        if document.problems:
            notes.append(f"{path}: not read: {document.problems[0].message}")
            continue
        data = document.data
        if isinstance(data, dict) and "json-schema.org" in str(data.get("$schema")):
            notes.append(f"{path}: a schema with the name: write it again by declax schema")
            continue
        keys = Keys(family, classes, text)
        keys.replace(table_of_data(data, _spans(text)), _root(path, data, roots, named))
        notes += keys.undecided
        if text.edits:
            yield text


def _root(path: Path, data: Any, roots: list[TypeInfo], named: Mapping[str, TypeInfo]) -> Instance | None:
    """The class of a file that names none: the one with which the project reads it, or the only one that fits."""
    if not isinstance(data, dict) or KIND in data:
        return None
    found = next((info for name, info in named.items() if path.resolve() == Path(name).resolve()), None)
    if found is None:
        fitting = [info for info in roots if all(info.get(key) is not None for key in data if not key.startswith("$"))]
        found = fitting[0] if len(set(fitting)) == 1 else None
    made = None if found is None else fill_typevars_with_any(found)
    return made if isinstance(made, Instance) else None


def _spans(text: Text) -> dict[KeyPath, list[Span]]:
    """Where each key is written; the key of a table may stand in several headers."""
    found: defaultdict[KeyPath, list[Span]] = defaultdict(list)
    for path, start, end in format_of(text.path).scan(text.text).keys:
        found[path].append((start, end))
    return found
