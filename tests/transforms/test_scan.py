"""`scan`: what goes from step to step, what each step has its own part of, and what all share."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from declax.errors import GraphError, TransformError
from declax.transforms._engine.prefixes import Carry, StateAxes
from declax.transforms.axis_names import PARTITION_NAME
from declax.transforms.labels import prefix
from declax.transforms.scanning import scan
from declax.transforms.vectorization import vmap
from equations import equations
from strategies import KINDS, Open, build, objects_of, recipes, same_graph, set_some

MODES = [{"graph": False}, {"graph_updates": False}, {"graph_updates": True}]
each_mode = pytest.mark.parametrize("mode", MODES, ids=["tree", "no-updates", "updates"])


class Block(dx.Module):
    def __init__(self, scale=1.0):
        self.scale = dx.Param(jnp.full((2,), scale))
        self.seen = dx.BatchStat(jnp.array(0))
        self.raw = jnp.zeros(2)

    def __call__(self, x):
        return jnp.tanh(x * self.scale)

    def count(self, by=1):
        self.seen.value = self.seen.value + by


def stack(n=3):
    """A model of n blocks, each with its own scale."""
    return vmap(Block)(jnp.arange(1.0, n + 1.0))


def counted(function):
    """A function that counts its traces."""

    @functools.wraps(function)
    def counting(*args):
        counting.traces += 1
        return function(*args)

    counting.traces = 0
    return counting


def values_of(model):
    return jax.tree.map(np.asarray, dx.to_pure_dict(dx.state(model)))


# ================================================================= against raw JAX on explicit state


def assert_as_in_lax(model, labels, numbers, length):
    """Scans a model and its state, and compares."""
    copied = dx.clone(model)
    states = dx.split(copied, *labels)
    graphdef, parts = states[0], list(states[1:])
    axes = list(labels.values())

    def step(carry, own):
        merged = [{Carry: carry, None: parts}.get(axis, own)[i] for i, axis in enumerate(axes)]
        made = dx.merge(graphdef, *merged)
        output = set_some(numbers, made)
        after = dx.split(made, *labels)[1:]
        return *(
            [part if axis is wanted else None for part, axis in zip(after, axes, strict=True)] for wanted in (Carry, 0)
        ), output

    carry = [part if axis is Carry else None for part, axis in zip(parts, axes, strict=True)]
    own = [part if axis == 0 else None for part, axis in zip(parts, axes, strict=True)]

    def pure(carry, own):
        carry, own, output = step(carry, own)
        return carry, (own, output)

    carry, (own, expected) = jax.lax.scan(pure, carry, own, length=length)
    for i, axis in enumerate(axes):
        if axis is not None:
            dx.update(copied, {Carry: carry, 0: own}[axis][i])
    run = scan(lambda m: set_some(numbers, m), in_axes=(StateAxes(labels),), out_axes=0, length=length)
    output = run(model)
    np.testing.assert_allclose(output, expected, rtol=1e-5)
    known = list(zip(objects_of(model), objects_of(copied), strict=True))
    assert same_graph(model, copied, known)


@given(recipes(), st.lists(st.integers(0, 7), max_size=3), st.data())
def test_labels_by_filter_against_lax(recipe, numbers, data):
    labels = {KINDS[kind]: data.draw(st.sampled_from([0, Carry])) for kind in ("param", "stat", "cache")}
    labels |= {...: Carry}
    model = build(recipe)
    n = 3
    for v in objects_of(model):
        if isinstance(v, dx.Variable):
            label = next(label for kind, label in labels.items() if kind is ... or isinstance(v, kind))
            if label == 0:
                v.value = jnp.stack([v.value * (k + 1) for k in range(n)])
    assert_as_in_lax(model, labels, numbers, n)


@given(recipes(), st.lists(st.integers(0, 7), max_size=3), st.integers(0, 3))
def test_a_carried_model_is_one_in_a_loop(recipe, numbers, length):
    inside, outside = build(recipe), build(recipe)
    known = list(zip(objects_of(inside), objects_of(outside), strict=True))
    returned = scan(lambda m: (set_some(numbers, m), m)[1], in_axes=Carry, out_axes=Carry, length=length)(inside)
    assert returned is inside
    for _ in range(length):
        set_some(numbers, outside)
    assert same_graph(inside, outside, known)


@each_mode
@pytest.mark.parametrize(
    "options", [{}, {"reverse": True}, {"unroll": 2}, {"unroll": True}, {"_split_transpose": True}]
)
def test_options_against_lax(mode, options):
    blocks, x = stack(), jnp.ones(2)

    def pure(x, scale):
        return jnp.tanh(x * scale), x

    expected = jax.lax.scan(pure, x, blocks.scale.value, **options)
    output = scan(lambda x, block: (block(x), x), **options, **mode)(x, blocks)
    jax.tree.map(np.testing.assert_allclose, output, expected)


@pytest.mark.parametrize(("unroll", "expected"), [(1, 1), (2, 2), (True, 4)])
def test_how_many_steps_are_one(unroll, expected):
    steps = dx.scan(lambda x, y: (x + y, None), unroll=unroll)
    (loop,) = equations(jax.make_jaxpr(steps)(0.0, jnp.ones(4)), "scan")
    assert loop.params["unroll"] == expected


def test_a_split_transpose_is_asked_of_jax(monkeypatch):
    """Which takes it, and does nothing with it in some versions; without it, JAX need not know this private option."""
    asked, scan = [], jax.lax.scan

    def spy(*args, **options):
        asked.append(options.get("_split_transpose"))
        return scan(*args, **options)

    monkeypatch.setattr(jax.lax, "scan", spy)
    for split in (True, False):
        dx.scan(lambda x, y: (x + y, None), _split_transpose=split)(0.0, jnp.ones(4))
    assert asked == [True, None]


def test_gradients_against_lax():
    blocks, x = stack(), jnp.ones(2)
    run = scan(lambda x, block: block(x), in_axes=(Carry, 0), out_axes=Carry)

    def pure(scales):
        return jax.lax.scan(lambda x, scale: (jnp.tanh(x * scale), None), x, scales)[0].sum()

    expected = jax.grad(pure)(blocks.scale.value)
    for grad in (dx.grad, lambda f: dx.jit(dx.grad(f))):
        grads = grad(lambda blocks: run(x, blocks).sum())(blocks)
        np.testing.assert_allclose(grads["scale"].value, expected, rtol=1e-6)


def test_against_the_peer():
    nnx = pytest.importorskip("flax.nnx")

    def program(lib, scan, vmap):
        class Block(lib.Module):
            def __init__(self, scale):
                self.scale = lib.Param(scale)
                self.count = lib.BatchStat(jnp.array(0))

            def __call__(self, x):
                self.count.set_value(self.count.get_value() + 1)
                return x * self.scale.get_value()

        blocks = vmap(Block)(jnp.arange(1.0, 4.0))
        total, seen = scan(lambda x, block: (block(x), x))(0.5, blocks)
        last = scan(lambda block, x: block(x), in_axes=(0, lib.Carry), out_axes=lib.Carry)(blocks, total)
        axes = lib.StateAxes({lib.Param: None, ...: lib.Carry})
        one = Block(2.0)
        products = scan(lambda block, x: block(x), in_axes=(axes, 0), out_axes=0)(one, jnp.arange(4.0))
        same, _ = scan(lambda block, x: (block, block(x)))(one, jnp.arange(2.0))
        outer = scan(lambda x, y: (x * 2, y + 1), in_axes=(1, 0), out_axes=(1, -1))(
            jnp.arange(6).reshape(2, 3), jnp.arange(3)
        )
        swapped = scan(lambda c, x: (x * 2, c + x), out_axes=(0, lib.Carry))(0, jnp.arange(3))
        counter = scan(lambda x: (x + 1, x), in_axes=lib.Carry, length=3)(0)
        assert same is one
        counts = [blocks.count.get_value(), one.count.get_value()]
        return [total, seen, last, products, *outer, *swapped, *counter, *counts]

    got, expected = program(dx, scan, vmap), program(nnx, nnx.scan, nnx.vmap)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b)


# ================================================================= Carry, wherever it is


@each_mode
@pytest.mark.parametrize("is_returned", [True, False])
def test_a_carried_model(mode, is_returned):
    model = Block(1.0)

    def step(model, x):
        model.count()
        model.scale.value = model.scale.value * x
        return (model, model.scale.value) if is_returned else model.scale.value

    all_leaves = None if mode.get("graph") is False else StateAxes({...: Carry})
    axes = {} if is_returned else {"in_axes": (all_leaves, 0), "out_axes": 0}
    run = scan(step, **axes, **mode)
    output = run(model, jnp.arange(1.0, 4.0))
    if is_returned:
        returned, output = output
        assert returned is model
    assert int(model.seen.value) == 3
    assert model.scale.value.tolist() == [6.0, 6.0]
    assert output[:, 0].tolist() == [1.0, 2.0, 6.0]


@pytest.mark.parametrize(
    ("in_axes", "out_axes"),
    [((Carry, 0, Carry), (Carry, 0)), ((Carry, 0), (Carry, Carry)), ((Carry, 0), 0), (0, (Carry, 0)), (Carry, 0)],
)
@each_mode
def test_one_argument_and_one_result_are_carried(mode, in_axes, out_axes):
    """Others are refused where the function is wrapped, as by the peer."""
    with pytest.raises(ValueError, match="Carry labels one argument and one result, or none of either"):
        scan(lambda *_: 0, in_axes=in_axes, out_axes=out_axes, length=2, **mode)


def test_carries_in_trees():
    run = scan(
        lambda given: (given["x"], {"total": given["total"][0] + given["x"]}),
        in_axes=({"total": (Carry,), "x": 0},),
        out_axes=(0, {"total": Carry}),
    )
    xs, total = run({"total": (0,), "x": jnp.arange(4)})
    assert (xs.tolist(), int(total["total"])) == ([0, 1, 2, 3], 6)


def test_a_tree_as_one_carry():
    def step(carry, x):
        return {"a": carry["a"] + x, "m": carry["m"]}, None

    model = Block()
    carry, _ = scan(step)({"a": 0, "m": model}, jnp.arange(4))
    assert int(carry["a"]) == 6
    assert carry["m"] is model


def test_all_arguments_as_carry():
    run = scan(lambda a, b: (b, a + b), in_axes=Carry, out_axes=Carry, length=5)
    assert tuple(map(int, run(0, 1))) == (5, 8)
    one = scan(lambda a: (a + 1, a), in_axes=Carry, length=3)(0)
    assert (int(one[0]), one[1].tolist()) == (3, [0, 1, 2])


def test_carried_values_that_change_places():
    model = Open()
    model.a, model.b = dx.Param(jnp.zeros(())), dx.Param(jnp.ones(()))

    def step(model, x):
        model.a.value, model.b.value = model.b.value, model.a.value + x
        return model, model.a.value

    _, seen = scan(step)(model, jnp.arange(1.0, 4.0))
    assert seen.tolist() == [1.0, 1.0, 3.0]
    assert (float(model.a.value), float(model.b.value)) == (3.0, 4.0)


def test_carried_values_that_change_places_while_another_part_grows():
    model = Open()
    model.a, model.b = dx.Param(jnp.zeros(())), dx.Param(jnp.ones(()))

    def step(model, x):
        model.a.value, model.b.value = model.b.value, model.a.value
        model.new = dx.Cache(model.a.value + x)

    scan(step, in_axes=(StateAxes({dx.Param: Carry, ...: 0}), 0), out_axes=0)(model, jnp.zeros(3))
    assert (float(model.a.value), float(model.b.value)) == (1.0, 0.0)
    assert model.new.value.tolist() == [1.0, 0.0, 1.0]


def test_a_first_value_of_weak_type_takes_the_type_of_the_steps():
    total, _ = scan(lambda total, x: (total + x, None))(0, jnp.arange(3.0))
    assert total.dtype == jnp.float32
    assert float(total) == 3.0


# ================================================================= one new object, carried and stacked


@each_mode
@pytest.mark.parametrize("axis", [0, -1])
def test_a_new_object_is_both_the_carry_and_the_history(mode, axis):
    def step(m, x):
        m = dx.Dict(a=m["a"] + x, parts=dx.List([m["parts"][0] * 2]))
        return m, m

    start = dx.Dict(a=jnp.zeros(2), parts=dx.List([jnp.ones(2)]))
    last, history = scan(step, out_axes=(Carry, axis), **mode)(start, jnp.arange(1.0, 4.0))
    arrays = lambda c, x: 2 * ((c[0] + x, c[1] * 2),)  # noqa: E731
    _, (totals, powers) = jax.lax.scan(arrays, (jnp.zeros(2), jnp.ones(2)), jnp.arange(1.0, 4.0))
    assert last["a"].tolist() == [6.0, 6.0]
    assert last["parts"][0].tolist() == [8.0, 8.0]
    assert jnp.moveaxis(history["a"], axis, 0).tolist() == totals.tolist()
    assert jnp.moveaxis(history["parts"][0], axis, 0).tolist() == powers.tolist()
    assert start["a"].tolist() == [0.0, 0.0]


def test_a_new_variable_is_both_the_carry_and_the_history():
    def step(total, x):
        total = dx.Param(total.value + x, tag="sum")
        return total, {"first": total, "again": total}

    last, history = scan(step)(dx.Param(jnp.zeros(()), tag="sum"), jnp.arange(1.0, 4.0))
    assert (float(last.value), history["first"].value.tolist()) == (6.0, [1.0, 3.0, 6.0])
    assert type(history["first"]) is dx.Param
    assert history["first"].get_metadata()["tag"] == "sum"
    assert history["first"] is history["again"] is not last


def test_the_history_of_a_new_variable_has_the_name_of_the_axis():
    def step(total, x):
        total = dx.Param(total.value + x, sharding=("model",))
        return total, total

    start = dx.Param(jnp.zeros(2), sharding=("model",))
    last, history = scan(step, transform_metadata={PARTITION_NAME: "layers"})(start, jnp.ones((3, 2)))
    assert last.out_sharding == ("model",)
    assert history.out_sharding == ("layers", "model")
    assert history.value.tolist() == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]


def test_a_new_ref_is_not_both_the_carry_and_the_history():
    def step(total, x):
        total = dx.Variable(jax.new_ref(total.value[...] + x))
        return total, total

    with pytest.raises(TransformError, match=r"the result\[1\]: Inconsistent aliasing"):
        scan(step)(dx.Variable(jax.new_ref(jnp.zeros(()))), XS)


def test_the_history_shares_parts_of_the_carry():
    """What it shares of new objects is its own; objects of the arguments have one value, and so one label."""

    def step(carry, x):
        part = dx.Dict(total=carry["part"]["total"] + x)
        return {"part": part}, (dx.Dict(part=part, x=x), carry["part"]["total"])

    last, (history, before) = scan(step)({"part": dx.Dict(total=jnp.zeros(()))}, jnp.arange(1.0, 4.0))
    assert history.part is not last["part"]
    assert (float(last["part"].total), history.part.total.tolist()) == (6.0, [1.0, 3.0, 6.0])
    assert before.tolist() == [0.0, 1.0, 3.0]


@pytest.mark.parametrize(
    "step",
    [
        lambda m, x: (m, m),
        lambda m, x: (m, m.scale),
        lambda m, x: (m, dx.Dict(scale=m.scale)),
        lambda m, x: (n := dx.Dict(scale=m.scale), n),
    ],
    ids=["the model", "a Variable", "in a new one", "in the carry"],
)
def test_an_object_of_the_arguments_has_one_label(step):
    start = dx.Dict(scale=dx.Param(jnp.ones(2)))
    with pytest.raises(TransformError, match=r"the result\[1\].*: Inconsistent aliasing.*two labels"):
        scan(step)(start, XS)
    assert start.scale.value.tolist() == [1.0, 1.0]


def test_a_new_object_has_one_axis_in_the_history():
    step = lambda m, x: (n := dx.Dict(a=m["a"] + x), (n, n))  # noqa: E731
    with pytest.raises(TransformError, match=r"the result\[1\]\[1\].*: Inconsistent aliasing.*two labels"):
        scan(step, out_axes=(Carry, (0, 1)))(dx.Dict(a=jnp.zeros(2)), XS)


# ================================================================= axes


@each_mode
def test_each_step_has_its_own_instance(mode):
    blocks = stack()

    def step(x, block):
        block.count(by=x)
        return x + 1

    assert int(scan(step, out_axes=Carry, **mode)(5, blocks)) == 8
    assert blocks.seen.value.tolist() == [5, 6, 7]


def test_other_axes():
    model = Open()
    model.kernel, model.bias = dx.Param(jnp.arange(6.0).reshape(2, 3)), dx.BatchStat(jnp.arange(3.0))

    def step(model):
        model.kernel.value = model.kernel.value * 2
        model.bias.value = model.bias.value + 1
        return model.kernel.value

    axes = StateAxes({dx.Param: -1, ...: 0})
    output = scan(step, in_axes=(axes,), out_axes=1)(model)
    assert output.tolist() == model.kernel.value.tolist() == [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]
    assert model.bias.value.tolist() == [1.0, 2.0, 3.0]


def test_new_variables_are_stacked():
    blocks = stack()

    def step(x, block):
        block.sow(dx.Intermediate, "h", x)
        block.cache = dx.Cache(x * 2)
        return block(x)

    scan(step, out_axes=Carry)(jnp.ones(2), blocks)
    assert blocks.cache.value.shape == blocks.h.value[0].shape == (3, 2)
    np.testing.assert_allclose(blocks.cache.value, blocks.h.value[0] * 2)


def test_new_variables_under_a_filter_with_an_axis():
    model = Block(2.0)

    def step(x, block):
        block.count()
        block.sow(dx.Intermediate, "h", x)
        return x * block.scale

    axes = StateAxes({dx.Intermediate: 0, dx.Param: None, ...: Carry})
    scan(step, in_axes=(Carry, axes), out_axes=Carry, length=3)(jnp.ones(2), model)
    assert model.h.value[0][:, 0].tolist() == [1.0, 2.0, 4.0]
    assert int(model.seen.value) == 3


def test_variables_that_are_removed():
    blocks = stack()
    blocks.cache = dx.Cache(jnp.zeros(3))
    scan(lambda block: dx.pop(block, dx.Cache) and None, in_axes=(0,), out_axes=0)(blocks)
    assert not hasattr(blocks, "cache")


def test_models_that_are_made_in_steps_come_out_stacked():
    made = scan(lambda total, x: (total + x, Block(x)))(0.0, jnp.arange(3.0))[1]
    assert isinstance(made, Block)
    assert made.scale.value[:, 0].tolist() == [0.0, 1.0, 2.0]


def test_models_that_are_given_may_be_returned():
    blocks = stack()
    assert scan(lambda block: (block.count(), block)[1], in_axes=(0,), out_axes=0)(blocks) is blocks
    assert blocks.seen.value.tolist() == [1, 1, 1]


def test_what_all_steps_share_is_read():
    model = Block(2.0)
    untouched = model.scale.value
    output = scan(lambda model, x: model.scale * x, in_axes=(None, 0), out_axes=0)(model, jnp.arange(3.0))
    assert output[:, 0].tolist() == [0.0, 2.0, 4.0]
    assert model.scale.value is untouched


def test_a_graph_of_axes():
    blocks = stack()
    axes = prefix(blocks, {dx.Param: 0, ...: 0})
    assert scan(lambda block: block.scale.value, in_axes=(axes,), out_axes=0)(blocks).shape == (3, 2)


def test_arguments_by_name():
    run = scan(lambda total, x: (total + x, total))
    assert run(0, x=jnp.arange(3))[1].tolist() == [0, 0, 1]
    assert run(total=0, x=jnp.arange(3))[1].tolist() == [0, 0, 1]


def test_no_steps():
    model = Block()

    def step(model, x):
        model.count()
        return model, x

    returned, output = scan(step)(model, jnp.zeros((0, 2)))
    assert returned is model
    assert output.shape == (0, 2)
    assert int(model.seen.value) == 0


def test_streams_of_random_numbers():
    rngs, same = dx.Rngs(0), dx.Rngs(0)
    drawn = scan(lambda rngs, x: (rngs, rngs.uniform()))(rngs, jnp.zeros(3))[1]
    np.testing.assert_allclose(drawn, [same.uniform() for _ in range(3)])
    assert rngs.uniform() == same.uniform()


def test_a_stream_for_each_step():
    rngs = dx.Rngs(0)
    run = scan(lambda rngs: rngs.uniform(), in_axes=(0,), out_axes=0)
    with dx.split_rngs(rngs, splits=3):
        drawn = run(rngs)
    assert len(set(drawn.tolist())) == 3


def test_names_of_axes():
    @scan(in_axes=(Carry, 0), out_axes=Carry, transform_metadata={PARTITION_NAME: "layers"})
    def run(x, block):
        seen.append(block.kernel.out_sharding)
        block.new = dx.Cache(x, sharding=("out",))
        return x * block.kernel

    seen = []
    model = Open()
    model.kernel = dx.Param(jnp.ones((3, 2)), sharding=("layers", "out"))
    run(jnp.ones(2), model)
    assert seen == [("out",)]
    assert model.kernel.out_sharding == model.new.out_sharding == ("layers", "out")


# ================================================================= captures


@each_mode
def test_what_is_captured_and_set_goes_from_step_to_step(mode):
    counter, shared = Block(), Block(2.0)

    @scan(out_axes=(Carry, 0), **mode)
    def run(x, y):
        counter.count()
        return x * shared.scale, counter.seen.value + y

    for function in (run, dx.jit(run, **mode)):
        counter.seen.value = jnp.array(0)
        shared.scale.value = jnp.full((2,), 2.0)
        x, seen = function(jnp.ones(2), jnp.zeros(3, jnp.int32))
        assert x.tolist() == [8.0, 8.0]
        assert seen.tolist() == [1, 2, 3]
        assert int(counter.seen.value) == 3
        shared.scale.value = jnp.full((2,), 1.0)
        assert function(jnp.ones(2), jnp.zeros(3, jnp.int32))[0].tolist() == [1.0, 1.0]
        assert int(counter.seen.value) == 6


@each_mode
def test_captured_and_given_is_one_thing(mode):
    blocks = stack()

    @scan(out_axes=Carry, **mode)
    def run(x, block):
        block.count()
        return x + blocks.seen.value

    assert int(run(0, blocks)) == 3
    assert blocks.seen.value.tolist() == [1, 1, 1]


def test_what_is_captured_and_only_read_is_no_part_of_the_carry():
    shared = Block(2.0)
    run = scan(lambda x: x * shared.scale, in_axes=Carry, out_axes=Carry, length=3)
    (loop,) = scans_in(jax.make_jaxpr(run)(jnp.ones(2)).jaxpr)
    assert (len(loop.invars), len(loop.outvars)) == (2, 1)  # the scale and x, but neither the count nor the other array


def scans_in(jaxpr):
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "scan":
            yield eqn
        elif "jaxpr" in eqn.params:
            yield from scans_in(eqn.params["jaxpr"].jaxpr)


def test_a_value_that_a_function_closes_over_may_change():
    factor = jnp.array(2.0)

    @scan(in_axes=Carry, out_axes=Carry, length=2)
    def run(x):
        return x * factor

    assert float(run(1.0)) == 4.0
    factor = jnp.array(3.0)
    assert float(run(1.0)) == 9.0


def test_a_traced_value_that_a_function_closes_over():
    factor = jnp.array(2.0)

    @scan(in_axes=Carry, out_axes=Carry, length=2)
    def run(x):
        return x * factor

    def loss(value):
        nonlocal factor
        before, factor = factor, value
        try:
            return run(1.0)
        finally:
            factor = before

    assert float(run(1.0)) == 4.0
    with jax.checking_leaks():
        for _ in range(2):
            assert float(jax.jit(jax.grad(loss))(3.0)) == 6.0
    assert float(jax.grad(loss)(3.0)) == 6.0
    assert float(run(1.0)) == 4.0


# ================================================================= inside of other transforms, and as a method


class Stack(dx.Module):
    def __init__(self):
        self.blocks = stack()
        self.total = dx.BatchStat(jnp.zeros(2))

    @scan(in_axes=(None, Carry, 0), out_axes=Carry)
    def run(self, x, block):
        block.count()
        return block(x) + 0 * self.total

    def __call__(self, x):
        return scan(lambda x, block: block(x), out_axes=Carry)(x, self.blocks)


def test_methods():
    model = Stack()
    np.testing.assert_allclose(model.run(jnp.ones(2), stack()), model(jnp.ones(2)))
    other = stack()
    Stack.run(model, jnp.ones(2), other)
    assert other.seen.value.tolist() == [1, 1, 1]
    assert repr(Stack.run).startswith("scan(<function Stack.run")
    assert Stack.run.__name__ == "run"


def test_under_vmap_and_jit():
    model = Stack()
    x = jnp.arange(8.0).reshape(4, 2)
    expected = jnp.stack([model(row) for row in x])
    np.testing.assert_allclose(vmap(model)(x), expected, rtol=1e-6)
    np.testing.assert_allclose(dx.jit(vmap(model))(x), expected, rtol=1e-6)


def test_scans_in_scans():
    blocks = stack()
    inner = scan(lambda x, block: (block.count(), block(x))[1], out_axes=Carry)
    outer = scan(lambda x: inner(x, blocks), in_axes=Carry, out_axes=Carry, length=4)
    x = outer(jnp.ones(2))
    assert blocks.seen.value.tolist() == [4, 4, 4]
    expected = jnp.ones(2)
    for k in range(12):
        expected = jnp.tanh(expected * (k % 3 + 1.0))
    np.testing.assert_allclose(x, expected, rtol=1e-6)


def test_a_function_is_traced_once_for_each_structure_and_shape():
    @counted
    def step(x, block):
        block.count()
        return block(x), None

    run = scan(step)
    blocks = stack()
    for _ in range(3):
        run(jnp.ones(2), blocks)
    assert step.traces == 1
    run(jnp.ones(2), stack())
    assert step.traces == 1
    run(jnp.ones(2), stack(4))
    assert step.traces == 2
    blocks.mode = "train"
    run(jnp.ones(2), blocks)
    assert step.traces == 3
    assert blocks.seen.value.tolist() == [4, 4, 4]


def test_nothing_leaks():
    step = counted(lambda x, block: (block.count(), block(x))[1])
    run = scan(step, out_axes=Carry)
    model = Stack()
    with jax.checking_leaks():
        for _ in range(2):
            dx.jit(lambda blocks, x: dx.grad(lambda b: run(x, b).sum())(blocks))(stack(), jnp.ones(2))
        dx.jit(lambda model, x: model(x))(model, jnp.ones(2))
    assert run(jnp.ones(2), stack()).shape == (2,)


def test_without_compilation():
    blocks = stack()
    with jax.disable_jit():
        scan(lambda x, block: (block.count(), block(x))[1], out_axes=Carry)(jnp.ones(2), blocks)
    assert blocks.seen.value.tolist() == [1, 1, 1]


# ================================================================= errors


def grow(model, x):
    model.new = dx.Cache(x)
    return model, x


def grow_only(model, x):
    model.new = dx.Cache(x)
    return x


XS = jnp.zeros(3)


def forget(model, x):
    del model.seen
    return x


def having(model, **attributes):
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


CASES = [
    (lambda m: scan(grow)(m, XS), r"scan, model\.new: the function changes the structure or type of this"),
    (
        lambda m: scan(grow_only, in_axes=(None, 0), out_axes=0)(m, XS),
        "the function changes the structure or type of this",
    ),
    (
        lambda m: scan(lambda m, x: (setattr(m, "steps", 1), (m, x))[1])(having(dx.clone(m), steps=0), XS),
        r"(?s)scan, m\.steps: the function changes.*expected: 0.*got: +1.*m\.steps = dx\.Variable\(jnp\.array\(0\)\)",
    ),
    (
        lambda m: scan(lambda x: grow(m, x)[1], in_axes=0, out_axes=0)(XS),
        r"scan, captured m\.new: the function",
    ),
    (
        lambda m: scan(grow_only, in_axes=(StateAxes({...: Carry}), 0), out_axes=0)(m, XS),
        r"scan, model\.new: the function changes the structure or type of this",
    ),
    (
        lambda m: scan(grow_only, in_axes=(StateAxes({dx.Cache: None, ...: Carry}), 0), out_axes=0)(m, XS),
        r"scan, model\.new: the function creates this Cache, whose axis is None",
    ),
    (
        lambda m: scan(forget, in_axes=(StateAxes({...: Carry}), 0), out_axes=0)(m, XS),
        r"scan, model\.seen: the function changes the structure or type of this",
    ),
    (lambda m: scan(lambda m, x: (Open(), x))(m, XS), "changes the structure or type of this"),
    (lambda m: scan(lambda c, x: (c + 1, x), out_axes=0), "Carry labels one argument and one result"),
    (lambda m: scan(lambda c, x: ((c, c), x))(0, XS), r"scan, c.*: the function changes the structure or type of this"),
    (lambda m: scan(lambda c, x: (m, x))(0, XS), "the function changes the structure or type of this"),
    (
        lambda m: scan(lambda c, x: (c * jnp.ones(2), x))(jnp.ones(()), XS),
        r"scan, c: the function changes the structure or type of this",
    ),
    (lambda m: scan(lambda x: x, in_axes=0, out_axes=None)(XS), "(?s)a result of each step needs an axis.*got: +None"),
    (lambda m: scan(Block, in_axes=0, out_axes=StateAxes({...: Carry}))(XS), "changes the structure or type"),
    (
        lambda m: scan(lambda x: x, in_axes=0, out_axes=2)(XS),
        r"(?s)a result: this cannot have the axis 2.*from -1 to 0",
    ),
    (lambda m: scan(lambda x, y: x, in_axes=0, out_axes=0)(XS, jnp.ones(4)), "scan, y: this has another size along"),
    (lambda m: scan(lambda x, y: x, in_axes=0, out_axes=0)(XS, jnp.ones(4)), "expected: 3, as scan, x"),
    (lambda m: scan(lambda x: x, in_axes=0, out_axes=0, length=5)(XS), "expected: 5, as length"),
    (
        scan(lambda m: m.scale, in_axes=0, out_axes=0),
        r"scan, m\.seen: this cannot have the axis 0",
    ),
    (lambda m: scan(lambda *xs: xs[0], in_axes=0, out_axes=0)(XS, 1.0), r"xs\[1\]: this cannot have the axis 0"),
    (lambda m: scan(lambda x: x, in_axes=Carry, out_axes=Carry)(0), "no argument has an axis, and there is no length"),
    (lambda m: scan(3), "scan, f: this is not a function"),
    (lambda m: scan(lambda x: x, in_axes="0"), "in_axes: this is not a label of leaves"),
    (lambda m: scan(lambda x: x, in_axes=(0, 0), out_axes=0)(XS), "the prefix does not fit the tree"),
    (lambda m: scan(lambda x: x, transform_metadata={"name": 1}), "this does not name an axis"),
    (
        lambda m: scan(lambda a, b: a.scale, in_axes=(0, None), out_axes=0)((b := stack()), b),
        "one Variable has two labels here",
    ),
]


@pytest.mark.parametrize(("run", "text"), CASES)
def test_errors(run, text):
    model = Block()
    before, names = values_of(model), set(vars(model))
    with pytest.raises(TransformError, match=text):
        run(model)
    jax.tree.map(np.testing.assert_array_equal, values_of(model), before)
    assert set(vars(model)) == names


def test_trees_share_nothing_where_the_mode_says_so():
    model = Block()
    with pytest.raises(GraphError, match="so the argument is not a tree"):
        scan(lambda pair, x: (pair, x), graph=False)((model, model), XS)
    with pytest.raises(TransformError, match="changes of structure do not come back"):
        scan(grow, graph_updates=False)(model, XS)


def test_a_step_that_raises_changes_nothing():
    blocks = stack()

    def fail(x, block):
        block.count()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        scan(fail)(jnp.ones(2), blocks)
    assert blocks.seen.value.tolist() == [0, 0, 0]
