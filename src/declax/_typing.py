"""Aliases, protocols, sentinels and immutable values that every layer may use."""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    runtime_checkable,
)

import jax
import numpy as np

from declax.errors import MissingAttributeError, type_name

N = TypeVar("N")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Key: TypeAlias = Hashable
"""One step of a path: the name of an attribute, an index, or a key."""

Path: TypeAlias = tuple[Key, ...]
"""The way from the root of a graph to a node or leaf."""

PyTree: TypeAlias = Any
"""Any tree that `jax.tree` can flatten; Python's types cannot say it."""

Shape: TypeAlias = tuple[int, ...]

DTYPE_MARK: Final = "dtype"
"""The mark of `Dtype` at run time."""

if TYPE_CHECKING:

    class SupportsDtype(Protocol):
        """An object with a dtype: the scalar types of `jax.numpy`, to a checker."""

        @property
        def dtype(self) -> np.dtype[Any]:
            """Its dtype."""
            ...

    Dtype: TypeAlias = str | type[Any] | np.dtype[Any] | SupportsDtype
    """Arguments of `jax.numpy.dtype`: scalar types, dtypes and their names."""
else:
    Dtype = Annotated[Any, DTYPE_MARK]  # to tell a field of a dtype from one of anything, which configurations have to

MYPY: Final = False
"""mypy assumes that a variable of this name is True, which separates declarations for mypy and pyright."""

TYPE_CHECKING_WITH_PYREFLY: Final = False
"""As `MYPY`, for pyrefly."""

if not TYPE_CHECKING or MYPY:

    class Replacing:  # pyright: ignore[reportRedeclaration]  # not what it takes
        """An object that is accepted in place of the part that it stands for."""

        __slots__ = ()
        _replaces: ClassVar[bool]
else:

    class Replacing(Any):
        """An object that fits anywhere, to checkers without the plugin."""

        _replaces: ClassVar[bool]


class Replaces(Protocol):
    """What is `Replacing`, also to checkers that take anything for an instance of a class that derives from Any."""

    _replaces: ClassVar[bool]


Tuple2: TypeAlias = tuple[T, T]
Tuple3: TypeAlias = tuple[T, T, T]
Tuple4: TypeAlias = tuple[T, T, T, T]
Tuple5: TypeAlias = tuple[T, T, T, T, T]
Tuple6: TypeAlias = tuple[T, T, T, T, T, T]
Tuple7: TypeAlias = tuple[T, T, T, T, T, T, T]
Tuple8: TypeAlias = tuple[T, T, T, T, T, T, T, T]
"""A tuple of a number of values of one type; mypy unpacks it, as it does not always do for `*tuple[T, ...]`."""

ArrayLike: TypeAlias = "jax.Array | np.ndarray[Any, Any] | np.generic | float | complex | bool | int"
PrecisionLike: TypeAlias = (
    "None | str | jax.lax.Precision | tuple[str, str] | tuple[jax.lax.Precision, jax.lax.Precision]"
)
Activation: TypeAlias = Callable[[jax.Array], jax.Array]


@runtime_checkable
class Initializer(Protocol):
    """A function of a key, a shape and a dtype that returns the initial value of a Variable."""

    def __call__(self, key: jax.Array, shape: Shape, dtype: Any = ..., /) -> jax.Array: ...


class Immutable:
    """A value that compares, hashes and prints by its attributes, which ``vars(self).update(...)`` sets.

    A frozen dataclass does the same, and compiles six functions when its module is imported.
    """

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, vars(self).values()))})"

    if not TYPE_CHECKING:  # with these, a type checker would accept attributes of any name

        def __setattr__(self, name: str, value: object) -> None:
            name_of_class = type_name(type(self))
            fix = f"{name_of_class}(...)        # a new one"
            raise MissingAttributeError(f"{name_of_class}.{name}", "this value cannot be changed", fix=fix)

        def __delattr__(self, name: str) -> None:
            self.__setattr__(name, None)


class Missing(enum.Enum):
    """The type of `MISSING`, so that a checker can tell it from a value."""

    MISSING = "MISSING"

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


MISSING: Final = Missing.MISSING
"""Stands for an argument that was not given, where None is a value."""

OWN_PREFIX: Final = "_pytree__"
"""Begins the names that no class of users may define, with `CAPTURES_KEY`."""
INFO_KEY: Final = "_pytree__info"
"""The attribute of a class for its `ClassInfo`."""
LAYOUT_KEY: Final = "_pytree__layout"
TRACE_KEY: Final = "_pytree__trace"
BOUND_KEY: Final = "_pytree__bound"
RECORD_KEY: Final = "_pytree__record"
SOWN_KEY: Final = "_pytree__sown"
CAPTURES_KEY: Final = "__captures__"
"""The attribute with the values that a module sows during a captured call."""
INTERNAL_KEYS: Final = frozenset({LAYOUT_KEY, TRACE_KEY, BOUND_KEY, RECORD_KEY, SOWN_KEY})
"""The entries of a Pytree's ``__dict__`` that are not attributes: its layout, its trace token, its binding, the
arguments of its construction, and the names of values sown while tracing."""
