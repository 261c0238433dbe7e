"""The formats of configuration files, by suffix, and the reading of files into documents."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from declax.config._files.documents import MAX_BYTES, Document, problem_of_text, unreadable
from declax.config._files.json_format import JsonScan, format_json, parse_json
from declax.config._files.scanning import Scan
from declax.config._files.toml_format import TomlScan, format_toml, parse_toml
from declax.config._files.yaml_format import YamlScan, format_yaml, parse_yaml
from declax.config.problems import did_you_mean
from declax.errors import ConfigError


class Format(NamedTuple):
    """A language of configuration files.

    Attributes:
      name: in lower case.
      parse: reads a text, with the name of its file; raises ConfigError for wrong syntax.
      write: the text of plain data.
      scan: the places in a text that `parse` has accepted.
    """

    name: str
    parse: Callable[[str, str | None], Document]
    write: Callable[[Mapping[str, Any]], str]
    scan: Callable[[str], Scan]


_YAML: Final = Format("yaml", parse_yaml, format_yaml, YamlScan)

FORMATS: Final[Mapping[str, Format]] = MappingProxyType(
    {
        ".toml": Format("toml", parse_toml, format_toml, TomlScan),
        ".json": Format("json", parse_json, format_json, JsonScan),
        ".yaml": _YAML,
        ".yml": _YAML,
    }
)

SUFFIXES: Final = tuple(FORMATS)
"""The suffixes of files that can be read."""


def format_of(name: str | os.PathLike[str]) -> Format:
    """The format of a file, or of a suffix with its dot.

    >>> format_of("net.toml").name, format_of(".yml").name
    ('toml', 'yaml')

    Raises:
      ConfigError: the suffix is unknown.
    """
    text = os.fspath(name)
    suffix = (text if text.startswith(".") and text.count(".") == 1 else Path(text).suffix).lower()
    if suffix not in FORMATS:
        fix = did_you_mean(suffix, SUFFIXES)
        raise ConfigError(text, "unknown suffix of a configuration file", expected=", ".join(SUFFIXES), fix=fix)
    return FORMATS[suffix]


def read_document(path: str | os.PathLike[str]) -> Document:
    """Reads a file; its suffix selects the format.

    Raises:
      ConfigError: the file cannot be read, or its syntax is wrong. What else is wrong is in the problems of the result.
    """
    name = os.fspath(path)
    format_of(name)
    try:
        with open(name, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(name, "the file cannot be read", why=str(error)) from None
    _check_size(name, len(content))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8-sig")
        position = before.count("\n") + 1, len(before) - before.rfind("\n")
        problem = problem_of_text(
            name, f"the file is not UTF-8: {error.reason}", position, hint="save the file in the encoding UTF-8"
        )
        raise unreadable(name, problem) from None
    found = read_text(text, name, name)
    found.file = name
    return found


def read_text(text: str, name: str | None, suffix: str) -> Document:
    """Reads a text, such as that of the standard input.

    Args:
      text: the text.
      name: the file in places.
      suffix: of the format, or a name with it.

    Raises:
      ConfigError: as `read_document`.
    """
    found = format_of(suffix)
    _check_size(name, len(text))
    return found.parse(text.removeprefix("\ufeff"), name)


def _check_size(name: str | None, size: int) -> None:
    if size > MAX_BYTES:
        raise ConfigError(
            name or "the configuration",
            "the file is too large for a configuration",
            expected=f"at most {MAX_BYTES // 1024} KiB",
            fix="keep data in separate files, and name those here",
        )
