"""Nested dicts of raw values, and how they go into a State."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from declax._state_def import LeafDef, StateDef, Tree, names_of, no_such_path, raw_of
from declax._typing import Key
from declax._variables import Variable
from declax.errors import GraphError, describe, format_path, type_name
from declax.traversals import empty_node, nest, walk_mapping


def match_pure_dict(
    definition: StateDef, leaves: Sequence[Any], pure_dict: Mapping[Any, Any], *, checks_shapes: bool
) -> list[tuple[int, Any]]:
    """The position in a State and the value of each leaf of a pure dict."""
    if not isinstance(pure_dict, Mapping):
        problem, fix = "the argument is no nested mapping of values", "state.to_pure_dict() makes one"
        raise GraphError("replace_by_pure_dict", problem, got=describe(pure_dict), fix=fix)
    faults: list[str] = []
    found = list(_match(definition, pure_dict, faults))
    if checks_shapes:
        misfits = [(i, _misfit(leaves[i], definition.leaf_defs[i], new)) for i, new in found]
        faults += [f"{format_path(definition.paths[i])}: {misfit}" for i, misfit in misfits if misfit]
    if faults:
        count = f"{len(faults)} path{'s' if len(faults) > 1 else ''}"
        problem = f"the values do not fit the State at {count}, and nothing was changed"
        raise GraphError("replace_by_pure_dict", problem, got="\n".join(faults))
    return found


def _match(definition: StateDef, pure_dict: Mapping[Any, Any], faults: list[str]) -> Iterator[tuple[int, Any]]:
    keys: list[Key] = []
    levels: list[tuple[Tree, Iterator[tuple[Any, Any]]]] = [(definition.tree, iter(pure_dict.items()))]
    while levels:
        node, items = levels[-1]
        for key, value in items:
            found = node.get(key)
            if isinstance(found, int):
                yield found, value
            elif found is None:
                faults.append(f"{format_path((*keys, key))}: {no_such_path(key, node)}")
            elif isinstance(value, Mapping):
                keys.append(key)
                levels.append((found, iter(value.items())))
                break
            else:
                misfit = f"expected a mapping of {names_of(found)}, got {describe(value)}"
                faults.append(f"{format_path((*keys, key))}: {misfit}")
        else:
            levels.pop()
            if keys:
                keys.pop()


def _misfit(old: Any, leaf_def: LeafDef, value: Any) -> str | None:
    """Why a value cannot take the place of a leaf, or None."""
    if isinstance(value, Variable) and (leaf_def is None or leaf_def[0] is not type(value)):
        kind = "in no Variable" if leaf_def is None else f"of {type_name(leaf_def[0])}"
        return f"expected a value {kind}, got {describe(value)}"
    new = raw_of(value)
    structures: list[Any] = [jax.tree.structure(x) for x in (old, new)]
    shapes = zip(map(_shape, jax.tree.leaves(old)), map(_shape, jax.tree.leaves(new)), strict=False)
    if structures[0] == structures[1] and all(a == b or a is None or b is None for a, b in shapes):
        return None
    return f"expected {jax.tree.map(describe, old)}, got {jax.tree.map(describe, new)}"


def _shape(leaf: Any) -> tuple[int, ...] | None:
    if isinstance(leaf, (int, float, complex)):
        return ()
    shape = getattr(leaf, "shape", None)
    return shape if isinstance(shape, tuple) else None


def restore_int_paths(pure_dict: Mapping[Any, Any], /) -> dict[Any, Any]:
    """Nested dicts whose keys are integers again, where they read as those do.

    Formats that know texts only, JSON and most checkpoints among them, keep the
    key ``0`` as ``"0"``. Only what Python writes for an integer is one:
    ``"-1"`` is, ``"01"``, ``"1_000"`` and ``" 1"`` are not.

    Args:
      pure_dict: nested mappings, as read from such a format.

    Returns:
      Nested dicts, new ones; values are taken as they are.

    Raises:
      GraphError: where ``"0"`` and ``0`` lead to the same path, and for a
        mapping that contains itself.

    >>> restore_int_paths({"layers": {"0": {"kernel": 1.0}, "1": {}}})
    {'layers': {0: {'kernel': 1.0}, 1: {}}}
    """
    found = walk_mapping(pure_dict, None, "restore_int_paths")
    return nest((tuple(map(_restored, path)), empty_node if is_empty else value) for path, value, is_empty in found)


def _restored(key: Any) -> Any:
    if isinstance(key, str) and key.removeprefix("-").isdecimal() and len(key) < 20:
        number = int(key)
        return number if str(number) == key else key
    return key
