"""Pipelines on eight devices: values, gradients and state of one device, and what the compiled program exchanges."""

from __future__ import annotations

import functools
import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

import declax as dx
from declax.errors import TransformError

P = jax.P
BATCH = jax.random.normal(jax.random.key(1), (16, 8))


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """Most of the time of these tests would go into optimising programs that run once."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field()
    up = dx.Linear(dim, 4 * dim, kernel_metadata={"out_sharding": (None, "model")})
    down = dx.Linear(4 * dim, dim, kernel_metadata={"out_sharding": ("model", None)})

    def __call__(self, x):
        return x + self.down(jnp.tanh(self.up(x)))


@dx.dataclass
class Net(dx.Layer):
    dim: int = dx.field()
    depth: int = dx.field()
    microbatches: int = dx.field()
    remat: bool = dx.field(default=False)
    blocks = dx.Stacked(Block(dim), depth, axis_name="stage", remat=remat)
    head = dx.Linear(dim, 1)

    def __call__(self, x):
        blocks = dx.pipeline(self.blocks, "stage", self.microbatches) if self.microbatches else self.blocks
        return self.head(blocks(x))


def loss_of(net, x):
    return jnp.tanh(net(x)).sum()


step = dx.jit(dx.value_and_grad(loss_of))


@functools.cache
def expected():
    return step(Net(8, 8, 0, rngs=dx.Rngs(0)), BATCH)


def mesh_of(kind=AxisType.Auto, **sizes):
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(kind,) * len(sizes))


def make(module, n, **options):
    return dx.Stacked(module, n, rngs=dx.Rngs(0), **options)


PLAIN = dx.Stacked.of([dx.Linear(8, 8, rngs=dx.Rngs(0)) for _ in range(4)])


def assert_equal(found, expected):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


# ================================================================= the numbers of one device


@pytest.mark.parametrize(
    ("sizes", "microbatches", "remat"),
    [
        ({"stage": 4, "data": 2}, 4, True),
        ({"data": 2, "stage": 2, "model": 2}, 1, False),
    ],
)
def test_values_gradients_and_steps_are_those_of_one_device(sizes, microbatches, remat):
    with jax.set_mesh(mesh_of(**sizes)), dx.sharding_rules({"model": "model" if "model" in sizes else None}):
        net = Net(8, 8, microbatches, remat=remat, rngs=dx.Rngs(0))
        x = jax.device_put(BATCH, P("data" if "data" in sizes else None))
        found = step(net, x)
    kernel = net.blocks.layers.up.kernel
    assert kernel.sharding.shard_shape(kernel.shape)[0] == 8 // sizes["stage"]
    assert_equal(found, expected())


def test_a_training_step_finds_the_mesh_of_its_arguments_compiles_once_and_gathers_nothing():
    mesh = mesh_of(stage=4, data=2)
    shard = dx.StateSharding({dx.PathContains("blocks"): P("stage"), ...: None})
    x = jax.device_put(BATCH, jax.NamedSharding(mesh, P("data")))
    with dx.sharding_rules({"model": None}):
        net = dx.init_sharded(lambda: Net(8, 8, 4, rngs=dx.Rngs(0)), mesh=mesh, shardings=shard)
        optimizer = dx.Optimizer(net, optax.sgd(1e-2))

        @dx.jit
        def train(net, optimizer, x):
            loss, grads = dx.value_and_grad(loss_of)(net, x)
            optimizer.update(net, grads)
            return loss

        losses = [float(train(net, optimizer, x)) for _ in range(3)]
        text = train.lower(net, optimizer, x).compile().as_text()
    np.testing.assert_allclose(losses[0], expected()[0], rtol=1e-5)
    assert losses[0] > losses[1] > losses[2]
    assert train.num_compilations == 1
    assert net.blocks.layers.up.kernel.sharding.spec[0] == "stage"
    found = Counter(re.findall(r" (all-to-all|all-gather|reduce-scatter|collective-permute)(?:-start)?\(", text))
    assert found == {"collective-permute": 2}  # forward and backward


def test_explicit_axes():
    with jax.set_mesh(mesh_of(AxisType.Explicit, stage=4, data=2)), dx.sharding_rules({"model": None}):
        found = step(Net(8, 8, 4, rngs=dx.Rngs(0)), jax.device_put(BATCH, P("data")))
    assert_equal(found, expected())


def test_one_stage_beside_other_axes():
    mesh = mesh_of(stage=1, data=8)
    step = dx.jit(dx.grad(lambda stack, x: dx.pipeline(stack, "stage", 2, mesh=mesh)(x).sum()))
    found = step(PLAIN, jax.device_put(BATCH, jax.NamedSharding(mesh, P("data"))))
    assert_equal(found, dx.grad(lambda stack, x: stack(x).sum())(PLAIN, BATCH))


def test_other_arguments_follow_their_microbatch_and_flags_are_static():
    class Masked(dx.Module):
        def __init__(self, rngs):
            self.bias = dx.Param(rngs.params.normal((8,)))

        def __call__(self, x, mask, *, negate):
            return jnp.where(mask, x + (-self.bias if negate else self.bias), x)

    stack, mask = make(Masked, 4), BATCH[:, :1] > 0
    with jax.set_mesh(mesh_of(stage=4)):
        found = dx.pipeline(stack, "stage", 4)(BATCH, mask, negate=True)
    assert_equal(found, stack(BATCH, mask, negate=True))


def test_trees_of_arrays_pass_from_stage_to_stage():
    class Pair(dx.Module):
        def __init__(self, rngs):
            self.linear = dx.Linear(8, 8, rngs=rngs)

        def __call__(self, pair):
            x, kept, number = pair
            return jnp.where(kept, jnp.tanh(self.linear(x)), x), ~kept, number + 1

    stack = make(Pair, 4)
    batch = BATCH, BATCH > 0, jnp.arange(16)
    found = dx.pipeline(stack, "stage", 2, mesh=mesh_of(stage=4))(batch)
    assert [leaf.dtype for leaf in found] == [leaf.dtype for leaf in batch]
    assert_equal(found, stack(batch))


def test_stages_that_wait_make_no_nan():
    class Unit(dx.Module):
        def __init__(self, rngs):
            self.scale = dx.Param(jnp.ones(8))

        def __call__(self, x):  # its gradient at zeros is NaN
            return x * self.scale / jnp.sqrt((x * x).sum(-1, keepdims=True))

    stack = make(Unit, 4)
    mesh = mesh_of(stage=4)
    grads = dx.grad(lambda stack, x: (dx.pipeline(stack, "stage", 4, mesh=mesh)(x) ** 3).sum())(stack, BATCH)
    assert_equal(grads, dx.grad(lambda stack, x: (stack(x) ** 3).sum())(stack, BATCH))


def test_narrow_floats():
    stack = make(lambda rngs: dx.Linear(8, 8, dtype=jnp.bfloat16, rngs=rngs), 4)
    mesh, x = mesh_of(stage=4, data=2), BATCH.astype(jnp.bfloat16)

    def loss(stack, x, run):
        y = run(stack)(x)
        assert y.dtype == jnp.bfloat16
        return (y.astype(jnp.float32) ** 2).sum()

    grad = dx.grad(loss, argnums=(0, 1))
    found = grad(stack, x, lambda stack: dx.pipeline(stack, "stage", 4, mesh=mesh))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(grad(stack, x, lambda stack: stack)), strict=True):
        np.testing.assert_allclose(np.float32(one), np.float32(other), rtol=0.05, atol=0.02 * np.abs(other).max())


# ================================================================= state


class Stateful(dx.Module):
    def __init__(self, rngs):
        self.linear = dx.Linear(8, 8, rngs=rngs)
        self.norm = dx.BatchNorm(8, rngs=rngs)
        self.dropout = dx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return x + self.dropout(self.norm(self.linear(x)))


def test_statistics_and_streams_are_those_of_a_loop_over_microbatches():
    stack, other = make(Stateful, 4), make(Stateful, 4)

    @dx.jit
    def call(stack, x):
        return dx.pipeline(stack, "stage", 4)(x)

    with jax.set_mesh(mesh_of(stage=2, data=4)):
        found = call(stack, BATCH)
    expected = [other(BATCH[i::4]) for i in range(4)]
    assert_equal(found, jnp.stack(expected, 1).reshape(16, 8))
    assert_equal(dx.state(stack, dx.Not(dx.RngKey)), dx.state(other, dx.Not(dx.RngKey)))
    assert other.layers.dropout.rngs.count.value.tolist() == [4] * 4


def test_gradients_of_layers_with_state_and_eager_writes():
    stack, other = make(Stateful, 4), make(Stateful, 4)
    mesh = mesh_of(stage=4)

    def by_part(stack, x):
        return sum((stack(x[i::2]) ** 2).sum() for i in range(2))

    found = dx.grad(lambda stack, x: (dx.pipeline(stack, "stage", 2, mesh=mesh)(x) ** 2).sum())(stack, BATCH)
    assert_equal(found, dx.grad(by_part)(other, BATCH))
    assert_equal(dx.state(stack, dx.BatchStat), dx.state(other, dx.BatchStat))


def test_eager_calls_trace_the_layers_once():
    traced = []

    class Seen(dx.Module):
        def __init__(self, rngs):
            self.scale = dx.Param(jnp.ones(8))

        def __call__(self, x):
            traced.append(1)
            return x * self.scale

    stack, mesh = make(Seen, 4), mesh_of(stage=4)
    dx.pipeline(stack, "stage", 2, mesh=mesh)(BATCH)
    first = len(traced)
    stack.layers.scale.value = 2 * stack.layers.scale.value
    assert_equal(dx.pipeline(stack, "stage", 2, mesh=mesh)(BATCH), 16 * BATCH)
    assert len(traced) == first


# ================================================================= a share of a stack


def test_a_stack_in_shard_map_runs_its_share():
    seen = []

    @dx.jit
    @dx.shard_map(mesh=mesh_of(stage=2), in_specs=(P("stage"), None), out_specs=P("stage"))
    def by_hand(stack, x):
        seen.append((len(stack), len(list(stack)), stack.unstack()[1].kernel.shape, stack.length))
        with pytest.raises(IndexError):
            stack[2]
        x = jax.lax.pcast(x, "stage", to="varying")
        for _ in range(2):
            x = jax.lax.ppermute(stack(x), "stage", [(0, 1), (1, 0)])
        return x[None]

    assert_equal(by_hand(PLAIN, BATCH)[0], PLAIN(BATCH))
    assert set(seen) == {(2, 2, (8, 8), 4)}


def by_shards(run):
    """A function of each shard of a stack and the whole batch, and its results for the two shards."""
    specs = {"in_specs": (P("stage"), None), "out_specs": P("stage")}
    return dx.shard_map(lambda stack, x: run(stack, x)[None], mesh=mesh_of(stage=2), **specs)


def by_loops(stack, x):
    """The same, layer by layer."""
    layers = list(stack)
    return jnp.stack([layers[i + 1](layers[i](x)) for i in (0, 2)])


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_share_of_a_stack_takes_an_input_that_all_devices_have(is_compiled):
    """Each shard makes another result of it, so that what the loop carries varies."""
    weights = jax.random.normal(jax.random.key(2), (2, 16, 8))
    mapped, stack = by_shards(lambda stack, x: stack(x)), dx.clone(PLAIN)  # which the call puts on the mesh

    def gradients(run):
        of_loss = dx.value_and_grad(lambda stack, x: (run(stack, x) * weights).sum(), argnums=(0, 1))
        return (dx.jit(of_loss) if is_compiled else of_loss)(dx.clone(PLAIN), BATCH)

    assert_equal(mapped(stack, BATCH), by_loops(PLAIN, BATCH))
    assert_equal(gradients(mapped), gradients(by_loops))


def test_a_gradient_in_shard_map_of_a_share_of_a_stack():
    def own(stack, x):
        return dx.grad(lambda stack: (stack(x) ** 2).sum())(stack)

    found = dx.shard_map(own, mesh=mesh_of(stage=2), in_specs=(P("stage"), None), out_specs=P("stage"))
    found = found(dx.clone(PLAIN), BATCH)
    assert_equal(found, dx.grad(lambda stack: (by_loops(stack, BATCH) ** 2).sum())(PLAIN))


def test_loops_carry_what_comes_to_vary():
    """Sums of the numbers of devices: the first value is that of all devices."""
    number = lambda: jax.lax.axis_index("stage") + 1  # noqa: E731
    loops = {
        "scan": dx.scan(lambda x: x + number(), in_axes=dx.Carry, out_axes=dx.Carry, length=3),
        "fori_loop": lambda x: dx.fori_loop(0, 3, lambda i, x: x + number(), x),
        "while_loop": lambda x: dx.while_loop(lambda x: x[0] < 3, lambda x: x + number(), x),
    }
    for name, loop in loops.items():
        run = dx.shard_map(loop, mesh=mesh_of(stage=2), in_specs=P(None), out_specs=P("stage"))
        assert run(jnp.zeros(1, jnp.int32)).tolist() == ([3, 4] if name == "while_loop" else [3, 6]), name


def test_what_a_loop_sums_up_does_not_vary():
    """As in a layer that is split: the sum over devices is that of all devices."""
    total = lambda x: jax.lax.psum(x * (jax.lax.axis_index("stage") + 1), "stage")  # noqa: E731
    run = dx.shard_map(
        dx.scan(total, in_axes=dx.Carry, out_axes=dx.Carry, length=2),
        mesh=mesh_of(stage=2),
        in_specs=P(None),
        out_specs=P(None),
    )
    assert run(jnp.ones(1, jnp.int32)).tolist() == [9]


# ================================================================= errors


def refused(match, stack=PLAIN, axis="stage", microbatches=4, x=BATCH, args=(), mesh=None):
    with pytest.raises(TransformError, match=match):
        dx.pipeline(stack, axis, microbatches, mesh=mesh or mesh_of(stage=4, data=2))(x, *args)


def test_meshes_layers_and_batches_that_do_not_fit():
    with pytest.raises(TransformError, match="there is no mesh"):
        dx.pipeline(PLAIN, "stage", 4)(BATCH)
    refused(r"(?s)no such axis.*one of \['stage', 'data'\].*'stages'", axis="stages")
    refused("the stages cannot have equally many layers", PLAIN[:3])
    refused(r"(?s)a multiple of 4 layers.*got: +3 layers.*dx.Stacked\(build, 4\)", PLAIN[:3])
    refused(r"(?s)a multiple of 5 examples.*16 examples.*microbatches=4", microbatches=5)
    refused("one batch as the first axis", args=(jnp.ones((8, 8), bool),))
    refused("one batch as the first axis", x=jnp.float32(1))
    refused("this is not a positive int", microbatches=0)
    refused("this is not a positive int", microbatches=True)
    refused("not a stack of layers", stack=PLAIN[0])
    refused("this is a model, which all stages would share", args=(dx.Embed(4, 8, rngs=dx.Rngs(0)),))


@pytest.mark.parametrize("axis", ["stage", "data"])
def test_a_pipeline_in_a_shard_map(axis):
    with jax.set_mesh(mesh_of(stage=4, data=2)), pytest.raises(TransformError, match="called in a shard_map"):
        dx.shard_map(
            lambda stack, x: dx.pipeline(stack, "stage", 4)(x), in_specs=None, out_specs=None, axis_names={axis}
        )(PLAIN, BATCH)


def test_layers_that_change_more_than_values():
    class Sowing(dx.Module):
        def __init__(self, rngs):
            self.scale = dx.Param(jnp.ones(8))

        def __call__(self, x):
            self.sown = dx.Intermediate(x.mean())
            return x * self.scale

    class Counting(dx.Module):
        def __init__(self, rngs):
            self.scale = dx.Param(jnp.ones(8))
            self.calls = 0

        def __call__(self, x):
            self.calls += 1
            return x * self.scale

    refused(r"stack.layers.sown: the layers change it, or create or remove it", stack=make(Sowing, 4))
    refused(r"stack.layers.calls: the layers change it, or create or remove it", stack=make(Counting, 4))


def test_arguments_without_a_hash():
    class Named(dx.Module):
        def __init__(self, rngs):
            self.scale = dx.Param(jnp.full(8, 2.0))

        def __call__(self, x, names):
            return x * self.scale if "twice" in names else x

    found = dx.pipeline(make(Named, 4), "stage", 4, mesh=mesh_of(stage=4))(BATCH, {"twice"})
    assert_equal(found, 16 * BATCH)


def test_layers_that_change_the_shape():
    stack = make(lambda rngs: dx.Linear(8, 4, rngs=rngs), 4)
    with pytest.raises(TransformError, match=r"(?s)Carry|carr"):
        dx.pipeline(stack, "stage", 4, mesh=mesh_of(stage=4))(BATCH)
