"""A diffusion model of small images: a U-Net whose levels a method makes, training with resumed steps, and samples."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TypedDict

import jax
import jax.numpy as jnp
import optax

import declax as dx

SIZE = 8
"""Height and width of an image."""


class Batch(TypedDict):
    image: jax.Array
    label: jax.Array


class Features(dx.Module):
    """Sines and cosines of a time in [0, 1], then two layers."""

    def __init__(self, width: int, *, rngs: dx.Rngs | None = None) -> None:
        self.frequencies = dx.Variable(2.0 ** jnp.arange(width / 2))
        self.layers = dx.List([dx.Linear(width, width, rngs=rngs), dx.Linear(width, width, rngs=rngs)])

    def __call__(self, time: jax.Array) -> jax.Array:
        angles = time[:, None] * self.frequencies
        x = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        for layer in self.layers:
            x = dx.silu(layer(x))
        return x


@dx.dataclass
class ResidualBlock(dx.Layer):
    """Two convolutions, moved by the features of the time."""

    into: int = dx.field()
    out: int = dx.field()
    width: int = dx.field()
    _: dx.KW_ONLY
    groups: int = dx.field(default=2)
    first_norm = dx.GroupNorm(into, num_groups=groups)
    first = dx.Conv(into, out, (3, 3))
    shift = dx.Linear(width, out)
    second_norm = dx.GroupNorm(out, num_groups=groups)
    second = dx.Conv(out, out, (3, 3), kernel_init=dx.initializers.zeros)
    skip = dx.when(into != out, dx.Linear(into, out))

    def __call__(self, x: jax.Array, features: jax.Array) -> jax.Array:
        y = self.first(dx.silu(self.first_norm(x))) + self.shift(features)[:, None, None]
        y = self.second(dx.silu(self.second_norm(y)))
        return y + (x if self.skip is None else self.skip(x))


@dx.dataclass
class UNet(dx.Layer):
    """Predicts the noise in an image."""

    channels: tuple[int, ...] = dx.field(default=(4, 8))
    width: int = dx.field(default=8, multiple_of=2)
    labels: int = dx.field(default=3)
    _: dx.KW_ONLY
    rate: float = dx.field(default=0.1)
    features: Features = Features(width)
    label = dx.Embed(labels, width)
    enter = dx.Conv(1, channels[0], (3, 3))
    leave = dx.Conv(channels[0], 1, (3, 3))
    drop = dx.Dropout(rate)

    @dx.submodule
    def down(self, rngs: dx.Rngs) -> list[ResidualBlock]:
        pairs = zip(self.channels[:-1], self.channels[1:], strict=True)
        return [ResidualBlock(into, out, self.width, rngs=rngs) for into, out in pairs]

    @dx.submodule
    def up(self, rngs: dx.Rngs) -> list[ResidualBlock]:
        pairs = zip(self.channels[:0:-1], self.channels[-2::-1], strict=True)
        return [ResidualBlock(2 * into, out, self.width, rngs=rngs) for into, out in pairs]

    def __call__(self, x: jax.Array, time: jax.Array, label: jax.Array) -> jax.Array:
        features = self.features(time) + self.label(label)
        x = self.enter(x)
        kept: list[jax.Array] = []
        for block in self.down:
            x = self.drop(block(x, features))
            kept.append(x)
            x = dx.avg_pool(x, (2, 2), strides=(2, 2))
        for block in self.up:
            x = x.repeat(2, axis=1).repeat(2, axis=2)
            x = block(jnp.concatenate([x, kept.pop()], axis=-1), features)
        return self.leave(x)


def noised(image: jax.Array, noise: jax.Array, time: jax.Array) -> jax.Array:
    angle = (0.5 * jnp.pi * time)[:, None, None, None]
    return jnp.cos(angle) * image + jnp.sin(angle) * noise


def loss_of(model: UNet, batch: Batch, rngs: dx.Rngs) -> jax.Array:
    image = batch["image"]
    time = rngs.time.uniform((image.shape[0],), minval=0.02, maxval=0.98)
    noise = rngs.noise.normal(image.shape)
    return jnp.mean((model(noised(image, noise, time), time, batch["label"]) - noise) ** 2)


@dx.jit
def train_step(model: UNet, optimizer: dx.Optimizer[UNet], ema: dx.EMA[UNet], batch: Batch, rngs: dx.Rngs) -> jax.Array:
    loss, grads = dx.value_and_grad(loss_of)(model, batch, rngs)
    optimizer.update(model, grads)
    ema.update(model)
    return loss


@dx.jit(static_argnames=("steps",))
def sample(model: UNet, label: jax.Array, key: jax.Array, steps: int = 4) -> jax.Array:
    def step(i: jax.Array, x: jax.Array) -> jax.Array:
        time = jnp.full(label.shape, 1 - (i.astype(float) + 0.5) / steps)
        noise = model(x, time, label)
        angle = (0.5 * jnp.pi * time)[:, None, None, None]
        image = (x - jnp.sin(angle) * noise) / jnp.maximum(jnp.cos(angle), 0.1)
        return noised(jnp.clip(image, -1, 1), noise, time - 1 / steps)

    return dx.fori_loop(0, steps, step, jax.random.normal(key, (*label.shape, SIZE, SIZE, 1)))


def batch_of(rngs: dx.Rngs, count: int = 4) -> Batch:
    label = rngs.data.randint((count,), 0, 3)
    rows = jnp.arange(SIZE)[None, :, None, None] % (label[:, None, None, None] + 2) == 0
    return {"image": jnp.broadcast_to(jnp.where(rows, 1.0, -1.0), (count, SIZE, SIZE, 1)), "label": label}


def train(folder: Path, steps: int) -> tuple[UNet, float]:
    rngs = dx.Rngs(0, time=1, noise=2)
    model = UNet(rngs=rngs)
    optimizer = dx.Optimizer(model, dx.spec(optax.adamw, 1e-3).build(), wrt=dx.Param)
    ema = dx.EMA(model, 0.95, only=dx.Param)
    loss = jnp.zeros(())
    start = 0
    with dx.Checkpoints(folder, keep=2) as checkpoints:
        if checkpoints.steps():
            found = checkpoints.load("latest", into={"model": model, "optimizer": optimizer, "rngs": rngs, "step": 0})
            start = found["step"]
        for step in range(start, steps):
            loss = train_step(model, optimizer, ema, batch_of(rngs), rngs)
            checkpoints.save(step + 1, {"model": model, "optimizer": optimizer, "rngs": rngs, "step": step + 1})
    return ema.apply_to(model), float(loss)


def main() -> jax.Array:
    with tempfile.TemporaryDirectory() as name:
        train(Path(name), steps=1)
        model, loss = train(Path(name), steps=2)
    model.eval()
    images = sample(model, jnp.array([0, 1, 2]), jax.random.key(0))
    print(f"loss {loss:.2f}, images {images.shape}")
    return images


if __name__ == "__main__":
    main()
