"""Dot-product attention, as functions."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from declax import errors
from declax._jax import is_symbolic
from declax._module.module import Module
from declax._typing import Dtype, PrecisionLike
from declax._variables.kinds import Intermediate
from declax.nn import dtypes
from declax.nn._checks import check_broadcasts, check_mask
from declax.nn.masks import FIX_OF_MASK, near_positions, of_one_segment
from declax.nn.rope import RoPE


def dot_product_attention_weights(
    query: jax.Array,
    key: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    broadcast_dropout: bool = True,
    dropout_rng: jax.Array | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Dtype | None = None,
    precision: PrecisionLike = None,
    module: Module | None = None,
    promote_dtype: dtypes.PromoteDtype = dtypes.promote_dtype,
    is_causal: bool = False,
    *,
    logits_soft_cap: float | None = None,
) -> jax.Array:
    """How much each query looks at each key: ``softmax(query @ key.T / sqrt(features) + bias)``, 0 outside the mask.

    Args:
      query: array of shape ``(*batch, queries, heads, features)``.
      key: array of shape ``(*batch, keys, key heads, features)``. Each head of the keys serves as many heads of the
        queries as there are for one.
      bias: added to the logits; broadcasts to ``(*batch, heads, queries, keys)``.
      mask: where queries may look, of such a shape. A query that may look nowhere looks everywhere.
      broadcast_dropout: drop the same pairs for all heads and examples.
      dropout_rng: the key for dropout.
      dropout_rate: the probability of dropping a pair.
      deterministic: drop nothing.
      dtype: dtype of the computation; None infers it.
      precision: numerical precision of the products, as `jax.lax.Precision`.
      module: sows the weights before dropout as an `Intermediate` with the name ``attention_weights``.
      promote_dtype: brings ``(query, key)`` to one dtype.
      is_causal: let each query look at no later key.
      logits_soft_cap: bounds the logits by ``cap * tanh(logits / cap)`` before `bias` and `mask`, as in Gemma 2,
        https://arxiv.org/abs/2408.00118.

    Returns:
      Array of shape ``(*batch, heads, queries, keys)``.

    Raises:
      LayerError: for arrays whose shapes do not fit each other, for a mask with negative numbers, and for
        dropout without a key.

    >>> import declax as dx
    >>> dx.nn.dot_product_attention_weights(jnp.ones((2, 1, 4)), jnp.ones((3, 1, 4)), is_causal=True).round(2).tolist()
    [[[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]]
    """
    query, key = promote_dtype((query, key), dtype=dtype)
    _check_shapes(query, key)
    check_mask("dot_product_attention.mask", mask, FIX_OF_MASK)
    groups = query.shape[-2] // key.shape[-2]
    query = query / jnp.sqrt(query.shape[-1]).astype(query.dtype)
    logits = jnp.einsum("...qhgd,...khd->...hgqk", _in_groups(query, groups, axis=-2), key, precision=precision)
    weights = logits.reshape(*logits.shape[:-4], query.shape[-2], *logits.shape[-2:])
    if logits_soft_cap is not None:
        weights = logits_soft_cap * jnp.tanh(weights / logits_soft_cap)
    if bias is not None:
        weights = weights + bias
    if is_causal:
        causal = jnp.tril(jnp.ones(weights.shape[-2:], bool))
        mask = causal if mask is None else jnp.logical_and(mask, causal)
    if mask is not None:
        weights = jnp.where(mask, weights, jnp.finfo(weights.dtype).min)  # type: ignore[no-untyped-call]  # jax leaves it untyped
    weights = dtypes.cast(jax.nn.softmax(weights), query.dtype)
    if module is not None:
        Module.sow(module, Intermediate, "attention_weights", weights)
    if deterministic or dropout_rate == 0:
        return weights
    shape = (*(1,) * (weights.ndim - 2), *weights.shape[-2:]) if broadcast_dropout else weights.shape
    return weights * _kept(dropout_rng, dropout_rate, shape, query.dtype)


def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    broadcast_dropout: bool = True,
    dropout_rng: jax.Array | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Dtype | None = None,
    precision: PrecisionLike = None,
    module: Module | None = None,
    promote_dtype: dtypes.PromoteDtype = dtypes.promote_dtype,
    is_causal: bool = False,
    *,
    logits_soft_cap: float | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    segment_ids: jax.Array | tuple[jax.Array, jax.Array] | None = None,
    query_offset: int | jax.Array = 0,
) -> jax.Array:
    """Gives each query the mean of the values, weighted by `dot_product_attention_weights`.

    Without dropout, `precision`, `module` and `logits_soft_cap`, `jax.nn.dot_product_attention` computes it.

    Vaswani et al., "Attention Is All You Need", https://arxiv.org/abs/1706.03762.

    Args:
      query: array of shape ``(*batch, queries, heads, features)``.
      key: array of shape ``(*batch, keys, key heads, features)``.
      value: array of shape ``(*batch, keys, key heads, value features)``.
      bias, mask, broadcast_dropout, dropout_rng, dropout_rate, deterministic: as in `dot_product_attention_weights`.
      dtype, precision, module, is_causal, logits_soft_cap: likewise.
      promote_dtype: brings ``(query, key, value)`` to one dtype.
      local_window_size: how many positions a query looks back and ahead: one number for both, or a pair.
      segment_ids: integers of shape ``(*batch, length)``, or a pair of these for queries and keys. A query looks at
        the keys of its segment only, so that several texts fit into one row.
      query_offset: the position of the first query among the keys, for `is_causal` and `local_window_size`.

    Returns:
      Array of shape ``(*batch, queries, heads, value features)``.

    Raises:
      LayerError: for arrays whose shapes do not fit each other, for a mask or bias that does not broadcast to the
        pairs, for a mask with negative numbers, and for dropout without a key.

    >>> import declax as dx
    >>> query, key, value = jnp.ones((2, 5, 8, 4)), jnp.ones((2, 6, 2, 4)), jnp.ones((2, 6, 2, 4))
    >>> dx.dot_product_attention(query, key, value).shape
    (2, 5, 8, 4)
    """
    query, key, value = promote_dtype((query, key, value), dtype=dtype)
    _check_shapes(query, key, value)
    check_mask("dot_product_attention.mask", mask, FIX_OF_MASK)
    if segment_ids is not None:
        mask = _both(mask, of_one_segment(segment_ids, query.shape[:-2], key.shape[:-2]))
    if local_window_size is not None or not (isinstance(query_offset, int) and query_offset == 0):
        near = near_positions(query.shape[-3], key.shape[-3], query_offset, is_causal, local_window_size)
        mask, is_causal = _both(mask, near), False
    if dropout_rate == 0 and module is None and precision is None and logits_soft_cap is None:
        return _fused(query, key, value, bias, mask, is_causal)
    weights = dot_product_attention_weights(
        query,
        key,
        bias,
        mask,
        broadcast_dropout,
        dropout_rng,
        dropout_rate,
        deterministic,
        query.dtype,
        precision,
        module,
        promote_dtype,
        is_causal,
        logits_soft_cap=logits_soft_cap,
    )
    groups = query.shape[-2] // value.shape[-2]
    out = jnp.einsum("...hgqk,...khd->...qhgd", _in_groups(weights, groups, axis=-3), value, precision=precision)
    return out.reshape(*out.shape[:-3], query.shape[-2], value.shape[-1])


def _both(mask: jax.Array | None, other: jax.Array | None) -> jax.Array | None:
    if mask is None or other is None:
        return other if mask is None else mask
    return jnp.logical_and(mask.astype(bool), other)


def _in_groups(x: jax.Array, groups: int, axis: int) -> jax.Array:
    """Splits the axis of heads into heads of the keys and groups."""
    axis %= x.ndim
    return x.reshape(*x.shape[:axis], x.shape[axis] // groups, groups, *x.shape[axis + 1 :])


def _kept(key: jax.Array | None, rate: float, shape: tuple[int, ...], dtype: Dtype) -> jax.Array:
    if key is None:
        raise errors.LayerError(
            "dot_product_attention.dropout_rng",
            "there is no source of random numbers",
            expected="a key",
            got="None",
            why=f"the dropout rate is {rate}",
            fix="dropout_rng=rngs.dropout(), or deterministic=True",
        )
    keep = jax.random.bernoulli(key, 1.0 - rate, shape)
    return keep.astype(dtype) / jnp.asarray(1.0 - rate, dtype)


def _fused(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None,
    mask: jax.Array | None,
    is_causal: bool,
) -> jax.Array:
    """JAX's attention, which takes one batch axis at most."""
    batch = query.shape[:-3]
    pairs = (*batch, query.shape[-2], query.shape[-3], key.shape[-3])

    def flat(x: Any) -> Any:
        if x is None or len(batch) <= 1:
            return x
        return jnp.broadcast_to(x, (*batch, *x.shape[-3:])).reshape(math.prod(batch), *x.shape[-3:])

    def of_pairs(name: str, x: Any) -> Any:
        if x is None:
            return None
        check_broadcasts(f"dot_product_attention.{name}", name, x, "(*batch, heads, queries, keys)", pairs)
        return flat(x.reshape((1,) * (len(pairs) - x.ndim) + x.shape))

    mask = None if mask is None else of_pairs("mask", mask.astype(bool))
    scale = 1.0 if is_symbolic(query.shape[-1]) else None  # a check for all sizes needs no values
    with jax.numpy_dtype_promotion("standard"):  # which JAX's function needs
        out: jax.Array = jax.nn.dot_product_attention(
            flat(query), flat(key), flat(value), of_pairs("bias", bias), mask, scale=scale, is_causal=is_causal
        )
    return out.reshape(*query.shape[:-1], value.shape[-1])


def _check_shapes(query: jax.Array, key: jax.Array, value: jax.Array | None = None) -> None:
    """Checks that the arrays fit each other: batch axes, lengths, features and heads."""
    values = key if value is None else value
    given = {"query": query, "key": key} | ({} if value is None else {"value": value})
    if min(query.ndim, key.ndim, values.ndim) < 3 or not query.ndim == key.ndim == values.ndim:
        wrong = "the arrays must have the same rank, at least 3"
    elif not query.shape[:-3] == key.shape[:-3] == values.shape[:-3]:
        wrong = "the batch dims must match"
    elif key.shape[-3] != values.shape[-3]:
        wrong = "key and value lengths must match"
    elif query.shape[-1] != key.shape[-1]:
        wrong = "the depths must match between queries and keys"
    elif query.shape[-2] % key.shape[-2] or key.shape[-2] != values.shape[-2]:
        wrong = "the heads of queries must be a multiple of those of keys and values"
    else:
        return
    raise errors.LayerError(
        "dot_product_attention",
        wrong,
        expected="query (*batch, queries, heads, depth), key and value (*batch, keys, key heads, depth)",
        got=", ".join(f"{name} {array.shape}" for name, array in given.items()),
    )


def dot_product_attention_with_rope(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    rope: RoPE,
    input_positions: jax.Array | None = None,
    query_offset: int | jax.Array = 0,
    **options: Any,
) -> jax.Array:
    """`dot_product_attention` of queries and keys that are rotated by their positions.

    Args:
      query: array of shape ``(*batch, queries, heads, features)``.
      key: array of shape ``(*batch, keys, key heads, features)``.
      value: array of shape ``(*batch, keys, key heads, value features)``.
      rope: the rotation.
      input_positions: the positions of queries and keys, of shape ``(length,)`` or ``(*batch, length)``; None counts
        the keys from 0, and the queries from `query_offset`.
      query_offset: the position of the first query. In decoding, `MultiHeadAttention` passes it.
      **options: further arguments of `dot_product_attention`.

    Returns:
      Array of shape ``(*batch, queries, heads, value features)``.

    >>> import declax as dx
    >>> x = jnp.ones((2, 5, 3, 4))
    >>> dx.dot_product_attention_with_rope(x, x, x, rope=dx.RoPE(), is_causal=True).shape
    (2, 5, 3, 4)
    """
    of_queries = jnp.arange(query.shape[-3]) + query_offset if input_positions is None else input_positions
    query, key = rope(query, of_queries, axis=-3), rope(key, input_positions, axis=-3)
    return dot_product_attention(query, key, value, query_offset=query_offset, **options)
