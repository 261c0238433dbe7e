"""Variables that a traced function reads on ways on which captures are not looked for."""

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
from declax import _strays
from declax.errors import OverlookedModelWarning

# ruff: noqa: PLW0108  # which function it is that reads is what is under test

WHY = "its value is a constant of what is traced, and later ones are not seen"


class Net(dx.Module):
    """A model that holds a function."""

    def __init__(self, act):
        self.act = dx.static(act)

    def __call__(self, x):
        return self.act(x)


def in_a_function_of_a_model(gain):
    net = Net(lambda x: x * gain.value)
    return lambda x: net(x)


def in_a_sequential(gain):
    return dx.Sequential(lambda x: x * gain)


def in_a_partial_of_a_sequential(gain):
    net = dx.Sequential(functools.partial(lambda held, x: x * held[...], gain))
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


def in_a_set(gain):
    model = dx.Module()
    model.gain = gain
    held = {model}
    return lambda x: sum(x * found.gain.value for found in held)


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
        in_a_set,
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
def test_what_is_read_past_captures_is_told_once(make, transform):
    gain = dx.Param(jnp.array(2.0))
    f = make(gain)
    x = jnp.ones(3) if transform is dx.vmap else 1.0
    with pytest.warns(OverlookedModelWarning, match=WHY) as found:
        transform(f)(x)
    assert len(found) == 1
    assert "reads a Param that is no argument and was not found, in `" in str(found[0].message)
    assert found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        transform(f)(x)  # each line is named once
    _strays.forget_told()
    with pytest.warns(OverlookedModelWarning, match=WHY):
        transform(lambda x: f(x) + 1)(x)


def test_the_line_is_that_of_the_reading():
    gain = dx.Param(jnp.array(2.0))
    net = Net(lambda x: x * gain.value)
    with pytest.warns(OverlookedModelWarning) as found:
        dx.jit(net)(1.0)
    with open(__file__, encoding="utf-8") as file:
        assert file.readlines()[found[0].lineno - 1].strip() == "net = Net(lambda x: x * gain.value)"


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.grad])
def test_outside_of_bodies_nothing_is_told(transform):
    gain = dx.Param(jnp.array(2.0))
    net = Net(lambda x: x * gain.value)
    assert float(transform(net)(1.0)) == 2
    assert not _strays.is_watching


def test_copies_and_what_is_made_inside_are_no_strays():
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
    assert not _strays.is_watching


def test_a_body_that_raises_is_over():
    def fail(x):
        assert _strays.is_watching
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        dx.jit(fail)(1.0)
    assert not _strays.is_watching
