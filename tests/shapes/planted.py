"""Fifty mistakes of shapes, each beside its right twin. The wrong line ends with `# wrong`."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

import declax as dx


@dataclass
class Pair:
    """A mistake and its twin: classes that declare their shapes, or functions with inputs.

    `verdict` is what is said of the mistake; `where` are conditions for the twin and, if `both`, for the mistake.
    """

    name: str
    wrong: Any
    right: Any
    inputs: tuple[Any, ...] = ()
    verdict: str = "wrong"
    where: tuple[str, ...] = ()
    both: bool = False
    severity: str = "error"


PAIRS: list[Pair] = []


def pair(name: str, *inputs: Any, **options: Any) -> Any:
    """Decorates a function that returns the wrong and the right target."""

    def register(make: Any) -> Any:
        wrong, right = make()
        PAIRS.append(Pair(name, wrong, right, inputs, **options))
        return make

    return register


# ================================================================= transposed axes


@pair("transposed result")
def pair_1():
    @dx.dataclass
    class Wrong(dx.Layer):
        dim: int = dx.field(ge=1)

        def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n {self.dim}"]:
            return jnp.swapaxes(x, 0, 1)  # wrong

    @dx.dataclass
    class Right(dx.Layer):
        dim: int = dx.field(ge=1)

        def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n {self.dim}"]:
            return jnp.swapaxes(jnp.swapaxes(x, 0, 1), 0, 1)

    return Wrong, Right


@pair("sum of an array and its transpose", "float32[b, h, w]")
def pair_2():
    def wrong(x):
        return x + jnp.swapaxes(x, 1, 2)  # wrong

    def right(x):
        return x @ jnp.swapaxes(x, 1, 2)

    return wrong, right


@pair("heads left of positions", "float32[b, n, 8]")
def pair_3():
    def wrong(x):
        heads = x.reshape(*x.shape[:2], 2, 4).transpose(0, 2, 1, 3)
        return heads.reshape(x.shape[0], x.shape[1], 8) + heads.mean(axis=1)  # wrong

    def right(x):
        heads = x.reshape(*x.shape[:2], 2, 4).transpose(0, 2, 1, 3)
        return heads.transpose(0, 2, 1, 3).reshape(x.shape) + heads.mean(axis=(1, 3))[..., None]

    return wrong, right


@pair("channels first")
def pair_4():
    @dx.dataclass
    class Wrong(dx.Layer):
        conv = dx.Conv(3, 8, (3, 3))

        def __call__(self, x: Float[Array, "b 3 h w"]) -> Float[Array, "b h w 8"]:
            return self.conv(x)  # wrong

    @dx.dataclass
    class Right(dx.Layer):
        conv = dx.Conv(3, 8, (3, 3))

        def __call__(self, x: Float[Array, "b 3 h w"]) -> Float[Array, "b h w 8"]:
            return self.conv(jnp.moveaxis(x, 1, -1))

    return Wrong, Right


@pair("an output that is right for square images only")
def pair_5():
    @dx.dataclass
    class Wrong(dx.Layer):
        conv = dx.Conv(3, 8, (3, 3))

        def __call__(self, x: Float[Array, "b h w 3"]) -> Float[Array, "b h w 8"]:
            return self.conv(x.transpose(0, 2, 1, 3))  # wrong

    @dx.dataclass
    class Right(dx.Layer):
        conv = dx.Conv(3, 8, (3, 3))

        def __call__(self, x: Float[Array, "b h w 3"]) -> Float[Array, "b h w 8"]:
            return self.conv(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)

    return Wrong, Right


# ================================================================= reshapes


@pair("reshape by one more", "float32[b, n, 8]")
def pair_6():
    def wrong(x):
        return x.reshape(x.shape[0], x.shape[1] + 1, 8)  # wrong

    def right(x):
        return x.reshape(x.shape[0], x.shape[1], 2, 4)

    return wrong, right


@pair("pairs of positions", "float32[b, n, 8]", verdict="needs a condition", where=("n % 2 == 0",))
def pair_7():
    def wrong(x):
        return x.reshape(x.shape[0], x.shape[1] // 2, 16)  # wrong

    return wrong, wrong


@pair("flattened by the wrong axis", "float32[b, h, w, 3]")
def pair_8():
    def wrong(x):
        return x.reshape(x.shape[0], x.shape[1] ** 2 * 3)  # wrong

    def right(x):
        return x.reshape(x.shape[0], x.shape[1] * x.shape[2] * 3)

    return wrong, right


@pair("patches", "float32[b, h, w, 3]", verdict="needs a condition", where=("h % 4 == 0", "w % 4 == 0"))
def pair_9():
    def wrong(x):
        b, h, w, c = x.shape
        return x.reshape(b, h // 4, 4, w // 4, 4, c)  # wrong

    return wrong, wrong


@pair("merged heads")
def pair_10():
    @dx.dataclass
    class Wrong(dx.Layer):
        heads: int = dx.field(ge=1)
        dim: int = dx.field(multiple_of=heads)
        up = dx.Linear(dim, 2 * dim)

        def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n 2*{self.dim}"]:
            x = self.up(x).reshape(*x.shape[:2], self.heads, 2 * self.dim // self.heads)
            return x.reshape(*x.shape[:2], self.dim)  # wrong

    @dx.dataclass
    class Right(dx.Layer):
        heads: int = dx.field(ge=1)
        dim: int = dx.field(multiple_of=heads)
        up = dx.Linear(dim, 2 * dim)

        def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n 2*{self.dim}"]:
            x = self.up(x).reshape(*x.shape[:2], self.heads, 2 * self.dim // self.heads)
            return x.reshape(*x.shape[:2], self.heads * (2 * self.dim // self.heads))

    return Wrong, Right


@pair("heads that do not divide", verdict="needs a condition")
def pair_11():
    @dx.dataclass
    class Wrong(dx.Layer):
        heads: int = dx.field(ge=1)
        dim: int = dx.field(ge=1)

        def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n {self.dim}"]:
            parts = x.reshape(*x.shape[:2], self.heads, self.dim // self.heads)  # wrong
            return parts.reshape(x.shape)

    @dx.dataclass
    class Right(dx.Layer):
        heads: int = dx.field(ge=1)
        dim: int = dx.field(multiple_of=heads)

        def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n {self.dim}"]:
            parts = x.reshape(*x.shape[:2], self.heads, self.dim // self.heads)
            return parts.reshape(x.shape)

    return Wrong, Right


@pair("attention with heads that do not divide", verdict="needs a condition")
def pair_12():
    @dx.dataclass
    class Wrong(dx.Layer):
        heads: int = dx.field(ge=1)
        dim: int = dx.field(ge=1)
        attention = dx.MultiHeadAttention(heads, dim, decode=False)  # wrong

        def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n {self.dim}"]:
            return self.attention(x)

    @dx.dataclass
    class Right(dx.Layer):
        heads: int = dx.field(ge=1)
        dim: int = dx.field(multiple_of=heads)
        attention = dx.MultiHeadAttention(heads, dim, decode=False)

        def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n {self.dim}"]:
            return self.attention(x)

    return Wrong, Right


@pair("reshape in a jitted helper", "float32[b, n]")
def pair_13():
    @jax.jit
    def helper(x):
        return x.reshape(x.shape[0], 1, x.shape[1] + 1)  # wrong

    @jax.jit
    def right_helper(x):
        return x.reshape(x.shape[0], 1, x.shape[1])

    return (lambda x: helper(x).sum()), (lambda x: right_helper(x).sum())


@pair("reshape in a scan", "float32[b, n]")
def pair_14():
    def wrong(x):
        return jax.lax.scan(lambda c, row: (c + row.reshape(-1 + row.shape[0]).sum(), None), 0.0, x)[0]  # wrong

    def right(x):
        return jax.lax.scan(lambda c, row: (c + row.reshape(1, row.shape[0]).sum(), None), 0.0, x)[0]

    return wrong, right


# ================================================================= concatenation and slices


@pair("concatenation along the features", "float32[b, n, 8]", "float32[b, m, 8]")
def pair_15():
    def wrong(x, y):
        return jnp.concatenate([x, y], axis=2)  # wrong

    def right(x, y):
        return jnp.concatenate([x, y], axis=1)

    return wrong, right


@pair("concatenation without a layer of the right width")
def pair_16():
    @dx.dataclass
    class Wrong(dx.Layer):
        dim: int = dx.field(ge=1)
        up = dx.Linear(dim, dim)
        out = dx.Linear(dim, 1)

        def __call__(self, x: Float[Array, "b {self.dim}"]) -> Float[Array, "b 1"]:
            return self.out(jnp.concatenate([x, self.up(x)], axis=-1))  # wrong

    @dx.dataclass
    class Right(dx.Layer):
        dim: int = dx.field(ge=1)
        up = dx.Linear(dim, dim)
        out = dx.Linear(2 * dim, 1)

        def __call__(self, x: Float[Array, "b {self.dim}"]) -> Float[Array, "b 1"]:
            return self.out(jnp.concatenate([x, self.up(x)], axis=-1))

    return Wrong, Right


@pair("slice off by one", "float32[b, n, 8]")
def pair_17():
    def wrong(x):
        return x[:, 1:] - x[:, :-2]  # wrong

    def right(x):
        return x[:, 1:] - x[:, :-1]

    return wrong, right


@pair("even and odd positions", "float32[b, n, 8]", verdict="needs a condition", where=("n % 2 == 0",))
def pair_18():
    def wrong(x):
        return x[:, ::2] + x[:, 1::2]  # wrong

    return wrong, wrong


@pair("a class token that is not removed")
def pair_19():
    @dx.dataclass
    class Wrong(dx.Layer):
        dim: int = dx.field(ge=1)
        token: dx.Param[Array] = dx.variable((1, 1, dim), initializer=dx.initializers.zeros)

        def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n {self.dim}"]:
            token = jnp.broadcast_to(self.token, (x.shape[0], 1, self.dim))
            return jnp.concatenate([token, x], axis=1)  # wrong

    @dx.dataclass
    class Right(dx.Layer):
        dim: int = dx.field(ge=1)
        token: dx.Param[Array] = dx.variable((1, 1, dim), initializer=dx.initializers.zeros)

        def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n+1 {self.dim}"]:
            token = jnp.broadcast_to(self.token, (x.shape[0], 1, self.dim))
            return jnp.concatenate([token, x], axis=1)

    return Wrong, Right


@pair("shifted targets", "int32[b, n]", where=("n >= 2",))
def pair_20():
    table = jnp.zeros((16, 16))

    def wrong(tokens):
        logits = table[tokens]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])  # wrong
        return losses.mean()

    def right(tokens):
        logits = table[tokens[:, :-1]]
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    return wrong, right


@pair("the sixth position", "float32[b, n, 8]", verdict="needs a condition", where=("n >= 6",))
def pair_21():
    def wrong(x):
        return x[:, 5]  # wrong

    return wrong, wrong


# ================================================================= widths


@pair("a residual of another width")
def pair_22():
    @dx.dataclass
    class Wrong(dx.Layer):
        dim: int = dx.field(ge=1)
        up = dx.Linear(dim, 4 * dim)

        def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n {self.dim}"]:
            return x + self.up(x)  # wrong

    @dx.dataclass
    class Right(dx.Layer):
        dim: int = dx.field(ge=1)
        up = dx.Linear(dim, 4 * dim)
        down = dx.Linear(4 * dim, dim)

        def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n {self.dim}"]:
            return x + self.down(self.up(x))

    return Wrong, Right


@pair("a hidden width that was forgotten")
def pair_23():
    @dx.dataclass
    class Wrong(dx.Layer):
        dim: int = dx.field(ge=1)
        hidden: int = dx.field(ge=1)
        up = dx.Linear(dim, hidden)
        down = dx.Linear(4 * dim, dim)

        def __call__(self, x: Float[Array, "... {self.dim}"]) -> Float[Array, "... {self.dim}"]:
            return self.down(self.up(x))  # wrong

    @dx.dataclass
    class Right(dx.Layer):
        dim: int = dx.field(ge=1)
        hidden: int = dx.field(ge=1)
        up = dx.Linear(dim, hidden)
        down = dx.Linear(hidden, dim)

        def __call__(self, x: Float[Array, "... {self.dim}"]) -> Float[Array, "... {self.dim}"]:
            return self.down(self.up(x))

    return Wrong, Right


@pair("tied weights", "int32[b, n]")
def pair_24():
    @dx.dataclass
    class Wrong(dx.Layer):
        vocab: int = dx.field(ge=1)
        dim: int = dx.field(ge=1)
        embed = dx.Embed(vocab, dim)

        def __call__(self, tokens: Int[Array, "b n"]) -> Float[Array, "b n {self.vocab}"]:
            return self.embed(tokens) @ self.embed.embedding  # wrong

    @dx.dataclass
    class Right(dx.Layer):
        vocab: int = dx.field(ge=1)
        dim: int = dx.field(ge=1)
        embed = dx.Embed(vocab, dim)

        def __call__(self, tokens: Int[Array, "b n"]) -> Float[Array, "b n {self.vocab}"]:
            return self.embed(tokens) @ self.embed.embedding.T

    return Wrong, Right


@pair("a part of another width", "int32[b, n]")
def pair_25():
    @dx.dataclass
    class Block(dx.Layer):
        dim: int = dx.field(ge=1)
        linear = dx.Linear(dim, dim)

        def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n {self.dim}"]:
            return self.linear(x)

    @dx.dataclass
    class Wrong(dx.Layer):
        dim: int = dx.field(ge=1)
        embed = dx.Embed(16, dim)
        block = dx.defer(Block)(2 * dim)

        def __call__(self, tokens: Int[Array, "b n"]) -> Float[Array, "b n {self.dim}"]:
            return self.block(self.embed(tokens))  # wrong

    @dx.dataclass
    class Right(dx.Layer):
        dim: int = dx.field(ge=1)
        embed = dx.Embed(16, dim)
        block = dx.defer(Block)(dim)

        def __call__(self, tokens: Int[Array, "b n"]) -> Float[Array, "b n {self.dim}"]:
            return self.block(self.embed(tokens))

    return Wrong, Right


@pair("a group of channels", "float32[b, h, w, 8]")
def pair_26():
    def wrong(x):
        left, right = jnp.split(x, 2, axis=-1)
        return left + jnp.concatenate([right, right], axis=-1)  # wrong

    def right(x):
        left, right = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([left + right, right], axis=-1)

    return wrong, right


@pair("kernel of a matmul", "float32[b, k]", "float32[n, k]")
def pair_27():
    def wrong(x, y):
        return x @ y  # wrong

    def right(x, y):
        return x @ y.T

    return wrong, right


# ================================================================= convolution and pooling


@pair("VALID convolution", "float32[b, n, 8]")
def pair_28():
    kernel = jnp.zeros((3, 8, 8))

    def conv(x, padding):
        return jax.lax.conv_general_dilated(x, kernel, (1,), padding, dimension_numbers=("NWC", "WIO", "NWC"))

    def wrong(x):
        return conv(x, "VALID") + x  # wrong

    def right(x):
        return conv(x, "SAME") + x

    return wrong, right


@pair("VALID convolution and a crop", "float32[b, n, 8]", where=("n >= 3",), both=True)
def pair_29():
    kernel = jnp.zeros((3, 8, 8))

    def conv(x):
        return jax.lax.conv_general_dilated(x, kernel, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))

    def wrong(x):
        return conv(x) + x[:, 1:]  # wrong

    def right(x):
        return conv(x) + x[:, 1:-1]

    return wrong, right


@pair("strided convolution beside a slice", "float32[b, n, 8]", verdict="needs a condition")
def pair_30():
    @dx.dataclass
    class Wrong(dx.Layer):
        conv = dx.Conv(8, 8, (3,), strides=2)

        def __call__(self, x: Float[Array, "b n 8"]) -> Array:
            return self.conv(x) + x[:, 1::2]  # wrong

    @dx.dataclass
    class Right(dx.Layer):
        conv = dx.Conv(8, 8, (3,), strides=2)

        def __call__(self, x: Float[Array, "b n 8"]) -> Array:
            return self.conv(x) + x[:, ::2]

    return Wrong(rngs=dx.Rngs(0)), Right(rngs=dx.Rngs(0))


@pair("skips of a U-Net", verdict="needs a condition")
def pair_31():
    @dx.dataclass
    class Wrong(dx.Layer):
        dim: int = dx.field(ge=1)
        enter = dx.Conv(3, dim, (3, 3))
        down = dx.Conv(dim, dim, (3, 3), strides=2)
        up = dx.ConvTranspose(dim, dim, (2, 2), strides=2)
        leave = dx.Conv(2 * dim, 3, (3, 3))

        def __call__(self, x: Float[Array, "b h w 3"]) -> Float[Array, "b h w 3"]:
            skip = self.enter(x)
            return self.leave(jnp.concatenate([skip, self.up(self.down(skip))], axis=-1))  # wrong

    @dx.dataclass(where=("h % 2 == 0", "w % 2 == 0"))
    class Right(dx.Layer):
        dim: int = dx.field(ge=1)
        enter = dx.Conv(3, dim, (3, 3))
        down = dx.Conv(dim, dim, (3, 3), strides=2)
        up = dx.ConvTranspose(dim, dim, (2, 2), strides=2)
        leave = dx.Conv(2 * dim, 3, (3, 3))

        def __call__(self, x: Float[Array, "b h w 3"]) -> Float[Array, "b h w 3"]:
            skip = self.enter(x)
            return self.leave(jnp.concatenate([skip, self.up(self.down(skip))], axis=-1))

    return Wrong, Right


@pair("pooling and a head of fixed size")
def pair_32():
    @dx.dataclass
    class Wrong(dx.Layer):
        head = dx.Linear(7 * 7 * 4, 10)

        def __call__(self, x: Float[Array, "b h w 4"]) -> Float[Array, "b 10"]:
            x = dx.max_pool(x, (2, 2), (2, 2))
            return self.head(x.reshape(x.shape[0], -1))  # wrong

    @dx.dataclass
    class Right(dx.Layer):
        head = dx.Linear(4, 10)

        def __call__(self, x: Float[Array, "b h w 4"]) -> Float[Array, "b 10"]:
            return self.head(x.mean(axis=(1, 2)))

    return Wrong, Right


@pair("pooling beside the input", "float32[b, h, w, 3]")
def pair_33():
    def wrong(x):
        return dx.avg_pool(x, (3, 3)) + x  # wrong

    def right(x):
        return dx.avg_pool(x, (3, 3), padding="SAME") + x

    return wrong, right


@pair("upsampling by repeat", "float32[b, n, 8]", verdict="needs a condition", where=("n % 2 == 0",))
def pair_34():
    def wrong(x):
        half = x.reshape(x.shape[0], -1, 16)[..., :8] if x.shape[1] % 2 == 0 else x[:, ::2][:, : x.shape[1] // 2]
        return jnp.repeat(half, 2, axis=1) + x  # wrong

    return wrong, wrong


# ================================================================= positions


@pair("a sliced table of positions", verdict="needs a condition")
def pair_35():
    @dx.dataclass
    class Wrong(dx.Layer):
        dim: int = dx.field(ge=1)
        length: int = dx.field(default=32)
        table: dx.Param[Array] = dx.variable((length, dim), initializer=dx.initializers.zeros)

        def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n {self.dim}"]:
            return x + self.table[: x.shape[1]]  # wrong

    @dx.dataclass(where=("n <= {self.length}",))
    class Right(dx.Layer):
        dim: int = dx.field(ge=1)
        length: int = dx.field(default=32)
        table: dx.Param[Array] = dx.variable((length, dim), initializer=dx.initializers.zeros)

        def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n {self.dim}"]:
            return x + self.table[: x.shape[1]]

    return Wrong, Right


@pair("a table of positions by Embed", verdict="needs a condition")
def pair_36():
    @dx.dataclass
    class Wrong(dx.Layer):
        dim: int = dx.field(ge=1)
        length: int = dx.field(ge=1)
        table = dx.Embed(length, dim)

        def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n {self.dim}"]:
            return x + self.table(jnp.arange(x.shape[1]))  # wrong

    @dx.dataclass(where=("n <= {self.length}",))
    class Right(dx.Layer):
        dim: int = dx.field(ge=1)
        length: int = dx.field(ge=1)
        table = dx.Embed(length, dim)

        def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n {self.dim}"]:
            return x + self.table(jnp.arange(x.shape[1]))

    return Wrong, Right


@pair("positions that begin at one", "float32[b, n, 8]", where=("n <= 32",), both=True, verdict="needs a condition")
def pair_37():
    table = jnp.zeros((32, 8))

    def wrong(x):
        return x + jnp.take(table, jnp.arange(x.shape[1]) + 1, axis=0)  # wrong

    def right(x):
        return x + jnp.take(table, jnp.arange(x.shape[1]), axis=0)

    return wrong, right


@pair("an inner condition that the caller does not imply", "int32[b, n]", verdict="needs a condition")
def pair_38():
    @dx.dataclass(where=("n <= {self.length}",))
    class Positions(dx.Layer):
        dim: int = dx.field(ge=1)
        length: int = dx.field(default=32)
        table = dx.Embed(length, dim)

        def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n {self.dim}"]:
            return x + self.table(jnp.arange(x.shape[1]))

    @dx.dataclass
    class Wrong(dx.Layer):
        dim: int = dx.field(ge=1)
        embed = dx.Embed(16, dim)
        positions = dx.defer(Positions)(dim)

        def __call__(self, tokens: Int[Array, "b n"]) -> Float[Array, "b n {self.dim}"]:
            return self.positions(self.embed(tokens))  # wrong

    @dx.dataclass(where=("n <= 32",))
    class Right(dx.Layer):
        dim: int = dx.field(ge=1)
        embed = dx.Embed(16, dim)
        positions = dx.defer(Positions)(dim)

        def __call__(self, tokens: Int[Array, "b n"]) -> Float[Array, "b n {self.dim}"]:
            return self.positions(self.embed(tokens))

    return Wrong, Right


@pair("sinusoids of the wrong width")
def pair_39():
    def sinusoids(n, half):
        angles = jnp.arange(n)[:, None] / jnp.arange(1, half + 1)
        return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)

    @dx.dataclass
    class Wrong(dx.Layer):
        dim: int = dx.field(multiple_of=2)

        def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n {self.dim}"]:
            return x + sinusoids(x.shape[1], self.dim)  # wrong

    @dx.dataclass
    class Right(dx.Layer):
        dim: int = dx.field(multiple_of=2)

        def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n {self.dim}"]:
            return x + sinusoids(x.shape[1], self.dim // 2)

    return Wrong, Right


# ================================================================= branches on one size


@pair("a batch of one is squeezed", "float32[b, 8]")
def pair_40():
    def wrong(x):
        y = x[0] if x.shape[0] == 1 else x
        return y.reshape(x.shape[0] * 2, 4) @ jnp.zeros((4, 1)) + jnp.sum(y, axis=1)[:, None].repeat(2, axis=0)  # wrong

    def right(x):
        y = x[0][None] if x.shape[0] == 1 else x
        return y.reshape(x.shape[0] * 2, 4) @ jnp.zeros((4, 1)) + jnp.sum(y, axis=1)[:, None].repeat(2, axis=0)

    return wrong, right


@pair("an odd length is not padded", "float32[b, n, 8]")
def pair_41():
    def wrong(x):
        x = x if x.shape[1] % 2 == 1 else jnp.pad(x, ((0, 0), (0, 1), (0, 0)))
        return x.reshape(x.shape[0], x.shape[1] // 2, 16)  # wrong

    def right(x):
        x = x if x.shape[1] % 2 == 0 else jnp.pad(x, ((0, 0), (0, 1), (0, 0)))
        return x.reshape(x.shape[0], x.shape[1] // 2, 16)

    return wrong, right


@pair("two lengths of which nobody thought", "float32[b, n, 8]")
def pair_42():
    def wrong(x):
        return x[:, :4] + x if x.shape[1] in (5, 7) else x  # wrong

    def right(x):
        return x[:, :4] if x.shape[1] in (5, 7) else x

    return wrong, right


@pair("short sequences take another way", "float32[b, n, 8]")
def pair_43():
    def wrong(x):
        y = x if x.shape[1] > 16 else jnp.pad(x, ((0, 0), (0, 16), (0, 0)))
        return y + x  # wrong

    def right(x):
        y = x if x.shape[1] > 16 else jnp.pad(x, ((0, 0), (0, 16), (0, 0)))[:, : x.shape[1]]
        return y + x

    return wrong, right


# ================================================================= masks


@pair("a mask of keys for queries", "float32[b, n, 8]", "float32[b, m, 8]", "bool[b, m]")
def pair_44():
    def wrong(x, y, mask):
        scores = jnp.einsum("bnd,bmd->bnm", x, y)
        return jnp.where(mask[:, :, None], scores, -jnp.inf)  # wrong

    def right(x, y, mask):
        scores = jnp.einsum("bnd,bmd->bnm", x, y)
        return jnp.where(mask[:, None, :], scores, -jnp.inf)

    return wrong, right


@pair("a causal mask for another length")
def pair_45():
    @dx.dataclass
    class Wrong(dx.Layer):
        dim: int = dx.field(ge=1)

        def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n n"]:
            scores = x @ jnp.swapaxes(x, 1, 2)
            mask = jnp.tril(jnp.ones((self.dim, self.dim), bool))
            return jnp.where(mask, scores, 0.0)  # wrong

    @dx.dataclass
    class Right(dx.Layer):
        dim: int = dx.field(ge=1)

        def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n n"]:
            scores = x @ jnp.swapaxes(x, 1, 2)
            mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
            return jnp.where(mask, scores, 0.0)

    return Wrong, Right


@pair("an optional mask")
def pair_46():
    @dx.dataclass
    class Wrong(dx.Layer):
        dim: int = dx.field(ge=1)

        def __call__(
            self, x: Float[Array, "b n {self.dim}"], mask: Bool[Array, "b n"] | None = None
        ) -> Float[Array, "b n {self.dim}"]:
            return x if mask is None else jnp.where(mask, x, 0.0)  # wrong

    @dx.dataclass
    class Right(dx.Layer):
        dim: int = dx.field(ge=1)

        def __call__(
            self, x: Float[Array, "b n {self.dim}"], mask: Bool[Array, "b n"] | None = None
        ) -> Float[Array, "b n {self.dim}"]:
            return x if mask is None else jnp.where(mask[..., None], x, 0.0)

    return Wrong, Right


@pair("a mean over masked positions", "float32[b, n, 8]", "float32[b, n]")
def pair_47():
    def wrong(x, mask):
        return (x * mask[..., None]).sum(1) / mask.sum(1)  # wrong

    def right(x, mask):
        return (x * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)

    return wrong, right


# ================================================================= losses that broadcast


@pair("a loss of columns and rows", "float32[b, 8]", "float32[b]", severity="warning")
def pair_48():
    head = jnp.zeros((8, 1))

    def wrong(x, y):
        return jnp.mean((x @ head - y) ** 2)  # wrong

    def right(x, y):
        return jnp.mean(((x @ head)[:, 0] - y) ** 2)

    return wrong, right


@pair("a loss by where", "float32[b, 1]", "float32[b]", severity="warning")
def pair_49():
    def wrong(x, y):
        return jnp.where(x > 0, x, y).mean()  # wrong

    def right(x, y):
        return jnp.where(x[:, 0] > 0, x[:, 0], y).mean()

    return wrong, right


@pair("a training step whose loss broadcasts", severity="warning")
def pair_50():
    model = dx.MLP(8, 16, 1, rngs=dx.Rngs(0))

    def step(x: Float[Array, "b 8"], y: Float[Array, " b"]) -> Any:
        return dx.grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)  # wrong

    def right(x: Float[Array, "b 8"], y: Float[Array, " b"]) -> Any:
        return dx.grad(lambda model: jnp.mean((model(x)[:, 0] - y) ** 2))(model)

    return step, right


@pair("labels of another length", "float32[b, n, 10]", "int32[b, m]")
def pair_51():
    def wrong(logits, labels):
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()  # wrong

    def right(logits, labels):
        return logits.mean() + labels.mean()

    return wrong, right


@pair("contrastive logits", "float32[b, 8]", "float32[b, 8]", verdict="needs a condition")
def pair_52():
    def wrong(x, y):
        return (x @ y.T)[jnp.arange(x.shape[1]), jnp.arange(x.shape[1])]  # wrong

    def right(x, y):
        return (x @ y.T)[jnp.arange(x.shape[0]), jnp.arange(x.shape[0])]

    return wrong, right
