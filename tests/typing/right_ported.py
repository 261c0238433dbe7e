"""Right programs as newcomers write them; mypy with and without the plugin and pyright find no error in them."""

from __future__ import annotations

from typing import Any, assert_type

import jax
import jax.numpy as jnp

import declax as dx
from declax import statelib


@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field()
    up = dx.Linear(dim, dim)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.up(x)


@dx.dataclass
class Sized(dx.Module):
    sizes: tuple[int, int] = dx.field()
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    up: dx.Linear = dx.Linear(sizes[0], sizes[1], rngs=rngs)


class Chain(dx.Module):
    def __init__(self, dim: int, *, rngs: dx.Rngs) -> None:
        self.layers = dx.List()
        self.by_name = dx.Dict()
        for i in range(2):
            self.layers.append(dx.Linear(dim, dim, rngs=rngs))
            self.by_name[f"layer_{i}"] = self.layers[i]

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = layer(x)
        return x


@dx.dataclass
class Tree(dx.Module):
    kids: dx.List[Tree] = dx.data(default_factory=dx.List)


def dicts_are_merged(block: Block) -> None:
    graphdef, state = dx.split(block)
    assert_type(dx.merge(graphdef, state.to_pure_dict()), Block)
    assert_type(graphdef.merge(state.to_pure_dict()), Block)
    graphdef, params, rest = dx.split(block, dx.Param, ...)
    assert_type(dx.merge(graphdef, params, rest.to_pure_dict()), Block)
    dx.update(block, {"up": {"kernel": jnp.ones((block.dim, block.dim))}})


def modules_are_called(module: dx.CallableModule, modules: list[dx.CallableModule], x: jax.Array) -> jax.Array:
    assert_type(module(x), Any)
    for each in [module, *modules]:
        x = each(x)
    return x


def lists_start_empty(rngs: dx.Rngs) -> None:
    assert_type(dx.List(), dx.List[Any])
    assert_type(dx.Dict(), dx.Dict[Any])
    layers: dx.List[dx.Linear] = dx.List()
    layers.append(dx.Linear(2, 2, rngs=rngs))
    assert_type(layers[0], dx.Linear)
    assert_type(dx.List([dx.Linear(2, 2, rngs=rngs)]), dx.List[dx.Linear])
    assert_type(Tree(dx.List([Tree()])).kids[0], Tree)
    assert_type(Chain(2, rngs=rngs)(jnp.ones((1, 2))), jax.Array)


def states_have_their_module(block: Block) -> None:
    state: statelib.State[Block] = dx.state(block)
    assert_type(state, dx.State[Block])
    flat: statelib.FlatState = state.flat_state()
    assert_type(statelib.from_flat_state(flat), dx.State[Any])
    assert_type(statelib.State({"scale": jnp.ones(2)}), dx.State[Any])


def any_model(graphdef: dx.GraphDef, state: dx.State, layers: dx.List, optimizer: dx.Optimizer) -> dx.List:
    """Where the class does not matter, it need not be written."""
    assert_type(graphdef, dx.GraphDef[Any])
    assert_type(state, dx.State[Any])
    assert_type(optimizer, dx.Optimizer[Any])
    print(dx.merge(graphdef, state))
    return layers


def fields_are_replaced(block: Block, module: dx.Module, rngs: dx.Rngs) -> None:
    assert_type(dx.replace(block, dim=3, rngs=rngs), Block)
    assert_type(dx.replace(module, dim=3, rngs=rngs), dx.Module)
    sized = Sized((1, 2), rngs=rngs)
    assert_type(dx.replace(sized, sizes=(3, 4), rngs=rngs), Sized)
