"""The values of a graph, apart from its structure: State, nested and written in place, and FlatState, a sequence."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeAlias, cast, overload
from weakref import ref

import jax
import numpy as np
from jax.core import Tracer
from jax.tree_util import DictKey
from typing_extensions import TypeVar

from declax import _jax
from declax._filters import Filter
from declax._modes import is_on
from declax._state.definition import (
    Entry,
    LeafDef,
    StateDef,
    Tree,
    call_each,
    check_trace,
    empty_after,
    groups_of,
    leaf_def_of,
    map_tree,
    match_pure_dict,
    no_attribute,
    no_key,
    pair_of,
    raw_of,
    same_kind,
    same_states,
    sorted_pair,
    values_of,
)
from declax._state.tree import OuterKeys, children_of, pair_from
from declax._state.views import Kept, Live, View
from declax._text import objects
from declax._tree import epoch
from declax._typing import MISSING, Key, Path, Tuple2, Tuple3, Tuple4
from declax._variables.variable import Variable, _set_metadata, _set_trace, new_variable, set_raw
from declax.errors import GraphError, MissingAttributeError, describe, type_name
from declax.traversals import walk_mapping

M = TypeVar("M", covariant=True, default=Any)
S = TypeVar("S", covariant=True)

Pair = tuple[Path, Any]
"""A path and the value there, a Variable or another one."""

Owners: TypeAlias = "tuple[ref[Any], ...]"
"""Objects, held weakly."""

ReplaceFn = Callable[[Any, Any], Any]
"""A function of the old value, a Variable or another one, and the new raw value; returns the value to store."""


class IterateOverKeys:
    """To a type checker a State cannot be iterated over; `State.keys()` can."""


class HasParts(Protocol[S]):
    """A State or a FlatState, whose parts are such too."""

    def _parts(self, filters: tuple[Filter, ...], where: str, *, is_exhaustive: bool) -> tuple[S, ...]: ...


@overload
def split_state(state: HasParts[S], a: Filter, /) -> S: ...
@overload
def split_state(state: HasParts[S], a: Filter, b: Filter, /) -> Tuple2[S]: ...
@overload
def split_state(state: HasParts[S], a: Filter, b: Filter, c: Filter, /) -> Tuple3[S]: ...
@overload
def split_state(state: HasParts[S], a: Filter, b: Filter, c: Filter, d: Filter, /) -> Tuple4[S]: ...
@overload
def split_state(state: HasParts[Any], a: Filter, /, *filters: Filter) -> Any: ...
def split_state(state: HasParts[Any], a: Filter, /, *filters: Filter) -> Any:
    """The leaves that each filter matches, as States, or as FlatStates of a FlatState.

    Raises:
      FilterError: for leaves that no filter matches.
      GraphError: for anything but a State, a nested mapping or a FlatState.

    >>> import declax as dx
    >>> numbers, rest = dx.State({"a": 1, "b": "text"}).split(int, ...)
    >>> numbers.to_pure_dict(), rest.to_pure_dict()
    ({'a': 1}, {'b': 'text'})
    """
    state = state if hasattr(state, "_parts") else as_state(state)
    found = state._parts((a, *filters), f"{type_name(type(state))}.split", is_exhaustive=True)
    return found if filters else found[0]


@overload
def filter_state(state: HasParts[S], a: Filter, /) -> S: ...
@overload
def filter_state(state: HasParts[S], a: Filter, b: Filter, /) -> Tuple2[S]: ...
@overload
def filter_state(state: HasParts[S], a: Filter, b: Filter, c: Filter, /) -> Tuple3[S]: ...
@overload
def filter_state(state: HasParts[S], a: Filter, b: Filter, c: Filter, d: Filter, /) -> Tuple4[S]: ...
@overload
def filter_state(state: HasParts[Any], a: Filter, /, *filters: Filter) -> Any: ...
def filter_state(state: HasParts[Any], a: Filter, /, *filters: Filter) -> Any:
    """As `split_state`, leaving out what no filter matches."""
    state = state if hasattr(state, "_parts") else as_state(state)
    found = state._parts((a, *filters), f"{type_name(type(state))}.filter", is_exhaustive=False)
    return found if filters else found[0]


class State(MutableMapping[Any, Any], Generic[M]):
    """The values of a graph by path: a nested mapping over a flat list.

    A State is a snapshot of a model, except that of `variables`. Reading a path gives a view: a nested State, or a
    Variable that writes into the State. As a pytree it is nested dicts with a read-only Variable over each value of a
    Variable. It is written at the trace level at which it was made, and read anywhere.

    Args:
      entries: nested mappings, or pairs, that end in Variables or other values;
        or a FlatState, whose order the State keeps. Empty mappings are left out.

    Raises:
      GraphError: `entries` is not a mapping, contains itself, or has paths that contradict each other.

    >>> import declax as dx
    >>> state = dx.State({"linear": {"kernel": dx.Param(1.0)}})
    >>> state["linear"]["kernel"].value, state.linear.kernel.value
    (1.0, 1.0)
    >>> state.linear.kernel.value = 2.0
    >>> state.to_pure_dict()
    {'linear': {'kernel': 2.0}}
    """

    __slots__ = ("__weakref__", "_owners", "_pair", "_rest", "_trace")

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        register_state(cls)

    _pair: tuple[StateDef, list[Any]]
    """Another tuple after each write; `__getattr__` computes that of a view."""
    _rest: Kept | View[State[Any]] | Live | None
    """The cache of a State, if any; for a view of another State or of a model, its place."""
    _trace: Any
    """The token of the trace that may write; a nested view has that of its root."""
    _owners: Owners
    """An object of each graph that has the same arrays. What JAX makes of the State has arrays of its own."""

    def __init__(self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = ()) -> None:
        if isinstance(entries, FlatState):
            fill_state(self, *entries._pair)
            return
        try:
            mapping = entries if isinstance(entries, Mapping) else dict(entries)
        except (TypeError, ValueError):
            problem = "a State requires a nested mapping, or pairs of key and value"
            fix = 'dx.State({"key": value}), or dx.state(model) for that of a model'
            raise GraphError("State", problem, got=describe(entries), fix=fix) from None
        fill_state(self, *sorted_pair(_entries_of(mapping, ())))

    @property
    def definition(self) -> StateDef:
        """The interned description of the State."""
        return self._pair[0]

    @property
    def paths(self) -> tuple[Path, ...]:
        """The path of each leaf."""
        return self._pair[0].paths

    @property
    def leaves(self) -> list[Any]:
        """The raw value of each leaf, in the order of `paths`; do not change this list, which is that of the State."""
        return self._pair[1]

    @property
    def as_model(self) -> M:
        """This State with the type of its model, for editors; it has no static fields, and no methods.

        >>> import declax as dx
        >>> dx.state(dx.Linear(2, 3, rngs=dx.Rngs(0))).as_model.kernel.shape
        (2, 3)
        """
        return cast("M", self)

    def flat_state(self) -> FlatState:
        """The pairs of path and value, in the order of sorted keys; Variables write into the State."""
        in_order = self.definition.in_jax_order  # that of the graph differs in named tuples and dataclasses
        return FlatState.from_sorted_keys_values(tuple(in_order(self.paths)), list(in_order(self._values())))

    def _read_pairs(self) -> Iterator[Pair]:
        """As `flat_state`, for reading only: its Variables do not show the State."""
        return zip(self.paths, values_of(*self._pair), strict=True)

    @staticmethod
    def from_flat_path(flat: Mapping[Path, Any] | Iterable[tuple[Path, Any]], /) -> State[Any]:
        """The State with these values by path; the inverse of `flat_state`.

        Args:
          flat: a FlatState, whose order the State keeps; a mapping from paths, or pairs, which the State puts in order.

        Raises:
          GraphError: a path is not a tuple, or paths contradict each other.

        >>> import declax as dx
        >>> dx.State.from_flat_path({("a", "b"): 1}).to_pure_dict()
        {'a': {'b': 1}}
        """
        if isinstance(flat, FlatState):
            return make_state(*flat._pair)
        return make_state(*sorted_pair([e for path, value in _pairs_of(flat) for e in _entries_of(value, path)]))

    def to_pure_dict(self, extract_fn: Callable[[Any], Any] | None = None) -> dict[Any, Any]:
        """Nested dicts with the raw values, at any depth; none is empty.

        Args:
          extract_fn: takes each value, a Variable or another one, and returns
            the value for the dicts. Its errors get a note of the path.

        Raises:
          GraphError: `extract_fn` is not a function.

        >>> import declax as dx
        >>> dx.State({"a": {"b": dx.Param(1)}}).to_pure_dict()
        {'a': {'b': 1}}
        """
        definition, leaves = self._pair
        if extract_fn is not None:
            leaves = call_each("State.to_pure_dict", extract_fn, definition.paths, zip(self._values(), strict=True))
        if definition.empty:
            definition = StateDef.of(definition.paths, definition.leaf_defs)
        return map_tree(definition.tree, leaves, dict)

    @property
    def raw_mapping(self) -> dict[Any, Any]:
        """Nested dicts with the value of each path; Variables write into the State."""
        return map_tree(self.definition.tree, self._values(), dict)

    def replace_by_pure_dict(self, pure_dict: Mapping[Any, Any], replace_fn: ReplaceFn | None = None) -> None:
        """Puts the values of nested dicts into this State; Variables keep their kind and metadata.

        Args:
          pure_dict: nested mappings of raw values, as of `to_pure_dict`, for some or all paths.
          replace_fn: takes the old value, a Variable or another one, and the
            new one; returns a Variable or a raw value.

        Raises:
          GraphError: for paths that the State does not have; lists all of them,
            and nothing is changed. Shapes are checked by `update`.
          TraceContextError: the State belongs to another trace.

        >>> import declax as dx
        >>> state = dx.State({"a": {"b": dx.Param(1.0)}})
        >>> state.replace_by_pure_dict({"a": {"b": 2.0}})
        >>> state.a.b.value
        2.0
        """
        definition, leaves = self._pair
        found = match_pure_dict(definition, pure_dict)
        values = [value for _, value in found]
        if replace_fn is not None:
            old = values_of(definition, leaves)
            paths = [definition.paths[i] for i, _ in found]
            values = call_each("replace_by_pure_dict", replace_fn, paths, [(old[i], new) for i, new in found])
        root, prefix = self._root()
        for (i, _), value in zip(found, values, strict=True):
            path = (*prefix, *definition.paths[i])
            check_trace(root._trace, path, value)
            keeps_kind = replace_fn is None or not isinstance(value, Variable)
            root._put(path, raw_of(value), definition.leaf_defs[i] if keeps_kind else leaf_def_of(value))

    # --- nested reading

    def _root(self) -> tuple[State[Any], Path]:
        """The State that has the leaves, and the path of this State in it."""
        place = self._rest
        return (place.root, place.path) if isinstance(place, View) else (self, ())

    def _tree(self) -> Tree:
        """The positions of the root's leaves below this State, by key; empty if the root has no mapping there."""
        root, prefix = self._root()
        found = root._pair[0].node(prefix)
        return found if isinstance(found, dict) else {}

    def __getitem__(self, key: Key) -> Any:
        tree = self._tree()
        found = tree.get(key, MISSING)
        root, prefix = self._root()
        if found is MISSING:
            raise no_key((*prefix, key), tree)
        if not isinstance(found, dict):
            return root._value((*prefix, key))
        view: State[Any] = _new(State)
        _set_rest(view, View(root, (*prefix, key)))
        _set_owners(view, root._owners)
        return view

    def _value(self, path: Path) -> Any:
        """The value of a leaf of a root: a view of a Variable, or another value."""
        definition, leaves = self._pair
        position = definition.position(path)
        assert position is not None  # the caller has found it
        if isinstance(self._rest, Live):
            return self._rest.values[position]
        leaf_def = definition.leaf_defs[position]
        if leaf_def is None:
            return leaves[position]
        kept = self._kept()
        view = kept.view(path)
        if view is None:
            view = kept.add_view(self, path, new_variable(leaf_def[0], leaves[position], leaf_def[1], None))
        return view

    def _values(self) -> list[Any]:
        """The value of each leaf, in order; Variables write into the State."""
        root, prefix = self._root()
        if isinstance(root._rest, Live):
            return [root._rest.values[i] for i in root.definition.sub(prefix)[1]]
        definition, leaves = self._pair
        add_view = root._kept().add_view
        places = zip(definition.paths, definition.leaf_defs, values_of(definition, leaves), strict=True)
        return [value if kind is None else add_view(root, (*prefix, *path), value) for path, kind, value in places]

    def _kept(self) -> Kept:
        kept = self._rest
        if kept is None:
            kept = Kept()
            _set_rest(self, kept)
        assert isinstance(kept, Kept)  # of a root
        return kept

    def __getattr__(self, name: str) -> Any:
        if name == "_pair" and isinstance(self._rest, Live):
            return self._rest.pair()
        if name == "_pair" and isinstance(self._rest, View):
            definition, leaves = self._rest.root._pair
            own, positions = definition.sub(self._rest.path)
            return own, [leaves[i] for i in positions]
        if name in State.__slots__:  # a State that is being made
            raise no_attribute(name, {})
        if name.startswith("__") or name not in self._tree():
            raise no_attribute(name, self._tree())
        return self[name]

    if TYPE_CHECKING:
        # `loss, grads = dx.grad(f)(model)` is to be an error
        __iter__: IterateOverKeys = IterateOverKeys()  # type: ignore[assignment]  # no method, on purpose
    else:

        def __iter__(self):
            return iter(self._tree())

    def __len__(self) -> int:
        return len(self._tree())

    def __contains__(self, key: object) -> bool:
        return key in self._tree()

    def get(self, key: Key, default: Any = None) -> Any:
        """The entry of a key, or a default."""
        return self[key] if key in self._tree() else default

    def __dir__(self) -> list[str]:
        names = [key for key in self._tree() if isinstance(key, str) and key.isidentifier()]
        return sorted({*super().__dir__(), *names})

    # --- nested writing

    def __setitem__(self, key: Key, value: Any) -> None:
        root, prefix = self._root()
        path = (*prefix, key)
        check_trace(root._trace, path, value)
        if isinstance(value, Variable) and self.get(key) is value:
            return  # the view that is there: `state.bias += 1` has written to it
        entries = _entries_of(value, path)
        if len(entries) == 1 and entries[0][0] == path and isinstance(self._tree().get(key), int):
            root._detach(path)
            root._put(*entries[0])
        else:
            root._replace_below(path, entries)

    def _put(self, path: Path, leaf: Any, leaf_def: LeafDef) -> None:
        """Writes a leaf of a root, and its view if there is one."""
        if isinstance(self._rest, Live):
            self._rest.replace(path, [(path, leaf, leaf_def)])
            return
        definition, leaves = self._pair
        position = definition.position(path)
        if position is None:
            raise no_key(path, {})
        if not same_kind(definition.leaf_defs[position], leaf_def):
            definition = definition.with_leaf(position, leaf_def)
        leaves[position] = leaf
        _set_pair(self, (definition, leaves))
        view = self._rest.view(path) if isinstance(self._rest, Kept) else None
        if view is None:
            return
        if leaf_def is None or leaf_def[0] is not view.__class__:
            self._detach(path)
        else:
            set_raw(view, leaf)
            if leaf_def[1] is not view._metadata:
                _set_metadata(view, leaf_def[1])
                epoch.advance()

    def _replace_below(self, path: Path, entries: list[Entry], emptied: Path = ()) -> None:
        """Replaces the leaves of a root at a path and below it; the mapping at `emptied` stays if it is empty then."""
        if isinstance(self._rest, Live):
            self._rest.replace(path, entries, emptied)
            return
        new = {entry[0]: entry for entry in entries}
        found = [new.pop(e[0], e) for e in _entries_of(self, ()) if e[0] in new or e[0][: len(path)] != path]
        all_entries = [*found, *new.values()]
        empty = empty_after(self._pair[0], path, emptied, (e[0] for e in all_entries))
        pair = sorted_pair(all_entries, is_sorted=not new, empty=empty)
        self._detach(path)
        _set_pair(self, pair)

    def _detach(self, path: Path) -> None:
        """Makes independent Variables of the views at a path and below it."""
        views = self._rest.take_views(path) if isinstance(self._rest, Kept) else ()
        for view in views:
            _set_trace(view, self._trace)

    def __delitem__(self, key: Key) -> None:
        tree = self._tree()
        root, prefix = self._root()
        if key not in tree:
            raise no_key((*prefix, key), tree)
        check_trace(root._trace, (*prefix, key))
        root._replace_below((*prefix, key), [], prefix)

    def __setattr__(self, name: str, value: Any) -> None:
        self._check_free(name)
        self[name] = value

    def __delattr__(self, name: str) -> None:
        self._check_free(name)
        if name not in self._tree():
            raise no_attribute(name, self._tree())
        del self[name]

    def _check_free(self, name: str) -> None:
        if hasattr(State, name):
            problem = "every State has an attribute of this name, so an entry of this name is reached by its key"
            raise MissingAttributeError(f"State.{name}", problem, fix=f"state[{name!r}]")

    # --- comparing, and whole States

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        try:
            return same_states(*self._pair, *as_state(other)._pair)
        except GraphError:  # `other` cannot be a State
            return False

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # mutable

    def __sub__(self, other: Any) -> State[M]:
        if not isinstance(other, Mapping):
            return NotImplemented
        known = set(as_state(other).paths)
        definition, leaves = self._pair
        positions = tuple(i for i, path in enumerate(definition.paths) if path not in known)
        return make_state(definition.select(positions), [leaves[i] for i in positions], owners=self._owners)

    split: Final = split_state
    filter: Final = filter_state

    def _parts(self, filters: tuple[Filter, ...], where: str, *, is_exhaustive: bool) -> tuple[State[M], ...]:
        if isinstance(self._root()[0]._rest, Live):
            values = self._values()
            groups = groups_of(*self._pair, filters, where, is_exhaustive=is_exhaustive)
            return tuple(show_variables(sub, [values[i] for i in p], self._owners) for sub, p in groups)
        return split_leaves(*self._pair, filters, where, is_exhaustive=is_exhaustive, owners=self._owners)

    @staticmethod
    def merge(first: State[Any] | Mapping[Any, Any], /, *states: State[Any] | Mapping[Any, Any]) -> State[Any]:
        """One State with the leaves of all; the last one wins.

        Raises:
          GraphError: one has a leaf where another one has a mapping.

        >>> import declax as dx
        >>> dx.State.merge(dx.State({"a": 1, "b": 2}), {"b": 3}).to_pure_dict()
        {'a': 1, 'b': 3}
        """
        given = list(map(as_state, (first, *states)))
        merged = {entry[0]: entry for state in given for entry in _entries_of(state, ())}
        owners = tuple({id(owner): owner for state in given for owner in state._owners}.values())
        return make_state(*sorted_pair(list(merged.values())), owners=owners)

    def __or__(self, other: Any) -> State[Any]:
        return State.merge(self, other) if isinstance(other, Mapping) else NotImplemented

    def __ror__(self, other: Any) -> State[Any]:
        return State.merge(other, self) if isinstance(other, Mapping) else NotImplemented

    def map(self, f: Callable[[Path, Any], Any]) -> State[M]:
        """The State whose values are ``f(path, value)``; `f` gets and may return Variables.

        The Variables that it gets write into this State.

        Raises:
          GraphError: `f` is not a function. Its errors get a note of the path.

        >>> import declax as dx
        >>> dx.State({"a": {"b": 1}}).map(lambda path, value: value + len(path)).to_pure_dict()
        {'a': {'b': 3}}
        """
        definition = self.definition
        mapped = call_each("State.map", f, definition.paths, zip(definition.paths, self._values(), strict=True))
        pair = pair_of(definition, mapped)
        if pair is None:
            return State.from_flat_path(zip(definition.paths, mapped, strict=True))
        return make_state(*pair)

    def __repr__(self) -> str:
        return objects.state_repr(map_tree(self.definition.tree, values_of(*self._pair), objects.Level))

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        return objects.treescope_repr(self, path, subtree_renderer)

    def __copy__(self) -> State[M]:
        return like(self, list(self.leaves))

    def __deepcopy__(self, memo: dict[int, Any]) -> State[M]:
        def own(leaf: Any) -> Any:
            is_array = isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer)
            return copy.deepcopy(leaf, memo) if is_array or isinstance(leaf, (np.ndarray, jax.Ref)) else leaf

        return like(self, jax.tree.map(own, self.leaves))

    def __reduce__(self) -> tuple[Any, ...]:
        make, *rest = self._recipe
        return make, (*self._pair, *rest)

    @property
    def _recipe(self) -> tuple[Any, ...]:
        """A function that makes such a State, and its arguments behind a definition and leaves."""
        return make_state, type(self)


class FlatState(Sequence[Pair]):
    """The pairs of path and value of a State: a sequence, whose children as a pytree are the values.

    Args:
      pairs: the pairs, or a mapping from paths.
      sort: whether to put them in the order that a State has.

    Raises:
      GraphError: a path is not a tuple.

    Attributes:
      paths: the paths.
      leaves: the values; Variables are not unwrapped.

    >>> import declax as dx
    >>> flat = dx.FlatState([(("b",), 2), (("a", "c"), 1)], sort=True)
    >>> flat
    FlatState([(('a', 'c'), 1), (('b',), 2)])
    >>> flat.to_nested_state().to_pure_dict()
    {'a': {'c': 1}, 'b': 2}
    """

    __slots__ = ("__weakref__", "leaves", "paths")

    paths: tuple[Path, ...]
    leaves: list[Any]

    def __init__(self, pairs: Iterable[Pair], /, *, sort: bool = False) -> None:
        listed = list(_pairs_of(pairs))
        if is_on("sort", sort):
            order = sorted_pair([(path, i, None) for i, (path, _) in enumerate(listed)])[1]
            listed = [listed[i] for i in order]
        self.paths = tuple(path for path, _ in listed)
        self.leaves = [value for _, value in listed]

    @staticmethod
    def from_sorted_keys_values(keys: tuple[Path, ...], values: list[Any], /) -> FlatState:
        """The FlatState of these paths, in order, and of their values, a list that it takes over."""
        flat: FlatState = _new(FlatState)
        flat.paths, flat.leaves = tuple(keys), values
        return flat

    def to_nested_state(self) -> State[Any]:
        """The State with these values, in this order; raises GraphError if paths contradict each other."""
        return State(self)

    @staticmethod
    def merge(first: Iterable[Pair], /, *flat_states: Iterable[Pair]) -> FlatState:
        """One FlatState with the pairs of all, in order; of equal paths the last one wins."""
        merged = {path: value for flat in (first, *flat_states) for path, value in _pairs_of(flat)}
        return FlatState(merged.items(), sort=True)

    split: Final = split_state
    filter: Final = filter_state

    def _parts(self, filters: tuple[Filter, ...], where: str, *, is_exhaustive: bool) -> tuple[FlatState, ...]:
        groups = groups_of(*self._pair, filters, where, is_exhaustive=is_exhaustive)
        make = FlatState.from_sorted_keys_values
        return tuple(make(sub.paths, [self.leaves[i] for i in positions]) for sub, positions in groups)

    @property
    def _pair(self) -> tuple[StateDef, list[Any]]:
        definition = StateDef.of(self.paths, tuple(map(leaf_def_of, self.leaves)))
        definition.tree  # noqa: B018  # raises
        return definition, list(map(raw_of, self.leaves))

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> FlatState: ...
    def __getitem__(self, index: int | slice) -> Pair | FlatState:
        if isinstance(index, slice):
            return FlatState.from_sorted_keys_values(self.paths[index], self.leaves[index])
        return self.paths[index], self.leaves[index]

    def __iter__(self) -> Iterator[Pair]:
        return zip(self.paths, self.leaves, strict=True)

    def __len__(self) -> int:
        return len(self.paths)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FlatState):
            return NotImplemented
        return self.paths == other.paths and same_states(*self._pair, *other._pair)

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"FlatState({objects.text_of(list(self))})"

    def __reduce__(self) -> tuple[Any, ...]:
        return FlatState.from_sorted_keys_values, (self.paths, self.leaves)

    def __copy__(self) -> FlatState:
        return self[:]


# --- making States ------------------------------------------------------------

_set_pair = State._pair.__set__  # type: ignore[attr-defined]  # slot descriptors
_set_rest = State._rest.__set__  # type: ignore[union-attr]  # as above
_set_state_trace = State._trace.__set__
_set_owners = State._owners.__set__  # type: ignore[attr-defined]  # as above
_trace_state: Final = _jax.trace_state
_new = object.__new__


def make_state(
    definition: StateDef, leaves: list[Any], cls: type[State[Any]] = State, owners: Owners = ()
) -> State[Any]:
    """The State with these leaves, whose list it takes over."""
    state = _new(cls)
    fill_state(state, definition, leaves, owners)
    return state


def show_variables(definition: StateDef, values: list[Any], owners: Owners) -> State[Any]:
    """The State that shows these Variables themselves, and other leaves."""
    state: State[Any] = _new(State)
    _set_rest(state, Live(definition, values))
    _set_state_trace(state, _trace_state.value)
    _set_owners(state, owners)
    return state


def fill_state(state: State[Any], definition: StateDef, leaves: list[Any], owners: Owners = ()) -> None:
    """Initializes a State with these leaves, whose list it takes over."""
    _set_pair(state, (definition, leaves))
    _set_rest(state, None)
    _set_state_trace(state, _trace_state.value)
    _set_owners(state, owners)


def like(state: State[M], leaves: list[Any]) -> State[M]:
    """The State of the same paths and kinds with other leaves, whose list it takes over."""
    make, *rest = state._recipe
    return make(state.definition, leaves, *rest)  # type: ignore[no-any-return]  # a State


def as_state(entries: Any) -> State[Any]:
    """A State, or the State of a mapping or a FlatState."""
    return entries if isinstance(entries, State) else State(entries)


def _entries_of(value: Any, path: Path) -> list[Entry]:
    """The leaves of a mapping at a path, or another value there as the only leaf."""
    if isinstance(value, State):
        definition, leaves = value._pair
        found = zip(definition.paths, leaves, definition.leaf_defs, strict=True)
        return [((*path, *rest), leaf, leaf_def) for rest, leaf, leaf_def in found]
    if not isinstance(value, Mapping):
        return [(path, raw_of(value), leaf_def_of(value))]
    entries: list[Entry] = []
    for below, leaf, is_empty in walk_mapping(value, None, "State", leaf_types=(State,)):
        if isinstance(leaf, State):
            entries += _entries_of(leaf, (*path, *below))
        elif not is_empty:
            entries.append(((*path, *below), raw_of(leaf), leaf_def_of(leaf)))
    return entries


def _pairs_of(flat: Any) -> Iterable[Pair]:
    if isinstance(flat, FlatState):
        return flat
    pairs = list(flat.items() if isinstance(flat, Mapping) else flat)
    wrong = next((path for path, _ in pairs if not isinstance(path, (tuple, list))), MISSING)
    if wrong is not MISSING:
        raise GraphError("FlatState", "a path is a tuple of keys", got=describe(wrong), fix='("a", "b")')
    return [(tuple(path), value) for path, value in pairs]


def split_leaves(
    definition: StateDef,
    leaves: Sequence[Any],
    filters: tuple[Filter, ...],
    where: str,
    *,
    is_exhaustive: bool,
    owners: Owners = (),
) -> tuple[State[Any], ...]:
    """States of the leaves that each filter takes; arguments and errors as of `groups_of`."""
    groups = groups_of(definition, leaves, filters, where, is_exhaustive=is_exhaustive)
    return tuple(make_state(sub, _pick(leaves, positions), owners=owners) for sub, positions in groups)


def _pick(leaves: Sequence[Any], positions: tuple[int, ...]) -> list[Any]:
    if len(positions) > 1:  # quicker than a comprehension
        return list(itemgetter(*positions)(leaves))
    return [leaves[i] for i in positions]


# --- States as pytrees ----------------------------------------------------------


def _shown(state: State[Any]) -> tuple[tuple[Any, ...], Any]:
    """The children of a State and their keys; kept until the next write."""
    pair = state._pair
    if isinstance(state._rest, (View, Live)):
        return children_of(*pair)
    kept = state._kept()
    known, found = kept.shown
    if known is not pair:
        found = children_of(*pair)
        kept.shown = pair, found
    return found  # type: ignore[no-any-return]  # what `children_of` gives


def _from_shown(recipe: tuple[Any, ...], keys: OuterKeys, children: Sequence[Any]) -> State[Any]:
    make, *rest = recipe
    known = pair_from(keys, children)
    if known is None:
        paths: Any = keys if keys.are_paths else zip(keys, strict=True)
        entries = [e for path, child in zip(paths, children, strict=True) for e in _entries_of(child, path)]
        return make(*sorted_pair(entries), *rest)  # type: ignore[no-any-return]  # a State
    definition, leaves, is_shown = known
    state: State[Any] = make(definition, leaves, *rest)
    if is_shown:
        state._kept().shown = state._pair, (children, keys)
    return state


def register_state(cls: type[State[Any]]) -> None:
    """Registers a class of States as pytrees: nested dicts, with a Variable over each value of a Variable."""
    is_plain = cls is State  # its treedef has the outermost keys only, as the peer's

    def flatten(state: State[Any]) -> tuple[tuple[Any, ...], Any]:
        children, keys = _shown(state)
        return children, keys if is_plain else (state._recipe, keys)

    def flatten_with_keys(state: State[Any]) -> tuple[list[tuple[Any, Any]], Any]:
        children, static = flatten(state)
        keys = static if is_plain else static[1]
        return list(zip(map(DictKey, keys), children, strict=True)), static

    def unflatten(static: Any, children: Any) -> State[Any]:
        recipe, keys = ((make_state,), static) if is_plain else static
        return _from_shown(recipe, keys, children)

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)


register_state(State)
jax.tree_util.register_pytree_with_keys(
    FlatState,
    lambda flat: (list(zip(map(DictKey, flat.paths), flat.leaves, strict=True)), flat.paths),
    lambda paths, leaves: FlatState.from_sorted_keys_values(paths, list(leaves)),
    lambda flat: (flat.leaves, flat.paths),
)
