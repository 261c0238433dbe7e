"""Names that have changed since a checkpoint was written: `rename=`, `renamed_from`, and what follows models.

All of it is one table of new texts by the texts of the checkpoint; leaves that keep their text are not in it.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, takewhile, zip_longest
from typing import Any, Protocol

from declax._fields.class_info import info_of
from declax._graph.nodes import Link, path_of
from declax._module.module import Module
from declax.checkpoint.items import Item, text_of
from declax.checkpoint.manifest import Stored
from declax.errors import CheckpointError, describe, dotted, suggest, written_path

Renames = dict[str, str]
"""The new texts of leaves by those in the checkpoint."""


class Renamed(Protocol):
    """What has paths: a target, or the structure of an item without one."""

    @property
    def name(self) -> str:
        """Of the item."""
        ...

    @property
    def leaves(self) -> Container[str]:
        """The texts of its leaves."""
        ...

    @property
    def is_graph(self) -> bool:
        """Whether it is no tree of arrays."""
        ...

    @property
    def classes(self) -> list[tuple[Link, type]]:
        """The classes of its nodes with their paths, what holds a node first."""
        ...


def renames_of(where: str, stored: Mapping[str, Stored], rename: Any) -> Renames:
    """What `rename=` does: each entry sees the texts of the checkpoint, and the first one that matches counts.

    `*` in a pattern stands for any text, and for the same in the new one. A leaf that an entry keeps as it is counts as
    renamed: it follows no other.

    Raises:
      CheckpointError: a pattern matches nothing, or has more or fewer `*` than its replacement.
    """
    rename = {} if rename is None else rename
    if not isinstance(rename, Mapping) or not all(isinstance(text, str) for pair in rename.items() for text in pair):
        fix = 'rename={"model.old.*": "model.new.*"}'
        raise CheckpointError(where, "rename maps paths of the checkpoint to new ones", got=describe(rename), fix=fix)
    texts = [text for leaves in stored.values() for text in leaves]
    found: Renames = {}
    for old, new in rename.items():
        if old.count("*") != new.count("*"):
            raise CheckpointError(where, f"rename: {old!r} and {new!r} have different numbers of *")
        pattern = re.compile("([^*]*)".join(map(re.escape, dotted(old).split("*"))))
        matches = [match for text in texts if (match := pattern.fullmatch(text))]
        if not matches:
            is_part = any(text.startswith(f"{dotted(old)}.") for text in texts)
            near = f'rename={{"{old}.*": "{new}.*"}}' if is_part else suggest(old, texts)
            expected = f"a path such as {next(iter(texts), None)}"
            raise CheckpointError(
                where, f"rename: {old!r} matches no path of the checkpoint", expected=expected, fix=near
            )
        for match in matches:
            made = "".join(chain(*zip_longest(dotted(new).split("*"), match.groups(), fillvalue="")))
            found.setdefault(match[0], made)
    return found


def renamed(where: str, stored: Mapping[str, Stored], renames: Renames) -> dict[str, Stored]:
    """The leaves of all items under their new texts.

    Raises:
      CheckpointError: two leaves would have one text.
    """
    if not renames:
        return dict(stored)
    made: dict[str, Stored] = {name: {} for name in stored}
    for leaves in stored.values():
        for text, leaf in leaves.items():
            new = renames.get(text, text)
            name, *keys = new.split(".")
            item = made.setdefault(name, {})
            if new in item:
                raise CheckpointError(where, f"rename: two leaves would have the path {new}", got=text)
            if new != text:
                leaf = leaf._replace(record=replace(leaf.record, path=tuple(map(key_of_text, keys))))
            item[new] = leaf
    return made


def key_of_text(text: str) -> str | int:
    """The key that a text stands for, as far as it can be told."""
    return int(text) if text.isdecimal() else text


def former_paths(stored: Mapping[str, Stored], renames: Renames) -> dict[str, str]:
    """The paths in the checkpoint of leaves that have another text now, by this text."""
    moved = ((name, text, leaf) for name, leaves in stored.items() for text, leaf in leaves.items() if text in renames)
    return {
        renames[text]: written_path((name, *leaf.record.path)) for name, text, leaf in moved if renames[text] != text
    }


# --- names of fields ------------------------------------------------------------------


def moves_of(item: Renamed) -> dict[str, str]:
    """The new text of each field that has another name by now (``renamed_from``), by the old one below current names.

    A field that has the old name today is another one.
    """
    moves: dict[str, str] = {}
    for link, cls in item.classes:
        for old, name in former_names(cls).items():
            text = text_of(item.name, path_of(link))
            moves.setdefault(f"{text}.{old}", f"{text}.{name}")
    return moves


def former_names(cls: type) -> dict[str, str]:
    """The current name of each field that had another one (``renamed_from``), by the old one."""
    specs = info_of(cls).specs
    found = {spec.notes.get("renamed_from"): name for name, spec in specs.items()}
    return {old: new for old, new in found.items() if old is not None and old not in specs}


def moved(text: str, moves: Mapping[str, str]) -> str:
    """The text of a path with the current names of fields."""
    found, *rest = text.split(".")
    for part in rest:
        longer = f"{found}.{part}"
        found = moves.get(longer, longer)
    return found


def outer_texts(text: str) -> Iterator[str]:
    """The texts of all that a path leads through, without the path itself."""
    for place, character in enumerate(text):
        if character == ".":
            yield text[:place]


def with_current_names(where: str, items: Sequence[Item], stored: Mapping[str, Stored], renames: Renames) -> Renames:
    """The renames of a user, and those of leaves whose fields have another name by now (``renamed_from``).

    Leaves that mirror those of a model, such as the moments of an optimizer and an average, follow the model.

    Args:
      where: the path of the checkpoint.
      items: the targets.
      stored: the leaves by item, under the texts of the checkpoint.
      renames: what the user renames.

    Raises:
      CheckpointError: a leaf may follow those of two models.
    """
    groups: dict[str, Renames] = {item.name: {} for item in items}
    for text in chain(*stored.values()):
        new = renames.get(text, text)
        groups.get(new.partition(".")[0], {})[text] = new
    for item in items:
        _apply_moves(item, groups[item.name])
    changed = {text: new for group in groups.values() for text, new in group.items() if text != new}
    for found, _ in followers(where, items, groups, renames).values():
        changed |= found
    return renames | changed


def followers(
    where: str, items: Sequence[Renamed], groups: Mapping[str, Renames], renames: Renames
) -> dict[str, tuple[Renames, Ending]]:
    """The new texts of leaves that mirror those of a model, by item, and the paths of the model that they end with.

    Args:
      where: the path of the checkpoint.
      items: the targets, or what is made without them.
      groups: the texts of the leaves that each item has now, by those in the checkpoint.
      renames: what the user renames, which follows nothing.
    """
    changed = {text for group in groups.values() for text, new in group.items() if text != new}
    if not changed:
        return {}
    owners = {item.name: _owners_in(item) for item in items}
    levels = _endings_of_models(items, groups, owners)
    made: dict[str, tuple[Renames, Ending]] = {}
    for item in items:
        free = [text for text in groups[item.name] if text not in renames and text not in changed]
        made[item.name] = _followers(where, item, free, owners[item.name], levels, is_asked=bool(renames))
    return made


def _apply_moves(item: Item, texts: Renames) -> None:
    """Gives the leaves of an item the current names of fields."""
    moves = moves_of(item)
    if not moves:
        return
    taken = {text for leaf in texts.values() for text in (leaf, *outer_texts(leaf))}
    moves = {old: new for old, new in moves.items() if new not in taken}
    texts |= {text: moved(new, moves) for text, new in texts.items()}


# --- what follows a model ---------------------------------------------------------------

_Keys = tuple[str, ...]

_Owners = dict[_Keys, bool]
"""The nodes of an item by the keys of their texts, and whether each is a Module."""

Ending = dict[_Keys, _Keys]
"""Paths in a model by those that they were."""

_Endings = dict[_Keys, set[_Keys]]
"""How the texts of leaves of models end now, by how they ended in the checkpoint."""


def _owners_in(item: Renamed) -> _Owners:
    return {_keys_of(text_of(item.name, path_of(link))): issubclass(cls, Module) for link, cls in item.classes}


def _keys_of(text: str) -> _Keys:
    return tuple(text.split("."))


def _models_around(keys: _Keys, owners: _Owners) -> list[int]:
    """The numbers of keys of the models that a leaf is a part of, the outermost first; none if in another object."""
    around = [size for size in range(len(keys) - 1, 0, -1) if keys[:size] in owners]
    return list(takewhile(lambda size: owners[keys[:size]], around))[::-1]


def _endings_of_models(
    items: Iterable[Renamed], groups: Mapping[str, Renames], owners: Mapping[str, _Owners]
) -> list[_Endings]:
    """The leaves of models below the outermost model, below the next one, and so on, also those that were not moved.

    A State with moved leaves counts as a model.
    """
    levels: list[_Endings] = []
    for item in items:
        is_state = not item.is_graph and any(old != new for old, new in groups[item.name].items())
        for old, new in groups[item.name].items():
            before, after = _keys_of(old), _keys_of(new)
            for level, size in enumerate([1] if is_state else _models_around(after, owners[item.name])):
                if level == len(levels):
                    levels.append({})
                levels[level].setdefault(before[size:], set()).add(after[size:])
    return levels


def _followers(
    where: str, item: Renamed, free: Iterable[str], owners: _Owners, levels: Sequence[_Endings], *, is_asked: bool
) -> tuple[Renames, Ending]:
    """The new texts of leaves that end like one of a model, and are in none themselves; the longest ending counts."""
    found: Renames = {}
    endings: Ending = {}
    for text in free:
        keys = _keys_of(text)
        starts = [] if _models_around(keys, owners) else range(1, len(keys))
        options = ((start, level[keys[start:]]) for level in levels for start in starts if keys[start:] in level)
        start, options_there = next(options, (0, set[_Keys]()))
        known = {
            new: ending
            for ending in sorted(options_there)
            if (new := ".".join((*keys[:start], *ending))) in item.leaves
        }
        if len(known) > 1 and text in known and not is_asked:
            continue  # fields that were renamed do not swap
        if len(known) > 1:
            first, *others = known
            fix = f'rename={{..., "{text}": "{first}"}}        # or {", ".join(map(repr, others))}'
            raise CheckpointError(f"{where}, {text}", "two models tell what the new path of this leaf is", fix=fix)
        for new, ending in known.items():
            if new != text:
                found[text] = new
                endings[keys[start:]] = ending
    return found, endings


# --- versions -----------------------------------------------------------------------------


def renamed_versions(versions: Mapping[str, int], texts: Mapping[str, str]) -> dict[str, int]:
    """The versions of objects under the texts that their leaves have now; `texts` has these by the old ones."""
    places: dict[str, dict[str, None]] = {text: {} for text in versions}
    for old, new in texts.items():
        for text in outer_texts(old):
            rest = old[len(text) :]
            if text in places and new.endswith(rest):
                places[text][new.removesuffix(rest)] = None
    return {place: versions[text] for text, found in places.items() for place in found or (text,)}
