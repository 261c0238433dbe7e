"""A transformer that configurations describe, for the benchmarks. It has parts of two kinds, with ranges and names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import declax as dx


@dx.dataclass
class Attention(dx.Layer):
    """Causal attention of several heads."""

    dim: int = dx.static(ge=1)
    heads: int = dx.static(default=8, ge=1, le=128, help="how many views there are")
    query = dx.Linear(dim, dim, use_bias=False)
    key = dx.Linear(dim, dim, use_bias=False)
    value = dx.Linear(dim, dim, use_bias=False)
    out = dx.Linear(dim, dim, use_bias=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        split = (*x.shape[:-1], self.heads, self.dim // self.heads)
        query, key, value = (layer(x).reshape(split) for layer in (self.query, self.key, self.value))
        mixed: jax.Array = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.reshape(x.shape))


@dx.dataclass
class Shift(dx.Layer):
    """Adds what came before."""

    dim: int = dx.static(ge=1)
    by: int = dx.static(default=1, ge=1, le=16)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + jnp.roll(x, self.by, axis=-2)


@dx.dataclass
class Gated(dx.Layer):
    """Three layers, of which one is a gate."""

    dim: int = dx.static(ge=1)
    hidden: int = dx.static(ge=1)
    activation: Callable[[jax.Array], jax.Array] = dx.static(default=dx.silu)
    up = dx.Linear(dim, hidden, use_bias=False)
    gate = dx.Linear(dim, hidden, use_bias=False)
    down = dx.Linear(hidden, dim, use_bias=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(self.activation(self.gate(x)) * self.up(x))


@dx.dataclass
class Mlp(dx.Layer):
    """Two layers."""

    dim: int = dx.static(ge=1)
    hidden: int = dx.static(ge=1)
    activation: Callable[[jax.Array], jax.Array] = dx.static(default=dx.gelu)
    up = dx.Linear(dim, hidden, use_bias=False)
    down = dx.Linear(hidden, dim, use_bias=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(self.activation(self.up(x)))


@dx.dataclass
class Block(dx.Layer):
    """A mixer over the positions and one over the features, each behind a norm."""

    mixer: Attention | Shift
    mlp: Gated | Mlp
    norms: list[dx.LayerNorm]
    rate: float = dx.static(default=0.0, ge=0, le=1)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.mixer(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


@dx.dataclass
class Transformer(dx.Layer):
    """Blocks between an embedding and a layer."""

    embed: dx.Embed
    blocks: list[Block]
    head: dx.Linear

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def config(blocks: int, dim: int = 4096, hidden: int = 11008, heads: int = 32, *, is_mixed: bool = False) -> Any:
    """The plain data of a transformer, as a file has it; of the sizes of one of 7 billion parameters in 32 blocks.

    Args:
      blocks: how many.
      dim: the width of the stream.
      hidden: the width inside.
      heads: of the attention.
      is_mixed: whether blocks of both kinds take turns.
    """
    norm = {"kind": "LayerNorm", "num_features": dim, "param_dtype": "float32"}

    def block(index: int) -> Any:
        is_other = is_mixed and index % 2 == 1
        attention = {"kind": "Attention", "dim": dim, "heads": heads}
        gated = {"kind": "Gated", "dim": dim, "hidden": hidden}
        return {
            "kind": "Block",
            "mixer": {"kind": "Shift", "dim": dim, "by": 2} if is_other else attention,
            "mlp": {"kind": "Mlp", "dim": dim, "hidden": hidden, "activation": "relu"} if is_other else gated,
            "norms": [dict(norm), dict(norm)],
            "rate": 0.1,
        }

    return {
        "kind": "Transformer",
        "embed": {"kind": "Embed", "num_embeddings": 32_000, "features": dim},
        "blocks": [block(index) for index in range(blocks)],
        "head": {"kind": "Linear", "in_features": dim, "out_features": 32_000, "use_bias": False},
    }
