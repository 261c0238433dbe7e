"""Changes of graphs in place: `pop`, `set_metadata`, and attributes of many modules; on an error nothing is changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload

from declax import _jax
from declax._classes.pytree import Pytree, delete_attribute, layout_of
from declax._filters import ON_KIND, Filter, Predicate, as_written, ask, dependency_of, predicate_of, predicates_of
from declax._graph.api import refuse_state
from declax._graph.binding import bind
from declax._graph.nodes import NODES, OBJECTS, Kind, Link, children_of, enter_container, is_ref, kind_of, path_of
from declax._graph.updating import place_of
from declax._modes import is_graph, is_on
from declax._state.definition import StateDef, leaf_def_of, raw_of
from declax._state.states import State, make_state
from declax._tree import epoch
from declax._tree.attributes import admit, wrong_trace
from declax._tree.layout import LAYOUT_KEY, TRACE_KEY
from declax._typing import N, Tuple2, Tuple3, Tuple4
from declax._variables.lost_writes import trace_of
from declax._variables.metadata import Metadata
from declax._variables.variable import Variable, foreign_trace
from declax._variables.variable import _set_metadata as put_metadata
from declax.errors import FilterError, GraphError, format_path, suggest, type_name


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
def pop(node: Any, *filters: Filter, graph: bool | None = None) -> Any:
    """Takes Variables out of a graph, wherever it refers to them, and plain arrays.

    Args:
      node: a model, or a container of models.
      *filters: which Variables and arrays; at least one. The first filter that matches one gets it. Types of Variables
        take no arrays; `...` and functions of path and value may. Numbers that a class declares as data stay.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Returns:
      The State with the Variables and arrays, or one for each filter.

    Raises:
      FilterError: if no filter is given.
      GraphError: for a Variable or array in a tuple or in a frozen node. Nothing is changed.
      TraceContextError: for a node of another trace level. Nothing is changed.

    >>> import declax as dx
    >>> m = dx.Module()
    >>> _ = m.sow(dx.Intermediate, "seen", 1)
    >>> dx.pop(m, dx.Intermediate)["seen"].value, hasattr(m, "seen")
    ((1,), False)
    """
    if not filters:
        raise FilterError("pop", "at least one filter is required", fix="dx.pop(model, dx.Intermediate)")
    refuse_state("pop", node)
    if not is_graph(graph):
        bind(node, graph)
    search = _Search(predicates_of(filters, "pop"))
    search.run(node)
    places = [place_of(above, path_of(link), depth) for above, link, depth in search.places.values()]
    states = tuple(_state_of([found for found in search.found if found[2] == i]) for i in range(len(filters)))
    _remove(places)
    return states if len(filters) > 1 else states[0]


_Found = tuple[Any, Link, int]
"""A Variable, ref or array, where it was found first, and the index of the filter that takes it."""


class _Search:
    """The Variables, refs and arrays that filters take, in the order of the graph, and all places that refer to them.

    A place, found by owner and key, is the node above, the link, and the number of containers between them.
    """

    def __init__(self, predicates: tuple[Predicate, ...]) -> None:
        self.found: list[_Found] = []
        self.places: dict[tuple[int, Any], tuple[Any, Link, int]] = {}
        self._predicates = predicates
        self._asks_kind_only = dependency_of(*predicates) == ON_KIND
        self._group_of_class: dict[type, int] = {}
        self._skipped: set[type] = set()  # classes whose values do not go through the stack

    def run(self, root: Any) -> None:
        """Searches all below a node."""
        seen: set[int] = set()
        taken: dict[int, bool] = {}
        skipped = self._skipped
        # value, holder, node above, link, containers around
        stack: list[tuple[Any, Any, Any, Link, tuple[int, ...]]] = [(root, None, root, None, ())]
        while stack:
            value, owner, above, link, within = stack.pop()
            kind = kind_of(value)
            if kind is _STATIC:
                skipped.add(value.__class__)
                continue
            if kind in _LEAVES:
                if value.__class__ not in skipped and self._takes(value, link, taken) and link is not None:
                    self.places[id(owner), link[1]] = (above, link, len(within))
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

    def _takes(self, value: Any, link: Link, taken: dict[int, bool]) -> bool:
        """Whether the filters take a value; of a Variable or ref, they are asked where it is met first."""
        has_identity = kind_of(value) in OBJECTS or is_ref(value)
        is_meant = taken.get(id(value)) if has_identity else None
        if is_meant is None:
            group = self._group_of_class.get(value.__class__)
            if group is None:
                group = self._ask(value, link)
            is_meant = taken[id(value)] = group != _NOT_MEANT
            if is_meant:
                self.found.append((value, link, group))
        return is_meant

    def _ask(self, value: Any, link: Link) -> int:
        """The index of the first filter that takes a value, or -1; kept if all filters ask for kinds only."""
        path = () if self._asks_kind_only else path_of(link)
        group = next((i for i, predicate in enumerate(self._predicates) if ask(predicate, path, value)), _NOT_MEANT)
        if self._asks_kind_only:
            self._group_of_class[value.__class__] = group
            if group == _NOT_MEANT:
                self._skipped.add(value.__class__)
        return group


def _inside(value: Any, kind: Kind) -> tuple[Mapping[Any, Any], Sequence[Any]]:
    """The contents of a node or container by key, and the keys of its children, last one first."""
    if kind is Kind.NODE:
        attributes: dict[Any, Any] = value.__dict__
        return attributes, (attributes.get(LAYOUT_KEY) or value._pytree__layout).data_names[::-1]
    children = dict(children_of(value))
    return children, tuple(reversed(children))


_NOT_MEANT = -1
_STATIC = Kind.STATIC
_LEAVES = frozenset({Kind.VARIABLE, Kind.LEAF, Kind.REF})


def _state_of(found: Sequence[_Found]) -> State[Any]:
    paths = tuple([path_of(link) for _, link, _ in found])
    leaf_defs = tuple([leaf_def_of(value) for value, _, _ in found])
    return make_state(StateDef.of(paths, leaf_defs), [raw_of(value) for value, _, _ in found])


def _remove(places: Sequence[tuple[Any, Any]]) -> None:
    """Removes references; those in one list together, since each removal moves the rest."""
    of_lists: dict[int, tuple[Any, set[int]]] = {}
    for owner, key in reversed(places):
        is_node = kind_of(owner) in NODES
        if is_node and key.__class__ is str:
            delete_attribute(owner, key)
        elif is_node or isinstance(owner, list):
            of_lists.setdefault(id(owner), (owner, set()))[1].add(key)
        else:
            del owner[key]
    for owner, indexes in of_lists.values():
        if isinstance(owner, list):
            owner[:] = [value for index, value in enumerate(owner) if index not in indexes]
        else:
            owner._pytree__delete(indexes)


# --- metadata and attributes of many objects -----------------------------------------------


def set_metadata(node: Any, /, *, only: Filter = Variable, graph: bool | None = None, **metadata: Any) -> None:
    """Sets metadata of Variables of a graph, in place; on an error, nothing changes.

    Args:
      node: a model, or a container of models.
      only: which Variables.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.
      **metadata: names and values; other metadata stays.

    Raises:
      FilterError: if `only` takes no Variable.
      MetadataError: for a misspelled name, or one that hides an attribute.
      StatusError: for a value without a hash.
      TraceContextError: for a Variable of another trace level.

    >>> import declax as dx
    >>> m = dx.Module()
    >>> m.scale, m.mean = dx.Param(2.0), dx.BatchStat(0.0)
    >>> dx.set_metadata(m, only=dx.Param, trainable=False)
    >>> m.scale.trainable, m.mean.has_metadata("trainable")
    (False, False)
    """
    binding = bind(node, graph)
    predicate = predicate_of(only, "set_metadata, only")
    trace_token = _jax.current_trace()
    changes: list[tuple[Variable[Any], Metadata]] = []
    for path, variable in zip(binding.graphdef.definition.paths, binding.cells, strict=True):
        if not isinstance(variable, Variable) or not ask(predicate, path, variable):
            continue
        cls = type(variable)
        cls._check_metadata(metadata)
        if trace_of(variable) is not trace_token:
            raise foreign_trace(variable, f"metadata (at {format_path(path)})")
        changes.append((variable, Metadata.of({**variable._metadata, **metadata}, type_name(cls))))
    if not changes:
        raise FilterError(
            "set_metadata",
            "the filter `only` matches no Variable of the graph",
            got=as_written(only),
            fix="dx.state(model, dx.Variable).paths        # the Variables of the model",
        )
    for variable, content in changes:
        put_metadata(variable, content)
    epoch.advance()


def attribute_changes(
    modules: Iterable[Pytree], attributes: Mapping[str, Any], where: str, *, must_exist: bool, only: Filter = ...
) -> list[tuple[Pytree, str, Any]]:
    """The assignments of attributes to modules that have them; checked, but not made."""
    chosen = list(modules)
    changes = [(m, name, value) for m in chosen for name, value in attributes.items() if hasattr(m, name)]
    missing = sorted(attributes.keys() - {name for _, name, _ in changes})
    if is_on("raise_if_not_found", must_exist) and missing:
        known = sorted({name for m in chosen for name in layout_of(m).statuses if isinstance(name, str)})
        hints = [hint for name in missing if (hint := suggest(name, known))]
        raise GraphError(
            where,
            f"no module {asked_modules(only)} has the attributes {missing}" + (f"; {' '.join(hints)}" if hints else ""),
            fix="raise_if_not_found=False        # sets those that are there",
        )
    for module, name, value in changes:
        admit(module, name, value, layout_of(module))  # raises for what cannot be set
    return changes


def asked_modules(only: Filter) -> str:
    """For an error: which modules were asked."""
    return "inside" if only is Ellipsis else f"that only={as_written(only)} selects"


def check_may_change(module: Pytree, name: str) -> None:
    """Checks that an attribute of a module may be set in place, now."""
    if vars(module).get(TRACE_KEY, _jax.TOP) is not _jax.current_trace():
        raise wrong_trace(module, name)
    if module._pytree__info.is_frozen:
        raise GraphError(
            f"{type_name(type(module))}.{name}",
            "the class is frozen, so the attribute cannot be set",
            fix="dx.replace(module, ...), or dx.recursive_map(...) for one inside of a model",
        )
