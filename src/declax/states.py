"""The values of a graph, apart from its structure.

Vocabulary
----------
definition: the interned part of a State: the path of each leaf and, where the
            leaf is a Variable's value, the Variable's kind and metadata.
leaf:       a raw value. Leaves are what JAX sees when it flattens a State.
pair:       the leaves and the definition: what JAX asks a State for.
view:       a Variable or a nested State that reads and writes one State.
draft:      a State from which Variables were handed out, or whose structure
            was changed; see `_state_draft`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import jax

from declax import _display, _jax
from declax._filters import Filter
from declax._flat_state import (
    FlatPairs,
    call_each,
    check_function,
    groups_of,
    leaf_def_of,
    make_flat,
    mapping_of,
    own_leaves,
    pair_of,
    pairs_of,
    raw_of,
    register_flat,
    values_of,
)
from declax._pure_dicts import Change, ReplaceFn, changes_of
from declax._state_def import StateDef
from declax._state_diff import StateDiff, compare, same_states
from declax._state_draft import (
    LOCK,
    Draft,
    Entry,
    Place,
    Tree,
    check_trace,
    map_tree,
    no_attribute,
    no_key,
    same_kind,
    sorted_pair,
)
from declax._state_splits import Splits
from declax._typing import MISSING, Key, Path
from declax._variables import set_raw
from declax.errors import GraphError, MissingAttributeError
from declax.traversals import walk_mapping

M = TypeVar("M", covariant=True)


class IterateOverKeys:
    """To a type checker a State cannot be unpacked, and so not iterated over; `State.keys()` can."""


class State(MutableMapping[Any, Any], Splits["State[M]"], Generic[M]):
    """The values of a graph by path: a nested mapping over a flat list.

    As a pytree its leaves are the raw values, in order. Reading a path gives
    a view: a nested State, or a Variable that writes back into the State.
    A State is a snapshot: what happens to the model later does not show in it.
    It is written at the trace level at which it was made, and read anywhere.

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
    """

    __slots__ = ("__weakref__", "_pair", "_rest", "_trace")

    _pair: tuple[list[Any], StateDef]
    """Set where that is all there is to know; asking for it goes to `__getattr__` otherwise."""
    _rest: Draft | Place | None
    """What else there is: a draft, or for a nested view its place."""
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
        with LOCK:
            paths, tree = self.paths, self.definition.tree
            return map_tree(tree, [self._read(path) for path in paths])

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
        changes = changes_of(definition, leaves, pure_dict, replace_fn)
        with LOCK:
            place = self._rest
            if isinstance(place, Place):
                positions = place.root._pair[1].sub(place.prefix)[1]
                place.root._apply([Change(positions[c.position], c.leaf, c.leaf_def) for c in changes])
            else:
                self._apply(changes)

    def _apply(self, changes: list[Change]) -> None:
        draft = self._rest if isinstance(self._rest, Draft) else None
        boxes = {} if draft is None else draft.boxes
        if changes:
            check_trace(self._trace, self._pair[1].paths[changes[0].position], changes[0].leaf)
        for position, leaf, leaf_def in changes:
            box = boxes.get(position)
            if box is not None and same_kind((type(box), box._metadata), leaf_def):
                set_raw(box, leaf)
            elif draft is None and same_kind(self._pair[1].leaf_defs[position], leaf_def):
                self._pair[0][position] = leaf
            else:
                draft = self._open()
                draft.put(position, leaf, leaf_def)

    # --- nested reading

    def __getitem__(self, key: Key) -> Any:
        if self._rest is None:
            leaves, definition = self._pair
            found = definition.tree.get(key, MISSING)
            if isinstance(found, int) and definition.leaf_defs[found] is None:
                return leaves[found]
        with LOCK:
            return self._read((key,))

    def _read(self, path: Path) -> Any:
        """The view at a path below this State; to be called with the lock held."""
        place = self._rest
        if isinstance(place, Place):
            root, prefix = place.root, place.prefix
        else:
            root, prefix = self, ()
        node: Any = self._tree()
        for key in path or ((),):
            parent, node = node, node.get(key, MISSING)
            if node is MISSING:
                raise no_key((*prefix, *path), key, parent)
        if isinstance(node, dict):
            return _view(root, (*prefix, *path), (root._tree(), node))
        draft = root._rest
        if draft is None:
            if root._pair[1].leaf_defs[node] is None:
                return root._pair[0][node]
            draft = root._open()
        assert isinstance(draft, Draft)  # a root has no place
        return draft.value(node, root._trace)

    def _tree(self) -> Tree:
        """The positions below this State, by key."""
        rest = self._rest
        if rest is None:
            return self._pair[1].tree
        return rest.tree

    def _open(self) -> Draft:
        """The draft of this State, which it gets if it has none; to be called with the lock held."""
        draft = self._rest
        if draft is None:
            draft = Draft(*self._pair)
            _set_rest(self, draft)
            _del_pair(self)
        assert isinstance(draft, Draft)  # only roots are opened
        return draft

    def _settled(self) -> tuple[list[Any], StateDef]:
        """The pair of a draft or a view."""
        with LOCK:
            rest = self._rest
            if rest is None:
                return self._pair
            pair = rest.settle()
            if isinstance(rest, Draft) and not rest.boxes:
                _set_pair(self, pair)
                _set_rest(self, None)
            return pair

    def __getattr__(self, name: str) -> Any:
        if name == "_pair":
            return self._settled()
        if name == "_rest" or name.startswith("__") or name not in self._tree():
            raise no_attribute(name, {} if name == "_rest" else self._tree())  # a State that is being made has no tree
        return self[name]

    def _iterate(self) -> Iterator[Any]:
        rest = self._rest
        if isinstance(rest, Draft) or (isinstance(rest, Place) and rest.root._rest is not None):
            self._settled()  # so that the order of keys does not depend on what was written last
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
        entries = _entries_of(value, (key,))
        with LOCK:
            found = self._tree().get(key, MISSING)
            place = self._rest
            root, prefix = (place.root, place.prefix) if isinstance(place, Place) else (self, ())
            check_trace(root._trace, (*prefix, key), value)
            if not isinstance(found, int) or len(entries) != 1 or len(entries[0][0]) != 1:
                below = [((*prefix, *path), leaf, leaf_def) for path, leaf, leaf_def in entries]
                root._open_for_paths((*prefix, key), below)
                return
            leaf, leaf_def = entries[0][1:]
            if root._rest is None and same_kind(root._pair[1].leaf_defs[found], leaf_def):
                root._pair[0][found] = leaf
            else:
                root._open().put(found, leaf, leaf_def)

    def _open_for_paths(self, path: Path, entries: list[Entry]) -> None:
        draft = self._rest
        if isinstance(draft, Draft):
            draft.replace(path, entries)
        else:
            draft = Draft(*self._pair)  # becomes this State's where nothing was wrong
            draft.replace(path, entries)
            _set_rest(self, draft)
            _del_pair(self)

    def __delitem__(self, key: Key) -> None:
        with LOCK:
            tree = self._tree()
            place = self._rest
            root, prefix = (place.root, place.prefix) if isinstance(place, Place) else (self, ())
            if key not in tree:
                raise no_key((*prefix, key), key, tree)
            check_trace(root._trace, (*prefix, key))
            root._open_for_paths((*prefix, key), [])

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
        return make_state(self.definition, list(self.leaves))

    def __deepcopy__(self, memo: dict[int, Any]) -> State[M]:
        return make_state(self.definition, own_leaves(self.leaves, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return make_state, (self.definition, self.leaves)


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
_del_pair = State._pair.__delete__  # type: ignore[attr-defined]  # as above
_set_rest = State._rest.__set__  # type: ignore[union-attr]  # as above
_set_trace = State._trace.__set__
_trace_state: Final = _jax.trace_state
_new = object.__new__


def make_state(definition: StateDef, leaves: list[Any]) -> State[Any]:
    """The State with these leaves, whose list it takes over."""
    state: State[Any] = _new(State)
    _set_pair(state, (leaves, definition))
    _set_rest(state, None)
    _set_trace(state, _trace_state.value)
    return state


def fill_state(state: State[Any], definition: StateDef, leaves: list[Any]) -> None:
    """Makes a new State one with these leaves, whose list it takes over."""
    _set_pair(state, (leaves, definition))
    _set_rest(state, None)
    _set_trace(state, _trace_state.value)


def _view(root: State[Any], prefix: Path, known: tuple[Tree, Tree]) -> State[Any]:
    state: State[Any] = _new(State)
    _set_rest(state, Place(root, prefix, known))
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


def _flatten_with_keys(state: State[Any]) -> tuple[list[tuple[Any, Any]], StateDef]:
    leaves, definition = state._pair
    return list(zip(definition.keys, leaves, strict=True)), definition


def _unflatten(definition: StateDef, leaves: Iterable[Any]) -> State[Any]:
    return make_state(definition, list(leaves))


# The pair is read without a frame of Python.
jax.tree_util.register_pytree_with_keys(State, _flatten_with_keys, _unflatten, attrgetter("_pair"))
register_flat(FlatState)
