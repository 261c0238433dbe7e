"""Low-rank adapters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import InitVar  # pyright knows it by this module only
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from declax import errors
from declax._classes.decorator import dataclass
from declax._fields.deferring import defer
from declax._fields.keys import needed_rngs
from declax._fields.specifiers import KW_ONLY, field, static
from declax._lazy import lazy_names
from declax._module.module import Module
from declax._random.streams import Rngs
from declax._typing import Dtype, Initializer, T
from declax._variables.kinds import Param
from declax._variables.metadata import EMPTY
from declax._variables.policy import COMPUTE_DTYPE, PARAM_DTYPE
from declax._variables.variable import Variable
from declax.initializers import he_uniform, zeros
from declax.nn import dtypes
from declax.nn._checks import check_last_axis, field_of
from declax.nn._defaults import OutSharding
from declax.nn._gathering import gathered
from declax.nn.contractions import LinearGeneral, sizes_of
from declax.nn.layer import Layer
from declax.nn.linear import Linear

default_a_initializer: Initializer = he_uniform()
default_b_initializer: Initializer = zeros


class LoRAParam(Param[T]):
    """A parameter of a low-rank adapter; selects adapters in filters.

    >>> import declax as dx
    >>> layer = dx.LoRALinear(4, 2, lora_rank=1, rngs=dx.Rngs(0))
    >>> dx.state(layer, dx.LoRAParam).paths
    (('lora', 'lora_a'), ('lora', 'lora_b'))
    """

    __slots__ = ()


def _factor(
    kind: type[Variable[Any]],
    initializer: Initializer,
    shape: tuple[int, int],
    dtype: Dtype,
    metadata: Mapping[str, Any],
    rngs: Rngs | None = None,
) -> Variable[jax.Array]:
    return kind(initializer(needed_rngs(rngs).params(), shape, dtype), **metadata)


@dataclass
class LoRA(Layer):
    """A low-rank map, alone or beside another module.

    ``y = x @ lora_a @ lora_b + base_module(x)``

    The second factor starts at 0, so that an adapter first leaves its base unchanged.

    Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", https://arxiv.org/abs/2106.09685.

    Args:
      in_features: size of the last axis of the input.
      lora_rank: the rank of the map.
      out_features: size of the last axis of the output.
      base_module: a module whose output is added; None adds nothing.
      dtype: dtype of the computation; None infers it from input and parameters.
      param_dtype: dtype in which the factors are stored.
      a_initializer: makes the first factor, of shape ``(in_features, lora_rank)``.
      b_initializer: makes the second factor, of shape ``(lora_rank, out_features)``.
      lora_param_type: the type of Variable of both factors.
      promote_dtype: brings ``(inputs, lora_a, lora_b)`` to one dtype.
      rngs: gives one key to each factor, from `params`.
      a_metadata: metadata of the first factor.
      b_metadata: metadata of the second factor.
      lora_a: the first factor.
      lora_b: the second factor.

    Raises:
      LayerError: for a size below 1, for an input whose last axis is not `in_features`, and for a base that cannot be
        called.

    >>> import declax as dx
    >>> base = dx.Linear(3, 4, rngs=dx.Rngs(0))
    >>> layer = dx.LoRA(3, 2, 4, base_module=base, rngs=dx.Rngs(1))
    >>> bool((layer(jnp.ones(3)) == base(jnp.ones(3))).all())
    True
    """

    in_features: int = field(ge=1)
    lora_rank: int = field(ge=1)
    out_features: int = field(ge=1)
    _: KW_ONLY
    base_module: Module | None = field(default=None)
    dtype: Dtype | None = static(default_factory=COMPUTE_DTYPE)
    param_dtype: Dtype = static(default_factory=PARAM_DTYPE)
    a_initializer: InitVar[Initializer] = field(default=default_a_initializer)
    b_initializer: InitVar[Initializer] = field(default=default_b_initializer)
    lora_param_type: type[Variable[Any]] = static(default=LoRAParam)
    promote_dtype: dtypes.PromoteDtype = static(default=dtypes.promote_dtype)
    a_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    b_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    lora_a: Variable[jax.Array] = defer(_factor)(
        lora_param_type, a_initializer, (in_features, lora_rank), param_dtype, a_metadata
    )
    lora_b: Variable[jax.Array] = defer(_factor)(
        lora_param_type, b_initializer, (lora_rank, out_features), param_dtype, b_metadata
    )

    def __post_init__(self, *used_up: object) -> None:
        if self.base_module is not None and not callable(self.base_module):
            raise errors.LayerError(
                field_of(self, "base_module"),
                "the base cannot be called",
                expected="a module with __call__, or None",
                got=errors.describe(self.base_module),
            )

    def __call__(self, x: jax.Array, **kwargs: Any) -> jax.Array:
        """Applies the low-rank map, alone or beside the other module.

        Args:
          x: array of shape ``(..., in_features)``.
          **kwargs: further arguments of the base.

        Returns:
          Array of shape ``(..., out_features)``.
        """
        x, a, b = self.promote_dtype((x, self.lora_a.value, self.lora_b.value), dtype=self.dtype)
        check_last_axis(self, "in_features", x, "x")
        last = x.ndim - 1
        inner = x @ gathered(a, x, {0: last})
        y: jax.Array = inner @ gathered(b, inner, {0: last})
        base: Any = self.base_module
        return y if base is None else y + base(x, **kwargs)


@dataclass
class LoRALinear(Linear):
    """A `Linear` with a low-rank adapter, whose kernel and bias have the paths of a plain `Linear`.

    ``y = x @ kernel + bias + x @ lora.lora_a @ lora.lora_b``

    Args:
      in_features: size of the last axis of the input.
      out_features: size of the last axis of the output.
      lora_rank: the rank of the adapter.
      lora_dtype: dtype of the adapter's computation; None infers it from input and parameters.
      lora_param_dtype: dtype in which the factors are stored.
      a_initializer: makes the first factor, of shape ``(in_features, lora_rank)``.
      b_initializer: makes the second factor, of shape ``(lora_rank, out_features)``.
      lora_param_type: the type of Variable of both factors.
      lora_promote_dtype: brings ``(inputs, lora_a, lora_b)`` to one dtype.
      a_metadata: metadata of the first factor.
      b_metadata: metadata of the second factor.
      rngs: gives one key each to kernel, bias and the two factors, from `params`.
      lora: the adapter.

    The other arguments are those of `Linear`.

    Raises:
      LayerError: for a size below 1, and for an input whose last axis is not `in_features`.

    >>> import declax as dx
    >>> layer = dx.LoRALinear(3, 4, lora_rank=2, rngs=dx.Rngs(0))
    >>> layer(jnp.ones(3)).shape, layer.lora.lora_a.shape
    ((4,), (3, 2))
    """

    _: KW_ONLY
    lora_rank: int = field(ge=1)
    lora_dtype: Dtype | None = static(default_factory=COMPUTE_DTYPE)
    lora_param_dtype: Dtype = static(default_factory=PARAM_DTYPE)
    a_initializer: InitVar[Initializer] = field(default=default_a_initializer)
    b_initializer: InitVar[Initializer] = field(default=default_b_initializer)
    lora_param_type: type[Variable[Any]] = static(default=LoRAParam)
    lora_promote_dtype: dtypes.PromoteDtype = static(default=dtypes.promote_dtype)
    a_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    b_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    lora: LoRA = LoRA(
        Linear.in_features,
        lora_rank,
        Linear.out_features,
        dtype=lora_dtype,
        param_dtype=lora_param_dtype,
        a_initializer=a_initializer,
        b_initializer=b_initializer,
        lora_param_type=lora_param_type,
        promote_dtype=lora_promote_dtype,
        a_metadata=a_metadata,
        b_metadata=b_metadata,
    )

    def __call__(self, inputs: jax.Array, out_sharding: OutSharding = None) -> jax.Array:
        """Applies the affine map of the last axis and its low-rank adapter.

        Args:
          inputs: array of shape ``(..., in_features)``.
          out_sharding: sharding of the output of the map, under explicit sharding.

        Returns:
          Array of shape ``(..., out_features)``.
        """
        return super().__call__(inputs, out_sharding) + self.lora(inputs)


@dataclass
class LoRALinearGeneral(LinearGeneral):
    """A `LinearGeneral` with a low-rank adapter of the matrix that its kernel stands for.

    ``y = linear(x) + x @ lora.lora_a @ lora.lora_b``, where the contracted axes of `x` are one axis, as are those that
    the result has at its end.

    Args:
      lora: the adapter, from all contracted elements to all elements of the result.

    The other arguments are those of `LinearGeneral`.

    Raises:
      LayerError: for batch axes, and an adapter of other sizes.

    >>> import declax as dx
    >>> adapter = dx.LoRA(6, 1, 8, rngs=dx.Rngs(0))
    >>> layer = dx.LoRALinearGeneral((2, 3), (2, 4), axis=(-2, -1), lora=adapter, rngs=dx.Rngs(0))
    >>> layer(jnp.ones((5, 2, 3))).shape
    (5, 2, 4)
    """

    _: KW_ONLY
    lora: LoRA = field()

    def __post_init__(self, *used_up: object) -> None:
        super().__post_init__()
        wanted = math.prod(sizes_of(self.in_features)), math.prod(sizes_of(self.out_features))
        given = self.lora.in_features, self.lora.out_features
        if self.batch_axis or wanted != given:
            raise errors.LayerError(
                field_of(self, "lora"),
                "the adapter does not fit the layer",
                expected=f"a LoRA from {wanted[0]} to {wanted[1]} features, for a layer without batch_axis",
                got=f"a LoRA from {given[0]} to {given[1]} features, and batch_axis={dict(self.batch_axis)}",
            )

    def __call__(self, inputs: jax.Array, out_sharding: OutSharding = None) -> jax.Array:
        """Applies the affine map of some axes and its low-rank adapter.

        Args:
          inputs: array whose axes `axis` have the sizes `in_features`.
          out_sharding: sharding of the output of the map, under explicit sharding.

        Returns:
          Array with the axes of the input that are not contracted, then those of `out_features`.
        """
        y = super().__call__(inputs, out_sharding)
        axes = self._axes_of(inputs)
        rest = [size for axis, size in enumerate(inputs.shape) if axis not in axes]
        x = jnp.moveaxis(inputs, axes, range(-len(axes), 0)).reshape(*rest, self.lora.in_features)
        return y + self.lora(x).reshape(y.shape)


if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
