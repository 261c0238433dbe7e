"""Stored leaves against those of a target: what fits, and what does not."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from declax._graph.fit import STORED, Difference, Fit, Pairing, Target, compare, kind_text
from declax._typing import Path
from declax.checkpoint.items import Item, Leaf
from declax.checkpoint.manifest import LeafRecord
from declax.errors import suggest, type_name, with_article, written_path

RestoreReport = Fit
"""What `load` did with the leaves of a checkpoint and of its target."""


class StoredLeaf(NamedTuple):
    """A leaf of a checkpoint.

    Attributes:
      record: what the manifest says of it.
      content: a `FileArray`, `StoredKeys`, or a JSON scalar; after upgrades also an array of numpy.
    """

    record: LeafRecord
    content: Any


Stored = dict[str, StoredLeaf]
"""The leaves of an item by the text of their path."""


def match(
    items: Sequence[Item],
    stored: Sequence[Stored],
    chosen: Callable[[Item], Container[str]] | None,
    former: Mapping[str, str],
) -> Fit:
    """How the stored leaves fit those of targets, by their texts.

    Args:
      items: the targets.
      stored: the leaves of the checkpoint for each.
      chosen: the texts of the leaves of a target that are wanted; None for all.
      former: the paths in the checkpoint of leaves that have another text now.
    """
    leaves: dict[str, Leaf] = {}
    paths: dict[str, Path] = {}
    given: list[tuple[Pairing, Any]] = []
    for item, found in zip(items, stored, strict=True):
        wanted = None if chosen is None else chosen(item)
        own = {text: leaf for text, leaf in item.leaves.items() if wanted is None or text in wanted}
        leaves |= own
        paths |= {text: (item.name, *leaf.path) for text, leaf in own.items()}
        contents = {text: leaf.content for text, leaf in found.items()}
        given.append((_pairing(item, own, found, is_part=wanted is not None), contents))
    values = {text: leaf.value for text, leaf in leaves.items()}
    target = Target(paths, values, {text: leaf.leaf_def for text, leaf in leaves.items()})
    fit = compare(target, given, STORED)
    renamed = [(former[text], written_path(paths[text])) for text in fit.sources if text in former]
    return replace(fit, renamed=tuple(renamed))


def _pairing(item: Item, leaves: Mapping[str, Leaf], stored: Stored, *, is_part: bool) -> Pairing:
    pairs: dict[str, str] = {}
    mismatches: dict[str, Difference] = {}
    unexpected: list[Difference] = []
    missing = [written_path((item.name, *leaf.path)) for text, leaf in leaves.items() if text not in stored]
    for text, (record, _) in stored.items():
        path = written_path((item.name, *record.path))
        leaf_def = leaves[text].leaf_def if text in leaves else None
        if text not in leaves:
            near = suggest(path, missing[:100])
            unexpected.append(Difference(path, "the target has no such path" + (f"; {near}" if near else "")))
        elif leaf_def is not None and record.kind and record.kind != type_name(leaf_def[0]):
            mismatches[text] = Difference(path, kind_text(leaf_def), with_article(record.kind))
        else:
            pairs[text] = text
    return Pairing(pairs, mismatches, () if is_part else tuple(unexpected))
