"""The values of a graph, apart from its structure: State, nested and written in place, and FlatState, a sequence."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, overload
from weakref import WeakValueDictionary

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
from declax._state.groups import Splits, groups_of
from declax._state.tree import OuterKeys, children_of, pair_from
from declax._tree import epoch, rendering
from declax._tree.read_only import WritesThrough
from declax._typing import MISSING, Key, Path
from declax._variables.variable import Variable, _set_metadata, _set_trace, new_variable, set_raw
from declax.errors import (
    DeclaxError,
    GraphError,
    LayerError,
    MissingAttributeError,
    describe,
    format_path,
)
from declax.traversals import walk_mapping

M = TypeVar("M", covariant=True, default=Any)

Pair = tuple[Path, Any]
"""A path and the value there, a Variable or another one."""

ReplaceFn = Callable[[Any, Any], Any]
"""Makes of what the State has, a Variable or another value, and of the new value what the State gets."""


class IterateOverKeys:
    """To a type checker a State cannot be iterated over; `State.keys()` can."""


class State(MutableMapping[Any, Any], Splits["State[M]"], Generic[M]):
    """The values of a graph by path: a nested mapping over a flat list.

    Reading a path gives a view: a nested State, or a Variable that writes into
    the State. As a pytree it is nested dicts, with a Variable over each value
    that is one's; these are snapshots. A State is a snapshot of the model,
    too: what happens to the model later does not show in it. It is written at
    the trace level at which it was made, and read anywhere.

    Args:
      entries: nested mappings, or pairs, that end in Variables or other
        values; or a FlatState, whose order the State keeps. Mappings with
        nothing inside leave no trace.

    Raises:
      GraphError: for what is no mapping, for one that contains itself, and for
        paths that contradict each other.

    >>> from declax._variables.variable import Param
    >>> state = State({"linear": {"kernel": Param(1.0)}})
    >>> state["linear"]["kernel"].value, state.linear.kernel.value
    (1.0, 1.0)
    >>> jax.tree.leaves(state)
    [1.0]
    >>> jax.tree.map(lambda v: type(v).__name__, state, is_leaf=lambda x: isinstance(x, Param)).to_pure_dict()
    {'linear': {'kernel': 'Param'}}
    """

    __slots__ = ("__weakref__", "_pair", "_rest", "_trace")

    _pair: tuple[StateDef, list[Any]]
    """Another tuple after each write. A nested view has none: asking for it goes to `__getattr__`."""
    _rest: _Kept | _View | None
    """What is kept with a State, if anything; of a nested view, its place."""
    _trace: Any
    """The mark of the trace that may write; a nested view has none of its own."""

    def __init__(self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = ()) -> None:
        if isinstance(entries, FlatState):
            fill_state(self, *entries._pair)
            return
        try:
            mapping = entries if isinstance(entries, Mapping) else dict(entries)
        except (TypeError, ValueError):
            problem = "a State is made of a nested mapping, or of pairs of key and value"
            fix = 'dx.State({"key": value}), or dx.state(model) for that of a model'
            raise GraphError("State", problem, got=describe(entries), fix=fix) from None
        fill_state(self, *sorted_pair(_entries_of(mapping, ())))

    # --- flat reading

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
        """The raw value of each leaf, in the order of `paths`; the State's own list, which is not to be changed."""
        return self._pair[1]

    def flat_state(self) -> FlatState:
        """The pairs of path and value, in order.

        >>> State({"a": {"b": 1}}).flat_state()
        FlatState([(('a', 'b'), 1)])
        """
        return FlatState.from_sorted_keys_values(self.paths, values_of(*self._pair))

    @staticmethod
    def from_flat_path(flat: Mapping[Path, Any] | Iterable[tuple[Path, Any]], /) -> State[Any]:
        """The State with these values by path; the inverse of `flat_state`.

        Args:
          flat: a FlatState, whose order the State keeps; a mapping from paths,
            or pairs, which the State puts in order.

        Raises:
          GraphError: for what is no path, and for paths that contradict each
            other.

        >>> State.from_flat_path({("a", "b"): 1}).to_pure_dict()
        {'a': {'b': 1}}
        """
        if isinstance(flat, FlatState):
            return make_state(*flat._pair)
        return make_state(*sorted_pair([e for path, value in _pairs_of(flat) for e in _entries_of(value, path)]))

    def to_pure_dict(self, extract_fn: Callable[[Any], Any] | None = None) -> dict[Any, Any]:
        """Nested dicts with the raw values; any depth will do.

        Args:
          extract_fn: makes of each value, a Variable or another one, what the
            dicts get instead. Errors of it get a note of the path.

        Raises:
          GraphError: for an `extract_fn` that is no function.

        >>> State({"a": {"b": 1}}).to_pure_dict()
        {'a': {'b': 1}}
        """
        definition, leaves = self._pair
        if extract_fn is not None:
            values = zip(values_of(definition, leaves), strict=True)
            leaves = call_each("State.to_pure_dict", extract_fn, definition.paths, values)
        return map_tree(definition.tree, leaves)

    @property
    def raw_mapping(self) -> dict[Any, Any]:
        """Nested dicts with what reading each path gives: Variables that write into the State, and other values."""
        root, prefix = self._root()
        return map_tree(self.definition.tree, [root._value((*prefix, *path)) for path in self.paths])

    def replace_by_pure_dict(self, pure_dict: Mapping[Any, Any], replace_fn: ReplaceFn | None = None) -> None:
        """Puts the values of nested dicts into this State; Variables keep their kind and metadata.

        Args:
          pure_dict: nested mappings of raw values, as of `to_pure_dict`; a part
            of the paths will do.
          replace_fn: makes of what the State has, a Variable or another value,
            and of the new value what the State gets: a Variable with a kind
            and metadata of its own, or a raw value. Shapes are not checked then.

        Raises:
          GraphError: for paths that the State does not have and values of
            another shape or kind; lists all of them, and nothing is changed.
          TraceContextError: the State belongs to another trace.

        >>> from declax._variables.variable import Param
        >>> state = State({"a": {"b": Param(1.0)}})
        >>> state.replace_by_pure_dict({"a": {"b": 2.0}})
        >>> state.a.b.value
        2.0
        """
        definition, leaves = self._pair
        found = match_pure_dict(definition, leaves, pure_dict, checks_shapes=replace_fn is None)
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
        """The State that has the leaves, and the path of this one in it."""
        place = self._rest
        return (place.root, place.path) if isinstance(place, _View) else (self, ())

    def _tree(self) -> Tree:
        """The positions of the root's leaves below this State, by key; nothing where the root has no mapping there."""
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
        _set_rest(view, _View(root, (*prefix, key)))
        return view

    def _value(self, path: Path) -> Any:
        """What a root has at the path of a leaf: a view of a Variable, or a value."""
        definition, leaves = self._pair
        position = definition.position(path)
        assert position is not None  # the caller has found it
        leaf_def = definition.leaf_defs[position]
        if leaf_def is None:
            return leaves[position]
        views = self._kept().views
        view = views.get(path)
        if view is None:
            view = views.setdefault(path, new_variable(leaf_def[0], leaves[position], leaf_def[1], _View(self, path)))
        return view

    def _kept(self) -> _Kept:
        kept = self._rest
        if kept is None:
            kept = _Kept()
            _set_rest(self, kept)
        assert isinstance(kept, _Kept)  # a root has no place
        return kept

    def __getattr__(self, name: str) -> Any:
        if name == "_pair" and isinstance(self._rest, _View):
            definition, leaves = self._rest.root._pair
            own, positions = definition.sub(self._rest.path)
            return own, [leaves[i] for i in positions]
        if name in State.__slots__:  # a State that is being made
            raise no_attribute(name, {})
        if name.startswith("__") or name not in self._tree():
            raise no_attribute(name, self._tree())
        return self[name]

    def _iterate(self) -> Iterator[Any]:
        return iter(self._tree())

    if TYPE_CHECKING:
        __iter__: IterateOverKeys  # type: ignore[assignment]  # `loss, grads = dx.grad(f)(model)` is to be an error
    else:
        __iter__ = _iterate

    def __len__(self) -> int:
        return len(self._tree())

    def __contains__(self, key: object) -> bool:
        return key in self._tree()

    def get(self, key: Key, default: Any = None) -> Any:
        """What is at a key, or a default."""
        return self[key] if key in self._tree() else default

    def __dir__(self) -> list[str]:
        names = [key for key in self._tree() if isinstance(key, str) and key.isidentifier()]
        return sorted({*super().__dir__(), *names})

    # --- nested writing

    def __setitem__(self, key: Key, value: Any) -> None:
        root, prefix = self._root()
        path = (*prefix, key)
        check_trace(root._trace, path, value)
        view = value._trace if isinstance(value, Variable) else None
        if isinstance(view, _View) and view.root is root and view.path == path:
            return  # the view that is there: `state.bias += 1` has written to it
        entries = _entries_of(value, path)
        if len(entries) == 1 and entries[0][0] == path and isinstance(self._tree().get(key), int):
            root._detach(path)
            root._put(*entries[0])
        else:
            root._replace_below(path, entries)

    def _put(self, path: Path, leaf: Any, leaf_def: LeafDef) -> None:
        """Writes a leaf of a root, and the view of it if there is one."""
        definition, leaves = self._pair
        position = definition.position(path)
        if position is None:
            raise no_key(path, {})
        if not same_kind(definition.leaf_defs[position], leaf_def):
            definition = definition.with_leaf(position, leaf_def)
        leaves[position] = leaf
        _set_pair(self, (definition, leaves))
        view = self._rest.views.get(path) if isinstance(self._rest, _Kept) else None
        if view is None:
            return
        if leaf_def is None or leaf_def[0] is not view.__class__:
            self._detach(path)
        else:
            set_raw(view, leaf)
            if leaf_def[1] is not view._metadata:
                _set_metadata(view, leaf_def[1])
                epoch.advance()

    def _replace_below(self, path: Path, entries: list[Entry]) -> None:
        """Replaces all leaves of a root that are at a path or below it by others, which are at it or below."""
        new = {entry[0]: entry for entry in entries}
        found = [new.pop(e[0], e) for e in _entries_of(self, ()) if e[0] in new or e[0][: len(path)] != path]
        pair = sorted_pair([*found, *new.values()], is_sorted=not new)
        self._detach(path)
        _set_pair(self, pair)

    def _detach(self, path: Path) -> None:
        """Makes the views at a path and below it Variables of their own."""
        views = self._rest.views if isinstance(self._rest, _Kept) else {}
        for known in [known for known in tuple(views) if known[: len(path)] == path]:
            view = views.pop(known, None)
            if view is not None:
                _set_trace(view, self._trace)

    def __delitem__(self, key: Key) -> None:
        tree = self._tree()
        root, prefix = self._root()
        if key not in tree:
            raise no_key((*prefix, key), tree)
        check_trace(root._trace, (*prefix, key))
        root._replace_below((*prefix, key), [])

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
        except GraphError:  # no State can be made of it
            return False

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # mutable

    def __sub__(self, other: Any) -> State[M]:
        if not isinstance(other, Mapping):
            return NotImplemented
        known = set(as_state(other).paths)
        definition, leaves = self._pair
        positions = tuple(i for i, path in enumerate(definition.paths) if path not in known)
        return make_state(definition.select(positions), [leaves[i] for i in positions])

    def _parts(self, filters: tuple[Filter, ...], where: str, *, is_exhaustive: bool) -> tuple[State[M], ...]:
        return split_leaves(*self._pair, filters, where, is_exhaustive=is_exhaustive)

    @staticmethod
    def merge(first: State[Any] | Mapping[Any, Any], /, *states: State[Any] | Mapping[Any, Any]) -> State[Any]:
        """One State with the leaves of all; the last one wins.

        Raises:
          GraphError: where one has a leaf and another one a mapping.

        >>> State.merge(State({"a": 1, "b": 2}), {"b": 3}).to_pure_dict()
        {'a': 1, 'b': 3}
        """
        merged = {entry[0]: entry for state in (first, *states) for entry in _entries_of(as_state(state), ())}
        return make_state(*sorted_pair(list(merged.values())))

    def __or__(self, other: Any) -> State[Any]:
        return State.merge(self, other) if isinstance(other, Mapping) else NotImplemented

    def __ror__(self, other: Any) -> State[Any]:
        return State.merge(other, self) if isinstance(other, Mapping) else NotImplemented

    def map(self, f: Callable[[Path, Any], Any]) -> State[M]:
        """The State whose values are ``f(path, value)``, Variables as Variables.

        Raises:
          GraphError: for what is no function. Errors of it get a note of the path.

        >>> State({"a": {"b": 1}}).map(lambda path, value: value + len(path)).to_pure_dict()
        {'a': {'b': 3}}
        """
        definition, leaves = self._pair
        pairs = zip(definition.paths, values_of(definition, leaves), strict=True)
        mapped = call_each("State.map", f, definition.paths, pairs)
        pair = pair_of(definition, mapped)
        if pair is None:
            return State.from_flat_path(zip(definition.paths, mapped, strict=True))
        return make_state(*pair)

    def __repr__(self) -> str:
        return rendering.state_repr(self)

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        return rendering.treescope_repr(self, path, subtree_renderer)

    def __copy__(self) -> State[M]:
        return like(self, list(self.leaves))

    def __deepcopy__(self, memo: dict[int, Any]) -> State[M]:
        def own(leaf: Any) -> Any:
            is_array = isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer)
            return copy.deepcopy(leaf, memo) if is_array or isinstance(leaf, (np.ndarray, jax.Ref)) else leaf

        return like(self, jax.tree.map(own, self.leaves))

    def __reduce__(self) -> tuple[Any, ...]:
        make, *rest = self._recipe
        return make, (*rest, *self._pair)

    @property
    def _recipe(self) -> tuple[Any, ...]:
        """What makes a State like this, and what it takes before a definition and leaves."""
        return (make_state,)


class _Kept:
    """What is kept with a State: the pair that JAX asked for last with what it sees of it, and views by path."""

    __slots__ = ("shown", "views")

    def __init__(self) -> None:
        self.shown: tuple[Any, Any] = None, None
        self.views: WeakValueDictionary[Path, Variable[Any]] = WeakValueDictionary()


class _View(WritesThrough):
    """The place of a nested State, and the mark of a Variable that shows a leaf: a write goes to the root."""

    __slots__ = ("path", "root")

    def __init__(self, root: State[Any], path: Path) -> None:
        self.root = root
        self.path = path

    @property
    def trace(self) -> Any:
        """The mark of the trace of the State."""
        return self.root._trace

    def write(self, variable: Any, method: str, *args: Any, **options: Any) -> None:
        """Does what a method of the Variable would do, to the State."""
        check_trace(self.root._trace, self.path, variable)
        written = new_variable(variable.__class__, variable.raw_value, variable._metadata, _trace_state.value)
        getattr(written, method)(*args, **options)
        self.root._put(self.path, written.raw_value, (variable.__class__, written._metadata))

    def refusal(self, where: str) -> DeclaxError:
        """The error of a write that a transform or an update would do."""
        return LayerError(
            where,
            f"this shows {format_path(self.path)} of a State, and only code outside of transforms writes to it",
            why="the State would not see what a transform writes",
            fix="variable.copy()      # a Variable of its own, for the model",
        )


class FlatState(Sequence[Pair], Splits["FlatState"]):
    """The pairs of path and value of a State, in order: a sequence.

    As a pytree its children are the values: Variables stay Variables.

    Args:
      pairs: the pairs, or a mapping from paths.
      sort: whether to put them in the order that a State has.

    Raises:
      GraphError: for what is no pair of path and value.

    Attributes:
      paths: the paths.
      leaves: the values, Variables as Variables.

    >>> flat = FlatState([(("b",), 2), (("a", "c"), 1)], sort=True)
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
        """The FlatState of these paths and values, taken as they are.

        Args:
          keys: the paths, in order.
          values: the values, a list that the FlatState takes over.

        Raises:
          GraphError: where there are more of one than of the other.

        >>> FlatState.from_sorted_keys_values((("a",), ("b",)), [1, 2])
        FlatState([(('a',), 1), (('b',), 2)])
        """
        if len(keys) != len(values):
            problem = "each path has one value"
            raise GraphError("FlatState", problem, got=f"{len(keys)} paths and {len(values)} values")
        flat: FlatState = _new(FlatState)
        flat.paths, flat.leaves = tuple(keys), values
        return flat

    def to_nested_state(self) -> State[Any]:
        """The State with these values, in this order.

        Raises:
          GraphError: for paths that contradict each other.
        """
        return State(self)

    @staticmethod
    def merge(first: Iterable[Pair], /, *flat_states: Iterable[Pair]) -> FlatState:
        """One FlatState with the pairs of all, in order; of equal paths the last one wins.

        >>> FlatState.merge([(("b",), 1)], [(("b",), 2), (("a",), 3)])
        FlatState([(('a',), 3), (('b',), 2)])
        """
        merged = {path: value for flat in (first, *flat_states) for path, value in _pairs_of(flat)}
        return FlatState(merged.items(), sort=True)

    def _parts(self, filters: tuple[Filter, ...], where: str, *, is_exhaustive: bool) -> tuple[FlatState, ...]:
        groups = groups_of(*self._pair, filters, where, is_exhaustive=is_exhaustive)
        make = FlatState.from_sorted_keys_values
        return tuple(make(sub.paths, [self.leaves[i] for i in positions]) for sub, positions in groups)

    @property
    def _pair(self) -> tuple[StateDef, list[Any]]:
        """The definition and the leaves of the State of these pairs; raises for paths that contradict each other."""
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
        return f"FlatState({rendering.text_of(list(self))})"

    def __reduce__(self) -> tuple[Any, ...]:
        return FlatState.from_sorted_keys_values, (self.paths, self.leaves)

    def __copy__(self) -> FlatState:
        return self[:]


# --- making States ------------------------------------------------------------

_set_pair = State._pair.__set__  # type: ignore[attr-defined]  # slot descriptors
_set_rest = State._rest.__set__  # type: ignore[union-attr]  # as above
_set_state_trace = State._trace.__set__
_trace_state: Final = _jax.trace_state
_new = object.__new__


def make_state(definition: StateDef, leaves: list[Any]) -> State[Any]:
    """The State with these leaves, whose list it takes over."""
    state: State[Any] = _new(State)
    fill_state(state, definition, leaves)
    return state


def fill_state(state: State[Any], definition: StateDef, leaves: list[Any]) -> None:
    """Makes a new State one with these leaves, whose list it takes over."""
    _set_pair(state, (definition, leaves))
    _set_rest(state, None)
    _set_state_trace(state, _trace_state.value)


def like(state: State[M], leaves: list[Any]) -> State[M]:
    """The State of the same paths and kinds with other leaves, whose list it takes over."""
    make, *rest = state._recipe
    return make(*rest, state.definition, leaves)  # type: ignore[no-any-return]  # a State, as the recipe makes


def as_state(entries: Any) -> State[Any]:
    """A State, or the one that a mapping or a FlatState stands for."""
    return entries if isinstance(entries, State) else State(entries)


def _entries_of(value: Any, path: Path) -> list[Entry]:
    """The leaves of a value at a path: those of a mapping, or the value itself."""
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
    """Pairs of path and value; raises for what is none."""
    if isinstance(flat, FlatState):
        return flat
    try:
        pairs = [(path, value) for path, value in (flat.items() if isinstance(flat, Mapping) else flat)]
    except (TypeError, ValueError):
        problem = "the argument is neither a mapping from paths nor pairs of path and value"
        raise GraphError("FlatState", problem, got=describe(flat), fix='[(("a", "b"), value)]') from None
    wrong = next((path for path, _ in pairs if not isinstance(path, (tuple, list))), MISSING)
    if wrong is not MISSING:
        raise GraphError("FlatState", "a path is a tuple of keys", got=describe(wrong), fix='("a", "b")')
    return [(tuple(path), value) for path, value in pairs]


def split_leaves(
    definition: StateDef, leaves: Sequence[Any], filters: tuple[Filter, ...], where: str, *, is_exhaustive: bool
) -> tuple[State[Any], ...]:
    """States of the leaves that each filter takes; arguments and errors as of `groups_of`."""
    groups = groups_of(definition, leaves, filters, where, is_exhaustive=is_exhaustive)
    return tuple(make_state(sub, _pick(leaves, positions)) for sub, positions in groups)


def _pick(leaves: Sequence[Any], positions: tuple[int, ...]) -> list[Any]:
    """Some of the leaves, without a step of Python for each."""
    return list(itemgetter(*positions)(leaves)) if len(positions) > 1 else [leaves[i] for i in positions]


# --- States as pytrees ----------------------------------------------------------


def _shown(state: State[Any]) -> tuple[tuple[Any, ...], Any]:
    """What JAX sees of a State; kept until somebody writes."""
    pair = state._pair
    if isinstance(state._rest, _View):
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
        return make(*rest, *sorted_pair(entries))  # type: ignore[no-any-return]  # a State
    definition, leaves, is_shown = known
    state: State[Any] = make(*rest, definition, leaves)
    if is_shown:
        state._kept().shown = state._pair, (children, keys)
    return state


def register_state(cls: type[State[Any]]) -> None:
    """Makes a class of States one of pytrees: nested dicts, with a Variable over each value that is one's."""
    is_plain = cls is State  # whose treedef knows the outermost keys only, as the peer's

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


def _flatten_flat_with_keys(flat: FlatState) -> tuple[list[tuple[Any, Any]], tuple[Path, ...]]:
    return list(zip(map(DictKey, flat.paths), flat.leaves, strict=True)), flat.paths


register_state(State)
jax.tree_util.register_pytree_with_keys(
    FlatState,
    _flatten_flat_with_keys,
    lambda paths, leaves: FlatState.from_sorted_keys_values(paths, list(leaves)),
    lambda flat: (flat.leaves, flat.paths),
)
