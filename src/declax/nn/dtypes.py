"""Which dtype a layer computes in."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from declax import errors
from declax._typing import Dtype
from declax.nn._gathering import gathered

T = TypeVar("T", bound=tuple[Any, ...])


class PromoteDtype(Protocol):
    """A function that converts the input and parameters of a layer to one dtype."""

    def __call__(self, args: T, /, *, dtype: Dtype | None = None, inexact: bool = True) -> T:
        """Casts the arrays of a tuple, as `promote_dtype` does."""
        ...


def canonicalize_dtype(*args: Any, dtype: Dtype | None = None, inexact: bool = True) -> np.dtype[Any]:
    """The dtype in which to compute with some arrays.

    Args:
      *args: arrays or numbers; None is passed over.
      dtype: the result, if it is given.
      inexact: ask for a floating or complex dtype. Integers then count as float32.

    Raises:
      LayerError: where `inexact` is asked for and `dtype` is an integer or boolean dtype.

    >>> canonicalize_dtype(jnp.ones(2, jnp.bfloat16), None)
    dtype(bfloat16)
    >>> canonicalize_dtype(jnp.arange(3))
    dtype('float32')
    """
    if dtype is None:
        arrays = [jnp.asarray(arg) for arg in args if arg is not None]
        inferred = jnp.dtype(jnp.result_type(*arrays))
        if inexact and not jnp.issubdtype(inferred, jnp.inexact):
            return np.dtype(np.float32)
        return inferred
    given = jnp.dtype(dtype)
    if inexact and not jnp.issubdtype(given, jnp.inexact):
        raise errors.LayerError(
            "promote_dtype.dtype",
            "a layer cannot compute in this dtype",
            expected="a floating or complex dtype, such as jnp.float32",
            got=str(given),
            fix="promote_dtype(args, dtype=jnp.float32), or inexact=False where integers are meant",
        )
    return given


def promote_dtype(args: T, /, *, dtype: Dtype | None = None, inexact: bool = True) -> T:
    """Casts several arrays to the one dtype that `canonicalize_dtype` gives.

    Under ``jax.numpy_dtype_promotion("strict")`` mixed dtypes are an error
    unless `dtype` is given: an inferred dtype is an implicit promotion.

    Args:
      args: a tuple of arrays or numbers, of any shapes; None stays None.
      dtype: the dtype to cast to; None infers it from all of `args`.
      inexact: ask for a floating or complex dtype.

    Returns:
      The tuple, with arrays of one dtype.

    Raises:
      LayerError: where `inexact` is asked for and `dtype` is none.

    >>> x, bias = promote_dtype((jnp.arange(2), None))
    >>> x.dtype, bias
    (dtype('float32'), None)
    """
    if _is_promoted(args, dtype):
        return args
    common = canonicalize_dtype(*args, dtype=dtype, inexact=inexact)
    # Each place of the tuple keeps its type, which no annotation can say.
    return tuple([None if arg is None else jnp.asarray(arg, common) for arg in args])  # type: ignore[return-value]  # as above


def _is_promoted(args: tuple[Any, ...], dtype: Dtype | None) -> bool:
    """Whether all arrays have one floating or complex dtype, the asked one: while JAX traces, each cast takes time."""
    common: np.dtype[Any] | None = None
    for arg in args:
        if arg is None:
            continue
        found = jax.typeof(arg) if isinstance(arg, jax.Array) else None
        if found is None or found.weak_type:
            return False
        if common is not None and common != found.dtype:
            return False
        common = found.dtype
    if common is None or (dtype is not None and common != dtype):  # in NumPy, float64 == None
        return False
    return jnp.issubdtype(common, jnp.inexact)


def cast(x: jax.Array, dtype: Dtype) -> jax.Array:
    """As ``x.astype(dtype)``, but an array of that dtype as it is: while JAX traces, each cast takes time.

    >>> x = jnp.ones(2)
    >>> cast(x, jnp.float32) is x, cast(x, jnp.bfloat16).dtype
    (True, dtype(bfloat16))
    """
    is_cast = x.dtype == dtype and not getattr(x, "weak_type", False)
    return x if is_cast else x.astype(dtype)


def statistics_dtype(dtype: Dtype) -> np.dtype[Any]:
    """The dtype in which means and variances are taken: float32 at least.

    >>> statistics_dtype(jnp.bfloat16), statistics_dtype(jnp.complex64)
    (dtype('float32'), dtype('complex64'))
    """
    given = jnp.dtype(dtype)
    return given if given.itemsize >= 4 else np.dtype(np.float32)


def product_options(out_sharding: Any, preferred_element_type: Dtype | None) -> dict[str, Any]:
    """The keywords of a product of arrays that are given; a function of the user need not know the others.

    >>> list(product_options(None, jnp.float32))
    ['preferred_element_type']
    """
    given = {"out_sharding": out_sharding, "preferred_element_type": preferred_element_type}
    return {name: option for name, option in given.items() if option is not None}


def add_bias(y: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Adds a bias of shape ``(features,)`` to the last axis of `y`.

    The dtypes differ only where a layer has a `preferred_element_type`: a promotion that the user asked for.

    >>> add_bias(jnp.zeros((2, 3)), jnp.ones(3)).shape
    (2, 3)
    """
    if bias is None:
        return y
    bias = gathered(bias, y, {0: y.ndim - 1})
    bias = bias.reshape((1,) * (y.ndim - 1) + (-1,))
    if y.dtype == bias.dtype:
        return y + bias
    with jax.numpy_dtype_promotion("standard"):
        return y + bias
