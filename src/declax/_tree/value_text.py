"""How values read in a ``repr``: short, and never at the price of a long print.

Small concrete arrays print in full, larger ones by shape and dtype, and what
has no numbers yet (tracers, shapes) by its type.
"""

from __future__ import annotations

import math
import types
from collections.abc import Iterator
from typing import Any, Final

import jax
import numpy as np
from jax.core import Tracer

SMALL: Final = 10
"""The most elements that an array may have to be printed in full."""

MAX_DEPTH: Final = 64
"""Levels of containers that are printed; what is deeper shows its type only."""


def value_text(value: Any, depth: int = 0) -> str:
    """The text of a value, a pytree of arrays included; `depth` is the number of containers around it."""
    if isinstance(value, Tracer):
        return f"{type(value).__name__}({value.dtype}[{','.join(map(str, value.shape))}])"
    if isinstance(value, jax.Array):
        return _array_text(value)
    if isinstance(value, np.ndarray):
        return repr(value) if value.size <= SMALL else f"ndarray(shape={value.shape}, dtype={value.dtype!r})"
    if isinstance(value, jax.Ref):
        return repr(value) if value.size <= SMALL else f"Ref(shape={value.shape}, dtype={value.dtype!r})"
    if type(value) in _OPENED:
        return _container_text(value, depth) if depth < MAX_DEPTH else f"{type(value).__name__}(...)"
    if isinstance(value, (types.FunctionType, type)):
        return value.__qualname__.rpartition("<locals>.")[2]
    return repr(value)


_OPENED: Final = frozenset({list, tuple, dict})


def _container_text(value: Any, depth: int) -> str:
    if type(value) is dict:
        return f"{{{', '.join(f'{key!r}: {value_text(item, depth + 1)}' for key, item in value.items())}}}"
    inner = ", ".join(value_text(item, depth + 1) for item in value)
    if type(value) is list:
        return f"[{inner}]"
    return f"({inner},)" if len(value) == 1 else f"({inner})"


def _array_text(array: jax.Array) -> str:
    shape = f"shape={array.shape}, dtype={array.dtype!r}"
    if array.is_deleted():
        return f"Array({shape}, deleted)"
    if array.size > SMALL or not array.is_fully_addressable:
        return f"Array({shape})"
    return repr(array)


def size_comment(value: Any) -> str:
    """The number of elements and of bytes of all arrays in a value, or nothing."""
    count, size = 0, 0
    arrays = list(arrays_in(value))
    if not arrays:
        return ""
    for leaf in arrays:
        elements = math.prod(leaf.shape)
        count += elements
        size += elements * getattr(leaf.dtype, "itemsize", 0)
    return f" # {count:,} ({bytes_text(size)})"


def arrays_in(value: Any) -> Iterator[Any]:
    """What has a shape and a dtype inside of a value.

    Lists, tuples and dicts are opened here, since JAX does it by recursion, and
    one that was appended to may have become deeper than it can take. One that
    contains itself is opened once.
    """
    stack: list[tuple[int, Iterator[Any]]] = [(0, iter((value,)))]
    around = {0}
    while stack:
        owner, items = stack[-1]
        for item in items:
            if type(item) in _OPENED:
                if id(item) not in around:
                    around.add(id(item))
                    stack.append((id(item), iter(item.values() if type(item) is dict else item)))
                    break
            elif hasattr(item, "shape") and hasattr(item, "dtype"):
                yield item
            elif type(item) not in _ATOMS:
                yield from (leaf for leaf in jax.tree.leaves(item) if hasattr(leaf, "shape") and hasattr(leaf, "dtype"))
        else:
            stack.pop()
            around.discard(owner)


_ATOMS: Final = frozenset({int, float, bool, complex, str, bytes, type(None)})


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
