"""`vjp` and `jvp` for functions of models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, TypeVarTuple, Unpack, overload

import jax

from declax._graph.fit import Difference
from declax._typing import MISSING, Missing, R
from declax.errors import TransformError, describe
from declax.transforms._differentiated import (
    ArgumentLeaves,
    Derivatives,
    DifferentiatedTree,
    add_derivatives,
    arguments_of,
    check_derivatives,
    each_leaf_once,
    on_leaves,
    result_of,
    shape_of,
    target_of_result,
    zeros_for,
)
from declax.transforms._engine.call import Call
from declax.transforms._engine.captures import Closure
from declax.transforms._engine.commit import run_with
from declax.transforms._engine.names import namer_of
from declax.transforms._engine.outcome import Outcome
from declax.transforms._engine.structure import Mode, Structure, checked_function, is_array_like, no_array
from declax.transforms._engine.wrapped import P, look_like

if TYPE_CHECKING:
    from declax.transforms._engine.signatures import ModeOptions

A = TypeVar("A")
Ts = TypeVarTuple("Ts")


class _StaticPullback(NamedTuple):
    """The static part of a Pullback: its result with types, and the form of the gradients.

    `arguments` are targets, whose gradients are States, or the structure of the call, whose gradients are objects.
    """

    result: DifferentiatedTree
    shapes: tuple[Any, ...]
    tree: Any
    arguments: tuple[DifferentiatedTree, ...] | Structure


class Pullback:
    """Maps a cotangent of a function's result to the gradients of its arguments; `vjp` returns it.

    A pytree, which compiled functions can take and return. It can be called repeatedly.
    """

    __slots__ = ("_pull", "_static")

    def __init__(self, _pull: Any, _static: _StaticPullback) -> None:
        self._pull = _pull
        self._static = _static

    def __call__(self, cotangent: Any, /) -> tuple[Any, ...]:
        """The gradient of each argument.

        Args:
          cotangent: with the structure of the result; for a model, a State or a model; None for zeros.

        Raises:
          TransformError: the structure, a shape or a dtype differs.
        """
        result, shapes, tree, arguments = self._static
        like: dict[int, Any] = tree.unflatten(shapes)
        wrong: list[Difference] = []
        found = add_derivatives(result.flatten(cotangent, like, "the cotangent", wrong), {})
        check_derivatives(wrong)
        (gradients,) = self._pull({i: found[i] if i in found else zeros_for(shape) for i, shape in like.items()})
        if isinstance(arguments, Structure):
            return arguments_of(arguments, gradients)
        return tuple(target.unflatten(gradients) for target in arguments)


jax.tree_util.register_dataclass(Pullback, data_fields=["_pull"], meta_fields=["_static"])


@overload
def vjp(
    f: Callable[[*Ts], tuple[R, A]], *primals: *Ts, has_aux: Literal[True], **options: Unpack[ModeOptions]
) -> tuple[R, Pullback, A]: ...
@overload
def vjp(
    f: Callable[[*Ts], R], *primals: *Ts, has_aux: Literal[False] = False, **options: Unpack[ModeOptions]
) -> tuple[R, Pullback]: ...
@overload
def vjp(
    f: Callable[P, Any], *, has_aux: bool = False, **options: Unpack[ModeOptions]
) -> Callable[P, tuple[Any, ...]]: ...
@overload
def vjp(
    *, has_aux: bool = False, **options: Unpack[ModeOptions]
) -> Callable[[Callable[P, Any]], Callable[P, tuple[Any, ...]]]: ...
def vjp(  # type: ignore[misc]  # no signature takes both `*Ts` and any number of arguments
    f: Callable[..., Any] | Missing = MISSING,
    *primals: Any,
    has_aux: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Calls a function of models once, and prepares to pull cotangents of its result back.

    Variables that the function sets are written to the caller's models at this call; the pullback writes nothing.
    Captured models are not differentiated.

    Args:
      f: the function. Without primals, `vjp` returns a function of them; without `f`, a decorator.
      *primals: the arguments of `f`.
      has_aux: whether `f` returns a pair of the differentiated result and another one.
      graph, graph_updates: as in `jit`.

    Returns:
      The result; the pullback, which maps a cotangent to a tuple with one gradient for each argument; and with
      `has_aux` the auxiliary result. The gradient of a model is a State of all its leaves, or with
      ``graph_updates=False`` or ``graph=False`` a model of the same class. The gradient of a leaf that is not
      differentiable is empty, with dtype `float0`, as in JAX.

    Raises:
      TransformError: `f` is not a function, or does not return a pair with `has_aux`.

    >>> import declax as dx
    >>> import jax.numpy as jnp
    >>> m = dx.Module()
    >>> m.scale = dx.Param(3.0)
    >>> y, pullback = dx.vjp(lambda m, x: m.scale * x, m, jnp.array([1.0, 2.0]))
    >>> m_grad, x_grad = pullback(jnp.array([1.0, 10.0]))
    >>> float(m_grad["scale"].value), x_grad.tolist()
    (21.0, [3.0, 30.0])
    """

    def prepare(f: Callable[..., Any]) -> Callable[..., Any]:
        closure, mode = Closure(checked_function("vjp", "f", f)), Mode.of(graph, graph_updates)

        def with_pullback(*primals: Any) -> Any:
            return _vjp(closure, mode, primals, has_aux)

        return look_like(with_pullback, f)

    if f is MISSING:
        return prepare
    return prepare(f)(*primals) if primals else prepare(f)


def _vjp(closure: Closure, mode: Mode, primals: tuple[Any, ...], has_aux: bool) -> Any:
    def pull_back(call: Call) -> tuple[Outcome, Pullback]:
        arguments = ArgumentLeaves(call, primals, closure.function)
        targets = tuple(each_leaf_once(map(arguments.target, range(len(primals)))))
        positions = {position for target in targets for position in target.positions}
        arguments.check_differentiable(positions, allow_int=True)
        function = _on_differentiated(call, closure, mode, has_aux)
        found, pull, outcome = jax.vjp(function, {i: arguments.leaves[i] for i in positions}, has_aux=True)
        shapes, tree = jax.tree_util.tree_flatten({position: shape_of(leaf) for position, leaf in found.items()})
        gradients = targets if mode.updates else call.structure._replace(key=None)
        result = target_of_result(outcome, has_aux=has_aux)
        return outcome, Pullback(pull, _StaticPullback(result, tuple(shapes), tree, gradients))

    output, pullback = run_with(lambda: Call(primals, {}, mode, closure.find()), pull_back)
    return (output[0], pullback, output[1]) if has_aux else (output, pullback)


def _on_differentiated(call: Call, closure: Closure, mode: Mode, has_aux: bool) -> Callable[[Derivatives], Any]:
    """A function of the differentiated leaves of a call to those of its result; the Outcome is auxiliary."""
    function = on_leaves(call, closure, mode)

    def on_differentiated(differentiated: Derivatives) -> tuple[Derivatives, Outcome]:
        outcome, leaves = function(differentiated)
        result = target_of_result(outcome, has_aux=has_aux)
        found = {position: leaves[position] for position in result.positions}
        for position, leaf in found.items():
            if not all(map(is_array_like, jax.tree_util.tree_leaves(leaf))):
                raise no_array(result.name("the result", position), leaf)
        return found, outcome

    return on_differentiated


@overload
def jvp(
    f: Callable[[*Ts], tuple[R, A]],
    primals: tuple[*Ts],
    tangents: tuple[Any, ...],
    *,
    has_aux: Literal[True],
    **options: Unpack[ModeOptions],
) -> tuple[R, Any, A]: ...
@overload
def jvp(
    f: Callable[[*Ts], R],
    primals: tuple[*Ts],
    tangents: tuple[Any, ...],
    *,
    has_aux: Literal[False] = False,
    **options: Unpack[ModeOptions],
) -> tuple[R, Any]: ...
@overload
def jvp(
    f: Callable[[*Ts], Any], *, has_aux: bool = False, **options: Unpack[ModeOptions]
) -> Callable[[tuple[*Ts], tuple[Any, ...]], tuple[Any, ...]]: ...
@overload
def jvp(
    *, has_aux: bool = False, **options: Unpack[ModeOptions]
) -> Callable[[Callable[[*Ts], Any]], Callable[[tuple[*Ts], tuple[Any, ...]], tuple[Any, ...]]]: ...
def jvp(
    f: Callable[..., Any] | Missing = MISSING,
    primals: tuple[Any, ...] | Missing = MISSING,
    tangents: tuple[Any, ...] | Missing = MISSING,
    *,
    has_aux: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Calls a function of models, and computes the tangent of its result.

    Variables that the function sets are written to the caller's models, without tangents. Captured models have zero
    tangents.

    Args:
      f: the function. Without primals, `jvp` returns a function of primals and tangents; without `f`, a decorator.
      primals: a tuple with the arguments of `f`.
      tangents: a tuple with the tangent of each: for a model, a State of some or all of its leaves, or a model of
        its kind; None for zeros. Leaves that are not differentiable have zero tangents.
      has_aux: whether `f` returns a pair of the differentiated result and another one.
      graph, graph_updates: as in `jit`.

    Returns:
      The result and its tangent: for a model a State, or with ``graph_updates=False`` or ``graph=False`` a model of
      the same class; with `has_aux` also the auxiliary result.

    Raises:
      TransformError: `f` is not a function, does not return a pair with `has_aux`, or tangents do not match.

    >>> import declax as dx
    >>> m = dx.Module()
    >>> m.scale = dx.Param(3.0)
    >>> y, y_tangent = dx.jvp(lambda m, x: m.scale * x, (m, 2.0), (dx.State({"scale": 1.0}), 0.0))
    >>> float(y), float(y_tangent)
    (6.0, 2.0)
    """

    def prepare(f: Callable[..., Any]) -> Callable[..., Any]:
        closure, mode = Closure(checked_function("jvp", "f", f)), Mode.of(graph, graph_updates)

        def with_tangent(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
            return _jvp(closure, mode, primals, tangents, has_aux)

        made: Any = look_like(with_tangent, f)
        del made.__wrapped__  # it has not the signature of the function
        made.__annotations__ = {}
        return with_tangent

    if f is MISSING:
        return prepare
    return prepare(f) if primals is MISSING else prepare(f)(primals, tangents)


def _jvp(closure: Closure, mode: Mode, primals: Any, tangents: Any, has_aux: bool) -> Any:
    if not all(isinstance(given, (tuple, list)) for given in (primals, tangents)) or len(primals) != len(tangents):
        raise TransformError(
            "jvp",
            "primals and tangents are not two tuples of the same length",
            got=f"{describe(primals)} and {describe(tangents)}",
            fix="dx.jvp(f, (model, x), (model_tangent, None))        # None for zeros",
        )
    primals = tuple(primals)

    def push_forward(call: Call) -> tuple[Outcome, Any]:
        arguments = ArgumentLeaves(call, primals, closure.function)
        nonzero = _nonzero_tangents(arguments, tangents, closure.function)
        at = {position: arguments.leaves[position] for position in nonzero}
        _, found, outcome = jax.jvp(_on_differentiated(call, closure, mode, has_aux), (at,), (nonzero,), has_aux=True)
        if mode.updates:
            return outcome, target_of_result(outcome, has_aux=has_aux).unflatten(found)
        tangent = result_of(outcome, found)
        return outcome, tangent[0] if has_aux else tangent

    output, tangent = run_with(lambda: Call(primals, {}, mode, closure.find()), push_forward)
    return (output[0], tangent, output[1]) if has_aux else (output, tangent)


def _nonzero_tangents(arguments: ArgumentLeaves, tangents: Sequence[Any], user: Callable[..., Any]) -> Derivatives:
    nonzero: Derivatives = {}
    name = namer_of(user)
    wrong: list[Difference] = []
    for number, tangent in enumerate(tangents):
        target, where = arguments.target(number), f"tangents, {name(number)}"
        for position, found in target.flatten(tangent, arguments.leaves, where, wrong):
            if nonzero.setdefault(position, found) is not found:
                raise TransformError(
                    target.name(where, position),
                    "one Variable has two tangents",
                    why="another argument holds the same Variable",
                    fix="None, or a State without it, as the tangent of one of the two",
                )
    check_derivatives(wrong)
    arguments.check_differentiable(nonzero, allow_int=True)
    return nonzero
