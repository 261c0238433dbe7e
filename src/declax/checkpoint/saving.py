"""`save`: items to a folder that is complete, or does not exist."""

from __future__ import annotations

import functools
import os
import secrets
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, get_args

import jax

from declax._graph.nodes import path_of
from declax._jax import level_of_user
from declax._typing import MISSING
from declax.checkpoint import orbax_engine
from declax.checkpoint.arrays import SCALARS, Outgoing, check_storable, dtype_text
from declax.checkpoint.files import after_commit, naming
from declax.checkpoint.folders import Claim, check_one_process_writes, exists_already, new_folder, sync_folder
from declax.checkpoint.items import Graph, Item, Leaf, item_of, text_of
from declax.checkpoint.manifest import (
    NAME,
    FileRecord,
    ItemRecord,
    LeafRecord,
    Manifest,
    full_name,
    read_manifest,
    write_manifest,
)
from declax.checkpoint.names import Names
from declax.checkpoint.placed import table_of_items
from declax.checkpoint.progress import Counter, Progress, check_progress
from declax.checkpoint.safetensors import write_tensors
from declax.checkpoint.structure_writer import StructureWriter
from declax.checkpoint.values import Problem
from declax.config._reading.part_readers import version_of
from declax.config.loading import to_config
from declax.config.specs import Spec
from declax.errors import CheckpointError, CheckpointWarning, describe, type_name

Engine = Literal["declax", "orbax"]

FILE_SIZE: Final = 1 << 28
"""From how many bytes on arrays go to another file; threads verify several files at a time."""


def save(
    path: str | os.PathLike[str],
    items: Mapping[str, Any],
    /,
    *,
    spec: Spec[Any] | Mapping[str, Spec[Any]] | None = None,
    metrics: Mapping[str, float] | None = None,
    overwrite: bool = False,
    extra: Iterable[Any] = (),
    progress: Progress | None = None,
    engine: Engine = "declax",
) -> None:
    """Saves models, optimizers, arrays and plain data in a folder, completely or not at all.

    When `save` returns, the checkpoint is on the disk. If the process ends earlier, there is no checkpoint at the
    path, or the old one.

    Of arrays on a mesh of several devices, the checkpoint keeps the `Plan` too: ``dx.load(path, abstract=True).plan``.

    Args:
      path: the folder, which must not exist.
      items: by name: a model, an optimizer, random streams, a container of them, a State, a pytree of arrays and
        numbers, or plain data as of JSON.
      spec: what the manifest says of how the item ``model`` was constructed, or items by name. A load makes models of
        their structures, and does not need it.
      metrics: numbers to keep with the checkpoint, such as the loss.
      overwrite: replace a checkpoint at the path. A reader sees the old one or the new one.
      extra: classes that the specs name, as in `to_config`, and classes of functions that `load` will be given.
      progress: a function of the bytes that are written so far, and of all bytes. An error of it ends the save; with
        Orbax it is raised when the checkpoint is complete.
      engine: ``"orbax"`` writes the layout of Orbax and Flax NNX, from all processes, each its part of the arrays,
        which `progress` counts. It has no `overwrite`.

    Raises:
      MissingExtraError: the engine is not installed.
      CheckpointError: the path exists, the disk is full, another writer is there, several processes save to it, or a
        leaf cannot be stored. An old checkpoint at the path is unchanged.

    Warns:
      CheckpointWarning: values have no name in files, such as a lambda or ``optax.adam(0.1)``, so that a `load` of
        their items needs ``into=``. It lists them, and what to write.

    >>> import declax as dx
    >>> model = dx.Linear(2, 3, rngs=dx.Rngs(0))
    >>> dx.save("step_12", {"model": model, "step": 12})
    >>> dx.load("step_12")["step"]
    12
    """
    check_engine(os.fspath(path), engine)
    check_progress(os.fspath(path), progress)
    if engine != "declax":
        if overwrite:
            raise CheckpointError(
                os.fspath(path),
                'engine="orbax" has no overwrite=',
                why="Orbax removes the old checkpoint before the new one is complete",
                fix='dx.save(another_path, items, engine="orbax")',
            )
        orbax_engine.write(path, *items_for_orbax(os.fspath(path), items, spec, metrics, extra), progress)
        return
    with naming(path, "saved"):
        _save(Path(path), items, spec, metrics, overwrite, classes_of(os.fspath(path), extra), progress)


def _save(
    folder: Path,
    items: Mapping[str, Any],
    spec: Spec[Any] | Mapping[str, Spec[Any]] | None,
    metrics: Mapping[str, float] | None,
    overwrite: bool,
    extra: tuple[Any, ...],
    progress: Progress | None,
) -> None:
    read = read_items(str(folder), items)
    records = _records(str(folder), read, spec, extra, functools.partial(_leaf_records, str(folder)))
    leaves = [(text, leaf) for item in read for text, leaf in item.leaves.items() if not _is_scalar(leaf)]
    arrays = {text: Outgoing(leaf.value, f"{folder}, {text}") for text, leaf in leaves}
    total = sum(array.nbytes for array in arrays.values())
    report = Counter(progress, total).add
    numbers = _numbers(str(folder), metrics)
    plan = table_of_items(read)
    check_one_process_writes(folder)
    if overwrite and (folder / NAME).exists():
        _replace(folder, arrays, records, numbers, plan, report)
        return
    if overwrite:
        _check_empty(folder)
    elif os.path.lexists(folder):
        raise exists_already(folder)
    with new_folder(folder, replaces_empty=overwrite) as temporary:
        files = _write_files(temporary, arrays, report)
        write_manifest(temporary, Manifest(files, records, numbers, plan), folder)


def _check_empty(folder: Path) -> None:
    """Raises if a path has something else than an empty folder."""
    is_folder = folder.is_dir() and not folder.is_symlink()
    if not os.path.lexists(folder) or (is_folder and not any(folder.iterdir())):
        return
    raise CheckpointError(
        str(folder),
        "this is not a checkpoint, so nothing is overwritten",
        got="a folder with other files" if is_folder else "a file or link",
    )


def items_for_orbax(
    where: str,
    items: Mapping[str, Any],
    spec: Spec[Any] | Mapping[str, Spec[Any]] | None,
    metrics: Mapping[str, float] | None,
    extra: Iterable[Any],
) -> tuple[list[Item], dict[str, ItemRecord], dict[str, float]]:
    """The items, what a manifest says of them, and the metrics."""
    read = read_items(where, items)
    records = _records(where, read, spec, classes_of(where, extra), orbax_engine.beside_arrays)
    return read, {name: record for name, record in records.items() if not record.is_value}, _numbers(where, metrics)


def check_engine(where: str, engine: str) -> None:
    """Raises if there is no such engine."""
    if engine not in get_args(Engine):
        raise CheckpointError(where, "there is no such engine", expected='"declax" or "orbax"', got=repr(engine)[:80])


def classes_of(where: str, extra: Any) -> tuple[Any, ...]:
    """The classes that specs may name."""
    if isinstance(extra, (type, str)) or not isinstance(extra, Iterable):
        name = getattr(extra, "__name__", "Net")
        raise CheckpointError(where, "extra is a list of classes", got=describe(extra), fix=f"extra=[{name}]")
    return tuple(extra)


def read_items(where: str, items: Any) -> list[Item]:
    """The items, read; raises if there are none."""
    if not isinstance(items, Mapping) or not items:
        fix = '{"model": model, "step": 12}'
        raise CheckpointError(where, "a checkpoint consists of items by name", got=describe(items), fix=fix)
    return [item_of(where, name, value) for name, value in items.items()]


def _replace(
    folder: Path,
    arrays: Mapping[str, Outgoing],
    records: Mapping[str, ItemRecord],
    metrics: Mapping[str, float],
    plan: Mapping[str, Any] | None,
    report: Callable[[int], None],
) -> None:
    """Puts new files beside those of a checkpoint, then the manifest that names them, and removes the old ones."""
    with Claim(folder):
        with suppress(CheckpointError):  # a damaged checkpoint is replaced too
            _remove_strays(folder)
        try:
            files = _write_files(folder, arrays, report)
            sync_folder(folder)  # no failure of power may keep the manifest, and lose the entry of a file
            write_manifest(folder, Manifest(files, records, metrics, plan), folder)
        except BaseException:
            with suppress(CheckpointError):
                _remove_strays(folder)
            raise
        with after_commit(folder, "files of the old one may be left"):
            _remove_strays(folder)


def _remove_strays(folder: Path) -> None:
    """Removes the files that the manifest on the disk does not name: of an old checkpoint, or of a killed writer."""
    sync_folder(folder)  # from here on no failure of power brings an older manifest back
    named = read_manifest(folder).files
    for file in [*folder.glob("*.safetensors"), *folder.glob(f".{NAME}.new")]:
        if file.name not in named:
            with naming(file, "removed"):
                file.unlink(missing_ok=True)


def _write_files(folder: Path, arrays: Mapping[str, Outgoing], report: Callable[[int], None]) -> dict[str, FileRecord]:
    """Writes arrays to files of about `FILE_SIZE` bytes."""
    groups: list[dict[str, Outgoing]] = [{}]
    size = 0
    for text, array in arrays.items():
        if size and size + array.nbytes > FILE_SIZE:
            groups.append({})
            size = 0
        groups[-1][text] = array
        size += array.nbytes
    token = secrets.token_hex(4)
    files: dict[str, FileRecord] = {}
    for number, group in enumerate(groups):
        name = f"arrays-{token}-{number:05}.safetensors"
        digest = write_tensors(folder / name, group, metadata={"format": "declax"}, progress=report)
        files[name] = FileRecord((folder / name).stat().st_size, digest)
    return files


def _numbers(where: str, metrics: Mapping[str, float] | None) -> dict[str, float]:
    try:
        return {str(name): float(value) for name, value in (metrics or {}).items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(where, "metrics must be numbers by name", got=str(error)) from None


# --- what the manifest says ---------------------------------------------------------


def _records(
    where: str,
    items: list[Item],
    spec: Spec[Any] | Mapping[str, Spec[Any]] | None,
    extra: tuple[Any, ...],
    leaves_of: Callable[[Item], dict[str, LeafRecord]],
) -> dict[str, ItemRecord]:
    """What a manifest says of the items, and a function of their leaves."""
    specs, structures = _specs(where, items, spec), _structures(items, extra)
    records: dict[str, ItemRecord] = {}
    for item in items:
        if item.is_json:
            records[item.name] = ItemRecord(value=item.value, is_value=True)
            continue
        given = specs.get(item.name)
        config, name = (
            (None, "") if given is None else (to_config(given, full=True, extra=extra), full_name(given.target))
        )
        later = [(link, cls) for link, cls in item.classes if version_of(cls) != 1]
        versions = {text_of(item.name, path_of(link)): version_of(cls) for link, cls in later}
        records[item.name] = ItemRecord(leaves_of(item), structures[item.name], config, name, versions)
    return records


def _specs(where: str, items: list[Item], spec: Spec[Any] | Mapping[str, Spec[Any]] | None) -> Mapping[str, Spec[Any]]:
    """The specs by the names of models."""
    specs: Any = {"model": spec} if isinstance(spec, Spec) else spec or {}
    if not isinstance(specs, Mapping) or not all(isinstance(found, Spec) for found in specs.values()):
        raise CheckpointError(where, "spec is a Spec, or Specs by name", got=describe(spec), fix="spec=dx.spec(Net, 4)")
    for name in specs:
        if name not in {item.name for item in items if item.is_graph}:
            raise CheckpointError(where, f"spec: there is no model of the name {name!r}", got=_names(items))
    return dict(specs)


def _names(items: Iterable[Item]) -> str:
    return ", ".join(item.name for item in items)


def _structures(items: list[Item], extra: tuple[Any, ...]) -> dict[str, Any]:
    """The structure of each item that is not plain data; warns once of all that `load` cannot make again."""
    graphs = {item.name: item.graph or Graph.of(item.value) for item in items if not item.is_json}
    written = {name: StructureWriter(graph) for name, graph in graphs.items()}
    known = Names(extra)
    problems: list[tuple[str, Problem]] = []
    for name, found in written.items():
        unknown = [(link, cls) for link, cls in found.local if known.find(cls) is MISSING]
        local = [Problem(link, f"the class {cls} is defined in a function", _extra(cls)) for link, cls in unknown]
        problems += [(name, problem) for problem in (*found.problems, *local)]
    fixes = (problem.fix for _, problem in problems if problem.fix)
    lines = [problem.text(name) for name, problem in problems[:_SHOWN]]
    rest = _shared_lines(graphs)
    lines += rest[: _SHOWN - len(lines)]
    left = len(problems) + len(rest) - len(lines)
    if lines:
        lines += [f"... and {left} more"] if left else []
        text = "\n  ".join(["without into=, dx.load cannot make these as they are:", *lines])
        fix = next(fixes, "dx.load(path, into={...})")
        warnings.warn(f"{text}\n  fix: {fix}", CheckpointWarning, stacklevel=level_of_user(sys._getframe()))
    return {name: found.structure for name, found in written.items()}


_SHOWN: Final = 10
"""How many problems a warning lists."""


def _extra(cls: str) -> str:
    return f"extra=[{cls.rpartition('.')[2]}]        # for dx.save, and for dx.load"


def _shared_lines(graphs: Mapping[str, Graph]) -> list[str]:
    """What to say of objects that several items hold: without a target, each item comes back with its own."""
    owners: dict[int, str] = {}
    shared: dict[tuple[str, str], str] = {}
    for name, graph in graphs.items():
        for held in graph.objects:
            first = owners.setdefault(id(held), name)
            if first != name:
                shared.setdefault((first, name), describe(held))
    return [f"{name}: it shares {what} with {first!r}, and a load makes two" for (first, name), what in shared.items()]


def _leaf_records(where: str, item: Item) -> dict[str, LeafRecord]:
    return {text: _leaf_record(f"{where}, {text}", leaf) for text, leaf in item.leaves.items()}


def _leaf_record(where: str, leaf: Leaf) -> LeafRecord:
    kind = "" if leaf.leaf_def is None else type_name(leaf.leaf_def[0])
    if _is_scalar(leaf):
        return LeafRecord(leaf.path, value=leaf.value, kind=kind)
    value = leaf.value
    check_storable(where, value)
    if isinstance(value, jax.Array) and not (value.is_fully_addressable or value.is_fully_replicated):
        raise CheckpointError(
            where,
            "this process holds only a part of the array",
            got=describe(value),
            fix='dx.save(path, items, engine="orbax")        # each process writes its part',
        )
    return LeafRecord(leaf.path, dtype_text(value), kind=kind)


def _is_scalar(leaf: Leaf) -> bool:
    return isinstance(leaf.value, SCALARS)
