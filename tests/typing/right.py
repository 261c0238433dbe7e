"""A right program: `make test` holds it against mypy --strict, and `make pyright` against pyright."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, assert_type

import jax
import jax.numpy as jnp
import numpy as np
import optax

import declax as dx


@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field()
    hidden: int = dx.field()
    _: dx.KW_ONLY
    activation: Callable[[jax.Array], jax.Array] = dx.static(default=dx.gelu)
    tags: dx.Static[list[str]] = dx.static(default_factory=list)
    is_shifted: bool = dx.field(default=False)
    up: dx.Linear = dx.Linear(dim, hidden)
    scale: dx.Param[jax.Array] = dx.variable((dim,), initializer=dx.initializers.ones)
    shift: dx.Param[jax.Array] | None = dx.variable((dim,), initializer=dx.initializers.zeros, when=is_shifted)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.activation(self.up(x * self.scale))


@dx.dataclass
class Options(dx.Module):
    name: str = dx.static(default="block")
    sizes: list[int] = dx.static(default_factory=list[int])
    offset: jax.Array = dx.data(default_factory=lambda: jnp.zeros(2))
    mask: jax.Array | None = dx.data(default=None)
    rate: float = dx.data(default=0.5, ge=0.0, le=1.0)
    is_deep: bool = dx.field(default=False)
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    inner: dx.Linear | None = dx.when(is_deep, dx.Linear(2, 2, rngs=rngs))


def twice(size: int) -> int:
    return 2 * size


def width_of_block() -> int:
    return 2 * Block.dim


BASE = 3


@dx.dataclass
class Computed(dx.Layer):
    """What the plugin must not report: operations that give expressions, and constants."""

    dim: int = dx.field()
    sizes: tuple[int, ...] = dx.field(default=(1, 2, 3))
    table: jax.Array = dx.field(default_factory=lambda: jnp.ones((3, 3)))
    depth: int = 3
    if depth > 2 and BASE in (2, 3):
        is_deep = True
    count = len((1, 2)) if BASE else max(3, 4)
    size: int = abs(dim) + pow(dim, 2) + -dim
    last = sizes[dim:][-1], table[0, :dim], f"{count}"
    root = dim**0.5 * np.ones(3) * jnp.ones(3)
    scaled = np.multiply(dim, 2) + 5
    several = (dx.defer(max)(dim, 3),) * 2
    doubled = twice(dim) if BASE > 2 else 4
    shared = dx.Linear(dim, dim)
    parts = [shared] * 2
    drops = [dx.Dropout(0.1) for _ in range(count)]
    made = dx.defer(lambda size: max(size, 2) if size else 0)(dim)
    options = {"dim": dim, "count": count}

    def width(self, factor: int = BASE) -> int:
        return self.dim * factor if self.dim in self.sizes else max(self.sizes)


@dx.dataclass
class Narrowed(Block):
    low = dx.Linear(width_of_block(), Block.dim)
    high = dx.when((Block.dim > 2) & Block.is_shifted, dx.Linear(Block.dim, Block.hidden))


class Pair(NamedTuple):
    layer: dx.Linear
    size: int


@dx.dataclass
class Early(dx.Layer):
    """Parts that are read in order."""

    dim: int = dx.field()
    up = dx.Linear(dim, 3)
    pair = dx.defer(Pair)(dx.Linear(dim, 3), 1)

    @dx.submodule
    def middle(self, rngs: dx.Rngs) -> dx.Linear:
        made = dx.Linear(self.up.out_features, self.late, rngs=rngs)
        made.name = lambda: self.down
        return made

    late: int = dx.field(default=3)
    down = dx.Linear(late, 2)


@dx.dataclass
class Made(Early):
    """An own ``__init__`` that makes the parts."""

    last = dx.Linear(Early.dim, 2)

    def __init__(self, dim: int) -> None:
        super().__init__(dim, rngs=dx.Rngs(0))


def classes_have_expressions() -> None:
    assert Block.dim is not Block.hidden
    assert "dim" in repr(Block.dim)
    assert (Block.dim == Block.dim) is not None


def specifiers_have_the_type_of_their_default() -> None:
    assert_type(dx.static(default=3), int | Any)
    assert_type(dx.static(default_factory=list[int]), list[int])
    assert_type(dx.data(default=None), None | Any)
    assert_type(dx.data(default_factory=lambda: jnp.zeros(3)), jax.Array)
    assert_type(Options(rate=0.25, rngs=dx.Rngs(0)).inner, dx.Linear | None)
    assert_type(Options("a", [3], jnp.ones(2), None, 0.5, True, rngs=dx.Rngs(0)).sizes, list[int])


def takes_array(x: jax.Array) -> jax.Array:
    return x


def variables_are_arrays(p: dx.Param[jax.Array], x: jax.Array) -> jax.Array:
    assert_type(p.value, jax.Array)
    assert_type(p[...], jax.Array)
    p += 1
    p.value = x
    p[...] = x
    p[0] = 3.0
    p.value = 2.0 * p
    p.value = np.ones(2)
    assert_type(p[0], jax.Array)
    assert_type(p + 1, jax.Array)
    assert_type(1 - p, jax.Array)
    assert_type(-p, jax.Array)
    assert_type(p.shape, tuple[int, ...])
    p.value = x
    parts = dx.Variable({"a": x})
    parts["a"] = x
    assert_type(parts.value, dict[str, jax.Array])
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
    assert_type(rest, dx.State[Block])
    assert_type(dx.merge(graphdef, params, rest), Block)
    number_of_filters(block)
    assert_type(dx.clone(block), Block)
    assert_type(dx.clone(block, variables=False), Block)
    assert_type(graphdef.merge(state, copy=True), Block)
    # Exact with the plugin, and a union with Any without it; see test_plugin_modules.
    whole: tuple[dx.GraphDef[Block], dx.State[Block]] = block.split()
    halves: tuple[dx.GraphDef[Block], dx.State[Block], dx.State[Block]] = block.split(dx.Param, ...)
    everything: dx.State[Block] = block.get_state()
    print(whole, halves, everything)
    assert_type(dx.state(block, dx.Param | dx.BatchStat), dx.State[Block])
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


def number_of_filters(block: Block) -> None:
    graphdef, a, b, c, d, e, f = dx.split(block, dx.Param, dx.Cache, dx.BatchStat, dx.RngState, dx.Intermediate, ...)
    assert_type(f, dx.State[Block])
    assert_type(dx.merge(graphdef, a, b, c, d, e, f), Block)
    a, b, c = dx.state(block, dx.Param, dx.Cache, dx.BatchStat)
    assert_type(c, dx.State[Block])
    assert_type(dx.state(block, dx.Param), dx.State[Block])
    assert_type(dx.pop(block, dx.Intermediate, dx.Cache), tuple[dx.State[Block], dx.State[Block]])
    a, b, c = block.get_state(dx.Param, dx.Cache, ...)
    graphdef, a, b, c = block.split(dx.Param, dx.Cache, ...)
    a, b, c = dx.unpack(block, dx.Param, dx.Cache, ...)
    assert_type(dx.merge(a, b, c), Block)
    graphdef, *states = dx.split(block, dx.Param, ...)
    assert_type(dx.merge(*dx.split(block)), Block)
    print(states)


def states_keep_their_types(state: dx.State[Block]) -> None:
    params, rest = state.split(dx.Param, ...)
    assert_type(params, dx.State[Block])
    assert_type(state.filter(dx.Param), dx.State[Block])
    assert_type(rest | params, dx.State[Any])
    assert_type(state - rest, dx.State[Block])
    assert_type(state.map(lambda path, value: value), dx.State[Block])
    assert_type(dx.filter_state(state, dx.Param, ...), tuple[dx.State[Block], dx.State[Block]])
    for key, value in state.items():
        print(key, value)
    print(list(state), dict(state), {**state}, sorted(state), "scale" in state, len(state), state.up.kernel)


def containers_keep_their_types(x: jax.Array) -> None:
    rngs = dx.Rngs(0)
    chain = dx.Sequential(dx.Linear(2, 3, rngs=rngs), dx.relu, dx.Dropout(0.5, rngs=rngs), dx.Linear(3, 2, rngs=rngs))
    assert_type(chain(x), jax.Array)
    assert_type(chain(x, rngs=rngs), jax.Array)
    assert_type(dx.Sequential(chain, chain)(x), jax.Array)
    made: dx.Sequential = dx.Sequential([dx.Linear(2, 2, rngs=rngs) for _ in range(2)])
    outputs: jax.Array = made(x)
    parts = dx.Dict(left=dx.Linear(2, 2, rngs=rngs))
    assert_type(parts["left"], dx.Linear)
    assert_type(parts.left(outputs), jax.Array)
    stack = dx.Stacked(lambda rngs: dx.Linear(2, 2, rngs=rngs), 3, rngs=rngs)
    assert_type(stack, dx.Stacked[dx.Linear])
    assert_type(stack[0], dx.Linear)
    assert_type(stack(x), jax.Array)
    assert_type(stack.scan(lambda layer, x: (layer(x), x.sum()), x)[0], jax.Array)


@dx.jit
def step(block: Block, optimizer: dx.Optimizer[Block], x: jax.Array) -> jax.Array:
    def loss_of(block: Block) -> tuple[jax.Array, dict[str, Any]]:
        return block(x).mean(), {}

    (loss, aux), grads = dx.value_and_grad(loss_of, has_aux=True)(block)
    assert_type(aux, dict[str, Any])
    optimizer.update(block, grads)
    return loss


def loss_of(block: Block, x: jax.Array) -> jax.Array:
    return block(x).mean()


def training_keeps_its_types(block: Block, x: jax.Array) -> None:
    optimizer = dx.Optimizer(block, optax.sgd(0.1))
    assert_type(optimizer, dx.Optimizer[Block])
    assert_type(optimizer.update(block, dx.grad(loss_of)(block, x)), dx.State[Block])
    assert_type(step(block, optimizer, x), jax.Array)


def scripts_get_the_objects_of_their_classes(folder: Path) -> None:
    assert_type(dx.cli(Block), Block)
    assert_type(dx.cli(Block, sweep=True)[0].config, Block)
    with dx.cli(Block, ["dim=4"], runs=folder) as run:
        assert_type(run, dx.Run[Block])
        assert_type(run.config, Block)
        assert_type(run.spec, dx.Spec[Block])


layers: dx.List[dx.Linear] = dx.List([dx.Linear(2, 2, rngs=dx.Rngs(0))])
assert_type(layers[0], dx.Linear)
