# %% [markdown]
# # Images with ResNet-18
#
# ResNet-18 is a standard network for images: 17 convolutions and a linear layer, with shortcuts around each pair of
# convolutions. This tutorial declares it and trains a narrow version on handwritten digits. You learn how convolutions
# and batch norms are used, how a class is composed of others, and how metrics collect results over batches. [A first
# model](first_model.py) explains declarations and training steps.

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
# Images have the shape (batch, height, width, channels): **channels last**. Grey images have one channel.

# %%
digits = load_digits()
images = (digits.images[..., np.newaxis] / 16).astype(np.float32)
x, x_test, y, y_test = train_test_split(images, digits.target, test_size=0.2, random_state=0, stratify=digits.target)
print(x.shape, x_test.shape)

# %% [markdown]
# Images from PyTorch have channels first. The layers raise an error if the number of channels differs:

# %%
try:
    dx.Conv(1, 8, (3, 3), rngs=dx.Rngs(0))(jnp.ones((2, 1, 8, 8)))
except dx.DeclaxError as error:
    print(error)

# %% [markdown]
# ## A convolution with a norm
#
# In a ResNet, a batch norm follows each convolution. The norm has a bias, so the convolution needs none. A stride of 2
# halves height and width.


# %%
@dx.dataclass
class ConvNorm(dx.Layer):
    inputs: int = dx.field()
    outputs: int = dx.field()
    size: int = dx.field(default=3)
    stride: int = dx.field(default=1)
    conv = dx.Conv(inputs, outputs, (size, size), stride, use_bias=False)
    norm = dx.BatchNorm(outputs, momentum=0.9)

    def __call__(self, x: Float[Array, "batch h w {self.inputs}"]) -> Float[Array, "batch _ _ {self.outputs}"]:
        return self.norm(self.conv(x))


print(ConvNorm(1, 8, stride=2, rngs=dx.Rngs(0))(jnp.asarray(x[:2])).shape)

# %% [markdown]
# ## A block with a shortcut
#
# A block adds two convolutions to its input, and so learns a change of it. If the block changes the shape, a
# convolution of size 1 changes that of the input. `dx.when` makes a part only if a condition holds; else the attribute
# is None. The condition may be computed from fields.


# %%
@dx.dataclass
class Residual(dx.Layer):
    inputs: int = dx.field()
    outputs: int = dx.field()
    stride: int = dx.field(default=1)
    first = ConvNorm(inputs, outputs, stride=stride)
    second = ConvNorm(outputs, outputs)
    shortcut = dx.when((stride != 1) | (inputs != outputs), ConvNorm(inputs, outputs, 1, stride))

    def __call__(self, x: Float[Array, "batch h w {self.inputs}"]) -> Float[Array, "batch _ _ {self.outputs}"]:
        y = self.second(dx.relu(self.first(x)))
        return dx.relu(y + (x if self.shortcut is None else self.shortcut(x)))


print(Residual(8, 8, rngs=dx.Rngs(0)).shortcut)
print(Residual(8, 16, 2, rngs=dx.Rngs(0))(jnp.ones((2, 8, 8, 8))).shape)

# %% [markdown]
# ## The network
#
# Four stages have two blocks each. Each stage but the first halves the image and doubles the channels. Then the mean
# over all positions goes to a linear layer. The original has 64 channels in the first stage; 8 are enough for digits.
# Images of ImageNet are larger, so the original also starts with a stride and pooling.


# %%
@dx.dataclass
class ResNet18(dx.Layer):
    width: int = dx.field(default=8)
    channels: int = dx.field(default=1)
    classes: int = dx.field(default=10)
    stem = ConvNorm(channels, width)
    blocks = dx.Sequential(
        Residual(width, width),
        Residual(width, width),
        Residual(width, 2 * width, 2),
        Residual(2 * width, 2 * width),
        Residual(2 * width, 4 * width, 2),
        Residual(4 * width, 4 * width),
        Residual(4 * width, 8 * width, 2),
        Residual(8 * width, 8 * width),
    )
    head = dx.Linear(8 * width, classes)

    def __call__(self, images: Float[Array, "batch h w {self.channels}"]) -> Float[Array, "batch {self.classes}"]:
        return self.head(dx.global_avg_pool(self.blocks(dx.relu(self.stem(images)))))


model = ResNet18(rngs=dx.Rngs(0))
print(dx.summary(model, depth=2))

# %% [markdown]
# `dx.spec` describes a model without making it. The full size with three channels and 1000 classes:

# %%
full = dx.spec(ResNet18, width=64, channels=3, classes=1000).summary()
print(f"{full.count('Param') / 1e6:.1f} million parameters")
assert 11e6 < full.count("Param") < 12e6

# %% [markdown]
# ## Train with metrics
#
# A metric accumulates a number over batches. `MultiMetric` updates several at once. Metrics consist of Variables, as
# models do, so a compiled step changes them in place.
#
# The statistics of the batch norms change during the call of the model, also within `dx.value_and_grad`.

# %%
metrics = dx.MultiMetric(accuracy=dx.metrics.Accuracy(), loss=dx.metrics.Average("loss"))


def loss_of(model: ResNet18, metrics: dx.MultiMetric, x: jax.Array, y: jax.Array) -> jax.Array:
    logits = model(x)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
    metrics.update(logits=logits, labels=y, loss=losses)
    return losses.mean()


@dx.jit
def train_step(
    model: ResNet18, optimizer: dx.Optimizer[ResNet18], metrics: dx.MultiMetric, x: jax.Array, y: jax.Array
) -> None:
    grads = dx.grad(loss_of)(model, metrics, x, y)
    optimizer.update(model, grads)


# %% [markdown]
# For evaluation, batch norms use their running statistics. `dx.view` makes a second model with other settings and the
# same Variables, so there is no need to switch back and forth between `eval()` and `train()`.

# %%
evaluated = dx.view(model, use_running_average=True)
assert evaluated.head.kernel is model.head.kernel
evaluate = dx.jit(loss_of)

EPOCHS, BATCH = 6, 64
steps = len(x) // BATCH
optimizer = dx.Optimizer(model, optax.adamw(optax.cosine_decay_schedule(4e-3, EPOCHS * steps)))
rng = np.random.default_rng(0)
history = []
for epoch in range(1, EPOCHS + 1):
    for chosen in rng.permutation(len(x))[: steps * BATCH].reshape(steps, BATCH):
        train_step(model, optimizer, metrics, jnp.asarray(x[chosen]), jnp.asarray(y[chosen]))
    training = float(metrics.compute()["accuracy"])
    metrics.reset()
    evaluate(evaluated, metrics, jnp.asarray(x_test), jnp.asarray(y_test))
    testing = float(metrics.compute()["accuracy"])
    metrics.reset()
    history.append((training, testing))
    print(f"epoch {epoch}: accuracy {training:.1%} in training, {testing:.1%} in testing")
assert history[-1][1] > 0.9

# %% mystnb={"image": {"alt": "The accuracies of training and testing rise towards 100 percent", "width": "70%"}}
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.plot(range(1, EPOCHS + 1), np.array(history), marker="o", label=["training", "testing"])
axis.set(xlabel="epoch", ylabel="accuracy", ylim=(0, 1.02))
axis.grid(alpha=0.3)
_ = axis.legend()

# %% [markdown]
# The accuracy of training is that of all batches of an epoch, during which the model still improves. Later it exceeds
# that of testing: the network remembers the images that it has seen.
#
# ## What the network sees
#
# The stem has eight filters. Each responds to different edges of the image:

# %% mystnb={"image": {"alt": "A digit, and eight maps of where the filters of the stem respond", "width": "90%"}}
responses = np.asarray(dx.relu(evaluated.stem(jnp.asarray(x_test[:1])))[0])
axes = plt.subplots(1, 9, figsize=(8, 1.1), layout="constrained")[1]
axes[0].imshow(x_test[0, ..., 0], cmap="gray_r")
for channel in range(8):
    axes[channel + 1].imshow(responses[..., channel], cmap="viridis")
for axis in axes:
    axis.axis("off")

# %% [markdown]
# ## What to read next
#
# - [Training](../training.md#metrics): all metrics, and your own.
# - [Declaring classes](../declaring.md): `when`, `repeat` and other ways to make parts.
# - [Configuration](configuration.py): the same network from a file.
# - [Train in mixed precision](../howto/mixed_precision.md) and [Profiling](../howto/profiling.md): make it faster.
