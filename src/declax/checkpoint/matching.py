"""Stored leaves against those of a target: what fits, what does not, and what has another name by now."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from declax._classes.pytree import Pytree
from declax._graph.nodes import walk_nodes
from declax._graph.updating import ValueMismatch
from declax._typing import Path
from declax.checkpoint.items import SCALARS, Item, Leaf, dtype_text, text_of
from declax.checkpoint.manifest import LeafRecord
from declax.config._reading.versions import version_of
from declax.errors import CheckpointError, describe, suggest, type_name


class StoredLeaf(NamedTuple):
    """A leaf of a checkpoint.

    Attributes:
      record: what the manifest says of it.
      content: a mapped array, `StoredKeys`, or a JSON scalar.
    """

    record: LeafRecord
    content: Any


Stored = dict[str, StoredLeaf]
"""The leaves of an item by the text of their path."""


class RestoreReport(NamedTuple):
    """What `load` did with the leaves of a checkpoint and of its target.

    Attributes:
      taken: the paths that got a value.
      renamed: old paths in the checkpoint, and the paths that they have now.
      mismatches: the values of another shape, dtype or kind.
      missing: the paths of the target that the checkpoint does not have.
      unexpected: the paths of the checkpoint that the target does not have.
    """

    taken: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    mismatches: tuple[ValueMismatch, ...] = ()
    missing: tuple[ValueMismatch, ...] = ()
    unexpected: tuple[ValueMismatch, ...] = ()

    @property
    def problems(self) -> list[ValueMismatch]:
        """All that does not fit."""
        return [*self.mismatches, *self.missing, *self.unexpected]

    def __bool__(self) -> bool:
        """Whether everything fits."""
        return not self.problems

    def __str__(self) -> str:
        lines = [f"taken: {len(self.taken)} of {len(self.taken) + len(self.problems)} values"]
        for title, entries in [("does not fit", self.mismatches), ("missing", self.missing)]:
            lines += [f"{title}:", *(f"  {entry}" for entry in entries)] if entries else []
        lines += ["unexpected:", *(f"  {entry}" for entry in self.unexpected)] if self.unexpected else []
        lines += ["renamed:", *(f"  {old} to {new}" for old, new in self.renamed)] if self.renamed else []
        return "\n".join(lines)


def joined(reports: Sequence[RestoreReport]) -> RestoreReport:
    """One report for several items."""
    columns = zip(*reports, strict=True)
    return RestoreReport(*(tuple(itertools.chain(*column)) for column in columns)) if reports else RestoreReport()


def match(item: Item, stored: Stored, chosen: frozenset[str] | None) -> tuple[Stored, RestoreReport]:
    """The stored leaf for each leaf of a target, by its text; and the report.

    Args:
      item: the target.
      stored: the leaves of the checkpoint for it.
      chosen: the texts of the leaves that are wanted; None for all.
    """
    found: Stored = {}
    used: set[str] = set()
    renamed: list[tuple[str, str]] = []
    mismatches: list[ValueMismatch] = []
    missing: list[ValueMismatch] = []
    former = _former_names(item)
    for text, leaf in item.leaves.items():
        old = text if text in stored else next((name for name in former(leaf.path) if name in stored), None)
        if old is not None:
            used.add(old)
        if chosen is not None and text not in chosen:
            continue
        path = (item.name, *leaf.path)
        if old is None:
            missing.append(ValueMismatch(path, _expected(leaf), "nothing"))
            continue
        misfit = _misfit(stored[old], leaf)
        if misfit is not None:
            mismatches.append(ValueMismatch(path, *misfit))
            continue
        found[text] = stored[old]
        if old != text:
            renamed.append((old, text))
    rest = [] if chosen is not None else [text for text in stored if text not in used]
    unexpected = [
        ValueMismatch((item.name, *stored[text].record.path), _why_unexpected(text, missing, item), "") for text in rest
    ]
    report = RestoreReport(tuple(found), tuple(renamed), tuple(mismatches), tuple(missing), tuple(unexpected))
    return found, report


def _expected(leaf: Leaf) -> str:
    return describe(leaf.value) if leaf.leaf_def is None else f"a {type_name(leaf.leaf_def[0])}"


def _why_unexpected(text: str, missing: Sequence[ValueMismatch], item: Item) -> str:
    near = suggest(text, [text_of("", entry.path)[1:] for entry in missing[:100]] or list(item.leaves)[:100])
    return "the target has no such path" + (f"; {near}" if near else "")


def _misfit(stored: StoredLeaf, leaf: Leaf) -> tuple[str, str] | None:
    """What is expected and what the checkpoint has; None if it fits."""
    kind = "" if leaf.leaf_def is None else type_name(leaf.leaf_def[0])
    if kind and stored.record.kind and kind != stored.record.kind:
        return f"a {kind}", f"a {stored.record.kind}"
    found, like = stored.content, leaf.value
    is_number = isinstance(found, (bool, int, float))
    if isinstance(like, SCALARS):
        fits = type(found) is type(like) or (not isinstance(like, str) and getattr(found, "shape", None) == ())
        return None if fits else (describe(like), _text_of(stored))
    if isinstance(found, SCALARS):  # a number that an array has replaced since, or the reverse
        return None if is_number and tuple(like.shape) == () else (_shape_and_dtype(like), describe(found))
    if tuple(found.shape) != tuple(like.shape):
        return f"shape {tuple(like.shape)}", f"shape {tuple(found.shape)}"
    if stored.record.dtype != dtype_text(like) and not _are_keys(found, like):
        return f"dtype {dtype_text(like)}", f"dtype {stored.record.dtype}"
    return None


def _are_keys(found: Any, like: Any) -> bool:
    """Whether both are random keys of one implementation; shapes of keys do not name theirs as arrays do."""
    return bool(found.dtype == like.dtype)


def _text_of(stored: StoredLeaf) -> str:
    return describe(stored.content) if isinstance(stored.content, SCALARS) else _shape_and_dtype(stored.content)


def _shape_and_dtype(value: Any) -> str:
    return f"an array of shape {tuple(value.shape)} and dtype {value.dtype}"


# --- names that have changed --------------------------------------------------------


def renamed_leaves(where: str, stored: Mapping[str, Stored], rename: Any) -> dict[str, Stored]:
    """The leaves of all items under new texts; `*` in a pattern stands for any text, and for the same in the new one.

    Raises:
      CheckpointError: a pattern matches nothing, or has more or fewer `*` than its replacement, or two leaves would
        have one text.
    """
    texts = {text: text for leaves in stored.values() for text in leaves}
    rename = {} if rename is None else rename
    if not isinstance(rename, Mapping) or not all(isinstance(text, str) for pair in rename.items() for text in pair):
        fix = 'rename={"model.old.*": "model.new.*"}'
        raise CheckpointError(where, "rename maps paths of the checkpoint to new ones", got=describe(rename), fix=fix)
    for old, new in rename.items():
        if old.count("*") != new.count("*"):
            raise CheckpointError(where, f"rename: {old!r} and {new!r} have different numbers of *")
        pattern = re.compile("([^*]*)".join(map(re.escape, old.split("*"))))
        matches = {text: found for text, now in texts.items() if (found := pattern.fullmatch(now))}
        if not matches:
            near = suggest(old, texts.values())
            raise CheckpointError(where, f"rename: {old!r} matches no path of the checkpoint", fix=near)
        for text, found in matches.items():
            groups = [*found.groups(), ""]
            texts[text] = "".join(itertools.chain(*zip(new.split("*"), groups, strict=True)))
    made: dict[str, Stored] = {name: {} for name in stored}
    for name, leaves in stored.items():
        for text, leaf in leaves.items():
            item = made.setdefault(texts[text].partition(".")[0], {})
            if texts[text] != text:
                keys = texts[text].split(".")[1:]
                leaf = leaf._replace(record=replace(leaf.record, path=tuple(map(_key_of_text, keys))))
            if texts[text] in item:
                raise CheckpointError(
                    where, f"rename: two leaves would have the path {texts[text]}", got=f"{name}: {text}"
                )
            item[texts[text]] = leaf
    return made


def _key_of_text(text: str) -> str | int:
    return int(text) if text.isdecimal() else text


def _former_names(item: Item) -> Any:
    """A function of a path that yields the texts it had under the former names of fields (``renamed_from``)."""
    former: dict[Path, str] = {}
    for path, node in walk_nodes(item.value) if item.is_graph else ():
        specs = getattr(type(node), "_pytree__specs", {})
        former |= {(*path, name): spec.notes.renamed_from for name, spec in specs.items() if spec.notes.renamed_from}

    def texts(path: Path) -> Iterator[str]:
        choices = [
            (former[path[:end]], path[end - 1]) if path[:end] in former else (path[end - 1],)
            for end in range(1, len(path) + 1)
        ]
        return (text_of(item.name, names) for names in itertools.product(*choices))

    return texts


# --- upgrades ---------------------------------------------------------------------------


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
        upgrades: Mapping[int, Any] = getattr(cls, "checkpoint_upgrades", {})
        if any(version in upgrades for version in range(versions.get(text, 1), version_of(cls))):
            return text
    return None


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
        upgrades: Mapping[int, Any] = getattr(cls, "checkpoint_upgrades", {})
        for version in range(old, current):
            if version in upgrades:
                stored = _upgraded(f"{where}, {text}", text, stored, upgrades[version], version)
    return stored


def _upgraded(where: str, text: str, stored: Stored, upgrade: Any, version: int) -> Stored:
    """The leaves after one upgrade, a function of the arrays below a node by the rest of their paths."""
    prefix = f"{text}."
    inside = {key[len(prefix) :]: leaf for key, leaf in stored.items() if key.startswith(prefix)}
    given = {key: leaf.content for key, leaf in inside.items()}
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
    by_content = {id(leaf.content): leaf.record for leaf in inside.values()}
    return {**kept, **{prefix + key: _new_leaf(value, by_content.get(id(value))) for key, value in found.items()}}


def _new_leaf(value: Any, record: LeafRecord | None) -> StoredLeaf:
    if record is not None:
        return StoredLeaf(record, value)  # the same array under another name
    content = value if isinstance(value, SCALARS) else np.asarray(value)
    return StoredLeaf(LeafRecord((), "" if isinstance(content, SCALARS) else str(content.dtype)), content)
