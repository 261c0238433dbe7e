"""`grad` and `value_and_grad` for functions of models.

Gradients are with respect to the leaves of a model that a filter selects, all leaves of other arguments, and no
leaf of a captured model.
"""

# Overloads overlap on purpose: the first that fits says the type, the last one says what is left.
# mypy: disable-error-code="overload-overlap"
# Type checkers find no use for `F` of a lambda, see there.
# pyright: reportOverlappingOverload=false, reportInvalidTypeVarUse=false

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack, overload

import jax
import jax.numpy as jnp

from declax import _jax
from declax._filters import Filter, as_written
from declax._graph.api import advise_param
from declax._jax import hide_frames
from declax._lazy import lazy_names
from declax._typing import MISSING, ArrayLike, Missing
from declax._variables.selection import is_trainable
from declax._variables.variable import Variable
from declax.errors import TransformError, describe
from declax.transforms._argnums import Argnums as Argnums
from declax.transforms._argnums import DiffState as DiffState
from declax.transforms._argnums import parse_argnums
from declax.transforms._differentiated import (
    ArgumentLeaves,
    Derivatives,
    arguments_of,
    by_position,
    each_leaf_once,
    on_leaves,
    target_of_result,
)
from declax.transforms._engine.call import Call
from declax.transforms._engine.captures import Closure
from declax.transforms._engine.commit import run_with
from declax.transforms._engine.names import name_of, namer_of, names_of_call, parameters
from declax.transforms._engine.outcome import Outcome
from declax.transforms._engine.structure import Mode, checked_function, is_array_like
from declax.transforms._engine.tracing import text_of_type
from declax.transforms._engine.wrapped import look_like

if TYPE_CHECKING:
    from declax._state.states import State
    from declax.transforms._engine.signatures import (
        VX,
        A,
        AnyGradOptions,
        B,
        Both,
        F,
        First,
        GradientOfLambda,
        GradOptions,
        L,
        LossAuxOf,
        LossOf,
        LossOf2,
        M,
        N,
        No,
        Of,
        Of2,
        OfAnyGrad,
        OfAnyValueAndGrad,
        OfGrad,
        OfGradAux,
        OfValueAndGrad,
        OfValueAndGradAux,
        P,
        Second,
        Untyped,
        V,
        ValueAndGradientOfLambda,
        X,
        Yes,
    )
    from declax.transforms.custom_rules import custom_vjp as custom_vjp
    from declax.transforms.differentials import jvp as jvp
    from declax.transforms.differentials import vjp as vjp
    from declax.transforms.rematerialization import remat as remat
else:
    __getattr__ = lazy_names(  # the peer's module of this name has them too
        __name__,
        custom_vjp="declax.transforms.custom_rules",
        jvp="declax.transforms.differentials",
        remat="declax.transforms.rematerialization",
        vjp="declax.transforms.differentials",
    )


@overload
def grad(f: F, *, argnums: First = 0, has_aux: No = False, **options: Unpack[GradOptions]) -> GradientOfLambda: ...
@overload
def grad(f: F, *, argnums: Argnums = 0, has_aux: bool = False, **options: Unpack[AnyGradOptions]) -> Untyped: ...
@overload
def grad(
    f: LossOf[M, P], *, argnums: First = 0, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of[M, P, State[M]]: ...
@overload
def grad(
    f: LossOf[A, P], *, argnums: First = 0, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of[A, P, A]: ...
@overload
def grad(
    f: LossOf[L, P], *, argnums: First = 0, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of[L, P, jax.Array]: ...
@overload
def grad(
    f: LossOf2[B, M, P], *, argnums: Second, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of2[B, M, P, State[M]]: ...
@overload
def grad(
    f: LossOf2[B, A, P], *, argnums: Second, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of2[B, A, P, A]: ...
@overload
def grad(
    f: LossOf2[M, N, P], *, argnums: Both, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of2[M, N, P, tuple[State[M], State[N]]]: ...
@overload
def grad(
    f: LossOf2[M, A, P], *, argnums: Both, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of2[M, A, P, tuple[State[M], A]]: ...
@overload
def grad(
    f: Callable[P, ArrayLike], *, argnums: DiffState, has_aux: No = False, **options: Unpack[GradOptions]
) -> Callable[P, State[Any]]: ...
@overload
def grad(
    f: LossOf[B, P], *, argnums: Argnums = 0, has_aux: No = False, **options: Unpack[AnyGradOptions]
) -> Of[B, P, Any]: ...
@overload
def grad(
    f: LossAuxOf[M, P, X], *, argnums: First = 0, has_aux: Yes, **options: Unpack[GradOptions]
) -> Of[M, P, tuple[State[M], X]]: ...
@overload
def grad(
    f: LossAuxOf[B, P, X], *, argnums: Argnums = 0, has_aux: Yes, **options: Unpack[AnyGradOptions]
) -> Of[B, P, tuple[Any, X]]: ...
@overload
def grad(*, argnums: First = 0, has_aux: No = False, **options: Unpack[GradOptions]) -> OfGrad: ...
@overload
def grad(*, argnums: First = 0, has_aux: Yes, **options: Unpack[GradOptions]) -> OfGradAux: ...
@overload
def grad(*, argnums: Argnums = 0, has_aux: bool = False, **options: Unpack[AnyGradOptions]) -> OfAnyGrad: ...
def grad(
    f: Callable[..., Any] | Missing = MISSING,
    *,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """The gradient of a function whose arguments may be models.

    Args:
      f: the function; it returns a scalar, or with `has_aux` a pair of a scalar and another result. Omit it to
        use `grad` as a decorator with options.
      argnums: the arguments to differentiate. Of a model, these are the Params without ``trainable=False``, or with
        ``graph_updates=False`` all leaves; ``DiffState(argnum, filter)`` selects others. With graph updates, the call
        may give these arguments by name, or leave them at their defaults.
      has_aux: whether `f` returns a pair.
      holomorphic, allow_int: as in `jax.grad`.
      graph, graph_updates: as in `jit`.

    Returns:
      A function with the arguments of `f` that returns the gradient: for a model, a State with the paths of the
      leaves, or with ``graph_updates=False`` or ``graph=False`` and without `DiffState` a model of the same class; for
      several argnums, a tuple; with `has_aux`, a pair with the auxiliary result. A Variable that is reached twice has
      one gradient, in the first State.

    Raises:
      TransformError: an argnum is not a position, there is nothing to differentiate, or a Variable is differentiated
        in one argument and not in another.

    >>> import declax as dx
    >>> m = dx.Module()
    >>> m.scale = dx.Param(3.0)
    >>> grads = dx.grad(lambda m: m.scale**2)(m)
    >>> float(grads["scale"].value)
    6.0
    """
    with_value: Any = value_and_grad(
        argnums=argnums,
        has_aux=has_aux,
        holomorphic=holomorphic,
        allow_int=allow_int,
        graph=graph,
        graph_updates=graph_updates,
    )

    def make(f: Callable[..., Any]) -> Callable[..., Any]:
        both = with_value(checked_function("grad", "f", f))

        def gradient(*args: Any, **kwargs: Any) -> Any:
            try:
                result, grads = both(*args, **kwargs)
            except Exception as error:
                hide_frames(error)
                raise
            return (grads, result[1]) if has_aux else grads

        return look_like(gradient, f)

    return make if f is MISSING else make(f)


@overload
def value_and_grad(
    f: F, *, argnums: First = 0, has_aux: No = False, **options: Unpack[GradOptions]
) -> ValueAndGradientOfLambda: ...
@overload
def value_and_grad(
    f: F, *, argnums: Argnums = 0, has_aux: bool = False, **options: Unpack[AnyGradOptions]
) -> Untyped: ...
@overload
def value_and_grad(
    f: Of[M, P, V], *, argnums: First = 0, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of[M, P, tuple[V, State[M]]]: ...
@overload
def value_and_grad(
    f: Of[A, P, V], *, argnums: First = 0, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of[A, P, tuple[V, A]]: ...
@overload
def value_and_grad(
    f: Of2[B, M, P, V], *, argnums: Second, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of2[B, M, P, tuple[V, State[M]]]: ...
@overload
def value_and_grad(
    f: Of2[B, A, P, V], *, argnums: Second, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of2[B, A, P, tuple[V, A]]: ...
@overload
def value_and_grad(
    f: Of2[M, N, P, V], *, argnums: Both, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of2[M, N, P, tuple[V, tuple[State[M], State[N]]]]: ...
@overload
def value_and_grad(
    f: Of2[M, A, P, V], *, argnums: Both, has_aux: No = False, **options: Unpack[GradOptions]
) -> Of2[M, A, P, tuple[V, tuple[State[M], A]]]: ...
@overload
def value_and_grad(
    f: Of[B, P, V], *, argnums: Argnums = 0, has_aux: No = False, **options: Unpack[AnyGradOptions]
) -> Of[B, P, tuple[V, Any]]: ...
@overload
def value_and_grad(
    f: Of[M, P, VX], *, argnums: First = 0, has_aux: Yes, **options: Unpack[GradOptions]
) -> Of[M, P, tuple[VX, State[M]]]: ...
@overload
def value_and_grad(
    f: Of[B, P, VX], *, argnums: Argnums = 0, has_aux: Yes, **options: Unpack[AnyGradOptions]
) -> Of[B, P, tuple[VX, Any]]: ...
@overload
def value_and_grad(*, argnums: First = 0, has_aux: No = False, **options: Unpack[GradOptions]) -> OfValueAndGrad: ...
@overload
def value_and_grad(*, argnums: First = 0, has_aux: Yes, **options: Unpack[GradOptions]) -> OfValueAndGradAux: ...
@overload
def value_and_grad(
    *, argnums: Argnums = 0, has_aux: bool = False, **options: Unpack[AnyGradOptions]
) -> OfAnyValueAndGrad: ...
def value_and_grad(
    f: Callable[..., Any] | Missing = MISSING,
    *,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """The value and the gradient of a function whose arguments may be models.

    The arguments are those of `grad`. The new function returns a pair of the result of `f` and the gradient.

    Raises:
      TransformError: as for `grad`.

    >>> import declax as dx
    >>> m = dx.Module()
    >>> m.scale = dx.Param(3.0)
    >>> value, grads = dx.value_and_grad(lambda m: m.scale**2)(m)
    >>> float(value)
    9.0
    """
    options = {"holomorphic": holomorphic, "allow_int": allow_int}

    def make(f: Callable[..., Any]) -> Callable[..., Any]:
        checked_function("value_and_grad", "f", f)
        mode = Mode.of(graph, graph_updates)
        gradients = _Gradients(Closure(f), mode, parse_argnums("argnums", argnums, graph), has_aux, options)

        def value_and_gradient(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = gradients.positioned(args, kwargs)
            result, grads = run_with(
                lambda: Call(args, kwargs, mode, gradients.closure.find()), lambda call: gradients.of_call(call, args)
            )
            return result, grads[0] if isinstance(argnums, (int, DiffState)) else grads

        return look_like(value_and_gradient, f)

    return make if f is MISSING else make(f)


class _Gradients(NamedTuple):
    """Computes the gradients of a call."""

    closure: Closure
    mode: Mode
    argnums: list[int | DiffState]
    has_aux: bool
    options: dict[str, Any]

    def positioned(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments by name, and defaults, at their positions, if argnums select them and the signature fits."""
        are_given = all(0 <= self._selected(argnum)[0] < len(args) for argnum in self.argnums)
        if are_given or not self.mode.updates:
            return args, kwargs
        try:
            return by_position(parameters(self.closure.function), args, kwargs)
        except TypeError:  # the call itself reports a wrong argument better
            return args, kwargs

    def of_call(self, call: Call, args: tuple[Any, ...]) -> tuple[Outcome, tuple[Any, ...]]:
        """The outcome of the function, and the gradients, one for each argnum."""
        arguments = ArgumentLeaves(call, args, self.closure.function)
        selected = [arguments.target(*self._selected(argnum)) for argnum in self.argnums]
        arguments.check_aliasing(selected)
        targets = each_leaf_once(selected)
        if not any(target.positions for target in targets):
            raise self._nothing(args)
        for target in targets:
            arguments.check_differentiable(target.positions, allow_int=self.options["allow_int"])
        function = on_leaves(call, self.closure, self.mode)

        def loss_and_outcome(differentiated: Derivatives) -> tuple[Any, Outcome]:
            outcome, result = function(differentiated)
            loss = self._loss_of(outcome, result)
            self._warn_of_sums(call, loss, differentiated)
            return loss, outcome

        take = jax.value_and_grad(loss_and_outcome, has_aux=True, **self.options)
        (_, outcome), gradients = take({i: arguments.leaves[i] for target in targets for i in target.positions})
        states = [target.unflatten(gradients) for target in targets]
        if self.mode.updates:
            return outcome, tuple(states)
        objects = arguments_of(call.structure, gradients)
        return outcome, tuple(
            state if isinstance(argnum, DiffState) else objects[argnum]
            for state, argnum in zip(states, self.argnums, strict=True)
        )

    def _warn_of_sums(self, call: Call, loss: Any, differentiated: Derivatives) -> None:
        """Warns in a `shard_map` where JAX adds the gradients of all devices, since the loss is that of one."""
        of_loss = _jax.varying_axes(loss)
        if not of_loss:
            return
        leaves = [(i, leaf) for i, value in differentiated.items() for leaf in jax.tree.leaves(value)]
        summed = {i: of_loss - _jax.varying_axes(leaf) for i, leaf in leaves}
        first = next((i for i, axes in summed.items() if axes), None)
        if first is None:
            return
        axis = repr(min(summed[first]))
        warnings.warn(
            f"{name_of(self.closure.function)}: the gradient of {names_of_call(call.structure)[first]} is a sum over "
            f"the axis {axis} of the mesh, since the loss varies along it and this does not. A pmean of the gradient "
            f"changes nothing. Reduce the loss inside of the function: jax.lax.pmean(loss, {axis}), or psum for a sum.",
            stacklevel=_jax.level_of_user(sys._getframe()),
        )

    def _selected(self, argnum: int | DiffState) -> tuple[int, Filter]:
        """The number and the filter of an entry of argnums."""
        if isinstance(argnum, DiffState):
            return argnum
        return argnum, is_trainable if self.mode.updates else ...

    def _nothing(self, args: tuple[Any, ...]) -> TransformError:
        number, chosen = self._selected(self.argnums[0])
        return TransformError(
            namer_of(self.closure.function)(number % len(args)),
            "there is nothing to differentiate with respect to",
            got=describe(args[number]),
            why=f"the filter {as_written(chosen)} matches no leaf",
            fix=advise_param(args[number], chosen)
            or f"argnums=dx.DiffState({number}, ...)        # or another filter or argument",
        )

    def _loss_of(self, outcome: Outcome, result: Sequence[Any]) -> Any:
        """The result, or the first of it with `has_aux`; the value of a Variable."""
        loss = target_of_result(outcome, has_aux=self.has_aux).unflatten(dict(enumerate(result)))
        if isinstance(loss, Variable):
            loss = loss.value
        name, dtype = ("complex", jnp.complexfloating) if self.options["holomorphic"] else ("real", jnp.floating)
        got = describe(loss)
        if is_array_like(loss):
            found, got = jax.typeof(loss), text_of_type(loss)
            if found.shape == () and jnp.issubdtype(found.dtype, dtype):
                return loss
        raise TransformError(
            f"the result of {name_of(self.closure.function)}",
            f"a loss must be a single {name} number, or a Variable holding one",
            got=got,
            fix="return loss.mean()        # a scalar; has_aux=True for (loss, more); dx.vjp for an array",
        )
