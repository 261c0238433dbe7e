"""Plain data as the text of TOML, JSON and YAML files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from declax.config._files.reading import yaml_library

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+\Z")
_SHORT: Final = 80


def format_json(data: Any) -> str:
    """Indented JSON; other values become strings."""
    return json.dumps(data, indent=2, ensure_ascii=False, default=str) + "\n"


# --- TOML ---------------------------------------------------------------------


def format_toml(data: Mapping[str, Any]) -> str:
    """TOML: plain values and short tables first, then tables with headers.

    >>> part = {"kind": "Part", "y": {"z": 1.0, "w": {}}}
    >>> print(format_toml({"a": {"$ref": "/x"}, "kind": "Net", "x": part}), end="")
    a = { "$ref" = "/x" }
    kind = "Net"
    <BLANKLINE>
    [x]
    kind = "Part"
    <BLANKLINE>
    [x.y]
    z = 1.0
    w = {}
    """
    return "\n".join(_toml_table(data, ())).strip("\n") + "\n"


def _toml_table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    later: list[tuple[str, Any]] = []
    inline = [_is_inline(value) for value in table.values()]
    # headers would change the order of a mixed table, which matters in a dict
    keeps_order = "kind" not in table and inline != sorted(inline, reverse=True)
    for key, value in table.items():
        if keeps_order or _is_inline(value):
            yield f"{_toml_key(key)} = {_value(value)}"
        else:
            later.append((key, value))
    for key, value in later:
        inside = (*path, key)
        header = ".".join(map(_toml_key, inside))
        if isinstance(value, dict):
            yield from ("", f"[{header}]", *_toml_table(value, inside))
        else:
            for item in value:
                yield from ("", f"[[{header}]]", *_toml_table(item, inside))


def _is_inline(value: Any) -> bool:
    """Whether a value is written in one line; lists of tables and larger tables get headers."""
    if isinstance(value, dict):
        is_flat = not any(isinstance(v, (dict, list)) for v in value.values())
        return is_flat and (len(value) < 2 or ("kind" not in value and len(_value(value)) <= _SHORT))
    if isinstance(value, list):
        return not value or not all(isinstance(item, dict) for item in value)
    return True


def _toml_key(key: str) -> str:
    return key if _BARE.match(key) else _quoted(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    inner = ", ".join(f"{_toml_key(k)} = {_value(v)}" for k, v in value.items())
    return f"{{ {inner} }}" if inner else "{}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


# --- YAML ---------------------------------------------------------------------


def format_yaml(data: Mapping[str, Any]) -> str:
    """YAML in blocks; quotes strings that any version of YAML could read as another type.

    >>> print(format_yaml({"kind": "Net", "parts": [{"kind": "A", "on": "no"}, "1e3"]}), end="")
    kind: Net
    parts:
    - kind: A
      'on': 'no'
    - "1e3"
    """
    yaml = yaml_library("YAML")

    dumper: Any = type("Dumper", (yaml.SafeDumper,), {"ignore_aliases": lambda self, data: True})
    dumper.add_representer(str, _yaml_string)
    text: str = yaml.dump(data, Dumper=dumper, sort_keys=False, allow_unicode=True, width=math.inf)
    return text


def _yaml_string(dumper: Any, text: str) -> Any:
    # PyYAML quotes only what YAML 1.1 reads as a number, and folds lines in single quotes
    is_quoted = text[:1] in "-+.0123456789" or not text.isprintable()
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if is_quoted else None)
