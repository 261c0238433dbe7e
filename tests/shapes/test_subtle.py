"""Mistakes of one expression in models as they are found in papers; the same model without it is proven.

In each source, the line with ``<<wrong | right>>`` is written in one of both ways, in a file of its own.
"""

import importlib.util
import itertools
import linecache
import re
import sys

import pytest

import declax as dx

HEAD = """
from typing import Literal
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
import declax as dx
"""

GROUPED_QUERIES = """
@dx.dataclass
class Model(dx.Layer):
    groups: int = dx.field(ge=1)
    heads: int = dx.field(multiple_of=groups)
    size: int = dx.field(ge=1)
    q = dx.Linear(heads * size, heads * size)
    k = dx.Linear(heads * size, groups * size)

    def __call__(
        self, x: Float[Array, "b n {self.heads}*{self.size}"]
    ) -> Float[Array, "b n {self.heads} {self.size}"]:
        q = self.q(x).reshape(*x.shape[:2], self.heads, self.size)
        k = self.k(x).reshape(*x.shape[:2], self.groups, self.size)
        return q * jnp.repeat(k, <<self.heads | self.heads // self.groups>>, axis=2)
"""

SCORES = """
@dx.dataclass
class Model(dx.Layer):
    dim: int = dx.field(ge=1)

    def __call__(
        self, q: Float[Array, "b n {self.dim}"], k: Float[Array, "b m {self.dim}"]
    ) -> Float[Array, "b n {self.dim}"]:
        scores = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k))
        return jnp.einsum(<<"bkq,bkd->bqd" | "bqk,bkd->bqd">>, scores, k)
"""

FUSED_PROJECTION = """
@dx.dataclass
class Model(dx.Layer):
    dim: int = dx.field(ge=1)
    qkv = dx.Linear(dim, 3 * dim)

    def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n {self.dim}"]:
        q, k, v = jnp.split(self.qkv(x)<<[..., 1:] | >>, 3, axis=-1)
        return q * k + v
"""

RELATIVE_POSITIONS = """
@dx.dataclass(where=("n <= {self.length}",))
class Model(dx.Layer):
    length: int = dx.field(ge=1)
    table = dx.Embed(2 * length - 1, 8)

    def __call__(self, x: Float[Array, "b n 8"]) -> Float[Array, "b n n"]:
        at = jnp.arange(x.shape[1])
        bias = self.table(at[:, None] - at + self.length <<| - 1>>)
        return jnp.einsum("bnd,nmd->bnm", x, bias)
"""

AUTOENCODER = """
@dx.dataclass
class Model(dx.Layer):
    down = dx.Conv(3, 8, (3, 3), strides=2)
    up = dx.ConvTranspose(8, 3, (3, 3), strides=2)

    def __call__(self, x: Float[Array, "b h w 3"]) -> Float[Array, "b h w 3"]:
        return self.up(self.down(x))<<| [:, : x.shape[1], : x.shape[2]]>>
"""

BRANCHES = """
@dx.dataclass
class Model(dx.Layer):
    def __call__(self, x: Float[Array, "b n"], flag: Bool[Array, ""]) -> Float[Array, "b n"]:
        return jax.lax.cond(flag, lambda x: jnp.repeat(x[:, ::2], 2, axis=1)<<| [:, : x.shape[1]]>>, lambda x: x, x)
"""

CARRY = """
@dx.dataclass
class Model(dx.Layer):
    dim: int = dx.field(ge=1)
    cell = dx.Linear(dim, dim)

    def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b {self.dim}"]:
        def step(carry, x):
            return jnp.tanh(self.cell(x) + carry), None

        return jax.lax.scan(step, jnp.zeros((<<| x.shape[0],>> self.dim,)), jnp.swapaxes(x, 0, 1))[0]
"""

MAPPED_AXIS = """
@dx.dataclass
class Model(dx.Layer):
    def __call__(self, x: Float[Array, "b n d"]) -> Float[Array, "b n"]:
        return jax.vmap(lambda row: row.sum(-1), in_axes=1, out_axes=<<0 | 1>>)(x)
"""

GRAPH = """
@dx.dataclass
class Model(dx.Layer):
    dim: int = dx.field(ge=1)
    message = dx.Linear(2 * dim, dim)

    def __call__(
        self, nodes: Float[Array, "n {self.dim}"], senders: Int[Array, " e"], receivers: Int[Array, " e"]
    ) -> Float[Array, "n {self.dim}"]:
        messages = self.message(jnp.concatenate([nodes[senders], nodes[receivers]], axis=-1))
        return nodes + jax.ops.segment_sum(messages, receivers, <<senders | nodes>>.shape[0])
"""

WINDOWS = """
@dx.dataclass(where=("h % 4 == 0", "w % 4 == 0"))
class Model(dx.Layer):
    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
        b, h, w, c = x.shape
        windows = x.reshape(b, h // 4, 4, w // 4, 4, c).transpose(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
        back = windows.reshape(b, h // 4, w // 4, 4, 4, c).transpose(0, 1, 3, 2, 4, 5)
        return back.reshape(b, <<w, h | h, w>>, c)
"""

EXPERTS = """
@dx.dataclass(where=("{self.chosen} <= {self.experts}",))
class Model(dx.Layer):
    experts: int = dx.field(ge=1)
    chosen: int = dx.field(ge=1)
    gate = dx.Linear(8, experts)

    def __call__(self, x: Float[Array, "n 8"]) -> Float[Array, "n {self.chosen}"]:
        return jax.lax.top_k(self.gate(x), self.chosen<<+ 1 | >>)[0][:, : self.chosen]
"""

CACHE = """
@dx.dataclass(where=("n <= {self.length}",))
class Model(dx.Layer):
    length: int = dx.field(ge=1)

    def __call__(self, x: Float[Array, "b n 8"]) -> Float[Array, "b {self.length} 8"]:
        cache = jnp.zeros((x.shape[0], self.length, 8))
        return jax.lax.dynamic_update_slice(cache, x, (0, <<1 | 0>>, 0))
"""

PIXEL_SHUFFLE = """
@dx.dataclass
class Model(dx.Layer):
    conv = dx.Conv(8, 16, (3, 3))

    def __call__(self, x: Float[Array, "b h w 8"]) -> Float[Array, "b 2*h 2*w 4"]:
        b, h, w, _ = x.shape
        y = self.conv(x).reshape(b, h, w, 2, 2, 4).transpose(0, 1, 3, 2, 4, 5)
        return y.reshape(b, <<2 * w, 2 * h | 2 * h, 2 * w>>, 4)
"""

TWO_DIRECTIONS = """
@dx.dataclass
class Model(dx.Layer):
    dim: int = dx.field(ge=1)
    forward = dx.RNN(dx.LSTMCell(8, dim))
    backward = dx.RNN(dx.LSTMCell(8, dim), reverse=True, keep_order=True)
    head = dx.Linear(2 * dim, 3)

    def __call__(self, x: Float[Array, "b n 8"]) -> Float[Array, "b n 3"]:
        return self.head(jnp.concatenate([self.forward(x), self.backward(x)], axis=<<1 | -1>>))
"""

POOLING = """
@dx.dataclass
class Model(dx.Layer):
    dim: int = dx.field(ge=1)
    pool: Literal["mean", "first"] = "mean"

    def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b {self.dim}"]:
        if self.pool == "mean":
            return x.mean(axis=1)
        return x[<<0 | :, 0>>]
"""

CHUNKS = """
@dx.dataclass
class Model(dx.Layer):
    chunk: int = dx.field(default=8)

    def __call__(self, x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
        y = jnp.pad(x, ((0, 0), (0, -x.shape[1] % self.chunk), (0, 0)))
        y = y.reshape(x.shape[0], <<x | y>>.shape[1] // self.chunk, self.chunk, x.shape[2])
        return y.reshape(x.shape[0], -1, x.shape[2])[:, : x.shape[1]]
"""

REST_OF_CHUNKS = """
@dx.dataclass
class Model(dx.Layer):
    chunk: int = dx.field(default=8)

    def __call__(self, x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
        b, n, d = x.shape
        y = jnp.concatenate([x, jnp.zeros((b, <<| ->>n % self.chunk, d))], axis=1).reshape(b, -1, self.chunk, d)
        return y.reshape(b, -1, d)[:, :n]
"""

PAIRS = """
@dx.dataclass
class Model(dx.Layer):
    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "n*(n-1)//2"]:
        return (x @ x.T).reshape(-1)[: x.shape[0] * (x.shape[0] <<+ | ->> 1) // 2]
"""

BLOCKS = """
@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field()
    linear = dx.Linear(dim, dim)

    def __call__(self, x: Float[Array, "b {self.dim}"]) -> Float[Array, "b {self.dim}"]:
        return x + self.linear(x)

@dx.dataclass
class Model(dx.Layer):
    dim: int = dx.field(ge=1)
    blocks = dx.Stacked(Block(dim), 3)

    def __call__(self, x: Float[Array, "b t {self.dim}"]) -> Float[Array, "b t {self.dim}"]:
        return <<self.blocks(x) | jax.vmap(self.blocks)(x)>>
"""

SLOPES = """
@dx.dataclass
class Model(dx.Layer):
    heads: int = dx.field(ge=1)

    def __call__(self, scores: Float[Array, "b {self.heads} n m"]) -> Float[Array, "b {self.heads} n m"]:
        slopes = 2.0 ** -jnp.arange(1, self.heads + 1).astype("float32")
        distance = (jnp.arange(scores.shape[3]) - jnp.arange(scores.shape[2])[:, None]).astype("float32")
        return scores + slopes[<<1: | :>>, None, None] * distance
"""

UNFOLDED = """
@dx.dataclass(where=("n >= 4",))
class Model(dx.Layer):
    def __call__(self, x: Float[Array, "b n"]) -> Float[Array, "b n-3 4"]:
        return x[:, jnp.arange(x.shape[1] - 3)[:, None] + jnp.arange(<<1, 5 | 4>>)]
"""

RUNNING_MEAN = """
@dx.dataclass
class Model(dx.Layer):
    dim: int = dx.field(ge=1)
    mean: dx.BatchStat[jax.Array] = dx.variable((dim,), initializer=dx.initializers.zeros, stream=None)

    def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n {self.dim}"]:
        mean = 0.9 * self.mean.value + 0.1 * x.mean(axis=(0, 1))
        return x - <<x.mean(axis=1) | mean>>
"""

SOURCES = {name.lower(): text for name, text in vars().items() if "class Model" in str(text)}
CHOICE = re.compile(r"<<(.*?)\|(.*?)>>")
CASES = pytest.mark.parametrize("name", SOURCES)
numbers = itertools.count()


def model_of(text, folder):
    name = f"subtle_model_{next(numbers)}"
    path = folder / f"{name}.py"
    path.write_text(HEAD + text)
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Model


@CASES
def test_the_mistake_is_found_at_its_line(name, tmp_path):
    text = re.sub(rf"(.*){CHOICE.pattern}(.*)", r"\1\2\4  # wrong", SOURCES[name])
    report = dx.check_shapes(model_of(text, tmp_path))
    assert not report.proven, report
    first = report.errors[0]
    assert "# wrong" in linecache.getline(first.file, first.line), report
    assert first.sizes, report


@CASES
def test_the_right_twin_is_proven(name, tmp_path):
    report = dx.check_shapes(model_of(CHOICE.sub(lambda found: found[2].strip(), SOURCES[name]), tmp_path))
    assert report.proven, report
    assert not report.findings, report
