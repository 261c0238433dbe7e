"""A GPT over characters that a configuration describes: training, a checkpoint, an average, and a sample."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

import declax as dx

TEXT = "the quick brown fox jumps over the lazy dog. " * 8


@dx.dataclass
class Attention(dx.Layer):
    """Attention to what came before."""

    width: int = dx.field(ge=1)
    heads: int = dx.field(ge=1)
    _: dx.KW_ONLY
    rate: float = dx.field(default=0.0, ge=0, le=1)
    size = width // heads
    query = dx.LinearGeneral(width, (heads, size), use_bias=False)
    key = dx.LinearGeneral(width, (heads, size), use_bias=False)
    value = dx.LinearGeneral(width, (heads, size), use_bias=False)
    out = dx.LinearGeneral((heads, size), width, axis=(-2, -1))
    drop = dx.Dropout(rate)

    def __call__(self, x: jax.Array) -> jax.Array:
        scores = jnp.einsum("bthd,bshd->bhts", self.query(x), self.key(x)) * self.size**-0.5
        mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        weights = self.drop(jax.nn.softmax(jnp.where(mask, scores, -jnp.inf)))
        return self.out(jnp.einsum("bhts,bshd->bthd", weights, self.value(x)))


@dx.dataclass
class Block(dx.Layer):
    """Attention and a feed-forward network, each behind a norm."""

    width: int = dx.field()
    heads: int = dx.field()
    _: dx.KW_ONLY
    rate: float = dx.field(default=0.0)
    kind: Literal["plain", "gated"] = dx.field(default="plain")
    norms = dx.repeat(2, dx.LayerNorm(width))
    attention: Attention = Attention(width, heads, rate=rate)
    up = dx.Linear(width, 4 * width)
    gate = dx.when(kind == "gated", dx.Linear(width, 4 * width))
    down = dx.Linear(4 * width, width)

    def __call__(self, x: jax.Array) -> jax.Array:
        first, second = self.norms
        x = x + self.attention(first(x))
        y = second(x)
        hidden = dx.gelu(self.up(y)) if self.gate is None else self.up(y) * dx.sigmoid(self.gate(y))
        return x + self.down(hidden)


@dx.dataclass
class GPT(dx.Layer):
    """Predicts each token from those before it."""

    tokens: int = dx.field(default=128)
    width: int = dx.field(default=16, multiple_of=4)
    heads: int = dx.field(default=4)
    depth: int = dx.field(default=2)
    length: int = dx.field(default=16)
    _: dx.KW_ONLY
    rate: float = dx.field(default=0.1)
    block: dx.Spec[Block] = dx.static(default=dx.spec(Block, 16, 4, kind="gated"))
    embed = dx.Embed(tokens, width)
    positions: dx.Param[jax.Array] = dx.variable((length, width), initializer=dx.initializers.normal(0.02))
    first = block.build()
    blocks = dx.Stacked(Block(width, heads, rate=rate), depth)
    norm = dx.LayerNorm(width)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embed(tokens) + self.positions[: tokens.shape[1]]
        return self.embed.attend(self.norm(self.blocks(self.first(x))))

    def predict(self, tokens: jax.Array) -> jax.Array:
        return jnp.argmax(self(tokens)[:, -1], axis=-1)


@dataclasses.dataclass(frozen=True)
class Run:
    """What is trained, and how."""

    model: dx.Spec[GPT]
    optimizer: optax.GradientTransformation
    steps: int = 4
    batch: int = 3
    seed: int = 0


def batches(tokens: np.ndarray[tuple[int], np.dtype[np.int32]], run: Run, length: int) -> Iterator[jax.Array]:
    rng = np.random.default_rng(run.seed)
    for _ in range(run.steps):
        starts = rng.integers(0, len(tokens) - length - 1, run.batch)
        yield jnp.stack([jnp.asarray(tokens[start : start + length + 1]) for start in starts])


def loss_of(model: GPT, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    logits = model(tokens[:, :-1])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    return losses.mean(), logits


@dx.jit(donate_argnames=("optimizer",))
def train_step(
    model: GPT, optimizer: dx.Optimizer[GPT], metrics: dx.MultiMetric[jax.Array], ema: dx.EMA[GPT], tokens: jax.Array
) -> jax.Array:
    (loss, logits), grads = dx.value_and_grad(loss_of, has_aux=True)(model, tokens)
    optimizer.update(model, grads)
    ema.update(model)
    metrics.update(loss=loss, logits=logits, labels=tokens[:, 1:])
    return jnp.abs(grads.as_model.blocks.layers.up.kernel).max()


def sample(model: GPT, prompt: jax.Array, count: int) -> jax.Array:
    window = prompt
    for _ in range(count):
        window = jnp.concatenate([window, model.predict(window[:, -model.length :])[:, None]], axis=1)
    return window


def train(run: Run, folder: Path) -> dict[str, float]:
    model = run.model.build(rngs=dx.Rngs(run.seed))
    optimizer = dx.Optimizer(model, run.optimizer, wrt=dx.Param)
    ema = dx.EMA(model, 0.9, only=dx.Param)
    metrics = dx.MultiMetric(accuracy=dx.metrics.Accuracy(), loss=dx.metrics.Average("loss"))
    codes = np.frombuffer(TEXT.encode(), np.uint8).astype(np.int32)
    for tokens in batches(codes, run, model.length):
        largest = train_step(model, optimizer, metrics, ema, tokens)
        print(f"largest gradient {float(largest):.3f}")
    dx.save(folder, {"model": model, "optimizer": optimizer, "step": run.steps})
    found = dx.load(folder, into={"model": model, "optimizer": optimizer, "step": 0})
    averaged = ema.apply_to(model)
    averaged.eval()
    print(sample(averaged, jnp.asarray(codes[None, :4]), 3).shape, found["step"])
    return {name: float(value) for name, value in metrics.compute().items()}


def main() -> dict[str, float]:
    adam = {"kind": "adam", "learning_rate": 1e-3}
    run = dx.from_config(Run, {"model": {"width": 16, "depth": 2, "length": 8}, "optimizer": adam})
    wider = dataclasses.replace(run, model=run.model.replace(width=32, block=dx.spec(Block, 32, 4)), steps=2)
    with tempfile.TemporaryDirectory() as folder:
        return train(run, Path(folder) / "first") | train(wider, Path(folder) / "wider")


if __name__ == "__main__":
    print(main())
