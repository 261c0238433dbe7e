"""Stacks of layers: the same numbers as a list of layers, one trace, and the same paths in files."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import declax as dx
from declax.errors import GraphError, LayerError, MissingRngsError, TransformError
from declax.nn.stacking import Stacked
from equations import equations

DIM = 4
INIT = dx.initializers.uniform(0.5)  # the fastest to compile


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """Most of the time of these tests would go into optimising programs that run once."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


class Block(dx.Module):
    def __init__(self, dim=DIM, *, rngs, rate=0.0, has_norm=False):
        self.up = dx.Linear(dim, 2 * dim, kernel_init=INIT, rngs=rngs)
        self.norm = dx.BatchNorm(2 * dim, rngs=rngs) if has_norm else None
        self.dropout = dx.Dropout(rate, rngs=rngs)
        self.down = dx.Linear(2 * dim, dim, kernel_init=INIT, rngs=rngs)
        self.calls = dx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, x, scale=1.0):
        self.calls += 1
        hidden = self.up(x)
        if self.norm is not None:
            hidden = self.norm(hidden)
        self.sow(dx.Intermediate, "seen", jnp.abs(hidden).max())
        return x + self.down(self.dropout(dx.gelu(hidden))) * scale


def build(rngs):
    return Block(rngs=rngs)


def as_list(n, seed=0, build=build):
    rngs = dx.Rngs(seed)
    return dx.List([build(rngs) for _ in range(n)])


def through(layers, x, *args):
    for layer in layers:
        x = layer(x, *args)
    return x


def assert_close(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6), a, b)


X = jnp.linspace(-1, 1, 3 * DIM).reshape(3, DIM)


@settings(max_examples=4)
@given(n=st.sampled_from([1, 3]), seed=st.integers(0, 99))
def test_it_starts_from_the_weights_of_a_list(n, seed):
    rngs, other = dx.Rngs(seed), dx.Rngs(seed)
    stacked = Stacked(build, n, rngs=rngs)
    layers = dx.List([build(other) for _ in range(n)])
    for i in range(n):
        assert_close(dx.state(stacked[i], dx.Param), dx.state(layers[i], dx.Param))
    assert rngs.default.count.value == other.default.count.value
    assert_close(rngs.params.uniform(()), other.params.uniform(()))


@pytest.mark.parametrize(
    ("remat", "unroll"), [(False, 1), (True, 1), (jax.checkpoint_policies.dots_saveable, 2), (False, True)]
)
def test_it_computes_what_a_list_computes(remat, unroll):
    stacked, layers = Stacked(build, 3, rngs=dx.Rngs(0), remat=remat, unroll=unroll), as_list(3)
    assert_close(stacked(X), through(layers, X))
    assert stacked.layers.calls.value.tolist() == [1, 1, 1]

    def of_stack(m, x):
        return (m(x, 0.5) ** 2).sum()

    def of_list(m, x):
        return (through(m, x, 0.5) ** 2).sum()

    value, grads = dx.jit(dx.value_and_grad(of_stack))(stacked, X)
    expected, each = dx.value_and_grad(of_list)(layers, X)
    assert_close(value, expected)
    for i in range(3):
        assert_close(grads["layers"]["up"]["kernel"].value[i], each[i]["up"]["kernel"].value)
    assert stacked.layers.calls.value.tolist() == [2, 2, 2]


def test_statistics_and_sown_values_are_those_of_each_layer():
    def with_norm(rngs):
        return Block(rngs=rngs, has_norm=True)

    stacked, layers = Stacked(with_norm, 3, rngs=dx.Rngs(0)), as_list(3, build=with_norm)
    assert_close(stacked(X), through(layers, X))
    for i in range(3):
        assert_close(stacked.layers.norm.mean.value[i], layers[i].norm.mean.value)
        assert_close(stacked.layers.seen.value[0][i], layers[i].seen.value[0])


def test_each_layer_has_random_numbers_of_its_own():
    class Noise(dx.Module):
        def __init__(self, rngs):
            self.dropout = dx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.dropout(x)

    stacked = Stacked(Noise, 4, rngs=dx.Rngs(0))
    _, masks = stacked.scan(lambda layer, x: (x, layer(jnp.ones(64))), jnp.zeros(()))
    assert len({tuple(mask.tolist()) for mask in masks}) == 4
    _, again = stacked.scan(lambda layer, x: (x, layer(jnp.ones(64))), jnp.zeros(()))
    assert not (masks == again).all()
    keys = jax.random.key_data(stacked.layers.dropout.rngs.key.value)
    assert len({tuple(key.tolist()) for key in keys}) == 4


def test_a_layer_that_keeps_the_rngs_gets_one_of_its_own():
    class Keeps(dx.Module):
        def __init__(self, rngs):
            self.weight = dx.Param(rngs.normal(()))
            self.rngs = rngs

        def __call__(self, x):
            return x + self.rngs.normal(())

    rngs = dx.Rngs(0)
    stacked = Stacked(Keeps, 5, rngs=rngs)
    _, draws = stacked.scan(lambda layer, x: (x, layer(0.0)), jnp.zeros(()))
    assert len(set(draws.tolist()) | set(stacked.layers.weight.value.tolist()) | {float(rngs.normal(()))}) == 11


def test_one_trace_however_many_layers():
    traces = []

    class Seen(dx.Module):
        def __init__(self, rngs):
            self.weight = dx.Param(rngs.normal((DIM,)))

        def __call__(self, x):
            traces.append(1)
            return x * self.weight

    stacked = Stacked(Seen, 30, rngs=dx.Rngs(0))
    dx.jit(lambda m, x: m(x))(stacked, X)
    assert len(traces) <= 2


def test_layers_without_rngs():
    assert Stacked(Scale, 3)(jnp.ones(2)).tolist() == [27.0, 27.0]


def test_indexing_copies_and_sets():
    stacked, layers = Stacked(build, 3, rngs=dx.Rngs(0)), as_list(3)
    assert len(stacked) == len(list(stacked)) == 3
    assert_close(dx.state(stacked[-1], dx.Param), dx.state(layers[2], dx.Param))
    layer = dx.clone(stacked[1])
    layer.up.bias.value = jnp.ones(2 * DIM)
    assert not stacked.layers.up.bias.value[1].any()
    stacked[1] = layer
    assert stacked.layers.up.bias.value.sum(1).tolist() == [0.0, 2.0 * DIM, 0.0]
    part = dx.clone(stacked[1:])
    assert isinstance(part, Stacked)
    assert part.length == 2
    assert_close(part(X), through([layer, layers[2]], X))
    with pytest.raises(IndexError):
        stacked[3]
    before = dx.state(stacked, copy=True)
    with pytest.raises(GraphError):
        stacked[0] = dx.Linear(2, 2, rngs=dx.Rngs(0))
    assert dx.state(stacked) == before


def test_lists_become_stacks_and_stacks_lists():
    layers = as_list(3)
    stacked = Stacked.of(layers, remat=True)
    assert stacked.remat is True
    assert_close(stacked(X), through(layers, X))
    again = stacked.unstack()
    assert isinstance(again, dx.List)
    assert_close(dx.state(again, dx.Param), dx.state(layers, dx.Param))


@pytest.mark.parametrize("n", [1, 3])
def test_files_fit_stacks_and_lists(n):
    stacked, layers = Stacked(build, n, rngs=dx.Rngs(0)), as_list(n, seed=1)
    saved = dx.state(stacked.unstack())
    assert [p for p, _ in saved.flat_state()] == [p for p, _ in dx.state(layers).flat_state()]
    dx.update(layers, saved)
    assert_close(through(layers, X), stacked(X))
    other = as_list(n, seed=2)
    stacked = Stacked.of(other)
    assert_close(stacked(X), through(other, X))
    assert_close(dx.state(stacked.unstack(), dx.Param), dx.state(other, dx.Param))


def test_stacks_inside_of_models_and_of_stacks():
    class Net(dx.Module):
        def __init__(self, make, rngs):
            self.stem = dx.Linear(DIM, DIM, rngs=rngs)
            self.blocks = make(rngs)

    def inner(rngs):
        return Stacked(build, 2, rngs=rngs)

    net = Net(lambda rngs: Stacked(inner, 2, rngs=rngs), dx.Rngs(0))
    flat = Net(lambda rngs: dx.List([dx.List([build(rngs) for _ in range(2)]) for _ in range(2)]), dx.Rngs(0))
    assert net.blocks.layers.layers.up.kernel.shape == (2, 2, DIM, 2 * DIM)
    assert_close(
        dx.state([inner.unstack() for inner in net.blocks.unstack()], dx.Param), dx.state(flat.blocks, dx.Param)
    )
    expected = X
    for block in flat.blocks:
        expected = through(block, expected)
    assert_close(net.blocks(X), expected)


def test_abstract_stacks():
    stacked = dx.eval_shape(lambda: Stacked(build, 12, rngs=dx.Rngs(0)))
    assert stacked.layers.up.kernel.shape == (12, DIM, 2 * DIM)
    made = dx.jit(lambda: Stacked(build, 2, rngs=dx.Rngs(0)))()
    assert_close(made(X), through(as_list(2), X))


def test_the_axis_has_a_name():
    def sharded(rngs):
        return dx.Linear(
            2, 2, rngs=rngs, kernel_init=dx.with_metadata(dx.initializers.ones, sharding_names=("in", "out"))
        )

    stacked = Stacked(sharded, 3, rngs=dx.Rngs(0), axis_name="layers")
    assert stacked.layers.kernel.out_sharding == ("layers", "in", "out")
    stacked(jnp.ones(2))
    assert stacked.layers.kernel.out_sharding == ("layers", "in", "out")
    assert stacked[0].kernel.out_sharding == ("in", "out")
    assert stacked[:2].layers.kernel.out_sharding == ("layers", "in", "out")

    whole = Stacked(sharded, 3, rngs=dx.Rngs(0))
    whole(jnp.ones(2))
    for stack in (whole, whole[:2], Stacked.of(whole.unstack())):
        assert stack.layers.kernel.out_sharding == (None, "in", "out")
        assert stack[0].kernel.out_sharding == ("in", "out")


@pytest.mark.parametrize("n", [0, -1, True, 2.0, "3"])
def test_numbers_of_layers_are_checked(n):
    with pytest.raises(LayerError, match="n is not a positive int"):
        Stacked(build, n, rngs=dx.Rngs(0))


def test_what_makes_no_layer_is_refused():
    with pytest.raises(LayerError, match="this is not a function that makes a layer"):
        Stacked(Block(rngs=dx.Rngs(0)).up.kernel, 3)
    with pytest.raises(LayerError, match="the function does not return a Module"):
        Stacked(lambda: jnp.ones(2), 3)
    with pytest.raises(LayerError, match="there are no layers"):
        Stacked.of([])
    with pytest.raises(LayerError, match="its structure differs from that of layer 0") as caught:
        Stacked.of([dx.Linear(2, 2, rngs=dx.Rngs(0)), dx.Linear(2, 2, use_bias=False, rngs=dx.Rngs(0))])
    assert caught.value.where.startswith("Stacked.of, layers[1].")
    assert caught.value.expected != caught.value.got
    with pytest.raises(LayerError, match="its structure differs") as caught:
        Stacked.of([dx.Dropout(0.1), dx.Dropout(0.2)])
    assert (caught.value.where, caught.value.expected, caught.value.got) == ("Stacked.of, layers[1].rate", "0.1", "0.2")
    one, other = dx.Linear(2, 2, rngs=dx.Rngs(0)), dx.Linear(2, 2, rngs=dx.Rngs(0))
    other.kernel.value = jnp.ones((3, 2))
    with pytest.raises(LayerError, match="the layers have arrays of different shapes"):
        Stacked.of([one, other])


def test_an_instance_is_no_function_that_makes_layers():
    with pytest.raises(LayerError, match="this is not a function that makes a layer"):
        Stacked(build(dx.Rngs(0)), 3)


@pytest.mark.parametrize("remat", ["foo", 1, None])
def test_what_remat_may_be_is_checked(remat):
    with pytest.raises(LayerError, match="this is not a policy"):
        Stacked(Scale, 3, remat=remat)
    with pytest.raises(LayerError, match="this is not a policy"):
        Stacked.of([Scale(), Scale()], remat=remat)


# ================================================================= parts that layers share


class Scale(dx.Module):
    def __init__(self, part=None, rngs=None):
        self.weight = dx.Param(jnp.full(2, 3.0))
        self.parts = dx.data([part])

    def __call__(self, x, other=None):
        return x * self.weight if other is None else x * self.weight + other.weight


TABLE = Scale()


class WithTable(dx.Module):
    """Makes its layers before it is finished itself."""

    def __init__(self, rngs):
        self.table = Scale()
        self.blocks = Stacked(lambda rngs: Scale(self.table, rngs), 2, rngs=rngs)


@dx.dataclass
class Declared(dx.Module):
    table: Scale = dx.defer(Scale)()

    @dx.submodule
    def blocks(self):
        return Stacked(lambda: Scale(self.table), 2)


def from_a_closure(rngs):
    table = Scale()
    return Stacked((lambda rngs: Scale(table)) if rngs else (lambda: Scale(table)), 2, rngs=rngs)


def from_a_container(rngs):
    table = {"its": [Scale()]}
    return Stacked((lambda rngs: Scale(table["its"][0])) if rngs else (lambda: Scale(table["its"][0])), 2, rngs=rngs)


class Plain:
    table = Scale()


@pytest.mark.parametrize(
    ("make", "place"),
    [
        (from_a_closure, "layer.parts[0]"),
        (from_a_container, "layer.parts[0]"),
        (lambda rngs: Stacked(lambda *_: Scale(TABLE), 2, rngs=rngs), "layer.parts[0]"),
        (lambda rngs: Stacked(lambda *_: Scale(TABLE.weight), 2, rngs=rngs), "layer.parts[0]"),
        (lambda rngs: Stacked(lambda *_: Scale(Plain.table), 2, rngs=rngs), "layer.parts[0]"),
        (lambda _: WithTable(dx.Rngs(0)), "layer.parts[0]"),
        (lambda _: Declared(), "layer.parts[0]"),
    ],
)
@pytest.mark.filterwarnings("ignore::declax.errors.OverlookedModelWarning")
@pytest.mark.parametrize("rngs", [None, 0])
def test_a_part_that_layers_take_from_outside_is_named(make, place, rngs):
    with pytest.raises(LayerError, match="the layers share a part") as caught:
        make(None if rngs is None else dx.Rngs(rngs))
    assert caught.value.got == f"{place}, which the function does not create"


def test_layers_that_exist_and_share_a_part_are_refused():
    table = Scale()
    with pytest.raises(LayerError, match="the layers share a part") as caught:
        Stacked.of([Scale(table), Scale(table)])
    assert "one object at layers[1].parts[0] and at layers[0].parts[0]" in str(caught.value)


def test_parts_without_arrays_and_parts_within_a_layer_may_be_shared():
    tanh = dx.Sequential(dx.tanh)

    class Tied(dx.Module):
        def __init__(self, rngs):
            self.first = self.second = dx.Linear(DIM, DIM, rngs=rngs)
            self.act = tanh

        def __call__(self, x):
            return self.act(self.second(self.first(x)))

    stacked = Stacked(Tied, 2, rngs=dx.Rngs(0))
    assert stacked.layers.first is stacked.layers.second
    assert_close(stacked(X), through(as_list(2, build=Tied), X))
    assert Stacked.of([Tied(dx.Rngs(0)), Tied(dx.Rngs(1))]).length == 2


def test_a_shared_part_is_an_argument_of_the_call():
    table = Scale()
    assert Stacked(Scale, 2)(jnp.ones(2), table).tolist() == [21.0, 21.0]  # (1 * 3 + 3) * 3 + 3


# ================================================================= copies of layers are to be read


WRITES = {
    "value": lambda layer: setattr(layer.up.bias, "value", jnp.ones(2 * DIM)),
    "item": lambda layer: layer.up.bias.__setitem__(0, 1.0),
    "raw value": lambda layer: layer.up.bias.set_raw_value(jnp.ones(2 * DIM)),
    "metadata": lambda layer: setattr(layer.up.bias, "tag", "mine"),
    "attribute": lambda layer: setattr(layer.dropout, "rate", 0.5),
    "new attribute": lambda layer: setattr(layer, "more", 1),
    "deletion": lambda layer: delattr(layer, "calls"),
    "switch": lambda layer: layer.eval(),
    "update": lambda layer: dx.update(layer, jax.tree.map(lambda x: x + 1, dx.state(layer, dx.Param))),
    "pop": lambda layer: dx.pop(layer, dx.Param),
    "a call that counts": lambda layer: layer(X),
    "a compiled call that counts": dx.jit(lambda layer: layer(X)),
    "a draw": lambda layer: layer.dropout.rngs(),
    "reseed": lambda layer: dx.reseed(layer, default=1),
    "metadata of all": lambda layer: dx.set_metadata(layer, trainable=False),
}


@functools.cache
def never_changed():
    return Stacked(lambda rngs: Block(rngs=rngs, rate=0.5), 2, rngs=dx.Rngs(0))


@pytest.mark.parametrize("write", WRITES)
def test_what_is_set_on_a_copy_of_a_layer_is_never_lost_in_silence(write):
    stacked = never_changed()
    copies = {"0": stacked[0], "1": list(stacked)[1]}
    if "draw" not in write:  # a stream of several layers has no one key to draw
        part = stacked[0:1]
        copies["slice(0, 1, None)"] = part if "call" in write else part.layers
    for index, layer in copies.items():
        with pytest.raises(LayerError, match="and cannot be changed") as caught:
            WRITES[write](layer)
        assert f"this is part of a copy, made by stack[{index}]" in str(caught.value)
        assert f"dx.clone(stack[{index}])" in str(caught.value)


def test_copies_of_layers_can_be_read_called_copied_and_put_back():
    stacked = Stacked(lambda rngs: dx.Linear(DIM, DIM, rngs=rngs), 3, rngs=dx.Rngs(0))
    layer = stacked[1]
    assert_close(dx.jit(lambda m, x: m(x))(layer, X), layer(X))
    assert_close(dx.grad(lambda m, x: m(x).sum())(layer, X)["bias"].value, jnp.full(DIM, 3.0))
    assert_close(through(stacked, X), stacked(X))
    assert_close(through(stacked[:2], X), stacked[:2](X))
    state = dx.state(layer)
    state["bias"].value = jnp.ones(DIM)
    for made in (dx.clone(layer), copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), dx.merge(*dx.split(layer))):
        dx.update(made, state)
        made.note = 1
    del made.note
    stacked[0] = layer
    assert_close(stacked.layers.kernel.value[0], layer.kernel.value)
    stacked[0] = made
    assert stacked.layers.bias.value[:, 0].tolist() == [1.0, 0.0, 0.0]
    for part in stacked.unstack():
        part.bias.value = jnp.zeros(DIM)

    @dx.jit
    def first(m):
        assert_reads_only(m[0])
        return m[0]

    first(stacked).bias.value = jnp.zeros(DIM)


def assert_reads_only(layer):
    with pytest.raises(LayerError, match="and cannot be changed"):
        layer.bias.value = layer.bias.value


def test_training_switches_reach_the_layers():
    stacked = Stacked(lambda rngs: Block(rngs=rngs, rate=0.5), 3, rngs=dx.Rngs(0))
    assert not (stacked(X) == stacked(X)).all()
    stacked.eval()
    assert (stacked(X) == stacked(X)).all()


# ================================================================= in use


@dx.dataclass
class Net(dx.Layer):
    depth: int = dx.field()
    blocks = Stacked(Block(), depth)
    head = dx.Linear(DIM, 1)

    def __call__(self, x):
        return self.head(self.blocks(x))


@dx.dataclass
class Ways(dx.Module):
    """Stacks over deferred calls."""

    depth: int = dx.field()
    keys: dx.Rngs = dx.field()
    kind: type[Block] = dx.field(default=Block)
    make: Callable[[dx.Rngs], Block] = dx.field(default=build)
    rate: float = dx.field(default=0.5)
    of_a_class = Stacked(Block(rate=rate, rngs=keys), depth)
    of_a_field = Stacked(kind(rate=rate, rngs=keys), depth, rngs=keys)
    of_a_function = Stacked(make, depth, rngs=keys)
    without_keys = Stacked(dx.Dropout(rate, deterministic=True), 2)


def test_stacks_over_deferred_calls():
    made = Ways(3, dx.Rngs(0))
    rngs = dx.Rngs(0)
    layers = [Block(rngs=rngs) for _ in range(9)]
    for number, stack in enumerate([made.of_a_class, made.of_a_field, made.of_a_function]):
        for i in range(3):
            assert_close(dx.state(stack[i], dx.Param), dx.state(layers[3 * number + i], dx.Param))
    assert [made.of_a_class.layers.dropout.rate, made.of_a_function.layers.dropout.rate] == [0.5, 0.0]
    assert_close(made.without_keys(X), X)
    assert rngs.params.uniform(()) == made.keys.params.uniform(())


def test_inner_calls_of_stacked_layers_have_keys_of_their_own():
    @dx.dataclass
    class Stacks(dx.Layer):
        nested = Stacked(dx.Sequential(dx.Linear(DIM, DIM), dx.relu), 2)
        twice = Stacked(Stacked(dx.Sequential(dx.Linear(DIM, DIM)), 2), 2)
        listed = Stacked(dx.Sequential(dx.repeat(2, dx.Linear(DIM, DIM))), 2)

    made, rngs = Stacks(rngs=dx.Rngs(0)), dx.Rngs(0)
    kernels = [dx.Linear(DIM, DIM, rngs=rngs).kernel.value for _ in range(10)]
    assert_close(made.nested.layers.layers[0].kernel.value, jnp.stack(kernels[:2]))
    assert_close(made.twice.layers.layers.layers[0].kernel.value, jnp.stack(kernels[2:6]).reshape(2, 2, DIM, DIM))
    found = jnp.stack([layer.kernel.value for layer in made.listed.layers.layers], axis=1)
    assert_close(found, jnp.stack(kernels[6:]).reshape(2, 2, DIM, DIM))


def test_a_stack_whose_layers_read_a_part_of_the_class():
    @dx.dataclass
    class Shared(dx.Layer):
        table = dx.Linear(DIM, DIM)
        blocks = Stacked(dx.Sequential(table, dx.Linear(DIM, DIM)), 2)

    with pytest.raises(LayerError, match="the layers share a part"):
        Shared(rngs=dx.Rngs(0))


def test_as_a_declared_field_it_is_trained_with_donation_in_one_trace():
    net = Net(3, rngs=dx.Rngs(0))
    optimizer = dx.Optimizer(net, optax.adam(1e-2), wrt=dx.Param)

    @dx.jit(donate_argnums=(0, 1))
    def step(net, optimizer, x):
        loss, grads = dx.value_and_grad(lambda net: (net(x) ** 2).mean())(net)
        optimizer.update(net, grads)
        dx.pop(net, dx.Intermediate)
        return loss

    losses = [float(step(net, optimizer, X)) for _ in range(6)]
    assert losses[-1] < losses[0]
    assert step.num_traces == 1
    assert net.blocks.layers.calls.value.tolist() == [6, 6, 6]
    assert "blocks.layers.down" in str(dx.summary(net))


def test_eager_calls_find_the_program_of_the_last_one():
    traces = []

    class Seen(dx.Module):
        def __init__(self, rngs):
            self.weight = dx.Param(rngs.normal((DIM,)))

        def __call__(self, x, flag=False, scale=1.0):
            traces.append((flag, scale))
            return x * self.weight if flag else x

    stacked = Stacked(Seen, 3, rngs=dx.Rngs(0))
    stacked(X)
    count = len(traces)
    stacked(X + 1)
    assert len(traces) == count
    stacked.layers.weight.value = stacked.layers.weight.value * 0
    assert not stacked(X, flag=True).any()
    assert stacked(X, 1) is not None
    kinds = [type(flag) for flag, _ in traces]
    assert kinds[0] is bool
    assert kinds[-1] is int
    for scale in range(40):
        stacked(X[:1], scale=float(scale))
    assert traces[-1] == (False, 39.0)


@pytest.mark.parametrize("remat", [False, True])
def test_flags_and_strings_are_what_they_are_for_a_list(remat):
    class Modes(dx.Module):
        def __init__(self, rngs):
            self.linear = dx.Linear(DIM, DIM, rngs=rngs)

        def __call__(self, x, mask=None, mode="plain", *, twice=False, act=lambda x: x):
            x = act(self.linear(x))
            x = x if mask is None else x * mask
            return {"plain": x, "negative": -x}[mode] * (2 if twice else 1)

    stacked = Stacked(Modes, 2, rngs=dx.Rngs(0), remat=remat)
    layers = as_list(2, build=Modes)
    for args, kwargs in (
        ((), {}),
        ((None, "negative"), {"twice": True}),
        ((X,), {"act": dx.tanh}),
    ):
        expected = X
        for layer in layers:
            expected = layer(expected, *args, **kwargs)
        assert_close(stacked(X, *args, **kwargs), expected)
    shared = dx.Param(jnp.array(2.0))
    assert_close(stacked(X, shared), stacked(X, jnp.array(2.0)))


@pytest.mark.parametrize(
    "result", [lambda x: jnp.concatenate([x, x]), lambda x: x.astype(jnp.bfloat16), lambda x: (x, x), dx.Param]
)
def test_a_layer_that_gives_something_else_is_refused(result):
    class Other(dx.Module):
        def __init__(self, rngs):
            self.calls = dx.Variable(jnp.array(0))

        def __call__(self, x):
            self.calls += 1
            return result(x)

    stacked = Stacked(Other, 2, rngs=dx.Rngs(0))
    with pytest.raises(TransformError, match="scan, x: the function changes the structure or type of this"):
        stacked(X)
    assert stacked.layers.calls.value.tolist() == [0, 0]


def test_copies_and_pickles():
    stacked = Stacked(build, 2, rngs=dx.Rngs(0))
    expected = stacked(X)
    for made in (copy.deepcopy(stacked), pickle.loads(pickle.dumps(stacked)), dx.clone(stacked)):
        assert_close(made(X), expected)
        assert made.layers.calls.value.tolist() == [2, 2]
    assert stacked.layers.calls.value.tolist() == [1, 1]


def test_huge_stacks_are_described_at_once():
    huge = dx.eval_shape(lambda: Stacked(lambda rngs: Block(4096, rngs=rngs), 1000, rngs=dx.Rngs(0)))
    assert huge.layers.up.kernel.shape == (1000, 4096, 8192)


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_view_gives_each_layer_its_cache(is_nested):
    def attention(rngs):
        return dx.MultiHeadAttention(2, DIM, rngs=rngs)

    def pair(rngs):
        return Stacked(attention, 2, rngs=rngs)

    stacked = Stacked(pair if is_nested else attention, 2, rngs=dx.Rngs(0))
    layers = as_list(4 if is_nested else 2, build=attention)
    x = jnp.stack([X, X + 1])
    options = {"decode": True, "batch_size": 2, "max_length": 3}
    decoding, one_by_one = dx.view(stacked, **options), dx.view(layers, **options)
    for start, stop in ((0, 2), (2, 3)):
        expected = through(one_by_one, x[:, start:stop])
        assert_close(decoding(x[:, start:stop]), expected)
    with pytest.raises(LayerError, match="the cache does not hold these positions"):
        one_by_one[0](x[:, :1])


def test_views_and_attributes_reach_the_layers():
    stacked = Stacked(lambda rngs: Block(rngs=rngs, rate=0.5), 2, rngs=dx.Rngs(0))
    quiet = dx.view(stacked, deterministic=True)
    assert (quiet(X) == quiet(X)).all()
    stacked.set_attributes(rate=0.0)
    assert_close(stacked(X), quiet(X))


def test_the_default_modes_of_now_are_those_of_a_call():
    class Grows(dx.Module):
        def __init__(self, rngs):
            self.weight = dx.Param(rngs.normal((DIM,)))

        def __call__(self, x):
            self.seen = dx.Intermediate(x.sum())
            return x * self.weight

    stacked = Stacked(Grows, 2, rngs=dx.Rngs(0))
    stacked(X)
    dx.pop(stacked, dx.Intermediate)
    with dx.set_graph_updates(False), pytest.raises(TransformError, match="changes the structure of its arguments"):
        stacked(X)
    stacked(X)
    assert stacked.layers.seen.value.shape == (2,)


@pytest.fixture
def optimised():
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.mark.usefixtures("optimised")
def test_remat_keeps_less():
    def size(remat):
        stacked = Stacked(
            lambda rngs: dx.Sequential(dx.Linear(16, 16, rngs=rngs), dx.tanh), 6, rngs=dx.Rngs(0), remat=remat
        )
        grads = dx.jit(dx.grad(lambda m, x: (m(x) ** 2).sum())).lower(stacked, jnp.ones((256, 16)))
        return grads.compile().memory_analysis().temp_size_in_bytes

    assert size(True) < 0.8 * size(False)


def keep_none(*_, **__):
    return False


@pytest.mark.parametrize("part", [slice(None), slice(1, None)], ids=["all", "some"])
@pytest.mark.parametrize(("remat", "unroll"), [(False, 2), (True, 1), (keep_none, 3), (True, True)])
def test_options_reach_jax(part, remat, unroll):
    stacked = Stacked(lambda rngs: dx.Linear(DIM, DIM, kernel_init=INIT, rngs=rngs), 4, rngs=dx.Rngs(0))
    stacked = Stacked.of(stacked.unstack(), remat=remat, unroll=unroll)[part]
    made = dx.make_jaxpr(stacked)(X)
    (loop,) = equations(made, "scan")
    assert loop.params["unroll"] == (len(stacked) if unroll is True else unroll)
    found = [(e.params["policy"], e.params["prevent_cse"]) for e in equations(made, "remat2", "checkpoint")]
    assert found == ([] if remat is False else [(None if remat is True else remat, False)])


def test_no_tracer_leaks():
    stacked = Stacked(build, 2, rngs=dx.Rngs(0))
    with jax.checking_leaks():
        dx.jit(lambda m, x, scale: m(x, scale))(stacked, X, 0.5)
        dx.grad(lambda m, x: m(x).sum())(stacked, X)
    assert_close(stacked(X, 0.5), stacked(X, jnp.array(0.5)))


def test_a_partial_without_rngs():
    with pytest.raises(MissingRngsError, match=r"Linear\.kernel: random keys are needed here"):
        Stacked(functools.partial(dx.Linear, 2, 2), 3)


def test_a_partial_that_does_not_take_the_rngs():
    with pytest.raises(LayerError, match="the function that makes a layer does not take the arguments") as caught:
        Stacked(functools.partial(dx.Linear, 2, 2), 3, rngs=dx.Rngs(0))
    first, second = caught.value.fix.splitlines()
    made = eval(first, {"dx": dx, "rngs": dx.Rngs(0)})
    assert made.layers.kernel.shape == (3, 2, 2)
    assert second.startswith("dx.Stacked(dx.Linear(2, 2, rngs=rngs), 3)        # in the body")


def test_names_of_axes_are_those_of_a_list():
    class Named(dx.Module):
        def __init__(self, rngs):
            self.kernel = dx.Param(rngs.params.normal((2, 2)), sharding=("in", "out"))
            self.plain = dx.Param(jnp.ones(2))

        def __call__(self, x):
            return x @ self.kernel + self.plain

    class Outer(dx.Module):
        def __init__(self, rngs):
            self.inner = Stacked(Named, 2, rngs=rngs, axis_name="inner")

        def __call__(self, x):
            return self.inner(x)

    stacked = Stacked(Named, 3, rngs=dx.Rngs(0), axis_name="layers")
    layers = stacked.unstack()
    assert dx.state(Stacked.of(layers, axis_name="layers")) == dx.state(stacked)
    assert layers[2].kernel.out_sharding == ("in", "out")
    assert_close(stacked(X[:, :2]), through(layers, X[:, :2]))

    nested = Stacked(Outer, 3, rngs=dx.Rngs(0), axis_name="outer")
    assert nested.layers.inner.layers.kernel.out_sharding == ("outer", "inner", "in", "out")
    assert nested.unstack()[2].inner.unstack()[1].kernel.out_sharding == ("in", "out")


def test_a_stack_has_as_many_layers_as_its_arrays():
    stack = dx.Stacked(lambda rngs: dx.Linear(3, 3, rngs=rngs), 4, rngs=dx.Rngs(0))
    half = jax.tree.map(lambda leaf: leaf[:2], stack)
    assert (len(half), len(list(half)), len(half.unstack())) == (2, 2, 2)
    np.testing.assert_allclose(half(jnp.ones(3)), stack[:2](jnp.ones(3)), rtol=1e-6)
    with pytest.raises(IndexError):
        half[2]
    stack.layers.bias = dx.Param(jnp.zeros((2, 3)))
    with pytest.raises(TransformError, match=r"(?s)layer.bias: this has another size.*expected: 4.*got: +2"):
        stack(jnp.ones(3))
