"""Puts the values of States into existing graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal, cast, overload

import jax
import jax.numpy as jnp
from jax.core import Tracer

from declax import _jax
from declax._classes.pytree import Pytree
from declax._graph.binding import Binding, bind
from declax._graph.fit import Fit, Mismatch, UpdateReport, explain, fit_of, in_container, shape_mismatches
from declax._graph.nodes import Kind, children_of, is_ref, kind_of, put_in_container
from declax._graph.unflattening import BATCH, check_marks, program_of
from declax._modes import is_on
from declax._state.definition import LeafDef
from declax._state.states import State, as_state
from declax._tree import epoch
from declax._tree.attributes import wrong_trace
from declax._tree.layout import TRACE_KEY
from declax._typing import Path
from declax._variables.variable import _set_metadata as set_metadata
from declax._variables.variable import set_all_raw, set_raw
from declax.errors import GraphError, format_path, type_name

_shape = attrgetter("shape")
_raw_value = attrgetter("_raw")


@overload
def update(
    node: Any,
    state: Mapping[Any, Any],
    /,
    *states: Mapping[Any, Any],
    complete: bool = False,
    strict: Literal[True] = True,
    graph: bool | None = None,
) -> None: ...
@overload
def update(
    node: Any,
    state: Mapping[Any, Any],
    /,
    *states: Mapping[Any, Any],
    complete: bool = False,
    strict: Literal[False],
    graph: bool | None = None,
) -> UpdateReport: ...
def update(
    node: Any,
    state: Mapping[Any, Any],
    /,
    *states: Mapping[Any, Any],
    complete: bool = False,
    strict: bool = True,
    graph: bool | None = None,
) -> UpdateReport | None:
    """Puts values into an existing graph, in place.

    A State may have only some of the paths. Dtypes may differ. Of several
    States that have a path, the last one counts. A ref of the graph stays, and
    is written to, in its own dtype.

    Args:
      node: a model, or a container of models.
      state, *states: the values; the graph shares their arrays from then on.
      complete: whether each leaf of the graph has to get a value.
      strict: False takes what fits, and leaves out what does not.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Returns:
      With ``strict=False``, what was taken, what did not fit and what got no
      value; None otherwise.

    Raises:
      GraphError: for unknown paths, other kinds of Variables and other shapes,
        all of which it lists, for new values in tuples, and for flags that are
        none; nothing is changed.
      TraceContextError: for Variables and nodes of another trace level; nothing
        is changed.

    >>> from declax._module.module import Module
    >>> from declax._variables.variable import Param
    >>> m = Module()
    >>> m.scale = Param(2.0)
    >>> update(m, State({"scale": Param(3.0)}))
    >>> m.scale.value
    3.0
    >>> print(update(m, State({"scal": Param(4.0)}), strict=False))
    taken: 0 of 1 values
    does not fit:
      scal: there is no such path; did you mean 'scale'?
    no value for:
      scale
    """
    binding = bind(node, graph)
    given = [as_state(s) for s in (state, *states)]
    if strict is True and complete is False:
        if len(given) == 1 and _update_at_once(binding, given[0]):
            return None
    else:
        strict, complete = is_on("strict", strict), is_on("complete", complete)
    writes, mismatches, taken = _collect(binding, given)
    missing = [p for i, p in enumerate(binding.graphdef.definition.paths) if i not in writes]
    if strict and (mismatches or (complete and missing)):
        lost = [Mismatch(path, "a value, since complete=True", "nothing") for path in missing] if complete else []
        fix = "dx.update(model, state, strict=False)        # takes what fits, and returns a report"
        raise explain("update", [*mismatches, *lost], fix)
    _apply(node, binding, writes)
    return None if strict else UpdateReport(tuple(taken), tuple(mismatches), tuple(missing))


def _update_at_once(binding: Binding, given: State[Any]) -> bool:
    """Sets arrays in Variables of the same kinds and metadata; False, with nothing done, where there is more to it."""
    fit = fit_of(binding.graphdef.definition, given.definition)
    if fit.faults or not fit.keeps_metadata or binding.mark is not _jax.current_trace():
        return False
    new = given.leaves
    variables = cast("list[Any]", binding.variables)
    if fit.positions is not None:
        variables = [variables[position] for position in fit.positions]
    if binding.plain is not None and any(variable is None for variable in variables):
        return False
    shapes = _shapes(list(map(_raw_value, variables)))
    if shapes is None or shapes != _shapes(new):
        return False
    set_all_raw(variables, new)
    return True


def _shapes(values: Sequence[Any]) -> list[Any] | None:
    """The shape of each, if all are arrays of numbers; numbers, trees, keys and refs are looked at one by one."""
    shapes: list[Any] = []
    for start in range(0, len(values), BATCH):
        batch = values[start : start + BATCH]
        if not all(map(_is_array_class, set(map(type, batch)))):
            return None
        shapes += map(_shape, batch)
    return shapes


_is_array: dict[type, bool] = {}


def _is_array_class(cls: type) -> bool:
    """Whether instances of a class are arrays of numbers, whatever else is true of them; numpy has others too."""
    found = _is_array.get(cls)
    if found is None:
        is_array = issubclass(cls, jax.Array) and not issubclass(cls, (Tracer, type(jax.random.key(0))))
        found = _is_array[cls] = is_array
    return found


def _is_ref(value: object) -> bool:
    return isinstance(value, jax.Ref)


_Writes = dict[int, tuple[Any, LeafDef]]


def _collect(binding: Binding, given: Sequence[State[Any]]) -> tuple[_Writes, list[Mismatch], list[Path]]:
    """What fits, by the position of the leaf; what does not; and the paths of what fits."""
    writes: _Writes = {}
    mismatches: list[Mismatch] = []
    taken: dict[Path, None] = {}
    old = binding.read()
    for values in given:
        definition, leaves = values.definition, values.leaves
        fit: Fit = fit_of(binding.graphdef.definition, definition)
        mismatches += fit.faults
        pairs = fit.pairs()
        misshapen = dict(shape_mismatches(definition, pairs, old, leaves))
        mismatches += misshapen.values()
        for index, position in pairs:
            if index not in misshapen:
                leaf = leaves[index]
                if is_ref(leaf) and not is_ref(old[position]):
                    leaf = leaf[...]  # a ref lends its value
                writes[position] = (leaf, definition.leaf_defs[index])
                taken[definition.paths[index]] = None
    return writes, mismatches, list(taken)


def _apply(root: Any, binding: Binding, writes: _Writes) -> None:
    """Sets the values, after all checks."""
    check_marks((binding.variables[position] for position in writes), "update")
    writes, in_refs = _apart_in_refs(binding, writes)
    plain = _plain_writes(root, binding, writes) if binding.plain is not None else []
    for ref, content in in_refs:
        ref[...] = content
    _set_all(plain)
    for position, (leaf, leaf_def) in writes.items():
        variable = binding.variables[position]
        if variable is None:
            continue
        set_raw(variable, leaf)
        if leaf_def is not None and variable._metadata is not leaf_def[1]:
            set_metadata(variable, leaf_def[1])
            epoch.advance()


def _set_all(places: Sequence[tuple[Any, Any, Any]]) -> None:
    """Sets the value of each owner and key; on an error of a user's class, what was set is set back."""
    done: list[tuple[Any, Any, Any]] = []
    try:
        for owner, key, leaf in places:
            done.append((owner, key, child_at(owner, key)))
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


def _apart_in_refs(binding: Binding, writes: _Writes) -> tuple[_Writes, list[tuple[Any, Any]]]:
    """The writes with the refs that there are as values; and what goes into those refs, in their dtypes."""
    kept = dict(writes)
    in_refs: list[tuple[Any, Any]] = []
    values = binding.read()
    for position, (new, leaf_def) in writes.items():
        old = values[position]
        inside = jax.tree.leaves(old) if kind_of(old) is Kind.CONTAINER else (old,)
        if not any(map(_is_ref, inside)):
            continue
        tree: Any = jax.tree.structure(old)
        if not _is_ref(old) and tree != jax.tree.structure(new):
            continue
        if binding.variables[position] is None:
            assert binding.plain is not None  # this leaf is no Variable's
            binding.plain.check(position)
        pairs = list(zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True))
        in_refs += [
            (ref, jnp.asarray(content[...] if _is_ref(content) else content, ref.dtype))
            for ref, content in pairs
            if _is_ref(ref) and content is not ref
        ]
        kept[position] = jax.tree.unflatten(tree, [a if _is_ref(a) else b for a, b in pairs]), leaf_def
    return kept, in_refs


def _plain_writes(root: Any, binding: Binding, writes: _Writes) -> list[tuple[Any, Any, Any]]:
    """Where new values of leaves without a Variable go: owner, key and value of each, checked."""
    old = binding.read()
    paths = binding.graphdef.definition.paths
    contained = program_of(binding.graphdef).contained
    return [
        (*place_of(root, paths[i]), in_container(leaf) if i in contained else leaf)
        for i, (leaf, _) in writes.items()
        if binding.variables[i] is None and leaf is not old[i]
    ]


def place_of(above: Any, path: Path, depth: int | None = None) -> tuple[Any, Any]:
    """What holds the leaf at a path, and under which key."""
    holder, node = above, None
    is_fixed = not path
    for key in path[0 if depth is None else -1 - depth : -1]:
        node = holder if isinstance(holder, Pytree) else node
        child = child_at(holder, key)
        is_fixed = not isinstance(child, Pytree) and (is_fixed or child_at(holder, key) is not child)
        holder = child
    node = holder if isinstance(holder, Pytree) else node
    if node is not None and node.__dict__.get(TRACE_KEY, _jax.TOP) is not _jax.current_trace():
        raise wrong_trace(node, path[-1])
    is_fixed |= holder._pytree__is_frozen if isinstance(holder, Pytree) else not hasattr(holder, "__setitem__")
    if is_fixed:
        raise GraphError(
            format_path(path),
            f"this leaf sits in a {type_name(type(holder))}, which cannot be changed in place",
            fix="dx.List([...]), or a plain list",
        )
    return holder, path[-1]


def child_at(node: Any, key: Any) -> Any:
    """The child of a node or container under a key; of a tree that JAX takes apart, what it gives this time."""
    if isinstance(node, Pytree):
        return node.__dict__[key]
    if node.__class__ in _BY_KEY:
        return node[key]
    keys, children = zip(*children_of(node), strict=True)
    return children[keys.index(key)]


_BY_KEY = frozenset({list, tuple, dict})
