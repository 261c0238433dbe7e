"""Names that have changed since a checkpoint was written: `rename=`, `renamed_from`, and what follows models.

All of it is one table of new texts by the texts of the checkpoint; leaves that keep their text are not in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, takewhile, zip_longest
from typing import Any

from declax._fields.class_info import info_of
from declax._module.module import Module
from declax.checkpoint.items import Item, text_of
from declax.checkpoint.matching import Stored
from declax.checkpoint.upgrading import nodes_of
from declax.errors import CheckpointError, describe, dotted, suggest, written_path

Renames = dict[str, str]
"""The new texts of leaves by those in the checkpoint."""


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
            near = suggest(old, texts)
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
                leaf = leaf._replace(record=replace(leaf.record, path=tuple(map(_key_of_text, keys))))
            item[new] = leaf
    return made


def _key_of_text(text: str) -> str | int:
    return int(text) if text.isdecimal() else text


def former_paths(stored: Mapping[str, Stored], renames: Renames) -> dict[str, str]:
    """The paths in the checkpoint of leaves that have another text now, by this text."""
    moved = ((name, text, leaf) for name, leaves in stored.items() for text, leaf in leaves.items() if text in renames)
    return {
        renames[text]: written_path((name, *leaf.record.path)) for name, text, leaf in moved if renames[text] != text
    }


# --- names of fields ------------------------------------------------------------------


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
    if changed:
        owners = {item.name: _owners_in(item) for item in items}
        levels = _endings_of_models(items, groups, owners)
        for item in items:
            free = [text for text in groups[item.name] if text not in renames and text not in changed]
            changed |= _followers(where, item, free, owners[item.name], levels, is_asked=bool(renames))
    return renames | changed


def _apply_moves(item: Item, texts: Renames) -> None:
    """Gives the leaves of an item the current names of fields."""
    moves = moves_of(item)
    if not moves:
        return
    taken = {text for leaf in texts.values() for text in (leaf, *_outer_texts(leaf))}
    moves = {old: new for old, new in moves.items() if new not in taken}
    texts |= {text: moved(new, moves) for text, new in texts.items()}


# --- what follows a model ---------------------------------------------------------------

_Keys = tuple[str, ...]

_Owners = dict[_Keys, bool]
"""The nodes of an item by the keys of their texts, and whether each is a Module."""

_Endings = dict[_Keys, set[_Keys]]
"""How the texts of leaves of models end now, by how they ended in the checkpoint."""


def _owners_in(item: Item) -> _Owners:
    if not item.is_graph:
        return {}
    return {_keys_of(text_of(item.name, path)): isinstance(node, Module) for path, node in nodes_of(item)}


def _keys_of(text: str) -> _Keys:
    return tuple(text.split("."))


def _models_around(keys: _Keys, owners: _Owners) -> list[int]:
    """The numbers of keys of the models that a leaf is a part of, the outermost first; none if in another object."""
    around = [size for size in range(len(keys) - 1, 0, -1) if keys[:size] in owners]
    return list(takewhile(lambda size: owners[keys[:size]], around))[::-1]


def _endings_of_models(
    items: Iterable[Item], groups: Mapping[str, Renames], owners: Mapping[str, _Owners]
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
    where: str, item: Item, free: Iterable[str], owners: _Owners, levels: Sequence[_Endings], *, is_asked: bool
) -> Renames:
    """The new texts of leaves that end like one of a model, and are in none themselves; the longest ending counts."""
    found: Renames = {}
    for text in free:
        keys = _keys_of(text)
        starts = [] if _models_around(keys, owners) else range(1, len(keys))
        endings = ((start, level[keys[start:]]) for level in levels for start in starts if keys[start:] in level)
        start, options = next(endings, (0, set()))
        known = sorted({new for ending in options if (new := ".".join((*keys[:start], *ending))) in item.leaves})
        if len(known) > 1 and text in known and not is_asked:
            continue  # fields that were renamed do not swap
        if len(known) > 1:
            fix = f'rename={{..., "{text}": "{known[0]}"}}        # or {", ".join(map(repr, known[1:]))}'
            raise CheckpointError(f"{where}, {text}", "two models tell what the new path of this leaf is", fix=fix)
        if known:
            found[text] = known[0]
    return found


# --- versions -----------------------------------------------------------------------------


def renamed_versions(versions: Mapping[str, int], texts: Mapping[str, str]) -> dict[str, int]:
    """The versions of objects under the texts that their leaves have now; `texts` has these by the old ones."""
    places: dict[str, dict[str, None]] = {text: {} for text in versions}
    for old, new in texts.items():
        for text in _outer_texts(old):
            rest = old[len(text) :]
            if text in places and new.endswith(rest):
                places[text][new.removesuffix(rest)] = None
    return {place: versions[text] for text, found in places.items() for place in found or (text,)}
