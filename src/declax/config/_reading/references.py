"""Reads references: tables with the key ``$ref``."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any

from declax.config._data import Ref
from declax.config._reading.readers import INVALID, Context, Reader
from declax.config.problems import EACH, REF, Path, shown, steps_of
from declax.errors import ConfigError


def read_ref(table: Mapping[str, Any], path: Path, context: Context, reader: Reader) -> Any:
    """The Ref of a table with the key ``$ref``; its target is checked after reading."""
    target = table[REF]
    others = [key for key in table if key != REF]
    if others:
        listed_keys = ", ".join(shown(key, 40) for key in others[:6])
        context.add(
            "unknown-key", (*path, str(others[0])),
            f"a table with {REF!r} stands for another part as it is, and has no other keys",
            expected='{ "$ref" = "/path/to/part" } and no other key', got=listed_keys,
            hint=f"remove {listed_keys}; or remove {REF!r}, and describe a part of its own",
        )  # fmt: skip
        return INVALID
    keys = _keys_of_ref(target, path, context) if type(target) is str else None
    if keys is not None:
        ref = Ref.to(keys)
        context.add_ref(path, ref.keys, reader)
        return ref
    is_short = type(target) is str and len(target) < 100 and re.fullmatch(r"[\w./\[\]-]*\w[\w./\[\]-]*", target)
    hint = "/" + "/".join(re.findall(r"[\w-]+", target)) if is_short else None
    context.add(
        "ref", path, "not a reference: a path from the root has a / before each name and index, or dots between them",
        expected='{ "$ref" = "/path/to/part" }, "path.to.part", or ".name" for a part of the same table',
        got=shown(dict(table) if type(target) is not str else target), hint=hint and f'"$ref" = "{hint}"',
    )  # fmt: skip
    return INVALID


def _keys_of_ref(text: str, path: Path, context: Context) -> tuple[str, ...] | None:
    """The path of a reference, from where Refs start; None if the text is no path."""
    if text.startswith("/"):
        with contextlib.suppress(ConfigError):
            return Ref(text).keys
        return None
    is_relative = text.startswith(".")
    keys = None if "/" in text or ".." in text else steps_of(text[1:] if is_relative else text)
    if keys is None or EACH in keys:
        return None
    around = list(path[len(context.base) :])
    while around and isinstance(around[-1], int):  # the items of a list stand in the table that has the list
        around.pop()
    around = around[:-1] if is_relative else []
    return (*map(str, around), *keys)
