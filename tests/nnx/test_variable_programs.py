"""Programs with Variables and random streams, as users of NNX write them: both libraries give the same results."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx


def data_of(key):
    return np.asarray(jax.random.key_data(key)).tolist()


def kinds_with_their_own_values(nnx):
    class Average(nnx.Variable):
        def __init__(self, value, decay=0.5, **metadata):
            super().__init__(value, decay=decay, **metadata)

        def push(self, x):
            self[...] = self.decay * self[...] + (1 - self.decay) * x

    class Quantized(nnx.Param):
        def __init__(self, value, scale, **metadata):
            super().__init__(jnp.round(value / scale).astype(jnp.int8), scale=scale, **metadata)

        def get_value(self, **options):
            return super().get_value(**options).astype(jnp.float32) * self.get_metadata("scale")

    class Positive(nnx.Param):
        def create_value(self, value):
            return jnp.abs(value)

        def set_value(self, value, **options):
            super().set_value(jnp.abs(value), **options)

    class Model(nnx.Module):
        def __init__(self):
            self.average = Average(jnp.zeros(2))
            self.kernel = Quantized(jnp.array([[0.1, 0.2], [0.3, 0.4]]), 0.125)
            self.scale = Positive(jnp.array([-1.0, 2.0]))

        def __call__(self, x):
            self.average.push(x.mean(0))
            self.scale[...] = -self.scale[...]
            return x @ self.kernel * self.scale

    model, x = Model(), jnp.ones((3, 2))
    yield nnx.jit(lambda model, x: model(x))(model, x)
    yield model.average[...]
    yield model.scale.get_raw_value()
    yield str(model.kernel.get_raw_value().dtype)
    state = nnx.state(model, Average)
    yield list(state), state["average"].decay, type(state["average"]).__name__
    yield nnx.merge(*nnx.split(model))(x)
    yield nnx.clone(model).kernel.scale


def hooks(nnx):
    class Halved(nnx.Variable):
        def on_get_value(self, value):
            return value * 2

        def on_set_value(self, value):
            return value / 2

    halved = Halved(jnp.array(3.0))
    halved[...] = 10.0
    yield halved[...], halved.get_raw_value()
    pair = (lambda variable, value: value * 2, lambda variable, value: value + 1)
    param = nnx.Param(jnp.ones(2), on_get_value=lambda variable, value: value + 1, on_set_value=pair)
    param[...] = jnp.zeros(2)
    param[0] = 5.0
    yield param[...], param.get_raw_value()
    yield jax.tree.map(lambda x: x, param)[...]


def attributes_that_change(nnx):
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.linear, self.scale = nnx.Linear(2, 2, rngs=rngs), nnx.Param(jnp.ones(2))
            self.count, self.total, self.act = 3, jnp.zeros(2), jax.nn.relu

    @nnx.jit
    def change(model):
        model.extra = nnx.Variable(jnp.array(1.0))
        model.count = 10
        model.scale[...] += 1.0
        model.total = model.total + 2
        del model.act

    model = Model(nnx.Rngs(0))
    model.linear.bias = None
    model.scale = nnx.Param(jnp.zeros(3))
    change(model)
    yield [name for name in sorted(vars(model)) if not name.startswith("_pytree")]
    yield model.extra[...], model.count, model.scale[...], model.total
    yield sorted(map(str, nnx.to_flat_state(nnx.state(model)).paths))


def streams(nnx):
    rngs = nnx.Rngs(0, params=1, noise=jax.random.key(2))
    yield [data_of(key) for key in (rngs(), rngs.params(), rngs["noise"](), rngs.other())]
    yield rngs.normal((2,)), rngs.params.uniform((2,)), rngs.noise.randint((2,), 0, 10)
    forked = rngs.split({"params": 2})
    yield forked.params.key.shape, forked.noise.key.shape, data_of(forked())
    model, x = nnx.Dropout(0.5, rngs=nnx.Rngs(dropout=3)), jnp.ones(6)
    first = model(x)
    nnx.reseed(model, dropout=3)
    yield first, model(x)
    backups = nnx.split_rngs(rngs, splits=2, only="noise")
    yield rngs.noise.key.shape, rngs.params.key.shape
    nnx.restore_rngs(backups)
    yield rngs.noise.key.shape, rngs.noise.count[...]
    draw = nnx.vmap(lambda rngs: rngs.noise.normal((2,)), in_axes=0)
    yield nnx.fork_rngs(split=3)(draw)(nnx.Rngs(noise=3))


def caches_in_loops(nnx):
    class Cache(nnx.Module):
        def __init__(self):
            self.rows, self.index = nnx.Cache(jnp.zeros((4, 2))), nnx.Cache(jnp.array(0))

        def __call__(self, x):
            self.rows[...] = jax.lax.dynamic_update_slice(self.rows[...], x[None], (self.index[...], 0))
            self.index[...] += 1
            return self.rows.sum()

    called = Cache()
    yield [nnx.jit(Cache.__call__)(called, jnp.ones(2) * i) for i in range(3)]
    yield (
        nnx.jit(functools.partial(lambda scale, model, x: model(x) * scale, 2))(called, jnp.ones(2)),
        called.index[...],
    )
    graphdef, state, rest = nnx.split(Cache(), nnx.Cache, ...)

    def step(state, x):
        model = nnx.merge(graphdef, state, rest)
        y = model(x)
        return nnx.state(model, nnx.Cache), y

    state, sums = jax.lax.scan(step, state, jnp.ones((3, 2)))
    yield sums, state["index"][...]
    scan = nnx.scan(lambda model, x: (model, model(x)), in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))
    carried, sums = scan(Cache(), jnp.ones((3, 2)))
    yield sums, carried.index[...]


def metadata_of_layers(nnx):
    init = nnx.with_metadata(nnx.initializers.lecun_normal(), axes=("a", "b"))
    layer = nnx.Linear(2, 3, rngs=nnx.Rngs(0), kernel_init=init, bias_metadata={"group": 1})
    yield layer.kernel.axes, layer.bias.group
    state = nnx.state(layer)
    yield {name: variable.get_metadata("axes", None) for name, variable in state.items()}
    shapes = nnx.eval_shape(lambda: nnx.Linear(2, 3, rngs=nnx.Rngs(0), kernel_init=init))
    yield shapes.kernel.axes, shapes.kernel.shape, str(shapes.kernel.dtype), bool(shapes.bias)
    scale = nnx.Param(jnp.ones(2), shape="s", dtype="d", ndim="n", size="z")
    yield scale.shape, scale.dtype, scale.ndim, scale.size, scale + 1
    grads = nnx.grad(lambda model: jnp.sum(model["scale"][...] ** 2))(nnx.Dict(scale=scale))
    yield grads["scale"].dtype, grads["scale"][...]


PROGRAMS = [
    kinds_with_their_own_values,
    hooks,
    attributes_that_change,
    streams,
    caches_in_loops,
    metadata_of_layers,
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Variable hooks are deprecated", "ignore:The 'split' argument of 'fork'")
@pytest.mark.parametrize("program", PROGRAMS)
def test_both_libraries_give_the_same_results(program):
    peer = pytest.importorskip("flax.nnx")
    results = list(zip(program(dx), program(peer), strict=True))
    assert len(results) > 2
    for ours, theirs in results:
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)
        assert jax.tree.structure(ours) == jax.tree.structure(theirs)
