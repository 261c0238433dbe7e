"""`update`: what fits is written, after all checks. And how the States of `merge` go into the order of a graph."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal, TypeAlias, TypedDict, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from typing_extensions import Unpack

from declax import _jax
from declax._classes.pytree import Pytree
from declax._graph.binding import Binding, bind
from declax._graph.cells import are_variables, publish
from declax._graph.copying import are_of_others, copy_leaves
from declax._graph.fit import (
    COMPLETE,
    MERGE,
    REPORT,
    STRICT,
    UPDATE,
    Difference,
    Fit,
    Pairing,
    Rules,
    Target,
    compare,
    pairing_of,
)
from declax._graph.flattening import GraphDef
from declax._graph.nodes import Kind, children_of, is_number, is_ref, kind_of, put_in_container
from declax._graph.sown import captured_calls, take_captures
from declax._graph.unflattening import BATCH, blueprint_of
from declax._modes import is_on
from declax._state.definition import LeafDef, StateDef
from declax._state.states import State, as_state
from declax._tree import epoch
from declax._tree.attributes import wrong_trace
from declax._tree.layout import TRACE_KEY
from declax._typing import Path
from declax._variables.placement import beside, is_committed
from declax._variables.variable import Variable, set_raw, write_all_raw
from declax._variables.variable import _set_metadata as set_metadata
from declax.errors import GraphError, describe, format_path, type_name, with_article, written_path

UpdateReport = Fit
"""The result of an `update` with ``strict=False``."""


class _Options(TypedDict, total=False):
    """The options of `update` that do not decide its type."""

    complete: bool
    graph: bool | None
    copy: bool


_Values: TypeAlias = Mapping[Any, Any]


@overload
def update(
    node: Any, state: _Values, /, *states: _Values, strict: Literal[True] | None = None, **options: Unpack[_Options]
) -> None: ...
@overload
def update(
    node: Any, state: _Values, /, *states: _Values, strict: Literal[False], **options: Unpack[_Options]
) -> Fit: ...
def update(
    node: Any,
    state: Mapping[Any, Any],
    /,
    *states: Mapping[Any, Any],
    complete: bool = False,
    strict: bool | None = None,
    graph: bool | None = None,
    copy: bool = True,
) -> Fit | None:
    """Puts values into an existing graph, in place.

    A State may have only some of the paths. Dtypes may differ; an array of NumPy in a dtype that JAX lacks, such as
    float64 without 64-bit numbers, is converted as JAX does it. If several States have a path, the last one counts. A
    ref of the graph stays, and is written to in its own dtype. An array that is committed to devices gives its place to
    a new one that is not.

    Args:
      node: a model, or a container of models.
      state, *states: the values; the graph shares their arrays from then on, but for those of another model.
      complete: whether each leaf of the graph must get a value.
      strict: True demands a value of the same dtype for each leaf. False takes the values that fit, and returns a
        `Fit`.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.
      copy: whether arrays that another living model has too are copied, as those of ``dx.state(other)``, so that a
        function that donates one model leaves the other alone. Nothing is copied in a trace.

    Raises:
      GraphError: for unknown paths, other kinds of Variables and other shapes,
        all of which it lists; for new values in tuples. Nothing is changed. With ``strict=False``, for a State of which
        no path is in the graph.
      TraceContextError: for Variables and nodes of another trace level. Nothing is changed.

    >>> import declax as dx
    >>> m = dx.Module()
    >>> m.scale = dx.Param(2.0)
    >>> dx.update(m, {"scale": 3.0})
    >>> m.scale.value
    3.0
    >>> print(dx.update(m, {"scale": 4.0, "shfit": 1.0}, strict=False))
    taken: 1 of 1 leaves
    unexpected:
      shfit: there is no such path
    """
    binding = bind(node, graph)
    definition = binding.graphdef.definition
    given = [as_state(s) for s in (state, *states)]
    if captured_calls:
        given = list(take_captures(given)[0])
    pairings = [pairing_of(definition, s.definition) for s in given]
    foreign: tuple[int, ...] = ()  # the States whose arrays are copied
    if copy is True or is_on("copy", copy):
        for number, each in enumerate(given):
            if each._owners and _are_of_others(each, binding):
                foreign = (*foreign, number)
    rules = UPDATE
    if strict is not None or complete is not False:
        rules = _rules_of(complete, strict)
    elif len(given) == 1 and _update_at_once(binding, pairings[0], given[0].leaves, is_copied=foreign != ()):
        return None
    target = Target(definition.paths, binding.read(), definition.leaf_defs)
    fit = compare(target, list(zip(pairings, [s.leaves for s in given], strict=True)), rules)
    fix = "dx.update(model, state, strict=False)        # takes what fits, and returns a report"
    _check("update", fit, fix, strict=rules is not REPORT)
    writes = _writes_of(target.values, fit, given)
    if foreign:
        places = [position for position, (number, _) in fit.sources.items() if number in foreign]
        new, paths = [writes[position][0] for position in places], [definition.paths[position] for position in places]
        copied = copy_leaves(new, binding.graphdef, paths, "the State")
        writes |= {position: (leaf, writes[position][1]) for position, leaf in zip(places, copied, strict=True)}
    _apply_writes(node, binding, target.values, writes)
    return fit if rules is REPORT else None


def _check(where: str, fit: Fit, fix: str | None = None, *, strict: bool = True) -> None:
    if fit.is_refused(strict=strict):
        problem = f"the State does not fit the graph at {fit.count}"
        raise GraphError(where, problem, got=fit.listed, fix=fix if strict else None)


def _rules_of(complete: Any, strict: Any) -> Rules:
    is_complete, is_strict = is_on("complete", complete), None if strict is None else is_on("strict", strict)
    if is_strict is False:
        return REPORT
    return STRICT if is_strict else COMPLETE if is_complete else UPDATE


_raw_value = attrgetter("_raw")
_shape = attrgetter("shape")
_is_committed = attrgetter("committed")


def _are_of_others(state: State[Any], binding: Binding) -> bool:
    """Whether another model has the arrays of a State too, and an update outside of all traces may copy them."""
    return _jax.current_trace() is _jax.TOP and are_of_others(state._owners, binding.cells)


def _update_at_once(binding: Binding, pairing: Pairing, new: list[Any], *, is_copied: bool) -> bool:
    """Sets arrays in Variables of the same kinds and metadata; False, with nothing done, in all other cases."""
    if not (pairing.fits and pairing.keeps_metadata) or binding.trace_token is not _jax.current_trace():
        return False
    variables: list[Any] = binding.cells
    if not pairing.is_whole:
        variables = [variables[position] for position in pairing.pairs.values()]
    if not (binding.is_kept or are_variables(variables)):
        return False
    are_many = jax.device_count() > 1  # devices
    old: list[Any] = []  # dies when all are written: what dies may run code of users
    for start in range(0, len(new), BATCH):  # what a batch touches stays in the caches of the processor
        before, after = list(map(_raw_value, variables[start : start + BATCH])), new[start : start + BATCH]
        if not all(map(_is_numeric_class, {*map(type, before), *map(type, after)})):
            return False
        if list(map(_shape, before)) != list(map(_shape, after)):
            return False
        if are_many and not all(map(_is_committed, after)) and any(map(_is_committed, before)):
            return False
        old += before
    if is_copied:
        paths = binding.graphdef.definition.paths
        new = copy_leaves(new, binding.graphdef, [paths[position] for position in pairing.pairs.values()], "the State")
    write_all_raw(variables, new)
    return True


@functools.cache
def _is_numeric_class(cls: type) -> bool:
    """Whether instances are arrays of numbers with a buffer: neither tracers nor random keys."""
    return issubclass(cls, jax.Array) and not issubclass(cls, (Tracer, type(jax.random.key(0))))


_Writes = dict[int, tuple[Any, LeafDef]]
"""New values by the position of the leaf, each with the kind and metadata that it comes with."""


def _writes_of(old: Sequence[Any], fit: Fit, given: Sequence[State[Any]]) -> _Writes:
    """The values that fit, where and as the graph takes them."""
    writes: _Writes = {}
    for position, (number, index) in fit.sources.items():
        leaf = given[number].leaves[index]
        if is_ref(leaf) and not is_ref(old[position]):
            leaf = leaf[...]  # a ref lends its value
        leaf = _as_jax_has_it(old[position], leaf)
        leaf = leaf if is_committed(leaf) else beside(old[position], leaf)
        writes[position] = (leaf, given[number].definition.leaf_defs[index])
    return writes


def _as_jax_has_it(old: Any, new: Any) -> Any:
    """An array of NumPy in a dtype that JAX lacks, such as float64, as JAX converts it, where JAX had an array."""
    if not isinstance(old, jax.Array) or not isinstance(new, (np.ndarray, np.generic)):
        return new
    return new if jax.dtypes.canonicalize_dtype(new.dtype) == new.dtype else jnp.asarray(new)


def _apply_writes(root: Any, binding: Binding, old: Sequence[Any], writes: _Writes) -> None:
    """Sets the values, after all checks."""
    cells, paths = binding.cells.at(tuple(writes)), binding.graphdef.definition.paths
    views = cells.check("update")
    in_refs = _take_refs(old, writes)
    contained = blueprint_of(binding.graphdef).contained
    places = [
        (*place_of(root, paths[i]), _in_container(leaf) if i in contained else leaf)
        for cell, (i, (leaf, _)) in zip(cells, writes.items(), strict=True)
        if leaf is not old[i] and not isinstance(cell, Variable)
    ]
    for ref, content in in_refs:
        ref[...] = content
    _set_all(places)
    for cell, (leaf, leaf_def) in zip(cells, writes.values(), strict=True):
        if not isinstance(cell, Variable):
            continue
        set_raw(cell, leaf)
        if leaf_def is not None and cell._metadata is not leaf_def[1]:
            set_metadata(cell, leaf_def[1])
            epoch.advance()
    publish(views)


def _take_refs(values: Sequence[Any], writes: _Writes) -> list[tuple[Any, Any]]:
    """The refs of the graph with their new content, in their dtypes; in the writes, the refs take its place."""
    in_refs: list[tuple[Any, Any]] = []
    for position, (new, leaf_def) in tuple(writes.items()):
        old = values[position]
        inside = jax.tree.leaves(old) if kind_of(old) is Kind.CONTAINER else (old,)
        if not any(isinstance(leaf, jax.Ref) for leaf in inside):
            continue
        pairs = list(zip(inside, jax.tree.leaves(new), strict=True))
        in_refs += [
            (ref, jnp.asarray(content[...] if isinstance(content, jax.Ref) else content, ref.dtype))
            for ref, content in pairs
            if isinstance(ref, jax.Ref) and content is not ref
        ]
        kept = [a if isinstance(a, jax.Ref) else b for a, b in pairs]
        writes[position] = jax.tree.unflatten(jax.tree.structure(old), kept), leaf_def
    return in_refs


def _in_container(value: Any) -> Any:
    """A leaf as it is stored in a container, where numbers are static."""
    return jnp.asarray(value) if kind_of(value) is Kind.STATIC else value


def _set_all(places: Sequence[tuple[Any, Any, Any]]) -> None:
    """Sets the value of each owner and key; restores the old ones if a user's class raises."""
    done: list[tuple[Any, Any, Any]] = []
    try:
        for owner, key, leaf in places:
            done.append((owner, key, _child_at(owner, key)))
            _set(owner, key, leaf)
    except BaseException:
        for owner, key, old in reversed(done[:-1]):
            _set(owner, key, old)
        raise


def _set(owner: Any, key: Any, leaf: Any) -> None:
    if isinstance(key, str) and isinstance(owner, Pytree):
        setattr(owner, key, leaf)
    else:
        put_in_container(owner, key, leaf)


def place_of(above: Any, path: Path, depth: int | None = None) -> tuple[Any, Any]:
    """The holder of the leaf at a path, and its key there; raises if it cannot be set or removed there."""
    holder, node = above, None
    is_fixed = not path
    for key in path[0 if depth is None else -1 - depth : -1]:
        node = holder if isinstance(holder, Pytree) else node
        child = _child_at(holder, key)
        is_fixed = not isinstance(child, Pytree) and (is_fixed or _child_at(holder, key) is not child)
        holder = child
    node = holder if isinstance(holder, Pytree) else node
    if node is not None and node.__dict__.get(TRACE_KEY, _jax.TOP) is not _jax.current_trace():
        raise wrong_trace(node, path[-1])
    is_fixed |= holder._pytree__info.is_frozen if isinstance(holder, Pytree) else not hasattr(holder, "__setitem__")
    if is_fixed:
        problem = f"this leaf sits in {with_article(type_name(type(holder)))}, which cannot be changed in place"
        raise GraphError(format_path(path), problem, fix="dx.List([...]), or a plain list")
    return holder, path[-1]


def _child_at(node: Any, key: Any) -> Any:
    """The child of a node or container under a key."""
    if isinstance(node, Pytree):
        return node.__dict__[key]
    if node.__class__ in _BY_KEY:
        return node[key]
    keys, children = zip(*children_of(node), strict=True)
    return children[keys.index(key)]


_BY_KEY = frozenset({list, tuple, dict})


# --- the States of `merge` ---------------------------------------------------------

KEPT_JOINS = 64
"""How many ways to join States a GraphDef remembers."""


def join(graphdef: GraphDef[Any], states: Sequence[Any]) -> tuple[list[Any], list[Any] | None]:
    """The leaves of States in the order of a GraphDef, and the metadata where some differs from its own."""
    if not isinstance(graphdef, GraphDef):
        fix = "dx.merge(graphdef, state)"
        raise GraphError("merge", "the first argument is not a GraphDef", got=describe(graphdef), fix=fix)
    given = [as_state(s) for s in states]
    if len(given) == 1 and given[0].definition is graphdef.definition:
        return given[0].leaves, None
    key = tuple(s.definition for s in given)
    plan = graphdef._joins.get(key)
    if plan is None:
        plan = _plan_join(graphdef.definition, key)
        if len(graphdef._joins) >= KEPT_JOINS:
            graphdef._joins.clear()
        graphdef._joins[key] = plan
    order, metadata = plan
    flat: list[Any] = []
    for state in given:
        flat.extend(state.leaves)
    return [flat[i] for i in order], metadata


def _plan_join(graph: StateDef, given: Sequence[StateDef]) -> tuple[tuple[int, ...], list[Any] | None]:
    """The order of the joined leaves, and the metadata of the Variables; checks that each leaf comes once."""
    fit = compare(Target(graph.paths, None, graph.leaf_defs), [(pairing_of(graph, s), None) for s in given], MERGE)
    _check("merge", fit)
    starts = [0, *itertools.accumulate(len(definition.paths) for definition in given)]
    order = {p: (starts[n] + i, given[n].leaf_defs[i]) for p, (n, i) in fit.sources.items()}
    metadata: list[Any] = []
    is_other = False
    for position, leaf_def in enumerate(graph.leaf_defs):
        if leaf_def is not None:
            found = order[position][1] or leaf_def
            metadata.append(found[1])
            is_other |= found != leaf_def
    return tuple(order[i][0] for i in range(len(graph.paths))), metadata if is_other else None


def checked_array_leaves(graphdef: GraphDef[Any], leaves: list[Any], where: str) -> list[Any]:
    """The leaves, of which those without a Variable are checked; numbers in containers become arrays."""
    blueprint = blueprint_of(graphdef)
    if not blueprint.array_leaves:
        return leaves
    checked = list(leaves)
    mismatches: list[Difference] = []
    for _, position in blueprint.array_leaves:
        value = leaves[position]
        if kind_of(value) not in (Kind.LEAF, Kind.REF) and not is_number(value):
            path = written_path(graphdef.definition.paths[position])
            mismatches.append(Difference(path, "an array", describe(value)))
        elif position in blueprint.contained:
            checked[position] = _in_container(value)
    _check(where, Fit(tuple(mismatches)))
    return checked
