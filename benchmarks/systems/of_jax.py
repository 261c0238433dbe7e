"""The floor: what JAX itself does, in C++, with no framework on top."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from benchmarks.harness import Batch
from benchmarks.systems import GraphBatches, System, repeat, wait_for


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Tree:
    a: jax.Array
    b: jax.Array
    c: jax.Array
    d: jax.Array
    e: jax.Array
    f: jax.Array
    g: jax.Array
    h: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class MixedTree:
    a: jax.Array
    b: jax.Array
    c: jax.Array
    d: jax.Array
    e: jax.Array
    size: int = dataclasses.field(metadata={"static": True})
    name: str = dataclasses.field(metadata={"static": True})
    rate: float = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Linear:
    kernel: jax.Array
    bias: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Norm:
    scale: jax.Array
    bias: jax.Array
    mean: jax.Array
    var: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Block:
    linear: Linear
    norm: Norm


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Model:
    blocks: list[Block]


def arrays(count: int) -> list[jax.Array]:
    """So many small arrays, no two of them the same object."""
    return [jnp.full((4,), float(i)) for i in range(count)]


def make_model(blocks: int) -> Model:
    new = partial(jnp.ones, (4,))
    return Model([Block(Linear(jnp.ones((4, 4)), new()), Norm(new(), new(), new(), new())) for _ in range(blocks)])


def make_mixed_tree() -> MixedTree:
    a, b, c, d, e = arrays(5)
    return MixedTree(a, b, c, d, e, size=3, name="relu", rate=0.1)


def make_class() -> type:
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Made:
        a: jax.Array
        b: jax.Array
        c: jax.Array
        d: jax.Array
        e: jax.Array
        size: int = dataclasses.field(metadata={"static": True})
        name: str = dataclasses.field(metadata={"static": True})
        rate: float = dataclasses.field(metadata={"static": True})

    return Made


def make_step(blocks: int) -> Batch:
    """A jitted function that takes all arrays as one flat tuple and returns them so."""
    leaves = tuple(jax.tree.leaves(make_model(blocks)))
    step = jax.jit(lambda leaves: tuple(leaf + 1 for leaf in leaves))

    def batch(n: int) -> None:
        nonlocal leaves
        for _ in range(n):
            leaves = step(leaves)
        wait_for(leaves[-1])

    return batch


def make_graph(blocks: int) -> GraphBatches:
    """Not the same work (no sharing, no Variables): the least that taking apart and rebuilding can cost."""
    model = make_model(blocks)
    leaves, treedef = jax.tree_util.tree_flatten(model)
    return GraphBatches(
        split=repeat(partial(jax.tree_util.tree_flatten, model)),
        merge=repeat(partial(jax.tree_util.tree_unflatten, treedef, leaves)),
    )


SYSTEM = System(
    name="floor (jax)",
    make_tree=lambda: Tree(*arrays(8)),
    make_mixed_tree=make_mixed_tree,
    make_class=make_class,
    make_step=make_step,
    make_graph=make_graph,
)
