"""Models that a function reads where no capture is looked for: told once, and only where they are read."""

from __future__ import annotations

import sys
import types
import warnings

import jax.numpy as jnp
import pytest

import declax as dx
from declax.errors import OverlookedModelWarning


class Model(dx.Module):
    def __init__(self):
        self.weight = dx.Param(jnp.ones(2))


class Trainer:
    rate = 0.5

    def __init__(self):
        self.model = Model()
        self.other = Model()

        def evaluate(x):
            return self.model.weight * x

        def scale(x):
            return self.rate * x

        self.evaluate, self.scale = dx.jit(evaluate), dx.jit(scale)
        self.bound = dx.jit(self.method)

    def method(self, x):
        return self.model.weight * x


def warned(function, *args):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*args)
    assert {w.category for w in caught} <= {OverlookedModelWarning}
    return caught


def test_a_plain_object_in_the_closure():
    trainer = Trainer()
    (found,) = warned(trainer.evaluate, 1.0)
    text = str(found.message)
    assert "'evaluate' reads self.model, a Model," in text
    assert "`model = self.model` before the function" in text
    assert found.filename == __file__
    assert warned(trainer.evaluate, 1.0) == []  # once


def test_what_is_not_read_is_not_named():
    trainer = Trainer()
    assert warned(trainer.scale, 1.0) == []


def test_what_is_captured_is_not_named():
    trainer = Trainer()
    assert warned(trainer.bound, 1.0) == []
    model = trainer.model
    assert warned(dx.jit(lambda x: model.weight * x), 1.0) == []


def test_modules_and_classes():
    module = types.ModuleType("a_module_with_a_model")
    module.net = Model()
    sys.modules[module.__name__] = module

    class Holder:
        net = Model()

    (found,) = warned(dx.vmap(lambda x: module.net.weight * x), jnp.ones(2))
    assert "module.net" in str(found.message)
    (found,) = warned(dx.grad(lambda x: (Holder.net.weight * x).sum()), 1.0)
    assert "Holder.net" in str(found.message)


def test_the_mending_line_mends():
    trainer = Trainer()
    model = trainer.model
    f = dx.jit(lambda x: model.weight * x)
    f(1.0)
    model.weight.value = jnp.full(2, 3.0)
    assert f(1.0).tolist() == [3.0, 3.0]


def test_it_is_a_warning_that_can_be_an_error():
    trainer = Trainer()
    with pytest.raises(OverlookedModelWarning, match="its values are constants of what is traced"):
        trainer.evaluate(1.0)
