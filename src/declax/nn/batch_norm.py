"""Batch normalization, with running statistics."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from declax import errors
from declax._classes.decorator import dataclass
from declax._fields.specifiers import KW_ONLY, field, variable
from declax._module.running import warn_by
from declax._variables.kinds import BatchStat
from declax.initializers import ones, zeros
from declax.nn._checks import axes_of, decide, field_of, is_integer
from declax.nn._gathering import gathered
from declax.nn._normalizing import Normalization, check_features, checked_mask, moments_of, normalize, promoted


@dataclass
class BatchNorm(Normalization):
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

    _: KW_ONLY
    use_running_average: bool | None = field(default=False)
    axis: int = field(default=-1)
    momentum: float = field(default=0.99, ge=0.0, le=1.0)
    epsilon: float = field(default=1e-5, ge=0.0)
    mean: BatchStat[jax.Array] = variable((Normalization.num_features,), initializer=zeros, stream=None)
    var: BatchStat[jax.Array] = variable((Normalization.num_features,), initializer=ones, stream=None)

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
        fix = "norm(x, use_running_average=True), or model.train() and model.eval()"
        uses_running = decide(self, "use_running_average", use_running_average, fix)
        x, mean, var, scale, bias = promoted(self, x, self.mean.value, self.var.value)
        features = axes_of(self, "axis", x, "x")
        check_features(self, x, features)
        axes = tuple(axis for axis in range(x.ndim) if axis not in features)
        if not uses_running:
            mean, var = _batch_moments(self, x, axes, mask)
            _move(self, self.mean, mean)
            _move(self, self.var, var)
        else:
            along = {0: features[0]} if len(features) == 1 else {}
            mean, var = gathered(mean, x, along), gathered(var, x, along)
        return normalize(self, x, jnp.expand_dims(mean, axes), jnp.expand_dims(var, axes), scale, bias, features)

    def set_view(self, use_running_average: bool | None = None, **kwargs: Any) -> dict[str, Any]:
        """Sets attributes of a view; called by `dx.view`.

        Args:
          use_running_average: normalize by the running mean and variance, and leave them unchanged.
          **kwargs: arguments for other layers.

        Returns:
          The arguments for other layers.
        """
        if use_running_average is not None:
            self.use_running_average = use_running_average
        return kwargs


def _batch_moments(
    layer: BatchNorm, x: jax.Array, axes: tuple[int, ...], mask: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    if not axes and layer.axis_name is None:
        raise errors.LayerError(
            field_of(layer, "use_running_average"),
            "'x' has no axes to take the mean and variance over",
            expected="at least one axis besides the feature axis",
            got=errors.describe(x),
            fix="norm(x[None])[0], or use_running_average=True for a single example",
        )
    if layer.axis_name is None and math.prod(x.shape[axis] for axis in axes) == 1:
        warn_by(
            errors.LayerError(
                field_of(layer, "use_running_average"),
                "'x' is a single example, of which the variance is 0",
                expected="more than one element for each feature",
                got=errors.describe(x),
                why="so the output is the bias, whatever 'x' is",
                fix="model.eval()   # normalizes by the running mean and variance",
            )
        )
    return moments_of(layer, x, axes, checked_mask(layer, x, mask))


def _move(layer: BatchNorm, running: BatchStat[jax.Array], batch: jax.Array) -> None:
    old = running.value
    if not jnp.iscomplexobj(batch):
        batch = batch.astype(old.dtype)  # the type of a statistic stays, or each step would be retraced
    elif not jnp.iscomplexobj(old):
        old = old.astype(batch.dtype)
    running.value = lax.stop_gradient(layer.momentum * old + (1 - layer.momentum) * batch)
