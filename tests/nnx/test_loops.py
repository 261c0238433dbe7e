"""`scan` and the other loops where programs of NNX rely on them."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx

MODES = [{"graph": False}, {"graph_updates": False}, {"graph_updates": True}]
FUNCTIONAL = MODES[:2]
each_mode = pytest.mark.parametrize("mode", MODES, ids=["tree", "no-updates", "updates"])
functional = pytest.mark.parametrize("mode", FUNCTIONAL, ids=["tree", "no-updates"])


def assert_agree(program, mode):
    """Checks that a program has the same result with declax and with the peer."""
    peer = pytest.importorskip("flax.nnx")
    jax.tree.map(np.testing.assert_allclose, program(dx, mode), program(peer, mode))


@pytest.fixture(params=["declax", "flax.nnx"])
def nnx(request):
    return pytest.importorskip(request.param)


def cell_of(nnx):
    class Cell(nnx.Module):
        def __init__(self):
            self.count = nnx.BatchStat(jnp.array(0))
            self.drop = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

        def __call__(self, h, x):
            self.count[...] += 1
            return h + x, self.drop(x)

    return Cell()


# ================================================================= scan: axis None


def count_steps(nnx, mode):
    cell = cell_of(nnx)

    @nnx.scan(in_axes=(None, nnx.Carry, 0), **mode)
    def unroll(cell, h, x):
        cell.count[...] += 1
        return h + x, cell.count * x

    return *unroll(cell, 0.0, jnp.arange(4.0)), cell.count[...]


@functional
def test_a_variable_with_axis_none_goes_from_step_to_step(mode):
    assert_agree(count_steps, mode)


def test_a_variable_with_axis_none_is_not_lost_with_graph_updates():
    last, outputs, count = count_steps(dx, {})
    assert float(last) == 6
    assert outputs.tolist() == [0, 2, 6, 12]
    assert int(count) == 4


def test_axis_none_by_filter_leaves_the_other_leaves_as_they_are():
    model = dx.Dict(mean=dx.BatchStat(jnp.array(1.0)), scale=dx.Param(jnp.arange(3.0)), rest=jnp.array(2.0))

    @dx.scan(in_axes=(dx.StateAxes({dx.Param: 0, ...: None}), 0), out_axes=0)
    def step(model, x):
        model.mean.value = model.mean.value * model.rest
        model.scale.value = model.scale.value + model.mean.value
        return model.mean.value * x

    assert step(model, jnp.ones(3)).tolist() == [2, 4, 8]
    assert (float(model.mean.value), model.scale.value.tolist(), float(model.rest)) == (8, [2, 5, 10], 2)


def draw(nnx, mode):
    rngs = nnx.Rngs(dropout=0)
    step = nnx.scan(lambda rngs, x: rngs.dropout.uniform() * x, in_axes=(None, 0), out_axes=0, **mode)
    return step(rngs, jnp.ones(3))


@each_mode
def test_a_stream_with_axis_none_draws_as_in_the_peer(mode):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert_agree(draw, mode)


def test_steps_that_draw_the_same_numbers_are_warned_of():
    rngs = dx.Rngs(0)
    step = dx.scan(lambda rngs, x: x * rngs.uniform(), in_axes=(None, 0), out_axes=0)
    with pytest.warns(UserWarning, match=r"scan: each step draws the same random numbers.*rngs\.default\.count"):
        drawn = step(rngs, jnp.ones(3))
    assert len(set(drawn.tolist())) == 1
    assert int(rngs.default.count.value) == 1
    assert step(rngs, jnp.ones(3))[0] != drawn[0]


def recurrent_dropout(nnx, mode):
    cell = cell_of(nnx)
    many = nnx.with_rngs(cell, broadcast=4, graph=False)
    axes = nnx.prefix(many, {"default": 0, ...: None}, graph=False)

    @nnx.scan(in_axes=(axes, nnx.Carry, 0), graph=False)
    def unroll(cell, h, x):
        return cell(h, x)

    return *unroll(many, 0.0, jnp.ones(4)), cell.count[...]


def test_recurrent_dropout_with_broadcast_streams():
    assert_agree(recurrent_dropout, {})


def captured_steps(nnx, mode):
    class Unrolled(nnx.Module):
        def __init__(self):
            self.linear = nnx.Linear(2, 2, rngs=nnx.Rngs(0))

        def step(self, x):
            self.sow(nnx.Intermediate, "x", x)
            return self.linear(x)

        def __call__(self, x):
            axes = nnx.prefix(self, {nnx.Intermediate: 0, ...: None}, graph=mode.get("graph"))
            scan = nnx.scan(Unrolled.step, in_axes=(axes, nnx.Carry), out_axes=nnx.Carry, length=3, **mode)
            return scan(self, x)

    out, seen = nnx.capture(Unrolled(), nnx.Intermediate)(jnp.ones(2))
    return out, seen["x"][0]


@functional
def test_sown_values_have_the_axis_of_their_filter(mode):
    assert_agree(captured_steps, mode)


# ================================================================= scan: what is refused, and when


@each_mode
@pytest.mark.parametrize(
    "axes",
    [
        {"out_axes": (dx.Carry, None)},
        {"out_axes": (dx.Carry, dx.StateAxes({...: None}))},
        {"in_axes": 0, "out_axes": None},
        {"in_axes": 0, "out_axes": (dx.Carry, 0)},
    ],
)
def test_axes_that_no_call_can_have_are_refused_at_once(mode, axes):
    with pytest.raises(ValueError, match=r"out_axes: (Cannot broadcast output|Carry labels one|a selection by filter)"):
        dx.scan(lambda carry, x: (carry, x), **axes, **mode)


def test_a_function_that_counts_its_traces_is_traced_once(nnx):
    traces = 0

    @nnx.scan
    def step(carry, x):
        nonlocal traces
        traces += 1
        return carry + 1, x

    for _ in range(3):
        step(jnp.array(0), jnp.arange(3))
    assert traces == 1


# ================================================================= axes by filter, and names of axes


def test_state_axes_are_a_mapping(nnx):
    axes = nnx.StateAxes({nnx.Param: 0, "dropout": nnx.Carry, ...: None})
    assert dict(axes) == {nnx.Param: 0, "dropout": nnx.Carry, ...: None}
    assert axes["dropout"] is nnx.Carry
    assert len(axes) == 3
    assert axes == nnx.StateAxes(axes)
    assert axes.map_prefix(("a", "b"), nnx.Param(1.0)) == 0
    assert axes.map_prefix(("a", "b"), nnx.BatchStat(1.0)) is None


def test_the_axis_of_a_leaf_from_a_state_of_axes(nnx):
    state = nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    state["kernel"], state["bias"] = 0, 1
    axes = nnx.StateAxes(state)
    assert [axes.map_prefix((name,), None) for name in ("kernel", "bias")] == [0, 1]
    layer = nnx.vmap(lambda: nnx.Linear(2, 3, rngs=nnx.Rngs(0)), out_axes=axes, axis_size=5)()
    assert (layer.kernel.shape, layer.bias.shape) == ((5, 2, 3), (3, 5))
    with pytest.raises(ValueError, match=r"no filter matches this leaf|No axis found"):
        axes.map_prefix(("other",), None)


def test_a_filter_that_state_axes_do_not_have():
    axes = dx.StateAxes({dx.Param: 0})
    assert dx.BatchStat not in axes
    with pytest.raises(KeyError, match=r"StateAxes: there is no such filter(?s:.)*expected: Param"):
        axes[dx.BatchStat]


def test_names_of_axes_around_a_carry(nnx):
    with jax.set_mesh(jax.make_mesh((1,), ("layers",), axis_types=(jax.sharding.AxisType.Auto,))):
        model = nnx.Dict(kernel=nnx.Param(jnp.arange(1.0, 4.0), out_sharding=("layers",)), count=nnx.BatchStat(0))
        axes = nnx.prefix(model, {nnx.Param: 0, ...: None}, graph=False)
        seen = []

        @nnx.scan(in_axes=(axes, nnx.Carry), out_axes=nnx.Carry, graph=False)
        @nnx.transform_metadata(in_axes=(axes, nnx.Carry), out_axes=nnx.Carry, partition="layers", graph=False)
        def run(model, x):
            seen.append(model.kernel.out_sharding)
            model.count[...] += 1
            return model.kernel * x

        assert float(run(model, jnp.array(2.0))) == 12
        assert set(seen) == {()}
        assert model.kernel.out_sharding == ("layers",)
        assert int(model.count[...]) == 3


def test_other_metadata_has_an_entry_for_the_mapped_axis(nnx):
    names = {nnx.PARTITION_NAME: "layers", "nickname": "nick", "note": "unused"}
    seen = []

    @nnx.vmap(transform_metadata=names)
    def make(x):
        return nnx.Param(x * jnp.ones(3), nickname=("wide",), note="a text")

    @nnx.vmap(transform_metadata=names)
    def look(param):
        seen.append((param.nickname, param.note))
        return param[...]

    with jax.set_mesh(jax.make_mesh((1,), ("layers",), axis_types=(jax.sharding.AxisType.Auto,))):
        param = make(jnp.arange(2.0))
        assert look(param).shape == (2, 3)
    assert set(seen) == {(("wide",), "a text")}
    assert (param.nickname, param.note) == (("nick", "wide"), "a text")


# ================================================================= what a loop may return in place of its carry


def loop_of(nnx, name, step, carry, mode):
    """The carry after three steps; the step takes a carry, and returns the next."""
    if name == "scan":
        return nnx.scan(lambda carry, x: (step(carry), x), **mode)(carry, jnp.arange(3))[0]
    if name == "fori_loop":
        return nnx.fori_loop(0, 3, lambda i, carry: step(carry), carry, **mode)
    if name == "python":
        for _ in range(3):
            carry = step(carry)
        return carry
    return nnx.while_loop(lambda c: c[1] < 3, lambda c: (step(c[0]), c[1] + 1), (carry, 0), **mode)[0]


def counter_of(nnx, value):
    return nnx.Dict(count=nnx.BatchStat(value))


def outcome_of(nnx, name, make, step, mode):
    """The values of the object that a loop was given and of the one that it returns, or None for an error."""
    carry = make(nnx)
    try:
        last = loop_of(nnx, name, lambda carry: step(nnx, carry), carry, mode)
    except ValueError:
        return None
    return [int(leaf) for leaf in jax.tree.leaves((carry, last))]


def new_model(nnx, model):
    return counter_of(nnx, model.count[...] + 1)


def same_variable_in_a_new_model(nnx, model):
    made = counter_of(nnx, 0)
    made.count = model.count
    made.count[...] += 1
    return made


def new_variable_in_the_model(nnx, model):
    model.count = nnx.BatchStat(model.count[...] + 1)
    return model


def set_in_place(nnx, model):
    model.count[...] += 1
    return model


STEPS = [new_model, same_variable_in_a_new_model, new_variable_in_the_model, set_in_place]


@each_mode
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", ["scan", "while_loop", "fori_loop"])
def test_loops_accept_the_models_that_the_peer_accepts(name, step, mode):
    peer = pytest.importorskip("flax.nnx")

    def make(nnx):
        return counter_of(nnx, jnp.array(0))

    of_peer = outcome_of(peer, name, make, step, mode)
    if of_peer is None and name == "scan" and step in (new_model, same_variable_in_a_new_model):
        of_peer = outcome_of(dx, "python", make, step, mode)  # the peer's scan accepts no new model
    assert outcome_of(dx, name, make, step, mode) == of_peer


@each_mode
@pytest.mark.parametrize("name", ["scan", "while_loop", "fori_loop"])
def test_loops_accept_the_variables_that_the_peer_accepts(name, mode):
    peer = pytest.importorskip("flax.nnx")

    def make(nnx):
        return nnx.Param(jnp.array(1))

    def step(nnx, variable):
        return nnx.Param(variable[...] + 1)

    of_peer = outcome_of(peer, name, make, step, mode)
    if of_peer is None and name == "scan":
        of_peer = outcome_of(dx, "python", make, step, mode)
    assert outcome_of(dx, name, make, step, mode) == of_peer


class Net(dx.Module):
    def __init__(self, value):
        self.w = dx.Param(jnp.asarray(value))
        self.table = dx.Dict(mean=dx.BatchStat(jnp.asarray(value) * 2))


HISTORIES = {
    "the same": lambda new: new,
    "a part": lambda new: new.table,
    "a value": lambda new: new.w.value,
}


@each_mode
@pytest.mark.parametrize("make", [lambda net, x: Net(net.w.value + x), lambda net, x: add(dx.clone(net), x)])
@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_one_new_model_is_the_carry_and_the_history(history, make, mode):
    def step(net, x):
        new = make(net, x)
        return new, history(new)

    first, xs = Net(1.0), jnp.arange(3.0)
    last, seen = dx.scan(step, **mode)(first, xs)
    wanted, wanted_seen = jax.lax.scan(step, Net(1.0), xs)
    assert jax.tree.structure((last, seen)) == jax.tree.structure((wanted, wanted_seen))
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves((last, seen)), jax.tree.leaves((wanted, wanted_seen)))
    assert float(first.w.value) == 1.0


def add(net, x):
    net.w.value += x
    return net


def test_a_new_model_and_a_part_of_it_share_in_the_history():
    def step(net, x):
        new = Net(net.w.value + x)
        return new, (new, new.table)

    last, (nets, tables) = dx.scan(step)(Net(1.0), jnp.arange(3.0))
    assert (nets.w.value.tolist(), float(last.w.value)) == ([1.0, 2.0, 4.0], 4.0)
    assert nets.table is tables is not last.table


def test_an_object_without_variables_may_be_new_in_each_step():
    @dx.dataclass
    class Point(dx.Pytree):
        x: jax.Array

    for name in ("scan", "while_loop", "fori_loop"):
        first = Point(jnp.array(1.0))
        last = loop_of(dx, name, lambda point: Point(point.x * 2), first, {})
        assert (float(first.x), float(last.x)) == (1, 8)


def test_a_new_variable_is_the_callers_after_the_loop():
    model = counter_of(dx, jnp.array(0))
    model.other = before = model.count

    def step(model, x):
        model.count = model.other = dx.BatchStat(model.count[...] + 1)
        return model, model.other[...]

    last, seen = dx.scan(step)(model, jnp.arange(3))
    assert last is model
    assert model.count is model.other is not before
    assert (int(model.count[...]), int(before[...]), seen.tolist()) == (3, 0, [1, 2, 3])


def test_a_new_variable_that_splits_two_references_is_refused():
    model = counter_of(dx, jnp.array(0))
    model.other = model.count

    def step(model, x):
        model.count = dx.BatchStat(model.count[...] + 1)
        return model, x

    with pytest.raises(ValueError, match="changes the structure or type"):
        dx.scan(step)(model, jnp.arange(3))
    assert model.count is model.other


# ================================================================= streams around a scan


def test_a_decorator_splits_the_streams_that_there_are(nnx):
    """The layers have no stream named params, since their parameters exist."""
    axes = nnx.StateAxes({(nnx.Param, "params"): 0, ...: None})

    class Layers(nnx.Module):
        @nnx.split_rngs(splits=3, only="params")
        @nnx.vmap(in_axes=(axes, axes))
        def __init__(self, rngs):
            self.linear = nnx.Linear(2, 2, rngs=rngs)
            self.drop = nnx.Dropout(0.5, rngs=rngs)

        @nnx.split_rngs(splits=3, only="params")
        @nnx.scan(in_axes=(axes, nnx.Carry))
        def __call__(self, x):
            return self.drop(self.linear(x)), None

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        y, _ = Layers(nnx.Rngs(params=0, dropout=1))(jnp.ones((1, 2)))
    assert y.shape == (1, 2)


def test_a_decorator_without_any_stream(nnx):
    @nnx.split_rngs(splits=2)
    def run(x):
        return x + 1

    assert run(1) == 2


# ================================================================= Variables of the arguments in results


def test_a_slice_of_an_argument_is_returned_with_graph_updates(nnx):
    scale = nnx.Param(jnp.arange(3.0))
    assert nnx.scan(lambda x: x, in_axes=0, out_axes=0)(scale) is scale


@functional
@pytest.mark.parametrize(
    "step",
    [
        lambda nnx, carry, scale, shared: (carry, scale),
        lambda nnx, carry, scale, shared: (carry, nnx.List([scale])),
        lambda nnx, carry, scale, shared: (carry, shared),
    ],
)
def test_variables_of_arguments_are_no_results_without_graph_updates(nnx, step, mode):
    def run(carry, scale, shared):
        return step(nnx, carry, scale, shared)

    scale, shared = nnx.Param(jnp.arange(3.0)), nnx.Param(jnp.array(1.0))
    with pytest.raises(ValueError, match=r"a Variable of its arguments|two labels|Duplicate Param"):
        nnx.scan(run, in_axes=(nnx.Carry, 0, None), **mode)(0.0, scale, shared)
    assert scale.shape == (3,)


def test_bounds_that_are_floats(nnx):
    assert nnx.fori_loop(0.0, 3.0, lambda i, total: total + i, 1.0) == 4.0
    assert nnx.fori_loop(jnp.array(1.0), 3.0, lambda i, total: total + i, 1.0) == 4.0
    with pytest.raises(TypeError):
        nnx.fori_loop(0, 3.0, lambda i, total: total + 1, 1)
