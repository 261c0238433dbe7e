"""Which tokens go to which experts, and back: arrays of integers, and the moves that follow from them."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class Choices(NamedTuple):
    """The experts of each token, of the shape ``(examples, length, top_k)``.

    Attributes:
      experts: their numbers, the most probable first.
      weights: how much each of them counts.
    """

    experts: jax.Array
    weights: jax.Array


def choose(probabilities: jax.Array, top_k: int, *, renormalize: bool) -> Choices:
    """The most probable experts of each token.

    >>> choose(jnp.array([[[0.5, 0.1, 0.3, 0.1]]]), 2, renormalize=False).experts
    Array([[[0, 2]]], dtype=int32)
    """
    # Of JAX 0.10.2, XLA gathers the batch for `top_k`, and derivatives of `sort` raise on explicit axes.
    fixed, count = lax.stop_gradient(probabilities), probabilities.shape[-1]
    numbers = jnp.zeros_like(fixed, jnp.int32) + jnp.arange(count, dtype=jnp.int32)
    experts = lax.sort((-fixed, numbers), num_keys=1)[1][..., :top_k]
    weights = (jax.nn.one_hot(experts, count, dtype=fixed.dtype) * probabilities[..., None, :]).sum(-1)
    if renormalize:
        weights = weights / weights.sum(-1, keepdims=True)
    return Choices(experts, weights)


def balance_loss(probabilities: jax.Array, experts: jax.Array) -> jax.Array:
    """Of Switch Transformers: 1 if all experts are chosen equally often, and their number if one is always chosen.

    >>> float(balance_loss(jnp.full((1, 4, 2), 0.5), jnp.array([[[0], [1], [0], [1]]])))
    1.0
    """
    count = probabilities.shape[-1]
    chosen = jax.nn.one_hot(experts, count, dtype=probabilities.dtype).mean((0, 1, 2))
    return count * (chosen * probabilities.mean((0, 1))).sum()


def capacity(factor: float, top_k: int, length: int, num_experts: int) -> int:
    """How many tokens of an example an expert accepts; `length` may be symbolic.

    >>> capacity(1.25, 2, 16, 4), capacity(100.0, 2, 16, 4)
    (10, 16)
    """
    mean = Fraction(factor).limit_denominator(1 << 10) * Fraction(top_k, num_experts)
    if mean >= 1:  # no expert has a token twice
        return length
    return (length * mean.numerator + mean.denominator - 1) // mean.denominator


def slots_of(experts: jax.Array, num_experts: int, size: int) -> jax.Array:
    """For each choice, its place among the slots of all experts in its example, of which each expert has `size`.

    First choices come first, each choice in the order of the tokens. Choices for which there is no slot get the number
    of slots, which is none of them.

    Args:
      experts: array of shape ``(examples, length, top_k)``.
      num_experts: how many experts there are.
      size: how many slots each has.

    >>> slots_of(jnp.array([[[0, 1], [0, 1], [0, 2]]]), 3, 2)
    Array([[[0, 2],
            [1, 3],
            [6, 4]]], dtype=int32)
    """
    examples, length, top_k = experts.shape
    ordered = experts.swapaxes(1, 2).reshape(examples, top_k * length)
    chosen = jax.nn.one_hot(ordered, num_experts, dtype=jnp.int32)
    place = (jnp.cumsum(chosen, 1) * chosen).sum(-1, dtype=jnp.int32) - 1
    slots = jnp.where(place < size, ordered * size + place, num_experts * size)
    return slots.reshape(examples, top_k, length).swapaxes(1, 2)


def dispatch(tokens: jax.Array, slots: jax.Array, num_experts: int, size: int) -> jax.Array:
    """The tokens in the slots of the experts, and zeros in free slots: ``(examples, experts, size, features)``."""

    def of_example(tokens: jax.Array, slots: jax.Array) -> jax.Array:
        length = slots.shape[0]
        sources = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32)[:, None], slots.shape)
        free = jnp.full(num_experts * size, length, jnp.int32)
        token_of = free.at[slots.reshape(-1)].set(sources.reshape(-1), mode="drop")
        return tokens.at[token_of].get(mode="fill", fill_value=0).reshape(num_experts, size, tokens.shape[-1])

    return jax.vmap(of_example)(tokens, slots)


def combine(results: jax.Array, slots: jax.Array, weights: jax.Array) -> jax.Array:
    """The weighted sum of the results of each token's experts: from slots back to ``(examples, length, features)``."""

    def of_example(results: jax.Array, slots: jax.Array, weights: jax.Array) -> jax.Array:
        rows = results.reshape(-1, results.shape[-1])
        return (rows.at[slots].get(mode="fill", fill_value=0) * weights[..., None]).sum(1)

    return jax.vmap(of_example)(results, slots, weights)
