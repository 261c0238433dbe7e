"""Orbax as the engine of checkpoints: a folder for each item, in the layout of Orbax and Flax NNX."""

from __future__ import annotations

import importlib
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from declax._graph.nodes import plain_key
from declax._typing import Path
from declax.checkpoint.files import parse_json
from declax.checkpoint.items import (
    SCALARS,
    Item,
    Leaf,
    check_storable,
    dtype_text,
    filled,
    is_key,
    on_device,
    state_with,
    text_of,
)
from declax.checkpoint.manifest import NAME, ItemRecord, LeafRecord, Manifest, item_record, item_table
from declax.checkpoint.matching import Stored, StoredLeaf
from declax.checkpoint.orbax_progress import Counted, counter_of
from declax.checkpoint.progress import Counter, Progress
from declax.checkpoint.upgrading import needs_upgrade
from declax.errors import CheckpointError, MissingExtraError, describe

_OURS: Final = "declax"  # what Orbax keeps for us among the custom metadata of a checkpoint
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
    with naming_errors(folder, "write the checkpoint"), ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(folder, **request)
    counted.finish()


def _request(ocp: Any, folder: Any, items: list[Item], records: Mapping[str, ItemRecord], metrics: Any) -> Any:
    """The arguments with which Orbax saves items."""
    arguments = {item.name: _argument(ocp, str(folder), item) for item in items}
    ours = {"items": {name: item_table(record) for name, record in records.items()}, "metrics": metrics}
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
            if (entry / _TREE).exists():
                stored[name] = _leaves(name, _tree(ocp, entry))
                records[name] = item_record(custom["items"][name]) if name in custom["items"] else ItemRecord()
            elif (entry / _JSON).exists():
                records[name] = ItemRecord(value=ocp.JsonCheckpointHandler().restore(entry), is_value=True)
                stored[name] = {}
        metrics = {str(name): float(value) for name, value in custom["metrics"].items()}
    if (folder / NAME).exists() and not stored:
        raise CheckpointError(str(folder), "this is a checkpoint of declax", fix=f"dx.load({str(folder)!r})")
    if not stored:
        is_item = (folder / _TREE).exists()
        fix = f'dx.load({str(folder.parent)!r}, into={{{folder.name!r}: model}}, engine="orbax")' if is_item else None
        raise CheckpointError(
            str(folder), "the folder has no items of Orbax", expected="a folder for each item", fix=fix
        )
    return Manifest({}, records, metrics), stored


def fitted(
    where: str, targets: list[Item], stored: Mapping[str, Stored], versions: Mapping[str, int]
) -> dict[str, Stored]:
    """The leaves under the texts and with the types of the targets, where their data are those of a target.

    The metadata of Orbax have the data of random keys, and no paths but those with the key ``value`` of Variables.

    Raises:
      CheckpointError: a class has another version than in the checkpoint, and upgrades.
    """
    made = dict(stored)
    for item in targets:
        outdated = needs_upgrade(item, versions)
        if outdated is not None:
            raise CheckpointError(
                f"{where}, {outdated}",
                "checkpoint_upgrades need the engine of declax",
                why="the arrays of Orbax are compared with the target before they are read",
            )
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
    data = jax.eval_shape(jax.random.key_data, like)
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
    return [
        {
            text: _as_like(f"{folder}, {text}", values[leaf.content.item][leaf.content.position], like.get(text))
            for text, leaf in leaves.items()
        }
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
    made = found if like is None or isinstance(found, jax.Array) else on_device(found, like)
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
    with naming_errors(path, "write the checkpoint"):
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
def naming_errors(folder: Any, what: str) -> Generator[None, None, None]:
    """Errors of Orbax with the path."""
    try:
        yield
    except CheckpointError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, OSError, RuntimeError) as error:
        got = f"{type(error).__name__}: {error}"[:1000]
        raise CheckpointError(str(folder), f"Orbax could not {what}", got=got) from error


def _argument(ocp: Any, where: str, item: Item) -> Any:
    """What Orbax saves for an item: plain data as JSON, others as trees like those of the peer."""
    if item.is_json:
        return ocp.args.JsonSave(item.value)
    for text, leaf in item.leaves.items() or [(item.name, Leaf((), item.value, None))]:
        if not leaf.path or isinstance(leaf.value, str) or 0 in np.shape(leaf.value):
            raise CheckpointError(
                f"{where}, {text}",
                "Orbax stores no texts beside arrays, no empty items or arrays, and no array as an item",
                got=describe(leaf.value),
                fix='{"name": {"array": array}, "texts": ["plain", "data"]}',
            )
        if not isinstance(leaf.value, SCALARS):
            check_storable(f"{where}, {text}", leaf.value)
    values = {text: leaf.value for text, leaf in item.leaves.items()}
    return ocp.args.StandardSave(state_with(item, values) if item.is_graph else filled(item, values))


def _custom_metadata(folder: Any) -> Mapping[str, Any]:
    """What `write` has said of the items; nothing in a checkpoint of the peer."""
    file = folder / _CHECKPOINT
    found = (parse_json(file, file.read_bytes()).get("custom_metadata") or {}) if file.exists() else {}
    return {"items": {}, "metrics": {}, **found.get(_OURS, {})}


def _tree(ocp: Any, folder: Any) -> Any:
    """The structure of an item, with the metadata of its arrays."""
    return ocp.PyTreeCheckpointHandler().metadata(folder).tree


def _leaves(name: str, tree: Any) -> Stored:
    """The leaves of an item by the text of their path, without the key ``value`` of Variables at its end."""
    made: Stored = {}
    for position, (keys, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(tree)):
        names = map(plain_key, keys)
        path = _without_value(tuple(int(key) if str(key).isdecimal() else key for key in names))
        content = Remote(tuple(leaf.shape), np.dtype(leaf.dtype), name, position)
        made[text_of(name, path)] = StoredLeaf(LeafRecord(path, dtype_text(content)), content)
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
