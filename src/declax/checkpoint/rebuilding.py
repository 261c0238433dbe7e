"""The items of a checkpoint without a target: made of their structures, or of the Specs of older checkpoints."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Container, Generator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from declax._graph.abstract import with_sharding
from declax._graph.binding import bind
from declax._random.streams import Rngs
from declax._sharding.declared import Shardings, labels_of, shardings_of_leaves
from declax._typing import MISSING
from declax._typing import Path as LeafPath
from declax._variables.placement import AxisRules, context_mesh, sharding_rules
from declax.checkpoint.items import Item, item_of, text_of
from declax.checkpoint.manifest import ItemRecord, Manifest, NodeRecord, full_name
from declax.checkpoint.matching import Stored
from declax.checkpoint.names import Names
from declax.checkpoint.statics import restore_statics
from declax.checkpoint.structures import ARRAY, NUMPY, PLAIN, SCALAR, Placeholder, StructureReader, statics_by_path
from declax.checkpoint.values import Problem
from declax.config._reading.part_readers import version_of
from declax.config.loading import spec_from_config
from declax.config.specs import Spec
from declax.errors import CheckpointError, CheckpointWarning, ConfigError, format_path

Maker = Callable[[Placeholder], Any]
"""Makes an item of its structure, with the leaves that a function gives."""


class Rebuilt(NamedTuple):
    """The items that a checkpoint has, made again without their arrays.

    Attributes:
      items: what is filled with arrays, with shapes in place of them.
      trees: the names of those that are dicts, lists and tuples of arrays, or States, of older checkpoints.
      errors: why others cannot be made, by name.
      makers: the functions that make those that have a structure again, with their arrays.
    """

    items: list[Item]
    trees: list[str]
    errors: dict[str, CheckpointError]
    makers: dict[str, Maker]


class Placing(NamedTuple):
    """Where the arrays of models belong, as for `init_sharded`; and whether shapes stand for them."""

    mesh: jax.sharding.Mesh | None = None
    rules: AxisRules | None = None
    shardings: Shardings = None
    is_abstract: bool = False


def rebuilt(
    folder: str,
    manifest: Manifest,
    stored: Mapping[str, Stored],
    extra: tuple[Any, ...],
    placing: Placing,
    *,
    renamed: Container[str],
) -> Rebuilt:
    """Makes all items.

    Args:
      folder: the path, for errors.
      manifest: what it says of the items.
      stored: the leaves by item.
      extra: the classes that it may name, beside those of declax and registered ones.
      placing: where the arrays of models belong, if anywhere.
      renamed: the items of which the caller gives new paths to leaves: the structure has the old ones, a Spec has none.
    """
    made = Rebuilt([], [], {}, {})
    names = Names(extra)
    for name, record in manifest.items.items():
        leaves = stored.get(name, {})
        make = functools.partial(_of_structure, folder, name, record.structure, names, placing)
        try:
            with _refusing(folder, name):
                is_current = _is_current(record, names) and name not in renamed
            item = _rebuilt(folder, name, record, leaves, make, extra, placing, is_current=is_current)
        except CheckpointError as error:
            made.errors[name] = error
            continue
        if is_current:
            made.makers[name] = make
        if item is None:
            made.trees.append(name)
            if record.structure is None and record.tree is None:
                _warn_of_state(folder, name)
        else:
            made.items.append(item)
    return made


def _is_current(record: ItemRecord, names: Names) -> bool:
    """Whether the structure of an item counts, and not its Spec: no class has another version by now."""
    if record.structure is None:
        return False
    return record.spec is None or not _is_outdated(record.structure, names)


def _rebuilt(
    folder: str,
    name: str,
    record: ItemRecord,
    stored: Stored,
    make: Maker,
    extra: tuple[Any, ...],
    placing: Placing,
    *,
    is_current: bool,
) -> Item | None:
    """An item with shapes in place of arrays; None for a tree or State of arrays."""
    if record.is_value:
        return Item(name, record.value, {}, is_json=True)
    if record.spec is not None and not is_current:
        return _of_spec(folder, name, record, extra)
    if record.structure is None or not (is_current or record.structure["objects"]):
        return None
    if not is_current:
        fix = f"dx.load(path, into={{{name!r}: model}}, rename=...)"
        problem = f"rename= needs a target for the item {name!r}, whose structure has old names"
        raise CheckpointError(folder, problem, fix=fix)
    with _refusing(folder, name):
        item = item_of(folder, name, make(_placeholders(name, stored, placing)))
    return _placed(folder, item, placing) if item.is_graph else item


def _placeholders(name: str, stored: Stored, placing: Placing) -> Placeholder:
    """The function that gives what stands for each leaf until it is read; MISSING for one that is not stored."""

    def leaf(path: LeafPath, kind: str, depth: int | None) -> Any:
        found = stored.get(text_of(name, path))
        if found is None and depth is not None:  # Orbax has the key `value` of a Variable before those of its tree
            found = stored.get(text_of(name, (*path[:depth], "value", *path[depth:])))
        if found is None:
            return MISSING
        return _placeholder(found.content, ARRAY if placing.is_abstract and kind in (NUMPY, SCALAR) else kind)

    return leaf


def _of_structure(folder: str, name: str, structure: Any, names: Names, placing: Placing, leaf: Placeholder) -> Any:
    """The value of a structure with these leaves."""

    def found(path: LeafPath, kind: str, depth: int | None) -> Any:
        value = leaf(path, kind, depth)
        if value is MISSING:
            reader.problems.append(Problem(path, "the checkpoint has no array or number for it"))
        return value

    with _refusing(folder, name):
        reader = StructureReader(structure, names, found, placing.mesh)
        value = reader.value()
    if reader.problems:
        raise _unreadable(folder, name, reader.problems, names)
    return value


@contextlib.contextmanager
def _refusing(folder: str, name: str) -> Generator[None]:
    """Words the errors of a structure that is none."""
    try:
        yield
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        got = f"{type(error).__name__}: {error}"[:200]
        raise CheckpointError(folder, f"the structure of the item {name!r:.40} is invalid", got=got) from error


def _placeholder(content: Any, kind: str) -> Any:
    """What stands for a leaf until it is read: a shape, or an array of numpy without memory of its own."""
    if kind == PLAIN or not hasattr(content, "shape"):
        return content
    if kind == SCALAR:
        return np.zeros((), content.dtype)[()]
    if kind == NUMPY:
        return np.broadcast_to(np.zeros((), content.dtype), content.shape)
    if kind == ARRAY:
        return jax.ShapeDtypeStruct(content.shape, content.dtype)  # type: ignore[no-untyped-call]  # of JAX
    key = jax.eval_shape(lambda: jax.random.key(0, impl=kind))  # an array of random keys
    data = jax.eval_shape(jax.random.key_data, key)
    is_data = not jnp.issubdtype(content.dtype, jax.dtypes.prng_key)  # Orbax knows that of their data only
    shape = content.shape[: len(content.shape) - data.ndim] if is_data else content.shape
    return jax.ShapeDtypeStruct(shape, key.dtype)  # type: ignore[no-untyped-call]  # of JAX


def _unreadable(folder: str, name: str, problems: list[Problem], names: Names) -> CheckpointError:
    missing = list(dict.fromkeys(problem.missing for problem in problems if problem.missing))
    others = [problem for problem in problems if not problem.missing]
    lines = [f"{format_path((name, *problem.path))}: {problem.reason}" for problem in others]
    classes = ", ".join(dict.fromkeys([*names.given, *(found.rpartition(".")[2] for found in missing[:20])]))
    target = name if name.isidentifier() else "model"
    fix = f"dx.load(path, extra=[{classes}])" if missing else f"dx.load(path, into={{{name!r}: {target}}})"
    return CheckpointError(
        folder,
        f"the item {name!r} cannot be made of its structure",
        expected=f"classes or functions that extra= or dx.register_kind name: {', '.join(missing)}"
        if missing
        else None,
        got="\n".join(lines[:20]) or None,
        why="a checkpoint makes classes of declax, and those that are given or registered" if missing else None,
        fix=next((problem.fix for problem in others if problem.fix), fix) if not missing else fix,
    )


def _warn_of_state(folder: str, name: str) -> None:
    warnings.warn(
        f"{folder}: the item {name!r} has no structure, since an older version of declax wrote it, so that it is "
        f"loaded as a State.\n  fix: dx.load(path, into={{{name!r}: model}})",
        CheckpointWarning,
        stacklevel=4,
    )


def _is_outdated(structure: Any, names: Names) -> bool:
    """Whether a class has another version by now, so that its attributes may have other meanings."""
    for entry in structure["objects"]:
        cls = names.find(entry["class"]) if "class" in entry else MISSING
        if cls is not MISSING and version_of(cls) != entry.get("version", 1):
            return True
    return False


# --- placing ------------------------------------------------------------------------------


@contextlib.contextmanager
def _rules_of(placing: Placing) -> Generator[None]:
    with (
        contextlib.nullcontext() if placing.mesh is None else jax.set_mesh(placing.mesh),
        contextlib.nullcontext() if placing.rules is None else sharding_rules(placing.rules),
    ):
        yield


def _placed(folder: str, item: Item, placing: Placing) -> Item:
    """The item whose shapes have the shardings that their Variables declare, if there is a mesh."""
    with _rules_of(placing):
        mesh = context_mesh()
        if not isinstance(mesh, jax.sharding.Mesh):
            return item
        binding = bind(item.value, None)
        definition, values = binding.graphdef.definition, binding.read()
        labels = labels_of("load", placing.shardings, item.value, mesh)
        places = shardings_of_leaves("load", definition, values, mesh, labels)
    leaves = dict(item.leaves)
    for path, value, place in zip(definition.paths, values, places, strict=True):
        text = text_of(item.name, path)
        if isinstance(value, jax.ShapeDtypeStruct) and text in leaves:
            leaves[text] = leaves[text]._replace(value=with_sharding(value, place))
    return Item(item.name, item.value, leaves, is_graph=True)


# --- Specs of older checkpoints -----------------------------------------------------------


def _of_spec(folder: str, name: str, record: ItemRecord, extra: tuple[Any, ...]) -> Item:
    """A model that its constructor makes, with the static values that it had.

    It has initial values: an abstract model has no record, so its next checkpoint would have no spec.
    """
    spec = _spec_of(folder, name, record, extra)
    try:
        built = item_of(folder, name, spec.build(rngs=Rngs(0)))
    except Exception as error:
        error.add_note(f"raised by the constructor of the item {name!r} of {folder}")
        raise
    if record.structure is not None:
        found = statics_by_path(record.structure)
        record = replace(record, nodes={text_of(name, path): NodeRecord(cls, values) for path, cls, values in found})
    restore_statics(folder, built, record)
    return built


def _spec_of(folder: str, name: str, record: ItemRecord, extra: tuple[Any, ...]) -> Spec[Any]:
    """The spec of an item. A class of the same name from another module must be in `extra`."""
    problem = f"the item {name!r} cannot be rebuilt from its spec"
    cls = record.spec_class.rpartition(".")[2]
    fix = f"dx.load(path, extra=[{cls}])        # or into={{{name!r}: {cls}(...)}}"
    try:
        spec = spec_from_config(Any, record.spec or {}, extra=extra, migrate=True)
    except ConfigError as error:
        expected = f"the class {record.spec_class}"
        raise CheckpointError(folder, problem, expected=expected, got=str(error), fix=fix) from error
    found = full_name(spec.target)
    if found != record.spec_class and spec.target not in extra:
        raise CheckpointError(folder, problem, expected=f"the class {record.spec_class}", got=found, fix=fix)
    return spec
