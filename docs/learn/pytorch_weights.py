# %% [markdown]
# # Loading weights from PyTorch
#
# Many trained models are published as files of PyTorch. This tutorial loads such a file into a declared model. You
# learn how a map translates names and layouts, how to check a map before anything is loaded, and how to test the
# result. PyTorch is not needed. [A first model](first_model.py) explains declarations.

# %%
import tempfile
from pathlib import Path

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Array, Float
from safetensors.numpy import load_file, save_file

import declax as dx
from declax.weights import WeightMap, reshape, transpose

# %% [markdown]
# ## A file
#
# Published weights come in the safetensors format: a dict of named arrays. To keep this page short, we write a small
# file with random numbers, exactly as PyTorch would for this model:
#
# | attribute | layer of PyTorch |
# | --- | --- |
# | `conv` | `Conv2d(1, 4, 3, padding=1)` |
# | `norm` | `BatchNorm2d(4)` |
# | `layers` | `ModuleList` of two `Linear(4, 4)` |
# | `head` | `Linear(4, 10)` |
#
# PyTorch stores a convolution as (outputs, inputs, height, width), and a linear layer as (outputs, inputs).

# %%
rng = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


tensors = {
    "conv.weight": random(4, 1, 3, 3),
    "conv.bias": random(4),
    "norm.weight": random(4),
    "norm.bias": random(4),
    "norm.running_mean": random(4),
    "norm.running_var": random(4) ** 2 + 0.5,
    "norm.num_batches_tracked": np.array(1000),
    "layers.0.weight": random(4, 4),
    "layers.0.bias": random(4),
    "layers.1.weight": random(4, 4),
    "layers.1.bias": random(4),
    "head.weight": random(10, 4),
    "head.bias": random(10),
}
file = Path(tempfile.mkdtemp()) / "model.safetensors"
save_file(tensors, file)
for name, array in load_file(file).items():
    print(f"{name:28}{array.shape}")

# %% [markdown]
# ## The same model
#
# The model must compute the same. Names and layouts may differ. declax has the features last: a convolution is stored
# as (height, width, inputs, outputs), and a linear layer as (inputs, outputs).
#
# Compare the options of each layer with those of PyTorch. Here, `BatchNorm` has an epsilon of 1e-5 in both.


# %%
@dx.dataclass
class Net(dx.Layer):
    conv = dx.Conv(1, 4, (3, 3))
    norm = dx.BatchNorm(4)
    hidden = dx.repeat(2, dx.Linear(4, 4))
    head = dx.Linear(4, 10)

    def __call__(self, images: Float[Array, "batch height width 1"]) -> Float[Array, "batch 10"]:
        x = dx.global_avg_pool(dx.relu(self.norm(self.conv(images))))
        for layer in self.hidden:
            x = dx.relu(layer(x))
        return self.head(x)


model = Net(rngs=dx.Rngs(0))
for path in dx.state(model).paths:
    print(".".join(map(str, path)))

# %% [markdown]
# ## A map
#
# A map is a dict from names in the file to paths in the model. A pattern such as `{i}` stands for one part of a name,
# and appears on both sides. `transpose` and `reshape` describe the layout of the tensor in the file. In `reshape`, `o
# i h w -> h w i o` names the axes of the file and of the model.
#
# It is easy to forget an entry. This map lacks the batch norm:

# %%
names: WeightMap = {
    "conv.weight": reshape("conv.kernel", "o i h w -> h w i o"),
    "conv.bias": "conv.bias",
    "layers.{i}.weight": transpose("hidden[{i}].kernel"),
    "layers.{i}.bias": "hidden[{i}].bias",
    "head.weight": transpose("head.kernel"),
    "head.bias": "head.bias",
}

# %% [markdown]
# ## A dry run
#
# `dry_run=True` reads the names and shapes of the file only, and reports what would happen. It changes nothing, and
# takes no time even for large files.

# %%
report = dx.load_weights(model, file, map=names, dry_run=True)
print(report)

# %% [markdown]
# The report lists what is missing on both sides. We complete the map. The counter `num_batches_tracked` has no
# counterpart, so `ignore` names it.

# %%
names = {
    **names,
    "norm.weight": "norm.scale",
    "norm.bias": "norm.bias",
    "norm.running_mean": "norm.mean",
    "norm.running_var": "norm.var",
}
print(dx.load_weights(model, file, map=names, ignore="norm.num_batches_tracked", dry_run=True))

# %% [markdown]
# ## Load
#
# Without `dry_run`, the model takes the weights. Loading is strict: if a tensor is not used, or a parameter has no
# tensor, it raises an error with the same report, and the model stays as it is.

# %%
dx.load_weights(model, file, map=names, ignore="norm.num_batches_tracked")
assert np.array_equal(model.head.kernel.value, tensors["head.weight"].T)

# %% [markdown]
# ## Check the result
#
# A wrong transposition of a square matrix raises no error. So compare the output with that of the original. Here NumPy
# takes the place of PyTorch, with channels first and the tensors of the file:


# %%
def original(images: np.ndarray) -> np.ndarray:
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    patches = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    x = np.einsum("nihwab,oiab->nohw", patches, tensors["conv.weight"])
    x += tensors["conv.bias"][:, None, None]
    x = (x - tensors["norm.running_mean"][:, None, None]) / np.sqrt(tensors["norm.running_var"][:, None, None] + 1e-5)
    x = x * tensors["norm.weight"][:, None, None] + tensors["norm.bias"][:, None, None]
    x = np.maximum(x, 0).mean(axis=(2, 3))
    for i in range(2):
        x = np.maximum(x @ tensors[f"layers.{i}.weight"].T + tensors[f"layers.{i}.bias"], 0)
    return np.asarray(x @ tensors["head.weight"].T + tensors["head.bias"])


images = random(8, 1, 6, 6)
model.eval()
logits = np.asarray(model(jnp.asarray(images.transpose(0, 2, 3, 1))))
difference = float(np.abs(logits - original(images)).max())
print(f"largest difference: {difference:.1e}")
assert difference < 1e-4

# %% [markdown]
# Two lines matter here. `model.eval()` makes the batch norm use the loaded statistics, and the images are transposed
# to channels last.

# %% mystnb={"image": {"alt": "The logits of both models lie on the diagonal", "width": "45%"}}
figure, axis = plt.subplots(figsize=(3.2, 3.2), layout="constrained")
axis.axline((0, 0), slope=1, color="lightgrey")
axis.plot(original(images).ravel(), logits.ravel(), ".")
_ = axis.set(xlabel="logits of the original", ylabel="logits of declax")

# %% [markdown]
# ## And back
#
# The same map writes a file that PyTorch can load.

# %%
dx.save_weights(model, file.parent / "back.safetensors", map=names)
back = load_file(file.parent / "back.safetensors")
assert all(np.array_equal(back[name], tensors[name]) for name in back)
print(sorted(tensors.keys() - back.keys()))

# %% [markdown]
# ## Real files
#
# - Download the folder of a model, for example with `huggingface_hub.snapshot_download("gpt2")`. It contains
#   `model.safetensors`, or several parts with an index. Give `dx.load_weights` the folder; it reads both.
# - Pickled files (`.bin`, `.pt`) can execute code, and are not read. Convert them once, with PyTorch:
#   `safetensors.torch.save_file(torch.load("model.pt", weights_only=True), "model.safetensors")`.
# - Weights in bfloat16 go into parameters of float32 with `cast=True`.
# - For large models, make the model by `dx.eval_shape(lambda: Net(rngs=dx.Rngs(0)))`. It has shapes and no arrays, so
#   nothing is initialized in vain.
# - Attention layers often have queries, keys and values in one tensor, which `split` distributes.
#
# ## What to read next
#
# - [Load and write weights](../weights.md): all operations of a map, and the table of layers of PyTorch.
# - [Coming from PyTorch](../coming_from_pytorch.md): terms and traps.
# - [LoRA fine-tuning](lora.py): adapt the loaded model.
# - [Saving](../saving.md): checkpoints of a training run.
