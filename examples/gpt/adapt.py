"""Adapts the trained GPT to other texts with low-rank adapters, while its own parameters are frozen.

    python examples/gpt/adapt.py [FILE] [PATH=VALUE ...]

The other texts are the sources of some modules of the standard library: code in place of prose. The exit status is 0
if the adapters alone lower the loss on held-out code by a tenth at least, and 1 if they do not.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import sys
import typing
from collections.abc import Sequence

import jax
import optax

import declax as dx
from gpt_run import Run
from train_gpt import HERE, held_out_loss, load_topics, split_text, train, write

SOURCES = (argparse, dataclasses, typing)
RANK = 8


def main(argv: Sequence[str] | None = None) -> int:
    """Trains the model on prose, then the adapters on code; the exit status is 0 if they help."""
    run = dx.cli(Run, argv, default=HERE / "topics.toml")
    code, held_out = split_text("\n".join(inspect.getsource(module) for module in SOURCES))
    model = run.model.build(rngs=dx.Rngs(run.training.seed))
    train(model, run, load_topics()[0])
    before = held_out_loss(model, held_out, run.training.length)

    adapted = dx.lora(model, dx.Linear, rank=RANK, rngs=dx.Rngs(run.training.seed))
    train(adapted, dataclasses.replace(run, optimizer=optax.adam(3e-3)), code, wrt=dx.LoRAParam)
    merged = dx.merge_lora(adapted)
    after = held_out_loss(merged, held_out, run.training.length)

    count = sum(leaf.size for leaf in jax.tree.leaves(dx.state(adapted, dx.LoRAParam)))
    print(f"loss on code: {before:.3f} before, {after:.3f} with {count:,} parameters of adapters")
    print(write(merged, run))
    return int(after > 0.9 * before)


if __name__ == "__main__":
    sys.exit(main())
