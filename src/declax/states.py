"""The values of a graph, apart from its structure.

Vocabulary
----------
definition: the interned part of a State: the path of each leaf and, where the
            leaf is a Variable's value, the Variable's kind and metadata.
leaf:       a raw value.
pair:       the leaves and the definition.
root:       a State that has leaves of its own.
view:       a nested State, or a Variable, that shows what is at a path of a
            root. A write to a view is a write to the root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, overload
from weakref import WeakValueDictionary

import jax
from jax.tree_util import DictKey

from declax import _display, _epoch, _jax
from declax._filters import Filter
from declax._read_only import WritesThrough
from declax._state_def import (
    Entry,
    LeafDef,
    OuterKeys,
    StateDef,
    Tree,
    check_trace,
    children_of,
    in_state_order,
    leaf_def_of,
    map_tree,
    no_attribute,
    no_key,
    pair_from,
    pair_of,
    raw_of,
    same_kind,
    sorted_pair,
    values_of,
)
from declax._state_values import (
    FlatPairs,
    ReplaceFn,
    StateDiff,
    call_each,
    changes_of,
    check_function,
    compare,
    groups_of,
    make_flat,
    mapping_of,
    own_leaves,
    pairs_of,
    register_flat,
    same_states,
)
from declax._typing import MISSING, Key, Path, Tuple2, Tuple3, Tuple4
from declax._variables import Variable, _set_metadata, _set_trace, new_variable, set_raw
from declax.errors import DeclaxError, GraphError, LayerError, MissingAttributeError, format_path
from declax.traversals import walk_mapping

M = TypeVar("M", covariant=True)
S = TypeVar("S")


class Splits(Generic[S]):
    """The methods `split` and `filter` of a State; `S` is what they give."""

    __slots__ = ()

    if TYPE_CHECKING:

        def _parts(self, filters: tuple[Filter, ...], where: str, *, is_exhaustive: bool) -> tuple[S, ...]: ...

    @overload
    def split(self, a: Filter, /) -> S: ...
    @overload
    def split(self, a: Filter, b: Filter, /) -> Tuple2[S]: ...
    @overload
    def split(self, a: Filter, b: Filter, c: Filter, /) -> Tuple3[S]: ...
    @overload
    def split(self, a: Filter, b: Filter, c: Filter, d: Filter, /) -> Tuple4[S]: ...
    @overload
    def split(self, a: Filter, /, *filters: Filter) -> Any: ...
    def split(self, a: Filter, /, *filters: Filter) -> Any:
        """States of the leaves that each filter takes.

        Raises:
          FilterError: for leaves that no filter takes.

        >>> from declax.states import State
        >>> numbers, rest = State({"a": 1, "b": "text"}).split(int, ...)
        >>> numbers.to_pure_dict(), rest.to_pure_dict()
        ({'a': 1}, {'b': 'text'})
        """
        found = self._parts((a, *filters), "State.split", is_exhaustive=True)
        return found if filters else found[0]

    @overload
    def filter(self, a: Filter, /) -> S: ...
    @overload
    def filter(self, a: Filter, b: Filter, /) -> Tuple2[S]: ...
    @overload
    def filter(self, a: Filter, b: Filter, c: Filter, /) -> Tuple3[S]: ...
    @overload
    def filter(self, a: Filter, b: Filter, c: Filter, d: Filter, /) -> Tuple4[S]: ...
    @overload
    def filter(self, a: Filter, /, *filters: Filter) -> Any: ...
    def filter(self, a: Filter, /, *filters: Filter) -> Any:
        """As `split`, leaving out what no filter takes."""
        found = self._parts((a, *filters), "State.filter", is_exhaustive=False)
        return found if filters else found[0]


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

    >>> from declax._variables import Param
    >>> state = State({"linear": {"kernel": Param(1.0)}})
    >>> state["linear"]["kernel"].value, state.linear.kernel.value
    (1.0, 1.0)
    >>> jax.tree.leaves(state)
    [1.0]
    >>> jax.tree.map(lambda v: type(v).__name__, state, is_leaf=lambda x: isinstance(x, Param)).to_pure_dict()
    {'linear': {'kernel': 'Param'}}
    """

    __slots__ = ("__weakref__", "_pair", "_rest", "_trace")

    _pair: tuple[list[Any], StateDef]
    """Another tuple after each write. A nested view has none: asking for it goes to `__getattr__`."""
    _rest: _Kept | _Place | None
    """Of a root what is kept with it, if anything; of a nested view, its place."""
    _trace: Any
    """The mark of the trace that may write; a nested view has none of its own."""

    def __init__(self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = ()) -> None:
        if isinstance(entries, FlatPairs):
            fill_state(self, *entries.pair)
        else:
            fill_state(self, *sorted_pair(_entries_of(mapping_of(entries), ())))

    # --- flat reading

    @property
    def definition(self) -> StateDef:
        """The interned description of the State."""
        return self._pair[1]

    @property
    def paths(self) -> tuple[Path, ...]:
        """The path of each leaf."""
        return self._pair[1].paths

    @property
    def leaves(self) -> list[Any]:
        """The raw value of each leaf, in the order of `paths`; the State's own list, which is not to be changed."""
        return self._pair[0]

    def flat_state(self) -> FlatState:
        """The pairs of path and value, in order.

        >>> State({"a": {"b": 1}}).flat_state()
        FlatState([(('a', 'b'), 1)])
        """
        leaves, definition = self._pair
        return make_flat(FlatState, definition.paths, values_of(definition, leaves))

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
        if isinstance(flat, FlatPairs):
            return make_state(*flat.pair)
        entries = [e for path, value in pairs_of(flat, "from_flat_path") for e in _entries_of(value, path)]
        return make_state(*sorted_pair(entries))

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
        leaves, definition = self._pair
        if extract_fn is None:
            return map_tree(definition.tree, leaves)
        check_function("State.to_pure_dict", extract_fn, "value")
        extracted = call_each("State.to_pure_dict", lambda _, value: extract_fn(value), definition, leaves)
        return map_tree(definition.tree, extracted)

    @property
    def raw_mapping(self) -> dict[Any, Any]:
        """Nested dicts with what reading each path gives: Variables that write into the State, and other values."""
        root, prefix = self._root()
        paths, tree = self.paths, self.definition.tree
        return map_tree(tree, [root._value(path) for path in ((*prefix, *path) for path in paths)])

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

        >>> from declax._variables import Param
        >>> state = State({"a": {"b": Param(1.0)}})
        >>> state.replace_by_pure_dict({"a": {"b": 2.0}})
        >>> state.a.b.value
        2.0
        """
        leaves, definition = self._pair
        root, prefix = self._root()
        changes = changes_of(definition, leaves, pure_dict, replace_fn)
        if changes:
            check_trace(root._trace, (*prefix, *definition.paths[changes[0].position]), changes[0].leaf)
        for position, leaf, leaf_def in changes:
            root._put((*prefix, *definition.paths[position]), leaf, leaf_def)

    # --- nested reading

    def _root(self) -> tuple[State[Any], Path]:
        """The State that has the leaves, and the path of this one in it."""
        place = self._rest
        return (place.root, place.prefix) if isinstance(place, _Place) else (self, ())

    def _tree(self) -> Tree:
        """The positions of the root's leaves below this State, by key; nothing where the root has no mapping there."""
        root, prefix = self._root()
        found: Any = root._pair[1].tree
        for key in prefix:
            found = found.get(key)
            if not isinstance(found, dict):
                return {}
        return found  # type: ignore[no-any-return]  # a dict, as just seen

    def __getitem__(self, key: Key) -> Any:
        tree = self._tree()
        found = tree.get(key, MISSING)
        root, prefix = self._root()
        if found is MISSING:
            raise no_key((*prefix, key), key, tree)
        if isinstance(found, dict):
            return _view(root, (*prefix, key))
        return root._value((*prefix, key))

    def _value(self, path: Path) -> Any:
        """What a root has at the path of a leaf: a view of a Variable, or a value."""
        leaves, definition = self._pair
        position = definition.position(path)
        assert position is not None  # the caller has found it
        leaf_def = definition.leaf_defs[position]
        if leaf_def is None:
            return leaves[position]
        views = self._kept().views
        view = views.get(path)
        if view is None:
            view = views.setdefault(path, new_variable(leaf_def[0], leaves[position], leaf_def[1], _Entry(self, path)))
        return view

    def _kept(self) -> _Kept:
        kept = self._rest
        if kept is None:
            kept = _Kept()
            _set_rest(self, kept)
        assert isinstance(kept, _Kept)  # a root has no place
        return kept

    def __getattr__(self, name: str) -> Any:
        if name == "_pair" and isinstance(self._rest, _Place):
            leaves, definition = self._rest.root._pair
            own, positions = definition.sub(self._rest.prefix) if self._tree() else (StateDef.of((), ()), ())
            return [leaves[i] for i in positions], own
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
        return sorted(
            {*super().__dir__(), *(key for key in self._tree() if isinstance(key, str) and key.isidentifier())}
        )

    # --- nested writing

    def __setitem__(self, key: Key, value: Any) -> None:
        root, prefix = self._root()
        path = (*prefix, key)
        check_trace(root._trace, path, value)
        if isinstance(value, Variable) and value._trace == _Entry(root, path):
            return  # the view that is there: `state.bias += 1` has written to it
        entries = _entries_of(value, path)
        if len(entries) == 1 and entries[0][0] == path and isinstance(self._tree().get(key), int):
            root._detach(path)
            root._put(*entries[0])
        else:
            root._replace_below(path, entries)

    def _put(self, path: Path, leaf: Any, leaf_def: LeafDef) -> None:
        """Writes a leaf of a root, and the view of it if there is one."""
        leaves, definition = self._pair
        position = definition.position(path)
        if position is None:
            raise no_key(path, path[-1], {})
        if not same_kind(definition.leaf_defs[position], leaf_def):
            definition = definition.with_leaf(position, leaf_def)
        leaves[position] = leaf
        _set_pair(self, (leaves, definition))
        view = self._rest.views.get(path) if isinstance(self._rest, _Kept) else None
        if view is None:
            return
        if leaf_def is None or leaf_def[0] is not view.__class__:
            self._detach(path)
        else:
            set_raw(view, leaf)
            if leaf_def[1] is not view._metadata:
                _set_metadata(view, leaf_def[1])
                _epoch.advance()

    def _replace_below(self, path: Path, entries: list[Entry]) -> None:
        """Replaces all leaves of a root that are at a path or below it by others, which are at it or below."""
        leaves, definition = self._pair
        node: Any = definition.tree
        for depth, key in enumerate(path[:-1], 1):
            node = node.get(key, {})
            if not isinstance(node, dict):
                raise GraphError(format_path(path), f"a path goes through the leaf at {format_path(path[:depth])}")
        new = {entry[0]: entry for entry in entries}
        old = set(definition.paths_below(path))
        all_leaves = zip(definition.paths, leaves, definition.leaf_defs, strict=True)
        found = [new.pop(entry[0], entry) for entry in all_leaves if entry[0] in new or entry[0] not in old]
        pair = sorted_pair([*found, *new.values()], is_sorted=not new)
        self._detach(path)
        _set_pair(self, pair[::-1])

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
            raise no_key((*prefix, key), key, tree)
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

    def clear(self) -> None:
        """Takes out all entries."""
        for key in list(self._tree()):
            del self[key]

    # --- comparing, and whole States

    def __eq__(self, other: object) -> bool:
        if isinstance(other, State):
            return same_states(self._pair, other._pair)
        if not isinstance(other, Mapping):
            return NotImplemented
        try:
            return same_states(self._pair, State(other)._pair)
        except GraphError:  # no State can be made of it
            return False

    __hash__ = None  # type: ignore[assignment]  # mutable

    def diff(self, other: State[Any] | Mapping[Any, Any], /) -> StateDiff:
        """How another State differs from this one: paths, kinds, metadata, shapes, dtypes and values.

        The result is empty exactly where the two are equal. ``state - other``
        is another question: the leaves at paths that only ``state`` has.

        Args:
          other: a State, or nested mappings to make one of.

        >>> State({"a": 1, "b": 2}).diff({"a": 1, "b": 3})
        StateDiff(
          b: value: 2 -> 3
        )
        """
        return compare(self._pair, _as_state(other)._pair)

    def __sub__(self, other: Any) -> State[M]:
        if not isinstance(other, Mapping):
            return NotImplemented
        leaves, definition = self._pair
        known = set(_as_state(other).paths)
        positions = tuple(i for i, path in enumerate(definition.paths) if path not in known)
        return make_state(definition.select(positions), [leaves[i] for i in positions])

    def _parts(self, filters: tuple[Filter, ...], where: str, *, is_exhaustive: bool) -> tuple[State[M], ...]:
        return split_leaves(self._pair[1], self._pair[0], filters, where, is_exhaustive=is_exhaustive)

    @staticmethod
    def merge(first: State[Any] | Mapping[Any, Any], /, *states: State[Any] | Mapping[Any, Any]) -> State[Any]:
        """One State with the leaves of all; the last one wins.

        Raises:
          GraphError: where one has a leaf and another one a mapping.

        >>> State.merge(State({"a": 1, "b": 2}), {"b": 3}).to_pure_dict()
        {'a': 1, 'b': 3}
        """
        pairs = [_as_state(state)._pair for state in (first, *states)]
        definition, order = pairs[0][1].merge(tuple(other for _, other in pairs[1:]))
        leaves: list[Any] = []
        for some, _ in pairs:
            leaves.extend(some)
        return make_state(definition, [leaves[i] for i in order])

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
        check_function("State.map", f, "path, value")
        leaves, definition = self._pair
        pair = pair_of(definition, mapped := call_each("State.map", f, definition, leaves))
        if pair is None:
            return State.from_flat_path(zip(definition.paths, mapped, strict=True))
        return make_state(*pair)

    def __repr__(self) -> str:
        return _display.state_repr(self)

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        return _display.treescope_repr(self, path, subtree_renderer)

    def __copy__(self) -> State[M]:
        return like(self, list(self.leaves))

    def __deepcopy__(self, memo: dict[int, Any]) -> State[M]:
        return like(self, own_leaves(self.leaves, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        make, *rest = self._recipe
        return make, (*rest, self.definition, self.leaves)

    @property
    def _recipe(self) -> tuple[Any, ...]:
        """What makes a State like this, and what it takes before a definition and leaves."""
        return (make_state,)


class _Kept:
    """What is kept with a root.

    Attributes:
      shown: the pair that JAX has last asked for, and what it sees of it.
      views: the Variables that show a leaf, by path, as long as somebody has them.
    """

    __slots__ = ("shown", "views")

    def __init__(self) -> None:
        self.shown: tuple[Any, Any] = None, None
        self.views: WeakValueDictionary[Path, Variable[Any]] = WeakValueDictionary()


class _Place(NamedTuple):
    """Where a nested view is.

    Attributes:
      root: the State that has the leaves.
      prefix: the path there.
    """

    root: State[Any]
    prefix: Path


class _Entry(WritesThrough):
    """The mark of a Variable that shows a leaf of a State.

    Args:
      root: the State.
      path: of the leaf.
    """

    __slots__ = ("_path", "_root")

    def __init__(self, root: State[Any], path: Path) -> None:
        self._root = root
        self._path = path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Entry) and other._root is self._root and other._path == self._path

    __hash__ = None  # type: ignore[assignment]  # nobody looks one up

    @property
    def trace(self) -> Any:
        """The mark of the trace of the State."""
        return self._root._trace

    def write(self, variable: Any, method: str, *args: Any, **options: Any) -> None:
        """Does what a method of the Variable would do, to the State."""
        check_trace(self._root._trace, self._path, variable)
        written = new_variable(variable.__class__, variable.raw_value, variable._metadata, _trace_state.value)
        getattr(written, method)(*args, **options)
        self._root._put(self._path, written.raw_value, (variable.__class__, written._metadata))

    def refusal(self, where: str) -> DeclaxError:
        """The error of a write that a transform or an update would do."""
        return LayerError(
            where,
            f"this shows {format_path(self._path)} of a State, and only code outside of transforms writes to it",
            why="the State would not see what a transform writes",
            fix="variable.copy()      # a Variable of its own, for the model",
        )


class FlatState(FlatPairs):
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

    __slots__ = ()

    def to_nested_state(self) -> State[Any]:
        """The State with these values, in this order.

        Raises:
          GraphError: for paths that contradict each other.
        """
        return State.from_flat_path(self)


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
    _set_pair(state, (leaves, definition))
    _set_rest(state, None)
    _set_state_trace(state, _trace_state.value)


def like(state: State[M], leaves: list[Any]) -> State[M]:
    """The State of the same paths and kinds with other leaves, whose list it takes over."""
    make, *rest = state._recipe
    return make(*rest, state.definition, leaves)  # type: ignore[no-any-return]  # a State, as the recipe makes


def _view(root: State[Any], prefix: Path) -> State[Any]:
    state: State[Any] = _new(State)
    _set_rest(state, _Place(root, prefix))
    return state


def _as_state(entries: State[Any] | Mapping[Any, Any]) -> State[Any]:
    return entries if isinstance(entries, State) else State(entries)


def _entries_of(value: Any, path: Path) -> list[Entry]:
    """The leaves of a value at a path: those of a mapping, or the value itself."""
    if isinstance(value, State):
        leaves, definition = value._pair
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
    if isinstance(state._rest, _Place):
        return children_of(state._pair[1], state._pair[0])
    pair, kept = state._pair, state._kept()
    known, found = kept.shown
    if known is not pair:
        found = children_of(pair[1], pair[0])
        kept.shown = pair, found
    return found  # type: ignore[no-any-return]  # what `children_of` gives


def _from_shown(recipe: tuple[Any, ...], keys: OuterKeys, children: Sequence[Any]) -> State[Any]:
    make, *rest = recipe
    known = pair_from(keys, children)
    if known is None:
        paths: Any = keys if keys.are_paths else zip(keys, strict=True)
        pairs = zip(paths, children, strict=True)
        return make(*rest, *sorted_pair([e for path, child in pairs for e in _entries_of(child, path)]))  # type: ignore[no-any-return]  # a State
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
        children, keys = _shown(state)
        return list(zip(map(DictKey, keys), children, strict=True)), keys if is_plain else (state._recipe, keys)

    def unflatten(static: Any, children: Any) -> State[Any]:
        recipe, keys = ((make_state,), static) if is_plain else static
        return _from_shown(recipe, keys, children)

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)


class FlatForm:
    """A State as the library takes it apart: its leaves as JAX orders them, all at one level.

    JAX makes the State of it.
    """

    __slots__ = ("_state",)

    def __init__(self, state: State[Any]) -> None:
        self._state = state


def _flatten_form(form: FlatForm) -> tuple[list[Any], tuple[Any, ...]]:
    leaves, definition = form._state._pair
    order = definition.order
    return leaves if order is None else [leaves[i] for i in order], (*form._state._recipe, definition)


def _flatten_form_with_keys(form: FlatForm) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
    leaves, static = _flatten_form(form)
    paths = static[-1].paths
    ordered = paths if static[-1].order is None else [paths[i] for i in static[-1].order]
    keys = [DictKey(path[0] if _is_simple(path) else path) for path in ordered]
    return list(zip(keys, leaves, strict=True)), static


def _is_simple(path: Path) -> bool:
    return len(path) == 1 and not isinstance(path[0], tuple)


def _unflatten_form(static: tuple[Any, ...], leaves: Iterable[Any]) -> Any:
    make, *rest = static
    order = rest[-1].order
    return make(*rest, list(leaves) if order is None else in_state_order(order, leaves))


register_state(State)
jax.tree_util.register_pytree_with_keys(FlatForm, _flatten_form_with_keys, _unflatten_form, _flatten_form)
register_flat(FlatState)
