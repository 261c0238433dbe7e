"""A small GPT on characters: a configured run, resumed from a checkpoint, and text from cached keys and values."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax

import declax as dx

CONFIG = """
steps = 60
batch = 8

[model]
vocab = 24
length = 16
width = 16
depth = 2
heads = 2

[optimizer]
kind = "chain"

[[optimizer.args]]
kind = "clip_by_global_norm"
max_norm = 1.0

[[optimizer.args]]
kind = "adamw"
weight_decay = 0.05

[optimizer.args.learning_rate]
kind = "warmup_cosine_decay_schedule"
init_value = 0.0
peak_value = 3e-2
warmup_steps = 5
decay_steps = 60
"""


@dx.dataclass
class Block(dx.Layer):
    width: int = dx.field(ge=1)
    heads: int = dx.field(ge=1)
    _: dx.KW_ONLY
    rate: float = dx.field(default=0.1, ge=0.0, le=1.0)
    norm1 = dx.LayerNorm(width)
    attention = dx.MultiHeadAttention(heads, width, dropout_rate=rate, decode=False, deterministic=False)
    norm2 = dx.LayerNorm(width)
    mlp = dx.MLP(width, 4 * width, dropout_rate=rate)
    drop = dx.Dropout(rate)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.drop(self.attention(self.norm1(x), is_causal=True))
        return x + self.drop(self.mlp(self.norm2(x)))


@dx.dataclass
class GPT(dx.Layer):
    """A language model.

    Args:
      vocab: number of tokens.
      length: the longest context.
    """

    vocab: int = dx.field(ge=2)
    length: int = dx.field(ge=1)
    width: int = dx.field(ge=1)
    depth: int = dx.field(ge=1)
    heads: int = dx.field(ge=1)
    _: dx.KW_ONLY
    rate: float = dx.field(default=0.1, ge=0.0, le=1.0)
    tokens = dx.Embed(vocab, width, embedding_init=dx.initializers.normal(0.02))
    positions = dx.Embed(length, width, embedding_init=dx.initializers.normal(0.02))
    drop = dx.Dropout(rate)
    blocks = dx.repeat(depth, Block(width, heads, rate=rate))
    norm = dx.LayerNorm(width)

    def __call__(self, tokens: jax.Array, start: jax.Array | int = 0) -> jax.Array:
        places = start + jnp.arange(tokens.shape[-1])
        x = self.drop(self.tokens(tokens) + self.positions(places))
        for block in self.blocks:
            x = block(x)
        return self.tokens.attend(self.norm(x))


@dataclasses.dataclass
class Run:
    model: dx.Spec[GPT]
    optimizer: optax.GradientTransformation
    steps: int = 300
    batch: int = 16
    seed: int = 0


def loss_of(model: GPT, text: jax.Array) -> jax.Array:
    logits = model(text[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, text[:, 1:]).mean()


@dx.jit
def train_step(model: GPT, optimizer: dx.Optimizer[GPT], text: jax.Array) -> jax.Array:
    loss, grads = dx.value_and_grad(loss_of)(model, text)
    optimizer.update(model, grads)
    return loss


@dx.jit
def logits_of(model: GPT, text: jax.Array) -> jax.Array:
    return model(text)


@dx.jit
def decode_step(model: GPT, token: jax.Array, start: jax.Array) -> jax.Array:
    return model(token, start)[:, -1]


def generate(model: GPT, prompt: jax.Array, count: int) -> jax.Array:
    """Greedy, with a cache; the model is not changed."""
    decoder = dx.view(model, deterministic=True, decode=True)
    batch, length = prompt.shape
    for block in decoder.blocks:
        block.attention.init_cache((batch, decoder.length, decoder.width))
    logits = decode_step(decoder, prompt, jnp.array(0))
    text = [prompt]
    for position in range(length, length + count):
        token = jnp.argmax(logits, -1)[:, None]
        text.append(token)
        if position < length + count - 1:
            logits = decode_step(decoder, token, jnp.array(position))
    return jnp.concatenate(text, axis=1)


def make_text(seed: int, count: int) -> str:
    rng = np.random.default_rng(seed)
    parts: list[str] = []
    for _ in range(count):
        who = rng.choice(["cat", "dog", "rat", "bird"])
        what = {"cat": "sat on the mat", "dog": "ate the fat rat", "rat": "ran to the cat", "bird": "sang to the sun"}
        parts.append(f"the {who} {what[who]}.")
    return " ".join(parts)


TEXT = make_text(0, 100)
LETTERS = sorted(set(TEXT))
CODES = np.array([LETTERS.index(letter) for letter in TEXT], np.int32)


def batch_of(run: Run, model: GPT, step: int) -> jax.Array:
    rng = np.random.default_rng((run.seed, step))
    starts = rng.integers(0, len(CODES) - model.length - 1, run.batch)
    return jnp.asarray(np.stack([CODES[start : start + model.length + 1] for start in starts]))


def start(run: Run, seed: int) -> tuple[GPT, dx.Optimizer[GPT]]:
    model = run.model.build(rngs=dx.Rngs(seed))
    return model, dx.Optimizer(model, run.optimizer)


def train(run: Run, model: GPT, optimizer: dx.Optimizer[GPT], first: int, last: int) -> list[float]:
    return [float(train_step(model, optimizer, batch_of(run, model, step))) for step in range(first, last)]
