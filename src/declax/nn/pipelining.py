"""Pipelines: the layers of a stack on several devices, each of which passes small parts of the batch to the next."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh

from declax._graph.api import merge, split
from declax._graph.differences import Differing, first_differing
from declax._graph.flattening import GraphDef
from declax._graph.updating import update
from declax._variables.placement import context_mesh, explicit_spec, in_device_memory
from declax.errors import TransformError, describe
from declax.nn.stacking import Stacked, _Fixed
from declax.transforms._engine.names import joined
from declax.transforms._engine.structure import Mode, is_root

X = TypeVar("X")


class RunsLayers(Protocol):
    """A function with the arguments and the result of a stack."""

    def __call__(self, x: X, /, *args: Any, **kwargs: Any) -> X:
        """Runs all layers."""
        ...


def pipeline(
    stack: Stacked[Any], mesh_axis: str, microbatches: int, *, mesh: Mesh | AbstractMesh | None = None
) -> RunsLayers:
    """Runs the layers of a stack on the devices of a mesh axis, one stage after the other (GPipe).

    Each of the S devices along the axis is a stage with 1/S of the layers. The batch is cut into microbatches, which
    pass from stage to stage. In ``microbatches + S - 1`` steps, each stage waits S - 1 times. The backward pass runs
    the same steps in reverse. Microbatch i has the examples ``x[i::microbatches]``. Other axes of the mesh are
    automatic: they may split the batch or the kernels.

    The result is that of ``stack(x)``, up to rounding, for layers that treat examples alike. Variables that the layers
    set, such as statistics and counts of random streams, are set once for each microbatch, in turn.

    Args:
      stack: the layers. Split their arrays by the axis, as ``dx.StateSharding({...: jax.P(mesh_axis)})`` does;
        otherwise each call moves them.
      mesh_axis: the name of the axis of the mesh.
      microbatches: how many; a divisor of the batch. The more there are, the smaller is the share of waiting.
      mesh: the devices; None for the mesh of the context (`jax.set_mesh`) or of the arguments of `dx.jit`. A mesh of
        explicit axes has to be that of the context in a call outside of `jit`.

    Returns:
      A function with the arguments of ``stack``. Each array, in `x` and in further arguments, has the batch as its
      first axis.

    Raises:
      TransformError: there is no such mesh axis; it does not divide the layers, or `microbatches` the batch; an
        argument is a model; the layers change more than values of their Variables; a `shard_map` is around the call.

    >>> import declax as dx
    >>> import jax, jax.numpy as jnp
    >>> blocks = dx.Stacked(lambda rngs: dx.Linear(4, 4, rngs=rngs), 3, axis_name="stage", rngs=dx.Rngs(0))
    >>> mesh = jax.make_mesh((1,), ("stage",), axis_types=(jax.sharding.AxisType.Auto,))
    >>> y = dx.pipeline(blocks, "stage", microbatches=2, mesh=mesh)(jnp.ones((8, 4)))
    >>> bool(jnp.allclose(y, blocks(jnp.ones((8, 4))), atol=1e-6))
    True
    """
    if not isinstance(stack, Stacked):
        fix = "dx.pipeline(dx.Stacked.of(layers), 'stage', microbatches=8)"
        raise TransformError("pipeline", "this is not a stack of layers", got=describe(stack), fix=fix)
    if type(microbatches) is not int or microbatches < 1:
        problem = "this is not a positive int"
        raise TransformError("pipeline, microbatches", problem, got=describe(microbatches), fix="microbatches=8")

    def run(x: X, /, *args: Any, **kwargs: Any) -> X:
        arrays, fixed = _Fixed.apart(args, kwargs)
        found = _checked_mesh(mesh or context_mesh(), mesh_axis, len(stack))
        _check_batch(x, arrays, microbatches)
        graphdef, before = split(stack)
        leaves, tree = jax.tree.flatten(before)
        key = graphdef, tree, fixed, mesh_axis, microbatches, found, Mode.of(None, None)
        try:
            program = _program(*key)
        except TypeError:  # an argument, or a layer, that has no hash
            program = _program.__wrapped__(*key)
        y, written = program(in_device_memory(leaves), x, arrays)
        if written:
            update(stack, jax.tree.unflatten(tree, [written.get(i, leaf) for i, leaf in enumerate(leaves)]))
        result: X = y
        return result

    return run


MAX_PROGRAMS: Final = 64
"""The number of pipelines whose programs are kept."""


@functools.lru_cache(MAX_PROGRAMS)
def _program(
    graphdef: GraphDef[Any], tree: Any, fixed: _Fixed, axis: str, microbatches: int, mesh: Any, _mode: Mode
) -> Callable[..., Any]:
    """The compiled pipeline: from all leaves of the stack and a batch to the result and the leaves that layers set."""
    stages = mesh.shape[axis]
    last = stages - 1
    neighbours = [(stage, stage + 1) for stage in range(last)]

    def compute(leaves: list[Any], x: Any, arrays: list[Any]) -> tuple[Any, dict[int, Any]]:
        """The layers of this stage, and the leaves that they set, by number."""
        part = merge(graphdef, jax.tree.unflatten(tree, leaves))
        args, kwargs = fixed.put(arrays)
        y = part(x, *args, **kwargs)
        structure, after = split(part)
        if structure != graphdef:
            raise _other_structure(first_differing(graphdef, structure))
        pairs = zip(leaves, jax.tree.leaves(after), strict=True)
        return y, {i: new for i, (old, new) in enumerate(pairs) if new is not old}

    def run(leaves: list[Any], x: Any, arrays: list[Any]) -> tuple[Any, dict[int, Any]]:
        stage = jax.lax.axis_index(axis) if last else 0
        x, arrays = jax.tree.map(lambda leaf: _cut(_on_each(leaf, axis) if last else leaf, microbatches), (x, arrays))

        def advance(carry: tuple[Any, dict[int, Any]], step: Any) -> tuple[Any, Any]:
            received, held = carry
            number = step - stage  # of the microbatch of this stage
            is_active = (number >= 0) & (number < microbatches)
            own = _choose(stage == 0, _part(x, step), received)
            y, new = compute([held.get(i, leaf) for i, leaf in enumerate(leaves)], own, _part(arrays, number))
            sent = jax.lax.ppermute(y, axis, neighbours) if last else y  # type: ignore[no-untyped-call]  # of jax
            return (sent, _choose(is_active, {i: new[i] for i in held}, held)), y

        first = _part(x, 0)  # also for stages that wait: gradients of made-up examples may be NaN, also times 0
        set_by_layers = jax.eval_shape(compute, leaves, first, _part(arrays, 0))[1]
        start = first, {i: leaves[i] for i in set_by_layers}
        (_, written), ys = jax.lax.scan(advance, start, jnp.arange(microbatches + last))
        ys = jax.tree.map(lambda leaf: _joined(leaf[last:]), ys)
        return (jax.tree.map(lambda leaf: _of_last(leaf, stage == last, axis), ys) if last else ys), written

    if not last:  # XLA refuses collectives of one device where other axes are automatic
        return jax.jit(run)
    own, whole = jax.P(axis), jax.P()  # type: ignore[no-untyped-call]  # of jax
    mapped = jax.shard_map(run, mesh=mesh, in_specs=(own, whole, whole), out_specs=(whole, own), axis_names={axis})
    return jax.jit(lambda leaves, *others: mapped([_split(leaf, axis) for leaf in leaves], *others))


def _cut(leaf: Any, parts: int) -> Any:
    """The microbatches along axis 1: with strides, each device that has a share of the batch has one of each."""
    return leaf.reshape(leaf.shape[0] // parts, parts, *leaf.shape[1:])


def _part(batch: Any, number: Any) -> Any:
    """A microbatch; the first or last one for numbers out of range."""
    return jax.tree.map(
        lambda leaf: jax.lax.dynamic_index_in_dim(leaf, jnp.clip(number, 0, leaf.shape[1] - 1), 1, keepdims=False),
        batch,
    )


def _joined(parts: Any) -> Any:
    parts = jnp.moveaxis(parts, 0, 1)
    return parts.reshape(-1, *parts.shape[2:])


def _choose(condition: Any, one: Any, other: Any) -> Any:
    return jax.tree.map(functools.partial(jnp.where, condition), one, other)


def _on_each(leaf: Any, axis: str) -> Any:
    """A value of all stages, with the sum of their gradients."""
    return jax.lax.pcast(leaf.astype(_dtype_of_sums(leaf)), axis, to="varying").astype(leaf.dtype)


def _of_last(leaf: Any, is_last: Any, axis: str) -> Any:
    """The value of the last stage, on all stages."""
    terms = jnp.where(is_last, leaf, jnp.zeros_like(leaf)).astype(_dtype_of_sums(leaf))
    total: jax.Array = jax.lax.psum(terms, axis)  # type: ignore[no-untyped-call]  # of jax
    return total.astype(leaf.dtype)


def _dtype_of_sums(leaf: Any) -> Any:
    """float32 for narrow floats: XLA for CPUs ends the process at sums of them on some of the axes (jaxlib 0.10.2)."""
    is_narrow = jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype.itemsize < 4
    return jnp.float32 if is_narrow else leaf.dtype


def _split(leaf: Any, axis: str) -> Any:
    """A leaf whose type has the split of the layers, on explicit axes: JAX cannot transpose its own (0.10.2)."""
    spec = explicit_spec(leaf)
    if not spec or spec[0] == axis:
        return leaf
    return jax.sharding.reshard(leaf, jax.P(axis, *spec[1:]))  # type: ignore[no-untyped-call]  # of jax


def _checked_mesh(mesh: Any, axis: str, layers: int) -> Any:
    """The mesh, which has the axis, whose size divides the number of layers."""
    if AxisType.Manual in jax.sharding.get_abstract_mesh().axis_types:
        raise TransformError(
            "pipeline",
            "this is called in a shard_map",
            why="a pipeline is a shard_map over its axis, and JAX cannot differentiate one in another",
            fix=f"dx.pipeline(stack, {axis!r}, microbatches)(x)        # outside: other axes split x as jit does\n"
            "stack(x)        # in the shard_map: runs the layers of the shard",
        )
    if mesh is None:
        raise TransformError(
            "pipeline, mesh_axis",
            "there is no mesh",
            expected=f"a mesh with the axis {axis!r}",
            fix=f"with jax.set_mesh(mesh): ...        # or dx.pipeline(stack, {axis!r}, microbatches, mesh=mesh)",
        )
    sizes: Mapping[str, int] = dict(mesh.shape)
    if axis not in sizes:
        problem = "the mesh has no such axis"
        fix = f"dx.pipeline(stack, {next(iter(sizes), 'stage')!r}, microbatches)"
        raise TransformError("pipeline, mesh_axis", problem, expected=f"one of {[*sizes]}", got=repr(axis), fix=fix)
    if layers % sizes[axis]:
        raise TransformError(
            "pipeline, stack",
            "the stages cannot have equally many layers",
            expected=f"a multiple of {sizes[axis]} layers, the size of the mesh axis {axis!r}",
            got=f"{layers} layers",
            fix=f"dx.Stacked(build, {-(-layers // sizes[axis]) * sizes[axis]})        # or a mesh with another size",
        )
    return mesh


def _check_batch(x: Any, arrays: list[Any], microbatches: int) -> None:
    """Checks that all arrays have one batch as their first axis, which the microbatches divide."""
    if models := [value for value in arrays if is_root(value)]:
        raise TransformError(
            "pipeline, an argument of the layers",
            "this is a model, which all stages would share",
            got=describe(models[0]),
            fix="stack(x, part)        # without a pipeline; or make the part one of each layer",
        )
    leaves = jax.tree.leaves((x, arrays))
    sizes = {jnp.shape(leaf)[:1] for leaf in leaves}
    if len(sizes) != 1 or () in sizes:
        raise TransformError(
            "pipeline, the batch",
            "the arguments are not arrays with one batch as the first axis",
            got=", ".join(describe(leaf) for leaf in leaves) or "no array",
            fix="jnp.broadcast_to(mask, (len(x), *mask.shape))        # an array for each example",
        )
    ((size,),) = sizes
    if size % microbatches or not size:
        raise TransformError(
            "pipeline, the batch",
            "it cannot be cut into equal microbatches",
            expected=f"a multiple of {microbatches} examples, or other microbatches",
            got=f"{size} examples",
            fix=f"microbatches={max(n for n in range(1, microbatches + 1) if size % n == 0)}",
        )


def _other_structure(found: Differing) -> TransformError:
    return TransformError(
        f"pipeline, {joined('stack', found.path)}",
        "the layers change it, or create or remove it",
        expected="layers that set the values of their Variables only",
        why="the loop over microbatches has one program for layers of one structure",
        fix="return the value as part of y        # or call stack(x), without a pipeline",
    )
