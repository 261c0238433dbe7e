"""Nested dicts of raw values, as checkpoints keep them, and how they go into a State.

Vocabulary
----------
pure dict: nested dicts that end in raw values; it knows no kinds and no metadata.
change:    a position in a State, and the leaf that it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from declax._jax import current_trace
from declax._state_def import LeafDef, StateDef
from declax._typing import MISSING, Key, Path
from declax._variables import Variable, new_variable
from declax.errors import GraphError, describe, format_path, note_path, suggest, type_name
from declax.traversals import walk_mapping

SUGGESTIONS = 8
"""How many unknown paths get a "did you mean": each is compared with all its neighbours."""

ReplaceFn = Callable[[Any, Any], Any]
"""Makes of what the State has, a Variable or another value, and of the new value what the State gets."""


class Change(NamedTuple):
    """One leaf that is replaced."""

    position: int
    leaf: Any
    leaf_def: LeafDef


def changes_of(
    definition: StateDef, leaves: Sequence[Any], pure_dict: Mapping[Any, Any], replace_fn: ReplaceFn | None
) -> list[Change]:
    """What a pure dict changes in a State.

    Raises:
      GraphError: that lists all that does not fit, by path; and for a
        `replace_fn` that cannot be called.
    """
    if not isinstance(pure_dict, Mapping):
        problem = "the argument is no nested mapping of values"
        raise GraphError("replace_by_pure_dict", problem, got=describe(pure_dict), fix="state.to_pure_dict() makes one")
    if not (replace_fn is None or callable(replace_fn)):
        problem, fix = "`replace_fn` has to be a function", "replace_fn=lambda old, new: new"
        raise GraphError("replace_by_pure_dict", problem, got=describe(replace_fn), fix=fix)
    faults: list[str] = []
    found = list(_match(definition, pure_dict, faults))
    changes = []
    for position, value in found:
        leaf_def = definition.leaf_defs[position]
        fault = None if replace_fn is not None else _fault(leaves[position], leaf_def, value)
        if fault is not None:
            faults.append(f"{format_path(definition.paths[position])}: {fault}")
        elif not faults:
            changes.append(_change(position, definition.paths[position], leaves[position], leaf_def, value, replace_fn))
    if faults:
        raise _does_not_fit(faults, definition, pure_dict)
    return changes


def _match(definition: StateDef, pure_dict: Mapping[Any, Any], faults: list[str]) -> Iterator[tuple[int, Any]]:
    """The position and the value of each leaf that both have; notes what only the pure dict has."""
    keys: list[Key] = []
    levels: list[tuple[dict[Key, Any], Iterator[tuple[Any, Any]]]] = [(definition.tree, iter(pure_dict.items()))]
    while levels:
        node, items = levels[-1]
        for key, value in items:
            found = node.get(key, MISSING)
            if found is MISSING:
                hint = _hint(key, node) if len(faults) < SUGGESTIONS else None
                faults.append(f"{format_path((*keys, key))}: there is no such path" + (f"; {hint}" if hint else ""))
            elif not isinstance(found, dict):
                yield found, value
            elif not isinstance(value, Mapping):
                faults.append(
                    f"{format_path((*keys, key))}: expected a mapping of {_some(found)}, got {describe(value)}"
                )
            else:
                keys.append(key)
                levels.append((found, iter(value.items())))
                break
        else:
            levels.pop()
            if keys:
                keys.pop()


def _hint(key: Key, node: Mapping[Key, Any]) -> str | None:
    names = {str(name): name for name in node}
    twin = names.get(str(key), MISSING)  # 0 and "0"
    return suggest(str(key), names) if twin is MISSING else f"did you mean {twin!r}?"


def _fault(old: Any, leaf_def: LeafDef, value: Any) -> str | None:
    """Why a value cannot stand in the place of a leaf, or None."""
    if isinstance(value, Variable):
        if leaf_def is None or leaf_def[0] is not type(value):
            kind = "a value in no Variable" if leaf_def is None else f"a value of {type_name(leaf_def[0])}"
            return f"expected {kind}, got {describe(value)}"
        value = value.raw_value
    before, after = _shape(old), _shape(value)
    if before is not None and after is not None:
        return None if before == after else f"expected the shape {before}, got {describe(value)}"
    structures: list[Any] = [jax.tree.structure(x) for x in (old, value)]
    if structures[0] != structures[1]:
        return f"expected {describe(old)}, got {describe(value)}, which is nested otherwise"
    pairs = zip(jax.tree.leaves(old), jax.tree.leaves(value), strict=True)
    shapes = [(_shape(a), _shape(b)) for a, b in pairs]
    wrong = next(((a, b) for a, b in shapes if a != b and a is not None and b is not None), None)
    return None if wrong is None else f"expected the shape {wrong[0]} inside, got {wrong[1]}"


def _change(position: int, path: Path, old: Any, leaf_def: LeafDef, value: Any, replace_fn: ReplaceFn | None) -> Change:
    if replace_fn is not None:
        if leaf_def is not None:
            old = new_variable(leaf_def[0], old, leaf_def[1], current_trace())
        try:
            value = replace_fn(old, value)
        except Exception as error:
            note_path(error, "the function given to replace_by_pure_dict", path)
            raise
        if isinstance(value, Variable):
            return Change(position, value.raw_value, (type(value), value._metadata))
    return Change(position, value.raw_value if isinstance(value, Variable) else value, leaf_def)


def _shape(leaf: Any) -> tuple[int, ...] | None:
    if isinstance(leaf, (int, float, complex)):
        return ()
    shape = getattr(leaf, "shape", None)
    return shape if isinstance(shape, tuple) else None


def _some(node: Mapping[Key, Any]) -> str:
    names = [repr(key) for key in node]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _does_not_fit(faults: list[str], definition: StateDef, pure_dict: Mapping[Any, Any]) -> GraphError:
    missing: list[str] = []
    all(True for _ in _match(definition, pure_dict, missing))
    fix = None
    if missing and len(_restored_faults(definition, pure_dict)) < len(missing):
        fix = "state.replace_by_pure_dict(dx.restore_int_paths(pure_dict))   # its integer keys have become texts"
    count = f"{len(faults)} path{'s' if len(faults) > 1 else ''}"
    problem = f"the values do not fit the State at {count}, and nothing was changed"
    return GraphError("replace_by_pure_dict", problem, got="\n".join(faults), fix=fix)


def _restored_faults(definition: StateDef, pure_dict: Mapping[Any, Any]) -> list[str]:
    faults: list[str] = []
    try:
        all(True for _ in _match(definition, restore_int_paths(pure_dict), faults))
    except GraphError:  # it cannot be restored
        return ["it cannot be restored"] * (len(definition.paths) + 1)
    return faults


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
      GraphError: where a mapping has both ``"0"`` and ``0``, and for one that
        contains itself.

    >>> restore_int_paths({"layers": {"0": {"kernel": 1.0}, "1": {}}})
    {'layers': {0: {'kernel': 1.0}, 1: {}}}
    """
    all(True for _ in walk_mapping(pure_dict, None, "restore_int_paths"))  # says what is no mapping, or endless
    made: dict[Any, Any] = {}
    open_levels: list[tuple[Mapping[Any, Any], dict[Any, Any]]] = [(pure_dict, made)]
    while open_levels:
        source, target = open_levels.pop()
        for key, value in source.items():
            restored = _restored(key)
            if restored in target:
                raise GraphError(
                    "restore_int_paths",
                    f"a mapping has the key {restored!r} as an integer and as a text",
                    got=f"the keys {_some(source)}",
                )
            target[restored] = value
            if isinstance(value, Mapping):
                inner: dict[Any, Any] = {}
                target[restored] = inner
                open_levels.append((value, inner))
    return made


def _restored(key: Any) -> Any:
    if isinstance(key, str) and key.removeprefix("-").isdecimal() and len(key) < 20:
        number = int(key)
        return number if str(number) == key else key
    return key
