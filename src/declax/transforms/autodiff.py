"""`grad` and `value_and_grad` for functions of models.

Vocabulary
----------
differentiated: the leaves that the gradient is taken with respect to: of a
                model, those that a filter takes; of other arguments, all; of
                what the function captures, none.
"""

# Overloads overlap on purpose: the first that fits says the type, the last one says what is left.
# mypy: disable-error-code="overload-overlap"
# pyright: reportOverlappingOverload=false

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import jax

from declax._filters import Filter
from declax._nodes import is_ref
from declax._typing import MISSING, Missing
from declax._variables import Param
from declax.errors import TransformError, describe
from declax.transforms._captures import Closure
from declax.transforms._differentiated import Arguments, Slopes, is_differentiable, with_leaves
from declax.transforms._lift import Call, Outcome, lifted, run_with
from declax.transforms._losses import loss_of
from declax.transforms._naming import no_ref
from declax.transforms._structure import Mode
from declax.transforms._wrapping import look_like

if TYPE_CHECKING:
    from typing import Unpack

    from declax.states import State
    from declax.transforms._signatures import (
        A2,
        VX,
        A,
        B,
        Both,
        F,
        First,
        GradOptions,
        L,
        Loss,
        LossAux,
        LossAuxOf,
        LossAuxOf2,
        LossOf,
        LossOf2,
        M,
        N,
        No,
        Of,
        Of2,
        OfGrad,
        OfGradAux,
        OfValueAndGrad,
        OfValueAndGradAux,
        P,
        Second,
        Untyped,
        V,
        X,
        Yes,
    )


class DiffState(NamedTuple):
    """An argument, and the leaves of it to differentiate with respect to.

    Attributes:
      argnum: the position of the argument.
      filter: which leaves.
    """

    argnum: int
    filter: Filter = Param


Argnums = int | DiffState | Sequence[int | DiffState]


@overload
def grad(
    f: F,  # pyright: ignore[reportInvalidTypeVarUse]  # see F
    /,
    *,
    argnums: Argnums = 0,
    has_aux: bool = False,
    **options: Unpack[GradOptions],
) -> Untyped: ...
@overload
def grad(
    f: LossOf[M, P], /, *, argnums: First = 0, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of[M, P, State[M]]: ...
@overload
def grad(
    f: LossOf[A, P], /, *, argnums: First = 0, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of[A, P, A]: ...
@overload
def grad(
    f: LossOf[L, P], /, *, argnums: First = 0, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of[L, P, jax.Array]: ...
@overload
def grad(
    f: LossOf2[B, M, P], /, *, argnums: Second, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of2[B, M, P, State[M]]: ...
@overload
def grad(
    f: LossOf2[B, A, P], /, *, argnums: Second, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of2[B, A, P, A]: ...
@overload
def grad(
    f: LossOf2[B, L, P], /, *, argnums: Second, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of2[B, L, P, jax.Array]: ...
@overload
def grad(
    f: LossOf2[M, A, P], /, *, argnums: Both, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of2[M, A, P, tuple[State[M], A]]: ...
@overload
def grad(
    f: LossOf2[M, N, P], /, *, argnums: Both, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of2[M, N, P, tuple[State[M], State[N]]]: ...
@overload
def grad(
    f: LossOf2[A, A2, P], /, *, argnums: Both, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of2[A, A2, P, tuple[A, A2]]: ...
@overload
def grad(
    f: Loss[P], /, *, argnums: DiffState, has_aux: No = False, **options: Unpack[GradOptions]
) -> Callable[P, State[Any]]: ...
@overload
def grad(
    f: Loss[P], /, *, argnums: Sequence[int | DiffState], has_aux: No = False, **options: Unpack[GradOptions]
) -> Callable[P, tuple[Any, ...]]: ...
@overload
def grad(
    f: LossOf[B, P], /, *, argnums: int = 0, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of[B, P, Any]: ...
@overload
def grad(*, argnums: First = 0, has_aux: No = False, **options: Unpack[GradOptions]) -> OfGrad: ...
@overload
def grad(
    *, argnums: DiffState, has_aux: No = False, **options: Unpack[GradOptions]
) -> Callable[[Loss[P]], Callable[P, State[Any]]]: ...
@overload
def grad(
    *, argnums: Argnums, has_aux: No = False, **options: Unpack[GradOptions]
) -> Callable[[Loss[P]], Callable[P, Any]]: ...
@overload
def grad(
    f: LossAuxOf[M, P, X], /, *, argnums: First = 0, has_aux: Yes, **options: Unpack[GradOptions]
) -> Of[M, P, tuple[State[M], X]]: ...
@overload
def grad(
    f: LossAuxOf[A, P, X], /, *, argnums: First = 0, has_aux: Yes, **options: Unpack[GradOptions]
) -> Of[A, P, tuple[A, X]]: ...
@overload
def grad(
    f: LossAuxOf[L, P, X], /, *, argnums: First = 0, has_aux: Yes, **options: Unpack[GradOptions]
) -> Of[L, P, tuple[jax.Array, X]]: ...
@overload
def grad(
    f: LossAuxOf2[B, M, P, X], /, *, argnums: Second, has_aux: Yes, **options: Unpack[GradOptions]
) -> Of2[B, M, P, tuple[State[M], X]]: ...
@overload
def grad(
    f: LossAuxOf2[B, A, P, X], /, *, argnums: Second, has_aux: Yes, **options: Unpack[GradOptions]
) -> Of2[B, A, P, tuple[A, X]]: ...
@overload
def grad(
    f: LossAuxOf2[B, L, P, X], /, *, argnums: Second, has_aux: Yes, **options: Unpack[GradOptions]
) -> Of2[B, L, P, tuple[jax.Array, X]]: ...
@overload
def grad(
    f: LossAuxOf2[M, A, P, X], /, *, argnums: Both, has_aux: Yes, **options: Unpack[GradOptions]
) -> Of2[M, A, P, tuple[tuple[State[M], A], X]]: ...
@overload
def grad(
    f: LossAuxOf2[M, N, P, X], /, *, argnums: Both, has_aux: Yes, **options: Unpack[GradOptions]
) -> Of2[M, N, P, tuple[tuple[State[M], State[N]], X]]: ...
@overload
def grad(
    f: LossAuxOf2[A, A2, P, X], /, *, argnums: Both, has_aux: Yes, **options: Unpack[GradOptions]
) -> Of2[A, A2, P, tuple[tuple[A, A2], X]]: ...
@overload
def grad(
    f: LossAux[P, X], /, *, argnums: DiffState, has_aux: Yes, **options: Unpack[GradOptions]
) -> Callable[P, tuple[State[Any], X]]: ...
@overload
def grad(
    f: LossAux[P, X], /, *, argnums: Sequence[int | DiffState], has_aux: Yes, **options: Unpack[GradOptions]
) -> Callable[P, tuple[tuple[Any, ...], X]]: ...
@overload
def grad(
    f: LossAuxOf[B, P, X], /, *, argnums: int = 0, has_aux: Yes, **options: Unpack[GradOptions]
) -> Of[B, P, tuple[Any, X]]: ...
@overload
def grad(*, argnums: First = 0, has_aux: Yes, **options: Unpack[GradOptions]) -> OfGradAux: ...
@overload
def grad(
    *, argnums: DiffState, has_aux: Yes, **options: Unpack[GradOptions]
) -> Callable[[LossAux[P, X]], Callable[P, tuple[State[Any], X]]]: ...
@overload
def grad(
    *, argnums: Argnums, has_aux: Yes, **options: Unpack[GradOptions]
) -> Callable[[LossAux[P, X]], Callable[P, tuple[Any, X]]]: ...
def grad(
    f: Callable[..., Any] | Missing = MISSING,
    /,
    *,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """The gradient of a function whose arguments may be models.

    Args:
      f: the function; its result, or the first of it with `has_aux`, is a
        scalar. Leave it out to use `grad` as a decorator with options.
      argnums: the arguments to differentiate with respect to. Of a model, the
        Params; ``DiffState(argnum, filter)`` says otherwise.
      has_aux: whether `f` returns a pair of the scalar and something else.
      holomorphic, allow_int, reduce_axes: as in `jax.grad`.
      graph, graph_updates: as in `jit`.

    Returns:
      A function with the arguments of `f` that returns the gradient: a State
      for a model, with the paths of the leaves; a tuple for several argnums;
      with `has_aux`, a pair with the auxiliary result.

    Raises:
      TransformError: for argnums that are no position, and where there is
        nothing to differentiate.

    >>> from declax._module import Module
    >>> m = Module()
    >>> m.scale = Param(3.0)
    >>> grads = grad(lambda m: m.scale**2)(m)
    >>> float(grads["scale"].value)
    6.0
    """
    untyped: Any = value_and_grad  # its overloads know literals of has_aux only
    make_with_value = untyped(
        argnums=argnums,
        has_aux=has_aux,
        holomorphic=holomorphic,
        allow_int=allow_int,
        reduce_axes=reduce_axes,
        graph=graph,
        graph_updates=graph_updates,
    )

    def make(f: Callable[..., Any]) -> Callable[..., Any]:
        with_value = make_with_value(f)

        def gradient(*args: Any, **kwargs: Any) -> Any:
            value, grads = with_value(*args, **kwargs)
            return (grads, value[1]) if has_aux else grads

        return look_like(gradient, f)

    return make if f is MISSING else make(f)


@overload
def value_and_grad(
    f: F,  # pyright: ignore[reportInvalidTypeVarUse]  # see F
    /,
    *,
    argnums: Argnums = 0,
    has_aux: bool = False,
    **options: Unpack[GradOptions],
) -> Untyped: ...
@overload
def value_and_grad(
    f: Of[M, P, V], /, *, argnums: First = 0, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of[M, P, tuple[V, State[M]]]: ...
@overload
def value_and_grad(
    f: Of[A, P, V], /, *, argnums: First = 0, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of[A, P, tuple[V, A]]: ...
@overload
def value_and_grad(
    f: Of[L, P, V], /, *, argnums: First = 0, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of[L, P, tuple[V, jax.Array]]: ...
@overload
def value_and_grad(
    f: Of2[B, M, P, V], /, *, argnums: Second, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of2[B, M, P, tuple[V, State[M]]]: ...
@overload
def value_and_grad(
    f: Of2[B, A, P, V], /, *, argnums: Second, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of2[B, A, P, tuple[V, A]]: ...
@overload
def value_and_grad(
    f: Of2[B, L, P, V], /, *, argnums: Second, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of2[B, L, P, tuple[V, jax.Array]]: ...
@overload
def value_and_grad(
    f: Of2[M, A, P, V], /, *, argnums: Both, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of2[M, A, P, tuple[V, tuple[State[M], A]]]: ...
@overload
def value_and_grad(
    f: Of2[M, N, P, V], /, *, argnums: Both, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of2[M, N, P, tuple[V, tuple[State[M], State[N]]]]: ...
@overload
def value_and_grad(
    f: Of2[A, A2, P, V], /, *, argnums: Both, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of2[A, A2, P, tuple[V, tuple[A, A2]]]: ...
@overload
def value_and_grad(
    f: Callable[P, V], /, *, argnums: DiffState, has_aux: No = False, **options: Unpack[GradOptions]
) -> Callable[P, tuple[V, State[Any]]]: ...
@overload
def value_and_grad(
    f: Callable[P, V], /, *, argnums: Sequence[int | DiffState], has_aux: No = False, **options: Unpack[GradOptions]
) -> Callable[P, tuple[V, tuple[Any, ...]]]: ...
@overload
def value_and_grad(
    f: Of[B, P, V], /, *, argnums: int = 0, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of[B, P, tuple[V, Any]]: ...
@overload
def value_and_grad(*, argnums: First = 0, has_aux: No = False, **options: Unpack[GradOptions]) -> OfValueAndGrad: ...
@overload
def value_and_grad(
    *, argnums: DiffState, has_aux: No = False, **options: Unpack[GradOptions]
) -> Callable[[Callable[P, V]], Callable[P, tuple[V, State[Any]]]]: ...
@overload
def value_and_grad(
    *, argnums: Argnums, has_aux: No = False, **options: Unpack[GradOptions]
) -> Callable[[Callable[P, V]], Callable[P, tuple[V, Any]]]: ...
@overload
def value_and_grad(
    f: Of[M, P, VX], /, *, argnums: First = 0, has_aux: Yes, **options: Unpack[GradOptions]
) -> Of[M, P, tuple[VX, State[M]]]: ...
@overload
def value_and_grad(
    f: Of[A, P, VX], /, *, argnums: First = 0, has_aux: Yes, **options: Unpack[GradOptions]
) -> Of[A, P, tuple[VX, A]]: ...
@overload
def value_and_grad(
    f: Of[L, P, VX], /, *, argnums: First = 0, has_aux: Yes, **options: Unpack[GradOptions]
) -> Of[L, P, tuple[VX, jax.Array]]: ...
@overload
def value_and_grad(
    f: Of2[B, M, P, VX], /, *, argnums: Second, has_aux: Yes, **options: Unpack[GradOptions]
) -> Of2[B, M, P, tuple[VX, State[M]]]: ...
@overload
def value_and_grad(
    f: Of2[B, A, P, VX], /, *, argnums: Second, has_aux: Yes, **options: Unpack[GradOptions]
) -> Of2[B, A, P, tuple[VX, A]]: ...
@overload
def value_and_grad(
    f: Of2[B, L, P, VX], /, *, argnums: Second, has_aux: Yes, **options: Unpack[GradOptions]
) -> Of2[B, L, P, tuple[VX, jax.Array]]: ...
@overload
def value_and_grad(
    f: Of2[M, A, P, VX], /, *, argnums: Both, has_aux: Yes, **options: Unpack[GradOptions]
) -> Of2[M, A, P, tuple[VX, tuple[State[M], A]]]: ...
@overload
def value_and_grad(
    f: Of2[M, N, P, VX], /, *, argnums: Both, has_aux: Yes, **options: Unpack[GradOptions]
) -> Of2[M, N, P, tuple[VX, tuple[State[M], State[N]]]]: ...
@overload
def value_and_grad(
    f: Of2[A, A2, P, VX], /, *, argnums: Both, has_aux: Yes, **options: Unpack[GradOptions]
) -> Of2[A, A2, P, tuple[VX, tuple[A, A2]]]: ...
@overload
def value_and_grad(
    f: Callable[P, VX], /, *, argnums: DiffState, has_aux: Yes, **options: Unpack[GradOptions]
) -> Callable[P, tuple[VX, State[Any]]]: ...
@overload
def value_and_grad(
    f: Callable[P, VX], /, *, argnums: Sequence[int | DiffState], has_aux: Yes, **options: Unpack[GradOptions]
) -> Callable[P, tuple[VX, tuple[Any, ...]]]: ...
@overload
def value_and_grad(
    f: Of[B, P, VX], /, *, argnums: int = 0, has_aux: Yes, **options: Unpack[GradOptions]
) -> Of[B, P, tuple[VX, Any]]: ...
@overload
def value_and_grad(*, argnums: First = 0, has_aux: Yes, **options: Unpack[GradOptions]) -> OfValueAndGradAux: ...
@overload
def value_and_grad(
    *, argnums: DiffState, has_aux: Yes, **options: Unpack[GradOptions]
) -> Callable[[Callable[P, VX]], Callable[P, tuple[VX, State[Any]]]]: ...
@overload
def value_and_grad(
    *, argnums: Argnums, has_aux: Yes, **options: Unpack[GradOptions]
) -> Callable[[Callable[P, VX]], Callable[P, tuple[VX, Any]]]: ...
def value_and_grad(
    f: Callable[..., Any] | Missing = MISSING,
    /,
    *,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """The value and the gradient of a function whose arguments may be models.

    As `grad`, but returns a pair of the function's result and the gradient.

    Args:
      f: the function; its result, or the first of it with `has_aux`, is a
        scalar.
      argnums: the arguments to differentiate with respect to.
      has_aux: whether `f` returns a pair of the scalar and something else.
      holomorphic, allow_int, reduce_axes: as in `jax.value_and_grad`.
      graph, graph_updates: as in `jit`.

    Returns:
      A function with the arguments of `f`.

    Raises:
      TransformError: for argnums that are no position, and where there is
        nothing to differentiate.

    >>> from declax._module import Module
    >>> m = Module()
    >>> m.scale = Param(3.0)
    >>> value, grads = value_and_grad(lambda m: m.scale**2)(m)
    >>> float(value)
    9.0
    """
    options: dict[str, Any] = {"holomorphic": holomorphic, "allow_int": allow_int}
    if reduce_axes:
        options["reduce_axes"] = reduce_axes

    def make(f: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(f):
            fix = "dx.value_and_grad(function)"
            raise TransformError("value_and_grad", "the argument is no function", got=describe(f), fix=fix)
        mode = Mode.of(graph, graph_updates)
        gradients = _Gradients(Closure(f), mode, _parse_argnums(argnums), has_aux, options)

        def value_and_gradient(*args: Any, **kwargs: Any) -> Any:
            result, grads = run_with(
                lambda: Call(args, kwargs, mode, gradients.closure.find()),
                functools.partial(gradients.of_call, args),
            )
            return result, grads[0] if isinstance(argnums, (int, DiffState)) else grads

        return look_like(value_and_gradient, f)

    return make if f is MISSING else make(f)


class _Gradients(NamedTuple):
    """What makes the gradients of a call."""

    closure: Closure
    mode: Mode
    wanted: list[DiffState]
    has_aux: bool
    options: dict[str, Any]

    def of_call(self, args: tuple[Any, ...], call: Call) -> tuple[Outcome, tuple[Any, ...]]:
        arguments = Arguments(call, args, self.closure.function)
        targets = [arguments.differentiated(*diff) for diff in self.wanted]
        function = lifted(self.closure, call.structure, self.mode)

        def on_differentiated(leaves: Slopes, plain_leaves: Slopes) -> tuple[Any, Outcome]:
            values = with_leaves(call.values, leaves)
            outcome = function(values, with_leaves(call.plain, plain_leaves))
            user, is_complex = self.closure.function, self.options["holomorphic"]
            return loss_of(outcome, values, user, has_aux=self.has_aux, is_complex=is_complex), outcome

        leaves = {i: call.values[i] for t in targets for i in t.values}
        plain = {i: call.plain[i] for t in targets for i in t.plain}
        differentiated = jax.value_and_grad(on_differentiated, argnums=(0, 1), has_aux=True, **self.options)
        try:
            (_, outcome), (leaf_grads, plain_grads) = differentiated(leaves, plain)
        except (TypeError, ValueError):
            _check_differentiable(call, arguments, self.wanted, allow_int=self.options["allow_int"])
            raise
        return outcome, tuple(t.assemble(leaf_grads, plain_grads) for t in targets)


def listed(argnums: Argnums) -> list[Any]:
    """The entries of argnums, also where there is one that stands alone."""
    if isinstance(argnums, Sequence) and not isinstance(argnums, (DiffState, str)):
        return list(argnums)
    return [argnums]


def _parse_argnums(argnums: Argnums) -> list[DiffState]:
    found = []
    for entry in listed(argnums):
        if isinstance(entry, DiffState):
            found.append(entry)
        elif isinstance(entry, int) and not isinstance(entry, bool):
            found.append(DiffState(entry, Param))
        else:
            raise TransformError(
                "argnums", "argnums are positions of arguments", expected="ints or DiffState", got=describe(entry)
            )
    return found


def _check_differentiable(call: Call, arguments: Arguments, wanted: list[DiffState], *, allow_int: bool) -> None:
    """Says which leaf has no gradient, where JAX has refused one.

    Raises:
      TransformError: there is such a leaf.
    """
    for number, chosen in wanted:
        target = arguments.target(number, chosen)
        found = [(i, call.values[i]) for i in target.values] + [(-1, call.plain[i]) for i in target.plain]
        for position, value in found:
            if is_ref(value):
                place = target.place(arguments.name(number % len(arguments)), position)
                raise no_ref(place, "this is an array ref, which has no gradient") from None
            if not is_differentiable(value) and not allow_int:
                raise TransformError(
                    target.place(arguments.name(number % len(arguments)), position),
                    "this is no real or complex number, so it has no gradient",
                    got=describe(value),
                    fix=f"argnums=dx.DiffState({number}, dx.Param)        # a filter without it, or allow_int=True",
                ) from None
