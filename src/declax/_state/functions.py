"""The methods of States as functions, by the names that they have in NNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from declax._state.states import State, as_state
from declax._typing import Path
from declax.traversals import empty_node, nest, walk_mapping

M = TypeVar("M")

from_flat_state = State.from_flat_path
merge_state = State.merge
replace_by_pure_dict = State.replace_by_pure_dict
to_flat_state = State.flat_state
to_pure_dict = State.to_pure_dict


def map_state(f: Callable[[Path, Any], Any], state: State[M]) -> State[M]:
    """As `State.map`."""
    return state.map(f)


def diff(first: State[M] | Mapping[Any, Any], second: State[Any] | Mapping[Any, Any], /) -> State[M]:
    """The leaves at paths that only the first State has: ``first - second``.

    >>> import declax as dx
    >>> dx.diff({"a": 1, "b": 2}, {"b": 3}).to_pure_dict()
    {'a': 1}
    """
    return as_state(first) - as_state(second)


def restore_int_paths(pure_dict: Mapping[Any, Any]) -> dict[Any, Any]:
    """New nested dicts, in which keys such as ``"0"`` and ``"-1"`` are integers again.

    JSON and most checkpoints store the key ``0`` as ``"0"``. Other spellings,
    such as ``"01"`` and ``"1_000"``, stay strings.

    Raises:
      GraphError: ``"0"`` and ``0`` lead to the same path, or a mapping contains itself.

    >>> import declax as dx
    >>> dx.restore_int_paths({"layers": {"0": {"kernel": 1.0}, "1": {}}})
    {'layers': {0: {'kernel': 1.0}, 1: {}}}
    """
    found = walk_mapping(pure_dict, None, "restore_int_paths")
    return nest((tuple(map(_restored, path)), empty_node if is_empty else value) for path, value, is_empty in found)


def _restored(key: Any) -> Any:
    if isinstance(key, str) and key.removeprefix("-").isdecimal() and len(key) < 20:
        number = int(key)
        return number if str(number) == key else key
    return key
