"""`pmap` on four devices; `test_parallel.py` runs this file in a process that has them."""

from __future__ import annotations

import gc
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import declax as dx
from declax.errors import GraphError, TransformError
from declax.transforms._engine.prefixes import StateAxes
from declax.transforms.axis_names import PARTITION_NAME
from declax.transforms.labels import prefix
from declax.transforms.replication import pmap
from declax.transforms.vectorization import vmap

MODES = [{"graph": False}, {"graph": True, "graph_updates": False}, {"graph": True, "graph_updates": True}]
each_mode = pytest.mark.parametrize("mode", MODES, ids=str)


class Model(dx.Module):
    def __init__(self):
        self.scale = dx.Param(jnp.arange(1.0, 5.0))
        self.count = dx.Variable(jnp.array(0.0))

    def __call__(self, x):
        self.count.value = self.count.value + 1
        return self.scale * x


def test_there_are_four_devices():
    assert jax.device_count() == 4


# ================================================================= against raw JAX on explicit state

AXES = st.sampled_from([0, 1, None])


@settings(max_examples=5)
@given(axes=st.tuples(AXES, AXES, AXES), out_axis=st.sampled_from([0, 1]), seed=st.integers(0, 9))
def test_results_and_state_are_those_of_explicit_state(axes, out_axis, seed):
    of_params, of_stats, of_x = axes if any(axis is not None for axis in axes) else (0, None, None)
    rng = np.random.default_rng(seed)

    def make(axis):
        shape = (3, 2) if axis is None else tuple(np.insert((3, 2), axis, 4))
        return jnp.asarray(rng.normal(size=shape).astype(np.float32))

    model = dx.Module()
    model.w, model.part, model.mean = dx.Param(make(of_params)), dx.Module(), dx.BatchStat(make(of_stats))
    model.part.b = dx.Param(make(of_params))
    model.again = model.part
    x = make(of_x)

    def compute(model, x):
        y = model.w * x + model.part.b
        model.again.b.value = model.part.b.value * 2
        if of_stats is not None:
            model.mean.value = model.mean.value + y
        return y

    graphdef, params, rest = dx.split(model, dx.Param, ...)

    def explicit(params, rest, x):
        m = dx.merge(graphdef, params, rest)
        y = compute(m, x)
        return y, dx.state(m, dx.Param), dx.state(m, dx.Not(dx.Param))

    raw = jax.pmap(explicit, in_axes=(of_params, of_stats, of_x), out_axes=(out_axis, of_params or 0, of_stats or 0))
    expected, params_after, rest_after = raw(params, rest, x)
    in_axes = (StateAxes({dx.Param: of_params, ...: of_stats}), of_x)
    mapped = pmap(compute, in_axes=in_axes, out_axes=out_axis)
    if of_params is None and (of_stats, of_x) != (None, None):
        np.testing.assert_allclose(mapped(model, x), expected, rtol=1e-6)
        first = jax.tree.map(lambda leaf: leaf[0], params_after)
        np.testing.assert_allclose(model.part.b.value, first["again"]["b"].value, rtol=1e-6)
    else:
        np.testing.assert_allclose(mapped(model, x), expected, rtol=1e-6)
        np.testing.assert_allclose(model.part.b.value, params_after["again"]["b"].value, rtol=1e-6)
    if of_stats is not None:
        np.testing.assert_allclose(model.mean.value, rest_after["mean"].value, rtol=1e-6)


def test_numbers_are_those_of_the_peer():
    nnx = pytest.importorskip("flax.nnx")
    x = jnp.arange(8.0).reshape(4, 2)

    def of(lib, map_, axes):
        models = map_(lambda rngs: lib.Linear(2, 3, rngs=rngs))(lib.Rngs(0).split(4))
        stats = lib.BatchNorm(3, momentum=0.5, use_running_average=False, rngs=lib.Rngs(0))

        def step(model, norm, x):
            y = norm(model(x[None]))
            for stat in (norm.mean, norm.var):
                stat.value = jax.lax.pmean(stat.value, "i")
            return y

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the peer warns of its own `.value`
            return map_(step, in_axes=(0, None, 0), axis_name="i")(models, stats, x), stats.mean[...]

    for ours, peers in zip(of(dx, pmap, StateAxes), of(nnx, nnx.pmap, nnx.StateAxes), strict=True):
        np.testing.assert_allclose(ours, peers, rtol=1e-5, atol=1e-6)


# ================================================================= state


def test_what_all_share_may_be_set_to_what_is_the_same():
    model = Model()
    seen = []

    @pmap(in_axes=(None, 0), axis_name="i")
    def step(model, x):
        seen.append(1)
        model.count.value = model.count.value + jax.lax.psum(x, "i")
        return model.scale[0] * x

    x = jnp.arange(4.0)
    for calls in (1, 2, 3):
        assert step(model, x).tolist() == x.tolist()
        assert float(model.count.value) == 6 * calls
    assert len(seen) == 4  # twice for JAX, as without declax, and as often to see what differs
    model.scale.value = model.scale.value * 2
    assert step(model, x).tolist() == (2 * x).tolist()
    assert len(seen) == 4


def test_a_shared_variable_that_differs_is_an_error_at_each_call():
    model = Model()

    @pmap(in_axes=(None, 0))
    def step(model, x):
        model.count.value = x
        return x

    for _ in range(2):
        with pytest.raises(TransformError, match="this differs between instances but has no axis"):
            step(model, jnp.arange(4.0))
        assert float(model.count.value) == 0


def test_a_result_without_an_axis_must_be_the_same():
    assert float(pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i", out_axes=None)(jnp.arange(4.0))) == 6
    with pytest.raises(TransformError, match="the result: this differs between instances but has no axis"):
        pmap(lambda x: x, out_axes=None)(jnp.arange(4.0))


def test_collectives_that_vmap_does_not_know():
    groups = [[0, 1], [2, 3]]

    def total(x):
        return jax.lax.psum(x, "i", axis_index_groups=groups)

    assert pmap(total, axis_name="i")(jnp.arange(4.0)).tolist() == [1, 1, 5, 5]
    model = Model()

    @pmap(in_axes=(None, 0), axis_name="i")
    def step(model, x):
        model.count.value = total(x)

    with pytest.raises(NotImplementedError):  # of JAX
        step(model, jnp.arange(4.0))
    assert float(model.count.value) == 0


def test_models_are_made_and_changed():
    models = pmap(lambda rngs: dx.Linear(2, 3, rngs=rngs))(dx.Rngs(0).split(4))
    expected = vmap(lambda rngs: dx.Linear(2, 3, rngs=rngs))(dx.Rngs(0).split(4))
    np.testing.assert_allclose(models.kernel.value, expected.kernel.value, rtol=1e-6)

    @pmap
    def grow(model):
        model.twice = dx.Param(model.bias.value * 2)
        model.again = model.twice
        return model

    assert grow(models) is models
    assert models.twice is models.again
    assert models.twice.shape == (4, 3)


def test_one_draw_for_all_is_warned_of():
    dropout = dx.Dropout(0.5, rngs=dx.Rngs(0))
    with pytest.warns(UserWarning, match="pmap: each instance draws the same random numbers"):
        pmap(lambda d, x: d(x), in_axes=(None, 0))(dropout, jnp.ones((4, 2)))


def test_axes_by_path():
    model = Model()
    axes = prefix(model, {dx.Param: 0, ...: None})
    assert pmap(lambda m, x: m.scale * x, in_axes=(axes, None))(model, 2.0).tolist() == [2, 4, 6, 8]


def test_an_axis_is_named_in_the_sharding_outside():
    @pmap(transform_metadata={PARTITION_NAME: "layers"})
    def make(x):
        return dx.Param(x * jnp.ones(2), sharding=("model",))

    made = make(jnp.arange(4.0))
    assert made.out_sharding == ("layers", "model")
    seen = []

    @pmap(transform_metadata={PARTITION_NAME: "layers"})
    def read(p):
        seen.append(p.out_sharding)
        p.value = p.value + 1

    read(made)
    assert (seen, made.out_sharding) == ([("model",)], ("layers", "model"))
    assert made.value.tolist() == [[1, 1], [2, 2], [3, 3], [4, 4]]


# ================================================================= options


def test_static_arguments_are_compiled_in():
    traces = []

    @pmap(static_broadcasted_argnums=(0,), in_axes=(None, None, 0))
    def power(n, model, x):
        traces.append(n)
        return model.scale[0] * x**n

    x, model = jnp.arange(4.0), Model()
    assert power(2, model, x).tolist() == [0, 1, 4, 9]
    assert power(3, model, x).tolist() == [0, 1, 8, 27]
    assert power(n=2, model=model, x=x).tolist() == [0, 1, 4, 9]
    assert traces == [2, 3, 2]  # as for `jit`, a call by other names is another program
    with pytest.raises(TransformError, match="a static argument is not hashable"):
        power([2], model, x)
    with pytest.raises(TransformError, match="static_broadcasted_argnums: the function has no positional parameter 4"):
        pmap(lambda x: x, static_broadcasted_argnums=4)


def test_donation_takes_what_is_set():
    models = vmap(lambda rngs: dx.Linear(2, 3, rngs=rngs))(dx.Rngs(0).split(4))

    @pmap(donate_argnums=0)
    def step(model, x):
        model.kernel.value = model.kernel.value + 1
        return model(x)

    x = jnp.ones((4, 2))
    step(models, x)  # from here on the kernel lies on all devices
    kernel, bias, before = models.kernel.value, models.bias.value, np.asarray(models.kernel.value)
    step(models, x)
    assert (kernel.is_deleted(), bias.is_deleted(), x.is_deleted()) == (True, False, False)
    np.testing.assert_allclose(models.kernel.value, before + 1)


def test_donation_leaves_what_is_only_read():
    models = pmap(lambda rngs: dx.Linear(2, 3, rngs=rngs))(dx.Rngs(0).split(4))  # on all devices, as `donated` is

    @pmap(donate_argnums=(0, 1))
    def read(model, donated):
        return model(donated[:2]), donated * 2

    donated = pmap(lambda x: x + 1)(jnp.ones((4, 5)))
    kernel, bias = models.kernel.value, models.bias.value
    read(models, donated)  # a result has the shape of the bias, which JAX could reuse for it
    assert (kernel.is_deleted(), bias.is_deleted(), donated.is_deleted()) == (False, False, True)
    assert models.kernel.value is kernel
    assert models.bias.value is bias


def test_the_mapped_function_is_compiled():
    mapped = pmap(lambda x: x * 2)
    assert mapped.lower(jnp.arange(4.0)).compile()(jnp.arange(4.0)).tolist() == [0, 2, 4, 6]
    assert mapped.eval_shape(jnp.arange(4.0)).shape == (4,)


def test_devices_and_sizes():
    assert pmap(lambda x: x, axis_size=3)(jnp.arange(3.0)).shape == (3,)
    with pytest.raises(ValueError, match="axis_size 3 doesn't match"):
        pmap(lambda x: x, axis_size=3)(jnp.arange(4.0))
    some = jax.devices()[2:]
    assert pmap(lambda x: x, devices=some)(jnp.arange(2.0)).devices() == set(some)
    assert pmap(lambda x: x, backend="cpu")(jnp.arange(2.0)).shape == (2,)
    with pytest.raises(RuntimeError, match="Unknown backend"):
        pmap(lambda x: x, backend="no_such")(jnp.arange(2.0))


def test_arguments_by_name():
    def times(model, bias=0.0, *, x):
        return model.scale * x + bias

    assert pmap(times, in_axes=(None,))(model=Model(), x=jnp.arange(4.0)).shape == (4, 4)
    assert pmap(times, in_axes=(None, 0))(Model(), bias=jnp.ones((4, 1)), x=jnp.zeros(4)).tolist() == [[1] * 4] * 4


def test_as_a_method_and_its_looks():
    class Net(dx.Module):
        def __init__(self):
            self.w = dx.Param(jnp.arange(4.0))

        @pmap(in_axes=(0, None))
        def times(self, x):
            """Multiplies."""
            return self.w * x

    assert Net().times(2.0).tolist() == [0, 2, 4, 6]
    assert (Net.times.__name__, Net.times.__doc__) == ("times", "Multiplies.")
    assert repr(Net.times).startswith("jit(<function ")


# ================================================================= captures


@each_mode
def test_captured_models_are_arguments(mode):
    model, traces = Model(), []

    @pmap(**mode)
    def step(x):
        traces.append(1)
        return model(x)

    x = jnp.arange(4.0)
    assert step(x).tolist() == [[a * b for b in (1, 2, 3, 4)] for a in range(4)]
    assert float(model.count.value) == 1
    model.scale.value = jnp.ones(4)
    assert step(x).tolist() == [[a] * 4 for a in range(4)]
    assert float(model.count.value) == 2
    assert len(traces) == 4  # twice for JAX, as without declax, and as often to see what differs


@each_mode
def test_what_is_captured_and_passed_is_one_thing(mode):
    model = Model()

    @pmap(in_axes=(None, 0), **mode)
    def step(passed, x):
        assert passed is model
        passed.count.value = passed.count.value + 1
        return model.count.value + x

    assert step(model, jnp.arange(4.0)).tolist() == [1, 2, 3, 4]
    assert float(model.count.value) == 1
    axes = dx.prefix(model, {dx.Param: 0, ...: None}, graph=mode.get("graph"))
    assert pmap(lambda m: model.scale.value, in_axes=(axes,), **mode)(model).shape == (4,)


@each_mode
def test_inside_of_jit(mode):
    model = Model()
    mapped = pmap(lambda x: model(x) * 1, **mode)

    @dx.jit(**mode)
    def step(x):
        return mapped(x) + pmap(lambda y: model(y) * 1, **mode)(x)

    with jax.checking_leaks():
        y = step(jnp.arange(4.0))
    assert y[1].tolist() == [2, 4, 6, 8]
    assert float(model.count.value) == 2
    model.scale.value = jnp.zeros(4)
    assert not step(jnp.arange(4.0)).any()


def test_jax_keeps_nothing_of_what_a_mapped_function_captures():
    class Big:
        pass

    big, before = Big(), len([o for o in gc.get_objects() if type(o).__name__ == "Big"])
    mapped = pmap(lambda x, _big=big: x)
    mapped(jnp.arange(4.0))
    del mapped, big
    gc.collect()
    assert before == 1
    assert not [o for o in gc.get_objects() if type(o).__name__ == "Big"]


# ================================================================= errors


def test_all_or_nothing():
    model = Model()

    @pmap(in_axes=(None, 0))
    def fail(model, x):
        model.count.value = model.count.value + 1
        model.new = dx.Param(jnp.ones(1))
        raise ZeroDivisionError

    state = dx.split(model)
    with pytest.raises(ZeroDivisionError):
        fail(model, jnp.arange(4.0))
    assert dx.split(model) == state


def test_modes_are_held():
    model = Model()

    def grow(model, x):
        model.new = dx.Param(jnp.ones(1))

    with pytest.raises(TransformError, match="changes the structure of its arguments"):
        pmap(grow, in_axes=(None, 0), graph_updates=False)(model, jnp.arange(4.0))
    with pytest.raises(GraphError, match="reached twice"):
        pmap(lambda a, b: 1, in_axes=None, axis_size=4, graph=False)(model, model)
    assert not hasattr(model, "new")


def test_wrong_arguments_of_pmap():
    with pytest.raises(TransformError, match="pmap, f: this is not a function"):
        pmap(3)
    with pytest.raises(TransformError, match="in_axes: this is not a label of leaves"):
        pmap(lambda x: x, in_axes="a")
    with pytest.raises(TransformError, match="transform_metadata: this does not name an axis"):
        pmap(lambda x: x, transform_metadata={"partition": "layers"})
    model = Model()
    with pytest.raises(TransformError, match="one Variable has two labels here"):
        pmap(lambda a, b: 1, in_axes=(0, None))(model.scale, model)


# ================================================================= other transforms around it


def test_gradients_through_it():
    model, x = Model(), jnp.arange(4.0)
    mapped = pmap(lambda m, x: (m.scale * x).sum(), in_axes=(None, 0))
    grads = dx.grad(lambda m: mapped(m, x).sum())(model)
    assert grads["scale"].value.tolist() == [6, 6, 6, 6]


def test_a_step_of_data_parallel_training():
    model, x = Model(), jnp.arange(8.0).reshape(4, 2)

    @pmap(in_axes=(None, 0), out_axes=None, axis_name="i")
    def step(model, x):
        loss, grads = dx.value_and_grad(lambda m: (m(x[0]) ** 2).mean())(model)
        grads = jax.lax.pmean(grads, "i")
        model.scale.value = model.scale.value - 0.01 * grads["scale"].value
        return jax.lax.pmean(loss, "i")

    scale, losses = model.scale.value, [float(step(model, x)) for _ in range(3)]
    for loss in losses:
        value, slope = jax.value_and_grad(lambda s: ((s * x[:, :1]) ** 2).mean())(scale)
        np.testing.assert_allclose(loss, value, rtol=1e-5)
        scale = scale - 0.01 * slope
    np.testing.assert_allclose(model.scale.value, scale, rtol=1e-5)
    assert float(model.count.value) == 3
