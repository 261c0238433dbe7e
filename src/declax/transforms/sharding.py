"""`shard_map` for functions of models."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Unpack, overload

import jax
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec, Sharding

from declax._jax import varying_axes
from declax._typing import MISSING, Missing
from declax._variables.placement import cannot_split, check_splits, context_mesh, names_of_entry
from declax.errors import TransformError, describe
from declax.transforms._engine.call import Call, named_leaves
from declax.transforms._engine.captures import Closure
from declax.transforms._engine.commit import run_with, wait
from declax.transforms._engine.outcome import Outcome, Plan, lifted, names_of_outputs
from declax.transforms._engine.placement import place, shardings_of
from declax.transforms._engine.prefixes import LabelKind, Labels, Prefixes, from_groups, in_groups
from declax.transforms._engine.refusals import explain_shardings
from declax.transforms._engine.structure import Mode, checked_function
from declax.transforms._engine.wrapped import P, R, look_like
from declax.transforms.vectorization import check_refs, warn_of_equal_draws

if TYPE_CHECKING:
    from declax.transforms._engine.signatures import ShardMapOptions


_REPLICATED: PartitionSpec = jax.P()  # type: ignore[no-untyped-call]  # of jax


@overload
def shard_map(f: Callable[P, R], *, out_specs: Any, **options: Unpack[ShardMapOptions]) -> Callable[P, R]: ...
@overload
def shard_map(*, out_specs: Any, **options: Unpack[ShardMapOptions]) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def shard_map(
    f: Callable[..., Any] | Missing = MISSING,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    in_specs: Any | Missing = MISSING,
    out_specs: Any,
    axis_names: Set[str] = frozenset(),
    check_vma: bool = True,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Maps a function of models over the shards of its arguments.

    Variables that the function sets are written to the caller's models, with the spec of the argument. The spec also
    places the other arrays of the models. Captured models are replicated.

    Args:
      f: the function; omit it to use `shard_map` as a decorator with options.
      mesh: the devices; None for the mesh of the context (`jax.set_mesh`).
      in_specs: a `PartitionSpec`, None for replicated values, or a tree of these, a prefix of the tuple of arguments.
        `StateSharding` selects the specs of a model's leaves by filter; a State or graph of specs, by path. Arguments
        without a position are replicated. If omitted, the types of the arguments have the specs, which requires a
        mesh of explicit axes.
      out_specs: likewise for the result.
      axis_names: the axes that are manual in the function; empty for all.
      check_vma: whether to check that values that are not split do not vary.
      graph, graph_updates: as in `jit`.

    Raises:
      TransformError: specs do not match the arguments, their shapes or the mesh; a value varies along an axis that
        its spec does not name.

    >>> import declax as dx
    >>> import jax, jax.numpy as jnp
    >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    >>> p = dx.Param(jnp.arange(3.0))
    >>> dx.shard_map(lambda p, x: p * x, mesh=mesh, in_specs=(jax.P("data"), None), out_specs=jax.P("data"))(p, 2.0)
    Array([0., 2., 4.], dtype=float32)
    """
    is_inferred = in_specs is MISSING
    specs = Prefixes(None if is_inferred else in_specs, out_specs, _SPECS, graph=graph)
    mode = Mode.of(graph, graph_updates)
    options: dict[str, Any] = {"mesh": mesh, "axis_names": axis_names, "check_vma": check_vma}

    def map_(f: Callable[..., Any]) -> Callable[..., Any]:
        closure = Closure(checked_function("shard_map", "f", f))
        warned: set[str] = set()

        def map_over(call: Call) -> tuple[Outcome, tuple[Call, dict[int, Sharding]]]:
            found = jax.sharding.get_abstract_mesh() if mesh is None else mesh
            labels = specs.labels(call.structure, call.leaves, closure.function, default=_REPLICATED, of_keywords=None)
            if is_inferred:
                _check_explicit(found, axis_names)
                labels.leaves = [jax.typeof(value).sharding.spec for value in call.leaves]
            check_refs(call, "shard_map", [not isinstance(leaf, Tracer) for leaf in call.leaves])
            sizes = dict(found.shape)
            check_splits(named_leaves(call), labels.leaves, None if found.empty else found)
            groups = specs.groups(labels, _REPLICATED, None)
            look = functools.partial(_check_results, call, labels, warned, sizes)
            body = in_groups(lifted(closure, call.structure, mode, labels), groups, look)
            of_arguments = tuple(_filled(labels.leaves))
            of_results = (_REPLICATED, _filled(groups.known))
            function = jax.shard_map(body, in_specs=of_arguments, out_specs=of_results, **options)
            try:
                outcome = wait(Outcome(*from_groups(function(*call.leaves))))
            except Exception as error:
                explain_shardings(call, (), (), found, error, "shard_map")
                raise
            concrete = context_mesh() if mesh is None else mesh
            return outcome, (call, {} if is_inferred else shardings_of(call.structure, of_arguments, concrete))

        def mapped(*args: Any, **kwargs: Any) -> Any:
            output, (call, shardings) = run_with(
                lambda: Call(args, kwargs, mode, closure.find()).check_arrays(), map_over
            )
            place(call.binding, shardings)
            return output

        return look_like(mapped, f)

    return map_ if f is MISSING else map_(f)


_SPECS = LabelKind(
    ("in_specs", "out_specs"),
    lambda label: label is None or isinstance(label, PartitionSpec),
    "a PartitionSpec, None, or a tree of these and dx.StateSharding",
    "jax.P('data')",
)


def _filled(labels: Iterable[Any]) -> list[PartitionSpec]:
    return [_REPLICATED if label is None else label for label in labels]


def _check_explicit(mesh: Mesh | AbstractMesh, axis_names: Set[str]) -> None:
    """Checks that the types of the arguments have specs."""
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    automatic = [name for name in axis_names or kinds if kinds.get(name) is not AxisType.Explicit]
    if automatic:
        raise TransformError(
            "in_specs",
            "no specs are given, and the types of the arguments have none",
            got=f"a mesh whose axes {', '.join(map(repr, automatic))} are not explicit",
            fix="in_specs=(None, jax.P('data'))",
        )


def _check_results(
    call: Call, labels: Labels, warned: set[str], sizes: Mapping[Any, int], plan: Plan, leaves: Sequence[Any]
) -> None:
    """Checks the specs of the results; warns if all instances draw the same random numbers."""
    if any(labels.plain):  # where only weights are split, all devices shall draw the same
        warn_of_equal_draws("shard_map", call.structure, labels, plan, leaves, warned, call.values)
    for number, (label, leaf) in enumerate(zip(_filled(plan.labels), leaves, strict=True)):
        if len(label) > jax.numpy.ndim(leaf):
            raise cannot_split(names_of_outputs(call.structure, plan)[number], label, leaf, sizes)
        named = {name for entry in label for name in names_of_entry(entry)}
        varying = sorted(varying_axes(leaf) - named)  # where that is not known, JAX says the same
        if varying:
            raise TransformError(
                names_of_outputs(call.structure, plan)[number],
                f"its value varies along {', '.join(map(repr, varying))}, which its spec does not name",
                expected=f"one value for all, by the spec {label!r}",
                got=describe(leaf),
                why="all instances share this value",
                fix=f"jax.lax.pmean(value, {varying[0]!r})        # or a spec that names the axis",
            )
