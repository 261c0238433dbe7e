"""Eight threads and one transformed function: no failure, no wrong answer, no key twice."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax._graph import flattening
from declax._graph.binding import Binding
from declax._tree import epoch

THREADS = 8
X = jnp.linspace(-1.0, 1.0, 8).reshape(2, 4)


@pytest.fixture(autouse=True)
def switching_often():
    """Threads take turns a thousand times more often than usual, to meet in bad places."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work, count=THREADS):
    """What `work(number)` gives in each of several threads, which start together."""
    barrier = threading.Barrier(count)

    def run(number):
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


class Net(dx.Module):
    def __init__(self, seed=0):
        rngs = dx.Rngs(seed)
        self.first = dx.Linear(4, 4, rngs=rngs)
        self.norm = dx.BatchNorm(4, rngs=rngs)
        self.last = dx.Linear(4, 1, rngs=rngs)
        self.calls = dx.Variable(jnp.array(0))
        self.raw = jnp.array(0)

    def __call__(self, x):
        return self.last(self.norm(dx.relu(self.first(x))))


def count(net, by):
    net.calls.value = net.calls.value + by
    return net.calls.value


def test_one_model_that_all_read():
    net = Net()
    net.eval()
    f = dx.jit(lambda net, x: net(x))
    expected = net(X)
    for found in in_threads(lambda i: [f(net, X) for _ in range(20)]):
        for one in found:
            np.testing.assert_allclose(one, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"donate_argnums": 0}])
def test_a_model_for_each(options):
    def step(net, x):
        loss, grads = dx.value_and_grad(lambda net: (net(x) ** 2).mean())(net)
        count(net, 1)
        for path, g in grads.flat_state():
            held = net
            for key in path:
                held = getattr(held, key)
            held.value = held.value - 0.1 * g.value
        return loss

    alone, together = dx.jit(step), dx.jit(step, **options)

    def train(f, seed):
        net = Net(seed)
        return net, [float(f(net, X)) for _ in range(10)]

    expected = [train(alone, i) for i in range(THREADS)]
    found = in_threads(lambda i: train(together, i))
    for (net, losses), (same, these) in zip(expected, found, strict=True):
        np.testing.assert_allclose(these, losses, rtol=1e-5)
        assert int(same.calls.value) == int(net.calls.value) == 10
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), dx.state(net), dx.state(same))


@pytest.mark.parametrize("rounds", range(3))
def test_one_model_that_all_set(rounds):
    net = Net()
    f = dx.jit(count)
    seen = in_threads(lambda i: [int(f(net, 1)) for _ in range(30)])
    assert int(net.calls.value) == 30 * THREADS
    assert sorted(n for found in seen for n in found) == list(range(1, 30 * THREADS + 1))


def test_arrays_without_a_variable_count_too():
    net = Net()

    @dx.jit
    def f(net):
        net.raw = net.raw + 1

    in_threads(lambda i: [f(net) for _ in range(20)])
    assert int(net.raw) == 20 * THREADS


def test_readers_see_whole_steps():
    """Also of a model with an array that is in no Variable."""
    net, is_done = Net(), threading.Event()

    @dx.jit
    def train(net):
        net.calls.value = net.calls.value + 1
        net.raw = net.raw + 1

    evaluate = dx.jit(lambda net: (net.calls.value, net.raw))

    def work(number):
        if number == 0:
            for _ in range(300):
                train(net)
            is_done.set()
            return []
        seen = []
        while not is_done.is_set():
            seen.append(tuple(map(int, evaluate(net))))
        return seen

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        seen = [pair for found in in_threads(work) for pair in found]
    finally:
        sys.setswitchinterval(interval)
    assert seen
    assert all(calls == raw for calls, raw in seen)


class Growing(dx.Module):
    """All its values count the steps; some change the structure, or are in a list, which cannot report changes."""

    def __init__(self):
        self.calls = dx.Variable(jnp.array(0))
        self.raw = jnp.array(0)
        self.items = dx.data([jnp.array(0)])
        self.latest = dx.Variable(jnp.array(0))

    def counts(self):
        return self.calls.value, self.raw, self.items[0], self.latest.value


def put_a_new_variable(net):
    net.latest = dx.Variable(net.latest.value + 1)


def put_into_the_list(net):
    net.items[0] = net.items[0] + 1


def put_a_new_list(net):
    net.items = [net.items[0] + 1]


def steps_of(change):
    """A compiled step that changes something in a way, and sets the rest."""

    @dx.jit
    def step(net):
        net.calls.value = net.calls.value + 1
        net.raw = net.raw + 1
        change(net)
        if change is put_a_new_variable:
            net.items[0] = net.items[0] + 1
        else:
            net.latest.value = net.latest.value + 1

    return step


def leaves_of_split(net):
    return jax.tree.leaves(dx.split(net)[1])


def first_call(net):
    return dx.jit(lambda net: net.counts())(net)


READERS = {
    "a later call of jit": lambda: dx.jit(Growing.counts),
    "the first call of jit": lambda: first_call,
    "a call without a guard": lambda: dx.jit(lambda net, static: net.counts(), static_argnums=1),
    "remat": lambda: dx.remat(Growing.counts),
    "split": lambda: leaves_of_split,
    "state": lambda: lambda net: jax.tree.leaves(dx.state(net)),
    "clone": lambda: lambda net: dx.clone(net).counts(),
}


@pytest.mark.parametrize("change", [put_a_new_variable, put_into_the_list, put_a_new_list])
@pytest.mark.parametrize("name", READERS)
def test_a_reader_that_waits_for_a_change_of_structure(name, change):
    """It has found the structure before, and reads the values after the change."""
    net, step, reader = Growing(), steps_of(change), READERS[name]()
    args = (net, 0) if name == "a call without a guard" else (net,)
    step(net)
    reader(*args)
    seen = []
    thread = threading.Thread(target=lambda: seen.extend(map(int, reader(*args))))
    with epoch.committing:
        net.calls.value = net.calls.value  # values that were read are forgotten
        thread.start()
        deadline = time.monotonic() + 30
        while sys._current_frames()[thread.ident].f_code is not Binding.values.__code__:
            assert time.monotonic() < deadline
        step(net)
    thread.join()
    assert seen == [2, 2, 2, 2]


@pytest.mark.parametrize("change", [lambda net: delattr(net, "latest"), lambda net: setattr(net, "more", net.latest)])
@pytest.mark.parametrize("read", [dx.state, dx.split, dx.clone, dx.jit(lambda net: net.calls.value)])
def test_a_structure_that_changes_while_it_is_compared(read, change, monkeypatch):
    """Another thread adds or removes an attribute while a call notes the attributes of the nodes."""
    net, names_of = Growing(), flattening._compared_names

    def compared_names(attributes):
        monkeypatch.setattr(flattening, "_compared_names", names_of)
        names = iter(attributes)
        next(names)
        thread = threading.Thread(target=change, args=(net,))
        thread.start()
        thread.join()
        assert len([*names]) == len(attributes) - 1
        return names_of(attributes)

    monkeypatch.setattr(flattening, "_compared_names", compared_names)
    read(net)


@pytest.mark.parametrize("change", [put_a_new_variable, put_into_the_list, put_a_new_list])
def test_readers_see_whole_changes_of_structure(change):
    net, is_done, step = Growing(), threading.Event(), steps_of(change)
    evaluate = dx.jit(Growing.counts)
    step(net)
    evaluate(net)

    def work(number):
        if number == 0:
            for _ in range(100):
                step(net)
            is_done.set()
            return []
        seen = []
        while not is_done.is_set():
            seen.append(tuple(map(int, evaluate(net) if number % 2 else leaves_of_split(net))))
        return seen

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        seen = [counts for found in in_threads(work, 4) for counts in found]
    finally:
        sys.setswitchinterval(interval)
    assert seen
    assert [counts for counts in seen if len({*counts}) > 1] == []


def test_a_change_of_structure_is_no_write_past_setattr():
    """A call compares attributes while another thread has set them, and has not ended the epoch yet."""
    net = Growing()
    evaluate = dx.jit(Growing.counts)
    evaluate(net)
    with ThreadPoolExecutor(1) as pool:
        with epoch.committing:
            vars(net)["latest"] = dx.Variable(jnp.array(7))
            found = pool.submit(evaluate, net)  # which warns, if it does not wait
            with pytest.raises(TimeoutError):
                found.result(0.2)
            epoch.advance()
        assert 7 in map(int, found.result())


def test_what_all_add_to_one_model_is_there():
    net = Net()

    @dx.jit
    def f(net):
        net.sow(dx.Intermediate, "seen", net.calls.value)
        net.calls.value = net.calls.value + 1

    in_threads(lambda i: [f(net) for _ in range(4)])
    assert int(net.calls.value) == 4 * THREADS
    assert sorted(map(int, net.seen.value)) == list(range(4 * THREADS))


def test_a_captured_model_that_all_set():
    net = Net()
    f = dx.jit(lambda by: count(net, by))
    in_threads(lambda i: [f(1) for _ in range(20)])
    assert int(net.calls.value) == 20 * THREADS


def test_no_key_twice():
    rngs = dx.Rngs(0)
    draw = dx.jit(lambda rngs: rngs.normal(()))
    seen = in_threads(lambda i: [float(draw(rngs)) for _ in range(20)])
    assert len({n for found in seen for n in found}) == 20 * THREADS
    again = dx.Rngs(0)
    assert sorted(n for found in seen for n in found) == sorted(float(draw(again)) for _ in range(20 * THREADS))


def test_no_key_twice_without_a_transform():
    rngs = dx.Rngs(0)
    seen = in_threads(lambda i: [float(rngs.normal(())) for _ in range(20)])
    assert len({n for found in seen for n in found}) == 20 * THREADS


@pytest.mark.parametrize("is_captured", [False, True], ids=["passed", "captured"])
def test_no_key_twice_where_some_draw_eagerly(is_captured):
    rngs = dx.Rngs(0)
    draw = dx.jit(lambda rngs: rngs.normal(()))
    draw_captured = dx.jit(lambda: rngs.normal(()))

    def work(i):
        if i % 2:
            return [float(rngs.normal(())) for _ in range(20)]
        return [float(draw_captured() if is_captured else draw(rngs)) for _ in range(20)]

    seen = in_threads(work)
    assert len({key for keys in seen for key in keys}) == 20 * THREADS
    assert int(rngs.default.count.value) == 20 * THREADS


@pytest.mark.parametrize("rounds", range(5))
def test_first_calls_in_all_threads_at_once(rounds):
    nets = [Net(i) for i in range(THREADS)]
    by = dx.Variable(jnp.array(2))
    f = dx.jit(lambda net, k: count(net, by.value * k), static_argnums=1)
    found = in_threads(lambda i: [int(f(nets[i], k)) for k in (1, 2)])
    assert found == [[2, 6]] * THREADS
    assert f.num_traces <= 2 * THREADS
    assert len(f._programs) == 2
    before = f.num_traces
    in_threads(lambda i: [f(nets[i], k) for k in (1, 2)])
    assert f.num_traces == before


@pytest.mark.parametrize("rounds", range(5))
def test_classes_and_structures_that_are_new_to_all_threads(rounds):
    class Fresh(dx.Module):
        def __init__(self, number):
            self.weight = dx.Param(jnp.ones(2))
            self.list = dx.List([dx.Param(jnp.ones(2)), dx.Variable(jnp.array(0))])
            self.late = None

    nets = in_threads(Fresh)
    found = in_threads(lambda i: dx.split(nets[i])[0])
    assert all(one is found[0] for one in found)
    f = dx.jit(lambda net: net.weight.sum())
    assert [float(x) for x in in_threads(lambda i: f(nets[i]))] == [2.0] * THREADS
    assert len(f._programs) == 1


def test_many_structures_at_once(monkeypatch):
    monkeypatch.setattr("declax.transforms._engine.wrapped.MAX_PROGRAMS", 3)
    f = dx.jit(lambda x, n: x + n, static_argnums=1)
    found = in_threads(lambda i: [float(f(1.0, n)) for n in range(6)])
    assert found == [[1.0 + n for n in range(6)]] * THREADS
    assert len(f._programs) <= 3 + THREADS


@pytest.mark.slow
def test_eager_transforms_on_models_of_their_own():
    def energy(net, x):
        count(net, 1)
        return (net(x) ** 2).sum()

    grad = dx.grad(energy)
    axes = dx.StateAxes({...: None})
    rows = dx.vmap(lambda net, x: (count(net, 1), net.first(x))[1], in_axes=(axes, 0))

    def work(seed):
        net = Net(seed)
        grads = [grad(net, X) for _ in range(3)]
        made = [rows(net, X) for _ in range(3)]
        return int(net.calls.value), grads[-1], made[-1]

    expected = [work(i) for i in range(THREADS)]
    for (calls, *arrays), (same, *these) in zip(expected, in_threads(work), strict=True):
        assert calls == same == 6
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), arrays, these)


def test_a_function_that_fails_in_one_thread_fails_there_only():
    net = Net()

    @dx.jit(static_argnums=1)
    def f(net, fails):
        net.calls.value = net.calls.value + 1
        if fails:
            raise ZeroDivisionError
        return net.calls.value

    def work(i):
        for _ in range(10):
            if i % 2:
                with pytest.raises(ZeroDivisionError):
                    f(net, True)
            else:
                f(net, False)

    in_threads(work)
    assert int(net.calls.value) == 10 * THREADS // 2
