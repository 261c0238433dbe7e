"""`vmap` for functions of models."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

import jax
from jax.core import Tracer
from jax.sharding import PartitionSpec

from declax import _jax
from declax._graph.nodes import is_ref
from declax._random.changes import is_broadcast_allowed
from declax._typing import MISSING, Missing
from declax._variables.kinds import RngCount
from declax._variables.mapped import one_axis_less
from declax._variables.variable import new_variable
from declax.errors import TransformError
from declax.transforms._engine.call import Call, named_leaves
from declax.transforms._engine.captures import Closure
from declax.transforms._engine.commit import run
from declax.transforms._engine.diagnostics import note_tracers
from declax.transforms._engine.names import name_path
from declax.transforms._engine.outcome import Outcome, Plan, leaves_set, lifted, names_of_outputs
from declax.transforms._engine.prefixes import (
    Labels,
    Prefixes,
    check_axis,
    from_groups,
    in_groups,
    kind_and_filter,
    size_along_axes,
)
from declax.transforms._engine.structure import Mode, Structure, checked_function, is_array_like, no_array, no_ref
from declax.transforms._engine.wrapped import P, R, look_like
from declax.transforms.axis_names import check_metadata, name_axes, place_new

if TYPE_CHECKING:
    from declax.transforms._engine.signatures import AxisTree, VmapOptions


@overload
def vmap(
    f: Callable[P, R], *, in_axes: AxisTree = 0, out_axes: AxisTree = 0, **options: Unpack[VmapOptions]
) -> Callable[P, R]: ...
@overload
def vmap(
    *, in_axes: AxisTree = 0, out_axes: AxisTree = 0, **options: Unpack[VmapOptions]
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def vmap(
    f: Callable[..., Any] | Missing = MISSING,
    *,
    in_axes: AxisTree = 0,
    out_axes: AxisTree = 0,
    axis_name: Hashable | None = None,
    axis_size: int | None = None,
    spmd_axis_name: Hashable | tuple[Hashable, ...] | None = None,
    transform_metadata: Mapping[str, Any] | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Maps a function of models over axes of its arguments.

    Variables that the function sets are written to the caller's models, along their axes. A leaf without an axis is
    shared by all instances, and may be set to a value that is the same for all. Captured models have no axis.

    Args:
      f: the function; omit it to use `vmap` as a decorator with options.
      in_axes: an axis, None, or a tree of these, a prefix of the tuple of arguments. `StateAxes` selects the axes of
        a model's leaves by filter; a graph of axes, from `prefix`, by path. A keyword argument has the axis of its
        position, or axis 0 if it has no position.
      out_axes: likewise for the result.
      axis_name, axis_size, spmd_axis_name: as in `jax.vmap`.
      transform_metadata: ``{dx.PARTITION_NAME: name}`` names the axis in the sharding metadata of Variables, and on a
        mesh splits new ones by this name too.
      graph, graph_updates: as in `jit`.

    Raises:
      TransformError: axes do not match, or a leaf without an axis is set to different values.

    >>> import declax as dx
    >>> import jax.numpy as jnp
    >>> p = dx.Param(jnp.arange(3.0))
    >>> dx.vmap(lambda p, x: p * x, in_axes=(0, None))(p, 2.0)
    Array([0., 2., 4.], dtype=float32)
    """
    options: dict[str, Any] = {"axis_name": axis_name, "axis_size": axis_size, "spmd_axis_name": spmd_axis_name}

    def make(f: Callable[..., Any]) -> Callable[..., Any]:
        closure = Closure(checked_function("vmap", "f", f))
        mode = Mode.of(graph, graph_updates)
        axes = Prefixes(in_axes, out_axes, graph=graph)
        check_metadata(transform_metadata)
        adapt = functools.partial(name_axes, axes=axes, metadata=transform_metadata)
        warned: set[str] = set()

        def map_over(call: Call) -> Outcome:
            labels = axes.labels(call.structure, call.leaves, closure.function)
            call.check_arrays(labels.plain)  # without an axis, anything goes in as it is
            groups = axes.groups(labels, None)
            look = functools.partial(check_shared, call, labels, warned)
            body = in_groups(lifted(closure, call.structure, mode, labels, adapt), groups, look)
            function = jax.vmap(body, in_axes=tuple(labels.leaves), out_axes=(None, groups.known), **options)
            try:
                with one_axis_less():
                    result = function(*call.leaves)
            except ValueError:  # which JAX raises for axes and sizes too
                pairs = zip(named_leaves(call), labels.leaves, strict=True)
                named = ((name, value, axis) for (name, value), axis in pairs if axis is not None)
                size_along_axes("vmap", named, axis_size, "axis_size")
                raise
            except jax.errors.ConcretizationTypeError as error:
                note_tracers(error, "dx.vmap", closure.function, call.structure, labels.leaves)
                raise
            outcome = Outcome(*from_groups(result))
            return place_new(call.structure, outcome) if transform_metadata else outcome

        def mapped(*args: Any, **kwargs: Any) -> Any:
            return run(lambda: Call(args, kwargs, mode, closure.find()), map_over)

        return look_like(mapped, closure.function)

    return make if f is MISSING else make(f)


def check_shared(
    call: Call, labels: Labels, warned: set[str], plan: Plan, leaves: Sequence[Any], *, transform: str = "vmap"
) -> None:
    """Checks the leaves without an axis that a mapped function set; warns if all instances draw the same numbers."""
    for number, (label, value) in enumerate(zip(plan.labels, leaves, strict=True)):
        if label is None:
            if _is_mapped(value):
                raise _differs(call, plan, number)
        elif label not in (0, -1) or not is_array_like(value):
            name = names_of_outputs(call.structure, plan)[number]
            for leaf in jax.tree.leaves(value):
                if not is_array_like(leaf):
                    raise no_array(name, leaf)
                check_axis(name, label, leaf, jax.numpy.ndim(leaf) + 1)
    warn_of_equal_draws(transform, call.structure, labels, plan, leaves, warned, call.values)


def check_refs(call: Call, transform: str, is_refused: Sequence[bool]) -> None:
    """Checks that some leaves of a call are not array refs."""
    for (name, value), is_one in zip(named_leaves(call), is_refused, strict=True):
        if is_one and is_ref(value):
            raise no_ref(name, f"this is an array ref, which {transform} cannot split")


def _is_mapped(value: Any) -> bool:
    """Whether a value differs between the instances of the function being traced."""
    return any(isinstance(leaf, Tracer) and _jax.is_mapped(leaf) for leaf in jax.tree.leaves(value))


def _differs(call: Call, plan: Plan, number: int) -> TransformError:
    found = list(leaves_set(call.structure, plan))
    fix = "out_axes=0        # or reduce it, for example by jax.lax.pmean"
    if number < len(found):
        _, filter_ = kind_and_filter(*found[number])
        fix = f"in_axes=dx.StateAxes({{{filter_}: 0, ...: None}})        # for an argument; or use jax.lax.pmean"
    return TransformError(
        names_of_outputs(call.structure, plan)[number],
        "this differs between instances but has no axis",
        expected="one value for all instances, or an axis",
        why="all instances share a leaf without an axis; captured models have none",
        fix=fix,
    )


def warn_of_equal_draws(
    transform: str,
    structure: Structure,
    labels: Labels,
    plan: Plan,
    leaves: Sequence[Any],
    warned: set[str],
    given: Sequence[Any] = (),
) -> None:
    """Warns, once for each path, if a stream without an axis counts draws; a count that is one of `given` does not."""
    for (path, leaf_def), label, value in zip(leaves_set(structure, plan), plan.labels, leaves, strict=False):
        if _has_axis(label) or leaf_def is None or not issubclass(leaf_def[0], RngCount):
            continue
        key = structure.graphdef.definition.position((*path[:-1], "key"))
        if (key is not None and _has_axis(labels.leaves[key])) or any(value is before for before in given):
            continue
        where = name_path(structure, path)
        if where in warned or is_broadcast_allowed(path[1:], new_variable(leaf_def[0], None, leaf_def[1], None)):
            continue
        warned.add(where)
        stream = str(leaf_def[1].get("tag"))
        part = "step" if transform == "scan" else "instance"
        warnings.warn(
            f"{transform}: each {part} draws the same random numbers from the stream {stream!r} ({where}), "
            f"which has no axis. dx.split_rngs(model, splits=n, only={stream!r}) and an axis for it give each its own; "
            f"if the same draws are intended, call it inside of `with dx.broadcast_rngs({stream!r}):`.",
            stacklevel=_jax.level_of_user(sys._getframe()),
        )


def _has_axis(label: Any) -> bool:
    return bool(label) if isinstance(label, PartitionSpec) else label is not None
