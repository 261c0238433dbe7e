"""Values that a compiled function keeps from call to call: each write, by whatever way, is seen."""

from __future__ import annotations

import gc
import linecache
import re
import sys
import threading
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from declax import _kept_values
from declax.graph import binding, updating


class Model(dx.Module):
    def __init__(self):
        self.a = dx.Param(jnp.zeros(()))
        self.b = dx.BatchStat(jnp.zeros(()))
        self.rngs = dx.Rngs(0)


class Hiding:
    """A plain object, into which no capture looks."""

    model: Model


def double(model):
    model.a.value = model.a.value * 2


def by_grad(model):
    def f(model):
        model.b.value = model.b.value + 5
        return model.a.value

    dx.grad(f)(model)


def by_optimizer(model):
    optimizer = dx.Optimizer(model, optax.sgd(1.0), wrt=dx.Param)
    optimizer.update(model, dx.grad(lambda m: m.a.value * 3)(model))


def by_replacing(model):
    model.a = dx.Param(jnp.array(17.0))


def by_context(model):
    with dx.update_context("tag"):
        with dx.split_context("tag") as ctx:
            graphdef, state = ctx.split(model)
        with dx.merge_context("tag", inner=True) as ctx:
            inner = ctx.merge(graphdef, state)
        inner.a.value = inner.a.value + 6
        with dx.split_context("tag") as ctx:
            graphdef, state = ctx.split(inner)
        with dx.merge_context("tag", inner=False) as ctx:
            ctx.merge(graphdef, state)


def set_value(model):
    model.a.value = model.a.value + 1


def add_in_place(model):
    model.a += 1


def set_raw_attribute(model):
    model.a.raw_value = model.a.raw_value + 1


ROUTES = {
    "value": set_value,
    "item": lambda m: m.a.__setitem__(..., m.a[...] + 1),
    "operator": add_in_place,
    "set_value": lambda m: m.b.set_value(m.b.value + 2),
    "set_raw_value": lambda m: m.a.set_raw_value(m.a.raw_value + 1),
    "raw_value": set_raw_attribute,
    "update": lambda m: dx.update(m, dx.state(m, dx.Param).map(lambda _, v: v.replace(v.value + 4))),
    "update by dict": lambda m: dx.update(m, {"a": m.a.value + 9}),
    "update of numpy": lambda m: dx.update(m, {"b": np.float32(m.b.value + 9)}, strict=False),
    "method": lambda m: m.update(
        dx.state(dx.map(lambda _, v: v.replace(v.value + 1) if isinstance(v, dx.Param) else v, m))
    ),
    "another jit": dx.jit(double),
    "donating jit": dx.jit(double, donate_argnums=0),
    "grad": by_grad,
    "optimizer": by_optimizer,
    "vmap": lambda m: dx.vmap(lambda m, x: double(m), in_axes=(None, 0))(m, jnp.ones(2)),
    "draw": lambda m: m.rngs(),
    "reseed": lambda m: dx.reseed(m, default=7),
    "split rngs": lambda m: dx.restore_rngs(dx.split_rngs(m, splits=2)),
    "replaced": by_replacing,
    "context": by_context,
    "clone and back": lambda m: dx.update(m, dx.state(dx.clone(m))),
}


def key(value):
    return jax.random.key_data(value) if jnp.issubdtype(value.dtype, jax.dtypes.prng_key) else value


def seen(model):
    """What the model holds, by raw reads."""
    return [
        np.asarray(key(variable.raw_value)) for _, variable in dx.iter_graph(model) if isinstance(variable, dx.Variable)
    ]


def assert_equal(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@dx.jit
def read(model):
    return [key(v.value) for _, v in dx.iter_graph(model) if isinstance(v, dx.Variable)]


@dx.jit
def step(model):
    model.a.value = model.a.value + 1
    return [key(v.value) for _, v in dx.iter_graph(model) if isinstance(v, dx.Variable)]


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
@pytest.mark.parametrize("function", [read, step], ids=["reading", "writing"])
def test_each_write_is_seen(function, route):
    model = Model()
    for _ in range(3):
        assert_equal(function(model), seen(model))
    assert _kept_values.records, "nothing is kept, so that the test says nothing"
    route(model)
    assert_equal(function(model), seen(model))
    route(model)
    assert_equal(function(model), seen(model))


def by_state(model):
    return [key(leaf) for leaf in jax.tree.leaves(dx.state(model))]


def by_split(model):
    graphdef, first, rest = dx.split(model, dx.Param, ...)
    return seen(dx.merge(graphdef, first, rest))


def by_clone(model):
    return seen(dx.clone(model))


@pytest.fixture
def all_are_large(monkeypatch):
    for module in (binding, updating):
        monkeypatch.setattr(module, "WORTH_KEEPING", 1)


@pytest.mark.usefixtures("all_are_large")
@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
@pytest.mark.parametrize("function", [by_state, by_split, by_clone])
def test_each_write_is_seen_by_what_reads_large_models(function, route):
    model = Model()
    in_order = sorted(map(repr, seen(model)))
    for _ in range(2):
        assert sorted(map(repr, map(np.asarray, function(model)))) == in_order
    assert _kept_values.records, "nothing is kept, so that the test says nothing"
    for _ in range(2):
        route(model)
        assert sorted(map(repr, map(np.asarray, function(model)))) == sorted(map(repr, seen(model)))


@pytest.mark.usefixtures("all_are_large")
def test_a_state_of_a_large_model_is_its_own():
    model = Model()
    first, second = dx.state(model), dx.state(model)
    first["a"].value = jnp.array(9.0)
    first.replace_by_pure_dict({"b": jnp.array(8.0)})
    assert second.to_pure_dict()["a"] == 0.0
    assert dx.state(model).to_pure_dict()["a"] == dx.state(model).to_pure_dict()["b"] == 0.0


@pytest.mark.usefixtures("all_are_large")
def test_updates_of_a_large_model_keep_what_they_wrote():
    model = Model()
    del model.rngs  # keys are looked at one by one
    given = dx.state(model)
    for _ in range(4):
        given = jax.tree.map(lambda leaf: leaf + 1, given)
        dx.update(model, given)
        assert _kept_values.records, "nothing is kept, so that the test says nothing"
        assert [*map(id, jax.tree.leaves(dx.state(model)))] == [*map(id, jax.tree.leaves(given))]
        with pytest.raises(dx.errors.GraphError, match="shape"):
            dx.update(model, {"a": jnp.zeros(3), "b": jnp.zeros(3)})
        given["a"].value = jnp.array(-7.0)
        assert model.a.value != -7.0


@pytest.mark.usefixtures("all_are_large")
def test_a_large_model_that_is_written_keeps_no_old_array():
    model = Model()
    del model.rngs
    dx.update(model, jax.tree.map(lambda leaf: leaf + 1, dx.state(model)))
    assert _kept_values.records, "nothing is kept, so that the test says nothing"
    array = weakref.ref(model.a.raw_value)
    model.a.value = jnp.ones(())
    assert array() is None


@given(st.lists(st.sampled_from([*sorted(set(ROUTES) - {"replaced"}), "read", "step"]), max_size=12))
def test_any_order_of_calls_and_writes(names):
    first, second = Model(), Model()
    for number, name in enumerate(names):
        model = (first, second)[number % 2]
        if name in ROUTES:
            ROUTES[name](model)
        else:
            function = {"read": read, "step": step}[name]
            for each in (model, first):
                assert_equal(function(each), seen(each))
    assert_equal(read(first), seen(first))
    assert_equal(read(second), seen(second))


@pytest.mark.filterwarnings("ignore::declax.errors.OverlookedModelWarning")  # what it is about
def test_a_write_from_a_callback_while_the_function_runs():
    model = Model()
    outer = Hiding()  # no capture: what the function reaches, it has as a copy
    outer.model = model

    def write(x):
        outer.model.b.value = jnp.array(50.0)
        return x

    @dx.jit
    def with_callback(model):
        model.a.value = jax.pure_callback(write, model.a.value, model.a.value) + 1

    for _ in range(3):
        with_callback(model)
    assert read(model)[1] == 50.0
    assert with_callback(model) is None
    assert_equal(read(model), seen(model))


def test_writes_of_other_threads():
    model = Model()
    read(model)
    read(model)
    thread = threading.Thread(target=set_value, args=(model,))
    thread.start()
    thread.join()
    assert_equal(read(model), seen(model))


@pytest.mark.parametrize("transform", [jax.jit, jax.grad], ids=["jit", "grad"])
def test_what_is_kept_does_not_let_a_trace_write_outside(transform):
    model = Model()
    for _ in range(3):
        add(model, 1.0)
    assert _kept_values.records, "nothing is kept, so that the test says nothing"
    with pytest.raises(dx.errors.TraceContextError, match="from a different trace level"):
        transform(lambda x: add(model, x))(2.0)
    assert model.a.value == 3.0
    assert add(model, 1.0) == 4.0


@dx.jit
def add(model, x):
    model.a.value = model.a.value + x
    return model.a.value * 1


WRITERS = (
    "_variables",
    "_kept_values",
    "graph.updating",
    "graph.binding",
    "graph.keeping",
    "transforms._last_call",
    "transforms._lift",
    "transforms.compilation",
)


class Interrupted:
    """Raises KeyboardInterrupt at the nth line of the files that write.

    Not where a `with` begins or ends: there the interpreter does not look for
    signals, so that none comes between a lock and its release.
    """

    FILES = {sys.modules[f"declax.{name}"].__file__ for name in WRITERS}

    def __init__(self, number):
        self.left = number

    def trace(self, frame, event, arg):
        if frame.f_code.co_filename not in self.FILES:
            return None
        if event == "line" and not linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip().startswith(
            "with "
        ):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self.trace

    def __enter__(self):
        self.outer = sys.gettrace()
        sys.settrace(self.trace)

    def __exit__(self, kind, *_):
        sys.settrace(self.outer)
        return kind is KeyboardInterrupt


def by_update(model):
    dx.update(model, dx.State({"a": dx.Param(jnp.array(7.0))}))


def by_update_of_all(model):
    dx.update(model, dx.State({"a": dx.Param(jnp.array(7.0)), "b": dx.BatchStat(jnp.array(6.0))}))


@pytest.mark.usefixtures("all_are_large")
@pytest.mark.parametrize("function", [set_value, by_update, by_update_of_all, step], ids=lambda f: f.__name__)
def test_an_interrupt_leaves_nothing_kept_that_is_not_true(function):
    model = Model()
    del model.rngs
    number, is_done = 0, False
    while not is_done:
        for _ in range(2):
            read(model), step(model), dx.state(model)
        number += 1
        interrupted = Interrupted(number)
        with interrupted:
            function(model)
        is_done = interrupted.left > 0
        for _ in range(2):
            assert_equal(by_state(model), seen(model))
            assert_equal(read(model), seen(model))
            set_value(model)
            assert_equal(read(model), seen(model))
    assert number > 5, "nothing was interrupted, so that the test says nothing"


def test_what_is_kept_dies_with_the_model():
    gc.disable()
    try:
        model = Model()
        for _ in range(3):
            step(model)
        array = weakref.ref(model.a.raw_value)
        del model
        assert array() is None
    finally:
        gc.enable()


def test_what_is_overwritten_is_not_kept():
    model = Model()
    for _ in range(3):
        step(model)
    array = weakref.ref(model.a.raw_value)
    model.a.value = jnp.ones(())
    assert array() is None


def test_few_are_kept_at_a_time():
    models = [Model() for _ in range(3 * _kept_values.MOST)]
    for _ in range(2):
        for model in models:
            read(model)
    assert len(_kept_values.records) <= _kept_values.MOST
    for model in models:
        assert_equal(read(model), seen(model))


def test_only_variables_know_the_slot():
    """An existing Variable is written by functions that say so; the others fill new ones."""
    source = Path(dx.__file__).parent
    text = {path.relative_to(source).as_posix(): path.read_text(encoding="utf-8") for path in source.rglob("*.py")}
    assert {name for name, code in text.items() if re.search(r"\bfill_raw\b", code)} == {
        "_variables.py",
        "_flat_state.py",
        "graph/build.py",
        "graph/keeping.py",  # the files that write what is kept
    }
    assert {name for name, code in text.items() if re.search(r"\bempty_raw\b", code)} == {
        "_variables.py",
        "graph/keeping.py",
    }
    assert [name for name, code in text.items() if '"raw_value"]' in code] == ["_variables.py"]
    assert [name for name, code in text.items() if re.search(r"(?<!\w)_set_raw\(", code)] == ["_variables.py"]
