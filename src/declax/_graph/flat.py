"""Several graphs that share objects, flattened and unflattened one after the other.

An *outer* object is one outside of a JAX transform, which one inside stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import count
from typing import Any, Literal, TypeAlias, TypeVar, overload

from declax._graph.binding import bind, check_mode
from declax._graph.fit import join
from declax._graph.flattening import GraphDef, walk, walk_tokens
from declax._graph.nodes import is_ref
from declax._graph.unflattening import Change, Program, apply_change, build_slots, known_objects, program_of
from declax._modes import is_graph, is_on
from declax._state.states import FlatState, State
from declax._typing import MISSING
from declax._variables.variable import Variable
from declax.errors import GraphError, MissingKeyError, describe, format_path, type_name

N = TypeVar("N")

IndexMap: TypeAlias = dict[int, Any]
"""From indexes to objects."""


class RefMap(MutableMapping[Any, int]):
    """A mapping from objects to indexes that goes by identity, whatever ``==`` says.

    Args:
      entries: pairs of an object and its index, or such a mapping.

    >>> from declax._variables.variable import Param
    >>> scale = Param(1.0)
    >>> indexes = RefMap({})
    >>> indexes[scale] = 0
    >>> scale in indexes, Param(1.0) in indexes
    (True, False)
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: Mapping[Any, int] | Iterable[tuple[Any, int]] = ()) -> None:
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        self._entries: dict[int, tuple[Any, int]] = {id(value): (value, index) for value, index in pairs}

    def __getitem__(self, value: Any) -> int:
        found = self._entries.get(id(value))
        if found is None:
            raise MissingKeyError("RefMap", "this object has no index", got=describe(value))
        return found[1]

    def __setitem__(self, value: Any, index: int) -> None:
        self._entries[id(value)] = (value, index)

    def __delitem__(self, value: Any) -> None:
        self[value]  # says what is missing
        del self._entries[id(value)]

    def __contains__(self, value: object) -> bool:
        return id(value) in self._entries

    def __iter__(self) -> Iterator[Any]:
        return iter([value for value, _ in self._entries.values()])

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"RefMap({len(self)} objects)"

    def number_of(self, value: Any) -> int:
        """The index of an object, or -1."""
        found = self._entries.get(id(value))
        return -1 if found is None else found[1]

    def extend(self, values: Sequence[Any]) -> None:
        """Gives new objects the next indexes."""
        self._entries.update(zip(map(id, values), zip(values, count(len(self._entries)), strict=False), strict=False))

    def by_index(self) -> IndexMap:
        """The objects by index, as a dict."""
        return {index: value for value, index in self._entries.values()}

    def in_order(self) -> list[Any]:
        """The objects by index.

        Raises:
          GraphError: for indexes that are not 0, 1, 2, ...
        """
        ordered = sorted(self._entries.values(), key=lambda entry: entry[1])
        if [index for _, index in ordered] != list(range(len(ordered))):
            got = ", ".join(str(index) for _, index in ordered[:8])
            raise GraphError("ref_index", "the indexes of known objects have to be 0, 1, 2, ...", got=got)
        return [value for value, _ in ordered]


@overload
def flatten(
    node: N,
    /,
    *,
    with_paths: Literal[True] = True,
    ref_index: RefMap | None = None,
    ref_outer_index: RefMap | None = None,
    graph: bool | None = None,
) -> tuple[GraphDef[N], FlatState]: ...
@overload
def flatten(
    node: N,
    /,
    *,
    with_paths: Literal[False],
    ref_index: RefMap | None = None,
    ref_outer_index: RefMap | None = None,
    graph: bool | None = None,
) -> tuple[GraphDef[N], list[Any]]: ...
def flatten(
    node: N,
    /,
    *,
    with_paths: bool = True,
    ref_index: RefMap | None = None,
    ref_outer_index: RefMap | None = None,
    graph: bool | None = None,
) -> tuple[GraphDef[N], FlatState | list[Any]]:
    """Takes a graph apart into its structure and its leaves, in order.

    Args:
      node: a model, or a container of models.
      with_paths: whether the leaves come with their paths, in the Variables of
        the graph; as raw values otherwise.
      ref_index: the objects of graphs that were flattened before, to which this
        one may refer. Those of this one are added.
      ref_outer_index: the outer objects that objects of this graph stand for;
        `unflatten` changes those instead of making new ones.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Returns:
      The GraphDef and the leaves.

    Raises:
      GraphError: for a graph where a tree is asked for, for a `ref_index` that
        has gaps, and for other arguments than a `RefMap`, True or False.

    >>> from declax._module.module import Module
    >>> from declax._variables.variable import Param
    >>> a, b = Module(), Module()
    >>> a.scale = b.scale = Param(2.0)
    >>> indexes = RefMap()
    >>> first, second = flatten(a, ref_index=indexes), flatten(b, ref_index=indexes)
    >>> [path for path, _ in first[1]], [path for path, _ in second[1]]
    ([('scale',)], [])
    >>> objects = {}
    >>> a, b = unflatten(*first, index_ref=objects), unflatten(*second, index_ref=objects)
    >>> a.scale is b.scale
    True
    """
    is_with_paths = is_on("with_paths", with_paths)
    for name, indexes in (("ref_index", ref_index), ("ref_outer_index", ref_outer_index)):
        _check_indexes(name, indexes, RefMap, "dx.RefMap()")
    if ref_index:
        known = ref_index.in_order()
        walked = walk(node, known=known)
        _check_is_apart(walked.graphdef, graph)
        graphdef, leaves, boxes, objects = walked.graphdef, walked.read(), walked.boxes, walked.objects[len(known) :]
    else:
        binding = bind(node, graph)
        graphdef, leaves, boxes, objects = binding.graphdef, binding.read(), binding.variables, binding.objects()
    if ref_outer_index is not None:
        numbers = tuple(map(ref_outer_index.number_of, objects))
        leaves = _without_outer_refs(graphdef, leaves, numbers)
        graphdef = graphdef.with_outer(numbers)
    if ref_index is not None:
        ref_index.extend(objects)
    if not is_with_paths:
        return graphdef, leaves
    values = [leaf if box is None else box for leaf, box in zip(leaves, boxes, strict=True)]
    return graphdef, FlatState.from_sorted_keys_values(graphdef.definition.paths, values)


def _check_indexes(name: str, given: object, cls: type, fix: str) -> None:
    """Checks the type of a mapping between objects and indexes, where one is given."""
    is_by_object = cls is RefMap
    if given is None or (isinstance(given, cls) and (is_by_object or not isinstance(given, RefMap))):
        return
    raise GraphError(
        name,
        f"this argument maps {'objects to indexes' if is_by_object else 'indexes to objects'}",
        expected=f"a {'dx.RefMap' if is_by_object else 'dict'}, or None",
        got=describe(given),
        fix=f"{name}={fix}",
    )


def _check_is_apart(graphdef: GraphDef[Any], graph: bool | None) -> None:
    """Checks that a graph shares nothing with earlier ones, where a tree is asked for."""
    check_mode(graphdef, graph)
    if is_graph(graph):
        return
    for path, token in walk_tokens(graphdef.tokens):
        if isinstance(token, int):  # to an earlier graph: it is a tree in itself
            raise GraphError(
                format_path(path),
                "this is an object of a graph that was flattened before, so the two are no trees",
                why="graph=False, or dx.set_graph_mode(False), asks for trees, in which nothing is shared",
                fix="graph=True        # keeps what is shared",
            )


def _without_outer_refs(graphdef: GraphDef[Any], leaves: list[Any], outer: tuple[int, ...]) -> list[Any]:
    """The leaves, with None for refs that stand for outer ones: JAX lets no function return a ref."""
    program = program_of(graphdef)
    leaf_of = dict(program.plain_leaves)
    own = program.indexed[graphdef.base :]
    kept = {leaf_of[slot] for slot, number in zip(own, outer, strict=True) if number >= 0 and slot in leaf_of}
    return [None if place in kept else leaf for place, leaf in enumerate(leaves)] if kept else leaves


def unflatten(
    graphdef: GraphDef[N],
    state: State[Any] | FlatState | Sequence[Any],
    /,
    *,
    index_ref: IndexMap | None = None,
    outer_index_outer_ref: IndexMap | None = None,
    copy_variables: bool = False,
) -> N:
    """Makes a graph from its structure and its leaves; the inverse of `flatten`.

    Args:
      graphdef: the structure.
      state: the leaves: a State, a FlatState, or raw values in order.
      index_ref: the objects of graphs that were unflattened before, by index.
        Those of this one are added.
      outer_index_outer_ref: the outer objects, by outer index. Where the
        GraphDef says that an object stands for one of them, that one is
        changed in place and used.
      copy_variables: whether Variables in a FlatState are copied; otherwise
        they become the Variables of the graph.

    Returns:
      The root.

    Raises:
      GraphError: for leaves that are not of this GraphDef, for indexes that are
        not there, and for arguments of other types; nothing is changed.

    >>> from declax._module.module import Module
    >>> from declax._variables.variable import Param
    >>> m = Module()
    >>> m.scale = Param(2.0)
    >>> unflatten(*flatten(m)).scale.value
    2.0
    """
    is_copy = is_on("copy_variables", copy_variables)
    for name, objects in (("index_ref", index_ref), ("outer_index_outer_ref", outer_index_outer_ref)):
        _check_indexes(name, objects, MutableMapping, "{}")
    leaves, metadata = _leaves_of(graphdef, state)
    boxes = None if is_copy else _boxes(graphdef, state)
    root: N = unflatten_leaves(graphdef, leaves, metadata, boxes, index_ref, outer_index_outer_ref)
    return root


def unflatten_leaves(
    graphdef: GraphDef[Any],
    leaves: Sequence[Any],
    metadata: Sequence[Any] | None,
    boxes: Sequence[Variable[Any]] | None,
    index_ref: IndexMap | None,
    outer: IndexMap | None,
) -> Any:
    """As `unflatten`, from the leaves of the graph in its order."""
    known = known_objects(graphdef, index_ref or {})
    program = program_of(graphdef)
    if graphdef.outer is not None and outer is not None:
        _check_outer(graphdef, program, outer)
        slots = apply_change(Change(graphdef, (-1,) * len(leaves), graphdef.outer), outer, (), leaves, metadata, known)
    else:
        if graphdef.outer is not None:
            _check_has_refs(graphdef, leaves)
        slots = build_slots(graphdef, leaves, metadata, boxes, known)
    if index_ref is not None:
        own = program.indexed[graphdef.base :]
        index_ref.update((index, slots[slot]) for index, slot in enumerate(own, graphdef.base))
    return slots[program.root]


def _check_has_refs(graphdef: GraphDef[Any], leaves: Sequence[Any]) -> None:
    """Checks that no ref was left with the outer one that it stands for."""
    places = [place for _, place in program_of(graphdef).plain_leaves if leaves[place] is None]
    if places:
        raise GraphError(
            format_path(graphdef.definition.paths[places[0]]),
            "this ref stands for an outer one, and there are no outer objects",
            fix="unflatten(graphdef, state, outer_index_outer_ref=objects)",
        )


def _leaves_of(graphdef: GraphDef[Any], state: Any) -> tuple[Sequence[Any], list[Any] | None]:
    if not isinstance(graphdef, GraphDef):
        fix = "unflatten(graphdef, state)"
        raise GraphError("unflatten", "a GraphDef comes first", got=describe(graphdef), fix=fix)
    if isinstance(state, FlatState):
        state = State.from_flat_path(state)
    if isinstance(state, Mapping):
        return join(graphdef, (state,))
    is_sequence = isinstance(state, Sequence) and not isinstance(state, str)
    if not is_sequence or len(state) != graphdef.num_leaves:
        raise GraphError(
            "unflatten",
            "these are not the leaves of the graph",
            expected=f"{graphdef.num_leaves} leaves",
            got=f"{len(state)} leaves" if is_sequence else describe(state),
        )
    return state, None


def _boxes(graphdef: GraphDef[Any], state: Any) -> list[Variable[Any]] | None:
    """The Variables that a FlatState has for the graph, where they are all there."""
    if not isinstance(state, FlatState):
        return None
    by_path = dict(zip(state.paths, state.leaves, strict=True))
    paths = graphdef.definition.paths
    boxes = [by_path[paths[leaf]] for leaf in program_of(graphdef).variable_leaves]
    return boxes if all(isinstance(box, Variable) for box in boxes) else None


def _check_outer(graphdef: GraphDef[Any], program: Program, outer: IndexMap) -> None:
    """Checks that the outer objects are there, and are what they are changed into."""
    classes = [*program.classes, *(cls for _, cls in program.node_makers)]
    own = program.indexed[graphdef.base :]
    for slot, number in zip(own, graphdef.outer or (), strict=True):
        if number < 0:
            continue
        found = outer.get(number, MISSING)
        if found is MISSING:
            raise GraphError("unflatten", f"there is no outer object of index {number}", got=f"{len(outer)} objects")
        is_right = found.__class__ is classes[slot] if slot < len(classes) else is_ref(found)
        if not is_right:
            raise GraphError(
                "unflatten",
                f"the outer object of index {number} is another one than the graph says",
                expected=f"a {type_name(classes[slot])}" if slot < len(classes) else "a ref",
                got=describe(found),
                why="the GraphDef was made from other objects",
            )
