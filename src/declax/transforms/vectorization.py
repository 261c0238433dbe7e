"""`vmap` for functions of models.

Vocabulary
----------
axis: of a leaf: which of its dimensions the function is mapped over; None for
      a leaf that all instances share.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

import jax
from jax.core import Tracer
from jax.sharding import PartitionSpec

from declax import _jax
from declax._state_def import LeafDef
from declax._typing import MISSING, Missing, Path
from declax._variables import new_variable
from declax.errors import TransformError, describe, type_name
from declax.rngs.calls import is_broadcast_allowed
from declax.rngs.streams import RngCount
from declax.transforms._captures import Closure
from declax.transforms._lift import Call, Outcome, Plan, lifted, run
from declax.transforms._naming import named_leaves, no_array, note_tracers
from declax.transforms._output_groups import from_groups, in_groups
from declax.transforms._structure import Mode, is_array_like, joined, name_path, names_in_result
from declax.transforms._wrapping import look_like
from declax.transforms.axis_names import check_metadata, name_axes
from declax.transforms.prefixes import Labels, Prefixes

if TYPE_CHECKING:
    from typing import Unpack

    from declax.transforms._signatures import AxisTree, VmapOptions

P = ParamSpec("P")
R = TypeVar("R")


@overload
def vmap(
    f: Callable[P, R], /, *, in_axes: AxisTree = 0, out_axes: AxisTree = 0, **options: Unpack[VmapOptions]
) -> Callable[P, R]: ...
@overload
def vmap(
    *, in_axes: AxisTree = 0, out_axes: AxisTree = 0, **options: Unpack[VmapOptions]
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def vmap(
    f: Callable[..., Any] | Missing = MISSING,
    /,
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

    What the function does to its arguments happens to the caller's, at the
    axes that they have. A Variable without an axis may be set to what is the
    same for all instances. Models that the function captures have no axis.

    Args:
      f: the function; leave it out to use `vmap` as a decorator with options.
      in_axes: an axis, None, or a tree of these, a prefix of the tuple of
        arguments. `StateAxes` gives a model's leaves axes by filter; a graph
        of axes, as `prefix` makes, by path. Arguments by name have that of
        their position; those that have no position, axis 0.
      out_axes: likewise for the result.
      axis_name, axis_size, spmd_axis_name: as in `jax.vmap`.
      transform_metadata: ``{dx.PARTITION_NAME: name}`` gives the axis a name
        in the sharding metadata of Variables outside of the function.
      graph, graph_updates: as in `jit`.

    Returns:
      The mapped function.

    Raises:
      TransformError: for axes that do not fit, and for a Variable without an
        axis that the function sets to different values.

    >>> import jax.numpy as jnp
    >>> from declax._variables import Param
    >>> p = Param(jnp.arange(3.0))
    >>> vmap(lambda p, x: p * x, in_axes=(0, None))(p, 2.0)
    Array([0., 2., 4.], dtype=float32)
    """
    options: dict[str, Any] = {"axis_name": axis_name, "axis_size": axis_size, "spmd_axis_name": spmd_axis_name}

    def make(f: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(f):
            raise TransformError("vmap", "the argument is no function", got=describe(f), fix="dx.vmap(function)")
        closure = Closure(f)
        mode = Mode.of(graph, graph_updates)
        axes = Prefixes(in_axes, out_axes)
        check_metadata(transform_metadata)
        adapt = functools.partial(name_axes, axes=axes, metadata=transform_metadata) if transform_metadata else None
        warned: set[str] = set()

        def map_over(call: Call) -> Outcome:
            labels = axes.labels(call, closure.function)
            call.check_arrays(labels.plain)  # without an axis, anything goes in as it is
            groups = axes.groups(labels, None)
            look = functools.partial(check_shared, call, labels, warned)
            body = in_groups(lifted(closure, call.structure, mode, labels, adapt), groups, look)
            function = jax.vmap(body, in_axes=(labels.values, labels.plain), out_axes=(None, groups.known), **options)
            try:
                result = function(call.values, call.plain)
            except ValueError:
                _check_sizes(call, labels, axis_size)
                raise
            except jax.errors.ConcretizationTypeError as error:
                note_tracers(error, "dx.vmap", closure.function, call.structure, (*labels.values, *labels.plain))
                raise
            return from_groups(result)

        def mapped(*args: Any, **kwargs: Any) -> Any:
            return run(lambda: Call(args, kwargs, mode, closure.find()), map_over)

        return look_like(mapped, closure.function)

    return make if f is MISSING else make(f)


def check_shared(
    call: Call, labels: Labels, warned: set[str], plan: Plan, leaves: Sequence[Any], *, transform: str = "vmap"
) -> None:
    """Looks at what a mapped function did to leaves without an axis.

    Warns, once a path, where it drew random numbers from a stream without an
    axis, which are the same for all instances.

    Raises:
      TransformError: it set or returned one that differs between instances.
    """
    assert plan.labels is not None  # the function has labels
    places = list(places_set(call, plan))
    for number, (label, value) in enumerate(zip(plan.labels, leaves, strict=True)):
        if label is not None:
            if label not in _ENDS or not is_array_like(value):
                _check_axis(value, label, plan, leaves, number, call)
            continue
        if _is_mapped(value):
            if number < len(places):
                raise _differs(call, *places[number])
            raise _result_differs(_name_of_result(plan, leaves, number))
        if number < len(places):
            warn_of_draws(transform, call, labels, places[number], value, warned)


def _is_mapped(value: Any) -> bool:
    """Whether a value, or a part of it, differs between the instances of the function that is traced now."""
    if isinstance(value, Tracer):
        return _jax.is_mapped(value)
    return not isinstance(value, jax.Array) and any(map(_is_mapped_array, jax.tree.leaves(value)))


def _is_mapped_array(leaf: Any) -> bool:
    return isinstance(leaf, Tracer) and _jax.is_mapped(leaf)


def _is_draw(call: Call, labels: Labels, path: Path, leaf_def: LeafDef, value: Any) -> bool:
    """Whether a leaf is the count of a stream that all instances share, and counts draws."""
    if leaf_def is None or not issubclass(leaf_def[0], RngCount) or any(value is given for given in call.values):
        return False
    graphdef = call.structure.graphdef
    position = None if graphdef is None else graphdef.definition.position((*path[:-1], "key"))
    return position is None or not _has_axis(labels.values[position])


def _has_axis(label: Any) -> bool:
    """Whether a leaf is split: by the number of an axis, or by a spec that is not empty."""
    return bool(label) if isinstance(label, PartitionSpec) else label is not None


def places_set(call: Call, plan: Plan) -> Iterator[tuple[Path, LeafDef]]:
    """The argument and path, and the kind, of each leaf that a function set."""
    if plan.change is not None:
        definition = plan.change.graphdef.definition
        positions = [i for i, kept in enumerate(plan.change.kept) if kept < 0 and definition.paths[i][0] == 0]
        for i in positions:
            yield definition.paths[i][1:], definition.leaf_defs[i]
    elif call.structure.graphdef is not None:
        definition = call.structure.graphdef.definition
        for i in plan.changed:
            yield definition.paths[i], definition.leaf_defs[i]


def _differs(call: Call, path: Path, leaf_def: LeafDef) -> TransformError:
    if leaf_def is None:
        kind, filter_ = "leaf", f"dx.PathContains({path[-1]!r})"
    else:
        kind = type_name(leaf_def[0])
        filter_ = f"dx.{kind}" if leaf_def[0].__module__.startswith("declax.") else kind
    return TransformError(
        where_of(call, path),
        f"the function sets this {kind}, which has no axis, to a value that differs between instances",
        expected="a value that is the same for all, or an axis for it",
        why="one value cannot hold those of all instances",
        fix=_fix_of_axes(call, path, f"dx.StateAxes({{{filter_}: 0, ...: None}})"),
    )


def _fix_of_axes(call: Call, path: Path, axes: str) -> str:
    """The line that gives the root of a path an axis; what is captured has none."""
    if where_of(call, path[:1]).startswith("captured"):
        return f"dx.vmap(f, in_axes=({axes}, 0))(model, x)        # pass it: what is captured has no axis"
    return f"in_axes={axes}        # or reduce it first, as by jax.lax.pmean"


def _name_of_result(plan: Plan, leaves: Sequence[Any], number: int) -> str:
    """What to call a result; the results are the last of the leaves."""
    names = names_in_result(plan.tree)
    if plan.change is None:
        return names[number - len(leaves)]
    definition = plan.change.graphdef.definition
    returned = [i for i, kept in enumerate(plan.change.kept) if kept < 0 and definition.paths[i][0] == 1]
    of_roots = [n for n, is_one in zip(names, plan.is_root, strict=True) if is_one]
    of_plain = [n for n, is_one in zip(names, plan.is_root, strict=True) if not is_one]
    rank = number - len(leaves) + len(of_plain) + len(returned)
    path = definition.paths[returned[rank]] if rank < len(returned) else ()
    return joined(of_roots[cast(int, path[1])], path[2:]) if path else of_plain[rank - len(returned)]


_ENDS = (0, -1)


def _check_axis(value: Any, label: int, plan: Plan, leaves: Sequence[Any], number: int, call: Call) -> None:
    """Checks that a value can have the axis that it is to get.

    Raises:
      TransformError: it is no array, or has too few dimensions.
    """
    for leaf in jax.tree.leaves(value):
        ndim = jax.numpy.ndim(leaf) + 1 if is_array_like(leaf) else 0
        if -ndim <= label < ndim:
            continue
        places = list(places_set(call, plan))
        name = where_of(call, places[number][0]) if number < len(places) else _name_of_result(plan, leaves, number)
        if not ndim:
            raise no_array(name, leaf)
        raise TransformError(
            name,
            f"it is to get the axis {label}, and has no such place for it",
            expected=f"an axis from {-ndim} to {ndim - 1}",
            got=f"shape {jax.numpy.shape(leaf)} for one instance",
            fix="out_axes=0        # or in_axes, for what the function sets",
        )


def _result_differs(name: str) -> TransformError:
    return TransformError(
        name,
        "it has no axis in out_axes, and differs between instances",
        expected="a value that is the same for all, or an axis for it",
        why="one value cannot hold those of all instances",
        fix="out_axes=0        # or reduce it first, as by jax.lax.pmean",
    )


def where_of(call: Call, path: Path) -> str:
    """The argument that a path of `places_set` begins with, and the rest of it."""
    return name_path(call.structure, path)


def warn_of_draws(
    transform: str, call: Call, labels: Labels, at: tuple[Path, LeafDef], value: Any, warned: set[str]
) -> None:
    """Warns, once a path, where a leaf without an axis counts draws: these are the same for all instances.

    Args:
      transform: what maps the function.
      call, labels: of the function.
      at: the place and kind of a leaf that it set.
      value: to what.
      warned: the paths of which there was a warning.
    """
    path, leaf_def = at
    if not _is_draw(call, labels, path, leaf_def, value):
        return
    assert leaf_def is not None  # it is a count
    where = where_of(call, path)
    if where in warned or is_broadcast_allowed(path[1:], new_variable(leaf_def[0], None, leaf_def[1], None)):
        return
    warned.add(where)
    stream = str(leaf_def[1].get("tag"))
    warnings.warn(
        f"{transform}: each instance draws the same random numbers from the stream {stream!r} ({where}), "
        f"which has no axis. dx.split_rngs(model, splits=n, only={stream!r}) and an axis for it give each its own; "
        f"where the same draws are meant, call it inside of `with dx.broadcast_rngs({stream!r}):`.",
        stacklevel=_jax.level_of_user(sys._getframe()),
    )


_FIX_OF_SIZES = "in_axes=(None, 0)        # None for what all instances share; dx.StateAxes for parts of a model"


def _check_sizes(call: Call, labels: Labels, axis_size: int | None) -> None:
    """Looks for leaves that cannot be mapped over, or not together, once JAX has found that some are.

    Raises:
      TransformError: names them.
    """
    sizes: dict[int, list[str]] = {} if axis_size is None else {axis_size: ["axis_size"]}
    for (where, value), label in zip(named_leaves(call), (*labels.values, *labels.plain), strict=True):
        if label is None:
            continue
        for leaf in jax.tree.leaves(value):
            shape = jax.numpy.shape(leaf)
            if not -len(shape) <= label < len(shape):
                raise TransformError(
                    where,
                    f"it is mapped over axis {label}, and has no such axis",
                    got=describe(leaf),
                    fix=_FIX_OF_SIZES,
                )
            sizes.setdefault(shape[label], []).append(where)
    if not sizes:
        raise TransformError(
            "vmap",
            "no argument has an axis, so that nothing says how many instances there are",
            expected="an axis of one argument at least, or axis_size",
            why="what is captured, or has None in in_axes, is the same for all",
            fix="dx.vmap(f, in_axes=0)        # or axis_size=10",
        )
    if len(sizes) > 1:
        parts = [
            f"{size}: {places[0]}" + f", and {len(places) - 1} more" * (len(places) > 1)
            for size, places in sizes.items()
        ]
        raise TransformError(
            "vmap",
            "the axes that it maps over have different sizes",
            expected="one size",
            got="; ".join(parts),
            fix=_FIX_OF_SIZES,
        )
