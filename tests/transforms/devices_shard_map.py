"""`shard_map` on four devices; `test_parallel.py` runs this file in a process that has them."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType

import declax as dx
from declax.errors import GraphError, TransformError
from declax.transforms._engine.prefixes import StateSharding
from declax.transforms.labels import prefix
from declax.transforms.sharding import shard_map

P = jax.P
MODES = [{"graph": False}, {"graph": True, "graph_updates": False}, {"graph": True, "graph_updates": True}]
each_mode = pytest.mark.parametrize("mode", MODES, ids=str)


def mesh_of(*names, explicit=False):
    shape = {1: (4,), 2: (2, 2)}[len(names)]
    kind = AxisType.Explicit if explicit else AxisType.Auto
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(names))


MESH = mesh_of("d")


class Model(dx.Module):
    def __init__(self):
        self.w = dx.Param(jnp.arange(4.0))
        self.count = dx.Variable(jnp.array(0.0))

    def __call__(self, x):
        self.count.value = self.count.value + 1
        return self.w.sum() * x


# ================================================================= against raw JAX on explicit state

SPECS = st.sampled_from([P(), P("a"), P(None, "b"), P("b", "a"), P(("a", "b"))])


def local_scale(spec):
    """A function of a shard that depends on where it lies, so that a wrong spec is seen."""
    names = [name for entry in spec for name in ((entry,) if isinstance(entry, str) else entry or ())]
    return sum((jax.lax.axis_index(name).astype(jnp.float32) for name in names), jnp.float32(1))


@settings(max_examples=8)
@given(of_params=SPECS, of_stats=SPECS, of_x=SPECS, seed=st.integers(0, 9), is_jitted=st.booleans())
def test_results_and_state_are_those_of_explicit_state(of_params, of_stats, of_x, seed, is_jitted):
    mesh = mesh_of("a", "b")
    rng = np.random.default_rng(seed)
    model = dx.Module()
    model.w, model.mean = (kind(jnp.asarray(rng.normal(size=(8, 4)), jnp.float32)) for kind in (dx.Param, dx.BatchStat))
    model.again = model.w
    x = jnp.asarray(rng.normal(size=(4, 8)), jnp.float32)

    def compute(model, x):
        model.again.value = model.w * local_scale(of_params)
        model.mean.value = model.mean.value + local_scale(of_stats)
        return x * local_scale(of_x)

    graphdef, params, rest = dx.split(model, dx.Param, ...)

    def explicit(params, rest, x):
        m = dx.merge(graphdef, params, rest)
        y = compute(m, x)
        return y, dx.state(m, dx.Param).leaves[0], dx.state(m, dx.BatchStat).leaves[0]

    specs = {"mesh": mesh, "in_specs": (of_params, of_stats, of_x), "out_specs": (of_x, of_params, of_stats)}
    expected = jax.jit(jax.shard_map(explicit, **specs))(params, rest, x)
    in_specs = (StateSharding({dx.Param: of_params, ...: of_stats}), of_x)
    mapped = shard_map(compute, mesh=mesh, in_specs=in_specs, out_specs=of_x)
    y = (dx.jit(mapped) if is_jitted else mapped)(model, x)
    for got, wanted in zip((y, model.w.value, model.mean.value), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_numbers_are_those_of_the_peer():
    nnx = pytest.importorskip("flax.nnx")

    def of(lib, map_, sharding):
        class MLP(lib.Module):
            def __init__(self, rngs):
                self.up = lib.Linear(2, 8, use_bias=False, rngs=rngs)
                self.down = lib.Linear(8, 3, use_bias=False, rngs=rngs)
                self.calls = lib.Variable(jnp.array(0))

            def __call__(self, x):
                self.calls.value = self.calls.value + 1
                return jax.nn.relu(x @ self.up.kernel[...]) @ self.down.kernel[...]

        def is_of(name):
            return lambda path, value: name in path

        model = MLP(lib.Rngs(0))
        specs = sharding({is_of("up"): P(None, "d"), is_of("down"): P("d", None), ...: P()})

        @map_(mesh=MESH, in_specs=(specs, P(None)), out_specs=P(None))
        def forward(model, x):
            return jax.lax.psum(model(x), "d")

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the peer warns of its own `.value`
            return forward(model, jnp.ones((5, 2))), model.calls[...], model(jnp.ones((5, 2)))

    ours, peers = of(dx, shard_map, StateSharding), of(nnx, nnx.shard_map, nnx.StateSharding)
    for a, b in zip(ours, peers, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    np.testing.assert_allclose(ours[0], ours[2], rtol=1e-5)


# ================================================================= specs


def test_specs_by_filter_by_path_and_as_a_state():
    model, x = Model(), jnp.arange(8.0)
    by_path = dx.State({"w": P("d"), "count": P()})
    for spec in (
        StateSharding({dx.Param: P("d"), ...: None}),
        StateSharding(by_path),
        by_path,
        prefix(model, {dx.Param: P("d"), ...: None}),
    ):
        seen = []

        @shard_map(mesh=MESH, in_specs=(spec, P("d")), out_specs=P("d"))
        def step(model, x, seen=seen):
            seen.append((model.w.shape, x.shape))
            return jax.lax.psum(model.w.sum(), "d") * x

        assert step(model, x).tolist() == (6 * x).tolist()
        assert seen == [((1,), (2,))]


def test_the_mesh_of_the_context():
    with jax.set_mesh(MESH):
        assert shard_map(lambda x: x * 2, in_specs=P("d"), out_specs=P("d"))(jnp.ones(4)).tolist() == [2] * 4
    with pytest.raises(TransformError, match=r"x: there is no mesh for P\('d',\)"):
        shard_map(lambda x: x, in_specs=P("d"), out_specs=P("d"))(jnp.ones(4))


def test_specs_may_be_left_out_where_types_say_them():
    with jax.set_mesh(mesh_of("d", explicit=True)):
        model = Model()
        model.w.value = jax.device_put(model.w.value, P("d"))
        x = jax.device_put(jnp.ones(8), P("d"))
        seen = []

        @shard_map(out_specs=P("d"))
        def step(model, x):
            seen.append((model.w.shape, model.count.shape, x.shape))
            model.w.value = model.w.value + 1
            return x

        assert step(model, x).shape == (8,)
        assert seen == [((1,), (), (2,))]
        assert model.w.value.tolist() == [1, 2, 3, 4]
    with pytest.raises(TransformError, match="the types of the arguments have none"):
        shard_map(lambda x: x, mesh=MESH, out_specs=P("d"))(jnp.ones(4))


def test_some_axes_of_a_mesh():
    mesh = mesh_of("a", "b")
    double = shard_map(lambda x: x * 2, mesh=mesh, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})
    assert dx.jit(double)(jnp.ones(4)).tolist() == [2] * 4


@pytest.mark.parametrize(("names", "expected"), [(set(), ("a", "b")), ({"a"}, ("a",)), ({"a", "b"}, ("a", "b"))])
def test_the_function_sees_the_axes_that_are_named(names, expected):
    seen = []

    def double(x):
        seen.append(jax.sharding.get_abstract_mesh().manual_axes)
        return x * 2

    mapped = shard_map(double, mesh=mesh_of("a", "b"), in_specs=P("a"), out_specs=P("a"), axis_names=names)
    assert mapped(jnp.ones(4)).tolist() == [2] * 4
    assert set(seen) == {expected}


def test_arguments_by_name():
    mapped = shard_map(lambda model, *, x: model.w * x, mesh=MESH, in_specs=(P("d"),), out_specs=P("d"))
    model = dx.Module()
    model.w = dx.Param(jnp.arange(4.0))
    assert mapped(model=model, x=2.0).tolist() == [0, 2, 4, 6]


# ================================================================= state


def test_what_is_set_and_made_comes_back():
    model = Model()

    @shard_map(mesh=MESH, in_specs=(StateSharding({dx.Param: P("d"), ...: None}), P("d")), out_specs=P("d"))
    def step(model, x):
        model.w.value = model.w.value + jax.lax.axis_index("d").astype(jnp.float32)
        model.count.value = jax.lax.pmean(x.sum(), "d")
        model.new = dx.Param(model.w.value * 2)
        return dx.Param(x)

    made = step(model, jnp.arange(8.0))
    assert isinstance(made, dx.Param)
    assert made.value.tolist() == list(range(8))
    assert model.w.value.tolist() == [0, 2, 4, 6]
    assert model.new.value.tolist() == [0, 4, 8, 12]
    assert float(model.count.value) == 7


def test_what_varies_is_named():
    model = Model()

    @shard_map(mesh=MESH, in_specs=(None, P("d")), out_specs=P("d"))
    def step(model, x):
        model.count.value = x.sum()
        return x

    for function in (step, dx.jit(step)):
        with pytest.raises(TransformError, match="its value varies along 'd', which its spec does not name") as caught:
            function(model, jnp.ones(4))
        assert str(caught.value).startswith("model.count: ")
        assert float(model.count.value) == 0
    with pytest.raises(TransformError, match="the result: its value varies along 'd'"):
        shard_map(lambda x: x, mesh=MESH, in_specs=P("d"), out_specs=P())(jnp.ones(4))
    unchecked = shard_map(lambda x: x, mesh=MESH, in_specs=P("d"), out_specs=P(), check_vma=False)
    assert unchecked(jnp.ones(4)).shape == (1,)


# ================================================================= captures


@each_mode
def test_captured_models_are_arguments(mode):
    model = Model()
    step = shard_map(lambda x: model(x) * 1, mesh=MESH, in_specs=P("d"), out_specs=P("d"), **mode)
    assert step(jnp.arange(4.0)).tolist() == [0, 6, 12, 18]
    assert float(model.count.value) == 1
    model.w.value = jnp.ones(4)
    assert step(jnp.arange(4.0)).tolist() == [0, 4, 8, 12]
    assert float(model.count.value) == 2


@each_mode
def test_what_is_captured_and_passed_is_one_thing(mode):
    model = Model()

    specs = dx.prefix(model, {dx.Param: P("d"), ...: P()}, graph=mode.get("graph"))

    @shard_map(mesh=MESH, in_specs=(specs,), out_specs=P("d"), **mode)
    def step(passed):
        assert passed is model
        passed.count.value = passed.count.value + 1
        return model.w * model.count.value

    assert step(model).tolist() == [0, 1, 2, 3]
    assert float(model.count.value) == 1


@each_mode
def test_inside_of_jit(mode):
    model = Model()
    mapped = shard_map(lambda x: model(x) * 1, mesh=MESH, in_specs=P("d"), out_specs=P("d"), **mode)

    @dx.jit(**mode)
    def step(x):
        return mapped(x) + shard_map(lambda y: model(y) * 1, mesh=MESH, in_specs=P("d"), out_specs=P("d"), **mode)(x)

    with jax.checking_leaks():
        assert step(jnp.arange(4.0)).tolist() == [0, 12, 24, 36]
    assert float(model.count.value) == 2
    model.w.value = jnp.zeros(4)
    assert not step(jnp.arange(4.0)).any()


# ================================================================= errors


def test_all_or_nothing():
    model = Model()

    def fail(model):
        model.count.value = model.count.value + 1
        model.new = dx.Param(jnp.ones(1))
        raise ZeroDivisionError

    state = dx.split(model)
    with pytest.raises(ZeroDivisionError):
        shard_map(fail, mesh=MESH, in_specs=P(), out_specs=P())(model)
    assert dx.split(model) == state


def test_modes_are_held():
    model = Model()

    def grow(model):
        model.new = dx.Param(jnp.ones(1))

    options = {"mesh": MESH, "in_specs": None, "out_specs": None}
    with pytest.raises(TransformError, match="changes the structure of its arguments"):
        shard_map(grow, graph_updates=False, **options)(model)
    with pytest.raises(GraphError, match="reached twice"):
        shard_map(lambda a, b: 1, graph=False, **options)(model, model)
    assert not hasattr(model, "new")


def test_specs_that_do_not_fit_are_named():
    model, x = Model(), {"a": [jnp.ones((4, 6))]}

    def of(spec):
        return shard_map(lambda _: 1, mesh=MESH, in_specs=(spec,), out_specs=None)

    cases = [
        (P("data"), x, "_.a[0]: this cannot be split by P('data',)"),
        (P(None, "d"), x, "this cannot be split by P(None, 'd')"),
        (P(None, None, "d"), x, "this cannot be split by P(None, None, 'd')"),
        (P("d"), model, "_.count: this cannot be split by"),
    ]
    for spec, argument, text in cases:
        with pytest.raises(TransformError) as caught:
            of(spec)(argument)
        assert text in str(caught.value)
    with pytest.raises(TransformError, match="the result: this cannot be split by"):
        shard_map(lambda x: x.sum(), mesh=MESH, in_specs=P("d"), out_specs=P("d"))(jnp.ones(4))


def test_wrong_arguments_of_shard_map():
    options = {"mesh": MESH, "out_specs": P()}
    with pytest.raises(TransformError, match="shard_map, f: this is not a function"):
        shard_map(3, in_specs=P(), **options)
    with pytest.raises(TransformError, match="in_specs: this is not a label of leaves"):
        shard_map(lambda x: x, in_specs=jax.NamedSharding(MESH, P("d")), **options)
    with pytest.raises(TransformError, match="in_specs: this is not a label of leaves"):
        shard_map(lambda x: x, in_specs=StateSharding({...: 0}), **options)
    with pytest.raises(TransformError, match="out_specs: this is not a label of leaves"):
        shard_map(lambda x: x, mesh=MESH, in_specs=P(), out_specs="d")
    with pytest.raises(TransformError, match="in_specs: the prefix does not fit the tree"):
        shard_map(lambda x: x, in_specs=(P(), P()), **options)(1)
    model = Model()
    with pytest.raises(TransformError, match="one Variable has two labels here"):
        shard_map(lambda a, b: 1, in_specs=(P("d"), P()), **options)(model.w, model)


# ================================================================= other transforms around it


def test_gradients_through_it():
    layer, x = dx.Linear(2, 8, rngs=dx.Rngs(0)), jnp.arange(8.0).reshape(4, 2)
    specs = StateSharding({dx.PathContains("kernel"): P(None, "d"), ...: P("d")})
    mapped = shard_map(lambda layer, x: layer(x), mesh=MESH, in_specs=(specs, P()), out_specs=P(None, "d"))
    found = dx.grad(lambda layer, x: (mapped(layer, x) ** 2).sum())(layer, x)
    expected = dx.grad(lambda layer, x: (layer(x) ** 2).sum())(layer, x)
    for got, wanted in zip(found.leaves, expected.leaves, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_a_step_of_data_parallel_training():
    model, x = Model(), jnp.arange(8.0)

    @dx.jit
    @shard_map(mesh=MESH, in_specs=(None, P("d")), out_specs=P())
    def step(model, x):
        def loss_of(model):
            return jax.lax.pmean((model(x) ** 2).mean(), "d")

        loss, grads = dx.value_and_grad(loss_of)(model)
        model.w.value = model.w.value - 0.001 * grads["w"].value
        return loss

    w, losses = model.w.value, [float(step(model, x)) for _ in range(3)]

    def explicit(w):
        return ((w.sum() * x) ** 2).mean()

    for loss in losses:
        value, slope = jax.value_and_grad(explicit)(w)
        np.testing.assert_allclose(loss, value, rtol=1e-5)
        w = w - 0.001 * slope
    np.testing.assert_allclose(model.w.value, w, rtol=1e-5)
    assert float(model.count.value) == 3


def test_one_draw_for_all_devices_is_warned_of():
    dropout = dx.Dropout(0.5, rngs=dx.Rngs(0))
    x = jnp.ones((4, 8))
    by_rows = shard_map(lambda d, x: d(x), mesh=MESH, in_specs=(None, P("d")), out_specs=P("d"))
    with pytest.warns(UserWarning, match="shard_map: each instance draws the same random numbers from the stream"):
        rows = by_rows(dropout, x)
    assert (rows == rows[0]).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        by_rows(dropout, x)  # once
        with dx.broadcast_rngs():
            shard_map(lambda d, x: d(x), mesh=MESH, in_specs=(None, P("d")), out_specs=P("d"))(dropout, x)
        shard_map(lambda d, x: d(x), mesh=MESH, in_specs=(None, P()), out_specs=P())(dropout, x)  # nothing is split
        with dx.split_rngs(dropout, splits=4):
            specs = StateSharding({dx.RngState: P("d"), ...: P()})
            own = shard_map(
                dx.vmap(lambda d, x: d(x), in_axes=(dx.StateAxes({dx.RngState: 0, ...: None}), 0)),
                mesh=MESH,
                in_specs=(specs, P("d")),
                out_specs=P("d"),
            )(dropout, x)
    assert len({tuple(row) for row in np.asarray(own).tolist()}) > 1


# ================================================================= gradients of what all devices share


def loss_of(m, x):
    return jnp.mean(m.w * x)


def gradients(loss, **options):
    """The gradient of a model on each device, by its own part of the batch."""
    body = dx.shard_map(
        lambda m, x: jax.lax.pmean(dx.grad(loss)(m, x).w.value, "d") if options else dx.grad(loss)(m, x).w.value,
        mesh=MESH,
        in_specs=(None, P("d")),
        out_specs=None,
        **options,
    )
    return body(Model(), jnp.arange(16.0).reshape(16, 1) * jnp.ones(4))


def test_a_gradient_that_is_a_sum_over_devices_is_warned_of():
    with pytest.warns(UserWarning, match=r"loss_of: the gradient of m\.w is a sum over the axis 'd'"):
        summed = gradients(loss_of)
    right = dx.grad(loss_of)(Model(), jnp.arange(16.0).reshape(16, 1) * jnp.ones(4)).w.value
    np.testing.assert_allclose(summed, 4 * right, rtol=1e-6)


def test_a_loss_that_is_reduced_inside_is_not_warned_of():
    right = dx.grad(loss_of)(Model(), jnp.arange(16.0).reshape(16, 1) * jnp.ones(4)).w.value
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = gradients(lambda m, x: jax.lax.pmean(loss_of(m, x), "d"))
        unchecked = gradients(loss_of, check_vma=False)
    np.testing.assert_allclose(found, right, rtol=1e-6)
    np.testing.assert_allclose(unchecked, right, rtol=1e-6)


def test_gradients_of_split_models_are_not_warned_of():
    """Each device has weights of its own, and so their gradients."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        split = dx.StateSharding({dx.Param: P("d"), ...: None})
        of_shards = dx.shard_map(
            lambda m: dx.grad(lambda m: jnp.sum(m.w**2))(m).w.value, mesh=MESH, in_specs=(split,), out_specs=P("d")
        )
        np.testing.assert_allclose(of_shards(Model()), 2 * jnp.arange(4.0))
