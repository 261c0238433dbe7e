"""Attention over a sequence that is split among devices.

Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context", https://arxiv.org/abs/2310.01889.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import declax as dx

AXIS = "sequence"


def attend(query: jax.Array, key: jax.Array, value: jax.Array, *, is_causal: bool = False, **options: Any) -> jax.Array:
    """`dx.dot_product_attention`, as a ring if the mesh has an axis for the sequence.

    Args:
      query, key, value: arrays of shape (n, length, heads, features).
      is_causal: whether each position looks at earlier ones only; a ring always does.
      options: others of `dx.dot_product_attention`.
    """
    if not is_causal or AXIS not in jax.sharding.get_abstract_mesh().axis_names:
        return dx.dot_product_attention(query, key, value, is_causal=is_causal, **options)
    spec = jax.P(None, AXIS)
    ring: Any = dx.shard_map(_ring, in_specs=(spec, spec, spec), out_specs=spec, axis_names={AXIS})
    attended: jax.Array = ring(query, key, value)
    return attended


def _ring(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Causal attention of one shard of queries; the shards of keys and values pass from device to device.

    The softmax is corrected at each shard for the largest logit so far.
    """
    size, own, length = jax.lax.axis_size(AXIS), jax.lax.axis_index(AXIS), query.shape[1]
    positions = jnp.arange(length)
    query = jnp.moveaxis(query, 1, 2) / jnp.sqrt(query.shape[-1]).astype(query.dtype)  # (n, heads, length, features)
    total, norm = jnp.zeros_like(query), jnp.zeros_like(query[..., :1])
    largest = jnp.full_like(norm, -jnp.inf)
    for number in range(size):
        is_earlier = (own - number) % size * length + positions <= own * length + positions[:, None]
        logits = jnp.where(is_earlier, jnp.einsum("nhqd,nkhd->nhqk", query, key), -jnp.inf)
        before, largest = largest, jnp.maximum(largest, jax.lax.stop_gradient(logits.max(-1, keepdims=True)))
        weights, correction = jnp.exp(logits - largest), jnp.exp(before - largest)
        norm = norm * correction + weights.sum(-1, keepdims=True)
        total = total * correction + jnp.einsum("nhqk,nkhd->nhqd", weights, value)
        if number < size - 1:
            ring = [(device, (device + 1) % size) for device in range(size)]
            key, value = jax.lax.ppermute((key, value), AXIS, ring)
    return jnp.moveaxis(total / norm, 1, 2)
