"""Graphs split into a GraphDef and States, and merged again; calls of split graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Generic, TypeAlias, TypeVar, overload

import jax
import numpy as np

from declax._classes.pytree import Pytree
from declax._filters import Filter
from declax._graph.binding import bind, bind_and_read
from declax._graph.cells import Cell, shown
from declax._graph.copying import copy_leaves, copy_mutable, owners_of
from declax._graph.flattening import GraphDef
from declax._graph.sown import captured_calls, give_captures, read_without_captures, take_captures
from declax._graph.unflattening import blueprint_of, build, build_slots
from declax._graph.updating import checked_array_leaves, join
from declax._modes import is_on
from declax._state.definition import StateDef
from declax._state.states import Owners, State, make_state, show_variables, split_leaves
from declax._typing import RECORD_KEY, N, Path, Tuple2, Tuple3, Tuple4, Tuple5, Tuple6, Tuple7, Tuple8
from declax._variables.kinds import Param
from declax._variables.selection import is_trainable
from declax._variables.variable import Variable
from declax.errors import GraphError, MissingAttributeError, describe, format_path, type_name

M = TypeVar("M", covariant=True)
R = TypeVar("R", covariant=True)


class GraphState(State[M]):
    """A State that holds the GraphDef of its graph, so that `merge` needs nothing else.

    As a pytree it is a State whose GraphDef is static.

    Attributes:
      graphdef: the structure of the whole graph.

    >>> import declax as dx
    >>> dx.unpack(dx.Linear(2, 3, rngs=dx.Rngs(0))).graphdef
    GraphDef(Linear, nodes=1, leaves=2)
    """

    __slots__ = ("_graphdef",)
    _graphdef: GraphDef[Any]

    @property
    def graphdef(self) -> GraphDef[M]:
        """The structure of the whole graph."""
        return self._graphdef

    @property
    def _recipe(self) -> tuple[Any, ...]:
        return _make_graph_state, self._graphdef


PureState: TypeAlias = tuple[GraphDef[N], State[N]]
"""The type of the result of `split`."""

_set_graphdef = GraphState._graphdef.__set__  # type: ignore[attr-defined]  # a slot descriptor


def _make_graph_state(
    definition: StateDef, leaves: list[Any], graphdef: GraphDef[Any], owners: Owners = ()
) -> GraphState[Any]:
    """The GraphState with these leaves, whose list it takes over."""
    made: Any = make_state(definition, leaves, GraphState, owners)
    _set_graphdef(made, graphdef)
    return made  # type: ignore[no-any-return]  # a GraphState


def refuse_state(where: str, node: object) -> None:
    """Refuses a State where a model is meant: its leaves are raw values, so filters by kind would take nothing."""
    if node.__class__ is State or node.__class__ is GraphState:
        raise GraphError(
            where,
            "a State is not a graph",
            got=repr(type(node).__name__),
            fix="state.filter(dx.Param)        # or state.split(dx.Param, ...)",
        )


# --- split and merge ----------------------------------------------------------------


@overload
def split(node: N, a: Filter = ..., /, *, graph: bool | None = None) -> tuple[GraphDef[N], State[N]]: ...
@overload
def split(node: N, a: Filter, b: Filter, /, *, graph: bool | None = None) -> tuple[GraphDef[N], State[N], State[N]]: ...
@overload
def split(node: N, /, *f: *Tuple3[Filter], graph: bool | None = None) -> tuple[GraphDef[N], *Tuple3[State[N]]]: ...
@overload
def split(node: N, /, *f: *Tuple4[Filter], graph: bool | None = None) -> tuple[GraphDef[N], *Tuple4[State[N]]]: ...
@overload
def split(node: N, /, *f: *Tuple5[Filter], graph: bool | None = None) -> tuple[GraphDef[N], *Tuple5[State[N]]]: ...
@overload
def split(node: N, /, *f: *Tuple6[Filter], graph: bool | None = None) -> tuple[GraphDef[N], *Tuple6[State[N]]]: ...
@overload
def split(node: N, /, *f: *Tuple7[Filter], graph: bool | None = None) -> tuple[GraphDef[N], *Tuple7[State[N]]]: ...
@overload
def split(node: N, /, *f: *Tuple8[Filter], graph: bool | None = None) -> tuple[GraphDef[N], *Tuple8[State[N]]]: ...
@overload
def split(node: Any, a: Filter, /, *filters: Filter, graph: bool | None = None) -> tuple[Any, ...]: ...
def split(node: Any, *filters: Filter, graph: bool | None = None) -> Any:
    """Splits a graph into its structure and its values.

    The States share their arrays with the graph.

    Args:
      node: a model, or a container of models.
      *filters: which leaves go into which State; the first filter that takes
        a leaf has it. One State of all leaves if none is given.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Raises:
      FilterError: for leaves that no filter matches.
      GraphError: for a graph if a tree is required; names both paths of the shared object.

    >>> import declax as dx
    >>> m = dx.Module()
    >>> m.scale, m.mean = dx.Param(2.0), dx.BatchStat(0.0)
    >>> graphdef, params, rest = dx.split(m, dx.Param, ...)
    >>> params["scale"].value, dx.merge(graphdef, params, rest).mean.value
    (2.0, 0.0)
    """
    refuse_state("split", node)
    graphdef, definition, leaves, cells = _read(node, graph)
    owners = owners_of(cells)
    if not filters:
        return graphdef, make_state(definition, leaves, owners=owners)
    return graphdef, *split_leaves(definition, leaves, filters, "split", is_exhaustive=True, owners=owners)


def _read(node: Any, graph: bool | None) -> tuple[GraphDef[Any], StateDef, list[Any], list[Cell]]:
    """The GraphDef of a graph, the definition and leaves of its State, and the cell of each leaf."""
    if captured_calls:
        return read_without_captures(node, graph)
    binding, values = bind_and_read(bind, node, graph)
    return binding.graphdef, binding.graphdef.definition, list(values), binding.cells


@overload
def unpack(node: N, a: Filter = ..., /, *, graph: bool | None = None) -> GraphState[N]: ...
@overload
def unpack(node: N, a: Filter, b: Filter, /, *, graph: bool | None = None) -> Tuple2[GraphState[N]]: ...
@overload
def unpack(node: N, a: Filter, b: Filter, c: Filter, /, *, graph: bool | None = None) -> Tuple3[GraphState[N]]: ...
@overload
def unpack(
    node: N, a: Filter, b: Filter, c: Filter, d: Filter, /, *, graph: bool | None = None
) -> Tuple4[GraphState[N]]: ...
@overload
def unpack(node: Any, a: Filter, /, *filters: Filter, graph: bool | None = None) -> Any: ...
def unpack(node: Any, *filters: Filter, graph: bool | None = None) -> Any:
    """Splits a graph into States that hold its GraphDef.

    Args:
      node, *filters, graph: as for `split`.

    Returns:
      The State, or one for each filter; `merge` takes all of them.

    Raises:
      FilterError: for leaves that no filter matches.

    >>> import declax as dx
    >>> m = dx.Module()
    >>> m.scale, m.mean = dx.Param(2.0), dx.BatchStat(0.0)
    >>> params, rest = dx.unpack(m, dx.Param, ...)
    >>> dx.merge(params, rest).mean.value
    0.0
    """
    graphdef, definition, leaves, cells = _read(node, graph)
    owners = owners_of(cells)
    if not filters:
        return _make_graph_state(definition, leaves, graphdef, owners)
    found = split_leaves(definition, leaves, filters, "unpack", is_exhaustive=True)
    states = tuple(_make_graph_state(part.definition, part.leaves, graphdef, owners) for part in found)
    return states if len(filters) > 1 else states[0]


@overload
def merge(graphdef: GraphDef[N], state: Mapping[Any, Any], /, *states: Mapping[Any, Any], copy: bool = False) -> N: ...
@overload
def merge(state: GraphState[N], /, *states: GraphState[N], copy: bool = False) -> N: ...
def merge(graphdef: Any, /, *states: Any, copy: bool = False) -> Any:
    """Makes a new graph; the inverse of `split`, and of `unpack`.

    Args:
      graphdef: the structure; States of `unpack` hold it themselves.
      *states: the values; together they have each leaf once.
      copy: whether the graph gets copies of the arrays; otherwise it shares them with the States.

    Raises:
      GraphError: for States of another GraphDef; lists each path.

    >>> import declax as dx
    >>> m = dx.Module()
    >>> m.scale = dx.Param(2.0)
    >>> dx.merge(*dx.split(m)).scale.value
    2.0
    """
    if isinstance(graphdef, GraphState):
        graphdef, states = graphdef.graphdef, (graphdef, *states)
    captures: dict[Path, Any] = {}
    if captured_calls:
        states, captures = take_captures(states)
    leaves, metadata = join(graphdef, states)
    leaves = checked_array_leaves(graphdef, leaves, "merge")
    if copy is not False and is_on("copy", copy):
        leaves = copy_leaves(leaves, graphdef, graphdef.definition.paths, "the State")
    root = build(graphdef, leaves, metadata)
    give_captures(root, captures)
    return root


GraphDef._merge = staticmethod(merge)


# --- parts and copies -----------------------------------------------------------------


@overload
def state(node: N, a: Filter = ..., /, *, copy: bool = False, graph: bool | None = None) -> State[N]: ...
@overload
def state(node: N, a: Filter, b: Filter, /, *, copy: bool = False, graph: bool | None = None) -> Tuple2[State[N]]: ...
@overload
def state(
    node: N, a: Filter, b: Filter, c: Filter, /, *, copy: bool = False, graph: bool | None = None
) -> Tuple3[State[N]]: ...
@overload
def state(
    node: N, a: Filter, b: Filter, c: Filter, d: Filter, /, *, copy: bool = False, graph: bool | None = None
) -> Tuple4[State[N]]: ...
@overload
def state(node: Any, a: Filter, /, *filters: Filter, copy: bool = False, graph: bool | None = None) -> Any: ...
def state(node: Any, *filters: Filter, copy: bool = False, graph: bool | None = None) -> Any:
    """The values of a graph: a snapshot, which later changes of the graph do not affect.

    Args:
      node: a model, or a container of models. For a State, such as gradients, the filters select parts.
      *filters: which leaves go into which State; leaves that no filter matches are left out.
      copy: whether the State owns its arrays. Otherwise it shares them with
        the graph, and loses them when those of the graph are donated.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Returns:
      The State, or one for each filter.

    Raises:
      FilterError: an argument is not a filter.
      GraphError: the node is not a model, or not a tree if a tree is required.

    >>> import declax as dx
    >>> m = dx.Module()
    >>> m.scale = dx.Param(2.0)
    >>> dx.state(m, dx.Param).to_pure_dict()
    {'scale': 2.0}
    """
    if isinstance(node, State):
        own: Any = node.filter(*filters) if filters else node
        return deepcopy(own) if copy is not False and is_on("copy", copy) else own
    graphdef, definition, leaves, cells = _read(node, graph)
    owners = owners_of(cells)
    if filters:
        found = split_leaves(definition, leaves, filters, "state", is_exhaustive=False, owners=owners)
    else:
        found = (make_state(definition, leaves, owners=owners),)
    if copy is not False and is_on("copy", copy):  # after the filters: only their leaves are copied
        of = type_name(type(node))
        found = tuple(make_state(s.definition, copy_leaves(s.leaves, graphdef, s.paths, of)) for s in found)
    return found if len(filters) > 1 else found[0]


@overload
def variables(node: N, a: Filter = ..., /, *, graph: bool | None = None) -> State[N]: ...
@overload
def variables(node: N, a: Filter, b: Filter, /, *, graph: bool | None = None) -> Tuple2[State[N]]: ...
@overload
def variables(node: N, a: Filter, b: Filter, c: Filter, /, *, graph: bool | None = None) -> Tuple3[State[N]]: ...
@overload
def variables(node: Any, a: Filter, /, *filters: Filter, graph: bool | None = None) -> Any: ...
def variables(node: Any, *filters: Filter, graph: bool | None = None) -> Any:
    """The Variables of a graph by path, in a State that shows them: a write to one changes the graph.

    `state` copies the values instead. An assignment to a path, as ``variables["scale"] = ...``, replaces the entry and
    not the Variable. What `State.map`, `State.merge`, `copy.copy` and JAX make of the State is a snapshot.

    Args:
      node: a model, or a container of models.
      *filters: which leaves go into which State; leaves that no filter takes are left out.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Returns:
      The State, or one for each filter.

    >>> import declax as dx
    >>> m = dx.Module()
    >>> m.scale = dx.Param(2.0)
    >>> for path, variable in dx.variables(m, dx.Param).flat_state():
    ...     variable.value = 3.0
    >>> m.scale.value
    3.0
    """
    whole: Any = node
    if not isinstance(node, State):
        _, definition, leaves, cells = _read(node, graph)
        whole = show_variables(definition, shown(cells, leaves), owners_of(cells))
    return whole.filter(*filters) if filters else whole


def graphdef(node: N, /, *, graph: bool | None = None) -> GraphDef[N]:
    """The structure of a graph.

    Args:
      node: a model, or a container of models.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Raises:
      GraphError: the node is not a model, or not a tree if a tree is required.

    >>> import declax as dx
    >>> dx.graphdef(dx.Module()) is dx.graphdef(dx.Module())
    True
    """
    return _read(node, graph)[0] if captured_calls else bind(node, graph).graphdef


def clone(node: N, variables: bool = True, *, arrays: bool | None = None, graph: bool | None = None) -> N:
    """A copy of a graph; objects that the graph shares are shared in the copy.

    Args:
      node: a model, or a container of models.
      variables: whether the Variables are copied too; otherwise the copy has the same Variables in new nodes.
      arrays: whether the arrays are copied too; None for the same as `variables`. NumPy arrays and refs, which can be
        written to, are copied with the Variables.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Raises:
      GraphError: arrays of Variables that are not copied were to be copied, or the node is not a tree.

    >>> import jax.numpy as jnp
    >>> import declax as dx
    >>> m = dx.Module()
    >>> m.scale = dx.Param(jnp.ones(2))
    >>> dx.clone(m).scale.value is m.scale.value
    False
    >>> dx.clone(m, variables=False).scale is m.scale
    True
    """
    has_new_variables = variables is True or is_on("variables", variables)
    has_new_arrays = is_on("arrays", arrays, lambda: has_new_variables)
    if has_new_arrays and not has_new_variables:
        raise GraphError(
            "clone", "copies of arrays require copies of their Variables", fix="variables=True, arrays=True"
        )
    binding, values = bind_and_read(bind, node, graph)
    leaves = list(values)
    root: N
    if has_new_arrays:
        graphdef = binding.graphdef
        leaves = copy_leaves(leaves, graphdef, graphdef.definition.paths, type_name(type(node)))
    elif has_new_variables:  # which own what can be written to in place
        leaves = copy_mutable(leaves)
    own = None if has_new_variables else binding.cells
    slots = build_slots(binding.graphdef, leaves, variables=own, orders=binding.orders)
    blueprint = blueprint_of(binding.graphdef)
    for original, slot in zip(binding.objects(), blueprint.indexed, strict=True):
        if isinstance(original, Pytree) and RECORD_KEY in original.__dict__:
            record = original.__dict__[RECORD_KEY].unseal(original.__dict__)
            slots[slot].__dict__[RECORD_KEY] = record.seal(slots[slot].__dict__)
    root = slots[blueprint.root]
    return root


# --- calls of split graphs ---------------------------------------------------------------


_Chain: TypeAlias = tuple[tuple[Any, bool], ...]
"""The way to a method: names of attributes, which are True, and indexes."""


class Caller(Generic[R]):
    """The proxy of `call`: attributes and indexes lead to a method; a call of it calls that method.

    It has no public attributes, so that all those of the model can be reached.
    """

    __slots__ = ("_caller__chain", "_caller__parts")

    _caller__parts: Sequence[Any]
    _caller__chain: _Chain

    def __init__(self, parts: Sequence[Any], chain: _Chain = ()) -> None:
        self._caller__parts = parts
        self._caller__chain = chain

    def __getattr__(self, name: str) -> Caller[R]:
        if name.startswith("__") and name.endswith("__"):
            problem, fix = "special methods are not reached", "graphdef.merge(state), and call it there"
            raise MissingAttributeError(f"call(...).{name}", problem, fix=fix)
        return Caller(self._caller__parts, (*self._caller__chain, (name, True)))

    def __getitem__(self, key: Any) -> Caller[R]:
        return Caller(self._caller__parts, (*self._caller__chain, (key, False)))

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, R]:
        """Calls the method on a new graph; the result, and the graph after the call, split."""
        parts = self._caller__parts
        root = function = merge(*parts)
        for key, is_attribute in self._caller__chain:
            function = getattr(function, key) if is_attribute else function[key]
        if not callable(function) or isinstance(function, Variable):
            raise GraphError(
                repr(self),
                "this is not callable",
                expected="a method, or a module with __call__",
                got=describe(function),
                fix="graphdef.merge(state), to read it",
            )
        output = function(*args, **kwargs)
        after: Any = unpack(root) if isinstance(parts[0], GraphState) else split(root)
        return output, after

    def __repr__(self) -> str:
        keys = [f".{key}" if is_attribute else f"[{key!r}]" for key, is_attribute in self._caller__chain]
        return f"call(...){''.join(keys)}"


@overload
def call(
    graphdef_state: tuple[GraphDef[N], State[Any], *tuple[State[Any], ...]], /
) -> Caller[tuple[GraphDef[N], State[N]]]: ...
@overload
def call(graphdef_state: GraphState[N], /) -> Caller[GraphState[N]]: ...
@overload
def call(graphdef_state: tuple[GraphState[N], ...], /) -> Caller[GraphState[N]]: ...
def call(graphdef_state: Any, /) -> Caller[Any]:
    """Calls a method of a split graph.

    The result represents the root: attributes and indexes lead to a method of
    a part, and a call calls it on a new graph. This works under `jax.jit`.

    Args:
      graphdef_state: the result of `split` or `unpack`. There may be several States; a call returns one.

    Returns:
      A proxy. A call of it returns ``(output, (graphdef, state))`` or, for States of `unpack`, ``(output, state)``.

    Raises:
      GraphError: for other arguments and, at the call, for States that do not
        fit and for an attribute that is not callable.

    >>> import declax as dx
    >>> class Counter(dx.Module):
    ...     def __init__(self):
    ...         self.count = dx.Variable(0)
    ...     def increment(self, by):
    ...         self.count += by
    ...         return self.count.value
    >>> counters = dx.split({"a": Counter(), "b": Counter()})
    >>> output, counters = dx.call(counters)["b"].increment(2)
    >>> output, counters[1].to_pure_dict()
    (2, {'a': {'count': 0}, 'b': {'count': 2}})
    """
    parts = graphdef_state if isinstance(graphdef_state, (tuple, list)) else (graphdef_state,)
    is_unpacked = bool(parts) and all(isinstance(part, GraphState) for part in parts)
    if not is_unpacked and (len(parts) < 2 or not isinstance(parts[0], GraphDef)):
        raise GraphError(
            "call",
            "the argument is not a split graph",
            expected="(graphdef, state), as of dx.split, or the State of dx.unpack",
            got=describe(graphdef_state),
            fix="dx.call(dx.split(model)).method(...)",
        )
    return Caller(parts)


GraphDef._call = staticmethod(call)


def advise_param(node: Any, filter: object) -> str | None:
    """The line that makes a parameter of a plain array, where a filter for Params took nothing; None without one."""
    if filter not in (Param, is_trainable) or not isinstance(node, Pytree):
        return None
    plain = (path for path, value in state(node)._read_pairs() if isinstance(value, (jax.Array, np.ndarray)))
    path = next(plain, None)
    return f"self.{format_path(path)} = dx.Param(...)        # it is a plain array" if path else None
