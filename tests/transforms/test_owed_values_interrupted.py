"""A loop that owes values, interrupted: by handlers of signals, finalizers, callbacks of the collector, other threads.

Such code runs where the interpreter looks for it: when a call has returned. A profiler is told of the same places, so
that a test can come at each of them in turn.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import time
import weakref

import jax.numpy as jnp
import pytest

import declax as dx
from declax import _kept_values
from declax.graph import keeping

pytestmark = pytest.mark.usefixtures("quick_to_collect")
STEPS = keeping.SHORTEST + 4
FILES = {
    sys.modules[f"declax.{name}"].__file__
    for name in (
        "_kept_values",
        "_variables",
        "graph.binding",
        "graph.keeping",
        "graph.updating",
        "transforms._last_call",
        "transforms._lift",
        "transforms.compilation",
    )
}


class Model(dx.Module):
    def __init__(self):
        self.weight = dx.Param(jnp.zeros(()))
        self.count = dx.BatchStat(jnp.zeros(()))
        self.fixed = dx.Param(jnp.full((), 3.0))


def add(model):
    model.weight.value = model.weight.value + 1
    model.count.value = model.count.value + 1


step = dx.jit(add)
step_all = dx.jit(lambda model: (add(model), model.fixed.set_value(model.fixed.value + 0))[0])


class Interruption:
    """Does something when the nth call of the files that write has returned, and not while it does it."""

    def __init__(self, number, action):
        self.left, self.action = number, action

    def look(self, frame, event, _):
        if event in ("c_return", "return") and frame.f_code.co_filename in FILES and self.left:
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                self.action()

    def __enter__(self):
        sys.setprofile(self.look)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)


def read(model):
    return float(model.count.value)


def set_count(model):
    model.count.value = HUNDRED


HUNDRED = jnp.array(100.0)
WORK = {
    "step": step,
    "step of all": step_all,
    "read": read,
    "write": set_count,
    "update": lambda model: dx.update(model, {"count": HUNDRED}),
    "state": dx.state,
}
ACTIONS = {**WORK, "collect": lambda _: gc.collect()}


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(2, marks=pytest.mark.slow),
        STEPS - 3,  # the next one begins to owe
        pytest.param(STEPS - 2, marks=pytest.mark.slow),
        STEPS,
        pytest.param(STEPS + 3, marks=pytest.mark.slow),
    ],
    ids=lambda n: f"after {n}",
)
@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_whatever_comes_in_between(work, action, steps):
    """What comes out is one of the orders, or what who came in between did is overwritten; and then all goes on."""
    function = step_all if work is step_all else step
    action(Model()), work(Model())  # what happens at a first time is not to be interrupted
    number = 0
    while True:
        number += 1
        model = Model()
        for _ in range(steps):
            function(model)
        with Interruption(number, lambda model=model: action(model)) as interruption:
            work(model)
        count, weight = read(model), float(model.weight.value)
        done = [work] if interruption.left else [work, action]
        is_step = [each in (step, step_all) for each in done]
        assert weight in {steps + sum(is_step), steps + 1 if any(is_step) else steps}
        is_write = set_count in done or WORK["update"] in done
        assert count == weight or (is_write and count in {100.0, 101.0, 102.0})
        for n in range(1, 2 * STEPS):
            function(model)
            if n > STEPS:
                assert (read(model), float(model.weight.value)) == (count + n, weight + n)
                assert float(dx.state(model)["count"].value) == count + n
        if interruption.left:
            break
    assert number > 3, "nothing was interrupted, so that the test says nothing"


def test_a_handler_of_signals_that_reads():
    model = Model()
    before = signal.signal(signal.SIGALRM, lambda *_: read(model))
    try:
        for number in range(300):
            model = Model()
            for _ in range(STEPS - 3):
                step(model)
            signal.setitimer(signal.ITIMER_REAL, random.Random(number).random() * 3e-5 + 1e-6)
            step(model)
            signal.setitimer(signal.ITIMER_REAL, 0)
            for _ in range(6):
                step(model)
            assert read(model) == STEPS + 4
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("action", [read, set_count, step], ids=lambda f: f.__name__)
@pytest.mark.parametrize("steps", [STEPS - 4, STEPS + 2])
def test_a_callback_of_the_collector(action, steps):
    thresholds = gc.get_threshold()
    for threshold in range(1, 40):
        model, done = Model(), []
        for _ in range(steps):
            step(model)

        def call(phase, _, model=model, done=done):
            if phase == "stop" and not done:
                done.append(True)
                action(model)

        gc.disable()
        gc.collect()
        gc.callbacks.append(call)
        try:
            gc.set_threshold(threshold, 10**6, 10**6)
            gc.enable()
            step(model)
        finally:
            gc.callbacks.remove(call)
            gc.set_threshold(*thresholds)
            gc.enable()
        count = read(model)
        for n in range(1, 20):
            step(model)
            assert n % 6 or read(model) == count + n
        assert float(model.weight.value) in {steps + 20.0, steps + 21.0}


def test_a_finalizer_of_a_cycle_sees_the_last_step():
    class Trainer:
        def __init__(self):
            self.model, self.itself = Model(), self

        def __del__(self):
            seen.append(read(self.model))

    seen: list[float] = []
    trainer = Trainer()
    count = trainer.model.count
    weakref.finalize(trainer.model, lambda: seen.append(float(count.value)))
    for _ in range(2 * STEPS):
        step(trainer.model)
    del trainer
    gc.collect()
    assert seen == [2.0 * STEPS] * 2


def test_a_thread_that_reads_loses_no_step():
    model, stop = Model(), threading.Event()

    def look():
        while not stop.is_set():
            read(model)
            time.sleep(random.random() * 2e-4)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(3000):
            step(model)
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert read(model) == 3000


def test_an_update_is_not_lost_to_a_thread_that_trains():
    model, stop = Model(), threading.Event()

    @dx.jit
    def train(model):
        model.weight.value = model.weight.value + 1
        model.count.value = model.count.value + 0

    def loop():
        while not stop.is_set():
            train(model)

    states = [dx.State({"count": dx.BatchStat(jnp.array(float(n)))}) for n in range(50)]
    thread = threading.Thread(target=loop)
    thread.start()
    lost = 0
    try:
        for number in range(3000):
            dx.update(model, states[number % 50])
            lost += read(model) not in (number % 50, (number - 1) % 50)  # a step that began before may end after
    finally:
        stop.set()
        thread.join()
    assert not lost


def test_to_read_waits_for_nobody_who_draws():
    """A draw holds a lock while JAX compiles, and says so to loggers, which have locks of their own."""
    model, held, release = Model(), threading.Event(), threading.Event()
    for _ in range(STEPS):
        step(model)

    def hold():
        from declax._threads import committing

        with committing:
            held.set()
            release.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        assert read(model) == STEPS
        assert not release.is_set()
    finally:
        release.set()
        thread.join()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")  # of a fork among threads
@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where processes fork")
def test_a_child_reads_while_a_thread_of_its_parent_writes():
    model, stop = Model(), threading.Event()
    for _ in range(STEPS):
        step(model)

    def hold():
        while not stop.is_set():
            with _kept_values.lock:
                time.sleep(0.001)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            os._exit(int(model.count.raw_value.shape != ()))
        assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        thread.join()


class Twice(dx.BatchStat):
    @property
    def value(self):
        return super().raw_value * 2

    @value.setter
    def value(self, value):
        self.set_value(value)


class Tenfold(dx.BatchStat):
    @property
    def raw_value(self):
        return dx.Variable.raw_value.__get__(self) * 10


def test_kinds_that_read_the_slot_themselves_are_written():
    class Owner(dx.Module):
        def __init__(self):
            self.a = Twice(jnp.ones(()))

    @dx.jit
    def count(model):
        model.a.set_value(model.a.get_raw_value() + 1)

    model = Owner()
    for _ in range(STEPS):
        count(model)
    assert float(model.a.value) == 2.0 * (STEPS + 1)
    assert not keeping._are_ours([Tenfold(jnp.ones(()))])
    assert keeping._are_ours([dx.Param(1.0), dx.RngCount(1)])


def test_a_model_in_the_place_of_a_dead_one_is_another():
    held = []
    for _ in range(300):
        model = Model()
        step(model), step(model)
        held.append(step.trace(model))  # which knows the Variables
        place, old = id(model), model.count
        del model
        model = Model()
        if id(model) == place:
            step(model)
            assert (read(model), float(old.value)) == (1.0, 2.0)
            return
        del model
    pytest.skip("the allocator gave no place twice")


class Setting(dx.BatchStat):
    def put(self, value):
        object.__setattr__(self, "raw_value", value)


def test_kinds_that_write_the_slot_themselves_are_read_each_time():
    class Owner(dx.Module):
        def __init__(self):
            self.a, self.b = Setting(jnp.zeros(())), dx.Param(jnp.zeros(()))

    @dx.jit
    def total(model):
        model.b.value = model.b.value + model.a.get_value()

    model = Owner()
    for _ in range(STEPS):
        total(model)
    model.a.put(HUNDRED)
    total(model)
    assert float(model.b.value) == 100.0


def test_a_variable_that_is_made_again():
    model = Model()
    for _ in range(STEPS):
        step(model)
    model.count.__init__(HUNDRED)  # type: ignore[misc]  # as a reset, in programs of others
    step(model)
    assert (read(model), float(model.weight.value)) == (101.0, STEPS + 1)


@pytest.mark.parametrize("is_owed", [True, False])
def test_what_dies_by_an_update_may_run_steps(is_owed):
    """A finalizer of an old value comes when all are written."""
    add_b = dx.jit(lambda model: model.weight.set_value(model.weight.value + 1))
    see = dx.jit(lambda model: (model.count.value, model.weight.value))
    model = Model()
    for _ in range(STEPS if is_owed else 2):
        add_b(model)
    old = jnp.array(7.0) + 0
    model.count.value = old
    given = dx.State({"count": dx.BatchStat(jnp.array(50.0)), "weight": dx.Param(jnp.array(60.0))})
    weakref.finalize(old, lambda: [add_b(model) for _ in range(12)])
    del old
    dx.update(model, given)
    for _ in range(3):
        assert [float(x) for x in see(model)] == [50.0, 72.0] == [read(model), float(model.weight.value)]
        dx.jit(lambda model: model.count.set_value(model.count.value + 0))(model)


def test_what_dies_by_a_write_has_no_lock():
    model, other = Model(), Model()
    for _ in range(STEPS):
        step(other)
    user, holds, done = threading.Lock(), threading.Event(), []

    def finish():
        done.append(user.acquire(timeout=10))

    old = jnp.array(7.0) + 0
    model.count.value = old
    weakref.finalize(old, finish)
    del old

    def hold():
        with user:
            holds.set()
            time.sleep(0.05)
            read(other)

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait()
    model.count.value = HUNDRED
    thread.join()
    assert done == [True]
