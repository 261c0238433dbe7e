"""One transformer, written twice: as modules, and on plain arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import declax as dx

BLOCKS, HEADS, WIDTH, VOCABULARY = 12, 4, 64, 128

Arrays = dict[str, Any]


@dx.dataclass
class Attention(dx.Layer):
    query = dx.Linear(WIDTH, WIDTH)
    key = dx.Linear(WIDTH, WIDTH)
    value = dx.Linear(WIDTH, WIDTH)
    out = dx.Linear(WIDTH, WIDTH)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(attend(self.query(x), self.key(x), self.value(x)))


@dx.dataclass
class Block(dx.Layer):
    norm_1 = dx.LayerNorm(WIDTH)
    attention = Attention()
    norm_2 = dx.LayerNorm(WIDTH)
    up = dx.Linear(WIDTH, 4 * WIDTH)
    down = dx.Linear(4 * WIDTH, WIDTH)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm_1(x))
        return x + self.down(dx.gelu(self.up(self.norm_2(x))))


@dx.dataclass
class Transformer(dx.Layer):
    embed = dx.Embed(VOCABULARY, WIDTH)
    blocks = dx.repeat(BLOCKS, Block())
    norm = dx.LayerNorm(WIDTH)
    head = dx.Linear(WIDTH, VOCABULARY)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Causal attention of several heads; arrays of shape ``(batch, length, width)``."""
    query, key, value = (a.reshape(*a.shape[:2], HEADS, -1) for a in (query, key, value))
    return jax.nn.dot_product_attention(query, key, value, is_causal=True).reshape(*query.shape[:2], -1)


def make_model() -> Transformer:
    return Transformer(rngs=dx.Rngs(0))


def model_step(model: Transformer, optimizer: dx.Optimizer[Transformer], tokens: jax.Array) -> jax.Array:
    def loss_of_model(model: Transformer) -> jax.Array:
        return loss_of(model(tokens), tokens)

    loss, grads = dx.value_and_grad(loss_of_model)(model)
    optimizer.update(model, grads)
    return loss


def loss_of(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()


# ================================================================= the same on plain arrays


def flat_parameters() -> Arrays:
    """The arrays of `make_model`, in nested dicts."""
    params: Arrays = dx.to_pure_dict(dx.state(make_model(), dx.Param))
    return params


def linear(params: Arrays, x: jax.Array) -> jax.Array:
    product = jax.lax.dot_general(x, params["kernel"], (((x.ndim - 1,), (0,)), ((), ())))
    bias: jax.Array = params["bias"]
    return product + bias.reshape((1,) * (x.ndim - 1) + (-1,))


def layer_norm(params: Arrays, x: jax.Array) -> jax.Array:
    """With the operations of `dx.LayerNorm`, one for one."""
    mean, square = jnp.mean(x, -1), jnp.mean(jnp.square(x), -1)
    variance = jnp.maximum(square - jnp.square(mean), 0)
    mean, variance = jnp.expand_dims(mean, -1), jnp.expand_dims(variance, -1)
    shape = (1,) * (x.ndim - 1) + (-1,)
    scale: jax.Array = params["scale"]
    bias: jax.Array = params["bias"]
    return (x - mean) * (jax.lax.rsqrt(variance + 1e-6) * scale.reshape(shape)) + bias.reshape(shape)


def flat_model(params: Arrays, tokens: jax.Array) -> jax.Array:
    x = jnp.take(params["embed"]["embedding"], tokens, axis=0)
    for i in range(BLOCKS):
        block = params["blocks"][i]
        attention, normed = block["attention"], layer_norm(block["norm_1"], x)
        heads = (linear(attention[name], normed) for name in ("query", "key", "value"))
        x = x + linear(attention["out"], attend(*heads))
        x = x + linear(block["down"], jax.nn.gelu(linear(block["up"], layer_norm(block["norm_2"], x))))
    return linear(params["head"], layer_norm(params["norm"], x))


def flat_step(params: Arrays, tokens: jax.Array) -> tuple[jax.Array, Any]:
    loss, grads = jax.value_and_grad(lambda params: loss_of(flat_model(params, tokens), tokens))(params)
    updates, _ = optax.sgd(1e-3).update(grads, optax.sgd(1e-3).init(params), params)
    return loss, optax.apply_updates(params, updates)


def check() -> None:
    """Checks that both compute the same."""
    tokens = jnp.arange(32).reshape(2, 16)
    np.testing.assert_allclose(make_model()(tokens), flat_model(flat_parameters(), tokens), rtol=1e-4, atol=1e-5)
