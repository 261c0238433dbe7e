"""What holds for a call of any transform: threads lose nothing, and what fails changes nothing."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import dispatch

import declax as dx
from declax.transforms._engine import commit, programs
from declax.transforms.differentials import jvp, vjp

pytestmark = pytest.mark.sampled(6)


def plain_mesh():
    return jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


def with_rules(function):
    made = dx.custom_vjp(function)
    made.defvjp(lambda model: (function(model), None), lambda residuals, g: (None,))
    return made


def scanned(function, model):
    return dx.scan(lambda model, _: (model, function(model)), in_axes=(dx.Carry, 0), out_axes=(dx.Carry, 0))(
        model, jnp.zeros(1)
    )[1][0]


def looped(function, model):
    def body(_, carried):
        return model, function(carried[0])

    return dx.fori_loop(0, 1, body, (model, jnp.zeros(())))[1]


def looped_while(function, model):
    def body(carried):
        return model, function(carried[0]), carried[2] + 1

    return dx.while_loop(lambda carried: carried[2] < 1, body, (model, jnp.zeros(()), 0))[1]


WAYS = {
    "jit": lambda f, m: dx.jit(f)(m),
    "jit, donated": lambda f, m: dx.jit(f, donate_argnums=0)(m),
    "jit, a stage": lambda f, m: dx.jit(f).lower(m).compile()(m),
    "grad": lambda f, m: dx.grad(f, has_aux=True, argnums=dx.DiffState(0, dx.Param))(m)[1],
    "value_and_grad": lambda f, m: dx.value_and_grad(f, has_aux=True, argnums=dx.DiffState(0, dx.Param))(m)[0][1],
    "vjp": lambda f, m: vjp(f, m)[0],
    "jvp": lambda f, m: jvp(f, (m,), (dx.state(m, dx.Param),))[0],
    "custom_vjp": lambda f, m: with_rules(f)(m),
    "remat": lambda f, m: dx.remat(f)(m),
    "vmap": lambda f, m: dx.vmap(lambda m, _: f(m), in_axes=(None, 0), out_axes=None)(m, jnp.zeros(2)),
    "shard_map": lambda f, m: dx.shard_map(f, mesh=plain_mesh(), in_specs=jax.P(), out_specs=jax.P())(m),
    "pmap": lambda f, m: dx.pmap(lambda m, _: f(m), in_axes=(None, 0), out_axes=None)(m, jnp.zeros(1)),
    "scan": scanned,
    "fori_loop": looped,
    "while_loop": looped_while,
    "cond": lambda f, m: dx.cond(True, f, lambda m: jnp.zeros(()), m),
    "switch": lambda f, m: dx.switch(1, [lambda m: jnp.zeros(()), f], m),
    "checkify": lambda f, m: dx.checkify(f)(m)[1],
}
EAGER = [name for name in WAYS if not name.startswith("jit")]


class Counting(dx.Module):
    def __init__(self):
        self.scale = dx.Param(jnp.ones(()))
        self.calls = dx.Variable(jnp.zeros(()))


def add_one(model):
    model.calls.value = model.calls.value + 1
    return model.calls.value * model.scale.value


def with_aux(function):
    """As a loss with an auxiliary result, which is what the transforms of gradients want."""

    @functools.wraps(function)
    def pair(model):
        value = function(model)
        return value, value

    return pair


def apply(name, function, model):
    return WAYS[name](with_aux(function) if "grad" in name else function, model)


@pytest.mark.parametrize("name", WAYS)
def test_it_runs_and_commits(name):
    model = Counting()
    assert float(apply(name, add_one, model)) == 1
    assert float(model.calls.value) == 1


# ----------------------------------------------------------------- threads


@pytest.fixture
def switching_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(count, work):
    barrier = threading.Barrier(count)

    def run(_):
        barrier.wait()
        return work()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


@pytest.mark.parametrize("name", [name for name in WAYS if name not in ("jit, donated", "jit, a stage")])
def test_no_count_is_lost_among_threads(name, switching_often):
    """Donation is left out: what one thread has read, another may have donated, which is an error of JAX."""
    model = Counting()
    seen = [float(n) for found in in_threads(4, lambda: [apply(name, add_one, model) for _ in range(3)]) for n in found]
    assert float(model.calls.value) == 12
    assert sorted(seen) == list(range(1, 13))


@contextlib.contextmanager
def interrupted(function, write):
    """A function; without luck: another thread writes while it runs for the first time."""
    has_begun, has_written = threading.Event(), threading.Event()

    def work():
        has_begun.wait()
        write()
        has_written.set()

    def run(model):
        has_begun.set()
        has_written.wait()
        return function(model)

    other = threading.Thread(target=work)
    other.start()
    try:
        yield run
    finally:
        has_begun.set()
        other.join()


@pytest.mark.parametrize("name", EAGER)
def test_a_conflict_has_the_call_run_again(name):
    model = Counting()
    with interrupted(add_one, lambda: setattr(model.calls, "value", jnp.full((), 10.0))) as function:
        assert float(apply(name, function, model)) == 11
    assert float(model.calls.value) == 11


LOOPS_AND_BRANCHES = {"scan", "fori_loop", "while_loop", "cond", "switch"}
AGAIN = sorted(set(WAYS) - LOOPS_AND_BRANCHES - {"jit, donated", "jit, a stage"})


@pytest.mark.parametrize("name", AGAIN)
@pytest.mark.parametrize("attribute", ["text", "scale"])
def test_a_structure_that_is_another_one_has_the_call_run_again(name, attribute):
    """There is a new attribute, or another Variable of the same value."""
    model = Counting()
    value = "new" if attribute == "text" else dx.Param(model.scale.value)

    def grow(model):
        model.new = dx.Param(model.scale.value)
        return add_one(model)

    with interrupted(grow, lambda: setattr(model, attribute, value)) as function:
        assert float(apply(name, function, model)) == 1
    assert getattr(model, attribute) is value
    assert float(model.new.value) == float(model.calls.value) == 1


@pytest.mark.parametrize("name", [*EAGER, "jit"])
def test_a_write_to_a_variable_that_was_replaced_is_not_lost(name):
    model = Counting()
    with interrupted(add_one, lambda: setattr(model, "calls", dx.Variable(jnp.full((), 10.0)))) as function:
        assert float(apply(name, function, model)) == 11
    assert float(model.calls.value) == 11


def add_one_below(model):
    model.part.count = model.part.count + 1
    return model.part.count


@pytest.mark.parametrize("name", [*EAGER, "jit"])
def test_a_write_to_a_node_that_was_replaced_is_not_lost(name):
    model = Counting()
    model.part, other = dx.Module(), dx.Module()
    model.part.count, other.count = jnp.zeros(()), jnp.full((), 10.0)
    with interrupted(add_one_below, lambda: setattr(model, "part", other)) as function:
        assert float(apply(name, function, model)) == 11
    assert float(model.part.count) == float(other.count) == 11


def add_one_in_a_list(model):
    model.items[0] = model.items[0] + 1
    return model.items[0]


@pytest.mark.parametrize("name", AGAIN)
def test_a_write_to_an_array_in_a_list_is_not_lost(name):
    model, step = Counting(), dx.jit(add_one_in_a_list)
    model.items = dx.data([jnp.zeros(())])
    with interrupted(add_one_in_a_list, lambda: step(model)) as function:
        assert float(apply(name, function, model)) == 2
    assert float(model.items[0]) == 2


def test_a_structure_that_a_call_does_not_write_may_change(monkeypatch):
    """A callback may set a static attribute of the model at each run, so a run again would not help."""
    monkeypatch.setattr(commit, "MAX_RUNS", 1)
    model = Counting()
    with interrupted(add_one, lambda: setattr(model, "text", "new")) as function:
        assert float(apply("jit", function, model)) == 1
    assert (float(model.calls.value), model.text) == (1, "new")


# ----------------------------------------------------------------- what fails


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("name", WAYS)
def test_an_exception_leaves_all_as_it_was(name, error):
    model = Counting()
    before = dx.state(model, copy=True)

    def fail(model):
        add_one(model)
        model.new = dx.Param(1.0)
        raise error("in the middle of it")

    with pytest.raises(error, match="in the middle of it"):
        apply(name, fail, model)
    assert dx.state(model) == before


COMPILED = {"jit", "jit, a stage", "shard_map", "pmap", *LOOPS_AND_BRANCHES}


@pytest.mark.parametrize("name", sorted(COMPILED))
def test_a_failing_callback_leaves_all_as_it_was(name):
    """Eager transforms do not know the programs that they run; a donated buffer is gone (see test_stages)."""
    model = Counting()
    before = dx.state(model, copy=True)

    def fail(_):
        raise ValueError("the callback failed")

    def function(model):
        add_one(model)
        x = jnp.ones((64, 64)) * model.calls.value
        for _ in range(20):
            x = x @ x / 64
        jax.debug.callback(fail, x)
        return x.sum()

    def run():
        apply(name, function, model)
        jax.effects_barrier()

    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="the callback failed"):
        run()
    assert dx.state(model) == before


@jax.jit
def slow(x):
    """A number that is still computed when the call of this function is over."""
    y = jnp.zeros((400, 400)) * x
    for _ in range(10):
        y = y @ y / 400
    return x + 0 * y.sum()


def fails_at_2(x):
    if x == 2:
        raise ValueError("the callback failed")
    return np.asarray(x)


@pytest.fixture
def tokens_gone():
    yield
    with contextlib.suppress(Exception):
        jax.effects_barrier()
    dispatch.runtime_tokens.clear()  # a version of JAX keeps those that have failed, and raises again at the end


@pytest.mark.parametrize("donated", [None, 0], ids=["kept", "donated"])
@pytest.mark.parametrize("rounds", [1, 2], ids=["second", "later"])
def test_a_callback_that_only_some_shapes_have(donated, rounds, tokens_gone):
    model = Counting()

    @dx.jit(donate_argnums=donated)
    def count(model, x):
        add_one(model)
        if x.shape == (2,):
            jax.debug.callback(fails_at_2, slow(x[0]))

    for _ in range(rounds):
        count(model, jnp.zeros(1))
    before = model.calls.raw_value
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="the callback failed"):
        count(model, jnp.full(2, 2.0))
    assert model.calls.raw_value is before
    assert count.num_traces == 2


def test_a_step_without_callbacks_is_not_waited_for(monkeypatch):
    """A `jax.debug.print` anywhere else must not make a training loop wait for each of its steps."""
    jax.jit(lambda x: jax.debug.callback(lambda x: None, x))(1.0)
    jax.effects_barrier()
    monkeypatch.setattr(programs, "wait", lambda _: pytest.fail("the step was waited for"))
    model = Counting()
    step = dx.jit(add_one)
    assert [float(step(model)), float(step(model))] == [1, 2]


def step_whose_callback_writes(model, runs):
    class Hiding:  # captures do not look into classes
        calls = model.calls

    def write(_):
        runs.append(1)
        Hiding.calls.value = jnp.full((), 10.0 * len(runs))

    @dx.jit
    def step(model):
        add_one(model)
        jax.debug.callback(write, model.scale.value)

    return step


def test_a_callback_that_writes_what_the_function_writes_is_refused_at_once():
    model, runs = Counting(), []
    step = step_whose_callback_writes(model, runs)
    with pytest.raises(dx.errors.TransformError, match=r"model\.calls: a callback of the function wrote this"):
        step(model)
    assert (float(model.calls.value), len(runs)) == (10.0, 1)


@pytest.mark.parametrize("is_first", [True, False])
def test_the_error_of_a_callback_names_a_variable_that_is_an_argument(is_first):
    total, runs = dx.Variable(jnp.array(1.0)), []

    def write(value):
        runs.append(1)
        if not is_first and len(runs) == 1:
            return
        total.value = jnp.array(10.0)

    @dx.jit
    def step(total):
        total += 1
        jax.debug.callback(write, total.value)

    if not is_first:  # the second call takes the shorter way
        step(total)
    with pytest.raises(dx.errors.TransformError, match=r"^total: a callback of the function wrote this"):
        step(total)
    assert (float(total.value), len(runs)) == (10.0, 2 - is_first)


def test_a_callback_that_writes_beside_other_threads_is_refused_in_the_end(monkeypatch):
    """Any of them may have written."""
    monkeypatch.setattr(commit, "MAX_RUNS", 3)
    model, runs, is_done = Counting(), [], threading.Event()
    step = step_whose_callback_writes(model, runs)
    other = threading.Thread(target=is_done.wait)
    other.start()
    try:
        with pytest.raises(
            dx.errors.TransformError, match="other threads wrote what it is about to write during each of 3"
        ):
            step(model)
    finally:
        is_done.set()
        other.join()
    assert (float(model.calls.value), len(runs)) == (30.0, 3)


# ----------------------------------------------------------------- what other threads see


class WithArray(Counting):
    """Half of what counts the calls is a plain array."""

    def __init__(self):
        super().__init__()
        self.many = dx.List([dx.Param(jnp.array(0)) for _ in range(4)])
        self.plain = jnp.array(0)


def test_a_thread_that_reads_sees_whole_steps_also_of_plain_arrays(switching_often):
    model, stop, torn = WithArray(), threading.Event(), []

    @dx.jit
    def train(model):
        for part in model.many:
            part.value += 1
        model.plain = model.plain + 1

    evaluate = dx.jit(lambda model: ([part.value for part in model.many], model.plain))

    def watch():
        while not stop.is_set():
            many, plain = evaluate(model)
            if {*map(int, many)} != {int(plain)}:
                torn.append((many, plain))

    threads = [threading.Thread(target=watch) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(1500):
        train(model)
    stop.set()
    for thread in threads:
        thread.join()
    assert not torn
    assert int(model.plain) == 1500


def test_only_what_a_call_writes_is_compared():
    """Each of two calls reads what the other writes, and neither runs again: write skew is allowed."""
    model, first_has_read, second_is_done = Counting(), threading.Event(), threading.Event()

    @dx.jit
    def set_calls(model):
        first_has_read.set()
        second_is_done.wait()
        model.calls.value = model.scale.value + 1

    thread = threading.Thread(target=set_calls, args=(model,))
    thread.start()
    first_has_read.wait()
    dx.jit(lambda model: setattr(model.scale, "value", model.calls.value + 1))(model)
    second_is_done.set()
    thread.join()
    assert (float(model.calls.value), float(model.scale.value)) == (2.0, 1.0)
