"""Flax NNX with its defaults: the peer. It is loaded by name, so that nothing here needs it to be installed."""

# Nothing is known about the types of a module that is loaded by name, so each class that derives from one of its
# classes needs a remark for mypy.

import importlib
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.harness import Batch
from benchmarks.systems import GraphBatches, Operations, System, repeat, wait_for
from benchmarks.systems.of_jax import arrays

nnx: Any = importlib.import_module("flax.nnx")


@nnx.dataclass
class Tree(nnx.Module):  # type: ignore[misc]  # base class without types
    a: jax.Array
    b: jax.Array
    c: jax.Array
    d: jax.Array
    e: jax.Array
    f: jax.Array
    g: jax.Array
    h: jax.Array


@nnx.dataclass
class MixedTree(nnx.Module):  # type: ignore[misc]  # base class without types
    a: jax.Array
    b: jax.Array
    c: jax.Array
    d: jax.Array
    e: jax.Array
    size: int
    name: str
    rate: float


class OpenTree(nnx.Module):  # type: ignore[misc]  # base class without types
    def __init__(self, leaves: list[jax.Array]) -> None:
        self.a, self.b, self.c, self.d, self.e, self.f, self.g, self.h = leaves


class Block(nnx.Module):  # type: ignore[misc]  # base class without types
    def __init__(self, rngs: Any) -> None:
        self.linear = nnx.Linear(4, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)


class Model(nnx.Module):  # type: ignore[misc]  # base class without types
    def __init__(self, blocks: int, rngs: Any) -> None:
        self.training = True
        self.blocks = nnx.List([Block(rngs) for _ in range(blocks)])


def make_model(blocks: int) -> Model:
    return Model(blocks, nnx.Rngs(0))


def make_mixed_tree() -> MixedTree:
    a, b, c, d, e = arrays(5)
    return MixedTree(a, b, c, d, e, size=3, name="relu", rate=0.1)


def make_class() -> type:
    @nnx.dataclass
    class Made(nnx.Module):  # type: ignore[misc]  # base class without types
        a: jax.Array
        b: jax.Array
        c: jax.Array
        d: jax.Array
        e: jax.Array
        size: int
        name: str
        rate: float

    return Made


def increment(model: Model) -> None:
    """Reads and writes every Variable."""
    for block in model.blocks:
        linear, norm = block.linear, block.norm
        for variable in (linear.kernel, linear.bias, norm.scale, norm.bias, norm.mean, norm.var):
            variable[...] = variable[...] + 1


def make_step(blocks: int, bind: Callable[[Model], Callable[[], object]] | None = None) -> Batch:
    """`bind` makes the function of no arguments that is called; as it stands, the jitted function with the model."""
    model = make_model(blocks)
    last = model.blocks[-1].norm.var
    step = bind(model) if bind else partial(nnx.jit(increment), model)

    def batch(n: int) -> None:
        for _ in range(n):
            step()
        wait_for(last.get_value())

    return batch


class Net(nnx.Module):  # type: ignore[misc]  # base class without types
    def __init__(self, blocks: int, rngs: nnx.Rngs) -> None:
        widths = [1, *[32] * (blocks - 1), 1]
        pairs = list(itertools.pairwise(widths))
        self.linears = nnx.List([nnx.Linear(inputs, outputs, rngs=rngs) for inputs, outputs in pairs])
        self.norms = nnx.List([nnx.BatchNorm(outputs, rngs=rngs) for _, outputs in pairs])
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, x: jax.Array) -> jax.Array:
        self.calls[...] += 1
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x = nnx.relu(norm(linear(x)))
        return x


def make_training(blocks: int, batches: Iterator[tuple[Any, Any]]) -> Batch:
    """Steps of a small network with SGD, by `nnx.jit`, and one of evaluation."""
    model = Net(blocks, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(1e-3), wrt=nnx.Param)

    def loss(model: Net, batch: tuple[Any, Any]) -> jax.Array:
        x, y = batch
        return jnp.mean((model(x) - y) ** 2)

    def train(model: Net, optimizer: Any, batch: tuple[Any, Any]) -> jax.Array:
        found: jax.Array
        found, grads = nnx.value_and_grad(loss)(model, batch)
        optimizer.update(model, grads)
        return found

    step, evaluate = nnx.jit(train, donate_argnums=(0, 1)), nnx.jit(loss, donate_argnums=0)

    def batch(n: int) -> None:
        for _ in range(n):
            step(model, optimizer, next(batches))
        wait_for(evaluate(model, next(batches)))

    return batch


def make_graph(blocks: int, **mode: bool) -> GraphBatches:
    model = make_model(blocks)
    graphdef, state = nnx.split(model, **mode)

    def split_changed(n: int) -> None:
        for _ in range(n):
            model.training = not model.training
            nnx.split(model, **mode)

    return GraphBatches(
        split=repeat(partial(nnx.split, model, **mode)),
        merge=repeat(partial(nnx.merge, graphdef, state)),
        split_changed=split_changed,
    )


def make_operations(blocks: int) -> Operations:
    model = make_model(blocks)
    graphdef, state = nnx.split(model)
    states = itertools.cycle([jax.tree.map(jax.numpy.copy, state), state])
    seen = jax.numpy.zeros(())

    def sow() -> None:
        for block in model.blocks:
            block.seen = nnx.Intermediate(seen)

    def write() -> None:
        kernel = model.blocks[0].linear.kernel
        kernel.value = kernel.value

    return Operations(
        split_two=lambda: nnx.split(model, nnx.Param, ...),
        merge=lambda: nnx.merge(graphdef, state),
        state=lambda: nnx.state(model),
        write=write,
        state_written=lambda: nnx.state(model),
        update=lambda: nnx.update(model, next(states)),
        clone=lambda: nnx.clone(model),  # its arrays are those of the model
        sow=sow,
        pop=lambda: nnx.pop(model, nnx.Intermediate),
        a_state=state,
    )


SYSTEM = System(
    name="flax nnx",
    package="flax.nnx",
    make_tree=lambda: Tree(*arrays(8)),
    make_mixed_tree=make_mixed_tree,
    make_open_tree=lambda: OpenTree(arrays(8)),
    make_class=make_class,
    make_layer=repeat(partial(nnx.Linear, 4, 4, rngs=nnx.Rngs(0))),
    make_step=make_step,
    make_graph=make_graph,
    make_operations=make_operations,
)
