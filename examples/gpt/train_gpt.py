"""Trains a GPT on the reference texts that come with CPython, and samples from it.

    python examples/gpt/train_gpt.py [FILE] [PATH=VALUE ...]

The exit status is 0 if the loss on the held-out text is at most what the run requires, 1 if it is more or the
configuration is wrong, and 2 if the command line is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from pydoc_data import topics

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from rich.progress import track

import declax as dx
from gpt import GPT, sample
from gpt_run import Run, Training

HERE = Path(__file__).parent
Tokens = npt.NDArray[np.int32]


def split_text(text: str) -> tuple[Tokens, Tokens]:
    """The characters as ASCII codes; the last twentieth is held out."""
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int32)
    border = len(codes) * 19 // 20
    return codes[:border], codes[border:]


def load_topics() -> tuple[Tokens, Tokens]:
    """The reference texts that CPython's help shows."""
    return split_text("\n".join(topics.topics[name] for name in sorted(topics.topics)))


def windows(tokens: Tokens, training: Training, rng: np.random.Generator) -> Tokens:
    """A batch of random windows, each with one character more than the model reads."""
    starts = rng.integers(0, len(tokens) - training.length, training.batch_size)
    batch: Tokens = tokens[starts[:, None] + np.arange(training.length + 1)]
    return batch


def loss_of(model: GPT, tokens: jax.Array) -> jax.Array:
    """The mean loss of predicting each character of a batch from those before it, in nats."""
    logits = model(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


@dx.jit
def train_step(model: GPT, optimizer: dx.Optimizer[GPT], tokens: jax.Array) -> jax.Array:
    """One step of gradient descent, in place; returns the loss before it."""
    loss, grads = dx.value_and_grad(loss_of, argnums=dx.DiffState(0, optimizer.wrt))(model, tokens)
    optimizer.update(model, grads)
    return loss


evaluate = dx.jit(loss_of)


def train(model: GPT, run: Run, text: Tokens, *, wrt: type[dx.Param[jax.Array]] = dx.Param) -> list[float]:
    """Trains the parameters of a kind, in place; returns the loss of each step."""
    optimizer = dx.Optimizer(model, run.optimizer, wrt=wrt)
    rng = np.random.default_rng(run.training.seed)
    steps = track(range(run.training.steps), "training")
    losses = [train_step(model, optimizer, jnp.asarray(windows(text, run.training, rng))) for _ in steps]
    return [float(loss) for loss in losses]


def held_out_loss(model: GPT, text: Tokens, length: int) -> float:
    """The mean loss over the held-out text, cut into windows."""
    model.eval()
    count = (len(text) - 1) // length
    starts = np.arange(count)[:, None] * length
    loss = float(evaluate(model, jnp.asarray(text[starts + np.arange(length + 1)])))
    model.train()
    return loss


def write(model: GPT, run: Run) -> str:
    """What the model writes behind the prompt."""
    prompt = np.frombuffer(run.sample.prompt.encode("ascii"), np.uint8).astype(np.int32)
    key = jax.random.key(run.training.seed)
    tokens = sample(model, jnp.asarray(prompt[None]), run.sample.count, key=key, temperature=run.sample.temperature)
    return run.sample.prompt + bytes(np.asarray(tokens[0], np.uint8)).decode("ascii")


def main(argv: Sequence[str] | None = None) -> int:
    """Trains the run; the exit status is 0 if the loss suffices."""
    started = time.perf_counter()
    run = dx.cli(Run, argv, default=HERE / "topics.toml")
    text, held_out = load_topics()
    model = run.model.build(rngs=dx.Rngs(run.training.seed))
    print(dx.summary(model))
    losses = train(model, run, text)
    loss = held_out_loss(model, held_out, run.training.length)
    print(f"loss {losses[0]:.2f} at first, {loss:.3f} on held-out text, in {time.perf_counter() - started:.1f} s")
    print(write(model, run))
    if loss > run.training.required_loss:
        print(f"more than the {run.training.required_loss} that the configuration requires", file=sys.stderr)
    return int(loss > run.training.required_loss)


if __name__ == "__main__":
    sys.exit(main())
