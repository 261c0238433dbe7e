"""Layers that multiply by a matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import InitVar  # pyright knows it by this module only
from typing import TYPE_CHECKING, Any

import jax
from jax import lax

from declax._classes.decorator import dataclass
from declax._fields.specifiers import KW_ONLY, field, static, variable
from declax._lazy import lazy_names
from declax._typing import Dtype, Initializer, PrecisionLike
from declax._variables.kinds import Param
from declax._variables.metadata import EMPTY
from declax._variables.policy import COMPUTE_DTYPE, PARAM_DTYPE
from declax.nn import dtypes
from declax.nn._checks import check_last_axis
from declax.nn._defaults import OutSharding as OutSharding
from declax.nn._defaults import default_bias_init as default_bias_init
from declax.nn._defaults import default_embed_init as default_embed_init
from declax.nn._defaults import default_kernel_init as default_kernel_init
from declax.nn._gathering import constrained, gathered, result_sharding
from declax.nn.layer import Layer


@dataclass
class Linear(Layer):
    """An affine map of the last axis.

    ``y[..., j] = sum_i x[..., i] * kernel[i, j] + bias[j]``

    Args:
      in_features: size of the last axis of the input.
      out_features: size of the last axis of the output.
      use_bias: add a bias; without it, `bias` is None.
      dtype: dtype of the computation; None infers it from input and parameters.
      param_dtype: dtype in which the parameters are stored.
      precision: numerical precision of the product, as `jax.lax.Precision`.
      kernel_init: makes the kernel, of shape ``(in_features, out_features)``.
      bias_init: makes the bias, of shape ``(out_features,)``.
      dot_general: replaces `jax.lax.dot_general`.
      promote_dtype: brings ``(inputs, kernel, bias)`` to one dtype.
      preferred_element_type: dtype in which the product accumulates.
      rngs: gives one key to the kernel, then one to the bias, from `params`.
      kernel_metadata: metadata of the kernel, such as
        ``{"out_sharding": ("embed", "mlp"), "act_names": ("batch", None, "mlp")}``: the names of its axes, and of those
        of the output.
      bias_metadata: metadata of the bias.

    Raises:
      LayerError: for a size below 1, and for an input whose last axis is not `in_features`.

    >>> import declax as dx
    >>> layer = dx.Linear(3, 4, rngs=dx.Rngs(0))
    >>> layer(jnp.ones((2, 3))).shape
    (2, 4)
    """

    in_features: int = field(ge=1)
    out_features: int = field(ge=1)
    _: KW_ONLY
    use_bias: bool = field(default=True)
    dtype: Dtype | None = static(default_factory=COMPUTE_DTYPE)
    param_dtype: Dtype = static(default_factory=PARAM_DTYPE)
    precision: PrecisionLike = field(default=None)
    kernel_init: InitVar[Initializer] = field(default=default_kernel_init)
    bias_init: InitVar[Initializer] = field(default=default_bias_init)
    dot_general: Callable[..., jax.Array] = field(default=lax.dot_general)
    promote_dtype: dtypes.PromoteDtype = static(default=dtypes.promote_dtype)
    preferred_element_type: Dtype | None = static(default=None)
    kernel_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    bias_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    kernel: Param[jax.Array] = variable(
        (in_features, out_features),
        initializer=kernel_init,
        dtype=param_dtype,
        metadata=kernel_metadata,
    )
    bias: Param[jax.Array] | None = variable(
        (out_features,), initializer=bias_init, dtype=param_dtype, when=use_bias, metadata=bias_metadata
    )

    def __call__(self, inputs: jax.Array, out_sharding: OutSharding = None) -> jax.Array:
        """Applies the affine map to the last axis.

        Args:
          inputs: array of shape ``(..., in_features)``.
          out_sharding: sharding of the output, under explicit sharding.

        Returns:
          Array of shape ``(..., out_features)``.
        """
        bias = None if self.bias is None else self.bias.value
        x, kernel, bias = self.promote_dtype((inputs, self.kernel.value, bias), dtype=self.dtype)
        check_last_axis(self, "in_features", x, size=kernel.shape[0])  # under shard_map, that of a part
        last = x.ndim - 1
        place = result_sharding(self, self.kernel, (*x.shape[:-1], kernel.shape[1]), out_sharding)
        kernel = gathered(self.kernel, kernel, x, {0: last}, place, {1: last})
        options = dtypes.product_options(place, self.preferred_element_type)
        y = self.dot_general(x, kernel, (((last,), (0,)), ((), ())), precision=self.precision, **options)
        return constrained(self, self.kernel, dtypes.add_bias(y, bias, self.bias), out_sharding)


if TYPE_CHECKING:  # the peer's module of linear layers has these
    from declax.nn.contractions import Einsum as Einsum
    from declax.nn.contractions import LinearGeneral as LinearGeneral
    from declax.nn.conv import Conv as Conv
    from declax.nn.conv import canonicalize_padding as canonicalize_padding
    from declax.nn.conv_transpose import ConvTranspose as ConvTranspose
    from declax.nn.embedding import Embed as Embed
else:
    __getattr__ = lazy_names(
        __name__,
        Conv="declax.nn.conv",
        ConvTranspose="declax.nn.conv_transpose",
        Einsum="declax.nn.contractions",
        Embed="declax.nn.embedding",
        LinearGeneral="declax.nn.contractions",
        canonicalize_padding="declax.nn.conv",
    )
