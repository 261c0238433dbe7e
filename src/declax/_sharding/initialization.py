"""Models that are sharded when they are made, and their abstract counterparts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, overload

import jax
import numpy as np

from declax import _jax, errors
from declax._graph.abstract import with_sharding
from declax._graph.api import split
from declax._graph.binding import bind
from declax._graph.flattening import GraphDef
from declax._module.module import Module
from declax._sharding.agreement import check_same_program
from declax._sharding.by_leaf import run_by_leaf
from declax._sharding.declared import Shardings, get_named_sharding, labels_of, shardings_of_leaves
from declax._sharding.noting import note_fully_sharded
from declax._sharding.plans import mesh_of_plan
from declax._state.states import State
from declax._variables.drawing import apart
from declax._variables.placement import (
    AnyMesh,
    AxisRules,
    Rules,
    checked_mesh,
    context_mesh,
    put,
    sharding_rules,
)
from declax.transforms._engine.commit import write
from declax.transforms._engine.prefixes import StateSharding
from declax.transforms.abstract import eval_shape
from declax.transforms.compilation import jit

M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)


class Buildable(Protocol[M_co]):
    """A `Spec`."""

    def build(self, *, rngs: Any = ...) -> M_co: ...


@overload
def init_sharded(
    make: Callable[..., M],
    /,
    *args: Any,
    mesh: jax.sharding.Mesh | None = None,
    rules: AxisRules | None = None,
    shardings: StateSharding | Callable[[Any], StateSharding] | None = None,
    **kwargs: Any,
) -> M: ...
@overload
def init_sharded(
    make: Buildable[M],
    /,
    *,
    mesh: jax.sharding.Mesh | None = None,
    rules: AxisRules | None = None,
    shardings: StateSharding | Callable[[Any], StateSharding] | None = None,
    rngs: Any = None,
) -> M: ...
def init_sharded(
    make: Any,
    /,
    *args: Any,
    mesh: jax.sharding.Mesh | None = None,
    rules: AxisRules | None = None,
    shardings: Any = None,
    **kwargs: Any,
) -> Any:
    """Makes a model of which each device makes its own shards only.

    Equal layers share one compiled program for each of their arrays, also with models that are made later, so that
    neither depth nor a second call costs compilation.

    Args:
      make: a class or function that returns a model, several, or a model with its optimizer; or a `Spec`.
      *args, **kwargs: its arguments, such as ``rngs=dx.Rngs(0)``.
      mesh: the devices; None for the mesh of `jax.set_mesh`, or else that of a plan.
      rules: as for `sharding_rules`; None for the rules of the context.
      shardings: where the arrays belong, in place of what their Variables declare: a `StateSharding` of
        `PartitionSpec` objects, such as a `Plan`, or a function of the model that returns one, such as `fsdp`. On
        explicit axes, each device draws the whole of an array that it splits and no Variable declares, one at a time.

    Returns:
      The result of `make`. An array without a declared sharding is replicated. The numbers are those of `make` without
      a mesh, bit by bit where an initializer draws real numbers.

    Raises:
      ShardingError: there is no mesh, or declared names do not fit it: lists all, with paths and dimensions. `make`
        does not return a model, or `shardings` is not valid. Of several processes, one makes other values.

    >>> import declax as dx
    >>> mesh = jax.make_mesh((1,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
    >>> names = {"out_sharding": (None, "mlp")}
    >>> layer = dx.spec(dx.Linear, 2, 4, kernel_metadata=names)
    >>> dx.init_sharded(layer, rngs=dx.Rngs(0), mesh=mesh, rules={"mlp": "model"}).kernel.shape
    (2, 4)
    """
    function = _maker(make)
    placing: list[StateSharding | None] = []

    def made() -> Any:  # the arguments are captured: numbers are sizes, and not traced
        later = Rules(sharding_rules._current.get().pairs, "later")
        # What does not fit the mesh is found below, with its path, or has other shardings.
        with sharding_rules(later), apart(True):
            result = function(*args, **kwargs)
        placing.append(_place(result, shardings))
        return result

    def noted(result: Any) -> Any:
        for labels in placing[:1]:
            note_fully_sharded(result, labels)
        return result

    mesh = mesh_of_plan(shardings) if mesh is None else mesh
    with (
        contextlib.nullcontext() if mesh is None else jax.set_mesh(_with_devices(mesh)),
        contextlib.nullcontext() if rules is None else sharding_rules(rules),
    ):
        if context_mesh() is None:
            raise errors.ShardingError(
                "init_sharded",
                "there is no mesh",
                expected="mesh=, or a call under jax.set_mesh",
                got="None",
                fix='dx.init_sharded(make, mesh=jax.make_mesh((8,), ("data",)))',
            )
        if _jax.current_trace() is not _jax.TOP or _jax.is_jit_disabled():  # there is nothing to compile here
            return noted(jit(made)())
        devices = jax.sharding.get_mesh()

        def run(program: Any, arguments: Sequence[Any]) -> list[Any]:
            check_same_program("init_sharded", program, arguments, devices)
            return run_by_leaf(program, arguments, devices)

        return noted(jit(made).trace().interpreted(run)())


def _maker(make: Any) -> Callable[..., Any]:
    """The function that makes a model."""
    function: Callable[..., Any] | None = make if callable(make) else getattr(make, "build", None)
    if function is None or isinstance(make, Module):
        why = "a model that exists has its arrays already; jax.device_put moves them" if function else None
        raise _makes_no_model(make, why)
    return function


def _makes_no_model(given: Any, why: str | None) -> errors.ShardingError:
    return errors.ShardingError(
        "init_sharded",
        "this makes no model",
        expected="a class or function that returns a model, or a Spec",
        got=errors.describe(given),
        why=why,
        fix="dx.init_sharded(lambda: Model(rngs=dx.Rngs(0)), mesh=mesh)",
    )


def _with_devices(mesh: Any) -> jax.sharding.Mesh:
    if isinstance(mesh, jax.sharding.Mesh):
        return mesh
    raise errors.ShardingError(
        "init_sharded",
        "this is not a mesh of devices",
        expected="a Mesh",
        got=errors.describe(mesh),
        fix='dx.init_sharded(make, mesh=jax.make_mesh((8,), ("data",)))',
    )


def _place(result: Any, shardings: Shardings) -> StateSharding | None:
    """Constrains each array of a model, while JAX traces; returns the labels that decided."""
    mesh = context_mesh()
    assert mesh is not None  # init_sharded has checked it
    labels = labels_of("init_sharded", shardings, result, mesh)
    binding = bind(result)
    values = binding.read()
    if not values and not binding.objects():
        raise _makes_no_model(result, None)
    places = shardings_of_leaves("init_sharded", binding.graphdef.definition, values, mesh, labels)
    write(binding, tuple(range(len(values))), jax.tree.map(_put, values, places))
    return labels


def _put(value: Any, sharding: jax.NamedSharding) -> Any:
    return put(value, sharding) if isinstance(value, (jax.Array, np.ndarray)) else value


def get_abstract_model(
    init_fn: Callable[[], M], mesh: AnyMesh, *, graph: bool | None = None
) -> tuple[GraphDef[M], State[M]]:
    """The structure of a model and its State of shapes, each with the sharding that its Variable declares.

    Args:
      init_fn: makes the model.
      mesh: the devices.
      graph: False if the model must be a tree; None for the default of `set_graph_mode`.

    Returns:
      The GraphDef, and a State of `jax.ShapeDtypeStruct`.

    Raises:
      ShardingError: declared names do not fit the mesh.

    >>> import declax as dx
    >>> mesh = jax.make_mesh((1,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
    >>> names = {"out_sharding": (None, "model")}
    >>> graphdef, state = dx.get_abstract_model(lambda: dx.Linear(2, 4, kernel_metadata=names, rngs=dx.Rngs(0)), mesh)
    >>> state["kernel"].value.sharding.spec
    P(None, 'model')
    """
    checked_mesh("get_abstract_model", mesh)
    with jax.set_mesh(mesh) if isinstance(mesh, jax.sharding.Mesh) else jax.sharding.use_abstract_mesh(mesh):
        graphdef, state = split(eval_shape(init_fn, graph=graph), graph=graph)
    return graphdef, jax.tree.map(with_sharding, state, get_named_sharding(state, mesh))
