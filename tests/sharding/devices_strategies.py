"""One transformer, trained by each strategy on eight devices: the losses of one device, exchanges, and bytes.

The classes, the step and the strategies are those of `examples/parallel`, and docs/recipes.md has the table.
"""

from __future__ import annotations

import functools
import math
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx
from exchanges import EXCHANGES

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "parallel"))
from recipes import RECIPES
from train_parallel import Run, collectives, train, train_step, windows

ROOT = Path(__file__).resolve().parents[2]


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


def groups_of(line):
    """The devices that exchange values in an operation, in the notations of XLA."""
    if listed := re.search(r"replica_groups=\{(\{[\d,{}]+\})\}", line):
        return [set(map(int, group.split(","))) for group in re.findall(r"\{([\d,]+)\}", listed[1])]
    if short := re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line):
        ids, shape = _ids(short[3], short[4]), (int(short[1]), int(short[2]))
        return [set(row) for row in ids.reshape(shape).tolist()]
    named = re.search(
        r"replica_groups=mesh\[([^]]+)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{([^}]+)\}", line
    )
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", named[1])}
    ids = _ids(named[2] or str(math.prod(sizes.values())), named[3]).reshape(tuple(sizes.values()))
    along = [list(sizes).index(name) for name in re.findall(r"'(\w+)'", named[4])]
    last = np.moveaxis(ids, along, range(-len(along), 0))
    return [set(row) for row in last.reshape(-1, math.prod(ids.shape[axis] for axis in along)).tolist()]


def _ids(dimensions, permutation):
    """Numbers of devices, as an array of these dimensions, with its axes in another order."""
    shape = tuple(map(int, dimensions.split(",")))
    ids = np.arange(math.prod(shape)).reshape(shape)
    return ids if permutation is None else ids.transpose(tuple(map(int, permutation.split(","))))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("replica_groups={{0,1},{2,3}}, x", [{0, 1}, {2, 3}]),
        ("replica_groups=[2,2]<=[4], x", [{0, 1}, {2, 3}]),
        ("replica_groups=[2,2]<=[2,2]T(1,0), x", [{0, 2}, {1, 3}]),
        ("replica_groups=mesh['a'=2,'b'=2] {'b'}, x", [{0, 1}, {2, 3}]),
        ("replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}, x", [{0, 1}, {2, 3}]),
        ("replica_groups=mesh['a'=2,'b'=2] {'a','b'}, x", [{0, 1, 2, 3}]),
    ],
)
def test_groups_of_devices_are_read(line, expected):
    assert groups_of(line) == expected


def test_kernels_stay_in_their_slice():
    """What crosses from slice to slice is a quarter of the gradient of a kernel, and what is small."""
    slices = [set(range(4)), set(range(4, 8))]
    lines = trained("slices").program.as_text().splitlines()
    gathers = [line for line in lines if re.search(r" all-gather(-start)?\(", line)]
    assert len(gathers) == EXCHANGES["slices"]["all-gather"]
    assert all(group in slices for line in gathers for group in groups_of(line))
    sums = [line for line in lines if re.search(r" all-reduce(-start)?\(", line)]
    crossing = [line for line in sums if not all(any(group <= own for own in slices) for group in groups_of(line))]
    results = [re.findall(r"f32\[([\d,]*)\]", line.partition(" all-reduce")[0]) for line in crossing]
    sizes = [math.prod(int(size) for size in shape.split(",") if size) for found in results for shape in found]
    assert max(sizes) <= 128 * 64  # the table; kernels of 64 by 256 cross as quarters
    assert 64 * 256 // 4 in sizes
