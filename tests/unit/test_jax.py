"""What `_jax` takes of jax that is private: tells when one of these names moves."""

import contextlib
import sys
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


class Probe:
    """Records what jax asks of an argument."""

    def __init__(self):
        self.names = []
        self.is_checked = False

    @property
    def __jax_array__(self):
        self.is_checked = self.is_checked or _jax.is_argument_check(sys._getframe(1))
        raise AttributeError("__jax_array__")

    def __getattr__(self, name):
        self.names.append(name)
        raise AttributeError(name)


@pytest.mark.parametrize("function", [jnp.add, jnp.maximum, jnp.where])
def test_functions_of_jax_numpy_check_their_arguments(function):
    probe = Probe()
    with pytest.raises(TypeError):
        function(*[probe] * (3 if function is jnp.where else 2))
    assert probe.is_checked


@pytest.mark.parametrize("probing", [jax.dtypes.result_type, jax.jit(lambda x: x), jax.tree.leaves])
def test_other_parts_of_jax_only_probe(probing):
    probe = Probe()
    with contextlib.suppress(TypeError):
        probing(probe)
    assert not probe.is_checked


@pytest.mark.parametrize("function", [jnp.sin, jnp.sum, jnp.zeros, jax.jit(lambda x: x)])
def test_the_attributes_that_jax_asks_of_arguments(function):
    probe = Probe()
    with pytest.raises(TypeError):
        function(probe)
    assert _jax.PROBED & set(probe.names)


def test_tracebacks_of_traced_functions_hide_the_frames_of_declax():
    layer = dx.Linear(2, 3, rngs=dx.Rngs(0))
    with pytest.raises(dx.errors.LayerError) as caught:
        dx.jit(lambda layer, x: layer(x))(layer, jnp.ones((2, 8)))
    frames, traceback = [], caught.value.__traceback__
    while traceback is not None:
        frames.append(Path(traceback.tb_frame.f_code.co_filename).name)
        traceback = traceback.tb_next
    assert set(frames) == {"test_jax.py", "compilation.py"}  # JAX filters from its own call on
    assert frames[-1] == "test_jax.py"
