"""Reading and changing specs by paths such as ``blocks.0.hidden`` and ``blocks.*.hidden``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from declax.config._data import FrozenDict, FrozenList, SpecData, key_like
from declax.config._refs import (
    Cursor,
    child,
    keeps_specs,
    keys_of,
    moved_in,
    moved_out,
    no_part,
    reader_below,
    where,
    with_items,
)
from declax.config.problems import EACH, steps_of
from declax.errors import ConfigError

S = TypeVar("S", bound=SpecData)

_LISTS: Final = (tuple, FrozenList)


def parse_path(text: str) -> tuple[str, ...]:
    keys = steps_of(str(text))
    if keys is None:
        expected = "names and indices, such as blocks.0.hidden, blocks[0].hidden, or blocks.*.hidden"
        raise ConfigError("spec", f"{text!r} is not a path", expected=expected)
    return keys


def get(spec: SpecData, text: str) -> Any:
    cursor = Cursor((), spec, None)
    start = 0  # the length of the path of the innermost unbuilt spec, where Refs start
    for key in parse_path(text):
        cursor = _child(spec, cursor, key)
        if isinstance(cursor.value, SpecData) and keeps_specs(cursor.reader):
            start = len(cursor.path)
    return moved_out(cursor.value, cursor.path[start:]) if isinstance(cursor.value, SpecData) else cursor.value


def _child(root: SpecData, cursor: Cursor, key: str) -> Cursor:
    found = child(cursor, key, has_defaults=True)
    if found is None:
        raise no_part(where(root, cursor.path), cursor, key)
    return found


def replace(spec: S, changes: Mapping[str, object]) -> S:
    found = spec
    for text, value in changes.items():
        found = _replaced(spec, Cursor((), found, None), parse_path(text), value)
    return found


def _replaced(root: SpecData, cursor: Cursor, keys: tuple[str, ...], new: object) -> Any:
    if not keys:
        return moved_in(new, cursor.reader, cursor.path)
    value = cursor.value
    key, *rest = keys
    if key == EACH and isinstance(value, (*_LISTS, FrozenDict)):
        steps = [
            Cursor((*cursor.path, each), value[each], reader_below(value, cursor.reader, each))
            for each in keys_of(value)
        ]
    elif not rest and (
        value.parameters.get(key) is not None
        if isinstance(value, SpecData)
        else isinstance(value, FrozenDict) and key_like(value, key) is None
    ):
        steps = [Cursor((*cursor.path, key), None, reader_below(value, cursor.reader, key))]
    else:
        steps = [_child(root, cursor, key)]
    return with_items(value, {step.path[-1]: _replaced(root, step, (*rest,), new) for step in steps})
