"""The ways out to raw JAX and back: models as GraphDefs and States, alone, in trees and around a function.

`flatten` and `unflatten` number the objects of graphs one after the other (`RefMap`), so that these may share some. An
update context splits *outer* objects (step 1), merges *inner* ones inside of a JAX transform (2), splits them with
their outer indexes (3), and applies the change to the outer ones (4). `to_tree` and `from_tree` do this for the models
in a tree, `split_inputs` and `merge_inputs` for the arguments of a function.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypedDict, TypeVar, overload

import jax
from typing_extensions import Unpack

from declax._filters import Filter
from declax._graph.binding import check_mode
from declax._graph.cells import shown
from declax._graph.flattening import GraphDef, walk
from declax._graph.nodes import is_ref, plain_key
from declax._graph.unflattening import StructureChange, apply_change, blueprint_of, build_slots, known_objects
from declax._graph.updating import join
from declax._modes import is_on
from declax._state.states import FlatState, State, make_state, split_leaves
from declax._tree.read_only import ReadOnly
from declax._tree.statuses import check_depth
from declax._typing import MISSING, N, Path
from declax._variables.variable import Variable
from declax.errors import GraphError, MissingKeyError, describe
from declax.transforms._engine.call import Call
from declax.transforms._engine.prefixes import Labels, spread
from declax.transforms._engine.structure import is_root

F = TypeVar("F", bound=Callable[..., Any])

IndexMap: TypeAlias = dict[int, Any]
"""From indexes to objects."""


class RefMap(MutableMapping[Any, int]):
    """A mapping from objects to indexes that compares by identity, of pairs or of such a mapping.

    >>> import declax as dx
    >>> scale = dx.Param(1.0)
    >>> indexes = dx.RefMap([(scale, 0)])
    >>> scale in indexes, dx.Param(1.0) in indexes
    (True, False)
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: Mapping[Any, int] | Iterable[tuple[Any, int]] = ()) -> None:
        self._entries: dict[int, tuple[Any, int]] = {}
        self.update(entries)

    def __getitem__(self, value: Any) -> int:
        found = self._entries.get(id(value))
        if found is None:
            raise MissingKeyError("RefMap", "this object has no index", got=describe(value))
        return found[1]

    def __setitem__(self, value: Any, index: int) -> None:
        self._entries[id(value)] = (value, index)

    def __delitem__(self, value: Any) -> None:
        self[value]  # raises if it is missing
        del self._entries[id(value)]

    def __iter__(self) -> Iterator[Any]:
        return iter([value for value, _ in self._entries.values()])

    def __len__(self) -> int:
        return len(self._entries)


class _Options(TypedDict, total=False):
    """The options of `flatten` that do not decide its type."""

    ref_index: RefMap | None
    ref_outer_index: RefMap | None
    graph: bool | None


@overload
def flatten(
    node: N, /, *, with_paths: Literal[True] = True, **options: Unpack[_Options]
) -> tuple[GraphDef[N], FlatState]: ...
@overload
def flatten(
    node: N, /, *, with_paths: Literal[False], **options: Unpack[_Options]
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
    """Flattens a graph to its structure and its leaves, in order.

    Args:
      node: a model, or a container of models.
      with_paths: whether the leaves come with their paths, in the Variables of the graph; as raw values otherwise.
      ref_index: the objects of graphs that were flattened before, by index. Those of this one are added.
      ref_outer_index: the outer objects that objects of this graph stand for; `unflatten` changes those.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Raises:
      GraphError: for a graph if a tree is required.

    >>> import declax as dx
    >>> a, b = dx.Module(), dx.Module()
    >>> a.scale = b.scale = dx.Param(2.0)
    >>> indexes, objects = dx.RefMap(), {}
    >>> first, second = dx.flatten(a, ref_index=indexes), dx.flatten(b, ref_index=indexes)
    >>> a, b = dx.unflatten(*first, index_ref=objects), dx.unflatten(*second, index_ref=objects)
    >>> a.scale is b.scale
    True
    """
    is_with_paths = is_on("with_paths", with_paths)
    known = () if ref_index is None else tuple(ref_index)
    found = walk(node, known=known)
    check_mode(found.graphdef, graph)
    graphdef, leaves, objects = found.graphdef, found.read(), found.objects[len(known) :]
    if ref_outer_index is not None:
        outer = tuple([ref_outer_index.get(value, -1) for value in objects])
        leaves = _without_outer_refs(graphdef, leaves, outer)
        graphdef = GraphDef.of(graphdef.tokens, None, graphdef.base, outer)
    if ref_index is not None:
        ref_index.update(zip(objects, itertools.count(len(known))))
    if not is_with_paths:
        return graphdef, leaves
    return graphdef, FlatState.from_sorted_keys_values(graphdef.definition.paths, shown(found.cells, leaves))


def _without_outer_refs(graphdef: GraphDef[Any], leaves: list[Any], outer: tuple[int, ...]) -> list[Any]:
    """The leaves, with None for refs that stand for outer ones: JAX lets no function return a ref."""
    blueprint = blueprint_of(graphdef)
    leaf_of = dict(blueprint.array_leaves)
    own = blueprint.indexed[graphdef.base :]
    kept = {leaf_of[slot] for slot, number in zip(own, outer, strict=True) if number >= 0 and slot in leaf_of}
    return [None if place in kept else leaf for place, leaf in enumerate(leaves)]


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
      index_ref: the objects of graphs that were unflattened before, by index. Those of this one are added.
      outer_index_outer_ref: the outer objects by outer index. Those that the GraphDef refers to are changed in place.
      copy_variables: whether Variables in a FlatState are copied; otherwise they become the Variables of the graph.

    Raises:
      GraphError: for leaves of another GraphDef, missing indexes, or outer objects of other classes, before any change.

    >>> import declax as dx
    >>> model = dx.unflatten(*dx.flatten({"scale": dx.Param(2.0)}))
    >>> model["scale"].value
    2.0
    """
    if isinstance(state, (list, tuple)):
        leaves, metadata = state, None
        if len(leaves) != graphdef.num_leaves:
            problem, got = "these are not the leaves of the graph", f"{len(leaves)} leaves"
            raise GraphError("unflatten", problem, expected=f"{graphdef.num_leaves} leaves", got=got)
    else:
        leaves, metadata = join(graphdef, (state,))
    variables = None if is_on("copy_variables", copy_variables) else _variables_of(graphdef, state)
    known, blueprint = known_objects(graphdef, index_ref or {}), blueprint_of(graphdef)
    if graphdef.outer is None or outer_index_outer_ref is None:
        slots = build_slots(graphdef, leaves, metadata, variables, known)
    else:
        _check_outer(graphdef, graphdef.outer, outer_index_outer_ref)
        change = StructureChange(graphdef, (-1,) * len(leaves), graphdef.outer)
        slots = apply_change(change, outer_index_outer_ref, (), leaves, metadata, known)
    if index_ref is not None:
        index_ref.update((i, slots[slot]) for i, slot in enumerate(blueprint.indexed) if i >= graphdef.base)
    root: N = slots[blueprint.root]
    return root


def _variables_of(graphdef: GraphDef[Any], state: Any) -> list[Any] | None:
    """The values of a FlatState that has all Variables of a graph, with copies of those that show a State."""
    if not isinstance(state, FlatState):
        return None
    by_path = dict(state)
    found = [by_path[path] for path in graphdef.definition.paths]
    if not all(isinstance(found[leaf], Variable) for leaf in blueprint_of(graphdef).variable_leaves):
        return None
    return [v.copy() if isinstance(v, Variable) and isinstance(v._trace, ReadOnly) else v for v in found]


def _check_outer(graphdef: GraphDef[Any], indexes: tuple[int, ...], outer: IndexMap) -> None:
    """Checks that the outer objects exist and have the classes of the graph."""
    blueprint = blueprint_of(graphdef)
    classes = [*blueprint.classes, *(node.cls for node in blueprint.nodes)]
    for slot, index in zip(blueprint.indexed[graphdef.base :], indexes, strict=True):
        found = outer.get(index)
        is_right = found.__class__ is classes[slot] if slot < len(classes) else is_ref(found)
        if index >= 0 and not is_right:
            problem = f"the outer object of index {index} is another one than the graph says"
            raise GraphError("unflatten", problem, got=describe(found))


# --- update contexts --------------------------------------------------------------


@dataclass(eq=False, repr=False)
class UpdateContext:
    """The objects of one round of the four steps; see `update_context`.

    Attributes:
      tag: the tag that `current_update_context` finds it by.
      outer_ref_outer_index, outer_index_outer_ref: of the outer objects, from the end of step 1 to that of step 4.
      inner_ref_outer_index, outer_index_inner_ref: of the inner objects, from the end of step 2 to that of step 3.
      static_cache: always None.
    """

    tag: Hashable
    outer_ref_outer_index: RefMap | None = None
    outer_index_inner_ref: IndexMap | None = None
    outer_index_outer_ref: IndexMap | None = None
    inner_ref_outer_index: RefMap | None = None
    static_cache: None = None

    def _set_outer(self, indexes: RefMap | None) -> None:
        """Ends step 1; None ends step 4."""
        self.outer_ref_outer_index = indexes
        self.outer_index_outer_ref = None if indexes is None else {i: found for found, i in indexes.items()}

    def _set_inner(self, objects: IndexMap | None) -> None:
        """Ends step 2; None ends step 3."""
        self.outer_index_inner_ref = objects
        self.inner_ref_outer_index = None if objects is None else RefMap((o, i) for i, o in objects.items())

    def _begin_split(self) -> RefMap | None:
        """The inner objects for step 3; None for step 1."""
        if self.outer_ref_outer_index is not None and self.inner_ref_outer_index is None:
            raise GraphError(
                f"split_context({self.tag!r})",
                "step 3 comes after the end of step 2, and once: there are no inner objects",
                fix=f"with dx.merge_context({self.tag!r}, inner=True) as ctx:\n    model = ctx.merge(graphdef, state)",
            )
        return self.inner_ref_outer_index

    def _begin_merge(self, *, inner: bool) -> IndexMap | None:
        """The outer objects for step 4; None for step 2."""
        if self.outer_index_outer_ref is None:
            raise GraphError(
                f"merge_context({self.tag!r}, inner={inner})",
                f"step {2 if inner else 4} comes after step 1: there are no outer objects",
                fix=f"with dx.split_context({self.tag!r}) as ctx:\n    graphdef, state = ctx.split(model)",
            )
        return None if inner else self.outer_index_outer_ref


_active: Final[ContextVar[tuple[UpdateContext, ...]]] = ContextVar("declax_update_contexts", default=())


def current_update_context(tag: Hashable) -> UpdateContext:
    """The innermost active update context with a tag.

    Raises:
      GraphError: no active update context has the tag.

    >>> import declax as dx
    >>> with dx.update_context("train") as context:
    ...     dx.current_update_context("train") is context
    True
    """
    active = _active.get()
    found = [context for context in active if context.tag == tag]
    if found:
        return found[-1]
    raise GraphError(
        f"update_context({tag!r})",
        "no active update context of this thread has this tag",
        got=f"the tags {', '.join(repr(context.tag) for context in active)}" if active else None,
        fix=f"with dx.update_context({tag!r}): ...",
    )


@contextmanager
def update_context(tag: Hashable) -> Generator[UpdateContext, None, None]:
    """An update context, for a ``with`` or as a decorator.

    In it, `split_context` and `merge_context` of the same tag carry changes of a model's structure out of a function
    that JAX transforms. The transforms of declax do this themselves.

    Returns:
      A context manager that gives the `UpdateContext`, and a decorator, which makes one for each call. The context
      belongs to the thread or task that enters it. After a round that failed, enter a new one.

    >>> import jax, declax as dx
    >>> @jax.jit
    ... def grow(graphdef, state):
    ...     with dx.merge_context("grow", inner=True) as ctx:  # 2
    ...         model = ctx.merge(graphdef, state)
    ...     model.self = model
    ...     with dx.split_context("grow") as ctx:  # 3
    ...         return ctx.split(model)
    >>> model = dx.Module()
    >>> with dx.update_context("grow"):
    ...     with dx.split_context("grow") as ctx:  # 1
    ...         graphdef, state = ctx.split(model)
    ...     graphdef, state = grow(graphdef, state)
    ...     with dx.merge_context("grow", inner=False) as ctx:  # 4
    ...         same = ctx.merge(graphdef, state)
    >>> same is model.self is model
    True
    """
    context = UpdateContext(tag)
    token = _active.set((*_active.get(), context))
    try:
        yield context
    finally:
        _active.reset(token)
        context._set_outer(None)
        context._set_inner(None)


class SplitContext:
    """Splits graphs that may share objects; see `split_context`, whose argument is the attribute `ctxtag`."""

    def __init__(self, ctxtag: Hashable | None, inner: RefMap | None) -> None:
        self.ctxtag: Hashable | None = ctxtag
        self._inner = inner
        self._indexes = RefMap()

    @overload
    def split(self, node: N, a: Filter = ..., /, *, graph: bool | None = None) -> tuple[GraphDef[N], State[N]]: ...
    @overload
    def split(self, node: Any, a: Filter, b: Filter, /, *f: Filter, graph: bool | None = None) -> tuple[Any, ...]: ...
    def split(self, node: Any, /, *filters: Filter, graph: bool | None = None) -> Any:
        """As `declax.split`; objects of earlier graphs of the block become references to them."""
        indexes = RefMap(self._indexes)  # a copy: a split that fails adds nothing
        graphdef, leaves = flatten(node, with_paths=False, ref_index=indexes, ref_outer_index=self._inner, graph=graph)
        definition = graphdef.definition
        states = split_leaves(definition, leaves, filters, "split_context", is_exhaustive=True) if filters else ()
        self._indexes = indexes
        return graphdef, *(states or (make_state(definition, leaves),))


class MergeContext:
    """Merges graphs that may share objects; see `merge_context`, whose argument is the attribute `ctxtag`."""

    def __init__(self, ctxtag: Hashable | None, outer: IndexMap | None) -> None:
        self.ctxtag: Hashable | None = ctxtag
        self._outer = outer
        self._objects: IndexMap = {}

    def merge(self, graphdef: GraphDef[N], state: State[Any], /, *states: State[Any]) -> N:
        """As `declax.merge`; references lead to graphs merged before. Step 4 changes the outer objects, or raises."""
        is_inner = self._outer is None
        if self.ctxtag is not None and (graphdef.outer is None) is not is_inner:
            step, source = ("step 2", "step 1") if is_inner else ("step 4", "step 3")
            raise GraphError(
                f"merge_context({self.ctxtag!r}, inner={is_inner})",
                f"{step} takes what {source} split, and this GraphDef comes from elsewhere",
                fix=f"dx.merge_context({self.ctxtag!r}, inner={not is_inner})   # for one of the other step",
            )
        whole = State.merge(state, *states) if states else state
        return unflatten(graphdef, whole, index_ref=self._objects, outer_index_outer_ref=self._outer)


@contextmanager
def split_context(ctxtag: Hashable | None = None) -> Generator[SplitContext, None, None]:
    """Splits several graphs that share objects, in the block of a ``with``.

    Args:
      ctxtag: the tag of the update context whose step 1 or, after step 2, step 3 this is; None outside of these.

    Raises:
      GraphError: on entering: no active update context has the tag, or its steps are out of order.

    >>> import declax as dx
    >>> encoder, decoder = dx.Module(), dx.Module()
    >>> encoder.embedding = decoder.embedding = dx.Param(1.0)
    >>> with dx.split_context() as ctx:
    ...     first, second = ctx.split(encoder), ctx.split(decoder)
    >>> len(first[1].leaves), len(second[1].leaves)
    (1, 0)
    >>> with dx.merge_context() as ctx:
    ...     encoder, decoder = ctx.merge(*first), ctx.merge(*second)
    >>> encoder.embedding is decoder.embedding
    True
    """
    if ctxtag is None:
        yield SplitContext(None, None)
        return
    update = current_update_context(ctxtag)
    ctx = SplitContext(ctxtag, update._begin_split())
    yield ctx
    if ctx._inner is None:
        update._set_outer(ctx._indexes)
    else:
        update._set_inner(None)


@contextmanager
def merge_context(ctxtag: Hashable | None = None, inner: bool | None = None) -> Generator[MergeContext, None, None]:
    """Merges several graphs that share objects, in the block of a ``with``; see `split_context`.

    Args:
      ctxtag: the tag of the update context whose step this is; None outside of update contexts.
      inner: True for step 2, False for step 4; needed with a tag.

    Raises:
      GraphError: on entering: a tag comes without `inner`, no active context has the tag, or step 1 is not done.

    >>> import declax as dx
    >>> with dx.split_context() as ctx:
    ...     part = ctx.split([dx.Param(2.0)])
    >>> with dx.merge_context() as ctx:
    ...     ctx.merge(*part)[0].value
    2.0
    """
    if ctxtag is None:
        yield MergeContext(None, None)
        return
    if inner is None:
        raise GraphError(
            f"merge_context({ctxtag!r})",
            "with a tag, `inner` says which step this is",
            fix=f"dx.merge_context({ctxtag!r}, inner=True)",
        )
    update = current_update_context(ctxtag)
    ctx = MergeContext(ctxtag, update._begin_merge(inner=inner))
    yield ctx
    if inner:
        update._set_inner(ctx._objects)
    else:
        update._set_outer(None)
        update._set_inner(None)


# --- models in a tree --------------------------------------------------------------


@functools.partial(jax.tree_util.register_dataclass, data_fields=["_graphdef", "states"], meta_fields=["metadata"])
@dataclass(eq=False, repr=False)
class NodeStates:
    """The GraphDef and the States of a model, in place of the model in a tree.

    As a pytree it has these as children, and the metadata is static; labels from `from_prefixes` are a prefix of it.

    Attributes:
      states: the States, in the order of the filters that split them.
      metadata: any hashable value.

    >>> import declax as dx
    >>> dx.to_tree(dx.Param(2.0)).state.leaves
    [2.0]
    """

    _graphdef: GraphDef[Any] | None
    states: tuple[Any, ...]
    metadata: Hashable = None

    @classmethod
    def from_split(cls, graphdef: GraphDef[Any], state: Any, /, *states: Any, metadata: Hashable = None) -> NodeStates:
        """From the result of `split`."""
        return cls(graphdef, (state, *states), metadata)

    @classmethod
    def from_states(cls, state: Any, /, *states: Any) -> NodeStates:
        """From States alone; cannot be merged."""
        return cls(None, (state, *states))

    @classmethod
    def from_prefixes(cls, prefixes: Iterable[Any], /, *, metadata: Hashable = None) -> NodeStates:
        """From one label for each State: a prefix of NodeStates with as many States and the same metadata."""
        return cls(None, tuple(prefixes), metadata)

    @property
    def graphdef(self) -> GraphDef[Any]:
        """The structure.

        Raises:
          GraphError: it was made from States or labels alone.
        """
        if self._graphdef is None:
            why = "it was made from States or labels only"
            raise GraphError("NodeStates.graphdef", "this NodeStates has no GraphDef", why=why, fix="dx.to_tree(model)")
        return self._graphdef

    @property
    def state(self) -> Any:
        """The only State.

        Raises:
          GraphError: there is not exactly one.
        """
        if len(self.states) != 1:
            got = f"{len(self.states)} States"
            raise GraphError("NodeStates.state", "exactly one State is required", got=got, fix="node_states.states")
        return self.states[0]

    def __repr__(self) -> str:
        metadata = "" if self.metadata is None else f", metadata={self.metadata!r}"
        return f"NodeStates({self._graphdef!r}, {self.states!r}{metadata})"


SplitFunction = Callable[[SplitContext, Path, Any, Any], Any]
MergeFunction = Callable[[MergeContext, Path, Any, Any], Any]


def split_node(ctx: SplitContext, path: Path, prefix: Any, node: Any) -> NodeStates:
    """Splits a model into one State; the default of `to_tree`."""
    return NodeStates.from_split(*ctx.split(node))


def merge_node(ctx: MergeContext, path: Path, prefix: Any, states: NodeStates) -> Any:
    """Merges the States of a model; the default of `from_tree`."""
    return ctx.merge(states.graphdef, *states.states)


def is_node_states(value: object) -> bool:
    """Whether a value is a `NodeStates`."""
    return isinstance(value, NodeStates)


def to_tree(
    tree: Any,
    /,
    *,
    prefix: Any = MISSING,
    split_fn: SplitFunction = split_node,
    map_non_graph_nodes: bool = False,
    ctxtag: Hashable | None = None,
    check_aliasing: bool = True,
) -> Any:
    """Replaces the models of a tree by their States, for raw JAX transforms; `from_tree` is the inverse.

    Sharing between the models, and within them, is restored by `from_tree`.

    Args:
      tree: a pytree of models, Variables, arrays and other leaves.
      prefix: a tree of labels, a prefix of `tree`, for `split_fn`.
      split_fn: takes a context, whose `split` it uses, and the path, label and model; returns a `NodeStates`.
      map_non_graph_nodes: whether to call it for other leaves too.
      ctxtag: the tag of an update context, in its step 1 or 3.
      check_aliasing: whether a Variable that is reached twice must have one label.

    Raises:
      TransformError: the prefix does not match; a Variable has two labels.

    >>> import declax as dx
    >>> import jax
    >>> m = dx.Module()
    >>> m.scale = dx.Param(2.0)
    >>> first, second = dx.from_tree(jax.tree.map(lambda x: 2 * x, dx.to_tree((m, m))))
    >>> first.scale.value, first is second
    (4.0, True)
    """
    check_depth(tree, "the tree")
    treedef, leaves = _with_labels(tree, is_root, prefix, "to_tree, prefix")
    if prefix is not MISSING and check_aliasing:
        call, labels = Call((tree,), {}), [label for _, label, _ in leaves]
        Labels(call.structure, call.values, labels, lambda tree: [None] * tree.num_leaves, ("prefix", "prefix"))
    with split_context(ctxtag) as ctx:
        found = [split_fn(ctx, *leaf) if map_non_graph_nodes or is_root(leaf[-1]) else leaf[-1] for leaf in leaves]
    return jax.tree_util.tree_unflatten(treedef, found)


def from_tree(
    tree: Any,
    /,
    *,
    prefix: Any = MISSING,
    merge_fn: MergeFunction = merge_node,
    is_node_leaf: Callable[[Any], bool] = is_node_states,
    is_leaf: Callable[[Any], bool] = is_node_states,
    map_non_graph_nodes: bool = False,
    is_inner: bool | None = None,
    ctxtag: Hashable | None = None,
) -> Any:
    """Restores the models of a tree that `to_tree` made.

    Args:
      tree: the result of `to_tree`, or a function of it.
      prefix: a tree of labels, a prefix of `tree`, for `merge_fn`.
      merge_fn: takes a context, whose `merge` it uses, and the path, label and `NodeStates`; returns the model.
      is_node_leaf: whether a leaf is given to `merge_fn`.
      is_leaf: whether a node of the tree is a leaf.
      map_non_graph_nodes: whether to call `merge_fn` for other leaves too.
      is_inner: True for step 2, False for step 4 of an update context.
      ctxtag: the tag of that context.

    Raises:
      TransformError: the prefix does not match.
      GraphError: a model was split with other models, which are missing here.

    >>> import declax as dx
    >>> dx.from_tree({"a": dx.to_tree(dx.Param(2.0))})["a"].value
    2.0
    """
    check_depth(tree, "the tree")
    treedef, leaves = _with_labels(tree, is_leaf, prefix, "from_tree, prefix")
    with merge_context(ctxtag, is_inner) as ctx:
        found = [merge_fn(ctx, *leaf) if map_non_graph_nodes or is_node_leaf(leaf[-1]) else leaf[-1] for leaf in leaves]
    return jax.tree_util.tree_unflatten(treedef, found)


def _with_labels(
    tree: Any, is_leaf: Callable[[Any], bool], prefix: Any, where: str
) -> tuple[Any, list[tuple[Path, Any, Any]]]:
    """The treedef and the leaves of a tree, each with its path and label; `MISSING` without a prefix."""
    pairs, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)
    labels = [MISSING] * len(pairs)
    if prefix is not MISSING:
        is_label: Callable[[object], bool] = lambda x: (  # noqa: E731
            x is None or is_node_states(x) or jax.tree_util.all_leaves([x])
        )
        numbered = jax.tree_util.tree_unflatten(treedef, range(len(pairs)))
        labels = [*spread(prefix, numbered, where, is_label).values()]
    return treedef, [(plain_path(keys), label, leaf) for (keys, leaf), label in zip(pairs, labels, strict=True)]


def plain_path(keys: Iterable[Any]) -> Path:
    """A path of JAX as the names and numbers in it."""
    return tuple(map(plain_key, keys))


# --- a function of models under a transform of States ------------------------------

_TAG = "split_merge_inputs"


@overload
def split_inputs(*, ctxtag: Hashable = _TAG) -> Callable[[F], F]: ...
@overload
def split_inputs(f: F, *, ctxtag: Hashable = _TAG) -> F: ...
def split_inputs(f: Any = None, *, ctxtag: Hashable = _TAG) -> Any:
    """Lets a function of States be called with models; the outer half of a pair with `merge_inputs`.

    The function takes positional arguments and returns the pair that a
    function under `merge_inputs` returns, or a pair of that structure, as
    `jax.jit`, `jax.lax.cond` and others do. Changes of the models come back.

    Args:
      f: a function that a transform of JAX made; without it, a decorator is returned.
      ctxtag: the tag of the update context that the pair uses.

    >>> import jax
    >>> import declax as dx
    >>> import declax.transforms.general as general
    >>> @general.split_inputs
    ... @jax.jit
    ... @general.merge_inputs
    ... def double(scale):
    ...     scale.value *= 2
    >>> scale = dx.Param(1.5)
    >>> double(scale)
    >>> float(scale)
    3.0
    """
    if f is None:
        return functools.partial(split_inputs, ctxtag=ctxtag)

    @functools.wraps(f)
    def call_with_states(*args: Any) -> Any:
        with update_context(ctxtag):
            returned = f(*to_tree(args, ctxtag=ctxtag))
            _, output = from_tree(returned, ctxtag=ctxtag, is_inner=False)
        return output

    return call_with_states


@overload
def merge_inputs(*, ctxtag: Hashable = _TAG) -> Callable[[F], F]: ...
@overload
def merge_inputs(f: F, *, ctxtag: Hashable = _TAG) -> F: ...
def merge_inputs(f: Any = None, *, ctxtag: Hashable = _TAG) -> Any:
    """Lets a function of models be called with States; the inner half of a pair with `split_inputs`.

    Args:
      f: a function of models; without it, a decorator is returned.
      ctxtag: the tag of the update context that the pair uses.

    Returns:
      A function that returns a pair: its arguments, with None for leaves that
      are not models, and its output. A transform with axes or shardings for
      outputs needs them for both.
    """
    if f is None:
        return functools.partial(merge_inputs, ctxtag=ctxtag)

    @functools.wraps(f)
    def call_with_models(*split_args: Any) -> Any:
        args = from_tree(split_args, ctxtag=ctxtag, is_inner=True)
        output = f(*args)
        models = jax.tree.map(lambda leaf: leaf if is_root(leaf) else None, args, is_leaf=is_root)
        return to_tree((models, output), ctxtag=ctxtag)

    return call_with_models
