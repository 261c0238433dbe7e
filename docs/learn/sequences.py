# %% [markdown]
# # Sequences with an LSTM
#
# A recurrent network reads a sequence step by step, and keeps what it needs in a memory. This tutorial reads
# handwritten digits row by row, from the top, and asks after each row which digit it is. You learn how a cell and
# `dx.RNN` work together, how sequences of several lengths fit into one batch, and how to read in both directions. [A
# first model](first_model.py) explains declarations and training steps.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from jaxtyping import Array, Float, Int
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import declax as dx

# %% [markdown]
# ## The data
#
# An image of 8 by 8 pixels is a sequence of 8 steps with 8 features each. The shape of a batch is (batch, time,
# features).

# %%
digits = load_digits()
x, x_test, y, y_test = train_test_split(
    (digits.images / 16).astype(np.float32), digits.target, test_size=0.2, random_state=0, stratify=digits.target
)
print(x.shape)

# %% [markdown]
# ## A cell and a layer
#
# A cell computes one step: it takes a carry and an input, and returns the next carry and an output. The carry of an
# LSTM has two parts, its memory and its last output. `initialize_carry` makes the carry before the first step.

# %%
rngs = dx.Rngs(0)
cell = dx.LSTMCell(8, 32, rngs=rngs)
carry = cell.initialize_carry((1, 8), rngs)
by_hand = []
for row in x[0]:
    carry, output = cell(carry, jnp.asarray(row)[None])
    by_hand.append(output)
print(len(by_hand), by_hand[-1].shape)

# %% [markdown]
# `dx.RNN` runs a cell along the time axis, as one compiled loop. It returns the outputs of all steps.

# %%
outputs = dx.RNN(cell)(jnp.asarray(x[:1]))
print(outputs.shape)
assert jnp.allclose(outputs[:, -1], by_hand[-1], atol=1e-6)

# %% [markdown]
# ## The model
#
# The classifier uses the last output of each sequence. With `return_carry=True`, the layer also returns the carry,
# whose second part is this output. `seq_lengths` says how many steps of each sequence count; the carry is the one
# after that many steps. So sequences of several lengths fit into one array, and the rest of each row of it has no
# effect.


# %%
@dx.dataclass
class Reader(dx.Layer):
    hidden: int = dx.field(default=48)
    lstm = dx.RNN(dx.LSTMCell(8, hidden), return_carry=True)
    head = dx.Linear(hidden, 10)

    def __call__(self, x: Float[Array, "batch time 8"], lengths: Int[Array, " batch"]) -> Float[Array, "batch 10"]:
        (_memory, last), _outputs = self.lstm(x, seq_lengths=lengths)
        return self.head(last)


model = Reader(rngs=dx.Rngs(0))
print(dx.summary(model, depth=1))

# %% [markdown]
# What follows the end of a sequence has no effect:

# %%
padded = x[:2].copy()
padded[:, 5:] = 100.0
lengths = jnp.array([5, 5])
assert jnp.allclose(model(jnp.asarray(padded), lengths), model(jnp.asarray(x[:2]), lengths))

# %% [markdown]
# ## Train
#
# In each step, every image of the batch ends after a random number of rows, from 1 to 8. So the model learns to answer
# after any of them.


# %%
@dx.jit
def train_step(
    model: Reader, optimizer: dx.Optimizer[Reader], x: jax.Array, lengths: jax.Array, y: jax.Array
) -> jax.Array:
    def loss_of(model: Reader) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(model(x, lengths), y).mean()

    loss, grads = dx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


STEPS, BATCH = 800, 64
optimizer = dx.Optimizer(model, optax.adam(optax.cosine_decay_schedule(1e-2, STEPS)))
rng = np.random.default_rng(0)
for step in range(1, STEPS + 1):
    chosen, ends = rng.integers(0, len(x), BATCH), rng.integers(1, 9, BATCH)
    loss = train_step(model, optimizer, jnp.asarray(x[chosen]), jnp.asarray(ends), jnp.asarray(y[chosen]))
    if step % 200 == 0:
        print(f"step {step}: loss {loss:.2f}")

# %% [markdown]
# ## How much of a digit must be read?
#
# The accuracy on new images, after each number of rows:


# %%
@dx.jit
def predict(model: Reader, x: jax.Array, lengths: jax.Array) -> jax.Array:
    return dx.softmax(model(x, lengths))


accuracies = []
for rows in range(1, 9):
    answers = predict(model, jnp.asarray(x_test), jnp.full(len(x_test), rows)).argmax(axis=-1)
    accuracies.append(float(np.mean(np.asarray(answers) == y_test)))
print(" ".join(f"{accuracy:.0%}" for accuracy in accuracies))
assert accuracies[7] > 0.85
assert accuracies[0] < 0.6 < accuracies[4]

# %% mystnb={"image": {"alt": "Accuracy rises with the number of rows, steeply at first", "width": "70%"}}
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.plot(range(1, 9), accuracies, marker="o")
axis.set(xlabel="rows that were read", ylabel="accuracy", ylim=(0, 1))
axis.grid(alpha=0.3)

# %% [markdown]
# One image in detail. Each column shows the rows that the model has read, and below them how probable it finds each
# digit, from 0 on the left to 9 on the right:

# %% mystnb={"image": {"alt": "A digit appears row by row; the bars below gather on the right answer", "width": "90%"}}
image = np.repeat(x_test[:1], 8, axis=0)
probabilities = np.asarray(predict(model, jnp.asarray(image), jnp.arange(1, 9)))
axes = plt.subplots(2, 8, figsize=(8, 2.2), layout="constrained")[1]
for rows in range(8):
    seen = np.where(np.arange(8)[:, None] <= rows, image[rows], 0)
    axes[0, rows].imshow(seen, cmap="gray_r", vmin=0, vmax=1)
    axes[0, rows].axis("off")
    axes[1, rows].bar(
        range(10), probabilities[rows], color=["tab:blue" if d != y_test[0] else "tab:green" for d in range(10)]
    )
    axes[1, rows].set(ylim=(0, 1), xticks=[], yticks=[])

# %% [markdown]
# ## Both directions
#
# If the whole sequence is known, it can be read from both ends. `dx.Bidirectional` runs two layers, and joins their
# outputs. It also takes `seq_lengths`: the backward layer then starts at the end of each sequence.

# %%
rngs = dx.Rngs(0)
both = dx.Bidirectional(dx.RNN(dx.LSTMCell(8, 32, rngs=rngs)), dx.RNN(dx.LSTMCell(8, 32, rngs=rngs)))
features = both(jnp.asarray(x[:2]), seq_lengths=jnp.array([8, 5]))
print(features.shape)
assert features.shape == (2, 8, 64)

# %% [markdown]
# `dx.GRUCell`, `dx.SimpleCell` and `dx.OptimizedLSTMCell` take the place of `dx.LSTMCell` without another change.
#
# ## What to read next
#
# - [Layers](../layers.md#sequences): cells, lengths, and cells of your own.
# - [A GPT from scratch](gpt.py): attention instead of a memory.
# - [Loops and branches](../control_flow.md): `dx.scan`, on which `dx.RNN` is built.
# - [Compute and log metrics](../howto/logging.md): follow a run.
