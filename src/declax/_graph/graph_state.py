"""States that have their structure with them."""

from __future__ import annotations

from typing import Any, TypeVar, overload

from declax._filters import Filter
from declax._graph.binding import bind
from declax._graph.flattening import GraphDef
from declax._state.definition import StateDef
from declax._state.states import State, fill_state, register_state, split_leaves
from declax._typing import Tuple2, Tuple3, Tuple4
from declax.errors import GraphError

N = TypeVar("N")
M = TypeVar("M", covariant=True)


class GraphState(State[M]):
    """A State with the GraphDef of the graph that it comes from; `merge` needs nothing else.

    As a pytree it is what the State is; the GraphDef is static.

    Attributes:
      graphdef: the structure of the whole graph.

    >>> from declax._module.module import Module
    >>> from declax._variables.variable import Param
    >>> m = Module()
    >>> m.scale = Param(2.0)
    >>> found = unpack(m)
    >>> found["scale"].value, found.graphdef
    (2.0, GraphDef(Module, nodes=1, leaves=1))
    """

    __slots__ = ("_graphdef",)
    _graphdef: GraphDef[Any]

    @property
    def graphdef(self) -> GraphDef[M]:
        """The structure of the whole graph."""
        return self._graphdef

    @property
    def _recipe(self) -> tuple[Any, ...]:
        return make_graph_state, self._graphdef


def refuse_state(where: str, node: object) -> None:
    """Refuses a State where a model is meant: its leaves are raw values, so that filters by kind would find nothing."""
    if node.__class__ is State or node.__class__ is GraphState:
        raise GraphError(
            where,
            "a State is the values of a graph, and no graph itself",
            got=repr(type(node).__name__),
            fix="state.filter(dx.Param)        # or state.split(dx.Param, ...)",
        )


_set_graphdef = GraphState._graphdef.__set__  # type: ignore[attr-defined]  # a slot descriptor
_new = object.__new__


def make_graph_state(graphdef: GraphDef[Any], definition: StateDef, leaves: list[Any]) -> GraphState[Any]:
    """The GraphState with these leaves, whose list it takes over."""
    made: GraphState[Any] = _new(GraphState)
    fill_state(made, definition, leaves)
    _set_graphdef(made, graphdef)
    return made


@overload
def unpack(node: N, /, *, graph: bool | None = None) -> GraphState[N]: ...
@overload
def unpack(node: N, a: Filter, /, *, graph: bool | None = None) -> GraphState[N]: ...
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
def unpack(node: Any, /, *filters: Filter, graph: bool | None = None) -> Any:
    """Takes a graph apart into States that have its GraphDef with them.

    Args:
      node: a model, or a container of models.
      *filters: which leaves go into which State, as in `split`.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Returns:
      The State, or one for each filter; `merge` takes all of them.

    Raises:
      FilterError: for leaves that no filter takes.

    >>> from declax._module.module import Module
    >>> from declax._variables.variable import BatchStat, Param
    >>> from declax._graph.api import merge
    >>> m = Module()
    >>> m.scale, m.mean = Param(2.0), BatchStat(0.0)
    >>> params, rest = unpack(m, Param, ...)
    >>> merge(params, rest).mean.value
    0.0
    """
    binding = bind(node, graph)
    graphdef, leaves = binding.graphdef, list(binding.values())
    if not filters:
        return make_graph_state(graphdef, graphdef.definition, leaves)
    found = split_leaves(graphdef.definition, leaves, filters, "unpack", is_exhaustive=True)
    states = tuple(make_graph_state(graphdef, part.definition, part.leaves) for part in found)
    return states if len(filters) > 1 else states[0]


register_state(GraphState)
