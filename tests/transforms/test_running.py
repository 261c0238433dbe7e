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

import declax as dx
from declax import _jax
from declax.transforms import _running
from declax.transforms.differentials import jvp, vjp


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


@pytest.mark.parametrize("name", sorted(set(WAYS) - {"grad", "value_and_grad", "vjp", "jvp", "jit, donated"}))
def test_a_failing_callback_leaves_all_as_it_was(name):
    """Those that differentiate have no rule for callbacks; a donated buffer is gone (see test_stages)."""
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


# ----------------------------------------------------------------- callbacks in what runs eagerly


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


def jitted_with(callback, jit=jax.jit):
    def function(x):
        if callback == "debug_callback":
            jax.debug.callback(fails_at_2, x)
            return x
        if callback == "pure_callback":
            return jax.pure_callback(fails_at_2, jax.ShapeDtypeStruct((), x.dtype), x, vmap_method="sequential")
        return jax.experimental.io_callback(fails_at_2, jax.ShapeDtypeStruct((), x.dtype), x)

    return jit(function)


@pytest.fixture
def tokens_gone():
    yield
    with contextlib.suppress(Exception):
        jax.effects_barrier()
    _jax.forget_callbacks()  # a version of JAX keeps those that have failed, and raises again at the end


def function_with(inner):
    def function(model):
        add_one(model)
        seen = inner(slow(jax.lax.stop_gradient(model.calls.value)))
        return model.scale.value + 0 * seen

    return function


def check_a_late_failure(name, inner):
    model = Counting()
    function = function_with(inner)
    apply(name, function, model)
    before = dx.state(model, copy=True)
    assert float(model.calls.value) == 1
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="the callback failed"):
        apply(name, function, model)
    assert dx.state(model) == before


@pytest.mark.parametrize("callback", ["debug_callback", "pure_callback", "io_callback"])
@pytest.mark.parametrize("name", ["grad", "value_and_grad", "vjp", "jvp", "vmap", "remat", "custom_vjp", "checkify"])
def test_a_callback_that_fails_late_in_a_jitted_function_of_an_eager_one(name, callback, tokens_gone):
    """The program of the jitted function is not known to the transform, which has JAX run what runs eagerly."""
    check_a_late_failure(name, jitted_with(callback))


@pytest.mark.parametrize("name", ["grad", "vmap"])
def test_a_callback_that_fails_late_in_a_lifted_jit(name, tokens_gone):
    check_a_late_failure(name, jitted_with("pure_callback", jit=dx.jit))


def test_the_one_late_failure_that_is_not_waited_for(monkeypatch, tokens_gone):
    """JAX shows that a program has a `pure_callback` when it runs for the first time, and until `effects_barrier`."""
    model, function = Counting(), function_with(jitted_with("pure_callback"))
    apply("vmap", function, model)
    jax.effects_barrier()
    monkeypatch.setattr(_running, "_called_back", False)  # as where it has run in a `jax.vmap`
    result = apply("vmap", function, model)
    assert float(model.calls.value) == 2
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="the callback failed"):
        jax.block_until_ready(result)

    model.calls.value = jnp.ones(())
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="the callback failed"):
        dx.jit(lambda model: apply("vmap", function, model))(model)
    assert float(model.calls.value) == 1


def test_a_failure_of_an_earlier_callback_is_none_of_a_later_call(tokens_gone):
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        jitted_with("debug_callback")(slow(2.0))
    model = Counting()
    assert float(apply("vmap", add_one, model)) == 1
    assert float(model.calls.value) == 1


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


def test_a_compiled_step_is_not_waited_for_because_something_else_has_called_back(monkeypatch):
    """A `jax.debug.print` anywhere must not make a training loop wait for each of its steps."""
    jax.jit(lambda x: jax.debug.callback(lambda x: None, x))(1.0)
    jax.effects_barrier()
    monkeypatch.setattr(_running, "_called_back", True)
    monkeypatch.setattr(_running, "wait", lambda _: pytest.fail("the step was waited for"))
    model = dx.Linear(2, 2, rngs=dx.Rngs(0))

    @dx.jit
    def step(model):
        model.kernel.value = model.kernel.value + 1

    other = threading.Event()
    thread = threading.Thread(target=other.wait)
    thread.start()  # with another thread no call takes the short way
    try:
        step(model)
        step(model)
    finally:
        other.set()
        thread.join()
    with pytest.raises(pytest.fail.Exception, match="waited for"):
        dx.vmap(lambda model, x: setattr(model.kernel, "value", model.kernel.value * 2), in_axes=(None, 0))(
            model, jnp.ones(2)
        )
