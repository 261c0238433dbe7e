"""The values of a graph, apart from its structure.

Vocabulary
----------
definition: the interned part of a State: the path of each leaf and, where the
            leaf is a Variable's value, the Variable's kind and metadata.
leaf:       a raw value. Leaves are what JAX sees when it flattens a State.
view:       a Variable or a nested State that reads and writes one State.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, overload

import jax
import numpy as np

from declax import _display
from declax._filters import Filter, as_written
from declax._jax import current_trace
from declax._state_def import StateDef
from declax._typing import Key, Path
from declax._variables import Variable, new_variable
from declax.errors import (
    FilterError,
    MissingAttributeError,
    MissingKeyError,
    describe,
    format_path,
    suggest,
)

M = TypeVar("M", covariant=True)


class State(MutableMapping[Key, Any], Generic[M]):
    """The values of a graph by path: a nested mapping over a flat list.

    As a pytree its leaves are the raw values, in order. Reading a path gives
    a view: a nested State, or a Variable that writes back into the State.
    A State is a snapshot: what happens to the model later does not show in it.

    Args:
      entries: nested mappings that end in Variables or other values.

    Raises:
      GraphError: for paths that contradict each other.

    >>> from declax._variables import Param
    >>> state = State({"linear": {"kernel": Param(1.0)}})
    >>> state["linear"]["kernel"].value, state.linear.kernel.value
    (1.0, 1.0)
    >>> jax.tree.leaves(state)
    [1.0]
    """

    __slots__ = ("__weakref__", "_boxes", "_definition", "_leaves", "_prefix", "_root")

    _definition: StateDef
    _leaves: list[Any]
    _boxes: dict[int, Variable[Any]] | None
    _root: State[Any] | None
    _prefix: Path

    def __init__(self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = ()) -> None:
        made = _from_unordered(list(_flat(dict(entries), ())))
        _fill(self, made._definition, made._leaves)

    @property
    def _owner(self) -> State[Any]:
        """The State that holds the leaves: this one, or the one that it is a part of."""
        return self if self._root is None else self._root

    # --- flat reading

    @property
    def definition(self) -> StateDef:
        """The interned description of the State."""
        root = self._owner
        root._settle()
        if root is self:
            return self._definition
        return root._definition.sub(self._prefix)[0]

    @property
    def paths(self) -> tuple[Path, ...]:
        """The path of each leaf."""
        return self.definition.paths

    @property
    def leaves(self) -> list[Any]:
        """The raw value of each leaf, in the order of `paths`."""
        root = self._owner
        root._settle()
        if root is self:
            return self._leaves
        return [root._leaves[i] for i in root._definition.sub(self._prefix)[1]]

    def _settle(self) -> None:
        """Takes over what was written into the Variables that reading handed out."""
        if self._boxes is None:
            return
        leaf_defs = list(self._definition.leaf_defs)
        for position, box in self._boxes.items():
            self._leaves[position] = box.raw_value
            leaf_defs[position] = (type(box), box._metadata)
        if tuple(leaf_defs) != self._definition.leaf_defs:
            _set_definition(self, StateDef.of(self._definition.paths, tuple(leaf_defs)))

    def flat_state(self) -> FlatState:
        """The pairs of path and value, in order.

        >>> State({"a": {"b": 1}}).flat_state()
        FlatState([(('a', 'b'), 1)])
        """
        definition = self.definition
        return FlatState(zip(definition.paths, _values(definition, self.leaves), strict=True))

    @staticmethod
    def from_flat_path(flat: Mapping[Path, Any] | Iterable[tuple[Path, Any]]) -> State[Any]:
        """The State with these values by path; the inverse of `flat_state`.

        Raises:
          GraphError: for paths that contradict each other.
        """
        pairs = list(flat.items() if isinstance(flat, Mapping) else flat)
        return _from_pairs(pairs) if isinstance(flat, FlatState) else _from_unordered(pairs)

    def to_pure_dict(self) -> dict[Any, Any]:
        """Nested dicts with the raw values.

        >>> State({"a": {"b": 1}}).to_pure_dict()
        {'a': {'b': 1}}
        """
        leaves = self.leaves
        return _map_tree(self.definition.tree, lambda position: leaves[position])

    # --- nested reading and writing

    def __getitem__(self, key: Key) -> Any:
        found = self.definition.tree.get(key)
        if found is None:
            hint = suggest(str(key), map(str, self.definition.tree))
            raise MissingKeyError(
                format_path((*self._prefix, key)),
                "the State has nothing at this path" + (f"; {hint}" if hint else ""),
                expected=", ".join(map(str, self.definition.tree)) or "nothing: the State is empty",
            )
        path = (*self._prefix, key)
        if isinstance(found, dict):
            return _view(self._owner, path)
        return self._owner._leaf_view(path)

    def _leaf_view(self, path: Path) -> Any:
        position = self._definition.position(path)
        assert position is not None  # the caller has just found it
        leaf_def = self._definition.leaf_defs[position]
        if leaf_def is None:
            return self._leaves[position]
        boxes = self._boxes
        if boxes is None:
            boxes = {}
            _set_boxes(self, boxes)
        box = boxes.get(position)
        if box is None:
            box = boxes[position] = new_variable(leaf_def[0], self._leaves[position], leaf_def[1], current_trace())
        return box

    def __setitem__(self, key: Key, value: Any) -> None:
        path = (*self._prefix, key)
        root = self._owner
        kept = [(p, v) for p, v in root.flat_state() if p[: len(path)] != path]
        added = list(_flat(value, path)) if isinstance(value, Mapping) else [(path, value)]
        changed = _from_edited([*kept, *added], root.paths)
        _fill(root, changed._definition, changed._leaves)

    def __delitem__(self, key: Key) -> None:
        self[key]  # says what is missing
        path = (*self._prefix, key)
        root = self._owner
        changed = _from_pairs([(p, v) for p, v in root.flat_state() if p[: len(path)] != path])
        _fill(root, changed._definition, changed._leaves)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self.definition.tree:
            raise self._no_attribute(name)
        return self[name]

    def _no_attribute(self, name: str) -> MissingAttributeError:
        hint = suggest(name, map(str, self.definition.tree))
        problem = "the State has no such attribute or entry" + (f"; {hint}" if hint else "")
        return MissingAttributeError(f"State.{name}", problem)

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        if name not in self.definition.tree:
            raise self._no_attribute(name)
        del self[name]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.definition.tree)

    def __len__(self) -> int:
        return len(self.definition.tree)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, State) or other.definition is not self.definition:
            return False
        pairs = zip(self.leaves, other.leaves, strict=True)
        return all(a is b or _display.same_value(a, b) for a, b in pairs)

    __hash__ = None  # type: ignore[assignment]  # mutable

    # --- whole States

    @overload
    def split(self, first: Filter, /) -> State[M]: ...
    @overload
    def split(self, first: Filter, second: Filter, /, *filters: Filter) -> tuple[State[M], ...]: ...
    def split(self, first: Filter, /, *filters: Filter) -> State[M] | tuple[State[M], ...]:
        """States of the leaves that each filter takes.

        Raises:
          FilterError: for leaves that no filter takes.
        """
        found = split_leaves(self.definition, self.leaves, (first, *filters), is_exhaustive=True)
        return found if filters else found[0]

    @overload
    def filter(self, first: Filter, /) -> State[M]: ...
    @overload
    def filter(self, first: Filter, second: Filter, /, *filters: Filter) -> tuple[State[M], ...]: ...
    def filter(self, first: Filter, /, *filters: Filter) -> State[M] | tuple[State[M], ...]:
        """As `split`, leaving out what no filter takes."""
        found = split_leaves(self.definition, self.leaves, (first, *filters), is_exhaustive=False)
        return found if filters else found[0]

    @staticmethod
    def merge(first: State[Any], /, *states: State[Any]) -> State[Any]:
        """One State with the leaves of all; the last one wins."""
        pairs = {path: value for state in (first, *states) for path, value in state.flat_state()}
        return _from_unordered(list(pairs.items()))

    def __or__(self, other: Any) -> State[Any]:
        return State.merge(self, other) if isinstance(other, State) else NotImplemented

    def map(self, f: Callable[[Path, Any], Any]) -> State[M]:
        """The State whose values are ``f(path, value)``, Variables as Variables."""
        return _from_pairs([(path, f(path, value)) for path, value in self.flat_state()])

    def __repr__(self) -> str:
        return _display.state_repr(self)

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        return _display.treescope_repr(self, path, subtree_renderer)

    def __copy__(self) -> State[M]:
        return make_state(self.definition, list(self.leaves))

    def __deepcopy__(self, memo: dict[int, Any]) -> State[M]:
        own = partial(jax.tree.map, lambda x: x.copy() if isinstance(x, np.ndarray) else x)
        return make_state(self.definition, list(map(own, self.leaves)))

    def __reduce__(self) -> tuple[Any, ...]:
        return make_state, (self.definition, self.leaves)


class FlatState(Sequence[tuple[Path, Any]]):
    """The pairs of path and value of a State, in order.

    Attributes:
      paths: the paths.
      leaves: the values, Variables as Variables.
    """

    __slots__ = ("leaves", "paths")

    def __init__(self, pairs: Iterable[tuple[Path, Any]]) -> None:
        listed = list(pairs)
        self.paths: tuple[Path, ...] = tuple(path for path, _ in listed)
        self.leaves: list[Any] = [value for _, value in listed]

    @overload
    def __getitem__(self, index: int) -> tuple[Path, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> FlatState: ...
    def __getitem__(self, index: int | slice) -> tuple[Path, Any] | FlatState:
        """The pair at an index, or those of a slice."""
        if isinstance(index, slice):
            return FlatState(zip(self.paths[index], self.leaves[index], strict=True))
        return self.paths[index], self.leaves[index]

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return f"FlatState({list(self)!r})"


# --- making States ------------------------------------------------------------

_set_definition = State._definition.__set__  # type: ignore[attr-defined]  # slot descriptors
_set_leaves = State._leaves.__set__  # type: ignore[attr-defined]  # as above
_set_boxes = State._boxes.__set__  # type: ignore[union-attr]  # as above
_set_root = State._root.__set__  # type: ignore[union-attr]  # as above
_set_prefix = State._prefix.__set__  # type: ignore[attr-defined]  # as above
_new = object.__new__


def make_state(definition: StateDef, leaves: list[Any]) -> State[Any]:
    """The State with these leaves, whose list it takes over."""
    state: State[Any] = _new(State)
    _fill(state, definition, leaves)
    return state


def _fill(state: State[Any], definition: StateDef, leaves: list[Any]) -> None:
    _set_definition(state, definition)
    _set_leaves(state, leaves)
    _set_boxes(state, None)
    _set_root(state, None)  # not itself: a cycle would wait for the collector
    _set_prefix(state, ())


def _view(root: State[Any], prefix: Path) -> State[Any]:
    state: State[Any] = _new(State)
    _set_root(state, root)
    _set_prefix(state, prefix)
    return state


def _flat(entries: Any, prefix: Path) -> Iterator[tuple[Path, Any]]:
    for key, value in entries.items():
        path = (*prefix, key)
        if isinstance(value, Mapping):
            yield from _flat(value, path)
        else:
            yield path, value


def _from_pairs(pairs: list[tuple[Path, Any]]) -> State[Any]:
    paths, leaf_defs, leaves = [], [], []
    for path, value in pairs:
        is_variable = isinstance(value, Variable)
        paths.append(tuple(path))
        leaf_defs.append((type(value), value._metadata) if is_variable else None)
        leaves.append(value.raw_value if is_variable else value)
    return make_state(StateDef.of(tuple(paths), tuple(leaf_defs)), leaves)


def _from_unordered(pairs: list[tuple[Path, Any]]) -> State[Any]:
    """As `_from_pairs`, in the order that the walk of a graph has, so that equal paths are one structure."""
    with contextlib.suppress(TypeError):  # keys without an order stay as they come
        pairs = sorted(pairs, key=lambda pair: [(isinstance(key, str), key) for key in pair[0]])
    made = _from_pairs(pairs)
    made._definition.tree  # noqa: B018  # raises for paths that contradict each other
    return made


def _from_edited(pairs: list[tuple[Path, Any]], paths: tuple[Path, ...]) -> State[Any]:
    """As `_from_unordered`, but in the old order where no path is new: a graph may have one of its own."""
    places = {path: i for i, path in enumerate(paths)}
    is_known = all(path in places for path, _ in pairs)
    return _from_pairs(sorted(pairs, key=lambda pair: places[pair[0]])) if is_known else _from_unordered(pairs)


def _values(definition: StateDef, leaves: Sequence[Any]) -> list[Any]:
    mark = current_trace()
    return [
        leaf if leaf_def is None else new_variable(leaf_def[0], leaf, leaf_def[1], mark)
        for leaf_def, leaf in zip(definition.leaf_defs, leaves, strict=True)
    ]


def _map_tree(tree: dict[Any, Any], f: Callable[[int], Any]) -> dict[Any, Any]:
    return {k: _map_tree(v, f) if isinstance(v, dict) else f(v) for k, v in tree.items()}


def split_leaves(
    definition: StateDef, leaves: Sequence[Any], filters: tuple[Filter, ...], *, is_exhaustive: bool
) -> tuple[State[Any], ...]:
    """States of the leaves that each filter takes.

    Raises:
      FilterError: where the filters leave leaves over and must not.
    """
    groups, rest = definition.group(filters, leaves)
    if rest and is_exhaustive:
        value = _values(definition, leaves)[rest[0]]
        raise FilterError(
            format_path(definition.paths[rest[0]]),
            f"no filter takes this leaf, nor {len(rest) - 1} others",
            got=describe(value),
            expected=", ".join(map(as_written, filters)),
            fix=", ".join([*map(as_written, filters), "..."]) + "   # a last filter `...` takes the rest",
        )
    return tuple(make_state(sub, [leaves[i] for i in positions]) for sub, positions in groups)


def _flatten_state(state: State[Any]) -> tuple[list[Any], StateDef]:
    if state._root is None and state._boxes is None:
        return state._leaves, state._definition
    return state.leaves, state.definition


def _flatten_state_with_keys(state: State[Any]) -> tuple[list[tuple[Any, Any]], StateDef]:
    leaves, definition = _flatten_state(state)
    return list(zip(definition.keys, leaves, strict=True)), definition


def _unflatten_state(definition: StateDef, leaves: Iterable[Any]) -> State[Any]:
    return make_state(definition, list(leaves))


jax.tree_util.register_pytree_with_keys(State, _flatten_state_with_keys, _unflatten_state, _flatten_state)
