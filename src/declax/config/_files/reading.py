"""A document from a file of any of the formats: TOML and JSON by the standard library, YAML by PyYAML.

A file that cannot be parsed is one error, that of the parser; nothing else is read from it.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from declax.config._files.documents import MAX_BYTES, MAX_DEPTH, TOO_DEEP, Document, Position, float_of, unreadable
from declax.config._files.places import Scan, has_long_key
from declax.config._files.yaml_files import parse_yaml
from declax.config.problems import did_you_mean
from declax.errors import ConfigError

_AT: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_QUOTES: Final = "text stands in quotes, bools are true and false, and there is no null"


def read_document(path: str | os.PathLike[str]) -> Document:
    """The document of a file; its suffix says the format."""
    name = os.fspath(path)
    parse = _PARSERS.get(Path(name).suffix.lower())
    if parse is None:
        hint = did_you_mean(Path(name).suffix.lower(), FORMATS)
        raise ConfigError(name, "the suffix names no format of configurations", expected=", ".join(FORMATS), fix=hint)
    try:
        with open(name, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(name, "the file cannot be read", why=str(error)) from None
    if len(content) > MAX_BYTES:
        raise ConfigError(
            name,
            "the file is too large for a configuration",
            expected=f"at most {MAX_BYTES // 1024} KiB",
            fix="keep data in files of its own, and name those here",
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise unreadable(name, f"the file is not text in UTF-8: {error.reason}", (line, None)) from None
    return parse(text, name)


def parse_toml(text: str, name: str | None) -> Document:
    """A document from the text of a TOML file."""
    text = text.replace("\r\n", "\n")
    try:
        data = None if has_long_key(text) else tomllib.loads(text, parse_float=float_of)
    except RecursionError:
        data = None
    except ValueError as error:  # also an int of more digits than Python reads
        message = str(error)
        position: Position = (None, None)
        if found := _AT.search(message):
            position = (int(found[1]), int(found[2])) if found[1] else (text.rstrip().count("\n") + 1, None)
        hint = _QUOTES if message.startswith("Invalid value") else None
        raise unreadable(name, f"not valid TOML: {_AT.sub('', message)}", position, hint=hint) from None
    if data is None or _is_too_deep(data):
        raise unreadable(name, TOO_DEEP, hint="flatten them", code="too-deep")
    return Document(name, data, find_places=lambda: Scan(text).places)


def parse_json(text: str, name: str | None) -> Document:
    """A document from the text of a JSON file."""
    repeated: list[dict[str, Any]] = []

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            repeated.append(made)
        return made

    data: object = None
    is_too_deep = True
    try:
        data = json.loads(text, object_pairs_hook=table, parse_float=float_of)
        is_too_deep = _is_too_deep(data)
    except RecursionError:
        pass
    except ValueError as error:
        position: Position = (error.lineno, error.colno) if isinstance(error, json.JSONDecodeError) else (None, None)
        raise unreadable(name, f"not valid JSON: {getattr(error, 'msg', error)}", position) from None
    if is_too_deep:
        raise unreadable(name, TOO_DEEP, hint="flatten them", code="too-deep")
    if repeated:
        path, position = Scan(text, is_json=True).repeated
        raise unreadable(name, "the key is given twice", position, path=path)
    return Document(name, data, find_places=lambda: Scan(text, is_json=True).places)


def _is_too_deep(data: object) -> bool:
    level = [data]
    for _ in range(MAX_DEPTH + 1):
        tables = [value for value in level if isinstance(value, (dict, list))]
        level = [inner for value in tables for inner in (value.values() if isinstance(value, dict) else value)]
    return bool(level)


_PARSERS: Final[Mapping[str, Callable[[str, str | None], Document]]] = {
    ".toml": parse_toml,
    ".json": parse_json,
    ".yaml": parse_yaml,
    ".yml": parse_yaml,
}

FORMATS: Final = tuple(_PARSERS)
"""The suffixes of files that can be read."""
