"""``declax set`` and ``declax migrate``: edits of files that keep all other bytes."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

from declax.config._cli.arguments import Words, load_target
from declax.config._cli.output import Output, usage_error
from declax.config._cli.sources import documents_of
from declax.config._files.documents import Document
from declax.config._files.editing import with_value, without
from declax.config._files.formats import format_of
from declax.config._sources.words import INSERT, REMOVE, Word
from declax.config.problems import EACH, Path, path_text
from declax.errors import ConfigError


def set_values(words: Words, options: argparse.Namespace, output: Output) -> None:
    """Changes values of files by words; with a class, the files are checked before they are written."""
    if not words.changes:
        raise usage_error("set: no word says what to change", fix="declax set run.toml model.hidden=128")
    for file, text in _texts(words):
        made = text
        for word in words.changes:
            if len(word.values) > 1:
                raise usage_error("set: a word has several values", got=word.text, fix=word.text.partition(",")[0])
            made = _changed(made, file, word)
        if words.target is not None:
            _check(load_target(words.target), file, made, options)
        _write(file, text, made, options, output)


def migrate(words: Words, options: argparse.Namespace, output: Output) -> None:
    """Brings files of older versions of a class up to date: renamed fields, and versions of its parts."""
    if words.target is None:
        raise usage_error("migrate: the class is missing", fix="declax migrate models:Net net.toml")
    migrating = importlib.import_module("declax.config._sources.migrating")  # loads JAX
    target = load_target(words.target)
    for file, text in _texts(words):
        made = migrating.migrated(target, text, file.suffix)
        _check(target, file, made, options)
        _write(file, text, made, options, output)


def _texts(words: Words) -> Iterator[tuple[FilePath, str]]:
    if not words.files:
        raise usage_error("the file is missing", fix="declax set run.toml model.hidden=128")
    documents_of(words)  # raises for files that are missing or wrong
    for name in words.files:
        yield FilePath(name), FilePath(name).read_bytes().decode()  # with its ends of lines, and its BOM


def _changed(text: str, file: FilePath, word: Word) -> str:
    data = format_of(file.suffix).parse(text.removeprefix("\ufeff"), None).data
    paths = list(_selected(data, word.path, is_new=word.action != REMOVE))
    if not paths:
        raise ConfigError(str(file), f"there is nothing at {path_text(word.path)}", got=word.text)
    for path in reversed(paths):  # later items first, whose indices removals do not move
        if word.action == REMOVE:
            text = without(text, file.suffix, path)
        elif word.action == INSERT:
            text = _with_item(text, file.suffix, data, path, word)
        else:
            text = with_value(text, file.suffix, path, word.values[0])
    return text


def _with_item(text: str, suffix: str, data: Any, path: Path, word: Word) -> str:
    """A text with a new item of a list: at its end, or before an index."""
    held = _at(data, path)
    if isinstance(held, list):
        return with_value(text, suffix, (*path, len(held)), word.values[0])
    items, index = _at(data, path[:-1]), path[-1]
    if not isinstance(items, list) or not isinstance(index, int):
        raise ConfigError(path_text(path), "no item can be inserted here", got=word.text)
    return with_value(text, suffix, path[:-1], [*items[:index], word.values[0], *items[index:]])


def _at(data: Any, path: Path) -> Any:
    for key in path:
        if isinstance(data, list):
            data = data[key] if isinstance(key, int) and key < len(data) else None
        else:
            data = data.get(key) if isinstance(data, dict) else None
    return data


def _selected(data: Any, path: Path, *, is_new: bool) -> Iterator[Path]:
    """The paths that one with stars stands for; new ones too, if they may be made."""
    key, *rest = path
    if key == EACH:
        keys: list[Any] = list(data) if isinstance(data, dict) else list(range(len(data))) if _is_list(data) else []
    elif isinstance(data, dict):
        keys = [str(key)] if is_new or str(key) in data else []
    elif _is_list(data):
        keys = [key] if isinstance(key, int) and key < len(data) + is_new else []
    else:
        keys = [key] if is_new and data is None else []
    for one in keys:
        if not rest:
            yield (one,)
        else:
            yield from ((one, *below) for below in _selected(_at(data, (one,)), (*rest,), is_new=is_new))


def _is_list(data: Any) -> bool:
    return isinstance(data, list)


def _check(target: Any, file: FilePath, text: str, options: argparse.Namespace) -> None:
    """Raises the problems of a text that would be written."""
    document: Document = format_of(file.suffix).parse(text.removeprefix("\ufeff"), str(file))
    document.file = str(file)
    loading = importlib.import_module("declax.config._sources.loading")  # loads JAX
    loading.Loading(target, env=options.env).run([document])


def _write(file: FilePath, before: str, after: str, options: argparse.Namespace, output: Output) -> None:
    """Writes a text in the place of another, and prints the difference."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), str(file), str(file), n=1, lineterm="")
    text = "\n".join(lines) or f"{file}: nothing to change"
    output.add("", text, {"file": str(file), "is_changed": before != after, "diff": text}, "diff")
    if before == after or options.diff:
        return
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    with open(handle, "wb") as made:
        made.write(after.encode())
    os.chmod(name, file.stat().st_mode)
    os.replace(name, file)
