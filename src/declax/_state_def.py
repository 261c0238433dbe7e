"""What States have in common: paths and kinds of leaves, and how JAX sees them.

To JAX a State is nested dicts with a Variable over each value. The Variables
there are *light*: snapshots that cannot be changed, and that JAX takes apart
without calling Python. They count as Variables of their kind:
``isinstance(light, Param)`` holds, and ``light.__class__`` is `Param`.

Vocabulary
----------
leaf definition: the kind and metadata of the Variable that a leaf belongs to;
                 None for a leaf that is no Variable's.
group:           the leaves that one filter takes.
light:           a Variable that JAX sees in a State. Its type is a subclass of
                 its kind, made for that purpose.
children:        what is at each of the outermost keys of a State: nested
                 dicts, lights and other values.
"""

from __future__ import annotations

import copyreg
import functools
import operator
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import attrgetter, is_, itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

import jax
from jax.tree_util import GetAttrKey

from declax._filters import Filter, Predicate, ask, asks_tags, is_of_kind, matches_kind, predicates_of
from declax._jax import current_trace
from declax._metadata import Metadata
from declax._read_only import ReadOnly
from declax._static import exact_types
from declax._typing import MISSING, Key, Path
from declax._variables import Variable, _set_metadata, _set_trace, fill_raw, new_variable
from declax.errors import (
    MAX_DEPTH,
    GraphError,
    MissingAttributeError,
    MissingKeyError,
    TraceContextError,
    describe,
    format_path,
    suggest,
)

_new: Final = object.__new__
_call: Any = operator.call  # its type takes no functions of several types

LeafDef = tuple[type[Variable[Any]], Metadata] | None
"""The kind and metadata of a Variable; None for a leaf that is no Variable's."""

Tree = dict[Key, Any]
"""Positions of leaves in nested dicts by key."""

Entry = tuple[Path, Any, LeafDef]
"""A path, the raw value there, and the definition of its Variable."""

_Tags = tuple[tuple[type, Any], ...]
"""Kinds of Variables, and the tag that each has as a class."""

Groups = tuple[tuple["StateDef", tuple[int, ...]], ...]
"""For each filter: the definition and the positions of the leaves that it takes."""

KEPT_GROUPS: Final = 256
"""How many answers of filters a definition keeps."""

KEPT_MERGES: Final = 64
"""How many plans of merging a definition keeps."""


class StateDef:
    """Paths and Variable kinds of a State's leaves; interned, so it compares by identity.

    Attributes:
      paths: the path of each leaf.
      leaf_defs: kind and metadata of each leaf.
    """

    __slots__ = (
        "__weakref__",
        "_columns",
        "_groups",
        "_merges",
        "_order",
        "_subs",
        "_tree",
        "fits",
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
    """How JAX sees a State; None where it has not asked. See `_nesting_of`."""
    _tree: dict[Key, Any] | None
    _groups: dict[Any, tuple[tuple[tuple[StateDef | None, tuple[int, ...]], ...], tuple[int, ...], _Tags | None]]
    _order: tuple[int, ...] | Literal[False] | None
    _subs: dict[Path, tuple[StateDef, tuple[int, ...]]]
    _columns: tuple[tuple[type[Variable[Any]], ...], tuple[Metadata, ...]] | Literal[False] | None
    _merges: dict[tuple[ref[StateDef], ...], tuple[ref[StateDef], tuple[int, ...]]]

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
                found._groups, found._merges, found._subs = {}, {}, {}
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
    def tree(self) -> dict[Key, Any]:
        """The positions of the leaves in nested dicts by key."""
        if self._tree is None:
            tree: dict[Key, Any] = {}
            for position, path in enumerate(self.paths):
                insert(tree, path, position)
            self._tree = tree
        return self._tree

    @property
    def order(self) -> tuple[int, ...] | None:
        """The position of each leaf in JAX's order, which is that of sorted keys; None where the order is the same."""
        if self._order is False:
            found = tuple(_in_order_of_jax(self.tree))
            self._order = None if found == tuple(range(len(found))) else found
        return self._order

    def position(self, path: Path) -> int | None:
        """The position of the leaf at a path, or None."""
        if not path:  # a leaf that is the root itself
            return 0 if self.paths == ((),) else None
        found: Any = self.tree
        for key in path:
            if not isinstance(found, dict) or key not in found:
                return None
            found = found[key]
        return found if isinstance(found, int) else None

    def sub(self, prefix: Path) -> tuple[StateDef, tuple[int, ...]]:
        """The definition and the positions of the leaves below a path."""
        found = self._subs.get(prefix)
        if found is None:
            size = len(prefix)
            positions = tuple(sorted(_positions_below(self.tree, prefix)))
            paths = tuple(self.paths[i][size:] for i in positions)
            definition = StateDef.of(paths, tuple(self.leaf_defs[i] for i in positions))
            found = self._subs[prefix] = (definition, positions)
        return found

    def select(self, positions: tuple[int, ...]) -> StateDef:
        """The definition of some of the leaves."""
        if len(positions) == len(self.paths):
            return self
        return StateDef.of(tuple(self.paths[i] for i in positions), tuple(self.leaf_defs[i] for i in positions))

    def with_leaf(self, position: int, leaf_def: LeafDef) -> StateDef:
        """The definition with another kind or other metadata at a position."""
        leaf_defs = list(self.leaf_defs)
        leaf_defs[position] = leaf_def
        made = StateDef.of(self.paths, tuple(leaf_defs))
        made._tree = self._tree
        return made

    def paths_below(self, prefix: Path) -> list[Path]:
        """The paths of the leaves at a path, or below it."""
        return [self.paths[i] for i in _positions_below(self.tree, prefix)]

    def merge(self, others: tuple[StateDef, ...]) -> tuple[StateDef, tuple[int, ...]]:
        """The definition of one State of all leaves, in order, and where each comes from; the last one wins.

        Raises:
          GraphError: for paths that contradict each other.
        """
        key = tuple(map(ref, others))
        known = self._merges.get(key)
        merged = known[0]() if known is not None else None
        if known is not None and merged is not None:
            return merged, known[1]
        definitions = (self, *others)
        paths = [path for definition in definitions for path in definition.paths]
        leaf_defs = [leaf_def for definition in definitions for leaf_def in definition.leaf_defs]
        taken = in_order(list({path: i for i, path in enumerate(paths)}.items()))
        order = tuple(i for _, i in taken)
        merged = StateDef.of(tuple(path for path, _ in taken), tuple(leaf_defs[i] for i in order))
        merged.tree  # noqa: B018  # raises for paths that contradict each other
        if len(self._merges) >= KEPT_MERGES:
            self._merges.clear()
        self._merges[key] = (ref(merged), order)  # weak: the merged one may know this one as a part
        return merged, order

    def group(
        self, filters: tuple[Filter, ...], leaves: Sequence[Any], where: str = ""
    ) -> tuple[Groups, tuple[int, ...]]:
        """The leaves that each filter takes, and those that none takes.

        What depends on kinds and paths only is computed once.

        Args:
          filters: the filters.
          leaves: the raw value of each leaf.
          where: the function that took the filters, for errors.

        Raises:
          FilterError: for what is no filter.
        """
        key = (filters, exact_types(filters))  # True is a filter, and 1 is none
        try:
            found = self._groups.get(key)
        except TypeError:  # a filter that cannot be hashed is asked again each time
            return self._group(filters, leaves, where)[:2]
        if found is not None and (found[2] is None or _still_hold(found[2])):
            return tuple((sub or self, positions) for sub, positions in found[0]), found[1]
        groups, rest, is_lasting = self._group(filters, leaves, where)
        if is_lasting:
            if len(self._groups) >= KEPT_GROUPS:
                self._groups.clear()  # a program that makes a new function for each call would fill it
            # without itself, which would be a cycle that waits for the collector
            kept = tuple((None if sub is self else sub, positions) for sub, positions in groups)
            is_by_tag = any(map(asks_tags, predicates_of(filters, where)))
            self._groups[key] = (kept, rest, self._class_tags() if is_by_tag else None)
        return groups, rest

    def _class_tags(self) -> _Tags:
        """The tags that the kinds of Variables have as classes, now."""
        kinds = dict.fromkeys(leaf_def[0] for leaf_def in self.leaf_defs if leaf_def is not None)
        return tuple([(kind, getattr(kind, "tag", None)) for kind in kinds])

    def _group(
        self, filters: tuple[Filter, ...], leaves: Sequence[Any], where: str
    ) -> tuple[Groups, tuple[int, ...], bool]:
        predicates = predicates_of(filters, where)
        taken: list[list[int]] = [[] for _ in predicates]
        rest: list[int] = []
        if all(map(is_of_kind, predicates)):
            self._group_by_kind(predicates, taken, rest)
            return tuple((self.select(tuple(group)), tuple(group)) for group in taken), tuple(rest), True
        is_lasting = True
        for position in range(len(self.paths)):
            for group, predicate in zip(taken, predicates, strict=True):
                answer, needs_value = _matches(predicate, self, position, leaves)
                is_lasting &= not needs_value
                if answer:
                    group.append(position)
                    break
            else:
                rest.append(position)
        groups = tuple((self.select(tuple(group)), tuple(group)) for group in taken)
        return groups, tuple(rest), is_lasting

    def _group_by_kind(self, predicates: Sequence[Predicate], taken: list[list[int]], rest: list[int]) -> None:
        """Puts each leaf where the first of its kind goes."""
        places: dict[type | None, list[int]] = {}
        for position, leaf_def in enumerate(self.leaf_defs):
            kind = None if leaf_def is None else leaf_def[0]
            place = places.get(kind)
            if place is None:
                pairs = zip(predicates, taken, strict=True)
                place = next((group for predicate, group in pairs if matches_kind(predicate, (), kind)), rest)
                places[kind] = place
            place.append(position)


def _still_hold(tags: _Tags) -> bool:
    """Whether kinds have the same tags as before."""
    for kind, tag in tags:
        now = getattr(kind, "tag", None)
        if now is not tag and now != tag:
            return False
    return True


def _matches(predicate: Predicate, definition: StateDef, position: int, leaves: Sequence[Any]) -> tuple[bool, bool]:
    """Whether a predicate takes a leaf, and whether that depends on the leaf's value."""
    path, leaf_def, leaf = definition.paths[position], definition.leaf_defs[position], leaves[position]
    kind, tag = (None, None) if leaf_def is None else (leaf_def[0], leaf_def[1].get("tag"))
    decided = matches_kind(predicate, path, kind, tag)
    if decided is not None:
        return decided, False
    value = leaf if leaf_def is None else new_variable(leaf_def[0], leaf, leaf_def[1], None)
    return ask(predicate, path, value), True


def _positions_below(tree: dict[Key, Any], prefix: Path) -> list[int]:
    """The positions of the leaves at a path, or below it."""
    found: Any = tree
    for key in prefix:
        found = found.get(key) if isinstance(found, dict) else None
    if found is None:
        return []
    positions, nodes = [], [found]
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict):
            nodes.extend(node.values())
        else:
            positions.append(node)
    return positions


def are_sortable(keys: Iterable[Any]) -> bool:
    """Whether JAX can sort the keys of a dict."""
    try:
        sorted(keys)
    except TypeError:
        return False
    return True


def _in_order_of_jax(tree: Tree) -> Iterator[int]:
    levels = [iter([tree])]
    while levels:
        found: Any = next(levels[-1], None)
        if found is None:
            levels.pop()
        elif isinstance(found, dict):
            levels.append(iter([found[key] for key in (sorted(found) if are_sortable(found) else found)]))
        else:
            yield found


def insert(tree: dict[Key, Any], path: Path, position: int) -> None:
    """Puts a position at a path of a tree.

    Raises:
      GraphError: where the path goes through a leaf, or something is there.
    """
    *parents, last = path or ((),)
    for depth, key in enumerate(parents):
        tree = tree.setdefault(key, {})
        if not isinstance(tree, dict):
            raise GraphError(format_path(path), f"a path goes through the leaf at {format_path(path[: depth + 1])}")
    if last in tree:
        raise GraphError(format_path(path), "two leaves have the same path, or one lies inside of the other")
    tree[last] = position


def in_order(found: Iterable[tuple[Path, int]]) -> list[tuple[Path, int]]:
    """Paths in the order that the walk of a graph has, so that equal ones are one structure."""
    listed = list(found)
    try:
        return sorted(listed, key=lambda leaf: leaf[0])
    except TypeError:  # keys of several types
        pass
    try:
        return sorted(listed, key=lambda leaf: [_rank(key) for key in leaf[0]])
    except TypeError:  # keys of a type without an order stay as they come
        return listed


def _rank(key: Any) -> tuple[int, str, Any]:
    """Numbers come first, and texts last."""
    if isinstance(key, str):
        return 2, "", key
    return (0, "", key) if isinstance(key, (int, float)) else (1, type(key).__name__, key)


def sorted_pair(entries: Sequence[Entry], *, is_sorted: bool = False) -> tuple[StateDef, list[Any]]:
    """A definition and leaves in the order of the paths, so that equal ones are one structure.

    Raises:
      GraphError: for paths that contradict each other.
    """
    if not is_sorted:
        entries = [entries[i] for _, i in in_order([(entry[0], i) for i, entry in enumerate(entries)])]
    definition = StateDef.of(tuple(entry[0] for entry in entries), tuple(entry[2] for entry in entries))
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


_SNAPSHOT: Final = ReadOnly(
    "what JAX sees of a State",
    why="it is a snapshot: neither the State nor a model would see the change",
    fix="state[key] = value, or variable.copy() for a Variable that can be changed",
)


class ValueKey(GetAttrKey):  # type: ignore[misc]  # a class of jaxlib, which has no types
    """The last key of a Variable's value in a State; equal to JAX's key of an attribute `value`."""


_VALUE: Final = ValueKey("value")


# --- light Variables ------------------------------------------------------------


class LightVariable:
    """Comes before their kind among the bases of lights."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        """Nothing that a kind does for its subclasses."""


class Light(NamedTuple):
    """How lights of a kind are made.

    Attributes:
      cls: their type.
      fill: puts what JAX asks for into a new one: ``((value,), metadata)``.
    """

    cls: type[Any]
    fill: Callable[[Any, tuple[tuple[Any], Metadata]], None]


_lights: Final[dict[type[Variable[Any]], Light]] = {}


def _light_of(kind: type[Variable[Any]]) -> Light:
    """How lights of a kind are made."""
    found = _lights.get(kind)
    return _lights.setdefault(kind, _make_light(kind)) if found is None else found


def _make_light(kind: type[Variable[Any]]) -> Light:
    content = {
        "__slots__": ("_flat",),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "__class__": property(lambda light: kind),
        "_trace": _SNAPSHOT,
    }
    metaclass: Any = type(kind)
    cls = _type_of_lights(metaclass)(kind.__name__, (LightVariable, kind), content)
    light = Light(cls, cls.__dict__["_flat"].__set__)

    def unflatten(metadata: Metadata, children: Any) -> Any:
        return _new_light(light, children, metadata)

    def flatten_with_keys(variable: Any) -> tuple[tuple[tuple[Any, Any]], Metadata]:
        (value,), metadata = variable._flat
        return ((_VALUE, value),), metadata

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, attrgetter("_flat"))
    return light


@functools.cache
def _type_of_lights(metaclass: type) -> Any:
    """The metaclass of lights of kinds with a metaclass: one of their own, which tells pickle how to find them."""
    made = type(metaclass.__name__, (metaclass,), {})
    copyreg.pickle(made, lambda cls: (_light_class, (cls.__bases__[1],)))
    return made


def _light_class(kind: type[Variable[Any]]) -> type[Any]:
    """The type of lights of a kind."""
    return _light_of(kind).cls


def _new_light(light: Light, children: tuple[Any], metadata: Metadata) -> Any:
    made = _new(light.cls)
    light.fill(made, (children, metadata))
    fill_raw(made, children[0])
    _set_metadata(made, metadata)
    return made


# --- how a State is nested --------------------------------------------------------


class OuterKeys(tuple[Key, ...]):
    """The outermost keys of a State, as its treedef has them: equal for equal keys, whatever lies below.

    Attributes:
      definition: a reference to the definition that a State with these keys is likely to have.
      are_paths: whether each is a whole path, since JAX cannot take apart what is nested as deeply.
    """

    definition: ref[StateDef]
    are_paths: bool

    def __reduce__(self) -> tuple[Any, ...]:
        return _outer_keys, (tuple(self), self.are_paths)


def _outer_keys(keys: tuple[Key, ...], are_paths: bool) -> OuterKeys:
    """Outermost keys as those of a State whose definition is gone."""
    made = OuterKeys(keys)
    made.definition, made.are_paths = ref(StateDef.of((), ())), are_paths
    return made


class Nesting(NamedTuple):
    """How JAX sees the States of one definition.

    Attributes:
      keys: the outermost ones, in JAX's order.
      tree: a PyTreeDef of nested dicts, whose leaves are those of the State.
      types: of the light of each leaf, in the State's order; None where not all leaves are of Variables.
      fills: what fills each light; see `Light`.
    """

    keys: OuterKeys
    tree: Any
    types: list[type[Any]] | None
    fills: list[Callable[[Any, tuple[tuple[Any], Metadata]], None]]


def _nesting_of(definition: StateDef) -> Nesting:
    """How JAX sees States of a definition; found at first use."""
    found: Nesting | None = definition.nesting
    if found is None:
        is_deep = max(map(len, definition.paths), default=0) > MAX_DEPTH
        nested = OrderedDict(_by_path(definition)) if is_deep else _sortable(definition.tree)
        tree = jax.tree_util.tree_structure(nested)
        keys = OuterKeys(nested if isinstance(nested, OrderedDict) else sorted(nested))
        keys.definition, keys.are_paths = ref(definition), is_deep
        columns = definition.columns
        lights = [] if columns is None else list(map(_light_of, columns[0]))
        types = None if columns is None else [light.cls for light in lights]
        found = definition.nesting = Nesting(keys, tree, types, [light.fill for light in lights])
    return found


def _by_path(definition: StateDef) -> Iterator[tuple[Path, int]]:
    order = range(len(definition.paths)) if definition.order is None else definition.order
    return ((definition.paths[position], position) for position in order)


def _sortable(tree: Any) -> Any:
    """Nested dicts that JAX can take apart: it sorts their keys, except for those of an OrderedDict."""
    if not isinstance(tree, dict):
        return tree
    made = {key: _sortable(below) for key, below in tree.items()}
    return made if are_sortable(made) else OrderedDict(made)


Children = tuple[tuple[Any, ...], OuterKeys]
"""What is at each outermost key, and the keys."""


def children_of(definition: StateDef, leaves: Sequence[Any]) -> Children:
    """What JAX sees of a State."""
    nesting = _nesting_of(definition)
    shown = _shown(definition, nesting, leaves)
    if definition.order is not None:
        shown = [shown[i] for i in definition.order]
    nested = nesting.tree.unflatten(shown)
    return tuple(map(nested.__getitem__, nesting.keys)), nesting.keys


def _shown(definition: StateDef, nesting: Nesting, leaves: Sequence[Any]) -> list[Any]:
    """A light for each leaf that is a Variable's, and the other leaves as they are."""
    if nesting.types is None:
        pairs = zip(definition.leaf_defs, leaves, strict=True)
        return [leaf if kind is None else _new_light(_light_of(kind[0]), (leaf,), kind[1]) for kind, leaf in pairs]
    assert definition.columns is not None  # as for `types`
    metadata = definition.columns[1]
    shown: list[Any] = list(map(_new, nesting.types))  # without a frame of Python for each
    deque(map(_call, nesting.fills, shown, zip(zip(leaves), metadata)), 0)  # noqa: B905  # quicker
    deque(map(fill_raw, shown, leaves), 0)
    deque(map(_set_metadata, shown, metadata), 0)
    return shown


_flat_of = attrgetter("_flat")


def pair_from(keys: OuterKeys, children: Sequence[Any]) -> tuple[StateDef, list[Any], bool] | None:
    """The definition and the leaves of the State that JAX makes anew.

    Args:
      keys: as `children_of` gave them.
      children: what is at each of them now.

    Returns:
      None where the paths are others than before; otherwise also whether the
      children are what JAX would see of the State.
    """
    definition = keys.definition()
    found = None if definition is None else _found(definition, dict(zip(keys, children, strict=True)))
    if definition is None or found is None:
        return None
    leaves = _leaves_of_lights(definition, found)
    if leaves is not None:
        return definition, leaves, True
    pair = pair_of(definition, found)
    return None if pair is None else (*pair, False)


def _found(definition: StateDef, nested: dict[Any, Any]) -> list[Any] | None:
    nesting = _nesting_of(definition)
    try:
        found: list[Any] = nesting.tree.flatten_up_to(nested)
    except ValueError:
        return None
    return found if definition.order is None else in_state_order(definition.order, found)


def in_state_order(order: Sequence[int], found: Iterable[Any]) -> list[Any]:
    """Leaves in the order of a State, from those in JAX's order."""
    by_position = dict(zip(order, found, strict=True))
    return [by_position[i] for i in range(len(order))]


def _leaves_of_lights(definition: StateDef, found: list[Any]) -> list[Any] | None:
    """The values in lights, if these have the kinds and the metadata of a definition."""
    types = _nesting_of(definition).types
    if types is None or definition.columns is None or list(map(type, found)) != types:
        return None
    flat = list(map(_flat_of, found))
    if not all(map(is_, map(itemgetter(1), flat), definition.columns[1])):
        return None
    return [value for (value,), _ in flat]


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


# --- errors ---------------------------------------------------------------------

NAMED: Final = 20
"""How many keys an error names, and up to how many times ten a "did you mean" looks through."""


def no_key(path: Path, key: Key, tree: Tree) -> MissingKeyError:
    """The error of a path at which a State has nothing, given what it has beside it."""
    hint = nearest(str(key), tree)
    names = [str(name) for name in list(tree)[:NAMED]]
    more = [f"and {len(tree) - NAMED} more"] if len(tree) > NAMED else []
    return MissingKeyError(
        format_path(path),
        "the State has nothing at this path" + (f"; {hint}" if hint else ""),
        expected=", ".join([*names, *more]) or "nothing: the State is empty",
    )


def no_attribute(name: str, tree: Tree) -> MissingAttributeError:
    """The error of a name that a State does not have, given what it has."""
    hint = nearest(name, tree)
    problem = "the State has no such attribute or entry" + (f"; {hint}" if hint else "")
    return MissingAttributeError(f"State.{name}", problem)


def check_trace(mark: Any, path: Path, value: Any = MISSING) -> None:
    """Checks that a State of this mark may be written at a path, or deleted there.

    Raises:
      TraceContextError: the State belongs to another trace.
    """
    if current_trace() is not mark:
        raise TraceContextError(
            format_path(path),
            "a State was changed from another trace level than its own",
            got="a deletion" if value is MISSING else describe(value),
            why="the change would happen once, while JAX traces, and a tracer would leak into the State",
            fix="pass the State to the transformed function as an argument, or change a copy: copy.copy(state)",
        )


def nearest(name: str, tree: Tree) -> str | None:
    """A "did you mean" for a key, where there are not too many to compare it with."""
    return suggest(name, map(str, tree)) if len(tree) <= 10 * NAMED else None
