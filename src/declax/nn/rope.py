"""Rotary position embeddings."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from declax import errors
from declax._classes.decorator import dataclass
from declax._fields.specifiers import KW_ONLY, field
from declax.nn import dtypes
from declax.nn._checks import field_of
from declax.nn.layer import Layer


@dataclass
class RoPE(Layer):
    """Rotates pairs of features by angles that grow with the position.

    Features ``i`` and ``i + n`` of the first ``2 n`` are the coordinates of a point, which is turned by the angle
    ``position / scale_factor * theta ** (-i / n)``. The product of two rotated vectors depends on the distance of their
    positions only.

    Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", https://arxiv.org/abs/2104.09864.

    The layer has no Variables. A subclass may override `frequencies`, for other ways to stretch the context.

    Args:
      theta: the base of the frequencies; the slowest pair takes about ``2 pi theta`` positions to turn around.
      scale_factor: positions are divided by it, to use a model on texts longer than it was trained on. Chen et al.,
        "Extending Context Window of Large Language Models via Positional Interpolation", https://arxiv.org/abs/2306.15595.
      rotary_features: number of features that are rotated, the first ones; None rotates all.

    Raises:
      LayerError: for options out of bounds; for a number of features that is odd, or below `rotary_features`; and for
        positions that do not broadcast to the input.

    >>> import declax as dx
    >>> rope = dx.RoPE()
    >>> x = jnp.ones((5, 8))
    >>> y = rope(x)
    >>> y.shape, bool((y[0] == x[0]).all())
    ((5, 8), True)
    """

    _: KW_ONLY
    theta: float = field(default=10_000.0, ge=1.0)
    scale_factor: float = field(default=1.0, ge=1.0)
    rotary_features: int | None = field(default=None, ge=2)

    def __call__(self, x: jax.Array, positions: jax.Array | None = None, *, axis: int = -2) -> jax.Array:
        """Rotates pairs of features by angles that grow with the position.

        Args:
          x: array whose last axis holds the features, as ``(batch..., length, features)``.
          positions: the positions along `axis`, of shape ``(length,)`` or ``(batch..., length)``; None counts from 0.
          axis: the axis of the positions; -3 for ``(batch..., length, heads, features)``.

        Returns:
          Array of the shape and dtype of `x`.
        """
        size = self._rotated(x)
        angles = self._angles(x, positions, axis, size)
        wide = dtypes.statistics_dtype(x.dtype)
        cos, sin = dtypes.cast(jnp.cos(angles), wide), dtypes.cast(jnp.sin(angles), wide)
        first, second, rest = jnp.split(x, (size // 2, size), axis=-1)
        first, second = dtypes.cast(first, wide), dtypes.cast(second, wide)
        turned = (first * cos - second * sin, second * cos + first * sin)
        return jnp.concatenate([*(dtypes.cast(part, x.dtype) for part in turned), rest], axis=-1)

    def frequencies(self, size: int) -> jax.Array:
        """The angle by which each pair turns from one position to the next.

        Args:
          size: the number of features that are rotated.

        Returns:
          Array of shape ``(size / 2,)``.

        >>> import declax as dx
        >>> [round(f, 4) for f in dx.RoPE(theta=100.0).frequencies(4).tolist()]
        [1.0, 0.1]
        """
        exponents = jnp.arange(0, size, 2, dtype=jnp.float32) / size
        return jnp.asarray(1.0 / (self.theta**exponents * self.scale_factor))

    def _rotated(self, x: jax.Array) -> int:
        features = x.shape[-1] if x.ndim else 0
        size = features if self.rotary_features is None else self.rotary_features
        if size % 2 or not 2 <= size <= features:
            raise errors.LayerError(
                field_of(self, "rotary_features"),
                "features are rotated in pairs",
                expected=f"an even number of features, from 2 to the {features} along the last axis of 'x'",
                got=f"rotary_features={self.rotary_features} for {errors.describe(x)}",
            )
        return size

    def _angles(self, x: jax.Array, positions: jax.Array | None, axis: int, size: int) -> jax.Array:
        """The angle of each pair, of a shape that broadcasts to that of half of the rotated features."""
        if not -x.ndim <= axis < x.ndim - 1 or axis == -1:
            raise errors.LayerError(
                field_of(self, "axis"),
                f"axis {axis} is not an axis of positions",
                expected=f"one of the axes of 'x' before the last, from {-x.ndim} to {x.ndim - 2}",
                got=errors.describe(x),
            )
        axis %= x.ndim
        positions = jnp.arange(x.shape[axis]) if positions is None else jnp.asarray(positions)
        if positions.shape not in (x.shape[axis : axis + 1], x.shape[: axis + 1]):
            raise errors.LayerError(
                field_of(self, "positions"),
                "the positions do not fit 'x'",
                expected=f"an array of shape {x.shape[axis : axis + 1]} or {x.shape[: axis + 1]}",
                got=errors.describe(positions),
            )
        angles = positions.astype(jnp.float32)[..., None] * self.frequencies(size)
        before, after = (1,) * (axis + 1 - positions.ndim), (1,) * (x.ndim - 2 - axis)
        return angles.reshape(*before, *positions.shape, *after, size // 2)
