"""Makes a box behave as the array in it: operators, conversions, protocols."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Self

import jax
import jax.numpy as jnp
import numpy as np

from declax._variables import uncaptured_reads
from declax._variables.metadata import Metadata

_NEVER_REFS: Final[set[Any]] = uncaptured_reads.never_refs

_BINARY: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "matmul": operator.matmul,
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
    "and": operator.and_,
    "xor": operator.xor,
    "or": operator.or_,
}
"""Operators that also have a reflected and an in-place form."""

_COMPARISONS: Final = ("lt", "le", "eq", "ne", "gt", "ge")
_UNARY: Final[dict[str, Callable[[Any], Any]]] = {
    "neg": operator.neg,
    "pos": operator.pos,
    "abs": operator.abs,
    "invert": operator.invert,
    "int": int,
    "float": float,
    "complex": complex,
    "index": operator.index,
    "len": len,
    "iter": iter,
    "reversed": reversed,
    "trunc": math.trunc,
    "floor": math.floor,
    "ceil": math.ceil,
}


def _value_property(name: str, doc: str) -> Any:
    """An attribute of the value, unless metadata has its name."""

    def read(self: BoxOperators) -> Any:
        raw = self._raw
        if self._reads_plainly and self._metadata.is_plain and raw.__class__ in _NEVER_REFS:
            return getattr(raw, name)
        return self._metadata[name] if name in self._metadata.frozen else getattr(self.value, name)

    return property(read, lambda self, value: self.set_metadata(name, value), doc=doc)


class BoxOperators:
    """Operators that read the value of a box; one that works in place writes it back."""

    __slots__ = ()
    __array_priority__ = 100  # NumPy arrays on the left let the box answer, as they do for JAX arrays

    if TYPE_CHECKING:
        _raw: Any
        _metadata: Metadata
        _reads_plainly: bool
        value: Any

        def get_value(self) -> Any: ...
        def set_value(self, value: Any) -> None: ...
        def set_metadata(self, name: str, value: Any, /) -> None: ...

    @property
    def shape(self) -> Any:
        """The shape of the value; metadata of that name does not hide it."""
        raw = self._raw
        if self._reads_plainly and self._metadata.is_plain and raw.__class__ in _NEVER_REFS:
            return raw.shape
        return self.value.shape

    dtype = _value_property("dtype", "The dtype of the value, or metadata of that name.")
    ndim = _value_property("ndim", "The number of axes of the value, or metadata of that name.")
    size = _value_property("size", "The number of elements of the value, or metadata of that name.")

    @property
    def __numpy_dtype__(self) -> Any:
        """The dtype of the value, which NumPy asks for by this name first."""
        return self.value.dtype

    def __bool__(self) -> bool:
        value = self.get_value()
        shape = getattr(value, "shape", None)
        return bool(shape[0]) if shape else bool(value)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.get_value()(*args, **options)

    def __delitem__(self, key: Any) -> None:
        changed = copy.copy(self.get_value())
        del changed[key]
        self.set_value(changed)

    def __divmod__(self, other: Any) -> Any:
        return divmod(self.get_value(), operand(other))

    def __rdivmod__(self, other: Any) -> Any:
        return divmod(operand(other), self.get_value())

    def __round__(self, ndigits: int = 0) -> Any:  # an array of floats stays one, as in the peer
        return round(self.get_value(), ndigits)

    def __contains__(self, item: Any) -> bool:
        return operand(item) in self.get_value()

    def __format__(self, spec: str) -> str:
        return format(self.get_value(), spec) if spec else str(self)

    def __jax_array__(self) -> jax.Array:
        value = self.get_value()
        return value if isinstance(value, jax.Array) else jnp.asarray(value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = np.asarray(self.get_value(), dtype=dtype)
        return array.copy() if copy else array


def operand(value: Any) -> Any:
    """The value of a box; anything else as it is."""
    return value.get_value() if isinstance(value, BoxOperators) else value


def _binary(operation: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def method(self: BoxOperators, other: Any) -> Any:
        return operation(self.get_value(), operand(other))

    return method


def _reflected(operation: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def method(self: BoxOperators, other: Any) -> Any:
        return operation(operand(other), self.get_value())

    return method


def _in_place(operation: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def method(self: BoxOperators, other: Any) -> BoxOperators:
        self.set_value(operation(self.get_value(), operand(other)))
        return self

    return method


def _unary(operation: Callable[[Any], Any]) -> Callable[..., Any]:
    def method(self: BoxOperators) -> Any:
        return operation(self.get_value())

    return method


def _install(name: str, method: Callable[..., Any]) -> None:
    method.__name__ = f"__{name}__"
    method.__qualname__ = f"BoxOperators.__{name}__"
    setattr(BoxOperators, method.__name__, method)


for _name, _operation in _BINARY.items():
    _install(_name, _binary(_operation))
    _install(f"r{_name}", _reflected(_operation))
    _install(f"i{_name}", _in_place(_operation))
for _name in _COMPARISONS:
    _install(_name, _binary(getattr(operator, _name)))
for _name, _unary_operation in _UNARY.items():
    _install(_name, _unary(_unary_operation))
BoxOperators.__hash__ = None  # type: ignore[assignment,method-assign]  # == is elementwise, as with arrays


if TYPE_CHECKING:
    from jax.typing import ArrayLike  # mypy wants the very type of the operators that are not in place

    class ArrayOperators(jax.Array):
        """To a type checker a box is an array, and stays itself under ``+=``."""

        __slots__ = ()

        def __iadd__(self, other: ArrayLike) -> Self: ...
        def __isub__(self, other: ArrayLike) -> Self: ...
        def __imul__(self, other: ArrayLike) -> Self: ...
        def __imatmul__(self, other: ArrayLike) -> Self: ...
        def __itruediv__(self, other: ArrayLike) -> Self: ...
        def __ifloordiv__(self, other: ArrayLike) -> Self: ...
        def __imod__(self, other: ArrayLike) -> Self: ...
        def __ipow__(self, other: ArrayLike) -> Self: ...
        def __ilshift__(self, other: ArrayLike) -> Self: ...
        def __irshift__(self, other: ArrayLike) -> Self: ...
        def __iand__(self, other: ArrayLike) -> Self: ...
        def __ixor__(self, other: ArrayLike) -> Self: ...
        def __ior__(self, other: ArrayLike) -> Self: ...
        def __contains__(self, item: object) -> bool: ...
        def __iter__(self) -> Iterator[jax.Array]: ...
        def __jax_array__(self) -> jax.Array: ...

else:
    ArrayOperators = BoxOperators
