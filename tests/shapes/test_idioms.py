"""Common models and losses: right ones are proven, and findings on the others name what they need."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
import pytest
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

import declax as dx

TABLE = jnp.arange(16.0)


@dx.dataclass
class UNet(dx.Layer):
    width: int = dx.field(ge=1)
    first = dx.Conv(3, width, (3, 3))
    down = dx.Conv(width, 2 * width, (3, 3))
    up = dx.ConvTranspose(2 * width, width, (2, 2), strides=2)
    out = dx.Conv(2 * width, 3, (3, 3))

    def __call__(self, x: Float[Array, "b h w 3"]) -> Float[Array, "b h w 3"]:
        skip = dx.relu(self.first(x))
        y = self.up(dx.relu(self.down(dx.max_pool(skip, (2, 2), (2, 2)))))
        return self.out(jnp.concatenate([skip, y], axis=-1))


def rotated(x: jax.Array) -> jax.Array:
    """Rotary positions, written by hand."""
    n, d = x.shape[-3], x.shape[-1]
    angles = jnp.arange(n, dtype=float)[:, None] / 10000.0 ** (jnp.arange(0, d, 2, dtype=float) / d)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    x1, x2 = x[..., ::2], x[..., 1::2]
    return jnp.stack([x1 * cos - x2 * sin, x1 * sin + x2 * cos], -1).reshape(x.shape)


@dx.dataclass
class Attention(dx.Layer):
    heads: int = dx.field(ge=1)
    dim: int = dx.field(multiple_of=heads)
    qkv = dx.Linear(dim, 3 * dim, use_bias=False)
    out = dx.Linear(dim, dim)

    def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n {self.dim}"]:
        b, n, _ = x.shape
        q, k, v = (part.reshape(b, n, self.heads, -1) for part in jnp.split(self.qkv(x), 3, axis=-1))
        scores = jnp.einsum("bnhd,bmhd->bhnm", rotated(q), rotated(k))
        scores = jnp.where(jnp.tril(jnp.ones((n, n), bool)), scores, -jnp.inf)
        return self.out(jnp.einsum("bhnm,bmhd->bnhd", jax.nn.softmax(scores), v).reshape(b, n, self.dim))


@dx.dataclass(where=("({self.dim} // {self.heads}) % 2 == 0",))
class EvenAttention(Attention): ...


@dx.dataclass(where=("h % {self.patch} == 0", "w % {self.patch} == 0"))
class Patches(dx.Layer):
    patch: int = dx.field(default=4, ge=1)
    dim: int = dx.field(default=32, ge=1)
    proj = dx.Linear(patch * patch * 3, dim)

    def __call__(self, x: Float[Array, "b h w 3"]) -> Float[Array, "b (h//{self.patch})*(w//{self.patch}) {self.dim}"]:
        b, h, w, c = x.shape
        p = self.patch
        x = x.reshape(b, h // p, p, w // p, p, c).transpose(0, 1, 3, 2, 4, 5)
        return self.proj(x.reshape(b, -1, p * p * c))


class Latent(NamedTuple):
    mean: Float[Array, "b z"]
    logvar: Float[Array, "b z"]


@dx.dataclass
class VAE(dx.Layer):
    d: int = dx.field(ge=1)
    z: int = dx.field(ge=1)
    encoder = dx.Linear(d, 2 * z)
    decoder = dx.Linear(z, d)

    def encode(self, x: Float[Array, "b {self.d}"]) -> Latent:
        return Latent(*jnp.split(self.encoder(x), 2, axis=-1))

    def __call__(
        self, x: Float[Array, "b {self.d}"], key: PRNGKeyArray
    ) -> tuple[Float[Array, "b {self.d}"], dict[str, Float[Array, "b _"]]]:
        latent = self.encode(x)
        noise = jax.random.normal(key, latent.mean.shape)
        return self.decoder(latent.mean + jnp.exp(0.5 * latent.logvar) * noise), latent._asdict()


@dx.dataclass
class Experts(dx.Layer):
    dim: int = dx.field(ge=1)
    experts: int = dx.field(ge=2)
    router = dx.Linear(dim, experts)
    weight: dx.Param[Array] = dx.variable((experts, dim, dim), initializer=dx.initializers.lecun_normal())

    def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n {self.dim}"]:
        top, index = jax.lax.top_k(jax.nn.softmax(self.router(x)), 2)
        y = jnp.einsum("bnd,bnkde->bnke", x, self.weight.value[index])
        return (y * top[..., None]).sum(-2)


@dx.dataclass
class Residual(dx.Layer):
    cin: int = dx.field(ge=1)
    cout: int = dx.field(ge=1)
    stride: int = dx.field(default=1)
    conv = dx.Conv(cin, cout, (3, 3), strides=stride, use_bias=False)
    norm = dx.BatchNorm(cout)
    short = dx.Conv(cin, cout, (1, 1), strides=stride)

    def __call__(
        self, x: Float[Array, "b h w {self.cin}"]
    ) -> Float[Array, "b (h-1)//{self.stride}+1 (w-1)//{self.stride}+1 {self.cout}"]:
        return dx.relu(self.norm(self.conv(x)) + self.short(x))


@dx.dataclass
class ResNet(dx.Layer):
    width: int = dx.field(ge=1)
    stem = dx.Conv(3, width, (7, 7), strides=2)
    blocks = dx.Sequential(dx.defer(Residual)(width, 2 * width, 2), dx.defer(Residual)(2 * width, 4 * width, 2))
    head = dx.Linear(4 * width, 10)

    def __call__(self, x: Float[Array, "b h w 3"]) -> Float[Array, "b 10"]:
        x = dx.max_pool(dx.relu(self.stem(x)), (3, 3), (2, 2), padding="SAME")
        return self.head(self.blocks(x).mean((1, 2)))


@dx.dataclass
class Masked(dx.Layer):
    dim: int = dx.field(ge=1)
    linear = dx.Linear(dim, dim)

    def __call__(
        self, x: Float[Array, "b n {self.dim}"], lengths: Int[Array, " b"], mask: Bool[Array, "b n"] | None = None
    ) -> Float[Array, "b {self.dim}"]:
        keep = jnp.arange(x.shape[1]) < lengths[:, None]
        keep = keep if mask is None else keep & mask
        y = jnp.where(keep[..., None], self.linear(x), 0.0)
        return y.sum(1) / jnp.maximum(keep.astype(x.dtype).sum(1, keepdims=True), 1.0)


@dataclass
class Outputs:
    logits: Float[Array, "b n v"]
    loss: Float[Array, ""]
    hidden: list[Float[Array, "b n d"]]


jax.tree_util.register_dataclass(Outputs)


@dx.dataclass
class LanguageModel(dx.Layer):
    dim: int = dx.field(ge=1)
    vocab: int = dx.field(ge=1)
    embed = dx.Embed(vocab, dim)
    layers = dx.repeat(2, dx.Linear(dim, dim))

    def __call__(self, tokens: Int[Array, "b n"]) -> Outputs:
        hidden = [self.embed(tokens)]
        for layer in self.layers:
            hidden.append(layer(hidden[-1]))
        logits = self.embed.attend(hidden[-1])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:])
        return Outputs(logits, losses.mean(), hidden)


@dx.dataclass
class Recurrent(dx.Layer):
    d: int = dx.field(ge=1)
    h: int = dx.field(ge=1)
    cell = dx.GRUCell(d, h)

    def __call__(self, x: Float[Array, "b n {self.d}"]) -> Float[Array, "b n {self.h}"]:
        start = jnp.zeros((x.shape[0], self.h))
        _, ys = jax.lax.scan(self.cell, start, x.swapaxes(0, 1))
        return ys.swapaxes(0, 1)


def contrastive(a: Float[Array, "b d"], t: Float[Array, "b d"]) -> Float[Array, ""]:
    logits = a @ t.T / jnp.linalg.norm(a, axis=-1, keepdims=True)
    labels = jnp.arange(a.shape[0])
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def beam_step(
    logits: Float[Array, "b k v"], scores: Float[Array, "b k"], tokens: Int[Array, "b k n"]
) -> tuple[Int[Array, "b k n+1"], Float[Array, "b k"]]:
    b, k, v = logits.shape
    best, index = jax.lax.top_k((scores[..., None] + jax.nn.log_softmax(logits)).reshape(b, k * v), k)
    tokens = jnp.take_along_axis(tokens, (index // v)[..., None], axis=1)
    return jnp.concatenate([tokens, (index % v)[..., None]], -1), best


def padded_to_even(x: Float[Array, "b n"]) -> Float[Array, " b (n+1)//2"]:
    if x.shape[1] % 2:
        x = jnp.pad(x, ((0, 0), (0, 1)))
    return x.reshape(x.shape[0], -1, 2).mean(-1)


def chunks(x: Float[Array, "b n"]) -> Float[Array, "b (n+7)//8 8"]:
    return jnp.pad(x, ((0, 0), (0, -x.shape[1] % 8))).reshape(x.shape[0], -1, 8)


def in_windows(x: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
    """There and back, as around the attention of a Swin transformer."""
    b, h, w, c = x.shape
    y = jnp.pad(x, ((0, 0), (0, (7 - h % 7) % 7), (0, (7 - w % 7) % 7), (0, 0)))
    rows, columns = y.shape[1] // 7, y.shape[2] // 7
    y = y.reshape(b, rows, 7, columns, 7, c).transpose(0, 1, 3, 2, 4, 5).reshape(-1, 49, c)
    y = y.reshape(b, rows, columns, 7, 7, c).transpose(0, 1, 3, 2, 4, 5).reshape(b, 7 * rows, 7 * columns, c)
    return y[:, :h, :w]


def cropped(x: Float[Array, "b h w c"], key: PRNGKeyArray) -> Float[Array, "b h w c"]:
    b, h, w, c = x.shape
    x = jnp.pad(x, ((0, 0), (4, 4), (4, 4), (0, 0)))
    corner = jax.random.randint(key, (2,), 0, 9)
    return jax.lax.dynamic_slice(x, (0, corner[0], corner[1], 0), (b, h, w, c))


def grouped_queries(q: Float[Array, "b n h*g d"], k: Float[Array, "b m g d"]) -> Float[Array, "b h*g n m"]:
    return jnp.einsum("bnhd,bmhd->bhnm", q, jnp.repeat(k, q.shape[2] // k.shape[2], axis=2))


def windows(x: Float[Array, "b n d"]) -> Float[Array, "b n 3 d"]:
    x = jnp.pad(x, ((0, 0), (1, 1), (0, 0)))
    return x[:, jnp.arange(x.shape[1] - 2)[:, None] + jnp.arange(3)]


def relative(x: Float[Array, "b n n"]) -> Float[Array, "b n n"]:
    positions = jnp.arange(x.shape[1])
    return x + TABLE[jnp.clip(positions[:, None] - positions, -7, 7) + 7]


def pixels(x: Float[Array, "b h w 4*c"]) -> Float[Array, "b 2*h 2*w c"]:
    b, h, w, c = x.shape
    return x.reshape(b, h, w, 2, 2, c // 4).transpose(0, 1, 3, 2, 4, 5).reshape(b, 2 * h, 2 * w, c // 4)


def every_other(x: Float[Array, "b h w c"]) -> Float[Array, "b (h+1)//2 (w+1)//2 c"]:
    return x[:, ::2, ::2]


def of_either_rank(x: Float[Array, "n d"] | Float[Array, " d"], y: Float[Array, " d"]) -> Float[Array, "*n d"]:
    return x + y


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "target",
    [EvenAttention, Patches, VAE, Experts, ResNet, Masked, LanguageModel, Recurrent, contrastive, beam_step]
    + [
        padded_to_even,
        chunks,
        in_windows,
        cropped,
        grouped_queries,
        windows,
        relative,
        pixels,
        every_other,
        of_either_rank,
    ],
    ids=lambda target: target.__name__,
)
def test_what_is_right_is_proven(target):
    report = dx.check_shapes(target)
    assert report.proven, report
    assert not report.findings, report


def test_conditions_that_a_model_needs():
    assert dx.check_shapes(UNet).findings[0].condition == "h % 2 == 0 and w % 2 == 0"
    found = dx.check_shapes(Attention).findings[0]
    assert found.fix == '@dx.dataclass(where=("{self.dim}//{self.heads} % 2 == 0",))'


@dx.dataclass
class Widening(dx.Layer):
    inputs: int = dx.field(ge=1)
    outputs: int = dx.field(ge=1)
    inner = dx.defer(Masked)(outputs)
    first = dx.Linear(inputs, outputs)
    shortcut = dx.when(inputs != outputs, dx.Linear(inputs, outputs))

    def __call__(self, x: Float[Array, "b {self.inputs}"]) -> Float[Array, "b {self.outputs}"]:
        return self.first(x) + (x if self.shortcut is None else self.shortcut(x))


@dx.dataclass
class Narrowing(Widening):
    shortcut = dx.when(Widening.inputs < Widening.outputs, dx.Linear(Widening.inputs, Widening.outputs))


def test_comparisons_in_a_class_body():
    assert dx.check_shapes(Widening).proven
    assert dx.check_shapes(Narrowing).checked[0].verdict == "wrong"


def test_parts_that_some_sizes_do_not_have():
    @dx.dataclass
    class Deep(dx.Layer):
        width: int = dx.field(ge=1)
        heads: int = dx.field(ge=1)
        depth: int = dx.field(ge=1)
        blocks = dx.repeat(depth, dx.when(depth > 1, EvenAttention(heads, width * heads * 2)))

        def __call__(self, x: Float[Array, "b n 2*{self.width}*{self.heads}"]) -> Float[Array, "b n _"]:
            for block in self.blocks:
                x = x if block is None else block(x)
            return x

    assert [line.verdict for line in dx.check_shapes(Deep).checked] == ["tested only", "tested only"]


def test_a_field_that_jax_does_not_decide_about_becomes_a_number():
    (line,) = dx.check_shapes(Residual).checked
    assert (line.verdict, line.text) == ("tested only", "for all b, h, w, cin, cout ≥ 1 at stride = 1, 2, 3")


def from_the_end(x):
    return x + TABLE[jnp.arange(min(x.shape[0], 3)) - 20].sum()


def put(x):
    return jnp.zeros(32).at[jnp.arange(x.shape[0])].set(x)


def greatest(x):
    return x[4:].max()


def looked_up(x):
    return x[1:] if x.shape[0] in {5000, 7000} else x


@pytest.mark.parametrize(
    ("function", "where", "verdict", "text"),
    [
        (from_the_end, (), "wrong", "indices from -4 select from an axis of size 16"),
        (put, (), "needs a condition", "indices up to n - 1 select from an axis of size 32"),
        (greatest, ("n >= 4",), "needs a condition", "zero-size array"),
        (looked_up, (), "tested only", "n is looked up, and JAX never finds it; use a tuple in place of a set or dict"),
    ],
)
def test_what_jax_does_not_say(function, where, verdict, text):
    """Indices beyond an axis, empty arrays, and sets of sizes."""
    report = dx.check_shapes(function, "float32[n]", where=where)
    assert report.checked[0].verdict == verdict, report
    assert text in report.findings[0].message
