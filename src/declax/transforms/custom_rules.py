"""`custom_vjp`: functions of models whose gradients the user writes.

Vocabulary
----------
fwd:       the rule that is called in place of the function when it is
           differentiated; also returns residuals.
bwd:       the rule that makes of residuals and cotangents those of the arguments.
residuals: what `fwd` keeps for `bwd`.
fixed:     an argument that is not differentiated, and is a Python value for all three.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, overload

import jax
from jax.core import Tracer

from declax._filters import Filter
from declax._typing import MISSING, Missing
from declax.errors import TransformError, describe
from declax.transforms._custom_call import Argument, CustomCall, RuleOptions
from declax.transforms._differentiated import Arguments, argument_name
from declax.transforms._lift import Call, Outcome, run
from declax.transforms._structure import Mode, is_root, parameters
from declax.transforms._together import together
from declax.transforms._wrapping import R, Wrapped
from declax.transforms.autodiff import Argnums, DiffState, listed

P = ParamSpec("P")


@overload
def custom_vjp(
    fun: Callable[P, R],
    /,
    *,
    nondiff_argnums: Argnums = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> CustomVjp[P, R]: ...
@overload
def custom_vjp(
    *, nondiff_argnums: Argnums = (), graph: bool | None = None, graph_updates: bool | None = None
) -> Callable[[Callable[P, R]], CustomVjp[P, R]]: ...
def custom_vjp(
    fun: Callable[..., Any] | Missing = MISSING,
    /,
    *,
    nondiff_argnums: Argnums = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """A function of models whose gradients are given by rules, as in `jax.custom_vjp`.

    ``f.defvjp(fwd, bwd)`` gives it its rules. ``fwd`` takes the arguments of
    the function, and returns its result and residuals, which may hold models.
    ``bwd`` takes the residuals and the cotangent, and returns a tuple with one
    cotangent for each argument: of a model a State, also of a part of its
    leaves, or a model of its kind; None for zeros.

    With ``graph_updates=True`` the cotangent is a pair. Its first is a tuple
    with, for each argument that is a model, a State of the cotangents of what
    its leaves were set to, zero where the function set nothing; its second is
    that of the result. Otherwise ``bwd`` gets that of the result only, and the
    others as ``updates_g``, where it has such a parameter: for each model, a
    State of the leaves that were set.

    Args:
      fun: the function; leave it out to use `custom_vjp` as a decorator with
        options.
      nondiff_argnums: the arguments that are not differentiated. Those given
        as ints are no arrays and no models; ``bwd`` gets them first. A
        `DiffState` says which leaves of a model *are* differentiated.
      graph, graph_updates: as in `jit`.

    Returns:
      The function, with the method ``defvjp``; usable as a method.

    Raises:
      TransformError: where it is called without rules, where the rules do not
        fit, and where it is differentiated with respect to what it captures.

    >>> from declax._module import Module
    >>> from declax._variables import Param
    >>> from declax.states import State
    >>> from declax.transforms.autodiff import grad
    >>> @custom_vjp
    ... def double(m):
    ...     return m.scale * 2.0
    >>> def forward(m):
    ...     return double(m), None
    >>> def backward(residuals, cotangent):
    ...     _, of_result = cotangent
    ...     return (State({"scale": 100.0 * of_result}),)
    >>> double.defvjp(forward, backward)
    >>> m = Module()
    >>> m.scale = Param(3.0)
    >>> float(grad(double)(m)["scale"].value)
    100.0
    """

    def make(fun: Callable[..., Any]) -> CustomVjp[..., Any]:
        return CustomVjp(fun, nondiff_argnums, Mode.of(graph, graph_updates))

    return make if fun is MISSING else make(fun)


class CustomVjp(Wrapped[P, R]):
    """A function with rules for its gradients; see `custom_vjp`."""

    def __init__(self, fun: Callable[P, R], nondiff_argnums: Argnums, mode: Mode) -> None:
        if not callable(fun):
            fix = "dx.custom_vjp(function)"
            raise TransformError("custom_vjp", "the argument is no function", got=describe(fun), fix=fix)
        super().__init__(fun, mode)
        self._parameters = parameters(fun)
        self._fixed, self._chosen = _parse(nondiff_argnums, self._parameters)
        self._options: RuleOptions | None = None

    def defvjp(
        self,
        fwd: Callable[P, tuple[R, Any]],
        bwd: Callable[..., Sequence[Any]],
        symbolic_zeros: bool = False,
    ) -> None:
        """Gives the function its rules.

        Args:
          fwd: the rule for the result and the residuals.
          bwd: the rule for the cotangents of the arguments.
          symbolic_zeros: as in `jax.custom_vjp`: ``fwd`` gets, in place of each
            array, a `jax.custom_derivatives.CustomVJPPrimal`, and ``bwd`` may
            get a `jax.custom_derivatives.SymbolicZero`.

        Raises:
          TransformError: for what is no function.
        """
        for name, rule in (("fwd", fwd), ("bwd", bwd)):
            if not callable(rule):
                fix = "f.defvjp(fwd, bwd)"
                raise TransformError(f"defvjp, {name}", "the rule is no function", got=describe(rule), fix=fix)
        fun = self._closure.function if self._options is None else self._user
        self._closure = together(fun, fwd, bwd)
        self._options = RuleOptions(self._mode, symbolic_zeros, "updates_g" in (parameters(bwd) or ()))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function with arguments of its own signature."""
        options = self._options
        if options is None:
            name = getattr(self, "__name__", "f")
            fix = f"{name}.defvjp(fwd, bwd)"
            raise TransformError(f"custom_vjp of {name}", "the function has no rules for its gradients yet", fix=fix)
        given = self._positional(args, kwargs)
        fixed = tuple((i, self._check_fixed(i, given[i])) for i in self._fixed if i < len(given))
        numbers = [i for i in range(len(given)) if i not in self._fixed]
        rest = tuple(given[i] for i in numbers)

        def call_by_rules(call: Call) -> Outcome:
            arguments = self._arguments(Arguments(call, rest, self._user), numbers)
            captures = call.captures or self._closure.find()
            return CustomCall(call.structure, captures, arguments, fixed, options).run(call)

        result: R = run(lambda: self._take(rest, {}), call_by_rules)
        return result

    @property
    def _user(self) -> Callable[..., Any]:
        """The function itself, of which there are rules."""
        function: Callable[..., Any] = self._closure.function.args[0]  # type: ignore[attr-defined]  # a partial
        return function

    def _arguments(self, arguments: Arguments, numbers: Sequence[int]) -> list[Argument]:
        """The arguments that are not fixed, from their numbers."""
        found = []
        for position, number in enumerate(numbers):
            whole = arguments.target(position)
            chosen = arguments.target(position, self._chosen[number]) if number in self._chosen else whole
            found.append(Argument(argument_name(self._user, number), number, whole, chosen))
        return found

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments by position, with those that have defaults, as JAX does it."""
        known = self._parameters
        if known is None or (not kwargs and len(args) == len(known)):
            bound, rest = args, kwargs
        else:
            filled = inspect.Signature(list(known.values())).bind(*args, **kwargs)
            filled.apply_defaults()
            # What has a default and can only be given by name is left to the function, where nobody gives it.
            bound, rest = filled.args, {name: value for name, value in filled.kwargs.items() if name in kwargs}
        if rest:
            raise TransformError(
                f"argument {next(iter(rest))!r}",
                "a function with rules for its gradients takes arguments by position only",
                why="bwd returns one cotangent for each position",
            )
        return bound

    def _check_fixed(self, number: int, value: Any) -> Any:
        leaves = jax.tree_util.tree_leaves(value, is_leaf=is_root)
        found = next((leaf for leaf in leaves if is_root(leaf) or isinstance(leaf, Tracer)), None)
        if found is None:
            return value
        raise TransformError(
            argument_name(self._user, number),
            "an argument of nondiff_argnums holds a model or an array that JAX traces",
            got=describe(found),
            why="its value goes to the three functions as it is, and is not traced",
            fix="nondiff_argnums=dx.DiffState(0, False)        # differentiates no leaf of argument 0"
            if is_root(found)
            else "leave it out of nondiff_argnums, and return None for it from bwd",
        )

    def __repr__(self) -> str:
        return f"custom_vjp({getattr(self, '__qualname__', self._closure.function)})"


def _parse(argnums: Argnums, known: dict[str, inspect.Parameter] | None) -> tuple[tuple[int, ...], dict[int, Filter]]:
    """The numbers of fixed arguments, and the filters of those that are differentiated in part.

    Raises:
      TransformError: for what is no argnum.
    """
    takes_more = known is None or any(p.kind is p.VAR_POSITIONAL for p in known.values())
    count = len(known or ())
    fixed: list[int] = []
    chosen: dict[int, Filter] = {}
    for entry in listed(argnums):
        number = entry.argnum if isinstance(entry, DiffState) else entry
        if not isinstance(number, int) or isinstance(number, bool):
            raise TransformError(
                "nondiff_argnums",
                "these are no positions of arguments",
                expected="ints or DiffState",
                got=describe(entry),
            )
        if not -count <= number < count and not (takes_more and number >= 0):
            problem = f"the function has no positional parameter {number}"
            raise TransformError("nondiff_argnums", problem, expected=", ".join(known or ()))
        if isinstance(entry, DiffState):
            chosen[number % count if number < 0 else number] = entry.filter
        else:
            fixed.append(number % count if number < 0 else number)
    return tuple(sorted(set(fixed))), chosen
