"""Several graphs that share objects: `flatten` and `unflatten`, and the update contexts that call them.

A `RefMap` numbers the objects of graphs that are flattened one after the other. An *outer* object is one outside of a
JAX transform, which an *inner* object stands for. An update context carries changes of structure out of a transform:

    (1) split  ->  (2) merge, inside  ->  changes  ->  (3) split  ->  (4) merge, outside

Step 3 writes the outer index of each inner object into the GraphDef. That is static, and holds for later calls too.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ContextDecorator, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Final, Literal, TypeAlias, TypeVar, overload

from declax import _jax
from declax._filters import Filter
from declax._graph.binding import Binding, bind, check_mode
from declax._graph.flattening import GraphDef, Walk, walk
from declax._graph.nodes import is_ref
from declax._graph.unflattening import StructureChange, apply_change, blueprint_of, build_slots, known_objects
from declax._graph.updating import join
from declax._modes import is_on
from declax._state.states import FlatState, State, make_state, split_leaves
from declax._tree.read_only import ReadOnly
from declax._typing import MISSING
from declax._variables.variable import Variable
from declax.errors import GraphError, MissingKeyError, describe, format_path, suggest, type_name

N = TypeVar("N")

IndexMap: TypeAlias = dict[int, Any]
"""From indexes to objects."""


class RefMap(MutableMapping[Any, int]):
    """A mapping from objects to indexes that compares by identity.

    Args:
      entries: pairs of an object and its index, or such a mapping.

    >>> import declax as dx
    >>> scale = dx.Param(1.0)
    >>> indexes = dx.RefMap({})
    >>> indexes[scale] = 0
    >>> scale in indexes, dx.Param(1.0) in indexes
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
        self[value]  # raises if it is missing
        del self._entries[id(value)]

    def __contains__(self, value: object) -> bool:
        return id(value) in self._entries

    def __iter__(self) -> Iterator[Any]:
        return iter([value for value, _ in self._entries.values()])

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"RefMap({len(self)} objects)"

    def _in_order(self) -> list[Any]:
        """The objects by index; raises if the indexes are not 0, 1, 2, ..."""
        ordered = sorted(self._entries.values(), key=lambda entry: entry[1])
        if [index for _, index in ordered] != list(range(len(ordered))):
            got = ", ".join(str(index) for _, index in ordered[:8])
            raise GraphError("ref_index", "the indexes of known objects must be 0, 1, 2, ...", got=got)
        return [value for value, _ in ordered]


# --- flatten ----------------------------------------------------------------------


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
    """Flattens a graph to its structure and its leaves, in order.

    Args:
      node: a model, or a container of models.
      with_paths: whether the leaves come with their paths, in the Variables of
        the graph; as raw values otherwise.
      ref_index: the objects of graphs that were flattened before, to which this
        one may refer. Those of this one are added.
      ref_outer_index: the outer objects that objects of this graph stand for;
        `unflatten` changes those instead of making new ones.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Raises:
      GraphError: for a graph if a tree is required, for a `ref_index` with
        gaps, and for other arguments than a `RefMap`, True or False.

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
    for name, indexes in (("ref_index", ref_index), ("ref_outer_index", ref_outer_index)):
        if not (indexes is None or isinstance(indexes, RefMap)):
            raise _wrong_map(name, indexes, "this argument maps objects to indexes", "dx.RefMap")
    found: Walk | Binding
    if ref_index:
        known = ref_index._in_order()
        walked = walk(node, known=known)
        check_mode(walked.graphdef, graph)
        found, objects = walked, walked.objects[len(known) :]
    else:
        found = bind(node, graph)
        objects = found.objects()
    graphdef, leaves = found.graphdef, found.read()
    if ref_outer_index is not None:
        outer = tuple([ref_outer_index._entries.get(id(value), (None, -1))[1] for value in objects])
        leaves = _without_outer_refs(graphdef, leaves, outer)
        graphdef = GraphDef.of(graphdef.tokens, None, graphdef.base, outer)
    if ref_index is not None:
        ref_index._entries.update((id(value), (value, i)) for i, value in enumerate(objects, len(ref_index)))
    if not is_with_paths:
        return graphdef, leaves
    values = [leaf if own is None else own for leaf, own in zip(leaves, found.variables, strict=True)]
    return graphdef, FlatState.from_sorted_keys_values(graphdef.definition.paths, values)


def _wrong_map(name: str, given: object, problem: str, expected: str) -> GraphError:
    fix = f"{name}={{}}" if expected == "dict" else f"{name}={expected}()"
    return GraphError(name, problem, expected=f"a {expected}, or None", got=describe(given), fix=fix)


def _without_outer_refs(graphdef: GraphDef[Any], leaves: list[Any], outer: tuple[int, ...]) -> list[Any]:
    """The leaves, with None for refs that stand for outer ones: JAX lets no function return a ref."""
    blueprint = blueprint_of(graphdef)
    leaf_of = dict(blueprint.plain_leaves)
    own = blueprint.indexed[graphdef.base :]
    kept = {leaf_of[slot] for slot, number in zip(own, outer, strict=True) if number >= 0 and slot in leaf_of}
    return [None if place in kept else leaf for place, leaf in enumerate(leaves)] if kept else leaves


# --- unflatten --------------------------------------------------------------------


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
      outer_index_outer_ref: the outer objects by outer index. If the GraphDef
        says that an object stands for one of them, that one is changed in place.
      copy_variables: whether Variables in a FlatState are copied; otherwise
        they become the Variables of the graph.

    Raises:
      GraphError: for leaves of another GraphDef, for missing indexes, and for
        arguments of other types. Nothing is changed.

    >>> import declax as dx
    >>> model = dx.unflatten(*dx.flatten({"scale": dx.Param(2.0)}))
    >>> model["scale"].value
    2.0
    """
    is_copy = is_on("copy_variables", copy_variables)
    given: tuple[tuple[str, object], ...] = (("index_ref", index_ref), ("outer_index_outer_ref", outer_index_outer_ref))
    for name, objects in given:
        if not (objects is None or (isinstance(objects, MutableMapping) and not isinstance(objects, RefMap))):
            raise _wrong_map(name, objects, "this argument maps indexes to objects", "dict")
    leaves, metadata = _leaves_of(graphdef, state)
    variables = None
    if isinstance(state, FlatState) and not is_copy:
        by_path = dict(zip(state.paths, state.leaves, strict=True))
        found = [_owned(by_path[path]) for path in graphdef.definition.paths]
        is_whole = all(isinstance(found[leaf], Variable) for leaf in blueprint_of(graphdef).variable_leaves)
        variables = found if is_whole else None
    root: N = _unflatten(graphdef, leaves, metadata, variables, index_ref, outer_index_outer_ref)
    return root


def _owned(value: Any) -> Any:
    """A copy of a Variable that belongs to a State; another value as it is."""
    return value.copy() if isinstance(value, Variable) and isinstance(value._trace, ReadOnly) else value


def _leaves_of(graphdef: GraphDef[Any], state: Any) -> tuple[Sequence[Any], list[Any] | None]:
    if not isinstance(graphdef, GraphDef):
        fix = "unflatten(graphdef, state)"
        raise GraphError("unflatten", "a GraphDef comes first", got=describe(graphdef), fix=fix)
    if isinstance(state, (Mapping, FlatState)):
        return join(graphdef, (State.from_flat_path(state) if isinstance(state, FlatState) else state,))
    is_sequence = isinstance(state, Sequence) and not isinstance(state, str)
    if not is_sequence or len(state) != graphdef.num_leaves:
        raise GraphError(
            "unflatten",
            "these are not the leaves of the graph",
            expected=f"{graphdef.num_leaves} leaves",
            got=f"{len(state)} leaves" if is_sequence else describe(state),
        )
    return state, None


def _unflatten(
    graphdef: GraphDef[Any],
    leaves: Sequence[Any],
    metadata: Sequence[Any] | None,
    variables: Sequence[Variable[Any]] | None,
    index_ref: IndexMap | None,
    outer: IndexMap | None,
) -> Any:
    """As `unflatten`, from the leaves of the graph in its order."""
    known = known_objects(graphdef, index_ref or {})
    blueprint = blueprint_of(graphdef)
    if graphdef.outer is not None and outer is not None:
        _check_outer(graphdef, outer)
        change = StructureChange(graphdef, (-1,) * len(leaves), graphdef.outer)
        slots = apply_change(change, outer, (), leaves, metadata, known)
    else:
        missing = [place for _, place in blueprint.plain_leaves if leaves[place] is None]
        if graphdef.outer is not None and missing:
            raise GraphError(
                format_path(graphdef.definition.paths[missing[0]]),
                "this ref represents an outer ref, and there are no outer objects",
                fix="unflatten(graphdef, state, outer_index_outer_ref=objects)",
            )
        slots = build_slots(graphdef, leaves, metadata, variables, known)
    if index_ref is not None:
        index_ref.update((i, slots[slot]) for i, slot in enumerate(blueprint.indexed) if i >= graphdef.base)
    return slots[blueprint.root]


def _check_outer(graphdef: GraphDef[Any], outer: IndexMap) -> None:
    """Checks that the outer objects exist and have the classes of the graph."""
    blueprint = blueprint_of(graphdef)
    classes = [*blueprint.classes, *(cls for _, cls in blueprint.node_makers)]
    for slot, number in zip(blueprint.indexed[graphdef.base :], graphdef.outer or (), strict=True):
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


# --- update contexts --------------------------------------------------------------


@dataclass(eq=False, repr=False)
class UpdateContext:
    """The objects of one round of the four steps; see `update_context`.

    Attributes:
      tag: the tag that `current_update_context` finds it by.
      outer_ref_outer_index: from the outer objects to their indexes; from the
        end of step 1 to the end of step 4.
      outer_index_outer_ref: the same in reverse.
      outer_index_inner_ref: from the same indexes to the inner objects; from
        the end of step 2 to the end of step 3.
      inner_ref_outer_index: the same in reverse.
      static_cache: always None.
    """

    tag: Hashable
    outer_ref_outer_index: RefMap | None = None
    outer_index_inner_ref: IndexMap | None = None
    outer_index_outer_ref: IndexMap | None = None
    inner_ref_outer_index: RefMap | None = None
    static_cache: None = None
    _outer_trace: Any = field(default=None, init=False)
    _inner_trace: Any = field(default=None, init=False)

    def __repr__(self) -> str:
        outer, inner = len(self.outer_index_outer_ref or ()), len(self.outer_index_inner_ref or ())
        return f"UpdateContext({self.tag!r}, outer={outer}, inner={inner})"

    def _set_outer(self, indexes: RefMap | None) -> None:
        """Ends step 1; None ends step 4."""
        self.outer_ref_outer_index = indexes
        self.outer_index_outer_ref = None if indexes is None else {i: found for found, i in indexes.items()}
        self._outer_trace = None if indexes is None else _jax.current_trace()

    def _set_inner(self, objects: IndexMap | None) -> None:
        """Ends step 2; None ends step 3."""
        self.outer_index_inner_ref = objects
        self.inner_ref_outer_index = None if objects is None else RefMap((o, i) for i, o in objects.items())
        self._inner_trace = None if objects is None else _jax.current_trace()

    def _begin_split(self) -> RefMap | None:
        """The inner objects for step 3; None for step 1."""
        trace = _jax.current_trace()
        is_outside = self.outer_ref_outer_index is None or self._outer_trace is trace
        if is_outside and self._inner_trace is not trace:  # left over from a round that failed inside
            self._set_inner(None)
        if self.inner_ref_outer_index is None and not is_outside:
            raise GraphError(
                f"split_context({self.tag!r})",
                "step 3 comes after the end of step 2, and once: there are no inner objects",
                why="step 1 was made outside of the function that JAX is tracing now",
                fix=f"with dx.merge_context({self.tag!r}, inner=True) as ctx:\n"
                "    model = ctx.merge(graphdef, state)\n"
                f"with dx.split_context({self.tag!r}) as ctx:\n"
                "    return ctx.split(model)   # all models of one round in one block",
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
    for context in reversed(active):
        if context.tag == tag:
            return context
    tags = [repr(context.tag) for context in active]
    hint = suggest(repr(tag), tags)
    raise GraphError(
        f"update_context({tag!r})",
        "no active update context has this tag" + (f"; {hint}" if hint else ""),
        got=f"active: {', '.join(tags)}" if tags else "no update context is active in this thread",
        fix=f"with dx.update_context({tag!r}): ...",
    )


class ActiveContext(ContextDecorator):
    """Makes an update context active, for a block or for the calls of a function."""

    def __init__(self, tag: Hashable) -> None:
        self.tag: Hashable = tag

    def __enter__(self) -> UpdateContext:
        context = UpdateContext(self.tag)
        _active.set((*_active.get(), context))
        return context

    def __exit__(self, *error: object) -> None:
        context = current_update_context(self.tag)
        _active.set(tuple(other for other in _active.get() if other is not context))
        context._set_outer(None)
        context._set_inner(None)


def update_context(tag: Hashable) -> ActiveContext:
    """An update context, for a ``with`` or as a decorator.

    In it, `split_context` and `merge_context` of the same tag carry changes of
    a model's structure out of a function that JAX transforms. The transforms of
    declax do this themselves.

    Args:
      tag: identifies the context.

    Returns:
      A context manager that gives the `UpdateContext`, and a decorator. The
      context belongs to the thread or task that enters it.

    Raises:
      GraphError: the tag is None or a function.

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
    if tag is None:
        raise GraphError("update_context", "the tag of a context cannot be None", fix="dx.update_context('train')")
    if isinstance(tag, FunctionType):
        fix = "@dx.update_context('train')"
        raise GraphError("update_context", "a context has a tag, and this is a function", got=describe(tag), fix=fix)
    return ActiveContext(tag)


class SplitContext:
    """Splits graphs that may share objects; see `split_context`.

    Attributes:
      ctxtag: the tag of the update context; None outside of one.
    """

    def __init__(self, ctxtag: Hashable | None, inner: RefMap | None) -> None:
        self.ctxtag: Hashable | None = ctxtag
        self._inner = inner
        self._indexes: RefMap | None = RefMap()

    @overload
    def split(self, node: N, /, *, graph: bool | None = None) -> tuple[GraphDef[N], State[N]]: ...
    @overload
    def split(self, node: N, a: Filter, /, *, graph: bool | None = None) -> tuple[GraphDef[N], State[N]]: ...
    @overload
    def split(
        self, node: N, a: Filter, b: Filter, /, *, graph: bool | None = None
    ) -> tuple[GraphDef[N], State[N], State[N]]: ...
    @overload
    def split(
        self, node: N, a: Filter, b: Filter, c: Filter, /, *, graph: bool | None = None
    ) -> tuple[GraphDef[N], State[N], State[N], State[N]]: ...
    @overload
    def split(self, node: Any, a: Filter, /, *filters: Filter, graph: bool | None = None) -> tuple[Any, ...]: ...
    def split(self, node: Any, /, *filters: Filter, graph: bool | None = None) -> Any:
        """As `declax.split`; objects of earlier graphs of the block become references to them."""
        if self._indexes is None:
            raise _ended("split_context", "ctx.split(model)")
        indexes = RefMap(self._indexes)  # a copy: a split that fails adds nothing
        graphdef, leaves = flatten(node, with_paths=False, ref_index=indexes, ref_outer_index=self._inner, graph=graph)
        definition, where = graphdef.definition, "split_context(...).split"
        states = split_leaves(definition, leaves, filters, where, is_exhaustive=True) if filters else ()
        self._indexes = indexes
        return graphdef, *(states or (make_state(definition, leaves),))


class MergeContext:
    """Merges graphs that may share objects; see `merge_context`.

    Attributes:
      ctxtag: the tag of the update context; None outside of one.
    """

    def __init__(self, ctxtag: Hashable | None, outer: IndexMap | None) -> None:
        self.ctxtag: Hashable | None = ctxtag
        self._outer = outer
        self._objects: IndexMap | None = {}

    def merge(self, graphdef: GraphDef[N], state: State[Any], /, *states: State[Any]) -> N:
        """As `declax.merge`; references lead to graphs merged before. Step 4 changes the outer objects, or raises."""
        if self._objects is None:
            raise _ended("merge_context", "ctx.merge(graphdef, state)")
        leaves, metadata = join(graphdef, (state, *states))
        is_inner = self._outer is None
        if self.ctxtag is not None and (graphdef.outer is None) is not is_inner:
            step, source = ("step 2", "step 1") if is_inner else ("step 4", "step 3")
            raise GraphError(
                f"merge_context({self.ctxtag!r}, inner={is_inner})",
                f"{step} takes what {source} split, and this GraphDef comes from elsewhere",
                why="only step 3 says which outer object each one is",
                fix=f"dx.merge_context({self.ctxtag!r}, inner={not is_inner})   # for one of the other step",
            )
        root: N = _unflatten(graphdef, leaves, metadata, None, self._objects, self._outer)
        return root


def _ended(name: str, call: str) -> GraphError:
    return GraphError(name, "the context is used outside of its block", fix=f"with dx.{name}() as ctx:\n    {call}")


@contextmanager
def split_context(ctxtag: Hashable | None = None) -> Generator[SplitContext, None, None]:
    """Splits several graphs that share objects, in the block of a ``with``.

    Args:
      ctxtag: the tag of the update context whose step 1 or, after step 2,
        step 3 this is; None outside of update contexts.

    Raises:
      GraphError: on entering: no active update context has the tag, or its
        steps are out of order.

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
    update = None if ctxtag is None else current_update_context(ctxtag)
    inner = None if update is None else update._begin_split()
    ctx = SplitContext(ctxtag, inner)
    try:
        yield ctx
        if update is not None and inner is not None:
            update._set_inner(None)
        elif update is not None:
            update._set_outer(ctx._indexes)
    finally:
        ctx._indexes = ctx._inner = None


@contextmanager
def merge_context(ctxtag: Hashable | None = None, inner: bool | None = None) -> Generator[MergeContext, None, None]:
    """Merges several graphs that share objects, in the block of a ``with``; see `split_context`.

    Args:
      ctxtag: the tag of the update context whose step this is; None outside of
        update contexts.
      inner: True for step 2, False for step 4; needed with a tag.

    Raises:
      GraphError: on entering: a tag comes without `inner`, no active update
        context has the tag, or step 1 is not done.

    >>> import declax as dx
    >>> scale = dx.Param(2.0)
    >>> with dx.split_context() as ctx:
    ...     first, second = ctx.split([scale]), ctx.split({"again": scale})
    >>> with dx.merge_context() as ctx:
    ...     one, other = ctx.merge(*first), ctx.merge(*second)
    >>> one[0] is other["again"]
    True
    """
    if ctxtag is not None and inner is None:
        raise GraphError(
            f"merge_context({ctxtag!r})",
            "with a tag, `inner` says which step this is",
            expected="inner=True inside of the transform (step 2), inner=False outside (step 4)",
            fix=f"dx.merge_context({ctxtag!r}, inner=True)",
        )
    is_inner = inner is None or is_on("inner", inner)
    update = None if ctxtag is None else current_update_context(ctxtag)
    ctx = MergeContext(ctxtag, None if update is None else update._begin_merge(inner=is_inner))
    try:
        yield ctx
        if update is not None and is_inner:
            update._set_inner(ctx._objects)
        elif update is not None:
            update._set_outer(None)
            update._set_inner(None)
    finally:
        ctx._objects = ctx._outer = None
