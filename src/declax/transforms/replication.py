"""`pmap` for functions of models: a compiled function over `jax.pmap`, which JAX itself makes of `shard_map`."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

import jax

from declax._typing import MISSING, Missing
from declax.transforms._engine.call import Call
from declax.transforms._engine.captures import Closure
from declax.transforms._engine.commit import run
from declax.transforms._engine.outcome import Outcome, lifted
from declax.transforms._engine.prefixes import Grouped, Labels, Prefixes, from_groups, in_groups
from declax.transforms._engine.structure import Mode, checked_function
from declax.transforms._engine.wrapped import Numbers, P, R, Selection, look_like
from declax.transforms.axis_names import check_metadata, name_axes
from declax.transforms.compilation import JitWrapped, jit
from declax.transforms.vectorization import check_refs, check_shared

if TYPE_CHECKING:
    from declax.transforms._engine.signatures import AxisTree, PmapOptions


@overload
def pmap(
    f: Callable[P, R], *, in_axes: AxisTree = 0, out_axes: AxisTree = 0, **options: Unpack[PmapOptions]
) -> JitWrapped[P, R]: ...
@overload
def pmap(
    *, in_axes: AxisTree = 0, out_axes: AxisTree = 0, **options: Unpack[PmapOptions]
) -> Callable[[Callable[P, R]], JitWrapped[P, R]]: ...
def pmap(
    f: Callable[..., Any] | Missing = MISSING,
    *,
    axis_name: Hashable | None = None,
    in_axes: AxisTree = 0,
    out_axes: AxisTree = 0,
    static_broadcasted_argnums: Numbers = None,
    devices: Sequence[Any] | None = None,
    backend: str | None = None,
    axis_size: int | None = None,
    donate_argnums: Numbers = None,
    transform_metadata: Mapping[str, Any] | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Maps a function of models over axes of its arguments, with each instance on its own device; otherwise as `vmap`.

    Args:
      f: the function; omit it to use `pmap` as a decorator with options.
      axis_name: for collectives in the function.
      in_axes, out_axes: as in `vmap`. A tuple has an entry for each static argument too, which is ignored.
      static_broadcasted_argnums: hashable arguments that are compiled in.
      devices, backend, axis_size: as in `jax.pmap`.
      donate_argnums: arguments whose buffers may be reused; of a model, those of the Variables that are set.
      transform_metadata: ``{dx.PARTITION_NAME: name}`` names the axis in the sharding metadata of Variables.
      graph, graph_updates: as in `jit`.

    Returns:
      The mapped function, which is also usable as a method.

    Raises:
      TransformError: axes do not match, or a leaf without an axis differs between the instances.

    >>> import declax as dx
    >>> import jax.numpy as jnp
    >>> p = dx.Param(jnp.arange(3.0)[None])  # on one device
    >>> dx.pmap(lambda p, x: p * x, in_axes=(0, None))(p, 2.0)
    Array([[0., 2., 4.]], dtype=float32)
    """
    check_metadata(transform_metadata)
    mode = Mode.of(graph, graph_updates)
    options: dict[str, Any] = {"axis_name": axis_name, "axis_size": axis_size}
    placed = {name: given for name, given in (("devices", devices), ("backend", backend)) if given is not None}

    def map_(f: Callable[..., Any]) -> JitWrapped[..., Any]:
        checked_function("pmap", "f", f)
        static = Selection(f, "static_broadcasted", static_broadcasted_argnums, None)
        of_arguments = in_axes
        if static.numbers and isinstance(in_axes, (tuple, list)):
            of_arguments = tuple(axis for i, axis in enumerate(in_axes) if i not in static.numbers)
        axes = Prefixes(of_arguments, out_axes, graph=graph)
        return jit(
            _over_devices(f, axes, static, transform_metadata, mode, options, placed),
            static_argnums=static_broadcasted_argnums,
            donate_argnums=donate_argnums,
            graph=graph,
            graph_updates=graph_updates,
        )

    return map_ if f is MISSING else map_(f)


def _over_devices(
    f: Callable[..., Any],
    axes: Prefixes,
    static: Selection,
    metadata: Mapping[str, Any] | None,
    mode: Mode,
    options: dict[str, Any],
    placed: dict[str, Any],
) -> Callable[..., Any]:
    """The mapped function, for `jit` to compile."""
    closure, warned = Closure(f), set[str]()

    def map_over(call: Call) -> Outcome:
        skipped = {*static.numbers, *call.structure.static_numbers}
        labels = axes.labels(call.structure, call.leaves, closure.function, skipped=skipped)
        check_refs(call, "pmap", [label is not None for label in labels.leaves])

        def adapt(function: Callable[..., Any]) -> Callable[..., Any]:
            return name_axes(static.give(function, call.structure.statics), axes, metadata)

        body = lifted(closure, call.structure, mode, labels, adapt)
        groups = axes.groups(labels, None)
        out = (None, groups.known)
        result = _pmap(in_groups(body, groups), call, labels, out_axes=out, **options, **placed)
        outcome = Outcome(*from_groups(result))
        if None in outcome.plan.labels:  # a trace under `jax.vmap` tells what differs between instances
            look = functools.partial(check_shared, call, labels, warned, transform="pmap")
            checked = in_groups(body, groups, look)
            vmapped = jax.vmap(checked, in_axes=tuple(labels.leaves), out_axes=out, **options)
            jax.eval_shape(vmapped, *call.leaves)
        return outcome

    def take(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        args, kwargs, statics = static.take(args, kwargs)
        return Call(args, kwargs, mode, closure.find(), statics).check_arrays()

    def mapped(*args: Any, **kwargs: Any) -> Any:
        return run(lambda: take(args, kwargs), map_over)

    return look_like(mapped, f)


def _pmap(function: Callable[..., Grouped], call: Call, labels: Labels, **options: Any) -> Grouped:
    itself = weakref.ref(function)  # since JAX keeps each function that it maps like this, and all it refers to

    def flat(*leaves: Any) -> Grouped:
        running = itself()
        assert running is not None  # the caller has it
        return running(*leaves)

    result: Grouped = jax.pmap(flat, in_axes=tuple(labels.leaves), **options)(*call.leaves)
    return result
