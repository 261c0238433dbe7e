"""Plain data as the text of TOML, JSON and YAML files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from declax.config._files.yaml_files import core_scalar

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+\Z")
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./ -]*(?<! )\Z")
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
    keeps_order = "kind" not in table and _is_mixed(table)
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


def _is_mixed(table: Mapping[str, Any]) -> bool:
    """Whether headers would change the order of a table, which matters in a dict."""
    inline = [_is_inline(value) for value in table.values()]
    return inline != sorted(inline, reverse=True)


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


# --- YAML ---------------------------------------------------------------------


def format_yaml(data: Mapping[str, Any]) -> str:
    """YAML in blocks; quotes strings that any version of YAML could read as another type.

    >>> print(format_yaml({"kind": "Net", "rates": [1e-3, 2], "parts": [{"kind": "A", "on": "no"}]}), end="")
    kind: Net
    rates: [0.001, 2]
    parts:
      - kind: A
        "on": "no"
    """
    return "\n".join(_yaml_table(data, "")) + "\n" if data else "{}\n"


def _yaml_table(table: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in table.items():
        head = f"{indent}{_yaml_string(key)}:"
        if isinstance(value, dict) and value:
            yield head
            yield from _yaml_table(value, indent + "  ")
        elif isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
            yield head
            yield from _yaml_list(value, indent + "  ")
        else:
            yield f"{head} {_value(value, is_yaml=True)}"


def _yaml_list(items: list[Any], indent: str) -> Iterator[str]:
    for item in items:
        if isinstance(item, dict) and item:
            first, *rest = _yaml_table(item, indent + "  ")
            yield f"{indent}- {first.lstrip()}"
            yield from rest
        else:
            yield f"{indent}- {_value(item, is_yaml=True)}"


# --- values -------------------------------------------------------------------


def _value(value: Any, *, is_yaml: bool = False) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return _yaml_string(value) if is_yaml else _quoted(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value).replace("inf", ".inf").replace("nan", ".nan") if is_yaml else str(value)
        text = repr(value)
        return text if "." in text else text.replace("e", ".0e")  # YAML 1.1 reads `1e-3` as a string
    if isinstance(value, list):
        return f"[{', '.join(_value(item, is_yaml=is_yaml) for item in value)}]"
    if is_yaml:
        return "{" + ", ".join(f"{_quoted(k)}: {_value(v, is_yaml=True)}" for k, v in value.items()) + "}"
    inner = ", ".join(f"{_toml_key(k)} = {_value(v)}" for k, v in value.items())
    return f"{{ {inner} }}" if inner else "{}"


def _quoted(text: str) -> str:
    """A string in double quotes, with the escapes that TOML and YAML share."""
    quoted = json.dumps(text, ensure_ascii=False)
    return quoted if quoted.isprintable() else "".join(map(_escaped, quoted))


def _escaped(character: str) -> str:
    code = ord(character)
    if character.isprintable() or 0xD800 <= code < 0xE000:  # `write_config` refuses surrogates
        return character
    return f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


_YAML_1_1: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def _yaml_string(text: str) -> str:
    is_plain = _WORD.match(text) and text.lower() not in _YAML_1_1 and core_scalar(text) == text
    return text if is_plain else _quoted(text)
