"""Stored leaves against those of a target: what fits, what does not, and what has another name by now."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from declax._classes.pytree import Pytree
from declax._fields.class_info import info_of
from declax._graph.nodes import walk_nodes
from declax._graph.updating import ValueMismatch
from declax._module.module import Module
from declax._typing import Path
from declax.checkpoint.file_arrays import FileArray
from declax.checkpoint.items import SCALARS, Item, Leaf, dtype_text, is_key, text_of
from declax.checkpoint.manifest import LeafRecord
from declax.config._reading.part_readers import version_of
from declax.errors import CheckpointError, describe, suggest, type_name, with_article


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


def match(
    item: Item, stored: Stored, chosen: frozenset[str] | None, former: Mapping[str, str]
) -> tuple[Stored, RestoreReport]:
    """The stored leaf for each leaf of a target, by its text; and the report.

    Args:
      item: the target.
      stored: the leaves of the checkpoint for it.
      chosen: the texts of the leaves that are wanted; None for all.
      former: the texts in the checkpoint of leaves that `with_current_names` has moved.
    """
    found: Stored = {}
    mismatches: list[ValueMismatch] = []
    missing: list[ValueMismatch] = []
    for text, leaf in item.leaves.items():
        if chosen is not None and text not in chosen:
            continue
        path = (item.name, *leaf.path)
        if text not in stored:
            missing.append(ValueMismatch(path, _expected(leaf), "nothing"))
            continue
        misfit = _misfit(stored[text], leaf)
        if misfit is not None:
            mismatches.append(ValueMismatch(path, *misfit))
            continue
        found[text] = stored[text]
    rest = [] if chosen is not None else [text for text in stored if text not in item.leaves]
    unexpected = [
        ValueMismatch((item.name, *stored[text].record.path), _why_unexpected(text, missing, item), "") for text in rest
    ]
    renamed = [(former[text], text) for text in found if text in former]
    report = RestoreReport(tuple(found), tuple(renamed), tuple(mismatches), tuple(missing), tuple(unexpected))
    return found, report


def _expected(leaf: Leaf) -> str:
    return describe(leaf.value) if leaf.leaf_def is None else with_article(type_name(leaf.leaf_def[0]))


def _why_unexpected(text: str, missing: Sequence[ValueMismatch], item: Item) -> str:
    near = suggest(text, [text_of("", entry.path)[1:] for entry in missing[:100]] or list(item.leaves)[:100])
    return "the target has no such path" + (f"; {near}" if near else "")


def _misfit(stored: StoredLeaf, leaf: Leaf) -> tuple[str, str] | None:
    """What is expected and what the checkpoint has; None if it fits."""
    kind = "" if leaf.leaf_def is None else type_name(leaf.leaf_def[0])
    if kind and stored.record.kind and kind != stored.record.kind:
        return with_article(kind), with_article(stored.record.kind)
    found, like = stored.content, leaf.value
    is_scalar = isinstance(found, (bool, int, float))
    if isinstance(like, SCALARS):
        fits = type(found) is type(like) or (not isinstance(like, str) and getattr(found, "shape", None) == ())
        return None if fits else (describe(like), _text_of(stored))
    if isinstance(found, SCALARS):  # a number that an array has replaced since, or the reverse
        return None if is_scalar and tuple(like.shape) == () else (_shape_and_dtype(like), describe(found))
    if tuple(found.shape) != tuple(like.shape):
        return f"shape {tuple(like.shape)}", f"shape {tuple(found.shape)}"
    if stored.record.dtype != dtype_text(like) and not _are_keys(found, like):
        return f"dtype {dtype_text(like)}", f"dtype {stored.record.dtype}"
    is_number = isinstance(like, jax.ShapeDtypeStruct) and not is_key(like)
    if is_number and jax.dtypes.canonicalize_dtype(like.dtype) != like.dtype:
        return "a dtype that JAX has without jax_enable_x64", f"dtype {stored.record.dtype}"
    return None


def _are_keys(found: Any, like: Any) -> bool:
    """Whether both are random keys of one implementation; shapes of keys do not name theirs as arrays do."""
    return bool(found.dtype == like.dtype)


def _text_of(stored: StoredLeaf) -> str:
    return describe(stored.content) if isinstance(stored.content, SCALARS) else _shape_and_dtype(stored.content)


def _shape_and_dtype(value: Any) -> str:
    return f"an array of shape {tuple(value.shape)} and dtype {value.dtype}"


# --- names that have changed --------------------------------------------------------


def renamed_leaves(where: str, stored: Mapping[str, Stored], rename: Any) -> tuple[dict[str, Stored], dict[str, str]]:
    """The leaves of all items under new texts, and these texts by the old ones.

    `*` in a pattern stands for any text, and for the same in the new one.

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
            expected = f"a path such as {next(iter(texts), None)}"
            raise CheckpointError(
                where, f"rename: {old!r} matches no path of the checkpoint", expected=expected, fix=near
            )
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
    return made, texts


def _key_of_text(text: str) -> str | int:
    return int(text) if text.isdecimal() else text


def moves_of(item: Item) -> dict[str, str]:
    """The new text of each field that has another name by now (``renamed_from``), by the old one below current names.

    A field that has the old name today is another one.
    """
    moves: dict[str, str] = {}
    for path, node in nodes_of(item):
        specs = info_of(type(node)).specs
        for name, spec in specs.items():
            old = spec.notes.get("renamed_from")
            if old is not None and old not in specs:
                moves.setdefault(text_of(item.name, (*path, old)), text_of(item.name, (*path, name)))
    return moves


def moved(text: str, moves: Mapping[str, str]) -> str:
    """The text of a path with the current names of fields."""
    found, *rest = text.split(".")
    for part in rest:
        longer = f"{found}.{part}"
        found = moves.get(longer, longer)
    return found


def _outer_texts(text: str) -> Iterator[str]:
    """The texts of all that a path leads through, without the path itself."""
    for place, character in enumerate(text):
        if character == ".":
            yield text[:place]


def with_current_names(items: Sequence[Item], stored: Mapping[str, Stored]) -> tuple[dict[str, Stored], dict[str, str]]:
    """The leaves of items under the current names of fields, and the texts that they had, by the new ones.

    Leaves that mirror those of a model, such as the moments of an optimizer and an average, follow the model.
    """
    made = dict(stored)
    former: dict[str, str] = {}
    mirrored: dict[str, str] = {}
    for item in items:
        moves = moves_of(item)
        if moves:
            taken = {text for leaf in stored[item.name] for text in (leaf, *_outer_texts(leaf))}
            moves = {old: new for old, new in moves.items() if new not in taken}
        if not moves:
            continue
        renamed = {text: moved(text, moves) for text in stored[item.name]}
        made[item.name] = {renamed[text]: leaf for text, leaf in stored[item.name].items()}
        models = [text_of(item.name, path) for path, node in nodes_of(item) if isinstance(node, Module)]
        for old, new in renamed.items():
            if old != new:
                former[new] = old
                outer = next((text for text in models if new.startswith(f"{text}.")), item.name)
                mirrored |= {new[len(root) :]: old[len(root) :] for root in (item.name, outer)}
    for item in items if mirrored else ():
        _follow(item, made[item.name], mirrored, former)
    return made, former


def _follow(item: Item, leaves: Stored, mirrored: Mapping[str, str], former: dict[str, str]) -> None:
    """Moves the leaves whose paths end like those of a model that were moved, if they are not in a model themselves."""
    models = {path for path, node in nodes_of(item) if isinstance(node, Module)}
    for text, leaf in item.leaves.items():
        if text in leaves:
            continue
        inner = max((size for size in range(len(leaf.path)) if leaf.path[:size] in models), default=-1)
        for start in range(inner + 1, len(leaf.path)):
            tail = mirrored.get(text_of("", leaf.path[start:]))
            old = text_of(item.name, leaf.path[:start]) + (tail or "")
            if tail is not None and old in leaves and old not in item.leaves:
                leaves[text], former[text] = leaves.pop(old), old
                break


def renamed_versions(versions: Mapping[str, int], texts: Mapping[str, str]) -> dict[str, int]:
    """The versions of objects under the texts that their leaves have now; `texts` has these by the old ones."""
    places: dict[str, dict[str, None]] = {text: {} for text in versions}
    for old, new in texts.items():
        for text in _outer_texts(old):
            rest = old[len(text) :]
            if text in places and new.endswith(rest):
                places[text][new.removesuffix(rest)] = None
    return {place: versions[text] for text, found in places.items() for place in found or (text,)}


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
