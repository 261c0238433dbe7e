"""Arrays as text: values if they are few, shapes, dtypes, counts and bytes; no large array is fetched."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import jax
import numpy as np
from jax.core import Tracer

from declax.errors import type_name

SMALL: Final = 10
"""The most elements that an array may have to be printed in full."""

PLAIN: Final = frozenset({int, float, bool, complex, str, bytes, type(None), type})
OPENED: Final = frozenset({list, tuple, dict})


def array_text(array: Any) -> str:
    """An array or a ref: its elements if they are few and here, its shape otherwise."""
    is_of_jax = isinstance(array, jax.Array)
    shape = f"shape={array.shape}, dtype={array.dtype!r}"
    if is_of_jax and array.is_deleted():
        return f"Array({shape}, deleted)"
    if array.size <= SMALL and (not is_of_jax or array.is_fully_addressable):
        return repr(array)
    return f"{'Array' if is_of_jax else 'ndarray' if isinstance(array, np.ndarray) else 'Ref'}({shape})"


def shapes_text(tree: Any) -> str:
    """The shapes of a tree of arrays, as ``f32[2,3]``."""
    return ", ".join(map(shape_text, jax.tree.leaves(tree))) or repr(tree)


def shape_text(leaf: Any) -> str:
    """The shape of an array as ``f32[2,3]``, the name of a class, or any other value."""
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return f"{dtype_text(leaf.dtype)}[{','.join(map(str, leaf.shape))}]"
    return f"{type_name(leaf)}(...)" if isinstance(leaf, type) else repr(leaf)


def type_text(array: Any) -> str:
    """The dtype and the shape of an array in full, as ``float32[2,3]``."""
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"


def dtype_text(dtype: np.dtype[Any] | str) -> str:
    """A dtype, or its name, as JAX abbreviates it: ``f32``, ``bf16``, ``u8``, ``bool``."""
    text = str(dtype)
    for long, short in (("bfloat", "bf"), ("float", "f"), ("complex", "c"), ("uint", "u"), ("int", "i")):
        if text.startswith(long):
            return short + text.removeprefix(long)
    return text


def scalar_text(value: Any) -> str:
    """A scalar array that can be read as its number, any other by its shape."""
    is_read = isinstance(value, jax.Array) and not isinstance(value, Tracer) and value.is_fully_addressable
    return str(value) if is_read and value.ndim == 0 and not value.is_deleted() else shape_text(value)


def size_comment(value: Any) -> str:
    """The number of elements and of bytes of all arrays in a value, or nothing."""
    if next(arrays_in(value), None) is None:
        return ""
    return f" # {amount_text(*measure(value))}"


def amount_text(count: int, nbytes: int) -> str:
    """A number of elements, with their bytes."""
    return f"{count:,} ({bytes_text(nbytes)})"


def arrays_in(value: Any) -> Iterator[Any]:
    """The arrays in a value; lists, tuples and dicts are opened without recursion, also if they contain themselves."""
    stack: list[tuple[int, Iterator[Any]]] = [(0, iter((value,)))]
    around = {0}
    while stack:
        owner, items = stack[-1]
        for item in items:
            if type(item) in OPENED:
                if id(item) not in around:
                    around.add(id(item))
                    stack.append((id(item), iter(item.values() if type(item) is dict else item)))
                    break
            elif hasattr(item, "shape") and hasattr(item, "dtype"):
                yield item
            elif type(item) not in PLAIN:
                yield from (leaf for leaf in jax.tree.leaves(item) if hasattr(leaf, "shape") and hasattr(leaf, "dtype"))
        else:
            stack.pop()
            around.discard(owner)


def bytes_text(size: int) -> str:
    """A number of bytes, with a unit of thousands."""
    if size < 1000:
        return f"{size} B"
    amount = float(size)
    for unit in ("KB", "MB", "GB", "TB"):
        amount /= 1000
        if amount < 999.95:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1000:.1f} PB"


def measure(value: Any) -> tuple[int, int]:
    """The number of elements and of bytes of all arrays in a value."""
    size = nbytes = 0
    for array in arrays_in(value):
        count = math.prod(array.shape)
        size += count
        nbytes += count * getattr(array.dtype, "itemsize", 0)
    return size, nbytes
