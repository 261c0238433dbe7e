"""A transformer over characters that names the axes of its parameters and activations, and knows no mesh."""

from __future__ import annotations

from typing import Any

from jaxtyping import Array, Float, Int

import declax as dx
from ring import attend
from stages import in_stages


def axes(*names: str | None) -> dict[str, Any]:
    """Metadata with the names of the axes. The state of the optimizer has one name of its own, in place of `embed`."""
    return {
        "out_sharding": names,
        "optimizer_sharding": tuple("moments" if name == "embed" else name for name in names),
    }


@dx.dataclass(where=("{self.width} % {self.heads} == 0", "{self.width} // {self.heads} % 2 == 0"))
class Block(dx.Layer):
    """Attention and a feed-forward network or experts, each behind a norm and added to its input."""

    width: int = dx.field()
    heads: int = dx.field()
    experts: int = dx.field()
    _: dx.KW_ONLY
    attention_norm = dx.RMSNorm(width, scale_metadata=axes(None))
    attention: dx.MultiHeadAttention = dx.MultiHeadAttention(
        heads,
        width,
        attention_fn=attend,
        rope=dx.RoPE(),
        use_bias=False,
        decode=False,
        kernel_metadata=axes("embed", "heads", None),
        out_kernel_metadata=axes("heads", None, "embed"),
    )
    mlp_norm = dx.RMSNorm(width, scale_metadata=axes(None))
    mlp = dx.when(
        experts > 1,
        dx.MoE(
            width,
            width,
            experts,
            capacity_factor=1.25,
            kernel_metadata=axes("experts", "embed", "mlp"),
            down_kernel_metadata=axes("experts", "mlp", "embed"),
        ),
        dx.MLP(
            width,
            4 * width,
            use_bias=False,
            kernel_metadata=axes("embed", "mlp"),
            down_kernel_metadata=axes("mlp", "embed"),
        ),
    )

    def __call__(self, x: Float[Array, "n length {self.width}"]) -> Float[Array, "n length {self.width}"]:
        """Maps (n, length, width) to the same shape."""
        x = x + self.attention(self.attention_norm(x), is_causal=True)
        x = x + self.mlp(self.mlp_norm(x))
        return dx.with_sharding_constraint(x, ("batch", "sequence", None))


@dx.dataclass(where=("{self.width} % {self.heads} == 0", "{self.width} // {self.heads} % 2 == 0"))
class Transformer(dx.Layer):
    """Predicts each character from those before it."""

    characters: int = dx.field(default=128, ge=1, help="how many different characters there are")
    width: int = dx.field(default=64, ge=1, help="features of a character")
    heads: int = dx.field(default=8, ge=1, help="of each attention")
    depth: int = dx.field(default=2, ge=1, help="how many blocks there are")
    experts: int = dx.field(default=0, ge=0, help="of each block; 0 for one feed-forward network")
    embed = dx.Embed(characters, width, embedding_metadata=axes("vocab", "embed"))
    blocks = dx.Stacked(Block(width, heads, experts), depth, axis_name="layers")
    norm = dx.RMSNorm(width)

    def __call__(self, tokens: Int[Array, "n length"]) -> Float[Array, "n length {self.characters}"]:
        """Maps tokens (n, length) to logits (n, length, characters)."""
        x = dx.with_sharding_constraint(self.embed(tokens), ("batch", "sequence", None))
        return self.embed.attend(self.norm(in_stages(self.blocks)(x)))
