"""A U-Net that predicts the noise in images of blobs, as in denoising diffusion (DDPM)."""

import itertools
from typing import Protocol

import jax
import jax.numpy as jnp
import optax

import declax as dx


@dx.dataclass
class TimeEmbedding(dx.Layer):
    """Sines and cosines of a time in [0, 1], and two layers."""

    dim: int = dx.field(ge=2, check=lambda dim: "sines and cosines need an even size" if dim % 2 else None)
    hidden: int = dx.field()
    up = dx.Linear(dim, hidden)
    down = dx.Linear(hidden, hidden)

    def __call__(self, time: jax.Array) -> jax.Array:
        frequencies = jnp.exp(jnp.linspace(0.0, jnp.log(1000.0), self.dim // 2))
        angles = time[:, None] * frequencies
        waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        return self.down(dx.silu(self.up(waves)))


@dx.dataclass
class ResBlock(dx.Layer):
    inputs: int = dx.field()
    outputs: int = dx.field()
    time_dim: int = dx.field()
    _: dx.KW_ONLY
    groups: int = dx.field(default=4, ge=1)
    norm1 = dx.GroupNorm(inputs, groups)
    conv1 = dx.Conv(inputs, outputs, (3, 3))
    time = dx.Linear(time_dim, outputs)
    norm2 = dx.GroupNorm(outputs, groups)
    conv2 = dx.Conv(outputs, outputs, (3, 3), kernel_init=dx.initializers.zeros)
    skip = dx.when(inputs != outputs, dx.Conv(inputs, outputs, (1, 1)))

    def __call__(self, x: jax.Array, time: jax.Array) -> jax.Array:
        y = self.conv1(dx.silu(self.norm1(x)))
        y = y + self.time(dx.silu(time))[:, None, None, :]
        y = self.conv2(dx.silu(self.norm2(y)))
        return y + (x if self.skip is None else self.skip(x))


def sizes_of(width: int, multipliers: tuple[int, ...]) -> list[tuple[int, int]]:
    sizes = [width, *(width * multiplier for multiplier in multipliers)]
    return list(itertools.pairwise(sizes))


def down_path(sizes: list[tuple[int, int]], time: int, groups: int, rngs: dx.Rngs | None = None) -> list[ResBlock]:
    return [ResBlock(i, o, time, groups=groups, rngs=rngs) for i, o in sizes]


def up_path(sizes: list[tuple[int, int]], time: int, groups: int, rngs: dx.Rngs | None = None) -> list[ResBlock]:
    return [ResBlock(2 * o, i, time, groups=groups, rngs=rngs) for i, o in reversed(sizes)]


class Mixer(Protocol):
    """Maps images and times to images of the same shape."""

    def __call__(self, x: jax.Array, time: jax.Array, /) -> jax.Array: ...


@dx.dataclass
class UNet(dx.Layer):
    channels: int = dx.field(default=1)
    width: int = dx.field(default=8, help="channels at full resolution")
    multipliers: tuple[int, ...] = dx.field(default=(1, 2))
    _: dx.KW_ONLY
    groups: int = dx.field(default=4)
    time_dim = 4 * width
    sizes = dx.defer(sizes_of)(width, multipliers)
    time: TimeEmbedding = TimeEmbedding(width, time_dim)
    stem = dx.Conv(channels, width, (3, 3))
    down = dx.defer(down_path)(sizes, time_dim, groups)
    middle: Mixer = ResBlock(width * multipliers[-1], width * multipliers[-1], time_dim, groups=groups)
    up = dx.defer(up_path)(sizes, time_dim, groups)
    norm = dx.GroupNorm(width, groups)
    head = dx.Conv(width, channels, (3, 3))

    def __call__(self, x: jax.Array, time: jax.Array) -> jax.Array:
        t = self.time(time)
        x = self.stem(x)
        skips = []
        for block in self.down:
            x = block(x, t)
            skips.append(x)
            x = dx.avg_pool(x, (2, 2), strides=(2, 2))
        x = self.middle(x, t)
        for block in self.up:
            x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
            x = block(jnp.concatenate([x, skips.pop()], axis=-1), t)
        return self.head(dx.silu(self.norm(x)))


@dx.dataclass
class Scale(dx.Layer):
    """A cheaper middle."""

    dim: int = dx.field()
    scale: dx.Param[jax.Array] = dx.variable((dim,), initializer=dx.initializers.ones)

    def __call__(self, x: jax.Array, time: jax.Array) -> jax.Array:
        return x * self.scale


@dx.dataclass
class LightUNet(UNet):
    """A U-Net whose middle is one factor for each channel."""

    middle: Mixer = Scale(UNet.width * UNet.multipliers[-1])


def blobs(rngs: dx.Rngs, n: int = 8, size: int = 16) -> jax.Array:
    grid = jnp.arange(size) / size
    centres = rngs.uniform((n, 2, 1), minval=0.25, maxval=0.75)
    x, y = (jnp.exp(-50.0 * (grid - centres[:, i]) ** 2) for i in range(2))
    return 2.0 * (x[:, :, None] * y[:, None, :])[..., None] - 1.0


@dx.jit
def train_step(model: UNet, optimizer: dx.Optimizer[UNet], rngs: dx.Rngs) -> jax.Array:
    images = blobs(rngs)
    time = rngs.uniform((len(images),))
    noise = rngs.normal(images.shape)
    signal = jnp.cos(0.5 * jnp.pi * time)[:, None, None, None]
    noisy = signal * images + jnp.sqrt(1.0 - signal**2) * noise
    loss, grads = dx.value_and_grad(lambda model: jnp.mean((model(noisy, time) - noise) ** 2))(model)
    optimizer.update(model, grads)
    return loss


def train(model: UNet, steps: int = 40) -> list[float]:
    optimizer = dx.Optimizer(model, optax.adam(3e-3))
    rngs = dx.Rngs(1)
    return [float(train_step(model, optimizer, rngs)) for _ in range(steps)]
