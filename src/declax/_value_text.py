"""How values read in a ``repr``: short, and never at the price of a long print.

Small concrete arrays print in full, larger ones by shape and dtype, and what
has no numbers yet (tracers, shapes) by its type.
"""

from __future__ import annotations

import math
import types
from typing import Any, Final

import jax
import numpy as np
from jax.core import Tracer

SMALL: Final = 10
"""The most elements that an array may have to be printed in full."""


def value_text(value: Any) -> str:
    """The text of a value, a pytree of arrays included.

    >>> import jax.numpy as jnp
    >>> print(value_text([jnp.zeros(2), jnp.zeros((4, 4))]))
    [Array([0., 0.], dtype=float32), Array(shape=(4, 4), dtype=dtype('float32'))]
    """
    if isinstance(value, Tracer):
        return f"{type(value).__name__}({value.dtype}[{','.join(map(str, value.shape))}])"
    if isinstance(value, jax.Array):
        return _array_text(value)
    if isinstance(value, np.ndarray):
        return repr(value) if value.size <= SMALL else f"ndarray(shape={value.shape}, dtype={value.dtype!r})"
    if isinstance(value, jax.Ref):
        return repr(value) if value.size <= SMALL else f"Ref(shape={value.shape}, dtype={value.dtype!r})"
    if type(value) is tuple:
        inner = ", ".join(map(value_text, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if type(value) is list:
        return f"[{', '.join(map(value_text, value))}]"
    if type(value) is dict:
        return f"{{{', '.join(f'{key!r}: {value_text(item)}' for key, item in value.items())}}}"
    if isinstance(value, (types.FunctionType, type)):
        return value.__qualname__.rpartition("<locals>.")[2]
    return repr(value)


def _array_text(array: jax.Array) -> str:
    shape = f"shape={array.shape}, dtype={array.dtype!r}"
    if array.is_deleted():
        return f"Array({shape}, deleted)"
    if array.size > SMALL or not array.is_fully_addressable:
        return f"Array({shape})"
    return repr(array)


def size_comment(value: Any) -> str:
    """The number of elements and of bytes of all arrays in a value, or nothing.

    >>> import numpy as np
    >>> size_comment(np.zeros((4, 4), np.float32))
    ' # 16 (64 B)'
    """
    count, size = 0, 0
    arrays = [leaf for leaf in jax.tree.leaves(value) if hasattr(leaf, "shape") and hasattr(leaf, "dtype")]
    if not arrays:
        return ""
    for leaf in arrays:
        elements = math.prod(leaf.shape)
        count += elements
        size += elements * getattr(leaf.dtype, "itemsize", 0)
    return f" # {count:,} ({bytes_text(size)})"


def bytes_text(size: int) -> str:
    """A number of bytes, with a unit of thousands.

    >>> bytes_text(64), bytes_text(40_000)
    ('64 B', '40.0 KB')
    """
    if size < 1000:
        return f"{size} B"
    amount = float(size)
    for unit in ("KB", "MB", "GB", "TB"):
        amount /= 1000
        if amount < 999.95:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1000:.1f} PB"
