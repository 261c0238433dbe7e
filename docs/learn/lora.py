# %% [markdown]
# # LoRA fine-tuning
#
# A trained model can be adapted to another task without changing its parameters: low-rank adaptation (LoRA) adds two
# small matrices to each linear layer, and trains only these. This tutorial trains a small GPT on English text, and
# then adapts it to Python code. You learn how to add adapters, how to train a part of a model, and how to fold the
# adapters into the model. [A GPT from scratch](gpt.py) explains the model.

# %%
import argparse
import inspect
import typing
from pydoc_data import topics

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
import optax
from jaxtyping import Array, Float, Int

import declax as dx

# %% [markdown]
# ## The model


# %%
@dx.dataclass(where=("{self.width} % 8 == 0",))
class Block(dx.Layer):
    width: int = dx.field()
    _: dx.KW_ONLY
    theta: float = dx.field(default=10_000.0)
    attention_norm = dx.RMSNorm(width)
    attention = dx.MultiHeadAttention(4, width, rope=dx.RoPE(theta=theta), use_bias=False, decode=False)
    mlp_norm = dx.RMSNorm(width)
    mlp = dx.GatedMLP(width, 3 * width, use_bias=False)

    def __call__(self, x: Float[Array, "batch length {self.width}"]) -> Float[Array, "batch length {self.width}"]:
        x = x + self.attention(self.attention_norm(x), is_causal=True)
        return x + self.mlp(self.mlp_norm(x))


@dx.dataclass(where=("{self.width} % 8 == 0",))
class GPT(dx.Layer):
    width: int = dx.field(default=48)
    depth: int = dx.field(default=2)
    embed = dx.Embed(128, width)
    blocks = dx.Stacked(Block(width), depth)
    norm = dx.RMSNorm(width)

    def __call__(self, tokens: Int[Array, "batch length"]) -> Float[Array, "batch length 128"]:
        return self.embed.attend(self.norm(self.blocks(self.embed(tokens))))


# %% [markdown]
# ## Two texts
#
# The help texts of Python are prose, and the sources of two of its modules are code. A tenth of the code is held out.

# %%
LENGTH = 64
Codes = npt.NDArray[np.int32]


def encode(text: str) -> Codes:
    return np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int32)


def windows(codes: Codes, count: int, rng: np.random.Generator) -> jax.Array:
    starts = rng.integers(0, len(codes) - LENGTH, count)
    return jnp.asarray(codes[starts[:, None] + np.arange(LENGTH + 1)])


prose = encode("\n".join(topics.topics[name] for name in sorted(topics.topics)))
source = encode(inspect.getsource(argparse) + inspect.getsource(typing))
code, held_out = np.split(source, [len(source) * 9 // 10])
print(f"{len(prose):,} characters of prose, {len(code):,} of code, {len(held_out):,} held out")

# %% [markdown]
# ## Train on prose
#
# One function trains both the model and, later, the adapters. `wrt` selects the Variables that are trained. The
# gradients must be those of the same Variables, so `dx.DiffState(0, wrt)` passes the filter on: it means the Variables
# of argument 0 that `wrt` selects. Everything else stays constant.


# %%
def loss_of(model: GPT, tokens: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(model(tokens[:, :-1]), tokens[:, 1:]).mean()


def train(model: GPT, codes: Codes, steps: int, rate: float, wrt: type[dx.Param[jax.Array]]) -> list[float]:
    schedule = optax.cosine_decay_schedule(rate, steps)
    optimizer = dx.Optimizer(model, optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule)), wrt=wrt)

    @dx.jit
    def step(model: GPT, optimizer: dx.Optimizer[GPT], tokens: jax.Array) -> jax.Array:
        loss, grads = dx.value_and_grad(loss_of, argnums=dx.DiffState(0, wrt))(model, tokens)
        optimizer.update(model, grads)
        return loss

    rng = np.random.default_rng(0)
    return [float(step(model, optimizer, windows(codes, 16, rng))) for _ in range(steps)]


model = GPT(rngs=dx.Rngs(0))
losses = train(model, prose, 250, 1e-2, dx.Param)
print(f"loss on prose: {losses[0]:.2f} at first, {np.mean(losses[-20:]):.2f} at the end")
assert np.mean(losses[-20:]) < 2.5

# %% [markdown]
# The model predicts code worse than prose, since it has not seen any.

# %%
test_tokens = windows(held_out, 128, np.random.default_rng(1))
evaluate = dx.jit(loss_of)
before = float(evaluate(model, test_tokens))
print(f"loss on held-out code: {before:.2f}")

# %% [markdown]
# ## Add adapters
#
# `dx.lora` returns a new model with adapters beside the layers that a filter selects, here all of the class `Linear`:
# those of the feed-forward networks. The new model has the Variables of the old one, without a copy. An adapter of
# rank 8 adds the product of two matrices, of shapes (inputs, 8) and (8, outputs). The second one is zero at first, so
# the adapted model computes what the model computes.

# %%
adapted = dx.lora(model, dx.Linear, rank=8, rngs=dx.Rngs(1))
print(adapted.blocks.layers.mlp.up.kernel is model.blocks.layers.mlp.up.kernel)
assert float(evaluate(adapted, test_tokens)) == before

# %% [markdown]
# The parameters of adapters have a kind of their own, `LoRAParam`. Kinds are filters, and a filter selects what
# `dx.state` returns:

# %%
adapters = dx.state(adapted, dx.LoRAParam)
for path, leaf in adapters.flat_state():
    print(".".join(map(str, path)), leaf.shape)
added = sum(leaf.size for leaf in jax.tree.leaves(adapters))
total = sum(leaf.size for leaf in jax.tree.leaves(dx.state(model, dx.Param)))
print(f"{added:,} new parameters beside {total:,}")
assert added < total / 4

# %% [markdown]
# Each array has a first axis of 2: the blocks are stacked.
#
# ## Train the adapters
#
# With `wrt=dx.LoRAParam`, the optimizer holds state for the adapters only. This saves most of its memory.

# %%
kept = dx.state(model, dx.Param)
adapter_losses = train(adapted, code, 200, 2e-2, dx.LoRAParam)
after = float(evaluate(adapted, test_tokens))
print(f"loss on held-out code: {before:.2f} before, {after:.2f} with adapters")
assert after < 0.95 * before

# %% [markdown]
# The parameters of the model did not change:

# %%
same = jax.tree.map(lambda a, b: bool((a == b).all()), kept, dx.state(model, dx.Param))
print(all(jax.tree.leaves(same)))
assert all(jax.tree.leaves(same))

# %% mystnb={"image": {"alt": "The loss falls on prose, and then again on code", "width": "70%"}}
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.plot(losses, label="all parameters, on prose", linewidth=0.8)
axis.plot(
    range(len(losses), len(losses) + len(adapter_losses)), adapter_losses, label="adapters, on code", linewidth=0.8
)
axis.set(xlabel="step", ylabel="loss in nats a character", ylim=(0, None))
axis.legend()
axis.grid(alpha=0.3)

# %% [markdown]
# ## Fold the adapters in
#
# For inference, `dx.merge_lora` adds the product of the matrices to each kernel. The result is a `GPT` with plain
# `Linear` layers, as fast as the first one.

# %%
merged = dx.merge_lora(adapted)
print(type(adapted.blocks.layers.mlp.up).__name__, "->", type(merged.blocks.layers.mlp.up).__name__)
assert abs(float(evaluate(merged, test_tokens)) - after) < 1e-3

# %% [markdown]
# A checkpoint holds the merged model as it is: [Ship a fine-tuned model](../howto/ship.md). To keep an adaptation
# without the model, save the State of the adapters: `dx.save(path, {"adapters": dx.state(adapted, dx.LoRAParam)})`.
#
# ## What to read next
#
# - [Layers](../layers.md#low-rank-adapters): adapters for single layers and for attention.
# - [Graphs and States](../graph.md): filters, `state`, `update` and `split`.
# - [Freeze layers](../howto/freeze.md): other ways to train a part of a model.
# - [Loading weights from PyTorch](pytorch_weights.py): start from a model that others trained.
