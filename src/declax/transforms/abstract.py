"""Functions of models traced without computing, and abstract models, with shapes in place of arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

import jax
from jax.core import Tracer

from declax._graph.binding import bind
from declax._graph.nodes import is_ref
from declax._graph.unflattening import build
from declax._typing import MISSING, Missing
from declax._variables.metadata import Metadata
from declax._variables.placement import context_mesh, declared_sharding, mesh_of, report
from declax.errors import format_path
from declax.transforms._engine.captures import Closure
from declax.transforms._engine.lift import Call, Numbers, Outcome, Rebuilt, Selection, lifted, look_like
from declax.transforms._engine.structure import Mode, abstract_model
from declax.transforms._engine.tracing import checked_function

if TYPE_CHECKING:
    from typing import Unpack

    from jax.extend.core import ClosedJaxpr

    from declax.transforms._engine.signatures import JaxprOptions

N = TypeVar("N")
P = ParamSpec("P")
R = TypeVar("R")


def eval_shape(
    f: Callable[..., R], *args: Any, graph: bool | None = None, graph_updates: bool | None = None, **kwargs: Any
) -> R:
    """The result of a function, with shapes and dtypes in place of arrays, without computing or allocating.

    Args:
      f: the function; captured models count as arguments, and so does the model of a bound method.
      *args, **kwargs: its arguments: models, Variables, arrays and numbers, abstract or not; other values pass
        unchanged. The function changes abstract copies of them.
      graph: False if the arguments must be trees; None for the default of `set_graph_mode`.
      graph_updates: False if the result must not have Variables of the arguments; no argument changes.

    Returns:
      The result, made of abstract models, Variables and arrays, with its sharing; under `jax.set_mesh` with the
      shardings that Variables declare.

    Raises:
      TransformError: `f` is not a function.
      GraphError: the arguments are not trees, or a flag is not one.
      ShardingError: a declared sharding does not fit the mesh of the context.

    >>> import declax as dx
    >>> import jax.numpy as jnp
    >>> dx.eval_shape(lambda: dx.Param(jnp.zeros((1_000_000, 1_000_000)))).shape
    (1000000, 1000000)
    """
    checked_function("eval_shape", "f", f)
    closure = Closure(f)
    mode = Mode.of(graph, graph_updates)._replace(updates=True)  # of copies of the arguments
    call = Call(args, kwargs, mode, closure.find())
    shapes = _Shapes()
    leaves = shapes.of(call.leaves)
    outcome = _trace(lifted(closure, call.structure, mode), *leaves)
    result: R = Rebuilt(call.structure, leaves).apply(outcome)  # on copies of the arguments
    return result if context_mesh() is None else as_abstract(result)


@overload
def make_jaxpr(
    f: Callable[P, Any], /, *, return_shape: Literal[False] = False, **options: Unpack[JaxprOptions]
) -> Callable[P, ClosedJaxpr]: ...
@overload
def make_jaxpr(
    *, return_shape: Literal[False] = False, **options: Unpack[JaxprOptions]
) -> Callable[[Callable[P, Any]], Callable[P, ClosedJaxpr]]: ...
@overload
def make_jaxpr(
    f: Callable[P, Any], /, *, return_shape: Literal[True], **options: Unpack[JaxprOptions]
) -> Callable[P, tuple[ClosedJaxpr, Any]]: ...
@overload
def make_jaxpr(
    *, return_shape: Literal[True], **options: Unpack[JaxprOptions]
) -> Callable[[Callable[P, Any]], Callable[P, tuple[ClosedJaxpr, Any]]]: ...
def make_jaxpr(
    f: Callable[..., Any] | Missing = MISSING,
    /,
    *,
    static_argnums: Numbers = None,
    axis_env: Sequence[tuple[Hashable, int]] | None = None,
    return_shape: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Makes a function that returns the jaxpr of a function of models.

    Its inputs are the leaves of the models, passed or captured, each once, and then the other arguments. Its outputs
    are the values that the function sets, and then its result. The arguments are not changed.

    Args:
      f: the function; omit it to use `make_jaxpr` as a decorator with options.
      static_argnums: hashable arguments that are part of the function.
      axis_env: names and sizes of mapped axes that the function may use.
      return_shape: whether to return a pair of the jaxpr and the result, with shapes and dtypes instead of arrays.
      graph, graph_updates: as in `jit`.

    Returns:
      A function of the same arguments.

    Raises:
      TransformError: a static argument is not hashable, or the structure changes with ``graph_updates=False``.

    >>> import declax as dx
    >>> p = dx.Param(2.0)
    >>> print(dx.make_jaxpr(lambda p, x: p * x)(p, 3.0))
    { lambda ; a:f32[] b:f32[]. let c:f32[] = mul a b in (c,) }
    """
    mode = Mode.of(graph, graph_updates)
    options: dict[str, Any] = {"axis_env": axis_env, "return_shape": return_shape}

    def trace(f: Callable[..., Any]) -> Callable[..., Any]:
        checked_function("make_jaxpr", "f", f)
        closure = Closure(f)
        static = Selection(f, "static", static_argnums, None)

        def traced(*args: Any, **kwargs: Any) -> Any:
            args, kwargs, statics = static.take(args, kwargs)
            call = Call(args, kwargs, mode, closure.find(), statics).check_arrays()
            body = lifted(closure, call.structure, mode, adapt=functools.partial(static.give, statics=statics))
            make: Any = jax.make_jaxpr(body, **options)
            if not return_shape:
                return make(*call.leaves)
            jaxpr, outcome = make(*call.leaves)
            return jaxpr, Rebuilt(call.structure, call.leaves).apply(outcome)

        return look_like(traced, f)

    return trace if f is MISSING else trace(f)


def as_abstract(node: N, /, *, graph: bool | None = None) -> N:
    """A copy of a model with shapes and dtypes in place of its arrays, and the same GraphDef.

    Args:
      node: a model, a State, an array, or a container of these; may be abstract already.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

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
    binding = bind(node, graph)
    shapes = _Shapes().of(binding.read())
    definition = binding.graphdef.definition
    for position, (path, leaf_def) in enumerate(zip(definition.paths, definition.leaf_defs, strict=True)):
        if leaf_def is not None and leaf_def[1].axes is not None:
            shapes[position] = _placed(format_path(path), leaf_def[1], shapes[position])
    made: N = build(binding.graphdef, shapes)
    return made


def _placed(where: str, metadata: Metadata, shape: Any) -> Any:
    """The shape with the sharding that its Variable declares, if it has none and there is a mesh."""
    mesh = mesh_of(metadata)
    if mesh is None or getattr(shape, "sharding", ()) is not None:
        return shape
    sharding, misfits = declared_sharding(where, metadata, shape.shape, mesh)
    report("as_abstract", misfits, mesh)
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


class _Shapes:
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


def _trace(function: Callable[..., Outcome], *args: Any) -> Outcome:
    """As `jax.eval_shape`, but leaves may have any type and be refs, so the result is read during the trace."""
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
