"""The types of transforms; only type checkers read this.

In the names, a loss is a function that returns a number, whose gradient is a State for the class `M` of a model, of the
same kind for `A`, an array or a State, and an array for `L`, another number.
"""

# Overloads overlap on purpose: the first that fits says the type, the last one says what is left.
# Type checkers find no use for `F` of a lambda, see there.
# mypy: disable-error-code="overload-overlap"
# pyright: reportInvalidTypeVarUse=false

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeAlias, TypedDict, TypeVar, overload

import jax
from jax.sharding import AbstractMesh, Mesh
from jax.typing import ArrayLike

from declax._classes.pytree import Pytree
from declax._module.callable_module import CallableModule
from declax._state.states import State
from declax.transforms._engine.prefixes import Carry, StateAxes
from declax.transforms._engine.wrapped import Names, Numbers

P = ParamSpec("P")
B = TypeVar("B")
C = TypeVar("C")
M = TypeVar("M", bound=Pytree | CallableModule)
N = TypeVar("N", bound=Pytree | CallableModule)
A = TypeVar("A", bound="jax.Array | State[Any]")
L = TypeVar("L", bound=ArrayLike)
R = TypeVar("R")
X = TypeVar("X")
Y = TypeVar("Y")
V = TypeVar("V", bound=ArrayLike)
VX = TypeVar("VX", bound=tuple[ArrayLike, Any])

Of: TypeAlias = Callable[Concatenate[B, P], R]
"""A function whose first argument is a `B`, by position."""

Of2: TypeAlias = Callable[Concatenate[B, C, P], R]
"""A function whose first arguments are a `B` and a `C`, by position."""

LossOf: TypeAlias = Callable[Concatenate[B, P], ArrayLike]
LossAuxOf: TypeAlias = Callable[Concatenate[B, P], tuple[ArrayLike, X]]
LossOf2: TypeAlias = Callable[Concatenate[B, C, P], ArrayLike]

First: TypeAlias = Literal[0]
Second: TypeAlias = Literal[1]
Both: TypeAlias = tuple[First, Second]
Yes: TypeAlias = Literal[True]
No: TypeAlias = Literal[False]


class Unannotated:
    """A type that no argument has."""


F = TypeVar("F", bound=Callable[Concatenate[Unannotated, ...], Any])
"""A lambda, or a function whose first argument takes anything.

It comes first among overloads: checkers give the arguments of a lambda the types of the first overload, and
those of a model have no operators, those of an array no attributes.
"""


class Untyped(Protocol):
    """A function of anything; no `Callable`, which mypy would take for Any where overloads differ."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


class GradientOfLambda(Protocol):
    """The gradient of a lambda, which the argument of the call tells."""

    @overload
    def __call__(self, model: M, /, *args: Any, **kwargs: Any) -> State[M]: ...
    @overload
    def __call__(self, argument: A, /, *args: Any, **kwargs: Any) -> A: ...
    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


class ValueAndGradientOfLambda(Protocol):
    """The value of a lambda and its gradient, which the argument of the call tells."""

    @overload
    def __call__(self, model: M, /, *args: Any, **kwargs: Any) -> tuple[jax.Array, State[M]]: ...
    @overload
    def __call__(self, argument: A, /, *args: Any, **kwargs: Any) -> tuple[jax.Array, A]: ...
    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> tuple[jax.Array, Any]: ...


# The options of each transform, without those that decide its type.


class ModeOptions(TypedDict, total=False):
    graph: bool | None
    graph_updates: bool | None


class _NumberOptions(TypedDict, total=False):
    holomorphic: bool
    allow_int: bool


class GradOptions(_NumberOptions, total=False):
    """With these, the gradient of a model is a State."""

    graph: Literal[True] | None
    graph_updates: Literal[True] | None


class AnyGradOptions(_NumberOptions, total=False):
    graph: bool | None
    graph_updates: bool | None


class ScanOptions(ModeOptions, total=False):
    length: int | None
    reverse: bool
    unroll: int | bool
    transform_metadata: Mapping[str, Any] | None
    _split_transpose: bool


class MapOptions(ModeOptions, total=False):
    axis_name: Hashable | None
    axis_size: int | None
    transform_metadata: Mapping[str, Any] | None


class VmapOptions(MapOptions, total=False):
    spmd_axis_name: Hashable | tuple[Hashable, ...] | None


class PmapOptions(MapOptions, total=False):
    static_broadcasted_argnums: Numbers
    devices: Sequence[Any] | None
    backend: str | None
    donate_argnums: Numbers


class ShardMapOptions(ModeOptions, total=False):
    mesh: Mesh | AbstractMesh | None
    in_specs: Any
    axis_names: Set[str]
    check_vma: bool


class RematOptions(ModeOptions, total=False):
    prevent_cse: bool
    static_argnums: Numbers
    static_argnames: Names
    policy: Callable[..., Any] | None


class JaxprOptions(ModeOptions, total=False):
    static_argnums: Numbers


class JitOptions(ModeOptions, total=False):
    in_shardings: Any
    out_shardings: Any
    static_argnums: Numbers
    static_argnames: Names
    donate_argnums: Numbers
    donate_argnames: Names
    keep_unused: bool
    device: Any
    backend: str | None
    inline: bool
    compiler_options: dict[str, Any] | None
    keep_shardings: bool


_Axis: TypeAlias = "int | None | StateAxes | type[Carry] | State[Any] | Pytree"
AxisTree: TypeAlias = "_Axis | tuple[AxisTree, ...] | list[Any] | Mapping[Any, AxisTree]"
"""An axis, None, or a tree of these."""


class OfGrad(Protocol):
    """The type of `grad(...)` without a function: a decorator."""

    @overload
    def __call__(self, f: F, /) -> Untyped: ...
    @overload
    def __call__(self, f: LossOf[M, P], /) -> Of[M, P, State[M]]: ...
    @overload
    def __call__(self, f: LossOf[B, P], /) -> Of[B, P, Any]: ...


class OfGradAux(Protocol):
    """The type of `grad(has_aux=True)`."""

    @overload
    def __call__(self, f: F, /) -> Untyped: ...
    @overload
    def __call__(self, f: LossAuxOf[M, P, X], /) -> Of[M, P, tuple[State[M], X]]: ...
    @overload
    def __call__(self, f: LossAuxOf[B, P, X], /) -> Of[B, P, tuple[Any, X]]: ...


class OfValueAndGrad(Protocol):
    """The type of `value_and_grad(...)` without a function."""

    @overload
    def __call__(self, f: F, /) -> Untyped: ...
    @overload
    def __call__(self, f: Of[M, P, V], /) -> Of[M, P, tuple[V, State[M]]]: ...
    @overload
    def __call__(self, f: Of[B, P, V], /) -> Of[B, P, tuple[V, Any]]: ...


class OfValueAndGradAux(Protocol):
    """The type of `value_and_grad(has_aux=True)`."""

    @overload
    def __call__(self, f: F, /) -> Untyped: ...
    @overload
    def __call__(self, f: Of[M, P, VX], /) -> Of[M, P, tuple[VX, State[M]]]: ...
    @overload
    def __call__(self, f: Of[B, P, VX], /) -> Of[B, P, tuple[VX, Any]]: ...


class OfAnyGrad(Protocol):
    """The type of `grad(...)` with other options, such as ``argnums=1``."""

    def __call__(self, f: Callable[P, Any], /) -> Callable[P, Any]: ...


class OfAnyValueAndGrad(Protocol):
    """The type of `value_and_grad(...)` with other options."""

    def __call__(self, f: Callable[P, R], /) -> Callable[P, tuple[R, Any]]: ...


class OfScan(Protocol):
    """The type of `scan(...)` without a function and without axes: a decorator."""

    @overload
    def __call__(self, f: F, /) -> Untyped: ...
    @overload
    def __call__(self, f: Of[C, P, tuple[C, Y]], /) -> Of[C, P, tuple[C, Y]]: ...
