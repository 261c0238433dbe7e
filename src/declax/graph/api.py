"""What users do with models as data.

Vocabulary
----------
split:  take a graph apart into a GraphDef and one State or more.
merge:  make a new graph from them.
update: put the values of a State into an existing graph.
pop:    take Variables out of a graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np

from declax import _epoch, _jax
from declax._attributes import wrong_trace
from declax._filters import Filter, to_predicate
from declax._layout import TRACE_KEY
from declax._module import Module
from declax._nodes import Kind, children_of, enter_container, kind_of, object_names, open_container, walk_nodes
from declax._pytree import Pytree, layout_of
from declax._state_def import LeafDef
from declax._typing import Path
from declax._variables import Variable, set_raw
from declax._variables import _set_metadata as set_metadata
from declax.errors import FilterError, GraphError, TraceContextError, describe, format_path, type_name
from declax.graph.binding import Binding, bind
from declax.graph.build import build
from declax.graph.defs import GraphDef, walk_tokens
from declax.graph.fit import check_values, join, places
from declax.state import State, make_state, split_leaves

N = TypeVar("N")


@overload
def split(node: N, /) -> tuple[GraphDef[N], State[N]]: ...
@overload
def split(node: N, first: Filter, /) -> tuple[GraphDef[N], State[N]]: ...
@overload
def split(node: N, first: Filter, second: Filter, /) -> tuple[GraphDef[N], State[N], State[N]]: ...
@overload
def split(
    node: N, first: Filter, second: Filter, third: Filter, /
) -> tuple[GraphDef[N], State[N], State[N], State[N]]: ...
@overload
def split(
    node: N, first: Filter, second: Filter, third: Filter, fourth: Filter, /, *filters: Filter
) -> tuple[GraphDef[N], State[N], State[N], State[N], *tuple[State[N], ...]]: ...
def split(node: Any, /, *filters: Filter) -> Any:
    """Takes a graph apart.

    Args:
      node: a model, or a container of models.
      *filters: which leaves go into which State; the first filter that takes
        a leaf has it. One State of all leaves where none is given.

    Returns:
      The GraphDef and the States.

    Raises:
      FilterError: for leaves that no filter takes.

    >>> from declax._variables import BatchStat, Param
    >>> m = Module()
    >>> m.scale, m.mean = Param(2.0), BatchStat(0.0)
    >>> graphdef, params, rest = split(m, Param, ...)
    >>> params["scale"].value, merge(graphdef, params, rest).mean.value
    (2.0, 0.0)
    """
    binding = bind(node)
    graphdef = binding.graphdef
    leaves = binding.read()
    if not filters:
        return graphdef, make_state(graphdef.definition, leaves)
    return graphdef, *split_leaves(graphdef.definition, leaves, filters, is_exhaustive=True)


def merge(graphdef: GraphDef[N], state: State[Any], /, *states: State[Any], copy: bool = False) -> N:
    """Makes a new graph; the inverse of `split`.

    Args:
      graphdef: the structure.
      state, *states: the values; together they have each leaf once.
      copy: whether the graph gets copies of the arrays.

    Returns:
      The root of the new graph.

    Raises:
      GraphError: for States that are not of this GraphDef; lists each path.

    >>> from declax._variables import Param
    >>> m = Module()
    >>> m.scale = Param(2.0)
    >>> merge(*split(m)).scale.value
    2.0
    """
    leaves, metadata = join(graphdef, (state, *states))
    if copy:
        leaves = copy_leaves(leaves)
    root: N = build(graphdef, leaves, metadata)
    return root


@overload
def state(node: N, /) -> State[N]: ...
@overload
def state(node: N, first: Filter, /) -> State[N]: ...
@overload
def state(node: N, first: Filter, second: Filter, /) -> tuple[State[N], State[N]]: ...
@overload
def state(node: N, first: Filter, second: Filter, third: Filter, /) -> tuple[State[N], State[N], State[N]]: ...
@overload
def state(
    node: N, first: Filter, second: Filter, third: Filter, fourth: Filter, /, *filters: Filter
) -> tuple[State[N], State[N], State[N], *tuple[State[N], ...]]: ...
def state(node: Any, /, *filters: Filter) -> Any:
    """The values of a graph; a snapshot that shares the arrays.

    Args:
      node: a model, or a container of models.
      *filters: which leaves go into which State; leaves that none takes are
        left out.

    Returns:
      The State, or one for each filter.

    >>> from declax._variables import Param
    >>> m = Module()
    >>> m.scale = Param(2.0)
    >>> state(m, Param).to_pure_dict()
    {'scale': 2.0}
    """
    binding = bind(node)
    definition, leaves = binding.graphdef.definition, binding.read()
    if not filters:
        return make_state(definition, leaves)
    found = split_leaves(definition, leaves, filters, is_exhaustive=False)
    return found if len(filters) > 1 else found[0]


variables = state


def graphdef(node: N, /) -> GraphDef[N]:
    """The structure of a graph.

    >>> m, n = Module(), Module()
    >>> graphdef(m) is graphdef(n)
    True
    """
    return bind(node).graphdef


def clone(node: N, /) -> N:
    """A copy of a graph, sharing inside of it kept, that owns its arrays.

    >>> from declax._variables import Param
    >>> m = Module()
    >>> m.scale = Param(jnp.ones(2))
    >>> n = clone(m)
    >>> n.scale.value is m.scale.value
    False
    """
    binding = bind(node)
    root: N = build(binding.graphdef, copy_leaves(binding.read()))
    return root


def copy_leaves(leaves: list[Any]) -> list[Any]:
    """Copies of arrays, so that donation of one does not kill the other."""
    return [jax.tree.map(_copy, leaf) for leaf in leaves]


def _copy(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        return jnp.copy(leaf)
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def update(node: Any, state: Mapping[Any, Any], /, *states: Mapping[Any, Any]) -> None:
    """Puts values into an existing graph, in place.

    A State may have only some of the paths. Dtypes may differ.

    Args:
      node: a model, or a container of models.
      state, *states: the values.

    Raises:
      GraphError: for unknown paths, other kinds of Variables and other shapes,
        all of which it lists, and for new values in tuples; nothing is changed.
      TraceContextError: for Variables and nodes of another trace level; nothing
        is changed.

    >>> from declax._variables import Param
    >>> m = Module()
    >>> m.scale = Param(2.0)
    >>> update(m, State({"scale": Param(3.0)}))
    >>> m.scale.value
    3.0
    """
    binding = bind(node)
    changes: dict[int, tuple[Any, LeafDef]] = {}
    for given in (state, *states):
        values = given if isinstance(given, State) else State(given)
        positions = places(binding.graphdef.definition, values.definition, "update")
        leaves = values.leaves
        check_values(values.definition, binding, positions, leaves)
        changes.update(zip(positions, zip(leaves, values.definition.leaf_defs, strict=True), strict=True))
    _check_level([binding.variables[position] for position in changes])
    plain = _plain_writes(node, binding, changes) if binding.has_plain else []
    for owner, key, leaf in plain:
        if isinstance(key, str) and isinstance(owner, Pytree):
            setattr(owner, key, leaf)
        else:
            owner[key] = leaf
    for position, (leaf, leaf_def) in changes.items():
        variable = binding.variables[position]
        if variable is None:
            continue
        set_raw(variable, leaf)
        if leaf_def is not None and variable._metadata is not leaf_def[1]:
            set_metadata(variable, leaf_def[1])
            _epoch.advance()


def _check_level(variables: list[Variable[Any] | None]) -> None:
    mark = _jax.current_trace()
    for variable in variables:
        if variable is not None and variable._trace is not mark:
            raise TraceContextError(
                f"update of a {type_name(type(variable))}",
                "cannot mutate a Variable from a different trace level",
                fix="pass the model as an argument of the traced function",
            )


def _plain_writes(root: Any, binding: Binding, changes: Mapping[int, tuple[Any, Any]]) -> list[tuple[Any, Any, Any]]:
    """Where new values of leaves without a Variable go: owner, key and value of each, checked."""
    old = binding.read()
    paths = binding.graphdef.definition.paths
    return [
        (*_place_of(root, paths[i]), leaf)
        for i, (leaf, _) in changes.items()
        if binding.variables[i] is None and leaf is not old[i]
    ]


def _place_of(root: Any, path: Path) -> tuple[Any, Any]:
    """What holds the leaf at a path, and under which key; raises where that cannot be changed now."""
    holder, node = root, None
    for key in path[:-1]:
        node = holder if isinstance(holder, Pytree) else node
        holder = node_at(holder, (key,))
    node = holder if isinstance(holder, Pytree) else node
    if node is not None and node.__dict__.get(TRACE_KEY, _jax.TOP) is not _jax.current_trace():
        raise wrong_trace(node, path[-1])
    is_fixed = holder._pytree__is_frozen if isinstance(holder, Pytree) else not hasattr(holder, "__setitem__")
    if is_fixed or not path:
        raise GraphError(
            format_path(path),
            f"this leaf sits in a {type_name(type(holder))}, which cannot be changed in place",
            fix="dx.List([...]), or a plain list",
        )
    return holder, path[-1]


def node_at(root: Any, path: Path) -> Any:
    """What a path leads to."""
    for key in path:
        keys, children = zip(*children_of(root), strict=True)
        root = children[keys.index(key)]
    return root


@overload
def pop(node: N, first: Filter, /) -> State[N]: ...
@overload
def pop(node: N, first: Filter, second: Filter, /) -> tuple[State[N], State[N]]: ...
@overload
def pop(node: N, first: Filter, second: Filter, third: Filter, /, *filters: Filter) -> tuple[State[N], ...]: ...
def pop(node: Any, /, *filters: Filter) -> Any:
    """Takes Variables out of a graph, wherever it refers to them.

    Args:
      node: a model, or a container of models.
      *filters: which Variables; at least one.

    Returns:
      The State with the Variables, or one for each filter.

    Raises:
      FilterError: where no filter is given.
      GraphError: for a Variable in a tuple.

    >>> from declax._variables import Intermediate
    >>> m = Module()
    >>> _ = m.sow(Intermediate, "seen", 1)
    >>> pop(m, Intermediate)["seen"].value, hasattr(m, "seen")
    ((1,), False)
    """
    if not filters:
        raise FilterError("pop", "no filter says what to take", fix="dx.pop(model, dx.Intermediate)")
    binding = bind(node)
    variables = {i: v for i, v in enumerate(binding.variables) if v is not None}
    definition, leaves = binding.graphdef.definition.select(tuple(variables)), [v.raw_value for v in variables.values()]
    listed = list(variables.values())
    groups, _ = definition.group(filters, leaves)
    taken = {id(listed[i]) for _, positions in groups for i in positions}
    places_of = [(owner, key) for _, owner in _owners(node) for key, child in _entries(owner) if id(child) in taken]
    for owner, key in places_of:
        if isinstance(owner, tuple):
            raise GraphError(f"[{key!r}]", "a Variable in a tuple cannot be taken out", fix="hold it in a list")
    found = split_leaves(definition, leaves, filters, is_exhaustive=False)
    for owner, key in reversed(places_of):
        if isinstance(key, str) and not isinstance(owner, dict):
            delattr(owner, key)
        else:
            del owner[key]
    return found if len(filters) > 1 else found[0]


def _owners(root: Any) -> Iterator[tuple[Path, Any]]:
    seen: set[int] = set()
    stack: list[tuple[Path, Any]] = [((), root)]
    while stack:
        path, value = stack.pop()
        if kind_of(value) not in (Kind.NODE, Kind.OBJECT, Kind.CONTAINER) or id(value) in seen:
            continue
        seen.add(id(value))
        yield path, value
        stack.extend(((*path, key), child) for key, child in _entries(value))


def _entries(owner: Any) -> list[tuple[Any, Any]]:
    return list(children_of(owner))


def iter_graph(node: Any, /) -> Iterator[tuple[Path, Any]]:
    """All that a graph holds, static values too, each node and Variable once.

    What is inside of a node comes before the node.

    >>> from declax._variables import Param
    >>> m = Module()
    >>> m.scale, m.dim = Param(2.0), 3
    >>> [(path, type(value).__name__) for path, value in iter_graph([m, m])]
    [((0, 'dim'), 'int'), ((0, 'scale'), 'Param'), ((0,), 'Module'), ((), 'list')]
    """
    seen: set[int] = set()
    stack: list[tuple[Path, Any, bool, tuple[int, ...]]] = [((), node, False, ())]
    while stack:
        path, value, is_done, within = stack.pop()
        kind = kind_of(value)
        if is_done:
            yield path, value
            continue
        if kind in (Kind.NODE, Kind.OBJECT, Kind.VARIABLE):
            if id(value) in seen:
                continue
            seen.add(id(value))
        within = enter_container(value, within) if kind is Kind.CONTAINER else ()
        stack.append((path, value, True, ()))
        stack.extend(((*path, key), child, False, within) for key, child in reversed(_all_entries(value, kind)))


def _all_entries(value: Any, kind: Kind) -> list[tuple[Any, Any]]:
    if kind is Kind.NODE:
        return [(name, value.__dict__[name]) for name in layout_of(value).statuses]
    if kind is Kind.OBJECT:
        return [(name, value.__dict__[name]) for name in object_names(value)]
    if kind is Kind.CONTAINER:
        keys, children, _ = open_container(value)
        return list(zip(keys, children, strict=True))
    return []


def iter_modules(node: Any, /) -> Iterator[tuple[Path, Module]]:
    """All modules of a graph, each once, children first.

    >>> [path for path, _ in iter_modules([Module()])]
    [(0,)]
    """
    return ((path, found) for path, found in walk_nodes(node) if isinstance(found, Module))


def iter_children(node: Any, /) -> Iterator[tuple[Any, Module]]:
    """The modules directly inside of a node, by name.

    >>> list(iter_children(Module()))
    []
    """
    return ((name, child) for name, child in children_of(node) if isinstance(child, Module))


def find_duplicates(node: Any, /, *, only: Filter = ...) -> list[list[Path]]:
    """The paths of nodes and Variables that a graph refers to more than once.

    Args:
      node: a model, or a container of models.
      only: which of them to consider.

    Returns:
      For each, all of its paths, in order.

    >>> m = Module()
    >>> m.left = Module()
    >>> m.right = m.left
    >>> find_duplicates(m)
    [[('left',), ('right',)]]
    """
    binding = bind(node)
    predicate = to_predicate(only)
    paths: list[list[Path]] = []
    for path, token in walk_tokens(binding.graphdef.tokens):
        if isinstance(token, int):
            paths[token].append(path)
        elif token[0] in _INDEXED:
            paths.append([path])
    objects = binding.objects()
    return [found for found, value in zip(paths, objects, strict=True) if len(found) > 1 and predicate(found[0], value)]


_INDEXED = (0, 2, 3)
"""The tags of tokens that have an index: VARIABLE, NODE, OBJECT."""

__all__ = [
    "clone",
    "copy_leaves",
    "describe",
    "find_duplicates",
    "graphdef",
    "iter_children",
    "iter_graph",
    "iter_modules",
    "merge",
    "pop",
    "split",
    "state",
    "update",
    "variables",
]
