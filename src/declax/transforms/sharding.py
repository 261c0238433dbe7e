"""`shard_map` for functions of models.

Vocabulary
----------
spec:     a `PartitionSpec`: over which axes of the mesh each dimension of an array is split.
instance: one of the calls that run side by side, each on its shards.
varying:  different in instances along an axis of the mesh.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

import jax
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from declax._nodes import is_ref
from declax._typing import MISSING, Missing
from declax.errors import TransformError, describe
from declax.transforms._captures import Closure
from declax.transforms._lift import Call, Outcome, Plan, lifted, run, wait
from declax.transforms._naming import named_leaves
from declax.transforms._output_groups import from_groups, in_groups
from declax.transforms._structure import Mode, names_in_result
from declax.transforms._wrapping import look_like
from declax.transforms.prefixes import Labels, Prefixes
from declax.transforms.vectorization import places_set, warn_of_draws, where_of

if TYPE_CHECKING:
    from typing import Unpack

    from declax.transforms._signatures import ShardMapOptions

P = ParamSpec("P")
R = TypeVar("R")

_REPLICATED: PartitionSpec = jax.P()  # type: ignore[no-untyped-call]  # of jax


@overload
def shard_map(f: Callable[P, R], /, *, out_specs: Any, **options: Unpack[ShardMapOptions]) -> Callable[P, R]: ...
@overload
def shard_map(*, out_specs: Any, **options: Unpack[ShardMapOptions]) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def shard_map(
    f: Callable[..., Any] | Missing = MISSING,
    /,
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

    What the function does to its arguments happens to the caller's: what it
    sets is put together by the spec of the argument. Models that the function
    captures are replicated.

    Args:
      f: the function; leave it out to use `shard_map` as a decorator with options.
      mesh: the devices; None for the mesh of the context (`jax.set_mesh`).
      in_specs: a `PartitionSpec`, None for what is replicated, or a tree of
        these, a prefix of the tuple of arguments. `StateSharding` gives a
        model's leaves specs by filter; a State or graph of specs, by path.
        Arguments that have no position are replicated. Left out, the specs are
        those of the types of the arguments, which a mesh of explicit axes gives.
      out_specs: likewise for the result.
      axis_names: those that the function sees; none for all.
      check_vma: whether to check that what is not split is not varying.
      graph, graph_updates: as in `jit`.

    Returns:
      The mapped function.

    Raises:
      TransformError: for specs that do not fit the arguments, their shapes or
        the mesh, and for varying values where the spec promises one for all.

    >>> import jax.numpy as jnp
    >>> from declax._variables import Param
    >>> from declax.transforms.shardings import StateSharding
    >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    >>> p = Param(jnp.arange(3.0))
    >>> shard_map(lambda p, x: p * x, mesh=mesh, in_specs=(jax.P("data"), None), out_specs=jax.P("data"))(p, 2.0)
    Array([0., 2., 4.], dtype=float32)
    """
    is_inferred = in_specs is MISSING
    names = ("in_specs", "out_specs")
    specs = Prefixes(None if is_inferred else in_specs, out_specs, names, _is_spec, _no_spec)
    mode = Mode.of(graph, graph_updates)
    options: dict[str, Any] = {"mesh": mesh, "axis_names": axis_names, "check_vma": check_vma}

    def map_(f: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(f):
            fix = "dx.shard_map(function, mesh=mesh, in_specs=..., out_specs=...)"
            raise TransformError("shard_map", "the argument is no function", got=describe(f), fix=fix)
        closure = Closure(f)
        warned: set[str] = set()

        def map_over(call: Call) -> Outcome:
            found = jax.sharding.get_abstract_mesh() if mesh is None else mesh
            _check_mesh(found, axis_names, is_inferred=is_inferred)
            labels = _labels(specs, call, closure.function, is_inferred=is_inferred)
            _check_refs(call)
            _check_arguments(call, labels, found)
            groups = specs.groups(labels, _REPLICATED, None)
            look = functools.partial(_check_results, call, labels, warned)
            body = in_groups(lifted(closure, call.structure, mode, labels), groups, look)
            of_arguments = (_filled(labels.values), _filled(labels.plain))
            of_results = (_REPLICATED, _filled(groups.known))
            function = jax.shard_map(body, in_specs=of_arguments, out_specs=of_results, **options)
            return wait(from_groups(function(call.values, call.plain)))  # type: ignore[no-any-return]  # it gives back what it gets

        def mapped(*args: Any, **kwargs: Any) -> Any:
            return run(lambda: Call(args, kwargs, mode, closure.find()).check_arrays(), map_over)

        return look_like(mapped, f)

    return map_ if f is MISSING else map_(f)


def _is_spec(label: object) -> bool:
    return label is None or isinstance(label, PartitionSpec)


def _filled(labels: Iterable[Any]) -> list[PartitionSpec]:
    return [_REPLICATED if label is None else label for label in labels]


def _labels(prefixes: Prefixes, call: Call, function: Callable[..., Any], *, is_inferred: bool) -> Labels:
    """The spec of each leaf of a call of a function."""
    labels = prefixes.labels(call, function, default=_REPLICATED, of_keywords=None)
    if is_inferred:
        labels.values = list(map(_spec_of, call.values))
        labels.plain = list(map(_spec_of, call.plain))
    return labels


def _spec_of(value: Any) -> PartitionSpec:
    """The spec that is part of the type of an array, on a mesh of explicit axes."""
    return jax.typeof(value).sharding.spec  # type: ignore[no-any-return]  # jax has no types for it


def _no_spec(name: str, label: object) -> TransformError:
    if isinstance(label, NamedSharding):
        return TransformError(
            name,
            "a NamedSharding stands where a PartitionSpec is expected",
            got=repr(label),
            why="all specs of shard_map are of its one mesh",
            fix=f"{name}={label.spec!r}",
        )
    return TransformError(
        name,
        "this is no PartitionSpec",
        expected="a PartitionSpec, None, or a tree of these and dx.StateSharding",
        got=describe(label),
        fix=f"{name}=jax.P('data')",
    )


def _check_mesh(mesh: Mesh | AbstractMesh, axis_names: Set[str], *, is_inferred: bool) -> None:
    """Checks that there is a mesh, and that the types of arguments say their specs where nobody does.

    Raises:
      TransformError: there is none, or they do not.
    """
    if mesh.empty:
        problem = "there is no mesh, neither here nor in the context"
        raise TransformError("shard_map", problem, fix="mesh=jax.make_mesh((4,), ('data',))        # or jax.set_mesh")
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    automatic = [name for name in axis_names or kinds if kinds.get(name) is not AxisType.Explicit]
    if is_inferred and automatic:
        raise TransformError(
            "in_specs",
            "they are left out, and the types of the arguments do not say how they are split",
            got=f"a mesh whose axes {', '.join(map(repr, automatic))} are not explicit",
            fix="in_specs=(None, jax.P('data'))",
        )


def _check_refs(call: Call) -> None:
    """Checks that there are no array refs where JAX runs the function eagerly.

    Raises:
      TransformError: names the first one.
    """
    for where, value in named_leaves(call):
        if is_ref(value) and not isinstance(value, Tracer):
            raise TransformError(
                where,
                "this is an array ref, which shard_map cannot split outside of a compiled function",
                why="JAX splits the buffers of arrays, and those of refs only where it compiles the whole",
                fix="dx.jit(dx.shard_map(f, ...))        # or dx.to_arrays(model), a copy with arrays in their place",
            )


def _check_arguments(call: Call, labels: Labels, mesh: Mesh | AbstractMesh) -> None:
    """Checks specs against the shapes of arguments.

    Raises:
      TransformError: names the leaf that cannot be split so.
    """
    sizes = dict(mesh.shape)
    pairs = zip((*labels.values, *labels.plain), (*call.values, *call.plain), strict=True)
    for position, (spec, value) in enumerate(pairs):
        problem = _why_not_split(spec, value, sizes)
        if problem is not None:
            where, _ = list(named_leaves(call))[position]
            fix = "dx.StateSharding({dx.Param: jax.P('data'), ...: None})        # None for what is not split"
            raise TransformError(where, problem, got=f"{describe(value)}, and {spec!r}", fix=fix)


def _why_not_split(spec: PartitionSpec | None, value: Any, sizes: Mapping[Any, int]) -> str | None:
    """Why an array cannot be split as a spec says; None where it can."""
    if not spec:
        return None
    shape = jax.numpy.shape(value)
    if len(spec) > len(shape):
        return "the spec has more entries than the array has dimensions"
    for dimension, entry in enumerate(spec):
        names = _names_of(entry)
        for name in names:
            if name not in sizes:
                return f"the mesh has no axis {name!r}, but {', '.join(map(repr, sizes))}"
        count = math.prod(sizes[name] for name in names)
        if shape[dimension] % count:
            return f"dimension {dimension} cannot be split evenly over the {count} devices along {entry!r}"
    return None


def _names_of(entry: Any) -> tuple[str, ...]:
    """The axes of the mesh that an entry of a spec names."""
    if entry is None or isinstance(entry, str):
        return () if entry is None else (entry,)
    return tuple(entry) if isinstance(entry, tuple) else ()


def _check_results(call: Call, labels: Labels, warned: set[str], plan: Plan, leaves: Sequence[Any]) -> None:
    """Checks specs against what the function set and returned; warns of draws that are the same for all instances.

    Raises:
      TransformError: names what has too few dimensions, or is varying along
        an axis that its spec does not name.
    """
    assert plan.labels is not None  # the function has labels
    places = list(places_set(call, plan))
    wheres = [where_of(call, path) for path, _ in places]
    for at, label, leaf in zip(places, _filled(plan.labels), leaves, strict=False):  # the results come after
        if not label and any(labels.plain):  # where only weights are split, all devices shall draw the same
            warn_of_draws("shard_map", call, labels, at, leaf, warned)
    results = names_in_result(plan.tree) if plan.change is None else ["the result"] * (len(leaves) - len(wheres))
    for where, label, leaf in zip([*wheres, *results], _filled(plan.labels), leaves, strict=True):
        if len(label) > jax.numpy.ndim(leaf):
            problem = f"its spec {label!r} has more entries than it has dimensions"
            raise TransformError(where, problem, got=describe(leaf), fix="jax.P()        # for what is not split")
        named = {name for entry in label for name in _names_of(entry)}
        kind = getattr(
            jax.typeof(leaf), "manual_axis_type", None
        )  # where there is none, JAX says the same in its words
        varying = sorted(set(getattr(kind, "varying", ())) - named)
        if varying:
            along = ", ".join(map(repr, varying))
            raise TransformError(
                where,
                f"its value is varying along {along}, which its spec does not name",
                expected=f"one value for all, as {label!r} says",
                got=describe(leaf),
                why="one value cannot hold those of all instances",
                fix=f"jax.lax.pmean(value, {varying[0]!r})        # or a spec that names the axis",
            )
