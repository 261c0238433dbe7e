"""Transposed convolutions."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from declax._classes.decorator import dataclass
from declax._fields.deferring import defer
from declax._fields.specifiers import KW_ONLY, field
from declax.nn.conv import (
    Convolution,
    PerAxis,
    features_last,
    padding_of,
    rank_of,
    reaches_of,
    shape_of_kernel,
    sizes_of,
)


def _transposed_shape(
    kernel_size: int | Sequence[int], in_features: int, out_features: int, is_transposed: bool
) -> tuple[int, ...]:
    features = (out_features, in_features) if is_transposed else (in_features, out_features)
    return shape_of_kernel("ConvTranspose", kernel_size, *features)


@dataclass
class ConvTranspose(Convolution):
    """A transposed convolution: the gradient of a convolution with respect to its input, as a layer that upsamples.

    In one dimension, without dilation, ``y[b, t, j] = sum_k sum_i x[b, t + k, i] * kernel[k, i, j] + bias[j]``,
    where `x` is the input with ``strides - 1`` zeros between its elements, padded.

    Dumoulin and Visin, "A guide to convolution arithmetic for deep learning", https://arxiv.org/abs/1603.07285.

    Args:
      in_features: size of the last axis of the input.
      out_features: size of the last axis of the output.
      kernel_size: size of the kernel along each spatial axis. An integer is one axis; it becomes a tuple.
      strides: by how much each axis, or all, grow; None is 1.
      padding: ``"SAME"`` gives ``strides`` times the size of the input; ``"VALID"`` all outputs that an element of the
        input reaches; ``"CIRCULAR"`` the size of ``"SAME"``, with outputs beyond an end added at the other end;
        ``"CAUSAL"``, for one spatial axis, that size, with no output that depends on a later input. Or numbers, for the
        input with the zeros between its elements: one for all sides, or for each axis one or a pair. To undo the
        change of shape of a `Conv` with padding ``p``, give ``dilation * (kernel_size - 1) - p``.
      kernel_dilation: spacing of the kernel's elements, for all axes or each.
      use_bias: add a bias; without it, `bias` is None.
      mask: of the kernel's shape, cast to its dtype and multiplied with it at each call; data.
      dtype: dtype of the computation; None infers it from input and parameters.
      param_dtype: dtype in which the parameters are stored.
      precision: numerical precision of the products, as `jax.lax.Precision`.
      kernel_init: makes the kernel, of shape ``(*kernel_size, in_features, out_features)``; with `transpose_kernel`,
        the last two sizes change places.
      bias_init: makes the bias, of shape ``(out_features,)``.
      transpose_kernel: take the kernel of the `Conv` whose transpose this is, which turns it around along the spatial
        axes, and its last two axes change places.
      promote_dtype: brings ``(inputs, kernel, bias)`` to one dtype.
      preferred_element_type: dtype in which the products accumulate.
      rngs: gives one key to the kernel, then one to the bias, from `params`.
      kernel_metadata: metadata of the kernel.
      bias_metadata: metadata of the bias.

    Raises:
      LayerError: for sizes, padding or a mask that do not fit, and for an input of too few axes or other features.

    >>> import declax as dx
    >>> layer = dx.ConvTranspose(8, 3, kernel_size=(3, 3), strides=2, rngs=dx.Rngs(0))
    >>> layer(jnp.ones((5, 14, 14, 8))).shape
    (5, 28, 28, 3)
    """

    paddings: ClassVar[tuple[str, ...]] = ("SAME", "VALID", "CIRCULAR", "CAUSAL")

    strides: PerAxis = field(default=None)
    _: KW_ONLY
    kernel_dilation: PerAxis = field(default=None)
    transpose_kernel: bool = field(default=False)
    _shape = defer(_transposed_shape)(
        Convolution.kernel_size, Convolution.in_features, Convolution.out_features, transpose_kernel
    )

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Convolves the input, transposed, over its spatial axes.

        Args:
          inputs: array of shape ``(*batch, *spatial, in_features)``, with as many spatial axes as the kernel, and any
            number of batch axes, also none.

        Returns:
          Array of shape ``(*batch, *spatial', out_features)``.
        """
        convolve = functools.partial(ConvTranspose._convolve, self)
        return Convolution._apply(self, inputs, convolve, is_turned=self.transpose_kernel)

    def _convolve(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        padding, strides = padding_of(self, ConvTranspose.paddings), sizes_of(self, "strides", rank_of(self))
        is_circular = padding == "CIRCULAR"
        if padding == "CAUSAL":
            padding = ((reaches_of(self)[0], strides[0] - 1),)
        y = lax.conv_transpose(
            x,
            kernel,
            strides,
            "VALID" if is_circular else padding,
            rhs_dilation=sizes_of(self, "kernel_dilation", rank_of(self)),
            dimension_numbers=features_last(rank_of(self)),
            transpose_kernel=self.transpose_kernel,
            precision=self.precision,
            preferred_element_type=self.preferred_element_type,
        )
        return ConvTranspose._wrapped(self, y, x, strides) if is_circular else y

    def _wrapped(self, y: jax.Array, x: jax.Array, strides: tuple[int, ...]) -> jax.Array:
        """Adds elements that are whole periods apart; an odd element goes to the side where `Conv` pads more."""
        for axis, stride in enumerate(strides, 1):
            period = x.shape[axis] * stride
            missing = (period - y.shape[axis]) % (2 * period)
            before = missing // 2 if self.transpose_kernel else (missing + 1) // 2
            around = [(0, 0)] * y.ndim
            around[axis] = (before, missing - before)
            y = jnp.pad(y, around).reshape(*y.shape[:axis], -1, period, *y.shape[axis + 1 :]).sum(axis)
        return y
