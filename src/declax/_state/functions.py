"""The methods of States as functions, by the names that they have in NNX."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from declax._state.states import FlatState, ReplaceFn, State, as_state
from declax._typing import Path, T
from declax.traversals import empty_node, nest, walk_mapping


def to_flat_state(state: State[Any]) -> FlatState:
    """As `State.flat_state`."""
    return state.flat_state()


def from_flat_state(
    flat_state: Mapping[Path, Any] | Iterable[tuple[Path, Any]], *, cls: type[State[Any]] = State
) -> State[Any]:
    """As `State.from_flat_path`; a subclass of State that is given as `cls` is called with nested dicts."""
    made = State.from_flat_path(flat_state)
    return made if cls is State else cls(made.raw_mapping)


def to_pure_dict(state: State[Any], extract_fn: Callable[[Any], Any] | None = None) -> dict[Any, Any]:
    """As `State.to_pure_dict`."""
    return state.to_pure_dict(extract_fn)


def replace_by_pure_dict(state: State[Any], pure_dict: Mapping[Any, Any], replace_fn: ReplaceFn | None = None) -> None:
    """As `State.replace_by_pure_dict`."""
    state.replace_by_pure_dict(pure_dict, replace_fn)


def merge_state(
    state: State[Any] | Mapping[Any, Any], /, *states: State[Any] | Mapping[Any, Any], cls: type[State[Any]] = State
) -> State[Any]:
    """As `State.merge`; `cls` as of `from_flat_state`."""
    merged = State.merge(state, *states)
    return merged if cls is State else cls(merged.raw_mapping)


def map_state(f: Callable[[Path, Any], Any], state: State[T]) -> State[T]:
    """As `State.map`."""
    return state.map(f)


def diff(first: State[T] | Mapping[Any, Any], second: State[Any] | Mapping[Any, Any], /) -> State[T]:
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
    is_decimal = isinstance(key, str) and key.removeprefix("-").isdecimal() and len(key) < 20
    return int(key) if is_decimal and str(int(key)) == key else key
