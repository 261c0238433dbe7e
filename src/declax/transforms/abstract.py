"""Graphs of shapes: models without arrays, and functions run on them without computing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
from jax.core import Tracer

from declax._graph.binding import bind
from declax._graph.nodes import is_ref
from declax._graph.unflattening import build
from declax._modes import is_graph, is_on, set_graph_updates
from declax.errors import AbstractModelError, TransformError, describe
from declax.transforms._engine.captures import Closure
from declax.transforms._engine.lift import Call, Outcome, lifted
from declax.transforms._engine.structure import Mode
from declax.transforms.tracing import returned

N = TypeVar("N")
R = TypeVar("R")


def eval_shape(
    f: Callable[..., R], *args: Any, graph: bool | None = None, graph_updates: bool | None = None, **kwargs: Any
) -> R:
    """What a function would return, with shapes and dtypes in the place of arrays; nothing is computed.

    Nothing is allocated either, so that a model of any size can be looked at.

    Args:
      f: the function; models that it captures count as arguments too, as does
        one whose method it is.
      *args, **kwargs: its arguments: models, Variables, arrays and numbers,
        abstract or not. Others, such as texts and functions, go in as they are.
        What the function does to its arguments happens to abstract copies.
      graph: False if the arguments must be trees; None for the default of `set_graph_mode`.
      graph_updates: as in the transforms; says nothing here, where no argument
        is changed.

    Returns:
      What the function returns, as abstract models, Variables and arrays. What
      is shared in it is shared in the result.

    Raises:
      TransformError: for what is no function.
      GraphError: for a graph where trees are asked for, and for flags that are
        none.

    >>> import jax.numpy as jnp
    >>> from declax._variables.variable import Param
    >>> eval_shape(lambda: Param(jnp.zeros((1_000_000, 1_000_000)))).shape
    (1000000, 1000000)
    """
    if not callable(f):
        problem = "the first argument is no function"
        raise TransformError("eval_shape", problem, got=describe(f), fix="dx.eval_shape(lambda: model)")
    is_on("graph_updates", graph_updates, set_graph_updates.current_value)  # is checked, though it means nothing here
    closure = Closure(f)
    call = Call(args, kwargs, Mode(is_graph(graph)), closure.find())
    shapes = _Shapes()
    values, plain = shapes.of(call.values), shapes.of(call.plain)
    outcome = _trace(lifted(closure, call.structure), values, plain)
    result: R = returned(call, values, plain, outcome)
    return result


def as_abstract(node: N, /, *, graph: bool | None = None) -> N:
    """A copy of a graph with the shapes and dtypes of its arrays in their place.

    Its GraphDef is that of the graph, so that a State of real arrays fits it.

    Args:
      node: a model, a State, an array, or a container of such.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Returns:
      The copy. Each leaf is a `jax.ShapeDtypeStruct`, with the sharding of
      arrays that are committed to one. A ref becomes one with ``is_ref``.

    >>> import jax.numpy as jnp
    >>> from declax._variables.variable import Param
    >>> as_abstract(Param(jnp.ones((2, 3)))).value
    ShapeDtypeStruct(shape=(2, 3), dtype=float32)
    """
    binding = bind(node, graph)
    made: N = build(binding.graphdef, _Shapes().of(binding.read()))
    return made


class ShapeDtypeStruct(jax.ShapeDtypeStruct):
    """The leaf of an abstract graph: the class of JAX, which says what is wrong where it is computed with.

    A model of real arrays knows nothing of it, and pays nothing for it. JAX's
    own functions ask for `__jax_array__` where they may; those that do not, as
    `jax.lax` ones, raise their own error, in which this class is named.
    """

    __slots__ = ()

    def __jax_array__(self) -> jax.Array:
        raise _is_abstract(self)


def _is_abstract(leaf: jax.ShapeDtypeStruct) -> AbstractModelError:
    return AbstractModelError(
        "abstract model",
        "the model has shapes in the place of arrays, so that nothing can be computed with it",
        got=f"a leaf of shape {leaf.shape} and dtype {leaf.dtype}",
        fix="dx.eval_shape(model, x)        # what it would return; dx.update(model, state) puts arrays in",
    )


def _refuse(self: jax.ShapeDtypeStruct, *_: object) -> Any:
    raise _is_abstract(self)


_BINARY = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or"
_OTHER = "lt le gt ge neg pos abs invert getitem iter bool int float complex index round array"
for _name in (*_BINARY.split(), *(f"r{name}" for name in _BINARY.split()), *_OTHER.split()):
    setattr(ShapeDtypeStruct, f"__{_name}__", _refuse)


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
            return self._refs.setdefault(id(leaf), _make_ref(leaf.shape, leaf.dtype, is_ref=True))
        try:
            known = jax.typeof(leaf)
        except (TypeError, OverflowError):  # no array of JAX
            return leaf
        is_placed = isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and leaf.committed
        sharding = leaf.sharding if is_placed else None
        return _make_shape(known.shape, known.dtype, sharding=sharding, weak_type=known.weak_type)


_make_shape: Callable[..., jax.ShapeDtypeStruct] = ShapeDtypeStruct
_make_ref: Callable[..., jax.ShapeDtypeStruct] = jax.ShapeDtypeStruct  # `is_ref` goes by the very class


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
