# %% [markdown]
# # A GPT from scratch
#
# This tutorial builds a small language model of the GPT family, trains it on English text, and lets it write. The
# model has the parts of present large models: RMS norms, attention with rotary positions (RoPE), gated feed-forward
# networks (SwiGLU), and stacked blocks. You learn how to put a transformer together, how to train one on text, and how
# to sample from it with a cache of keys and values. [A first model](first_model.py) explains declarations and training
# steps.

# %%
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
# ## The text
#
# Python contains its own language reference as text. `help("LOOPING")` shows a part of it. We join all parts, and hold
# out the end for testing. Each character is a token: its ASCII code, from 0 to 127.

# %%
text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int32)
train_codes, test_codes = np.split(codes, [len(codes) * 19 // 20])
print(f"{len(train_codes):,} characters for training, {len(test_codes):,} for testing")
print(text[:250])

# %% [markdown]
# ## A block
#
# A block improves the features of each position in two ways, and adds both results to its input.
#
# - **Attention** lets each position read from those before it. `is_causal=True` hides the positions behind it. `RoPE`
#   rotates queries and keys by their positions, so that the model knows distances.
# - The **feed-forward network** transforms each position by itself. `GatedMLP` with its default activation `silu` is
#   known as SwiGLU.
#
# `theta` is the base of the rotations. A norm before each part keeps the size of the features constant; `RMSNorm` is
# the simplest one.
#
# The annotations say the shapes, with fields in braces, and `where` what the attention needs: heads divide the width,
# and have an even number of features each. [`dx.check_shapes`](../shapes.md) proves that the shapes hold for every
# batch, length and width.


# %%
@dx.dataclass(where=("{self.width} % {self.heads} == 0", "{self.width} // {self.heads} % 2 == 0"))
class Block(dx.Layer):
    width: int = dx.field()
    heads: int = dx.field()
    _: dx.KW_ONLY
    theta: float = dx.field(default=10_000.0)
    attention_norm = dx.RMSNorm(width)
    attention = dx.MultiHeadAttention(heads, width, rope=dx.RoPE(theta=theta), use_bias=False, decode=False)
    mlp_norm = dx.RMSNorm(width)
    mlp = dx.GatedMLP(width, 3 * width, use_bias=False)

    def __call__(self, x: Float[Array, "batch length {self.width}"]) -> Float[Array, "batch length {self.width}"]:
        x = x + self.attention(self.attention_norm(x), is_causal=True)
        return x + self.mlp(self.mlp_norm(x))


print(dx.check_shapes(Block))

# %% [markdown]
# ## The model
#
# The model looks up a vector for each character, applies the blocks, and compares the result with the vectors of all
# characters. `embed.attend` computes these scores with the table of the embedding, so the model needs no separate
# head.
#
# `dx.Stacked` makes `depth` blocks and stores them as one: each array has a first axis for the blocks. A call runs one
# compiled block `depth` times, so a deep model compiles as fast as a shallow one.


# %%
@dx.dataclass(where=("{self.width} % {self.heads} == 0", "{self.width} // {self.heads} % 2 == 0"))
class GPT(dx.Layer):
    width: int = dx.field(default=64)
    heads: int = dx.field(default=4)
    depth: int = dx.field(default=3)
    embed = dx.Embed(128, width)
    blocks = dx.Stacked(Block(width, heads), depth)
    norm = dx.RMSNorm(width)

    def __call__(self, tokens: Int[Array, "batch length"]) -> Float[Array, "batch length 128"]:
        return self.embed.attend(self.norm(self.blocks(self.embed(tokens))))


model = GPT(rngs=dx.Rngs(0))
print(dx.summary(model, depth=2))
print("logits:", model(jnp.zeros((2, 16), jnp.int32)).shape)

# %% [markdown]
# The logits have one row for each position: the scores of all 128 characters for the next one.
#
# ## Train
#
# A training example is a window of the text. The model reads all characters but the last, and predicts all but the
# first. The loss is the mean of the negative log-probability of the right characters, in nats. A model that finds all
# 128 characters equally likely has a loss of log(128) = 4.85.

# %%
LENGTH = 128


def windows(codes: npt.NDArray[np.int32], count: int, rng: np.random.Generator) -> jax.Array:
    starts = rng.integers(0, len(codes) - LENGTH, count)
    return jnp.asarray(codes[starts[:, None] + np.arange(LENGTH + 1)])


def loss_of(model: GPT, tokens: jax.Array) -> jax.Array:
    logits = model(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


@dx.jit
def train_step(model: GPT, optimizer: dx.Optimizer[GPT], tokens: jax.Array) -> jax.Array:
    loss, grads = dx.value_and_grad(loss_of)(model, tokens)
    optimizer.update(model, grads)
    return loss


# %% [markdown]
# The learning rate rises during the first steps and falls to zero at the end. Large gradients are clipped. Both are
# usual for transformers, and `optax.chain` combines them.

# %%
STEPS = 400
schedule = optax.warmup_cosine_decay_schedule(0.0, 6e-3, warmup_steps=30, decay_steps=STEPS)
optimizer = dx.Optimizer(model, optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule)))
rng = np.random.default_rng(0)
losses = []
for step in range(STEPS):
    losses.append(float(train_step(model, optimizer, windows(train_codes, 8, rng))))
    if step % 100 == 99:
        print(f"step {step + 1}: loss {np.mean(losses[-50:]):.2f}")

# %% mystnb={"image": {"alt": "The loss falls from 5 to below 2 in 400 steps", "width": "70%"}}
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.plot(losses, linewidth=0.8)
axis.set(xlabel="step", ylabel="loss in nats a character", ylim=(0, None))
axis.grid(alpha=0.3)

# %% [markdown]
# The held-out text tells how well the model predicts what it has not read.

# %%
evaluate = dx.jit(loss_of)
test_loss = float(evaluate(model, windows(test_codes, 64, rng)))
print(f"loss on held-out text: {test_loss:.2f} nats a character")
assert test_loss < 2.2

# %% [markdown]
# ## Sample with a cache
#
# To write, the model predicts a character, appends it, and repeats. Without a cache, each step computes the keys and
# values of all characters again. With `decode=True`, attention stores them: the first call brings the whole prompt,
# and each later call only the new character.
#
# The blocks are stacked, so `dx.vmap` runs the function that prepares one block for all of them. A clone decodes, and
# the trained model stays as it is.


# %%
def start_decoding(model: GPT, length: int) -> GPT:
    model = dx.clone(model)

    def start(block: Block) -> None:
        block.attention.decode = True
        block.attention.init_cache((1, length, model.width))

    dx.vmap(start)(model.blocks.layers)
    return model


@dx.jit
def next_logits(model: GPT, tokens: jax.Array) -> jax.Array:
    return model(tokens)[0, -1]


# %% [markdown]
# The cache does not change the result. Fed one character at a time, the model computes the logits that it computes for
# the whole text at once:

# %%
prompt = jnp.asarray(np.frombuffer(b"The statement ", np.uint8).astype(np.int32))[None]
cached = start_decoding(model, length=prompt.shape[1])
steps = [next_logits(cached, prompt[:, position : position + 1]) for position in range(prompt.shape[1])]
difference = float(jnp.abs(steps[-1] - next_logits(model, prompt)).max())
print(f"largest difference: {difference:.1e}")
assert difference < 1e-3

# %% [markdown]
# Each step draws the next character at random from the predicted probabilities. A `temperature` below 1 makes likely
# characters more likely.


# %%
def write(model: GPT, prompt: jax.Array, count: int, *, seed: int, temperature: float = 0.7) -> str:
    model = start_decoding(model, length=prompt.shape[1] + count)
    tokens, written = prompt, [int(token) for token in prompt[0]]
    for key in jax.random.split(jax.random.key(seed), count):
        drawn = jax.random.categorical(key, next_logits(model, tokens) / temperature)
        tokens = drawn[None, None]
        written.append(int(drawn))
    return bytes(written).decode("ascii")


sample = write(model, prompt, 110, seed=0)
print(sample)
assert sample.startswith("The statement ")
assert len(sample) == 124

# %% [markdown]
# After a few hundred steps, the model has learnt spelling and line breaks, but its sentences make no sense. The text is
# not longer than the windows of the training: positions beyond them are new to the model. More steps, a wider model and
# longer windows help; the [examples](../examples.md) contain a larger version with a configuration file.
#
# ## What to read next
#
# - [Layers](../layers.md): attention with masks, windows and shared keys.
# - [Stacks of layers](../stacked.md): read, change and rematerialize single blocks.
# - [LoRA fine-tuning](lora.py): adapt a trained GPT with few parameters.
# - [From one device to a mesh](devices.py): train such a model on several devices.
# - [Train in mixed precision](../howto/mixed_precision.md): compute in bfloat16.
