"""`load`: items from a checkpoint, verified, all of them or none."""

from __future__ import annotations

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
from declax._graph.fit import Difference, Fit
from declax._graph.iteration import iter_graph
from declax._graph.nodes import OBJECTS, kind_of
from declax._graph.updating import update
from declax._sharding.declared import Shardings
from declax._typing import MISSING
from declax._typing import Path as LeafPath
from declax._variables.placement import AxisRules
from declax.checkpoint.items import SCALARS, Item, filled, is_key, state_with, text_of, without_target
from declax.checkpoint.manifest import ItemRecord, Manifest, filled_tree, texts_of
from declax.checkpoint.matching import Stored, match
from declax.checkpoint.progress import Progress
from declax.checkpoint.rebuilding import Maker, Placing, Rebuilt, rebuilt
from declax.checkpoint.renaming import (
    Renames,
    former_paths,
    renamed,
    renamed_versions,
    renames_of,
    with_current_names,
)
from declax.checkpoint.saving import Engine, check_engine, classes_of, read_items
from declax.checkpoint.sources import FolderSource, OrbaxSource, Source
from declax.checkpoint.upgrading import upgraded_leaves
from declax.errors import CheckpointError, describe, suggest, written_path


class Restored(dict[str, Any]):
    """The items of a checkpoint by name.

    An item that cannot be made again raises a CheckpointError when it is read.

    Attributes:
      report: what was restored, renamed or left out.
      metrics: the numbers that were saved with it.
    """

    report: Fit
    metrics: Mapping[str, float]

    def __init__(self, items: Mapping[str, Any], report: Fit, metrics: Mapping[str, float]) -> None:
        super().__init__(items)
        self.report = report
        self.metrics = metrics

    def __getitem__(self, name: str) -> Any:
        return _readable(super().__getitem__(name))

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()  # defined here, so that ``dict(found)`` and ``{**found}`` read by `__getitem__` too

    def get(self, name: str, default: Any = None, /) -> Any:
        """As of a dict."""
        return _readable(super().get(name, default))

    def pop(self, name: str, *default: Any) -> Any:
        """As of a dict."""
        return _readable(super().pop(name, *default))

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
        and with their shardings; other items are in the result.
      items: the names of the items to load, if not all.
      only: which leaves of the target are restored.
      rename: new paths for paths of the checkpoint, as ``{"model.old.*": "model.new.*"}``.
      strict: False takes what fits; the `report` of the result says what does not.
      verify: False skips the digests of the files of arrays.
      extra: classes and functions that the checkpoint may name, or modules that define them.
      abstract: return models with shapes in place of arrays, which are not read.
      mesh: devices on which the arrays of models are placed as declared; each process reads the parts that it holds.
        None for the mesh of `jax.set_mesh`, if there is one.
      rules, shardings: as for `init_sharded`.
      progress: a function of the bytes that are read so far, and of all bytes.
      engine: ``"orbax"`` reads the layout of Orbax and Flax NNX, where each item is a folder. It has no digests.

    Returns:
      The items by name: a dict with a `report` and `metrics`. An item that cannot be made again, such as one with a
      lambda or of a class that is not in `extra`, raises a CheckpointError when it is read.

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
    _check_arguments(
        where, into, items, only, placing := Placing(mesh, rules, shardings, abstract), strict=strict, abstract=abstract
    )
    opened = OrbaxSource(path) if engine == "orbax" else FolderSource(Path(path), verify=verify and not abstract)
    with opened as source:
        manifest, stored = _chosen_items(where, source, items)
        renames = renames_of(where, stored, rename)
        named = renamed(where, stored, renames)
        if into is None:
            touched = {
                name for name, leaves in stored.items() if any(renames.get(text, text) != text for text in leaves)
            }
            made = rebuilt(where, manifest, named, classes, placing, renamed=touched)
            new = [name for name in named if name not in manifest.items]  # items that `rename` makes
            made = made._replace(trees=[*made.trees, *new])
        else:
            made = Rebuilt(read_items(where, into), [], {}, {})
        missing = _missing_items(where, made.items, named, strict=strict)
        targets = [item for item in made.items if item.name in named]
        renames = with_current_names(where, targets, stored, renames)
        versions = _versions(manifest, stored, renames)
        fitted = source.fitted(targets, renamed(where, stored, renames), versions)
        compared = [item for item in targets if not (abstract and manifest.items[item.name].structure)]
        former = former_paths(stored, renames)
        matching = functools.partial(_matched, where, stored=fitted, manifest=manifest, only=only, strict=strict)
        matching = functools.partial(matching, former=former, versions=versions)
        if into is None:
            made.errors.update(_errors_of(compared, matching))
            targets, compared = ([item for item in one if item.name not in made.errors] for one in (targets, compared))
        values, report = matching(compared)
        report = replace(report, missing=(*report.missing, *missing))
        likes = [{text: leaf.value for text, leaf in item.leaves.items()} for item in targets]
        if abstract:
            found = {item.name: _abstract(item, made.makers.get(item.name), renames) for item in targets}
            found |= {name: _filled(manifest, name, fitted[name], _shapes(fitted[name])) for name in made.trees}
        else:
            wanted = [*values, *(fitted[name] for name in made.trees)]
            arrays = source.fetch(wanted, [*likes, *({} for _ in made.trees)], progress)
            source.check()
            _check_shared(where, targets, arrays)
            pairs = list(zip(targets, arrays, strict=False))  # trees follow
            found = _write([pair for pair in pairs if pair[0].name not in made.makers], manifest)
            for item, leaves in pairs:
                if item.name in made.makers:
                    found[item.name] = made.makers[item.name](_leaf_of(item.name, leaves, renames))
            rest = zip(made.trees, arrays[len(targets) :], strict=True)
            found |= {name: _filled(manifest, name, fitted[name], leaves) for name, leaves in rest}
    found |= made.errors
    if into is not None:
        found |= {name: into[name] for name in into if name not in found}
    order = manifest.items if into is None else into
    return Restored({name: found[name] for name in order} | found, report, manifest.metrics)


def _errors_of(items: list[Item], matching: Callable[[list[Item]], Any]) -> dict[str, CheckpointError]:
    """Why items that were made of the checkpoint do not fit it, as where a class has changed."""
    found: dict[str, CheckpointError] = {}
    for item in items:
        try:
            matching([item])
        except CheckpointError as error:
            found[item.name] = error
    return found


def _leaf_of(name: str, values: Mapping[str, Any], renames: Mapping[str, str]) -> Callable[..., Any]:
    """The function that gives a leaf of an item by its path in the checkpoint."""

    def leaf(path: LeafPath, *_: object) -> Any:
        text = text_of(name, path)
        return values.get(renames.get(text, text), MISSING)

    return leaf


def _check_arguments(
    where: str, into: Any, items: Any, only: Any, placing: Placing, *, strict: bool, abstract: bool
) -> None:
    if into is None and (only is not None or not strict):
        raise CheckpointError(where, "only= and strict=False choose among the leaves of a target", fix="into=...")
    if into is not None and (items is not None or abstract or placing != Placing()):
        problem = "items=, abstract=, mesh=, rules= and shardings= are for a load without a target"
        raise CheckpointError(where, problem, fix="dx.load(path, ...)        # without into=")


def _chosen_items(where: str, source: Source, items: Any) -> tuple[Manifest, dict[str, Stored]]:
    """The manifest and the leaves of the wanted items."""
    manifest = source.manifest
    if items is None:
        return manifest, source.stored
    items = items if isinstance(items, str) else tuple(items)
    if isinstance(items, str) or not all(isinstance(name, str) for name in items):
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


def _filled(manifest: Manifest, name: str, stored: Stored, values: Mapping[str, Any]) -> Any:
    """A tree or State of arrays that has no structure."""
    tree = manifest.items.get(name, ItemRecord()).tree
    if tree is not None and set(texts_of(tree)) == set(values):  # unless paths were renamed
        return filled_tree(tree, values)
    return without_target((stored[text].record.path, value) for text, value in values.items())


def _abstract(item: Item, make: Maker | None, renames: Mapping[str, str]) -> Any:
    """An item with shapes in place of its arrays."""
    if item.is_json:
        return item.value
    values = {
        text: leaf.value if isinstance(leaf.value, (*SCALARS, jax.ShapeDtypeStruct)) else _shape(leaf.value)
        for text, leaf in item.leaves.items()
    }
    if make is not None:
        return make(_leaf_of(item.name, values, renames))
    update(item.value, state_with(item, values))
    return item.value


def _shapes(stored: Stored) -> dict[str, Any]:
    return {
        text: leaf.content if isinstance(leaf.content, SCALARS) else _shape(leaf.content)
        for text, leaf in stored.items()
    }


def _shape(value: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(value.shape, value.dtype)  # type: ignore[no-untyped-call]  # of JAX


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
    versions: Mapping[str, int],
) -> tuple[list[Stored], Fit]:
    """The stored leaves for each target, and the report; raises where a strict report has problems."""
    for item in targets:
        record = manifest.items.get(item.name, ItemRecord())
        if item.is_json != record.is_value and (item.leaves or record.leaves):
            kinds = ("plain data", "arrays") if record.is_value else ("arrays", "plain data")
            problem = f"the item {item.name!r} is {kinds[0]} in the checkpoint, and {kinds[1]} in the target"
            raise CheckpointError(folder, problem)
    leaves = [upgraded_leaves(folder, item, stored[item.name], versions) for item in targets]
    fit = match(targets, leaves, None if only is None else lambda item: _chosen(item, only), former)
    if only is not None and not fit.paths:
        fix = f"only=dx.PathContains({only!r})        # a text is a tag" if isinstance(only, str) else None
        raise CheckpointError(folder, "only: the filter selects no leaf of the target", got=repr(only), fix=fix)
    if fit.is_refused(strict=strict):
        fix = "dx.load(path, into=..., strict=False)        # takes what fits, and reports the rest"
        problem = f"the checkpoint does not fit at {fit.count}"
        raise CheckpointError(folder, problem, got=fit.listed, fix=fix if strict else None)
    return [{text: leaf for text, leaf in found.items() if text in fit.sources} for found in leaves], fit


def _chosen(item: Item, only: Filter) -> frozenset[str]:
    predicate = predicate_of(only, "load, only")
    return frozenset(text_of(item.name, path) for path, value in item.variables() if ask(predicate, path, value))


def _check_shared(folder: str, targets: list[Item], arrays: list[dict[str, Any]]) -> None:
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
                update(item.value, state_with(item, values))
                done.append((item.value, before))
                found[item.name] = item.value
    except BaseException:
        for value, before in reversed(done):
            update(value, before)
        raise
    return found
