"""A right program: `make test` holds it against mypy --strict, and `make pyright` against pyright."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_type

import jax
import jax.numpy as jnp
import optax

import declax as dx


@dx.dataclass
class Block(dx.Module):
    dim: int
    hidden: int
    _: dx.KW_ONLY
    activation: Callable[[jax.Array], jax.Array] = dx.static(default=dx.gelu)
    tags: dx.Static[list[str]] = dx.static(default_factory=list)
    rngs: dx.InitVar[dx.Rngs]
    up: dx.Linear = dx.submodule(lambda self, rngs: dx.Linear(self.dim, self.hidden, rngs=rngs))
    scale: dx.Param[jax.Array] = dx.variable(("dim",), initializer=dx.initializers.ones)
    shift: dx.Param[jax.Array] | None = dx.variable(("dim",), initializer=dx.initializers.zeros, when="is_shifted")
    is_shifted: bool = False

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.activation(self.up(x * self.scale))


def takes_array(x: jax.Array) -> jax.Array:
    return x


def variables_are_arrays(p: dx.Param[jax.Array], x: jax.Array) -> jax.Array:
    assert_type(p.value, jax.Array)
    assert_type(p[...], jax.Array)
    p += 1
    p.value = x
    p[...] = x
    return takes_array(p) + jnp.sum(p) + x @ p + p.T


def constructors_keep_their_types() -> None:
    block = Block(2, 3, rngs=dx.Rngs(0))
    assert_type(block, Block)
    assert_type(block.up, dx.Linear)
    assert_type(block.tags, list[str])
    assert_type(dx.replace(block, rngs=dx.Rngs(1)), Block)


def graphs_keep_their_types(block: Block) -> None:
    graphdef, state = dx.split(block)
    assert_type(graphdef, dx.GraphDef[Block])
    assert_type(state, dx.State[Block])
    assert_type(dx.merge(graphdef, state), Block)
    graphdef, params, rest = dx.split(block, dx.Param, ...)
    assert_type(dx.merge(graphdef, params, rest), Block)
    assert_type(dx.clone(block), Block)
    assert_type(dx.clone(block, variables=False), Block)
    assert_type(graphdef.merge(state, copy=True), Block)
    assert_type(block.split(), tuple[dx.GraphDef[Block], dx.State[Block]])
    assert_type(block.split(dx.Param, ...), tuple[dx.GraphDef[Block], dx.State[Block], dx.State[Block]])
    assert_type(block.get_state(), dx.State[Block])
    assert_type(dx.unpack(block), dx.GraphState[Block])
    assert_type(dx.merge(dx.unpack(block)), Block)
    assert_type(dx.update(block, state, strict=False), dx.UpdateReport)
    assert_type(dx.pop(block, dx.Intermediate), dx.State[Block])
    assert_type(dx.flatten(block), tuple[dx.GraphDef[Block], dx.FlatState])
    assert_type(dx.unflatten(*dx.flatten(block)), Block)
    assert_type(dx.view(block), Block)
    assert_type(dx.with_attributes(block), Block)
    assert_type(dx.map(lambda path, value: value, block), Block)
    assert_type(dx.as_abstract(block), Block)
    assert_type(dx.eval_shape(lambda: block), Block)
    assert_type(dx.to_arrays(dx.to_refs(block)), Block)


@dx.jit
def step(block: Block, optimizer: dx.Optimizer[Block], x: jax.Array) -> jax.Array:
    def loss_of(block: Block) -> tuple[jax.Array, dict[str, Any]]:
        return block(x).mean(), {}

    (loss, aux), grads = dx.value_and_grad(loss_of, has_aux=True)(block)
    assert_type(aux, dict[str, Any])
    optimizer.update(block, grads)
    return loss


def training_keeps_its_types(block: Block, x: jax.Array) -> None:
    optimizer = dx.Optimizer(block, optax.sgd(0.1))
    assert_type(optimizer, dx.Optimizer[Block])
    assert_type(step(block, optimizer, x), jax.Array)


layers: dx.List[dx.Linear] = dx.List([dx.Linear(2, 2, rngs=dx.Rngs(0))])
assert_type(layers[0], dx.Linear)
