"""The warning of Variables that a traced function reads, and that are neither passed nor captured."""

from __future__ import annotations

import functools
import threading
import types
import warnings
import weakref

import jax
import jax.numpy as jnp
import pytest

import declax as dx
from declax._variables import uncaptured_reads
from declax.errors import OverlookedModelWarning

pytestmark = pytest.mark.sampled(6)

# ruff: noqa: PLW0108  # which function it is that reads is what is under test

WHY = "The trace takes the values as constants, and a compiled function does not see later ones"


class Net(dx.Module):
    """A model that holds a function."""

    def __init__(self, act):
        self.act = dx.static(act)

    def __call__(self, x):
        return self.act(x)


def in_a_function_of_a_model(gain):
    box = types.SimpleNamespace(gain=gain)
    net = Net(lambda x: x * box.gain.value)
    return lambda x: net(x)


def in_a_sequential(gain):
    box = types.SimpleNamespace(gain=gain)
    return dx.Sequential(lambda x: x * box.gain)


def in_a_partial_of_a_sequential(gain):
    net = dx.Sequential(functools.partial(lambda box, x: x * box.gain[...], types.SimpleNamespace(gain=gain)))
    return lambda x: net(x)


def in_a_static_method(gain):
    class Holder:
        @staticmethod
        def run(x):
            return x * gain.value

    return lambda x: Holder.run(x)


def in_a_property(gain):
    class Holder:
        @property
        def gain(self):
            return gain

    holder = Holder()
    return lambda x: x * holder.gain.value


def in_a_method_of_a_new_object(gain):
    class Holder:
        def run(self, x):
            return x * gain.value

    return lambda x: Holder().run(x)


def in_an_attribute_by_name(gain):
    holder = types.SimpleNamespace(inner=types.MappingProxyType({"gain": gain}))
    return lambda x: x * holder.inner["gain"].value


def behind_a_weak_reference(gain):
    held = weakref.ref(gain)
    return lambda x: x * held().value


def in_a_method_of_a_model(gain):
    class Reads(dx.Module):
        def __call__(self, x):
            return x * gain.value

    model = Reads()
    return lambda x: model(x)


@pytest.mark.parametrize(
    "make",
    [
        behind_a_weak_reference,
        in_a_method_of_a_model,
        in_a_function_of_a_model,
        in_a_sequential,
        in_a_partial_of_a_sequential,
        in_a_static_method,
        in_a_property,
        in_a_method_of_a_new_object,
        in_an_attribute_by_name,
    ],
)
@pytest.mark.parametrize("transform", [dx.jit, dx.vmap, dx.grad, dx.remat, dx.make_jaxpr])
def test_each_trace_warns_once(make, transform):
    gain = dx.Param(jnp.array(2.0))
    f = make(gain)
    x = jnp.ones(3) if transform is dx.vmap else 1.0
    for _ in range(2):  # the same lines again
        (found,) = warned(lambda: transform(lambda x: f(x) + 1)(x))
        assert WHY in str(found.message)
        assert "a Param, neither passed nor captured, in `" in str(found.message)
        assert found.filename == __file__


def warned(f, *args):
    """The warnings of a call, all of which are of uncaptured reads."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        f(*args)
    assert {warning.category for warning in caught} <= {OverlookedModelWarning}
    return caught


class Trainer:
    """A plain object, which captures do not follow."""

    def __init__(self):
        self._net = dx.Module()
        self._net.w = dx.Param(jnp.zeros((2, 2)))
        self._net.linear = dx.Linear(2, 2, rngs=dx.Rngs(0))
        self._net.norm = dx.BatchNorm(2, rngs=dx.Rngs(0), use_running_average=True)
        self._net.array = jnp.zeros(2)
        self._net.flag = 1

    @property
    def net(self):
        return self._net


X = jnp.ones((1, 2))
WAYS = {
    "value": (lambda m: m.w.value + 0, "a Param"),
    "[...]": (lambda m: m.w[...] + 0, "a Param"),
    "[0]": (lambda m: m.w[0], "a Param"),
    "operator": (lambda m: m.w * 2, "a Param"),
    "right operator": (lambda m: X @ m.w, "a Param"),
    "jnp.dot": (lambda m: jnp.dot(X, m.w), "a Param"),
    "jnp.add": (lambda m: jnp.add(m.w, 0), "a Param"),
    "method": (lambda m: m.w.sum(), "a Param"),
    "attribute": (lambda m: m.w.T, "a Param"),
    "jnp.asarray": (lambda m: jnp.asarray(m.w), "a Param"),
    "raw_value": (lambda m: m.w.raw_value, "a Param"),
    "copy": (lambda m: m.w.copy().value, "a Param"),
    "a layer": (lambda m: m.linear(X), "a Param and 1 other Variable,"),
    "a norm": (lambda m: m.norm(X), "a BatchStat and 3 other Variables,"),
    "jax.tree.map": (lambda m: jax.tree.map(lambda a: a + 0, m.w).value, "a Param"),
    "jax.tree.leaves": (lambda m: jax.tree.leaves(m.linear), "a Param and 1 other Variable,"),
    "dx.state": (lambda m: jax.tree.leaves(dx.state(m, dx.Param)), "a Param"),
    "dx.split and merge": (lambda m: dx.merge(*dx.split(m)).w.value, "a Param"),
    "dx.clone": (lambda m: dx.clone(m).w.value, "a Param"),
    "returned": (lambda m: m.w, None),
    "inner dx.jit": (lambda m: dx.jit(lambda m: m.w.value + 0)(m), "a Param"),
    "inner dx.jit, captured": (lambda m: dx.jit(lambda: m.w.value + 0)(), "a Param"),
    "inner dx.grad": (lambda m: dx.grad(lambda m: m.w.value.sum() * 1.0)(m), "a Param"),
    "inner jax.jit": (lambda m: jax.jit(lambda m: m.w.value + 0)(m), "a Param"),
    "inner dx.scan": (
        lambda m: dx.scan(lambda c, m: (c, c), in_axes=(dx.Carry, None), out_axes=(dx.Carry, 0), length=2)(X, m)[0],
        "a Param",
    ),
    "inner dx.vmap": (
        lambda m: dx.vmap(lambda m, y: m.w.value * y, in_axes=(None, 0))(m, jnp.ones(2)),
        "a Param",
    ),
    "inner dx.remat": (lambda m: dx.remat(lambda m: m.w.value + 0)(m), "a Param"),
    "inner dx.cond": (lambda m: dx.cond(True, lambda m: m.w + 0, lambda m: m.w * 1, m), "a Param"),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_reading_warns_once(way):
    read, what = WAYS[way]
    for _ in range(2):  # another model is not hidden by the first
        trainer = Trainer()
        (found,) = warned(dx.jit(lambda trainer=trainer: read(trainer.net)))
        assert WHY in str(found.message)
        if what is not None:
            assert f" reads {what}" in str(found.message)


@pytest.mark.parametrize("read", [lambda m: m.array + 0, lambda m: jnp.array(m.flag)])
def test_plain_arrays_and_static_attributes_are_constants_as_in_jax(read):
    trainer = Trainer()
    f = dx.jit(lambda: read(trainer.net))
    before = f()
    trainer.net.array, trainer.net.flag = jnp.ones(2), 5
    assert jnp.array_equal(f(), before)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_passed_or_captured_does_not_warn(way):
    read, _ = WAYS[way]
    net = Trainer().net
    assert warned(dx.jit(lambda net: read(net) is None), net) == []
    assert warned(dx.jit(lambda: read(net) is None)) == []


def test_a_variable_of_an_outer_trace_that_an_inner_function_reads():
    holder = types.SimpleNamespace(inner=types.MappingProxyType({}))

    @dx.jit
    def scaled(x):
        return x * holder.inner["gain"].value

    @dx.jit
    def f(gain, x):
        holder.inner = types.MappingProxyType({"gain": gain})
        return scaled(x)

    (found,) = warned(f, dx.Param(jnp.array(2.0)), 1.0)
    assert "'scaled' reads a Param, neither passed nor captured" in str(found.message)


def test_it_can_be_an_error():
    trainer = Trainer()
    with pytest.raises(OverlookedModelWarning, match="neither passed nor captured"):
        dx.jit(lambda: trainer.net.w + 0)()
    assert not uncaptured_reads.is_watching


def test_the_line_is_that_of_the_reading():
    box = types.SimpleNamespace(gain=dx.Param(jnp.array(2.0)))
    net = Net(lambda x: x * box.gain.value)
    (found,) = warned(dx.jit(net), 1.0)
    with open(__file__, encoding="utf-8") as file:
        assert file.readlines()[found.lineno - 1].strip() == "net = Net(lambda x: x * box.gain.value)"


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.grad])
def test_without_a_transform_of_declax_nothing_warns(transform):
    box = types.SimpleNamespace(gain=dx.Param(jnp.array(2.0)))
    net = Net(lambda x: x * box.gain.value)
    assert float(transform(net)(1.0)) == 2
    assert not uncaptured_reads.is_watching


def test_copies_and_variables_made_inside_do_not_warn():
    gain, held = dx.Param(jnp.array(2.0)), dx.Param(jnp.array(3.0))

    @dx.jit
    def f(gain, x):
        made = dx.Param(jnp.ones(()))
        inner = dx.vmap(lambda row: row * gain.value * held.value * made.value)
        return jax.vmap(lambda row: row * gain.value)(inner(x)).sum()

    assert float(f(gain, jnp.ones(2))) == 24
    with jax.disable_jit():
        assert float(f(gain, jnp.ones(2))) == 24


def test_other_threads_may_read_meanwhile():
    model, hidden = dx.Param(jnp.array(2.0)), types.MappingProxyType({"other": dx.Param(jnp.array(3.0))})
    read = []

    @dx.jit
    def f(model):
        thread = threading.Thread(target=lambda: read.append(float(hidden["other"].value)))
        thread.start()
        thread.join()
        return model.value

    assert float(f(model)) == 2
    assert read == [3.0]
    assert not uncaptured_reads.is_watching


def test_a_body_that_raises_is_over():
    def fail(x):
        assert uncaptured_reads.is_watching
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        dx.jit(fail)(1.0)
    assert not uncaptured_reads.is_watching
