"""GPT-2, and the map of its weights as `transformers` stores them.

Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
"""

from __future__ import annotations

import json
from pathlib import Path

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

import declax as dx
from declax.weights import WeightMap, reshape, split


@dx.dataclass(where=("{self.width} % {self.heads} == 0",))
class Block(dx.Layer):
    """Attention and a feed-forward network, each behind a norm and added to its input."""

    width: int = dx.field()
    heads: int = dx.field()
    epsilon: float = dx.field()
    attention_norm = dx.LayerNorm(width, epsilon=epsilon)
    attention = dx.MultiHeadAttention(heads, width, decode=False)
    mlp_norm = dx.LayerNorm(width, epsilon=epsilon)
    mlp = dx.MLP(width, 4 * width)

    def __call__(self, x: Float[Array, "n length {self.width}"]) -> Float[Array, "n length {self.width}"]:
        """Maps (n, length, width) to the same shape."""
        x = x + self.attention(self.attention_norm(x), is_causal=True)
        return x + self.mlp(self.mlp_norm(x))


@dx.dataclass(where=("length <= {self.context}", "{self.width} % {self.heads} == 0"))
class GPT2(dx.Layer):
    """Logits of the next token at each position; the head is the embedding."""

    vocabulary: int = dx.field(default=50257, ge=1)
    context: int = dx.field(default=1024, ge=1, help="the longest text, in tokens")
    width: int = dx.field(default=768, ge=1)
    heads: int = dx.field(default=12, ge=1)
    depth: int = dx.field(default=12, ge=1)
    epsilon: float = dx.field(default=1e-5, ge=0)
    tokens = dx.Embed(vocabulary, width)
    positions = dx.Embed(context, width)
    blocks = dx.repeat(depth, Block(width, heads, epsilon))
    norm = dx.LayerNorm(width, epsilon=epsilon)

    def __call__(self, tokens: Int[Array, "n length"]) -> Float[Array, "n length {self.vocabulary}"]:
        """Maps tokens (n, length) to logits (n, length, vocabulary)."""
        x = self.tokens(tokens) + self.positions(jnp.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.tokens.attend(self.norm(x))


QUERY_KEY_VALUE = [f"blocks[{{i}}].attention.{name}" for name in ("query", "key", "value")]

# The weights of `transformers.GPT2LMHeadModel`, whose linear layers have kernels of shape (inputs, outputs).
GPT2_MAP: WeightMap = {
    "transformer.wte.weight": "tokens.embedding",
    "transformer.wpe.weight": "positions.embedding",
    "transformer.h.{i}.ln_1.weight": "blocks[{i}].attention_norm.scale",
    "transformer.h.{i}.ln_1.bias": "blocks[{i}].attention_norm.bias",
    "transformer.h.{i}.attn.c_attn.weight": split(
        *(reshape(f"{path}.kernel", "i (h d) -> i h d") for path in QUERY_KEY_VALUE), axis=1
    ),
    "transformer.h.{i}.attn.c_attn.bias": split(
        *(reshape(f"{path}.bias", "(h d) -> h d") for path in QUERY_KEY_VALUE), axis=0
    ),
    "transformer.h.{i}.attn.c_proj.weight": reshape("blocks[{i}].attention.out.kernel", "(h d) o -> h d o"),
    "transformer.h.{i}.attn.c_proj.bias": "blocks[{i}].attention.out.bias",
    "transformer.h.{i}.ln_2.weight": "blocks[{i}].mlp_norm.scale",
    "transformer.h.{i}.ln_2.bias": "blocks[{i}].mlp_norm.bias",
    "transformer.h.{i}.mlp.c_fc.weight": "blocks[{i}].mlp.up.kernel",
    "transformer.h.{i}.mlp.c_fc.bias": "blocks[{i}].mlp.up.bias",
    "transformer.h.{i}.mlp.c_proj.weight": "blocks[{i}].mlp.down.kernel",
    "transformer.h.{i}.mlp.c_proj.bias": "blocks[{i}].mlp.down.bias",
    "transformer.ln_f.weight": "norm.scale",
    "transformer.ln_f.bias": "norm.bias",
}

# The causal masks that old files hold, and the head where a file stores it beside the embedding.
IGNORED = ("transformer.h.{i}.attn.bias", "transformer.h.{i}.attn.masked_bias", "lm_head.weight")


def load_gpt2(folder: str | Path) -> GPT2:
    """The model in a folder of `transformers`, with `config.json` and safetensors files."""
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    given = {"activation_function": "gelu_new", "n_inner": None, "scale_attn_by_inverse_layer_idx": False} | config
    if given["activation_function"] != "gelu_new" or given["n_inner"] or given["scale_attn_by_inverse_layer_idx"]:
        raise ValueError("this is a variant of GPT-2 that the classes here do not describe")
    spec = dx.spec(
        GPT2,
        config["vocab_size"],
        config["n_positions"],
        config["n_embd"],
        config["n_head"],
        config["n_layer"],
        config["layer_norm_epsilon"],
    )
    model = dx.eval_shape(lambda: spec.build(rngs=dx.Rngs(0)))  # no initial values
    dx.load_weights(model, folder, map=GPT2_MAP, ignore=IGNORED, cast=True)
    return model
