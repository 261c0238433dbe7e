"""A Llama-style model, and the map of its weights as `transformers` stores them.

Touvron et al., "LLaMA", https://arxiv.org/abs/2302.13971: rotary positions, RMS norms, SwiGLU. The grouped heads
are those of "Llama 2", https://arxiv.org/abs/2307.09288.
"""

from __future__ import annotations

import json
from pathlib import Path

from jaxtyping import Array, Float, Int

import declax as dx
from declax.weights import WeightMap, reshape, transpose


@dx.dataclass(
    where=(
        "{self.width} % {self.heads} == 0",
        "{self.width} // {self.heads} % 2 == 0",
        "{self.heads} % {self.kv_heads} == 0",
    )
)
class Block(dx.Layer):
    """Attention and a gated feed-forward network, each behind a norm and added to its input."""

    width: int = dx.field()
    hidden: int = dx.field()
    heads: int = dx.field()
    kv_heads: int = dx.field()
    theta: float = dx.field(ge=1)
    epsilon: float = dx.field()
    attention_norm = dx.RMSNorm(width, epsilon=epsilon)
    attention = dx.MultiHeadAttention(
        heads, width, num_kv_heads=kv_heads, rope=dx.RoPE(theta=theta), use_bias=False, decode=False
    )
    mlp_norm = dx.RMSNorm(width, epsilon=epsilon)
    mlp = dx.GatedMLP(width, hidden, use_bias=False)

    def __call__(self, x: Float[Array, "n length {self.width}"]) -> Float[Array, "n length {self.width}"]:
        """Maps (n, length, width) to the same shape."""
        x = x + self.attention(self.attention_norm(x), is_causal=True)
        return x + self.mlp(self.mlp_norm(x))


@dx.dataclass(
    where=(
        "{self.width} % {self.heads} == 0",
        "{self.width} // {self.heads} % 2 == 0",
        "{self.heads} % {self.kv_heads} == 0",
    )
)
class Llama(dx.Layer):
    """Logits of the next token at each position."""

    vocabulary: int = dx.field(default=32000, ge=1)
    width: int = dx.field(default=4096, ge=1)
    hidden: int = dx.field(default=11008, ge=1, help="of the feed-forward networks")
    depth: int = dx.field(default=32, ge=1)
    heads: int = dx.field(default=32, ge=1)
    kv_heads: int = dx.field(default=32, ge=1, help="heads of keys and values")
    theta: float = dx.field(default=10_000.0, ge=1, help="the base of the rotary positions")
    epsilon: float = dx.field(default=1e-5, ge=0)
    tokens = dx.Embed(vocabulary, width)
    blocks = dx.Stacked(Block(width, hidden, heads, kv_heads, theta, epsilon), depth)
    norm = dx.RMSNorm(width, epsilon=epsilon)
    head = dx.Linear(width, vocabulary, use_bias=False)

    def __call__(self, tokens: Int[Array, "n length"]) -> Float[Array, "n length {self.vocabulary}"]:
        """Maps tokens (n, length) to logits (n, length, vocabulary)."""
        return self.head(self.norm(self.blocks(self.tokens(tokens))))


# The weights of `transformers.LlamaForCausalLM`. The blocks are stacked: each tensor is one layer of an array.
LLAMA_MAP: WeightMap = {
    "model.embed_tokens.weight": "tokens.embedding",
    "model.layers.{i}.input_layernorm.weight": "blocks[{i}].attention_norm.scale",
    "model.layers.{i}.self_attn.q_proj.weight": reshape("blocks[{i}].attention.query.kernel", "(h d) i -> i h d"),
    "model.layers.{i}.self_attn.k_proj.weight": reshape("blocks[{i}].attention.key.kernel", "(h d) i -> i h d"),
    "model.layers.{i}.self_attn.v_proj.weight": reshape("blocks[{i}].attention.value.kernel", "(h d) i -> i h d"),
    "model.layers.{i}.self_attn.o_proj.weight": reshape("blocks[{i}].attention.out.kernel", "o (h d) -> h d o"),
    "model.layers.{i}.post_attention_layernorm.weight": "blocks[{i}].mlp_norm.scale",
    "model.layers.{i}.mlp.gate_proj.weight": transpose("blocks[{i}].mlp.gate.kernel"),
    "model.layers.{i}.mlp.up_proj.weight": transpose("blocks[{i}].mlp.up.kernel"),
    "model.layers.{i}.mlp.down_proj.weight": transpose("blocks[{i}].mlp.down.kernel"),
    "model.norm.weight": "norm.scale",
    "lm_head.weight": transpose("head.kernel"),
}

# The frequencies that old files hold.
IGNORED = ("model.layers.{i}.self_attn.rotary_emb.inv_freq",)


def load_llama(folder: str | Path) -> Llama:
    """The model in a folder of `transformers`, with `config.json` and safetensors files."""
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 10_000.0), "rope_type": "default"}
    options = ("tie_word_embeddings", "rope_scaling", "attention_bias", "mlp_bias")
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    if any(map(config.get, options)) or rope["rope_type"] != "default" or config.get("head_dim", head_dim) != head_dim:
        raise ValueError("this is a variant of Llama that the classes here do not describe")
    spec = dx.spec(
        Llama,
        config["vocab_size"],
        config["hidden_size"],
        config["intermediate_size"],
        config["num_hidden_layers"],
        config["num_attention_heads"],
        config.get("num_key_value_heads", config["num_attention_heads"]),
        rope["rope_theta"],
        config["rms_norm_eps"],
    )
    model = dx.eval_shape(lambda: spec.build(rngs=dx.Rngs(0)))  # no initial values
    dx.load_weights(model, folder, map=LLAMA_MAP, ignore=IGNORED, cast=True)
    return model
