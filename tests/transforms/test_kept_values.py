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
from declax._tree import epoch


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
    assert epoch.kept or function is step, "nothing is kept, so that the test says nothing"
    route(model)
    assert_equal(function(model), seen(model))
    route(model)
    assert_equal(function(model), seen(model))


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
    read(model), read(model)
    assert epoch.kept, "nothing is kept, so that the test says nothing"
    with pytest.raises(dx.errors.TraceContextError, match="from another trace level"):
        transform(lambda x: add(model, x))(2.0)
    assert model.a.value == 3.0
    assert add(model, 1.0) == 4.0


@dx.jit
def add(model, x):
    model.a.value = model.a.value + x
    return model.a.value * 1


WRITERS = (
    "_variables.variable",
    "_graph.updating",
    "_graph.binding",
    "transforms._engine.commit",
    "transforms.compilation",
)


class Interrupted:
    """Raises KeyboardInterrupt at the nth line of the files that write.

    Not where a `with` begins or ends, where a raise of `sys.settrace` would come after the lock is released.
    """

    FILES = {sys.modules[f"declax.{name}"].__file__ for name in WRITERS}

    def __init__(self, number):
        self.left = number

    def trace(self, frame, event, arg):
        if frame.f_code.co_filename not in self.FILES:
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and not line.startswith("with "):
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


@pytest.mark.parametrize("function", [set_value, by_update, by_update_of_all, step], ids=lambda f: f.__name__)
def test_an_interrupt_leaves_nothing_kept_that_is_not_true(function):
    model = Model()
    del model.rngs
    number, is_done = 0, False
    while not is_done:
        for _ in range(2):
            read(model), step(model), read(model)
        number += 1
        interrupted = Interrupted(number)
        with interrupted:
            function(model)
        is_done = interrupted.left > 0
        for _ in range(2):
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


def test_reading_keeps_nothing_of_models_that_are_gone():
    read(Model())
    epoch.kept = {}
    for _ in range(20):
        read(Model())
    gc.collect()
    assert epoch.kept == {}


def test_a_variable_that_is_initialised_again():
    model = Model()
    read(model), read(model)
    model.a.__init__(jnp.array(100.0))
    assert read(model)[0] == 100.0


def test_what_an_update_overwrites_may_run_steps_when_it_dies():
    """A finalizer of an old value comes when all are written."""
    model = Model()
    old = jnp.array(7.0) + 0
    model.a.value = old
    weakref.finalize(old, lambda: [step(model) for _ in range(3)])
    del old
    dx.update(model, dx.State({"a": dx.Param(jnp.array(50.0)), "b": dx.BatchStat(jnp.array(60.0))}))
    assert (float(model.a.value), float(model.b.value)) == (53.0, 60.0)
    assert_equal(read(model), seen(model))


def test_threads_that_look_while_a_loop_runs():
    """They see each step whole, and none of them twice in the wrong order."""
    model, stop, orders = Model(), threading.Event(), []
    look = dx.jit(lambda model: (model.a.value, model.b.value))

    @dx.jit
    def both(model):
        model.a.value, model.b.value = model.a.value + 1, model.b.value + 1

    def watch():
        last = 0.0
        while not stop.is_set():
            a, b = map(float, look(model))
            orders.append(a == b >= last)
            last = a

    threads = [threading.Thread(target=watch) for _ in range(3)]
    for thread in threads:
        thread.start()
    count = 0
    while count < 300 or len(orders) < 4:
        both(model)
        count += 1
    stop.set()
    for thread in threads:
        thread.join()
    assert float(model.a.value) == count
    assert all(orders)


def test_only_variables_know_the_slot():
    """Others write to Variables by functions that say so."""
    source = Path(dx.__file__).parent
    text = {path.relative_to(source).as_posix(): path.read_text(encoding="utf-8") for path in source.rglob("*.py")}
    assert [name for name, code in text.items() if '"_raw"]' in code] == ["_variables/variable.py"]
    assert [name for name, code in text.items() if re.search(r"(?<!\w)_set_raw\(", code)] == ["_variables/variable.py"]
