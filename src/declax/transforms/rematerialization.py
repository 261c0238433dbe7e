"""`remat` for functions of models: gradients recompute intermediate values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Unpack, overload

import jax

from declax._typing import MISSING, Missing
from declax.errors import TransformError, describe
from declax.transforms._engine.call import Call
from declax.transforms._engine.commit import run
from declax.transforms._engine.diagnostics import named
from declax.transforms._engine.outcome import Outcome, lifted
from declax.transforms._engine.structure import Mode, checked_function
from declax.transforms._engine.wrapped import Names, Numbers, P, R, Selection, Wrapped, program_for

if TYPE_CHECKING:
    from declax.transforms._engine.signatures import RematOptions


@overload
def remat(f: Callable[P, R], **options: Unpack[RematOptions]) -> Callable[P, R]: ...
@overload
def remat(**options: Unpack[RematOptions]) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def remat(
    f: Callable[..., Any] | Missing = MISSING,
    *,
    prevent_cse: bool = True,
    static_argnums: Numbers = (),
    static_argnames: Names = (),
    policy: Callable[..., Any] | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """A function of models whose gradients recompute intermediate values, as `jax.checkpoint`.

    It uses less memory and more time. Variables that the function sets are written to the caller's models once, and
    recomputed random numbers are the same. The function is traced once for each structure and shapes of its arguments.

    Args:
      f: the function, or a method in its class; omit it to use `remat` as a decorator with options.
      prevent_cse: as in `jax.checkpoint`; False is faster in `scan`.
      static_argnums, static_argnames: hashable arguments that stay Python values.
      policy: which values are kept, as in `jax.checkpoint`.
      graph, graph_updates: as in `jit`.

    Raises:
      TransformError: `f` is not a function, or an option does not match it.

    >>> import declax as dx
    >>> class Square(dx.Module):
    ...     def __init__(self):
    ...         self.scale = dx.Param(3.0)
    ...     @dx.remat
    ...     def __call__(self, x):
    ...         return (self.scale * x) ** 2
    >>> float(dx.grad(lambda m: m(1.0))(Square())["scale"].value)
    6.0
    """

    def make(f: Callable[..., Any]) -> Rematerialized[..., Any]:
        if isinstance(f, type):
            fix = "dx.remat(block)        # an instance; or @dx.remat above the __call__ of the class"
            raise TransformError("remat", "the argument is a class", got=describe(f), fix=fix)
        checked_function("remat", "f", f)
        if policy is not None:
            checked_function("remat", "policy", policy)
        static = Selection(f, "static", static_argnums, static_argnames)
        options = {"prevent_cse": prevent_cse, "policy": policy}
        return Rematerialized(f, static, options, Mode.of(graph, graph_updates))

    return make if f is MISSING else make(f)


class Rematerialized(Wrapped[P, R]):
    """A function whose gradients recompute intermediate values; see `remat`."""

    _transform = "remat"

    def __init__(self, f: Callable[P, R], static: Selection, options: dict[str, Any], mode: Mode) -> None:
        super().__init__(f, mode, static)
        self._options = options

    def _forget(self) -> None:
        self._functions: dict[Hashable, Callable[..., Outcome]] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function with the arguments of its signature."""

        def body(call: Call) -> Outcome:
            # A separate function for each structure, by which JAX identifies its traces.
            return program_for(self._functions, call.structure, lambda: self._make(call))(*call.leaves)

        result: R = run(lambda: self._bind_arguments(args, kwargs), body)
        return result

    def _make(self, call: Call) -> Callable[..., Outcome]:
        adapt = functools.partial(self._static.give, statics=call.structure.statics)
        function = lifted(self._closure, call.structure, self._mode, adapt=adapt)
        function = named(function, self._closure.function, call.structure)
        made: Callable[..., Outcome] = jax.checkpoint(function, **self._options)
        return made
