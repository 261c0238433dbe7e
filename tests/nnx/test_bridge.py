"""Linen modules as models, and models as Linen modules: the subjects of the peer's guide, and what goes beyond it."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

import declax as dx
from agreement import agrees
from declax.errors import GraphError, MissingExtraError, RegistryError

linen = pytest.importorskip("flax.linen")
bridge: Any = dx.bridge

X = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)
ONE_DEVICE = {"axis_shapes": (1, 1), "axis_names": ("rows", "columns"), "axis_types": (AxisType.Auto,) * 2}


class Scaled(linen.Module):
    """A product, a count of calls, and a sown value."""

    size: int

    @linen.compact
    def __call__(self, x):
        w = self.param("w", linen.initializers.normal(0.5), (x.shape[-1], self.size))
        calls = self.variable("calls", "count", lambda: jnp.zeros((), jnp.int32))
        if self.is_mutable_collection("calls") and not self.is_initializing():
            calls.value += 1
        y = x @ w
        self.sow("intermediates", "total", y.sum())
        return y

    def double(self, x):
        return 2 * x


class Tower(linen.Module):
    """Dense layers with batch statistics and dropout."""

    @linen.compact
    def __call__(self, x, train: bool = True):
        x = linen.Dense(8)(x)
        x = linen.BatchNorm(use_running_average=not train)(x)
        x = linen.Dropout(0.25, deterministic=not train)(jnp.tanh(x))
        return linen.Dense(2)(x)


class Split(linen.Module):
    """A product whose kernel names its axes."""

    @linen.compact
    def __call__(self, x):
        init = linen.with_partitioning(linen.initializers.normal(0.5), ("rows", "columns"))
        return x @ self.param("w", init, (x.shape[-1], 6))


def made(nnx, module, x=X, seed=0):
    return nnx.bridge.ToNNX(module, rngs=nnx.Rngs(seed)).lazy_init(x)


def values(nnx, tree):
    """The arrays of a model, or of the variables of Linen."""
    if isinstance(tree, nnx.Module):
        return {str(path): value.get_value() for path, value in nnx.to_flat_state(nnx.state(tree))}
    return linen.unbox(tree)


# ================================================================= the guide


@agrees
def test_a_linen_module_as_a_model(nnx):
    model = made(nnx, Scaled(3))
    assert isinstance(model.w, nnx.Param)
    first = model(X), values(nnx, model)
    model.w.set_value(jnp.ones((4, 3)))
    return first, model(X), model.double(X)


@agrees
def test_a_linen_module_as_a_part(nnx):
    class Outer(nnx.Module):
        def __init__(self, rngs):
            self.inner = nnx.bridge.ToNNX(Scaled(3), rngs=rngs)
            self.bias = nnx.Param(rngs.params.uniform((3,)))

        def __call__(self, x):
            return self.inner(x) + self.bias[...]

    model = nnx.bridge.lazy_init(Outer(nnx.Rngs(1)), X)
    return model(X), values(nnx, model)


@agrees
def test_streams_of_a_linen_module(nnx):
    model = nnx.bridge.ToNNX(linen.Dropout(0.5, deterministic=False), rngs=nnx.Rngs(dropout=0)).lazy_init(X)
    drawn = [model(X), model(X)]
    nnx.reseed(model, dropout=0)
    of_a_key = nnx.bridge.ToNNX(linen.Dense(2), rngs=jax.random.key(3)).lazy_init(X)
    return drawn, model(X), model(X, rngs=nnx.Rngs(dropout=5)), values(nnx, of_a_key)["('kernel',)"]


@agrees
def test_collections_are_kinds(nnx):
    model = made(nnx, Scaled(3))
    y = model(X, mutable=True)
    kind = type(model.count)
    assert kind.__name__ == "calls"
    assert isinstance(model.total, nnx.Intermediate)
    graphdef, params, calls, rest = nnx.split(model, nnx.Param, kind, ...)
    assert (list(params.keys()), list(calls.keys())) == (["w"], ["count"])
    assert sorted(rest.keys()) == ["to_nnx__rngs", "total"]
    merged = nnx.merge(graphdef, params, calls, rest)
    return y, merged(X, mutable=True), merged.count.get_value(), merged.total.get_value()


@agrees
def test_statistics_and_a_cache_change_in_place(nnx):
    class Decoder(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.MultiHeadDotProductAttention(2, qkv_features=4, decode=True)(x)

    with jax.numpy_dtype_promotion("standard"):
        decoder = made(nnx, Decoder(), jnp.ones((1, 3, 4)))
        steps = [decoder(row[None, None], mutable=["cache"]) for row in X]
    return steps, [v.get_value() for _, v in nnx.to_flat_state(nnx.state(decoder, nnx.Cache))]


@agrees
def test_training_of_a_linen_part(nnx):
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.body = nnx.bridge.ToNNX(Tower(), rngs=rngs)
            self.head = nnx.Linear(2, 1, rngs=rngs)

        def __call__(self, x):
            return self.head(self.body(x, mutable=["batch_stats"]))

    net = nnx.bridge.lazy_init(Net(nnx.Rngs(0)), X)
    optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)

    @nnx.jit
    def step(net, optimizer, x):
        loss, grads = nnx.value_and_grad(lambda net: (net(x) ** 2).mean())(net)
        optimizer.update(net, grads)
        return loss

    return [step(net, optimizer, X) for _ in range(3)], values(nnx, net), net.body(X, train=False)


@agrees
def test_transforms_of_a_linen_part(nnx):
    class Mapped(nnx.Module):
        def __init__(self, rngs):
            self.part = nnx.bridge.ToNNX(linen.Dense(5), rngs=rngs)

        def __call__(self, x):
            @nnx.split_rngs(splits=3)
            @nnx.vmap(in_axes=(0, 0), axis_size=3)
            def call(part, row):
                return part(row)

            return call(self.part, x)

    model = nnx.bridge.lazy_init(Mapped(nnx.Rngs(0)), X)
    return model(X), model.part.kernel.get_value()


@agrees
def test_a_model_as_a_linen_module(nnx):
    dense = nnx.bridge.to_linen(nnx.Linear, 4, out_features=3)
    variables = dense.init(jax.random.key(0), X)
    assert list(variables) == ["params"]

    class Constant(nnx.Module):
        def __init__(self):
            self.constant = nnx.Variable(jnp.float32(1.0))

        def __call__(self, x):
            return x + self.constant[...]

    constant = nnx.bridge.ToLinen(Constant, skip_rng=True).init_with_output(jax.random.key(0), X)
    return variables, dense.apply(variables, X), constant[0], jax.tree.leaves(constant[1])


@agrees
def test_a_model_as_a_part_of_a_linen_module(nnx):
    class Outer(linen.Module):
        @linen.compact
        def __call__(self, x):
            return nnx.bridge.to_linen(nnx.Linear, x.shape[-1], 3)(x) + self.param(
                "bias", linen.initializers.ones, (3,)
            )

    return Outer().init_with_output(jax.random.key(0), X)


@agrees
def test_keys_of_linen(nnx):
    dropout = nnx.bridge.to_linen(nnx.Dropout, rate=0.5)
    variables = dropout.init({"dropout": jax.random.key(0)}, X)
    return [dropout.apply(variables, X, rngs={"dropout": jax.random.key(seed)}) for seed in (1, 2, 1)]


@agrees
def test_linen_gives_the_keys_whatever_the_arguments_say(nnx):
    dense = nnx.bridge.to_linen(nnx.Linear, 4, 3, rngs=nnx.Rngs(7))
    variables = dense.init(jax.random.key(0), X)
    return variables["params"], dense.apply(variables, X)


@pytest.mark.filterwarnings("ignore:Using 'Module.sow:DeprecationWarning")
@agrees
def test_kinds_are_collections(nnx):
    @nnx.register_variable_name("tallies", overwrite=True)
    class Tally(nnx.Variable):
        pass

    class Counting(nnx.Module):
        def __init__(self, rngs):
            self.low = nnx.LoRA(4, 2, 3, rngs=rngs)
            self.norm = nnx.BatchNorm(3, rngs=rngs)
            self.blocks = nnx.List([nnx.Linear(3, 3, rngs=rngs) for _ in range(2)])
            self.tally = Tally(jnp.int32(0))

        def __call__(self, x):
            self.tally[...] += 1
            self.sow(nnx.Intermediate, "last", x)
            for block in self.blocks:
                x = block(x) if x.shape[-1] == 3 else block(self.norm(self.low(x)))
            return x

        def head(self, x):
            return self.blocks[0](x)

    linen_model = nnx.bridge.to_linen(Counting)
    variables = linen_model.init(jax.random.key(0), X)
    assert {"LoRAParam", "batch_stats", "params", "tallies"} <= set(variables)
    variables.pop("intermediates", None)
    y, changed = linen_model.apply(variables, X, mutable=["tallies", "batch_stats", "intermediates"])
    assert sorted(changed) == ["batch_stats", "intermediates", "tallies"]
    return variables, y, changed, linen_model.apply(variables, X[:, :3], nnx_method="head")


@agrees
def test_shardings_of_a_linen_module(nnx):
    with jax.set_mesh(jax.make_mesh(**ONE_DEVICE)):
        model = nnx.jit(lambda: made(nnx, Split()))()
        specs = nnx.get_partition_spec(nnx.state(model))
    assert type(model.w) is nnx.Param
    assert model.w.out_sharding == ("rows", "columns")
    assert specs["w"].get_value() == jax.P("rows", "columns")
    return model(X), values(nnx, model)["('w',)"]


@agrees
def test_shardings_of_a_model_in_linen(nnx):
    init = nnx.with_partitioning(nnx.initializers.ones, ("rows", "columns"))
    dense = nnx.bridge.to_linen(nnx.Linear, 4, 6, kernel_init=init)
    with jax.set_mesh(jax.make_mesh(**ONE_DEVICE)):
        variables = jax.jit(dense.init)(jax.random.key(0), X)
        box = variables["params"]["kernel"]
        assert isinstance(box, nnx.bridge.NNXMeta)
        assert box.metadata["out_sharding"] == ("rows", "columns")
        assert linen.get_partition_spec(variables)["params"]["kernel"] == jax.P("rows", "columns")
        return linen.unbox(variables), dense.apply(variables, X)


@agrees
def test_linen_transforms_of_a_model(nnx):
    class Mapped(linen.Module):
        @linen.compact
        def __call__(self, x):
            parts = linen.vmap(nnx.bridge.ToLinen, variable_axes={"params": 0}, split_rngs={"params": True})
            return parts(nnx.Linear, args=(x.shape[-1], 2))(x)

    return Mapped().init_with_output(jax.random.key(0), X)


@agrees
def test_a_linen_part_of_a_model_in_linen_changes_what_linen_lets_it_change(nnx):
    class Inner(nnx.Module):
        def __init__(self, rngs):
            self.norm = made(nnx, linen.BatchNorm(use_running_average=False))

        def __call__(self, x):
            return self.norm(x)

    model = nnx.bridge.to_linen(Inner)
    variables = model.init(jax.random.key(0), X)
    with pytest.raises(Exception, match="is immutable"):
        model.apply(variables, X)
    return model.apply(variables, X, mutable=["batch_stats"])


# ================================================================= beyond the guide


@dx.dataclass
class Declared(dx.Layer):
    """A declared model with a Linen part."""

    width: int = dx.field()
    features = bridge.ToNNX(Tower())
    head = dx.Linear(2, width)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(self.features(x, mutable=["batch_stats"]))


def test_a_linen_model_trains_as_a_part_of_a_declared_one(tmp_path):
    model = bridge.lazy_init(Declared(1, rngs=dx.Rngs(0)), X)
    optimizer = dx.Optimizer(model, optax.sgd(0.1), wrt=dx.Param)
    before = model.features.Dense_0["kernel"].value, model.features.BatchNorm_0["mean"].value

    @dx.jit
    def step(model, optimizer, x):
        loss, grads = dx.value_and_grad(lambda model: ((model(x) - 1.0) ** 2).mean())(model)
        optimizer.update(model, grads)
        return loss

    losses = [float(step(model, optimizer, X)) for _ in range(8)]
    assert losses[-1] < losses[0] / 2
    assert step.num_traces == 1
    for old, new in zip(before, (model.features.Dense_0["kernel"], model.features.BatchNorm_0["mean"]), strict=True):
        assert not np.array_equal(old, new.value)
    with pytest.warns(dx.errors.CheckpointWarning, match="without into="):
        dx.save(tmp_path / "step", {"model": model})
    other = bridge.lazy_init(Declared(1, rngs=dx.Rngs(1)), X)
    dx.load(tmp_path / "step", into={"model": other})
    np.testing.assert_array_equal(other.features(X, train=False), model.features(X, train=False))


def test_models_of_equal_linen_modules_share_a_program():
    step = dx.jit(lambda model, x: model(x))
    for model in (made(dx, Scaled(3)), made(dx, Scaled(3), seed=1), dx.clone(made(dx, Scaled(3)))):
        step(model, X)
    assert step.num_traces == 1
    step(made(dx, Scaled(4)), X)
    assert step.num_traces == 2
    assert dx.graphdef(bridge.ToNNX(linen.Dropout(0))) != dx.graphdef(bridge.ToNNX(linen.Dropout(0.0)))
    assert copy.deepcopy(made(dx, Scaled(3)))(X).shape == (3, 3)


def test_a_call_keeps_the_variables():
    model = made(dx, Scaled(3))
    w, count = model.w, model.count
    model(X, mutable=["calls"])
    model.lazy_init(X)
    assert (model.w, model.count) == (w, count)


def test_boxes_of_linen_come_back():
    logical = linen.with_logical_partitioning(linen.initializers.ones, ("rows", "columns"))
    with dx.use_eager_sharding(False):
        for module, box in [
            (Split(), linen.Partitioned),
            (linen.Dense(6, kernel_init=logical), linen.LogicallyPartitioned),
        ]:
            model = made(dx, module)
            assert model(X).shape == (3, 6)
            name = "w" if isinstance(module, Split) else "kernel"
            found = bridge.variables.nnx_attrs_to_linen_vars({name: getattr(model, name)})["params"][name]
            assert type(found) is box
            assert found.names == ("rows", "columns")


def test_a_box_follows_the_axes_of_linen():
    class Mapped(linen.Module):
        @linen.compact
        def __call__(self, x):
            init = dx.with_partitioning(dx.initializers.ones, ("rows", "columns"))
            names = {linen.PARTITION_NAME: "layers"}
            parts = linen.vmap(
                bridge.ToLinen, variable_axes={"params": 0}, split_rngs={"params": True}, metadata_params=names
            )
            return parts(dx.Linear, args=(4, 2), kwargs=linen.FrozenDict(kernel_init=init))(x)

    variables = Mapped().init(jax.random.key(0), X)
    specs = linen.get_partition_spec(variables)["params"]["VmapToLinen_0"]
    assert specs["kernel"] == jax.P("layers", "rows", "columns")
    assert Mapped().apply(variables, X).shape == (3, 2)


def test_an_abstract_model():
    model = dx.eval_shape(lambda: made(dx, Scaled(3)))
    assert model.w.value == jax.ShapeDtypeStruct((4, 3), jnp.float32)


def test_methods():
    model = bridge.ToNNX(Scaled(3), rngs=dx.Rngs(0))
    bridge.lazy_init(model.double, X)
    assert not hasattr(model, "w")
    assert not hasattr(model, "treble")
    assert model.module == Scaled(3)
    lora = bridge.to_linen(dx.LoRA, 4, 2, out_features=3)
    assert lora.out_features == 3


# ================================================================= what is refused


def test_a_model_without_variables_gets_the_remedy():
    with pytest.raises(Exception, match="params") as caught:
        bridge.ToNNX(Scaled(3), rngs=dx.Rngs(0))(X)
    assert "lazy_init" in "".join(caught.value.__notes__)


def test_two_variables_of_one_path():
    class Twice(linen.Module):
        @linen.compact
        def __call__(self, x):
            self.variable("other", "w", lambda: jnp.ones(2))
            return x * self.param("w", linen.initializers.ones, (4,))

    with pytest.raises(GraphError, match="two collections of a Linen module have a variable of this path"):
        made(dx, Twice())


def test_a_value_outside_of_a_variable():
    model = made(dx, Scaled(3))
    model.note = 3
    with pytest.raises(GraphError, match="a value that is not in a Variable belongs to no collection of Linen"):
        model(X)


def test_lazy_init_of_something_else():
    for other in (lambda x: x, dx.Module()):
        with pytest.raises(GraphError, match="neither a model that can be called nor a method of a model"):
            bridge.lazy_init(other, X)
    model = bridge.ToNNX(Tower(), rngs=dx.Rngs(0))
    with pytest.raises(TypeError):
        bridge.lazy_init(model, X, nothing=1)
    assert not model.to_nnx__is_initializing


def test_variables_that_a_model_lacks_or_of_another_shape():
    dense = bridge.to_linen(dx.Linear, 4, 3)
    params = dense.init(jax.random.key(0), X)["params"]
    with pytest.warns(UserWarning, match="entries of the collections, which it does not read: part/other"):
        dense.apply({"params": {**params, "part": {"other": jnp.ones(2)}}}, X)
    with pytest.raises(GraphError, match=r"kernel: expected shape \(4, 3\), got shape \(1, 1\)"):
        dense.apply({"params": {**params, "kernel": jnp.ones((1, 1))}}, X)
    with pytest.raises(GraphError, match=r"Linear.attend: this is not a method of the model"):
        dense.apply({"params": params}, X, nnx_method="attend")


def test_a_box_of_another_kind():
    box = bridge.NNXMeta(dx.BatchStat, jnp.ones(2), {"tag": "a"})
    assert bridge.variables.to_nnx_var("batch_stats", box).tag == "a"
    with pytest.raises(RegistryError, match="this collection has a Variable of another kind"):
        bridge.variables.to_nnx_var("params", box)


def test_flax_is_imported_with_the_first_name_only():
    program = """
import sys, declax, declax.bridge
assert not [name for name in sys.modules if name.startswith("flax")]
sys.modules["flax"] = None
try:
    declax.bridge.ToNNX
except declax.errors.MissingExtraError as error:
    assert "the bridge to Flax Linen needs Flax" in str(error)
    assert error.fix == 'pip install "declax[linen]"'
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert issubclass(MissingExtraError, ImportError)
