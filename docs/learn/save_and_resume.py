# %% [markdown]
# # Save, kill, resume
#
# Long runs are interrupted. This tutorial trains a model in a process of its own, kills the process, starts it again,
# and shows that the losses are equal to those of a run that was never interrupted, to the last bit. You learn what
# belongs in a checkpoint, and how `dx.Checkpoints` keeps the latest and the best ones. [A first
# model](first_model.py) explains declarations and training steps.

# %%
import subprocess
import sys
import tempfile
from pathlib import Path

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import declax as dx

# %% [markdown]
# ## What belongs in a checkpoint
#
# A run continues exactly if everything that changes is saved:
#
# - the **model**: parameters, statistics, and the random streams of dropout;
# - the **optimizer**: its averages, and the number of steps;
# - the **random streams** of the script;
# - the **position** in the data.
#
# `dx.Checkpoints(folder)` saves steps to a folder. `save` takes a dict with a name for each item. `load` restores into
# objects that were made as at the start of the run: it changes models and optimizers in place, and returns plain
# values.
#
# ## The script
#
# We write the script to a file, since we want to kill it. It prints the loss of each step, and saves every tenth.
# `dx.spec(optax.adam, 1e-3).build()` is `optax.adam(1e-3)` with its name, so that a checkpoint can say which optimizer
# it holds.

# %%
folder = Path(tempfile.mkdtemp())
script = folder / "train.py"
_ = script.write_text("""
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import declax as dx


@dx.dataclass
class Classifier(dx.Layer):
    first = dx.Linear(64, 64)
    drop = dx.Dropout(0.3)
    head = dx.Linear(64, 10)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(self.drop(dx.relu(self.first(x))))


@dx.jit
def train_step(model: Classifier, optimizer: dx.Optimizer[Classifier], x: jax.Array, y: jax.Array) -> jax.Array:
    def loss_of(model: Classifier) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

    loss, grads = dx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


folder, steps = sys.argv[1], int(sys.argv[2])
digits = load_digits()
model = Classifier(rngs=dx.Rngs(0))
optimizer = dx.Optimizer(model, dx.spec(optax.adam, 1e-3).build())
items = {"model": model, "optimizer": optimizer, "step": 0}

checkpoints = dx.Checkpoints(folder, keep=2, best="loss", every=10)
if checkpoints.latest is not None:
    items = checkpoints.load("latest", into=items)
    print("resumed after step", items["step"], flush=True)

for step in range(items["step"] + 1, steps + 1):
    chosen = np.random.default_rng(step).integers(0, len(digits.data), 64)  # the batch follows from the step
    x, y = jnp.asarray(digits.data[chosen] / 16, jnp.float32), jnp.asarray(digits.target[chosen])
    loss = float(train_step(model, optimizer, x, y))
    checkpoints.save(step, items | {"step": step}, metrics={"loss": loss})
    print("step", step, loss.hex(), flush=True)
""")

# %% [markdown]
# `loss.hex()` shows every bit of the number. The position in the data is the step itself: the batch is computed from
# it.
#
# ## A run without interruption
#
# We run the script as a command, and read its losses.


# %%
def start(name: str, steps: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(script), str(folder / name), str(steps)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def losses_of(lines: list[str]) -> dict[int, float]:
    words = [line.split() for line in lines if line.startswith("step ")]
    return {int(step): float.fromhex(loss) for _, step, loss in words}


with start("whole", 60) as process:
    assert process.stdout is not None
    whole = losses_of(process.stdout.readlines())
print(len(whole), "steps; the last loss is", whole[60])
assert process.returncode == 0
assert len(whole) == 60

# %% [markdown]
# ## A run that is killed
#
# The second run is the same. When it has printed step 37, we kill it: `kill()` sends SIGKILL, which a process cannot
# catch. The last checkpoint is that of step 30.

# %%
lines = []
with start("killed", 60) as process:
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if line.startswith("step 37 "):
            process.kill()
            break
before = losses_of(lines)
print("killed after step", max(before), "with exit status", process.returncode)
with dx.Checkpoints(folder / "killed") as checkpoints:
    print("checkpoints:", checkpoints.steps())
    assert checkpoints.latest == 30

# %% [markdown]
# A checkpoint appears in its folder when it is complete. A process that is killed while it saves leaves the old
# checkpoints, and nothing that looks like a new one.
#
# ## Resume
#
# Run the same command again. It finds the checkpoint and continues with step 31.

# %%
with start("killed", 60) as process:
    assert process.stdout is not None
    lines = process.stdout.readlines()
after = losses_of(lines)
print(lines[0].strip())
assert lines[0].strip() == "resumed after step 30"

joined = before | after
print("equal losses in", sum(joined[step] == whole[step] for step in whole), "of", len(whole), "steps")
assert joined == whole
assert all(before[step] == after[step] for step in range(31, 38))

# %% [markdown]
# All losses are equal, also those of the steps 31 to 37 that ran twice. Dropout drew the same masks again, since its
# random stream is a part of the model.

# %% mystnb={"image": {"alt": "The losses of both parts lie on those of the whole run", "width": "70%"}}
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.plot(list(whole), list(whole.values()), color="lightgrey", linewidth=6, label="without interruption")
axis.plot(list(before), list(before.values()), label="until it was killed")
axis.plot(list(after), list(after.values()), "--", label="resumed")
axis.set(xlabel="step", ylabel="loss", ylim=(0, None))
axis.legend()
axis.grid(alpha=0.3)

# %% [markdown]
# ## Look into a checkpoint
#
# `keep=2` keeps the last two checkpoints, and `best="loss"` the one with the smallest loss. For an accuracy, add
# `best_mode="max"`. The arrays are in safetensors files, which other programs read too.

# %%
with dx.Checkpoints(folder / "killed") as checkpoints:
    print("checkpoints:", checkpoints.steps())
    assert checkpoints.latest == 60
for path in sorted((folder / "killed" / "step_0000000060").iterdir()):
    print(path.name.partition("-")[0], f"{path.stat().st_size:,} bytes")

# %% [markdown]
# ## Save once
#
# For a single model, `dx.save` and `dx.load` need no steps:

# %%
model = dx.Linear(3, 2, rngs=dx.Rngs(0))
dx.save(folder / "linear", {"model": model})
copy = dx.Linear(3, 2, rngs=dx.Rngs(1))
dx.load(folder / "linear", into={"model": copy})
assert np.array_equal(copy(jnp.ones(3)), model(jnp.ones(3)))

# %% [markdown]
# Without `into`, `dx.load` returns the model as it was, with its class, its sizes and its mode. No constructor runs.
# Of your program, it needs the classes: `extra=[Classifier]` for the checkpoints above.

# %%
loaded = dx.load(folder / "linear")["model"]
print(loaded)
assert np.array_equal(loaded(jnp.ones(3)), model(jnp.ones(3)))

# %% [markdown]
# A model of another shape is refused with the paths that differ, and stays as it is:

# %%
try:
    dx.load(folder / "linear", into={"model": dx.Linear(4, 2, rngs=dx.Rngs(0))})
except dx.DeclaxError as error:
    print(str(error).replace(f"{folder}/", ""))

# %% [markdown]
# ## What to read next
#
# - [Ship a fine-tuned model](../howto/ship.md): a model for programs without the code of its training.
# - [Saving](../saving.md): parts of checkpoints, renamed paths, other devices, Orbax.
# - [Load and write weights](../weights.md): files of other libraries.
# - [Random numbers](../random.md): why a run can be repeated.
# - [Several processes](../processes.md): runs on many machines.
