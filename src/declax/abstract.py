"""Graphs of shapes: models without arrays, and functions run on them without computing.

Vocabulary
----------
abstract: having the shape and dtype of an array, and no buffer: a
          `jax.ShapeDtypeStruct`. An abstract model holds these as its leaves.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
from jax.core import Tracer

from declax._nodes import is_ref
from declax._pytree import Pytree
from declax.errors import TransformError, describe
from declax.graph.binding import bind, check_mode
from declax.graph.build import build
from declax.transforms._lift import Call, Outcome, Rebuilt, commit, lifted

N = TypeVar("N")
R = TypeVar("R")


def eval_shape(
    f: Callable[..., R], *args: Any, graph: bool | None = None, graph_updates: bool | None = None, **kwargs: Any
) -> R:
    """What a function would return, with shapes and dtypes in the place of arrays; nothing is computed.

    Nothing is allocated either, so that a model of any size can be looked at.

    Args:
      f: the function; a model, or a method of one, counts as an argument too.
      *args, **kwargs: its arguments: models, Variables, arrays and numbers,
        abstract or not. Others, such as texts and functions, go in as they are.
        What the function does to its arguments happens to abstract copies.
      graph: False where the arguments have to be trees; None for the default of
        `set_graph_mode`.
      graph_updates: as in the transforms; says nothing here, where no argument
        is changed.

    Returns:
      What the function returns, as abstract models, Variables and arrays. What
      is shared in it is shared in the result.

    Raises:
      TransformError: for what is no function.
      GraphError: for a graph where trees are asked for.

    >>> import jax.numpy as jnp
    >>> from declax._variables import Param
    >>> eval_shape(lambda: Param(jnp.zeros((1_000_000, 1_000_000)))).shape
    (1000000, 1000000)
    """
    if not callable(f):
        problem = "the first argument is no function"
        raise TransformError("eval_shape", problem, got=describe(f), fix="dx.eval_shape(lambda: model)")
    function, owner = _with_owner(f)
    call = Call((*owner, *args), kwargs)
    if call.binding is not None:
        check_mode(call.binding.graphdef, graph)
    shapes = _Shapes()
    values, plain = shapes.of(call.values), shapes.of(call.plain)
    outcome = _trace(lifted(function, call.structure), values, plain)
    copies = Rebuilt(call.structure, values, plain)  # lives until the end: a binding does not hold its nodes
    result: R = commit(Call(copies.args, copies.kwargs), outcome)
    return result


def as_abstract(node: N, /, *, graph: bool | None = None) -> N:
    """A copy of a graph with the shapes and dtypes of its arrays in their place.

    Its GraphDef is that of the graph, so that a State of real arrays fits it.

    Args:
      node: a model, a State, an array, or a container of such.
      graph: False where the node has to be a tree; None for the default of
        `set_graph_mode`.

    Returns:
      The copy. Each leaf is a `jax.ShapeDtypeStruct`, with the sharding of
      arrays that are committed to one. A ref becomes one with ``is_ref``.

    Raises:
      GraphError: for a graph where a tree is asked for.

    >>> import jax.numpy as jnp
    >>> from declax._variables import Param
    >>> as_abstract(Param(jnp.ones((2, 3)))).value
    ShapeDtypeStruct(shape=(2, 3), dtype=float32)
    """
    binding = bind(node, graph)
    made: N = build(binding.graphdef, _Shapes().of(binding.read()))
    return made


class _Shapes:
    """Turns values into their shapes; one ref stays one."""

    def __init__(self) -> None:
        self._refs: dict[int, jax.ShapeDtypeStruct] = {}

    def of(self, values: Sequence[Any]) -> list[Any]:
        """The values with shapes in the place of their arrays and numbers."""
        shapes: list[Any] = jax.tree.map(self._shape_of, list(values))
        return shapes

    def _shape_of(self, leaf: Any) -> Any:
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        if is_ref(leaf):
            return self._refs.setdefault(id(leaf), _make_shape(leaf.shape, leaf.dtype, is_ref=True))
        try:
            known = jax.typeof(leaf)
        except (TypeError, OverflowError):  # no array of JAX
            return leaf
        is_placed = isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and leaf.committed
        sharding = leaf.sharding if is_placed else None
        return _make_shape(known.shape, known.dtype, sharding=sharding, weak_type=known.weak_type)


_make_shape: Callable[..., jax.ShapeDtypeStruct] = jax.ShapeDtypeStruct
"""`jax.ShapeDtypeStruct`, whose constructor has no types."""


def _with_owner(f: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function, and the model that it is a method of, as its first argument."""
    if isinstance(f, Pytree):
        return type(f).__call__, (f,)
    if isinstance(f, types.MethodType) and isinstance(f.__self__, Pytree):
        return f.__func__, (f.__self__,)
    return f, ()


def _trace(function: Callable[..., Outcome], *args: Any) -> Outcome:
    """Runs a function on shapes; what it gives back holds shapes too.

    Unlike `jax.eval_shape`, takes and gives back leaves of any type, refs
    included. So what comes out is read while the function is traced.
    """
    leaves, tree = jax.tree.flatten(args)
    is_shape = [isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves]
    found: list[Outcome] = []

    def on_arrays(*arrays: Any) -> None:
        given = iter(arrays)
        filled = [next(given) if is_one else leaf for leaf, is_one in zip(leaves, is_shape, strict=True)]
        outcome = function(*jax.tree.unflatten(tree, filled))
        found.extend(_Shapes().of([outcome]))

    jax.eval_shape(on_arrays, *(leaf for leaf, is_one in zip(leaves, is_shape, strict=True) if is_one))
    return found[0]
