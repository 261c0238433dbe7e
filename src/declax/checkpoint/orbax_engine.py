"""Orbax as the engine of checkpoints: a folder for each item, in the layout of Orbax and Flax NNX."""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from declax._graph.nodes import plain_key
from declax._typing import Path
from declax._variables.donation import is_deleted
from declax.checkpoint.arrays import (
    SCALARS,
    check_storable,
    deleted,
    dtype_text,
    is_key,
    key_data_of,
    on_device,
    typed_like,
)
from declax.checkpoint.files import parse_json
from declax.checkpoint.items import Item, Leaf, filled, state_with, text_of
from declax.checkpoint.manifest import (
    NAME,
    ItemRecord,
    LeafRecord,
    Manifest,
    Stored,
    StoredLeaf,
    check_readable,
    item_record,
    item_table,
    plan_table,
)
from declax.checkpoint.orbax_progress import Counted, counter_of
from declax.checkpoint.placed import table_of_items
from declax.checkpoint.progress import Counter, Progress
from declax.checkpoint.renaming import key_of_text
from declax.checkpoint.structures import trees_in
from declax.errors import CheckpointError, MissingExtraError, describe
from declax.traversals import unflatten_mapping

_OURS: Final = "declax"  # what Orbax keeps for us among the custom metadata of a checkpoint
_REST: Final = ".orbax-checkpoint-tmp"  # ends the name of a folder until it is complete
_TREE, _JSON, _CHECKPOINT = "_METADATA", "metadata", "_CHECKPOINT_METADATA"  # the files by which Orbax knows them


@dataclass(frozen=True)
class Remote:
    """An array in a checkpoint of Orbax, not read.

    Attributes:
      shape, dtype: of random keys those of their data, until `fitted`.
      item: the name of the folder.
      position: among the leaves of the item.
    """

    shape: tuple[int, ...]
    dtype: Any
    item: str
    position: int

    @property
    def nbytes(self) -> int:
        """The size of the whole array."""
        return prod(self.shape) * int(self.dtype.itemsize)


def write(
    path: str | os.PathLike[str],
    items: list[Item],
    records: Mapping[str, ItemRecord],
    metrics: Any,
    progress: Progress | None,
) -> None:
    """Writes a checkpoint and waits for it; each process calls this, and writes its part of the arrays."""
    ocp, folder = _orbax(), folder_of(path)
    if folder.exists():
        raise CheckpointError(
            str(folder), "the path exists already", fix='dx.save(another_path, items, engine="orbax")'
        )
    request = _request(ocp, folder, items, records, metrics)
    counted = Counted(ocp)
    counted.counter = counter_of(progress, items)
    handler = ocp.CompositeCheckpointHandler(handler_registry=counted.registry)
    with (
        naming_errors(folder, "write the checkpoint", items),
        ocp.Checkpointer(handler) as checkpointer,
    ):
        _remove_rest(folder)
        checkpointer.save(folder, **request)
    counted.finish()


def _remove_rest(folder: Any) -> None:
    """Removes what a failed save to this path has left, into which threads of Orbax may write for a moment."""
    rest = folder.parent / f"{folder.name}{_REST}"
    for pause in (0.05, 0.2, 0.8):
        if jax.process_index() != 0 or not rest.exists():
            return
        with suppress(OSError):
            rest.rmtree(missing_ok=True)
        time.sleep(pause)


def _request(ocp: Any, folder: Any, items: list[Item], records: Mapping[str, ItemRecord], metrics: Any) -> Any:
    """The arguments with which Orbax saves items."""
    for item in items:
        if item.name.startswith("__") or item.name.endswith("~") or "\\" in item.name or "\0" in item.name:
            raise CheckpointError(str(folder), "Orbax keeps no item of this name", got=ascii(item.name)[:80])
    arguments = {item.name: _argument(ocp, str(folder), item) for item in items}
    tables = {name: item_table(record) for name, record in records.items()}
    ours = {"items": tables, "metrics": metrics, "plan": table_of_items(items)}
    check_readable(folder / _CHECKPOINT, json.dumps(ours).encode())
    return {"args": ocp.args.Composite(**arguments), "custom_metadata": {_OURS: ours}}


def is_of_orbax(folder: Any) -> bool:
    """Whether a folder is a checkpoint of Orbax, or one of its items."""
    try:
        return (folder / _CHECKPOINT).exists() or any((place / _TREE).exists() for place in (folder, *folder.iterdir()))
    except OSError:
        return False


def read(path: str | os.PathLike[str]) -> tuple[Manifest, dict[str, Stored]]:
    """What Orbax knows of a checkpoint without reading its arrays."""
    ocp, folder = _orbax(), folder_of(path)
    if not folder.is_dir():
        raise CheckpointError(str(folder), "there is no checkpoint")
    records: dict[str, ItemRecord] = {}
    stored: dict[str, Stored] = {}
    with naming_errors(folder, "read the metadata"):
        if not ocp.utils.is_checkpoint_finalized(folder):
            raise CheckpointError(str(folder), "the checkpoint is not complete", fix="wait for it, or load another one")
        custom = _custom_metadata(folder)
        for entry in sorted(folder.iterdir()):
            name = entry.name
            is_tree = (entry / _TREE).exists()
            if is_tree or name in custom["items"]:
                records[name] = item_record(custom["items"][name]) if name in custom["items"] else ItemRecord()
                stored[name] = _leaves(name, _tree(ocp, entry) if is_tree else {}, records[name])
            elif (entry / _JSON).exists():
                records[name] = ItemRecord(value=ocp.JsonCheckpointHandler().restore(entry), is_value=True)
                stored[name] = {}
        lost = [str(name) for name in custom["items"] if name not in records]
        if lost and stored:
            raise CheckpointError(str(folder / lost[0]), "the folder of an item is missing")
        metrics = {str(name): float(value) for name, value in custom["metrics"].items()}
    if (folder / NAME).exists() and not stored:
        raise CheckpointError(str(folder), "this is a checkpoint of declax", fix=f"dx.load({str(folder)!r})")
    if not stored:
        is_item = (folder / _TREE).exists()
        fix = f'dx.load({str(folder.parent)!r}, into={{{folder.name!r}: model}}, engine="orbax")' if is_item else None
        raise CheckpointError(
            str(folder), "the folder has no items of Orbax", expected="a folder for each item", fix=fix
        )
    return Manifest({}, records, metrics, plan_table(custom)), stored


def fitted(targets: list[Item], stored: Mapping[str, Stored]) -> dict[str, Stored]:
    """The leaves under the texts and with the types of the targets, where their data are those of a target.

    The metadata of Orbax have the data of random keys, and no paths but those with the key ``value`` of Variables.
    """
    made = dict(stored)
    for item in targets:
        leaves = {text_of(item.name, _without_value(_path_in_tree(leaf))): text for text, leaf in item.leaves.items()}
        texts = {text: leaves.get(text, text) for text in stored[item.name]}
        made[item.name] = {new: _typed(stored[item.name][old], item.leaves.get(new)) for old, new in texts.items()}
    return made


def _path_in_tree(leaf: Leaf) -> Path:
    """The path of a leaf in a State as a tree, where a Variable has the key ``value``."""
    depth = len(leaf.path) if leaf.depth is None else leaf.depth
    return leaf.path if leaf.leaf_def is None else (*leaf.path[:depth], "value", *leaf.path[depth:])


def _without_value(path: Path) -> Path:
    return path[:-1] if path[-1:] == ("value",) else path


def _typed(stored: StoredLeaf, leaf: Leaf | None) -> StoredLeaf:
    if leaf is None or isinstance(leaf.value, SCALARS) or not is_key(leaf.value):
        return stored
    like, found = leaf.value, stored.content
    if not isinstance(found, Remote):  # made by an upgrade
        return stored
    data = key_data_of(like)
    is_same = (found.shape, found.dtype) == (data.shape, data.dtype)
    return stored._replace(content=replace(found, shape=like.shape, dtype=like.dtype)) if is_same else stored


def fetch(
    path: str | os.PathLike[str], wanted: list[Stored], likes: list[dict[str, Any]], progress: Progress | None
) -> list[dict[str, Any]]:
    """The values of leaves, as arrays like those of the targets; each process reads the parts of its devices.

    Raises:
      CheckpointError: Orbax cannot read an item, or a value has another type than the target.
    """
    ocp, folder = _orbax(), folder_of(path)
    arguments: dict[str, dict[int, Any]] = {}
    sizes: dict[tuple[str, int], int] = {}
    for leaves, like in zip(wanted, likes, strict=True):
        for text, leaf in leaves.items():
            found = leaf.content
            if not isinstance(found, Remote):
                continue
            arguments.setdefault(found.item, {})[found.position] = _restore_argument(ocp, found, like.get(text))
            sizes[found.item, found.position] = found.nbytes
    counter = Counter(progress, sum(sizes.values()))
    values: dict[str, dict[int, Any]] = {name: {} for name in arguments}
    for name, chosen in arguments.items():
        groups = [[*chosen]] if progress is None else _groups({at: sizes[name, at] for at in chosen})
        for group in groups:
            with naming_errors(folder, "read the arrays"):
                values[name] |= _restored(ocp, folder / name, {at: chosen[at] for at in group})
            counter.add(sum(sizes[name, at] for at in group))

    def value(text: str, content: Any, like: Any) -> Any:
        if not isinstance(content, Remote):
            return on_device(content, like)
        return _as_like(f"{folder}, {text}", values[content.item][content.position], like)

    return [
        {text: value(text, leaf.content, like.get(text)) for text, leaf in leaves.items()}
        for leaves, like in zip(wanted, likes, strict=True)
    ]


def _restore_argument(ocp: Any, content: Remote, like: Any) -> Any:
    """How Orbax restores a leaf: with the sharding of a target, or as an array on the host."""
    if isinstance(like, SCALARS):
        return ocp.RestoreArgs(restore_type=type(like))
    if like is None and jax.dtypes.canonicalize_dtype(content.dtype) != content.dtype:
        return ocp.RestoreArgs(restore_type=np.ndarray)
    if like is None or is_key(like) or getattr(like, "committed", isinstance(like, jax.ShapeDtypeStruct)):
        sharding = getattr(like, "sharding", None) or SingleDeviceSharding(jax.local_devices()[0])
        return ocp.ArrayRestoreArgs(sharding=sharding)
    return ocp.RestoreArgs(restore_type=np.ndarray)


def _as_like(where: str, found: Any, like: Any) -> Any:
    made = (
        found if like is None else typed_like(found, like) if isinstance(found, jax.Array) else on_device(found, like)
    )
    if like is not None and getattr(made, "dtype", type(made)) != getattr(like, "dtype", type(like)):
        raise CheckpointError(where, "the value has another type", expected=describe(like), got=describe(made))
    return made


# --- steps of a run ---------------------------------------------------------------------

_METRICS: Final = "metrics"  # the item in which the manager keeps them


def manager_of(folder: Any, policy: Any, best: str | None) -> tuple[Any, Counted]:
    """The CheckpointManager of a folder, which removes the steps that a policy does not preserve; and its counter."""
    ocp = _orbax()
    counted = Counted(ocp)
    options = ocp.CheckpointManagerOptions(
        preservation_policy=policy,
        best_fn=None if best is None else lambda metrics: metrics[best],  # it keeps metrics only with a function
        cleanup_tmp_directories=True,
    )
    with naming_errors(folder, "open the folder"):
        return ocp.CheckpointManager(folder, options=options, handler_registry=counted.registry), counted


def write_step(manager: Any, path: Any, step: int, items: list[Item], records: Any, metrics: Any) -> None:
    """Begins to save a step."""
    if any(item.name == _METRICS for item in items):
        raise CheckpointError(str(path), f"{_METRICS!r} is the name of an item of Orbax", fix=f"{_METRICS}={{...}}")
    request = _request(_orbax(), path, items, records, metrics)
    with naming_errors(path, "write the checkpoint", items):
        manager.save(step, metrics=metrics, **request)


def new_folder_of(path: str | os.PathLike[str]) -> Any:
    """The folder of a run, which is made if it is missing."""
    _orbax()
    folder = folder_of(path)
    with naming_errors(folder, "make the folder"):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def steps_in(folder: Any) -> list[int]:
    """The steps of a run that are complete, in order."""
    with naming_errors(folder, "list the steps"):
        return sorted(_orbax().utils.checkpoint_steps(folder))


def metrics_of(folder: Any) -> dict[str, float]:
    """The metrics of a step."""
    kept = folder / _METRICS / _METRICS  # by the manager
    with naming_errors(folder, "read the metadata"):
        found = parse_json(kept, kept.read_bytes()) if kept.exists() else _custom_metadata(folder)["metrics"]
        return {str(name): float(value) for name, value in found.items()}


# --- Orbax ------------------------------------------------------------------------------


def _orbax() -> Any:
    try:
        return importlib.import_module("orbax.checkpoint")
    except ImportError:
        fix = 'pip install "declax[orbax]"'
        raise MissingExtraError('engine="orbax"', "orbax-checkpoint is not installed", fix=fix) from None


def folder_of(path: str | os.PathLike[str]) -> Any:
    """The path as Orbax takes it, which may be one of a bucket: ``gs://...``."""
    text = os.fspath(path)
    return importlib.import_module("etils.epath").Path(text if "://" in text else os.path.abspath(text))


@contextmanager
def naming_errors(folder: Any, what: str, items: Iterable[Item] = ()) -> Generator[None, None, None]:
    """Errors of Orbax with the path; that an array of these items was deleted meanwhile, if that is so."""
    try:
        yield
    except CheckpointError as error:
        if str(folder) in str(error):
            raise
        raise CheckpointError(str(folder), f"Orbax could not {what}", got=error.problem) from None
    except (ValueError, TypeError, KeyError, AttributeError, OSError, RuntimeError) as error:
        lost = [(text, leaf) for item in items for text, leaf in item.leaves.items() if is_deleted(leaf.value)]
        if lost:
            raise deleted(f"{folder}, {lost[0][0]}", lost[0][1].value) from error
        got = f"{type(error).__name__}: {error}"[:1000]
        raise CheckpointError(str(folder), f"Orbax could not {what}", got=got) from error


def _argument(ocp: Any, where: str, item: Item) -> Any:
    """What Orbax saves for an item: plain data as JSON, others as trees like those of the peer.

    Such a tree has no texts and no empty arrays, and is not empty; an array at the root gets a key.
    """
    if item.is_json:
        return ocp.args.JsonSave(item.value)
    values: dict[str, Any] = {}
    for text, leaf in item.leaves.items():
        if not isinstance(leaf.value, SCALARS):
            check_storable(f"{where}, {text}", leaf.value)
        if not (isinstance(leaf.value, str) or _is_empty(leaf.value)):
            values[text] = leaf.value
        elif leaf.depth is not None:  # what a Variable holds is stored as a whole
            values[text] = 0
    if item.name in values:
        return ocp.args.StandardSave({"value": values[item.name]})
    if not values:
        return ocp.args.JsonSave({})
    if item.is_graph:
        return ocp.args.StandardSave(state_with(item, values))
    if len(values) < len(item.leaves):
        by_path = {tuple(map(str, item.leaves[text].path)): value for text, value in values.items()}
        return ocp.args.StandardSave(unflatten_mapping(by_path))
    return ocp.args.StandardSave(filled(item, values))


def _is_empty(value: Any) -> bool:
    return 0 in getattr(value, "shape", ())


def beside_arrays(item: Item) -> dict[str, LeafRecord]:
    """The leaves of an item that our metadata have: numbers and texts, and the shapes of empty arrays."""
    found: dict[str, LeafRecord] = {}
    for text, leaf in item.leaves.items():
        if isinstance(leaf.value, SCALARS):
            found[text] = LeafRecord(leaf.path, value=leaf.value)
        elif _is_empty(leaf.value) and not is_key(leaf.value):
            found[text] = LeafRecord(leaf.path, value={"empty": [dtype_text(leaf.value), list(leaf.value.shape)]})
    return found


def _custom_metadata(folder: Any) -> Mapping[str, Any]:
    """What `write` has said of the items; nothing in a checkpoint of the peer."""
    file = folder / _CHECKPOINT
    found = (parse_json(file, file.read_bytes()).get("custom_metadata") or {}) if file.exists() else {}
    return {"items": {}, "metrics": {}, **found.get(_OURS, {})}


def _tree(ocp: Any, folder: Any) -> Any:
    """The structure of an item, with the metadata of its arrays."""
    return ocp.PyTreeCheckpointHandler().metadata(folder).tree


def _leaves(name: str, tree: Any, record: ItemRecord) -> Stored:
    """The leaves of an item by the text of their path, without the key ``value`` of Variables."""
    made: Stored = {}
    trees: set[tuple[str, ...]] = set()
    with suppress(KeyError, TypeError, ValueError, AttributeError, IndexError):  # a load refuses such a structure
        trees = {tuple(map(str, path)) for path in trees_in(record.structure or {})}
    for position, (keys, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(tree)):
        names = [str(plain_key(key)) for key in keys]
        at = next((at for at, key in enumerate(names) if key == "value" and tuple(names[:at]) in trees), None)
        given = tuple(map(key_of_text, names))
        path = _without_value(given) if at is None else (*given[:at], *given[at + 1 :])
        if not hasattr(leaf, "shape"):  # a text in a tree, which our metadata have too
            continue
        content = Remote(tuple(leaf.shape), np.dtype(leaf.dtype), name, position)
        made[text_of(name, path)] = StoredLeaf(LeafRecord(path, dtype_text(content)), content)
    for text, beside in record.leaves.items():
        value = beside.value
        if isinstance(value, dict):
            dtype, shape = value["empty"]
            if 0 not in shape:
                raise CheckpointError(text, "this is not the shape of an empty array", got=repr(shape)[:80])
            beside, value = replace(beside, dtype=str(dtype), value=None), np.zeros(shape, dtype)
        made[text_of(name, beside.path)] = StoredLeaf(beside, value)
    return made


_GROUP: Final = 1 << 27
"""How many bytes of an item are read before progress is reported."""


def _groups(sizes: Mapping[int, int]) -> list[list[int]]:
    """The positions of leaves in groups of about `_GROUP` bytes."""
    groups: list[list[int]] = [[]]
    size = 0
    for position, added in sizes.items():
        if size >= _GROUP:
            groups.append([])
            size = 0
        groups[-1].append(position)
        size += added
    return groups


def _restored(ocp: Any, folder: Any, arguments: Mapping[int, Any]) -> dict[int, Any]:
    """The leaves of an item at some positions; Orbax puts placeholders at the others."""
    leaves, treedef = jax.tree.flatten(_tree(ocp, folder))
    chosen = [0 if at in arguments else ocp.PLACEHOLDER for at in range(len(leaves))]
    how = [arguments.get(at, ocp.RestoreArgs()) for at in range(len(leaves))]
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        request = ocp.args.PyTreeRestore(
            jax.tree.unflatten(treedef, chosen), restore_args=jax.tree.unflatten(treedef, how)
        )
        found = jax.tree.leaves(checkpointer.restore(folder, args=request))
    return {at: found[at] for at in arguments}
