"""What `_jax` takes of jax that is private: tells when one of these names moves."""

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
