"""`vjp` and `jvp` for functions of models.

Vocabulary
----------
primal:    a value at which a function is differentiated: an argument, or the result.
tangent:   a direction in which a primal moves.
cotangent: a weight of a result; pulled back, the gradient of the weighted result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, TypeVarTuple, overload

import jax

from declax._nodes import is_ref
from declax._typing import MISSING, Missing
from declax.errors import TransformError, describe
from declax.transforms._captures import Closure
from declax.transforms._differentiated import (
    Arguments,
    Slopes,
    Target,
    add_slopes,
    fitted,
    is_differentiable,
    result_leaves,
    shape_of,
    target_of_result,
    with_leaves,
    zeros_for,
)
from declax.transforms._lift import Call, Outcome, lifted, run_with
from declax.transforms._naming import no_array, no_ref
from declax.transforms._structure import Mode, is_array_like
from declax.transforms._wrapping import look_like

if TYPE_CHECKING:
    from typing import Unpack

    from declax.transforms._signatures import ModeOptions, VjpOptions

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
Ts = TypeVarTuple("Ts")


class Pullback:
    """Takes a cotangent of a function's result to the gradients of its arguments; what `vjp` returns.

    A pytree, so that a compiled function can return or take it. Calling it
    changes nothing, and can be repeated.
    """

    __slots__ = ("_pull", "_static")

    def __init__(self, pull: Any, static: tuple[Target, tuple[tuple[Any, ...], Any], tuple[Target, ...]]) -> None:
        self._pull = pull
        self._static = static

    def __call__(self, cotangent: Any, /) -> tuple[Any, ...]:
        """The gradient for each argument.

        Args:
          cotangent: in the shape of the result; for a model, a State or a model.

        Raises:
          TransformError: it has not that shape.
        """
        result, (shapes, tree), targets = self._static
        found, plain = result.take_apart(cotangent, "the cotangent")
        values = add_slopes(found, {})
        shapes_of_values, shapes_of_plain = tree.unflatten(shapes)
        for position, shape in zip(result.values, shapes_of_values, strict=True):
            if position in values:
                values[position] = fitted(values[position], shape, result.place("the cotangent", position))
            else:
                values[position] = zeros_for(shape)
        for position, shape in zip(result.plain, shapes_of_plain, strict=True):
            if not is_differentiable(shape):
                plain[position] = zeros_for(shape)
        if len(plain) < len(result.plain):
            raise TransformError(
                "the cotangent",
                "there is none for an array of the result",
                got=describe(None),
                fix="jax.tree.map(jnp.ones_like, result)        # an array for each of the result",
            )
        try:
            of_values, of_plain = self._pull((values, plain))
        except (ValueError, TypeError):
            for position, shape in zip(result.plain, shapes_of_plain, strict=True):
                fitted(plain[position], shape, result.place_of_plain("the cotangent", position))
            raise
        return tuple(target.assemble(of_values, of_plain) for target in targets)


jax.tree_util.register_pytree_node(
    Pullback,
    lambda pullback: ((pullback._pull,), pullback._static),
    lambda static, children: Pullback(children[0], static),
)


@overload
def vjp(
    f: Callable[[*Ts], tuple[R, A]], /, *primals: *Ts, has_aux: Literal[True], **options: Unpack[VjpOptions]
) -> tuple[R, Pullback, A]: ...
@overload
def vjp(
    f: Callable[[*Ts], R], /, *primals: *Ts, has_aux: Literal[False] = False, **options: Unpack[VjpOptions]
) -> tuple[R, Pullback]: ...
@overload
def vjp(
    f: Callable[P, tuple[R, A]], /, *, has_aux: Literal[True], **options: Unpack[VjpOptions]
) -> Callable[P, tuple[R, Pullback, A]]: ...
@overload
def vjp(
    f: Callable[P, R], /, *, has_aux: Literal[False] = False, **options: Unpack[VjpOptions]
) -> Callable[P, tuple[R, Pullback]]: ...
@overload
def vjp(
    *, has_aux: Literal[True], **options: Unpack[VjpOptions]
) -> Callable[[Callable[P, tuple[R, A]]], Callable[P, tuple[R, Pullback, A]]]: ...
@overload
def vjp(
    *, has_aux: Literal[False] = False, **options: Unpack[VjpOptions]
) -> Callable[[Callable[P, R]], Callable[P, tuple[R, Pullback]]]: ...
def vjp(  # type: ignore[misc]  # no signature takes both `*Ts` and any number of arguments
    f: Callable[..., Any] | Missing = MISSING,
    /,
    *primals: Any,
    has_aux: bool = False,
    reduce_axes: Sequence[Any] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Calls a function of models, and prepares to pull cotangents of its result back.

    The function is called once. What it does to its arguments happens to the
    caller's, then and not when the pullback is called. What it captures is not
    differentiated.

    Args:
      f: the function. Without primals, the result is a function of them;
        without `f`, a decorator.
      *primals: its arguments.
      has_aux: whether `f` returns a pair of what is differentiated and
        something else.
      reduce_axes: as in `jax.vjp`.
      graph, graph_updates: as in `jit`.

    Returns:
      The result; the pullback, a function from a cotangent to a tuple of
      gradients, one for each argument; and with `has_aux` the auxiliary result.
      The gradient of a model is a State of all its leaves; where those are no
      real or complex numbers, it is empty, of dtype `float0`, as in JAX.

    Raises:
      TransformError: where `f` is no function, or returns no pair with `has_aux`.

    >>> import jax.numpy as jnp
    >>> from declax._module import Module
    >>> from declax._variables import Param
    >>> m = Module()
    >>> m.scale = Param(3.0)
    >>> y, pullback = vjp(lambda m, x: m.scale * x, m, jnp.array([1.0, 2.0]))
    >>> m_grad, x_grad = pullback(jnp.array([1.0, 10.0]))
    >>> float(m_grad["scale"].value), x_grad.tolist()
    (21.0, [3.0, 30.0])
    """

    def prepare(f: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(f):
            fix = "dx.vjp(function, *arguments)"
            raise TransformError("vjp", "the first argument is no function", got=describe(f), fix=fix)
        closure, mode = Closure(f), Mode.of(graph, graph_updates)
        options = {"reduce_axes": reduce_axes} if reduce_axes else {}

        def with_pullback(*primals: Any) -> Any:
            return _vjp(closure, mode, primals, has_aux, options)

        return look_like(with_pullback, f)

    if f is MISSING:
        return prepare
    return prepare(f)(*primals) if primals else prepare(f)


def _vjp(closure: Closure, mode: Mode, primals: tuple[Any, ...], has_aux: bool, options: dict[str, Any]) -> Any:
    def pull_back(call: Call) -> tuple[Outcome, Pullback]:
        arguments = Arguments(call, primals, closure.function)
        targets = tuple(map(arguments.target, range(len(primals))))
        function = _on_differentiated(call, lifted(closure, call.structure, mode), has_aux)
        _check_no_refs(call, arguments, targets)
        values = {i: call.values[i] for target in targets for i in target.values}
        plain = {i: call.plain[i] for target in targets for i in target.plain}
        (leaves, others), pull, outcome = jax.vjp(function, values, plain, has_aux=True, **options)
        result = target_of_result(outcome, has_aux)
        of_leaves, of_others = [leaves[i] for i in result.values], [others[i] for i in result.plain]
        shapes, tree = jax.tree_util.tree_flatten((list(map(shape_of, of_leaves)), list(map(shape_of, of_others))))
        return outcome, Pullback(pull, (result, (tuple(shapes), tree), targets))

    output, pullback = run_with(lambda: Call(primals, {}, mode, closure.find()), pull_back)
    return (output[0], pullback, output[1]) if has_aux else (output, pullback)


def _check_no_refs(call: Call, arguments: Arguments, targets: Sequence[Target]) -> None:
    """Checks that no array ref is differentiated.

    Raises:
      TransformError: one is.
    """
    for number, target in enumerate(targets):
        for position in target.values:
            if is_ref(call.values[position]):
                place = target.place(arguments.name(number), position)
                raise no_ref(place, "this is an array ref, which has no gradient")


def _on_differentiated(
    call: Call, function: Callable[..., Outcome], has_aux: bool
) -> Callable[[Slopes, Slopes], tuple[tuple[Slopes, Slopes], Outcome]]:
    """A lifted function of the differentiated leaves, that returns those of the result; the Outcome is auxiliary."""

    def on_leaves(values: Slopes, plain: Slopes) -> tuple[tuple[Slopes, Slopes], Outcome]:
        given = with_leaves(call.values, values)
        outcome = function(given, with_leaves(call.plain, plain))
        result = target_of_result(outcome, has_aux)
        leaves, plain_leaves = result_leaves(outcome, given, result)
        for position, leaf in plain_leaves.items():
            if not is_array_like(leaf):
                raise no_array(result.place_of_plain("the result", position), leaf)
        return (leaves, plain_leaves), outcome

    return on_leaves


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
    f: Callable[[*Ts], tuple[R, A]], *, has_aux: Literal[True], **options: Unpack[ModeOptions]
) -> Callable[[tuple[*Ts], tuple[Any, ...]], tuple[R, Any, A]]: ...
@overload
def jvp(
    f: Callable[[*Ts], R], *, has_aux: Literal[False] = False, **options: Unpack[ModeOptions]
) -> Callable[[tuple[*Ts], tuple[Any, ...]], tuple[R, Any]]: ...
@overload
def jvp(
    *, has_aux: Literal[True], **options: Unpack[ModeOptions]
) -> Callable[[Callable[[*Ts], tuple[R, A]]], Callable[[tuple[*Ts], tuple[Any, ...]], tuple[R, Any, A]]]: ...
@overload
def jvp(
    *, has_aux: Literal[False] = False, **options: Unpack[ModeOptions]
) -> Callable[[Callable[[*Ts], R]], Callable[[tuple[*Ts], tuple[Any, ...]], tuple[R, Any]]]: ...
def jvp(
    f: Callable[..., Any] | Missing = MISSING,
    primals: tuple[Any, ...] | Missing = MISSING,
    tangents: tuple[Any, ...] | Missing = MISSING,
    *,
    has_aux: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Calls a function of models, and says how its result moves with the arguments.

    What the function does to its arguments happens to the caller's; the
    tangents of what it sets are dropped. What it captures does not move.

    Args:
      f: the function. Without primals, the result is a function of them and of
        the tangents; without `f`, a decorator.
      primals: a tuple of its arguments.
      tangents: a tuple of their tangents: of a model, a State, also of a part
        of its leaves, or a model of its kind; None where nothing moves.
        Leaves that are no real or complex numbers do not move.
      has_aux: whether `f` returns a pair of what is differentiated and
        something else.
      graph, graph_updates: as in `jit`.

    Returns:
      The result and its tangent, with a State for a model; with `has_aux` also
      the auxiliary result.

    Raises:
      TransformError: where `f` is no function, tangents do not fit the
        primals, or with `has_aux` no pair is returned.

    >>> from declax._module import Module
    >>> from declax._variables import Param
    >>> from declax.states import State
    >>> m = Module()
    >>> m.scale = Param(3.0)
    >>> y, y_tangent = jvp(lambda m, x: m.scale * x, (m, 2.0), (State({"scale": 1.0}), 0.0))
    >>> float(y), float(y_tangent)
    (6.0, 2.0)
    """

    def prepare(f: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(f):
            fix = "dx.jvp(function, primals, tangents)"
            raise TransformError("jvp", "the first argument is no function", got=describe(f), fix=fix)
        closure, mode = Closure(f), Mode.of(graph, graph_updates)

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
    _check_tuples(primals, tangents)
    primals = tuple(primals)

    def push_forward(call: Call) -> tuple[Outcome, Any]:
        arguments = Arguments(call, primals, closure.function)
        values, plain = _tangents_of(call, arguments, tangents)
        function = _on_differentiated(call, lifted(closure, call.structure, mode), has_aux)
        leaves = {i: call.values[i] for i in values}, {i: call.plain[i] for i in plain}
        try:
            _, (of_values, of_plain), outcome = jax.jvp(function, leaves, (values, plain), has_aux=True)
        except (ValueError, TypeError):
            _check_plain(call, arguments, tangents)
            raise
        return outcome, target_of_result(outcome, has_aux).assemble(of_values, of_plain)

    output, tangent = run_with(lambda: Call(primals, {}, mode, closure.find()), push_forward)
    return (output[0], tangent, output[1]) if has_aux else (output, tangent)


def _check_tuples(primals: object, tangents: object) -> None:
    """Checks that there is one tangent for each primal.

    Raises:
      TransformError: there is not.
    """
    for name, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, (tuple, list)):
            fix = "dx.jvp(f, (model, x), (model_tangent, x_tangent))"
            raise TransformError(name, f"the {name} are no tuple", got=describe(given), fix=fix)
    if len(primals) != len(tangents):  # type: ignore[arg-type]  # just checked
        raise TransformError(
            "tangents",
            "there is not one tangent for each primal",
            expected=f"{len(primals)} of them",  # type: ignore[arg-type]  # as above
            got=f"{len(tangents)}",  # type: ignore[arg-type]  # as above
            fix="None in the place of a tangent says that nothing moves",
        )


def _tangents_of(call: Call, arguments: Arguments, tangents: Sequence[Any]) -> tuple[Slopes, Slopes]:
    """The tangents of the leaves that move.

    Raises:
      TransformError: a tangent does not fit, or a shared Variable has two.
    """
    values: Slopes = {}
    plain: Slopes = {}
    seen: Slopes = {}
    for number, tangent in enumerate(tangents):
        target, where = arguments.target(number), f"tangents, {arguments.name(number)}"
        of_values, of_plain = target.take_apart(tangent, where)
        for position, given in of_values:
            if not is_differentiable(call.values[position]):
                continue
            here = target.place(where, position)
            if is_ref(call.values[position]):
                raise no_ref(here, "this is an array ref, which does not move")
            if position in values and seen[position] is not given:
                raise TransformError(
                    here,
                    "two tangents are given for one Variable",
                    why="another argument has the Variable too",
                    fix="None, or a State without it, as the tangent of one of the two",
                )
            seen[position] = given
            values[position] = fitted(given, call.values[position], here)
        plain |= {position: given for position, given in of_plain.items() if is_differentiable(call.plain[position])}
    return values, plain


def _check_plain(call: Call, arguments: Arguments, tangents: Sequence[Any]) -> None:
    """Says which tangent of an array in no model JAX has refused.

    Raises:
      TransformError: one has not the shape and dtype of its primal.
    """
    for number, tangent in enumerate(tangents):
        target, where = arguments.target(number), f"tangents, {arguments.name(number)}"
        for position, given in target.take_apart(tangent, where)[1].items():
            fitted(given, call.plain[position], target.place_of_plain(where, position))
