"""Gradients of batches that are too large for memory."""

# Overloads overlap on purpose, as those of `grad`.
# mypy: disable-error-code="overload-overlap"
# pyright: reportOverlappingOverload=false, reportInvalidTypeVarUse=false

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

import jax
import jax.numpy as jnp

from declax import _jax, errors
from declax._filters import Filter
from declax._state.states import State
from declax._variables.placement import devices_along_batch, explicit_spec, in_device_memory
from declax._variables.selection import is_trainable
from declax.transforms._engine.prefixes import Carry
from declax.transforms.abstract import eval_shape
from declax.transforms.autodiff import DiffState, value_and_grad
from declax.transforms.scanning import scan

if TYPE_CHECKING:
    from declax.transforms._engine.signatures import F, LossOf, M, Of, P, ValueAndGradientOfLambda

    Models = TypeVar("Models", bound="list[Any] | tuple[Any, ...] | dict[Any, Any]")


@overload
def accumulate(loss: F, steps: int, *, wrt: Filter = is_trainable) -> ValueAndGradientOfLambda: ...
@overload
def accumulate(
    loss: LossOf[M, P], steps: int, *, wrt: Filter = is_trainable
) -> Of[M, P, tuple[jax.Array, State[M]]]: ...
@overload
def accumulate(
    loss: LossOf[Models, P], steps: int, *, wrt: Filter = is_trainable
) -> Of[Models, P, tuple[jax.Array, Any]]: ...
def accumulate(
    loss: Callable[..., Any], steps: int, *, wrt: Filter = is_trainable
) -> Callable[..., tuple[jax.Array, Any]]:
    """Computes a loss and its gradient over a batch in several steps, with the memory of one.

    Part i has the examples i, i + steps, i + 2 * steps, ... of each array of the batch, so that a batch that is split
    over devices stays where it is: each device takes a share of its own examples. A scan adds up the losses and
    gradients of the parts, and divides both by `steps`: if the loss is a mean over examples, the results are those of
    the whole batch. The model is carried: statistics and streams of random numbers go on from part to part. Call it
    inside of `dx.jit`.

    Args:
      loss: takes a model, and the arrays of a batch; returns a scalar.
      steps: the number of parts.
      wrt: a filter of the Variables that the gradient is for.

    Returns:
      A function that takes what `loss` takes, and returns the loss and the gradient: a State, as `dx.value_and_grad`
      does. Keyword arguments go to `loss` whole.

    Raises:
      TransformError: for `steps` below one, for an array of the batch whose first axis `steps` does not divide, and for
        arrays whose first axes differ.

    Warns:
      ReplicationWarning: the devices that split the batch cannot share a part equally; names the next size that works.
        On explicit axes, it is an error.

    >>> import declax as dx
    >>> model = dx.Linear(3, 1, rngs=dx.Rngs(0))
    >>> def loss_of(model, x, y):
    ...     return jnp.mean((model(x) - y) ** 2)
    >>> loss, grads = dx.accumulate(loss_of, steps=4)(model, jnp.ones((8, 3)), jnp.ones((8, 1)))
    >>> grads.kernel.shape
    (3, 1)
    """
    given: object = steps
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise errors.TransformError(
            "accumulate, steps",
            "this is not a number of steps",
            expected="an int of at least 1",
            got=errors.describe(steps),
            fix="dx.accumulate(loss, steps=4)",
        )

    def accumulated(model: Any, /, *batch: Any, **kwargs: Any) -> tuple[jax.Array, Any]:
        def loss_of(model: Any, part: Any) -> jax.Array:
            found: jax.Array = loss(model, *part, **kwargs)
            return found

        compute = value_and_grad(loss_of, argnums=DiffState(0, wrt), graph=True)
        _check_divisible(batch, steps)
        _check_equal_shares(batch, steps)
        parts = jax.tree.map(lambda x: _cut(x, steps), batch)
        shapes = eval_shape(compute, model, _part(parts, 0))
        # On explicit axes, the sharding is part of the type, which a loop keeps.
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype, out_sharding=leaf.sharding), shapes)

        @scan(in_axes=(Carry, 0), out_axes=Carry)
        def add(carry: Any, number: jax.Array) -> Any:
            model, total = carry
            return model, jax.tree.map(jnp.add, total, in_device_memory(compute(model, _part(parts, number))))

        _, total = add((model, zeros), jnp.arange(steps))
        mean: tuple[jax.Array, Any] = jax.tree.map(lambda x: x / steps, total)
        return mean

    return accumulated


def _check_equal_shares(batch: Any, steps: int) -> None:
    """Warns if the devices that split the batch cannot share a part equally; on explicit axes, it is an error."""
    x = max(map(jnp.asarray, jax.tree.leaves(batch)), key=devices_along_batch, default=None)
    if x is None or len(x) % (steps * devices_along_batch(x)) == 0:
        return
    devices = devices_along_batch(x)
    size = -(-len(x) // (steps * devices)) * steps * devices
    problem = f"{devices} devices cannot share a part of {len(x) // steps} examples equally"
    if explicit_spec(x) is not None:
        expected = f"a batch of {size}, for {steps} steps"
        raise errors.TransformError("accumulate: the batch", problem, expected=expected, got=errors.describe(x))
    warnings.warn(
        f"accumulate: {problem}, so that XLA moves examples between them. Take a batch of {size}, for {steps} steps.",
        errors.ReplicationWarning,
        stacklevel=_jax.level_of_user(sys._getframe()),
    )


def _part(parts: Any, number: jax.Array | int) -> Any:
    """The part of a number. As inputs of the scan, XLA would copy the whole batch."""
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, number, axis=1, keepdims=False), parts)


def _cut(given: Any, steps: int) -> jax.Array:
    """An array with an axis for the parts behind that of the examples of a part."""
    x = jnp.asarray(given)
    return x.reshape(x.shape[0] // steps, steps, *x.shape[1:])


def _check_divisible(batch: Any, steps: int) -> None:
    for path, given in jax.tree_util.tree_leaves_with_path(batch):
        x = jnp.asarray(given)
        if x.ndim == 0 or x.shape[0] % steps:
            raise errors.TransformError(
                f"accumulate: {jax.tree_util.keystr(path)} of the batch",
                f"{steps} steps do not divide the first axis",
                expected=f"an array whose first axis is a multiple of {steps}",
                got=errors.describe(x),
            )
    sizes = {len(x) for x in jax.tree.leaves(batch)}
    if len(sizes) > 1:
        raise errors.TransformError(
            "accumulate: the batch",
            "the arrays have first axes of different sizes",
            expected="one size, that of the batch",
            got=", ".join(map(str, sorted(sizes))),
            why="each array is cut along its first axis",
            fix="accumulated(model, x, y, table=table)        # keyword arguments go to the loss whole",
        )
