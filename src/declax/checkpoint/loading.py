"""`load`: items from a checkpoint, verified, all of them or none."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp

from declax._filters import Filter, ask, predicate_of
from declax._graph.api import state as state_of
from declax._graph.iteration import iter_graph
from declax._graph.nodes import OBJECTS, kind_of
from declax._graph.updating import update
from declax._random.streams import Rngs
from declax.checkpoint import orbax_engine
from declax.checkpoint.file_arrays import FileArray
from declax.checkpoint.files import OpenFile, naming
from declax.checkpoint.items import (
    SCALARS,
    Item,
    filled,
    from_file,
    is_key,
    item_of,
    on_device,
    state_with,
    text_of,
    without_target,
)
from declax.checkpoint.manifest import NAME, ItemRecord, Manifest, filled_tree, full_name, read_manifest, texts_of
from declax.checkpoint.matching import (
    RestoreReport,
    Stored,
    StoredLeaf,
    joined,
    match,
    renamed_leaves,
    renamed_versions,
    upgraded_leaves,
    with_current_names,
)
from declax.checkpoint.progress import Counter, Progress
from declax.checkpoint.safetensors import tensors_in
from declax.checkpoint.saving import Engine, check_engine, classes_of, read_items
from declax.checkpoint.statics import restore_statics
from declax.config.loading import spec_from_config
from declax.config.specs import Spec
from declax.errors import CheckpointError, ConfigError, suggest

_CHUNK: Final = 1 << 20


class Restored(dict[str, Any]):
    """The items of a checkpoint by name.

    Attributes:
      report: what was restored, renamed or left out.
      metrics: the numbers that were saved with it.
    """

    report: RestoreReport
    metrics: Mapping[str, float]

    def __init__(self, items: Mapping[str, Any], report: RestoreReport, metrics: Mapping[str, float]) -> None:
        super().__init__(items)
        self.report = report
        self.metrics = metrics


def load(
    path: str | os.PathLike[str],
    /,
    into: Mapping[str, Any] | None = None,
    *,
    only: Filter | None = None,
    rename: Mapping[str, str] | None = None,
    strict: bool = True,
    verify: bool = True,
    extra: Iterable[Any] = (),
    progress: Progress | None = None,
    engine: Engine = "declax",
) -> Restored:
    """Restores the items of a checkpoint.

    Paths, shapes, dtypes and kinds of Variables must be those of the target. All items are read and compared before
    the first one is written to. Nothing of the checkpoint is executed.

    Args:
      path: the folder.
      into: the items to restore, by name. Models, optimizers and other graphs are written in place, on their devices
        and with their shardings; other items are in the result. Without it, models are rebuilt from their specs, with
        the static values that they had; dicts, lists and tuples of arrays come back as they were; and other items are
        States of arrays.
      only: which leaves of the target are restored.
      rename: new paths for paths of the checkpoint, as ``{"model.old.*": "model.new.*"}``.
      strict: False takes what fits; the `report` of the result says what does not.
      verify: False skips the digests of the files of arrays.
      extra: classes that the specs may name, as in `from_config`.
      progress: a function of the bytes that are read so far, and of all bytes.
      engine: ``"orbax"`` reads the layout of Orbax and Flax NNX, where each item is a folder. It has no digests.

    Returns:
      The items by name: a dict with a `report` and `metrics`.

    Raises:
      MissingExtraError: the engine is not installed.
      CheckpointError: the checkpoint is damaged or incomplete; or it does not fit, with all paths that are missing,
        unexpected or have another shape or dtype; or `only` selects nothing; or a spec names a class that is neither
        in `extra` nor registered, or does not rebuild the model that was saved. Nothing is changed.

    >>> import declax as dx
    >>> dx.save("step_13", {"model": dx.Linear(2, 3, rngs=dx.Rngs(0)), "step": 13})
    >>> model = dx.Linear(2, 3, rngs=dx.Rngs(1))
    >>> found = dx.load("step_13", into={"model": model, "step": 0})
    >>> found["step"], found["model"] is model
    (13, True)
    """
    folder = Path(path)
    classes = classes_of(str(folder), extra)
    if into is None and (only is not None or not strict):
        raise CheckpointError(str(folder), "only= and strict=False choose among the leaves of a target", fix="into=...")
    if engine != "declax":
        check_engine(str(folder), engine)
        return _load_with_orbax(path, into, only, rename, strict, classes, progress)
    manifest, files = _open(folder)
    with _digests(folder, manifest, files if verify else {}) as check:
        try:
            found = _stored(folder, manifest, files)
        except CheckpointError:
            check()  # a damaged file is the reason, if there is one
            raise
        renamed, texts = renamed_leaves(str(folder), found, rename)
        targets, rest = _targets(folder, into, manifest, classes, renamed)
        _check_names(folder, targets, renamed)
        stored, former = with_current_names(targets, renamed)
        versions = _versions(manifest, texts, former)
        values, report = _matched(folder, targets, stored, manifest, only, strict, former, versions)
        likes = [{text: leaf.value for text, leaf in item.leaves.items()} for item in targets]
        arrays = _on_devices([*values, *(stored[name] for name in rest)], [*likes, *({} for _ in rest)], progress)
        check()
    return _restored(folder, targets, rest, arrays, stored, manifest, report, into)


def _load_with_orbax(
    path: str | os.PathLike[str],
    into: Mapping[str, Any] | None,
    only: Filter | None,
    rename: Mapping[str, str] | None,
    strict: bool,
    extra: tuple[Any, ...],
    progress: Progress | None,
) -> Restored:
    folder = Path(path)
    manifest, found = orbax_engine.read(path)
    renamed, texts = renamed_leaves(str(folder), found, rename)
    targets, rest = _targets(folder, into, manifest, extra, renamed)
    _check_names(folder, targets, renamed)
    current, former = with_current_names(targets, renamed)
    versions = _versions(manifest, texts, former)
    stored = orbax_engine.fitted(str(folder), targets, current, versions)
    values, report = _matched(folder, targets, stored, manifest, only, strict, former, versions)
    likes = [{text: leaf.value for text, leaf in item.leaves.items()} for item in targets]
    wanted = [*values, *(stored[name] for name in rest)]
    arrays = orbax_engine.fetch(path, wanted, [*likes, *({} for _ in rest)], progress)
    return _restored(folder, targets, rest, arrays, stored, manifest, report, into)


def _targets(
    folder: Path,
    into: Mapping[str, Any] | None,
    manifest: Manifest,
    extra: tuple[Any, ...],
    stored: Mapping[str, Stored],
) -> tuple[list[Item], list[str]]:
    """The items to restore into, and the names of those that have no target."""
    if into is not None:
        return read_items(str(folder), into), []
    targets, rest = _rebuilt(folder, manifest, extra)
    return targets, [*rest, *(name for name in stored if name not in manifest.items)]  # items that `rename` makes


def _restored(
    folder: Path,
    targets: list[Item],
    rest: list[str],
    arrays: list[dict[str, Any]],
    stored: Mapping[str, Stored],
    manifest: Manifest,
    report: RestoreReport,
    into: Mapping[str, Any] | None,
) -> Restored:
    _check_shared(folder, targets, arrays)
    done = _write(targets, arrays, manifest)
    for name, values in zip(rest, arrays[len(targets) :], strict=True):
        tree = manifest.items.get(name, ItemRecord()).tree
        if tree is not None and set(texts_of(tree)) == values.keys():  # unless paths were renamed
            done[name] = filled_tree(tree, values)
        else:
            done[name] = without_target((stored[name][text].record.path, value) for text, value in values.items())
    order = manifest.items if into is None else into
    return Restored({name: done[name] for name in order} | done, report, manifest.metrics)


# --- reading and verifying ------------------------------------------------------------

_Files = dict[str, tuple[dict[str, FileArray], OpenFile]]


def _open(folder: Path) -> tuple[Manifest, _Files]:
    """The manifest and its files; those of the new one if a writer replaces the checkpoint meanwhile."""
    with naming(folder, "opened"):
        is_there = (folder / NAME).exists()
    if not is_there and orbax_engine.is_of_orbax(folder):
        fix = f'dx.load({str(folder)!r}, into=..., engine="orbax")'
        raise CheckpointError(str(folder), "this is a checkpoint of Orbax", fix=fix)
    if not os.path.lexists(folder / NAME):
        raise _no_checkpoint(folder)
    manifest = read_manifest(folder)
    while True:
        try:
            return manifest, {name: _opened(folder / name, record.size) for name, record in manifest.files.items()}
        except CheckpointError:
            before, manifest = manifest, read_manifest(folder)
            if manifest.files == before.files:
                raise


def _no_checkpoint(folder: Path) -> CheckpointError:
    """The error of a path without a manifest, with the function for what is there."""
    got = "no such folder"
    if os.path.lexists(folder):
        got = "a folder without a manifest" if folder.is_dir() else "a file"
    fix, shown = None, repr(str(folder))
    if any(folder.glob(f"step_*/{NAME}")):
        fix = f"dx.Checkpoints({shown}).load(into=...)"
    elif any(folder.glob("*.jax_export")):
        fix = f"dx.load_exported({shown})"
    elif any(folder.glob("*.safetensors")):
        fix = f"dx.load_weights(model, {shown}, map=...)"
    expected = f"a folder with {NAME}"
    return CheckpointError(str(folder / NAME), "there is no checkpoint", expected=expected, got=got, fix=fix)


def _opened(path: Path, size: int) -> tuple[dict[str, FileArray], OpenFile]:
    file = OpenFile(path, follow_links=False)
    arrays = tensors_in(file)
    if file.size != size:
        raise CheckpointError(
            str(path), "the file has another size", expected=f"{size} bytes", got=f"{file.size} bytes"
        )
    return arrays, file


@contextmanager
def _digests(folder: Path, manifest: Manifest, files: _Files) -> Generator[Callable[[], None], None, None]:
    """Computes the digests of files in threads; the function that it yields waits for them, and compares."""
    pool = ThreadPoolExecutor(max(1, min(len(files), os.cpu_count() or 1)))
    found: dict[str, Future[str]] = {name: pool.submit(_digest, file) for name, (_, file) in files.items()}

    def check() -> None:
        for name, digest in found.items():
            if digest.result() != manifest.files[name].sha256:
                expected = f"sha256 {manifest.files[name].sha256}"
                raise CheckpointError(str(folder / name), "the file was changed or damaged", expected=expected)

    try:
        yield check
    finally:
        pool.shutdown(cancel_futures=True)


def _digest(file: OpenFile) -> str:
    digest = hashlib.sha256()
    with memoryview(bytearray(min(_CHUNK, file.size))) as block:
        for start in range(0, file.size, _CHUNK):
            piece = block[: file.size - start]
            file.read_into(piece, start)
            digest.update(piece)
    return digest.hexdigest()


def _stored(folder: Path, manifest: Manifest, files: _Files) -> dict[str, Stored]:
    """The leaves of all items; raises unless the files have exactly the arrays that the manifest names."""
    arrays: dict[str, tuple[str, FileArray]] = {}
    for name, (found, _) in files.items():
        for text, array in found.items():
            if text in arrays:
                raise CheckpointError(str(folder / name), f"{arrays[text][0]} has the array {text!r} too")
            arrays[text] = (name, array)
    made: dict[str, Stored] = {}
    for name, item in manifest.items.items():
        made[name] = {}
        for text, record in item.leaves.items():
            if text != text_of(name, record.path):
                raise CheckpointError(
                    str(folder), f"the manifest gives {text!r} another path", got=repr(record.path)[:80]
                )
            if not record.dtype:
                made[name][text] = StoredLeaf(record, record.value)
                continue
            if text not in arrays:
                raise CheckpointError(str(folder), f"no file has the array {text!r}")
            file, array = arrays.pop(text)
            made[name][text] = StoredLeaf(record, from_file(f"{folder / file}, {text}", record.dtype, array))
    if arrays:
        text, (file, _) = next(iter(arrays.items()))
        raise CheckpointError(str(folder / file), f"the manifest does not name the array {text!r}")
    return made


# --- matching and writing ---------------------------------------------------------------


def _check_names(folder: Path, targets: list[Item], stored: Mapping[str, Stored]) -> None:
    for item in targets:
        if item.name not in stored:
            hint = suggest(item.name, stored)
            problem = f"the checkpoint has no item {item.name!r}"
            raise CheckpointError(str(folder), problem, expected=", ".join(stored), fix=hint)


def _rebuilt(folder: Path, manifest: Manifest, extra: tuple[Any, ...]) -> tuple[list[Item], list[str]]:
    """Models built from their specs, and the names of the other items with leaves.

    They are built with initial values: an abstract model has no record, so its next checkpoint would have no spec.
    """
    targets: list[Item] = []
    rest: list[str] = []
    for name, item in manifest.items.items():
        if item.spec is not None:
            spec = _spec_of_item(folder, name, item, extra)
            try:
                built = item_of(str(folder), name, spec.build(rngs=Rngs(0)))
            except Exception as error:
                error.add_note(f"raised by the constructor of the item {name!r} of {folder}")
                raise
            restore_statics(str(folder), built, item)
            targets.append(built)
        elif item.is_value:
            targets.append(Item(name, item.value, {}, is_json=True))
        else:
            rest.append(name)
    return targets, rest


def _spec_of_item(folder: Path, name: str, item: ItemRecord, extra: tuple[Any, ...]) -> Spec[Any]:
    """The spec of an item. A class of the same name from another module must be in `extra`."""
    problem = f"the item {name!r} cannot be rebuilt from its spec"
    cls = item.spec_class.rpartition(".")[2]
    fix = f"dx.load(path, extra=[{cls}])        # or into={{{name!r}: {cls}(...)}}"
    try:
        spec = spec_from_config(Any, item.spec or {}, extra=extra, migrate=True)
    except ConfigError as error:
        raise CheckpointError(
            str(folder), problem, expected=f"the class {item.spec_class}", got=str(error), fix=fix
        ) from error
    found = full_name(spec.target)
    if found != item.spec_class and spec.target not in extra:
        raise CheckpointError(str(folder), problem, expected=f"the class {item.spec_class}", got=found, fix=fix)
    return spec


def _versions(manifest: Manifest, texts: Mapping[str, str], former: Mapping[str, str]) -> dict[str, int]:
    """The versions of the classes that the checkpoint has, under the paths that their objects have now."""
    current = {old: new for new, old in former.items()}
    saved = {text: version for item in manifest.items.values() for text, version in item.versions.items()}
    return renamed_versions(saved, {old: current.get(new, new) for old, new in texts.items()})


def _matched(
    folder: Path,
    targets: list[Item],
    stored: Mapping[str, Stored],
    manifest: Manifest,
    only: Filter | None,
    strict: bool,
    former: Mapping[str, str],
    versions: Mapping[str, int],
) -> tuple[list[Stored], RestoreReport]:
    """The stored leaves for each target, and the report; raises where a strict report has problems."""
    found: list[Stored] = []
    reports: list[RestoreReport] = []
    for item in targets:
        record = manifest.items.get(item.name, ItemRecord())
        if item.is_json != record.is_value and (item.leaves or record.leaves):
            kinds = ("plain data", "arrays") if record.is_value else ("arrays", "plain data")
            problem = f"the item {item.name!r} is {kinds[0]} in the checkpoint, and {kinds[1]} in the target"
            raise CheckpointError(str(folder), problem)
        leaves = upgraded_leaves(str(folder), item, stored[item.name], versions)
        chosen, report = match(item, leaves, None if only is None else _chosen(item, only), former)
        found.append(chosen)
        reports.append(report)
    report = joined(reports)
    if only is not None and strict and not (report.taken or report.problems):
        fix = f"only=dx.PathContains({only!r})        # a text is a tag" if isinstance(only, str) else None
        raise CheckpointError(str(folder), "only: the filter selects no leaf of the target", got=repr(only), fix=fix)
    if strict and not report:
        count = len(report.problems)
        raise CheckpointError(
            str(folder),
            f"the checkpoint does not fit at {count} path{'s' if count > 1 else ''}",
            got="\n".join(map(str, report.problems)),
            fix="dx.load(path, into=..., strict=False)        # takes what fits, and reports the rest",
        )
    return found, report


def _chosen(item: Item, only: Filter) -> frozenset[str]:
    predicate = predicate_of(only, "load, only")
    return frozenset(text_of(item.name, path) for path, value in item.variables() if ask(predicate, path, value))


def _on_devices(values: list[Stored], likes: list[dict[str, Any]], progress: Progress | None) -> list[dict[str, Any]]:
    """The values as arrays like those of the targets, if any."""
    every = [leaf.content for leaves in values for leaf in leaves.values()]
    counter = Counter(progress, sum(getattr(content, "nbytes", 0) for content in every))
    made: list[dict[str, Any]] = []
    for leaves, like in zip(values, likes, strict=True):
        made.append({})
        for text, leaf in leaves.items():
            made[-1][text] = on_device(leaf.content, like.get(text))
            counter.add(getattr(leaf.content, "nbytes", 0))
    jax.block_until_ready(made)  # type: ignore[no-untyped-call]  # of JAX
    return made


def _check_shared(folder: Path, targets: list[Item], arrays: list[dict[str, Any]]) -> None:
    """Raises if several targets hold one object, and the checkpoint has different values for it."""
    seen: dict[int, tuple[str, dict[str, Any]]] = {}
    for item, values in zip(targets, arrays, strict=False):  # items without a target follow
        for path, node in iter_graph(item.value) if item.is_graph else ():
            if kind_of(node) not in OBJECTS:
                continue
            text = text_of(item.name, path)
            first, others = seen.setdefault(id(node), (text, values))
            for rest in _below(others, first) & _below(values, text) if others is not values else ():
                if not _are_equal(others[first + rest], values[text + rest]):
                    raise CheckpointError(
                        str(folder),
                        "two items of the target hold one object, and the checkpoint has different values for it",
                        got=f"{first + rest} and {text + rest}",
                        fix="into={...}        # an object for each item, or one of the two items",
                    )


def _below(values: Mapping[str, Any], text: str) -> set[str]:
    """The rests of the texts of values at or below a path."""
    return {found[len(text) :] for found in values if found == text or found.startswith(f"{text}.")}


def _are_equal(one: Any, other: Any) -> bool:
    """Whether two leaves are the same to the last bit, NaN included."""
    if type(one) is not type(other) or isinstance(one, SCALARS):
        return bool(one == other)
    is_number = not is_key(one)
    return bool(jnp.array_equal(one, other, equal_nan=is_number and jnp.issubdtype(one.dtype, jnp.inexact)))


def _write(targets: list[Item], arrays: list[dict[str, Any]], manifest: Manifest) -> dict[str, Any]:
    """Writes to all graphs, or to none; returns the items."""
    done: list[tuple[Any, Any]] = []
    found: dict[str, Any] = {}
    try:
        for item, values in zip(targets, arrays, strict=False):  # items without a target follow
            if item.is_json:
                found[item.name] = manifest.items[item.name].value
            elif not item.is_graph:
                found[item.name] = filled(item, values)
            else:
                before = state_of(item.value)
                update(item.value, state_with(item, values))
                done.append((item.value, before))
                found[item.name] = item.value
    except BaseException:
        for value, before in reversed(done):
            update(value, before)
        raise
    return found
