# %% [markdown]
# # A first model
#
# This tutorial trains a classifier of handwritten digits, from the declaration of the model to its accuracy on new
# images. It takes about ten minutes. You learn how a model is declared, what it holds, how a training step changes it,
# and how training and evaluation differ. Some knowledge of NumPy and of neural networks helps; JAX is explained where
# it appears.
#
# All examples import declax as `dx`. The optimizers are those of [optax](https://optax.readthedocs.io).

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from jaxtyping import Array, Float
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import declax as dx

# %% [markdown]
# ## The data
#
# scikit-learn contains 1797 images of 8 by 8 pixels, with values from 0 to 16. We scale them to the range from 0 to 1,
# flatten each image to 64 numbers, and hold out a fifth for testing.

# %%
digits = load_digits()
x, x_test, y, y_test = train_test_split(
    (digits.data / 16).astype(np.float32), digits.target, test_size=0.2, random_state=0, stratify=digits.target
)
print("training:", x.shape, "test:", x_test.shape)

# %% mystnb={"image": {"alt": "Eight handwritten digits, each with its label above it", "width": "90%"}}
figure, axes = plt.subplots(1, 8, figsize=(8, 1.3), layout="constrained")
for axis, image, label in zip(axes, x, y, strict=False):
    axis.imshow(image.reshape(8, 8), cmap="gray_r")
    axis.set_title(str(label))
    axis.axis("off")

# %% [markdown]
# ## Declare the model
#
# A model is a dataclass that derives from `dx.Layer`. The class body lists everything that an object has, in order:
#
# - `hidden` and `rate` are **fields**: arguments of the constructor, and attributes of the object.
# - `first`, `drop` and `head` are **parts**. Each object makes its own, with the values of its fields.
#
# There is no `__init__` to write. The method `__call__` says what the model computes. Its annotations say the shapes of
# arrays: `dx.check_shapes` [proves them for every size](../shapes.md).
#
# The initial parameters are random numbers. `dx.Rngs(0)` draws them from the seed 0. Every `Layer` takes it as the
# argument `rngs`, and passes it to its parts.


# %%
@dx.dataclass
class Classifier(dx.Layer):
    hidden: int = dx.field(default=64)
    rate: float = dx.field(default=0.2)
    first = dx.Linear(64, hidden)
    drop = dx.Dropout(rate)
    head = dx.Linear(hidden, 10)

    def __call__(self, x: Float[Array, "batch 64"]) -> Float[Array, "batch 10"]:
        return self.head(self.drop(dx.relu(self.first(x))))


model = Classifier(rngs=dx.Rngs(0))
print(dx.summary(model))

# %% [markdown]
# The summary shows what the object holds. `Param` are the parameters that training changes. `RngCount` and `RngKey`
# are the state of the random stream from which dropout draws.
#
# A model is an ordinary object. Read its attributes, and call it with a batch. It returns ten numbers for each image,
# the *logits*: the larger, the more likely the model finds the digit.

# %%
logits = model(jnp.asarray(x[:3]))
print(model.first.kernel.shape, logits.shape)

# %% [markdown]
# An input of the wrong size is an error that names the layer and both shapes:

# %%
try:
    model(jnp.ones((3, 28)))
except dx.DeclaxError as error:
    print(error)

# %% [markdown]
# ## One training step
#
# The loss is the cross entropy between the logits and the true digits. `dx.value_and_grad` differentiates a function
# by its first argument, here the model. It returns the loss, and the gradient of each parameter.


# %%
def loss_of(model: Classifier, x: jax.Array, y: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


loss, grads = dx.value_and_grad(loss_of)(model, jnp.asarray(x), jnp.asarray(y))
print(f"loss {loss:.2f}; gradients for", ", ".join(".".join(map(str, path)) for path in grads.paths))
assert 2 < loss < 3

# %% [markdown]
# Before training, all digits are about equally likely, so the loss is near log(10) = 2.3.
#
# `dx.Optimizer` holds a transformation of optax and its state, such as the averages of Adam. Its `update` takes the
# model and the gradients, and **changes the model in place**. `dx.jit` compiles the step when it is first called;
# later calls run the compiled program. Changes that a compiled function makes to a model are visible afterwards, as in
# plain Python.

# %%
optimizer = dx.Optimizer(model, optax.adam(3e-3))


@dx.jit
def train_step(model: Classifier, optimizer: dx.Optimizer[Classifier], x: jax.Array, y: jax.Array) -> jax.Array:
    loss, grads = dx.value_and_grad(loss_of)(model, x, y)
    optimizer.update(model, grads)
    return loss


before = model.head.kernel.value
print("loss before the step:", train_step(model, optimizer, jnp.asarray(x), jnp.asarray(y)))
assert (model.head.kernel.value != before).any()

# %% [markdown]
# ## Train
#
# An epoch visits each image once, in batches of 64, in a new random order.

# %%
rng = np.random.default_rng(0)
losses = []
for _ in range(30):
    order = rng.permutation(len(x))
    for start in range(0, len(x) - 63, 64):
        chosen = order[start : start + 64]
        losses.append(train_step(model, optimizer, jnp.asarray(x[chosen]), jnp.asarray(y[chosen])))

print(f"{len(losses)} steps; the loss fell from {losses[0]:.2f} to {losses[-1]:.2f}")
assert losses[-1] < 0.3

# %% mystnb={"image": {"alt": "The loss falls steeply from 2.2, and flattens out near 0.1", "width": "70%"}}
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.plot([float(loss) for loss in losses], linewidth=0.8)
axis.set(xlabel="step", ylabel="loss", ylim=(0, None))
axis.grid(alpha=0.3)

# %% [markdown]
# ## Evaluate
#
# Dropout sets random features to zero during training. `model.eval()` switches it off in the whole model, and
# `model.train()` switches it on again. Without `eval()`, predictions vary from call to call.


# %%
@dx.jit
def predict(model: Classifier, x: jax.Array) -> jax.Array:
    return model(x).argmax(axis=-1)


model.eval()
predicted = np.asarray(predict(model, jnp.asarray(x_test)))
accuracy = np.mean(predicted == y_test)
print(f"accuracy on {len(y_test)} new images: {accuracy:.1%}")
assert accuracy > 0.95

# %% [markdown]
# The mistakes are worth a look. Above each of these images stands what the model says, and in brackets what is true:

# %% mystnb={"image": {"alt": "Eight unclear test digits, each with a wrong answer and the true one", "width": "90%"}}
wrong = np.flatnonzero(predicted != y_test)[:8]
figure, axes = plt.subplots(1, 8, figsize=(8, 1.3), layout="constrained")
for axis in axes:
    axis.axis("off")
for axis, i in zip(axes, wrong, strict=False):
    axis.imshow(x_test[i].reshape(8, 8), cmap="gray_r")
    axis.set_title(f"{predicted[i]} ({y_test[i]})", color="tab:red")

# %% [markdown]
# ## Another size
#
# The declaration serves every size. A wider model is one argument away, and `dx.summary` counts its parameters.

# %%
wide = Classifier(256, rngs=dx.Rngs(0))
print(dx.summary(wide).count("Param"), "parameters instead of", dx.summary(model).count("Param"))
assert wide.head.kernel.shape == (256, 10)

# %% [markdown]
# ## What to read next
#
# - [Declaring classes](../declaring.md): all forms of fields and parts.
# - [Training](../training.md): optimizers, metrics, and training a part of a model.
# - [A GPT from scratch](gpt.py): a larger model, which writes text.
# - [Save, kill, resume](save_and_resume.py): keep a trained model.
# - [Custom layers](../howto/custom_layers.md) and [Optimizers](../howto/optimizers.md): recipes for the next steps.
