"""The static half of a State: the path of each leaf, and kind and metadata where it is the value of a Variable.

Functions of a definition and a list of leaves: filters, equality, nested dicts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from operator import is_, itemgetter
from typing import Any, ClassVar, Final, TypeVar
from weakref import WeakKeyDictionary

from declax._fields.interning import Interned, Shared
from declax._fields.snapshots import exact_types
from declax._filters import ON_KIND, ON_PLACE, ON_TAG, Filter, Predicate, as_written, ask, dependency_of, predicates_of
from declax._jax import current_trace
from declax._tree.statuses import same_value
from declax._typing import MISSING, Key, Path
from declax._variables.metadata import Metadata
from declax._variables.variable import Variable, new_variable, new_variables
from declax.errors import (
    FilterError,
    GraphError,
    MissingAttributeError,
    MissingKeyError,
    TraceContextError,
    describe,
    format_path,
    note_path,
    suggest,
)
from declax.traversals import walk_mapping

LeafDef = tuple[type[Variable[Any]], Metadata] | None
"""The kind and metadata of a Variable; None for a leaf that is in no Variable."""

D = TypeVar("D", bound=dict[Any, Any])

Tree = dict[Key, Any]
"""Positions of leaves in nested dicts by key."""

Entry = tuple[Path, Any, LeafDef]
"""A path, the raw value there, and the definition of its Variable."""

NAMED: Final = 20
"""How many keys an error names; suggestions look through ten times as many."""
KEPT_GROUPS: Final = 256
"""The number of filter results that a definition keeps."""

Groups = tuple[tuple["StateDef", tuple[int, ...]], ...]
"""For each filter: the definition and the positions of the leaves that it takes."""


class StateDef(Shared):
    """Paths and Variable kinds of a State's leaves; interned, so it compares by identity.

    Attributes:
      paths: the path of each leaf.
      leaf_defs: kind and metadata of each leaf.
      empty: the paths of mappings without a leaf, which deletion leaves.
    """

    _interned: ClassVar[Interned[StateDef]] = Interned()

    paths: tuple[Path, ...]
    leaf_defs: tuple[LeafDef, ...]
    empty: tuple[Path, ...]
    fits: WeakKeyDictionary[StateDef, Any]
    """How States of other definitions go into one of this; see `_graph.fit`."""
    nesting: Any
    """How JAX sees a State; None before JAX asks. See `tree.nesting_of`."""
    groups: dict[Any, Any]
    """Which leaves filters take; see `groups_of`."""
    _subs: dict[Path, tuple[StateDef, tuple[int, ...]]]

    @staticmethod
    def of(paths: tuple[Path, ...], leaf_defs: tuple[LeafDef, ...], empty: tuple[Path, ...] = ()) -> StateDef:
        """The definition with these paths and kinds; always the same object."""

        def make() -> StateDef:
            made = object.__new__(StateDef)
            made.paths, made.leaf_defs, made.empty = paths, leaf_defs, empty
            made.nesting, made.groups, made._subs = None, {}, {}
            made.fits = WeakKeyDictionary()
            return made

        return StateDef._interned.find_or_make((paths, leaf_defs, empty), make)

    def __repr__(self) -> str:
        return f"StateDef({len(self.paths)} leaves)"

    def __reduce__(self) -> tuple[Any, ...]:
        return StateDef.of, (self.paths, self.leaf_defs, self.empty)

    @cached_property
    def columns(self) -> tuple[tuple[type[Variable[Any]], ...], tuple[Metadata, ...]] | None:
        """The kinds and the metadata of the leaves; None unless all are of Variables."""
        known = [leaf_def for leaf_def in self.leaf_defs if leaf_def is not None]
        if len(known) < len(self.leaf_defs):
            return None
        return tuple([kind for kind, _ in known]), tuple([metadata for _, metadata in known])

    @cached_property
    def tree(self) -> Tree:
        """The positions of the leaves in nested dicts by key; raises for paths that contradict each other."""
        tree: Tree = {}
        for position, path in enumerate(self.paths):
            *parents, last = path or ((),)
            node = tree
            for depth, key in enumerate(parents, 1):
                node = node.setdefault(key, {})
                if not isinstance(node, dict):
                    raise GraphError(format_path(path), f"a path goes through the leaf at {format_path(path[:depth])}")
            if last in node:
                raise GraphError(format_path(path), "two leaves have the same path, or one lies inside of the other")
            node[last] = position
        for path in self.empty:
            functools.reduce(lambda node, key: node.setdefault(key, {}), path, tree)
        return tree

    @cached_property
    def order(self) -> tuple[int, ...] | None:
        """The position of each leaf in JAX's order, which is that of sorted keys; None if the order is the same."""
        found = tuple(_positions_in(self.tree))
        return None if found == tuple(range(len(found))) else found

    def in_jax_order(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """Leaves, or their paths, in JAX's order."""
        return leaves if self.order is None else [leaves[i] for i in self.order]

    def from_jax_order(self, found: Iterable[Any]) -> list[Any]:
        """Leaves in the order of the State, from those in JAX's order."""
        if self.order is None:
            return list(found)
        by_position = dict(zip(self.order, found, strict=True))
        return [by_position[i] for i in range(len(self.order))]

    def node(self, path: Path) -> Any:
        """The entry of the tree at a path: the position of a leaf, a dict, or None."""
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
            found = self._subs[prefix] = (self.select(positions, len(prefix)), positions)
        return found

    def select(self, positions: tuple[int, ...], depth: int = 0) -> StateDef:
        """The definition of some of the leaves, with paths below a depth."""
        if not depth and len(positions) == len(self.paths) and not self.empty:
            return self
        paths = tuple([self.paths[i][depth:] for i in positions])
        return StateDef.of(paths, tuple([self.leaf_defs[i] for i in positions]))

    def with_leaf(self, position: int, leaf_def: LeafDef) -> StateDef:
        """The definition with another kind or other metadata at a position."""
        leaf_defs = list(self.leaf_defs)
        leaf_defs[position] = leaf_def
        made = StateDef.of(self.paths, tuple(leaf_defs), self.empty)
        vars(made).setdefault("tree", self.tree)  # the same, since the paths are
        return made

    def why_missing(self, path: Path) -> str:
        """The reason why there is no leaf at a path, with a suggestion."""
        node: Any = self.tree
        for key in path:
            if not isinstance(node, dict) or key not in node:
                return no_such_path(key, node if isinstance(node, dict) else {})
            node = node[key]
        return f"this is not a leaf but a node with {names_of(node)}"


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


def sorted_pair(
    entries: Sequence[Entry], *, is_sorted: bool = False, empty: tuple[Path, ...] = ()
) -> tuple[StateDef, list[Any]]:
    """A definition and leaves in the order of the paths, so that equal States have one definition."""
    if not is_sorted:
        try:
            entries = sorted(entries, key=itemgetter(0))
        except TypeError:  # keys of several types
            with suppress(TypeError):  # keys of a type without an order stay as they come
                entries = sorted(entries, key=lambda entry: [_rank(key) for key in entry[0]])
    definition = StateDef.of(tuple([entry[0] for entry in entries]), tuple([entry[2] for entry in entries]), empty)
    definition.tree  # noqa: B018  # raises for paths that contradict each other
    return definition, [entry[1] for entry in entries]


def empty_after(definition: StateDef, path: Path, emptied: Path, paths: Iterable[Path]) -> tuple[Path, ...]:
    """The mappings without a leaf once the leaves at a path and below it are others, so that all have these paths."""
    found = {*(one for one in definition.empty if one[: len(path)] != path), emptied} - {()}
    outer = {one[:depth] for one in (*paths, *found) for depth in range(len(one))}
    return tuple(sorted(found - outer, key=lambda one: [_rank(key) for key in one]))


# --- leaves and Variables ------------------------------------------------------


def raw_of(value: Any) -> Any:
    """The raw value of a Variable; another value as it is."""
    return value.raw_value if isinstance(value, Variable) else value


def leaf_def_of(value: Any) -> LeafDef:
    """The kind and metadata of a Variable; None for another value."""
    return (value.__class__, value._metadata) if isinstance(value, Variable) else None


def values_of(definition: StateDef, leaves: Sequence[Any]) -> list[Any]:
    """The leaves as values, with new Variables."""
    trace_token = current_trace()
    columns = definition.columns
    if columns is not None:
        return new_variables(columns[0], leaves, columns[1], trace_token)
    return [
        leaf if leaf_def is None else new_variable(leaf_def[0], leaf, leaf_def[1], trace_token)
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
        definition = StateDef.of(definition.paths, tuple(leaf_defs), definition.empty)
    return definition, leaves


def call_each(where: str, f: Callable[..., Any], paths: Sequence[Path], arguments: Iterable[Any]) -> list[Any]:
    """The results of a user's function for the arguments at each path; its errors get a note with the path."""
    if not callable(f):
        raise GraphError(where, "this argument must be a function", got=describe(f), fix=f"{where}(function)")
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


def map_tree(tree: Tree, values: Sequence[Any], make: type[D]) -> D:
    """Nested dicts, of one class, with the value at each position."""
    made = make()
    open_levels = [(tree, made)]
    while open_levels:
        source, target = open_levels.pop()
        for key, value in source.items():
            if isinstance(value, dict):
                target[key] = inner = make()
                open_levels.append((value, inner))
            else:
                target[key] = values[value]
    return made


# --- filters ----------------------------------------------------------------------


def groups_of(
    definition: StateDef, leaves: Sequence[Any], filters: tuple[Filter, ...], where: str, *, is_exhaustive: bool
) -> Groups:
    """The leaves that each filter takes; computed once if it depends on kinds and paths only."""
    groups, rest = _known_groups(definition, leaves, filters, where)
    if rest and is_exhaustive:
        first, *more = rest
        others = f", nor {len(more)} other{'s' if len(more) > 1 else ''}" if more else ""
        written = list(map(as_written, filters))
        raise FilterError(
            f"{where}, {format_path(definition.paths[first])}",
            f"no filter matches this leaf{others}",
            got=describe(values_of(definition, leaves)[first]),
            expected=", ".join(written),
            fix=", ".join([*written, "..."]) + "   # a last filter `...` takes the rest",
        )
    return groups


def _known_groups(
    definition: StateDef, leaves: Sequence[Any], filters: tuple[Filter, ...], where: str
) -> tuple[Groups, tuple[int, ...]]:
    """The leaves that each filter takes, and those that none takes."""
    key = (filters, exact_types(filters))  # True is a filter, and 1 is not
    try:
        found = definition.groups.get(key)
    except TypeError:  # a filter that cannot be hashed is asked again each time
        return _groups(definition, leaves, predicates_of(filters, where))[:2]
    if found is not None:
        return tuple((sub or definition, positions) for sub, positions in found[0]), found[1]
    groups, rest, is_lasting = _groups(definition, leaves, predicates_of(filters, where))
    if is_lasting:
        if len(definition.groups) >= KEPT_GROUPS:
            definition.groups.clear()  # a program that makes a new function for each call would fill it
        # without itself, which would be a cycle that waits for the collector
        kept = tuple((None if sub is definition else sub, positions) for sub, positions in groups)
        definition.groups[key] = (kept, rest)
    return groups, rest


def _groups(
    definition: StateDef, leaves: Sequence[Any], predicates: Sequence[Predicate]
) -> tuple[Groups, tuple[int, ...], bool]:
    """The groups, the leaves that no filter matches, and whether the result holds for other values."""
    taken: list[list[int]] = [[] for _ in predicates]
    rest: list[int] = []
    dependency = dependency_of(*predicates)
    groups_by_kind: dict[type | None, list[int]] = {}
    for position, (path, leaf_def) in enumerate(zip(definition.paths, definition.leaf_defs, strict=True)):
        kind = None if leaf_def is None else leaf_def[0]
        group = groups_by_kind.get(kind) if dependency == ON_KIND else None  # one leaf decides for all of its kind
        if group is None:
            leaf = leaves[position]
            value = leaf if leaf_def is None else new_variable(leaf_def[0], leaf, leaf_def[1], None)
            pairs = zip(taken, predicates, strict=True)
            group = next((some for some, predicate in pairs if ask(predicate, path, value)), rest)
            groups_by_kind[kind] = group
        group.append(position)
    is_lasting = dependency <= (ON_PLACE if None in definition.leaf_defs else ON_TAG)
    return tuple((definition.select(tuple(some)), tuple(some)) for some in taken), tuple(rest), is_lasting


# --- equality -------------------------------------------------------------------


def same_states(definition: StateDef, leaves: Sequence[Any], other: StateDef, others: Sequence[Any]) -> bool:
    """Whether two States have equal leaves at the same paths, in whatever order."""
    if definition is not other:
        if set(definition.empty) != set(other.empty):
            return False
        positions = {path: i for i, path in enumerate(other.paths)}
        if positions.keys() != set(definition.paths):
            return False
        order = [positions[path] for path in definition.paths]
        if definition.leaf_defs != tuple([other.leaf_defs[i] for i in order]):
            return False
        others = [others[i] for i in order]
    return all(map(same_value, leaves, others))


# --- nested dicts of raw values -------------------------------------------------


def match_pure_dict(definition: StateDef, pure_dict: Mapping[Any, Any]) -> list[tuple[int, Any]]:
    """The position in a State and the value of each leaf of a pure dict."""

    def is_leaf(path: Path, mapping: Mapping[Any, Any]) -> bool:
        return not isinstance(definition.node(path), dict)

    found: list[tuple[int, Any]] = []
    faults: list[str] = []
    for path, value, is_empty in walk_mapping(pure_dict, is_leaf, "replace_by_pure_dict"):
        node = definition.node(path)
        if isinstance(node, int):
            found.append((node, value))
        elif node is None:
            faults.append(f"{format_path(path)}: {no_such_path(path[-1], definition.node(path[:-1]))}")
        elif not is_empty:
            faults.append(f"{format_path(path)}: expected a mapping of {names_of(node)}, got {describe(value)}")
    if faults:
        count = f"{len(faults)} path{'s' if len(faults) > 1 else ''}"
        problem = f"the values do not fit the State at {count}, and nothing was changed"
        raise GraphError("replace_by_pure_dict", problem, got="\n".join(faults))
    return found


# --- errors ---------------------------------------------------------------------


def no_such_path(key: Key, tree: Mapping[Any, Any]) -> str:
    """The text of an error for a missing key, with a suggestion."""
    if isinstance(key, str) and key.isdecimal() and int(key) in tree:
        return f"there is no such path; the key is the integer {int(key)}: dx.restore_int_paths(...)"
    for separator in "./" if isinstance(key, str) else "":
        if str(key).partition(separator)[0] in tree:
            fix = f"dx.traversals.unflatten_mapping(values, sep={separator!r})"
            return f"there is no such path; the key joins several: {fix}"
    hint = suggest(str(key), map(str, tree)) if len(tree) <= 10 * NAMED else None
    return "there is no such path" + (f"; {hint}" if hint else "")


def names_of(tree: Mapping[Any, Any]) -> str:
    """The keys that there are, for an error."""
    names = [str(name) for name in list(tree)[:NAMED]]
    return ", ".join([*names, f"and {len(tree) - NAMED} more"] if len(tree) > NAMED else names)


def no_key(path: Path, tree: Tree) -> MissingKeyError:
    """The error of a missing path of a State, given the keys beside it."""
    expected = names_of(tree) or "nothing: the State is empty"
    return MissingKeyError(format_path(path), no_such_path(path[-1], tree), expected=expected)


def no_attribute(name: str, tree: Tree) -> MissingAttributeError:
    """The error of a missing name of a State, given its keys."""
    return MissingAttributeError(f"State.{name}", no_such_path(name, tree))


def check_trace(trace_token: Any, path: Path, value: Any = MISSING) -> None:
    """Checks that a State of this trace may be written at a path, or deleted there."""
    if current_trace() is not trace_token:
        raise TraceContextError(
            format_path(path),
            "a State was changed from another trace level than its own",
            got="a deletion" if value is MISSING else describe(value),
            why="the change would happen once, while JAX traces, and a tracer would leak into the State",
            fix="pass the State to the transformed function as an argument, or change a copy: copy.copy(state)",
        )
