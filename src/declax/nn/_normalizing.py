"""The formula of normalization layers: the moments of the input, and the normalized values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from declax import errors
from declax._typing import Dtype
from declax.nn import dtypes
from declax.nn._checks import CHANNELS_LAST, field_of

AxisGroups: TypeAlias = Sequence[Sequence[int]]


class Normalization(Protocol):
    """The attributes of a layer that the formula uses."""

    num_features: int
    epsilon: float
    dtype: Dtype | None


def check_features(layer: Normalization, x: jax.Array, features: tuple[int, ...]) -> None:
    found = math.prod(x.shape[axis] for axis in features)
    if found != layer.num_features:
        is_second = x.ndim > 2 and features == (x.ndim - 1,) and x.shape[1] == layer.num_features
        named = f"axis {features[0]}" if len(features) == 1 else f"axes {', '.join(map(str, features))}"
        raise errors.LayerError(
            field_of(layer, "num_features"),
            "'x' has another number of features",
            expected=f"{layer.num_features}, along {named}",
            got=f"{found}, of {errors.describe(x)}",
            why=CHANNELS_LAST if is_second else None,
            fix="jnp.moveaxis(x, 1, -1)" if is_second else None,
        )


def checked_mask(layer: object, x: jax.Array, mask: jax.Array | None) -> jax.Array | None:
    if mask is None:
        return None
    shape = jnp.shape(mask)
    padded = (1,) * (x.ndim - len(shape)) + shape
    if len(padded) != x.ndim or any(m not in (1, n) for m, n in zip(padded, x.shape, strict=True)):
        raise errors.LayerError(
            f"{errors.type_name(type(layer))}.__call__",
            "'mask' does not broadcast to 'x'",
            expected=f"a shape that broadcasts to {x.shape}",
            got=errors.describe(mask),
        )
    return jnp.asarray(mask, bool)


def moments(
    x: jax.Array,
    axes: tuple[int, ...],
    mask: jax.Array | None,
    axis_name: str | None,
    groups: AxisGroups | None,
    is_fast: bool,
) -> tuple[jax.Array, jax.Array]:
    """Mean and biased variance over some axes, in float32 at least."""
    x = x.astype(dtypes.statistics_dtype(x.dtype))
    if not is_fast:
        (mean,) = means((x,), axes, mask, axis_name, groups)
        (var,) = means((square_of(x - jnp.expand_dims(mean, axes)),), axes, mask, axis_name, groups)
        return mean, var
    mean, square = means((x, square_of(x)), axes, mask, axis_name, groups)
    return mean, jnp.maximum(square - square_of(mean), 0)  # rounding may take it below zero


def means(
    arrays: Sequence[jax.Array],
    axes: tuple[int, ...],
    mask: jax.Array | None,
    axis_name: str | None,
    groups: AxisGroups | None,
) -> Sequence[jax.Array]:
    local = [jnp.mean(array, axes, where=mask) for array in arrays]
    if axis_name is None:
        return local
    pmean: Callable[..., Sequence[jax.Array]] = lax.pmean  # jax leaves it untyped
    return pmean(local, axis_name, axis_index_groups=groups)


def square_of(x: jax.Array) -> jax.Array:
    return jnp.square(x.real) + jnp.square(x.imag) if jnp.iscomplexobj(x) else jnp.square(x)


def normalize(
    layer: Normalization,
    x: jax.Array,
    mean: jax.Array,
    var: jax.Array,
    scale: jax.Array | None,
    bias: jax.Array | None,
    features: tuple[int, ...],
) -> jax.Array:
    """The formula of all layers; `mean` and `var` broadcast to the shape of `x`."""
    shape = [x.shape[axis] if axis in features else 1 for axis in range(x.ndim)]
    y = x.astype(mean.dtype) - mean
    factor = lax.rsqrt(var + layer.epsilon).astype(y.dtype)
    if scale is not None:
        factor = factor * scale.reshape(shape).astype(y.dtype)
    y = y * factor
    if bias is not None:
        y = y + bias.reshape(shape).astype(y.dtype)
    return y.astype(x.dtype if layer.dtype is None else layer.dtype)
