"""`load`: items from a checkpoint, verified, all of them or none."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from declax._filters import Filter, ask, predicate_of
from declax._graph.api import state as state_of
from declax._graph.fit import STORED, Difference, Fit, Pairing, Target, compare, kind_text
from declax._graph.nodes import Link, path_of
from declax._graph.updating import update
from declax._sharding.declared import Shardings
from declax._sharding.plans import Plan, mesh_of_plan
from declax._typing import MISSING
from declax._typing import Path as LeafPath
from declax._variables.placement import AxisRules, context_mesh
from declax.checkpoint.arrays import SCALARS, is_key
from declax.checkpoint.items import Item, Leaf, filled, state_with, text_of, texts_to_copy
from declax.checkpoint.manifest import ItemRecord, Manifest, Stored
from declax.checkpoint.progress import Progress, check_progress
from declax.checkpoint.rebuilding import Errors, Maker, Placing, Rebuilding
from declax.checkpoint.renaming import (
    Renames,
    former_paths,
    renamed,
    renamed_versions,
    renames_of,
    with_current_names,
)
from declax.checkpoint.saving import Engine, check_engine, classes_of, read_items
from declax.checkpoint.sources import FolderSource, OrbaxSource
from declax.checkpoint.upgrading import upgraded_leaves
from declax.errors import CheckpointError, ShardingError, describe, suggest, type_name, with_article, written_path

RestoreReport = Fit
"""What `load` did with the leaves of a checkpoint and of its target."""


class Restored(dict[str, Any]):
    """The items of a checkpoint by name.

    An item that cannot be made again raises a CheckpointError when it is read.

    Attributes:
      report: what was restored, renamed or left out.
      metrics: the numbers that were saved with it.
      plan: where the arrays were on the mesh when they were saved, by item and path; None if on one device.
    """

    report: Fit
    metrics: Mapping[str, float]
    plan: Plan | None

    def __init__(
        self, items: Mapping[str, Any], report: Fit, metrics: Mapping[str, float], plan: Plan | None = None
    ) -> None:
        super().__init__(items)
        self.report = report
        self.metrics = metrics
        self.plan = plan

    def __getitem__(self, name: str) -> Any:
        return _readable(super().__getitem__(name))

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()  # defined here, so that copies, ``dict(found)`` and ``|`` read by `__getitem__` too

    def get(self, name: str, default: Any = None, /) -> Any:
        """As of a dict."""
        return _readable(super().get(name, default))

    def setdefault(self, name: str, default: Any = None, /) -> Any:
        """As of a dict."""
        return _readable(super().setdefault(name, default))

    def pop(self, name: str, /, *default: Any) -> Any:
        """As of a dict; an item that cannot be read stays."""
        self.get(name)
        return super().pop(name, *default)

    def popitem(self) -> tuple[str, Any]:
        """As of a dict; an item that cannot be read stays."""
        for name in reversed(self):
            return name, self.pop(name)
        return super().popitem()

    def values(self) -> Any:
        """As of a dict."""
        return {name: self[name] for name in self}.values()

    def items(self) -> Any:
        """As of a dict."""
        return {name: self[name] for name in self}.items()


def _readable(found: Any) -> Any:
    if isinstance(found, CheckpointError):
        raise found
    return found


def load(
    path: str | os.PathLike[str],
    /,
    into: Mapping[str, Any] | None = None,
    *,
    items: Collection[str] | None = None,
    only: Filter | None = None,
    rename: Mapping[str, str] | None = None,
    strict: bool = True,
    verify: bool = True,
    extra: Iterable[Any] = (),
    abstract: bool = False,
    mesh: jax.sharding.Mesh | None = None,
    rules: AxisRules | None = None,
    shardings: Shardings = None,
    progress: Progress | None = None,
    engine: Engine = "declax",
) -> Restored:
    """Restores the items of a checkpoint.

    With `into`, the paths, shapes, dtypes and kinds of Variables must be those of the target. All items are read and
    compared before the first one is written to.

    Without `into`, each item comes back as what it was: models, optimizers and random streams with their classes,
    attributes, sharing and modes, and containers and States of these. No constructor runs. Only classes of
    declax, registered ones, those in `extra`, and those that the code of these names are made. The only functions that
    are called are those that make the transformation of an optimizer: of optax and declax, in `extra`, or registered.

    Args:
      path: the folder.
      into: the items to restore, by name. Models, optimizers and other graphs are written in place, on their devices
        and with their shardings; other items are in the result, and arrays in tuples beside models in copies of these.
      items: the names of the items to load, if not all.
      only: which leaves of the target are restored.
      rename: new paths for paths of the checkpoint, as ``{"model.old.*": "model.new.*"}``.
      strict: False takes what fits; the `report` of the result says what does not.
      verify: False skips the digests of the files of arrays.
      extra: classes and functions that the checkpoint may name, or modules that define them.
      abstract: return models with shapes in place of arrays, which are not read.
      mesh: devices on which arrays are placed as declared, or whole; each process reads the parts that it holds.
        None for the mesh of `jax.set_mesh`, if there is one.
      rules, shardings: as for `init_sharded`. A plan has the names of the items as its first keys, or is that of each
        item.
      progress: a function of the bytes that are read so far, and of all bytes.
      engine: ``"orbax"`` reads the layout of Orbax and Flax NNX, where each item is a folder. It has no digests.

    Returns:
      The items by name: a dict with a `report`, `metrics` and `plan`. An item that cannot be made again, such as one
      with a lambda or of a class that is not in `extra`, raises a CheckpointError when it is read.

    Raises:
      MissingExtraError: the engine is not installed.
      CheckpointError: the checkpoint is damaged or incomplete; or it does not fit, with all paths that are missing,
        unexpected or have another shape or dtype; or `only` selects nothing. Nothing is changed.
      ShardingError: declared names do not fit the mesh.

    Warns:
      CheckpointWarning: an older version of declax wrote an item without a Spec; it comes back as a State.

    >>> import declax as dx
    >>> dx.save("step_13", {"model": dx.Linear(2, 3, rngs=dx.Rngs(0)), "step": 13})
    >>> dx.load("step_13")["model"].out_features
    3
    >>> model = dx.Linear(2, 3, rngs=dx.Rngs(1))
    >>> found = dx.load("step_13", into={"model": model, "step": 0})
    >>> found["step"], found["model"] is model
    (13, True)
    """
    where = os.fspath(path)
    classes = classes_of(where, extra)
    check_engine(where, engine)
    check_progress(where, progress)
    mesh = mesh_of_plan(shardings) if mesh is None else mesh
    _check_arguments(
        where, into, items, only, placing := Placing(mesh, rules, shardings, abstract), strict=strict, abstract=abstract
    )
    opened = OrbaxSource(path) if engine == "orbax" else FolderSource(Path(path), verify=verify and not abstract)
    with opened as source:
        manifest, stored = _chosen_items(where, source, items)
        renames = renames_of(where, stored, rename)
        if into is None:
            made = Rebuilding(where, manifest.items, stored, renames, classes, placing, source.read)
            targets, makers, errors = made.items, made.makers, made.errors
            manifest, current = replace(manifest, items=made.records), made.stored
            renames, missing, asked = made.renames, [], {}
        else:
            targets, makers, errors = read_items(where, into), {}, Errors()
            current, asked = renamed(where, stored, renames), renames
            missing = _missing_items(where, targets, current, strict=strict)
            targets, current = [item for item in targets if item.name in current], stored
        noting = errors.noting if into is None else contextlib.nullcontext
        loose = [item for item in targets if item.name not in makers]
        elsewhere = dict.fromkeys(new.partition(".")[0] for new in asked.values())  # what mirrors a model follows it
        others = [Item(name, None, {}) for name in elsewhere if all(name != item.name for item in targets)]
        names = with_current_names(where, [*loose, *others], current, asked)
        versions = _versions(manifest, current, names)
        fitted = source.fitted(targets, renamed(where, current, names))
        for item in loose:
            with noting(item.name):
                fitted[item.name] = upgraded_leaves(where, item, fitted[item.name], versions, source.read)
        former = former_paths(stored, renames | names)
        matching = functools.partial(
            _matched, where, stored=fitted, manifest=manifest, only=only, strict=strict, former=former
        )
        compared = [item for item in targets if not abstract or (item.is_graph and item.name not in makers)]
        if into is None:
            for item in compared:
                with noting(item.name):
                    matching([item])
            targets, compared = ([item for item in one if item.name not in errors] for one in (targets, compared))
        values, report = matching(compared)
        report = replace(report, missing=(*report.missing, *missing))
        if abstract:
            found = {item.name: _abstract(item, makers.get(item.name)) for item in targets}
        else:
            likes = [{text: leaf.value for text, leaf in item.leaves.items()} for item in targets]
            arrays = source.fetch(values, likes, progress)
            source.check()
            _check_shared(where, targets, arrays)
            pairs = list(zip(targets, arrays, strict=True))
            found = _write([pair for pair in pairs if pair[0].name not in makers], manifest)
            for item, leaves in pairs:
                with noting(item.name):
                    found |= {item.name: makers[item.name](_leaf_of(item.name, leaves))} if item.name in makers else {}
    found |= errors
    if into is not None:
        found |= {name: into[name] for name in into if name not in found}
    order = manifest.items if into is None else into
    return Restored({name: found[name] for name in order} | found, report, manifest.metrics, _plan_of(where, manifest))


def _plan_of(where: str, manifest: Manifest) -> Plan | None:
    """Where the arrays of a checkpoint were."""
    if manifest.plan is None:
        return None
    try:
        return Plan.from_table(where, manifest.plan)
    except ShardingError as error:
        raise CheckpointError(where, "the plan of the checkpoint is invalid", got=error.got) from None


def _leaf_of(name: str, values: Mapping[str, Any]) -> Callable[..., Any]:
    """The function that gives a leaf of an item by its path."""
    return lambda path, *_: values.get(text_of(name, path), MISSING)


def _check_arguments(
    where: str, into: Any, items: Any, only: Any, placing: Placing, *, strict: bool, abstract: bool
) -> None:
    if into is None and (only is not None or not strict):
        raise CheckpointError(where, "only= and strict=False choose among the leaves of a target", fix="into=...")
    if into is not None and (items is not None or abstract or placing != Placing()):
        problem = "items=, abstract=, mesh=, rules= and shardings= are for a load without a target"
        raise CheckpointError(where, problem, fix="dx.load(path, ...)        # without into=")
    is_mesh = isinstance(placing.mesh or context_mesh(), jax.sharding.Mesh)
    if not is_mesh and placing[:3] != Placing()[:3]:
        raise CheckpointError(
            where,
            "there is no mesh of devices",
            expected="mesh=, or a call under jax.set_mesh",
            got=None if placing.mesh is None else describe(placing.mesh),
            fix='mesh=jax.make_mesh((8,), ("data",))',
        )


def _chosen_items(where: str, source: FolderSource | OrbaxSource, items: Any) -> tuple[Manifest, dict[str, Stored]]:
    """The manifest and the leaves of the wanted items."""
    manifest = source.manifest
    if items is None:
        return manifest, source.stored
    items = tuple(items) if isinstance(items, Iterable) and not isinstance(items, str) else items
    if not isinstance(items, tuple) or not all(isinstance(name, str) for name in items):
        raise CheckpointError(where, "items are names", got=describe(items), fix='items=("model",)')
    unknown = [name for name in items if name not in manifest.items]
    if unknown:
        raise _no_item(where, unknown[0], manifest.items)
    chosen = {name: record for name, record in manifest.items.items() if name in items}
    return replace(manifest, items=chosen), {name: source.stored[name] for name in chosen}


def _no_item(where: str, name: str, known: Iterable[str]) -> CheckpointError:
    names = list(known)
    problem = f"the checkpoint has no item {name!r}"
    return CheckpointError(where, problem, expected=", ".join(names), fix=suggest(name, names))


def _missing_items(where: str, targets: list[Item], stored: Mapping[str, Stored], *, strict: bool) -> list[Difference]:
    """The items that the checkpoint does not have; raises where that is not allowed, or if it has none of them."""
    missing = [item for item in targets if item.name not in stored]
    if missing and (strict or len(missing) == len(targets)):
        raise _no_item(where, missing[0].name, stored)
    return [Difference(written_path((item.name,)), describe(item.value), "nothing") for item in missing]


def _abstract(item: Item, make: Maker | None) -> Any:
    """An item with shapes in place of its arrays."""
    if item.is_json:
        return item.value
    values = {
        text: leaf.value if isinstance(leaf.value, (*SCALARS, jax.ShapeDtypeStruct)) else _shape(leaf.value)
        for text, leaf in item.leaves.items()
    }
    if make is not None:
        return make(_leaf_of(item.name, values))
    if not item.is_graph:
        return filled(item, values)
    update(item.value, state_with(item, values))
    return item.value


def _shape(value: Any) -> jax.ShapeDtypeStruct:
    weak = getattr(value, "weak_type", False)
    return jax.ShapeDtypeStruct(value.shape, value.dtype, weak_type=weak)  # type: ignore[no-untyped-call]  # of JAX


# --- matching and writing ---------------------------------------------------------------


def _versions(manifest: Manifest, stored: Mapping[str, Stored], renames: Renames) -> dict[str, int]:
    """The versions of the classes that the checkpoint has, under the paths that their objects have now."""
    saved = {text: version for item in manifest.items.values() for text, version in item.versions.items()}
    return renamed_versions(saved, {text: renames.get(text, text) for leaves in stored.values() for text in leaves})


def _matched(
    folder: str,
    targets: list[Item],
    stored: Mapping[str, Stored],
    manifest: Manifest,
    only: Filter | None,
    strict: bool,
    former: Mapping[str, str],
) -> tuple[list[Stored], Fit]:
    """The stored leaves for each target, and the report; raises where a strict report has problems."""
    for item in targets:
        record = manifest.items.get(item.name, ItemRecord())
        if item.is_json != record.is_value and (item.leaves or record.leaves):
            kinds = ("plain data", "arrays") if record.is_value else ("arrays", "plain data")
            problem = f"the item {item.name!r} is {kinds[0]} in the checkpoint, and {kinds[1]} in the target"
            raise CheckpointError(folder, problem)
    leaves = [stored[item.name] for item in targets]
    fit = _fit_of(targets, leaves, only, former)
    if only is not None and not fit.paths:
        fix = f"only=dx.PathContains({only!r})        # a text is a tag" if isinstance(only, str) else None
        raise CheckpointError(folder, "only: the filter selects no leaf of the target", got=repr(only), fix=fix)
    if fit.is_refused(strict=strict):
        fix = "dx.load(path, into=..., strict=False)        # takes what fits, and reports the rest"
        problem = f"the checkpoint does not fit at {fit.count}"
        raise CheckpointError(folder, problem, got=fit.listed, fix=fix if strict else None)
    return [{text: leaf for text, leaf in found.items() if text in fit.sources} for found in leaves], fit


def _fit_of(items: list[Item], stored: list[Stored], only: Filter | None, former: Mapping[str, str]) -> Fit:
    """How the stored leaves fit those of targets, by their texts; `former` has the paths of those that were renamed."""
    leaves: dict[str, Leaf] = {}
    paths: dict[str, LeafPath] = {}
    given: list[tuple[Pairing, Any]] = []
    for item, found in zip(items, stored, strict=True):
        wanted = None if only is None else _chosen(item, only)
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


def _chosen(item: Item, only: Filter) -> frozenset[str]:
    predicate = predicate_of(only, "load, only")
    return frozenset(text_of(item.name, path) for path, value in item.variables() if ask(predicate, path, value))


def _check_shared(folder: str, targets: list[Item], arrays: list[dict[str, Any]]) -> None:
    """Raises if several targets hold one object, and the checkpoint has different values for it."""
    seen: dict[int, tuple[str, Link, dict[str, Any]]] = {}
    for item, values in zip(targets, arrays, strict=True):
        for link, held in item.objects:
            name, at, others = seen.setdefault(id(held), (item.name, link, values))
            if others is values:
                continue
            first, text = text_of(name, path_of(at)), text_of(item.name, path_of(link))
            for rest in _below(others, first) & _below(values, text):
                if not _are_equal(others[first + rest], values[text + rest]):
                    raise CheckpointError(
                        folder,
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


def _write(pairs: list[tuple[Item, dict[str, Any]]], manifest: Manifest) -> dict[str, Any]:
    """Writes to all graphs, or to none; returns the items."""
    done: list[tuple[Any, Any]] = []
    found: dict[str, Any] = {}
    try:
        for item, values in pairs:
            if item.is_json:
                found[item.name] = manifest.items[item.name].value
            elif not item.is_graph:
                found[item.name] = filled(item, values)
            else:
                before = state_of(item.value)
                copied = texts_to_copy(item)
                update(item.value, state_with(item, {t: value for t, value in values.items() if t not in copied}))
                done.append((item.value, before))
                found[item.name] = filled(item, values) if copied else item.value
    except BaseException:
        for value, before in reversed(done):
            update(value, before)
        raise
    return found
