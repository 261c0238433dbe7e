"""Takes Variables out of graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, overload

from declax._classes.pytree import delete_attribute
from declax._filters import Filter, Predicate, ask, is_of_kind, predicates_of
from declax._graph.binding import not_a_tree
from declax._graph.graph_state import refuse_state
from declax._graph.nodes import Kind, children_of, enter_container, kind_of
from declax._graph.updating import place_of
from declax._modes import is_graph
from declax._state.definition import StateDef
from declax._state.states import State, make_state
from declax._tree.layout import LAYOUT_KEY
from declax._tree.links import Link, path_of
from declax._typing import Tuple2, Tuple3, Tuple4
from declax._variables.variable import Variable
from declax.errors import FilterError

N = TypeVar("N")


@overload
def pop(node: N, a: Filter, /, *, graph: bool | None = None) -> State[N]: ...
@overload
def pop(node: N, a: Filter, b: Filter, /, *, graph: bool | None = None) -> Tuple2[State[N]]: ...
@overload
def pop(node: N, a: Filter, b: Filter, c: Filter, /, *, graph: bool | None = None) -> Tuple3[State[N]]: ...
@overload
def pop(node: N, a: Filter, b: Filter, c: Filter, d: Filter, /, *, graph: bool | None = None) -> Tuple4[State[N]]: ...
@overload
def pop(node: Any, a: Filter, /, *filters: Filter, graph: bool | None = None) -> Any: ...
def pop(node: Any, /, *filters: Filter, graph: bool | None = None) -> Any:
    """Takes Variables out of a graph, wherever it refers to them.

    Args:
      node: a model, or a container of models.
      *filters: which Variables; at least one. The first that takes a Variable
        has it.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Returns:
      The State with the Variables, or one for each filter.

    Raises:
      FilterError: where no filter is given.
      GraphError: for a Variable in a tuple or in a frozen node; nothing is
        changed.
      TraceContextError: for a node of another trace level; nothing is changed.

    >>> from declax._module.module import Module
    >>> from declax._variables.variable import Intermediate
    >>> m = Module()
    >>> _ = m.sow(Intermediate, "seen", 1)
    >>> pop(m, Intermediate)["seen"].value, hasattr(m, "seen")
    ((1,), False)
    """
    if not filters:
        raise FilterError("pop", "no filter says what to take", fix="dx.pop(model, dx.Intermediate)")
    refuse_state("pop", node)
    search = _Search(predicates_of(filters, "pop"), is_tree=not is_graph(graph))
    search.run(node)
    places = [place_of(above, path_of(link), depth) for above, link, depth in search.places.values()]
    states = tuple(_state_of([found for found in search.found if found[2] == i]) for i in range(len(filters)))
    _remove(places)
    return states if len(filters) > 1 else states[0]


_Found = tuple[Variable[Any], Link, int]
"""A Variable, where it was found first, and the place of the filter that takes it."""


class _Search:
    """The Variables that filters take, in the order of the graph, and all places that refer to them.

    A place is known by owner and key: the node above, the link, and how many containers are between them.
    """

    def __init__(self, predicates: tuple[Predicate, ...], *, is_tree: bool) -> None:
        self.found: list[_Found] = []
        self.places: dict[tuple[int, Any], tuple[Any, Link, int]] = {}
        self._predicates = predicates
        self._asks_kind_only = all(map(is_of_kind, predicates))
        self._group_of_class: dict[type, int] = {}
        self._skipped: set[type] = set()  # classes whose values do not go through the stack
        self._seen_of_tree: dict[int, Link] | None = {} if is_tree else None

    def run(self, root: Any) -> None:
        """Searches all below a node."""
        seen: set[int] = set()
        taken: dict[int, bool] = {}
        skipped = self._skipped
        # with each value the one that holds it, the node above it, its link, and the containers around it
        stack: list[tuple[Any, Any, Any, Link, tuple[int, ...]]] = [(root, None, root, None, ())]
        while stack:
            value, owner, above, link, within = stack.pop()
            kind = kind_of(value)
            if self._seen_of_tree is not None and kind in _IDENTIFIED:
                if id(value) in self._seen_of_tree:
                    raise not_a_tree(path_of(self._seen_of_tree[id(value)]), path_of(link))
                self._seen_of_tree[id(value)] = link
            if kind is _VARIABLE:
                if self._takes(value, link, taken) and link is not None:
                    self.places[id(owner), link[1]] = (above, link, len(within))
                continue
            if kind in _LEAVES:
                if kind is not Kind.REF:
                    skipped.add(value.__class__)
                continue
            if kind is Kind.CONTAINER:  # a value, which has no identity
                within = enter_container(value, within)
            elif id(value) in seen:
                continue
            else:
                seen.add(id(value))
                above, within = value, ()
            attributes, names = _inside(value, kind)
            for name in names:
                child = attributes[name]
                if child.__class__ not in skipped:
                    stack.append((child, value, above, (link, name), within))

    def _takes(self, variable: Variable[Any], link: Link, taken: dict[int, bool]) -> bool:
        """Whether the filters take a Variable; they are asked where it is met first."""
        is_meant = taken.get(id(variable))
        if is_meant is None:
            group = self._group_of_class.get(variable.__class__)
            if group is None:
                group = self._ask(variable, link)
            is_meant = taken[id(variable)] = group != _NOT_MEANT
            if is_meant:
                self.found.append((variable, link, group))
        return is_meant

    def _ask(self, variable: Variable[Any], link: Link) -> int:
        """The place of the first filter that takes a Variable, or -1; kept where all ask for its kind only."""
        path = () if self._asks_kind_only else path_of(link)
        group = next((i for i, predicate in enumerate(self._predicates) if ask(predicate, path, variable)), _NOT_MEANT)
        if self._asks_kind_only:
            self._group_of_class[variable.__class__] = group
            if group == _NOT_MEANT and self._seen_of_tree is None:
                self._skipped.add(variable.__class__)
        return group


def _inside(value: Any, kind: Kind) -> tuple[Mapping[Any, Any], Sequence[Any]]:
    """What a node or container holds, by key; and the keys of its children, last one first."""
    if kind is Kind.NODE:
        attributes: dict[Any, Any] = value.__dict__
        return attributes, (attributes.get(LAYOUT_KEY) or value._pytree__layout).data_names[::-1]
    children = dict(children_of(value))
    return children, tuple(reversed(children))


_NOT_MEANT = -1
_VARIABLE = Kind.VARIABLE
_LEAVES = frozenset({Kind.LEAF, Kind.REF, Kind.STATIC})
_NODES = frozenset({Kind.NODE, Kind.OBJECT})
_IDENTIFIED = frozenset({Kind.NODE, Kind.OBJECT, Kind.VARIABLE, Kind.REF})


def _state_of(found: Sequence[_Found]) -> State[Any]:
    paths = tuple([path_of(link) for _, link, _ in found])
    leaf_defs = tuple([(variable.__class__, variable._metadata) for variable, _, _ in found])
    return make_state(StateDef.of(paths, leaf_defs), [variable.raw_value for variable, _, _ in found])


def _remove(places: Sequence[tuple[Any, Any]]) -> None:
    """Removes references; those in one list at once, since each removal moves the rest."""
    of_lists: dict[int, tuple[Any, set[int]]] = {}
    for owner, key in reversed(places):
        is_node = kind_of(owner) in _NODES
        if is_node and key.__class__ is str:
            delete_attribute(owner, key)
        elif is_node or isinstance(owner, list):
            of_lists.setdefault(id(owner), (owner, set()))[1].add(key)
        else:
            holder: Any = owner  # a container, whose elements have a place and no name
            del holder[key]
    for owner, indexes in of_lists.values():
        if isinstance(owner, list):
            owner[:] = [value for index, value in enumerate(owner) if index not in indexes]
        else:
            owner._pytree__delete(indexes)
