"""Layers that bring their input to mean 0 and variance 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from declax import errors
from declax._classes.decorator import dataclass
from declax._fields.specifiers import KW_ONLY, field
from declax._lazy import lazy_names
from declax.nn import dtypes
from declax.nn._checks import axes_of, check_axes_type, field_of, is_integer
from declax.nn._normalizing import (
    Normalization,
    Scaling,
    check_features,
    checked_mask,
    means_of,
    moments_of,
    normalize,
    promoted,
    square_of,
)

if TYPE_CHECKING:
    from declax.nn.batch_norm import BatchNorm as BatchNorm
    from declax.nn.reparametrization import SpectralNorm as SpectralNorm
    from declax.nn.reparametrization import WeightNorm as WeightNorm


@dataclass
class LayerNorm(Normalization):
    """Normalizes each example over its features.

    ``y = (x - mean) / sqrt(var + epsilon) * scale + bias``, with mean and (biased) variance over `reduction_axes`.

    Ba, Kiros and Hinton, "Layer Normalization", https://arxiv.org/abs/1607.06450.

    Args:
      num_features: number of elements over all feature axes together.
      epsilon: added to the variance, against division by zero.
      dtype: dtype of the output; None infers it from input and parameters.
      param_dtype: dtype in which scale and bias are stored.
      use_bias: add a bias; without it, `bias` is None.
      use_scale: multiply by a scale; without it, `scale` is None.
      bias_init: makes the bias, of shape ``(num_features,)``.
      scale_init: makes the scale, of shape ``(num_features,)``.
      reduction_axes: the axis or axes over which mean and variance are taken.
      feature_axes: the axis or axes that scale and bias are laid along.
      axis_name: a mapped axis (of `jax.vmap`, `jax.shard_map`) over which to average as well.
      axis_index_groups: indices along `axis_name` that are averaged together.
      use_fast_variance: take the variance as ``E[x^2] - E[x]^2``, in one pass but with cancellation where the mean is
        far from 0, instead of ``E[(x - E[x])^2]``.
      promote_dtype: brings ``(inputs, scale, bias)`` to one dtype.
      rngs: gives one key to the scale, then one to the bias, from `params`.
      bias_metadata: metadata of the bias.
      scale_metadata: metadata of the scale.

    Raises:
      LayerError: for options out of bounds; for an input without the axes, or of another number of features; and for a
        mask that does not broadcast to the input.

    >>> import declax as dx
    >>> layer = dx.LayerNorm(2, rngs=dx.Rngs(0))
    >>> [round(v, 3) for v in layer(jnp.array([1.0, 5.0])).tolist()]
    [-1.0, 1.0]
    """

    _: KW_ONLY
    reduction_axes: int | Sequence[int] = field(default=-1)
    feature_axes: int | Sequence[int] = field(default=-1)

    def __post_init__(self, *used_up: object) -> None:
        check_axes_type(self, "reduction_axes")
        check_axes_type(self, "feature_axes")

    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Normalizes each example over its features.

        Args:
          x: array whose feature axes have `num_features` elements together.
          mask: True where an element counts for mean and variance; of a shape
            that broadcasts to that of `x`. All elements are normalized.

        Returns:
          Array of the shape of `x`.
        """
        x, scale, bias = promoted(self, x)
        axes = axes_of(self, "reduction_axes", x, "x")
        features = axes_of(self, "feature_axes", x, "x")
        check_features(self, x, features)
        mask = checked_mask(self, x, mask)
        mean, var = moments_of(self, x, axes, mask)
        return normalize(self, x, jnp.expand_dims(mean, axes), jnp.expand_dims(var, axes), scale, bias, features)


@dataclass
class RMSNorm(Scaling):
    """Divides each example by the root mean square of its features.

    ``y = x / sqrt(mean(x^2) + epsilon) * scale``, with the mean over `reduction_axes`.

    Zhang and Sennrich, "Root Mean Square Layer Normalization", https://arxiv.org/abs/1910.07467.

    Args:
      num_features: number of elements over all feature axes together.
      epsilon: added to the mean square, against division by zero.
      dtype: dtype of the output; None infers it from input and parameters.
      param_dtype: dtype in which the scale is stored.
      use_scale: multiply by a scale; without it, `scale` is None.
      scale_init: makes the scale, of shape ``(num_features,)``.
      reduction_axes: the axis or axes over which the mean is taken.
      feature_axes: the axis or axes that the scale is laid along.
      axis_name: a mapped axis (of `jax.vmap`, `jax.shard_map`) over which to average as well.
      axis_index_groups: indices along `axis_name` that are averaged together.
      use_fast_variance: accepted for the sake of the other layers; the mean square takes one pass.
      promote_dtype: brings ``(inputs, scale)`` to one dtype.
      rngs: gives one key to the scale, from `params`.
      scale_metadata: metadata of the scale.

    Raises:
      LayerError: for options out of bounds; for an input without the axes, or of another number of features; and for a
        mask that does not broadcast to the input.

    >>> import declax as dx
    >>> layer = dx.RMSNorm(2, rngs=dx.Rngs(0))
    >>> [round(v, 3) for v in layer(jnp.array([1.0, 7.0])).tolist()]
    [0.2, 1.4]
    """

    _: KW_ONLY
    reduction_axes: int | Sequence[int] = field(default=-1)
    feature_axes: int | Sequence[int] = field(default=-1)

    def __post_init__(self, *used_up: object) -> None:
        check_axes_type(self, "reduction_axes")
        check_axes_type(self, "feature_axes")

    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Divides each example by the root mean square of its features.

        Args:
          x: array whose feature axes have `num_features` elements together.
          mask: True where an element counts for the mean; of a shape that broadcasts to that of `x`. All elements are
            normalized.

        Returns:
          Array of the shape of `x`.
        """
        scale = None if self.scale is None else self.scale.value
        x, scale = self.promote_dtype((x, scale), dtype=self.dtype)
        axes = axes_of(self, "reduction_axes", x, "x")
        features = axes_of(self, "feature_axes", x, "x")
        check_features(self, x, features)
        squares = square_of(dtypes.cast(x, dtypes.statistics_dtype(x.dtype)))
        (square,) = means_of(self, (squares,), axes, checked_mask(self, x, mask))
        square = jnp.expand_dims(square, axes)
        return normalize(self, x, jnp.zeros_like(square), square, scale, None, features)


def _groups_of(features: int) -> int:
    """The largest number of groups, up to the usual 32, that divides the features."""
    return next(count for count in range(min(32, features), 0, -1) if features % count == 0)


@dataclass
class GroupNorm(Normalization):
    """Normalizes each example over groups of its features and all axes between batch and features.

    ``y = (x - mean) / sqrt(var + epsilon) * scale + bias``, with mean and (biased) variance of each group.

    Wu and He, "Group Normalization", https://arxiv.org/abs/1803.08494.

    Args:
      num_features: size of the last axis.
      num_groups: number of groups, which divides `num_features`; None if `group_size` is given.
      group_size: number of features of a group, which divides `num_features`, in place of `num_groups`.
      epsilon: added to the variance, against division by zero.
      dtype: dtype of the output; None infers it from input and parameters.
      param_dtype: dtype in which scale and bias are stored.
      use_bias: add a bias; without it, `bias` is None.
      use_scale: multiply by a scale; without it, `scale` is None.
      bias_init: makes the bias, of shape ``(num_features,)``.
      scale_init: makes the scale, of shape ``(num_features,)``.
      reduction_axes: the axes over which mean and variance are taken, besides the features of a group; None means: all
        but the first.
      axis_name: a mapped axis (of `jax.vmap`, `jax.shard_map`) over which to average as well.
      axis_index_groups: indices along `axis_name` that are averaged together.
      use_fast_variance: take the variance as ``E[x^2] - E[x]^2``, in one pass but with cancellation if the mean is far
        from 0, instead of ``E[(x - E[x])^2]``.
      promote_dtype: brings ``(inputs, scale, bias)`` to one dtype.
      rngs: gives one key to the scale, then one to the bias, from `params`.
      bias_metadata: metadata of the bias.
      scale_metadata: metadata of the scale.

    Raises:
      LayerError: for options out of bounds; for groups that do not divide the features; for an input of another number
        of features; and for a mask that does not broadcast to the input.

    >>> import declax as dx
    >>> layer = dx.GroupNorm(4, num_groups=2, rngs=dx.Rngs(0))
    >>> [round(v, 2) for v in layer(jnp.array([[1.0, 3.0, 5.0, 9.0]]))[0].tolist()]
    [-1.0, 1.0, -1.0, 1.0]
    """

    num_groups: int | None = field(default=32)
    group_size: int | None = field(default=None)
    _: KW_ONLY
    reduction_axes: int | Sequence[int] | None = field(default=None)

    def __post_init__(self, *used_up: object) -> None:
        if self.reduction_axes is not None:
            check_axes_type(self, "reduction_axes")
        given = (self.num_groups, self.group_size)
        divisor = self.num_groups if self.group_size is None else self.group_size
        features = self.num_features
        if None not in given or not is_integer(divisor) or divisor < 1 or features % divisor:
            raise errors.LayerError(
                field_of(self, "num_groups"),
                "the features cannot be split into these groups",
                expected=f"num_groups or group_size, which divides num_features={features}; the other is None",
                got=f"num_groups={self.num_groups}, group_size={self.group_size}",
                fix=f"dx.GroupNorm({features}, num_groups={_groups_of(features)}, rngs=rngs)\n"
                f"dx.GroupNorm({features}, num_groups=None, group_size={features // _groups_of(features)}, rngs=rngs)",
            )

    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Normalizes each example over groups of its features.

        Args:
          x: array of shape ``(batch, ..., num_features)``.
          mask: True where an element counts for mean and variance; of a shape that broadcasts to that of `x`. All
            elements are normalized.

        Returns:
          Array of the shape of `x`.
        """
        x, scale, bias = promoted(self, x)
        last = x.ndim - 1
        check_features(self, x, (last,))
        reduced = range(1, x.ndim) if self.reduction_axes is None else axes_of(self, "reduction_axes", x, "x")
        axes = (*(axis for axis in reduced if axis != last), x.ndim)
        size = self.group_size or self.num_features // (self.num_groups or 1)
        grouped = (*x.shape[:-1], -1, size)
        mask = checked_mask(self, x, mask)
        mask = None if mask is None else jnp.broadcast_to(mask, x.shape).reshape(grouped)
        moments = moments_of(self, x.reshape(grouped), axes, mask)
        mean, var = (jnp.repeat(jnp.expand_dims(m, axes)[..., 0], size, -1) for m in moments)
        return normalize(self, x, mean, var, scale, bias, (last,))


@dataclass
class InstanceNorm(Normalization):
    """Normalizes each feature of each example over the axes between batch and features.

    ``y = (x - mean) / sqrt(var + epsilon) * scale + bias``, with mean and (biased) variance over all axes but the first
    and `feature_axes`.

    Ulyanov, Vedaldi and Lempitsky, "Instance Normalization", https://arxiv.org/abs/1607.08022.

    Args:
      num_features: number of elements over all feature axes together.
      epsilon: added to the variance, against division by zero.
      dtype: dtype of the output; None infers it from input and parameters.
      param_dtype: dtype in which scale and bias are stored.
      use_bias: add a bias; without it, `bias` is None.
      use_scale: multiply by a scale; without it, `scale` is None.
      bias_init: makes the bias, of shape ``(num_features,)``.
      scale_init: makes the scale, of shape ``(num_features,)``.
      feature_axes: the axis or axes that scale and bias are laid along; not the first, which is the batch.
      axis_name: a mapped axis (of `jax.vmap`, `jax.shard_map`) over which to average as well.
      axis_index_groups: indices along `axis_name` that are averaged together.
      use_fast_variance: take the variance as ``E[x^2] - E[x]^2``, in one pass but with cancellation if the mean is far
        from 0, instead of ``E[(x - E[x])^2]``.
      promote_dtype: brings ``(inputs, scale, bias)`` to one dtype.
      rngs: gives one key to the scale, then one to the bias, from `params`.
      bias_metadata: metadata of the bias.
      scale_metadata: metadata of the scale.

    Raises:
      LayerError: for options out of bounds; for an input without the axes, of another number of features, or whose
        first axis is a feature axis; and for a mask that does not broadcast to the input.

    >>> import declax as dx
    >>> layer = dx.InstanceNorm(1, rngs=dx.Rngs(0))
    >>> [round(v, 3) for v in layer(jnp.array([[[1.0], [5.0]]])).ravel().tolist()]
    [-1.0, 1.0]
    """

    _: KW_ONLY
    feature_axes: int | Sequence[int] = field(default=-1)

    def __post_init__(self, *used_up: object) -> None:
        check_axes_type(self, "feature_axes")

    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Normalizes each feature of each example.

        Args:
          x: array of shape ``(batch, ...)`` whose feature axes have `num_features` elements together.
          mask: True where an element counts for mean and variance; of a shape that broadcasts to that of `x`. All
            elements are normalized.

        Returns:
          Array of the shape of `x`.
        """
        x, scale, bias = promoted(self, x)
        features = axes_of(self, "feature_axes", x, "x")
        if 0 in features:
            raise errors.LayerError(
                field_of(self, "feature_axes"),
                "the first axis is the batch",
                expected="axes from 1 on",
                got=f"{self.feature_axes!r} of {errors.describe(x)}",
                fix="norm(x[None])[0]   # for a single example",
            )
        check_features(self, x, features)
        axes = tuple(axis for axis in range(1, x.ndim) if axis not in features)
        mask = checked_mask(self, x, mask)
        mean, var = moments_of(self, x, axes, mask)
        return normalize(self, x, jnp.expand_dims(mean, axes), jnp.expand_dims(var, axes), scale, bias, features)


if not TYPE_CHECKING:
    _WEIGHTS = "declax.nn.reparametrization"
    __getattr__ = lazy_names(__name__, BatchNorm="declax.nn.batch_norm", SpectralNorm=_WEIGHTS, WeightNorm=_WEIGHTS)
