"""States as functions take them: each does what the method of its name does.

Vocabulary
----------
flat state: the pairs of path and value of a State.
pure dict:  nested dicts of raw values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, overload

from declax._filters import Filter
from declax._state_values import LeafChange as LeafChange
from declax._state_values import ReplaceFn
from declax._state_values import StateDiff as StateDiff
from declax._state_values import restore_int_paths as restore_int_paths
from declax._typing import Path, Tuple2, Tuple3, Tuple4
from declax.errors import GraphError, describe
from declax.states import FlatState, State

M = TypeVar("M")


def to_flat_state(state: State[Any], /) -> FlatState:
    """The pairs of path and value of a State, in order.

    Raises:
      GraphError: for what is no State.

    >>> to_flat_state(State({"a": {"b": 1}}))
    FlatState([(('a', 'b'), 1)])
    """
    return _checked(state, "to_flat_state").flat_state()


def from_flat_state(flat_state: Mapping[Path, Any] | Iterable[tuple[Path, Any]], /) -> State[Any]:
    """The State with these values by path; the inverse of `to_flat_state`.

    Args:
      flat_state: a FlatState, whose order the State keeps; a mapping from
        paths, or pairs, which the State puts in order.

    Raises:
      GraphError: for what is no path, and for paths that contradict each other.

    >>> from_flat_state([(("a", "b"), 1)]).to_pure_dict()
    {'a': {'b': 1}}
    """
    return State.from_flat_path(flat_state)


def to_pure_dict(state: State[Any], extract_fn: Callable[[Any], Any] | None = None) -> dict[Any, Any]:
    """Nested dicts with the raw values of a State.

    Args:
      state: the State.
      extract_fn: makes of each value, a Variable or another one, what the
        dicts get instead.

    Raises:
      GraphError: for what is no State.

    >>> to_pure_dict(State({"a": {"b": 1}}), lambda value: -value)
    {'a': {'b': -1}}
    """
    return _checked(state, "to_pure_dict").to_pure_dict(extract_fn)


def replace_by_pure_dict(state: State[Any], pure_dict: Mapping[Any, Any], replace_fn: ReplaceFn | None = None) -> None:
    """Puts the values of nested dicts into a State; see `State.replace_by_pure_dict`.

    Raises:
      GraphError: for what is no State, and for values that do not fit; lists
        all of them, and nothing is changed.

    >>> state = State({"a": {"b": 1}})
    >>> replace_by_pure_dict(state, {"a": {"b": 2}})
    >>> state.a.b
    2
    """
    _checked(state, "replace_by_pure_dict").replace_by_pure_dict(pure_dict, replace_fn)


@overload
def filter_state(state: State[M], a: Filter, /) -> State[M]: ...
@overload
def filter_state(state: State[M], a: Filter, b: Filter, /) -> Tuple2[State[M]]: ...
@overload
def filter_state(state: State[M], a: Filter, b: Filter, c: Filter, /) -> Tuple3[State[M]]: ...
@overload
def filter_state(state: State[M], a: Filter, b: Filter, c: Filter, d: Filter, /) -> Tuple4[State[M]]: ...
@overload
def filter_state(state: State[Any], a: Filter, /, *filters: Filter) -> Any: ...
def filter_state(state: State[M], first: Filter, /, *filters: Filter) -> Any:
    """States of the leaves that each filter takes; what none takes is left out.

    Raises:
      GraphError: for what is no State.

    >>> filter_state(State({"a": 1, "b": "text"}), int).to_pure_dict()
    {'a': 1}
    """
    checked = _checked(state, "filter_state")
    return checked.filter(first, filters[0], *filters[1:]) if filters else checked.filter(first)


@overload
def split_state(state: State[M], a: Filter, /) -> State[M]: ...
@overload
def split_state(state: State[M], a: Filter, b: Filter, /) -> Tuple2[State[M]]: ...
@overload
def split_state(state: State[M], a: Filter, b: Filter, c: Filter, /) -> Tuple3[State[M]]: ...
@overload
def split_state(state: State[M], a: Filter, b: Filter, c: Filter, d: Filter, /) -> Tuple4[State[M]]: ...
@overload
def split_state(state: State[Any], a: Filter, /, *filters: Filter) -> Any: ...
def split_state(state: State[M], first: Filter, /, *filters: Filter) -> Any:
    """As `filter_state`; all leaves have to be taken.

    Raises:
      FilterError: for leaves that no filter takes.
      GraphError: for what is no State.

    >>> split_state(State({"a": 1, "b": "text"}), int, ...)[1].to_pure_dict()
    {'b': 'text'}
    """
    checked = _checked(state, "split_state")
    return checked.split(first, filters[0], *filters[1:]) if filters else checked.split(first)


def merge_state(state: State[Any] | Mapping[Any, Any], /, *states: State[Any] | Mapping[Any, Any]) -> State[Any]:
    """One State with the leaves of all; the last one wins.

    Raises:
      GraphError: where one has a leaf and another one a mapping, and for what
        is no State.

    >>> merge_state(State({"a": 1}), {"b": 2}).to_pure_dict()
    {'a': 1, 'b': 2}
    """
    return State.merge(state, *states)


def map_state(f: Callable[[Path, Any], Any], state: State[M]) -> State[M]:
    """The State whose values are ``f(path, value)``, Variables as Variables.

    Raises:
      GraphError: for what is no State.

    >>> map_state(lambda path, value: value + 1, State({"a": 1})).to_pure_dict()
    {'a': 2}
    """
    return _checked(state, "map_state").map(f)


def diff(first: State[Any] | Mapping[Any, Any], second: State[Any] | Mapping[Any, Any], /) -> StateDiff:
    """How two States differ: paths, kinds, metadata, shapes, dtypes and values.

    The result is false exactly where the two are equal. The peer's function of
    this name gives the leaves at paths that only the first State has, and says
    nothing about kinds and values; that is ``first - second`` here, and its
    paths are ``diff(first, second).only_in_first``.

    Raises:
      GraphError: for what is no State.

    >>> diff({"a": 1, "b": 2}, {"b": 3})
    StateDiff(
      a: only in first: int 1
      b: value: 2 -> 3
    )
    """
    return (first if isinstance(first, State) else State(first)).diff(second)


def _checked(state: Any, where: str) -> State[Any]:
    if isinstance(state, State):
        return state
    fix = f"dx.{where}(dx.State(...))" if isinstance(state, Mapping) else "dx.state(model)   # the State of a model"
    raise GraphError(where, "the argument is no State", got=describe(state), fix=fix)
