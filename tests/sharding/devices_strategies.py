"""One transformer, trained by each strategy on eight devices: the losses of one device, exchanges, and bytes.

The classes, the step and the strategies are those of `examples/parallel`, and docs/recipes.md has the table.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "parallel"))
from recipes import RECIPES
from train_parallel import Run, collectives, train, train_step, windows

ROOT = Path(__file__).resolve().parents[2]

EXCHANGES = {
    # The gradients of the blocks; the other gradients, with the loss.
    "data": {"all-reduce": 2},
    # As before; the new values of six kernels and the table, and XLA moves tokens for the gradient of the table.
    "zero1": {"all-gather": 8, "all-reduce": 2, "all-to-all": 1},
    # Six kernels of a block and the table, forward and backward; the gradients.
    "fsdp": {"all-gather": 14, "all-reduce": 2},
    # After the attention and after the feed-forward network, forward and backward.
    "tensor": {"all-reduce": 4},
    # Those of both; XLA reduces the table apart, and permutes its rows.
    "both": {"all-gather": 14, "all-reduce": 7, "collective-permute": 2},
    # Keys and values and their gradients, the border of the labels; sums along each mesh axis.
    "sequence": {"all-reduce": 4, "collective-permute": 5},
    # Tokens and results, forward and backward; the other gradients.
    "experts": {"all-reduce": 2, "all-to-all": 4},
    # To the next stage and back; results to all stages, the gradient of the input, the other gradients.
    "pipeline": {"all-reduce": 4, "collective-permute": 2},
    # Those of fsdp in a slice; the shards of the gradients between slices.
    "slices": {"all-gather": 14, "all-reduce": 6},
}
"""What devices exchange in a step of each recipe. The blocks are a loop, whose body counts once."""


def run_of(name):
    experts = 8 if name == "experts" else 0
    model = {"width": 64, "heads": 8, "depth": 2, "experts": experts}
    return dx.from_config(Run, {"model": model, "steps": 4, "batch_size": 8, "length": 32})


@functools.cache
def alone(experts):
    """The losses of one device, without a mesh, rules or shardings; and the bytes of model and optimizer."""
    run = run_of("experts" if experts else "data")
    model = run.model.build(rngs=dx.Rngs(run.seed))
    optimizer = dx.Optimizer(model, optax.adam(run.learning_rate), wrt=dx.Param)
    step = dx.jit(train_step)
    losses = [float(step(model, optimizer, jnp.asarray(batch))) for batch in windows(run)]
    return losses, sum(leaf.nbytes for leaf in jax.tree.leaves((model, optimizer)))


@functools.cache
def trained(name):
    return train(run_of(name), RECIPES[name])


def bytes_of(name):
    """What the first device holds of model and optimizer."""
    found = trained(name)
    leaves = jax.tree.leaves((found.model, found.optimizer))
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves)


@pytest.mark.parametrize("name", RECIPES)
def test_the_losses_are_those_of_one_device(name):
    expected, _ = alone(name == "experts")
    assert expected[-1] < expected[0]
    np.testing.assert_allclose(trained(name).losses, expected, rtol=1e-5)


@pytest.mark.parametrize("name", RECIPES)
def test_devices_exchange_what_the_strategy_needs(name):
    assert dict(collectives(trained(name).program)) == EXCHANGES[name]


@pytest.mark.filterwarnings("ignore::declax.errors.ReplicationWarning")  # of what a strategy leaves whole
@pytest.mark.parametrize("name", RECIPES)
def test_the_plan_knows_the_bytes_of_a_device(name):
    """Made without a device, before the run: the bytes of each array, and their sum."""
    run, recipe = run_of(name), RECIPES[name]

    def make():
        model = run.model.build(rngs=dx.Rngs(run.seed))
        return model, dx.Optimizer(model, optax.adam(run.learning_rate), wrt=dx.Param)

    plan = dx.plan(dx.eval_shape(make), dict(recipe.mesh().shape), recipe.shardings, rules=recipe.all_rules())
    assert sum(entry.nbytes for entry in plan.entries) == bytes_of(name)
    assert not plan.compare(dx.plan((trained(name).model, trained(name).optimizer)))
    whole = alone(name == "experts")[1]
    assert (bytes_of(name) == whole) == (name in {"data", "sequence"})


def row(name):
    """The row of the table in docs/recipes.md."""
    kinds = sorted(EXCHANGES[name].items())
    exchanged = ", ".join(f"{count} {kind}" for kind, count in kinds)
    share = bytes_of(name) / alone(name == "experts")[1]
    return f"| {exchanged} | {share:.0%} |"


@pytest.mark.parametrize("name", RECIPES)
def test_the_page_has_the_row(name):
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("| ") and f'"{name}": Recipe(' in line]
    assert len(lines) == 1
    assert lines[0].endswith(row(name))
    source = (ROOT / "examples" / "parallel" / "recipes.py").read_text(encoding="utf-8")
    assert lines[0].split("`")[1] in source
