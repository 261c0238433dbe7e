"""The layouts of former versions of classes: `config_version` and `checkpoint_upgrades`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from declax._graph.nodes import path_of
from declax.checkpoint.arrays import SCALARS, is_key
from declax.checkpoint.items import text_of
from declax.checkpoint.manifest import LeafRecord, Stored, StoredLeaf
from declax.checkpoint.renaming import Renamed, key_of_text
from declax.config._reading.part_readers import version_of
from declax.errors import CheckpointError, describe, type_name

Read = Callable[[Stored], Mapping[str, Any]]
"""Reads leaves."""


def upgrades_of(cls: type) -> Mapping[int, Callable[[dict[str, Any]], Any]]:
    """The upgrades of a class, by the version that they start from."""
    found: Any = getattr(cls, "checkpoint_upgrades", {})
    if not isinstance(found, Mapping) or not all(type(at) is int and callable(f) for at, f in found.items()):
        raise CheckpointError(
            f"{type_name(cls)}.checkpoint_upgrades",
            "upgrades are functions by the version that they start from",
            got=describe(found),
            fix="checkpoint_upgrades = {1: upgrade}        # from version 1 to 2",
        )
    return found


def upgraded_leaves(
    where: str,
    item: Renamed,
    stored: Stored,
    versions: Mapping[str, int],
    read: Read,
    changed: Callable[[Iterable[str], Iterable[str]], None] = lambda before, after: None,
) -> Stored:
    """The leaves of an item in the layout of the current classes, by their `checkpoint_upgrades`.

    Args:
      where: the path of the checkpoint.
      item: what has the classes.
      stored: its leaves.
      versions: the version of the class of a node in the checkpoint, where it is not 1, by text.
      read: reads the leaves that an upgrade is given.
      changed: gets the texts before and after each upgrade.

    Raises:
      CheckpointError: a newer version of a class wrote the checkpoint, or an upgrade fails.
    """
    for link, cls in item.classes:
        current = version_of(cls)
        if current == 1 and not versions:
            continue
        text = text_of(item.name, path_of(link))
        old = versions.get(text, 1)
        if old > current:
            problem = f"a newer version of {type_name(cls)} wrote this part of the checkpoint"
            raise CheckpointError(f"{where}, {text}", problem, expected=f"version {current}", got=f"version {old}")
        upgrades = upgrades_of(cls)
        for version in range(old, current):
            if version in upgrades:
                before, stored = stored, _upgraded(f"{where}, {text}", text, stored, upgrades[version], version, read)
                changed(before, stored)
    return stored


def _upgraded(where: str, text: str, stored: Stored, upgrade: Any, version: int, read: Read) -> Stored:
    """The leaves after one upgrade, a function of the arrays below a node by the rest of their paths."""
    prefix = f"{text}."
    inside = {key[len(prefix) :]: leaf for key, leaf in stored.items() if key.startswith(prefix)}
    given = read(inside)
    try:
        found = upgrade(dict(given))
    except Exception as error:
        error.add_note(f"raised by checkpoint_upgrades[{version}], for {where}")
        raise
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise CheckpointError(
            where, f"checkpoint_upgrades[{version}] must return a dict of arrays", got=describe(found)
        )
    kept = {key: leaf for key, leaf in stored.items() if not key.startswith(prefix)}
    same = {id(given[key]): leaf for key, leaf in inside.items()}  # perhaps under another name, and read again later
    for key, value in found.items():
        kept[prefix + key] = same.get(id(value)) or _new_leaf((*text.split(".")[1:], *key.split(".")), value)
    return kept


def _new_leaf(keys: tuple[str, ...], value: Any) -> StoredLeaf:
    content = value if isinstance(value, SCALARS) or (hasattr(value, "dtype") and is_key(value)) else np.asarray(value)
    dtype = "" if isinstance(content, SCALARS) else str(content.dtype)
    return StoredLeaf(LeafRecord(tuple(map(key_of_text, keys)), dtype), content)
