"""Pooling: one number of each window of the spatial axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from declax import errors
from declax._jax import is_symbolic
from declax.nn._checks import is_integer

Padding: TypeAlias = str | Sequence[tuple[int, int]]
_NAMED_PADDINGS = ("VALID", "SAME", "SAME_LOWER")


def pool(
    inputs: jax.Array,
    init: Any,
    reduce_fn: Callable[[Any, Any], Any],
    window_shape: Sequence[int],
    strides: Sequence[int] | None,
    padding: Padding,
) -> jax.Array:
    """Reduces every window of the spatial axes with a function.

    Args:
      inputs: of shape ``(*batch, *spatial, channels)``; the batch axes may be missing.
      init: the value that each reduction starts from, and that padding holds.
      reduce_fn: an associative function of two arrays, as ``jax.lax.add``.
      window_shape: extent of the window along each spatial axis.
      strides: steps of the window along each spatial axis; None means 1.
      padding: ``"VALID"`` (none), ``"SAME"`` (as many windows as inputs at stride 1, with the odd one at the end),
        ``"SAME_LOWER"`` (with the odd one at the start), or a pair ``(before, after)`` for each spatial axis.

    Returns:
      An array of shape ``(*batch, *windows, channels)``.

    Raises:
      LayerError: the window, the strides, the padding and the inputs do not
        have the same number of spatial axes, or the window does not fit.

    >>> import declax as dx
    >>> dx.pool(jnp.arange(4.0).reshape(4, 1), 0.0, jax.lax.add, (2,), (2,), "VALID")[:, 0]
    Array([1., 5.], dtype=float32)
    """
    return _pool("pool", jnp.asarray(inputs), init, reduce_fn, window_shape, strides, padding)


def avg_pool(
    inputs: jax.Array,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
    count_include_pad: bool = True,
) -> jax.Array:
    """The mean of every window.

    Args:
      inputs: of shape ``(*batch, *spatial, channels)``; the batch axes may be missing.
      window_shape, strides, padding: as for `pool`.
      count_include_pad: divide by the size of the window. If False, divide by
        the number of its elements that are not padding.

    Returns:
      An array of shape ``(*batch, *windows, channels)``; of the default float for integer inputs.

    Raises:
      LayerError: as for `pool`.

    >>> import declax as dx
    >>> dx.avg_pool(jnp.arange(4.0).reshape(4, 1), (2,), strides=(2,))[:, 0]
    Array([0.5, 2.5], dtype=float32)
    """
    inputs = jnp.asarray(inputs)
    zero = np.zeros((), inputs.dtype)
    total = _pool("avg_pool", inputs, zero, lax.add, window_shape, strides, padding)
    if count_include_pad:
        return total / math.prod(window_shape)
    # Every batch entry and channel has the same counts, so they are made once.
    spatial = jnp.ones((*inputs.shape[-len(window_shape) - 1 : -1], 1), inputs.dtype)
    return total / _pool("avg_pool", spatial, zero, lax.add, window_shape, strides, padding)


def max_pool(
    inputs: jax.Array,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
) -> jax.Array:
    """The largest element of every window; padding never is it.

    Args:
      inputs: of shape ``(*batch, *spatial, channels)``; the batch axes may be missing.
      window_shape, strides, padding: as for `pool`.

    Returns:
      An array of shape ``(*batch, *windows, channels)`` and the dtype of the inputs.

    Raises:
      LayerError: as for `pool`.

    >>> import declax as dx
    >>> dx.max_pool(jnp.arange(4.0).reshape(4, 1), (2,))[:, 0]
    Array([1., 2., 3.], dtype=float32)
    """
    inputs = jnp.asarray(inputs)
    return _pool("max_pool", inputs, _lowest(inputs.dtype), lax.max, window_shape, strides, padding)


def min_pool(
    inputs: jax.Array,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
) -> jax.Array:
    """The smallest element of every window; padding never is it.

    Args:
      inputs: of shape ``(*batch, *spatial, channels)``; the batch axes may be missing.
      window_shape, strides, padding: as for `pool`.

    Returns:
      An array of shape ``(*batch, *windows, channels)`` and the dtype of the inputs.

    Raises:
      LayerError: as for `pool`.

    >>> import declax as dx
    >>> dx.min_pool(jnp.arange(4.0).reshape(4, 1), (2,))[:, 0]
    Array([0., 1., 2.], dtype=float32)
    """
    inputs = jnp.asarray(inputs)
    return _pool("min_pool", inputs, _highest(inputs.dtype), lax.min, window_shape, strides, padding)


def global_avg_pool(inputs: jax.Array, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> jax.Array:
    """The mean over all spatial axes.

    Args:
      inputs: of shape ``(batch, *spatial, channels)``.
      axis: the spatial axes; None is all between the first and the last.
      keepdims: keep them, with size 1.

    Returns:
      An array of shape ``(batch, channels)``; of the default float for integer inputs.

    Raises:
      LayerError: without `axis`, for inputs of fewer than three axes.

    >>> import declax as dx
    >>> dx.global_avg_pool(jnp.ones((2, 8, 8, 3))).shape
    (2, 3)
    """
    inputs = jnp.asarray(inputs)
    return jnp.mean(inputs, _spatial("global_avg_pool", inputs, axis), keepdims=keepdims)


def global_max_pool(inputs: jax.Array, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> jax.Array:
    """The largest element over all spatial axes.

    Args:
      inputs, axis, keepdims: as for `global_avg_pool`.

    Returns:
      An array of shape ``(batch, channels)`` and the dtype of the inputs.

    Raises:
      LayerError: as for `global_avg_pool`.

    >>> import declax as dx
    >>> dx.global_max_pool(jnp.arange(24.0).reshape(1, 4, 2, 3))
    Array([[21., 22., 23.]], dtype=float32)
    """
    inputs = jnp.asarray(inputs)
    return jnp.max(inputs, _spatial("global_max_pool", inputs, axis), keepdims=keepdims)


def _spatial(where: str, inputs: jax.Array, axis: int | Sequence[int] | None) -> tuple[int, ...]:
    if axis is not None:
        return tuple([axis] if is_integer(axis) else axis)  # type: ignore[arg-type]  # a sequence, then
    if inputs.ndim < 3:
        raise errors.LayerError(
            f"{where}.inputs",
            "has too few axes",
            expected="(batch, *spatial, channels)",
            got=errors.describe(inputs),
            fix=f"{where}(inputs, axis=0)   # of one example, (length, channels)",
        )
    return tuple(range(1, inputs.ndim - 1))


def _lowest(dtype: np.dtype[Any]) -> Any:
    """The identity of max: below every value of a dtype."""
    if jnp.issubdtype(dtype, np.floating):
        return np.array(-np.inf, dtype)
    if dtype == np.bool_:
        return np.array(False)
    return np.array(jnp.iinfo(dtype).min, dtype)  # type: ignore[no-untyped-call]  # of jax; numpy's knows no int4


def _highest(dtype: np.dtype[Any]) -> Any:
    """The identity of min: above every value of a dtype."""
    if jnp.issubdtype(dtype, np.floating):
        return np.array(np.inf, dtype)
    if dtype == np.bool_:
        return np.array(True)
    return np.array(jnp.iinfo(dtype).max, dtype)  # type: ignore[no-untyped-call]  # of jax; numpy's knows no int4


def _pool(
    where: str,
    inputs: jax.Array,
    init: Any,
    reduce_fn: Callable[[Any, Any], Any],
    window_shape: Sequence[int],
    strides: Sequence[int] | None,
    padding: Padding,
) -> jax.Array:
    window = _sizes(where, "window_shape", window_shape)
    steps = (1,) * len(window) if strides is None else _sizes(where, "strides", strides, len(window))
    batch = inputs.ndim - len(window) - 1
    if batch < 0:
        raise errors.LayerError(
            f"{where}.inputs",
            "has too few axes for the window",
            expected=f"{len(window)} spatial axes, one of channels, and those of the batch if there are any",
            got=errors.describe(inputs),
            why=f"the window {window} has {len(window)} axes",
        )
    dims, moves = (1,) * batch + window + (1,), (1,) * batch + steps + (1,)
    pads = _pads(where, padding, inputs.shape[batch:-1], window, steps)
    full = ((0, 0),) * batch + pads + ((0, 0),)
    pooled: jax.Array = lax.reduce_window(inputs, init, reduce_fn, dims, moves, full)
    return pooled


def _sizes(where: str, argument: str, sizes: object, count: int | None = None) -> tuple[int, ...]:
    """A window shape or strides, once they are seen to be positive integers, as many as asked for."""
    problem = None
    if isinstance(sizes, (str, bytes)) or not isinstance(sizes, Sequence) or not all(map(is_integer, sizes)):
        problem = "is not a sequence of integers"
    elif count is not None and len(sizes) != count:
        problem = "has another number of axes than the window"
    elif any(size < 1 for size in sizes):
        problem = "has an entry below 1"
    if problem is None:
        return tuple(int(size) for size in sizes)  # type: ignore[attr-defined]  # a sequence, by the first check
    raise errors.LayerError(
        f"{where}.{argument}",
        problem,
        expected=f"{count or 'one'} positive integer{'s' if count else ' for each spatial axis'}",
        got=repr(sizes),
        fix=f"{argument}={(sizes,) * (count or 2)}" if is_integer(sizes) else None,
    )


def _pads(
    where: str, padding: object, shape: tuple[int, ...], window: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    """Padding as one pair of integers for each spatial axis."""
    if isinstance(padding, str):
        pads = _named_pads(where, padding, shape, window, strides)
    else:
        pads = _given_pads(where, padding, len(window))
    for axis, (size, extent, (low, high)) in enumerate(zip(shape, window, pads, strict=True)):
        if not is_symbolic(low) and low + size + high < extent:  # a symbolic padding is "SAME", which always fits
            raise errors.LayerError(
                f"{where}.window_shape",
                "does not fit into the inputs, so that nothing would be left",
                expected=f"at most {low + size + high} along spatial axis {axis}",
                got=f"{window} on inputs with spatial axes {shape} and padding {pads}",
                fix='padding="SAME", or a smaller window',
            )
    return pads


def _named_pads(
    where: str, padding: str, shape: tuple[int, ...], window: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    if padding.upper() not in _NAMED_PADDINGS:
        raise errors.LayerError(
            f"{where}.padding",
            f"there is no padding called {padding!r}",
            expected=", ".join(map(repr, _NAMED_PADDINGS)) + ", or pairs (before, after)",
            fix=errors.suggest(padding.upper(), _NAMED_PADDINGS),
        )
    pads = lax.padtype_to_pads(shape, window, strides, padding.upper())
    return tuple((low, high) if is_symbolic(low) else (int(low), int(high)) for low, high in pads)


def _given_pads(where: str, padding: object, count: int) -> tuple[tuple[int, int], ...]:
    if isinstance(padding, Sequence) and len(padding) == count and all(map(_is_pair, padding)):
        return tuple((int(low), int(high)) for low, high in padding)
    raise errors.LayerError(
        f"{where}.padding",
        "is not a padding for this window",
        expected=f"{count} pairs (before, after), one for each spatial axis, or one of "
        + ", ".join(map(repr, _NAMED_PADDINGS)),
        got=repr(padding),
        fix=f"padding={((padding, padding),) * count}" if is_integer(padding) else None,
    )


def _is_pair(entry: object) -> bool:
    return isinstance(entry, Sequence) and len(entry) == 2 and all(map(is_integer, entry))
