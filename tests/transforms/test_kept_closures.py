"""What a user's function makes while it is traced, and keeps, sees the original models afterwards."""

from __future__ import annotations

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import pytest

import declax as dx
from declax.errors import OverlookedModelWarning, TraceContextError, TransformError

# ruff: noqa: PLW0108  # which function it is that captures is what is under test


class Net(dx.Module):
    def __init__(self):
        self.w = dx.Param(jnp.ones(()))
        self.k = 1.0


def scanned(f, x):
    return dx.scan(lambda c, y: (c, f(y)), in_axes=(dx.Carry, 0), out_axes=(dx.Carry, 0))(0.0, jnp.ones(2) * x)


TRANSFORMS = {
    "jit": dx.jit,
    "grad": dx.grad,
    "remat": dx.remat,
    "vmap": lambda f: lambda x: dx.vmap(f)(jnp.ones(2) * x),
    "cond": lambda f: lambda x: dx.cond(True, f, lambda x: f(x) * 2, x),
    "switch": lambda f: lambda x: dx.switch(0, [f, f], x),
    "while_loop": lambda f: lambda x: dx.while_loop(lambda y: f(y) < 2, lambda y: y + f(1.0), x),
    "fori_loop": lambda f: lambda x: dx.fori_loop(0, 2, lambda i, y: y + f(1.0), x),
    "scan": lambda f: functools.partial(scanned, f),
    "vjp": lambda f: lambda x: dx.vjp(f, x)[0],
    "jvp": lambda f: lambda x: dx.jvp(f, (x,), (x,)),
    "eval_shape": lambda f: lambda x: dx.eval_shape(f, x),
    "make_jaxpr": dx.make_jaxpr,
    "grad in jit": lambda f: dx.jit(dx.grad(f)),
    "vmap in jit": lambda f: dx.jit(lambda x: dx.vmap(f)(jnp.ones(2) * x)),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_closure_that_is_made_while_tracing_and_kept(transform):
    net, kept = Net(), {}

    def scale():
        if "k" not in kept:
            kept["k"], kept["w"] = lambda: net.k, lambda: net.w.value
        return kept["k"]()

    f = TRANSFORMS[transform](lambda x: x * scale() * net.w.value)
    for _ in range(2):
        f(1.0)
        net.k, net.w.value = 50.0, jnp.array(3.0)
        assert (scale(), kept["w"]()) == (50.0, 3.0)
        net.k, net.w.value = 1.0, jnp.array(1.0)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_method_of_the_model_that_is_kept(transform):
    net, kept = Net(), []
    net.blocks = dx.data([Net()])

    def f(x):
        kept.append((net, net.blocks[0], net.train))
        return x * net.w.value

    TRANSFORMS[transform](f)(1.0)
    net.k, net.blocks[0].k = 50.0, 60.0
    for copy, block, method in kept:
        assert (copy.k, block.k, method.__self__.k) == (50.0, 60.0, 50.0)
        assert copy.w is net.w
        copy.k = 50.0  # it can be changed, and is the model
        block.w.value = jnp.array(7.0)
    assert net.blocks[0].w.value == 7.0


USES = [
    lambda v: v.value,
    lambda v: v * 2,
    lambda v: jnp.add(v, 1),
    lambda v: v[...],
    lambda v: v.sum(),
    lambda v: jax.tree.leaves(v),
    lambda v: dx.jit(lambda v: v.value)(v),
    lambda v: dx.jit(lambda: v.value)(),
]


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_variable_that_is_kept_raises_where_it_is_used(transform):
    net, kept = Net(), []

    def f(x):
        kept.append(net.w)
        return x * net.w.value

    TRANSFORMS[transform](f)(1.0)
    for variable in kept:
        for use in USES:
            with pytest.raises(TraceContextError, match="this Param belongs to a trace that has ended"):
                use(variable)
        with pytest.raises(TraceContextError, match="this Param belongs to a trace that has ended"):
            variable.value = 1.0
        assert "trace that has ended" in repr(variable)


def test_names_of_a_module_that_change_later():
    names = {"net": Net(), "kept": [], "dx": dx}
    exec("def f(x):\n    kept.append(lambda: net.k)\n    return x * net.w.value\n", names)
    dx.jit(names["f"])(1.0)
    (read,) = names["kept"]
    names["net"].k = 50.0
    assert read() == 50.0
    names["net"] = Net()
    names["net"].k = 60.0
    assert read() == 60.0


def test_classes_and_objects_that_are_made_while_tracing():
    net, kept = Net(), {}

    def scale():
        if "reader" not in kept:

            class Reader:
                def read(self):
                    return net.k

            kept["reader"] = Reader()
        return kept["reader"].read()

    assert float(dx.jit(lambda x: x * scale() * net.w.value)(1.0)) == 1
    net.k = 50.0
    assert scale() == 50.0


def test_a_registry_of_losses():
    """A function is registered while one call traces, and used by others: compiled, of another shape, eager."""
    net, losses = Net(), {}

    def loss_named(name):
        if name not in losses:
            losses[name] = lambda x: net.w.value * x
        return losses[name]

    step = dx.jit(lambda x: loss_named("l2")(x))
    assert [float(step(1.0)), float(step(2.0)), float(loss_named("l2")(3.0))] == [1, 2, 3]
    assert step(jnp.ones(2)).tolist() == [1, 1]
    net.w.value = jnp.array(5.0)
    assert [float(step(1.0)), float(loss_named("l2")(1.0))] == [5, 5]
    other = dx.jit(lambda x: loss_named("l1")(x))
    with pytest.raises(TransformError, match="it assigns to a container, where it captures a model"):
        other(1.0)  # the registry holds a function that captures by now, and would lose the new one
    assert list(losses) == ["l2"]
    assert float(losses["l2"](3.0)) == 15


def test_a_generic_function():
    net = Net()

    @functools.singledispatch
    def scaled(x):
        return net.w.value * x

    step = dx.jit(lambda x: scaled(x))
    assert float(step(1.0)) == 1
    with pytest.warns(OverlookedModelWarning, match="'scaled' reads a Param"):
        assert step(jnp.ones(2)).tolist() == [1, 1]  # its cache, a plain object, holds the function of the first trace
    net.w.value = jnp.array(3.0)
    assert float(scaled.dispatch(object)(1.0)) == 3


def test_a_model_that_is_kept_in_a_dict():
    net, registry = Net(), {}

    def current():
        if "net" not in registry:
            registry["net"] = net
        return registry["net"]

    step = dx.jit(lambda x: x + current().k)
    assert [float(step(1.0)), float(step(1.0))] == [2, 2]
    net.k = 50.0
    assert current().k == 50.0
    assert float(step(1.0)) == 51


def test_a_cached_property_of_a_plain_object():
    """The object is not captured, so the model is a constant with a warning, and never a copy."""

    class Trainer:
        def __init__(self):
            self.net = Net()

        @functools.cached_property
        def loss(self):
            net = self.net
            return lambda x: net.w[...] * x * net.k

        def step(self, x):
            return self.loss(x)

    trainer = Trainer()
    step = dx.jit(trainer.step)
    with pytest.warns(OverlookedModelWarning, match=r"reads a Param"):
        assert float(step(1.0)) == 1
    trainer.net.k = 50.0
    assert float(trainer.loss(2.0)) == 100
    with pytest.warns(OverlookedModelWarning, match=r"reads a Param"):
        assert step(jnp.ones(2)).tolist() == [50, 50]


def test_captures_are_not_searched_again_while_tracing():
    """The first branch fills a registry, which the second one finds filled."""
    net, kept = Net(), {}

    def scale():
        if "f" not in kept:
            kept["f"] = lambda: net.k
        return kept["f"]()

    def f(x):
        return x * scale() * net.w.value

    for _ in range(2):
        assert float(dx.cond(True, f, lambda x: f(x) * 2, 1.0)) == 1
        assert float(dx.cond(False, f, lambda x: f(x) * 2, 1.0)) == 2


def test_a_callback_sees_the_model_itself():
    net, seen = Net(), []

    @dx.jit
    def f(x):
        jax.debug.callback(lambda: seen.append((net.k, net.w.value)))
        return x * net.w.value

    f(1.0)
    jax.effects_barrier()
    assert seen == [(1.0, 1.0)]


@pytest.mark.parametrize("transform", ["jit", "grad", "vmap in jit"])
def test_what_fails_is_released_too(transform):
    net, kept = Net(), []

    def f(x):
        kept.append(lambda: net.k)
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        TRANSFORMS[transform](f)(1.0)
    net.k = 50.0
    assert kept[0]() == 50.0


def test_nothing_of_a_trace_is_kept_alive():
    net, refs = Net(), []

    def f(x):
        refs.append(weakref.ref(net))
        return dx.grad(lambda y: y * net.w.value)(x)

    with jax.checking_leaks():
        dx.jit(f)(1.0)
    gc.collect()
    assert refs
    assert all(ref() is None for ref in refs)
