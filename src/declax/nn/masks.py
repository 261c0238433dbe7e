"""Masks of attention: arrays of shape ``(*batch, heads, queries, keys)`` that are nonzero where a query may look."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

import jax
import jax.numpy as jnp

from declax import errors
from declax._typing import Dtype
from declax.nn._checks import check_mask

FIX_OF_MASK: Final = (
    "mask=added == 0        # of an array that is 0 where a query may look\nbias=added        # adds it"
)
"""For a mask that is added to the logits, as in PyTorch: it would mean the opposite."""


def make_attention_mask(
    query_input: jax.Array,
    key_input: jax.Array,
    pairwise_fn: Callable[[jax.Array, jax.Array], jax.Array] = jnp.multiply,
    extra_batch_dims: int = 0,
    dtype: Dtype = jnp.float32,
) -> jax.Array:
    """Compares each query with each key.

    Args:
      query_input: array of shape ``(*batch, queries)``, such as 1 for tokens and 0 for padding, or numbers of segments.
      key_input: array of shape ``(*batch, keys)``.
      pairwise_fn: decides on a pair; `jnp.multiply` lets tokens look at tokens, `jnp.equal` at their own segment.
      extra_batch_dims: how many axes of size 1 to put before those of the batch.
      dtype: dtype of the mask.

    Returns:
      Array of shape ``(*batch, 1, queries, keys)``.

    >>> import declax as dx
    >>> segments = jnp.array([1, 1, 2])
    >>> dx.make_attention_mask(segments, segments, jnp.equal)[0].tolist()
    [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    mask = pairwise_fn(query_input[..., :, None], key_input[..., None, :])[..., None, :, :]
    return jnp.expand_dims(mask, tuple(range(extra_batch_dims))).astype(dtype)


def make_causal_mask(x: jax.Array, extra_batch_dims: int = 0, dtype: Dtype = jnp.float32) -> jax.Array:
    """A mask in which each position may look at itself and at those before it.

    Args:
      x: array of shape ``(*batch, length)``; its values do not count.
      extra_batch_dims: how many axes of size 1 to put before those of the batch.
      dtype: dtype of the mask.

    Returns:
      Array of shape ``(*batch, 1, length, length)``.

    >>> import declax as dx
    >>> dx.make_causal_mask(jnp.zeros(3))[0].tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    """
    positions = jnp.broadcast_to(jnp.arange(x.shape[-1], dtype=jnp.int32), x.shape)
    return make_attention_mask(positions, positions, jnp.greater_equal, extra_batch_dims, dtype)


def combine_masks(*masks: jax.Array | None, dtype: Dtype = jnp.float32) -> jax.Array | None:
    """Combines masks: a query may look where all of them allow it.

    Args:
      *masks: arrays of as many axes each, whose shapes broadcast; None lets all through.
      dtype: dtype of the mask.

    Returns:
      The mask, or None if all are None.

    Raises:
      LayerError: for masks with different numbers of axes, and for masks with negative numbers.

    >>> import declax as dx
    >>> dx.combine_masks(jnp.array([[1, 1]]), None, jnp.array([[1], [0]])).tolist()
    [[1.0, 1.0], [0.0, 0.0]]
    """
    given = [mask for mask in masks if mask is not None]
    if not given:
        return None
    if len({mask.ndim for mask in given}) > 1:
        raise errors.LayerError(
            "combine_masks",
            "the masks have different numbers of axes",
            expected="(*batch, heads, queries, keys) for each",
            got=", ".join(str(mask.shape) for mask in given),
            fix="mask[:, None]   # for one without an axis of heads",
        )
    for mask in given:
        check_mask("combine_masks", mask, FIX_OF_MASK)
    return functools.reduce(jnp.logical_and, given).astype(dtype)


def near_positions(
    queries: int, keys: int, offset: int | jax.Array, is_causal: bool, window: int | tuple[int, int] | None
) -> jax.Array | None:
    """Which keys are near enough, of shape ``(queries, keys)``; the first query is at the position `offset`."""
    before, after = (window, window) if window is None or isinstance(window, int) else window
    if (before is not None and before < 0) or (after is not None and after < 0):
        raise errors.LayerError(
            "dot_product_attention.local_window_size",
            "a window has negative size",
            expected="a number of positions, or a pair (back, ahead)",
            got=repr(window),
        )
    distance = (jnp.arange(queries) + offset)[:, None] - jnp.arange(keys)
    ahead = 0 if is_causal else after
    if before is None:
        return None if ahead is None else distance >= -ahead
    return distance <= before if ahead is None else jnp.logical_and(distance <= before, distance >= -ahead)


def of_one_segment(
    segment_ids: jax.Array | tuple[jax.Array, jax.Array], queries: tuple[int, ...], keys: tuple[int, ...]
) -> jax.Array:
    """Which queries and keys have one number, of shape ``(*batch, 1, queries, keys)``."""
    pair = segment_ids if isinstance(segment_ids, tuple) else (segment_ids, segment_ids)
    if (pair[0].shape, pair[1].shape) != (queries, keys):
        raise errors.LayerError(
            "dot_product_attention.segment_ids",
            "the segments do not fit queries and keys",
            expected=f"integers of shape {queries} for the queries and {keys} for the keys",
            got=" and ".join(errors.describe(ids) for ids in pair),
        )
    return make_attention_mask(*pair, jnp.equal, dtype=bool)
