"""Graphs taken apart and put together, and copies of their arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from operator import attrgetter
from typing import Any, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from declax._classes.pytree import Pytree
from declax._filters import Filter
from declax._graph.binding import bind
from declax._graph.fit import checked_plain, join
from declax._graph.flattening import GraphDef
from declax._graph.graph_state import GraphState, refuse_state
from declax._graph.nodes import is_ref
from declax._graph.unflattening import build, build_slots, program_of
from declax._modes import is_on
from declax._state.states import State, like, make_state, split_leaves
from declax._tree.statuses import check_depth
from declax._typing import RECORD_KEY, Tuple2, Tuple3, Tuple4
from declax._variables.variable import Variable
from declax.errors import format_path

N = TypeVar("N")


@overload
def split(node: N, /, *, graph: bool | None = None) -> tuple[GraphDef[N], State[N]]: ...
@overload
def split(node: N, a: Filter, /, *, graph: bool | None = None) -> tuple[GraphDef[N], State[N]]: ...
@overload
def split(node: N, a: Filter, b: Filter, /, *, graph: bool | None = None) -> tuple[GraphDef[N], State[N], State[N]]: ...
@overload
def split(
    node: N, a: Filter, b: Filter, c: Filter, /, *, graph: bool | None = None
) -> tuple[GraphDef[N], State[N], State[N], State[N]]: ...
@overload
def split(
    node: N, a: Filter, b: Filter, c: Filter, d: Filter, /, *, graph: bool | None = None
) -> tuple[GraphDef[N], State[N], State[N], State[N], State[N]]: ...
@overload
def split(
    node: N, a: Filter, b: Filter, c: Filter, d: Filter, e: Filter, /, *, graph: bool | None = None
) -> tuple[GraphDef[N], State[N], State[N], State[N], State[N], State[N]]: ...
@overload
def split(
    node: N, a: Filter, b: Filter, c: Filter, d: Filter, e: Filter, f: Filter, /, *, graph: bool | None = None
) -> tuple[GraphDef[N], State[N], State[N], State[N], State[N], State[N], State[N]]: ...
@overload
def split(
    node: N,
    a: Filter,
    b: Filter,
    c: Filter,
    d: Filter,
    e: Filter,
    f: Filter,
    g: Filter,
    /,
    *,
    graph: bool | None = None,
) -> tuple[GraphDef[N], State[N], State[N], State[N], State[N], State[N], State[N], State[N]]: ...
@overload
def split(
    node: N,
    a: Filter,
    b: Filter,
    c: Filter,
    d: Filter,
    e: Filter,
    f: Filter,
    g: Filter,
    h: Filter,
    /,
    *,
    graph: bool | None = None,
) -> tuple[GraphDef[N], State[N], State[N], State[N], State[N], State[N], State[N], State[N], State[N]]: ...
@overload
def split(node: Any, a: Filter, /, *filters: Filter, graph: bool | None = None) -> tuple[Any, ...]: ...
def split(node: Any, /, *filters: Filter, graph: bool | None = None) -> Any:
    """Takes a graph apart.

    The States share their arrays with the graph.

    Args:
      node: a model, or a container of models.
      *filters: which leaves go into which State; the first filter that takes
        a leaf has it. One State of all leaves where none is given.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Returns:
      The GraphDef and the States.

    Raises:
      FilterError: for leaves that no filter takes.
      GraphError: for a graph where a tree is asked for; names both paths of
        what is shared.

    >>> from declax._module.module import Module
    >>> from declax._variables.variable import BatchStat, Param
    >>> m = Module()
    >>> m.scale, m.mean = Param(2.0), BatchStat(0.0)
    >>> graphdef, params, rest = split(m, Param, ...)
    >>> params["scale"].value, merge(graphdef, params, rest).mean.value
    (2.0, 0.0)
    """
    refuse_state("split", node)
    binding = bind(node, graph)
    graphdef = binding.graphdef
    leaves = list(binding.values())
    if not filters:
        return graphdef, make_state(graphdef.definition, leaves)
    return graphdef, *split_leaves(graphdef.definition, leaves, filters, "split", is_exhaustive=True)


@overload
def merge(graphdef: GraphDef[N], state: Mapping[Any, Any], /, *states: Mapping[Any, Any], copy: bool = False) -> N: ...
@overload
def merge(state: GraphState[N], /, *states: GraphState[N], copy: bool = False) -> N: ...
def merge(graphdef: Any, /, *states: Any, copy: bool = False) -> Any:
    """Makes a new graph; the inverse of `split`, and of `unpack`.

    Args:
      graphdef: the structure; not needed where States have it with them, as
        those of `unpack` do.
      *states: the values; together they have each leaf once.
      copy: whether the graph gets copies of the arrays; it shares them with
        the States otherwise.

    Returns:
      The root of the new graph.

    Raises:
      GraphError: for States that are not of this GraphDef; lists each path.
        Also for a `copy` that is no flag.

    >>> from declax._module.module import Module
    >>> from declax._variables.variable import Param
    >>> m = Module()
    >>> m.scale = Param(2.0)
    >>> merge(*split(m)).scale.value
    2.0
    """
    if isinstance(graphdef, GraphState):
        graphdef, states = graphdef.graphdef, (graphdef, *states)
    leaves, metadata = join(graphdef, states)
    if program_of(graphdef).has_plain:
        leaves = checked_plain(graphdef, leaves)
    if copy is not False and is_on("copy", copy):
        leaves = copy_leaves(leaves, graphdef)
    return build(graphdef, leaves, metadata)


GraphDef._merge = staticmethod(merge)


@overload
def state(node: N, /, *, copy: bool = False, graph: bool | None = None) -> State[N]: ...
@overload
def state(node: N, a: Filter, /, *, copy: bool = False, graph: bool | None = None) -> State[N]: ...
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
def state(node: Any, /, *filters: Filter, copy: bool = False, graph: bool | None = None) -> Any:
    """The values of a graph: a snapshot, which later changes of the graph do not touch.

    Args:
      node: a model, or a container of models. A State, such as gradients, is
        its own state, of which `filters` take parts.
      *filters: which leaves go into which State; leaves that none takes are
        left out.
      copy: whether the State owns its arrays. Otherwise it shares them with
        the graph, and they are gone when those of the graph are donated.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Returns:
      The State, or one for each filter.

    Raises:
      GraphError: for a graph where a tree is asked for, and for a `copy` that
        is no flag.

    >>> from declax._module.module import Module
    >>> from declax._variables.variable import Param
    >>> m = Module()
    >>> m.scale = Param(2.0)
    >>> state(m, Param).to_pure_dict()
    {'scale': 2.0}
    """
    if isinstance(node, State):
        own: Any = node.filter(*filters) if filters else node
        return copy_states(own) if copy is not False and is_on("copy", copy) else own
    binding = bind(node, graph)
    graphdef, leaves = binding.graphdef, list(binding.values())
    if filters:
        found = split_leaves(graphdef.definition, leaves, filters, "state", is_exhaustive=False)
    else:
        found = (make_state(graphdef.definition, leaves),)
    if copy is not False and is_on("copy", copy):  # what is left out is not copied
        found = tuple(make_state(s.definition, copy_leaves(s.leaves, graphdef)) for s in found)
    return found if len(filters) > 1 else found[0]


variables = state


def graphdef(node: N, /, *, graph: bool | None = None) -> GraphDef[N]:
    """The structure of a graph.

    Args:
      node: a model, or a container of models.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    >>> from declax._module.module import Module
    >>> m, n = Module(), Module()
    >>> graphdef(m) is graphdef(n)
    True
    """
    return bind(node, graph).graphdef


def clone(node: N, variables: bool = True, *, graph: bool | None = None) -> N:
    """A copy of a graph, in which is shared what is shared in the graph.

    Args:
      node: a model, or a container of models.
      variables: whether the Variables, and with them all arrays, are copied
        too; otherwise the copy has the same Variables in new nodes.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Returns:
      The copy. It owns its arrays: it lives on when those of the original are
      donated.

    Raises:
      GraphError: for a graph where a tree is asked for, and for what is no flag
        in the place of `variables`.

    >>> import jax.numpy as jnp
    >>> from declax._module.module import Module
    >>> from declax._variables.variable import Param
    >>> m = Module()
    >>> m.scale = Param(jnp.ones(2))
    >>> n = clone(m)
    >>> n.scale.value is m.scale.value
    False
    >>> clone(m, variables=False).scale is m.scale
    True
    """
    binding = bind(node, graph)
    leaves = list(binding.values())
    root: N
    if variables is True or is_on("variables", variables):
        slots = build_slots(binding.graphdef, copy_leaves(leaves, binding.graphdef))
    else:
        slots = _slots_with_variables(binding.graphdef, leaves, binding.variables)
    program = program_of(binding.graphdef)
    for original, slot in zip(binding.objects(), program.indexed, strict=True):
        if isinstance(original, Pytree) and RECORD_KEY in original.__dict__:
            record = original.__dict__[RECORD_KEY].unseal(original.__dict__)
            slots[slot].__dict__[RECORD_KEY] = record.seal(slots[slot].__dict__)
    root = slots[program.root]
    return root


def with_new_nodes(graphdef: GraphDef[N], leaves: Sequence[Any], boxes: list[Variable[Any] | None]) -> N:
    """A graph of new nodes that has existing Variables."""
    root: N = _slots_with_variables(graphdef, leaves, boxes)[program_of(graphdef).root]
    return root


def _slots_with_variables(
    graphdef: GraphDef[Any], leaves: Sequence[Any], boxes: list[Variable[Any] | None]
) -> list[Any]:
    return build_slots(graphdef, leaves, variables=[boxes[leaf] for leaf in program_of(graphdef).variable_leaves])


__all__ = ["clone", "graphdef", "merge", "split", "state", "variables", "with_new_nodes"]


CHUNK = 256
"""How many arrays one program copies; a longer one takes longer to compile than it saves."""

_aval = attrgetter("aval")
_sharding = attrgetter("sharding")
_is_committed = attrgetter("committed")
_is_concrete: dict[type, bool] = {}


def copy_leaves(leaves: Sequence[Any], graphdef: GraphDef[Any]) -> list[Any]:
    """Leaves that own their arrays.

    One compiled program copies many arrays at a tenth of the cost of copying
    each by itself. It has to be compiled, so that a graph whose arrays are
    copied for the first time, or have other shapes than last time, goes without.
    """
    copied = list(leaves)
    if all(map(_is_array_class, set(map(type, copied)))):
        return _copy_arrays(copied, graphdef)
    places = [place for place, leaf in enumerate(leaves) if _is_array_class(type(leaf))]
    made = _copy_arrays([copied[place] for place in places], graphdef)
    for place, array in zip(places, made, strict=True):
        copied[place] = array
    refs: dict[int, Any] = {}
    paths = graphdef.definition.paths if len(copied) == graphdef.num_leaves else None
    for place in set(range(len(copied))).difference(places):
        check_depth(copied[place], f"leaf {place}" if paths is None else format_path(paths[place]))
        copied[place] = jax.tree.map(lambda leaf: _copy_other(leaf, refs), copied[place])
    return copied


def _is_array_class(cls: type) -> bool:
    """Whether instances of a class are arrays of JAX that have a buffer."""
    found = _is_concrete.get(cls)
    if found is None:
        found = _is_concrete[cls] = issubclass(cls, jax.Array) and not issubclass(cls, Tracer)
    return found


def _copy_arrays(arrays: list[Any], graphdef: GraphDef[Any]) -> list[Any]:
    if len(arrays) < 2:
        return _copy_each(arrays)
    before, now = graphdef.copied, []
    copied: list[Any] = []
    for start in range(0, len(arrays), CHUNK):  # what is asked of an array and copying it, while it is in the cache
        chunk = arrays[start : start + CHUNK]
        avals = list(map(_aval, chunk))
        is_repeated = avals == before[start : start + CHUNK]
        now += avals
        copied += _copy_all(chunk) if is_repeated and _are_in_one_place(chunk) else _copy_each(chunk)
    graphdef.copied = now
    return copied


def _copy_each(arrays: list[Any]) -> list[Any]:
    copied: list[Any] = jax.device_put(arrays, may_alias=False)
    return copied


@jax.jit
def _copy_all(arrays: list[Any]) -> list[Any]:
    return [jnp.copy(array) for array in arrays]


def _are_in_one_place(arrays: list[Any]) -> bool:
    """Whether one program can copy all and leave each where it is: in the default memory of one device."""
    shardings = list(map(_sharding, arrays))
    if len(set(map(id, shardings))) > 1:  # most are one object, for each shape
        shardings = list({id(sharding): sharding for sharding in shardings}.values())
    first = shardings[0]
    if not isinstance(first, jax.sharding.SingleDeviceSharding) or any(other != first for other in shardings):
        return False
    device: Any = next(iter(first.device_set))
    if first.memory_kind not in (None, device.default_memory().kind):
        return False
    return jax.device_count() == 1 or len(set(map(_is_committed, arrays))) == 1


def copy_states(states: Any) -> Any:
    """A State, or a tuple of States, that owns its arrays."""
    refs: dict[int, Any] = {}

    def copied(state: State[Any]) -> State[Any]:
        return like(state, jax.tree.map(lambda leaf: _copy_other(leaf, refs), state.leaves))

    return tuple(map(copied, states)) if isinstance(states, tuple) else copied(states)


def _copy_other(leaf: Any, refs: dict[int, Any]) -> Any:
    """A copy of what is no array of JAX by itself; one ref stays one."""
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    if is_ref(leaf):
        if id(leaf) not in refs:
            is_abstract = isinstance(leaf, jax.ShapeDtypeStruct)
            refs[id(leaf)] = copy(leaf) if is_abstract else jax.new_ref(leaf[...])
        return refs[id(leaf)]
    return jax.device_put(leaf, may_alias=False) if _is_array_class(type(leaf)) else leaf
