"""Codes that are switched off in a section of their own.

mypy 2 takes the plugin's codes in ``disable_error_code``. Older versions read that before they load plugins, and call
the codes invalid; so the plugin reads ``disable_error_code`` from a section of its own as well.
"""

from __future__ import annotations

import configparser
import tomllib
from pathlib import Path
from typing import Any, Final

from mypy.options import Options

from declax.mypy_plugin.reporting import CODES

SECTION: Final = "declax-mypy"
"""The section of an ini file; in a pyproject.toml it is ``[tool.declax-mypy]``."""

_OPTION: Final = "disable_error_code"


def switch_off(options: Options) -> None:
    """Switches off the codes that the plugin's own section names."""
    given = _disabled(Path(options.config_file)) if options.config_file else []
    for name in given:
        code = CODES.get(name)
        if code is not None and name not in options.disable_error_code:
            options.disable_error_code.append(name)  # what mypy 2 reads after this
            options.disabled_error_codes.add(code)  # what mypy 1 has read from it


def _disabled(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if SECTION not in text:
        return []
    if path.suffix == ".toml":
        found: Any = tomllib.loads(text).get("tool", {}).get(SECTION, {}).get(_OPTION, [])
    else:
        parser = configparser.RawConfigParser()
        parser.read_string(text)
        found = parser.get(SECTION, _OPTION, fallback="")
    return [name.strip() for name in (found.split(",") if isinstance(found, str) else found)]
