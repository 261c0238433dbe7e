"""Models that a function reads where no capture is looked for: told once, and only where they are read."""

from __future__ import annotations

import collections
import functools
import sys
import types
import warnings
import weakref

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


# ================================================================= methods of models

TABLE = Model()
TABLES = {"one": [Model()]}
STATELESS = dx.Sequential(jnp.tanh)


def helper(x):
    return TABLE.weight * x


class ByName(Model):
    def __call__(self, x):
        return TABLE.weight * x


class ByHelper(Model):
    def __call__(self, x):
        return helper(x)


class ByContainer(Model):
    def __call__(self, x):
        return TABLES["one"][0].weight * x


class ByOtherMethods(Model):
    def __call__(self, x):
        return self.first(x) + self.second + self.third(x)

    def first(self, x):
        return self.weight * x

    @property
    def second(self):
        return TABLE.weight

    @staticmethod
    def third(x):
        return x


class ByJit(Model):
    @dx.jit
    def __call__(self, x):
        return TABLE.weight * x


class Inner(dx.Module):
    def __init__(self, part):
        self.parts = dx.data([part])

    def __call__(self, x):
        return self.parts[0](x)


def closing_over(table):
    class ByCell(Model):
        def __call__(self, x):
            return table.weight * x

    return ByCell()


def call(model, x):
    return model(x)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (ByName, "'ByName.__call__' reads TABLE, a Model,"),
        (ByHelper, "'ByHelper.__call__' reads TABLE, a Model,"),
        (ByContainer, "'ByContainer.__call__' reads one"),
        (ByOtherMethods, "'ByOtherMethods.second' reads TABLE, a Model,"),
        (ByJit, "'ByJit.__call__' reads TABLE, a Model,"),
        (lambda: Inner(ByName()), "'ByName.__call__' reads TABLE"),
        (lambda: closing_over(TABLE), "'ByCell.__call__' reads table, a Model,"),
    ],
)
@pytest.mark.parametrize("is_passed", [True, False])
def test_what_methods_read_by_name_is_named(make, named, is_passed):
    model = make()
    f, args = (dx.jit(call), (model, 1.0)) if is_passed else (dx.jit(lambda x: model(x) * 1), (1.0,))
    (found,) = warned(f, *args)
    assert named.replace("reads one", "reads ") in str(found.message)
    assert "captures do not look into methods of models" in str(found.message)
    assert found.filename == __file__
    assert warned(f, *args) == []


@pytest.mark.parametrize("lift", [dx.jit, dx.vmap, dx.grad, dx.remat, dx.eval_shape])
def test_all_transforms_name_what_methods_read(lift):
    if lift is dx.eval_shape:
        assert len(warned(dx.eval_shape, call, ByName(), 1.0)) == 1
    elif lift is dx.vmap:
        assert len(warned(dx.vmap(call, in_axes=(None, 0)), ByName(), jnp.ones(2))) == 1
    else:
        assert len(warned(lift(lambda model, x: model(x).sum()), ByName(), 1.0)) == 1


def test_methods_that_nothing_calls_are_not_named():
    class Other(Model):
        def __call__(self, x):
            return STATELESS(self.weight * x)

        def compare(self, x):
            return TABLE.weight * x

    assert warned(dx.jit(call), Other(), 1.0) == []
    assert len(warned(dx.jit(lambda model, x: model.compare(x)), Other(), 1.0)) == 1


def test_a_method_that_is_the_function_itself_captures():
    model = ByName()
    before = TABLE.weight.value
    f = dx.jit(model.__call__)
    assert warned(f, 1.0) == []
    TABLE.weight.value = before * 3
    assert f(1.0).tolist() == [3.0, 3.0]
    TABLE.weight.value = before
    assert len(warned(dx.jit(model), 1.0)) == 1


def test_methods_of_this_library_are_not_looked_at():
    assert warned(dx.jit(call), dx.Linear(2, 2, rngs=dx.Rngs(0)), jnp.ones(2)) == []


def test_methods_are_looked_at_once_for_each_structure(monkeypatch):
    model, looked = Model(), []
    monkeypatch.setattr("declax.transforms._methods._reached", lambda *args: looked.append(1) or ())
    for _ in range(3):
        dx.grad(lambda model, x: (model.weight * x).sum())(model, 1.0)
    assert len(looked) == 1
    model.flag = True
    dx.grad(lambda model, x: (model.weight * x).sum())(model, 1.0)
    assert len(looked) <= 3


# ================================================================= what holds models


def in_default(held):
    def f(x, models=held):
        return sum(m.weight * x for m in models)

    return f


def in_closure(held):
    return lambda x: sum(m.weight * x for m in held)


def in_container(held):
    groups = {"all": [held]}
    return lambda x: sum(m.weight * x for m in groups["all"][0])


def in_object(held):
    class Scorer:
        def __init__(self):
            self.held, self.unused = held, {Model()}

        def __call__(self, x):
            return sum(m.weight * x for m in self.held)

    return Scorer()


def in_partial(held):
    return functools.partial(lambda models, x: sum(m.weight * x for m in models), held)


@pytest.mark.parametrize("place", [in_default, in_closure, in_container, in_object, in_partial])
@pytest.mark.parametrize("kind", [set, frozenset])
def test_models_in_sets_are_named(place, kind):
    f = dx.jit(place(kind([Model(), Model()])))
    (found,) = warned(f, 1.0)
    assert f"a Model, in a {kind.__name__}, which captures do not look into" in str(found.message)
    assert f"Put them in a {'list' if kind is set else 'tuple'}" in str(found.message)


def test_models_behind_weak_references_are_named():
    model = Model()
    ref = weakref.ref(model)
    (found,) = warned(dx.jit(lambda x: ref().weight * x), 1.0)
    assert "reads ref, a Model, in a weak reference" in str(found.message)
    dead = weakref.ref(Model())
    names = {"a", "b"}
    assert warned(dx.jit(lambda x: x if dead() is None and "a" in names else -x), 1.0) == []


@pytest.mark.parametrize("kind", [collections.UserList, collections.UserDict, types.SimpleNamespace])
def test_models_in_other_containers_are_captured(kind):
    model = Model()
    held = (
        kind(model=model)
        if kind is types.SimpleNamespace
        else kind({"model": model} if "Dict" in str(kind) else [model])
    )

    def read():
        if isinstance(held, types.SimpleNamespace):
            return held.model
        return held["model"] if isinstance(held, collections.UserDict) else held[0]

    @dx.jit
    def f(x):
        read().weight.value = read().weight.value + x
        return read().weight * 1

    assert warned(f, 1.0) == []
    assert f(1.0).tolist() == [3.0, 3.0]
    model.weight.value = jnp.zeros(2)
    assert f(1.0).tolist() == [1.0, 1.0]
    assert model.weight.value.tolist() == [1.0, 1.0]
    other = Model()
    if isinstance(held, collections.UserList):
        held[0] = other
    elif isinstance(held, collections.UserDict):
        held["model"] = other
    else:
        held.model = other
    assert f(1.0).tolist() == [2.0, 2.0]


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


class Config:
    """A plain object, which may hold others."""


class Deep:
    def __init__(self):
        self.config, self.parts = Config(), Config()
        self.config.inner = Config()
        self.config.inner.model = Model()
        self.parts.unused = Model()

    def method(self, x):
        return self.config.inner.model.weight * x

    def other(self, x):
        return len(vars(self.parts)) * x


def test_names_one_after_the_other():
    deep = Deep()
    (found,) = warned(dx.jit(deep.method), 1.0)
    assert "self.config.inner.model, a Model," in str(found.message)
    assert warned(dx.jit(deep.other), 1.0) == []
    outer = Config()
    outer.deep = deep
    outer.itself = outer
    (found,) = warned(dx.jit(lambda x: outer.deep.config.inner.model.weight * x), 1.0)
    assert "reads outer.deep.config.inner.model, a Model," in str(found.message)
    (found,) = warned(dx.grad(lambda x: (outer.itself.itself.deep.config.inner.model.weight * x).sum()), 1.0)
    assert "outer.deep.config.inner.model" in str(found.message)
