"""Abstract models, with shapes in place of arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.core import Tracer

from declax._graph.binding import bind
from declax._graph.nodes import is_ref
from declax._graph.unflattening import build
from declax._typing import N
from declax._variables.metadata import Metadata
from declax._variables.placement import declared_sharding, mesh_of, report
from declax.errors import AbstractModelError, format_path


def as_abstract(tree: N, graph: bool | None = None) -> N:
    """A copy of a model with shapes and dtypes in place of its arrays, and the same GraphDef.

    Args:
      tree: a model, a State, an array, or a container of these; may be abstract already.
      graph: False if it must be a tree; None for the default of `set_graph_mode`.

    Returns:
      The copy. Each leaf is a `jax.ShapeDtypeStruct`, with the sharding of a committed array, or the one that its
      Variable declares, on the mesh of its metadata or of `jax.set_mesh`; and with ``is_ref`` for a ref.

    Raises:
      ShardingError: a declared sharding does not fit the mesh.

    >>> import declax as dx
    >>> import jax.numpy as jnp
    >>> dx.as_abstract(dx.Param(jnp.ones((2, 3)))).value
    ShapeDtypeStruct(shape=(2, 3), dtype=float32)
    """
    return with_shapes(tree, graph)


def with_shapes(tree: N, graph: bool | None = None, *, is_traced: bool = False) -> N:
    """As `as_abstract`; `is_traced` of what a traced function made, where a size that does not fit is no error."""
    binding = bind(tree, graph)
    shapes = Shapes().of(binding.read())
    definition = binding.graphdef.definition
    for position, (path, leaf_def) in enumerate(zip(definition.paths, definition.leaf_defs, strict=True)):
        if leaf_def is not None and leaf_def[1].axes is not None:
            shapes[position] = _placed(format_path(path), leaf_def[1], shapes[position], is_traced)
    made: N = build(binding.graphdef, shapes, orders=binding.orders)
    return made


def _placed(where: str, metadata: Metadata, shape: Any, is_traced: bool) -> Any:
    """The shape with the sharding that its Variable declares, if it has none and there is a mesh."""
    mesh = mesh_of(metadata)
    if mesh is None or getattr(shape, "sharding", ()) is not None:
        return shape
    sharding, misfits = declared_sharding(where, metadata, shape.shape, mesh)
    report("eval_shape" if is_traced else "as_abstract", misfits, mesh, is_traced=is_traced)
    return with_sharding(shape, sharding)


def with_sharding(shape: jax.ShapeDtypeStruct, sharding: jax.NamedSharding) -> jax.ShapeDtypeStruct:
    """The same shape with a sharding."""
    make = _make_ref if shape.is_ref else _make_shape
    return make(shape.shape, shape.dtype, sharding=sharding, weak_type=shape.weak_type, is_ref=shape.is_ref)


abstract_with_sharding = as_abstract
"""An older name in NNX."""


class ShapeDtypeStruct(jax.ShapeDtypeStruct):
    """The leaf of an abstract model: the class of JAX, with an error that names the model when it is computed with.

    Functions of JAX that do not call `__jax_array__`, such as those of `jax.lax`, raise their own error.
    """

    __slots__ = ()

    def __jax_array__(self) -> jax.Array:
        return _refuse(self)  # type: ignore[no-any-return]  # it raises


def _refuse(self: jax.ShapeDtypeStruct, *_: object) -> Any:
    raise abstract_model("abstract model", self, "dx.eval_shape(model, x)")


_BINARY = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or"
_OTHER = "lt le gt ge neg pos abs invert getitem iter bool int float complex index round array"
for _name in (*_BINARY.split(), *(f"r{name}" for name in _BINARY.split()), *_OTHER.split()):
    setattr(ShapeDtypeStruct, f"__{_name}__", _refuse)


class Shapes:
    """Replaces values by their shapes; one ref stays one."""

    def __init__(self) -> None:
        self._refs: dict[int, jax.ShapeDtypeStruct] = {}

    def of(self, values: Sequence[Any]) -> list[Any]:
        """The values with shapes in place of arrays and numbers."""
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
        sharding = leaf.sharding if is_placed else _of_type(known)
        return _make_shape(known.shape, known.dtype, sharding=sharding, weak_type=known.weak_type)


def _of_type(known: Any) -> jax.NamedSharding | None:
    """The sharding in a type, which explicit axes have."""
    sharding: jax.NamedSharding | None = getattr(known, "sharding", None)
    return None if sharding is None or not sharding.mesh.are_all_axes_explicit else sharding


_make_shape: Callable[..., jax.ShapeDtypeStruct] = ShapeDtypeStruct
_make_ref: Callable[..., jax.ShapeDtypeStruct] = jax.ShapeDtypeStruct  # `is_ref` goes by the very class


def abstract_model(where: str, leaf: jax.ShapeDtypeStruct, fix: str) -> AbstractModelError:
    """The error of a computation with shapes."""
    return AbstractModelError(
        where,
        "the model holds shapes in place of arrays, so it cannot compute",
        got=f"a leaf of shape {leaf.shape} and dtype {leaf.dtype}",
        fix=f"{fix}        # the shapes of its result; dx.update(model, state) sets arrays",
    )
