"""The items of a checkpoint without a target: made of their structures, or as the first format has them."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from declax._graph.abstract import with_sharding
from declax._graph.binding import bind
from declax._graph.nodes import link_of
from declax._sharding.declared import Shardings, labels_of, shardings_of_leaves
from declax._sharding.noting import note_fully_sharded
from declax._sharding.plans import of_item
from declax._state.definition import StateDef
from declax._state.states import State
from declax._typing import MISSING
from declax._typing import Path as LeafPath
from declax._variables.placement import AxisRules, context_mesh, sharding_rules
from declax.checkpoint.arrays import is_key, is_of_jax, key_data_of
from declax.checkpoint.drafts import Draft, brought_up_to_date
from declax.checkpoint.first_format import filled_tree, of_spec
from declax.checkpoint.items import Item, Leaf, item_of, text_of, without_target
from declax.checkpoint.manifest import ItemRecord, Stored, texts_of
from declax.checkpoint.names import Names
from declax.checkpoint.renaming import Renames, renamed
from declax.checkpoint.structure_reader import Placeholder, StructureReader
from declax.checkpoint.structures import ARRAY, NUMPY, PLAIN, SCALAR
from declax.checkpoint.upgrading import Read, upgraded_leaves
from declax.checkpoint.values import Json, Problem
from declax.errors import CheckpointError, CheckpointWarning, ShardingError
from declax.transforms._engine.prefixes import StateSharding

Maker = Callable[[Placeholder], Any]
"""Makes an item of its structure, with the leaves that a function gives."""


class Placing(NamedTuple):
    """Where arrays belong, as for `init_sharded`; and whether shapes stand for them."""

    mesh: jax.sharding.Mesh | None = None
    rules: AxisRules | None = None
    shardings: Shardings = None
    is_abstract: bool = False


class Errors(dict[str, CheckpointError]):
    """Why items cannot be made again, by name."""

    @contextlib.contextmanager
    def noting(self, name: str) -> Generator[None]:
        """Keeps an error of the block as that of an item."""
        try:
            yield
        except CheckpointError as error:
            self[name] = error


class Rebuilding:
    """Makes all items of a checkpoint again, without their arrays.

    Args:
      where: the path of the checkpoint.
      records: what its manifest says of the items.
      stored: the leaves by item.
      renames: the new texts of leaves that the user asks for.
      extra: the classes that it may name, beside those of declax and registered ones.
      placing: where the arrays of models belong, if anywhere.
      read: reads leaves, for upgrades.

    Attributes:
      records, stored, renames: as they are with current names and layouts.
      items: what is filled with arrays, with shapes in place of them.
      errors: of others.
      makers: the functions that make those that have a structure again, with their arrays.
    """

    def __init__(
        self,
        where: str,
        records: Mapping[str, ItemRecord],
        stored: Mapping[str, Stored],
        renames: Renames,
        extra: tuple[Any, ...],
        placing: Placing,
        read: Read,
    ) -> None:
        self._where = where
        self._placing = placing
        self._names = Names(extra)
        self._read = read
        self.items: list[Item] = []
        self.errors: Errors = Errors()
        self.makers: dict[str, Maker] = {}
        drafts = {name: Draft(where, name, r.structure, self._names) for name, r in records.items() if r.structure}
        outdated = self._outdated(drafts)
        drafts = {name: draft for name, draft in drafts.items() if name not in self.errors}
        if renames or outdated:
            with _refusing(where, ", ".join(drafts)):
                drafts, moved = brought_up_to_date(where, drafts, renames)
            renames = renames | moved
            stored = renamed(where, stored, renames)
        self.renames = renames
        self.stored: dict[str, Stored] = dict(stored)
        others = {name: record for name, record in records.items() if not record.structure or name in self.errors}
        made = {name: ItemRecord(structure=draft.structure) for name, draft in drafts.items()}
        new = {name: ItemRecord() for name in stored if name not in made and name not in records}
        every = others | made | new
        self.records: dict[str, ItemRecord] = {name: every[name] for name in [*records, *every] if name in every}
        for name in self._outdated(drafts):
            self._upgrade(name, drafts[name])
        for name, record in self.records.items():
            if name in self.errors:
                continue
            with self.errors.noting(name), _refusing(where, name):
                item = self._item(name, record, drafts.get(name), extra)
                self.items.append(item)
                if isinstance(item.value, State) and not (record.structure or name in new):
                    _warn_of_state(where, name)

    def _outdated(self, drafts: Mapping[str, Draft]) -> list[str]:
        """The names of the items whose classes have other names of fields or other versions by now."""
        found: list[str] = []
        for name, draft in drafts.items():
            with self.errors.noting(name), _refusing(self._where, name):
                found += [] if draft.is_current() else [name]
        return found

    def _upgrade(self, name: str, draft: Draft) -> None:
        """Runs the upgrades of classes; an error of a function of the user is raised as it is."""
        stored, versions = self.stored[name], draft.versions()
        with self.errors.noting(name):
            self.stored[name] = upgraded_leaves(self._where, draft, stored, versions, self._read, draft.fit_leaves)
            draft.upgrade_statics()

    def _item(self, name: str, record: ItemRecord, draft: Draft | None, extra: tuple[Any, ...]) -> Item:
        """An item with shapes in place of arrays."""
        if record.is_value:
            return Item(name, record.value, {}, is_json=True)
        if draft is None and record.spec is not None:
            return of_spec(self._where, name, record, extra)
        if draft is None:
            return _placed(self._tree(name, record), self._placing)[0]
        make = functools.partial(_of_structure, self._where, name, draft.structure, self._names, self._placing)
        item = item_of(self._where, name, make(self._placeholder(name)))
        item, labels = _placed(item, self._placing)
        self.makers[name] = functools.partial(_noted, make, labels)
        return item

    def _tree(self, name: str, record: ItemRecord) -> Item:
        """An item of the first format without a Spec: dicts, lists and tuples of arrays, or a State."""
        leaves: dict[str, Leaf] = {}
        for text, (leaf, content) in self.stored[name].items():
            is_wider = hasattr(content, "dtype") and not (self._placing.is_abstract or is_of_jax(content))
            kind = NUMPY if is_wider else ARRAY
            leaves[text] = Leaf(leaf.path, _stand_in(content, {"leaf": kind}), None)
        if record.tree is not None and {*texts_of(record.tree)} == {*leaves}:  # unless paths were renamed
            value = filled_tree(record.tree, {text: leaf.value for text, leaf in leaves.items()})
        else:
            value = without_target((leaf.path, leaf.value) for leaf in leaves.values())
        return Item(name, value, leaves)

    def _placeholder(self, name: str) -> Placeholder:
        """The function that gives what stands for each leaf until it is read; MISSING for one that is not stored."""

        def leaf(path: LeafPath, form: Json) -> Any:
            found = self.stored[name].get(text_of(name, path))
            is_shape = self._placing.is_abstract and form["leaf"] in (NUMPY, SCALAR)
            return MISSING if found is None else _stand_in(found.content, {"leaf": ARRAY} if is_shape else form)

        return leaf


def _of_structure(where: str, name: str, structure: Any, names: Names, placing: Placing, leaf: Placeholder) -> Any:
    """The value of a structure with these leaves."""

    def found(path: LeafPath, form: Json) -> Any:
        value = leaf(path, form)
        if value is MISSING:
            reader.problems.append(Problem(link_of(path), "the checkpoint has no array or number for it"))
        return value

    with _refusing(where, name):
        reader = StructureReader(structure, names, found, placing.mesh)
        value = reader.value()
    if reader.problems:
        raise _unreadable(where, name, reader.problems, names)
    return value


def _noted(make: Maker, labels: StateSharding | None, leaf: Placeholder) -> Any:
    """What a function makes, of which compiled functions know whether `fsdp` has split it."""
    made = make(leaf)
    note_fully_sharded(made, labels)
    return made


@contextlib.contextmanager
def _refusing(where: str, name: str) -> Generator[None]:
    """Words the errors of a structure that is none."""
    try:
        yield
    except (CheckpointError, ShardingError):
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        got = f"{type(error).__name__}: {error}"[:200]
        raise CheckpointError(where, f"the structure of the item {name!r:.40} is invalid", got=got) from error


def _stand_in(content: Any, form: Json) -> Any:
    """What stands for a leaf until it is read: a shape, or an array of numpy without memory of its own."""
    kind = form["leaf"]
    if kind == PLAIN or not hasattr(content, "shape"):
        return content
    if kind == SCALAR:
        return np.zeros((), content.dtype)[()]
    if kind == NUMPY:
        return np.broadcast_to(np.zeros((), content.dtype.newbyteorder(form.get("order", "="))), content.shape)
    if kind == ARRAY:
        weak = form.get("weak", False)
        return jax.ShapeDtypeStruct(content.shape, content.dtype, weak_type=weak)  # type: ignore[no-untyped-call]  # of JAX
    key = jax.eval_shape(lambda: jax.random.key(0, impl=kind))  # an array of random keys
    is_data = not is_key(content)  # Orbax knows that of their data only
    shape = content.shape[: len(content.shape) - key_data_of(key).ndim] if is_data else content.shape
    return jax.ShapeDtypeStruct(shape, key.dtype)  # type: ignore[no-untyped-call]  # of JAX


def _unreadable(where: str, name: str, problems: list[Problem], names: Names) -> CheckpointError:
    missing = list(dict.fromkeys(problem.missing for problem in problems if problem.missing))
    others = [problem for problem in problems if not problem.missing]
    classes = ", ".join(dict.fromkeys([*names.given, *(found.rpartition(".")[2] for found in missing[:20])]))
    target = name if name.isidentifier() else "model"
    fix = f"dx.load(path, extra=[{classes}])" if missing else f"dx.load(path, into={{{name!r}: {target}}})"
    return CheckpointError(
        where,
        f"the item {name!r} cannot be made of its structure",
        expected=f"classes or functions that extra= or dx.register_kind name: {', '.join(missing)}"
        if missing
        else None,
        got="\n".join([problem.text(name) for problem in others[:20]]) or None,
        why="a checkpoint makes classes of declax, and those that are given or registered" if missing else None,
        fix=next((problem.fix for problem in others if problem.fix), fix) if not missing else fix,
    )


def _warn_of_state(where: str, name: str) -> None:
    warnings.warn(
        f"{where}: the item {name!r} has no structure, since an older version of declax wrote it, so that it is "
        f"loaded as a State.\n  fix: dx.load(path, into={{{name!r}: model}})",
        CheckpointWarning,
        stacklevel=4,
    )


# --- placing ------------------------------------------------------------------------------


def _placed(item: Item, placing: Placing) -> tuple[Item, StateSharding | None]:
    """The item whose shapes have the shardings that their Variables declare, or are on all devices of a mesh.

    Also the labels that decided instead of the Variables.
    """
    with (
        contextlib.nullcontext() if placing.mesh is None else jax.set_mesh(placing.mesh),
        contextlib.nullcontext() if placing.rules is None else sharding_rules(placing.rules),
    ):
        mesh = context_mesh()
        if not isinstance(mesh, jax.sharding.Mesh) or item.is_json:
            return item, None
        if item.is_graph:
            binding = bind(item.value, None)
            definition, values = binding.graphdef.definition, binding.read()
        else:  # a State, or a tree of arrays
            found = item.leaves.values()
            definition = StateDef.of(tuple([leaf.path for leaf in found]), tuple([leaf.leaf_def for leaf in found]))
            values = [leaf.value for leaf in found]
        labels = labels_of("load", of_item(placing.shardings, item.name), item.value, mesh)
        places = shardings_of_leaves("load", definition, values, mesh, labels)
    leaves = dict(item.leaves)
    for path, value, place in zip(definition.paths, values, places, strict=True):
        text = text_of(item.name, path)
        if isinstance(value, jax.ShapeDtypeStruct) and text in leaves:
            leaves[text] = leaves[text]._replace(value=with_sharding(value, place))
    return replace(item, leaves=leaves), labels
