"""Layers that draw random numbers when they are called."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from declax import errors
from declax._classes.decorator import dataclass
from declax._fields.specifiers import KW_ONLY, field
from declax._random.streams import Rngs, RngStream
from declax.nn._checks import axes_of, check_axes_type, decide, field_of, no_random_numbers
from declax.nn.layer import Layer


@dataclass
class Dropout(Layer):
    """Sets a random part of its input to zero, and scales the rest up.

    ``y = where(keep, x / (1 - rate), 0)``, each element of `keep` being True
    with probability ``1 - rate``, so that the mean of `y` is `x`.

    Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from
    Overfitting", https://jmlr.org/papers/v15/srivastava14a.html.

    `model.eval()` switches it off and `model.train()` on, by setting `deterministic`.

    Args:
      rate: the probability of setting an element to zero, from 0 to 1.
      broadcast_dims: axes along which all elements share one fate.
      deterministic: return the input unchanged. None leaves it to each call.
      rng_collection: the name of the stream that gives the keys.
      rngs: the source of keys. The layer forks its own stream, so that two layers made from one `Rngs` never share
        keys. Without it, each call has to be given `rngs`.

    Raises:
      LayerError: for a rate outside of 0 to 1, bad axes, `rngs` of another type, and a call that lacks `rngs` or
        `deterministic`, or whose input is not a floating or complex array.

    >>> import declax as dx
    >>> layer = dx.Dropout(0.5, rngs=dx.Rngs(0))
    >>> sorted(set(layer(jnp.ones(100)).tolist()))
    [0.0, 2.0]
    >>> layer.eval()
    >>> set(layer(jnp.ones(100)).tolist())
    {1.0}
    """

    rate: float = field(ge=0.0, le=1.0)
    _: KW_ONLY
    broadcast_dims: Sequence[int] = field(default=())
    deterministic: bool | None = field(default=False)
    rng_collection: str = field(default="dropout")
    rngs: Rngs | RngStream | None = field(default=None)  # type: ignore[assignment]  # it is kept

    def __post_init__(self) -> None:
        if self.broadcast_dims != ():
            check_axes_type(self, "broadcast_dims")
        if isinstance(self.rngs, Rngs):
            self.rngs = self.rngs[self.rng_collection].fork()
        elif isinstance(self.rngs, RngStream):
            self.rngs = self.rngs.fork()  # pyright: ignore[reportIncompatibleVariableOverride]  # it is kept
        elif self.rngs is not None:
            raise _not_rngs(self, self.rngs, "an Rngs, an RngStream or None")

    def __call__(
        self,
        inputs: jax.Array,
        *,
        deterministic: bool | None = None,
        rngs: Rngs | RngStream | jax.Array | None = None,
    ) -> jax.Array:
        """Sets a random part of the input to zero, and scales the rest up.

        Args:
          inputs: array of any shape, of a floating or complex dtype.
          deterministic: overrides the attribute of that name.
          rngs: an Rngs, a stream or a key, to use instead of the layer's own.

        Returns:
          Array of the shape and dtype of `inputs`.
        """
        return dropped(self, inputs, deterministic, rngs, lambda x: axes_of(self, "broadcast_dims", x, "inputs"))

    def set_view(self, deterministic: bool | None = None, **kwargs: Any) -> dict[str, Any]:
        """Sets attributes of a view; called by `dx.view`.

        Args:
          deterministic: return the input unchanged.
          **kwargs: arguments for other layers.

        Returns:
          The arguments for other layers.
        """
        if deterministic is not None:
            self.deterministic = deterministic
        return kwargs


def dropped(
    layer: Dropout,
    inputs: jax.Array,
    deterministic: bool | None,
    rngs: Rngs | RngStream | jax.Array | None,
    shared: Callable[[jax.Array], Collection[int]],
) -> jax.Array:
    """The input after dropout; elements along shared axes have one fate."""
    fix = "dropout(x, deterministic=True), or model.train() and model.eval()"
    is_deterministic = decide(layer, "deterministic", deterministic, fix)
    if is_deterministic or layer.rate == 0:
        return inputs
    if layer.rate == 1:
        return jnp.zeros_like(inputs)  # x / (1 - rate) would give NaN gradients
    inputs = jnp.asarray(inputs)
    if not jnp.issubdtype(inputs.dtype, jnp.inexact):
        raise errors.LayerError(
            field_of(layer, "rate"),
            "dropout cannot scale values of this dtype",
            expected="an array of a floating or complex dtype",
            got=errors.describe(inputs),
            fix="dropout(inputs.astype(jnp.float32))",
        )
    keep = _keep(layer, _key(layer, rngs), inputs, shared(inputs))
    return jnp.where(keep, inputs / (1.0 - layer.rate), jnp.zeros_like(inputs))


def _keep(layer: Dropout, key: jax.Array, inputs: jax.Array, shared: Collection[int]) -> jax.Array:
    """The mask, of size 1 along shared axes, with the sharding of the input."""
    shape = tuple(1 if axis in shared else size for axis, size in enumerate(inputs.shape))
    sharding = jax.typeof(inputs).sharding
    if shared:
        spec = (None if axis in shared else name for axis, name in enumerate(sharding.spec))
        sharding = sharding.update(spec=jax.P(*spec))  # type: ignore[no-untyped-call]  # jax leaves it untyped
    return jax.random.bernoulli(key, 1.0 - layer.rate, shape, out_sharding=sharding)


def _key(layer: Dropout, given: Rngs | RngStream | jax.Array | None) -> jax.Array:
    rngs = layer.rngs if given is None else given
    if isinstance(rngs, Rngs):
        return rngs[layer.rng_collection]()
    if isinstance(rngs, RngStream):
        return rngs()
    if isinstance(rngs, jax.Array):
        return rngs
    if rngs is not None:
        raise _not_rngs(layer, rngs, "an Rngs, an RngStream, a key or None")
    fix = "rngs=dx.Rngs(0) where the model is made, or dropout(x, rngs=rngs), or model.eval()"
    why = f"`deterministic` is False, but no `rngs` argument was provided to {errors.type_name(type(layer))}"
    raise no_random_numbers(layer, why, fix)


def _not_rngs(layer: Dropout, given: object, expected: str) -> errors.LayerError:
    return errors.LayerError(
        field_of(layer, "rngs"),
        "this is not a source of random keys",
        expected=expected,
        got=errors.describe(given),
        fix="rngs=dx.Rngs(0)",
    )
