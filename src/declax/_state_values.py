"""What is done with the values of States: pairs of path and value, plain dicts, differences.

Vocabulary
----------
pair:      a path and the value there, a Variable or another one.
pure dict: nested dicts that end in raw values; it knows no kinds and no metadata.
change:    one leaf that is replaced; or one thing that differs at one path.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.tree_util import DictKey

from declax import _display
from declax._filters import Filter, as_written
from declax._jax import current_trace
from declax._modes import is_on
from declax._state_def import Groups, LeafDef, StateDef, in_order, leaf_def_of, raw_of, values_of
from declax._typing import MISSING, Key, Path
from declax._value_text import value_text
from declax._variables import Variable, new_variable
from declax.errors import FilterError, GraphError, describe, format_path, note_path, suggest, type_name
from declax.traversals import walk_mapping

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


# --- differences ----------------------------------------------------------------

What = Literal["only in first", "only in second", "kind", "metadata", "nesting", "shape", "dtype", "value"]

SHOWN = 100
"""How many changes are printed."""


class LeafChange(NamedTuple):
    """One thing that differs.

    Attributes:
      path: where.
      what: which thing.
      detail: both sides, as text.
    """

    path: Path
    what: What
    detail: str

    def __str__(self) -> str:
        return f"{format_path(self.path)}: {self.what}: {self.detail}"


@dataclasses.dataclass(frozen=True, repr=False)
class StateDiff:
    """How two States differ; true where they do.

    Attributes:
      changes: all that differs, in the order of the first State; what only the
        second one has is last.

    >>> from declax.states import State
    >>> diff = State({"a": 1, "b": 2}).diff(State({"b": 3, "c": 4}))
    >>> print(diff)
    StateDiff(
      a: only in first: int 1
      b: value: 2 -> 3
      c: only in second: int 4
    )
    >>> diff.only_in_first, diff.paths("value")
    ((('a',),), (('b',),))
    """

    changes: tuple[LeafChange, ...]

    def paths(self, *what: What) -> tuple[Path, ...]:
        """The paths that differ in one of these things, or in any where none is given."""
        return tuple(dict.fromkeys(c.path for c in self.changes if not what or c.what in what))

    @property
    def only_in_first(self) -> tuple[Path, ...]:
        """The paths that only the first State has."""
        return self.paths("only in first")

    @property
    def only_in_second(self) -> tuple[Path, ...]:
        """The paths that only the second State has."""
        return self.paths("only in second")

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __repr__(self) -> str:
        if not self.changes:
            return "StateDiff()"
        lines = list(map(str, self.changes[:SHOWN]))
        if len(self.changes) > SHOWN:
            lines.append(f"... {len(self.changes) - SHOWN:,} more")
        return "StateDiff(\n" + "".join(f"  {line}\n" for line in lines) + ")"


class _Alike(NamedTuple):
    """Two values of one shape and dtype, which may differ."""

    path: Path
    first: Any
    second: Any


def compare(first: tuple[Sequence[Any], StateDef], second: tuple[Sequence[Any], StateDef]) -> StateDiff:
    """How two States differ, given their leaves and definitions."""
    found = list(_changes(first, second))
    hosts = _fetched([value for x in found if isinstance(x, _Alike) for value in (x.first, x.second)])
    changes: list[LeafChange] = []
    with np.errstate(all="ignore"):  # infinities and NaNs differ as other values do
        for x in found:
            if isinstance(x, LeafChange):
                changes.append(x)
                continue
            detail = _value_detail(hosts.get(id(x.first), x.first), hosts.get(id(x.second), x.second))
            if detail is not None:
                changes.append(LeafChange(x.path, "value", detail))
    return StateDiff(tuple(changes))


FETCHED = 1 << 14
"""Up to how many elements an array is compared on the host; larger ones where they are."""


def _fetched(values: list[Any]) -> dict[int, np.ndarray]:
    """The small arrays among values on the host, by id: fetched together, since each device call costs more."""
    small = {id(x): x for x in values if isinstance(x, jax.Array) and _is_small(x)}
    if jax.default_backend() != "cpu":
        _fetch(small.values())
    return {key: np.asarray(x) for key, x in small.items()}


def _fetch(arrays: Iterable[jax.Array]) -> None:
    for x in arrays:
        x.copy_to_host_async()  # all are under way before the first is waited for


def _is_small(array: jax.Array) -> bool:
    if isinstance(array, Tracer) or not isinstance(array.dtype, np.dtype):  # keys have a dtype of their own
        return False
    return array.size <= FETCHED and array.is_fully_addressable


def same_states(first: tuple[Sequence[Any], StateDef], second: tuple[Sequence[Any], StateDef]) -> bool:
    """Whether two States have equal leaves at the same paths, in whatever order."""
    (leaves, definition), (others, other) = first, second
    if definition is not other:
        if len(definition.paths) != len(other.paths):
            return False
        places = {path: i for i, path in enumerate(other.paths)}
        order = [places.get(path) for path in definition.paths]
        kinds = zip(definition.leaf_defs, order, strict=True)
        if not all(i is not None and other.leaf_defs[i] == leaf_def for leaf_def, i in kinds):
            return False
        others = [others[i] for i in order if i is not None]
    pairs = [(a, b) for a, b in zip(leaves, others, strict=True) if a is not b]
    if pairs and jax.default_backend() != "cpu":
        arrays = [(a, b) for a, b in pairs if isinstance(a, _ARRAYS) and isinstance(b, _ARRAYS)]
        if any(a.shape != b.shape for a, b in arrays):
            return False  # before anything is fetched
        _fetch([x for pair in arrays for x in pair if isinstance(x, jax.Array) and _is_small(x)])
    return all(same_leaf(a, b) for a, b in pairs)


def _same_arrays(a: Any, b: Any) -> bool:
    """Whether two arrays are equal; small ones are compared on the host, at a fifth of the cost."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.size <= FETCHED and isinstance(a.dtype, np.dtype) and _is_readable(a) and _is_readable(b):
        return bool((np.asarray(a) == np.asarray(b)).all())
    return _display.same_value(a, b)


def _is_readable(array: Any) -> bool:
    return isinstance(array, np.ndarray) or (not isinstance(array, Tracer) and array.is_fully_addressable)


def same_leaf(a: Any, b: Any) -> bool:
    """Whether two leaves are equal; arrays by value, whatever they are nested in."""
    if a is b:
        return True
    if not (isinstance(a, _CONTAINERS) or isinstance(b, _CONTAINERS)):
        return _same_values(a, b)
    (leaves, structure), (others, other) = _taken_apart(a), _taken_apart(b)
    return bool(structure == other) and all(x is y or _same_values(x, y) for x, y in zip(leaves, others, strict=True))


def _same_values(a: Any, b: Any) -> bool:
    are_arrays = isinstance(a, _ARRAYS) and isinstance(b, _ARRAYS)
    return _same_arrays(a, b) if are_arrays else _display.same_value(a, b)


_CONTAINERS = (dict, list, tuple)
_ARRAYS = (jax.Array, np.ndarray)


def _taken_apart(value: Any) -> tuple[list[Any], Any]:
    return jax.tree.flatten(value)


def _changes(
    first: tuple[Sequence[Any], StateDef], second: tuple[Sequence[Any], StateDef]
) -> Iterator[LeafChange | _Alike]:
    (leaves, definition), (others, other) = first, second
    places = {path: i for i, path in enumerate(other.paths)}
    for path, leaf, leaf_def in zip(definition.paths, leaves, definition.leaf_defs, strict=True):
        place = places.pop(path, None)
        if place is None:
            yield LeafChange(path, "only in first", _described(leaf, leaf_def))
            continue
        yield from _kind_changes(path, leaf_def, other.leaf_defs[place])
        yield from _value_changes(path, leaf, others[place])
    for path, place in places.items():
        yield LeafChange(path, "only in second", _described(others[place], other.leaf_defs[place]))


def _kind_changes(path: Path, first: LeafDef, second: LeafDef) -> Iterator[LeafChange]:
    kinds = [None if leaf_def is None else leaf_def[0] for leaf_def in (first, second)]
    if kinds[0] is not kinds[1]:
        names = ["no Variable" if kind is None else type_name(kind) for kind in kinds]
        yield LeafChange(path, "kind", f"{names[0]} -> {names[1]}")
    if first is None or second is None or first[1] is second[1]:
        return
    before, after = first[1], second[1]
    for name in dict.fromkeys((*before, *after)):
        sides = [repr(metadata[name]) if name in metadata else "nothing" for metadata in (before, after)]
        if name not in before or name not in after or sides[0] != sides[1] or before[name] != after[name]:
            yield LeafChange(path, "metadata", f"{name}: {sides[0]} -> {sides[1]}")


def _value_changes(path: Path, first: Any, second: Any) -> Iterator[LeafChange | _Alike]:
    if first is second:
        return
    (leaves, structure), (others, other) = _taken_apart(first), _taken_apart(second)
    if structure != other:
        yield LeafChange(path, "nesting", f"{structure} -> {other}")
        return
    for a, b in zip(leaves, others, strict=True):
        shapes = np.shape(a), np.shape(b)
        if shapes[0] != shapes[1]:
            yield LeafChange(path, "shape", f"{shapes[0]} -> {shapes[1]}")
        dtypes = getattr(a, "dtype", None), getattr(b, "dtype", None)
        if dtypes[0] != dtypes[1]:
            names = [describe(x) if dtype is None else str(dtype) for x, dtype in zip((a, b), dtypes, strict=True)]
            yield LeafChange(path, "dtype", f"{names[0]} -> {names[1]}")
        elif a is not b and shapes[0] == shapes[1]:
            yield _Alike(path, a, b)


def _value_detail(a: Any, b: Any) -> str | None:
    """How far two values of one shape and dtype are apart; None where they are equal."""
    if not isinstance(a, (jax.Array, np.ndarray)) or not isinstance(b, (jax.Array, np.ndarray)):
        return None if same_leaf(a, b) else f"{value_text(a)} -> {value_text(b)}"
    differing = int((a != b).sum())
    if not differing:
        return None
    if a.size == 1 and not jnp.issubdtype(a.dtype, jax.dtypes.extended):
        return f"{np.asarray(a).item()!r} -> {np.asarray(b).item()!r}"
    count = f"{differing:,} of {a.size:,} elements differ"
    if not jnp.issubdtype(a.dtype, jnp.inexact):
        return count
    if a.dtype.itemsize < 4:
        a, b = a.astype(np.float32), b.astype(np.float32)
    return f"{count}, by at most {float(abs(a - b).max()):.3g}"


def _described(leaf: Any, leaf_def: LeafDef) -> str:
    text = describe(leaf)
    return text if leaf_def is None else f"{type_name(leaf_def[0])} with {text}"


# --- plain dicts ----------------------------------------------------------------

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
