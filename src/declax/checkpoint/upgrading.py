"""The layouts of former versions of classes: `config_version` and `checkpoint_upgrades`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from declax._classes.pytree import Pytree
from declax._graph.nodes import walk_nodes
from declax._typing import Path
from declax.checkpoint.file_arrays import FileArray
from declax.checkpoint.items import SCALARS, Item, text_of
from declax.checkpoint.manifest import LeafRecord
from declax.checkpoint.matching import Stored, StoredLeaf
from declax.config._reading.part_readers import version_of
from declax.errors import CheckpointError, describe, type_name


def versions_of(item: Item) -> dict[str, int]:
    """The version of the class of each node, where it is not 1."""
    found = {text_of(item.name, path): version_of(type(node)) for path, node in nodes_of(item)}
    return {text: version for text, version in found.items() if version != 1}


def nodes_of(item: Item) -> list[tuple[Path, Any]]:
    """The nodes of a graph, the outermost first."""
    nodes = walk_nodes(item.value) if item.is_graph else ()
    return sorted(((path, node) for path, node in nodes if isinstance(node, Pytree)), key=lambda pair: len(pair[0]))


def needs_upgrade(item: Item, versions: Mapping[str, int]) -> str | None:
    """The text of a node that has upgrades from the version in the checkpoint to that of its class, if there is one."""
    for path, node in nodes_of(item):
        text, cls = text_of(item.name, path), type(node)
        if any(version in upgrades_of(cls) for version in range(versions.get(text, 1), version_of(cls))):
            return text
    return None


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


def upgraded_leaves(where: str, item: Item, stored: Stored, versions: Mapping[str, int]) -> Stored:
    """The leaves of an item in the layout of the current classes, by their `checkpoint_upgrades`.

    Raises:
      CheckpointError: a newer version of a class wrote the checkpoint, or an upgrade fails.
    """
    for path, node in nodes_of(item):
        text, cls = text_of(item.name, path), type(node)
        current, old = version_of(cls), versions.get(text, 1)
        if old > current:
            problem = f"a newer version of {type_name(cls)} wrote this part of the checkpoint"
            raise CheckpointError(f"{where}, {text}", problem, expected=f"version {current}", got=f"version {old}")
        upgrades = upgrades_of(cls)
        for version in range(old, current):
            if version in upgrades:
                stored = _upgraded(f"{where}, {text}", text, stored, upgrades[version], version)
    return stored


def _upgraded(where: str, text: str, stored: Stored, upgrade: Any, version: int) -> Stored:
    """The leaves after one upgrade, a function of the arrays below a node by the rest of their paths."""
    prefix = f"{text}."
    inside = {key[len(prefix) :]: leaf for key, leaf in stored.items() if key.startswith(prefix)}
    given = {key: _value_of(leaf.content) for key, leaf in inside.items()}
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
    by_content = {id(given[key]): leaf.record for key, leaf in inside.items()}
    return {**kept, **{prefix + key: _new_leaf(value, by_content.get(id(value))) for key, value in found.items()}}


def _value_of(content: Any) -> Any:
    return np.asarray(content) if isinstance(content, FileArray) else content


def _new_leaf(value: Any, record: LeafRecord | None) -> StoredLeaf:
    if record is not None:
        return StoredLeaf(record, value)  # the same array under another name
    content = value if isinstance(value, SCALARS) else np.asarray(value)
    return StoredLeaf(LeafRecord((), "" if isinstance(content, SCALARS) else str(content.dtype)), content)
