"""What `_jax` takes of jax that is private: tells when one of these names moves."""

import functools
import sys
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import declax as dx
from declax import _jax


def test_the_mark_of_the_top_level():
    assert _jax.current_trace() is _jax.trace_state.value is _jax.TOP


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.grad, jax.checkpoint])
def test_a_trace_has_one_mark(transform):
    marks = []

    def f(x):
        marks.append((_jax.current_trace(), _jax.trace_state.get_local(), x._trace._weakref))
        return x * 2

    transform(f)(jnp.ones(2) if transform is jax.vmap else 1.0)
    ((current, local, of_tracer),) = marks
    assert current is local is of_tracer
    assert current is not _jax.TOP


def test_the_class_of_arrays():
    assert type(jnp.ones(2)) is _jax.ArrayImpl


class Net(dx.Module):
    def __init__(self, fault):
        self.part = dx.Sequential(dx.Linear(2, 3, rngs=dx.Rngs(0)), fault)

    def __call__(self, x):
        return self.part(x).sum()


def wrong(*_):
    raise ZeroDivisionError


def deferred():
    return dx.Linear(2, 3, kernel_init=wrong, rngs=dx.Rngs(0))


def frames_of(function, *args):
    """The file and the function of each frame in the traceback of a call, after that of this function."""
    with pytest.raises((dx.errors.LayerError, ZeroDivisionError, TypeError)) as caught:
        function(*args)
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    return [(Path(frame.f_code.co_filename).name, frame.f_code.co_name) for frame in frames[1:]]


def call(net, x):
    return net(x)


HERE = Path(__file__).name
STEPS = [(HERE, "call"), (HERE, "__call__")]
ENTRIES = {
    "eager": (call, None),
    "jit": (dx.jit(call), None),
    "jit of grad": (dx.jit(dx.grad(call)), None),
    "eval_shape": (functools.partial(dx.eval_shape, call), None),
    "grad": (dx.grad(call), None),
    "remat": (dx.remat(call), "__call__"),
    "vmap": (dx.vmap(call, in_axes=(None, 0)), "mapped"),
    "scan": (dx.scan(lambda net, x: (net, call(net, x))), "__call__"),
    "cond": (lambda net, x: dx.cond(True, call, call, net, x), "cond"),
    "fori_loop": (lambda net, x: dx.fori_loop(0, 2, lambda _, net: (net, call(net, x))[0], net), "fori_loop"),
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("fault", ["of declax", "of the user"])
def test_tracebacks_hide_the_frames_of_declax(entry, fault):
    function, shown = ENTRIES[entry]
    x = jnp.ones((4, 2, 8 if fault == "of declax" else 2))
    frames = frames_of(function, Net(dx.Linear(3, 3, rngs=dx.Rngs(0)) if fault == "of declax" else wrong), x)
    of_declax = [name for file, name in frames if file != HERE]
    assert of_declax == ([] if shown is None else [shown])  # the function that was called
    own = [frame for frame in frames if frame[0] == HERE and frame[1] != "<lambda>"]
    assert own == (STEPS if fault == "of declax" else [*STEPS, (HERE, "wrong")])


def test_tracebacks_of_constructors_hide_the_frames_of_declax():
    assert frames_of(functools.partial(dx.Linear, rngs=dx.Rngs(0)), 0, 3) == []
    names = [name for _, name in frames_of(deferred)]
    assert names[0] == "deferred"
    assert names[-1] == "wrong"
    assert len(names) <= 3


def test_an_error_of_python_keeps_the_frame_that_raised_it():
    layer = dx.Linear(2, 3, promote_dtype=int, rngs=dx.Rngs(0))
    assert frames_of(call, layer, jnp.ones((4, 2))) == [(HERE, "call"), ("linear.py", "__call__")]


def test_jax_traceback_filtering_shows_all_frames():
    net, x = Net(wrong), jnp.ones((4, 2))
    usual = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    try:
        assert ("running.py", "__call__") in frames_of(call, net, x)
        assert ("compilation.py", "_slow_path") in frames_of(dx.jit(call), net, x)
    finally:
        jax.config.update("jax_traceback_filtering", usual)


def test_the_functions_that_make_arrays_of_their_arguments():
    asking = []

    class Probe:
        def __getattr__(self, name):
            asking.append((name, sys._getframe(1).f_globals["__name__"]))
            raise AttributeError(name)

        def __rmul__(self, other):
            return "reflected"

    with pytest.raises(TypeError, match="requires ndarray"):
        jnp.arange(Probe())
    assert any(name == "__jax_array__" and _jax.converts_to_array(module) for name, module in asking)
    asking.clear()
    assert jnp.ones(2) * Probe() == "reflected"
    assert not [name for name, module in asking if _jax.converts_to_array(module)]


def test_what_a_user_has_placed():
    there = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    found = []

    @jax.jit
    def f(x):
        mesh = jax.make_mesh((1,), ("a",), axis_types=(jax.sharding.AxisType.Auto,))
        constrained = jax.lax.with_sharding_constraint(x, jax.NamedSharding(mesh, jax.P()))
        found.extend(map(_jax.is_placed, (constrained, jax.device_put(x, there), jax.device_put(x), x + 1, x, 1.0)))
        return x

    assert _jax.num_compiled(f) == 0
    f(jnp.ones(2))
    assert found == [True, True, False, False, False, False]
    assert _jax.num_compiled(f) == 1


def test_what_a_cluster_is(monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert not _jax.is_on_a_cluster()
    monkeypatch.setenv("OMPI_MCA_orte_hnp_uri", "1;tcp://10.0.0.1:1234")
    assert _jax.is_on_a_cluster()


def test_the_first_of_one_process():
    assert _jax.first_to_say("key", "0") == "0"
