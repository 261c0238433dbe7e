"""declax: declared as dataclasses, or open, with Variables in its layers."""

import itertools
from functools import partial

import jax

import declax as dx
from benchmarks.harness import Batch
from benchmarks.systems import GraphBatches, Operations, System, repeat, wait_for
from benchmarks.systems.of_jax import arrays


@dx.dataclass
class Tree(dx.Module):
    a: jax.Array
    b: jax.Array
    c: jax.Array
    d: jax.Array
    e: jax.Array
    f: jax.Array
    g: jax.Array
    h: jax.Array


@dx.dataclass
class MixedTree(dx.Module):
    a: jax.Array
    b: jax.Array
    c: jax.Array
    d: jax.Array
    e: jax.Array
    size: int
    name: str
    rate: float


class OpenTree(dx.Module):
    def __init__(self, leaves: list[jax.Array]) -> None:
        self.a, self.b, self.c, self.d, self.e, self.f, self.g, self.h = leaves


class Block(dx.Module):
    def __init__(self, rngs: dx.Rngs) -> None:
        self.linear = dx.Linear(4, 4, rngs=rngs)
        self.norm = dx.BatchNorm(4, rngs=rngs)


class Model(dx.Module):
    def __init__(self, blocks: int, rngs: dx.Rngs) -> None:
        self.training = True
        self.blocks = dx.List([Block(rngs) for _ in range(blocks)])


def make_model(blocks: int) -> Model:
    return Model(blocks, dx.Rngs(0))


def make_mixed_tree() -> MixedTree:
    a, b, c, d, e = arrays(5)
    return MixedTree(a, b, c, d, e, size=3, name="relu", rate=0.1)


def make_class() -> type:
    @dx.dataclass
    class Made(dx.Module):
        a: jax.Array
        b: jax.Array
        c: jax.Array
        d: jax.Array
        e: jax.Array
        size: int
        name: str
        rate: float

    return Made


def make_declared_class() -> type:
    @dx.dataclass
    class Made(dx.Module):
        a: jax.Array = dx.field()
        b: jax.Array = dx.field()
        c: jax.Array = dx.field()
        d: jax.Array = dx.field()
        e: jax.Array = dx.field()
        size: int = dx.field()
        name: str = dx.field()
        rate: float = dx.field()

    return Made


RNGS = dx.Rngs(0)
LECUN_NORMAL = dx.initializers.lecun_normal()


class LinearByHand(dx.Module):
    """The attributes of a linear layer, made by an ``__init__``."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        use_bias: bool = True,
        param_dtype: jax.typing.DTypeLike = jax.numpy.float32,
        kernel_init: dx.initializers.Initializer = LECUN_NORMAL,
        bias_init: dx.initializers.Initializer = dx.initializers.zeros,
        rngs: dx.Rngs,
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.use_bias = use_bias
        self.param_dtype = param_dtype
        self.kernel = dx.Param(kernel_init(rngs.params(), (inputs, outputs), param_dtype))
        self.bias = dx.Param(bias_init(rngs.params(), (outputs,), param_dtype)) if use_bias else None


def increment(model: Model) -> None:
    """Reads and writes every Variable."""
    for block in model.blocks:
        linear, norm = block.linear, block.norm
        for variable in (linear.kernel, linear.bias, norm.scale, norm.bias, norm.mean, norm.var):
            if variable is not None:  # as a bias or scale that was not asked for would be
                variable[...] = variable[...] + 1


def make_step(blocks: int) -> Batch:
    model = make_model(blocks)
    last = model.blocks[-1].norm.var
    step = dx.jit(increment)

    def batch(n: int) -> None:
        for _ in range(n):
            step(model)
        wait_for(last.get_value())

    return batch


def make_graph(blocks: int) -> GraphBatches:
    model = make_model(blocks)
    graphdef, state = dx.split(model)

    def split_changed(n: int) -> None:
        for _ in range(n):
            model.training = not model.training
            dx.split(model)

    return GraphBatches(
        split=repeat(partial(dx.split, model)),
        merge=repeat(partial(dx.merge, graphdef, state)),
        split_changed=split_changed,
    )


def make_operations(blocks: int) -> Operations:
    model = make_model(blocks)
    graphdef, state = dx.split(model)
    states = itertools.cycle([jax.tree.map(jax.numpy.copy, state), state])
    seen = jax.numpy.zeros(())

    def sow() -> None:
        for block in model.blocks:
            block.seen = dx.Intermediate(seen)

    def write() -> None:
        kernel = model.blocks[0].linear.kernel
        kernel.value = kernel.value

    return Operations(
        split_two=lambda: dx.split(model, dx.Param, ...),
        merge=lambda: dx.merge(graphdef, state),
        state=lambda: dx.state(model),
        write=write,
        state_written=lambda: dx.state(model),
        update=lambda: dx.update(model, next(states)),
        clone=lambda: dx.clone(model),
        sow=sow,
        pop=lambda: dx.pop(model, dx.Intermediate),
        a_state=state,
    )


SYSTEM = System(
    name="declax",
    package="declax",
    make_tree=lambda: Tree(*arrays(8)),
    make_mixed_tree=make_mixed_tree,
    make_open_tree=lambda: OpenTree(arrays(8)),
    make_class=make_class,
    make_declared_class=make_declared_class,
    make_layer=repeat(lambda: dx.Linear(4, 4, rngs=RNGS)),
    make_layer_by_hand=repeat(lambda: LinearByHand(4, 4, rngs=RNGS)),
    make_step=make_step,
    make_graph=make_graph,
    make_operations=make_operations,
)
