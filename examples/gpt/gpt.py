"""A GPT over characters: rotary positions, RMS norms, gated feed-forward networks, and stacked blocks."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

import declax as dx

ROTARY = partial(dx.dot_product_attention_with_rope, rope=dx.RoPE())


@dx.dataclass(where=("{self.width} % {self.heads} == 0", "{self.width} // {self.heads} % 2 == 0"))
class Block(dx.Layer):
    """Attention and a feed-forward network, each behind a norm and added to its input."""

    width: int = dx.field()
    heads: int = dx.field()
    dropout: float = dx.field(default=0.0)
    _: dx.KW_ONLY
    attention_norm = dx.RMSNorm(width)
    attention: dx.MultiHeadAttention = dx.MultiHeadAttention(
        heads, width, attention_fn=ROTARY, use_bias=False, decode=False
    )
    mlp_norm = dx.RMSNorm(width)
    mlp: dx.GatedMLP = dx.GatedMLP(width, 3 * width, use_bias=False)
    drop = dx.Dropout(dropout)

    def __call__(self, x: Float[Array, "n length {self.width}"]) -> Float[Array, "n length {self.width}"]:
        """Maps (n, length, width) to the same shape."""
        x = x + self.drop(self.attention(self.attention_norm(x), is_causal=True))
        return x + self.drop(self.mlp(self.mlp_norm(x)))


@dx.dataclass(where=("{self.width} % {self.heads} == 0", "{self.width} // {self.heads} % 2 == 0"))
class GPT(dx.Layer):
    """Predicts each character from those before it."""

    characters: int = dx.field(default=128, ge=1, help="how many different characters there are")
    width: int = dx.field(default=96, ge=1, help="features of a character")
    heads: int = dx.field(default=4, ge=1, help="of each attention")
    depth: int = dx.field(default=4, ge=1, help="how many blocks there are")
    dropout: float = dx.field(default=0.1, ge=0, le=1, help="the share that is dropped of what a block adds")
    embed = dx.Embed(characters, width)
    blocks = dx.Stacked(Block(width, heads, dropout), depth)
    norm = dx.RMSNorm(width)

    def __call__(self, tokens: Int[Array, "n length"]) -> Float[Array, "n length {self.characters}"]:
        """Maps tokens (n, length) to logits (n, length, characters)."""
        return self.embed.attend(self.norm(self.blocks(self.embed(tokens))))

    def start_decoding(self, batch: int, length: int) -> None:
        """Gives each attention an empty cache for so many characters."""
        shape = (batch, length, self.width)

        def start(block: Block) -> None:
            block.attention.init_cache(shape)
            block.attention.decode = True

        dx.vmap(start)(self.blocks.layers)


@dx.jit
def next_logits(model: GPT, tokens: jax.Array) -> jax.Array:
    """The logits (n, characters) after tokens (n, length), behind what the caches hold."""
    return model(tokens)[:, -1]


def sample(model: GPT, prompt: jax.Array, count: int, *, key: jax.Array, temperature: float = 0.8) -> jax.Array:
    """Continues a text: one pass over the prompt, then one for each character, with cached keys and values.

    Args:
      model: is left as it is; a copy decodes.
      prompt: tokens of shape (n, length).
      count: how many characters are added.
      key: of the random choice.
      temperature: below 1, likely characters become more likely.

    Returns:
      The new tokens, of shape (n, count).
    """
    model = dx.clone(model)
    model.eval()
    model.start_decoding(prompt.shape[0], prompt.shape[1] + count)
    tokens, found = prompt, []
    for step in jax.random.split(key, count):
        tokens = jax.random.categorical(step, next_logits(model, tokens) / temperature)[:, None]
        found.append(tokens)
    return jnp.concatenate(found, axis=1)
