"""Layers that bring their input to mean 0 and variance 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar  # pyright knows it by this module only
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from declax import errors
from declax._classes.decorator import dataclass
from declax._fields.specifiers import KW_ONLY, field, static, variable
from declax._lazy import lazy_names
from declax._module.module import Module
from declax._random.streams import Rngs
from declax._typing import Dtype, Initializer
from declax._variables.metadata import EMPTY
from declax._variables.variable import BatchStat, Param
from declax.initializers import ones, zeros
from declax.nn import dtypes
from declax.nn._checks import CHANNELS_LAST, axes_of, check_axes_type, field_of, is_integer
from declax.nn.reparametrization import SpectralNorm as SpectralNorm
from declax.nn.reparametrization import WeightNorm as WeightNorm

AxisGroups: TypeAlias = Sequence[Sequence[int]]


@dataclass
class BatchNorm(Module):
    """Normalizes each feature over the batch.

    ``y = (x - mean) / sqrt(var + epsilon) * scale + bias``

    In training, `mean` and `var` are those of the batch, over all axes but `axis`, and the running ones move towards
    them: ``running = momentum * running + (1 - momentum) * batch``. Otherwise they are the running ones. The variance
    is the biased one, divided by the number of elements, in both.

    Ioffe and Szegedy, "Batch Normalization", https://arxiv.org/abs/1502.03167.

    `model.train()` and `model.eval()` set `use_running_average`.

    Args:
      num_features: size of the feature axis.
      use_running_average: normalize by the running mean and variance, and leave them unchanged. None means:
        decided by each call.
      axis: the feature axis.
      momentum: how much of the running values stays at each call, from 0 to 1.
      epsilon: added to the variance, against division by zero.
      dtype: dtype of the output; None infers it from input and parameters.
      param_dtype: dtype in which scale and bias are stored.
      use_bias: add a bias; without it, `bias` is None.
      use_scale: multiply by a scale; without it, `scale` is None.
      bias_init: makes the bias, of shape ``(num_features,)``.
      scale_init: makes the scale, of shape ``(num_features,)``.
      axis_name: a mapped axis (of `jax.vmap`, `jax.shard_map`) over which to average as well. Under `jit` none is
        needed: arrays there are whole.
      axis_index_groups: indices along `axis_name` that are averaged together.
      use_fast_variance: take the variance as ``E[x^2] - E[x]^2``, in one pass but with cancellation where the mean is
        far from 0, instead of ``E[(x - E[x])^2]``.
      promote_dtype: brings ``(inputs, mean, var, scale, bias)`` to one dtype.
      rngs: gives one key to the scale, then one to the bias, from `params`.
      bias_metadata: metadata of the bias.
      scale_metadata: metadata of the scale.

    Raises:
      LayerError: for options out of bounds; for an input without `axis`, of another number of features, or with nothing
        to average over; for a mask that does not broadcast to the input; and for a call where `use_running_average` is
        left open.

    >>> import declax as dx
    >>> layer = dx.BatchNorm(2, momentum=0.9, rngs=dx.Rngs(0))
    >>> y = layer(jnp.array([[1.0, 2.0], [3.0, 2.0]]))
    >>> [round(v, 1) for v in y[:, 0].tolist()]
    [-1.0, 1.0]
    >>> [round(v, 2) for v in layer.mean.value.tolist()]
    [0.2, 0.2]
    """

    num_features: int = field(ge=1)
    _: KW_ONLY
    use_running_average: bool | None = field(default=False)
    axis: int = field(default=-1)
    momentum: float = field(default=0.99, ge=0.0, le=1.0)
    epsilon: float = field(default=1e-5, ge=0.0)
    dtype: Dtype | None = static(default=None)
    param_dtype: Dtype = static(default=jnp.float32)
    use_bias: bool = field(default=True)
    use_scale: bool = field(default=True)
    bias_init: InitVar[Initializer] = field(default=zeros)
    scale_init: InitVar[Initializer] = field(default=ones)
    axis_name: str | None = field(default=None)
    axis_index_groups: AxisGroups | None = field(default=None)
    use_fast_variance: bool = True
    promote_dtype: dtypes.PromoteDtype = field(default=dtypes.promote_dtype)
    rngs: InitVar[Rngs] = field()
    bias_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    scale_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    mean: BatchStat[jax.Array] = variable((num_features,), initializer=zeros, stream=None)
    var: BatchStat[jax.Array] = variable((num_features,), initializer=ones, stream=None)
    scale: Param[jax.Array] | None = variable(
        (num_features,), initializer=scale_init, dtype=param_dtype, when=use_scale, metadata=scale_metadata
    )
    bias: Param[jax.Array] | None = variable(
        (num_features,), initializer=bias_init, dtype=param_dtype, when=use_bias, metadata=bias_metadata
    )

    def __post_init__(self, *used_up: object) -> None:
        if not is_integer(self.axis):
            raise errors.LayerError(
                field_of(self, "axis"), "this names no axis", expected="an integer", got=repr(self.axis)
            )

    def __call__(
        self, x: jax.Array, use_running_average: bool | None = None, *, mask: jax.Array | None = None
    ) -> jax.Array:
        """Normalizes, and in training updates the running mean and variance.

        Args:
          x: array with `num_features` elements along `axis`.
          use_running_average: overrides the attribute of that name.
          mask: True where an element counts for mean and variance; of a shape
            that broadcasts to that of `x`. All elements are normalized.

        Returns:
          Array of the shape of `x`.
        """
        uses_running = self._uses_running(use_running_average)
        scale = None if self.scale is None else self.scale.value
        bias = None if self.bias is None else self.bias.value
        x, mean, var, scale, bias = self.promote_dtype(
            (x, self.mean.value, self.var.value, scale, bias), dtype=self.dtype
        )
        features = axes_of(self, "axis", x, "x")
        _check_features(self, x, features)
        axes = tuple(axis for axis in range(x.ndim) if axis not in features)
        if not uses_running:
            mean, var = self._batch_moments(x, axes, mask)
            self._move(self.mean, mean)
            self._move(self.var, var)
        return _normalize(self, x, jnp.expand_dims(mean, axes), jnp.expand_dims(var, axes), scale, bias, features)

    def set_view(self, use_running_average: bool | None = None, **kwargs: Any) -> dict[str, Any]:
        """Sets what differs in a view; called by `dx.view`.

        Args:
          use_running_average: normalize by the running mean and variance, and leave them unchanged.
          **kwargs: arguments for other layers.

        Returns:
          The arguments for other layers.
        """
        if use_running_average is not None:
            self.use_running_average = use_running_average
        return kwargs

    def _uses_running(self, given: bool | None) -> bool:
        decided = self.use_running_average if given is None else given
        if decided is None:
            raise errors.LayerError(
                field_of(self, "use_running_average"),
                "it is open by which mean and variance to normalize",
                expected="True or False, from the call or the attribute",
                got="None from both",
                fix="norm(x, use_running_average=True), or model.train() and model.eval()",
            )
        return decided

    def _batch_moments(
        self, x: jax.Array, axes: tuple[int, ...], mask: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        if not axes and self.axis_name is None:
            raise errors.LayerError(
                field_of(self, "use_running_average"),
                "'x' has no axes to take the mean and variance over",
                expected="at least one axis besides the feature axis",
                got=errors.describe(x),
                fix="norm(x[None])[0], or use_running_average=True for a single example",
            )
        mask = _checked_mask(self, x, mask)
        return _moments(x, axes, mask, self.axis_name, self.axis_index_groups, self.use_fast_variance)

    def _move(self, running: BatchStat[jax.Array], batch: jax.Array) -> None:
        old = running.value
        if not jnp.iscomplexobj(batch):
            batch = batch.astype(old.dtype)  # the type of a statistic stays, or each step would be retraced
        elif not jnp.iscomplexobj(old):
            old = old.astype(batch.dtype)
        running.value = lax.stop_gradient(self.momentum * old + (1 - self.momentum) * batch)


@dataclass
class LayerNorm(Module):
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

    num_features: int = field(ge=1)
    _: KW_ONLY
    epsilon: float = field(default=1e-6, ge=0.0)
    dtype: Dtype | None = static(default=None)
    param_dtype: Dtype = static(default=jnp.float32)
    use_bias: bool = field(default=True)
    use_scale: bool = field(default=True)
    bias_init: InitVar[Initializer] = field(default=zeros)
    scale_init: InitVar[Initializer] = field(default=ones)
    reduction_axes: int | Sequence[int] = field(default=-1)
    feature_axes: int | Sequence[int] = field(default=-1)
    axis_name: str | None = field(default=None)
    axis_index_groups: AxisGroups | None = field(default=None)
    use_fast_variance: bool = True
    promote_dtype: dtypes.PromoteDtype = field(default=dtypes.promote_dtype)
    rngs: InitVar[Rngs] = field()
    bias_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    scale_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    scale: Param[jax.Array] | None = variable(
        (num_features,),
        initializer=scale_init,
        dtype=param_dtype,
        when=use_scale,
        metadata=scale_metadata,
    )
    bias: Param[jax.Array] | None = variable(
        (num_features,), initializer=bias_init, dtype=param_dtype, when=use_bias, metadata=bias_metadata
    )

    def __post_init__(self, *used_up: object) -> None:
        check_axes_type(self, "reduction_axes")
        check_axes_type(self, "feature_axes")

    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Normalizes.

        Args:
          x: array whose feature axes have `num_features` elements together.
          mask: True where an element counts for mean and variance; of a shape
            that broadcasts to that of `x`. All elements are normalized.

        Returns:
          Array of the shape of `x`.
        """
        scale = None if self.scale is None else self.scale.value
        bias = None if self.bias is None else self.bias.value
        x, scale, bias = self.promote_dtype((x, scale, bias), dtype=self.dtype)
        axes = axes_of(self, "reduction_axes", x, "x")
        features = axes_of(self, "feature_axes", x, "x")
        _check_features(self, x, features)
        mask = _checked_mask(self, x, mask)
        mean, var = _moments(x, axes, mask, self.axis_name, self.axis_index_groups, self.use_fast_variance)
        return _normalize(self, x, jnp.expand_dims(mean, axes), jnp.expand_dims(var, axes), scale, bias, features)


@dataclass
class RMSNorm(Module):
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

    num_features: int = field(ge=1)
    _: KW_ONLY
    epsilon: float = field(default=1e-6, ge=0.0)
    dtype: Dtype | None = static(default=None)
    param_dtype: Dtype = static(default=jnp.float32)
    use_scale: bool = field(default=True)
    scale_init: InitVar[Initializer] = field(default=ones)
    reduction_axes: int | Sequence[int] = field(default=-1)
    feature_axes: int | Sequence[int] = field(default=-1)
    axis_name: str | None = field(default=None)
    axis_index_groups: AxisGroups | None = field(default=None)
    use_fast_variance: bool = True
    promote_dtype: dtypes.PromoteDtype = field(default=dtypes.promote_dtype)
    rngs: InitVar[Rngs] = field()
    scale_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    scale: Param[jax.Array] | None = variable(
        (num_features,), initializer=scale_init, dtype=param_dtype, when=use_scale, metadata=scale_metadata
    )

    def __post_init__(self, *used_up: object) -> None:
        check_axes_type(self, "reduction_axes")
        check_axes_type(self, "feature_axes")

    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Normalizes.

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
        _check_features(self, x, features)
        squares = _square(x.astype(dtypes.statistics_dtype(x.dtype)))
        (square,) = _means((squares,), axes, _checked_mask(self, x, mask), self.axis_name, self.axis_index_groups)
        square = jnp.expand_dims(square, axes)
        return _normalize(self, x, jnp.zeros_like(square), square, scale, None, features)


@dataclass
class GroupNorm(Module):
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

    num_features: int = field(ge=1)
    num_groups: int | None = field(default=32)
    group_size: int | None = field(default=None)
    _: KW_ONLY
    epsilon: float = field(default=1e-6, ge=0.0)
    dtype: Dtype | None = static(default=None)
    param_dtype: Dtype = static(default=jnp.float32)
    use_bias: bool = field(default=True)
    use_scale: bool = field(default=True)
    bias_init: InitVar[Initializer] = field(default=zeros)
    scale_init: InitVar[Initializer] = field(default=ones)
    reduction_axes: int | Sequence[int] | None = field(default=None)
    axis_name: str | None = field(default=None)
    axis_index_groups: AxisGroups | None = field(default=None)
    use_fast_variance: bool = True
    promote_dtype: dtypes.PromoteDtype = field(default=dtypes.promote_dtype)
    rngs: InitVar[Rngs] = field()
    bias_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    scale_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    scale: Param[jax.Array] | None = variable(
        (num_features,), initializer=scale_init, dtype=param_dtype, when=use_scale, metadata=scale_metadata
    )
    bias: Param[jax.Array] | None = variable(
        (num_features,), initializer=bias_init, dtype=param_dtype, when=use_bias, metadata=bias_metadata
    )

    def __post_init__(self, *used_up: object) -> None:
        if self.reduction_axes is not None:
            check_axes_type(self, "reduction_axes")
        given = (self.num_groups, self.group_size)
        divisor = self.num_groups if self.group_size is None else self.group_size
        if None not in given or not is_integer(divisor) or divisor < 1 or self.num_features % divisor:
            raise errors.LayerError(
                field_of(self, "num_groups"),
                "the features cannot be split into these groups",
                expected=f"num_groups or group_size, which divides num_features={self.num_features}; the other is None",
                got=f"num_groups={self.num_groups}, group_size={self.group_size}",
                fix="dx.GroupNorm(num_features, num_groups=None, group_size=16, rngs=rngs)",
            )

    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Normalizes.

        Args:
          x: array of shape ``(batch, ..., num_features)``.
          mask: True where an element counts for mean and variance; of a shape that broadcasts to that of `x`. All
            elements are normalized.

        Returns:
          Array of the shape of `x`.
        """
        scale = None if self.scale is None else self.scale.value
        bias = None if self.bias is None else self.bias.value
        x, scale, bias = self.promote_dtype((x, scale, bias), dtype=self.dtype)
        last = x.ndim - 1
        _check_features(self, x, (last,))
        reduced = range(1, x.ndim) if self.reduction_axes is None else axes_of(self, "reduction_axes", x, "x")
        axes = (*(axis for axis in reduced if axis != last), x.ndim)
        size = self.group_size or self.num_features // (self.num_groups or 1)
        grouped = (*x.shape[:-1], -1, size)
        mask = _checked_mask(self, x, mask)
        mask = None if mask is None else jnp.broadcast_to(mask, x.shape).reshape(grouped)
        moments = _moments(
            x.reshape(grouped), axes, mask, self.axis_name, self.axis_index_groups, self.use_fast_variance
        )
        mean, var = (jnp.repeat(jnp.expand_dims(m, axes)[..., 0], size, -1) for m in moments)
        return _normalize(self, x, mean, var, scale, bias, (last,))


@dataclass
class InstanceNorm(Module):
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

    num_features: int = field(ge=1)
    _: KW_ONLY
    epsilon: float = field(default=1e-6, ge=0.0)
    dtype: Dtype | None = static(default=None)
    param_dtype: Dtype = static(default=jnp.float32)
    use_bias: bool = field(default=True)
    use_scale: bool = field(default=True)
    bias_init: InitVar[Initializer] = field(default=zeros)
    scale_init: InitVar[Initializer] = field(default=ones)
    feature_axes: int | Sequence[int] = field(default=-1)
    axis_name: str | None = field(default=None)
    axis_index_groups: AxisGroups | None = field(default=None)
    use_fast_variance: bool = True
    promote_dtype: dtypes.PromoteDtype = field(default=dtypes.promote_dtype)
    rngs: InitVar[Rngs] = field()
    bias_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    scale_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    scale: Param[jax.Array] | None = variable(
        (num_features,), initializer=scale_init, dtype=param_dtype, when=use_scale, metadata=scale_metadata
    )
    bias: Param[jax.Array] | None = variable(
        (num_features,), initializer=bias_init, dtype=param_dtype, when=use_bias, metadata=bias_metadata
    )

    def __post_init__(self, *used_up: object) -> None:
        check_axes_type(self, "feature_axes")

    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Normalizes.

        Args:
          x: array of shape ``(batch, ...)`` whose feature axes have `num_features` elements together.
          mask: True where an element counts for mean and variance; of a shape that broadcasts to that of `x`. All
            elements are normalized.

        Returns:
          Array of the shape of `x`.
        """
        scale = None if self.scale is None else self.scale.value
        bias = None if self.bias is None else self.bias.value
        x, scale, bias = self.promote_dtype((x, scale, bias), dtype=self.dtype)
        features = axes_of(self, "feature_axes", x, "x")
        if 0 in features:
            raise errors.LayerError(
                field_of(self, "feature_axes"),
                "the first axis is the batch",
                expected="axes from 1 on",
                got=f"{self.feature_axes!r} of {errors.describe(x)}",
                fix="norm(x[None])[0]   # for a single example",
            )
        _check_features(self, x, features)
        axes = tuple(axis for axis in range(1, x.ndim) if axis not in features)
        mask = _checked_mask(self, x, mask)
        mean, var = _moments(x, axes, mask, self.axis_name, self.axis_index_groups, self.use_fast_variance)
        return _normalize(self, x, jnp.expand_dims(mean, axes), jnp.expand_dims(var, axes), scale, bias, features)


class _Normalization(Protocol):
    """What the formula needs of a layer."""

    num_features: int
    epsilon: float
    dtype: Dtype | None


def _check_features(layer: _Normalization, x: jax.Array, features: tuple[int, ...]) -> None:
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


def _checked_mask(layer: object, x: jax.Array, mask: jax.Array | None) -> jax.Array | None:
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


def _moments(
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
        (mean,) = _means((x,), axes, mask, axis_name, groups)
        (var,) = _means((_square(x - jnp.expand_dims(mean, axes)),), axes, mask, axis_name, groups)
        return mean, var
    mean, square = _means((x, _square(x)), axes, mask, axis_name, groups)
    return mean, jnp.maximum(square - _square(mean), 0)  # rounding may take it below zero


def _means(
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


def _square(x: jax.Array) -> jax.Array:
    return jnp.square(x.real) + jnp.square(x.imag) if jnp.iscomplexobj(x) else jnp.square(x)


def _normalize(
    layer: _Normalization,
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


if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
