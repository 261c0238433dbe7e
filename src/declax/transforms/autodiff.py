"""`grad` and `value_and_grad` for functions of models.

Vocabulary
----------
differentiated: the leaves that the gradient is taken with respect to: of a
                model, those that a filter takes; of other arguments, all; of
                what the function captures, none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar, overload

import jax

from declax._filters import Filter
from declax._typing import MISSING, Missing
from declax._variables import Param
from declax.errors import TransformError, describe
from declax.transforms._closure import Closure
from declax.transforms._differentiated import Arguments, Slopes, check_pair, is_differentiable, with_leaves
from declax.transforms._lift import Call, Outcome, lifted
from declax.transforms._running import run_with
from declax.transforms._structure import Mode
from declax.transforms._wrapping import look_like

P = ParamSpec("P")
R = TypeVar("R")


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
    f: Callable[P, Any],
    /,
    *,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[P, Any]: ...
@overload
def grad(
    *,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[[Callable[P, Any]], Callable[P, Any]]: ...
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
    options: dict[str, Any] = {
        "argnums": argnums,
        "has_aux": has_aux,
        "holomorphic": holomorphic,
        "allow_int": allow_int,
        "graph": graph,
        "graph_updates": graph_updates,
    }
    if f is MISSING:
        return functools.partial(grad, **options, reduce_axes=reduce_axes)
    with_value = value_and_grad(f, **options, reduce_axes=reduce_axes)

    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, grads = with_value(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return look_like(gradient, f)


@overload
def value_and_grad(
    f: Callable[P, R],
    /,
    *,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[P, tuple[R, Any]]: ...
@overload
def value_and_grad(
    *,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[[Callable[P, R]], Callable[P, tuple[R, Any]]]: ...
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
    if f is MISSING:
        return functools.partial(
            value_and_grad,
            argnums=argnums,
            has_aux=has_aux,
            holomorphic=holomorphic,
            allow_int=allow_int,
            reduce_axes=reduce_axes,
            graph=graph,
            graph_updates=graph_updates,
        )
    if not callable(f):
        raise TransformError(
            "value_and_grad", "the argument is no function", got=describe(f), fix="dx.value_and_grad(function)"
        )
    wanted = _parse_argnums(argnums)
    mode = Mode.of(graph, graph_updates)
    options: dict[str, Any] = {"holomorphic": holomorphic, "allow_int": allow_int}
    if reduce_axes:
        options["reduce_axes"] = reduce_axes

    make = _Gradients(Closure(f), mode, wanted, has_aux, options)

    def value_and_gradient(*args: Any, **kwargs: Any) -> Any:
        take = functools.partial(Call, args, kwargs, mode)
        result, grads = run_with(lambda: take(make.closure.find()), functools.partial(make.of_call, args))
        return result, grads[0] if isinstance(argnums, (int, DiffState)) else grads

    return look_like(value_and_gradient, f)


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
            outcome = function(with_leaves(call.values, leaves), with_leaves(call.plain, plain_leaves))
            return _scalar(outcome, self.has_aux), outcome

        leaves = {i: call.values[i] for t in targets for i in t.values}
        plain = {i: call.plain[i] for t in targets for i in t.plain}
        differentiated = jax.value_and_grad(on_differentiated, argnums=(0, 1), has_aux=True, **self.options)
        try:
            (_, outcome), (leaf_grads, plain_grads) = differentiated(leaves, plain)
        except TypeError:
            if not self.options["allow_int"]:
                _check_differentiable(call, arguments, self.wanted)
            raise
        return outcome, tuple(t.assemble(leaf_grads, plain_grads) for t in targets)


def _parse_argnums(argnums: Argnums) -> list[DiffState]:
    listed: list[Any] = [argnums]
    if isinstance(argnums, Sequence) and not isinstance(argnums, (DiffState, str)):
        listed = list(argnums)
    found = []
    for entry in listed:
        if isinstance(entry, DiffState):
            found.append(entry)
        elif isinstance(entry, int) and not isinstance(entry, bool):
            found.append(DiffState(entry, Param))
        else:
            raise TransformError(
                "argnums", "argnums are positions of arguments", expected="ints or DiffState", got=describe(entry)
            )
    return found


def _check_differentiable(call: Call, arguments: Arguments, wanted: list[DiffState]) -> None:
    """Says which leaf has no gradient, where JAX has refused one.

    Raises:
      TransformError: there is such a leaf.
    """
    for number, chosen in wanted:
        target = arguments.target(number, chosen)
        found = [(i, call.values[i]) for i in target.values] + [(-1, call.plain[i]) for i in target.plain]
        for position, value in found:
            if not is_differentiable(value):
                raise TransformError(
                    target.place(arguments.name(number % len(arguments)), position),
                    "this is no real or complex number, so it has no gradient",
                    got=describe(value),
                    fix=f"argnums=dx.DiffState({number}, dx.Param)        # a filter without it, or allow_int=True",
                ) from None


def _scalar(outcome: Outcome, has_aux: bool) -> Any:
    """What JAX differentiates: the result, or the first of it."""
    plan = outcome.plan
    if plan.change is None:
        output = outcome.output
        tree = jax.tree_util.tree_structure(output) if has_aux else None
    else:
        output, tree = _plain_output(outcome), plan.tree
    if not has_aux:
        return output
    check_pair(tree)
    return output[0]


def _plain_output(outcome: Outcome) -> Any:
    """The output with None in place of returned objects."""
    plain = iter(outcome.output)
    leaves = [None if is_one else next(plain) for is_one in outcome.plan.is_root]
    return jax.tree_util.tree_unflatten(outcome.plan.tree, leaves)
