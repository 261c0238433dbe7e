"""Feed-forward networks of one hidden layer, as in the blocks of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar  # pyright knows it by this module only
from typing import Any

import jax

from declax._classes.decorator import dataclass
from declax._fields.deferring import defer, when
from declax._fields.specifiers import KW_ONLY, field, static
from declax._typing import Activation, Dtype, Initializer, PrecisionLike
from declax._variables.metadata import EMPTY
from declax._variables.policy import COMPUTE_DTYPE, PARAM_DTYPE
from declax.nn import dtypes
from declax.nn._defaults import Made, default_bias_init, default_kernel_init
from declax.nn.activations import gelu, silu
from declax.nn.layer import Layer
from declax.nn.linear import Linear
from declax.nn.stochastic import Dropout


@defer
def _output_features(given: int | None, in_features: int) -> int:
    return in_features if given is None else given


@defer
def _is_positive(rate: float) -> bool:
    return rate > 0


@dataclass
class _FeedForward(Layer):
    """The fields of all feed-forward networks."""

    in_features: int = field(ge=1)
    hidden_features: int = field(ge=1)
    out_features: int | None = field(default=None)
    _: KW_ONLY
    activation: Activation = field(default=gelu)
    dropout_rate: float = field(default=0.0, ge=0.0, le=1.0)
    use_bias: bool = field(default=True)
    dtype: Dtype | None = static(default_factory=COMPUTE_DTYPE)
    param_dtype: Dtype = static(default_factory=PARAM_DTYPE)
    precision: PrecisionLike = field(default=None)
    promote_dtype: dtypes.PromoteDtype = static(default=dtypes.promote_dtype)


_INPUT, _HIDDEN = _FeedForward.in_features, _FeedForward.hidden_features


def _map(in_features: int, out_features: int, kernel: Made, bias: Made) -> Linear:
    """Declares one of the maps of a network."""
    return Linear(
        in_features,
        out_features,
        use_bias=_FeedForward.use_bias,
        dtype=_FeedForward.dtype,
        param_dtype=_FeedForward.param_dtype,
        precision=_FeedForward.precision,
        kernel_init=kernel[0],
        bias_init=bias[0],
        promote_dtype=_FeedForward.promote_dtype,
        kernel_metadata=kernel[1],
        bias_metadata=bias[1],
    )


@dataclass
class MLP(_FeedForward):
    """Two affine maps of the last axis with an activation between them.

    ``y = down(dropout(activation(up(x))))``

    Args:
      in_features: size of the last axis of the input.
      hidden_features: size of the hidden layer.
      out_features: size of the last axis of the output; None is `in_features`.
      activation: applied to the hidden layer.
      dropout_rate: the probability of setting an element of the hidden layer to zero.
      use_bias: add biases.
      dtype: dtype of the computation; None infers it from input and parameters.
      param_dtype: dtype in which the parameters are stored.
      precision: numerical precision of the products, as `jax.lax.Precision`.
      kernel_init: makes the kernels.
      bias_init: makes the biases.
      promote_dtype: brings the arguments of each map to one dtype.
      rngs: gives one key to each kernel and bias, from `params`, and a stream for dropout if there is any.
      kernel_metadata: metadata of the kernels.
      bias_metadata: metadata of the biases.
      down_kernel_metadata: metadata of the kernel of `down`; none is `kernel_metadata`.
      up: the map to the hidden layer.
      down: the map from the hidden layer.
      dropout: the dropout of the hidden layer; None without.

    Raises:
      LayerError: for a size below 1, and for an input whose last axis is not `in_features`.

    >>> import declax as dx
    >>> layer = dx.MLP(3, 12, rngs=dx.Rngs(0))
    >>> layer(jnp.ones((2, 3))).shape
    (2, 3)
    """

    _: KW_ONLY
    kernel_init: InitVar[Initializer] = field(default=default_kernel_init)
    bias_init: InitVar[Initializer] = field(default=default_bias_init)
    kernel_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    bias_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    down_kernel_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    up: Linear = _map(_INPUT, _HIDDEN, (kernel_init, kernel_metadata), (bias_init, bias_metadata))
    down: Linear = _map(
        _HIDDEN,
        _output_features(_FeedForward.out_features, _INPUT),
        (kernel_init, when(defer(bool)(down_kernel_metadata), down_kernel_metadata, kernel_metadata)),
        (bias_init, bias_metadata),
    )
    dropout: Dropout | None = when(_is_positive(_FeedForward.dropout_rate), Dropout(_FeedForward.dropout_rate))

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Applies two affine maps of the last axis, with the activation between them.

        Args:
          inputs: array of shape ``(..., in_features)``.

        Returns:
          Array of shape ``(..., out_features)``.
        """
        hidden = self._hidden(inputs)
        return self.down(hidden if self.dropout is None else self.dropout(hidden))

    def _hidden(self, inputs: jax.Array) -> jax.Array:
        return self.activation(self.up(inputs))


@dataclass
class GatedMLP(MLP):
    """An `MLP` whose hidden layer is multiplied by a gate: SwiGLU with `silu`, GeGLU with `gelu`.

    ``y = down(dropout(activation(gate(x)) * up(x)))``

    Shazeer, "GLU Variants Improve Transformer", https://arxiv.org/abs/2002.05202.

    Args:
      gate: the map to the gate, with the options of `up`.

    The other arguments and the errors are those of `MLP`.

    >>> import declax as dx
    >>> swiglu = dx.GatedMLP(3, 8, use_bias=False, rngs=dx.Rngs(0))
    >>> geglu = dx.GatedMLP(3, 8, activation=dx.gelu, rngs=dx.Rngs(0))
    >>> swiglu(jnp.ones((2, 3))).shape, geglu.gate.kernel.shape
    ((2, 3), (3, 8))
    """

    _: KW_ONLY
    activation: Activation = field(default=silu)
    kernel_init: InitVar[Initializer] = field(default=default_kernel_init)
    bias_init: InitVar[Initializer] = field(default=default_bias_init)
    kernel_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    bias_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    gate: Linear = _map(_INPUT, _HIDDEN, (kernel_init, kernel_metadata), (bias_init, bias_metadata))

    def _hidden(self, inputs: jax.Array) -> jax.Array:
        return self.activation(self.gate(inputs)) * self.up(inputs)
