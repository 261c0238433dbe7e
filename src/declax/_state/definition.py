"""The static half of a State: the path of each leaf and, where a leaf is a Variable's value, the Variable's kind."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal
from weakref import WeakKeyDictionary, WeakValueDictionary

import jax

from declax._jax import current_trace
from declax._tree.rendering import same_value
from declax._typing import MISSING, Key, Path
from declax._variables.metadata import Metadata
from declax._variables.variable import Variable, _set_metadata, _set_trace, fill_raw, new_variable
from declax.errors import (
    GraphError,
    MissingAttributeError,
    MissingKeyError,
    TraceContextError,
    describe,
    format_path,
    note_path,
    suggest,
    type_name,
)

LeafDef = tuple[type[Variable[Any]], Metadata] | None
"""The kind and metadata of a Variable; None for a leaf that is no Variable's."""

Tree = dict[Key, Any]
"""Positions of leaves in nested dicts by key."""

Entry = tuple[Path, Any, LeafDef]
"""A path, the raw value there, and the definition of its Variable."""

NAMED: Final = 20
"""How many keys an error names, and up to how many times ten a "did you mean" looks through."""

_new: Final = object.__new__


class StateDef:
    """Paths and Variable kinds of a State's leaves; interned, so it compares by identity.

    Attributes:
      paths: the path of each leaf.
      leaf_defs: kind and metadata of each leaf.
    """

    __slots__ = (
        "__weakref__",
        "_columns",
        "_order",
        "_subs",
        "_tree",
        "fits",
        "groups",
        "leaf_defs",
        "nesting",
        "paths",
    )
    _interned: ClassVar[WeakValueDictionary[Any, StateDef]] = WeakValueDictionary()
    _lock: ClassVar[threading.RLock] = threading.RLock()

    paths: tuple[Path, ...]
    leaf_defs: tuple[LeafDef, ...]
    fits: WeakKeyDictionary[StateDef, Any]
    """How States of other definitions go into one of this; see `graph.fit`."""
    nesting: Any
    """How JAX sees a State; None where it has not asked. See `_state_tree.nesting_of`."""
    _tree: Tree | None
    groups: dict[Any, Any]
    """Which leaves filters take; see `_state_groups.groups_of`."""
    _order: tuple[int, ...] | Literal[False] | None
    _subs: dict[Path, tuple[StateDef, tuple[int, ...]]]
    _columns: tuple[tuple[type[Variable[Any]], ...], tuple[Metadata, ...]] | Literal[False] | None

    @staticmethod
    def of(paths: tuple[Path, ...], leaf_defs: tuple[LeafDef, ...]) -> StateDef:
        """The definition with these paths and kinds; always the same object."""
        key = (paths, leaf_defs)
        with StateDef._lock:
            found = StateDef._interned.get(key)
            if found is None:
                found = object.__new__(StateDef)
                found.paths, found.leaf_defs = key
                found._tree = found.nesting = None
                found._columns = found._order = False
                found.groups, found._subs = {}, {}
                found.fits = WeakKeyDictionary()
                StateDef._interned[key] = found
        return found

    if TYPE_CHECKING:

        def __hash__(self) -> int: ...
    else:
        __hash__ = object.__hash__  # no frame of Python: interned, and asked by every treedef

    def __repr__(self) -> str:
        return f"StateDef({len(self.paths)} leaves)"

    def __reduce__(self) -> tuple[Any, ...]:
        return StateDef.of, (self.paths, self.leaf_defs)

    def __copy__(self) -> StateDef:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> StateDef:
        return self

    @property
    def columns(self) -> tuple[tuple[type[Variable[Any]], ...], tuple[Metadata, ...]] | None:
        """The kinds and the metadata of the leaves; None where not all are of Variables."""
        if self._columns is False:
            known = [leaf_def for leaf_def in self.leaf_defs if leaf_def is not None]
            is_all = len(known) == len(self.leaf_defs)
            self._columns = (tuple([d[0] for d in known]), tuple([d[1] for d in known])) if is_all else None
        return self._columns

    @property
    def tree(self) -> Tree:
        """The positions of the leaves in nested dicts by key."""
        if self._tree is None:
            tree: Tree = {}
            for position, path in enumerate(self.paths):
                _insert(tree, path, position)
            self._tree = tree
        return self._tree

    @property
    def order(self) -> tuple[int, ...] | None:
        """The position of each leaf in JAX's order, which is that of sorted keys; None where the order is the same."""
        if self._order is False:
            found = tuple(_positions_in(self.tree))
            self._order = None if found == tuple(range(len(found))) else found
        return self._order

    def node(self, path: Path) -> Any:
        """What the tree has at a path: the position of a leaf, a dict, or None."""
        found: Any = self.tree
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        return found

    def position(self, path: Path) -> int | None:
        """The position of the leaf at a path, or None."""
        found = self.node(path or ((),))  # a leaf that is the root itself is at ()
        return found if isinstance(found, int) else None

    def sub(self, prefix: Path) -> tuple[StateDef, tuple[int, ...]]:
        """The definition and the positions of the leaves below a path."""
        found = self._subs.get(prefix)
        if found is None:
            node = self.node(prefix)
            positions = tuple(sorted(_positions_in(node))) if isinstance(node, dict) else ()
            paths = tuple([self.paths[i][len(prefix) :] for i in positions])
            definition = StateDef.of(paths, tuple([self.leaf_defs[i] for i in positions]))
            found = self._subs[prefix] = (definition, positions)
        return found

    def select(self, positions: tuple[int, ...]) -> StateDef:
        """The definition of some of the leaves."""
        if len(positions) == len(self.paths):
            return self
        return StateDef.of(tuple([self.paths[i] for i in positions]), tuple([self.leaf_defs[i] for i in positions]))

    def with_leaf(self, position: int, leaf_def: LeafDef) -> StateDef:
        """The definition with another kind or other metadata at a position."""
        leaf_defs = list(self.leaf_defs)
        leaf_defs[position] = leaf_def
        made = StateDef.of(self.paths, tuple(leaf_defs))
        made._tree = self._tree
        return made

    def why_missing(self, path: Path) -> str:
        """For an error: why there is no leaf at a path, and which one may be meant."""
        node: Any = self.tree
        for key in path:
            if not isinstance(node, dict) or key not in node:
                return no_such_path(key, node if isinstance(node, dict) else {})
            node = node[key]
        return f"this is no leaf, but a node with {names_of(node)}"


def _insert(tree: Tree, path: Path, position: int) -> None:
    *parents, last = path or ((),)
    for depth, key in enumerate(parents, 1):
        tree = tree.setdefault(key, {})
        if not isinstance(tree, dict):
            raise GraphError(format_path(path), f"a path goes through the leaf at {format_path(path[:depth])}")
    if last in tree:
        raise GraphError(format_path(path), "two leaves have the same path, or one lies inside of the other")
    tree[last] = position


def are_sortable(keys: Iterable[Any]) -> bool:
    """Whether JAX can sort the keys of a dict."""
    try:
        sorted(keys)
    except TypeError:
        return False
    return True


def _positions_in(tree: Tree) -> Iterator[int]:
    """The positions in a tree, in JAX's order."""
    levels = [iter([tree])]
    while levels:
        found: Any = next(levels[-1], None)
        if found is None:
            levels.pop()
        elif isinstance(found, dict):
            levels.append(iter([found[key] for key in (sorted(found) if are_sortable(found) else found)]))
        else:
            yield found


def _rank(key: Any) -> tuple[int, str, Any]:
    """Numbers come first, and texts last."""
    if isinstance(key, str):
        return 2, "", key
    return (0, "", key) if isinstance(key, (int, float)) else (1, type(key).__name__, key)


def sorted_pair(entries: Sequence[Entry], *, is_sorted: bool = False) -> tuple[StateDef, list[Any]]:
    """A definition and leaves in the order of the paths, so that equal ones are one structure."""
    if not is_sorted:
        try:
            entries = sorted(entries, key=itemgetter(0))
        except TypeError:  # keys of several types
            with suppress(TypeError):  # keys of a type without an order stay as they come
                entries = sorted(entries, key=lambda entry: [_rank(key) for key in entry[0]])
    definition = StateDef.of(tuple([entry[0] for entry in entries]), tuple([entry[2] for entry in entries]))
    definition.tree  # noqa: B018  # raises for paths that contradict each other
    return definition, [entry[1] for entry in entries]


# --- leaves and Variables ------------------------------------------------------


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


def call_each(where: str, f: Callable[..., Any], paths: Sequence[Path], arguments: Iterable[Any]) -> list[Any]:
    """What the function of a user gives for the arguments at each path; an error of it tells the path."""
    if not callable(f):
        raise GraphError(where, "this argument has to be a function", got=describe(f), fix=f"{where}(function)")
    results: list[Any] = []
    try:
        for given in arguments:
            results.append(f(*given))  # noqa: PERF401  # `extend` would take a StopIteration of f for the end
    except Exception as error:
        note_path(error, f"the function given to {where}", paths[len(results)])
        raise
    return results


def same_kind(a: LeafDef, b: LeafDef) -> bool:
    """Whether two leaves are of one kind, with the same metadata."""
    return a is b or (a is not None and b is not None and a[0] is b[0] and a[1] is b[1])


def map_tree(tree: Tree, values: Sequence[Any]) -> dict[Any, Any]:
    """Nested dicts with the value at each position."""
    made: dict[Any, Any] = {}
    open_levels = [(tree, made)]
    while open_levels:
        source, target = open_levels.pop()
        for key, value in source.items():
            if isinstance(value, dict):
                inner: dict[Any, Any] = {}
                target[key] = inner
                open_levels.append((value, inner))
            else:
                target[key] = values[value]
    return made


# --- equality -------------------------------------------------------------------


def same_states(definition: StateDef, leaves: Sequence[Any], other: StateDef, others: Sequence[Any]) -> bool:
    """Whether two States have equal leaves at the same paths, in whatever order."""
    if definition is not other:
        places = {path: i for i, path in enumerate(other.paths)}
        order = [places.get(path) for path in definition.paths]
        kinds = zip(definition.leaf_defs, order, strict=True)
        if len(order) != len(places) or not all(i is not None and other.leaf_defs[i] == kind for kind, i in kinds):
            return False
        others = [others[i] for i in order if i is not None]
    return all(_same_leaf(a, b) for a, b in zip(leaves, others, strict=True) if a is not b)


def _same_leaf(a: Any, b: Any) -> bool:
    """Whether two leaves are equal; arrays by value, whatever they are nested in."""
    if not (isinstance(a, (dict, list, tuple)) or isinstance(b, (dict, list, tuple))):
        return same_value(a, b)
    structures: list[Any] = [jax.tree.structure(x) for x in (a, b)]
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=False)
    return structures[0] == structures[1] and all(x is y or same_value(x, y) for x, y in pairs)


# --- nested dicts of raw values -------------------------------------------------


def match_pure_dict(
    definition: StateDef, leaves: Sequence[Any], pure_dict: Mapping[Any, Any], *, checks_shapes: bool
) -> list[tuple[int, Any]]:
    """The position in a State and the value of each leaf of a pure dict."""
    if not isinstance(pure_dict, Mapping):
        problem, fix = "the argument is no nested mapping of values", "state.to_pure_dict() makes one"
        raise GraphError("replace_by_pure_dict", problem, got=describe(pure_dict), fix=fix)
    faults: list[str] = []
    found = list(_match(definition, pure_dict, faults))
    if checks_shapes:
        misfits = [(i, _misfit(leaves[i], definition.leaf_defs[i], new)) for i, new in found]
        faults += [f"{format_path(definition.paths[i])}: {misfit}" for i, misfit in misfits if misfit]
    if faults:
        count = f"{len(faults)} path{'s' if len(faults) > 1 else ''}"
        problem = f"the values do not fit the State at {count}, and nothing was changed"
        raise GraphError("replace_by_pure_dict", problem, got="\n".join(faults))
    return found


def _match(definition: StateDef, pure_dict: Mapping[Any, Any], faults: list[str]) -> Iterator[tuple[int, Any]]:
    keys: list[Key] = []
    levels: list[tuple[Tree, Iterator[tuple[Any, Any]]]] = [(definition.tree, iter(pure_dict.items()))]
    while levels:
        node, items = levels[-1]
        for key, value in items:
            found = node.get(key)
            if isinstance(found, int):
                yield found, value
            elif found is None:
                faults.append(f"{format_path((*keys, key))}: {no_such_path(key, node)}")
            elif isinstance(value, Mapping):
                keys.append(key)
                levels.append((found, iter(value.items())))
                break
            else:
                misfit = f"expected a mapping of {names_of(found)}, got {describe(value)}"
                faults.append(f"{format_path((*keys, key))}: {misfit}")
        else:
            levels.pop()
            if keys:
                keys.pop()


def _misfit(old: Any, leaf_def: LeafDef, value: Any) -> str | None:
    """Why a value cannot take the place of a leaf, or None."""
    if isinstance(value, Variable) and (leaf_def is None or leaf_def[0] is not type(value)):
        kind = "in no Variable" if leaf_def is None else f"of {type_name(leaf_def[0])}"
        return f"expected a value {kind}, got {describe(value)}"
    new = raw_of(value)
    structures: list[Any] = [jax.tree.structure(x) for x in (old, new)]
    shapes = zip(map(_shape, jax.tree.leaves(old)), map(_shape, jax.tree.leaves(new)), strict=False)
    if structures[0] == structures[1] and all(a == b or a is None or b is None for a, b in shapes):
        return None
    return f"expected {jax.tree.map(describe, old)}, got {jax.tree.map(describe, new)}"


def _shape(leaf: Any) -> tuple[int, ...] | None:
    if isinstance(leaf, (int, float, complex)):
        return ()
    shape = getattr(leaf, "shape", None)
    return shape if isinstance(shape, tuple) else None


# --- errors ---------------------------------------------------------------------


def no_such_path(key: Key, tree: Mapping[Any, Any]) -> str:
    """For an error: that there is nothing under a key, and what may be meant of what there is."""
    if isinstance(key, str) and key.isdecimal() and int(key) in tree:
        return f"there is no such path; the key is the integer {int(key)}: dx.restore_int_paths(...)"
    hint = suggest(str(key), map(str, tree)) if len(tree) <= 10 * NAMED else None
    return "there is no such path" + (f"; {hint}" if hint else "")


def names_of(tree: Mapping[Any, Any]) -> str:
    """The keys that there are, for an error."""
    names = [str(name) for name in list(tree)[:NAMED]]
    return ", ".join([*names, f"and {len(tree) - NAMED} more"] if len(tree) > NAMED else names)


def no_key(path: Path, tree: Tree) -> MissingKeyError:
    """The error of a path at which a State has nothing, given what it has beside it."""
    expected = names_of(tree) or "nothing: the State is empty"
    return MissingKeyError(format_path(path), no_such_path(path[-1], tree), expected=expected)


def no_attribute(name: str, tree: Tree) -> MissingAttributeError:
    """The error of a name that a State does not have, given what it has."""
    return MissingAttributeError(f"State.{name}", no_such_path(name, tree))


def check_trace(mark: Any, path: Path, value: Any = MISSING) -> None:
    """Checks that a State of this mark may be written at a path, or deleted there."""
    if current_trace() is not mark:
        raise TraceContextError(
            format_path(path),
            "a State was changed from another trace level than its own",
            got="a deletion" if value is MISSING else describe(value),
            why="the change would happen once, while JAX traces, and a tracer would leak into the State",
            fix="pass the State to the transformed function as an argument, or change a copy: copy.copy(state)",
        )
