"""A small GPT: learned positions, causal attention, tied weights; trained, saved, configured, sampled."""

import jax
import jax.numpy as jnp
import optax

import declax as dx

TEXT = "to be, or not to be, that is the question: whether 'tis nobler in the mind to suffer " * 4


@dx.dataclass
class Attention(dx.Layer):
    """Causal attention with several heads."""

    dim: int = dx.field(ge=1)
    heads: int = dx.field(ge=1)
    _: dx.KW_ONLY
    rate: float = dx.field(default=0.1, ge=0.0, le=1.0)
    head_dim = dim // heads
    scale = head_dim**-0.5
    qkv = dx.Linear(dim, 3 * dim, use_bias=False)
    out = dx.Linear(dim, dim)
    drop = dx.Dropout(rate)

    def __post_init__(self) -> None:
        if self.dim % self.heads:
            raise ValueError(f"dim={self.dim} is not a multiple of heads={self.heads}")

    def __call__(self, x: jax.Array) -> jax.Array:
        *batch, length, _ = x.shape
        q, k, v = (a.reshape(*batch, length, self.heads, self.head_dim) for a in jnp.split(self.qkv(x), 3, axis=-1))
        logits = jnp.einsum("...qhd,...khd->...hqk", q, k) * self.scale
        mask = jnp.tril(jnp.ones((length, length), bool))
        weights = self.drop(jax.nn.softmax(jnp.where(mask, logits, -1e9), axis=-1))
        return self.out(jnp.einsum("...hqk,...khd->...qhd", weights, v).reshape(x.shape))


@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field()
    heads: int = dx.field()
    _: dx.KW_ONLY
    rate: float = dx.field(default=0.1)
    hidden: int = 4 * dim
    norm1 = dx.LayerNorm(dim)
    attention: Attention = Attention(dim, heads, rate=rate)
    norm2 = dx.LayerNorm(dim)
    mlp: dx.MLP = dx.MLP(dim, hidden)
    drop = dx.Dropout(rate)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm1(x))
        return x + self.drop(self.mlp(self.norm2(x)))


@dx.dataclass
class GPT(dx.Layer):
    vocabulary: int = dx.field(ge=1)
    length: int = dx.field(default=32, ge=1, help="longest context")
    dim: int = dx.field(default=32)
    heads: int = dx.field(default=4)
    depth: int = dx.field(default=2)
    _: dx.KW_ONLY
    rate: float = dx.field(default=0.1)
    embed = dx.Embed(vocabulary, dim)
    positions: dx.Param[jax.Array] = dx.variable((length, dim), initializer=dx.initializers.normal(0.02))
    drop = dx.Dropout(rate)
    blocks: list[Block] = dx.repeat(depth, Block(dim, heads, rate=rate))
    norm = dx.LayerNorm(dim)
    head = embed

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.drop(self.embed(tokens) + self.positions[: tokens.shape[-1]])
        for block in self.blocks:
            x = block(x)
        return self.head.attend(self.norm(x))

    def generate(self, tokens: jax.Array, n: int, *, rngs: dx.Rngs, temperature: float = 1.0) -> jax.Array:
        """Appends n sampled tokens; the model should be in evaluation mode."""
        for _ in range(n):
            recent = tokens[:, -self.length :]
            padded = jnp.pad(recent, ((0, 0), (0, self.length - recent.shape[1])))  # one shape, one program
            logits = logits_of(self, padded)[:, recent.shape[1] - 1] / temperature
            following = rngs.sample.categorical(logits).astype(tokens.dtype)
            tokens = jnp.concatenate([tokens, following[:, None]], axis=1)
        return tokens


@dx.jit
def logits_of(model: GPT, tokens: jax.Array) -> jax.Array:
    return model(tokens)


CONFIG = """
vocabulary = 30
length = 16
dim = 16
heads = 2

[blocks]
hidden = 24

[blocks.attention]
rate = 0.0
"""


def loss_of(model: GPT, tokens: jax.Array) -> jax.Array:
    logits = model(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


@dx.jit
def train_step(model: GPT, optimizer: dx.Optimizer[GPT], tokens: jax.Array) -> jax.Array:
    loss, grads = dx.value_and_grad(loss_of)(model, tokens)
    optimizer.update(model, grads)
    return loss


def batch_of(data: jax.Array, length: int, rngs: dx.Rngs, size: int = 16) -> jax.Array:
    starts = rngs.randint((size,), 0, len(data) - length - 1)
    return data[starts[:, None] + jnp.arange(length + 1)]


def train(steps: int = 60) -> tuple[GPT, list[float]]:
    """Trains a small GPT on the text."""
    letters = sorted(set(TEXT))
    data = jnp.array([letters.index(c) for c in TEXT])
    rngs = dx.Rngs(0)
    model = GPT(len(letters), rngs=rngs)
    optimizer = dx.Optimizer(model, optax.adamw(3e-3))
    losses = [float(train_step(model, optimizer, batch_of(data, model.length, rngs))) for _ in range(steps)]
    return model, losses
