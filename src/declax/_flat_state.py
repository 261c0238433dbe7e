"""Pairs of path and value, in order: what a State is, written out.

Vocabulary
----------
pair: a path and the value there, a Variable or another one.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import is_
from typing import Any, ClassVar, Self, TypeVar, overload

import jax
import numpy as np
from jax.core import Tracer
from jax.tree_util import DictKey

from declax import _display
from declax._filters import Filter, as_written
from declax._jax import current_trace
from declax._modes import is_on
from declax._state_def import Groups, LeafDef, StateDef, in_order
from declax._state_diff import same_leaf
from declax._typing import MISSING, Path
from declax._variables import Variable, _set_metadata, _set_trace, fill_raw, new_variable
from declax.errors import FilterError, GraphError, describe, format_path, note_path

Pair = tuple[Path, Any]

_new = object.__new__


class FlatPairs(Sequence[Pair]):
    """The pairs of a State in order; `FlatState` is what users see of it."""

    __slots__ = ("__weakref__", "leaves", "paths")

    paths: tuple[Path, ...]
    leaves: list[Any]

    def __init__(self, pairs: Iterable[Pair], /, *, sort: bool = False) -> None:
        listed = list(pairs_of(pairs, "FlatState"))
        if is_on("sort", sort):
            listed = [listed[i] for _, i in in_order([(path, i) for i, (path, _) in enumerate(listed)])]
        self.paths = tuple(path for path, _ in listed)
        self.leaves = [value for _, value in listed]

    @classmethod
    def from_sorted_keys_values(cls, keys: tuple[Path, ...], values: list[Any], /) -> Self:
        """The FlatState of these paths and values, taken as they are.

        Args:
          keys: the paths, in order.
          values: the values, a list that the FlatState takes over.

        Raises:
          GraphError: where there are more of one than of the other.

        >>> from declax.states import FlatState
        >>> FlatState.from_sorted_keys_values((("a",), ("b",)), [1, 2])
        FlatState([(('a',), 1), (('b',), 2)])
        """
        if len(keys) != len(values):
            problem = "each path has one value"
            raise GraphError("FlatState", problem, got=f"{len(keys)} paths and {len(values)} values")
        return make_flat(cls, tuple(keys), values)

    def flat_state(self) -> Self:
        """Itself, so that programs take what `flatten` gives for a State."""
        return self

    # --- as wholes

    @overload
    def split(self, first: Filter, /) -> Self: ...
    @overload
    def split(self, first: Filter, second: Filter, /, *filters: Filter) -> tuple[Self, ...]: ...
    def split(self, first: Filter, /, *filters: Filter) -> Self | tuple[Self, ...]:
        """The pairs that each filter takes.

        Raises:
          FilterError: for pairs that no filter takes.
        """
        return self._split((first, *filters), "FlatState.split", is_exhaustive=True)

    @overload
    def filter(self, first: Filter, /) -> Self: ...
    @overload
    def filter(self, first: Filter, second: Filter, /, *filters: Filter) -> tuple[Self, ...]: ...
    def filter(self, first: Filter, /, *filters: Filter) -> Self | tuple[Self, ...]:
        """As `split`, leaving out what no filter takes."""
        return self._split((first, *filters), "FlatState.filter", is_exhaustive=False)

    def _split(self, filters: tuple[Filter, ...], where: str, *, is_exhaustive: bool) -> Self | tuple[Self, ...]:
        raw = list(map(raw_of, self.leaves))
        groups = groups_of(self.definition, raw, filters, where, is_exhaustive=is_exhaustive)
        found = tuple(make_flat(type(self), sub.paths, [self.leaves[i] for i in some]) for sub, some in groups)
        return found if len(filters) > 1 else found[0]

    @classmethod
    def merge(cls, first: Iterable[Pair], /, *flat_states: Iterable[Pair]) -> Self:
        """One FlatState with the pairs of all, in order; of equal paths the last one wins.

        >>> from declax.states import FlatState
        >>> FlatState.merge([(("b",), 1)], [(("b",), 2), (("a",), 3)])
        FlatState([(('a',), 3), (('b',), 2)])
        """
        merged = {path: value for flat in (first, *flat_states) for path, value in pairs_of(flat, "FlatState.merge")}
        return cls(merged.items(), sort=True)

    @property
    def definition(self) -> StateDef:
        """The interned description of the State of these pairs."""
        return StateDef.of(self.paths, tuple(map(leaf_def_of, self.leaves)))

    @property
    def pair(self) -> tuple[StateDef, list[Any]]:
        """The definition and the leaves of the State of these pairs.

        Raises:
          GraphError: for paths that contradict each other.
        """
        definition = self.definition
        definition.tree  # noqa: B018  # raises for paths that contradict each other
        return definition, list(map(raw_of, self.leaves))

    # --- as a sequence

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Pair | Self:
        """The pair at an index, or those of a slice."""
        if isinstance(index, slice):
            return make_flat(type(self), self.paths[index], self.leaves[index])
        return self.paths[index], self.leaves[index]

    def __iter__(self) -> Iterator[Pair]:
        return zip(self.paths, self.leaves, strict=True)

    def __len__(self) -> int:
        return len(self.paths)

    def __contains__(self, pair: object) -> bool:
        return any(_same_pair(own, pair) for own in self)

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        """Where a pair is.

        Raises:
          GraphError: it is not there.
        """
        for i in range(*slice(start, stop).indices(len(self))):
            if _same_pair(self[i], value):
                return i
        raise GraphError("FlatState.index", "there is no such pair", got=describe(value))

    def count(self, value: Any) -> int:
        """How often a pair is there."""
        return sum(_same_pair(own, value) for own in self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FlatPairs):
            return NotImplemented
        return self.paths == other.paths and all(map(_same_value, self.leaves, other.leaves))

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"FlatState({_display.text_of(list(self))})"

    def __reduce__(self) -> tuple[Any, ...]:
        return make_flat, (type(self), self.paths, self.leaves)

    def __copy__(self) -> Self:
        return make_flat(type(self), self.paths, list(self.leaves))


F = TypeVar("F", bound=FlatPairs)


def make_flat(cls: type[F], paths: tuple[Path, ...], leaves: list[Any]) -> F:
    """The pairs of these paths and values, whose list it takes over."""
    flat = object.__new__(cls)
    flat.paths, flat.leaves = paths, leaves
    return flat


def register_flat(cls: type[FlatPairs]) -> None:
    """Makes pairs a pytree whose children are the values."""

    def flatten(flat: FlatPairs) -> tuple[list[Any], tuple[Path, ...]]:
        return flat.leaves, flat.paths

    def flatten_with_keys(flat: FlatPairs) -> tuple[list[tuple[Any, Any]], tuple[Path, ...]]:
        return list(zip(map(DictKey, flat.paths), flat.leaves, strict=True)), flat.paths

    def unflatten(paths: tuple[Path, ...], leaves: Iterable[Any]) -> FlatPairs:
        return make_flat(cls, paths, list(leaves))

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)


def pairs_of(flat: Any, where: str) -> Iterable[Pair]:
    """Pairs of path and value.

    Raises:
      GraphError: for what is none.
    """
    if isinstance(flat, FlatPairs):
        return flat
    try:
        pairs = [(path, value) for path, value in (flat.items() if isinstance(flat, Mapping) else flat)]
    except (TypeError, ValueError):
        problem = "the argument is neither a mapping from paths nor pairs of path and value"
        raise GraphError(where, problem, got=describe(flat), fix='[(("a", "b"), value)]') from None
    wrong = next((path for path, _ in pairs if not isinstance(path, (tuple, list))), MISSING)
    if wrong is not MISSING:
        raise GraphError(where, "a path is a tuple of keys", got=describe(wrong), fix='("a", "b")')
    return [(tuple(path), value) for path, value in pairs]


def mapping_of(entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> Mapping[Any, Any]:
    """The mapping that a State is made of, or that of pairs of key and value.

    Raises:
      GraphError: for what is neither.
    """
    if isinstance(entries, Mapping):
        return entries
    try:
        return dict(entries)
    except (TypeError, ValueError):
        problem = "a State is made of a nested mapping, or of pairs of key and value"
        raise GraphError("State", problem, got=describe(entries), fix='State({"key": value})') from None


def raw_of(value: Any) -> Any:
    """The raw value of a Variable; another value as it is."""
    return value.raw_value if isinstance(value, Variable) else value


def leaf_def_of(value: Any) -> LeafDef:
    """The kind and metadata of a Variable; None for another value."""
    return (value.__class__, value._metadata) if isinstance(value, Variable) else None


def values_of(definition: StateDef, leaves: Sequence[Any]) -> list[Any]:
    """The leaves as values, Variables as new Variables."""
    mark = current_trace()
    columns = definition.columns
    if columns is not None:  # as `new_variable` for each, without a frame of Python for each
        variables: list[Any] = list(map(_new, columns[0]))
        deque(map(fill_raw, variables, leaves), 0)
        deque(map(_set_metadata, variables, columns[1]), 0)
        deque(map(_set_trace, variables, repeat(mark)), 0)
        return variables
    return [
        leaf if leaf_def is None else new_variable(leaf_def[0], leaf, leaf_def[1], mark)
        for leaf_def, leaf in zip(definition.leaf_defs, leaves, strict=True)
    ]


def pair_of(definition: StateDef, values: Sequence[Any]) -> tuple[StateDef, list[Any]] | None:
    """The definition and the leaves of a State with these values at its paths; None where one is a mapping."""
    leaves: list[Any] = []
    leaf_defs: list[LeafDef] = []
    for old, value in zip(definition.leaf_defs, values, strict=True):
        if isinstance(value, Variable):
            kind, metadata = value.__class__, value._metadata
            leaves.append(value.raw_value)
            leaf_defs.append(old if old and old[0] is kind and old[1] is metadata else (kind, metadata))
        elif isinstance(value, Mapping):
            return None
        else:
            leaves.append(value)
            leaf_defs.append(None)
    if not all(map(is_, leaf_defs, definition.leaf_defs)):
        definition = StateDef.of(definition.paths, tuple(leaf_defs))
    return definition, leaves


def check_function(where: str, f: object, takes: str) -> None:
    """Checks that an argument is a function.

    Args:
      where: the method that takes it.
      f: the argument.
      takes: the parameters of the function.

    Raises:
      GraphError: it is none.
    """
    if not callable(f):
        problem, fix = "this argument has to be a function", f"{where.lower()}(lambda {takes}: value)"
        raise GraphError(where, problem, got=describe(f), fix=fix)


def call_each(where: str, f: Callable[[Path, Any], Any], definition: StateDef, leaves: Sequence[Any]) -> list[Any]:
    """What the function of a user gives for each path and value; an error of it tells the path."""
    results: list[Any] = []
    path: Path = ()
    try:
        for path, value in zip(definition.paths, values_of(definition, leaves), strict=True):
            results.append(f(path, value))  # a comprehension would not tell the path
    except Exception as error:
        note_path(error, f"the function given to {where}", path)
        raise
    return results


def own_leaves(leaves: list[Any], memo: dict[int, Any]) -> list[Any]:
    """The leaves with arrays and refs of their own, which outlive the donation of the others."""

    def own(leaf: Any) -> Any:
        is_array = isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer)
        return copy.deepcopy(leaf, memo) if is_array or isinstance(leaf, (np.ndarray, jax.Ref)) else leaf

    return jax.tree.map(own, leaves)  # type: ignore[no-any-return]  # a list, as it was


def _same_value(a: Any, b: Any) -> bool:
    return leaf_def_of(a) == leaf_def_of(b) and same_leaf(raw_of(a), raw_of(b))


def _same_pair(own: Pair, pair: Any) -> bool:
    return isinstance(pair, tuple) and len(pair) == 2 and own[0] == pair[0] and _same_value(own[1], pair[1])


def groups_of(
    definition: StateDef, leaves: Sequence[Any], filters: tuple[Filter, ...], where: str, *, is_exhaustive: bool
) -> Groups:
    """For each filter, the definition and the positions of the leaves that it takes.

    Args:
      definition: paths and kinds of the leaves.
      leaves: their raw values.
      filters: the filters.
      where: the function that took the filters, for errors.
      is_exhaustive: whether each leaf has to be taken.

    Raises:
      FilterError: for what is no filter, and for leaves that are left over and
        must not be.
    """
    groups, rest = definition.group(filters, leaves, where)
    if rest and is_exhaustive:
        raise _not_taken(where, definition.paths[rest[0]], values_of(definition, leaves)[rest[0]], len(rest), filters)
    return groups


def _not_taken(where: str, path: Path, value: Any, count: int, filters: tuple[Filter, ...]) -> FilterError:
    """The error of leaves that no filter of a function takes, of which this is the first."""
    others = f", nor {count - 1} other{'s' if count > 2 else ''}" if count > 1 else ""
    return FilterError(
        f"{where}, {format_path(path)}",
        f"no filter takes this leaf{others}",
        got=describe(value),
        expected=", ".join(map(as_written, filters)),
        fix=", ".join([*map(as_written, filters), "..."]) + "   # a last filter `...` takes the rest",
    )
