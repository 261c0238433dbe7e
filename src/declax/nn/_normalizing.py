"""What layers of normalization share: their fields, the moments of the input, and what is made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar  # pyright knows it by this module only
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from declax import errors
from declax._classes.decorator import dataclass
from declax._fields.specifiers import KW_ONLY, field, static, variable
from declax._typing import Dtype, Initializer
from declax._variables.kinds import Param
from declax._variables.metadata import EMPTY
from declax._variables.policy import COMPUTE_DTYPE, PARAM_DTYPE
from declax.initializers import ones, zeros
from declax.nn import dtypes
from declax.nn._checks import CHANNELS_LAST, check_broadcasts, field_of
from declax.nn._gathering import constrained, gathered
from declax.nn.layer import Layer

AxisGroups: TypeAlias = Sequence[Sequence[int]]


@dataclass
class Scaling(Layer):
    """The fields of all layers of normalization."""

    num_features: int = field(ge=1)
    _: KW_ONLY
    epsilon: float = field(default=1e-6, ge=0.0)
    dtype: Dtype | None = static(default_factory=COMPUTE_DTYPE)
    param_dtype: Dtype = static(default_factory=PARAM_DTYPE)
    use_scale: bool = field(default=True)
    scale_init: InitVar[Initializer] = field(default=ones)
    axis_name: str | None = field(default=None)
    axis_index_groups: AxisGroups | None = field(default=None)
    use_fast_variance: bool = True
    promote_dtype: dtypes.PromoteDtype = static(default=dtypes.promote_dtype)
    scale_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    scale: Param[jax.Array] | None = variable(
        (num_features,), initializer=scale_init, dtype=param_dtype, when=use_scale, metadata=scale_metadata
    )


@dataclass
class Normalization(Scaling):
    """The fields of layers that subtract a mean and add a bias."""

    _: KW_ONLY
    use_bias: bool = field(default=True)
    bias_init: InitVar[Initializer] = field(default=zeros)
    bias_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    bias: Param[jax.Array] | None = variable(
        (Scaling.num_features,),
        initializer=bias_init,
        dtype=Scaling.param_dtype,
        when=use_bias,
        metadata=bias_metadata,
    )


# Functions in place of methods, so that `dx.LayerNorm.__call__` takes any object with the public attributes of a layer.


def check_features(layer: Scaling, x: jax.Array, features: tuple[int, ...]) -> None:
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


def checked_mask(layer: Scaling, x: jax.Array, mask: jax.Array | None) -> jax.Array | None:
    if mask is None:
        return None
    check_broadcasts(f"{errors.type_name(type(layer))}.__call__", "mask", mask, "'x'", x.shape)
    return jnp.asarray(mask, bool)


def means_of(
    layer: Scaling, arrays: Sequence[jax.Array], axes: tuple[int, ...], mask: jax.Array | None
) -> Sequence[jax.Array]:
    local = [jnp.mean(array, axes, where=mask) for array in arrays]
    if layer.axis_name is None:
        return local
    pmean: Callable[..., Sequence[jax.Array]] = lax.pmean  # jax leaves it untyped
    try:
        return pmean(local, layer.axis_name, axis_index_groups=layer.axis_index_groups)
    except NameError as error:
        fix = "a layer without axis_name under jit alone"
        raise errors.unbound_axis(field_of(layer, "axis_name"), layer.axis_name, arrays[0], fix) from error


def normalize(
    layer: Scaling,
    x: jax.Array,
    mean: jax.Array,
    var: jax.Array,
    scale: jax.Array | None,
    bias: jax.Array | None,
    features: tuple[int, ...],
) -> jax.Array:
    """The formula of all layers; `mean` and `var` broadcast to the shape of `x`."""
    shape = [x.shape[axis] if axis in features else 1 for axis in range(x.ndim)]
    y = dtypes.cast(x, mean.dtype) - mean
    factor = dtypes.cast(lax.rsqrt(var + layer.epsilon), y.dtype)
    along = {0: features[0]} if len(features) == 1 else {}
    if scale is not None:
        scale = gathered(layer.scale, scale, x, along)
        factor = factor * dtypes.cast(scale.reshape(shape), y.dtype)
    y = y * factor
    if bias is not None:
        bias = gathered(getattr(layer, "bias", None), bias, x, along)
        y = y + dtypes.cast(bias.reshape(shape), y.dtype)
    y = dtypes.cast(y, x.dtype if layer.dtype is None else layer.dtype)
    return constrained(layer, layer.scale, y)


def promoted(layer: Normalization, x: jax.Array, *moments: jax.Array) -> tuple[Any, ...]:
    """The input, given moments, scale and bias in one dtype."""
    scale = None if layer.scale is None else layer.scale.value
    bias = None if layer.bias is None else layer.bias.value
    return layer.promote_dtype((x, *moments, scale, bias), dtype=layer.dtype)


def moments_of(
    layer: Normalization, x: jax.Array, axes: tuple[int, ...], mask: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Mean and biased variance over some axes, in float32 at least."""
    x = dtypes.cast(x, dtypes.statistics_dtype(x.dtype))
    if not layer.use_fast_variance:
        (mean,) = means_of(layer, (x,), axes, mask)
        (var,) = means_of(layer, (square_of(x - jnp.expand_dims(mean, axes)),), axes, mask)
        return mean, var
    mean, square = means_of(layer, (x, square_of(x)), axes, mask)
    return mean, jnp.maximum(square - square_of(mean), 0)  # rounding may take it below zero


def square_of(x: jax.Array) -> jax.Array:
    return jnp.square(x.real) + jnp.square(x.imag) if jnp.iscomplexobj(x) else jnp.square(x)
