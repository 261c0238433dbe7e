"""Loss scaling, for gradients that float16 is too narrow for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jax
import jax.numpy as jnp

from declax import errors
from declax.training._transformation import Transformation, check_transformation

if TYPE_CHECKING:
    import optax

_ALWAYS: Final = 2**31 - 1
"""How many steps in a row optax may skip: all of them, since each lowers the scale."""


_SMALLEST: Final = 2.0**-126
"""The smallest scale: the least normal number of float32."""


class LossScaleState(NamedTuple):
    """The state of `dynamic_loss_scale`.

    Attributes:
      scale: the factor for the next loss, a float32.
      good_steps: the number of steps since the scale has changed.
      inner: the state of `optax.apply_if_finite`; ``inner.inner_state`` is that of the transformation, and
        ``inner.total_notfinite`` counts the steps that were skipped.
    """

    scale: jax.Array
    good_steps: jax.Array
    inner: Any


def dynamic_loss_scale(
    tx: Transformation,
    /,
    *,
    scale: float = 2.0**15,
    growth_interval: int = 2000,
    growth: float = 2.0,
    backoff: float = 0.5,
) -> optax.GradientTransformation:
    """An optax transformation for the gradients of a loss that is multiplied by a scale.

    It divides the gradients by the scale. If one of them is not finite, the step is skipped: parameters and the state
    of `tx` stay, and the scale is multiplied by `backoff`. After `growth_interval` steps without that, it is multiplied
    by `growth`. So the scale stays near the largest one that the dtype allows.

    Multiply the loss by ``optimizer.opt_state.scale.value`` inside of the function that is differentiated. Keep the
    parameters in float32 (``dx.Policy(compute=jnp.float16)``): the gradients are divided in their own dtype.

    Micikevicius et al., "Mixed Precision Training", https://arxiv.org/abs/1710.03740.

    Args:
      tx: an optax transformation.
      scale: the scale at the start.
      growth_interval: the number of steps after which the scale grows.
      growth: the factor by which it grows.
      backoff: the factor after a step that was skipped.

    Returns:
      The transformation, with a `LossScaleState`.

    Raises:
      OptimizerError: for a scale that is not positive, a `growth` below 1, and a `backoff` that is not below 1.

    >>> import optax
    >>> import declax as dx
    >>> model = dx.Linear(1, 1, rngs=dx.Rngs(0))
    >>> optimizer = dx.Optimizer(model, dx.dynamic_loss_scale(optax.sgd(0.1), scale=8.0))
    >>> def scaled_loss(model, scale):
    ...     loss = jnp.sum(model(jnp.ones((1, 1))) ** 2)
    ...     return loss * scale, loss
    >>> grads, loss = dx.grad(scaled_loss, has_aux=True)(model, optimizer.opt_state.scale.value)
    >>> _ = optimizer.update(model, grads)
    >>> _ = optimizer.update(model, jax.tree.map(lambda g: g * jnp.inf, grads))        # is skipped
    >>> float(optimizer.opt_state.scale), int(optimizer.opt_state.inner.total_notfinite)
    (4.0, 1)
    """
    import optax  # declax starts without it

    _check(scale, growth_interval, growth, backoff)
    check_transformation("dynamic_loss_scale.tx", tx, "dx.dynamic_loss_scale(optax.adam(1e-3))")
    guarded: Any = optax.apply_if_finite(tx, _ALWAYS)  # type: ignore[arg-type]  # MultiSteps has init and update too

    def init(params: Any) -> LossScaleState:
        return LossScaleState(jnp.float32(scale), jnp.int32(0), guarded.init(params))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, LossScaleState]:
        unscaled = jax.tree.map(lambda g: (g.astype(jnp.float32) / state.scale).astype(g.dtype), updates)
        updates, inner = guarded.update(unscaled, state.inner, params, **extra)
        good_steps = jnp.where(inner.last_finite, state.good_steps + 1, 0)
        grown = jnp.where(good_steps >= growth_interval, state.scale * growth, state.scale)
        grown = jnp.where(jnp.isfinite(grown), grown, state.scale)
        new = jnp.where(inner.last_finite, grown, jnp.maximum(state.scale * backoff, _SMALLEST))
        return updates, LossScaleState(new, jnp.where(new == state.scale, good_steps, 0), inner)

    return optax.GradientTransformationExtraArgs(init, update)


def _check(scale: float, growth_interval: int, growth: float, backoff: float) -> None:
    problems = {
        "scale": (scale, "a number above 0", scale > 0),
        "growth_interval": (growth_interval, "an integer of at least 1", growth_interval >= 1),
        "growth": (growth, "a number of at least 1; 1 keeps the scale", growth >= 1),
        "backoff": (backoff, "a number between 0 and 1", 0 < backoff < 1),
    }
    for name, (given, expected, is_fine) in problems.items():
        if not is_fine:
            raise errors.OptimizerError(
                f"dynamic_loss_scale.{name}", "the scale could not adapt", expected=expected, got=repr(given)
            )
