"""Activations: the functions of ``jax.nn``, under the same names and with the same types, and `PReLU`.

The functions are JAX's own objects, so that models that hold the same one in a static field are equal, also copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar  # pyright knows it by this module only
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.nn import celu as celu
from jax.nn import elu as elu
from jax.nn import gelu as gelu
from jax.nn import glu as glu
from jax.nn import hard_sigmoid as hard_sigmoid
from jax.nn import hard_silu as hard_silu
from jax.nn import hard_swish as hard_swish
from jax.nn import hard_tanh as hard_tanh
from jax.nn import identity as identity
from jax.nn import leaky_relu as leaky_relu
from jax.nn import log1mexp as log1mexp
from jax.nn import log_sigmoid as log_sigmoid
from jax.nn import log_softmax as log_softmax
from jax.nn import logmeanexp as logmeanexp
from jax.nn import logsumexp as logsumexp
from jax.nn import mish as mish
from jax.nn import one_hot as one_hot
from jax.nn import relu as relu
from jax.nn import relu6 as relu6
from jax.nn import selu as selu
from jax.nn import sigmoid as sigmoid
from jax.nn import silu as silu
from jax.nn import soft_sign as soft_sign
from jax.nn import softmax as softmax
from jax.nn import softplus as softplus
from jax.nn import sparse_plus as sparse_plus
from jax.nn import sparse_sigmoid as sparse_sigmoid
from jax.nn import squareplus as squareplus
from jax.nn import standardize as standardize
from jax.nn import swish as swish
from jax.nn import tanh as tanh

from declax._classes.decorator import dataclass
from declax._fields.deferring import defer
from declax._fields.specifiers import KW_ONLY, field, static
from declax._lazy import lazy_names
from declax._typing import Dtype
from declax._variables.kinds import Param
from declax._variables.metadata import EMPTY
from declax._variables.policy import COMPUTE_DTYPE, PARAM_DTYPE
from declax.nn import dtypes
from declax.nn.layer import Layer


@defer
def _slope(initial: float | jax.Array, dtype: Dtype, metadata: Mapping[str, Any]) -> Param[jax.Array]:
    return Param(jnp.asarray(initial, dtype), **metadata)


@dataclass
class PReLU(Layer):
    """A `relu` that learns its slope below zero.

    ``y = x if x >= 0 else negative_slope * x``

    He et al., "Delving Deep into Rectifiers", https://arxiv.org/abs/1502.01852.

    Args:
      negative_slope_init: the slope at the start. The parameter has its shape: that of a number, or one that broadcasts
        to the input.
      dtype: dtype of the computation; None takes that of the input, and float32 for integers.
      param_dtype: dtype in which the slope is stored.
      promote_dtype: brings ``(inputs, negative_slope)`` to one dtype.
      negative_slope_metadata: metadata of the slope.
      negative_slope: the slope.

    Raises:
      LayerError: for an integer `dtype`.

    >>> import declax as dx
    >>> layer = dx.PReLU(0.5)
    >>> layer(jnp.array([-4.0, 3.0])).tolist()
    [-2.0, 3.0]
    """

    negative_slope_init: InitVar[float | jax.Array] = field(default=0.01)
    _: KW_ONLY
    dtype: Dtype | None = static(default_factory=COMPUTE_DTYPE)
    param_dtype: Dtype = static(default_factory=PARAM_DTYPE)
    promote_dtype: dtypes.PromoteDtype = static(default=dtypes.promote_dtype)
    negative_slope_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    negative_slope: Param[jax.Array] = _slope(negative_slope_init, param_dtype, negative_slope_metadata)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Applies `relu` with the learned slope below zero.

        Args:
          inputs: array of any shape.

        Returns:
          Array of the same shape.
        """
        dtype = dtypes.canonicalize_dtype(inputs, dtype=self.dtype)
        inputs, slope = self.promote_dtype((inputs, self.negative_slope.value), dtype=dtype)
        return jnp.where(inputs >= 0, inputs, slope * inputs)


if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
