"""Equinox: frozen dataclasses, so that a step returns the new model, and no Variables. Loaded by name, as the peer."""

import importlib
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.harness import Batch
from benchmarks.systems import GraphBatches, System, repeat, wait_for
from benchmarks.systems.of_jax import arrays

eqx: Any = importlib.import_module("equinox")


class Tree(eqx.Module):  # type: ignore[misc]  # base class without types
    a: jax.Array
    b: jax.Array
    c: jax.Array
    d: jax.Array
    e: jax.Array
    f: jax.Array
    g: jax.Array
    h: jax.Array


class MixedTree(eqx.Module):  # type: ignore[misc]  # base class without types
    a: jax.Array
    b: jax.Array
    c: jax.Array
    d: jax.Array
    e: jax.Array
    size: int = eqx.field(static=True)
    name: str = eqx.field(static=True)
    rate: float = eqx.field(static=True)


class Norm(eqx.Module):  # type: ignore[misc]  # base class without types
    """Only the arrays of a batch normalization: its layer here keeps the statistics apart from the model."""

    scale: jax.Array
    bias: jax.Array
    mean: jax.Array
    var: jax.Array


class Block(eqx.Module):  # type: ignore[misc]  # base class without types
    linear: Any
    norm: Norm


class Model(eqx.Module):  # type: ignore[misc]  # base class without types
    blocks: list[Block]


def make_model(blocks: int) -> Model:
    new = partial(jnp.ones, (4,))
    return Model(
        [Block(eqx.nn.Linear(4, 4, key=jax.random.key(i)), Norm(new(), new(), new(), new())) for i in range(blocks)]
    )


def make_mixed_tree() -> MixedTree:
    a, b, c, d, e = arrays(5)
    return MixedTree(a, b, c, d, e, size=3, name="relu", rate=0.1)


def make_class() -> type:
    class Made(eqx.Module):  # type: ignore[misc]  # base class without types
        a: jax.Array
        b: jax.Array
        c: jax.Array
        d: jax.Array
        e: jax.Array
        size: int = eqx.field(static=True)
        name: str = eqx.field(static=True)
        rate: float = eqx.field(static=True)

    return Made


def make_step(blocks: int) -> Batch:
    model = make_model(blocks)
    step = eqx.filter_jit(lambda model: jax.tree.map(lambda leaf: leaf + 1, model))

    def batch(n: int) -> None:
        nonlocal model
        for _ in range(n):
            model = step(model)
        wait_for(model.blocks[-1].norm.var)

    return batch


def make_graph(blocks: int) -> GraphBatches:
    model = make_model(blocks)
    dynamic, static = eqx.partition(model, eqx.is_array)
    return GraphBatches(
        split=repeat(partial(eqx.partition, model, eqx.is_array)),
        merge=repeat(partial(eqx.combine, dynamic, static)),
    )


SYSTEM = System(
    name="equinox",
    package="equinox",
    make_tree=lambda: Tree(*arrays(8)),
    make_mixed_tree=make_mixed_tree,
    make_class=make_class,
    make_step=make_step,
    make_graph=make_graph,
)
