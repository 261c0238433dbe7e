"""A diffusion U-Net in declared style, written from the pages alone."""

import dataclasses
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

import declax as dx

HERE = Path(__file__).parent


def even(size: int) -> str | None:
    return f"{size} is odd: sines and cosines need an even size" if size % 2 else None


@dx.dataclass
class TimeEmbedding(dx.Layer):
    dim: int = dx.field(ge=2, check=even)
    hidden: int = 4 * dim
    mlp = dx.MLP(dim, hidden, hidden, activation=dx.silu)

    def __call__(self, t: jax.Array) -> jax.Array:
        half = self.dim // 2
        frequencies = jnp.exp(-math.log(10_000.0) * jnp.arange(half) / half)
        angles = t[:, None] * frequencies
        return self.mlp(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1))


@dx.dataclass
class ResBlock(dx.Layer):
    """norm, conv, time, norm, dropout, conv, shortcut."""

    inputs: int = dx.field(ge=1)
    outputs: int = dx.field(ge=1)
    time: int = dx.field(ge=1)
    _: dx.KW_ONLY
    rate: float = dx.field(default=0.0, ge=0, le=1)
    norm1 = dx.GroupNorm(inputs, dx.defer(math.gcd)(inputs, 8))
    conv1 = dx.Conv(inputs, outputs, (3, 3))
    project = dx.Linear(time, outputs)
    norm2 = dx.BatchNorm(outputs, momentum=0.9)
    drop = dx.Dropout(rate)
    conv2 = dx.Conv(outputs, outputs, (3, 3))
    shortcut = dx.when(inputs != outputs, dx.Conv(inputs, outputs, (1, 1)))

    def __call__(self, x: jax.Array, time: jax.Array) -> jax.Array:
        y = self.conv1(dx.silu(self.norm1(x)))
        y = y + self.project(dx.silu(time))[:, None, None, :]
        y = self.conv2(self.drop(dx.silu(self.norm2(y))))
        return y + (x if self.shortcut is None else self.shortcut(x))


@dx.dataclass
class Down(dx.Layer):
    inputs: int = dx.field()
    outputs: int = dx.field()
    time: int = dx.field()
    _: dx.KW_ONLY
    rate: float = dx.field(default=0.0)
    block = ResBlock(inputs, outputs, time, rate=rate)
    shrink = dx.Conv(outputs, outputs, (3, 3), strides=2)

    def __call__(self, x: jax.Array, time: jax.Array) -> tuple[jax.Array, jax.Array]:
        skip = self.block(x, time)
        return self.shrink(skip), skip


@dx.dataclass
class Up(dx.Layer):
    inputs: int = dx.field()
    skip: int = dx.field()
    outputs: int = dx.field()
    time: int = dx.field()
    _: dx.KW_ONLY
    rate: float = dx.field(default=0.0)
    grow = dx.ConvTranspose(inputs, outputs, (4, 4), strides=2)
    block = ResBlock(outputs + skip, outputs, time, rate=rate)

    def __call__(self, x: jax.Array, skip: jax.Array, time: jax.Array) -> jax.Array:
        return self.block(jnp.concatenate([self.grow(x), skip], axis=-1), time)


@dx.dataclass
class UNet(dx.Layer):
    """Predicts the noise of images.

    Args:
      widths: channels of each level; each level halves the image.
    """

    channels: int = dx.field(default=1, ge=1)
    widths: tuple[int, ...] = dx.field(default=(8, 16))
    time_dim: int = dx.field(default=8, ge=2)
    _: dx.KW_ONLY
    rate: float = dx.field(default=0.1, ge=0, le=1)
    embed = TimeEmbedding(time_dim)
    stem = dx.Conv(channels, widths[0], (3, 3))

    @dx.submodule
    def downs(self, rngs: dx.Rngs) -> list[Down]:
        pairs = zip((self.widths[0], *self.widths), self.widths, strict=False)
        return [Down(i, o, self.embed.hidden, rate=self.rate, rngs=rngs) for i, o in pairs]

    middle = ResBlock(widths[-1], widths[-1], embed.hidden, rate=rate)

    @dx.submodule
    def ups(self, rngs: dx.Rngs) -> list[Up]:
        reverse = self.widths[::-1]
        inputs = (reverse[0], *reverse)
        return [
            Up(i, o, o, self.embed.hidden, rate=self.rate, rngs=rngs) for i, o in zip(inputs, reverse, strict=False)
        ]

    norm = dx.GroupNorm(widths[0], dx.defer(math.gcd)(widths[0], 8))
    head = dx.Conv(widths[0], channels, (3, 3), kernel_init=dx.initializers.zeros)

    def __call__(self, x: jax.Array, t: jax.Array) -> jax.Array:
        time = self.embed(t)
        x = self.stem(x)
        skips = []
        for down in self.downs:
            x, skip = down(x, time)
            skips.append(skip)
        x = self.middle(x, time)
        for up in self.ups:
            x = up(x, skips.pop(), time)
        return self.head(dx.silu(self.norm(x)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    model: dx.Spec[UNet]
    optimizer: dx.Spec[optax.GradientTransformation]
    steps: int = dx.static(default=16, ge=1)
    batch_size: int = dx.static(default=8, ge=1)
    decay: float = dx.static(default=0.9, ge=0, le=1)
    seed: int = 0


@dx.jit
def train_step(model: UNet, optimizer: dx.Optimizer[UNet], ema: dx.EMA, rngs: dx.Rngs, images: jax.Array) -> jax.Array:
    t = rngs.randint((len(images),), 0, 100)
    noise = rngs.normal(images.shape)
    alpha = (jnp.cos(t / 100 * jnp.pi / 2) ** 2)[:, None, None, None]
    noisy = jnp.sqrt(alpha) * images + jnp.sqrt(1 - alpha) * noise

    def loss_of(model: UNet) -> jax.Array:
        return jnp.mean((model(noisy, t) - noise) ** 2)

    loss, grads = dx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    ema.update(model)
    return loss


predict = dx.jit(lambda model, x, t: model(x, t))


def fixed() -> tuple[jax.Array, jax.Array]:
    return jax.random.normal(jax.random.key(5), (2, 8, 8, 1)), jnp.array([3, 50])


def main(folder: Path) -> list[float]:
    run = dx.from_config(Run, HERE / "unet_blind.toml")
    rngs = dx.Rngs(run.seed)
    model = run.model.build(rngs=rngs)
    optimizer = dx.Optimizer(model, run.optimizer.build())
    ema = dx.EMA(model, decay=run.decay, only=dx.Param)
    images = jnp.sign(jax.random.normal(jax.random.key(1), (run.batch_size, 1, 1, 1))) * jnp.ones((1, 8, 8, 1))
    losses = [float(train_step(model, optimizer, ema, rngs, images)) for _ in range(run.steps)]

    x, t = fixed()
    assert (predict(model, x, t) != predict(model, x, t)).any()  # dropout
    averaged = ema.apply_to(model)
    averaged.eval()
    model.eval()
    assert (predict(model, x, t) == predict(model, x, t)).all()
    dx.save(
        folder, {"model": model, "optimizer": optimizer, "ema": ema, "rngs": rngs, "step": run.steps}, overwrite=True
    )
    jnp.save(folder.parent / "expected.npy", jnp.stack([predict(model, x, t), predict(averaged, x, t)]))
    return losses


def load(folder: Path) -> None:
    found = dx.load(folder, extra=[UNet])
    model, ema = found["model"], found["ema"]
    x, t = fixed()
    assert model.middle.drop.deterministic
    averaged = ema.apply_to(model)
    expected = jnp.load(folder.parent / "expected.npy")
    assert (predict(model, x, t) == expected[0]).all()
    assert (predict(averaged, x, t) == expected[1]).all()
    model.train()
    loss = train_step(model, found["optimizer"], ema, found["rngs"], jnp.ones((8, 8, 8, 1)))
    print("loaded", type(model).__name__, type(found["optimizer"]).__name__, found["step"], float(loss))
