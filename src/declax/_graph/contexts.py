"""Changes of structure through any transform: the same objects on both sides, in four steps.

    (1) split  ->  (2) merge, inside  ->  changes  ->  (3) split  ->  (4) merge, outside

Step 3 writes into the GraphDef which outer object each inner one stands for: static, so it holds for later calls too.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Final, TypeVar, overload

from declax import _jax
from declax._filters import Filter
from declax._graph.fit import join
from declax._graph.flat import IndexMap, RefMap, flatten, unflatten_leaves
from declax._graph.flattening import GraphDef
from declax._modes import is_on
from declax._state.states import State, make_state, split_leaves
from declax.errors import GraphError, describe, suggest

N = TypeVar("N")


@dataclass(eq=False, repr=False)
class UpdateContext:
    """What one round of the four steps has to remember; see `update_context`.

    Attributes:
      tag: what it is found by.
      outer_ref_outer_index: from the outer objects to their indexes; after
        step 1, until the end of step 4.
      outer_index_outer_ref: the same the other way round.
      outer_index_inner_ref: from the same indexes to the inner objects; after
        step 2, until the end of step 3.
      inner_ref_outer_index: the same the other way round.
      static_cache: None. For programs that ask; declax keeps what it knows of
        a model with the model.
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
        outer = 0 if self.outer_ref_outer_index is None else len(self.outer_ref_outer_index)
        inner = 0 if self.inner_ref_outer_index is None else len(self.inner_ref_outer_index)
        return f"UpdateContext({self.tag!r}, outer={outer}, inner={inner})"

    def _set_outer(self, indexes: RefMap | None) -> None:
        """Ends step 1; None ends step 4."""
        self.outer_ref_outer_index = indexes
        self.outer_index_outer_ref = None if indexes is None else indexes.by_index()
        self._outer_trace = None if indexes is None else _jax.current_trace()

    def _set_inner(self, objects: IndexMap | None) -> None:
        """Ends step 2; None ends step 3."""
        self.outer_index_inner_ref = objects
        self.inner_ref_outer_index = None if objects is None else RefMap((o, i) for i, o in objects.items())
        self._inner_trace = None if objects is None else _jax.current_trace()

    def _clear(self) -> None:
        self._set_outer(None)
        self._set_inner(None)

    def _begin_split(self) -> RefMap | None:
        """The inner objects for step 3; None for step 1.

        Raises:
          GraphError: this is the place of step 3, and step 2 is not done.
        """
        trace = _jax.current_trace()
        is_outside = self.outer_ref_outer_index is None or self._outer_trace is trace
        if self.inner_ref_outer_index is None:
            if is_outside:
                return None
            raise GraphError(
                f"split_context({self.tag!r})",
                "step 3 comes after the end of step 2, and once: there are no inner objects",
                why="step 1 was made outside of the function that JAX is tracing now",
                fix=f"with dx.merge_context({self.tag!r}, inner=True) as ctx:\n"
                "    model = ctx.merge(graphdef, state)\n"
                f"with dx.split_context({self.tag!r}) as ctx:\n"
                "    return ctx.split(model)   # all models of one round in one block",
            )
        if is_outside and self._inner_trace is not trace:  # left over from a round that failed inside
            self._set_inner(None)
        return self.inner_ref_outer_index

    def _begin_merge(self, *, inner: bool) -> IndexMap | None:
        """The outer objects for step 4; None for step 2.

        Raises:
          GraphError: step 1 is not done.
        """
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

    Args:
      tag: the tag.

    Raises:
      GraphError: where none has it.

    >>> with update_context("train") as context:
    ...     current_update_context("train") is context
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


class Activation(ContextDecorator):
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
        context._clear()


def update_context(tag: Hashable) -> Activation:
    """An update context, as the subject of a ``with`` or as a decorator.

    In it, `split_context` and `merge_context` of the same tag carry changes of
    a model's structure out of a function that JAX transforms. `declax.jit` and
    the other transforms do so by themselves; this is for those that are not
    lifted.

    Args:
      tag: what tells it from other contexts, so that none is taken by mistake.

    Returns:
      A context manager that gives the `UpdateContext`, and a decorator. The
      context belongs to the thread or task that enters it.

    Raises:
      GraphError: for None, which says that there is no context, and for a
        function, which is no tag.

    >>> import jax
    >>> from declax._module.module import Module
    >>> @jax.jit
    ... def grow(graphdef, state):
    ...     with merge_context("grow", inner=True) as ctx:  # 2
    ...         model = ctx.merge(graphdef, state)
    ...     model.self = model
    ...     with split_context("grow") as ctx:  # 3
    ...         return ctx.split(model)
    >>> model = Module()
    >>> with update_context("grow"):
    ...     with split_context("grow") as ctx:  # 1
    ...         graphdef, state = ctx.split(model)
    ...     graphdef, state = grow(graphdef, state)
    ...     with merge_context("grow", inner=False) as ctx:  # 4
    ...         _ = ctx.merge(graphdef, state)
    >>> model.self is model
    True
    """
    if tag is None:
        raise GraphError("update_context", "None says that there is no context", fix="dx.update_context('train')")
    if isinstance(tag, FunctionType):
        fix = "@dx.update_context('train')"
        raise GraphError("update_context", "a context has a tag, and this is a function", got=describe(tag), fix=fix)
    return Activation(tag)


class SplitContext:
    """Splits graphs that may share objects; see `split_context`.

    Attributes:
      ctxtag: the tag of the update context; None where there is none.
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
        """As `declax.split`; what an earlier graph of the block has comes as a reference to it.

        Args:
          node: a model, or a container of models.
          *filters: which leaves go into which State.
          graph: as in `declax.split`.

        Raises:
          FilterError, GraphError: as of `declax.split`.
          GraphError: outside of the block.
        """
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
      ctxtag: the tag of the update context; None where there is none.
    """

    def __init__(self, ctxtag: Hashable | None, outer: IndexMap | None) -> None:
        self.ctxtag: Hashable | None = ctxtag
        self._outer = outer
        self._objects: IndexMap | None = {}

    def merge(self, graphdef: GraphDef[N], state: State[Any], /, *states: State[Any]) -> N:
        """As `declax.merge`; references lead to the graphs that were merged before in the block.

        In step 4, what stands for outer objects becomes those objects, changed
        in place: each merge changes all that it has to, or nothing.

        Args:
          graphdef: the structure.
          state, *states: the values; together they have each leaf once.

        Raises:
          GraphError: for States that are not of this GraphDef, for a GraphDef
            of another step, for missing earlier graphs, and outside of the block.
          TraceContextError: for outer objects of another trace level.
        """
        if self._objects is None:
            raise _ended("merge_context", "ctx.merge(graphdef, state)")
        leaves, metadata = join(graphdef, (state, *states))
        is_inner = self._outer is None
        if self.ctxtag is not None and (graphdef.outer is None) is not is_inner:
            raise _of_another_step(self.ctxtag, is_inner=is_inner)
        root: N = unflatten_leaves(graphdef, leaves, metadata, None, self._objects, self._outer)
        return root


def _ended(name: str, call: str) -> GraphError:
    return GraphError(name, "the context is used outside of its block", fix=f"with dx.{name}() as ctx:\n    {call}")


def _of_another_step(tag: Hashable, *, is_inner: bool) -> GraphError:
    if is_inner:
        return GraphError(
            f"merge_context({tag!r}, inner=True)",
            "step 2 takes what step 1 split, and this GraphDef comes from step 3",
            fix=f"dx.merge_context({tag!r}, inner=False)",
        )
    return GraphError(
        f"merge_context({tag!r}, inner=False)",
        "step 4 takes what step 3 split, and this GraphDef does not come from there",
        why="only step 3 says which outer object each one is",
        fix=f"with dx.split_context({tag!r}) as ctx:   # inside, after the changes\n    return ctx.split(model)",
    )


@contextmanager
def split_context(ctxtag: Hashable | None = None) -> Generator[SplitContext, None, None]:
    """For the block of a ``with``: splits several graphs that share objects.

    Args:
      ctxtag: the tag of the update context whose step 1 or, after step 2,
        step 3 this is. Without it, this stands for itself.

    Returns:
      A context manager, whose `split` is used in the block.

    Raises:
      GraphError: on entering: no active update context has the tag, or its
        steps are out of order.

    >>> from declax._module.module import Module
    >>> from declax._variables.variable import Param
    >>> encoder, decoder = Module(), Module()
    >>> encoder.embedding = decoder.embedding = Param(1.0)
    >>> with split_context() as ctx:
    ...     first, second = ctx.split(encoder), ctx.split(decoder)
    >>> len(first[1].leaves), len(second[1].leaves)
    (1, 0)
    >>> with merge_context() as ctx:
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


def merge_context(ctxtag: Hashable | None = None, inner: bool | None = None) -> AbstractContextManager[MergeContext]:
    """For the block of a ``with``: merges several graphs that share objects.

    Args:
      ctxtag: the tag of the update context whose step this is. Without it,
        this stands for itself; see `split_context`.
      inner: True for step 2, False for step 4; needed with a tag.

    Returns:
      A context manager, whose `merge` is used in the block.

    Raises:
      GraphError: for a tag without `inner`, or with one that is neither True
        nor False; on entering: no active update context has the tag, or step 1
        is not done.
    """
    if ctxtag is not None and inner is None:
        raise GraphError(
            f"merge_context({ctxtag!r})",
            "with a tag, `inner` says which step this is",
            expected="inner=True inside of the transform (step 2), inner=False outside (step 4)",
            fix=f"dx.merge_context({ctxtag!r}, inner=True)",
        )
    return _merging(ctxtag, inner is None or is_on("inner", inner))


@contextmanager
def _merging(ctxtag: Hashable | None, is_inner: bool) -> Generator[MergeContext, None, None]:
    update = None if ctxtag is None else current_update_context(ctxtag)
    ctx = MergeContext(ctxtag, None if update is None else update._begin_merge(inner=is_inner))
    try:
        yield ctx
        if update is not None and is_inner:
            update._set_inner(ctx._objects)
        elif update is not None:
            update._clear()
    finally:
        ctx._objects = ctx._outer = None
