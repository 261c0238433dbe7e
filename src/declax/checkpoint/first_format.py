"""Checkpoints of the first version of the format: models that their constructors make, and trees of arrays.

A Spec lacks the static values and metadata that were changed after the construction; the manifest has these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, cast

import numpy as np

from declax._classes.pytree import Pytree, layout_of
from declax._graph.api import variables
from declax._graph.nodes import Kind, kind_of, object_names, walk_nodes
from declax._random.streams import Rngs
from declax._typing import INTERNAL_KEYS, MISSING
from declax._variables.variable import Variable
from declax.checkpoint.items import Item, item_of, text_of
from declax.checkpoint.manifest import ItemRecord, LeafRecord, full_name, key_of
from declax.checkpoint.renaming import moved, moves_of
from declax.config._reading.part_readers import version_of
from declax.config.loading import spec_from_config
from declax.config.specs import Spec
from declax.errors import CheckpointError, ConfigError, DeclaxError, type_name

_PLAIN: Final = frozenset({bool, int, float, str, type(None)})
_MAX_DEPTH: Final = 8
"""How deep descriptions look into static values."""


def of_spec(folder: str, name: str, record: ItemRecord, extra: tuple[Any, ...]) -> Item:
    """A model that its constructor makes, with the static values that it had.

    It has initial values: an abstract model has no record, so its next checkpoint would have no spec.
    """
    spec = _spec_of(folder, name, record, extra)
    try:
        built = item_of(folder, name, spec.build(rngs=Rngs(0)))
    except Exception as error:
        error.add_note(f"raised by the constructor of the item {name!r} of {folder}")
        raise
    _restore_statics(folder, built, record)
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


def _statics_of(node: Pytree) -> dict[str, Any]:
    """The static values of a node by name: numbers and texts as they are, others as ``{"text": description}``."""
    values = cast("Mapping[Any, Any]", vars(node))
    if type(node)._pytree__is_pytree:
        return {str(name): _plain(values[name]) for name in layout_of(node).static_names}
    return {name: _plain(values[name]) for name in object_names(node) if kind_of(values[name]) is Kind.STATIC}


def _plain(value: object) -> Any:
    """A number or text as it is, another value as ``{"text": description}``."""
    return value if type(value) in _PLAIN else {"text": _described(value, _MAX_DEPTH)}


def _described(value: Any, depth: int) -> str:
    """What a static value is, in words that no other process, and no other version of a library, changes."""
    cls = type(value)
    if cls in _PLAIN:
        return repr(value)
    if isinstance(value, np.dtype):
        return str(value)
    name = getattr(value, "__qualname__", None)
    if isinstance(name, str):
        return name if "<" not in name else "a function"
    if depth and cls in (tuple, list, set, frozenset):
        parts = [_described(part, depth - 1) for part in value]
        return f"{cls.__name__}({', '.join(sorted(parts) if cls in (set, frozenset) else parts)})"
    if depth and isinstance(value, Mapping):
        pairs = [f"{_described(key, 0)}: {_described(part, depth - 1)}" for key, part in value.items()]
        return f"{cls.__name__}({', '.join(pairs)})"
    if depth and dataclasses.is_dataclass(value) and not isinstance(value, Pytree):
        fields = [
            f"{field.name}={_described(getattr(value, field.name, None), depth - 1)}"
            for field in dataclasses.fields(value)
        ]
        return f"{cls.__name__}({', '.join(fields)})"
    return f"{type_name(cls)}(...)"


def _restore_statics(where: str, item: Item, record: ItemRecord) -> None:
    """Gives the nodes of a rebuilt model the static values that were saved, and its Variables their numbers and texts.

    Raises:
      CheckpointError: a node is of another class or missing, or a value cannot be restored from JSON. It lists all.
    """
    nodes = {text_of(item.name, path): node for path, node in walk_nodes(item.value)}
    problems: list[str] = []
    moves = moves_of(item)
    for old, saved in record.nodes.items():
        text = moved(old, moves)
        node = nodes.get(text)
        if node is None or type(node).__name__ != saved.cls:
            built = "nothing" if node is None else f"{type(node).__name__}(...)"
            problems.append(f"{text}: the checkpoint has {saved.cls}(...), its Spec builds {built}")
        elif record.versions.get(old, 1) == version_of(type(node)):  # another version may have other fields
            current = {moved(f"{text}.{name}", moves): value for name, value in saved.statics.items()}
            problems += _set_statics(text, node, {name[len(text) + 1 :]: value for name, value in current.items()})
    found = {text_of(item.name, path): leaf for path, leaf in variables(item.value, graph=True).flat_state()}
    for leaf in record.leaves.values():
        text = moved(text_of(item.name, leaf.path[: leaf.depth]), moves)
        problems += _set_metadata(text, found.get(text), leaf)
    if problems:
        raise CheckpointError(
            where,
            f"the model {item.name!r} was changed after it was constructed, and its Spec does not say how",
            got="\n".join(problems),
            why="the Spec has the arguments of constructors; of what is changed later, numbers and texts are restored",
            fix=f"dx.load(path, into={{{item.name!r}: model}})        # a model with these changes",
        )


def _set_statics(text: str, node: Pytree, saved: Mapping[str, Any]) -> list[str]:
    """Sets the values that differ; returns those that cannot be set."""
    problems: list[str] = []
    built = _statics_of(node)
    for name, value in saved.items():
        now = built.get(name, MISSING)
        if type(now) is type(value) and repr(now) == repr(value):
            continue
        shown = "nothing" if now is MISSING else _shown(now)
        problem = f"{text}.{name}: the checkpoint has {_shown(value)}, its Spec builds {shown}"
        if isinstance(value, dict) or not (name in built or _is_free(node, name)):
            problems.append(problem)
            continue
        try:
            setattr(node, name, value)
        except DeclaxError as error:
            problems.append(f"{problem}; {error.problem}")
    return problems


def _set_metadata(text: str, variable: object, leaf: LeafRecord) -> list[str]:
    """Sets the numbers and texts that differ; returns the problem if that is an error."""
    if not isinstance(variable, Variable) or type_name(type(variable)) != leaf.kind:
        return []
    now = variable.get_metadata(exclude_required=True)
    saved = {name: value for name, value in leaf.metadata.items() if type(value) in _PLAIN}
    changed = {name: value for name, value in saved.items() if repr(now.get(name, MISSING)) != repr(value)}
    try:
        if changed:
            variable.set_metadata({**now, **changed})
    except DeclaxError as error:
        return [f"{text}: {error.problem}"]
    return []


def _shown(value: Any) -> str:
    return str(value["text"]) if isinstance(value, dict) else repr(value)


def _is_free(node: Pytree, name: str) -> bool:
    """Whether an attribute may be added: a manifest must not reach what Python or declax keeps in an object."""
    is_inner = name.startswith("__") or name in INTERNAL_KEYS
    return name.isidentifier() and not is_inner and not hasattr(node, name)


def filled_tree(tree: Any, values: Mapping[str, Any]) -> Any:
    """A tree of dicts, lists and tuples with its leaves, by their texts."""
    if tree is None or isinstance(tree, str):
        return None if tree is None else values[tree]
    kind, *entries = tree
    if kind == "dict":
        return {key_of(key): filled_tree(entry, values) for key, entry in entries}
    found = [filled_tree(entry, values) for entry in entries]
    return tuple(found) if kind == "tuple" else found
