# %% [markdown]
# # From a configuration file to a sweep
#
# A run has many settings: sizes of the model, the optimizer, the schedule, the number of steps. This tutorial puts
# them into one file, changes them from the command line, and tries several values in a sweep. You learn how a declared
# class is its own schema, how mistakes in a file are reported, and how runs get names. [A first model](first_model.py)
# explains declarations and training steps.

# %%
import dataclasses
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from jaxtyping import Array, Float
from sklearn.datasets import load_digits

import declax as dx

# %% [markdown]
# ## Declare a model with ranges
#
# `dx.field` takes the range of a value (`ge`, `le`) and a line of `help`. Nothing else is needed to read the model
# from a file: names, types and defaults are those of the class.


# %%
@dx.dataclass
class Classifier(dx.Layer):
    hidden: int = dx.field(default=64, ge=1, le=4096, help="size of the hidden layer")
    rate: float = dx.field(default=0.1, ge=0, le=1, help="share of features that dropout removes")
    first = dx.Linear(64, hidden)
    drop = dx.Dropout(rate)
    head = dx.Linear(hidden, 10)

    def __call__(self, x: Float[Array, "batch 64"]) -> Float[Array, "batch 10"]:
        return self.head(self.drop(dx.relu(self.first(x))))


# %% [markdown]
# ## Declare a run
#
# A run is a plain dataclass that holds everything. `dx.Spec[Classifier]` is a description of a model: the run builds
# it later, with its own seed. A transformation of optax is given by its name and arguments.


# %%
@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    model: dx.Spec[Classifier]
    optimizer: optax.GradientTransformation
    steps: int = dx.static(default=200, ge=1, help="how many batches")
    batch_size: int = dx.static(default=64, ge=1)
    seed: int = 0


# %% [markdown]
# ## Write the file
#
# Tables of the file are parts of the run. `kind` names a class or function, where several are possible: here the
# optimizer and its schedule. Values that the file omits have their defaults.

# %%
folder = Path(tempfile.mkdtemp())
file = folder / "run.toml"
_ = file.write_text("""
steps = 200

[model]
hidden = 64

[optimizer]
kind = "adam"
learning_rate = { kind = "cosine_decay_schedule", init_value = 3e-3, decay_steps = 200 }
""")
run = dx.from_config(Run, file)
print(run.model)
print(run.steps, type(run.optimizer).__name__)
assert run.model["hidden"] == 64

# %% [markdown]
# ## Mistakes
#
# One report lists all mistakes of a file, with lines and fixes. Nothing is built before the file is right.

# %%
wrong = folder / "wrong.toml"
_ = wrong.write_text("""
steps = "200"

[model]
hiden = 64
rate = 1.5

[optimizer]
kind = "adamm"
""")
problems = 0
try:
    dx.from_config(Run, wrong)
except dx.ConfigError as error:
    print(str(error).replace(f"{folder}/", ""))
    problems = len(error.problems)
assert problems == 4

# %% [markdown]
# ## Train a run
#
# The function takes the run and returns the accuracy on the last 360 images. `run.model.build` makes the model.

# %%
digits = load_digits()
x, y = jnp.asarray(digits.data / 16, jnp.float32), jnp.asarray(digits.target)


@dx.jit
def train_step(model: Classifier, optimizer: dx.Optimizer[Classifier], x: jax.Array, y: jax.Array) -> jax.Array:
    def loss_of(model: Classifier) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

    loss, grads = dx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


def train(run: Run) -> float:
    model = run.model.build(rngs=dx.Rngs(run.seed))
    optimizer = dx.Optimizer(model, run.optimizer)
    rng = np.random.default_rng(run.seed)
    for _ in range(run.steps):
        chosen = rng.integers(0, len(x) - 360, run.batch_size)
        train_step(model, optimizer, x[chosen], y[chosen])
    model.eval()
    return float((model(x[-360:]).argmax(axis=-1) == y[-360:]).mean())


accuracy = train(run)
print(f"accuracy {accuracy:.1%}")
assert accuracy > 0.8

# %% [markdown]
# ## The command line
#
# In a script, `dx.cli(Run, default="run.toml")` reads the command line. Each word `path=value` changes a value of the
# file; other words may name files. Here the list stands for `python train.py model.hidden=128
# optimizer.learning_rate.init_value=1e-2`.

# %%
words = ["model.hidden=128", "optimizer.learning_rate.init_value=1e-2"]
changed = dx.cli(Run, words, default=file)
print(changed.model)
assert changed.model["hidden"] == 128

# %% [markdown]
# A word may also select another optimizer by its `kind`; other words give the arguments. `--show` prints the resolved
# configuration and exits, so that one sees what would run:

# %%
try:
    dx.cli(Run, ["optimizer.kind=sgd", "optimizer.learning_rate=0.1", "optimizer.momentum=0.9", "--show"], default=file)
except SystemExit:
    print("# the script would exit here")

# %% [markdown]
# ## A sweep
#
# Several values, separated by commas, make several runs: one for each combination. With `sweep=True`, `dx.cli` returns
# all of them, each with a name made of the words that differ. It builds a run when you read it.

# %%
words = ["model.hidden=4,16,64", "optimizer.learning_rate.init_value=1e-3,1e-2"]
results = {}
for each in dx.cli(Run, words, default=file, sweep=True):
    results[each.name] = train(each.config)
    print(f"{results[each.name]:.1%}  {each.name}  {each.spec.fingerprint()[:8]}")
assert len(results) == 6
assert max(results.values()) > 0.8

# %% [markdown]
# A *fingerprint* identifies a configuration with all its values, also defaults. It is the same in every process, however
# the values were given, so it can name the folder of a run.

# %% mystnb={"image": {"alt": "Bars: accuracy rises with the size and the learning rate", "width": "80%"}}
figure, axis = plt.subplots(figsize=(7, 2.8), layout="constrained")
axis.barh([name.replace("optimizer.learning_rate.", "") for name in results], list(results.values()))
axis.set(xlabel="accuracy", xlim=(0, 1))
axis.invert_yaxis()

# %% [markdown]
# ## Keep the configuration
#
# A spec of the run can be written next to its results. `full=True` writes the exact record: all defaults, and the sizes
# that the class bodies compute (`$computed`), so that the file keeps its meaning if the code changes.

# %%
best = max(dx.cli(Run, words, default=file, sweep=True), key=lambda each: results[each.name])
dx.write_config(folder / "best.toml", best.spec, full=True)
print((folder / "best.toml").read_text())
assert dx.spec_from_config(Run, folder / "best.toml") == best.spec

# %% [markdown]
# Without a script, the command `declax` checks a file: `declax check settings:Run run.toml`. `declax schema` writes a
# JSON schema, with which editors complete and check the file while you type.
#
# ## What to read next
#
# - [Train from a configuration file](../howto/configuration_file.md): one model and one file, in short.
# - [Models from configuration](../config.md): specs, kinds of your own, shared parts, versions of files.
# - [The command line](../command_line.md): all overrides, and the command `declax`.
# - [Hyperparameter search](../howto/hyperparameters.md): Optuna, and clusters.
# - [Save, kill, resume](save_and_resume.py): what a run keeps besides its configuration.
