"""The manifest of a checkpoint: what its files cannot say, and the digests that prove it unchanged."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from declax._typing import Path as LeafPath
from declax._version import __version__
from declax.checkpoint.files import OpenFile, check_json, naming, new_file, parse_json
from declax.errors import CheckpointError

NAME: Final = "manifest.json"
FORMAT: Final = "declax-checkpoint"
VERSIONS: Final = (1, 2)
"""The versions that are read; the last one is written. The first has no structures."""
MAX_SIZE: Final = 1 << 28

_FIRST_LINE: Final = re.compile(rb'\{"sha256": "([0-9a-f]{64})",\n')
_FIRST_LENGTH: Final = 79
_HEX: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class LeafRecord:
    """What a manifest says of a leaf.

    Attributes:
      path: the keys below the item.
      dtype: of an array; ``key<...>`` with the implementation for random keys; empty for a JSON value.
      value: the JSON value.
      kind: the name of the class of the Variable; empty if there is none.
      depth, metadata: of the first format: how many keys of the path lead to the Variable, if it holds a tree of
        arrays; its metadata, with ``{"text": description}`` for a value other than a number or text.
    """

    path: LeafPath
    dtype: str = ""
    value: Any = None
    depth: int | None = None
    kind: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


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


@dataclass(frozen=True)
class NodeRecord:
    """What a manifest says of an object of a model that its Spec rebuilds.

    Attributes:
      cls: the name of its class.
      statics: its static values; ``{"text": description}`` for one other than a number or text.
    """

    cls: str
    statics: Mapping[str, Any]


@dataclass(frozen=True)
class ItemRecord:
    """What a manifest says of an item.

    Attributes:
      leaves: by the text of their path, with the name of the item.
      structure: what `load` makes the item of; None if it is plain data, or an older version wrote it.
      spec: the configuration that rebuilds it, or None.
      spec_class: the class that the spec describes, as `full_name` says it.
      versions: the `config_version` of the class of each node, where it is not 1, by the text of its path.
      nodes, tree: of older checkpoints: the objects of a graph that has a spec, by the text of their path; how dicts,
        lists and tuples hold the leaves, if nothing else does.
      value: the item itself, if it is JSON.
      is_value: whether it is.
    """

    leaves: Mapping[str, LeafRecord] = field(default_factory=dict)
    structure: Any = None
    spec: Mapping[str, Any] | None = None
    spec_class: str = ""
    versions: Mapping[str, int] = field(default_factory=dict)
    nodes: Mapping[str, NodeRecord] = field(default_factory=dict)
    tree: Any = None
    value: Any = None
    is_value: bool = False


@dataclass(frozen=True)
class FileRecord:
    """The size of a file in bytes, and its sha256."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The content of ``manifest.json``.

    Attributes:
      files: by name.
      items: by name.
      metrics: numbers by name, such as the loss by which `Checkpoints` chooses the best.
      plan: where the arrays were, as a `Plan` says it; None if on one device.
    """

    files: Mapping[str, FileRecord]
    items: Mapping[str, ItemRecord]
    metrics: Mapping[str, float]
    plan: Mapping[str, Any] | None = None


def full_name(target: Any) -> str:
    """The name of a class or function, with its module."""
    return f"{target.__module__}.{target.__qualname__}"


def write_manifest(folder: Path, manifest: Manifest, final: Path) -> None:
    """Writes the manifest of a folder, in place of an older one.

    The files that it names, and their entries in the folder, are on the disk by then. The caller syncs the folder.

    Args:
      folder: where it is written.
      manifest: its content.
      final: the folder of the checkpoint, for errors.

    Raises:
      CheckpointError: `read_manifest` would refuse it, or it cannot be written.
    """
    table = {
        "format": FORMAT,
        "version": VERSIONS[-1],
        "declax": __version__,
        "metrics": dict(manifest.metrics),
        "files": {name: asdict(record) for name, record in manifest.files.items()},
        "items": {name: item_table(item) for name, item in manifest.items.items()},
    }
    if manifest.plan is not None:
        table["plan"] = dict(manifest.plan)
    rest = json.dumps(table).encode()[1:]  # with an indent, Python and not C would write it
    text = b'{"sha256": "%s",\n' % hashlib.sha256(rest).hexdigest().encode() + rest
    check_readable(final / NAME, text)
    temporary = folder / f".{NAME}.new"
    with naming(temporary, "removed"):
        temporary.unlink(missing_ok=True)
    with new_file(temporary) as file:
        file.write(text)
    with naming(folder / NAME, "written"):
        os.replace(temporary, folder / NAME)


def check_readable(path: Path, text: bytes) -> None:
    """Raises for a JSON text that reading would refuse."""
    _check_size(path, len(text))
    check_json(path, text)
    if rb"\ud" in text:
        parse_json(path, text)  # which refuses a key with half of a surrogate pair


def item_table(item: ItemRecord) -> dict[str, Any]:
    """A record as JSON."""
    if item.is_value:
        return {"value": item.value}
    table: dict[str, Any] = {"spec": item.spec, "class": item.spec_class, "versions": dict(item.versions)}
    return {
        **table,
        "structure": item.structure,
        "leaves": {text: _plain_leaf(leaf) for text, leaf in item.leaves.items()},
    }


def _plain_leaf(leaf: LeafRecord) -> dict[str, Any]:
    """The fields that differ from their defaults."""
    given = {"path": list(leaf.path), "dtype": leaf.dtype, "kind": leaf.kind}
    if not leaf.dtype:
        given["value"] = leaf.value
    return {name: value for name, value in given.items() if name in ("path", "value") or value}


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint, checked against its digest.

    Raises:
      CheckpointError: the folder is not a checkpoint, or the manifest was changed, or a newer version wrote it.
    """
    path = folder / NAME
    with OpenFile(path, follow_links=False) as file:
        _check_size(path, file.size)
        text = file.read(0, file.size)
    first = _FIRST_LINE.fullmatch(text[:_FIRST_LENGTH])
    digest = hashlib.sha256(text[_FIRST_LENGTH:]).hexdigest()
    if first is None or first[1].decode() != digest:
        raise CheckpointError(
            str(path), "the manifest was changed or damaged", expected=f"sha256 {digest}", got=_shown(text)
        )
    table = parse_json(path, text)
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        raise CheckpointError(str(path), "this is not a manifest of declax", got=repr(table)[:80])
    if table.get("version") not in VERSIONS:
        raise CheckpointError(
            str(path),
            "another version of declax wrote this checkpoint",
            expected=f"version {VERSIONS[-1]} of the format",
            got=repr(table.get("version"))[:80],
            fix="install the version of declax that wrote it",
        )
    try:
        return _manifest_of(table)
    except CheckpointError as error:
        raise CheckpointError(str(path), "the manifest is invalid", why=error.problem) from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:  # missing, or of another type
        reason = f"{type(error).__name__}: {error}"[:200]
        raise CheckpointError(str(path), "the manifest is invalid", why=reason) from None


def _check_size(path: Path, size: int) -> None:
    if size > MAX_SIZE:
        raise CheckpointError(str(path), "the manifest is too large", expected=f"at most {MAX_SIZE} bytes")


def _shown(text: bytearray) -> str:
    return text[:_FIRST_LENGTH].decode("utf-8", "replace").strip() or "an empty file"


def _manifest_of(table: Mapping[str, Any]) -> Manifest:
    """Reads JSON; `read_manifest` adds the path to errors."""
    files = {name: FileRecord(_size(f["size"]), _digest(f["sha256"])) for name, f in table["files"].items()}
    for name in files:
        if not re.fullmatch(r"[\w-][\w.-]*\.safetensors", name):
            raise CheckpointError(NAME, f"{name!r:.80} is not the name of a file of arrays")
    items = {name: item_record(item) for name, item in table["items"].items()}
    for name, item in items.items():
        if item.tree is not None and sorted(texts_of(item.tree)) != sorted(item.leaves):
            raise CheckpointError(NAME, f"the tree of the item {name!r:.40} has other leaves than the item")
        if table["version"] != VERSIONS[0] and not (item.is_value or item.structure):
            raise CheckpointError(NAME, f"the item {name!r:.40} has no structure")
    metrics = {str(name): float(value) for name, value in table["metrics"].items()}
    return Manifest(files, items, metrics, plan_table(table))


def plan_table(table: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The plan among the content of a manifest."""
    plan = table.get("plan")
    if not (plan is None or isinstance(plan, dict)):
        raise CheckpointError(NAME, "a plan must be a table")
    return plan


def item_record(table: Mapping[str, Any]) -> ItemRecord:
    """What `item_table` has written."""
    if "value" in table:
        return ItemRecord(value=table["value"], is_value=True)
    leaves = {text: _leaf_of(leaf) for text, leaf in table["leaves"].items()}
    versions = {text: _size(version) for text, version in table["versions"].items()}
    spec = table["spec"]
    if not (spec is None or isinstance(spec, dict)):
        raise CheckpointError(NAME, "a spec must be a table")
    nodes = {text: _node_of(*node) for text, node in table.get("nodes", {}).items()}
    structure = table.get("structure")
    if not (structure is None or isinstance(structure, dict)):
        raise CheckpointError(NAME, "a structure must be a table")
    return ItemRecord(leaves, structure, spec, str(table["class"]), versions, nodes, table.get("tree"))


def _node_of(cls: object, statics: Mapping[str, Any]) -> NodeRecord:
    for name, value in statics.items():
        is_described = isinstance(value, dict) and value.keys() == {"text"} and isinstance(value["text"], str)
        if isinstance(value, (list, dict)) and not is_described:
            raise CheckpointError(NAME, f"the static value {name!r:.40} is not a number, text or description")
    return NodeRecord(_text(cls), statics)


# --- paths and trees as JSON ---------------------------------------------------------


def key_of(given: object) -> Any:
    """A key of a path or dict as JSON has it: a text, an integer, or a list of these for a tuple."""
    if isinstance(given, list) and given and all(type(part) in (str, int) for part in given):
        return tuple(given)
    if type(given) not in (str, int):
        raise CheckpointError(NAME, "the keys of a path must be texts, integers, or tuples of them")
    return given


def texts_of(tree: Any) -> list[str]:
    """The texts of the leaves of a tree; raises if it is none."""
    if tree is None:
        return []
    if isinstance(tree, str):
        return [tree]
    kind, *entries = tree
    if kind == "dict":
        if len({key_of(key) for key, _ in entries}) != len(entries):
            raise CheckpointError(NAME, "a key occurs twice in a tree")
        entries = [entry for _, entry in entries]
    elif kind not in ("list", "tuple"):
        raise CheckpointError(NAME, f"{kind!r:.40} is not the kind of a tree")
    return [text for entry in entries for text in texts_of(entry)]


def _leaf_of(table: Mapping[str, Any]) -> LeafRecord:
    path = tuple(map(key_of, table["path"]))
    if ("dtype" in table) == ("value" in table):
        raise CheckpointError(NAME, "a leaf must have a dtype or a value")
    depth = table.get("depth")
    return LeafRecord(
        path,
        _text(table.get("dtype", "")),
        table.get("value"),
        None if depth is None else _size(depth),
        _text(table.get("kind", "")),
        dict(table.get("metadata", {})),
    )


def _size(value: object) -> int:
    if type(value) is not int or value < 0:
        raise CheckpointError(NAME, f"{value!r:.40} is not a size")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise CheckpointError(NAME, f"{value!r:.40} is not a text")
    return value


def _digest(value: object) -> str:
    if not _HEX.fullmatch(_text(value)):
        raise CheckpointError(NAME, f"{value!r:.40} is not a sha256")
    return _text(value)
