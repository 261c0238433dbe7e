"""Array refs: arrays of JAX that are written to in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from typing_extensions import TypeIs

from declax._filters import All, Filter, ask, predicate_of
from declax._graph.binding import bind
from declax._graph.cells import shown
from declax._graph.flattening import CONTAINER, HAS_INDEX, LEAF, LEAF_TOKEN, REF, GraphDef, Token
from declax._graph.iteration import find_duplicates
from declax._graph.nodes import Kind, kind_of, plain_key
from declax._graph.orders import Orders
from declax._graph.unflattening import build
from declax._modes import is_on
from declax._state.definition import StateDef
from declax._state.states import FlatState, State, make_state
from declax._state.tree import FlatForm
from declax._typing import ArrayLike, N, Path
from declax._variables.variable import Variable
from declax.errors import GraphError, StatusError, describe

ArrayRef = jax.Ref
"""The class of refs; ``isinstance`` is also true for the tracer of a ref."""


def array_ref(value: ArrayLike | Variable[Any], /) -> jax.Ref:
    """Makes a ref: an array that ``ref[...]`` reads and ``ref[...] = value`` writes.

    Args:
      value: an array, whose contents are copied.

    Raises:
      StatusError: `value` is a ref.

    >>> import jax.numpy as jnp
    >>> import declax as dx
    >>> total = dx.array_ref(jnp.zeros(2))
    >>> total[0] = 3.0
    >>> total[...]
    Array([3., 0.], dtype=float32)
    """
    content: Any = value.get_value() if isinstance(value, Variable) else value
    if is_array_ref(content):
        raise StatusError(
            "array_ref",
            "the value is a ref, and a ref cannot hold another one",
            got=describe(content),
            fix="dx.array_ref(ref[...])   # a new ref with the same content",
        )
    return jax.new_ref(content)


def is_array_ref(value: object, /) -> TypeIs[jax.Ref]:
    """Whether a value is a ref, or a tracer of one.

    >>> import jax.numpy as jnp
    >>> import declax as dx
    >>> dx.is_array_ref(dx.array_ref(jnp.zeros(2))), dx.is_array_ref(jnp.zeros(2))
    (True, False)
    """
    return isinstance(value, jax.Ref)


def to_refs(node: N, /, only: Filter = ..., *, graph: bool | None = None) -> N:
    """A copy of a graph with refs in place of arrays, in Variables and outside of them.

    Args:
      node: a model, a State, or a container of such.
      only: which Variables and arrays.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Returns:
      The copy; shared Variables and nodes are shared in it too.

    Raises:
      GraphError: for one array in several places; lists the paths. Also for a graph if a tree is required.

    >>> import jax.numpy as jnp
    >>> import declax as dx
    >>> scale = dx.to_refs(dx.Param(jnp.ones(2)))
    >>> scale[0] = 5.0
    >>> scale.raw_value
    Ref([5., 1.], dtype=float32)
    """
    return _convert(node, _TO_REFS, only, graph, allow_duplicates=False)


def to_arrays(node: N, /, *, only: Filter = ..., allow_duplicates: bool = False, graph: bool | None = None) -> N:
    """A copy of a graph with arrays, the current values, in place of refs; the inverse of `to_refs`.

    Args:
      node: a model, a State, or a container of such.
      only: which Variables and refs.
      allow_duplicates: whether a ref may be in several places, each of which gets an array.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Raises:
      GraphError: for one ref in several places, unless that is allowed; lists
        the paths. Also for a graph if a tree is required.

    >>> import jax.numpy as jnp
    >>> import declax as dx
    >>> dx.to_arrays([dx.array_ref(jnp.zeros(2)), 3])
    [Array([0., 0.], dtype=float32), 3]
    """
    return _convert(node, _TO_ARRAYS, only, graph, allow_duplicates=allow_duplicates)


def with_vars(
    node: N,
    /,
    *,
    hijax: bool | None = None,
    ref: bool | None = None,
    mutable: bool | None = None,
    only: Filter = ...,
    allow_duplicates: bool = False,
    graph: bool | None = None,
) -> N:
    """A copy of a graph whose Variables hold refs, or arrays; numbers become refs too. Other arrays and refs stay.

    Args:
      node: a model, a State, or a container of such.
      ref: True for refs, False for arrays, None for no change.
      only: which Variables.
      allow_duplicates: whether one array, or one ref, may be in several Variables, each of which gets a copy, and
        whether one Variable may be in several places, which share its copy.
      hijax, mutable: kinds of Variables that declax does not have; None or False.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Raises:
      GraphError: for `hijax` or `mutable`; for one array or ref in several Variables, and one Variable in several
        places, unless that is allowed; for a graph where a tree is asked for.

    >>> import jax.numpy as jnp
    >>> import declax as dx
    >>> dx.is_array_ref(dx.with_vars(dx.Param(jnp.ones(2)), ref=True).raw_value)
    True
    """
    for name, value in (("hijax", hijax), ("mutable", mutable)):
        if value:
            raise GraphError(
                "with_vars",
                f"declax has no Variables of this kind: {name}",
                got=f"{name}={value!r}",
                why="a Variable holds an array, or a ref, which JAX lets functions write to",
                fix="dx.with_vars(model, ref=True)",
            )
    is_by_ref = None if ref is None else is_on("ref", ref)
    allows = is_on("allow_duplicates", allow_duplicates)
    binding = bind(node, graph)
    if is_by_ref is None:
        copied: N = build(binding.graphdef, binding.read(), orders=binding.orders)
        return copied
    change = (_VALUES_TO_REFS if is_by_ref else _TO_ARRAYS)._replace(where="with_vars")
    chosen = All(Variable, predicate_of(only, "with_vars, only"))
    if not allows:
        changes = All(chosen, lambda _, variable: any(map(change.is_meant, jax.tree.leaves(variable.raw_value))))
        _refuse(find_duplicates(node, only=changes), change._replace(why=_SHARED, fix=_SHARE))
    return _convert(node, change, chosen, graph, allows)


def as_pure(tree: N, *, graph: bool | None = None) -> N:
    """A copy of a graph with the raw values of Variables in place of the Variables, and arrays in place of refs.

    For storing and exporting, where kinds and metadata have no use.

    Args:
      tree: a State, a model, a Variable, or a container of such.
      graph: False if the tree must be one; None for the default of `set_graph_mode`.

    Returns:
      The copy: of a State, a State of plain values.

    >>> import declax as dx
    >>> dx.as_pure(dx.State({"kernel": dx.Param(2.0)}))
    State({
      'kernel': 2.0
    })
    >>> dx.as_pure([dx.Param(2.0), 3])
    [2.0, 3]
    """
    if isinstance(tree, FlatState):
        pairs = [(path, _array_of(v.raw_value) if isinstance(v, Variable) else v) for path, v in tree]
        return FlatState(pairs)  # type: ignore[return-value]  # N is FlatState here
    if isinstance(tree, State) and all(isinstance(leaf, jax.Array) for leaf in tree.leaves):  # the quick way
        return make_state(_pure_def(tree.definition), list(tree.leaves))  # type: ignore[return-value]  # N is State here
    binding = bind(tree, graph)
    graphdef = GraphDef.of(tuple(map(_without_kind, binding.graphdef.tokens)))
    both = zip(binding.cells, binding.read(), strict=True)
    values = [_array_of(leaf) if isinstance(cell, Variable) else leaf for cell, leaf in both]
    made: N = build(graphdef, values, variables=values, orders=binding.orders)
    return made


pure = as_pure
vars_as = with_vars


def _array_of(raw_value: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[...] if is_array_ref(leaf) else leaf, raw_value)


def _pure_def(definition: StateDef) -> StateDef:
    return StateDef.of(definition.paths, (None,) * len(definition.paths))


def _without_kind(token: Token) -> Token:
    """The token of a plain State in place of that of a State of Variables."""
    if isinstance(token, int) or token[0] != CONTAINER or not isinstance(token[1], jax.tree_util.PyTreeDef):
        return token
    made_by = token[1].node_data()
    if made_by is None or made_by[0] is not FlatForm:
        return token
    pure_def = _pure_def(made_by[1][-1])
    return CONTAINER, jax.tree.structure(FlatForm(make_state(pure_def, [0] * len(pure_def.paths)))), token[2]


# --- arrays to refs and back ---------------------------------------------------


class _LeafChange(NamedTuple):
    """A change of some leaves, for the function `where`; and why a leaf must not be in several places."""

    where: str
    is_meant: Callable[[Any], bool]
    apply: Callable[[Any], Any]
    why: str
    fix: str


_TO_REFS = _LeafChange(
    "to_refs",
    lambda leaf: isinstance(leaf, (jax.Array, np.ndarray)) and not is_array_ref(leaf),
    jax.new_ref,
    "each place would get a separate ref",
    "model.b = model.a      # one Variable, or one ref, in both places; or jnp.copy(array) in one",
)
_NUMBERS = (bool, int, float, complex, np.generic)
_VALUES_TO_REFS = _TO_REFS._replace(is_meant=lambda leaf: _TO_REFS.is_meant(leaf) or isinstance(leaf, _NUMBERS))
_TO_ARRAYS = _LeafChange(
    "to_arrays",
    is_array_ref,
    lambda ref: ref[...],
    "each place would get a separate array",
    "allow_duplicates=True        # an array for each place",
)
_SHARED, _SHARE = (
    "these places hold one Variable, and would share its copy",
    "allow_duplicates=True        # one Variable for all of them",
)


def _convert(node: N, change: _LeafChange, only: Filter, graph: bool | None, allow_duplicates: bool) -> N:
    binding = bind(node, graph)
    graphdef, orders, sources = _each_ref_apart(binding.graphdef, binding.orders)
    read = binding.read()
    asked = shown(binding.cells, read)
    leaves = [read[source] for source in sources]
    predicate = predicate_of(only, f"{change.where}, only")
    chosen = []
    for place, (path, source) in enumerate(zip(graphdef.definition.paths, sources, strict=True)):
        leaf = leaves[place]
        inside = (leaf,) if kind_of(leaf) in (Kind.LEAF, Kind.REF) else jax.tree.leaves(leaf)
        if any(map(change.is_meant, inside)) and ask(predicate, path, asked[source]):
            chosen.append(place)
    if not is_on("allow_duplicates", allow_duplicates):
        _check_duplicates(change, [(graphdef.definition.paths[place], leaves[place]) for place in chosen])
    for place in chosen:
        leaves[place] = jax.tree.map(lambda leaf: change.apply(leaf) if change.is_meant(leaf) else leaf, leaves[place])
    made: N = build(graphdef, leaves, orders=orders)
    return made


def _each_ref_apart(graphdef: GraphDef[Any], orders: Orders) -> tuple[GraphDef[Any], Orders, Sequence[int]]:
    """The structure and its orders with a leaf for each place of a ref, and the old position of each leaf."""
    if graphdef.shared is None or (REF,) not in graphdef.tokens:
        return graphdef, orders, range(graphdef.num_leaves)
    tokens: list[Token] = []
    sources: list[int] = []
    known: list[tuple[bool, int]] = []  # for each object whether it is a ref; its leaf, or its index among the others
    leaf = others = 0
    for token in graphdef.tokens:
        if isinstance(token, int):
            is_ref, number = known[token]
            tokens.append(LEAF_TOKEN if is_ref else number)
            if is_ref:
                sources.append(number)
            continue
        if token[0] == REF:
            known.append((True, leaf))
        elif token[0] in HAS_INDEX:
            known.append((False, others))
            others += 1
        tokens.append(LEAF_TOKEN if token[0] == REF else token)
        if token[0] <= LEAF:
            sources.append(leaf)
            leaf += 1
    names, sets = ({known[i][1]: one for i, one in found.items()} for found in (orders.names, orders.sets))
    return GraphDef.of(tuple(tokens)), Orders(names, sets), sources


def _check_duplicates(change: _LeafChange, places: Sequence[tuple[Path, Any]]) -> None:
    found: dict[int, list[Path]] = {}
    for path, leaf in places:
        is_one = kind_of(leaf) in (Kind.LEAF, Kind.REF)
        for keys, part in [((), leaf)] if is_one else jax.tree_util.tree_leaves_with_path(leaf):
            if change.is_meant(part) and not isinstance(part, _NUMBERS):
                found.setdefault(id(part), []).append((*path, *map(plain_key, keys)))
    _refuse([paths for paths in found.values() if len(paths) > 1], change)


def _refuse(duplicates: Sequence[Sequence[Path]], change: _LeafChange) -> None:
    if duplicates:
        blocks = ["".join([f"  {'/'.join(map(str, path))}\n" for path in paths]) + "  ---\n" for paths in duplicates]
        problem = f"Found duplicate at paths:\n  ---\n{''.join(blocks)}{change.why}"
        raise GraphError(change.where, problem, fix=change.fix)
