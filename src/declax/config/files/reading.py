"""A document from a file of any of the formats."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from declax.config.files.documents import MAX_BYTES, Document
from declax.config.files.json_files import parse_json
from declax.config.files.toml_files import parse_toml
from declax.config.files.yaml_files import parse_yaml
from declax.config.problems import Place, Problem, did_you_mean
from declax.errors import ConfigError

_PARSERS: Final[Mapping[str, Callable[[str, str | None], Document]]] = {
    ".toml": parse_toml,
    ".json": parse_json,
    ".yaml": parse_yaml,
    ".yml": parse_yaml,
}

FORMATS: Final = tuple(_PARSERS)
"""The suffixes of files that can be read."""


def read_document(path: str | os.PathLike[str]) -> Document:
    """The document of a file; its suffix says the format.

    Args:
      path: the file.

    Returns:
      The document. What is wrong inside of the file is among its problems.

    Raises:
      ConfigError: the file cannot be read, is too large, or has another suffix.
      MissingExtraError: it is YAML, and PyYAML is not installed.
    """
    name = os.fspath(path)
    parse = _PARSERS.get(Path(name).suffix.lower())
    if parse is None:
        hint = did_you_mean(Path(name).suffix.lower(), FORMATS)
        raise ConfigError(name, "the suffix names no format of configurations", expected=", ".join(FORMATS), fix=hint)
    try:
        content = _read(name)
    except (OSError, ValueError) as error:
        near = did_you_mean(Path(name).name, _neighbours(Path(name)))
        raise ConfigError(name, "the file cannot be read", why=str(error), fix=near) from None
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
        problem = Problem("syntax", (), "the file is not text in UTF-8", got=error.reason, place=Place(name, line))
        return Document(name, None, [problem])
    return parse(text, name)


def _read(name: str) -> bytes:
    """The content of a file, or a little more of it than is allowed."""
    with open(name, "rb") as file:
        return file.read(MAX_BYTES + 1)


def _neighbours(path: Path) -> list[str]:
    """The names of what else is in the folder of a file."""
    try:
        with os.scandir(path.parent) as entries:
            return [entry.name for entry, _ in zip(entries, range(1000), strict=False) if entry.name != path.name]
    except OSError:
        return []
